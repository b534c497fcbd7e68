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
#include <cstdint>
#include <memory>
#include <vector>

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
constexpr int64_t kColumns = 512;      // of a block of n
constexpr int64_t kUnpackedRows = 12;  // too few rows to repay packing
constexpr int64_t kLeastRows = 7;      // of a block

// The chains of out[g, m0 : m1, n0 : n1].
void run_block(const Problem& p, const Chains& set, int64_t g, int64_t m0, int64_t m1, int64_t n0,
               int64_t n1) {
  IeeeArithmetic ieee;
  const float* lhs = p.lhs + p.g.offset(kLhs, g);
  const float* rhs = p.rhs + p.g.offset(kRhs, g);
  float* out = p.out + p.g.offset(kOut, g);

  const int64_t width = set.lanes * set.vectors;
  const int64_t rows = m1 - m0, columns = n1 - n0;
  const int64_t panels = blocks_of(columns, width);
  const int64_t terms = std::max<int64_t>(1, std::min(kTerms, p.k.size));
  int64_t* const lhs_m = scratch<kOffsets, int64_t>(2 * rows + 2 * columns + 3 * terms);
  int64_t* const out_m = lhs_m + rows;
  int64_t* const rhs_n = out_m + rows;
  int64_t* const out_n = rhs_n + columns;
  int64_t* const lhs_k = out_n + columns;
  int64_t* const rhs_k = lhs_k + terms;
  int64_t* const packed_k = rhs_k + terms;
  p.m.offsets(kLhs, m0, rows, lhs_m);
  p.m.offsets(kOut, m0, rows, out_m);
  p.n.offsets(kRhs, n0, columns, rhs_n);
  p.n.offsets(kOut, n0, columns, out_n);

  // Panels whose columns do not lie together in the result have their own accumulators.
  std::vector<char> direct(panels);
  for (int64_t j = 0; j < panels; ++j) {
    const int64_t here = std::min(width, columns - j * width);
    direct[j] = here % set.lanes == 0 && contiguous(&out_n[j * width], here);
  }
  const bool all_direct = std::all_of(direct.begin(), direct.end(), [](char x) { return x; });
  std::unique_ptr<float[]> accumulators(all_direct ? nullptr : new float[rows * panels * width]);
  float* const panel = scratch<kRight, float>(terms * width);
  float single[16];  // the accumulator of one output, in all elements of the widest vector

  for (int64_t k0 = 0; k0 == 0 || k0 < p.k.size; k0 += terms) {
    const int64_t here_k = std::min(terms, p.k.size - k0);
    p.k.offsets(kLhs, k0, here_k, lhs_k);
    p.k.offsets(kRhs, k0, here_k, rhs_k);
    const bool first = k0 == 0, last = k0 + terms >= p.k.size;
    if (rows == 1 && columns == 1) {
      set.chain(here_k, lhs + lhs_m[0], lhs_k, rhs + rhs_n[0], rhs_k, single, first, last);
      if (last) out[out_m[0] + out_n[0]] = single[0];
      continue;
    }
    for (int64_t j = 0; j < panels; ++j) {
      const int64_t* at = &rhs_n[j * width];
      const int64_t here = std::min(width, columns - j * width);
      const int vectors = blocks_of(here, set.lanes);
      const float* right = panel;
      const int64_t* right_k = packed_k;
      if (rows <= kUnpackedRows && here % set.lanes == 0 && contiguous(at, here)) {
        right = rhs + at[0];
        right_k = rhs_k;
      } else {
        const int64_t packed = vectors * set.lanes;  // of the last panel, fewer
        for (int64_t k = 0; k < here_k; ++k) packed_k[k] = k * packed;
        set.pack(rhs, rhs_k, here_k, at, here, panel, packed);
      }
      for (int64_t i = 0; i < rows;) {
        const Tile<float, float> tile = set.tile_for(vectors, rows - i);
        const float* left[16];
        float* to[16];
        for (int r = 0; r < tile.rows; ++r) {
          left[r] = lhs + lhs_m[i + r];
          to[r] = direct[j] ? out + out_m[i + r] + out_n[j * width]
                            : accumulators.get() + (j * rows + i + r) * width;
        }
        tile.run(here_k, left, lhs_k, right, right_k, to, first, last);
        i += tile.rows;
      }
      if (last && !direct[j]) {
        const float* from = accumulators.get() + j * rows * width;
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

// The time of a call in which m are the rows and n the columns, in vector operations: the chains,
// the packing of the right operand, and the results that do not lie together.
double cost(const Problem& p, const Chains& set) {
  const double outputs = double(p.m.size) * p.n.size;
  const double vectors = blocks_of(p.n.size, set.lanes);
  const double chains = p.m.size * vectors * p.k.size;
  const double packing = double(p.k.size) * p.n.size * (p.n.stride(kRhs) == 1 ? 0.1 : 1);
  return chains + packing + outputs * (p.n.stride(kOut) == 1 ? 0.1 : 1.5);
}

}  // namespace

ffi::Error sequential_product(ffi::ThreadPool* pool, const float* lhs, int64_t lhs_count,
                              const float* rhs, int64_t rhs_count,
                              ffi::Span<const int64_t> problems, float* out, int64_t out_count) {
  const Chains& set = instruction_set().floats;
  return for_problems(
      lhs, lhs_count, rhs, rhs_count, problems, out, out_count, [&](Problem& problem) {
        const double as_it_is = cost(problem, set);
        problem.transpose();
        if (cost(problem, set) >= as_it_is) problem.transpose();
        for_blocks(problem, pool, problem.m.size, kLeastRows, kTileRows, kColumns,
                   set.lanes * set.vectors,
                   [&](auto... block) { run_block(problem, set, block...); });
      });
}

namespace {

ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> lhs, ffi::Buffer<ffi::F32> rhs,
                  ffi::Span<const int64_t> problems, ffi::ResultBuffer<ffi::F32> out) {
  return sequential_product(&pool, lhs.typed_data(), lhs.element_count(), rhs.typed_data(),
                            rhs.element_count(), problems, out->typed_data(),
                            out->element_count());
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_product, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<ffi::Span<const int64_t>>("problems")
                                  .Ret<ffi::Buffer<ffi::F32>>());
