// Sequential products (repjax_product): chains of fused multiply-adds of float32.
//
//   out[g, m, n] = guard(s),  s = +0;  s = fma(lhs[g, m, k], rhs[g, k, n], s), k ascending
//
// The bits are those of repjax.primitives.operations.products.sequential: nothing here may change
// the order of a chain, split it, or round it otherwise than an IEEE fma does.

#include "products.h"
#include "axes.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numeric>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {

void Dimension::add(const Axis<kStrides>& axis) {
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

void Dimension::offsets(int of, int64_t begin, int64_t count, int64_t* to) const {
  if (axes.empty() || count == 0) {
    std::fill_n(to, count, 0);
    return;
  }
  if (axes.size() == 1) {
    const int64_t step = axes[0].strides[of];
    for (int64_t i = 0; i < count; ++i) to[i] = (begin + i) * step;
    return;
  }
  Walk<kStrides, 1> walk(axes.data(), axes.size(), begin, of);
  const int64_t step = axes.back().strides[of];
  while (true) {
    const int64_t run = std::min(count, walk.left());
    for (int64_t i = 0; i < run; ++i) to[i] = walk.offsets[0] + i * step;
    to += run;
    if ((count -= run) == 0) return;
    walk.go(run);
  }
}

int64_t Dimension::offset(int of, int64_t position) const {
  int64_t result;
  offsets(of, position, 1, &result);
  return result;
}

int64_t Dimension::stride(int of) const {
  for (size_t d = axes.size(); d-- > 0;) {
    if (axes[d].size > 1) return axes[d].strides[of];
  }
  return 1;
}

int64_t Dimension::last_offset(int of) const {
  int64_t offset = 0;
  for (const Axis<kStrides>& axis : axes) offset += (axis.size - 1) * axis.strides[of];
  return offset;
}

namespace {

constexpr int64_t kTerms = 256;        // of a block: a panel stays in the L2 cache
constexpr int64_t kRows = 480;         // of a block of m: their terms stay in the L2 cache, too
constexpr int64_t kColumns = 512;      // of a block of n
constexpr int64_t kOfRow = 4096;       // of one of a single row: the sums stay in the L1 cache
constexpr int64_t kUnpackedRows = 32;  // too few rows to repay packing
constexpr int64_t kRowsAcross = 4;     // nor that of columns whose terms lie together,
constexpr int64_t kTermsAcross = 4096;  // which are read to their end
constexpr int64_t kLeastRows = 7;      // of a block
constexpr int64_t kSmallColumns = 1024;  // of a small product, if their terms lie together
// Terms of a left row that lie so far apart share sets of the L1 cache, and few tiles take what a
// cache line has: where so many panels read them, they are put together.
constexpr int64_t kFar = 512, kPanels = 4;

// Whether positions lie together vector by vector, but for those that fill none.
bool are_vectors(const int64_t* at, int64_t count, int64_t lanes) {
  for (int64_t j = 0; j + lanes <= count; j += lanes) {
    if (!contiguous(at + j, lanes)) return false;
  }
  return true;
}

// The sum of a chain as a result.
float guarded(float s) {
  return std::isnan(s) ? std::numeric_limits<float>::quiet_NaN() : std::fabs(s) > 0x1p-126f ? s : 0;
}

// The chain of one output, out[g, m, n].
void run_chain(const Problem& p, const bool* raw, const Chains& set, int64_t g, int64_t m,
               int64_t n) {
  constexpr int64_t kStaged = 1 << 12;  // terms that are put together
  const float* const lhs = p.lhs + p.g.offset(kLhs, g) + p.m.offset(kLhs, m);
  const float* const rhs = p.rhs + p.g.offset(kRhs, g) + p.n.offset(kRhs, n);
  const auto chain = set.chain[raw[kLhs] || raw[kRhs]];
  float s = 0;
  if (p.k.axes.size() <= 1 && p.k.stride(kLhs) == 1 && p.k.stride(kRhs) == 1) {
    s = chain(lhs, rhs, p.k.size, s);
  } else {
    const int64_t most = std::min(kStaged, p.k.size);
    int64_t* const at = scratch<kOffsets, int64_t>(most);
    float* const left = scratch<kLeft, float>(most);
    float* const right = scratch<kRight, float>(most);
    for (int64_t k0 = 0; k0 < p.k.size; k0 += most) {
      const int64_t here = std::min(most, p.k.size - k0);
      p.k.offsets(kLhs, k0, here, at);
      for (int64_t k = 0; k < here; ++k) left[k] = lhs[at[k]];
      p.k.offsets(kRhs, k0, here, at);
      for (int64_t k = 0; k < here; ++k) right[k] = rhs[at[k]];
      s = chain(left, right, here, s);
    }
  }
  p.out[p.g.offset(kOut, g) + p.m.offset(kOut, m) + p.n.offset(kOut, n)] = guarded(s);
}

// The chains of out[g, m0 : m1, n0 : n1], of operands of which some may be raw.
void run_block(const Problem& p, const bool* raw, const Chains& set, int64_t g, int64_t m0,
               int64_t m1, int64_t n0, int64_t n1) {
  if (m1 - m0 == 1 && n1 - n0 == 1) return run_chain(p, raw, set, g, m0, n0);
  const float* lhs = p.lhs + p.g.offset(kLhs, g);
  const float* rhs = p.rhs + p.g.offset(kRhs, g);
  float* out = p.out + p.g.offset(kOut, g);

  const int64_t width = set.lanes * set.vectors;
  const int64_t rows = m1 - m0, columns = n1 - n0;
  const int64_t panels = blocks_of(columns, width);
  const bool few = rows <= kRowsAcross && p.k.stride(kRhs) == 1;
  const int64_t most = few && !raw[kLhs] && !raw[kRhs] ? kTermsAcross : kTerms;
  const int64_t terms = std::max<int64_t>(1, std::min(most, p.k.size));
  int64_t* const lhs_m = scratch<kOffsets, int64_t>(2 * rows + 2 * columns + 4 * terms);
  int64_t* const out_m = lhs_m + rows;
  int64_t* const rhs_n = out_m + rows;
  int64_t* const out_n = rhs_n + columns;
  int64_t* const lhs_k = out_n + columns;
  int64_t* const rhs_k = lhs_k + terms;
  int64_t* const packed_k = rhs_k + terms;
  int64_t* const one_by_one = packed_k + terms;
  p.m.offsets(kLhs, m0, rows, lhs_m);
  p.m.offsets(kOut, m0, rows, out_m);
  p.n.offsets(kRhs, n0, columns, rhs_n);
  p.n.offsets(kOut, n0, columns, out_n);

  const bool along = contiguous(rhs_n, columns), all_together = contiguous(out_n, columns);
  const bool in_vectors = along || are_vectors(rhs_n, columns, set.lanes);
  const bool unpacked = in_vectors && rows <= kUnpackedRows && !raw[kRhs];
  const bool one_row = rows == 1 && along && unpacked && all_together && columns >= set.lanes;
  const bool packs_left =
      raw[kLhs] || (panels >= kPanels && rows > kUnpackedRows && p.k.stride(kLhs) >= kFar);
  if (packs_left) std::iota(one_by_one, one_by_one + terms, 0);

  // Panels whose columns do not lie together in the result have their own accumulators.
  bool direct[kOfRow];
  for (int64_t j = 0; j < panels; ++j) {
    const int64_t here = std::min(width, columns - j * width);
    direct[j] = here % set.lanes == 0 && contiguous(&out_n[j * width], here);
  }
  const bool all_direct = one_row || std::all_of(direct, direct + panels, [](bool x) { return x; });
  float* const accumulators = scratch<kSums, float>(all_direct ? 0 : rows * panels * width);
  float* const packed = scratch<kRight, float>(terms * width);
  float* const rest = packed;
  float* const packed_left = scratch<kLeft, float>(packs_left ? rows * terms : 0);
  const auto pack = set.pack[raw[kRhs]];

  for (int64_t k0 = 0; k0 == 0 || k0 < p.k.size; k0 += terms) {
    const int64_t here_k = std::min(terms, p.k.size - k0);
    p.k.offsets(kLhs, k0, here_k, lhs_k);
    p.k.offsets(kRhs, k0, here_k, rhs_k);
    const bool first = k0 == 0, last = k0 + terms >= p.k.size;
    const int64_t* left_k = lhs_k;
    if (packs_left) {
      set.pack[raw[kLhs]](lhs, lhs_m, rows, lhs_k, here_k, packed_left, here_k);
      left_k = one_by_one;
    }
    const auto left_row = [&](int64_t i) {
      return packs_left ? packed_left + i * here_k : lhs + lhs_m[i];
    };
    const bool across =
        !along && rows <= kRowsAcross && contiguous(rhs_k, here_k) && !raw[kRhs];
    int64_t j = 0;
    if (one_row) {
      float* const to = out + out_m[0] + out_n[0];
      set.row(here_k, left_row(0), left_k, rhs + rhs_n[0], rhs_k, columns, to, rest, first, last);
      const int64_t left_over = columns % set.lanes;
      if (last) std::copy_n(rest + set.lanes - left_over, left_over, to + columns - left_over);
      j = panels;
    }
    for (; j < panels; ++j) {
      const int64_t* at = &rhs_n[j * width];
      const int64_t here = std::min(width, columns - j * width);
      const int vectors = blocks_of(here, set.lanes);
      // Where an output is, or its accumulator.
      const auto to_row = [&](int64_t i) {
        return direct[j] ? out + out_m[i] + out_n[j * width]
                         : accumulators + (j * rows + i) * width;
      };
      const float* left[16];
      float* to[16];
      if (across && here % set.lanes == 0) {
        for (int v = 0; v < vectors; v += set.across) {
          const Tile<float, float> tile = set.tile_across_for(rows, vectors - v);
          for (int r = 0; r < rows; ++r) {
            left[r] = left_row(r);
            to[r] = to_row(r) + v * set.lanes;
          }
          tile.run(here_k, left, left_k, rhs + rhs_k[0], at + v * set.lanes, to, first, last);
        }
      } else {
        // The tiles of some vectors of the panel, and of all rows.
        const auto run = [&](int v, int count, const float* right, const int64_t* right_k) {
          for (int64_t i = 0; i < rows;) {
            const Tile<float, float> tile = set.tile_for(count, rows - i);
            for (int r = 0; r < tile.rows; ++r) {
              left[r] = left_row(i + r);
              to[r] = to_row(i + r) + v * set.lanes;
            }
            tile.run(here_k, left, left_k, right, right_k, to, first, last);
            i += tile.rows;
          }
        };
        if (unpacked && here % set.lanes == 0) {
          for (int v = 0, count; v < vectors; v += count) {
            const int64_t* const from = at + v * set.lanes;
            for (count = 1; v + count < vectors && contiguous(from, (count + 1) * set.lanes);) ++count;
            run(v, count, rhs + from[0], rhs_k);
          }
        } else {
          const int64_t row = vectors * set.lanes;  // of the last panel, fewer
          for (int64_t k = 0; k < here_k; ++k) packed_k[k] = k * row;
          pack(rhs, rhs_k, here_k, at, here, packed, row);
          run(0, vectors, packed, packed_k);
        }
      }
      if (last && !direct[j]) {
        const float* from = accumulators + j * rows * width;
        for (int64_t i0 = 0; i0 < rows; i0 += 16) {
          for (int64_t c = 0; c < here; ++c) {
            float* to = out + out_n[j * width + c];
            for (int64_t i = i0; i < std::min(i0 + 16, rows); ++i) {
              to[out_m[i]] = from[i * width + c];
            }
          }
        }
      }
    }
  }
}

// The same, with the operands that the problem has.  Raw ones are at first taken for canonical ones.
// Where the processor notes that an operand of a multiply-add was subnormal, one of them was not, or
// a sum was, which is as rare: then they are made canonical.
void run_block(const Problem& p, const Chains& set, int64_t g, int64_t m0, int64_t m1, int64_t n0,
               int64_t n1) {
  constexpr bool kCanonical[2] = {};
  const bool is_raw = p.raw[kLhs] || p.raw[kRhs];
  if (!is_raw || notes_subnormals()) {
    const IeeeArithmetic ieee;
    ieee.forget();
    run_block(p, kCanonical, set, g, m0, m1, n0, n1);
    if (!is_raw || !ieee.noted_subnormals()) return;
  }
  const IeeeArithmetic ieee;
  run_block(p, p.raw, set, g, m0, m1, n0, n1);
}

// Columns that do not fill the last vector are computed with some of those before, once more.
template <class Run>
void for_vectors(int64_t columns, int64_t lanes, int64_t most, Run run) {
  for (int64_t j = 0, vectors = most; j < columns; j += vectors * lanes) {
    while (vectors > 1 && j + vectors * lanes > columns) vectors = (vectors + 1) / 2;
    run(std::min(j, columns - lanes), vectors);
  }
}

}  // namespace

SmallProduct::Way SmallProduct::way(const Chains& set, const Side& m, const Side& n, int64_t terms) {
  const bool terms_together = n.of_term == 1 || terms == 1;
  if (n.apart != 1 && n.size != 1) return Way::kNone;
  if (n.step == 1 && n.size >= set.lanes) return Way::kTiles;
  if (terms_together && n.size >= set.lanes && n.size <= kSmallColumns && m.size <= kRowsAcross) {
    return Way::kAcross;
  }
  return n.step == 1 || n.size == 1 ? Way::kNarrow : Way::kNone;
}

// Chains whose terms lie together in both operands, where no other way fills vectors.
bool SmallProduct::has_chains(const Chains& set) const {
  const bool are_together = terms_ == 1 || (m_.of_term == 1 && n_.of_term == 1);
  const int64_t of_each = m_.size * n_.size;
  return are_together && way_ <= Way::kNarrow &&
         (of_each == 1 || (groups_ > 1 && of_each <= set.lanes / 2));
}

int64_t SmallProduct::work() const {
  const int64_t slower = way_ == Way::kChains ? (terms_ < 8 ? 8 : 4)
                         : way_ == Way::kAcross && m_.size == 1 ? 4
                                                                : 1;
  return slower * work_;
}

bool SmallProduct::decode(const Chains& set, ffi::Span<const int64_t> problems, int64_t lhs_count,
                          int64_t rhs_count, int64_t out_count, bool raw) {
  constexpr int64_t kMost = 1 << 16;  // multiply-adds of a group
  enum { kG, kM, kN, kK };
  const int64_t* const first = problems.begin();
  const int64_t axes = first[3];
  if (axes > 4 || int64_t(problems.size()) != 4 + axes * (2 + kStrides)) return false;
  if (raw && !notes_subnormals()) return false;
  int64_t sizes[4] = {1, 1, 1, 1}, strides[4][3] = {}, last[3] = {first[0], first[1], first[2]};
  for (const int64_t* at = first + 4; at < problems.end(); at += 2 + kStrides) {
    int64_t& size = sizes[at[0]];
    for (int of : {kLhs, kRhs, kOut}) {
      int64_t& stride = strides[at[0]][of];
      if (size != 1 && stride != at[1] * at[2 + of]) return false;  // not one with the axis before
      stride = at[2 + of];
      last[of] += (at[1] - 1) * stride;
    }
    size *= at[1];
  }
  const int64_t terms = sizes[kK], of_each = sizes[kM] * sizes[kN] * terms;
  work_ = sizes[kG] * of_each;
  if (work_ == 0 || of_each > kMost || last[kLhs] >= lhs_count || last[kRhs] >= rhs_count ||
      last[kOut] >= out_count) {
    return false;
  }
  const auto side = [&](int d, int of) {
    return Side{first[of],      sizes[d],        strides[kG][of],
                strides[d][of], strides[kK][of], strides[d][kOut]};
  };
  set_ = &set;
  m_ = side(kM, kLhs), n_ = side(kN, kRhs);
  groups_ = sizes[kG], of_group_ = strides[kG][kOut], terms_ = terms, out_ = first[kOut];
  raw_ = raw;
  const Way as_it_is = way(set, m_, n_, terms), turned = way(set, n_, m_, terms);
  is_turned_ = turned > as_it_is;
  way_ = std::max(as_it_is, turned);
  if (is_turned_) std::swap(m_, n_);
  if (has_chains(set)) way_ = Way::kChains;
  return way_ == Way::kChains || (terms <= kTerms && way_ != Way::kNone);
}

bool SmallProduct::compute(const Chains& set, const float* lhs, const float* rhs, float* out,
                           int64_t begin, int64_t end) const {
  if (is_turned_) std::swap(lhs, rhs);
  lhs += m_.first, rhs += n_.first, out += out_;
  if (!raw_) {
    run(set, lhs, rhs, out, begin, end);
    return true;
  }
  const IeeeArithmetic ieee;
  ieee.begin();
  run(set, lhs, rhs, out, begin, end);
  return !ieee.noted_subnormals();
}

void SmallProduct::run(const Chains& set, const float* left, const float* right, float* out,
                       int64_t begin, int64_t end) const {
  int64_t left_k[kTerms], right_k[kTerms], columns[kSmallColumns];
  if (way_ == Way::kTiles || way_ == Way::kAcross) {
    for (int64_t k = 0; k < terms_; ++k) {
      left_k[k] = k * m_.of_term;
      right_k[k] = k * n_.of_term;
    }
    if (way_ == Way::kAcross) {
      for (int64_t j = 0; j < n_.size; ++j) columns[j] = j * n_.step;
    }
  }
  if (way_ == Way::kChains) return run_chains(set, left, right, out, begin, end);
  for (int64_t g = begin; g < end; ++g) {
    const float* const a = left + g * m_.of_group;
    const float* const b = right + g * n_.of_group;
    float* const to = out + g * of_group_;
    // Some rows of a tile, from i on, and the columns from j on.
    const auto run = [&](const Tile<float, float>& tile, int64_t i, int64_t j, const float* right) {
      const float* rows[16];
      float* sums[16];
      for (int r = 0; r < tile.rows; ++r) {
        rows[r] = a + (i + r) * m_.step;
        sums[r] = to + (i + r) * m_.apart + j;
      }
      tile.run(terms_, rows, left_k, right, way_ == Way::kTiles ? right_k : columns + j, sums, true,
               true);
      return tile.rows;
    };
    switch (way_) {
      case Way::kTiles:
        if (m_.size == 1) {
          const int64_t whole = n_.size / set.lanes * set.lanes, last = n_.size - set.lanes;
          set.row(terms_, a, left_k, b, right_k, whole, to, nullptr, true, true);
          if (whole < n_.size) {
            set.row(terms_, a, left_k, b + last, right_k, set.lanes, to + last, nullptr, true,
                    true);
          }
          break;
        }
        for_vectors(n_.size, set.lanes, set.vectors, [&](int64_t j, int64_t vectors) {
          for (int64_t i = 0; i < m_.size;) {
            i += run(set.tile_for(vectors, m_.size - i), i, j, b + j);
          }
        });
        break;
      case Way::kAcross:
        for_vectors(n_.size, set.lanes, set.across, [&](int64_t j, int64_t vectors) {
          run(set.tile_across_for(m_.size, vectors), 0, j, b);
        });
        break;
      case Way::kNarrow:
        set.narrow(m_.size, terms_, a, m_.step, m_.of_term, b, n_.of_term, n_.size, to, m_.apart);
        break;
      default:
        break;
    }
  }
}

void SmallProduct::run_chains(const Chains& set, const float* left, const float* right, float* out,
                              int64_t begin, int64_t end) const {
  if (groups_ * m_.size * n_.size == 1) {
    *out = guarded(set.chain[0](left, right, terms_, 0));
    return;
  }
  const float *x[kMostLanes], *y[kMostLanes];
  float* to[kMostLanes];
  int64_t count = 0;
  for (int64_t g = begin; g < end; ++g) {
    for (int64_t i = 0; i < m_.size; ++i) {
      for (int64_t j = 0; j < n_.size; ++j) {
        x[count] = left + g * m_.of_group + i * m_.step;
        y[count] = right + g * n_.of_group + j * n_.step;
        to[count++] = out + g * of_group_ + i * m_.apart + j * n_.apart;
        if (count < set.lanes) continue;
        set.chains(count, terms_, x, y, to);
        count = 0;
      }
    }
  }
  if (count > 0) set.chains(count, terms_, x, y, to);
}

namespace {

// The time of a call in which m are the rows and n the columns, in vector operations: the chains,
// the packing of the right operand, the reading of the left one, element by element, and the results
// that do not lie together.
double cost(const Problem& p, const Chains& set) {
  const double outputs = double(p.m.size) * p.n.size;
  const double vectors = blocks_of(p.n.size, set.lanes);
  const double chains = p.m.size * vectors * p.k.size;
  const bool along = p.n.stride(kRhs) == 1, across = p.k.stride(kRhs) == 1;
  const double packing = double(p.k.size) * p.n.size * (along ? 0.1 : across ? 0.3 : 1);
  const double reading = double(p.m.size) * p.k.size * (p.k.stride(kLhs) == 1 ? 0.2 : 0.5);
  return chains + packing + reading + outputs * (p.n.stride(kOut) == 1 ? 0.1 : 1.5);
}

}  // namespace

ffi::Error sequential_product(ffi::ThreadPool* pool, const float* lhs, int64_t lhs_count,
                              const float* rhs, int64_t rhs_count,
                              ffi::Span<const int64_t> problems, float* out, int64_t out_count,
                              int64_t raw) {
  const Chains& set = instruction_set().floats;
  SmallProduct small;
  if (small.decode(set, problems, lhs_count, rhs_count, out_count, raw != 0)) {
    constexpr int64_t kPart = 1 << 16;  // of the work, for a part of the groups
    const int64_t parts = std::max<int64_t>(1, std::min(small.groups(), small.work() / kPart));
    std::atomic<bool> done = true;
    share(pool, parts, small.work(), SmallProduct::kThread, [&](int64_t i) {
      const IeeeArithmetic ieee;
      const int64_t begin = i * small.groups() / parts, end = (i + 1) * small.groups() / parts;
      if (!small.compute(set, lhs, rhs, out, begin, end)) done = false;
    });
    if (done) return ffi::Error::Success();
  }
  return for_problems(
      lhs, lhs_count, rhs, rhs_count, problems, out, out_count, [&](Problem& problem) {
        problem.raw[kLhs] = raw & 1;
        problem.raw[kRhs] = raw & 2;
        const double as_it_is = cost(problem, set);
        problem.transpose();
        if (cost(problem, set) >= as_it_is) problem.transpose();
        const Blocks blocks =
            divide(problem, pool, kRows, kLeastRows, kTileRows,
                   problem.m.size == 1 ? kOfRow : kColumns, set.lanes * set.vectors);
        for_blocks(problem, pool, blocks,
                   [&](auto... block) { run_block(problem, set, block...); });
      });
}

namespace {

ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> lhs, ffi::Buffer<ffi::F32> rhs,
                  ffi::Span<const int64_t> problems, int64_t raw,
                  ffi::ResultBuffer<ffi::F32> out) {
  return sequential_product(&pool, lhs.typed_data(), lhs.element_count(), rhs.typed_data(),
                            rhs.element_count(), problems, written(out),
                            out->element_count(), raw);
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_product, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<ffi::Span<const int64_t>>("problems")
                                  .Attr<int64_t>("raw")
                                  .Ret<ffi::Buffer<ffi::F32>>());
