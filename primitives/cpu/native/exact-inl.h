// Float64 sums of products and of float32 numbers, and which of them are surely rounded right.
//
// The sums are not exact.  What is here has the bounds that are stated: a chain of n additions of
// exact terms, of any signs, is off by at most n * 2**-53 of the sum of their magnitudes (and a
// little more, for which the callers allow).

namespace exact {

typedef double Element;
typedef double Result;

// A block of terms has chains of its own, whose sums are added: shorter chains have less error.
static inline Vector begin(const double*, bool) { return Vector{}; }

static inline void end(double* to, Vector s, bool first, bool) {
  Vector sum = {};
  if (!first) __builtin_memcpy(&sum, to, sizeof sum);
  sum += s;
  __builtin_memcpy(to, &sum, sizeof sum);
}

#include "fma_tiles-inl.h"

static inline Vector widen_some(const float* x, int64_t count) {
  float some[kLanes] = {};
  __builtin_memcpy(some, x, sizeof(float) * count);
  return widen(some);
}

static inline double sum_of(Vector x) {
  double sum = 0;
  for (int i = 0; i < kLanes; ++i) sum += x[i];
  return sum;
}

static inline Vector magnitude_of(Vector x) {
  const Bits bits = (Bits)x & 0x7FFFFFFFFFFFFFFF;
  return (Vector)bits;
}

// Rows of terms: to[i * row + k] = x[at[i] + k], and squares[i] += the sum of their squares.
static void left(const float* x, const int64_t* at, int64_t rows, int64_t terms, double* to,
                 int64_t row, double* squares) {
  for (int64_t i = 0; i < rows; ++i, to += row) {
    const float* const from = x + at[i];
    Vector sum = {};
    int64_t k = 0;
    for (; k + kLanes <= terms; k += kLanes) {
      const Vector v = widen(from + k);
      store(to + k, v);
      sum += v * v;
    }
    if (k < terms) {
      const Vector v = widen_some(from + k, terms - k);
      __builtin_memcpy(to + k, &v, sizeof(double) * (terms - k));
      sum += v * v;
    }
    squares[i] += sum_of(sum);
  }
}

// Rows of columns, whole vectors: to[k * width + j] = x[at[k] + j]; squares[j] += their squares.
static void right(const float* x, const int64_t* at, int64_t terms, int64_t columns, double* to,
                  int64_t width, double* squares) {
  for (int64_t j = 0; j < columns; j += kLanes) {
    Vector sum = {};
    for (int64_t k = 0; k < terms; ++k) {
      const Vector v = widen(x + at[k] + j);
      store(to + k * width + j, v);
      sum += v * v;
    }
    for (int i = 0; i < kLanes; ++i) squares[j + i] += sum[i];
  }
}

// An array as float64; returns the largest magnitude of its finite elements.
static double widen_all(const float* x, int64_t n, double* to) {
  Vector most = {};
  for (int64_t i = 0; i < n; i += kLanes) {
    const int64_t here = n - i < kLanes ? n - i : kLanes;
    const Vector v = here == kLanes ? widen(x + i) : widen_some(x + i, here);
    __builtin_memcpy(to + i, &v, sizeof(double) * here);
    const Vector size = magnitude_of(v);
    most = (size > most) & (size < __builtin_inf()) ? size : most;
  }
  double result = 0;
  for (int i = 0; i < kLanes; ++i) result = most[i] > result ? most[i] : result;
  return result;
}

// Numbers of float32, twice as many as a vector of float64 has, and their bits.
typedef float Floats __attribute__((vector_size(8 * kLanes)));
typedef int32_t Words __attribute__((vector_size(8 * kLanes)));
constexpr int64_t kWords = 2 * kLanes;

// The first ones of so many, with zeros behind the last one.
static inline Words words_of(const float* x, int64_t count) {
  Words words = {};
  if (count >= kWords) {
    __builtin_memcpy(&words, x, sizeof words);
  } else {
    __builtin_memcpy(&words, x, sizeof(float) * count);
  }
  return words;
}

// The least of these numbers that are not negative, and of the steps of these words.  The step of a
// number is what it loses without its lowest bit, or, if that is one of the exponent, at least half
// of the number; of zero, and of what is not finite, infinity or more.
static inline Words least_step(Words least, Words bits) {
  const Words rest = bits & (bits - 1);
  Words step = (Words)((Floats)bits - (Floats)rest) & 0x7FFFFFFF;
  step = (bits & 0x7FFFFFFF) == 0 ? Words{} + 0x7F800000 : step;
  return step < least ? step : least;
}

// least[i] = the least of what it was and of the steps of x[at[i] + j], or least[j] of these.
static void steps(const float* x, const int64_t* at, int64_t rows, int64_t columns, bool of_rows,
                  float* least) {
  for (int64_t i = 0; of_rows && i < rows; ++i) {
    Words found = (Words)(Floats{} + least[i]);
    for (int64_t j = 0; j < columns; j += kWords) {
      found = least_step(found, words_of(x + at[i] + j, columns - j));
    }
    for (int j = 0; j < kWords; ++j) {
      least[i] = ((Floats)found)[j] < least[i] ? ((Floats)found)[j] : least[i];
    }
  }
  for (int64_t j = 0; !of_rows && j < columns; j += kWords) {
    Words found = words_of(least + j, columns - j);
    for (int64_t i = 0; i < rows; ++i) {
      found = least_step(found, words_of(x + at[i] + j, columns - j));
    }
    const int64_t count = columns - j < kWords ? columns - j : kWords;
    __builtin_memcpy(least + j, &found, sizeof(float) * count);
  }
}

// Rounded to nearest even, with the guard of repjax.primitives.core.canonical; or, if kOdd, to odd.
template <bool kOdd>
static inline int32_t rounded(double x) {
  if (kOdd) {
    int64_t wide;
    __builtin_memcpy(&wide, &x, sizeof x);
    wide = (wide & ~int64_t(0x1FFFFFFF)) | int64_t((wide & 0x1FFFFFFF) != 0) << 29;
    __builtin_memcpy(&x, &wide, sizeof x);
  }
  const float narrow = float(x);
  int32_t bits;
  __builtin_memcpy(&bits, &narrow, sizeof bits);
  return (bits & 0x7FFFFFFF) <= 0x00800000 ? 0 : bits;
}

template <bool kOdd>
static void round_one(double x, float* to) {
  const int32_t bits = rounded<kOdd>(x);
  __builtin_memcpy(to, &bits, sizeof bits);
}

// to[j] = s[j] rounded, if all numbers within the bound of it round alike; returns how many do not,
// and which.
template <bool kOdd, int kPairs>
static int64_t round_within(const double* __restrict s, int64_t n, const Bound& bound,
                            float* __restrict to, int32_t* __restrict unsure) {
  double row[kPairs];
  const double* column[kPairs];
  for (int i = 0; i < kPairs; ++i) row[i] = bound.row[i], column[i] = bound.column[i];
  auto error = [&](int64_t j) {
    double sum = row[0] * column[0][j];
    if (kPairs == 2) return row[1] * column[1][j] <= 0x1p52 ? 0.0 : sum;
    for (int i = 1; i < kPairs; ++i) sum += row[i] * column[i][j];
    return sum;
  };
  int32_t differ = 0;
  for (int64_t j = 0; j < n; ++j) {
    const double e = error(j);
    const int32_t low = rounded<kOdd>(s[j] - e), high = rounded<kOdd>(s[j] + e);
    __builtin_memcpy(to + j, &low, sizeof low);
    differ |= low ^ high;
  }
  if (!differ) return 0;
  int64_t count = 0;
  for (int64_t j = 0; j < n; ++j) {
    const double e = error(j);
    if (rounded<kOdd>(s[j] - e) != rounded<kOdd>(s[j] + e)) unsure[count++] = int32_t(j);
  }
  return count;
}

template <bool kOdd>
static int64_t round_sure(const double* s, int64_t n, const Bound& bound, float* to,
                          int32_t* unsure) {
  const auto round = bound.pairs == 1   ? round_within<kOdd, 1>
                     : bound.pairs == 2 ? round_within<kOdd, 2>
                                        : round_within<kOdd, 3>;
  return round(s, n, bound, to, unsure);
}

// s + e is the exact sum of a and b (Knuth 1969; Moller 1965).
static inline Vector two_sum(Vector a, Vector b, Vector* e) {
  const Vector s = a + b, of_b = s - a;
  *e = (a - (s - of_b)) + (b - of_b);
  return s;
}

// Continues sums of products a[k] * b[k], or of a[k] where b is null: they are within lost of
// high + low, lane by lane.  `state` is high, low and lost, kLanes of each.
static void refine(const float* a, const float* b, int64_t n, double* state) {
  constexpr int kChains = 3;  // that do not wait for each other
  Vector high[kChains] = {load(state)}, low[kChains] = {load(state + kLanes)};
  Vector lost[kChains] = {load(state + 2 * kLanes)};
  auto add = [](Vector x, Vector& high, Vector& low, Vector& lost) {
    Vector e, rest;
    high = two_sum(high, x, &e);
    low = two_sum(low, e, &rest);
    lost += magnitude_of(rest);
  };
  int64_t k = 0;
  for (; k + kChains * kLanes <= n; k += kChains * kLanes) {
#pragma GCC unroll 3
    for (int i = 0; i < kChains; ++i) {
      Vector x = widen(a + k + i * kLanes);
      if (b) x = x * widen(b + k + i * kLanes);
      add(x, high[i], low[i], lost[i]);
    }
  }
  for (; k < n; k += kLanes) {
    const int64_t here = n - k < kLanes ? n - k : kLanes;
    Vector x = widen_some(a + k, here);
    if (b) x = x * widen_some(b + k, here);
    add(x, high[0], low[0], lost[0]);
  }
  for (int i = 1; i < kChains; ++i) {
    add(high[i], high[0], low[0], lost[0]);
    Vector rest;
    low[0] = two_sum(low[0], low[i], &rest);
    lost[0] += lost[i] + magnitude_of(rest);
  }
  store(state, high[0]);
  store(state + kLanes, low[0]);
  store(state + 2 * kLanes, lost[0]);
}

constexpr int kStreams = 4;
constexpr int64_t kTerms = 64;

// Magnitudes, which are added in float32: of 128 terms such a sum is off by 2**-17 of itself.
static inline Floats sizes_of(const float* x) {
  Words bits;
  __builtin_memcpy(&bits, x, sizeof bits);
  bits &= 0x7FFFFFFF;
  Floats sizes;
  __builtin_memcpy(&sizes, &bits, sizeof sizes);
  return sizes;
}

// The sum of at most kTerms * kStreams * kLanes elements, by chains of at most kTerms + 1 additions
// and then kStreams + kLanes; and the sum of their magnitudes.
static void sum(const float* x, int64_t n, double* total, double* magnitude) {
  constexpr int64_t kStep = kStreams * kLanes;
  Vector s[kStreams] = {};
  Floats m[kStreams / 2] = {};
  int64_t k = 0;
  for (; k + kStep <= n; k += kStep) {
#pragma GCC unroll 4
    for (int i = 0; i < kStreams; ++i) s[i] += widen(x + k + i * kLanes);
#pragma GCC unroll 2
    for (int i = 0; i < kStreams / 2; ++i) m[i] += sizes_of(x + k + 2 * i * kLanes);
  }
  double rest = 0;
  for (int i = 0; k < n; k += kLanes, ++i) {
    const Vector v = n - k < kLanes ? widen_some(x + k, n - k) : widen(x + k);
    s[i] += v;
    rest += sum_of(magnitude_of(v));
  }
  for (int i = 1; i < kStreams; ++i) s[0] += s[i];
  *total = sum_of(s[0]);
  float sizes[kStep];
  __builtin_memcpy(sizes, m, sizeof sizes);
  Vector all = {};
  for (int i = 0; i < kStreams; ++i) all += widen(sizes + i * kLanes);
  *magnitude = (rest + sum_of(all)) * (1 + 0x1p-16);
}

// The same of columns: total[c] += the sum of x[i * row + c], a chain of its own.
static void sum_columns(const float* x, int64_t rows, int64_t row, int64_t width, double* total,
                        double* magnitude) {
  int64_t c = 0;
  for (; c + kStreams * kLanes <= width; c += kStreams * kLanes) {
    Vector s[kStreams] = {};
    Floats m[kStreams / 2] = {};
    for (int64_t i = 0; i < rows; ++i) {
      const float* const from = x + i * row + c;
#pragma GCC unroll 4
      for (int v = 0; v < kStreams; ++v) s[v] += widen(from + v * kLanes);
#pragma GCC unroll 2
      for (int v = 0; v < kStreams / 2; ++v) m[v] += sizes_of(from + 2 * v * kLanes);
    }
    for (int j = 0; j < kStreams * kLanes; ++j) {
      total[c + j] += s[j / kLanes][j % kLanes];
      magnitude[c + j] += m[j / (2 * kLanes)][j % (2 * kLanes)] * (1 + 0x1p-16);
    }
  }
  for (; c < width; c += kLanes) {
    const int64_t here = width - c < kLanes ? width - c : kLanes;
    Vector s = {}, m = {};
    for (int64_t i = 0; i < rows; ++i) {
      const float* const from = x + i * row + c;
      const Vector v = here == kLanes ? widen(from) : widen_some(from, here);
      s += v;
      m += magnitude_of(v);
    }
    for (int i = 0; i < here; ++i) total[c + i] += s[i], magnitude[c + i] += m[i];
  }
}

// Numbers of float32, as many as a vector of float64 has, and their bits.
typedef float Narrow __attribute__((vector_size(4 * kLanes)));
typedef int32_t NarrowBits __attribute__((vector_size(4 * kLanes)));
typedef int64_t NarrowPairs __attribute__((vector_size(4 * kLanes)));

// `rounded` of each.
template <bool kOdd>
static inline NarrowBits rounded_all(Vector x) {
  if (kOdd) {
    const Bits bits = (Bits)x, rest = bits & 0x1FFFFFFF;
    x = (Vector)((bits ^ rest) | ((Bits)(rest != 0) & (int64_t(1) << 29)));
  }
  const NarrowBits bits = (NarrowBits)__builtin_convertvector(x, Narrow);
  return bits & ((bits & 0x7FFFFFFF) > 0x00800000);
}

// The exact sum of a and b, rounded to odd.
static inline double odd_sum(double a, double b) {
  double s = a + b;
  const double of_b = s - a, rest = (a - (s - of_b)) + (b - of_b);
  if (rest == 0) return s;
  int64_t bits;
  __builtin_memcpy(&bits, &s, sizeof s);
  bits = (bits - ((rest < 0) != (s < 0))) | 1;  // towards zero, unless it is there already
  __builtin_memcpy(&s, &bits, sizeof s);
  return s;
}

// The sum of t and r, which is off by at most `lost`, rounded; or kUnsure.  `high` is what IEEE
// arithmetic makes of the terms.
template <bool kOdd>
static int32_t rounded_sum(double high, double t, double r, double lost) {
  if (!(high - high == 0)) {
    const float special = float(high);
    int32_t bits;
    __builtin_memcpy(&bits, &special, sizeof bits);
    return high == high ? bits : kNan;
  }
  // r - lost and r + lost have their signs, but are rounded.
  if (lost != 0) lost += (r < 0 ? -r : r) * 0x1p-51;
  const int32_t below = rounded<kOdd>(odd_sum(t, r - lost));
  const int32_t above = rounded<kOdd>(odd_sum(t, r + lost));
  return below == above ? below : kUnsure;
}

// Continues the sums of so many vectors of columns, or of some columns of one, over rows.  Where
// kResults, each sum goes to `to`, rounded; returns whether all are sure.
template <bool kOdd, bool kResults, int kSome>
static bool go_on(const float* x, int64_t rows, int64_t row, int64_t columns, double slack,
                  Running sums, float* to, int64_t to_row) {
  const bool whole = columns == kSome * kLanes;
  Vector high[kSome] = {}, low[kSome] = {}, lost[kSome] = {};
  __builtin_memcpy(high, sums.high, sizeof(double) * columns);
  __builtin_memcpy(low, sums.low, sizeof(double) * columns);
  __builtin_memcpy(lost, sums.lost, sizeof(double) * columns);
  const double wider = slack * (1 + 0x1p-16);
  bool sure = true;
  for (int64_t i = 0; i < rows; ++i, x += row, to += to_row) {
    Vector t[kSome], r[kSome];
    NarrowBits results[kSome], differ[kSome];
#pragma GCC unroll 2
    for (int v = 0; v < kSome; ++v) {
      Vector e, rest;
      high[v] = two_sum(high[v], whole ? widen(x + v * kLanes) : widen_some(x, columns), &e);
      low[v] = two_sum(low[v], e, &rest);
      lost[v] += magnitude_of(rest);
      if (!kResults) continue;
      t[v] = two_sum(high[v], low[v], &r[v]);
      // Nothing where t is the exact sum; else with what rounding the ends may move them.
      Vector error = magnitude_of(r[v]) + lost[v] * wider;
      error += (Vector)((Bits)(magnitude_of(t[v]) * 0x1p-51) & (Bits)(error != 0));
      results[v] = rounded_all<kOdd>(t[v] - error);
      differ[v] = (results[v] ^ rounded_all<kOdd>(t[v] + error)) |
                  ((results[v] & 0x7FFFFFFF) > 0x7F800000);
    }
    if (!kResults) continue;
    __builtin_memcpy(to, results, sizeof(float) * columns);
    NarrowBits any = differ[0];
    for (int v = 1; v < kSome; ++v) any |= differ[v];
    int64_t all = 0;
    for (int j = 0; j < kLanes / 2; ++j) all |= ((NarrowPairs)any)[j];
    if (!all) continue;
    for (int j = 0; j < columns; ++j) {
      const int v = j / kLanes, l = j % kLanes;
      if (!differ[v][l]) continue;
      const int32_t bits =
          rounded_sum<kOdd>(high[v][l], t[v][l], r[v][l], lost[v][l] * wider);
      __builtin_memcpy(to + j, &bits, sizeof bits);
      sure &= bits != kUnsure;
    }
  }
  __builtin_memcpy(sums.high, high, sizeof(double) * columns);
  __builtin_memcpy(sums.low, low, sizeof(double) * columns);
  __builtin_memcpy(sums.lost, lost, sizeof(double) * columns);
  return sure;
}

template <bool kOdd, bool kResults>
static bool prefixes(const float* x, int64_t rows, int64_t row, int64_t columns, double slack,
                     Running sums, float* to, int64_t to_row) {
  constexpr int kSome = 2;  // vectors of float64: of float32, one
  bool sure = true;
  for (int64_t c = 0; c < columns;) {
    const Running here = {sums.high + c, sums.low + c, sums.lost + c};
    const int64_t left = columns - c;
    const int64_t count = left >= kSome * kLanes ? kSome * kLanes : left < kLanes ? left : kLanes;
    sure &= (count > kLanes ? go_on<kOdd, kResults, kSome> : go_on<kOdd, kResults, 1>)(
        x + c, rows, row, count, slack, here, kResults ? to + c : to, to_row);
    c += count;
  }
  return sure;
}

static const Exact kExact = {kLanes,
                             kVectors,
                             kTerms * kStreams * kLanes,
                             kTerms + kStreams + kLanes + 1,
                             tile_for,
                             left,
                             right,
                             widen_all,
                             steps,
                             {round_sure<false>, round_sure<true>},
                             {round_one<false>, round_one<true>},
                             refine,
                             sum,
                             sum_columns,
                             {prefixes<false, true>, prefixes<true, true>},
                             prefixes<false, false>};

}  // namespace exact
