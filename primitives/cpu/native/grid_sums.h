// The order-independent sum of a row that stays in the L1 cache, or of parts of one.

#pragma once

#include "axes.h"
#include "instruction_sets.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

namespace repjax {

// The grid of a sum whose largest element has this exponent's field: E = field - 127, and the step
// is 2**(E - t), of which repjax.primitives.operations.grids says what t is.
class Grid {
 public:
  // The bits of the largest magnitude; of zeros only, any grid will do.
  Grid(int32_t largest, int t) : field_(std::max(1, largest >> 23)), t_(t) {}
  int32_t field() const { return field_; }
  double step() const { return std::ldexp(1.0, field_ - 127 - t_); }
  // What rounds to the grid (grid_sums-inl.h).
  double number() const { return std::ldexp(1.5, field_ - 127 - t_ + 52); }

 private:
  int32_t field_;
  int t_;
};

constexpr int32_t kInfinity = 0x7F800000;
constexpr int64_t kOfRow = 1 << 12;  // elements of a part of a row

// What IEEE arithmetic makes of infinities and NaNs, in any order.
class Special {
 public:
  void add(float x) {
    above_ |= x == INFINITY;
    below_ |= x == -INFINITY;
    nan_ |= x != x;
  }
  void add(const float* x, int64_t n) {
    for (int64_t i = 0; i < n; ++i) add(x[i]);
  }
  float sum() const {
    float nan;
    std::memcpy(&nan, &kNan, sizeof nan);
    return nan_ || (above_ && below_) ? nan : above_ ? INFINITY : -INFINITY;
  }

 private:
  bool above_ = false, below_ = false, nan_ = false;
};

// to[i] = the sum of row i of `count` rows of n elements in memory.
inline void order_independent_rows(const GridSums& set, const float* x, int64_t count, int64_t n, int t,
                                   float* to) {
  for (int64_t i = 0; i < count; ++i, x += n) {
    const int32_t largest = set.largest(x, n);
    if (largest >= kInfinity) {
      Special special;
      special.add(x, n);
      to[i] = special.sum();
      continue;
    }
    const Grid grid(largest, t);
    to[i] = set.rounded(set.sum(x, n, grid.number()), grid.step());
  }
}

}  // namespace repjax
