// The kernels on vectors of float32, compiled for one instruction set, whose namespace includes
// this file.
//
// Expects
//
//   kLanes                     elements of a vector
//   kVectors                   the most vectors of a row of accumulators
//   kSeveral                   vectors of which an elementary function is computed together
//   kFused                     whether fma is an instruction
//   Rows(vectors)              the most rows of accumulators of so many vectors
//   kPairs                     whether pairs-inl.h is worth it
//   kClasses                   whether an instruction tells NaNs, zeros and subnormal numbers
//
// and after it the definitions of what it declares.

typedef float Vector __attribute__((vector_size(4 * kLanes)));
typedef int32_t Bits __attribute__((vector_size(4 * kLanes)));
// Half as many elements, in float32 and in float64.
typedef float Narrow __attribute__((vector_size(2 * kLanes)));
typedef double Wide __attribute__((vector_size(4 * kLanes)));

static inline Vector fma(Vector a, Vector b, Vector c);  // a * b + c with one rounding
static inline Vector broadcast(float x);
static inline Vector load_part(const float* from, int count);  // so many elements, and zeros
// Four elements each from row[0], row[4], ... on: of every fourth row.
static inline Vector load_fours(const float* from, const int64_t* row);
static inline Vector root(Vector x);  // square roots
static inline Wide root(Wide x);
static inline Wide near_root(Wide x);  // within 2**-50; of infinity that or a NaN
static inline Wide near_inverse_root(Wide x);  // the same; of 0 and infinity the limit or a NaN
static inline Wide wide(Narrow x);
static inline Wide floor(Wide x);
static inline bool any(Wide bits);  // whether a bit is set
// The elements of a table at these integers.
static inline Wide lookup(const double (&table)[16], Wide at);
static inline Wide fused(Wide a, Wide b, Wide c);  // a * b + c with one rounding or two

// Where kPairs: the elements of a table that fills two vectors at the last bits of these; the bounds or x, also
// a NaN; 1 / x within 2**-14.  With vectors of 16 elements: x 2**floor(k), with one rounding; of eight: the columns
// of rows at the last five bits of these; 1 / sqrt(x) within 2**-11.
constexpr int kEntries = 2 * kLanes;
static inline Vector lookup(const float (&table)[kEntries], Bits at);
static inline Vector bounded(float low, Vector x, float high);
static inline Vector near_inverse(Vector x);
static inline Vector times_power(Vector x, Vector k);
static inline void lookup(const float (&rows)[32][8], Bits at, Vector (&columns)[8]);
static inline Vector near_inverse_root(Vector x);
static inline bool any(Bits bits);

// Where kClasses: whether an element of these is not canonical; and the elements, zero where they are
// subnormal.
static inline bool any_other(Vector a, Vector b, Vector c, Vector d);
static inline Bits normal_or_zero(Bits x);
// The same, where subnormal numbers are zeros: x, or +0 where that is at most the smallest normal number; and x,
// +0 where that is a zero, and the NaN where it is one.
static inline Vector above_tiny(Vector x);
static inline Vector with_one_nan(Vector x);

#include "canonical-inl.h"
#include "shuffles-inl.h"
#include "floats-inl.h"
#include "sums-inl.h"
#include "elementwise-inl.h"
#include "scatter-inl.h"
#include "linalg-inl.h"
#include "random-inl.h"
#include "fourier-inl.h"
