// Exponents and sums of integers on grids, as in
// repjax.primitives.operations.products.order_independent.

// Elements that are read, with the step as a constant: 0, 1, or -1 for offsets.
template <int kStep, class Element>
struct Read {
  const Element* __restrict first;
  const int32_t* __restrict offsets;
  const Element only;

  explicit Read(const Along<const Element>& x)
      : first(x.first), offsets(x.offsets), only(kStep == 0 ? *x.first : Element()) {}

  Element operator[](int64_t i) const {
    return kStep == 0 ? only : kStep == 1 ? first[i] : first[offsets[i]];
  }
};

// to = max(to, E(x) + at), and whether all x are finite; the others count as zeros.  Goes along
// elements that lie together, in runs, with the steps as constants.
template <int kAt, int kTo>
static bool largest_of(const float* __restrict x, int64_t runs, int64_t n,
                       Along<const int32_t> others, const Along<int32_t>& to) {
  int32_t* __restrict first = to.first;
  int32_t greatest = 0;
  for (; runs > 0; --runs, x += n, others.first += others.of_run, first += to.of_run) {
    const Read<kAt, int32_t> at(others);
    int32_t largest = kNone;
    if (kAt == 0 && kTo == 0) {  // that of the largest magnitude, if all are finite
      int32_t magnitude = 0;
      for (int64_t i = 0; i < n; ++i) {
        int32_t bits;
        __builtin_memcpy(&bits, x + i, sizeof bits);
        bits &= 0x7FFFFFFF;
        magnitude = bits > magnitude ? bits : magnitude;
      }
      if (magnitude < 0x7F800000) {
        largest = magnitude < 0x00800000 ? kNone : (magnitude >> 23) - 127 + at[0];
        if (largest > first[0]) first[0] = largest;
        continue;
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      int32_t bits;
      __builtin_memcpy(&bits, x + i, sizeof bits);
      const int32_t magnitude = bits & 0x7FFFFFFF;
      greatest = magnitude > greatest ? magnitude : greatest;
      const bool counts = uint32_t(magnitude) - 0x00800000 < 0x7F000000;  // normal numbers
      const int32_t here = counts ? (magnitude >> 23) - 127 + at[i] : kNone;
      if (kTo == 0) {
        largest = here > largest ? here : largest;
      } else {
        int32_t& old = first[kTo == 1 ? i : to.offsets[i]];
        old = here > old ? here : old;
      }
    }
    if (kTo == 0 && largest > first[0]) first[0] = largest;
  }
  return greatest < 0x7F800000;
}

typedef int32_t Words __attribute__((vector_size(8 * kLanes)));
constexpr int64_t kWords = sizeof(Words) / sizeof(int32_t);

static inline Words words_at(const void* x) {
  Words words;
  __builtin_memcpy(&words, x, sizeof words);
  return words;
}

static inline Words larger(Words x, Words y) { return x > y ? x : y; }

// E + at of numbers of these magnitudes, kNone of what does not count.
static inline Words exponents(Words magnitude, Words at) {
  typedef uint32_t Unsigned __attribute__((vector_size(8 * kLanes)));
  const auto counts = (Unsigned)magnitude - 0x00800000 < 0x7F000000;
  return counts ? (magnitude >> 23) - 127 + at : Words{} + kNone;
}

static inline int32_t largest_word(Words x) {
  int32_t largest = x[0];
  for (int i = 1; i < kWords; ++i) largest = x[i] > largest ? x[i] : largest;
  return largest;
}

// largest_of where others and results lie as in a matrix: results that are those of the rows, of
// elements with others that lie together, or those of columns, of rows with one other each.
static bool largest_of_rows(const float* x, int64_t runs, int64_t n, Along<const int32_t> others,
                            const Along<int32_t>& to) {
  const int64_t whole = n / kWords * kWords;
  Words greatest = {};
  bool finite = true;
  int32_t* first = to.first;
  for (; runs > 0; --runs, x += n, others.first += others.of_run, first += to.of_run) {
    Words largest = Words{} + kNone, of_run = {};
    for (int64_t i = 0; i < whole; i += kWords) {
      const Words magnitude = words_at(x + i) & 0x7FFFFFFF;
      of_run = larger(of_run, magnitude);
      largest = larger(largest, exponents(magnitude, words_at(others.first + i)));
    }
    greatest = larger(greatest, of_run);
    const int32_t here = largest_word(largest);
    first[0] = here > first[0] ? here : first[0];
    Along<const int32_t> rest = others;
    rest.first += whole;
    finite &= largest_of<1, 0>(x + whole, 1, n - whole, rest, {first, 0, nullptr, 0});
  }
  return finite && largest_word(greatest) < 0x7F800000;
}

static bool largest_of_columns(const float* x, int64_t runs, int64_t n,
                               Along<const int32_t> others, const Along<int32_t>& to) {
  constexpr int64_t kTogether = 8;  // rows, for which results stay in registers
  constexpr int kVectors = 4;
  const int64_t whole = n / (kVectors * kWords) * (kVectors * kWords);
  Words greatest = {};
  bool finite = true;
  for (; runs > 0; runs -= kTogether, x += kTogether * n) {
    const int64_t rows = runs < kTogether ? runs : kTogether;
    for (int64_t j = 0; j < whole; j += kVectors * kWords) {
      Words largest[kVectors], of_block = {};
      for (int v = 0; v < kVectors; ++v) largest[v] = words_at(to.first + j + v * kWords);
      for (int64_t i = 0; i < rows; ++i) {
        const Words at = Words{} + others.first[i * others.of_run];
        for (int v = 0; v < kVectors; ++v) {
          const Words magnitude = words_at(x + i * n + j + v * kWords) & 0x7FFFFFFF;
          of_block = larger(of_block, magnitude);
          largest[v] = larger(largest[v], exponents(magnitude, at));
        }
      }
      greatest = larger(greatest, of_block);
      for (int v = 0; v < kVectors; ++v) {
        __builtin_memcpy(to.first + j + v * kWords, &largest[v], sizeof(Words));
      }
    }
    for (int64_t i = 0; i < rows; ++i, others.first += others.of_run) {
      finite &= largest_of<0, 1>(x + i * n + whole, 1, n - whole, others,
                                 {to.first + whole, 1, nullptr, 0});
    }
  }
  return finite && largest_word(greatest) < 0x7F800000;
}

template <int kAt>
static bool largest_at(const float* x, int64_t runs, int64_t n, const Along<const int32_t>& at,
                       const Along<int32_t>& to) {
  if (to.offsets) return largest_of<kAt, -1>(x, runs, n, at, to);
  if (kAt == 1 && to.step == 0) return largest_of_rows(x, runs, n, at, to);
  if (kAt == 0 && to.step == 1 && to.of_run == 0) return largest_of_columns(x, runs, n, at, to);
  return to.step == 0 ? largest_of<kAt, 0>(x, runs, n, at, to)
                      : largest_of<kAt, 1>(x, runs, n, at, to);
}

static bool largest(const float* x, int64_t runs, int64_t n, Along<const int32_t> at,
                    Along<int32_t> to) {
  if (at.offsets) return largest_at<-1>(x, runs, n, at, to);
  return at.step == 0 ? largest_at<0>(x, runs, n, at, to) : largest_at<1>(x, runs, n, at, to);
}

// high * 2**32 + low += sums, whose shift is kLow.
static void carry(Sum sums, int64_t n, int64_t* high, int64_t* low) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t h = sums.high[i], l = sums.low[i];
    high[i] += (h >> (32 - kLow)) + (l >> 32);
    low[i] += ((h & ((1 << (32 - kLow)) - 1)) << kLow) + (l & 0xFFFFFFFF);
  }
}

// total * scale rounded to nearest even, with the guard of repjax.primitives.core.canonical.
static inline float scaled(int64_t total, double scale) {
  // Rounded once: what the second conversion rounds is infinite or flushed.
  const float rounded = float(total);
  const float result = float(double(rounded) * scale);
  int32_t bits;
  __builtin_memcpy(&bits, &result, sizeof bits);
  bits = (bits & 0x7FFFFFFF) <= 0x00800000 ? 0 : bits;
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// x[i][j] = sums[i * step + j] * rows[i] * columns[j], powers of two, rounded to nearest even.
static void scale(const Sum& sums, int64_t step, int64_t m, int64_t n, const double* rows,
                  const double* __restrict columns, float* const* to) {
  for (int64_t i = 0; i < m; ++i) {
    const int64_t* __restrict const low_words = sums.low + i * step;
    const int64_t* __restrict const high_words = sums.high ? sums.high + i * step : nullptr;
    float* __restrict const x = to[i];
    const double row = rows[i];
    if (!high_words) {
      for (int64_t j = 0; j < n; ++j) x[j] = scaled(low_words[j], row * columns[j]);
      continue;
    }
    const int64_t mask = (int64_t(1) << sums.shift) - 1, limit = int64_t(1) << (62 - sums.shift);
    const double unit = double(int64_t(1) << (sums.shift - 1));
    for (int64_t j = 0; j < n; ++j) {
      const int64_t low = low_words[j] & mask, high = high_words[j] + (low_words[j] >> sums.shift);
      // The lower word of a large sum only matters in whether it is zero.
      const bool large = high >= limit || high < -limit;
      const int64_t total = large ? 2 * high | (low != 0) : high * (mask + 1) + low;
      x[j] = scaled(total, row * columns[j] * (large ? unit : 1));
    }
  }
}

static const Grids kGrids = {largest, carry, scale};
