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

#define OPERATOR(op)                                                  \
  template <class V>                                                  \
  static inline Vectors<V> operator op(Vectors<V> x, Vectors<V> y) {  \
    return map([](V a, V b) { return V(a op b); }, x, y);             \
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
  return map([=](V a) { return V(a << by); }, x);
}
template <class V>
static inline Vectors<V> operator>>(Vectors<V> x, int by) {
  return map([=](V a) { return V(a >> by); }, x);
}
static inline Long shift_right(Long x, int by) {
  return map([=](LongPart a) { return (LongPart)((UnsignedPart)a >> by); }, x);
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
  for (int i = 0; i < kSeveral; ++i) __builtin_memcpy(&y.part[i], &x.part[i], sizeof x.part[i]);
  return y;
}

template <class M, class V>
static inline Vectors<V> where(Vectors<M> mask, Vectors<V> x, Vectors<V> y) {
  return map([](M m, V a, V b) { return V(m ? a : b); }, mask, x, y);
}

static inline Long widened(NarrowBits mask) {
  return map([](BitsPart m) { return __builtin_convertvector(m, LongPart); }, mask);
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

static inline Wide root(Wide x) {
  return map([](float32::Wide a) { return float32::root(a); }, x);
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
static inline Wide clamp(Wide low, Wide x, Wide high) { return min(max(x, low), high); }

#include "elementary-inl.h"

// In float64, and rounded once more, operation by operation as in the body, which is certified.
static inline Narrow rsqrt(Narrow x) {
  return map([](float32::Narrow a) { return float32::as<float32::Narrow>(float32::guard(a)); },
             narrow(full<Wide>(1) / root(wide(x))));
}

template <class Function>
static inline void each(int64_t count, Operand from, int32_t* to, Function function) {
  constexpr int64_t kElements = sizeof(Narrow) / sizeof(float);
  const auto load = [=](int64_t i, int64_t here) {
    Narrow x = full<Narrow>(0);
    if (from.same) return full<Narrow>(float32::as<float>(*from.at));
    __builtin_memcpy(&x, from.at + i, here * sizeof(float));
    return x;
  };
  int64_t i = 0;
  for (; i + kElements <= count; i += kElements) {
    const Narrow x = function(load(i, kElements));
    __builtin_memcpy(to + i, &x, sizeof x);
  }
  if (i < count) {
    const Narrow x = function(load(i, count - i));
    __builtin_memcpy(to + i, &x, (count - i) * sizeof(float));
  }
}

}  // namespace several
