// Order-independent contractions on the CPU as an XLA FFI call: integers on common grids, exact
// sums, one rounding, as in repjax.primitives.contract.order_independent.

#include "contract.h"
#include "instruction_sets.h"
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

constexpr int64_t kBlock = 1 << 14;  // elements that are worth a thread
constexpr int64_t kRun = 16;         // elements that lie together and are worth a call

// Integers of up to 22 bits have products whose sums are below 2**51 for 128 terms, and fit into
// 64 bits for as many as t allows.  Longer ones, of up to 30 bits, are split in the right operand:
// products with its parts have such sums for 64 terms, and fit for kMost.
constexpr int64_t kBits = 22;
constexpr int64_t kBlock22 = 128, kBlock30 = 64;
constexpr int64_t kMost = 1 << 17;

// An array in the order of its memory, and which of two kinds of exponents go with its elements.
struct Layout {
  struct Axis {
    int64_t size, step[2];
  };
  std::vector<Axis> outer;
  int64_t outer_size = 1, run = 1;
  int64_t step[2] = {0, 0};         // along a run
  std::vector<int32_t> offsets[2];  // or, where it has several axes, these

  // axes: of each the size and the two steps, row-major.
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
    return {first, step[kind], offsets[kind].empty() ? nullptr : offsets[kind].data()};
  }

  // Calls visit(the first element, how many runs that share exponents, the two positions among the
  // exponents) for the runs of a part.
  template <class Visit>
  void runs(int64_t begin, int64_t end, Visit visit) const {
    std::vector<int64_t> at(outer.size());
    int64_t position[2] = {0, 0}, rest = begin;
    for (size_t d = outer.size(); d-- > 0; rest /= outer[d].size) {
      at[d] = rest % outer[d].size;
      for (int kind : {0, 1}) position[kind] += at[d] * outer[d].step[kind];
    }
    const bool shared = !outer.empty() && !outer.back().step[0] && !outer.back().step[1];
    for (int64_t i = begin; i < end;) {
      const int64_t count = shared ? std::min(end - i, outer.back().size - at.back()) : 1;
      visit(i * run, count, position);
      i += count;
      if (shared) at.back() += count - 1;
      for (size_t d = outer.size(); d-- > 0;) {
        for (int kind : {0, 1}) position[kind] += outer[d].step[kind];
        if (++at[d] < outer[d].size) break;
        for (int kind : {0, 1}) position[kind] -= at[d] * outer[d].step[kind];
        at[d] = 0;
      }
    }
  }
};

struct Machine {
  ffi::ThreadPool* pool;
  int64_t threads;
  const Grids& grids;

  // Calls block(begin, end) for parts of the runs.
  template <class Block>
  void parts(const Layout& x, int64_t wanted, Block block) const {
    const int64_t useful = std::max<int64_t>(1, x.outer_size * x.run / kBlock);
    const int64_t count = std::min({wanted, useful, x.outer_size});
    in_parallel(pool, std::min(threads, count), count, [=, &x](int64_t i) {
      block(i * x.outer_size / count, (i + 1) * x.outer_size / count);
    });
  }
};

// Of each exponent of kind `kind` the largest E(x) + others, exponents of the other kind; kNone
// or little more if there are only zeros.  Clears `finite` if something is not.
std::vector<int32_t> largest(const Machine& machine, const float* x, const Layout& layout,
                             int kind, int64_t count, const std::vector<int32_t>& others,
                             std::atomic<bool>& finite) {
  std::vector<int32_t> result(count, kNone);
  std::mutex mutex;
  machine.parts(layout, machine.threads, [&](int64_t begin, int64_t end) {
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

// 2**(sign * exponent + offset) of each.
std::vector<double> powers(const std::vector<int32_t>& exponents, int sign, int64_t offset) {
  std::vector<double> result(exponents.size());
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = std::ldexp(1.0, int(sign * exponents[i] + offset));
  }
  return result;
}

// f(the first of the elements, runs of them that lie together, and what goes with each), over the
// whole array.
template <class Function>
void for_runs(const Machine& machine, const Layout& layout, const std::vector<double>& first,
              const std::vector<double>& second, Function f) {
  machine.parts(layout, 4 * machine.threads, [&](int64_t begin, int64_t end) {
    layout.runs(begin, end, [&](int64_t at, int64_t runs, const int64_t* position) {
      f(at, runs, layout.along(0, first.data() + position[0]),
        layout.along(1, second.data() + position[1]));
    });
  });
}

template <class Element>
std::unique_ptr<Element[]> buffer(int64_t size) {
  return std::unique_ptr<Element[]>(new Element[size]);
}

// Memory of 8-byte words that goes from call to call: fresh pages cost as much as filling them.
struct Memory {
  std::unique_ptr<int64_t[]> words;
  int64_t size = 0;
};

constexpr int64_t kKept = 1 << 23;
std::mutex kept_mutex;
Memory kept;

Memory take_memory(int64_t size) {
  std::lock_guard<std::mutex> lock(kept_mutex);
  return kept.size >= size ? std::exchange(kept, {}) : Memory{buffer<int64_t>(size), size};
}

void keep(Memory memory) {
  std::lock_guard<std::mutex> lock(kept_mutex);
  if (memory.size <= kKept && memory.size > kept.size) kept = std::move(memory);
}

// What a sum in IEEE arithmetic gives where there are infinities or NaNs: of the finite operands
// only their signs matter.
std::unique_ptr<float[]> signs(const float* x, int64_t count) {
  auto result = buffer<float>(count);
  for (int64_t i = 0; i < count; ++i) {
    result[i] = !std::isfinite(x[i]) ? x[i] : x[i] > 0 ? 1.0f : x[i] < 0 ? -1.0f : 0.0f;
  }
  return result;
}

// problems: see contract.h.  lhs_layout, rhs_layout and out_layout: the axes of the array in the
// order of its memory, of each its size and how far it moves among the exponents of the terms and
// of the rows; of the terms and of the columns; of the rows and of the columns.  counts: how many
// exponents the terms, the rows and the columns have.  terms: those of a sum.  t: the bits of the
// grids.
ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> lhs, ffi::Buffer<ffi::F32> rhs,
                  ffi::Span<const int64_t> problems, ffi::Span<const int64_t> lhs_layout,
                  ffi::Span<const int64_t> rhs_layout, ffi::Span<const int64_t> out_layout,
                  ffi::Span<const int64_t> counts, int64_t terms_of_sum, int64_t t,
                  ffi::ResultBuffer<ffi::F32> out) {
  const Machine machine = {&pool, std::max<int64_t>(1, pool.num_threads()),
                           instruction_set().grids};
  const float *a = lhs.typed_data(), *b = rhs.typed_data();
  const int64_t a_count = lhs.element_count(), b_count = rhs.element_count();
  const int64_t out_count = out->element_count();
  const Layout in_a(lhs_layout), in_b(rhs_layout), in_out(out_layout);
  if (in_a.outer_size * in_a.run != a_count || in_b.outer_size * in_b.run != b_count ||
      in_out.outer_size * in_out.run != out_count || counts.size() != 3) {
    return ffi::Error::InvalidArgument("layouts: not those of the arrays");
  }
  const int64_t terms = counts[0], rows = counts[1], columns = counts[2];

  std::atomic<bool> finite{true};
  auto s = largest(machine, b, in_b, 0, terms, std::vector<int32_t>(columns, 0), finite);
  auto e = largest(machine, a, in_a, 1, rows, s, finite);
  std::vector<char> used(terms);
  for (int64_t i = 0; i < terms; ++i) used[i] = s[i] >= kNone / 2;
  or_zero(s);
  std::vector<int32_t> minus_s(s);
  for (int32_t& x : minus_s) x = -x;
  auto f = largest(machine, b, in_b, 1, columns, minus_s, finite);
  or_zero(e);
  or_zero(f);

  auto term_scale = powers(s, 1, t - 1);
  for (int64_t i = 0; i < terms; ++i) term_scale[i] = used[i] ? term_scale[i] : 0;
  const auto row_scale = powers(e, -1, 0);
  const bool is_split = t > kBits, is_long = is_split && terms_of_sum > kMost;
  Memory memory = take_memory(a_count + (is_split ? 2 : 1) * b_count +
                              (is_long ? 4 : is_split ? 2 : 1) * out_count);
  double* const alpha = reinterpret_cast<double*>(memory.words.get());
  double* const beta = alpha + a_count;
  double* const beta_high = is_split ? beta + b_count : nullptr;
  int64_t* const low = reinterpret_cast<int64_t*>((is_split ? beta_high : beta) + b_count);
  int64_t* const high = is_split ? low + out_count : nullptr;
  for_runs(machine, in_a, term_scale, row_scale,
           [&](int64_t at, int64_t runs, auto terms, auto rows) {
             machine.grids.round(a + at, runs, in_a.run, terms, rows, alpha + at);
           });
  for_runs(machine, in_b, powers(s, -1, t - 1), powers(f, -1, 0),
           [&](int64_t at, int64_t runs, auto terms, auto columns) {
             machine.grids.round(b + at, runs, in_b.run, terms, columns, beta + at);
             if (is_split) machine.grids.split(beta + at, runs * in_b.run, beta_high + at);
           });
  Sum total = {high, low, kLow};
  if (is_long) {
    int64_t* const words = high + out_count;
    std::fill_n(words, 2 * out_count, 0);
    total = {words, words + out_count, 32};
  }
  const int64_t most = is_split ? kMost : terms_of_sum;
  for (int64_t begin = 0; begin < terms_of_sum; begin += most) {
    const Terms part = {begin, begin + most, is_split ? kBlock30 : kBlock22};
    for (const auto& [from, to] : {std::pair(beta, low), std::pair(beta_high, high)}) {
      if (!to) continue;
      const ffi::Error error = contract<double, int64_t>(&pool, alpha, a_count, from, b_count,
                                                         problems, to, out_count, part);
      if (error.failure()) return error;
    }
    if (!is_long) break;
    machine.parts(in_out, machine.threads, [&](int64_t begin, int64_t end) {
      const int64_t at = begin * in_out.run;
      machine.grids.carry({high + at, low + at, kLow}, end * in_out.run - at,
                          high + out_count + at, high + 2 * out_count + at);
    });
  }
  float* to = out->typed_data();
  for_runs(machine, in_out, powers(e, 1, 1 - t), powers(f, 1, 1 - t),
           [&](int64_t at, int64_t runs, auto rows, auto columns) {
             const Sum here = {total.high ? total.high + at : nullptr, total.low + at,
                               total.shift};
             machine.grids.scale(here, runs, in_out.run, rows, columns, to + at);
           });
  keep(std::move(memory));
  if (finite) return ffi::Error::Success();

  auto ieee = buffer<float>(out_count);
  const ffi::Error failed = contract<float, float>(&pool, signs(a, a_count).get(), a_count,
                                                   signs(b, b_count).get(), b_count, problems,
                                                   ieee.get(), out_count, Terms{});
  if (failed.failure()) return failed;
  for (int64_t i = 0; i < out_count; ++i) {
    if (!std::isfinite(ieee[i])) to[i] = ieee[i];
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_contract_order_independent, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<ffi::Span<const int64_t>>("problems")
                                  .Attr<ffi::Span<const int64_t>>("lhs_layout")
                                  .Attr<ffi::Span<const int64_t>>("rhs_layout")
                                  .Attr<ffi::Span<const int64_t>>("out_layout")
                                  .Attr<ffi::Span<const int64_t>>("counts")
                                  .Attr<int64_t>("terms")
                                  .Attr<int64_t>("t")
                                  .Ret<ffi::Buffer<ffi::F32>>());
