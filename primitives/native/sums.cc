// Sums of float32 on the CPU as an XLA FFI call.
//
//   out[o, c] = the sum of x[o, i, c] over i, pairwise or sequential
//
// The bits are those of repjax.primitives.reduce.sums.  Blocks and threads follow the outputs
// and, in a pairwise sum, the tree: the sums of elements a power of two apart come first.

#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <string_view>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 17;   // additions that are worth a thread
constexpr int64_t kBlock = 1 << 15;    // elements of rows that are added together
constexpr int64_t kLongRow = 1 << 15;  // elements of a row whose partial sums stay in the cache
constexpr int64_t kColumns = 512;      // of a block
constexpr int64_t kStep = 64;          // rows that are added in one step

// Calls block(i) for i in [0, blocks), which are so many operations; without a pool in this thread.
template <class Block>
void run(ffi::ThreadPool* pool, int64_t blocks, int64_t operations, Block block) {
  in_parallel(pool, pool ? useful_threads(pool, operations, kThread) : 1, blocks, block);
}

std::unique_ptr<float[]> buffer(int64_t size) {
  return std::unique_ptr<float[]>(new float[size]);
}

// out[c] = the pairwise sum of x[i, c]: in steps, each of which leaves a 64th of the rows.
void pairwise(const Sums& sums, const float* x, int64_t n, int64_t width, float* out,
              ffi::ThreadPool* pool) {
  std::unique_ptr<float[]> partial;
  while (n > 1) {
    if (width == 1 && n <= kLongRow) {
      auto scratch = buffer(n / 4 + 8 * sums.lanes);
      sums.pairwise_row(x, n, scratch.get(), out);
      return;
    }
    int64_t left = 1;
    while (left * kStep < n) left *= 2;
    // Rows a multiple of `left` apart lie below each other in a matrix whose last row is not full.
    const int64_t columns = left * width, rows = (n + left - 1) / left;
    const int64_t full = n * width - (rows - 1) * columns;
    auto next = left == 1 ? nullptr : buffer(columns);
    float* to = left == 1 ? out : next.get();
    run(pool, (columns + kColumns - 1) / kColumns, n * width, [=, &sums](int64_t block) {
      auto scratch = buffer(kStep * kColumns / 4);
      int64_t begin = block * kColumns;
      const int64_t end = std::min(begin + kColumns, columns);
      while (begin < end) {
        const bool in_last = begin < full;
        const int64_t stop = in_last ? std::min(end, full) : end;
        sums.pairwise(x + begin, in_last ? rows : rows - 1, columns, stop - begin, scratch.get(),
                      to + begin);
        begin = stop;
      }
    });
    if (left == 1) return;
    partial = std::move(next);
    x = partial.get();
    n = left;
  }
  std::copy_n(x, width, out);
}

void pairwise(const Sums& sums, const float* x, int64_t outer, int64_t n, int64_t inner,
              float* out, ffi::ThreadPool* pool) {
  const int64_t threads = pool->num_threads();
  if (outer >= threads && inner == 1 && n <= kLongRow) {  // rows, with one buffer for many
    const int64_t rows = std::max<int64_t>(1, kBlock / n);
    run(pool, (outer + rows - 1) / rows, outer * n, [=, &sums](int64_t block) {
      auto scratch = buffer(n / 4 + 8 * sums.lanes);
      for (int64_t o = block * rows; o < std::min(outer, (block + 1) * rows); ++o) {
        sums.pairwise_row(x + o * n, n, scratch.get(), out + o);
      }
    });
  } else if (outer >= 2 * threads) {
    run(pool, outer, outer * n * inner, [=, &sums](int64_t o) {
      pairwise(sums, x + o * n * inner, n, inner, out + o * inner, nullptr);
    });
  } else {
    for (int64_t o = 0; o < outer; ++o) {
      pairwise(sums, x + o * n * inner, n, inner, out + o * inner, pool);
    }
  }
}

// As many chains side by side as a vector has elements, from wherever they lie.
void sequential(const Sums& sums, const float* x, int64_t outer, int64_t n, int64_t inner,
                float* out, ffi::ThreadPool* pool) {
  const int64_t outputs = outer * inner;
  if (inner >= sums.lanes) {
    const int64_t blocks = (inner + kColumns - 1) / kColumns;
    run(pool, outer * blocks, outputs * n, [=, &sums](int64_t i) {
      const int64_t o = i / blocks, c = i % blocks * kColumns;
      sums.sequential(x + o * n * inner + c, n, inner, std::min(kColumns, inner - c),
                      out + o * inner + c);
    });
    return;
  }
  constexpr int64_t kTerms = 64;
  const int64_t lanes = sums.lanes, blocks = (outputs + lanes - 1) / lanes;
  run(pool, blocks, outputs * n, [=, &sums](int64_t block) {
    const int64_t first = block * lanes, count = std::min(lanes, outputs - first);
    auto terms = buffer((kTerms + 1) * lanes);  // the first row: the sums so far
    std::fill_n(terms.get(), (kTerms + 1) * lanes, 0.0f);
    for (int64_t k = 0; k < n; k += kTerms) {
      const int64_t here = std::min(kTerms, n - k);
      for (int64_t j = 0; j < count; ++j) {
        const float* from = x + ((first + j) / inner * n + k) * inner + (first + j) % inner;
        float* to = terms.get() + lanes + j;
        for (int64_t i = 0; i < here; ++i) to[i * lanes] = from[i * inner];
      }
      sums.sequential(terms.get(), here + 1, lanes, lanes, terms.get());
    }
    std::copy_n(terms.get(), count, out + first);
  });
}

ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, std::string_view accumulation,
                  ffi::ResultBuffer<ffi::F32> out) {
  const auto shape = x.dimensions();
  if (shape.size() != 3 || shape[1] == 0) {
    return ffi::Error::InvalidArgument("expected an array [outer, n, inner] with n > 0");
  }
  const int64_t outer = shape[0], n = shape[1], inner = shape[2];
  const Sums& sums = instruction_set().sums;
  if (outer * inner == 0) return ffi::Error::Success();
  if (accumulation == "pairwise") {
    pairwise(sums, x.typed_data(), outer, n, inner, out->typed_data(), &pool);
  } else if (accumulation == "sequential") {
    sequential(sums, x.typed_data(), outer, n, inner, out->typed_data(), &pool);
  } else {
    return ffi::Error::InvalidArgument("accumulation: expected pairwise or sequential");
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_reduce_sum, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<std::string_view>("accumulation")
                                  .Ret<ffi::Buffer<ffi::F32>>());
