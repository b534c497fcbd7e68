// Exact sums of float32 (repjax_exact_sum).
//
//   out[o, c] = guard(RN(the exact sum of x[o, i, c] over i))
//
// The bits are those of repjax.primitives.operations.accumulators.  As in exact_products.cc: a
// float64 sum with a bound of its error, and for what that leaves uncertain sums without one.

#include "axes.h"
#include "elements.h"
#include "exact.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 17;  // additions that are worth a thread
constexpr int64_t kOfRows = 1 << 15;  // elements of rows that are added together
constexpr int64_t kColumns = 512, kRows = 128;  // of a block of columns, and of a chain
// Subnormal numbers in memory, which are not canonical, are zeros when they are widened.
constexpr bool kFlush = true;
constexpr int64_t kParts = 16;  // blocks of a long row that a thread takes together

struct Options {
  double slack;
  bool odd;
};

// The sum of blocks: what their sums lose when they are added is kept.
struct Total {
  double high = 0, low = 0, magnitude = 0;

  void add(double x) {
    const double s = high + x, of_x = s - high;
    low += (high - (s - of_x)) + (x - of_x);
    high = s;
  }
  void add(const Total& other) {
    add(other.high);
    low += other.low;
    magnitude += other.magnitude;
  }
};

Total sum_of(const Exact& set, const Elements& x, int64_t begin, int64_t n) {
  Total total;
  float* const memory = x.memory(set.block);
  for (int64_t k = 0; k < n; k += set.block) {
    const int64_t here = std::min(set.block, n - k);
    double sum, magnitude;
    set.sum(x.get(begin + k, here, memory), here, &sum, &magnitude);
    total.add(sum);
    total.magnitude += magnitude;
  }
  return total;
}

// A result from a float64 sum, which is off by at most additions * 2**-53 * magnitude: n terms from
// x on, `step` apart.
void finish(const Exact& set, const Options& options, double sum, double magnitude,
            int64_t additions, const Elements& x, int64_t n, int64_t step, float* out) {
  if (!std::isfinite(sum)) {
    // A sum of what is not finite is that in any order, but a double holds any sum of the others.
    set.round_one[0](sum, out);
    return;
  }
  const double unit = (additions + kMoreTerms) * kUnit * options.slack;
  int32_t unsure;
  if (set.round_sure[options.odd](&sum, 1, {1, {unit}, {&magnitude}}, out, &unsure) == 0) return;
  *out = exactly(set, n, options.odd, [&](int64_t k, int64_t count, float* a, float*) {
    int64_t row = step;
    const float* const from = x.get(k * step, count, &row, 1, a);
    for (int64_t i = 0; from != a && i < count; ++i) a[i] = from[i * row];
    return Factors{a, nullptr};
  });
}

void finish(const Exact& set, const Options& options, const Total& total, const Elements& x,
            int64_t n, float* out) {
  const bool finite = std::isfinite(total.high);  // else what is lost is NaN
  finish(set, options, finite ? total.high + total.low : total.high, total.magnitude,
         set.additions, x, n, 1, out);
}

void sum_rows(const Exact& set, const Options& options, const Elements& x, int64_t rows, int64_t n,
              float* out, ffi::ThreadPool* pool) {
  const int64_t part = kParts * set.block;
  if (rows < pool->num_threads() && n > 2 * part) {
    for (int64_t r = 0; r < rows; ++r) {
      const Elements row = x.from(r * n);
      const int64_t parts = blocks_of(n, part);
      std::vector<Total> totals(parts);
      share(pool, parts, n * x.operations(), kThread, [&](int64_t i) {
        const IeeeArithmetic ieee(kFlush);
        totals[i] = sum_of(set, row, i * part, std::min(part, n - i * part));
      });
      const IeeeArithmetic ieee(kFlush);
      Total total;
      for (const Total& t : totals) total.add(t);
      finish(set, options, total, row, n, out + r);
    }
    return;
  }
  const int64_t together = std::max<int64_t>(1, kOfRows / n);
  share(pool, blocks_of(rows, together), rows * n * x.operations(), kThread,
        [=, &set](int64_t block) {
          const IeeeArithmetic ieee(kFlush);
          const int64_t end = std::min(rows, (block + 1) * together);
          for (int64_t r = block * together; r < end; ++r) {
            const Elements row = x.from(r * n);
            finish(set, options, sum_of(set, row, 0, n), row, n, out + r);
          }
        });
}

void sum_columns(const Exact& set, const Options& options, const Elements& x, int64_t outer,
                 int64_t n, int64_t inner, float* out, ffi::ThreadPool* pool) {
  const double work = double(outer) * n * inner * x.operations();
  const int64_t threads = useful_threads(pool, work, kThread);
  // Blocks for all threads, whole vectors wide.
  int64_t width = std::min(kColumns, inner);
  while (outer * blocks_of(inner, width) < 2 * threads && width > 2 * set.lanes) {
    width = round_up(blocks_of(width, 2), set.lanes);
  }
  const int64_t blocks = blocks_of(inner, width);
  in_parallel(pool, threads, outer * blocks, [=, &set](int64_t i) {
    const IeeeArithmetic ieee(kFlush);
    const int64_t o = i / blocks, c = i % blocks * width, here = std::min(width, inner - c);
    const Elements from = x.from(o * n * inner + c);
    float* const memory = x.memory(kRows * here);
    std::vector<double> sums(here), magnitudes(here);
    for (int64_t k = 0; k < n; k += kRows) {
      const int64_t rows = std::min(kRows, n - k);
      int64_t row = inner;
      const float* const terms = from.get(k * inner, rows, &row, here, memory);
      set.sum_columns(terms, rows, row, here, sums.data(), magnitudes.data());
    }
    const int64_t additions = std::min(kRows, n) + blocks_of(n, kRows);
    for (int64_t j = 0; j < here; ++j) {
      finish(set, options, sums[j], magnitudes[j], additions, from.from(j), n, inner,
             out + o * inner + c + j);
    }
  });
}

// sizes: those of the three axes of x, which is the operand or the result of the bytecode.  slack and
// odd: see exact_products.cc.
ffi::Error handle(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::Span<const int64_t> sizes,
                  ffi::Span<const int64_t> encoded, double slack, int64_t odd,
                  ffi::ResultBuffer<ffi::F32> out) {
  if (sizes.size() != 3 || sizes[1] == 0 || args.size() == 0 ||
      sizes[0] * sizes[2] != int64_t(out->element_count())) {
    return ffi::Error::InvalidArgument("expected an array [outer, n, inner] with n > 0");
  }
  const Exact& set = instruction_set().exact;
  const Options options = {slack, odd != 0};
  const int64_t outer = sizes[0], n = sizes[1], inner = sizes[2];
  if (outer * inner == 0) return ffi::Error::Success();
  Source terms;
  const ffi::Error error = terms.read(args, encoded, outer * n * inner, Summed::kRawElements);
  if (error.failure()) return error;
  float* const to = out->typed_data();
  if (inner == 1) {
    sum_rows(set, options, terms.x, outer, n, to, &pool);
  } else {
    sum_columns(set, options, terms.x, outer, n, inner, to, &pool);
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_exact_sum, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .Attr<ffi::Span<const int64_t>>("sizes")
                                  .Attr<ffi::Span<const int64_t>>("bytecode")
                                  .Attr<double>("slack")
                                  .Attr<int64_t>("odd")
                                  .Ret<ffi::Buffer<ffi::F32>>());
