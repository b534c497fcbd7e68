// Arithmetic of sizes, and positions on row-major axes.

#pragma once

#include <cstdint>
#include <vector>

namespace repjax {

// The blocks of `size` elements that cover n, of which the last one may be smaller.
constexpr int64_t blocks_of(int64_t n, int64_t size) { return (n + size - 1) / size; }

constexpr int64_t round_up(int64_t n, int64_t step) { return blocks_of(n, step) * step; }

// The smallest power of two that is not below n.
constexpr int64_t power_of_two_from(int64_t n) {
  int64_t power = 1;
  while (power < n) power *= 2;
  return power;
}

// Whether elements at these offsets lie one after the other.
inline bool contiguous(const int64_t* offsets, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    if (offsets[i] != offsets[0] + i) return false;
  }
  return true;
}

// An axis that several arrays have, and its stride in each, in elements.
template <int kArrays>
struct Axis {
  int64_t size, strides[kArrays];
};

// A position on axes, row-major, and its offsets in kOffsets of the arrays, from number `first` on.
template <int kArrays, int kOffsets = kArrays>
class Walk {
 public:
  int64_t offsets[kOffsets] = {};

  Walk(const Axis<kArrays>* axes, int64_t rank, int64_t position, int first = 0)
      : axes_(axes), rank_(rank), first_(first) {
    if (rank > kFew) {
      many_.resize(rank);
      at_ = many_.data();
    }
    for (int64_t d = rank; d-- > 0; position /= axes[d].size) {
      at_[d] = position % axes[d].size;
      move(d, at_[d]);
    }
  }
  Walk(const Walk&) = delete;
  Walk& operator=(const Walk&) = delete;

  // The positions from here to the end of the last axis.
  int64_t left() const { return axes_[rank_ - 1].size - at_[rank_ - 1]; }

  // How many whole runs of the last axis lie at one stride from here, and that stride in the first
  // array; none within a run.
  int64_t runs() const {
    if (at_[rank_ - 1] != 0) return 0;
    return rank_ == 1 ? 1 : axes_[rank_ - 2].size - at_[rank_ - 2];
  }
  int64_t stride_of_runs() const { return rank_ == 1 ? 0 : axes_[rank_ - 2].strides[first_]; }

  // Goes on by so many runs, at most runs().
  void go_runs(int64_t count) {
    if (rank_ == 1) return;
    go(rank_ - 1, count);
  }

  // Goes on by so many positions, at most left().
  void go(int64_t count) { go(rank_, count); }

 private:
  static constexpr int kFew = 8;
  const Axis<kArrays>* axes_;
  int64_t rank_;
  int first_;
  int64_t few_[kFew] = {};     // a walk is often short: getting memory would take longer
  std::vector<int64_t> many_;
  int64_t* at_ = few_;         // the position along each axis

  // Goes on along the last of the first `rank` axes.
  void go(int64_t rank, int64_t count) {
    for (int64_t d = rank; d-- > 0; count = 1) {
      at_[d] += count;
      move(d, count);
      if (at_[d] < axes_[d].size) return;
      move(d, -at_[d]);
      at_[d] = 0;
    }
  }

  void move(int64_t d, int64_t count) {
    for (int i = 0; i < kOffsets; ++i) offsets[i] += count * axes_[d].strides[first_ + i];
  }
};

}  // namespace repjax
