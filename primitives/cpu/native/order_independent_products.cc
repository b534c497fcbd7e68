// Order-independent products (repjax_order_independent_product): integers on common grids, exact
// sums, one rounding.
//
// The bits are those of repjax.primitives.operations.products.order_independent.

#include "axes.h"
#include "instruction_sets.h"
#include "products.h"
#include "threads.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 16;  // elements that are worth a thread
constexpr int64_t kRun = 16;          // elements that lie together and are worth a call

// Integers of up to 22 bits have products whose sums are below 2**51 for 128 terms, and fit into 64
// bits for as many as t allows.  Longer integers, of up to 30 bits, are split in the right operand:
// products with its parts have such sums for kTerms30 terms.  Words and digits are not split.
constexpr int64_t kBits = 22;
constexpr int64_t kTerms30 = 64;

constexpr int64_t kRows = 256, kColumns = 256;  // of a block: all of it stays in the L2 cache
constexpr int64_t kLeastRows = 13, kLeastTiles = 32;  // that repay rounding `right` once more

// An array in the order of its memory, and which of two kinds of exponents go with its elements.
struct Layout {
  std::vector<Axis<2>> outer;
  int64_t outer_size = 1, run = 1;
  int64_t step[2] = {0, 0};         // along a run
  std::vector<int32_t> offsets[2];  // or, where it has several axes, these

  // axes: the size and the two steps of each, row-major.
  explicit Layout(ffi::Span<const int64_t> axes) {
    const int64_t count = axes.size() / 3;
    int64_t inner = count;
    while (inner > 0 && (inner == count || run < kRun)) run *= axes[3 * --inner];
    for (int64_t i = 0; i < inner; ++i) {
      outer.push_back({axes[3 * i], {axes[3 * i + 1], axes[3 * i + 2]}});
      outer_size *= axes[3 * i];
    }
    for (int kind = 0; kind < 2; ++kind) {
      bool moves = false;
      for (int64_t d = inner; d < count; ++d) moves |= axes[3 * d + 1 + kind] != 0;
      if (!moves) continue;
      step[kind] = axes[3 * inner + 1 + kind];
      if (count - inner == 1 && step[kind] == 1) continue;
      offsets[kind] = {0};
      for (int64_t d = inner; d < count; ++d) {
        std::vector<int32_t> longer;
        for (int32_t at : offsets[kind]) {
          for (int64_t i = 0; i < axes[3 * d]; ++i) {
            longer.push_back(at + i * axes[3 * d + 1 + kind]);
          }
        }
        offsets[kind] = std::move(longer);
      }
    }
  }

  template <class Element>
  Along<Element> along(int kind, Element* first) const {
    return {first, step[kind], offsets[kind].empty() ? nullptr : offsets[kind].data(),
            outer.empty() ? 0 : outer.back().strides[kind]};
  }

  // Calls visit(the first element, how many runs, the two positions of the first run among the
  // exponents) for the runs of a part, together where they only differ in the last outer axis.
  template <class Visit>
  void runs(int64_t begin, int64_t end, Visit visit) const {
    if (begin == end) return;
    if (outer.empty()) {
      const int64_t position[2] = {0, 0};
      visit(0, 1, position);
      return;
    }
    Walk<2> walk(outer.data(), outer.size(), begin);
    for (int64_t i = begin; i < end;) {
      const int64_t count = std::min(end - i, walk.left());
      visit(i * run, count, walk.offsets);
      i += count;
      walk.go(count);
    }
  }
};

struct Machine {
  ffi::ThreadPool* pool;
  const Grids& grids;

  // Calls block(begin, end) for parts of the runs.
  template <class Block>
  void parts(const Layout& x, int64_t of_each_thread, Block block) const {
    const int64_t threads = useful_threads(pool, x.outer_size * x.run, kThread);
    const int64_t count = std::min(threads == 1 ? 1 : of_each_thread * threads, x.outer_size);
    in_parallel(pool, threads, count, [=, &x](int64_t i) {
      block(i * x.outer_size / count, (i + 1) * x.outer_size / count);
    });
  }
};

// For each exponent of kind `kind` the largest E(x) + others, exponents of the other kind; kNone or
// little more if there are only zeros.  Clears `finite` if an element is not finite.
std::vector<int32_t> largest(const Machine& machine, const float* x, const Layout& layout,
                             int kind, int64_t count, const std::vector<int32_t>& others,
                             std::atomic<bool>& finite) {
  std::vector<int32_t> result(count, kNone);
  std::mutex mutex;
  machine.parts(layout, 1, [&](int64_t begin, int64_t end) {
    std::vector<int32_t> mine(count, kNone);
    bool all_finite = true;
    layout.runs(begin, end, [&](int64_t first, int64_t runs, const int64_t* at) {
      all_finite &= machine.grids.largest(x + first, runs, layout.run,
                                          layout.along(1 - kind, others.data() + at[1 - kind]),
                                          layout.along(kind, mine.data() + at[kind]));
    });
    std::lock_guard<std::mutex> lock(mutex);
    for (int64_t i = 0; i < count; ++i) result[i] = std::max(result[i], mine[i]);
    if (!all_finite) finite = false;
  });
  return result;
}

void or_zero(std::vector<int32_t>& exponents) {
  for (int32_t& e : exponents) e = e < kNone / 2 ? 0 : e;
}

// 2**(sign * exponent + offset) of each; as float, only the exponent.
template <class Scale>
std::vector<Scale> powers(const std::vector<int32_t>& exponents, int sign, int64_t offset) {
  std::vector<Scale> result(exponents.size());
  for (size_t i = 0; i < result.size(); ++i) {
    const int exponent = int(sign * exponents[i] + offset);
    result[i] = std::is_same_v<Scale, double> ? std::ldexp(1.0, exponent) : exponent;
  }
  return result;
}

// The scales of the rows, the columns, the terms in the rows and in the columns, and the results.
template <class Scale>
struct Scales {
  const Scale *rows, *columns, *terms_of_rows, *terms_of_columns;
  const double *out_rows, *out_columns;

  void transpose() {
    std::swap(rows, columns);
    std::swap(terms_of_rows, terms_of_columns);
    std::swap(out_rows, out_columns);
  }
};

// Where elements of rows, columns or terms are, and their scales.
template <class Scale>
struct Places {
  std::vector<int64_t> at;
  std::vector<Scale> scales;

  Places(const Problem& p, const Dimension& d, int array, const Scale* scales_of_all, int exponents,
         int64_t g, int64_t begin, int64_t count)
      : at(count), scales(count) {
    d.offsets(exponents, begin, count, at.data());
    scales_of_all += p.g.offset(exponents, g);
    for (int64_t i = 0; i < count; ++i) scales[i] = scales_of_all[at[i]];
    d.offsets(array, begin, count, at.data());
  }
};

// The most terms of a block, of parts of equal sizes.
template <class Element>
int64_t terms_of(const Problem& p, const IntegerProducts<Element>& set, int64_t t) {
  const bool is_double = std::is_same_v<Element, double>;
  const int64_t most = is_double && t > kBits ? kTerms30 : set.terms;
  if (is_double || p.k.size <= most) return std::min(most, p.k.size);
  return round_up(blocks_of(p.k.size, blocks_of(p.k.size, most)), set.step);
}

// How many elements the integers of a row of the left operand have, and those of a panel of the
// right one.
template <class Element>
int64_t left_row_of(const IntegerProducts<Element>& set, int64_t terms) {
  return set.planes * round_up(terms, set.step);
}
template <class Element>
int64_t panel_of(const IntegerProducts<Element>& set, int64_t terms) {
  return left_row_of(set, terms) * set.lanes * set.vectors;
}

// Rounds `rows` of the left operand from i0 on.
template <class Element, class Scale>
void split_left(const IntegerProducts<Element>& set, const float* lhs, const Places<Scale>& m,
                int64_t i0, int64_t rows, const Places<Scale>& k, int64_t left_row, Element* to) {
  const int64_t terms = k.at.size();
  Panel<Scale> from = {lhs + k.at[0], &m.at[i0], rows, terms, &m.scales[i0], k.scales.data()};
  std::vector<int64_t> staged_m;
  if (!contiguous(k.at.data(), terms)) {
    float* const staged = scratch<kStaged, float>(rows * terms);
    instruction_set().floats.pack[false](lhs, &m.at[i0], rows, k.at.data(), terms, staged, terms);
    for (int64_t i = 0; i < rows; ++i) staged_m.push_back(i * terms);
    from.x = staged;
    from.at = staged_m.data();
  }
  set.left(from, to, left_row);
}

// Rounds the columns of a panel of the right operand from j0 on.
template <class Element, class Scale>
void split_right(const IntegerProducts<Element>& set, const float* rhs, const Places<Scale>& k,
                 const Places<Scale>& n, int64_t j0, Part part, Element* to) {
  const int64_t width = set.lanes * set.vectors, terms = k.at.size();
  const int64_t here = std::min<int64_t>(width, n.at.size() - j0), whole = round_up(here, set.lanes);
  Panel<Scale> from = {rhs + n.at[j0], k.at.data(), terms, whole, k.scales.data(), &n.scales[j0]};
  std::vector<int64_t> staged_k;
  std::vector<Scale> staged_scales;
  if (here != whole) {
    staged_scales.assign(from.column, from.column + here);
    staged_scales.resize(whole);
    from.column = staged_scales.data();
  }
  if (here != whole || !contiguous(&n.at[j0], here)) {
    float* const staged = scratch<kStaged, float>(width * terms);
    instruction_set().floats.pack[false](rhs, k.at.data(), terms, &n.at[j0], here, staged, width);
    for (int64_t i = 0; i < terms; ++i) staged_k.push_back(i * width);
    from.x = staged;
    from.at = staged_k.data();
  }
  set.right(from, part, to, width);
}

// The integers of whole operands: of each g and block of terms, all rows, and all panels.
template <class Element>
struct Whole {
  const Element *left = nullptr, *right = nullptr;
};

// The results out[g, m0 : m1, n0 : n1], from integers of t bits; `integers` are those of lhs, or
// null.  Elements that are not finite have any integers, which only enter results that are
// replaced.
template <class Element>
void run_block(const Problem& p, const Element* integers, const Whole<Element>& whole,
               const Scales<typename IntegerProducts<Element>::Scale>& scales,
               const IntegerProducts<Element>& set, int64_t t, int64_t g, int64_t m0, int64_t m1,
               int64_t n0, int64_t n1) {
  typedef typename IntegerProducts<Element>::Scale Scale;
  const InstructionSet& functions = instruction_set();
  const float* lhs = p.lhs + p.g.offset(kLhs, g);
  const float* rhs = p.rhs + p.g.offset(kRhs, g);
  float* out = p.out + p.g.offset(kOut, g);
  if (integers) integers += p.g.offset(kLhs, g);

  constexpr bool kWhole = !std::is_same_v<Element, double>;
  const bool two_words = t > kBits, is_split = two_words && !kWhole;
  const bool is_long = is_split && p.k.size > set.most;
  const int64_t width = set.lanes * set.vectors;
  const int64_t rows = m1 - m0, columns = n1 - n0;
  const int64_t panels = blocks_of(columns, width), row = panels * width;
  std::vector<int64_t> out_m(rows), out_n(columns);
  p.m.offsets(kOut, m0, rows, out_m.data());
  p.n.offsets(kOut, n0, columns, out_n.data());
  if (p.k.size == 0) {
    const bool together = contiguous(out_n.data(), columns);
    for (int64_t i : out_m) {
      if (together) std::fill_n(out + i + out_n[0], columns, 0.0f);
      for (int64_t j = together ? columns : 0; j < columns; ++j) out[i + out_n[j]] = 0;
    }
    return;
  }
  const int64_t terms = terms_of(p, set, t);
  const int64_t left_row = left_row_of(set, terms), panel = panel_of(set, terms);
  std::vector<int64_t> packed_k(terms), strip_k(terms);
  for (int64_t k = 0; k < terms; ++k) packed_k[k] = k * width, strip_k[k] = k;

  const Places<Scale> in_m(p, p.m, kLhs, scales.rows, kOfRows, g, m0, rows);
  const Places<Scale> in_n(p, p.n, kRhs, scales.columns, kOfColumns, g, n0, columns);
  const Places<double> out_rows(p, p.m, kOut, scales.out_rows, kOfRows, g, m0, rows);
  const Places<double> out_columns(p, p.n, kOut, scales.out_columns, kOfColumns, g, n0, columns);

  const int64_t sums = rows * row;
  int64_t* const low = scratch<kSums, int64_t>((is_long ? 4 : two_words ? 2 : 1) * sums);
  int64_t* const high = two_words ? low + sums : nullptr;
  int64_t* const words = is_long ? high + sums : nullptr;
  if (is_long) std::fill_n(words, 2 * sums, 0);
  const std::pair<Part, int64_t*> parts[] = {{is_split ? Part::kLow : Part::kWhole, low},
                                             {Part::kHigh, high}};
  Element* const mine = whole.right ? nullptr
                                    : scratch<kRight, Element>((is_split ? 2 : 1) * panels * panel);
  Element* const strip = whole.left ? nullptr : scratch<kLeft, Element>(set.strip * left_row);
  const Element *right = mine, *left = strip;

  const IeeeArithmetic flushing(true);
  const During during(set.begin, set.end);
  bool first = true;
  int64_t block = g * blocks_of(p.k.size, terms);
  for (int64_t k0 = 0; k0 < p.k.size; k0 += terms, ++block) {
    const int64_t here_k = std::min(terms, p.k.size - k0);
    const Places<Scale> lhs_k(p, p.k, kLhs, scales.terms_of_rows, kOfTerms, g, k0, here_k);
    if (whole.right) {
      right = whole.right + (block * blocks_of(p.n.size, width) + n0 / width) * panel;
    } else {
      const Places<Scale> rhs_k(p, p.k, kRhs, scales.terms_of_columns, kOfTerms, g, k0, here_k);
      for (int64_t j = 0; j < panels; ++j) {
        for (int i = 0; i <= is_split; ++i) {
          split_right(set, rhs, rhs_k, in_n, j * width, parts[i].first,
                      mine + (i * panels + j) * panel);
        }
      }
    }
    for (int64_t i0 = 0; i0 < rows; i0 += set.strip) {
      const int64_t here_m = std::min(set.strip, rows - i0);
      if (whole.left) {
        left = whole.left + (block * p.m.size + m0 + i0) * left_row;
      } else if (!integers) {
        split_left(set, lhs, in_m, i0, here_m, lhs_k, left_row, strip);
      }
      for (int64_t j = 0; j < panels; ++j) {
        const int64_t vectors = blocks_of(std::min(width, columns - j * width), set.lanes);
        for (int part = 0; part <= is_split; ++part) {
          for (int64_t i = 0; i < here_m;) {
            const Tile<Element, int64_t> tile = set.tile_for(vectors, here_m - i);
            const Element* x[16];
            int64_t* to[32] = {};
            for (int r = 0; r < tile.rows; ++r) {
              x[r] = integers ? integers + in_m.at[i0 + i + r] : left + (i + r) * left_row;
              to[r] = parts[part].second + (i0 + i + r) * row + j * width;
              if (kWhole && two_words) to[16 + r] = to[r] + sums;
            }
            tile.run(here_k, x, integers ? lhs_k.at.data() : strip_k.data(),
                     right + (part * panels + j) * panel, packed_k.data(), to, first, false);
            i += tile.rows;
          }
        }
      }
    }
    first = is_long && (k0 + terms) % set.most == 0;
    if (first || (is_long && k0 + terms >= p.k.size)) {
      functions.grids.carry({high, low, kLow}, sums, words, words + sums);
    }
  }

  const Sum total = is_long ? Sum{words, words + sums, 32} : Sum{high, low, set.shift};
  const bool direct = contiguous(out_n.data(), columns);
  float* const results = direct ? nullptr : scratch<kResults, float>(16 * columns);
  for (int64_t i0 = 0; i0 < rows; i0 += 16) {
    const int64_t here_m = std::min<int64_t>(16, rows - i0);
    float* to[16];
    for (int64_t i = 0; i < here_m; ++i) {
      to[i] = direct ? out + out_m[i0 + i] + out_n[0] : results + i * columns;
    }
    const Sum here = {high ? total.high + i0 * row : nullptr, total.low + i0 * row, total.shift};
    functions.grids.scale(here, row, here_m, columns, &out_rows.scales[i0],
                          out_columns.scales.data(), to);
    for (int64_t j = 0; !direct && j < columns; ++j) {
      for (int64_t i = 0; i < here_m; ++i) {
        out[out_m[i0 + i] + out_n[j]] = results[i * columns + j];
      }
    }
  }
}

// The time of a call in which m are the rows and n the columns, in vector operations: the products,
// rounding, and the results.
double cost(const Problem& p, bool rounded, int64_t lanes) {
  const double m = p.m.size, n = p.n.size, k = p.k.size;
  auto packing = [](const Dimension& d, int of) { return d.stride(of) == 1 ? 0.2 : 1; };
  return m * blocks_of(p.n.size, lanes) * k + (rounded ? 0 : m * k * packing(p.k, kLhs)) +
         k * n * packing(p.n, kRhs) + m * n * (p.n.stride(kOut) == 1 ? 0.2 : 1.5);
}

// Memory of a call that the next one may have.
struct Memory {
  std::unique_ptr<char[]> bytes;
  int64_t size = 0;

  template <class Element>
  Element* as() const {
    constexpr uintptr_t kLine = 64;
    char* const at = bytes.get();
    return reinterpret_cast<Element*>(at + (kLine - reinterpret_cast<uintptr_t>(at) % kLine));
  }
};

constexpr int64_t kKept = 1 << 26;
std::mutex kept_mutex;
Memory kept;

Memory take_memory(int64_t size) {
  size += 64;  // for its first line
  std::lock_guard<std::mutex> lock(kept_mutex);
  if (kept.size >= size) return std::exchange(kept, {});
  return {std::unique_ptr<char[]>(new char[size]), size};
}

void keep(Memory memory) {
  std::lock_guard<std::mutex> lock(kept_mutex);
  if (memory.size <= kKept && memory.size > kept.size) kept = std::move(memory);
}

// Rounds whole operands, where blocks share them: each would else round what it needs.  Returns the
// memory that they are in.
template <class Element>
Memory split_all(const Problem& p, const Blocks& blocks,
                 const Scales<typename IntegerProducts<Element>::Scale>& scales,
                 const IntegerProducts<Element>& set, int64_t t, ffi::ThreadPool* pool,
                 Whole<Element>& whole) {
  typedef typename IntegerProducts<Element>::Scale Scale;
  const int64_t terms = terms_of(p, set, t), width = set.lanes * set.vectors;
  const int64_t parts = p.g.size * blocks_of(p.k.size, terms), panels = blocks_of(p.n.size, width);
  const int64_t left_row = left_row_of(set, terms), panel = panel_of(set, terms);
  const int64_t of_left = parts * p.m.size * left_row, of_right = parts * panels * panel;
  Memory memory = take_memory((of_left + of_right) * sizeof(Element));
  Element* const left = memory.as<Element>();
  Element* const right = left + of_left;
  whole = {left, right};

  const int64_t together = 2 * set.strip, strips = blocks_of(p.m.size, together);
  in_parallel(pool, blocks.threads, parts * (panels + strips), [=, &p, &scales, &set](int64_t i) {
    const IeeeArithmetic flushing(true);
    const int64_t part = i / (panels + strips), at = i % (panels + strips);
    const int64_t of_g = blocks_of(p.k.size, terms);
    const int64_t g = part / of_g, k0 = part % of_g * terms;
    const int64_t here_k = std::min(terms, p.k.size - k0);
    if (at < panels) {
      const int64_t n0 = at * width, here = std::min(width, p.n.size - n0);
      const Places<Scale> k(p, p.k, kRhs, scales.terms_of_columns, kOfTerms, g, k0, here_k);
      const Places<Scale> n(p, p.n, kRhs, scales.columns, kOfColumns, g, n0, here);
      split_right(set, p.rhs + p.g.offset(kRhs, g), k, n, 0, Part::kWhole,
                  right + (part * panels + at) * panel);
    } else {
      const int64_t m0 = (at - panels) * together, here = std::min(together, p.m.size - m0);
      const Places<Scale> k(p, p.k, kLhs, scales.terms_of_rows, kOfTerms, g, k0, here_k);
      const Places<Scale> m(p, p.m, kLhs, scales.rows, kOfRows, g, m0, here);
      split_left(set, p.lhs + p.g.offset(kLhs, g), m, 0, here, k, left_row,
                 left + (part * p.m.size + m0) * left_row);
    }
  });
  return memory;
}

template <class Element>
void run_problem(Problem p, Element* integers,
                 Scales<typename IntegerProducts<Element>::Scale> scales,
                 const IntegerProducts<Element>& set, int64_t t, ffi::ThreadPool* pool) {
  const double as_it_is = cost(p, integers, set.lanes);
  p.transpose();
  if (cost(p, false, set.lanes) < as_it_is) {
    scales.transpose();
    integers = nullptr;
  } else {
    p.transpose();
  }
  const bool by_tiles = std::is_same_v<Element, int8_t>;
  const int64_t width = set.lanes * set.vectors;
  const Blocks blocks = divide(p, pool, kRows, by_tiles ? kLeastTiles : kLeastRows,
                               by_tiles ? set.strip : kTileRows, kColumns, width);
  Whole<Element> whole;
  Memory memory;
  if constexpr (std::is_same_v<Element, int16_t>) {
    const double size = double(p.g.size) * (p.m.size + p.n.size) * p.k.size * sizeof(Element);
    const bool shared = std::max(blocks.along_m, blocks.along_n) > 1;
    if (shared && p.k.size > 0 && size * set.planes <= kKept) {
      memory = split_all(p, blocks, scales, set, t, pool, whole);
    }
  }
  for_blocks(p, pool, blocks, [&, integers, t](auto... block) {
    run_block<Element>(p, integers, whole, scales, set, t, block...);
  });
  keep(std::move(memory));
}

// The integers of a whole array, which has scales of two kinds.
void round_all(const Machine& machine, const float* x, const Layout& layout, const double* first,
               const double* second, double* to) {
  const int64_t n = layout.run;
  machine.parts(layout, 4, [&](int64_t begin, int64_t end) {
    const IeeeArithmetic flushing(true);
    std::vector<double> scales(n), ones;
    std::vector<int64_t> at;
    layout.runs(begin, end, [&](int64_t here, int64_t runs, const int64_t* position) {
      auto a = layout.along(0, first + position[0]);
      auto b = layout.along(1, second + position[1]);
      const int64_t together = a.of_run || b.of_run ? 1 : runs;  // those of the same scales
      for (int64_t i = at.size(); i < together; ++i) at.push_back(i * n), ones.push_back(1);
      for (int64_t r = 0; r < runs; r += together, here += together * n) {
        for (int64_t i = 0; i < n; ++i) scales[i] = a[i] * b[i];
        instruction_set().integers.left(
            {x + here, at.data(), together, n, ones.data(), scales.data()}, to + here, n);
        a.first += a.of_run;
        b.first += b.of_run;
      }
    });
  });
}

// Operands whose products in IEEE arithmetic are right where there are infinities or NaNs: the
// finite ones matter for their signs alone.
std::unique_ptr<float[]> signs(const float* x, int64_t count) {
  auto result = std::make_unique<float[]>(count);
  for (int64_t i = 0; i < count; ++i) {
    const float sign = std::fabs(x[i]) >= 0x1p-126f ? std::copysign(1.0f, x[i]) : 0.0f;
    result[i] = std::isfinite(x[i]) ? sign : x[i];
  }
  return result;
}

// problems: see products.h.  lhs_layout and rhs_layout: for each axis of the array, in the order of
// its memory, the size, and how far a step goes among the exponents of the terms and among those of
// the rows (lhs) or the columns (rhs).  counts: how many exponents the terms, the rows and the
// columns have.  t: the bits of the grids.
ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> lhs, ffi::Buffer<ffi::F32> rhs,
                  ffi::Span<const int64_t> problems, ffi::Span<const int64_t> lhs_layout,
                  ffi::Span<const int64_t> rhs_layout, ffi::Span<const int64_t> counts,
                  int64_t t, ffi::ResultBuffer<ffi::F32> out) {
  const Machine machine = {&pool, instruction_set().grids};
  const float *a = lhs.typed_data(), *b = rhs.typed_data();
  const int64_t a_count = lhs.element_count(), b_count = rhs.element_count();
  const int64_t out_count = out->element_count();
  const Layout in_a(lhs_layout), in_b(rhs_layout);
  if (in_a.outer_size * in_a.run != a_count || in_b.outer_size * in_b.run != b_count ||
      counts.size() != 3) {
    return ffi::Error::InvalidArgument("layouts: not those of the arrays");
  }
  const int64_t terms = counts[0], rows = counts[1], columns = counts[2];

  std::atomic<bool> finite{true};
  auto s = largest(machine, b, in_b, 0, terms, std::vector<int32_t>(columns, 0), finite);
  auto e = largest(machine, a, in_a, 1, rows, s, finite);
  std::vector<int32_t> minus_s(terms);
  for (int64_t i = 0; i < terms; ++i) minus_s[i] = s[i] == kNone ? 0 : -s[i];
  auto f = largest(machine, b, in_b, 1, columns, minus_s, finite);
  or_zero(e);
  or_zero(f);

  float* to = written(out);
  auto for_each = [&](auto run) {
    return for_problems(a, a_count, b, b_count, problems, to, out_count, run);
  };
  // The windows of a convolution share elements, which are not to be rounded for each.
  int64_t uses = 0, products = 0, in_tiles = 0, longest = 0;
  const ffi::Error error = for_each([&](const Problem& p) {
    uses += p.g.size * p.m.size * p.k.size;
    products += p.g.size * p.m.size * p.k.size * p.n.size;
    in_tiles +=
        p.g.size * round_up(p.m.size, 16) * round_up(p.k.size, 64) * round_up(p.n.size, 16);
    longest = std::max(longest, p.k.size);
  });
  if (error.failure()) return error;
  const bool shared = uses > 2 * a_count;
  auto run = [&](const auto& set, auto scale, auto* integers) {
    typedef decltype(scale) Scale;
    // 2**kNone is 0: terms that only have zeros in the columns are left out.
    const auto terms_a = powers<Scale>(s, 1, t - 1), terms_b = powers<Scale>(minus_s, 1, t - 1);
    const auto rows_e = powers<Scale>(e, -1, 0), columns_f = powers<Scale>(f, -1, 0);
    const auto out_e = powers<double>(e, 1, 1 - t), out_f = powers<double>(f, 1, 1 - t);
    const Scales<Scale> scales = {rows_e.data(),  columns_f.data(), terms_a.data(),
                                  terms_b.data(), out_e.data(),     out_f.data()};
    if constexpr (std::is_same_v<Scale, double>) {
      if (integers) round_all(machine, a, in_a, terms_a.data(), rows_e.data(), integers);
    }
    for_each([&](const Problem& p) {
      run_problem(p, integers ? integers + (p.lhs - a) : nullptr, scales, set, t, &pool);
    });
  };
  const InstructionSet& set = instruction_set();
  const IntegerProducts<int8_t>* const digits = set.digits[t > kBits];
  const IntegerProducts<int16_t>* const words = set.words[t > kBits];
  // By the number of instructions: tiles multiply four times as many as vectors do, but each use of
  // an element is rounded.
  const bool by_digits = digits && longest <= digits->most &&
                         in_tiles / 64 + (shared ? uses / 2 : 0) <= products / 16;
  if (by_digits) {
    run(*digits, float(), static_cast<int8_t*>(nullptr));
  } else if (words && longest <= words->most && !shared) {
    run(*words, float(), static_cast<int16_t*>(nullptr));
  } else {
    Memory memory = shared ? take_memory(a_count * sizeof(double)) : Memory{};
    run(set.integers, double(), shared ? memory.as<double>() : nullptr);
    keep(std::move(memory));
  }
  if (finite) return ffi::Error::Success();

  auto ieee = std::make_unique<float[]>(out_count);
  const ffi::Error failed =
      sequential_product(&pool, signs(a, a_count).get(), a_count, signs(b, b_count).get(), b_count,
                         problems, ieee.get(), out_count);
  if (failed.failure()) return failed;
  for (int64_t i = 0; i < out_count; ++i) {
    if (!std::isfinite(ieee[i])) to[i] = ieee[i];
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_order_independent_product, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<ffi::Span<const int64_t>>("problems")
                                  .Attr<ffi::Span<const int64_t>>("lhs_layout")
                                  .Attr<ffi::Span<const int64_t>>("rhs_layout")
                                  .Attr<ffi::Span<const int64_t>>("counts")
                                  .Attr<int64_t>("t")
                                  .Ret<ffi::Buffer<ffi::F32>>());
