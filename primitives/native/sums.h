// Sums of float32 for one instruction set, which the including file names.
//
// Included by instruction_sets.cc after floats.h, of which it uses Vector and Bits.  Every
// addition is rounded and flushed, in the orders of repjax.primitives.reduce.sums.

// The sum, and +0 for -0 and subnormals.
template <int kCount>
struct Few {
  typedef float Vector __attribute__((vector_size(4 * kCount)));
  typedef int32_t Bits __attribute__((vector_size(4 * kCount)));

  static inline Vector add(Vector a, Vector b) {
    a += b;
    Bits bits, zero = {};
    __builtin_memcpy(&bits, &a, sizeof a);
    bits &= (bits & (zero + 0x7FFFFFFF)) >= (zero + 0x00800000);
    __builtin_memcpy(&a, &bits, sizeof a);
    return a;
  }

  // The pairwise sum of the elements.
  static inline float fold(Vector x) {
    typedef Few<kCount / 2> Half;
    typename Half::Vector low, high;
    __builtin_memcpy(&low, &x, sizeof low);
    __builtin_memcpy(&high, reinterpret_cast<const char*>(&x) + sizeof low, sizeof high);
    return Half::fold(Half::add(low, high));
  }
};

template <>
struct Few<1> {
  typedef float Vector;

  static inline float add(float a, float b) {
    a += b;
    int32_t bits;
    __builtin_memcpy(&bits, &a, sizeof a);
    return (bits & 0x7FFFFFFF) >= 0x00800000 ? a : 0;
  }

  static inline float fold(float x) { return x; }
};

static inline Vector add(Vector a, Vector b) { return Few<kLanes>::add(a, b); }

// The first elements; +0 after them, which adds nothing to a canonical number.
static inline Vector load_some(const float* p, int64_t count) {
  Vector x = {};
  __builtin_memcpy(&x, p, sizeof(float) * count);
  return x;
}

// The pairwise sum of at most eight: element i and i + 4, then i + 2, then i + 1.
template <int kTerms>
static inline Vector sum_terms(Vector* x) {
#pragma GCC unroll 4
  for (int i = 0; i + 4 < kTerms; ++i) x[i] = add(x[i], x[i + 4]);
  constexpr int kLeft = kTerms < 4 ? kTerms : 4;
#pragma GCC unroll 2
  for (int i = 0; i + 2 < kLeft; ++i) x[i] = add(x[i], x[i + 2]);
  return kTerms > 1 ? add(x[0], x[1]) : x[0];
}

// to[c] = the pairwise sum of x[c + i * step], i below kTerms.
template <int kTerms>
static void sum_streams(const float* x, int64_t step, int64_t count, float* to) {
  Vector terms[kTerms];
  int64_t c = 0;
  for (; c + kLanes <= count; c += kLanes) {
#pragma GCC unroll 8
    for (int i = 0; i < kTerms; ++i) terms[i] = load(x + c + i * step);
    store(to + c, sum_terms<kTerms>(terms));
  }
  if (c == count) return;
  for (int i = 0; i < kTerms; ++i) terms[i] = load_some(x + c + i * step, count - c);
  const Vector sum = sum_terms<kTerms>(terms);
  __builtin_memcpy(to + c, &sum, sizeof(float) * (count - c));
}

static void sum_streams(int64_t terms, const float* x, int64_t step, int64_t count, float* to) {
  switch (terms) {
    case 1: return sum_streams<1>(x, step, count, to);
    case 2: return sum_streams<2>(x, step, count, to);
    case 3: return sum_streams<3>(x, step, count, to);
    case 4: return sum_streams<4>(x, step, count, to);
    case 5: return sum_streams<5>(x, step, count, to);
    case 6: return sum_streams<6>(x, step, count, to);
    case 7: return sum_streams<7>(x, step, count, to);
    default: return sum_streams<8>(x, step, count, to);
  }
}

// Of n rows the sums of those a multiple of `left` apart: `left` rows, at most an eighth of
// the power of two from n on; rows of `width` elements, `row` apart before and together after.
static void add_rows(const float* x, int64_t n, int64_t row, int64_t width, int64_t left,
                     float* to) {
  const int64_t terms = (n + left - 1) / left;
  const int64_t full = n - (terms - 1) * left;  // the others have one term less
  if (row == width) {
    sum_streams(terms, x, left * row, full * width, to);
    if (full < left) {
      sum_streams(terms - 1, x + full * row, left * row, (left - full) * width, to + full * width);
    }
    return;
  }
  for (int64_t i = 0; i < left; ++i) {
    sum_streams(i < full ? terms : terms - 1, x + i * row, left * row, width, to + i * width);
  }
}

static inline int64_t power_of_two_from(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

// out[c] = the pairwise sum of x[i * row + c], i below n; scratch for n * width / 4 elements.
static void pairwise(const float* x, int64_t n, int64_t row, int64_t width, float* scratch,
                     float* out) {
  int64_t power = power_of_two_from(n);
  while (power > 8) {
    power /= 8;
    add_rows(x, n, row, width, power, scratch);
    x = scratch;
    n = power;
    row = width;
  }
  sum_streams(n, x, row, width, out);
}

// *out = the pairwise sum of x[i], i below n; scratch for n / 4 + 8 * kLanes elements.
static void pairwise_row(const float* x, int64_t n, float* scratch, float* out) {
  int64_t power = power_of_two_from(n);
  while (power >= 8 * kLanes) {
    power /= 8;
    add_rows(x, n, 1, 1, power, scratch);
    x = scratch;
    n = power;
  }
  Vector sum = load_some(x, n < kLanes ? n : kLanes);
  if (n > kLanes) {
    add_rows(x, n, 1, 1, kLanes, scratch);
    sum = load(scratch);
  }
  *out = Few<kLanes>::fold(sum);
}

// out[c] = the sequential sum of x[i * row + c], i below n, which is not 0.
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
      for (int j = 0; j < kTogether; ++j) sums[j] = add(sums[j], load(at + j * kLanes));
    }
#pragma GCC unroll 4
    for (int j = 0; j < kTogether; ++j) store(out + c + j * kLanes, sums[j]);
  }
  for (; c < width; c += kLanes) {
    const int64_t here = width - c < kLanes ? width - c : kLanes;
    Vector sum = load_some(x + c, here);
    for (int64_t i = 1; i < n; ++i) sum = add(sum, load_some(x + i * row + c, here));
    __builtin_memcpy(out + c, &sum, sizeof(float) * here);
  }
}

static const Sums kSums = {kLanes, pairwise, pairwise_row, sequential};
