// FMA chains of one kind of number for one instruction set, which the including file names.
//
// Included by contract.cc for each pair, inside a namespace and under the compiler's target
// options.  Expects
//
//   Element, Result            of the operands, and of what is stored
//   kLanes                     elements of a vector
//   kVectors                   the most vectors of a row of accumulators
//   Rows(vectors)              the most rows of accumulators of so many vectors
//   Vector, fma(a, b, c), broadcast(x)
//   begin(from, first)         the accumulator at the first or a later block of terms
//   end(to, s, first, last)    stores it after the block
//
// Every output has one accumulator and its own chain of fused multiply-adds, k ascending.

static inline Vector load(const Element* p) {
  Vector x;
  __builtin_memcpy(&x, p, sizeof x);
  return x;
}

static inline void store(Element* p, Vector x) { __builtin_memcpy(p, &x, sizeof x); }

// rows[m][0 : vectors * kLanes] continues its chains over the terms [0, terms):
// lhs[m][lhs_k[k]] * rhs[rhs_k[k] + lane].
template <int kRows, int kColumns>
static void tile(int64_t terms, const Element* const* lhs, const int64_t* lhs_k,
                 const Element* rhs, const int64_t* rhs_k, Result* const* rows, bool first,
                 bool last) {
  Vector s[kRows][kColumns];
  const Element* x[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    x[m] = lhs[m];
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) {
      s[m][v] = begin(rows[m] + v * kLanes, first);
    }
  }
  for (int64_t k = 0; k < terms; ++k) {
    const Element* y = rhs + rhs_k[k];
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
      end(rows[m] + v * kLanes, s[m][v], first, last);
    }
  }
}

// The tile with the most rows that `rows` allows.
template <int kColumns, int kRows>
static Tile<Element, Result> choose(int64_t rows) {
  if constexpr (kRows == 1) {
    return {1, tile<1, kColumns>};
  } else {
    if (rows >= kRows) return {kRows, tile<kRows, kColumns>};
    constexpr int fewer = kRows > 8 ? 8 : kRows > 6 ? 6 : kRows > 4 ? 4 : kRows - 1;
    return choose<kColumns, fewer>(rows);
  }
}

static Tile<Element, Result> tile_for(int vectors, int64_t rows) {
  switch (vectors) {
    case 1: return choose<1, Rows(1)>(rows);
    case 2: return choose<2, Rows(2)>(rows);
    case 3: return choose<(kVectors >= 3 ? 3 : 1), Rows(kVectors >= 3 ? 3 : 1)>(rows);
    default: return choose<(kVectors >= 4 ? 4 : 1), Rows(kVectors >= 4 ? 4 : 1)>(rows);
  }
}

// to[i * width + j] = from[a[i] + b[j]], 0 from `columns` to the width of a panel: a panel
// of the right operand, its columns together.
static void pack(const Element* from, const int64_t* a, int64_t rows, const int64_t* b,
                 int64_t columns, Element* to) {
  constexpr int64_t width = kLanes * kVectors;
  if (columns < width) __builtin_memset(to, 0, sizeof(Element) * rows * width);
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
  int64_t i = 0;
  for (; i + 4 <= rows && contiguous(a + i, 4); i += 4) {
    int64_t j = 0;
    for (; j + 4 <= columns; j += 4) transpose_four(from + a[i], b + j, to + i * width + j, width);
    for (; j < columns; ++j) {
      for (int l = 0; l < 4; ++l) to[(i + l) * width + j] = from[a[i] + b[j] + l];
    }
  }
  for (; i < rows; ++i) {
    for (int64_t j = 0; j < columns; ++j) to[i * width + j] = from[a[i] + b[j]];
  }
}

static const Chains<Element, Result> kChains = {kLanes, kVectors, tile_for, pack};
