// Sums and extrema of float32 (repjax_reduce_sum).
//
//   out[o, c] = the sum of x[o, i, c] over i, pairwise or sequential, the largest or the smallest
//
// The elements of x may be the results of bytecode (bytecode.h), computed as they are added.
//
// The bits are those of repjax.primitives.operations.reductions.sums.  Blocks and threads follow
// the outputs and, in a pairwise sum, the tree: the sums of elements a power of two apart come
// first.

#include "axes.h"
#include "elements.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 17;   // additions that are worth a thread
constexpr int64_t kTogether = 1 << 15;  // elements of rows that are added together
constexpr int64_t kLongRow = 1 << 15;  // elements of a row whose partial sums stay in the cache
constexpr int64_t kColumns = 2048;     // of a block: a step reads runs of so many elements
constexpr int64_t kStep = 64;          // rows that are added in one step
// The same where terms are computed: one row after the other, so that rows have to be long.
constexpr int64_t kComputedColumns = 8192, kComputedStep = 8;

// Memory of a call: that of the thread, if it is not too much to keep.
template <Use use>
class Memory {
 public:
  explicit Memory(int64_t size) {
    constexpr int64_t kKept = 1 << 20;
    if (size > kKept) own_.reset(new float[size]);
    at_ = own_ ? own_.get() : scratch<use, float>(size);
  }
  float* get() const { return at_; }

 private:
  std::unique_ptr<float[]> own_;
  float* at_;
};

// out[c] = the pairwise sum of x[i, c], i < n and n > 1: in steps, each of which leaves a 64th of the
// rows, or an 8th, in the memory `kHere`, and then of those of `kThere`.
template <Use kHere, Use kThere>
void in_steps(const Sums& sums, Join join, Elements x, int64_t n, int64_t width, float* out,
              ffi::ThreadPool* pool) {
  if (width == 1 && n <= kLongRow) {
    const Memory<kSums> between(n / 4 + 8 * sums.lanes);
    const float* const from = x.get(0, n, x.memory(n));
    const IeeeArithmetic flushing(true);
    return sums.pairwise_rows[int(x.terms)][int(join)](from, 1, n, between.get(), out);
  }
  const bool in_place = !x.code || x.in_long_runs();
  const int64_t step = in_place ? kStep : kComputedStep;
  const int64_t block_columns = in_place ? kColumns : kComputedColumns;
  const int64_t left = power_of_two_from(blocks_of(n, step));
  // Rows a multiple of `left` apart lie below each other in a matrix whose last row is not full.
  const int64_t columns = left * width, rows = blocks_of(n, left);
  const int64_t full = n * width - (rows - 1) * columns;
  const Memory<kHere> next(left == 1 ? 0 : columns);
  float* const to = left == 1 ? out : next.get();
  const int64_t operations = n * width * x.operations();
  const int64_t blocks = blocks_of(columns, block_columns);
  share(pool, blocks, operations, kThread, [=, &sums](int64_t block) {
    const Memory<kSums> between(step * block_columns / 4);
    float* const terms = in_place ? nullptr : x.memory(step * block_columns);
    int64_t begin = block * block_columns;
    const int64_t end = std::min(begin + block_columns, columns);
    while (begin < end) {
      const bool in_last = begin < full;
      int64_t stop = in_last ? std::min(end, full) : end;
      const int64_t here = in_last ? rows : rows - 1;
      if (x.code && in_place) {
        const float* apart[kStep];
        for (int64_t i = 0; i < here; ++i) {
          int64_t together;
          apart[i] = elements_at(x.code->inputs[0], x.first + begin + i * columns, &together);
          stop = std::min(stop, begin + together);
        }
        const IeeeArithmetic flushing(true);
        const auto add = sums.pairwise_apart[int(x.terms)][int(join)];
        add(apart, here, stop - begin, between.get(), to + begin);
      } else {
        int64_t row = columns;
        const float* const from = x.get(begin, here, &row, stop - begin, terms);
        const IeeeArithmetic flushing(true);
        const auto add = sums.pairwise[int(x.terms)][int(join)];
        add(from, here, row, stop - begin, between.get(), to + begin);
      }
      begin = stop;
    }
  });
  if (left > 1) in_steps<kThere, kHere>(sums, join, {to}, left, width, out, pool);
}

void pairwise(const Sums& sums, Join join, Elements x, int64_t n, int64_t width, float* out,
              ffi::ThreadPool* pool) {
  if (n > 1) return in_steps<kLeft, kRight>(sums, join, x, n, width, out, pool);
  const float* const from = x.get(0, width, out);
  if (from != out) std::copy_n(from, width, out);
}

void pairwise(const Sums& sums, Join join, const Elements& x, int64_t outer, int64_t n,
              int64_t inner, float* out, ffi::ThreadPool* pool) {
  const int64_t threads = pool->num_threads();
  if (outer >= threads && inner == 1 && n <= kLongRow) {  // rows, with one buffer for many
    const int64_t rows = std::max<int64_t>(1, kTogether / n);
    const int64_t operations = outer * n * x.operations();
    share(pool, blocks_of(outer, rows), operations, kThread, [=, &sums](int64_t block) {
      const Memory<kSums> between(n / 4 + 8 * sums.lanes);
      const int64_t o = block * rows, here = std::min(rows, outer - o);
      const float* const from = x.get(o * n, here * n, x.memory(here * n));
      const IeeeArithmetic flushing(true);
      sums.pairwise_rows[int(x.terms)][int(join)](from, here, n, between.get(), out + o);
    });
  } else if (outer >= 2 * threads) {
    share(pool, outer, outer * n * inner * x.operations(), kThread, [=, &sums](int64_t o) {
      pairwise(sums, join, x.from(o * n * inner), n, inner, out + o * inner, nullptr);
    });
  } else {
    for (int64_t o = 0; o < outer; ++o) {
      pairwise(sums, join, x.from(o * n * inner), n, inner, out + o * inner, pool);
    }
  }
}

// Chains of additions side by side, since each waits for its last step, as in sums-inl.h.
template <int count>
void chains(const float* const* x, int64_t n, int64_t step, float* out) {
  float sums[count];
  for (int j = 0; j < count; ++j) sums[j] = x[j][0];
  for (int64_t i = 1; i < n; ++i) {
#pragma GCC unroll 16
    for (int j = 0; j < count; ++j) sums[j] += x[j][i * step];
  }
  for (int j = 0; j < count; ++j) out[j] = sums[j] == 0 ? 0 : sums[j];
}

void sequential(const Sums& sums, const float* x, int64_t outer, int64_t n, int64_t inner,
                float* out, ffi::ThreadPool* pool) {
  const int64_t outputs = outer * inner;
  if (inner >= sums.lanes) {
    constexpr int64_t kColumns = 512;
    const int64_t blocks = blocks_of(inner, kColumns);
    share(pool, outer * blocks, outputs * n, kThread, [=, &sums](int64_t i) {
      const IeeeArithmetic flushing(true);
      const int64_t o = i / blocks, c = i % blocks * kColumns;
      sums.sequential(x + o * n * inner + c, n, inner, std::min(kColumns, inner - c),
                      out + o * inner + c);
    });
    return;
  }
  constexpr int64_t kChains = 8;
  if (inner == 1 && outer < kChains) {
    share(pool, outer, outer * n, kThread, [=, &sums](int64_t o) {
      const IeeeArithmetic flushing(true);
      out[o] = sums.sequential_row(x + o * n, n);
    });
    return;
  }
  share(pool, blocks_of(outputs, kChains), outputs * n, kThread, [=](int64_t block) {
    const IeeeArithmetic flushing(true);
    const int64_t first = block * kChains, count = std::min(kChains, outputs - first);
    const float* from[kChains];
    for (int64_t j = 0; j < count; ++j) {
      from[j] = x + (first + j) / inner * n * inner + (first + j) % inner;
    }
    if (count == kChains) return chains<kChains>(from, n, inner, out + first);
    for (int64_t j = 0; j < count; ++j) chains<1>(from + j, n, inner, out + first + j);
  });
}

}  // namespace

ffi::Error reduce_sum(ffi::ThreadPool* pool, const void* const* operands, size_t operand_count,
                      ffi::Span<const int64_t> sizes, std::string_view accumulation,
                      ffi::Span<const int64_t> encoded, float* out) {
  if (sizes.size() != 3 || sizes[1] == 0 || operand_count == 0) {
    return ffi::Error::InvalidArgument("expected an array [outer, n, inner] with n > 0");
  }
  const int64_t outer = sizes[0], n = sizes[1], inner = sizes[2];
  const Sums& sums = instruction_set().sums;
  if (outer * inner == 0) return ffi::Error::Success();
  Source terms;
  const ffi::Error error = terms.read(operands, operand_count, encoded, outer * n * inner,
                                      n > 1 ? Summed::kSquares : Summed::kElements);
  if (error.failure()) return error;
  const Elements& x = terms.x;
  constexpr std::string_view kPairwise[] = {"pairwise", "max", "min"};
  const auto kind = std::find(std::begin(kPairwise), std::end(kPairwise), accumulation);
  const bool in_sequence = accumulation == "sequential";
  if (kind != std::end(kPairwise) || (in_sequence && n == 1)) {
    const Join join = in_sequence ? Join::kAdd : Join(kind - std::begin(kPairwise));
    pairwise(sums, join, x, outer, n, inner, out, pool);
  } else if (in_sequence && !x.code && x.terms <= Summed::kRawElements) {
    sequential(sums, x.x, outer, n, inner, out, pool);
  } else {
    return ffi::Error::InvalidArgument(
        "accumulation: expected pairwise, max, min, or sequential of elements");
  }
  return ffi::Error::Success();
}

namespace {

ffi::Error handle(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::Span<const int64_t> sizes,
                  std::string_view accumulation, ffi::Span<const int64_t> encoded,
                  ffi::ResultBuffer<ffi::F32> out) {
  const std::vector<const void*>& operands = operands_of(args);
  return reduce_sum(&pool, operands.data(), operands.size(), sizes, accumulation, encoded,
                    out->typed_data());
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_reduce_sum, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .Attr<ffi::Span<const int64_t>>("sizes")
                                  .Attr<std::string_view>("accumulation")
                                  .Attr<ffi::Span<const int64_t>>("bytecode")
                                  .Ret<ffi::Buffer<ffi::F32>>());
