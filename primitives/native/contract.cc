// Contractions on the CPU as an XLA FFI call: chains of fused multiply-adds at native speed.
//
//   out[g, m, n] = guard(s),  s = +0;  s = fma(lhs[g, m, k], rhs[g, k, n], s), k ascending
//
// Each of g, m, n and k stands for any number of axes with any strides, so that one call
// covers dot_general with its batch dimensions and layouts and, on a padded operand, the
// convolutions.  The bits are those of repjax.primitives.contract.sequential: nothing here
// may change the order of a chain, split it, or round it otherwise than an IEEE fma does.
//
// The same for integers held by float64, whose sums are int64: the exact products of
// order_independent.cc.

#include "contract.h"
#include "ieee.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

const Chains<float, float>& chains(const InstructionSet& set, float) { return set.floats; }
const Chains<double, int64_t>& chains(const InstructionSet& set, double) { return set.integers; }

// ---- The problem ------------------------------------------------------------------------

// One dimension of out[g, m, n] or of the sum: axes, row-major, with strides in elements.
struct Dimension {
  int64_t size = 1;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides[3];  // of lhs, rhs and out

  // Adds an axis, as one with the axis before if their strides allow.
  void add(int64_t count, const int64_t* stride) {
    size *= count;
    bool joined = !sizes.empty();
    for (int array = 0; joined && array < 3; ++array) {
      joined = strides[array].back() == count * stride[array];
    }
    if (joined) {
      sizes.back() *= count;
      for (int array = 0; array < 3; ++array) strides[array].back() = stride[array];
    } else {
      sizes.push_back(count);
      for (int array = 0; array < 3; ++array) strides[array].push_back(stride[array]);
    }
  }

  // The offsets of the positions [begin, begin + count) in one of the three arrays.
  void offsets(int array, int64_t begin, int64_t count, int64_t* to) const {
    if (sizes.empty() || count == 0) {
      std::fill_n(to, count, 0);
      return;
    }
    const size_t inner = sizes.size() - 1;
    std::vector<int64_t> at(sizes.size());
    int64_t offset = 0, rest = begin;
    for (size_t d = sizes.size(); d-- > 0;) {
      at[d] = rest % sizes[d];
      rest /= sizes[d];
      offset += at[d] * strides[array][d];
    }
    const int64_t step = strides[array][inner];
    while (true) {
      const int64_t run = std::min(count, sizes[inner] - at[inner]);
      for (int64_t i = 0; i < run; ++i) to[i] = offset + i * step;
      to += run;
      if ((count -= run) == 0) return;
      offset -= at[inner] * step;
      at[inner] = 0;
      for (size_t d = inner; d-- > 0;) {
        offset += strides[array][d];
        if (++at[d] < sizes[d]) break;
        offset -= sizes[d] * strides[array][d];
        at[d] = 0;
      }
    }
  }

  int64_t stride(int array) const {
    for (size_t d = sizes.size(); d-- > 0;) {
      if (sizes[d] > 1) return strides[array][d];
    }
    return 1;
  }

  int64_t last_offset(int array) const {
    int64_t offset = 0;
    for (size_t d = 0; d < sizes.size(); ++d) offset += (sizes[d] - 1) * strides[array][d];
    return offset;
  }
};

enum { kLhs, kRhs, kOut };

template <class Element, class Result>
struct Problem {
  Dimension g, m, n, k;
  const Element* lhs;
  const Element* rhs;
  Result* out;
  Terms terms;
};

// ---- Blocks -----------------------------------------------------------------------------

constexpr Terms kChains = {0, INT64_MAX, 256};  // a panel of a block stays in the L2 cache
constexpr int64_t kColumns = 512;      // of a block of n
constexpr int64_t kUnpackedRows = 12;  // too few rows to repay packing
constexpr int64_t kSmall = 1 << 16;    // multiply-adds that are not worth another thread

// The chains of out[g, m0 : m1, n0 : n1].
template <class Element, class Result>
void run_block(const Problem<Element, Result>& p, const Chains<Element, Result>& set, int64_t g,
               int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  IeeeArithmetic ieee;
  int64_t lhs_g, rhs_g, out_g;
  p.g.offsets(kLhs, g, 1, &lhs_g);
  p.g.offsets(kRhs, g, 1, &rhs_g);
  p.g.offsets(kOut, g, 1, &out_g);
  const Element* lhs = p.lhs + lhs_g;
  const Element* rhs = p.rhs + rhs_g;
  Result* out = p.out + out_g;

  const int64_t width = set.lanes * set.vectors;
  const int64_t rows = m1 - m0, columns = n1 - n0;
  const int64_t panels = (columns + width - 1) / width;
  const int64_t k_end = std::min(p.terms.end, p.k.size);
  const int64_t terms = std::max<int64_t>(1, std::min(p.terms.block, k_end - p.terms.begin));
  std::vector<int64_t> lhs_m(rows), out_m(rows), rhs_n(columns), out_n(columns);
  std::vector<int64_t> lhs_k(terms), rhs_k(terms), packed_k(terms);
  p.m.offsets(kLhs, m0, rows, lhs_m.data());
  p.m.offsets(kOut, m0, rows, out_m.data());
  p.n.offsets(kRhs, n0, columns, rhs_n.data());
  p.n.offsets(kOut, n0, columns, out_n.data());
  for (int64_t k = 0; k < terms; ++k) packed_k[k] = k * width;

  // Panels whose columns do not lie together in the result have their own accumulators.
  std::vector<char> direct(panels);
  for (int64_t j = 0; j < panels; ++j) {
    const int64_t here = std::min(width, columns - j * width);
    direct[j] = here % set.lanes == 0 && contiguous(&out_n[j * width], here);
  }
  const bool all_direct = std::all_of(direct.begin(), direct.end(), [](char x) { return x; });
  std::unique_ptr<Result[]> accumulators(all_direct ? nullptr : new Result[rows * panels * width]);
  std::unique_ptr<Element[]> panel(new Element[terms * width]);

  const int64_t k_begin = p.terms.begin;
  for (int64_t k0 = k_begin; k0 == k_begin || k0 < k_end; k0 += terms) {
    const int64_t here_k = std::max<int64_t>(0, std::min(terms, k_end - k0));
    p.k.offsets(kLhs, k0, here_k, lhs_k.data());
    p.k.offsets(kRhs, k0, here_k, rhs_k.data());
    const bool first = k0 == k_begin, last = k0 + terms >= k_end;
    for (int64_t j = 0; j < panels; ++j) {
      const int64_t* at = &rhs_n[j * width];
      const int64_t here = std::min(width, columns - j * width);
      const int vectors = (here + set.lanes - 1) / set.lanes;
      const Element* right = panel.get();
      const int64_t* right_k = packed_k.data();
      if (rows <= kUnpackedRows && here % set.lanes == 0 && contiguous(at, here)) {
        right = rhs + at[0];
        right_k = rhs_k.data();
      } else {
        set.pack(rhs, rhs_k.data(), here_k, at, here, panel.get());
      }
      for (int64_t i = 0; i < rows;) {
        const Tile<Element, Result> tile = set.tile_for(vectors, rows - i);
        const Element* left[16];
        Result* to[16];
        for (int r = 0; r < tile.rows; ++r) {
          left[r] = lhs + lhs_m[i + r];
          to[r] = direct[j] ? out + out_m[i + r] + out_n[j * width]
                            : accumulators.get() + (j * rows + i + r) * width;
        }
        tile.run(here_k, left, lhs_k.data(), right, right_k, to, first, last);
        i += tile.rows;
      }
      if (last && !direct[j]) {
        const Result* from = accumulators.get() + j * rows * width;
        for (int64_t i0 = 0; i0 < rows; i0 += 16) {
          for (int64_t c = 0; c < here; ++c) {
            Result* to = out + out_n[j * width + c];
            for (int64_t i = i0; i < std::min(i0 + 16, rows); ++i) {
              to[out_m[i]] = from[i * width + c];
            }
          }
        }
      }
    }
  }
}

// Time of a call in which m are the rows and n the columns, in vector operations: the chains,
// the packing of the right operand, and the results that do not lie together.
template <class Element, class Result>
double cost(const Problem<Element, Result>& p, const Chains<Element, Result>& set) {
  const double outputs = double(p.m.size) * p.n.size;
  const double vectors = (p.n.size + set.lanes - 1) / set.lanes;
  const double chains = p.m.size * vectors * p.k.size;
  const double packing = double(p.k.size) * p.n.size * (p.n.stride(kRhs) == 1 ? 0.1 : 1);
  return chains + packing + outputs * (p.n.stride(kOut) == 1 ? 0.1 : 1.5);
}

template <class P>
void transpose(P& p) {
  std::swap(p.m, p.n);
  std::swap(p.lhs, p.rhs);
  for (Dimension* d : {&p.g, &p.m, &p.n, &p.k}) std::swap(d->strides[kLhs], d->strides[kRhs]);
}

int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

template <class Element, class Result>
void run_problem(Problem<Element, Result> problem, int64_t threads,
                 const Chains<Element, Result>& set, ffi::ThreadPool* pool) {
  Problem<Element, Result> transposed = problem;
  transpose(transposed);
  if (cost(transposed, set) < cost(problem, set)) problem = transposed;

  const auto& p = problem;
  const double operations = double(p.g.size) * p.m.size * p.n.size * p.k.size;
  threads = std::max<int64_t>(1, std::min<int64_t>(threads, operations / kSmall));
  // Blocks for all threads, and some more, for those that come late.
  const int64_t wanted = threads == 1 ? 1 : 4 * threads;
  const int64_t width = set.lanes * set.vectors;
  int64_t rows = p.m.size, columns = std::min(p.n.size, kColumns);  // of a block
  int64_t blocks_m, blocks_n;
  auto count = [&] {
    blocks_m = (p.m.size + rows - 1) / rows;
    blocks_n = (p.n.size + columns - 1) / columns;
    return p.g.size * blocks_m * blocks_n;
  };
  while (count() < wanted) {
    if (columns > width && columns * 2 > rows) {
      columns = round_up(columns / 2, width);
    } else if (rows > 12) {
      rows = rows > 96 ? round_up(rows / 2, 12) : (rows + 1) / 2;
    } else {
      break;
    }
  }
  in_parallel(pool, threads, count(), [=, &set](int64_t i) {
    const int64_t g = i / (blocks_m * blocks_n);
    const int64_t m = i / blocks_n % blocks_m * rows, n = i % blocks_n * columns;
    run_block(problem, set, g, m, std::min(m + rows, problem.m.size), n,
              std::min(n + columns, problem.n.size));
  });
}

}  // namespace

template <class Element, class Result>
ffi::Error contract(ffi::ThreadPool* pool, const Element* lhs, int64_t lhs_count,
                    const Element* rhs, int64_t rhs_count, ffi::Span<const int64_t> problems,
                    Result* out, int64_t out_count, Terms terms) {
  const int64_t counts[] = {lhs_count, rhs_count, out_count};
  const int64_t* at = problems.begin();
  while (at < problems.end()) {
    const int64_t* offsets = at;
    const int64_t axes = at[3];
    at += 4;
    Problem<Element, Result> problem = {
        {}, {}, {}, {}, lhs + offsets[kLhs], rhs + offsets[kRhs], out + offsets[kOut], terms};
    Dimension* dimensions[] = {&problem.g, &problem.m, &problem.n, &problem.k};
    for (int64_t i = 0; i < axes; ++i, at += 5) dimensions[at[0]]->add(at[1], at + 2);
    if (problem.g.size * problem.m.size * problem.n.size == 0) continue;
    for (int array : {kLhs, kRhs, kOut}) {
      if (problem.k.size == 0 && array != kOut) continue;
      int64_t last = offsets[array];
      for (const Dimension* d : dimensions) last += d->last_offset(array);
      if (last >= counts[array]) return ffi::Error::InvalidArgument("problems: out of bounds");
    }
    const int64_t threads = std::max<int64_t>(1, pool->num_threads());
    run_problem(problem, threads, chains(instruction_set(), Element{}), pool);
  }
  return ffi::Error::Success();
}

template ffi::Error contract(ffi::ThreadPool*, const float*, int64_t, const float*, int64_t,
                             ffi::Span<const int64_t>, float*, int64_t, Terms);
template ffi::Error contract(ffi::ThreadPool*, const double*, int64_t, const double*, int64_t,
                             ffi::Span<const int64_t>, int64_t*, int64_t, Terms);

namespace {

ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> lhs, ffi::Buffer<ffi::F32> rhs,
                  ffi::Span<const int64_t> problems, ffi::ResultBuffer<ffi::F32> out) {
  return contract<float, float>(&pool, lhs.typed_data(), lhs.element_count(), rhs.typed_data(),
                                rhs.element_count(), problems, out->typed_data(),
                                out->element_count(), kChains);
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_contract, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<ffi::Span<const int64_t>>("problems")
                                  .Ret<ffi::Buffer<ffi::F32>>());
