// The kernels on vectors of float64, compiled for one instruction set, whose namespace includes
// this file.
//
// Expects kLanes, kVectors and Rows as float32-inl.h does, and after it the definitions of what it
// declares.

typedef double Vector __attribute__((vector_size(8 * kLanes)));
typedef int64_t Bits __attribute__((vector_size(8 * kLanes)));

static inline Vector fma(Vector a, Vector b, Vector c);  // a * b + c, with any roundings
static inline Vector broadcast(double x);
static inline Vector widen(const float* x);  // kLanes elements
static inline Vector root(Vector x);         // square roots
static inline Vector smaller(Vector a, Vector b);  // the smaller magnitudes, of numbers

#include "integers-inl.h"
#include "grids-inl.h"
#include "shuffles-inl.h"
#include "rotations-inl.h"
#include "tridiagonal-inl.h"
#include "exact-inl.h"
#include "grid_sums-inl.h"
