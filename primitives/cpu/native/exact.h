// What float64 sums leave uncertain, rounded right.

#pragma once

#include "instruction_sets.h"
#include "superaccumulator.h"

#include <cmath>
#include <cstdint>
#include <utility>

namespace repjax {

// Slack for the roundings of norms, of bounds and of the ends of intervals; times 2**-53.
constexpr double kUnit = 0x1p-53 * (1 + 0x1p-16);
constexpr int64_t kMoreTerms = 4;
constexpr int64_t kTogether = 256;  // the most terms that are asked for at once

// Where some terms are, as Exact::refine takes them: two factors, or one and null.
typedef std::pair<const float*, const float*> Factors;

// The exact sum of terms, rounded: get(k, n, a, b) says where terms k to k + n - 1 are, and may put
// them to a and b.
template <class Get>
float exactly(const Exact& set, int64_t terms, bool odd, Get get) {
  constexpr int64_t kBlock = kTogether;
  float a[kBlock], b[kBlock];
  double state[3 * 16] = {};  // of the widest vectors
  for (int64_t k = 0; k < terms; k += kBlock) {
    const int64_t here = k + kBlock < terms ? kBlock : terms - k;
    const Factors at = get(k, here, a, b);
    set.refine(at.first, at.second, here, state);
  }
  // First in float64: two sums, and what all of it is off by.
  float low, high;
  double sum = 0, rest = 0, size = 0;
  for (int i = 0; i < set.lanes; ++i) {
    const double x = state[i], s = sum + x, of_x = s - sum;
    rest += ((sum - (s - of_x)) + (x - of_x)) + state[set.lanes + i];
    sum = s;
    size += std::fabs(state[set.lanes + i]) + std::fabs(x) * 0x1p-52 + std::fabs(s) * 0x1p-52;
  }
  double lost = 0;
  for (int i = 0; i < set.lanes; ++i) lost += state[2 * set.lanes + i];
  const double total = sum + rest;
  const double error = (lost + size * 0x1p-46 + std::fabs(total) * 0x1p-52) * (1 + 0x1p-16);
  set.round_one[odd](total - error, &low);
  set.round_one[odd](total + error, &high);
  if (low == high) return low;

  Superaccumulator middle;
  for (int i = 0; i < set.lanes; ++i) {
    middle.add(state[i]);
    middle.add(state[set.lanes + i]);
  }
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
    const Factors at = get(k, here, a, b);
    for (int64_t i = 0; i < here; ++i) {
      all.add(double(at.first[i]) * (at.second ? double(at.second[i]) : 1.0));
    }
  }
  set.round_one[odd](all.odd(), &low);
  return low;
}

}  // namespace repjax
