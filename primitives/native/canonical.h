// Canonical numbers (repjax.primitives.canonical) as vectors of one instruction set, which the
// including file names.
//
// Included by floats.h; for float32 vectors of any number of elements.

template <class To, class From>
static inline To as(From x) {
  To y;
  static_assert(sizeof x == sizeof y, "");
  __builtin_memcpy(&y, &x, sizeof y);
  return y;
}

// The integers that are as many: of a vector, or of its comparisons.
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
  return as<Integers<V>>(x) & (magnitude(x) >= (Integers<V>{} + 0x00800000));
}

template <class V>
static inline Integers<V> guard(V x) {
  return as<Integers<V>>(x) & (magnitude(x) > (Integers<V>{} + 0x00800000));
}

// The bits, or those of the only NaN.
template <class V>
static inline Integers<V> with_one_nan(V x, Integers<V> bits) {
  return is_nan(x) ? Integers<V>{} + 0x7FC00000 : bits;
}

template <class V>
static inline Integers<V> canonical(V x) {
  return with_one_nan(x, flush(x));
}
