// Exact products (repjax_exact_product).
//
//   out[g, m, n] = guard(RN(the exact sum over k of lhs[g, m, k] * rhs[g, k, n]))
//
// The bits are those of repjax.primitives.operations.products.exact.  A float64 sum of the products,
// each of which float64 holds, has a bound of its error: so many additions times 2**-53 times the
// norms of the row and of the column.  Where both ends of the interval round alike, that is the
// result (Ziv 1991).  The others are added again with what each addition loses, and where even that
// leaves two roundings, by a superaccumulator.

#include "axes.h"
#include "exact.h"
#include "instruction_sets.h"
#include "products.h"
#include "threads.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kTerms = 128;               // of a chain, and of a block
constexpr int64_t kRows = 256, kColumns = 256;  // of a block: all of it stays in the L2 cache
constexpr int64_t kStrip = 24;                // rows of the left operand that are widened together
constexpr int64_t kLeastRows = 13;            // that repay widening the right operand once more
constexpr int64_t kKeptTerms = 1 << 14;       // whose offsets are kept

// The left operand as float64 and the largest magnitude in it, where it was widened at once.
struct Wide {
  const double* first = nullptr;
  double most = 0;
};

// A column and a row.
typedef std::pair<int32_t, int32_t> Place;

// The terms of rows, or of columns, of which the first ones of the last row asked for are kept.
class Terms {
 public:
  Terms(const Dimension& k, int of, const float* x, const std::vector<int64_t>& rows)
      : k_(k), of_(of), x_(x), rows_(rows),
        offsets_(std::min(kKeptTerms, k.size)), kept_(offsets_.size()), others_(kTogether) {
    k_.offsets(of_, 0, offsets_.size(), offsets_.data());
    in_place_ = int64_t(offsets_.size()) == k.size && contiguous(offsets_.data(), k.size);
  }

  // Terms k to k + n - 1 of a row, at most kTogether: where they are, or at `to`.
  const float* get(int64_t row, int64_t k, int64_t n, float* to) {
    const float* const x = x_ + rows_[row];
    const int64_t count = offsets_.size();
    if (in_place_) return x + offsets_[0] + k;
    if (k + n <= count) {
      if (row != row_) {
        row_ = row;
        for (int64_t t = 0; t < count; ++t) kept_[t] = x[offsets_[t]];
      }
      return kept_.data() + k;
    }
    k_.offsets(of_, k, n, others_.data());
    for (int64_t t = 0; t < n; ++t) to[t] = x[others_[t]];
    return to;
  }

 private:
  const Dimension& k_;
  const int of_;
  const float* const x_;
  const std::vector<int64_t>& rows_;
  std::vector<int64_t> offsets_;
  std::vector<float> kept_;
  std::vector<int64_t> others_;
  bool in_place_;
  int64_t row_ = -1;
};

struct Options {
  double slack;
  bool odd;
};

// The results out[g, m0 : m1, n0 : n1].
void run_block(const Problem& p, const Wide& wide, const Exact& set, const Options& options,
               int64_t g, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  const IeeeArithmetic ieee;
  const Chains& floats = instruction_set().floats;
  const float* lhs = p.lhs + p.g.offset(kLhs, g);
  const float* rhs = p.rhs + p.g.offset(kRhs, g);
  float* out = p.out + p.g.offset(kOut, g);
  const double* widened = wide.first ? wide.first + p.g.offset(kLhs, g) : nullptr;

  const int64_t width = set.lanes * set.vectors;
  const int64_t rows = m1 - m0, columns = n1 - n0;
  const int64_t panels = blocks_of(columns, width), row = panels * width;
  const int64_t terms = std::max<int64_t>(1, std::min(kTerms, p.k.size));
  std::vector<int64_t> lhs_m(rows), out_m(rows), rhs_n(columns), out_n(columns);
  std::vector<int64_t> lhs_k(terms), rhs_k(terms), packed_k(terms), strip_k(terms), strip_m(kStrip);
  p.m.offsets(kLhs, m0, rows, lhs_m.data());
  p.m.offsets(kOut, m0, rows, out_m.data());
  p.n.offsets(kRhs, n0, columns, rhs_n.data());
  p.n.offsets(kOut, n0, columns, out_n.data());
  for (int64_t k = 0; k < terms; ++k) packed_k[k] = k * width, strip_k[k] = k;
  for (int64_t i = 0; i < kStrip; ++i) strip_m[i] = i * terms;

  double* const sums = scratch<kSums, double>(rows * row);
  double* const right = scratch<kRight, double>(row * terms);
  double* const left = scratch<kLeft, double>(kStrip * terms);
  float* const staged = scratch<kStaged, float>(std::max(width, kStrip) * terms);
  if (p.k.size == 0) std::fill_n(sums, rows * row, 0.0);
  std::vector<double> of_rows(rows), of_columns(row);
  for (int64_t k0 = 0; k0 < p.k.size; k0 += terms) {
    const int64_t here_k = std::min(terms, p.k.size - k0);
    p.k.offsets(kLhs, k0, here_k, lhs_k.data());
    p.k.offsets(kRhs, k0, here_k, rhs_k.data());
    auto vectors = [&](int64_t j) {
      return blocks_of(std::min(width, columns - j * width), set.lanes);
    };
    for (int64_t j = 0; j < panels; ++j) {
      const int64_t* n = &rhs_n[j * width];
      const int64_t here = std::min(width, columns - j * width);
      double* const to = right + j * terms * width;
      double* const squares = &of_columns[j * width];
      if (here % set.lanes == 0 && contiguous(n, here)) {
        set.right(rhs + n[0], rhs_k.data(), here_k, here, to, width, squares);
      } else {  // in whole vectors, with zeros behind
        floats.pack[false](rhs, rhs_k.data(), here_k, n, here, staged, width);
        const int64_t whole = vectors(j) * set.lanes;
        set.right(staged, packed_k.data(), here_k, whole, to, width, squares);
      }
    }
    const bool along = contiguous(lhs_k.data(), here_k);
    for (int64_t i0 = 0; i0 < rows; i0 += kStrip) {
      const int64_t here_m = std::min(kStrip, rows - i0);
      if (!widened && along) {
        set.left(lhs + lhs_k[0], &lhs_m[i0], here_m, here_k, left, terms, &of_rows[i0]);
      } else if (!widened) {
        floats.pack[false](lhs, &lhs_m[i0], here_m, lhs_k.data(), here_k, staged, terms);
        set.left(staged, strip_m.data(), here_m, here_k, left, terms, &of_rows[i0]);
      }
      for (int64_t j = 0; j < panels; ++j) {
        for (int64_t i = 0; i < here_m;) {
          const Tile<double, double> tile = set.tile_for(vectors(j), here_m - i);
          const double* x[16];
          double* to[16];
          for (int r = 0; r < tile.rows; ++r) {
            x[r] = widened ? widened + lhs_m[i0 + i + r] : left + (i + r) * terms;
            to[r] = sums + (i0 + i + r) * row + j * width;
          }
          tile.run(here_k, x, widened ? lhs_k.data() : strip_k.data(), right + j * terms * width,
                   packed_k.data(), to, k0 == 0, false);
          i += tile.rows;
        }
      }
    }
  }

  // A chain of each block, and one of the blocks.
  const int64_t additions = terms + blocks_of(p.k.size, terms) + kMoreTerms;
  const double unit = additions * kUnit * options.slack;
  for (double& x : of_columns) x = std::sqrt(x);
  for (double& x : of_rows) {
    x = unit * (widened ? std::sqrt(double(p.k.size)) * wide.most : std::sqrt(x));
  }
  const bool direct = contiguous(out_n.data(), columns);
  float* const results = scratch<kResults, float>(columns);
  std::vector<int32_t> unsure(columns);
  std::vector<Place> rest;
  for (int64_t i = 0; i < rows; ++i) {
    float* const to = direct ? out + out_m[i] + out_n[0] : results;
    const double* const s = sums + i * row;
    const int64_t count = set.round_sure[options.odd](s, columns, of_rows[i], of_columns.data(), to,
                                                      unsure.data());
    for (int64_t u = 0; u < count; ++u) rest.push_back({unsure[u], int32_t(i)});
    for (int64_t j = 0; !direct && j < columns; ++j) out[out_m[i] + out_n[j]] = results[j];
  }
  if (rest.empty()) return;
  // Of rows and columns of few bits, many sums are exact, which adding few of them again finds, too.
  const bool many = 4 * int64_t(rest.size()) > rows + columns;
  std::vector<int32_t> of_left(rows, many ? kNoStep : -kNoStep * 8), of_right(columns, of_left[0]);
  for (int64_t k0 = 0; many && k0 < p.k.size; k0 += terms) {
    const int64_t here_k = std::min(terms, p.k.size - k0);
    p.k.offsets(kLhs, k0, here_k, lhs_k.data());
    p.k.offsets(kRhs, k0, here_k, rhs_k.data());
    const bool along = contiguous(lhs_k.data(), here_k);
    for (int64_t i = 0; i < rows; i += kStrip) {
      const int64_t here = std::min(kStrip, rows - i);
      if (along) {
        set.steps(lhs + lhs_k[0], &lhs_m[i], here, here_k, true, &of_left[i]);
      } else {
        floats.pack[false](lhs, &lhs_m[i], here, lhs_k.data(), here_k, staged, terms);
        set.steps(staged, strip_m.data(), here, here_k, true, &of_left[i]);
      }
    }
    for (int64_t j = 0; j < columns; j += width) {
      const int64_t here = std::min(width, columns - j);
      if (contiguous(&rhs_n[j], here)) {
        set.steps(rhs + rhs_n[j], rhs_k.data(), here_k, here, false, &of_right[j]);
      } else {
        floats.pack[false](rhs, rhs_k.data(), here_k, &rhs_n[j], here, staged, width);
        set.steps(staged, packed_k.data(), here_k, here, false, &of_right[j]);
      }
    }
  }
  auto is_rounded = [&](const Place& place) {
    const int64_t j = place.first, i = place.second;
    const double s = sums[i * row + j];
    // Partial sums of multiples of a step are exact, while float64 has a bit for it.
    const double magnitude = of_rows[i] / unit * of_columns[j] * (1 + 0x1p-16);
    const bool finite = std::isfinite(s);
    if (finite && magnitude > std::ldexp(1.0, 52 + of_left[i] + of_right[j])) return false;
    // What is not finite is what IEEE arithmetic makes of the terms in any order.
    set.round_one[finite && options.odd](s, out + out_m[i] + out_n[j]);
    return true;
  };
  rest.erase(std::remove_if(rest.begin(), rest.end(), is_rounded), rest.end());
  Terms left_terms(p.k, kLhs, lhs, lhs_m), right_terms(p.k, kRhs, rhs, rhs_n);
  std::sort(rest.begin(), rest.end());  // by columns, whose terms are gathered once
  for (const auto& [column, line] : rest) {
    const int64_t j = column, i = line;
    const auto get = [&](int64_t k, int64_t n, float* x, float* y) {
      return Factors{left_terms.get(i, k, n, x), right_terms.get(j, k, n, y)};
    };
    out[out_m[i] + out_n[j]] = exactly(set, p.k.size, options.odd, get);
  }
}

// The time of a call in which m are the rows and n the columns, in vector operations: the products,
// widening, and the results.
double cost(const Problem& p, bool is_wide, int64_t lanes) {
  const double m = p.m.size, n = p.n.size, k = p.k.size;
  auto packing = [](const Dimension& d, int of) { return d.stride(of) == 1 ? 0.2 : 1; };
  return m * blocks_of(p.n.size, lanes) * k + (is_wide ? 0 : m * k * packing(p.k, kLhs)) +
         k * n * packing(p.n, kRhs) + m * n * (p.n.stride(kOut) == 1 ? 0.2 : 1.5);
}

void run_problem(Problem p, Wide wide, const Exact& set, const Options& options,
                 ffi::ThreadPool* pool) {
  const double as_it_is = cost(p, wide.first, set.lanes);
  p.transpose();
  if (cost(p, false, set.lanes) < as_it_is) {
    wide = {};
  } else {
    p.transpose();
  }
  for_blocks(p, pool, kRows, kLeastRows, kTileRows, kColumns, set.lanes * set.vectors,
             [&, wide](auto... block) { run_block(p, wide, set, options, block...); });
}

// problems: see products.h.  slack: what bounds are multiplied by; less than 1 is wrong, which tests
// show.  odd: whether results are rounded to odd.
ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> lhs, ffi::Buffer<ffi::F32> rhs,
                  ffi::Span<const int64_t> problems, double slack, int64_t odd,
                  ffi::ResultBuffer<ffi::F32> out) {
  const float *a = lhs.typed_data(), *b = rhs.typed_data();
  const int64_t a_count = lhs.element_count(), b_count = rhs.element_count();
  const Exact& set = instruction_set().exact;
  auto for_each = [&](auto run) {
    return for_problems(a, a_count, b, b_count, problems, out->typed_data(), out->element_count(),
                        run);
  };
  // The windows of a convolution share elements, which are not to be widened for each.
  int64_t uses = 0;
  const ffi::Error error =
      for_each([&](const Problem& p) { uses += p.g.size * p.m.size * p.k.size; });
  if (error.failure()) return error;
  std::unique_ptr<double[]> widened;
  double most = 0;
  if (uses > 2 * a_count) {
    constexpr int64_t kPart = 1 << 15, kThread = 1 << 16;
    widened.reset(new double[a_count]);
    const int64_t parts = blocks_of(a_count, kPart);
    std::vector<double> largest(parts);
    share(&pool, parts, a_count, kThread, [&](int64_t i) {
      const int64_t here = std::min(kPart, a_count - i * kPart);
      largest[i] = set.widen_all(a + i * kPart, here, widened.get() + i * kPart);
    });
    for (double x : largest) most = std::max(most, x);
  }
  const Options options = {slack, odd != 0};
  return for_each([&](const Problem& p) {
    const Wide wide = widened ? Wide{widened.get() + (p.lhs - a), most} : Wide{};
    run_problem(p, wide, set, options, &pool);
  });
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_exact_product, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<ffi::Span<const int64_t>>("problems")
                                  .Attr<double>("slack")
                                  .Attr<int64_t>("odd")
                                  .Ret<ffi::Buffer<ffi::F32>>());
