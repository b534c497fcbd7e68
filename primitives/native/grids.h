// Grids of integers for one instruction set, which the including file names.
//
// Included by instruction_sets.cc.  The integers and their exponents are those of
// repjax.primitives.contract.order_independent.  Each function goes along elements that lie
// together, in runs that share them, and along the exponents or scales that go with them.

// Those that are read, with the step as a constant: 0, 1, or -1 for offsets.
template <int kStep, class Element>
struct Read {
  const Element* __restrict first;
  const int32_t* __restrict offsets;
  const Element only;

  explicit Read(const Along<const Element>& x)
      : first(x.first), offsets(x.offsets), only(kStep == 0 ? *x.first : Element()) {}

  Element operator[](int64_t i) const {
    return kStep == 0 ? only : kStep == 1 ? first[i] : first[offsets[i]];
  }
};

// The loop with both steps as constants.
template <template <int, int> class Loop, int kA, class A, class B, class... Rest>
static inline auto by_second(const Along<A>& a, const Along<B>& b, Rest... rest) {
  if (b.offsets) return Loop<kA, -1>::run(a, b, rest...);
  return b.step == 0 ? Loop<kA, 0>::run(a, b, rest...) : Loop<kA, 1>::run(a, b, rest...);
}

template <template <int, int> class Loop, class A, class B, class... Rest>
static inline auto by_steps(const Along<A>& a, const Along<B>& b, Rest... rest) {
  if (a.offsets) return by_second<Loop, -1>(a, b, rest...);
  return a.step == 0 ? by_second<Loop, 0>(a, b, rest...) : by_second<Loop, 1>(a, b, rest...);
}

// to = max(to, E(x) + at), and whether all x are finite; the others count as zeros.
template <int kAt, int kTo>
struct Largest {
  static bool run(const Along<const int32_t>& others, const Along<int32_t>& to,
                  const float* __restrict x, int64_t runs, int64_t n) {
    const Read<kAt, int32_t> at(others);
    int32_t* __restrict const first = to.first;
    int32_t infinite = 0, largest = kNone;
    for (; runs > 0; --runs, x += n) {
      for (int64_t i = 0; i < n; ++i) {
        int32_t bits;
        __builtin_memcpy(&bits, x + i, sizeof bits);
        const int32_t field = bits >> 23 & 0xFF;
        infinite |= field == 0xFF;
        const int32_t here = field == 0 || field == 0xFF ? kNone : field - 127 + at[i];
        if (kTo == 0) {
          largest = here > largest ? here : largest;
        } else {
          int32_t& old = first[kTo == 1 ? i : to.offsets[i]];
          old = here > old ? here : old;
        }
      }
    }
    if (kTo == 0 && largest > first[0]) first[0] = largest;
    return !infinite;
  }
};

static bool largest(const float* x, int64_t runs, int64_t n, Along<const int32_t> at,
                    Along<int32_t> to) {
  return by_steps<Largest>(at, to, x, runs, n);
}

// integers = x * a * b rounded to nearest even, a and b powers of two or 0; 0 if x is not finite.
template <int kA, int kB>
struct Round {
  static void run(const Along<const double>& a_scales, const Along<const double>& b_scales,
                  const float* __restrict x, int64_t runs, int64_t n,
                  double* __restrict integers) {
    const Read<kA, double> a(a_scales);
    const Read<kB, double> b(b_scales);
    for (; runs > 0; --runs, x += n, integers += n) {
      for (int64_t i = 0; i < n; ++i) {
        int32_t bits;
        __builtin_memcpy(&bits, x + i, sizeof bits);
        bits = (bits & 0x7F800000) == 0x7F800000 ? 0 : bits;
        float finite;
        __builtin_memcpy(&finite, &bits, sizeof bits);
        // Of at most 2**30 in magnitude: added to 1.5 * 2**52 they lose what is behind the point.
        const double scaled = double(finite) * (a[i] * b[i]);
        integers[i] = (scaled + 0x1.8p52) - 0x1.8p52;
      }
    }
  }
};

static void round(const float* x, int64_t runs, int64_t n, Along<const double> a,
                  Along<const double> b, double* integers) {
  by_steps<Round>(a, b, x, runs, n, integers);
}

// integers = high * 2**kLow + integers.
static void split(double* integers, int64_t n, double* high) {
  for (int64_t i = 0; i < n; ++i) {
    high[i] = (integers[i] * (1.0 / (1 << kLow)) + 0x1.8p52) - 0x1.8p52;
    integers[i] -= high[i] * (1 << kLow);
  }
}

// high * 2**32 + low += sums, whose shift is kLow.
static void carry(Sum sums, int64_t n, int64_t* high, int64_t* low) {
  for (int64_t i = 0; i < n; ++i) {
    const int64_t h = sums.high[i], l = sums.low[i];
    high[i] += (h >> (32 - kLow)) + (l >> 32);
    low[i] += ((h & ((1 << (32 - kLow)) - 1)) << kLow) + (l & 0xFFFFFFFF);
  }
}

// total * scale rounded to nearest even, with the guard of repjax.primitives.canonical.
static inline float scaled(int64_t total, double scale) {
  // Rounded once: what the second conversion rounds is infinite or flushed.
  const float rounded = float(total);
  const float result = float(double(rounded) * scale);
  int32_t bits;
  __builtin_memcpy(&bits, &result, sizeof bits);
  bits = (bits & 0x7FFFFFFF) <= 0x00800000 ? 0 : bits;
  float x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

// x = sums * a * b rounded to nearest even.
template <int kA, int kB>
struct Scale {
  static void run(const Along<const double>& a_scales, const Along<const double>& b_scales,
                  Sum sums, int64_t runs, int64_t n, float* __restrict x) {
    const Read<kA, double> a(a_scales);
    const Read<kB, double> b(b_scales);
    for (; runs > 0; --runs, x += n, sums.low += n) {
      for (int64_t i = 0; i < n; ++i) x[i] = scaled(sums.low[i], a[i] * b[i]);
    }
  }
};

// The same of sums of two words.
template <int kA, int kB>
struct ScaleTwo {
  static void run(const Along<const double>& a_scales, const Along<const double>& b_scales,
                  Sum sums, int64_t runs, int64_t n, float* __restrict x) {
    const Read<kA, double> a(a_scales);
    const Read<kB, double> b(b_scales);
    const int shift = sums.shift;
    const int64_t mask = (int64_t(1) << shift) - 1, limit = int64_t(1) << (62 - shift);
    const double unit = double(int64_t(1) << (shift - 1));
    for (; runs > 0; --runs, x += n, sums.low += n, sums.high += n) {
      for (int64_t i = 0; i < n; ++i) {
        const int64_t low = sums.low[i] & mask, high = sums.high[i] + (sums.low[i] >> shift);
        // Of the lower word of a large sum it only matters whether it is zero.
        const bool large = high >= limit || high < -limit;
        const int64_t total = large ? 2 * high | (low != 0) : high * (mask + 1) + low;
        x[i] = scaled(total, a[i] * b[i] * (large ? unit : 1));
      }
    }
  }
};

static void scale(Sum sums, int64_t runs, int64_t n, Along<const double> a,
                  Along<const double> b, float* x) {
  if (sums.high) {
    by_steps<ScaleTwo>(a, b, sums, runs, n, x);
  } else {
    by_steps<Scale>(a, b, sums, runs, n, x);
  }
}

static const Grids kGrids = {largest, round, split, carry, scale};
