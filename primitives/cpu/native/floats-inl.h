// Chains of fused multiply-adds of float32, and panels of their operands.
//
// Between blocks of terms the accumulators are stored as they are, which changes no bits.

typedef float Element, Result;

static inline Vector begin(const float* from, bool first) {
  Vector s = {};
  if (!first) __builtin_memcpy(&s, from, sizeof s);
  return s;
}

static inline void end(float* to, Vector s, bool, bool last) {
  if (last) s = as<Vector>(with_one_nan(s, guard(s)));
  __builtin_memcpy(to, &s, sizeof s);
}

#include "fma_tiles-inl.h"

// to[i * width + j] = from[a[i] + b[j]], 0 from `columns` to the width: a panel of an operand, the
// columns of a row together.
static void pack(const float* from, const int64_t* a, int64_t rows, const int64_t* b,
                 int64_t columns, float* to, int64_t width) {
  if (columns < width) __builtin_memset(to, 0, sizeof(float) * rows * width);
  int64_t runs = 1;
  for (int64_t j = 1; j < columns; ++j) runs += b[j] != b[j - 1] + 1;
  if (runs == 1 || runs * kLanes <= columns) {
    for (int64_t begin = 0, end; begin < columns; begin = end) {
      for (end = begin + 1; end < columns && b[end] == b[end - 1] + 1;) ++end;
      const float* const x = from + b[begin];
      for (int64_t i = 0; i < rows; ++i) {
        float* const y = to + i * width + begin;
        const int64_t count = end - begin;
        int64_t j = 0;
        for (; j + kLanes <= count; j += kLanes) store(y + j, load(x + a[i] + j));
        for (; j < count; ++j) y[j] = x[a[i] + j];
      }
    }
    return;
  }
  for (int64_t i = 0; i < rows;) {
    if (i + 4 > rows || !contiguous(a + i, 4)) {
      for (int64_t j = 0; j < columns; ++j) to[i * width + j] = from[a[i] + b[j]];
      ++i;
      continue;
    }
    int64_t j = 0;
    for (; j + 4 <= columns; j += 4) transpose_four(from + a[i], b + j, to + i * width + j, width);
    for (; j < columns; ++j) {
      for (int l = 0; l < 4; ++l) to[(i + l) * width + j] = from[a[i] + b[j] + l];
    }
    i += 4;
  }
}

// A single chain, which every element of s has: s continues it over the terms.
static void chain(int64_t terms, const float* lhs, const int64_t* lhs_k, const float* rhs,
                  const int64_t* rhs_k, float* s, bool first, bool last) {
  Vector sum = begin(s, first);
  for (int64_t k = 0; k < terms; ++k) {
    sum = fma(broadcast(lhs[lhs_k[k]]), broadcast(rhs[rhs_k[k]]), sum);
  }
  end(s, sum, first, last);
}

static const Chains kChains = {kLanes, kVectors, tile_for, pack, chain};
