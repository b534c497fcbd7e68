// Sums of float32 that are rounded to the grid of the largest, of order_independent sums.
//
// A number of float64 that is 2**52 and half as much times the step of a grid has its last bit where
// the grid has it: what is added to it is rounded to the grid, ties to even, and the bits of the sum,
// as an integer, are those of the number and so many steps more.

namespace grid_sums {

// Of float32, as many numbers as a vector has bytes for.
typedef int32_t Words __attribute__((vector_size(8 * kLanes)));
constexpr int kWords = 2 * kLanes, kStreams = 4;

static inline Words magnitudes(const float* x, int64_t count) {
  Words bits = {};
  __builtin_memcpy(&bits, x, sizeof(float) * count);
  return bits & 0x7FFFFFFF;
}

static inline Words larger(Words a, Words b) { return a > b ? a : b; }

static inline Vector widen_some(const float* x, int64_t count) {
  float some[kLanes] = {};
  __builtin_memcpy(some, x, sizeof(float) * count);
  return widen(some);
}

static int32_t largest(const float* x, int64_t n) {
  Words most[kStreams] = {};
  int64_t k = 0;
  for (; k + kStreams * kWords <= n; k += kStreams * kWords) {
#pragma GCC unroll 4
    for (int i = 0; i < kStreams; ++i) {
      most[i] = larger(most[i], magnitudes(x + k + i * kWords, kWords));
    }
  }
  for (; k < n; k += kWords) {
    most[0] = larger(most[0], magnitudes(x + k, n - k < kWords ? n - k : kWords));
  }
  for (int i = 1; i < kStreams; ++i) most[0] = larger(most[0], most[i]);
  int32_t result = 0;
  for (int i = 0; i < kWords; ++i) result = most[0][i] > result ? most[0][i] : result;
  return result;
}

template <int kSome>
static void largest_of_some(const float* x, int64_t rows, int64_t row, int64_t columns,
                            int32_t* to) {
  Words most[kSome] = {};
  __builtin_memcpy(most, to, sizeof(int32_t) * columns);
  for (int64_t i = 0; i < rows; ++i, x += row) {
#pragma GCC unroll 4
    for (int v = 0; v < kSome; ++v) {
      const bool whole = columns == kSome * kWords;
      most[v] = larger(most[v], magnitudes(x + v * kWords, whole ? kWords : columns));
    }
  }
  __builtin_memcpy(to, most, sizeof(int32_t) * columns);
}

static void largest_of_columns(const float* x, int64_t rows, int64_t row, int64_t columns,
                               int32_t* to) {
  int64_t c = 0;
  for (; c + 4 * kWords <= columns; c += 4 * kWords) {
    largest_of_some<4>(x + c, rows, row, 4 * kWords, to + c);
  }
  for (; c < columns; c += kWords) {
    const int64_t here = columns - c < kWords ? columns - c : kWords;
    largest_of_some<1>(x + c, rows, row, here, to + c);
  }
}

// The bits of the sum of x and a number of a grid; in sums of such bits, each has those of the number
// too many.
static inline Bits on_grid(Vector x, Vector grid) { return (Bits)(x + grid); }

static int64_t bits_of(double x) {
  int64_t bits;
  __builtin_memcpy(&bits, &x, sizeof x);
  return bits;
}

// The sum of n elements, in steps of the grid of which this is the number.
static int64_t sum(const float* x, int64_t n, double number) {
  const Vector grid = broadcast(number);
  Bits sums[kStreams] = {};
  int64_t k = 0;
  for (; k + kStreams * kLanes <= n; k += kStreams * kLanes) {
#pragma GCC unroll 4
    for (int i = 0; i < kStreams; ++i) sums[i] += on_grid(widen(x + k + i * kLanes), grid);
  }
  for (; k + kLanes <= n; k += kLanes) sums[0] += on_grid(widen(x + k), grid);
  // What is filled up with zeros has the bits of the number, too.
  if (k < n) sums[0] += on_grid(widen_some(x + k, n - k), grid);
  for (int i = 1; i < kStreams; ++i) sums[0] += sums[i];
  uint64_t total = -uint64_t(bits_of(number)) * uint64_t((n + kLanes - 1) / kLanes * kLanes);
  for (int i = 0; i < kLanes; ++i) total += uint64_t(sums[0][i]);
  return int64_t(total);
}

// Adds the sums of so many vectors of columns, or of some of one, each on a grid of its own.
template <int kSome>
static void sum_of_some(const float* x, int64_t rows, int64_t row, int64_t columns,
                        const double* numbers, int64_t* to) {
  const bool whole = columns == kSome * kLanes;
  Vector grids[kSome] = {};
  Bits sums[kSome] = {};
  __builtin_memcpy(grids, numbers, sizeof(double) * columns);
  __builtin_memcpy(sums, to, sizeof(int64_t) * columns);
  for (int64_t i = 0; i < rows; ++i, x += row) {
#pragma GCC unroll 4
    for (int v = 0; v < kSome; ++v) {
      sums[v] += on_grid(whole ? widen(x + v * kLanes) : widen_some(x, columns), grids[v]);
    }
  }
  for (int v = 0; v < kSome; ++v) sums[v] -= (Bits)grids[v] * rows;
  __builtin_memcpy(to, sums, sizeof(int64_t) * columns);
}

static void sum_of_columns(const float* x, int64_t rows, int64_t row, int64_t columns,
                           const double* numbers, int64_t* to) {
  int64_t c = 0;
  for (; c + 4 * kLanes <= columns; c += 4 * kLanes) {
    sum_of_some<4>(x + c, rows, row, 4 * kLanes, numbers + c, to + c);
  }
  for (; c < columns; c += kLanes) {
    const int64_t here = columns - c < kLanes ? columns - c : kLanes;
    sum_of_some<1>(x + c, rows, row, here, numbers + c, to + c);
  }
}

static float rounded(int64_t total, double step) { return scaled(total, step); }

static const GridSums kGridSums = {kWords, largest, largest_of_columns, sum, sum_of_columns,
                                   rounded};

}  // namespace grid_sums
