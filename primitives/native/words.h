// Integers of up to 22 bits as words of 16, by AVX512-VNNI, in a namespace and under the compiler's
// target options of instruction_sets.cc.
//
// x = high * 2**11 + low with -2**10 <= low < 2**10, so that |high| <= 2**11 where |x| <= 2**22.
// Of x and y three products are added (Karatsuba), each in int32, modulo 2**32:
//
//   h = sum of high * high',  l = sum of low * low',  (high + low) * (high' + low')
//
// The third less h and l is m = sum of high * low' + low * high'.  In each of h, l and m, a term is
// at most 2**22 in magnitude, so that sums of kTerms are at most 2**30 and m is right, though the
// third may overflow; its factors, at most 2**11 + 2**10 in magnitude, fit into 16 bits.
// h * 2**22 + m * 2**11 + l is added to an int64.

typedef int16_t Element;
typedef int64_t Result;
constexpr int kLanes = 16, kVectors = 4, kWidth = kLanes * kVectors;
constexpr int64_t kTerms = 256;
constexpr int kDigit = 11, kPlanes = 3;  // high, low, high + low

static inline __m512i to_integers(__m512 x, __m512 exponent) {
  return _mm512_cvtps_epi32(_mm512_scalef_ps(x, exponent));
}

static inline __m512i high_digit(__m512i x) {
  return _mm512_srai_epi32(_mm512_add_epi32(x, _mm512_set1_epi32(1 << (kDigit - 1))), kDigit);
}

static inline __m512i low_digit(__m512i x, __m512i high) {
  return _mm512_sub_epi32(x, _mm512_slli_epi32(high, kDigit));
}

// Of each row the planes one after the other: the terms of high, of low, and of their sum.
static void left(const Panel<float>& from, int16_t* to, int64_t row) {
  const int64_t plane = (from.columns + kLanes - 1) / kLanes * kLanes;
  for (int64_t i = 0; i < from.rows; ++i, to += row) {
    const float* const x = from.x + from.at[i];
    const __m512 exponent = _mm512_set1_ps(from.row[i]);
    for (int64_t j = 0; j < from.columns; j += kLanes) {
      const int64_t rest = from.columns - j;
      const __mmask16 mask = rest < kLanes ? (1 << rest) - 1 : 0xFFFF;
      const __m512 scale = _mm512_add_ps(exponent, _mm512_maskz_loadu_ps(mask, from.column + j));
      const __m512i integers = to_integers(_mm512_maskz_loadu_ps(mask, x + j), scale);
      const __m512i high = high_digit(integers), low = low_digit(integers, high);
      int16_t* at = to + j;
      for (const __m512i digit : {high, low, _mm512_add_epi32(high, low)}) {
        _mm256_storeu_si256((__m256i*)at, _mm512_cvtepi32_epi16(digit));
        at += plane;
      }
    }
  }
}

// The planes one after the other; in each, of two terms together, for all columns.
static void right(const Panel<float>& from, Part, int16_t* to, int64_t) {
  const int64_t plane = (from.rows + 1) / 2 * 2 * kWidth;
  auto pairs = [](__m512i first, __m512i second) {
    return _mm512_mask_blend_epi16(0xAAAAAAAA, first, _mm512_slli_epi32(second, 16));
  };
  for (int64_t i = 0; i < from.rows; i += 2, to += 2 * kWidth) {
    const bool two = i + 1 < from.rows;
    const float* const x[2] = {from.x + from.at[i], from.x + from.at[two ? i + 1 : i]};
    const __m512 exponents[2] = {_mm512_set1_ps(from.row[i]),
                                 _mm512_set1_ps(from.row[two ? i + 1 : i])};
    for (int64_t j = 0; j < from.columns; j += kLanes) {
      const __m512 column = _mm512_loadu_ps(from.column + j);
      __m512i integers[2], high[2];
      for (int l = 0; l < 2; ++l) {
        integers[l] =
            to_integers(_mm512_loadu_ps(x[l] + j), _mm512_add_ps(exponents[l], column));
      }
      if (!two) integers[1] = _mm512_setzero_si512();
      for (int l = 0; l < 2; ++l) high[l] = high_digit(integers[l]);
      const __m512i highs = pairs(high[0], high[1]);
      const __m512i lows = pairs(low_digit(integers[0], high[0]), low_digit(integers[1], high[1]));
      int16_t* at = to + 2 * j;
      for (const __m512i digit : {highs, lows, _mm512_add_epi16(highs, lows)}) {
        _mm512_storeu_si512(at, digit);
        at += plane;
      }
    }
  }
}

// sums += the products of one plane.  From memory and to it: GCC would spill those of a caller.
template <int kRows, int kColumns>
static inline void add_products(int64_t pairs, const int16_t* const* lhs, int64_t plane,
                                const int16_t* rhs, __m512i* sums) {
  __m512i s[kRows][kColumns];
  const int16_t* x[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    x[m] = lhs[m] + plane;
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) s[m][v] = sums[m * kColumns + v];
  }
  for (int64_t k = 0; k < pairs; ++k, rhs += 2 * kWidth) {
    __m512i b[kColumns];
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) b[v] = _mm512_loadu_si512(rhs + 2 * v * kLanes);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      int32_t pair;
      __builtin_memcpy(&pair, x[m] + 2 * k, sizeof pair);
      const __m512i a = _mm512_set1_epi32(pair);
#pragma GCC unroll 4
      for (int v = 0; v < kColumns; ++v) s[m][v] = _mm512_dpwssd_epi32(s[m][v], a, b[v]);
    }
  }
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) sums[m * kColumns + v] = s[m][v];
  }
}

template <int kRows, int kColumns>
static void tile(int64_t terms, const int16_t* const* lhs, const int64_t*, const int16_t* rhs,
                 const int64_t*, int64_t* const* rows, bool first, bool) {
  constexpr int kSums = kRows * kColumns;
  const int64_t left = (terms + kLanes - 1) / kLanes * kLanes, pairs = (terms + 1) / 2;
  const int64_t right = pairs * 2 * kWidth;
  __m512i high[kSums], low[kSums], middle[kSums];
  for (int i = 0; i < kSums; ++i) high[i] = low[i] = _mm512_setzero_si512();
  add_products<kRows, kColumns>(pairs, lhs, 0, rhs, high);
  add_products<kRows, kColumns>(pairs, lhs, left, rhs + right, low);
  for (int i = 0; i < kSums; ++i) {
    middle[i] = _mm512_sub_epi32(_mm512_setzero_si512(), _mm512_add_epi32(high[i], low[i]));
  }
  add_products<kRows, kColumns>(pairs, lhs, 2 * left, rhs + 2 * right, middle);
  for (int m = 0; m < kRows; ++m) {
    for (int i = 0; i < kColumns * 2; ++i) {
      auto half = [=](const __m512i* sums) {
        return _mm512_cvtepi32_epi64(_mm256_load_si256((const __m256i*)(sums + m * kColumns) + i));
      };
      const __m512i upper = _mm512_slli_epi64(half(high), kDigit);
      __m512i sum = _mm512_slli_epi64(_mm512_add_epi64(upper, half(middle)), kDigit);
      sum = _mm512_add_epi64(sum, half(low));
      if (!first) sum = _mm512_add_epi64(sum, _mm512_loadu_si512(rows[m] + i * 8));
      _mm512_storeu_si512(rows[m] + i * 8, sum);
    }
  }
}

#include "tiles.h"

static const Products<int16_t> kProducts = {kLanes, kVectors, kTerms, kPlanes, 16, 24,
                                            tile_for, left, right};
