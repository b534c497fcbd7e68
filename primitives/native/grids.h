// Grids of integers for one instruction set, which the including file names.
//
// Included by instruction_sets.cc.  The integers and their exponents are those of
// repjax.primitives.contract.order_independent.  Each function goes along elements that lie
// together, and along the exponents or scales that go with them.

template <int kStep, class Element>
static inline Element& element(const Along<Element>& x, int64_t i) {
  return kStep < 0 ? x.first[x.offsets[i]] : x.first[i * kStep];
}

// The loop with both steps as constants: 0, 1, or -1 for offsets.
template <template <int, int> class Loop, class A, class B, class... Rest>
static inline auto by_steps(const Along<A>& a, const Along<B>& b, Rest... rest) {
  if (!a.offsets && !b.offsets) {
    if (a.step == 1 && b.step == 0) return Loop<1, 0>::run(a, b, rest...);
    if (a.step == 0 && b.step == 1) return Loop<0, 1>::run(a, b, rest...);
    if (a.step == 0 && b.step == 0) return Loop<0, 0>::run(a, b, rest...);
    if (a.step == 1 && b.step == 1) return Loop<1, 1>::run(a, b, rest...);
  }
  return Loop<-1, -1>::run(a, b, rest...);
}

// to = max(to, E(x) + at), and whether all x are finite; the others count as zeros.
template <int kAt, int kTo>
struct Largest {
  static bool run(const Along<const int32_t>& at, const Along<int32_t>& to, const float* x,
                  int64_t n) {
    int32_t infinite = 0, largest = kNone;
    for (int64_t i = 0; i < n; ++i) {
      int32_t bits;
      __builtin_memcpy(&bits, x + i, sizeof bits);
      const int32_t field = bits >> 23 & 0xFF;
      infinite |= field == 0xFF;
      const int32_t here = field == 0 || field == 0xFF ? kNone : field - 127 + element<kAt>(at, i);
      if (kTo == 0) {
        largest = here > largest ? here : largest;
      } else {
        int32_t& old = element<kTo>(to, i);
        old = here > old ? here : old;
      }
    }
    if (kTo == 0 && n > 0 && largest > to.first[0]) to.first[0] = largest;
    return !infinite;
  }
};

static bool largest(const float* x, int64_t n, Along<const int32_t> at, Along<int32_t> to) {
  return by_steps<Largest>(at, to, x, n);
}

// integers = x * a * b rounded to nearest even, a and b powers of two or 0; 0 if x is not finite.
template <int kA, int kB>
struct Round {
  static void run(const Along<const double>& a, const Along<const double>& b, const float* x,
                  int64_t n, double* integers) {
    for (int64_t i = 0; i < n; ++i) {
      int32_t bits;
      __builtin_memcpy(&bits, x + i, sizeof bits);
      bits = (bits & 0x7F800000) == 0x7F800000 ? 0 : bits;
      float finite;
      __builtin_memcpy(&finite, &bits, sizeof bits);
      // Of at most 2**22 in magnitude: added to 1.5 * 2**52 they lose what is behind the point.
      const double scaled = double(finite) * (element<kA>(a, i) * element<kB>(b, i));
      integers[i] = (scaled + 0x1.8p52) - 0x1.8p52;
    }
  }
};

static void round(const float* x, int64_t n, Along<const double> a, Along<const double> b,
                  double* integers) {
  by_steps<Round>(a, b, x, n, integers);
}

// x = integers * a * b rounded to nearest even, with the guard of repjax.primitives.canonical.
template <int kA, int kB>
struct Scale {
  static void run(const Along<const double>& a, const Along<const double>& b,
                  const int64_t* integers, int64_t n, float* x) {
    for (int64_t i = 0; i < n; ++i) {
      // Rounded once: what the second conversion rounds is infinite or flushed.
      const float rounded = float(integers[i]);
      const float scaled = float(double(rounded) * (element<kA>(a, i) * element<kB>(b, i)));
      int32_t bits;
      __builtin_memcpy(&bits, &scaled, sizeof bits);
      bits = (bits & 0x7FFFFFFF) <= 0x00800000 ? 0 : bits;
      __builtin_memcpy(x + i, &bits, sizeof bits);
    }
  }
};

static void scale(const int64_t* integers, int64_t n, Along<const double> a,
                  Along<const double> b, float* x) {
  by_steps<Scale>(a, b, integers, n, x);
}

static const Grids kGrids = {largest, round, scale};
