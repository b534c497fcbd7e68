// Integers as digits of 8 bits, by AMX: three digits for integers of up to 22 bits, four for up to
// 30.
//
// x = sum of d[i] * 2**(8 i) with -2**7 <= d[i] < 2**7; the last digit is at most 2**6 in
// magnitude.  A tile has 16 rows of 64 bytes.  One instruction adds to a tile of 16 x 16 int32 the
// products of 16 rows of 64 digits with 16 columns of 64 digits, of which a row of the tile has
// four for each column.  Products of d[i] and d'[j] are added by their power i + j.  At most three
// are added to one tile, so that sums of kTerms are below 2**25 in magnitude.  The powers together
// are added to an int64; those of integers of four digits to two, high * 2**kHigh + low.
//
// A step of 64 terms has the terms 16 l + j, l < 4, in group j of four: the order does not matter,
// so it is that in which the same operations make both operands of vectors.

typedef int8_t Element;
typedef int64_t Result;
constexpr int kLanes = 16, kVectors = 4, kRows = 16;
constexpr int64_t kStep = 64, kTile = kRows * kStep;
constexpr int kHigh = 24;
constexpr int64_t kTerms = 512;  // of rows and of columns for one tile: half of an L1 cache each

constexpr int sums_of(int digits) { return digits == 3 ? 5 : 8; }

// 64 digits for each of 16 rows or columns, of all tiles.
struct alignas(64) Configuration {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t bytes_of_row[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};
static const Configuration kConfiguration;

static void begin() { _tile_loadconfig(&kConfiguration); }
static void end() { _tile_release(); }

// Byte i of each integer is digit i.
static inline __m512i to_digits(__m512 x, __m512 exponent) {
  const __m512i carries = _mm512_set1_epi32(0x808080);
  const __m512i integers = _mm512_cvtps_epi32(_mm512_scalef_ps(x, exponent));
  return _mm512_xor_si512(_mm512_add_epi32(integers, carries), carries);
}

// Stores 64 bytes of each digit, x[0][j], x[1][j], x[2][j], x[3][j] together; the tiles of the
// digits lie one after the other.
template <int kDigits>
static inline void store_digits(const __m512i* x, int8_t* to) {
  constexpr __mmask64 kBytes = 0xAAAAAAAAAAAAAAAA;
  constexpr __mmask32 kWords = 0xAAAAAAAA;
  auto bytes = [](__m512i a, __m512i b) { return _mm512_mask_blend_epi8(kBytes, a, b); };
  auto low_words = [](__m512i a, __m512i b) {
    return _mm512_mask_blend_epi16(kWords, a, _mm512_slli_epi32(b, 16));
  };
  auto high_words = [](__m512i a, __m512i b) {
    return _mm512_mask_blend_epi16(kWords, _mm512_srli_epi32(a, 16), b);
  };
  __m512i even[2], odd[2];  // the digits 0 and 2, 1 and 3, of two integers together
  for (int i = 0; i < 2; ++i) {
    even[i] = bytes(x[2 * i], _mm512_slli_epi16(x[2 * i + 1], 8));
    odd[i] = bytes(_mm512_srli_epi16(x[2 * i], 8), x[2 * i + 1]);
  }
  _mm512_storeu_si512(to, low_words(even[0], even[1]));
  _mm512_storeu_si512(to + kTile, low_words(odd[0], odd[1]));
  _mm512_storeu_si512(to + 2 * kTile, high_words(even[0], even[1]));
  if (kDigits == 4) _mm512_storeu_si512(to + 3 * kTile, high_words(odd[0], odd[1]));
}

// Steps: the tiles of the digits of each, with zeros behind the last term.  Rows that are not there
// have any digits: their sums are not stored.
template <int kDigits>
static void left(const Panel<float>& from, int8_t* to, int64_t) {
  for (int64_t k = 0; k < from.columns; k += kStep, to += kDigits * kTile) {
    __mmask16 mask[4];
    __m512 terms[4];
    for (int l = 0; l < 4; ++l) {
      const int64_t rest = from.columns - k - l * kLanes;
      mask[l] = rest >= kLanes ? 0xFFFF : rest > 0 ? (1 << rest) - 1 : 0;
      terms[l] = _mm512_maskz_loadu_ps(mask[l], from.column + k + l * kLanes);
    }
    for (int64_t i = 0; i < from.rows; ++i) {
      const float* const x = from.x + from.at[i] + k;
      const __m512 exponent = _mm512_set1_ps(from.row[i]);
      __m512i digits[4];
      for (int l = 0; l < 4; ++l) {
        digits[l] = to_digits(_mm512_maskz_loadu_ps(mask[l], x + l * kLanes),
                              _mm512_add_ps(exponent, terms[l]));
      }
      store_digits<kDigits>(digits, to + i * kStep);
    }
  }
}

// 16 columns after the other, and in each the steps: the tiles of the digits.
template <int kDigits>
static void right(const Panel<float>& from, Part, int8_t* to, int64_t) {
  const int64_t all = blocks_of(from.rows, kStep) * kDigits * kTile;  // of 16 columns
  for (int64_t k = 0; k < from.rows; k += kStep, to += kDigits * kTile) {
    for (int64_t j = 0; j < kRows; ++j) {
      for (int64_t column = 0; column < from.columns; column += kLanes) {
        const __m512 columns = _mm512_loadu_ps(from.column + column);
        __m512i digits[4];
        for (int l = 0; l < 4; ++l) {
          const int64_t row = k + l * kLanes + j;
          digits[l] = _mm512_setzero_si512();
          if (row >= from.rows) continue;
          digits[l] = to_digits(_mm512_loadu_ps(from.x + from.at[row] + column),
                                _mm512_add_ps(_mm512_set1_ps(from.row[row]), columns));
        }
        store_digits<kDigits>(digits, to + column / kLanes * all + j * kStep);
      }
    }
  }
}

// Tile number `tile` = digit number `digit` of this step.
#define REPJAX_LOAD(tile, from, digit) _tile_loadd(tile, (from) + (digit) * kTile, kStep)
#define REPJAX_STORE(tile, sum) _tile_stored(tile, sums + (sum) * kRows * kLanes, 4 * kLanes)

// The tiles 0 to 3, which have sums.
static inline void begin_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}

static inline void end_sums(int32_t* sums) {
  REPJAX_STORE(0, 0);
  REPJAX_STORE(1, 1);
  REPJAX_STORE(2, 2);
  REPJAX_STORE(3, 3);
}

// sums[i + j] = the products of digits i and j.  In an order in which few tiles are loaded, and
// instructions that add to one tile, and so wait for each other, are apart.
static inline void multiply_three(int64_t steps, const int8_t* a, const int8_t* b, int32_t* sums) {
  begin_sums();
  _tile_zero(4);
  for (; steps > 0; --steps, a += 3 * kTile, b += 3 * kTile) {
    REPJAX_LOAD(5, a, 0);
    REPJAX_LOAD(6, b, 0);
    _tile_dpbssd(0, 5, 6);
    REPJAX_LOAD(7, b, 1);
    _tile_dpbssd(1, 5, 7);
    REPJAX_LOAD(7, b, 2);
    _tile_dpbssd(2, 5, 7);
    REPJAX_LOAD(5, a, 1);
    _tile_dpbssd(3, 5, 7);
    _tile_dpbssd(1, 5, 6);
    REPJAX_LOAD(6, b, 1);
    _tile_dpbssd(2, 5, 6);
    REPJAX_LOAD(5, a, 2);
    _tile_dpbssd(3, 5, 6);
    _tile_dpbssd(4, 5, 7);
    REPJAX_LOAD(6, b, 0);
    _tile_dpbssd(2, 5, 6);
  }
  end_sums(sums);
  REPJAX_STORE(4, 4);
}

// The products of the digits (0, 0) to (2, 2), without the last: the first half of the power 3.
static inline void multiply_low(int64_t steps, const int8_t* a, const int8_t* b, int32_t* sums) {
  begin_sums();
  for (; steps > 0; --steps, a += 4 * kTile, b += 4 * kTile) {
    REPJAX_LOAD(4, a, 0);
    REPJAX_LOAD(5, b, 0);
    _tile_dpbssd(0, 4, 5);
    REPJAX_LOAD(6, b, 1);
    _tile_dpbssd(1, 4, 6);
    REPJAX_LOAD(7, b, 2);
    _tile_dpbssd(2, 4, 7);
    REPJAX_LOAD(4, a, 1);
    _tile_dpbssd(1, 4, 5);
    _tile_dpbssd(3, 4, 7);
    _tile_dpbssd(2, 4, 6);
    REPJAX_LOAD(4, a, 2);
    _tile_dpbssd(3, 4, 6);
    _tile_dpbssd(2, 4, 5);
  }
  end_sums(sums);
}

// The other products: the second half of the power 3, and the powers 4, 5 and 6.
static inline void multiply_high(int64_t steps, const int8_t* a, const int8_t* b, int32_t* sums) {
  begin_sums();
  for (; steps > 0; --steps, a += 4 * kTile, b += 4 * kTile) {
    REPJAX_LOAD(4, a, 0);
    REPJAX_LOAD(5, b, 3);
    _tile_dpbssd(0, 4, 5);
    REPJAX_LOAD(6, a, 1);
    _tile_dpbssd(1, 6, 5);
    REPJAX_LOAD(4, a, 3);
    REPJAX_LOAD(7, b, 0);
    _tile_dpbssd(0, 4, 7);
    REPJAX_LOAD(6, a, 2);
    REPJAX_LOAD(7, b, 2);
    _tile_dpbssd(1, 6, 7);
    _tile_dpbssd(2, 6, 5);
    REPJAX_LOAD(6, b, 1);
    _tile_dpbssd(1, 4, 6);
    _tile_dpbssd(2, 4, 7);
    _tile_dpbssd(3, 4, 5);
  }
  end_sums(sums + 4 * kRows * kLanes);
}

// lhs[0]: of up to 16 rows.  rows: 16 of the lower words, null where there are no more, then 16 of
// the higher ones.
template <int kDigits, int kColumns>
static void tile(int64_t terms, const int8_t* const* lhs, const int64_t*, const int8_t* rhs,
                 const int64_t*, int64_t* const* rows, bool first, bool) {
  const int64_t steps = blocks_of(terms, kStep);
  alignas(64) int32_t sums[sums_of(kDigits) * kRows * kLanes];
  // GCC 12 does not know that loading a tile reads memory.
  __asm__ volatile("" ::: "memory");
  for (int v = 0; v < kColumns; ++v, rhs += steps * kDigits * kTile) {
    if (kDigits == 3) {
      multiply_three(steps, lhs[0], rhs, sums);
    } else {
      multiply_low(steps, lhs[0], rhs, sums);
      multiply_high(steps, lhs[0], rhs, sums);
    }
    for (int m = 0; m < kRows && rows[m]; ++m) {
      for (int i = 0; i < kLanes; i += 8) {
        auto of = [&](int sum) {
          const int32_t* const at = sums + (sum * kRows + m) * kLanes + i;
          return _mm512_cvtepi32_epi64(_mm256_load_si256((const __m256i*)at));
        };
        // high * 2**8 + low
        auto join = [](__m512i high, __m512i low) {
          return _mm512_add_epi64(_mm512_slli_epi64(high, 8), low);
        };
        const int64_t at = v * kLanes + i;
        __m512i low = join(join(of(2), of(1)), of(0));
        if (kDigits == 3) {
          low = _mm512_add_epi64(low, _mm512_slli_epi64(join(of(4), of(3)), kHigh));
        } else {
          const __m512i three = _mm512_add_epi64(of(3), of(4));
          const __m512i high = join(join(join(of(7), of(6)), of(5)), three);
          add_to(rows[kRows + m] + at, high, first);
        }
        add_to(rows[m] + at, low, first);
      }
    }
  }
}

template <int kDigits>
static Tile<int8_t, int64_t> tile_for(int vectors, int64_t rows) {
  const int all = rows < kRows ? int(rows) : kRows;
  switch (vectors) {
    case 1: return {all, tile<kDigits, 1>};
    case 2: return {all, tile<kDigits, 2>};
    case 3: return {all, tile<kDigits, 3>};
    default: return {all, tile<kDigits, 4>};
  }
}

template <int kDigits>
constexpr IntegerProducts<int8_t> kIntegerProducts = {
    kLanes, kVectors, kTerms, kDigits, kStep, kRows, kHigh, int64_t(1) << 24,
    tile_for<kDigits>, left<kDigits>, right<kDigits>, begin, end};

// Whether a product of pseudorandom integers has the sums, modulo 2**64, of plain arithmetic.
template <int kDigits>
static bool correct() {
  constexpr int kM = 5, kN = 2 * kLanes, kK = 70, kSteps = 2;
  float a[kM * kK], b[kK * kN], terms[kK], zeros[kK] = {};
  int8_t lhs[kSteps * kDigits * kTile], rhs[2 * kSteps * kDigits * kTile];
  int64_t low[kM * kN], high[kM * kN], at_a[kM], at_b[kK];
  uint32_t random = 1;
  auto fill = [&](float* x, int count) {
    for (int i = 0; i < count; ++i) x[i] = int32_t(random = random * 1664525 + 1013904223) >> 8;
  };
  fill(a, kM * kK);
  fill(b, kK * kN);
  // Integers of 22 bits, half of them with a rounding, or of up to 29.
  for (int k = 0; k < kK; ++k) terms[k] = kDigits == 3 ? -1 : k % 7;
  for (int k = 0; k < kK; ++k) at_b[k] = k * kN;
  const int8_t* const x[1] = {lhs};
  int64_t* rows[2 * kRows] = {};
  for (int m = 0; m < kM; ++m) {
    at_a[m] = m * kK;
    rows[m] = low + m * kN;
    rows[kRows + m] = high + m * kN;
  }
  left<kDigits>({a, at_a, kM, kK, zeros, terms}, lhs, 0);
  right<kDigits>({b, at_b, kK, kN, terms, zeros}, Part::kWhole, rhs, 0);
  begin();
  tile<kDigits, 2>(kK, x, nullptr, rhs, nullptr, rows, true, false);
  end();
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      uint64_t sum = 0;
      for (int k = 0; k < kK; ++k) {
        const double scale = kDigits == 3 ? 0.5 : 1 << k % 7;
        auto integer = [&](float v) { return uint64_t(int64_t(__builtin_nearbyint(v * scale))); };
        sum += integer(a[m * kK + k]) * integer(b[k * kN + n]);
      }
      uint64_t result = low[m * kN + n];
      if (kDigits == 4) result += uint64_t(high[m * kN + n]) << kHigh;
      if (result != sum) return false;
    }
  }
  return true;
}
