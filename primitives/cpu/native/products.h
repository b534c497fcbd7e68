// Products over strided arrays: their description, and their division into blocks.
//
// A *product* is a matrix product or a convolution: out[g, m, n] is the sum over k of the products
// of lhs[g, m, k] and rhs[g, k, n].  Each of g, m, n and k stands for any number of axes with any
// strides, so that one call covers dot_general with its batch dimensions and layouts and, on a
// padded operand, the convolutions.

#pragma once

#include "axes.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace repjax {

// What an axis has strides in: the three arrays, and the exponents of the rows, the columns and the
// terms, which order-independent products have.
enum { kLhs, kRhs, kOut, kOfRows, kOfColumns, kOfTerms, kStrides };

// One dimension of out[g, m, n] or of the sum: axes, row-major.
struct Dimension {
  int64_t size = 1;
  std::vector<Axis<kStrides>> axes;

  // Adds an axis, as one with the axis before if their strides allow.
  void add(const Axis<kStrides>& axis);
  // The offsets of the positions [begin, begin + count) in one of the arrays, and of a single one.
  void offsets(int of, int64_t begin, int64_t count, int64_t* to) const;
  int64_t offset(int of, int64_t position) const;
  // From one position to the next; of a dimension of one position, 1.
  int64_t stride(int of) const;
  int64_t last_offset(int of) const;
};

struct Problem {
  Dimension g, m, n, k;
  const float* lhs;
  const float* rhs;
  float* out;
  // Of lhs and rhs: whether they need not be canonical, and are made so as they are read.
  bool raw[2] = {};

  // A problem without axes.
  void begin(const float* lhs_, const float* rhs_, float* out_) {
    for (Dimension* d : {&g, &m, &n, &k}) {
      d->size = 1;
      d->axes.clear();
    }
    lhs = lhs_;
    rhs = rhs_;
    out = out_;
    raw[kLhs] = raw[kRhs] = false;
  }

  void transpose() {
    std::swap(m, n);
    std::swap(lhs, rhs);
    std::swap(raw[kLhs], raw[kRhs]);
    for (Dimension* d : {&g, &m, &n, &k}) {
      for (Axis<kStrides>& axis : d->axes) {
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
  auto& problem = of_thread<Problem>();
  while (at < problems.end()) {
    const int64_t* first = at;
    const int64_t axes = at[3];
    at += 4;
    problem.begin(lhs + first[kLhs], rhs + first[kRhs], out + first[kOut]);
    Dimension* const dimensions[] = {&problem.g, &problem.m, &problem.n, &problem.k};
    for (int64_t i = 0; i < axes; ++i, at += 2 + kStrides) {
      Axis<kStrides> axis = {at[1], {}};
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

constexpr int64_t kTileRows = 12;  // of the largest tiles of vectors

// Blocks of out[g, m, n], of so many rows and columns, and the threads that compute them.
struct Blocks {
  int64_t rows, columns, along_m, along_n, threads;
};

// Blocks of up to so many rows and columns, or smaller where there are threads for them, though not
// below `least` rows and the width of a panel.  Many rows are a multiple of `tile`, fewer rows one of
// its half, since a tile with few rows takes as long as a full one.
inline Blocks divide(const Problem& p, xla::ffi::ThreadPool* pool, int64_t rows, int64_t least,
                     int64_t tile, int64_t columns, int64_t width) {
  constexpr int64_t kThread = 1 << 20;  // multiply-adds that are worth a thread
  // With few rows, or columns, reading the other operand takes longer.
  const int64_t reused = std::max<int64_t>(4, std::min(p.m.size, p.n.size));
  const double operations = double(p.g.size) * std::max(p.m.size, p.n.size) * reused * p.k.size;
  const int64_t threads = useful_threads(pool, operations, kThread);
  const int64_t m = p.m.size, n = p.n.size;
  // Blocks for all threads, and some more, for those that come late.  Those of one row, which only
  // read, are fewer, so that what they read lies together for longer, and is fetched ahead.
  const int64_t wanted = threads == 1 ? 1 : (m == 1 ? 2 : 4) * threads;
  const int64_t parts = blocks_of(m, rows);  // of equal sizes
  rows = parts <= 1 ? m : round_up(blocks_of(m, parts), tile);
  columns = std::min(n, columns);
  while (p.g.size * blocks_of(m, rows) * blocks_of(n, columns) < wanted) {
    if (columns > width && columns * 2 > rows) {
      columns = round_up(columns / 2, width);
    } else if ((rows + 1) / 2 >= least) {
      const int64_t half = (rows + 1) / 2;
      rows = rows > 96 ? round_up(half, tile) : rows > 2 * tile ? round_up(half, tile / 2) : half;
    } else {
      break;
    }
  }
  return {rows, columns, blocks_of(m, rows), blocks_of(n, columns), threads};
}

// Calls block(g, m0, m1, n0, n1) for each.
template <class Block>
void for_blocks(const Problem& p, xla::ffi::ThreadPool* pool, const Blocks& blocks, Block block) {
  const int64_t m = p.m.size, n = p.n.size, of_each = blocks.along_m * blocks.along_n;
  in_parallel(pool, blocks.threads, p.g.size * of_each, [=](int64_t i) {
    const int64_t m0 = i / blocks.along_n % blocks.along_m * blocks.rows;
    const int64_t n0 = i % blocks.along_n * blocks.columns;
    block(i / of_each, m0, std::min(m0 + blocks.rows, m), n0, std::min(n0 + blocks.columns, n));
  });
}

struct Chains;

// A product that is so small that describing it as a Problem and dividing it would take longer, in a
// loop for instance: groups of few multiply-adds, of at most one axis of each dimension, with columns, or rows,
// for which there is a way.
class SmallProduct {
 public:
  // How it is computed: by what lies together of its columns, the later the better; or as chains side by
  // side, where none of these fills vectors.
  enum class Way { kNone, kNarrow, kAcross, kTiles, kChains };
  static constexpr int64_t kThread = 1 << 18;  // multiply-adds that are worth a thread

  // Whether it is one, of arrays of so many elements.
  bool decode(const Chains& set, xla::ffi::Span<const int64_t> problems, int64_t lhs_count,
              int64_t rhs_count, int64_t out_count, bool raw);
  // Whether it was decoded for this instruction set.
  bool is_for(const Chains& set) const { return set_ == &set; }
  int64_t groups() const { return groups_; }
  // What all groups take, in multiply-adds of products that fill vectors.
  int64_t work() const;
  // The groups [begin, end), in IEEE arithmetic; whether it is done: an operand may not be canonical that
  // should be.
  bool compute(const Chains& set, const float* lhs, const float* rhs, float* out, int64_t begin,
               int64_t end) const;

 private:
  struct Side {
    int64_t first, size, of_group, step, of_term, apart;  // strides; apart is that in the result
  };
  const Chains* set_;
  Side m_, n_;
  bool is_turned_;  // m is the columns of rhs
  int64_t groups_, of_group_, terms_, out_, work_;  // of_group: in the result
  bool raw_;
  Way way_;

  bool has_chains(const Chains& set) const;
  void run_chains(const Chains& set, const float* left, const float* right, float* out, int64_t begin,
                  int64_t end) const;
  static Way way(const Chains& set, const Side& m, const Side& n, int64_t terms);
  void run(const Chains& set, const float* left, const float* right, float* out, int64_t begin,
           int64_t end) const;
};

// Sequential products: chains of fused multiply-adds of float32.  raw: the first bit is whether lhs
// is, the second whether rhs is.
xla::ffi::Error sequential_product(xla::ffi::ThreadPool* pool, const float* lhs, int64_t lhs_count,
                                   const float* rhs, int64_t rhs_count,
                                   xla::ffi::Span<const int64_t> problems, float* out,
                                   int64_t out_count, int64_t raw = 0);

}  // namespace repjax
