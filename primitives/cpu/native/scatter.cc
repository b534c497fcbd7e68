// Scatters of rows of float32: sums (repjax_scatter_add) and extrema (repjax_scatter_extremum).
//
//   out[r, c] = operand[r, c] + the sum of updates[k, c] over the k with rows[k] = r
//
// The result is where the operand was, so that rows without updates are not touched.
// The bits are those of repjax.primitives.operations.scatter: no order of the updates matters.

#include "axes.h"
#include "exact.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <string_view>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 16;  // additions that are worth a thread
constexpr int64_t kBlock = 1 << 13;   // elements of a block of rows
constexpr int64_t kTable = 1 << 18;   // bytes of a table of sums that stays in the L2 cache
constexpr int64_t kNarrow = 8;        // elements of a row for which lists of the updates do not pay

struct Problem {
  const float* updates;
  const int32_t* row;  // of each update
  int64_t n, windows, width;
  int precision;
  float* out;  // where the operand is
};

// Calls row(r, at, count) for each row that has updates, by the list of these, and in arithmetic that
// flushes: of all rows, or of rows of which `only` is not 0.
template <class Row>
void for_rows(ffi::ThreadPool* pool, const Problem& p, const char* only, Row row) {
  const double work = 2.0 * p.windows * p.width;
  const int64_t parts = std::min(p.n, useful_threads(pool, work, kThread));
  int32_t* const first = scratch<kOffsets, int32_t>(2 * p.n + 2 * p.windows + parts + kUpdatesAhead);
  int32_t* const next = first + p.n;
  int32_t* const kept = next + p.n;
  int32_t* const order = kept + p.windows + parts;
  std::fill_n(order + p.windows, kUpdatesAhead, 0);
  // A counting sort: each part sorts the updates of its rows, which go behind those of the parts
  // before.  What is not of its rows it leaves out without a branch, which no processor foretells.
  in_parallel(pool, parts, parts, [=, &p](int64_t part) {
    const int64_t begin = part * p.n / parts, end = (part + 1) * p.n / parts;
    const auto is_below = [&](int64_t k, int64_t r) { return uint32_t(p.row[k]) < uint32_t(r); };
    int32_t before = 0;
    for (int64_t k = 0; begin > 0 && k < p.windows; ++k) before += is_below(k, begin);
    int32_t* const mine = kept + before + part;  // and one that is left out
    int64_t count = 0;
    for (int64_t k = 0; k < p.windows; ++k) {
      mine[count] = int32_t(k);
      count += uint32_t(p.row[k]) - uint32_t(begin) < uint32_t(end - begin);
    }
    std::fill(next + begin, next + end, 0);
    for (int64_t i = 0; i < count; ++i) ++next[p.row[mine[i]]];
    for (int64_t r = begin; r < end; ++r) {
      first[r] = before;
      before += next[r];
      next[r] = first[r];
    }
    for (int64_t i = 0; i < count; ++i) order[next[p.row[mine[i]]]++] = mine[i];
  });
  const int64_t together = std::max<int64_t>(1, kBlock / p.width);
  share(pool, blocks_of(p.n, together), work, kThread, [=, &p](int64_t block) {
    const IeeeArithmetic ieee(true);
    const int64_t end = std::min(p.n, (block + 1) * together);
    for (int64_t r = block * together; r < end; ++r) {
      if (first[r] < next[r] && (!only || only[r])) row(r, order + first[r], next[r] - first[r]);
    }
  });
}

void add_by_rows(ffi::ThreadPool* pool, const Problem& p, const Scatter& set, const char* only) {
  for_rows(pool, p, only, [&](int64_t r, const int32_t* at, int64_t count) {
    float* const to = p.out + r * p.width;
    set.add(to, p.updates, at, count, p.width, p.precision, to);
  });
}

// The exact sums of the elements of a row and of their updates, rounded once, to nearest or to odd.
void add_exactly(ffi::ThreadPool* pool, const Problem& p, const Exact& set, double slack, bool odd) {
  for_rows(pool, p, nullptr, [&](int64_t r, const int32_t* at, int64_t count) {
    constexpr int64_t kColumns = 64;
    for (int64_t c = 0; c < p.width; c += kColumns) {
      const int64_t here = std::min(kColumns, p.width - c);
      float* const to = p.out + r * p.width + c;
      const float* const from = p.updates + c;
      double sums[kColumns], magnitudes[kColumns], lost[kColumns] = {};
      float before[kColumns];
      for (int64_t j = 0; j < here; ++j) {
        before[j] = to[j];
        sums[j] = before[j];
        magnitudes[j] = std::fabs(before[j]);
      }
      for (int64_t i = 0; i < count; ++i) {
        const float* const u = from + at[i] * p.width;
        for (int64_t j = 0; j < here; ++j) {
          const double x = sums[j], y = u[j], s = x + y, of_y = s - x;
          sums[j] = s;
          lost[j] += std::fabs((x - (s - of_y)) + (y - of_y));
          magnitudes[j] += std::fabs(y);
        }
      }
      int32_t unsure[kColumns];
      const double unit = (count + kMoreTerms) * kUnit * slack;
      const int64_t left = set.round_sure[odd](sums, here, {1, {unit}, {magnitudes}}, to, unsure);
      for (int64_t l = 0; l < left; ++l) {
        const int64_t j = unsure[l];
        if (!std::isfinite(sums[j]) || lost[j] == 0) {
          set.round_one[odd](sums[j], to + j);
          continue;
        }
        to[j] = exactly(set, count + 1, odd, [&](int64_t k, int64_t terms, float* a, float*) {
          for (int64_t i = 0; i < terms; ++i) {
            a[i] = k + i == 0 ? before[j] : from[at[k + i - 1] * p.width + j];
          }
          return Factors{a, nullptr};
        });
      }
    }
  });
}

// All updates as they come, in a table of sums, or one for each thread.
void add_in_tables(ffi::ThreadPool* pool, const Problem& p, const Scatter& set, int64_t of_row) {
  const int64_t size = p.n * of_row;
  const bool several = size <= kTable && 2 * p.n <= p.windows;
  const int64_t threads = several ? useful_threads(pool, 2.0 * p.windows * p.width, kThread) : 1;
  char* const tables = scratch<kSums, char>(size * threads);
  in_parallel(pool, threads, threads, [&](int64_t i) {
    const IeeeArithmetic ieee(true);
    char* const table = tables + i * size;
    std::memset(table, 0, size);
    set.add_in_table(p.updates, p.row, i * p.windows / threads, (i + 1) * p.windows / threads, p.n,
                     of_row, p.width, table);
  });
  for (int64_t i = 1; i < threads; ++i) {
    set.merge(tables + i * size, p.n, of_row, p.width, tables);
  }
  std::vector<char> unsure(p.n);
  std::atomic<bool> any{false};
  const int64_t together = std::max<int64_t>(1, kBlock / p.width);
  share(pool, blocks_of(p.n, together), 4.0 * p.n * p.width, kThread, [&](int64_t block) {
    const IeeeArithmetic ieee(true);
    const int64_t end = std::min(p.n, (block + 1) * together);
    for (int64_t r = block * together; r < end; ++r) {
      float* const to = p.out + r * p.width;
      unsure[r] = !set.finish(to, tables + r * of_row, p.width, p.precision, to);
      if (unsure[r]) any = true;
    }
  });
  if (any) add_by_rows(pool, p, set, unsure.data());
}

// Rows out of bounds are left out.
ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> operand, ffi::Buffer<ffi::S32> rows,
                  ffi::Buffer<ffi::F32> updates, int64_t width, int64_t precision,
                  std::string_view order, double slack, ffi::ResultBuffer<ffi::F32> out) {
  const int64_t size = operand.element_count(), windows = rows.element_count();
  if (width < 1 || size % width || int64_t(updates.element_count()) != windows * width) {
    return ffi::Error::InvalidArgument("expected an operand [n, width] and updates [k, width]");
  }
  if (out->typed_data() != operand.typed_data()) {
    return ffi::Error::InvalidArgument("expected the result in the operand's place");
  }
  const Problem p = {updates.typed_data(), rows.typed_data(), size / width,     windows,
                     width,                int(precision),    out->typed_data()};
  if (order != "order_independent") {
    add_exactly(&pool, p, instruction_set().exact, slack, order == "exact, odd");
    return ffi::Error::Success();
  }
  const Scatter& set = instruction_set().scatter;
  const int64_t of_row = width == 1 ? 32 : round_up(width * 16 + 4, 8);
  if (p.n <= 2 * windows && (width < kNarrow || p.n * of_row <= kTable)) {
    add_in_tables(&pool, p, set, of_row);
  } else {
    add_by_rows(&pool, p, set, nullptr);
  }
  return ffi::Error::Success();
}

// out[r, c] = the largest or the smallest of operand[r, c] and of updates[k, c], rows[k] = r.  Each thread
// joins some updates, all but the first one to a table of their own.
ffi::Error handle_extremum(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> operand,
                           ffi::Buffer<ffi::S32> rows, ffi::Buffer<ffi::F32> updates,
                           int64_t width, int64_t largest, ffi::ResultBuffer<ffi::F32> out) {
  constexpr int64_t kMost = 1 << 18;  // elements of a table
  const int64_t size = operand.element_count(), windows = rows.element_count();
  if (width < 1 || size % width || int64_t(updates.element_count()) != windows * width ||
      out->typed_data() != operand.typed_data()) {
    return ffi::Error::InvalidArgument(
        "expected an operand [n, width], updates [k, width], and the result in the operand's place");
  }
  const Scatter& set = instruction_set().scatter;
  const Join join = largest ? Join::kLargest : Join::kSmallest;
  const int64_t n = size / width;
  const bool several = size <= kMost && 2 * n <= windows;
  const int64_t threads = several ? useful_threads(&pool, 2.0 * windows * width, kThread) : 1;
  float* const tables = scratch<kSums, float>(size * (threads - 1));
  const float infinity = std::numeric_limits<float>::infinity();
  std::fill_n(tables, size * (threads - 1), largest ? -infinity : infinity);
  const auto table = [=, to = out->typed_data()](int64_t i) {
    return i == 0 ? to : tables + (i - 1) * size;
  };
  in_parallel(&pool, threads, threads, [=, &set, from = updates.typed_data(),
                                        at = rows.typed_data()](int64_t i) {
    const int64_t begin = i * windows / threads, end = (i + 1) * windows / threads;
    set.join[int(join)](from + begin * width, at + begin, end - begin, n, width, table(i));
  });
  for (int64_t i = 1; i < threads; ++i) set.join_tables[int(join)](table(i), size, table(0));
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_scatter_extremum, repjax::handle_extremum,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("width")
                                  .Attr<int64_t>("largest")
                                  .Ret<ffi::Buffer<ffi::F32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_scatter_add, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("width")
                                  .Attr<int64_t>("precision")
                                  .Attr<std::string_view>("order")
                                  .Attr<double>("slack")
                                  .Ret<ffi::Buffer<ffi::F32>>());
