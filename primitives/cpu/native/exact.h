// What float64 sums leave uncertain, rounded right.

#pragma once

#include "instruction_sets.h"
#include "superaccumulator.h"

#include <cmath>
#include <cstdint>

namespace repjax {

// Slack for the roundings of norms, of bounds and of the ends of intervals; times 2**-53.
constexpr double kUnit = 0x1p-53 * (1 + 0x1p-16);
constexpr int64_t kMoreTerms = 4;
constexpr int64_t kTogether = 256;  // the most terms that are asked for at once

// The exact sum of terms, rounded: get(k, n, a, b) puts terms k to k + n - 1 to a and b, as
// Exact::refine takes them, and returns where the second factors are, or null.
template <class Get>
float exactly(const Exact& set, int64_t terms, bool odd, Get get) {
  constexpr int64_t kBlock = kTogether;
  float a[kBlock], b[kBlock];
  double state[3 * 16] = {};  // of the widest vectors
  for (int64_t k = 0; k < terms; k += kBlock) {
    const int64_t here = k + kBlock < terms ? kBlock : terms - k;
    const float* const second = get(k, here, a, b);
    set.refine(a, second, here, state);
  }
  Superaccumulator middle;
  double lost = 0;
  for (int i = 0; i < set.lanes; ++i) {
    middle.add(state[i]);
    middle.add(state[set.lanes + i]);
    lost += state[2 * set.lanes + i];
  }
  float low, high;
  if (lost == 0) {
    set.round_one[odd](middle.odd(), &low);
    return low;
  }
  lost = lost * (1 + 0x1p-16) + 0x1p-298;
  Superaccumulator below = middle, above = middle;
  below.add(-lost);
  above.add(lost);
  set.round_one[odd](below.odd(), &low);
  set.round_one[odd](above.odd(), &high);
  if (low == high) return low;
  Superaccumulator all;
  for (int64_t k = 0; k < terms; k += kBlock) {
    const int64_t here = k + kBlock < terms ? kBlock : terms - k;
    const float* const second = get(k, here, a, b);
    for (int64_t i = 0; i < here; ++i) all.add(double(a[i]) * (second ? double(second[i]) : 1.0));
  }
  set.round_one[odd](all.odd(), &low);
  return low;
}

}  // namespace repjax
