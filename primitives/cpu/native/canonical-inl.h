// Canonical numbers (repjax.primitives.core.canonical): vectors of float32 of any number of
// elements.

template <class To, class From>
static inline To as(From x) {
  To y;
  static_assert(sizeof x == sizeof y, "");
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}

// As many integers as V has elements: its bits, or a comparison of it.
template <class V>
using Integers = decltype(V{} == V{});

template <class V>
static inline Integers<V> magnitude(V x) {
  return as<Integers<V>>(x) & (Integers<V>{} + 0x7FFFFFFF);
}

template <class V>
static inline Integers<V> is_nan(V x) {
  return magnitude(x) > (Integers<V>{} + 0x7F800000);
}

template <class V>
static inline Integers<V> flush(V x) {
  if constexpr (kClasses && sizeof(V) == 4 * kLanes) return normal_or_zero(as<Bits>(x));
  else return as<Integers<V>>(x) & (magnitude(x) >= (Integers<V>{} + 0x00800000));
}

template <class V>
static inline Integers<V> guard(V x) {
  return as<Integers<V>>(x) & (magnitude(x) > (Integers<V>{} + 0x00800000));
}

// The bits; where x is a NaN, those of the only NaN.
template <class V>
static inline Integers<V> with_one_nan(V x, Integers<V> bits) {
  return is_nan(x) ? Integers<V>{} + 0x7FC00000 : bits;
}

template <class V>
static inline Integers<V> canonical(V x) {
  return with_one_nan(x, flush(x));
}

// How results are made canonical: in IEEE's arithmetic, and, with fewer instructions, in one where
// subnormal numbers are zeros (IeeeArithmetic with `flush`), among operands, too.  Of a product, quotient or
// root only what is below the smallest normal number is subnormal there, after or before it is rounded, as the
// processor has it; that number itself is made zero in either.
struct InIeee {
  template <class V>
  static inline Integers<V> flush(V x) { return float32::flush(x); }
  template <class V>
  static inline Integers<V> guard(V x) { return float32::guard(x); }
  template <class V>
  static inline Integers<V> canonical(V x) { return float32::canonical(x); }
};
struct InFlushing {
  template <class V>
  static inline Integers<V> flush(V x) { return as<Integers<V>>(x + V{}); }  // -0 becomes 0
  template <class V>
  static inline Integers<V> guard(V x) {
    if constexpr (kClasses) return as<Bits>(above_tiny(x));
    else return float32::guard(x);
  }
  template <class V>
  static inline Integers<V> canonical(V x) {
    if constexpr (kClasses) return as<Bits>(with_one_nan(x));
    else return float32::with_one_nan(x, flush(x));
  }
};

// a b and a / b.  Where masks are registers, GCC would compute it a second time, with a mask, instead of
// masking the result.
template <class V>
static inline V once(V x) {
#if defined(__x86_64__)
  if constexpr (kClasses) asm("" : "+v"(x));
#endif
  return x;
}
template <class V>
static inline V multiplied(V a, V b) {
  return once(a * b);
}
template <class V>
static inline V divided(V a, V b) {
  return once(a / b);
}
