// Chains of integers held by float64: what chains.h needs but for lanes, rows and instructions.
//
// A block of terms has an exact sum below 2**51 in magnitude, which is added to an int64.

typedef double Element;
typedef int64_t Result;
typedef double Vector __attribute__((vector_size(8 * kLanes)));
typedef int64_t Bits __attribute__((vector_size(8 * kLanes)));

static inline Vector begin(const int64_t*, bool) { return Vector{}; }

// Added to 1.5 * 2**52, the last bits of the sum are those of the integer.
static inline void end(int64_t* to, Vector s, bool first, bool last) {
  Bits bits, sum = {};
  s += 0x1.8p52;
  __builtin_memcpy(&bits, &s, sizeof s);
  if (!first) __builtin_memcpy(&sum, to, sizeof sum);
  sum += bits - 0x4338000000000000;
  __builtin_memcpy(to, &sum, sizeof sum);
}

static inline Vector fma(Vector a, Vector b, Vector c);
static inline Vector broadcast(Element x);

#include "chains.h"
