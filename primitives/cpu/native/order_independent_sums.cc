// Order-independent sums of float32 (repjax_order_independent_sum).
//
//   out[o, c] = the sum of x[o, i, c] over i, each rounded to the grid of the largest
//
// The bits are those of repjax.primitives.operations.reductions.sums.  The elements of x may be the
// results of bytecode (bytecode.h), computed as they are added.

#include "axes.h"
#include "elements.h"
#include "grid_sums.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 17;     // additions that are worth a thread
constexpr int64_t kTogether = 1 << 15;   // elements of rows that are added together
constexpr int64_t kParts = 16;           // parts of a long row that a thread takes together
constexpr int64_t kColumns = 512, kRows = 64;  // of a block of columns
constexpr bool kFlush = true;            // subnormal numbers in memory are zeros when they are widened

// Calls part(i) for some parts of a row, kParts of them together.
template <class Part>
void for_parts(ffi::ThreadPool* pool, int64_t parts, double work, Part part) {
  share(pool, blocks_of(parts, kParts), work, kThread, [=](int64_t block) {
    const IeeeArithmetic ieee(kFlush);
    part(block * kParts, std::min(parts, (block + 1) * kParts));
  });
}

// The sum of a row.  A part of it is on the grid of the largest element so far, while it is in the
// cache; where there is a larger one, which is rare after the first parts, it is added again.
float long_row(const GridSums& set, const Elements& x, int64_t n, int t, ffi::ThreadPool* pool) {
  const int64_t parts = blocks_of(n, kOfRow);
  std::vector<int64_t> sums(parts);
  std::vector<int32_t> largest(parts), fields(parts);
  const double work = double(n) * x.operations();
  for_parts(pool, parts, work, [&](int64_t begin, int64_t end) {
    float* const memory = x.memory(kOfRow);
    int32_t so_far = 0;
    for (int64_t i = begin; i < end; ++i) {
      const int64_t here = std::min(kOfRow, n - i * kOfRow);
      const float* const terms = x.get(i * kOfRow, here, memory);
      largest[i] = set.largest(terms, here);
      if (largest[i] >= kInfinity) continue;
      so_far = std::max(so_far, largest[i]);
      const Grid grid(so_far, t);
      fields[i] = grid.field();
      sums[i] = set.sum(terms, here, grid.number());
    }
  });
  const int32_t most = *std::max_element(largest.begin(), largest.end());
  if (most >= kInfinity) {
    const IeeeArithmetic ieee(kFlush);
    Special special;
    float* const memory = x.memory(kOfRow);
    for (int64_t i = 0; i < parts; ++i) {
      if (largest[i] < kInfinity) continue;
      const int64_t here = std::min(kOfRow, n - i * kOfRow);
      special.add(x.get(i * kOfRow, here, memory), here);
    }
    return special.sum();
  }
  const Grid grid(most, t);
  std::vector<int64_t> again;
  for (int64_t i = 0; i < parts; ++i) {
    if (fields[i] != grid.field()) again.push_back(i);
  }
  for_parts(pool, again.size(), work / parts * again.size(), [&](int64_t begin, int64_t end) {
    float* const memory = x.memory(kOfRow);
    for (int64_t j = begin; j < end; ++j) {
      const int64_t i = again[j], here = std::min(kOfRow, n - i * kOfRow);
      sums[i] = set.sum(x.get(i * kOfRow, here, memory), here, grid.number());
    }
  });
  int64_t total = 0;
  for (int64_t sum : sums) total += sum;
  return set.rounded(total, grid.step());
}

void sum_rows(const GridSums& set, const Elements& x, int64_t rows, int64_t n, int t, float* out,
              ffi::ThreadPool* pool) {
  if (n > kOfRow) {
    const bool many = rows >= 2 * pool->num_threads();
    const double work = double(rows) * n * x.operations();
    share(many ? pool : nullptr, rows, work, kThread, [=, &set](int64_t r) {
      out[r] = long_row(set, x.from(r * n), n, t, many ? nullptr : pool);
    });
    return;
  }
  const int64_t together = std::max<int64_t>(1, kTogether / n);
  share(pool, blocks_of(rows, together), double(rows) * n * x.operations(), kThread,
        [=, &set](int64_t block) {
          const IeeeArithmetic ieee(kFlush);
          const int64_t r = block * together, here = std::min(together, rows - r);
          const float* const terms = x.get(r * n, here * n, x.memory(here * n));
          order_independent_rows(set, terms, here, n, t, out + r);
        });
}

// Columns side by side, in parts of the rows where there are few columns.
void sum_columns(const GridSums& set, const Elements& x, int64_t outer, int64_t n, int64_t inner,
                 int t, float* out, ffi::ThreadPool* pool) {
  const double work = 2.0 * outer * n * inner * x.operations();
  const int64_t threads = useful_threads(pool, work, kThread), line = set.words;
  int64_t width = std::min(kColumns, inner);
  while (outer * blocks_of(inner, width) < 2 * threads && width > line) {
    width = round_up(blocks_of(width, 2), line);
  }
  const int64_t blocks = outer * blocks_of(inner, width), of_row = blocks_of(inner, width);
  const int64_t parts =
      blocks >= threads ? 1 : std::min(blocks_of(2 * threads, blocks), blocks_of(n, kRows));
  const int64_t rows = blocks_of(n, parts);  // of a part

  std::vector<int32_t> largest(blocks * parts * width);
  std::vector<int64_t> sums(largest.size());
  // Calls run(terms, rows, row, columns, the place of the results) for some rows after the other.
  const auto for_rows = [=, &x](int64_t i, auto run) {
    const int64_t block = i / parts, c = block % of_row * width;
    const int64_t columns = std::min(width, inner - c);
    const int64_t end = std::min(n, (i % parts + 1) * rows);
    const Elements from = x.from(block / of_row * n * inner + c);
    float* const memory = x.memory(kRows * columns);
    for (int64_t k = i % parts * rows; k < end; k += kRows) {
      const int64_t here = std::min(kRows, end - k);
      int64_t row = inner;
      const float* const terms = from.get(k * inner, here, &row, columns, memory);
      run(terms, here, row, columns, i * width);
    }
  };
  const auto find = [&](int64_t i) {
    for_rows(i, [&](const float* terms, int64_t here, int64_t row, int64_t columns, int64_t at) {
      set.largest_of_columns(terms, here, row, columns, &largest[at]);
    });
  };
  const auto add = [&](int64_t i) {
    std::vector<double> numbers(width);
    const int32_t* const most = &largest[i / parts * parts * width];
    for (int64_t j = 0; j < width; ++j) numbers[j] = Grid(most[j], t).number();
    for_rows(i, [&](const float* terms, int64_t here, int64_t row, int64_t columns, int64_t at) {
      set.sum_of_columns(terms, here, row, columns, numbers.data(), &sums[at]);
    });
  };
  const auto finish = [&](int64_t block) {
    const int64_t c = block % of_row * width, o = block / of_row;
    for (int64_t j = 0; j < std::min(width, inner - c); ++j) {
      float* const to = out + o * inner + c + j;
      const int64_t at = block * parts * width + j;
      if (largest[at] >= kInfinity) {
        Special special;
        for (int64_t k = 0; k < n; ++k) {
          float x_of_column;
          special.add(*x.from((o * n + k) * inner + c + j).get(0, 1, &x_of_column));
        }
        *to = special.sum();
        continue;
      }
      int64_t total = 0;
      for (int64_t p = 0; p < parts; ++p) total += sums[at + p * width];
      *to = set.rounded(total, Grid(largest[at], t).step());
    }
  };
  if (parts == 1) {
    in_parallel(pool, threads, blocks, [&](int64_t i) {
      const IeeeArithmetic ieee(kFlush);
      find(i);
      add(i);
      finish(i);
    });
    return;
  }
  const auto in_parts = [&](const auto& run) {
    in_parallel(pool, threads, blocks * parts, [&](int64_t i) {
      const IeeeArithmetic ieee(kFlush);
      run(i);
    });
  };
  in_parts(find);
  for (int64_t block = 0; block < blocks; ++block) {
    int32_t* const most = &largest[block * parts * width];
    for (int64_t j = width; j < parts * width; ++j) {
      most[j % width] = std::max(most[j % width], most[j]);
    }
  }
  in_parts(add);
  const IeeeArithmetic ieee(kFlush);
  for (int64_t block = 0; block < blocks; ++block) finish(block);
}

// sizes: those of the three axes of x, which is the operand or the result of the bytecode.  t: see Grid.
ffi::Error handle(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::Span<const int64_t> sizes,
                  ffi::Span<const int64_t> encoded, int64_t t, ffi::ResultBuffer<ffi::F32> out) {
  if (sizes.size() != 3 || sizes[1] == 0 || args.size() == 0 ||
      sizes[0] * sizes[2] != int64_t(out->element_count())) {
    return ffi::Error::InvalidArgument("expected an array [outer, n, inner] with n > 0");
  }
  const GridSums& set = instruction_set().grid_sums;
  const int64_t outer = sizes[0], n = sizes[1], inner = sizes[2];
  if (outer * inner == 0) return ffi::Error::Success();
  Source terms;
  const ffi::Error error = terms.read(args, encoded, outer * n * inner, Summed::kRawElements);
  if (error.failure()) return error;
  if (inner == 1) {
    sum_rows(set, terms.x, outer, n, t, out->typed_data(), &pool);
  } else {
    sum_columns(set, terms.x, outer, n, inner, t, out->typed_data(), &pool);
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_order_independent_sum, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .Attr<ffi::Span<const int64_t>>("sizes")
                                  .Attr<ffi::Span<const int64_t>>("bytecode")
                                  .Attr<int64_t>("t")
                                  .Ret<ffi::Buffer<ffi::F32>>());
