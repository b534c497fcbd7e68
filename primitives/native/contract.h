// Contractions over strided arrays, and their division into blocks.

#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "threads.h"
#include "xla/ffi/api/ffi.h"

namespace repjax {

// What an axis has strides in: the three arrays, and the exponents of the rows, the columns and the
// terms, which order-independent contractions have.
enum { kLhs, kRhs, kOut, kOfRows, kOfColumns, kOfTerms, kStrides };

struct Axis {
  int64_t size, strides[kStrides];  // in elements
};

// One dimension of out[g, m, n] or of the sum: axes, row-major.
struct Dimension {
  int64_t size = 1;
  std::vector<Axis> axes;

  // Adds an axis, as one with the axis before if their strides allow.
  void add(const Axis& axis) {
    size *= axis.size;
    bool joined = !axes.empty();
    for (int of = 0; joined && of < kStrides; ++of) {
      joined = axes.back().strides[of] == axis.size * axis.strides[of];
    }
    const int64_t before = joined ? axes.back().size : 1;
    if (joined) axes.pop_back();
    axes.push_back(axis);
    axes.back().size *= before;
  }

  // The offsets of the positions [begin, begin + count).
  void offsets(int of, int64_t begin, int64_t count, int64_t* to) const {
    if (axes.empty() || count == 0) {
      std::fill_n(to, count, 0);
      return;
    }
    const size_t inner = axes.size() - 1;
    thread_local std::vector<int64_t> at;  // kept: this is called often
    at.resize(axes.size());
    int64_t offset = 0, rest = begin;
    for (size_t d = axes.size(); d-- > 0; rest /= axes[d].size) {
      at[d] = rest % axes[d].size;
      offset += at[d] * axes[d].strides[of];
    }
    const int64_t step = axes[inner].strides[of];
    while (true) {
      const int64_t run = std::min(count, axes[inner].size - at[inner]);
      for (int64_t i = 0; i < run; ++i) to[i] = offset + i * step;
      to += run;
      if ((count -= run) == 0) return;
      offset -= at[inner] * step;
      at[inner] = 0;
      for (size_t d = inner; d-- > 0;) {
        offset += axes[d].strides[of];
        if (++at[d] < axes[d].size) break;
        offset -= axes[d].size * axes[d].strides[of];
        at[d] = 0;
      }
    }
  }

  int64_t offset(int of, int64_t position) const {
    int64_t result;
    offsets(of, position, 1, &result);
    return result;
  }

  int64_t stride(int of) const {
    for (size_t d = axes.size(); d-- > 0;) {
      if (axes[d].size > 1) return axes[d].strides[of];
    }
    return 1;
  }

  int64_t last_offset(int of) const {
    int64_t offset = 0;
    for (const Axis& axis : axes) offset += (axis.size - 1) * axis.strides[of];
    return offset;
  }
};

struct Problem {
  Dimension g, m, n, k;
  const float* lhs;
  const float* rhs;
  float* out;

  void transpose() {
    std::swap(m, n);
    std::swap(lhs, rhs);
    for (Dimension* d : {&g, &m, &n, &k}) {
      for (Axis& axis : d->axes) {
        std::swap(axis.strides[kLhs], axis.strides[kRhs]);
        std::swap(axis.strides[kOfRows], axis.strides[kOfColumns]);
      }
    }
  }
};

// Calls run(problem) for each.
//
// problems: of each, the offsets of its first elements in lhs, rhs and out, the number of its
// axes, and of every axis its dimension (0 to 3 for g, m, n, k), its size, and its strides.
template <class Run>
xla::ffi::Error for_problems(const float* lhs, int64_t lhs_count, const float* rhs,
                             int64_t rhs_count, xla::ffi::Span<const int64_t> problems,
                             float* out, int64_t out_count, Run run) {
  const int64_t counts[] = {lhs_count, rhs_count, out_count};
  const int64_t* at = problems.begin();
  while (at < problems.end()) {
    const int64_t* first = at;
    const int64_t axes = at[3];
    at += 4;
    Problem problem = {{}, {}, {}, {}, lhs + first[kLhs], rhs + first[kRhs], out + first[kOut]};
    Dimension* dimensions[] = {&problem.g, &problem.m, &problem.n, &problem.k};
    for (int64_t i = 0; i < axes; ++i, at += 2 + kStrides) {
      Axis axis = {at[1], {}};
      std::copy_n(at + 2, kStrides, axis.strides);
      dimensions[at[0]]->add(axis);
    }
    if (problem.g.size * problem.m.size * problem.n.size == 0) continue;
    for (int array : {kLhs, kRhs, kOut}) {
      if (problem.k.size == 0 && array != kOut) continue;
      int64_t last = first[array];
      for (const Dimension* d : dimensions) last += d->last_offset(array);
      if (last >= counts[array]) {
        return xla::ffi::Error::InvalidArgument("problems: out of bounds");
      }
    }
    run(problem);
  }
  return xla::ffi::Error::Success();
}

inline int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

constexpr int64_t kTileRows = 12;  // of the largest tiles of vectors
constexpr int64_t kThread = 1 << 20;  // multiply-adds that are worth a thread

// Calls block(g, m0, m1, n0, n1) for blocks of out[g, m, n]: of up to so many rows and columns, or
// smaller where there are threads for them, but not below `least` rows and the width of a panel;
// of many rows, multiples of `tile`, of fewer, of its half, since few rows that are left take as long.
template <class Block>
void for_blocks(const Problem& p, xla::ffi::ThreadPool* pool, int64_t rows, int64_t least,
                int64_t tile, int64_t columns, int64_t width, Block block) {
  const double operations = double(p.g.size) * p.m.size * p.n.size * p.k.size;
  const int64_t threads = useful_threads(pool, operations, kThread);
  // Blocks for all threads, and some more, for those that come late.
  const int64_t wanted = threads == 1 ? 1 : 4 * threads;
  const int64_t m = p.m.size, n = p.n.size;
  // Of equal sizes.
  const int64_t parts = (m + rows - 1) / rows;
  rows = parts <= 1 ? m : round_up((m + parts - 1) / parts, tile);
  columns = std::min(n, columns);
  int64_t blocks_m, blocks_n;
  auto count = [&] {
    blocks_m = (m + rows - 1) / rows;
    blocks_n = (n + columns - 1) / columns;
    return p.g.size * blocks_m * blocks_n;
  };
  while (count() < wanted) {
    if (columns > width && columns * 2 > rows) {
      columns = round_up(columns / 2, width);
    } else if ((rows + 1) / 2 >= least) {
      const int64_t half = (rows + 1) / 2;
      rows = rows > 96 ? round_up(half, tile) : rows > 2 * tile ? round_up(half, tile / 2) : half;
    } else {
      break;
    }
  }
  in_parallel(pool, threads, count(), [=](int64_t i) {
    const int64_t m0 = i / blocks_n % blocks_m * rows, n0 = i % blocks_n * columns;
    block(i / (blocks_m * blocks_n), m0, std::min(m0 + rows, m), n0, std::min(n0 + columns, n));
  });
}

// The float32 chains of contract.cc.
xla::ffi::Error contract(xla::ffi::ThreadPool* pool, const float* lhs, int64_t lhs_count,
                         const float* rhs, int64_t rhs_count,
                         xla::ffi::Span<const int64_t> problems, float* out, int64_t out_count);

}  // namespace repjax
