// Chains of float32: what chains.h needs but for lanes, rows and instructions.
//
// Between blocks of terms the accumulators are stored as they are, which changes no bits.

typedef float Element, Result;
typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef int32_t Bits __attribute__((vector_size(4 * kLanes)));

static inline Vector begin(const float* from, bool first) {
  Vector s = {};
  if (!first) __builtin_memcpy(&s, from, sizeof s);
  return s;
}

// At the end, guard of repjax.primitives.canonical: NaN has one pattern, and up to the smallest
// normal number in magnitude everything is +0.
static inline void end(float* to, Vector s, bool first, bool last) {
  if (last) {
    Bits bits, zero = {};
    __builtin_memcpy(&bits, &s, sizeof s);
    const Bits magnitude = bits & (zero + 0x7FFFFFFF);
    const Bits is_nan = magnitude > (zero + 0x7F800000);
    const Bits kept = (magnitude > (zero + 0x00800000)) & ~is_nan;
    bits = (bits & kept) | (is_nan & (zero + 0x7FC00000));
    __builtin_memcpy(&s, &bits, sizeof s);
  }
  __builtin_memcpy(to, &s, sizeof s);
}

static inline Vector fma(Vector a, Vector b, Vector c);
static inline Vector broadcast(Element x);

#include "chains.h"
