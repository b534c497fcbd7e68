// Integers held by float64: their rounding, and exact sums of their products.
//
// A block of terms has an exact sum below 2**51 in magnitude, which is added to an int64.

typedef double Element;
typedef int64_t Result;

static inline Vector begin(const int64_t*, bool) { return Vector{}; }

// Added to 1.5 * 2**52, the last bits of the sum are those of the integer.
static inline void end(int64_t* to, Vector s, bool first, bool) {
  Bits bits, sum = {};
  s += 0x1.8p52;
  __builtin_memcpy(&bits, &s, sizeof s);
  if (!first) __builtin_memcpy(&sum, to, sizeof sum);
  sum += bits - 0x4338000000000000;
  __builtin_memcpy(to, &sum, sizeof sum);
}

#include "fma_tiles-inl.h"

constexpr int64_t kTerms = 128;  // of integers of up to 22 bits

// x, at most 2**30 in magnitude, rounded to nearest even: added to 1.5 * 2**52 it loses what is
// behind the point.
static inline Vector to_integers(Vector x) { return (x + 0x1.8p52) - 0x1.8p52; }

template <Part kPart>
static inline Vector round_vector(const float* x, Vector scale) {
  const Vector whole = to_integers(widen(x) * scale);
  if (kPart == Part::kWhole) return whole;
  const Vector high = to_integers(whole * (1.0 / (1 << kLow)));
  return kPart == Part::kHigh ? high : whole - high * (1 << kLow);
}

template <Part kPart>
static void round(const Panel<double>& from, double* to, int64_t width) {
  const int64_t whole = from.columns / kLanes * kLanes, rest = from.columns - whole;
  for (int64_t i = 0; i < from.rows; ++i, to += width) {
    const float* const x = from.x + from.at[i];
    const Vector row = broadcast(from.row[i]);
    for (int64_t j = 0; j < whole; j += kLanes) {
      store(to + j, round_vector<kPart>(x + j, row * load(from.column + j)));
    }
    if (rest) {
      float last[kLanes] = {};
      Vector scale = {};
      __builtin_memcpy(last, x + whole, sizeof(float) * rest);
      __builtin_memcpy(&scale, from.column + whole, sizeof(double) * rest);
      scale = round_vector<kPart>(last, row * scale);
      __builtin_memcpy(to + whole, &scale, sizeof(double) * rest);
    }
  }
}

static void left(const Panel<double>& from, double* to, int64_t row) {
  round<Part::kWhole>(from, to, row);
}

static void right(const Panel<double>& from, Part part, double* to, int64_t row) {
  switch (part) {
    case Part::kWhole: return round<Part::kWhole>(from, to, row);
    case Part::kLow: return round<Part::kLow>(from, to, row);
    case Part::kHigh: return round<Part::kHigh>(from, to, row);
  }
}

static const IntegerProducts<double> kIntegerProducts = {
    kLanes, kVectors, kTerms, 1, 16, 24, kLow, int64_t(1) << 17, tile_for, left, right};
