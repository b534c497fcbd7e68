// The elementary functions, of kSeveral vectors at a time: an operation waits for the one before
// it, and the operations on the other vectors keep the processor busy meanwhile.
//
// Included by elementwise-inl.h.  Here, vectors have half as many elements as a Vector, as many as
// float64 has; a Narrow or Wide is several.

namespace several {

template <class V>
struct Vectors {
  V part[kSeveral];
};

typedef int32_t BitsPart __attribute__((vector_size(2 * kLanes)));
typedef int64_t LongPart __attribute__((vector_size(4 * kLanes)));
typedef uint64_t UnsignedPart __attribute__((vector_size(4 * kLanes)));
typedef Vectors<float32::Narrow> Narrow;
typedef Vectors<float32::Wide> Wide;
typedef Vectors<BitsPart> NarrowBits;
typedef Vectors<LongPart> Long;

template <class Function, class... V>
static inline auto map(Function function, const Vectors<V>&... x) {
  Vectors<decltype(function(x.part[0]...))> y;
  for (int i = 0; i < kSeveral; ++i) y.part[i] = function(x.part[i]...);
  return y;
}

// As what operators compute with: integers may overflow.
template <class V>
using Modular = std::conditional_t<std::is_same_v<V, LongPart>, UnsignedPart, V>;
#define OPERATOR(op)                                                                \
  template <class V>                                                                \
  static inline Vectors<V> operator op(Vectors<V> x, Vectors<V> y) {                \
    return map([](V a, V b) { return V((Modular<V>)a op (Modular<V>)b); }, x, y);   \
  }
OPERATOR(+) OPERATOR(-) OPERATOR(*) OPERATOR(/) OPERATOR(&) OPERATOR(|) OPERATOR(^)
#undef OPERATOR

// A comparison is a mask of all bits.
template <class V>
using Mask = std::conditional_t<sizeof(V) == sizeof(LongPart), LongPart, BitsPart>;
#define COMPARISON(op)                                                      \
  template <class V>                                                        \
  static inline Vectors<Mask<V>> operator op(Vectors<V> x, Vectors<V> y) {  \
    return map([](V a, V b) { return (Mask<V>)(a op b); }, x, y);           \
  }
COMPARISON(<) COMPARISON(<=) COMPARISON(>) COMPARISON(>=) COMPARISON(==) COMPARISON(!=)
#undef COMPARISON

template <class V>
static inline Vectors<V> operator-(Vectors<V> x) {
  return map([](V a) { return V(-a); }, x);
}
template <class V>
static inline Vectors<V> operator~(Vectors<V> x) {
  return map([](V a) { return V(~a); }, x);
}
template <class V>
static inline Vectors<V> operator<<(Vectors<V> x, int by) {
  return map([=](V a) { return V((Modular<V>)a << by); }, x);
}
template <class V>
static inline Vectors<V> operator>>(Vectors<V> x, int by) {
  return map([=](V a) { return V(a >> by); }, x);
}
static inline Long shift_right(Long x, int by) {
  return map([=](LongPart a) { return (LongPart)((UnsignedPart)a >> by); }, x);
}
static inline Long shift_right(Long x, Long by) {
  return map([](LongPart a, LongPart n) { return (LongPart)((UnsignedPart)a >> n); }, x, by);
}

template <class To, class Number>
static inline To full(Number x) {
  typedef std::remove_reference_t<decltype(std::declval<To&>().part[0])> V;
  typedef std::remove_reference_t<decltype(std::declval<V&>()[0])> Element;
  To y;
  for (V& part : y.part) part = Element(x) - V{};  // also -0
  return y;
}

template <class To, class V>
static inline To as(Vectors<V> x) {
  To y;
  static_assert(sizeof x == sizeof y, "");
  typedef std::remove_reference_t<decltype(y.part[0])> Part;
  for (int i = 0; i < kSeveral; ++i) y.part[i] = (Part)x.part[i];  // the same bits
  return y;
}

template <class M, class V>
static inline Vectors<V> where(Vectors<M> mask, Vectors<V> x, Vectors<V> y) {
  return map([](M m, V a, V b) { return V(m ? a : b); }, mask, x, y);
}

static inline Long widened(NarrowBits mask) {
  return map([](BitsPart m) { return __builtin_convertvector(m, LongPart); }, mask);
}
static inline NarrowBits narrowed(Long mask) {
  return map([](LongPart m) { return __builtin_convertvector(m, BitsPart); }, mask);
}
static inline Wide wide(Narrow x) {
  return map([](float32::Narrow a) { return float32::wide(a); }, x);
}
static inline Narrow narrow(Wide x) {
  return map([](float32::Wide a) { return __builtin_convertvector(a, float32::Narrow); }, x);
}
// Between float64 and integers, of less than 2**51 in magnitude.
static inline Long integer(Wide x) {
  const Wide zero = full<Wide>(0x1.8p52);
  return as<Long>(x + zero) - as<Long>(zero);
}
static inline Wide number(Long x) {
  const Wide zero = full<Wide>(0x1.8p52);
  return as<Wide>(x + as<Long>(zero)) - zero;
}

// Of any magnitude, rounded once.
static inline Wide any_number(Long x) {
  return number(x >> 32) * full<Wide>(0x1p32) + number(x & full<Long>(UINT32_MAX));
}

static inline Wide root(Wide x) {
  return map([](float32::Wide a) { return float32::root(a); }, x);
}
static inline Wide near_root(Wide x) {
  return map([](float32::Wide a) { return float32::near_root(a); }, x);
}
static inline Wide near_inverse_root(Wide x) {
  return map([](float32::Wide a) { return float32::near_inverse_root(a); }, x);
}
static inline Wide floor(Wide x) {
  return map([](float32::Wide a) { return float32::floor(a); }, x);
}
static inline Wide fused(Wide x, Wide y, Wide z) {
  return map([](auto a, auto b, auto c) { return float32::fused(a, b, c); }, x, y, z);
}
static inline Wide abs(Wide x) { return as<Wide>(as<Long>(x) & full<Long>(INT64_MAX)); }
static inline Narrow abs(Narrow x) {
  return as<Narrow>(as<NarrowBits>(x) & full<NarrowBits>(INT32_MAX));
}
static inline Wide min(Wide x, Wide y) { return where(x < y, x, y); }
static inline Wide max(Wide x, Wide y) { return where(x > y, x, y); }
static inline Long min(Long x, Long y) { return where(x < y, x, y); }
static inline Long max(Long x, Long y) { return where(x > y, x, y); }
static inline Wide sign(Wide x) {
  const Wide zero = full<Wide>(0), one = full<Wide>(1);
  return where(x > zero, one, where(x < zero, -one, x));
}
static inline Wide clamp(Wide low, Wide x, Wide high) { return min(max(x, low), high); }

// Whether any bit is set.
static inline bool any(Long x) {
  LongPart all = x.part[0];
  for (int i = 1; i < kSeveral; ++i) all |= x.part[i];
  return float32::any(float32::as<float32::Wide>(all));
}
// The elements i of a table.
static inline Wide lookup(const double (&table)[16], Long i) {
  return map([&](LongPart at) { return float32::lookup(table, float32::as<float32::Wide>(at)); }, i);
}

#include "elementary-inl.h"

#define INLINE static inline __attribute__((always_inline))
#include "first-inl.h"
#undef INLINE

// In float64, and rounded once more, operation by operation as in the body, which is certified.
static inline Narrow rsqrt(Narrow x) {
  return map([](float32::Narrow a) { return float32::as<float32::Narrow>(float32::guard(a)); },
             narrow(full<Wide>(1) / root(wide(x))));
}

// x**n, of integers n, by binary powering in float64, and rounded once: operation by operation as in the
// body (repjax.primitives.operations.arithmetic), as long as exponents have bits left.
static inline Narrow pow_integer(Narrow x, Narrow n) {
  const Wide zero = full<Wide>(0), one = full<Wide>(1), least = full<Wide>(0x1p-1022);
  const auto guarded = [&](Wide y) { return where(abs(y) <= least, zero, y); };
  const Long exponent = widened(as<NarrowBits>(n)), none = full<Long>(0);
  Wide power = one, square = wide(x);
  for (Long left = max(exponent, none - exponent); any(left); left = left >> 1) {
    const Wide product = guarded(power * square);
    power = where((left & full<Long>(1)) != none, product, power);
    square = guarded(square * square);
  }
  const Wide inverse = guarded(one / power);
  return map([](float32::Narrow a) { return float32::as<float32::Narrow>(float32::guard(a)); },
             narrow(where(exponent < none, inverse, power)));
}

constexpr int kPart = kLanes / 2;  // elements

// Between memory and the parts, one by one: the processor waits to read at once what it has just
// written in pieces.
static inline Narrow load(const int32_t* from) {
  Narrow x;
#pragma GCC unroll 4
  for (int i = 0; i < kSeveral; ++i) __builtin_memcpy(&x.part[i], from + i * kPart, 4 * kPart);
  return x;
}
static inline void store(int32_t* to, const Narrow& x) {
#pragma GCC unroll 4
  for (int i = 0; i < kSeveral; ++i) __builtin_memcpy(to + i * kPart, &x.part[i], 4 * kPart);
}

// to = function(from), which is called in one place only, and so is a part of the loop.
template <class Function>
static inline void each(int64_t count, Operand from, int32_t* to, Function function) {
  constexpr int64_t kElements = sizeof(Narrow) / sizeof(float);
  for (int64_t i = 0; i < count; i += kElements) {
    const int64_t here = std::min(kElements, count - i);
    const int32_t* in = from.at + i;
    int32_t some[kElements], *out = to + i;
    const bool direct = here == kElements && !from.same;
    if (!direct) {
      for (int64_t k = 0; k < kElements; ++k) {
        some[k] = from.at[from.same ? 0 : i + std::min(k, here - 1)];
      }
      in = out = some;
    }
    store(out, function(load(in)));
    if (!direct) std::copy_n(some, here, to + i);
  }
}

// Runs run(from, to, count) on whole steps of so many elements, and on a last one of what is left,
// which it fills with the last elements.  `count` is a multiple of kPart.
template <int64_t kStep, class Run>
static inline void in_steps(int64_t count, Operand from, int32_t* to, Run run) {
  int32_t some[kStep];
  const int64_t whole = from.same ? 0 : count / kStep * kStep, left = count - whole;
  const int32_t* in = from.at;
  int32_t* out = to;
  for (int64_t here = whole; true; here = kStep) {
    run(in, out, here);  // in one place, since it is long
    if (in == some || left == 0) break;
    in = out = some;
    for (int64_t k = 0; k < kStep; k += kPart) {
      const int64_t at = from.same ? 0 : whole + std::min(k, left - kPart);
      __builtin_memcpy(some + k, from.at + at, 4 * kPart);
    }
  }
  for (int64_t k = 0; k < left; k += kPart) {
    __builtin_memcpy(to + whole + k, some + (from.same ? 0 : k), 4 * kPart);
  }
}

// The same of a function with a first try, where that does not settle the results.
template <class First, class Function>
static inline void each(int64_t count, Operand from, int32_t* to, First first, Function function) {
  constexpr int64_t kElements = sizeof(Narrow) / sizeof(float);
  in_steps<kElements>(count, from, to, [&](const int32_t* in, int32_t* out, int64_t here) {
    for (int64_t i = 0; i < here; i += kElements) {
      for (; i < here; i += kElements) {
        const auto tried = first(load(in + i));
        if (!tried.settled) break;
        store(out + i, tried.y);
      }
      if (i < here) each(kElements, {in + i, false}, out + i, function);
    }
  });
}

// The same of a function of two operands.
template <class First, class Function>
static inline void each(int64_t count, Operand a, Operand b, int32_t* to, First first,
                        Function function) {
  constexpr int64_t kElements = sizeof(Narrow) / sizeof(float);
  for (int64_t i = 0; i < count; i += kElements) {
    const int64_t here = std::min(kElements, count - i);
    const auto at = [=](Operand from) {
      if (here == kElements && !from.same) return load(from.at + i);
      int32_t some[kElements];
      for (int64_t k = 0; k < kElements; ++k) {
        some[k] = from.at[from.same ? 0 : i + std::min(k, here - 1)];
      }
      return load(some);
    };
    const Narrow x = at(a), y = at(b);
    auto tried = first(x, y);
    if (!tried.settled) tried.y = function(x, y);
    int32_t some[kElements];
    store(here == kElements ? to + i : some, tried.y);
    if (here < kElements) std::copy_n(some, here, to + i);
  }
}

}  // namespace several
