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
#include <atomic>
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
constexpr int64_t kDigitColumns = 64;         // of which digits are made together
constexpr int64_t kRareDigits = 64;           // results for each that digits may leave uncertain

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
  bool odd, few_bits;
  // Whether by digits; cleared where they leave too much uncertain.
  std::atomic<bool>* by_digits;
};

// A block of results: where it is, and the offsets of its rows and columns.
struct Block {
  const Problem& p;
  const float *lhs, *rhs;
  float* out;
  int64_t rows, columns;
  std::vector<int64_t> lhs_m, out_m, rhs_n, out_n;

  Block(const Problem& p, int64_t g, int64_t m0, int64_t m1, int64_t n0, int64_t n1)
      : p(p), lhs(p.lhs + p.g.offset(kLhs, g)), rhs(p.rhs + p.g.offset(kRhs, g)),
        out(p.out + p.g.offset(kOut, g)), rows(m1 - m0), columns(n1 - n0), lhs_m(rows), out_m(rows),
        rhs_n(columns), out_n(columns) {
    p.m.offsets(kLhs, m0, rows, lhs_m.data());
    p.m.offsets(kOut, m0, rows, out_m.data());
    p.n.offsets(kRhs, n0, columns, rhs_n.data());
    p.n.offsets(kOut, n0, columns, out_n.data());
  }
};

// Rounds sums[i * row + j] with the bounds that bound(i) gives, and returns what is not sure.
template <class BoundOf>
std::vector<Place> round_block(const Block& b, const Exact& set, bool odd, const double* sums,
                               int64_t row, BoundOf bound) {
  const bool direct = contiguous(b.out_n.data(), b.columns);
  float* const results = scratch<kResults, float>(b.columns);
  std::vector<int32_t> unsure(b.columns);
  std::vector<Place> rest;
  for (int64_t i = 0; i < b.rows; ++i) {
    float* const to = direct ? b.out + b.out_m[i] + b.out_n[0] : results;
    const int64_t count =
        set.round_sure[odd](sums + i * row, b.columns, bound(i), to, unsure.data());
    for (int64_t u = 0; u < count; ++u) rest.push_back({unsure[u], int32_t(i)});
    for (int64_t j = 0; !direct && j < b.columns; ++j) b.out[b.out_m[i] + b.out_n[j]] = results[j];
  }
  return rest;
}

// Adds again, with what each addition loses.
void add_again(const Block& b, const Exact& set, bool odd, std::vector<Place>& rest) {
  Terms left_terms(b.p.k, kLhs, b.lhs, b.lhs_m), right_terms(b.p.k, kRhs, b.rhs, b.rhs_n);
  std::sort(rest.begin(), rest.end());  // by columns, whose terms are gathered once
  for (const auto& [column, line] : rest) {
    const int64_t j = column, i = line;
    const auto get = [&](int64_t k, int64_t n, float* x, float* y) {
      return Factors{left_terms.get(i, k, n, x), right_terms.get(j, k, n, y)};
    };
    b.out[b.out_m[i] + b.out_n[j]] = exactly(set, b.p.k.size, odd, get);
  }
}

// The block by digits; false if an element is not finite, or more is uncertain than is worth it.
bool run_digits(const Block& b, const Exact& set, const ExactProducts& digits,
                const Options& options) {
  const Chains& floats = instruction_set().floats;
  const int64_t rows = b.rows, columns = b.columns, width = kDigitColumns;
  const int64_t tiles = blocks_of(columns, digits.lanes), row = tiles * digits.lanes;
  const int64_t terms = std::min(digits.terms, b.p.k.size);
  const int64_t of_tile = round_up(terms, digits.step) * digits.digits * digits.rows;
  std::vector<int64_t> lhs_k(terms), rhs_k(terms), packed_k(terms), strip_m(digits.rows);
  for (int64_t k = 0; k < terms; ++k) packed_k[k] = k * width;
  for (int64_t i = 0; i < digits.rows; ++i) strip_m[i] = i * terms;
  double* const sums = scratch<kSums, double>(rows * row);
  int8_t* const right = scratch<kRight, int8_t>(tiles * of_tile);
  int8_t* const left = scratch<kLeft, int8_t>(of_tile);
  float* const staged = scratch<kStaged, float>(std::max(width, digits.rows) * terms);
  std::vector<double> of_rows(3 * rows), of_columns(3 * row), row_units(digits.rows),
      column_units(row);
  auto norms = [](std::vector<double>& of, int64_t at) {
    const int64_t n = of.size() / 3;
    return Norms{&of[at], &of[n + at], &of[2 * n + at]};
  };
  const During during(digits.begin, digits.end);
  bool finite = true;
  for (int64_t k0 = 0; k0 < b.p.k.size; k0 += terms) {
    const int64_t here_k = std::min(terms, b.p.k.size - k0);
    const int64_t of_steps = round_up(here_k, digits.step) * digits.digits * digits.rows;
    b.p.k.offsets(kLhs, k0, here_k, lhs_k.data());
    b.p.k.offsets(kRhs, k0, here_k, rhs_k.data());
    for (int64_t j = 0; j < columns; j += width) {
      const int64_t here = std::min(width, columns - j), whole = round_up(here, digits.lanes);
      const float* x = b.rhs + b.rhs_n[j];
      const int64_t* at = rhs_k.data();
      if (here != whole || !contiguous(&b.rhs_n[j], here)) {
        floats.pack[false](b.rhs, at, here_k, &b.rhs_n[j], here, staged, width);
        x = staged, at = packed_k.data();
      }
      finite &= digits.right(x, at, here_k, whole, right + j / digits.lanes * of_steps,
                             &column_units[j], norms(of_columns, j));
    }
    const bool along = contiguous(lhs_k.data(), here_k);
    for (int64_t i = 0; i < rows && finite; i += digits.rows) {
      const int64_t here = std::min(digits.rows, rows - i);
      const float* x = b.lhs + lhs_k[0];
      const int64_t* at = &b.lhs_m[i];
      if (!along) {
        floats.pack[false](b.lhs, at, here, lhs_k.data(), here_k, staged, terms);
        x = staged, at = strip_m.data();
      }
      finite &= digits.left(x, at, here, here_k, left, row_units.data(), norms(of_rows, i));
      for (int64_t j = 0; j < tiles; ++j) {
        digits.tile(here_k, left, right + j * of_steps, here, row_units.data(),
                    &column_units[j * digits.lanes], sums + i * row + j * digits.lanes, row,
                    k0 == 0);
      }
    }
    if (!finite) return false;
  }
  for (double& x : of_rows) x = std::sqrt(x);
  for (double& x : of_columns) x = std::sqrt(x);
  // What is lost of the columns, times rows; float64 additions, of which each block has two, times
  // both; what is lost of the rows, times columns; and what is left out.
  const double slack = options.slack * (1 + 0x1p-10);
  const double unit = (blocks_of(b.p.k.size, terms) + kMoreTerms) * kUnit;
  double *const squares = &of_columns[0], *const losses = squares + row;
  for (int64_t j = 0; j < row; ++j) losses[j] += unit * squares[j];
  std::vector<Place> rest =
      round_block(b, set, options.odd, sums, row, [&](int64_t i) {
        return Bound{3,
                     {slack * of_rows[i], slack * of_rows[rows + i],
                      slack * digits.dropped * of_rows[2 * rows + i]},
                     {losses, squares, losses + row}};
      });
  if (kRareDigits * int64_t(rest.size()) > rows * columns) return false;
  add_again(b, set, options.odd, rest);
  return true;
}

// The results out[g, m0 : m1, n0 : n1].
void run_block(const Problem& p, const Wide& wide, const Exact& set, const Options& options,
               int64_t g, int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  const IeeeArithmetic ieee;
  const Block b(p, g, m0, m1, n0, n1);
  if (*options.by_digits) {
    if (run_digits(b, set, *instruction_set().exact_digits, options)) return;
    *options.by_digits = false;
  }
  const Chains& floats = instruction_set().floats;
  const float *const lhs = b.lhs, *const rhs = b.rhs;
  float* const out = b.out;
  const auto &lhs_m = b.lhs_m, &out_m = b.out_m, &rhs_n = b.rhs_n, &out_n = b.out_n;
  const double* widened = wide.first ? wide.first + p.g.offset(kLhs, g) : nullptr;

  const int64_t width = set.lanes * set.vectors;
  const int64_t rows = b.rows, columns = b.columns;
  const int64_t panels = blocks_of(columns, width), row = panels * width;
  const int64_t terms = std::max<int64_t>(1, std::min(kTerms, p.k.size));
  std::vector<int64_t> lhs_k(terms), rhs_k(terms), packed_k(terms), strip_k(terms), strip_m(kStrip);
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

  // Steps of which the terms of rows and columns are multiples, or less.  Partial sums of multiples
  // of a step are exact while float64 has a bit for it.
  std::vector<float> of_left, of_right;
  auto find_steps = [&] {
    of_left.assign(rows, INFINITY), of_right.assign(columns, INFINITY);
    for (int64_t k0 = 0; k0 < p.k.size; k0 += terms) {
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
  };

  // A chain of each block, and one of the blocks.
  const int64_t additions = terms + blocks_of(p.k.size, terms) + kMoreTerms;
  const double unit = additions * kUnit * options.slack;
  for (double& x : of_columns) x = std::sqrt(x);
  for (double& x : of_rows) x = widened ? std::sqrt(double(p.k.size)) * wide.most : std::sqrt(x);
  std::vector<Place> rest;
  if (options.few_bits) {
    find_steps();
    std::vector<double> left_sizes(rows), right_sizes(columns);  // of norms, in steps
    for (int64_t i = 0; i < rows; ++i) {
      left_sizes[i] = options.slack * of_rows[i] * (1 + 0x1p-16) / of_left[i];
    }
    for (int64_t j = 0; j < columns; ++j) right_sizes[j] = of_columns[j] / of_right[j];
    rest = round_block(b, set, options.odd, sums, row, [&](int64_t i) {
      return Bound{2, {unit * of_rows[i], left_sizes[i]}, {of_columns.data(), right_sizes.data()}};
    });
  } else {
    rest = round_block(b, set, options.odd, sums, row, [&](int64_t i) {
      return Bound{1, {unit * of_rows[i]}, {of_columns.data()}};
    });
    // Many are often exact, which adding few of them again finds, too.
    if (4 * int64_t(rest.size()) > rows + columns) find_steps();
  }
  auto is_rounded = [&](const Place& place) {
    const int64_t j = place.first, i = place.second;
    const double s = sums[i * row + j];
    const double magnitude = options.slack * of_rows[i] * of_columns[j] * (1 + 0x1p-16);
    const bool finite = std::isfinite(s);
    const bool exact = !of_left.empty() && magnitude <= 0x1p52 * of_left[i] * of_right[j];
    if (finite && !exact) return false;
    // What is not finite is what IEEE arithmetic makes of the terms in any order.
    set.round_one[finite && options.odd](s, out + out_m[i] + out_n[j]);
    return true;
  };
  rest.erase(std::remove_if(rest.begin(), rest.end(), is_rounded), rest.end());
  add_again(b, set, options.odd, rest);
}

// The time of a call in which m are the rows and n the columns, in vector operations: the products,
// widening, and the results.
double cost(const Problem& p, bool is_wide, int64_t lanes) {
  const double m = p.m.size, n = p.n.size, k = p.k.size;
  auto packing = [](const Dimension& d, int of) { return d.stride(of) == 1 ? 0.2 : 1; };
  return m * blocks_of(p.n.size, lanes) * k + (is_wide ? 0 : m * k * packing(p.k, kLhs)) +
         k * n * packing(p.n, kRhs) + m * n * (p.n.stride(kOut) == 1 ? 0.2 : 1.5);
}

// Whether digits take less time, in cycles: the instructions for tiles, which take 16 each, and for
// the sums and the digits; or two vectors of float64 in each, and widening.
bool digits_are_faster(const Problem& p, bool is_wide, const ExactProducts& digits, int64_t lanes) {
  constexpr double kProducts = 22, kOfTile = 16, kOfSum = 2, kOfDigits = 1;
  const double m = p.m.size, n = p.n.size, k = p.k.size;
  const double tiles = double(blocks_of(p.m.size, digits.rows)) * blocks_of(p.n.size, digits.lanes);
  const double blocks = blocks_of(p.k.size, digits.terms);
  const double uses = m * k * blocks_of(p.n.size, kColumns) + k * n * blocks_of(p.m.size, kRows);
  const double by_digits =
      tiles * (kProducts * kOfTile * blocks_of(p.k.size, digits.step) +
               kOfSum * digits.rows * digits.lanes * blocks) + kOfDigits * uses;
  const double by_float64 =
      m * blocks_of(p.n.size, lanes) * k / 2 + 0.3 * (is_wide ? k * n : uses);
  return by_digits < by_float64;
}

// Whether the first terms are numbers of few bits, whose sums are often ties: float64 has them exactly,
// and finds out, and digits would leave them uncertain.
bool few_bits(const Problem& p) {
  uint32_t bits = 0;
  for (int64_t k = 0; k < std::min<int64_t>(p.k.size, 64); ++k) {
    uint32_t x, y;
    std::memcpy(&x, p.lhs + p.k.offset(kLhs, k), sizeof x);
    std::memcpy(&y, p.rhs + p.k.offset(kRhs, k), sizeof y);
    bits |= x | y;
  }
  return (bits & 0xFFF) == 0;
}

void run_problem(Problem p, Wide wide, const Exact& set, Options options, ffi::ThreadPool* pool) {
  const ExactProducts* const digits = instruction_set().exact_digits;
  options.few_bits = few_bits(p);
  std::atomic<bool> by_digits{digits && digits_are_faster(p, wide.first, *digits, set.lanes) &&
                              !options.few_bits};
  options.by_digits = &by_digits;
  const double as_it_is = cost(p, wide.first, set.lanes);
  p.transpose();
  if (cost(p, false, set.lanes) < as_it_is) {
    wide = {};
  } else {
    p.transpose();
  }
  // Digits are made again for each block, so that blocks are large if there are enough of them.
  const bool large = by_digits && double(p.g.size) * p.m.size * p.n.size >=
                                      double(pool->num_threads()) * kRows * kColumns;
  const Blocks blocks =
      divide(p, pool, kRows, large ? kRows : by_digits ? kLeastRows * 2 : kLeastRows,
             by_digits ? digits->rows : kTileRows, large ? 2 * kColumns : kColumns,
             large ? kColumns : set.lanes * set.vectors);
  for_blocks(p, pool, blocks,
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
    return for_problems(a, a_count, b, b_count, problems, written(out), out->element_count(),
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
  const Options options = {slack, odd != 0, false, nullptr};
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
