// Elements of vectors in other places.
//
// Included by float32-inl.h and float64-inl.h.  Expects kLanes, Vector, Bits.

// The elements of a and then b in these places.
template <int... kFrom>
static inline Vector shuffled(Vector a, Vector b) {
#if defined(__clang__)
  return __builtin_shufflevector(a, b, kFrom...);
#else
  return __builtin_shuffle(a, b, Bits{kFrom...});
#endif
}

// Every other element of a and b, and, the other way round, the elements of a and b in turn.
template <bool second, int... kAt>
static inline Vector every_other(Vector a, Vector b, std::integer_sequence<int, kAt...>) {
  return shuffled<(2 * kAt + second)...>(a, b);
}

template <bool second, int... kAt>
static inline Vector in_turn(Vector a, Vector b, std::integer_sequence<int, kAt...>) {
  return shuffled<(kAt / 2 + (second ? kLanes / 2 : 0) + kAt % 2 * kLanes)...>(a, b);
}

// The vectors are parts of kStep elements each: of the pairs of parts that are in the same place, the
// first ones, or the second ones.
template <int kStep, bool second, int... kAt>
static inline Vector pairs(Vector a, Vector b, std::integer_sequence<int, kAt...>) {
  return shuffled<(kAt & kStep ? kLanes + kAt - (second ? 0 : kStep)
                               : kAt + (second ? kStep : 0))...>(a, b);
}

// Exchanges the rows and the columns of a square: of its halves, of theirs, and so on.
template <int kStep = kLanes / 2>
static inline void transpose(Vector (&x)[kLanes]) {
  if constexpr (kStep > 0) {
    const std::make_integer_sequence<int, kLanes> all;
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      if (i & kStep) continue;
      const Vector a = x[i], b = x[i + kStep];
      x[i] = pairs<kStep, false>(a, b, all);
      x[i + kStep] = pairs<kStep, true>(a, b, all);
    }
    transpose<kStep / 2>(x);
  }
}

// The vectors are parts of kPart elements each: the lower or the upper halves of all parts.
template <int kPart, bool upper, int... kAt>
static inline Vector halves(Vector a, Vector b, std::integer_sequence<int, kAt...>) {
  constexpr int kHalf = kPart / 2;
  return shuffled<(kAt / kHalf * kPart + kAt % kHalf + (upper ? kHalf : 0))...>(a, b);
}
