// Integers as words of 16 bits, by AVX512-VNNI: kDigits digits, two for integers of up to 22 bits
// and three for up to 30.
//
// x = sum of d[i] * 2**(kDigit i) with -2**(kDigit - 1) <= d[i] < 2**(kDigit - 1); the last digit
// is at most 2**kDigit in magnitude.  A product of integers is one of polynomials in 2**kDigit,
// which its values at as many points as it has coefficients determine: 0, infinity, 1, and for
// three digits -1 and 2 (Karatsuba and Ofman 1962; Toom 1963; Cook 1966).  The values of an
// integer, which fit into 16 bits, are its planes.
//
// Sums are int32, modulo 2**32.  With three digits the sum of the even coefficients, of which twice
// is known, is below 2**21.4 for a term, and the others are less; with two digits a coefficient is
// at most 2**22.  Those of kTerms are below 2**31, so that the coefficients are right, though the
// values may overflow.  They are added to an int64; those of three digits to two, which are
// high * 2**kShift + low.

typedef int16_t Element;
typedef int64_t Result;
constexpr int kLanes = 16, kVectors = 4, kWidth = kLanes * kVectors;
constexpr int64_t kTerms = kDigits == 2 ? 480 : 256;
constexpr int kDigit = kDigits == 2 ? 11 : 10;
constexpr int kPlanes = 2 * kDigits - 1;
constexpr int kShift = 3 * kDigit;
constexpr int64_t kMost = 1 << 22;  // of lower words of three digits, below 2**40.4 for a term

// The digits of 16 integers.
static inline void to_digits(__m512 x, __m512 exponent, __m512i* digits) {
  __m512i rest = _mm512_cvtps_epi32(_mm512_scalef_ps(x, exponent));
  for (int i = 0; i < kDigits - 1; ++i) {
    const __m512i half = _mm512_set1_epi32(1 << (kDigit - 1));
    const __m512i above = _mm512_srai_epi32(_mm512_add_epi32(rest, half), kDigit);
    digits[i] = _mm512_sub_epi32(rest, _mm512_slli_epi32(above, kDigit));
    rest = above;
  }
  digits[kDigits - 1] = rest;
}

// The planes of words of 16 bits, of which there may be two in an element of 32.
static inline void to_planes(const __m512i* digits, __m512i* planes) {
  planes[0] = digits[0];
  planes[1] = digits[kDigits - 1];
  const __m512i outer = _mm512_add_epi16(planes[0], planes[1]);
  if (kDigits == 2) {
    planes[2] = outer;
    return;
  }
  planes[2] = _mm512_add_epi16(outer, digits[1]);
  planes[3] = _mm512_sub_epi16(outer, digits[1]);
  const __m512i upper = _mm512_add_epi16(digits[1], _mm512_slli_epi16(planes[1], 1));
  planes[4] = _mm512_add_epi16(planes[0], _mm512_slli_epi16(upper, 1));
}

// The coefficients of products, from the lowest.
static inline void to_coefficients(const __m512i* values, __m512i* coefficients) {
  constexpr int kLast = kPlanes - 1;
  coefficients[0] = values[0];
  coefficients[kLast] = values[1];
  const __m512i outer = _mm512_add_epi32(values[0], values[1]);
  if (kDigits == 2) {
    coefficients[1] = _mm512_sub_epi32(values[2], outer);
    return;
  }
  const __m512i even = _mm512_srai_epi32(_mm512_add_epi32(values[2], values[3]), 1);
  const __m512i odd = _mm512_srai_epi32(_mm512_sub_epi32(values[2], values[3]), 1);
  coefficients[2] = _mm512_sub_epi32(even, outer);
  // At 2, less those and twice the odd ones: 6 times the third.  1/3 = 0xAAAAAAAB modulo 2**32.
  const __m512i four = _mm512_slli_epi32(values[1], 2);
  __m512i six = _mm512_slli_epi32(_mm512_add_epi32(coefficients[2], four), 1);
  six = _mm512_slli_epi32(_mm512_add_epi32(six, odd), 1);
  six = _mm512_sub_epi32(_mm512_sub_epi32(values[4], values[0]), six);
  const __m512i two = _mm512_mullo_epi32(six, _mm512_set1_epi32(0xAAAAAAAB));
  coefficients[3] = _mm512_srai_epi32(two, 1);
  coefficients[1] = _mm512_sub_epi32(odd, coefficients[3]);
}

// Rows: the planes of each, one after the other.
static void left(const Panel<float>& from, int16_t* to, int64_t row) {
  const int64_t plane = round_up(from.columns, kLanes);
  for (int64_t i = 0; i < from.rows; ++i, to += row) {
    const float* const x = from.x + from.at[i];
    const __m512 exponent = _mm512_set1_ps(from.row[i]);
    for (int64_t j = 0; j < from.columns; j += kLanes) {
      const int64_t rest = from.columns - j;
      const __mmask16 mask = rest < kLanes ? (1 << rest) - 1 : 0xFFFF;
      const __m512 scale = _mm512_add_ps(exponent, _mm512_maskz_loadu_ps(mask, from.column + j));
      __m512i digits[kDigits], planes[kPlanes];
      to_digits(_mm512_maskz_loadu_ps(mask, x + j), scale, digits);
      to_planes(digits, planes);
      for (int p = 0; p < kPlanes; ++p) {
        _mm256_storeu_si256((__m256i*)(to + p * plane + j), _mm512_cvtepi32_epi16(planes[p]));
      }
    }
  }
}

// The planes one after the other; in each, of two terms together, for all columns.
static void right(const Panel<float>& from, Part, int16_t* to, int64_t) {
  const int64_t plane = round_up(from.rows, 2) * kWidth;
  for (int64_t i = 0; i < from.rows; i += 2, to += 2 * kWidth) {
    const bool two = i + 1 < from.rows;
    const float* const x[2] = {from.x + from.at[i], from.x + from.at[two ? i + 1 : i]};
    const __m512 exponents[2] = {_mm512_set1_ps(from.row[i]),
                                 _mm512_set1_ps(from.row[two ? i + 1 : i])};
    for (int64_t j = 0; j < from.columns; j += kLanes) {
      const __m512 column = _mm512_loadu_ps(from.column + j);
      __m512i first[kDigits], second[kDigits], planes[kPlanes];
      to_digits(_mm512_loadu_ps(x[0] + j), _mm512_add_ps(exponents[0], column), first);
      to_digits(_mm512_loadu_ps(x[1] + j), _mm512_add_ps(exponents[1], column), second);
      for (int d = 0; d < kDigits; ++d) {
        const __m512i above = two ? _mm512_slli_epi32(second[d], 16) : _mm512_setzero_si512();
        first[d] = _mm512_mask_blend_epi16(0xAAAAAAAA, first[d], above);
      }
      to_planes(first, planes);
      for (int p = 0; p < kPlanes; ++p) _mm512_storeu_si512(to + p * plane + 2 * j, planes[p]);
    }
  }
}

// sums = the products of one plane.
template <int kRows, int kColumns>
static inline void multiply(int64_t pairs, const int16_t* const* lhs, int64_t plane,
                            const int16_t* rhs, __m512i* sums) {
  __m512i s[kRows][kColumns];
  const int16_t* x[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) {
    x[m] = lhs[m] + plane;
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) s[m][v] = _mm512_setzero_si512();
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

// rows: of three digits, of the lower words and from 16 on of the higher ones.
template <int kRows, int kColumns>
static void tile(int64_t terms, const int16_t* const* lhs, const int64_t*, const int16_t* rhs,
                 const int64_t*, int64_t* const* rows, bool first, bool) {
  const int64_t left = round_up(terms, kLanes), pairs = blocks_of(terms, 2);
  __m512i sums[kPlanes][kRows * kColumns];
  for (int p = 0; p < kPlanes; ++p) {
    multiply<kRows, kColumns>(pairs, lhs, p * left, rhs + p * pairs * 2 * kWidth, sums[p]);
  }
  for (int m = 0; m < kRows; ++m) {
    for (int v = 0; v < kColumns; ++v) {
      __m512i values[kPlanes], coefficients[kPlanes];
      for (int p = 0; p < kPlanes; ++p) values[p] = sums[p][m * kColumns + v];
      to_coefficients(values, coefficients);
      for (int half = 0; half < 2; ++half) {
        const int64_t at = v * kLanes + half * kLanes / 2;
        auto wide = [=](int i) {
          const __m512i c = coefficients[i];
          return _mm512_cvtepi32_epi64(half ? _mm512_extracti64x4_epi64(c, 1)
                                            : _mm512_castsi512_si256(c));
        };
        // high * 2**kDigit + low
        auto join = [](__m512i high, __m512i low) {
          return _mm512_add_epi64(_mm512_slli_epi64(high, kDigit), low);
        };
        add_to(rows[m] + at, join(join(wide(2), wide(1)), wide(0)), first);
        if (kDigits == 3) add_to(rows[16 + m] + at, join(wide(4), wide(3)), first);
      }
    }
  }
}

#include "choose_tile-inl.h"

static const IntegerProducts<int16_t> kIntegerProducts = {
    kLanes, kVectors, kTerms, kPlanes, 16, 24, kShift, kMost, tile_for, left, right};
