// Sums of products of float32 numbers as integers of five digits of 8 bits, by AMX: nearly exact,
// with what is lost.
//
// A block of terms of a row, or of a column, has a grid: its largest magnitude is from 2**37 units up
// to below 2**38.  Of x in units, a float32 number, `high` is the nearest multiple of 2**24 and `low`
// the nearest integer to the rest; what is behind the point is lost.  That is nothing if x is within
// 2**-14 of the largest.  The integer has five digits as in digits-inl.h.  Products of the digits i
// and j with i + j < 2 are not computed.  So, per block, with x = u (X + d), y = v (Y + e),
//
//   |sum x y - u v (the products)| <= |x| |e v| + |d u| |y| + u v kDropped terms
//
// where |.| are norms; by the inequality of Cauchy and Schwarz the same holds for all blocks together,
// with norms over these and the root of the sum of u**2 terms in the place of u.  (The first product
// has |u X| in truth, which is larger by less than 2**-30 of itself.)

constexpr int kExactDigits = 5, kExactSums = 9;
constexpr int64_t kExactTerms = 256;  // of a block: 16 rows and 16 columns of it fit into an L1 cache
// Norms of so many float32 numbers, whose squares are added in float32.
constexpr double kOfNorms = 1 + 0x1p-10;

struct Split {
  __m512 squares, losses;  // in units of 2**24, and in units
};

// Bytes 0 to 3 of `low` and byte 1 of `last` are the digits.
static inline void split(__m512 x, __m512i* low, __m512i* last, Split* sums) {
  const __m512i carries = _mm512_set1_epi32(0x808080);
  const __m512i high = _mm512_cvtps_epi32(x);
  const __m512 rest =
      _mm512_mul_ps(_mm512_sub_ps(x, _mm512_cvtepi32_ps(high)), _mm512_set1_ps(0x1p24f));
  const __m512i integer = _mm512_cvtps_epi32(rest);
  const __m512 lost = _mm512_sub_ps(rest, _mm512_cvtepi32_ps(integer));
  sums->squares = _mm512_fmadd_ps(x, x, sums->squares);
  sums->losses = _mm512_fmadd_ps(lost, lost, sums->losses);
  const __m512i carried = _mm512_add_epi32(integer, carries);  // from 0 to 2**24 and more
  *low = _mm512_xor_si512(_mm512_add_epi32(carried, _mm512_slli_epi32(high, 24)), carries);
  *last = _mm512_add_epi32(_mm512_add_epi32(high, _mm512_srli_epi32(carried, 24)),
                           _mm512_set1_epi32(0x80));
}

static inline void store_exact_digits(const __m512i* low, const __m512i* last, int8_t* to) {
  store_digits<4>(low, to);
  constexpr __mmask64 kBytes = 0xAAAAAAAAAAAAAAAA;
  __m512i pairs[2];
  for (int i = 0; i < 2; ++i) {
    pairs[i] = _mm512_mask_blend_epi8(kBytes, _mm512_srli_epi16(last[2 * i], 8), last[2 * i + 1]);
  }
  _mm512_storeu_si512(to + 4 * kTile, _mm512_mask_blend_epi16(0xAAAAAAAA, pairs[0],
                                                              _mm512_slli_epi32(pairs[1], 16)));
}

// The unit of a block whose largest magnitude has these bits, and what is known of it; false if it is
// not finite.
static inline bool add_block(int32_t bits, float squares, float losses, int64_t terms, double* unit,
                             const Norms& norms, int64_t i) {
  *unit = 0;
  const int64_t field = bits >> 23;
  if (field == 0xFF) return false;
  if (field == 0) return true;  // zeros
  const int64_t wide = (field - 127 - 37 + 1023) << 52;
  __builtin_memcpy(unit, &wide, sizeof wide);
  const double square = *unit * *unit;
  norms.squares[i] += double(squares) * 0x1p48 * square * kOfNorms;
  // Squares, and numbers, that are subnormal are lost, too.
  norms.losses[i] += (double(losses) * kOfNorms + double(terms) * 0x1p-100) * square;
  norms.units[i] += double(terms) * square;
  return true;
}

static inline __m512i magnitudes(__m512 x) {
  return _mm512_and_si512(_mm512_castps_si512(x), _mm512_set1_epi32(0x7FFFFFFF));
}

// The exponents by which numbers are multiplied whose largest magnitudes these are.
static inline __m512 to_grid(__m512i largest) {
  const __m512i field = _mm512_srli_epi32(largest, 23);
  return _mm512_cvtepi32_ps(_mm512_sub_epi32(_mm512_set1_epi32(127 + 13), field));
}

// Up to 16 rows x[at[i] + k] of terms.
static bool exact_left(const float* x, const int64_t* at, int64_t rows, int64_t terms, int8_t* to,
                       double* units, const Norms& norms) {
  bool finite = true;
  auto some = [&](const float* from, int64_t k) {
    const int64_t rest = terms - k;
    const __mmask16 mask = rest >= kLanes ? 0xFFFF : rest > 0 ? (1 << rest) - 1 : 0;
    return _mm512_maskz_loadu_ps(mask, from + k);
  };
  for (int64_t i = 0; i < rows; ++i) {
    const float* const from = x + at[i];
    __m512i largest = _mm512_setzero_si512();
    for (int64_t k = 0; k < terms; k += kLanes) {
      largest = _mm512_max_epi32(largest, magnitudes(some(from, k)));
    }
    const int32_t most = _mm512_reduce_max_epi32(largest);
    const __m512 exponent = to_grid(_mm512_set1_epi32(most));
    Split sums = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    int8_t* tile = to + i * kStep;
    for (int64_t k = 0; k < terms; k += kStep, tile += kExactDigits * kTile) {
      __m512i low[4], last[4];
      for (int l = 0; l < 4; ++l) {
        const __m512 numbers = some(from, k + l * kLanes);
        split(_mm512_scalef_ps(numbers, exponent), &low[l], &last[l], &sums);
      }
      store_exact_digits(low, last, tile);
    }
    finite &= add_block(most, _mm512_reduce_add_ps(sums.squares),
                        _mm512_reduce_add_ps(sums.losses), terms, units + i, norms, i);
  }
  return finite;
}

// Columns x[at[k] + j], 16 after the other.
static bool exact_right(const float* x, const int64_t* at, int64_t terms, int64_t columns, int8_t* to,
                        double* units, const Norms& norms) {
  bool finite = true;
  for (int64_t j = 0; j < columns; j += kLanes) {
    __m512i largest = _mm512_setzero_si512();
    for (int64_t k = 0; k < terms; ++k) {
      largest = _mm512_max_epi32(largest, magnitudes(_mm512_loadu_ps(x + at[k] + j)));
    }
    const __m512 exponent = to_grid(largest);
    Split sums = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int64_t k = 0; k < terms; k += kStep, to += kExactDigits * kTile) {
      for (int64_t row = 0; row < kRows; ++row) {
        __m512i low[4], last[4];
        for (int l = 0; l < 4; ++l) {
          const int64_t term = k + l * kLanes + row;
          const __m512 numbers =
              term < terms ? _mm512_loadu_ps(x + at[term] + j) : _mm512_setzero_ps();
          split(_mm512_scalef_ps(numbers, exponent), &low[l], &last[l], &sums);
        }
        store_exact_digits(low, last, to + row * kStep);
      }
    }
    alignas(64) int32_t most[kLanes];
    alignas(64) float squares[kLanes], losses[kLanes];
    _mm512_store_si512(most, largest);
    _mm512_store_ps(squares, sums.squares);
    _mm512_store_ps(losses, sums.losses);
    for (int64_t i = 0; i < kLanes; ++i) {
      finite &= add_block(most[i], squares[i], losses[i], terms, units + j + i, norms, j + i);
    }
  }
  return finite;
}

// Where the sums of the powers 2 to 8 are; two powers have two parts, lest instructions that add to
// one tile wait for each other.
enum { kPower3, kPower4, kPower5, kMore4, kPower6, kPower7, kMore6, kPower8, kPower2 };

static inline void multiply_five_low(int64_t steps, const int8_t* a, const int8_t* b, int32_t* sums) {
  begin_sums();
  for (; steps > 0; --steps, a += kExactDigits * kTile, b += kExactDigits * kTile) {
    REPJAX_LOAD(4, a, 0);
    REPJAX_LOAD(6, b, 3);
    _tile_dpbssd(0, 4, 6);
    REPJAX_LOAD(7, b, 4);
    _tile_dpbssd(1, 4, 7);
    REPJAX_LOAD(5, a, 1);
    _tile_dpbssd(2, 5, 7);
    REPJAX_LOAD(7, b, 2);
    _tile_dpbssd(0, 5, 7);
    _tile_dpbssd(3, 5, 6);
    REPJAX_LOAD(4, a, 2);
    _tile_dpbssd(2, 4, 6);
    REPJAX_LOAD(6, b, 1);
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(3, 4, 7);
    REPJAX_LOAD(5, a, 3);
    _tile_dpbssd(2, 5, 7);
    REPJAX_LOAD(7, b, 0);
    _tile_dpbssd(0, 5, 7);
    _tile_dpbssd(1, 5, 6);
    REPJAX_LOAD(4, a, 4);
    _tile_dpbssd(2, 4, 6);
    _tile_dpbssd(3, 4, 7);
  }
  end_sums(sums);
}

static inline void multiply_five_high(int64_t steps, const int8_t* a, const int8_t* b,
                                      int32_t* sums) {
  begin_sums();
  _tile_zero(4);
  for (; steps > 0; --steps, a += kExactDigits * kTile, b += kExactDigits * kTile) {
    REPJAX_LOAD(5, a, 2);
    REPJAX_LOAD(6, b, 4);
    _tile_dpbssd(0, 5, 6);
    REPJAX_LOAD(7, b, 0);
    _tile_dpbssd(4, 5, 7);
    REPJAX_LOAD(5, a, 4);
    _tile_dpbssd(3, 5, 6);
    REPJAX_LOAD(7, b, 2);
    _tile_dpbssd(0, 5, 7);
    REPJAX_LOAD(5, a, 0);
    _tile_dpbssd(4, 5, 7);
    REPJAX_LOAD(5, a, 3);
    _tile_dpbssd(1, 5, 6);
    REPJAX_LOAD(6, b, 3);
    _tile_dpbssd(2, 5, 6);
    REPJAX_LOAD(7, a, 1);
    REPJAX_LOAD(5, b, 1);
    _tile_dpbssd(4, 7, 5);
    REPJAX_LOAD(7, a, 4);
    _tile_dpbssd(1, 7, 6);
  }
  end_sums(sums + 4 * kRows * kLanes);
  REPJAX_STORE(4, kPower2);
}

#undef REPJAX_LOAD
#undef REPJAX_STORE

// to[i * row + j], i < rows and j < 16, = or += the sums of products.  Sums of a block are below
// 2**51 with four powers: both halves are exact, and their sum has one rounding.
static void exact_tile(int64_t terms, const int8_t* left, const int8_t* right, int64_t rows,
                       const double* row_units, const double* column_units, double* to, int64_t row,
                       bool first) {
  const int64_t steps = blocks_of(terms, kStep);
  alignas(64) int32_t sums[kExactSums * kRows * kLanes];
  // GCC 12 does not know that loading a tile reads memory.
  __asm__ volatile("" ::: "memory");
  multiply_five_low(steps, left, right, sums);
  multiply_five_high(steps, left, right, sums);
  const __m512d byte = _mm512_set1_pd(0x1p8);
  for (int64_t i = 0; i < rows; ++i) {
    const __m512d row_unit = _mm512_set1_pd(row_units[i] * 0x1p16);
    for (int64_t j = 0; j < kLanes; j += 8) {
      auto integers = [&](int sum) {
        return _mm256_load_si256((const __m256i*)(sums + (sum * kRows + i) * kLanes + j));
      };
      auto of = [&](int sum) { return _mm512_cvtepi32_pd(integers(sum)); };
      auto both = [&](int sum, int more) {
        return _mm512_cvtepi32_pd(_mm256_add_epi32(integers(sum), integers(more)));
      };
      auto join = [&](__m512d high, __m512d low) { return _mm512_fmadd_pd(high, byte, low); };
      const __m512d middle = join(join(of(kPower5), both(kPower4, kMore4)), of(kPower3));
      const __m512d low = join(middle, of(kPower2));
      const __m512d high = join(join(of(kPower8), of(kPower7)), both(kPower6, kMore6));
      const __m512d sum = _mm512_mul_pd(_mm512_fmadd_pd(high, _mm512_set1_pd(0x1p32), low),
                                        _mm512_loadu_pd(column_units + j));
      double* const at = to + i * row + j;
      const __m512d before = first ? _mm512_setzero_pd() : _mm512_loadu_pd(at);
      _mm512_storeu_pd(at, _mm512_fmadd_pd(sum, row_unit, before));
    }
  }
}

static const ExactProducts kExactProducts = {
    kLanes,     kRows,       kStep,      kExactDigits, kExactTerms, 0x1p14 * (1 + 0x1p9),
    exact_left, exact_right, exact_tile, begin,        end};

// Whether a product of pseudorandom numbers is as near to that of plain arithmetic as it is said to be.
static bool exact_correct() {
  constexpr int kM = 5, kN = 2 * kLanes, kK = 70, kSteps = 2;
  constexpr int kOfTile = kSteps * kExactDigits * kTile;
  float a[kM * kK], b[kK * kN];
  int8_t lhs[kOfTile], rhs[2 * kOfTile];
  int64_t at_a[kM], at_b[kK];
  double sums[kM * kN], of_rows[3 * kM] = {}, of_columns[3 * kN] = {}, rows[kM], columns[kN];
  uint32_t random = 1;
  auto fill = [&](float* x, int count) {
    for (int i = 0; i < count; ++i) x[i] = int32_t(random = random * 1664525 + 1013904223) >> 8;
  };
  fill(a, kM * kK);
  fill(b, kK * kN);
  for (int m = 0; m < kM; ++m) at_a[m] = m * kK;
  for (int k = 0; k < kK; ++k) at_b[k] = k * kN;
  exact_left(a, at_a, kM, kK, lhs, rows, {of_rows, of_rows + kM, of_rows + 2 * kM});
  exact_right(b, at_b, kK, kN, rhs, columns, {of_columns, of_columns + kN, of_columns + 2 * kN});
  begin();
  for (int j = 0; j < 2; ++j) {
    exact_tile(kK, lhs, rhs + j * kOfTile, kM, rows, columns + j * kLanes, sums + j * kLanes, kN,
               true);
  }
  end();
  for (int m = 0; m < kM; ++m) {
    for (int n = 0; n < kN; ++n) {
      int64_t sum = 0;
      for (int k = 0; k < kK; ++k) sum += int64_t(a[m * kK + k]) * int64_t(b[k * kN + n]);
      if (!(__builtin_fabs(sums[m * kN + n] - double(sum)) <= 0x1p5)) return false;
    }
  }
  return true;
}
