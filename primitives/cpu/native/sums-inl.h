// Sums and extrema of float32.
//
// Every addition is rounded and flushed, in the orders of
// repjax.primitives.operations.reductions.sums; extrema take the way of pairwise sums.
//
// The processor has to flush: a sum of two numbers that is subnormal is exact, so that it flushes as
// a guard does, except for the sign, which counts at the end only.

// What a pairwise reduction makes of two elements: the sum, and +0 for -0 and subnormals; or the
// larger or the smaller one, or a NaN.
template <Join join>
static inline Vector both(Vector a, Vector b) {
  if (join != Join::kAdd) {
    const Bits first = (Bits)(join == Join::kLargest ? a > b : a < b) | (Bits)(a != a);
    return first ? a : b;
  }
  return as<Vector>(flush(a + b));
}

// What changes nothing: of sums of canonical numbers +0.
constexpr float nothing(Join join) {
  return join == Join::kAdd ? 0 : join == Join::kLargest ? -__builtin_inff() : __builtin_inff();
}

// What is joined of elements, which may be raw.
template <Summed of>
static inline Vector term(Vector x) {
  return of == Summed::kSquares ? as<Vector>(guard(x * x)) : x;
}

// The first elements, and after them what changes nothing.
static inline Vector load_some(const float* p, int64_t count, float after = 0) {
  const Vector x = load_part(p, count);
  if (after == 0) return x;
  Bits places;
  for (int i = 0; i < kLanes; ++i) places[i] = i;
  return places < Bits{} + int32_t(count) ? x : after - Vector{};
}

// The pairwise reduction of at most eight: element i and i + 4, then i + 2, then i + 1.
template <Join join, Summed of, int kTerms>
static inline Vector join_terms(Vector* x) {
  // Of numbers an extremum is one instruction; where a term is none, the result is a NaN.
  Bits nan = {};
  if (join != Join::kAdd) {
#pragma GCC unroll 8
    for (int i = 0; i < kTerms; ++i) nan |= (Bits)(x[i] != x[i]);
  }
  const auto both_of = [](Vector a, Vector b) {
    if (join == Join::kAdd) return a + b;
    return join == Join::kLargest ? (a > b ? a : b) : (a < b ? a : b);
  };
#pragma GCC unroll 4
  for (int i = 0; i + 4 < kTerms; ++i) x[i] = both_of(x[i], x[i + 4]);
  constexpr int kLeft = kTerms < 4 ? kTerms : 4;
#pragma GCC unroll 2
  for (int i = 0; i + 2 < kLeft; ++i) x[i] = both_of(x[i], x[i + 2]);
  Vector all = kTerms > 1 ? both_of(x[0], x[1]) : x[0];
  if (join != Join::kAdd) all = nan ? as<Vector>(Bits{} + 0x7FC00000) : all;
  if (of != Summed::kElements) return as<Vector>(canonical(all));
  return join == Join::kAdd && kTerms > 1 ? as<Vector>(flush(all)) : all;
}

// Rows of terms: at the same distance, or each where it is.
struct Spaced {
  const float* x;
  int64_t step;
  const float* operator[](int64_t i) const { return x + i * step; }
};
struct Apart {
  const float* const* x;
  int64_t step;
  const float* operator[](int64_t i) const { return x[i * step]; }
};

// to[c] = the pairwise reduction of rows[i][c], i below kTerms.
template <Join join, Summed of, int kTerms, class Rows>
static void join_streams(Rows from, int64_t count, float* to) {
  const float* rows[kTerms];
  for (int i = 0; i < kTerms; ++i) rows[i] = from[i];
  Vector terms[kTerms];
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
#pragma GCC unroll 8
    for (int i = 0; i < kTerms; ++i) terms[i] = term<of>(load(rows[i] + c));
    store(to + c, join_terms<join, of, kTerms>(terms));
  }
  if (c == count) return;
  for (int i = 0; i < kTerms; ++i) {
    terms[i] = term<of>(load_some(rows[i] + c, count - c));
  }
  const Vector sum = join_terms<join, of, kTerms>(terms);
  __builtin_memcpy(to + c, &sum, sizeof(float) * (count - c));
}

template <Join join, Summed of, class Rows>
static void join_streams(int64_t terms, Rows rows, int64_t count, float* to) {
  switch (terms) {
    case 1: return join_streams<join, of, 1>(rows, count, to);
    case 2: return join_streams<join, of, 2>(rows, count, to);
    case 3: return join_streams<join, of, 3>(rows, count, to);
    case 4: return join_streams<join, of, 4>(rows, count, to);
    case 5: return join_streams<join, of, 5>(rows, count, to);
    case 6: return join_streams<join, of, 6>(rows, count, to);
    case 7: return join_streams<join, of, 7>(rows, count, to);
    default: return join_streams<join, of, 8>(rows, count, to);
  }
}

// The reductions of those of n rows that are a multiple of `left` apart: `left` rows, at most an
// eighth of the power of two from n on; rows of `width` elements, `row` apart before and together
// after.
template <Join join, Summed of>
static void join_rows(const float* x, int64_t n, int64_t row, int64_t width, int64_t left,
                      float* to) {
  const int64_t terms = (n + left - 1) / left;
  const int64_t full = n - (terms - 1) * left;  // the others have one term less
  if (row == width) {
    join_streams<join, of>(terms, Spaced{x, left * row}, full * width, to);
    if (full < left) {
      join_streams<join, of>(terms - 1, Spaced{x + full * row, left * row}, (left - full) * width,
                             to + full * width);
    }
    return;
  }
  for (int64_t i = 0; i < left; ++i) {
    const int64_t here = i < full ? terms : terms - 1;
    join_streams<join, of>(here, Spaced{x + i * row, left * row}, width, to + i * width);
  }
}

// out[c] = the pairwise reduction of x[i * row + c], i below n; scratch for n * width / 4 elements.
template <Join join, Summed of>
static void pairwise(const float* x, int64_t n, int64_t row, int64_t width, float* scratch,
                     float* out) {
  int64_t power = power_of_two_from(n);
  if (power <= 8) return join_streams<join, of>(n, Spaced{x, row}, width, out);
  power /= 8;
  join_rows<join, of>(x, n, row, width, power, scratch);
  pairwise<join, Summed::kElements>(scratch, power, width, width, scratch, out);
}

// The same of rows that are each where it is.
template <Join join, Summed of>
static void pairwise_apart(const float* const* x, int64_t n, int64_t width, float* scratch,
                           float* out) {
  int64_t power = power_of_two_from(n);
  if (power <= 8) return join_streams<join, of>(n, Apart{x, 1}, width, out);
  power /= 8;
  for (int64_t i = 0; i < power; ++i) {
    const int64_t terms = (n - i + power - 1) / power;
    join_streams<join, of>(terms, Apart{x + i, power}, width, scratch + i * width);
  }
  pairwise<join, Summed::kElements>(scratch, power, width, width, scratch, out);
}

// The pairwise reductions of the elements of a row that are a multiple of kLanes apart; where there
// is none, what changes nothing.
template <Join join, Summed of, int kTerms>
static inline Vector join_few(const float* x, int64_t n) {
  Vector terms[kTerms];
#pragma GCC unroll 8
  for (int i = 0; i + 1 < kTerms; ++i) terms[i] = term<of>(load(x + i * kLanes));
  constexpr int64_t kLast = (kTerms - 1) * kLanes;
  terms[kTerms - 1] = term<of>(n == kTerms * kLanes
                                    ? load(x + kLast)
                                    : load_some(x + kLast, n - kLast, nothing(join)));
  return join_terms<join, of, kTerms>(terms);
}

// Calls run(of_row) with what joins a row of n elements, up to 8 * kLanes.
template <Join join, Summed of, class Run>
static inline __attribute__((always_inline)) auto with_join_of_few(int64_t n, Run run) {
#define REPJAX_JOIN(terms) [=](const float* x) { return join_few<join, of, terms>(x, n); }
  switch ((n + kLanes - 1) / kLanes) {
    case 1: return run(REPJAX_JOIN(1));
    case 2: return run(REPJAX_JOIN(2));
    case 3: return run(REPJAX_JOIN(3));
    case 4: return run(REPJAX_JOIN(4));
    case 5: return run(REPJAX_JOIN(5));
    case 6: return run(REPJAX_JOIN(6));
    case 7: return run(REPJAX_JOIN(7));
    default: return run(REPJAX_JOIN(8));
  }
#undef REPJAX_JOIN
}

template <Join join, Summed of>
static inline Vector join_lanes(const float* x, int64_t n, float* scratch) {
  const int64_t power = power_of_two_from(n) / 8;
  if (power > kLanes) {
    join_rows<join, of>(x, n, 1, 1, power, scratch);
    return join_lanes<join, Summed::kElements>(scratch, power, scratch);
  }
  return with_join_of_few<join, of>(n, [=](auto join_row) { return join_row(x); });
}

// The pairwise reduction of each part of the vectors, one after the other.
template <Join join, int kPart>
static inline Vector fold(Vector* x) {
  const std::make_integer_sequence<int, kLanes> all;
#pragma GCC unroll 8
  for (int i = 0; i < kPart / 2; ++i) {
    const Vector a = x[2 * i], b = x[2 * i + 1];
    x[i] = both<join>(halves<kPart, false>(a, b, all), halves<kPart, true>(a, b, all));
  }
  if constexpr (kPart > 2) return fold<join, kPart / 2>(x);
  return x[0];
}

template <Join join>
static __attribute__((noinline)) Vector fold_rows(Vector* rows) {
  return fold<join, kLanes>(rows);
}

constexpr int64_t kAhead = 1 << 12;  // elements of the next row that are fetched ahead, at most

// out[i] = the pairwise reduction of x[i * n + j], j below n; scratch for n / 4 + 8 * kLanes
// elements.
template <Join join, Summed of>
static void pairwise_rows(const float* x, int64_t count, int64_t n, float* scratch, float* out) {
  // Raw rows come from memory, in an order that the processor does not foresee.
  const int64_t ahead = of == Summed::kElements ? 0 : n < kAhead ? n : kAhead;
  const auto all = [=](auto join_row) {
    Vector rows[kLanes] = {};
    for (int64_t i = 0; i < count; i += kLanes) {
      const int64_t here = count - i < kLanes ? count - i : kLanes;
      for (int64_t r = 0; r < here; ++r) {
        const float* const row = x + (i + r) * n;
        for (int64_t j = 0; i + r + 1 < count && j < ahead; j += 16) __builtin_prefetch(row + n + j);
        rows[r] = join_row(row);
      }
      const Vector results = fold_rows<join>(rows);
      __builtin_memcpy(out + i, &results, sizeof(float) * here);
    }
  };
  if (n <= 8 * kLanes) return with_join_of_few<join, of>(n, all);
  all([=](const float* row) { return join_lanes<join, of>(row, n, scratch); });
}

// out[c] = the sequential sum of x[i * row + c], i below n, which is not 0, where the processor
// flushes: a sum that is subnormal is exact, so that it flushes as a guard does, except for the sign.
// Elements may be raw.
static void sequential(const float* x, int64_t n, int64_t row, int64_t width, float* out) {
  constexpr int kTogether = 4;
  int64_t c = 0;
  for (; c + kTogether * kLanes <= width; c += kTogether * kLanes) {
    Vector sums[kTogether];
#pragma GCC unroll 4
    for (int j = 0; j < kTogether; ++j) sums[j] = load(x + c + j * kLanes);
    for (int64_t i = 1; i < n; ++i) {
      const float* at = x + i * row + c;
#pragma GCC unroll 4
      for (int j = 0; j < kTogether; ++j) sums[j] += load(at + j * kLanes);
    }
#pragma GCC unroll 4
    for (int j = 0; j < kTogether; ++j) store(out + c + j * kLanes, as<Vector>(flush(sums[j])));
  }
  for (; c < width; c += kLanes) {
    const int64_t here = width - c < kLanes ? width - c : kLanes;
    Vector sum = load_some(x + c, here);
    for (int64_t i = 1; i < n; ++i) sum += load_some(x + i * row + c, here);
    sum = as<Vector>(flush(sum));
    __builtin_memcpy(out + c, &sum, sizeof(float) * here);
  }
}

// The same of a row.
static float sequential_row(const float* x, int64_t n) {
  const float sum = steps(Numbers{x}, n, 0);
  return sum == 0 ? 0 : sum;
}

static int64_t next_above(const float* x, int64_t at, int64_t n, int32_t key) {
  for (; at + kLanes <= n; at += kLanes) {
    const Vector v = load(x + at);
    const Bits i = as<Bits>(v), most = Bits{} + INT32_MAX;
    const Bits keys = is_nan(v) ? most : i ^ ((i >> 31) & most);
    if (any(as<Wide>(keys > key))) break;
  }
  while (at < n && key_of(x[at]) <= key) ++at;
  return at;
}

#define REPJAX_JOINS(function, of)                                                         \
  {                                                                                        \
    function<Join::kAdd, of>, function<Join::kLargest, of>, function<Join::kSmallest, of> \
  }
#define REPJAX_TERMS(function)                                                              \
  {                                                                                         \
    REPJAX_JOINS(function, Summed::kElements), REPJAX_JOINS(function, Summed::kRawElements),         \
        REPJAX_JOINS(function, Summed::kSquares)                                             \
  }
static const Sums kSums = {
    kLanes,     REPJAX_TERMS(pairwise), REPJAX_TERMS(pairwise_apart), REPJAX_TERMS(pairwise_rows),
    sequential, sequential_row,         next_above};
#undef REPJAX_TERMS
#undef REPJAX_JOINS
