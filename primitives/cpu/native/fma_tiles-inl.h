// Tiles of outputs, each with one accumulator and its own chain of fused multiply-adds, k
// ascending.
//
// Included by floats-inl.h and integers-inl.h.  Expects
//
//   Element, Result            the types of the operands, and of what is stored
//   kLanes, kVectors, Rows, Vector, fma, broadcast
//   begin(from, first)         the accumulator at the first or a later block of terms
//   end(to, s, first, last)    stores it after the block

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
#pragma GCC unroll 8
    for (int v = 0; v < kColumns; ++v) {
      s[m][v] = begin(rows[m] + v * kLanes, first);
    }
  }
  for (int64_t k = 0; k < terms; ++k) {
    const Element* y = rhs + rhs_k[k];
    const int64_t at = lhs_k[k];
    Vector b[kColumns];
#pragma GCC unroll 8
    for (int v = 0; v < kColumns; ++v) b[v] = load(y + v * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      Vector a = broadcast(x[m][at]);
#pragma GCC unroll 8
      for (int v = 0; v < kColumns; ++v) s[m][v] = fma(a, b[v], s[m][v]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 8
    for (int v = 0; v < kColumns; ++v) {
      end(rows[m] + v * kLanes, s[m][v], first, last);
    }
  }
}

#include "choose_tile-inl.h"
