// FMA chains for one instruction set, which the including file names.
//
// Included once per instruction set by contract.cc, inside a namespace and under the
// compiler's target options.  Expects
//
//   kLanes                     floats of a vector
//   kVectors                   the most vectors of a row of accumulators
//   Rows(vectors)              the most rows of accumulators of so many vectors
//   Vector, fma(a, b, c), broadcast(x)
//
// Every output has one accumulator and its own chain of fused multiply-adds, k ascending.
// Blocks of k go through memory as binary32, which changes no bits.

typedef int32_t Bits __attribute__((vector_size(4 * kLanes)));

// As repjax.primitives.canonical.guard: NaN has one pattern, and up to the smallest normal
// number in magnitude everything is +0.
static inline Vector guard(Vector x) {
  Bits bits, zero = {};
  __builtin_memcpy(&bits, &x, sizeof bits);
  Bits magnitude = bits & (zero + 0x7FFFFFFF);
  Bits is_nan = magnitude > (zero + 0x7F800000);
  Bits kept = (magnitude > (zero + 0x00800000)) & ~is_nan;
  bits = (bits & kept) | (is_nan & (zero + 0x7FC00000));
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

static inline Vector load(const float* p) {
  Vector x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

static inline void store(float* p, Vector x) { __builtin_memcpy(p, &x, sizeof x); }

// rows[m][0 : vectors * kLanes] continues its chains over the terms [0, terms):
// lhs[m][lhs_k[k]] * rhs[rhs_k[k] + lane].
template <int kRows, int kColumns>
static void tile(int64_t terms, const float* const* lhs, const int64_t* lhs_k, const float* rhs,
                 const int64_t* rhs_k, float* const* rows, bool first, bool last) {
  Vector s[kRows][kColumns];
  const float* x[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    x[m] = lhs[m];
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) {
      s[m][v] = first ? broadcast(0.0f) : load(rows[m] + v * kLanes);
    }
  }
  for (int64_t k = 0; k < terms; ++k) {
    const float* y = rhs + rhs_k[k];
    const int64_t at = lhs_k[k];
    Vector b[kColumns];
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) b[v] = load(y + v * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      Vector a = broadcast(x[m][at]);
#pragma GCC unroll 4
      for (int v = 0; v < kColumns; ++v) s[m][v] = fma(a, b[v], s[m][v]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) {
      store(rows[m] + v * kLanes, last ? guard(s[m][v]) : s[m][v]);
    }
  }
}

// The tile with the most rows that `rows` allows.
template <int kColumns, int kRows>
static Tile choose(int64_t rows) {
  if constexpr (kRows == 1) {
    return {1, tile<1, kColumns>};
  } else {
    if (rows >= kRows) return {kRows, tile<kRows, kColumns>};
    constexpr int fewer = kRows > 8 ? 8 : kRows > 6 ? 6 : kRows > 4 ? 4 : kRows - 1;
    return choose<kColumns, fewer>(rows);
  }
}

static Tile tile_for(int vectors, int64_t rows) {
  switch (vectors) {
    case 1: return choose<1, Rows(1)>(rows);
    case 2: return choose<2, Rows(2)>(rows);
    case 3: return choose<(kVectors >= 3 ? 3 : 1), Rows(kVectors >= 3 ? 3 : 1)>(rows);
    default: return choose<(kVectors >= 4 ? 4 : 1), Rows(kVectors >= 4 ? 4 : 1)>(rows);
  }
}

// to[i * width + j] = from[a[i] + b[j]], +0 from `columns` to the width of a panel: a panel of the right operand, its columns together.
static void pack(const float* from, const int64_t* a, int64_t rows, const int64_t* b, int64_t columns,
          float* to) {
  constexpr int64_t width = kLanes * kVectors;
  if (columns < width) __builtin_memset(to, 0, sizeof(float) * rows * width);
  if (contiguous(b, columns)) {
    from += b[0];
    if (columns == width) {
      for (int64_t i = 0; i < rows; ++i) {
        for (int v = 0; v < kVectors; ++v) {
          store(to + i * width + v * kLanes, load(from + a[i] + v * kLanes));
        }
      }
    } else {
      for (int64_t i = 0; i < rows; ++i) {
        for (int64_t j = 0; j < columns; ++j) to[i * width + j] = from[a[i] + j];
      }
    }
    return;
  }
  typedef float Four __attribute__((vector_size(16)));
  typedef int32_t Lanes __attribute__((vector_size(16)));
  int64_t i = 0;
  for (; i + 4 <= rows && contiguous(a + i, 4); i += 4) {
    const float* source = from + a[i];
    int64_t j = 0;
    for (; j + 4 <= columns; j += 4) {
      Four x[4];
      for (int l = 0; l < 4; ++l) __builtin_memcpy(&x[l], source + b[j + l], sizeof(Four));
      Four p = __builtin_shuffle(x[0], x[1], Lanes{0, 4, 1, 5});
      Four q = __builtin_shuffle(x[2], x[3], Lanes{0, 4, 1, 5});
      Four r = __builtin_shuffle(x[0], x[1], Lanes{2, 6, 3, 7});
      Four s = __builtin_shuffle(x[2], x[3], Lanes{2, 6, 3, 7});
      const Four columns_of[4] = {__builtin_shuffle(p, q, Lanes{0, 1, 4, 5}),
                                  __builtin_shuffle(p, q, Lanes{2, 3, 6, 7}),
                                  __builtin_shuffle(r, s, Lanes{0, 1, 4, 5}),
                                  __builtin_shuffle(r, s, Lanes{2, 3, 6, 7})};
      for (int l = 0; l < 4; ++l) {
        __builtin_memcpy(to + (i + l) * width + j, &columns_of[l], sizeof(Four));
      }
    }
    for (; j < columns; ++j) {
      for (int l = 0; l < 4; ++l) to[(i + l) * width + j] = source[b[j] + l];
    }
  }
  for (; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[i * width + j] = from[a[i] + b[j]];
  }
}

static const InstructionSet kInstructionSet = {kName, kLanes, kVectors, tile_for, pack};
