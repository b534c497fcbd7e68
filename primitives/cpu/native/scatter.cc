// Scatters of rows of float32: sums (repjax_scatter_add) and extrema (repjax_scatter_extremum).
//
//   out[r, c] = operand[r, c] + the sum of updates[k, c] over the k with rows[k] = r
//
// The result is where the operand was.
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
#include <numeric>
#include <string_view>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 16;  // additions that are worth a thread
constexpr int64_t kBlock = 1 << 12;   // elements of a block of rows
constexpr int64_t kTable = 1 << 22;   // bytes of a table of sums, of which each thread has one
constexpr int64_t kLine = 16;         // elements
constexpr int64_t kNarrow = 8;        // elements of a row for which lists of the updates do not pay
constexpr int64_t kWide = 32;         // and for which they pay, if there are more rows than
constexpr int64_t kFewRows = 64;

struct Problem {
  const float* updates;
  const int32_t* row;  // of each update
  int64_t n, windows, width, step;  // from one row to the next it is a step
  int precision;
  float* out;  // where the operand is
};

// Rows that have updates, by numbers below `count`, and the updates that these rows have.
struct Numbered {
  int64_t count;
  const int32_t* row;  // of each number; null where rows are their own numbers
  int64_t updates;
  const int32_t* number;  // of the row of each update; not below `count` where it has none
  const int32_t* update;  // null where these are all of them
};

// All rows; or those of which `only` is 1 and, where rows are many, that have updates: a set of them,
// in which a row is if its place says so, so that nothing is done for each of all rows.  The last of
// n + 1 of `only`, of updates without a row, is 0.
Numbered number_rows(const Problem& p, const char* only) {
  if (!only && p.n <= 2 * p.windows) return {p.n, nullptr, p.windows, p.row, nullptr};
  thread_local std::vector<int32_t> place;
  if (int64_t(place.size()) < p.n) place.resize(p.n);
  int32_t* const row = scratch<kStaged, int32_t>(3 * (p.windows + 1));
  int32_t* const update = row + p.windows + 1;
  int32_t* const number = update + p.windows + 1;
  int64_t count = 0, updates = 0;
  for (int64_t k = 0; k < p.windows; ++k) {  // without branches
    const uint32_t r = std::min(uint32_t(p.row[k]), uint32_t(p.n));
    update[updates] = k;
    updates += only ? only[r] : r < uint32_t(p.n);
  }
  for (int64_t k = 0; k < updates; ++k) {
    const int32_t r = p.row[update[k]];
    row[count] = r;  // where it is found if it is in no place before
    int32_t& at = place[r];
    if (at >= count || row[at] != r) at = count++;
    number[k] = at;
  }
  return {count, row, updates, number, update};
}

// Calls row(r, at, count) for each row that has updates, by the list of these, and in arithmetic that
// flushes: of all rows, or of rows of which `only` is not 0.
template <class Row>
void for_rows(ffi::ThreadPool* pool, const Problem& p, const char* only, Row row) {
  const Numbered rows = number_rows(p, only);
  const int64_t n = rows.count, all = n + 1;  // the last one is that of updates without a row
  const int64_t updates = rows.updates;
  if (updates == 0) return;
  const int64_t threads = useful_threads(pool, 2.0 * updates * p.width, kThread);
  const int64_t parts = std::min(threads, blocks_of(4 * updates, all));
  int32_t* const first =
      scratch<kOffsets, int32_t>((1 + parts) * all + parts + updates + kUpdatesAhead);
  int32_t* const next = first + all;
  int32_t* const sums = next + parts * all;
  int32_t* const order = sums + parts;
  const auto begin_of = [=](int64_t part, int64_t count) { return part * count / parts; };
  // Of an update, without a branch: whether there is a row no processor foretells.
  const auto row_of = [=](int64_t k) {
    return std::min(uint32_t(rows.number[k]), uint32_t(n));
  };
  const auto count_updates = [=](int64_t part) {
    int32_t* const count = next + part * all;
    std::fill_n(count, all, 0);
    const int64_t end = begin_of(part + 1, updates);
    for (int64_t k = begin_of(part, updates); k < end; ++k) ++count[row_of(k)];
  };
  const auto sum_counts = [=](int64_t part) {
    sums[part] = 0;
    for (int64_t i = 0; i < parts; ++i) {
      int32_t* const count = next + i * all;
      sums[part] += std::accumulate(count + begin_of(part, all), count + begin_of(part + 1, all), 0);
    }
  };
  // Where the updates of each row go, those of a part of the updates behind those of the parts before.
  const auto find_places = [=](int64_t part) {
    int32_t before = std::accumulate(sums, sums + part, 0);
    for (int64_t r = begin_of(part, all); r < begin_of(part + 1, all); ++r) {
      first[r] = before;
      for (int64_t i = 0; i < parts; ++i) before += std::exchange(next[i * all + r], before);
    }
  };
  const auto sort_updates = [=](int64_t part) {
    int32_t* const place = next + part * all;
    const int64_t end = begin_of(part + 1, updates);
    for (int64_t k = begin_of(part, updates); k < end; ++k) {
      order[place[row_of(k)]++] = rows.update ? rows.update[k] : k;
    }
  };
  const int64_t together = std::max<int64_t>(1, kBlock / p.width);
  const auto block_of_rows = [=](int64_t block) {
    const IeeeArithmetic ieee(true);
    const int64_t end = std::min(n, (block + 1) * together);
    for (int64_t i = block * together; i < end; ++i) {
      const int64_t count = first[i + 1] - first[i];
      if (count > 0) row(rows.row ? rows.row[i] : i, order + first[i], count);
    }
  };
  std::fill_n(order + updates, kUpdatesAhead, 0);
  in_phases(pool, threads, {parts, parts, parts, parts, blocks_of(n, together)},
            [=](int64_t phase, int64_t i) {
              switch (phase) {
                case 0: return count_updates(i);
                case 1: return sum_counts(i);
                case 2: return find_places(i);
                case 3: return sort_updates(i);
                default: return block_of_rows(i);
              }
            });
}

void add_row(const Problem& p, const Scatter& set, int64_t r, const int32_t* at, int64_t count) {
  float* const to = p.out + r * p.step;
  set.add(to, p.updates, at, count, p.step, p.width, p.precision, to);
}

void add_by_rows(ffi::ThreadPool* pool, const Problem& p, const Scatter& set,
                 const char* only = nullptr) {
  for_rows(pool, p, only, [&](int64_t r, const int32_t* at, int64_t count) {
    add_row(p, set, r, at, count);
  });
}

// The exact sums of the elements of a row and of their updates, rounded once, to nearest or to odd.
void add_exactly(ffi::ThreadPool* pool, const Problem& p, const Exact& set, double slack, bool odd) {
  for_rows(pool, p, nullptr, [&](int64_t r, const int32_t* at, int64_t count) {
    constexpr int64_t kColumns = 64;
    for (int64_t c = 0; c < p.width; c += kColumns) {
      const int64_t here = std::min(kColumns, p.width - c);
      float* const to = p.out + r * p.step + c;
      const float* const from = p.updates + c;
      double sums[kColumns], magnitudes[kColumns], lost[kColumns] = {};
      float before[kColumns];
      for (int64_t j = 0; j < here; ++j) {
        before[j] = to[j];
        sums[j] = before[j];
        magnitudes[j] = std::fabs(before[j]);
      }
      for (int64_t i = 0; i < count; ++i) {
        const float* const u = from + at[i] * p.step;
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
            a[i] = k + i == 0 ? before[j] : from[at[k + i - 1] * p.step + j];
          }
          return Factors{a, nullptr};
        });
      }
    }
  });
}

// The elements of windows [begin, end) that are too small for a grid, by the limit of has_below: which
// elements of the result they are added to.
void find_small(const Problem& p, const Scatter& set, uint32_t limit, int64_t begin, int64_t end,
                std::vector<int64_t>& found) {
  constexpr int64_t kFew = 16;  // windows that are looked at together
  const auto has_small = [&](int64_t k, int64_t c, int64_t n) {
    return set.has_below(p.updates + k * p.step + c, n, limit);
  };
  for (int64_t k = begin; k < end; k += kFew) {
    const int64_t last = std::min(k + kFew, end) - 1;
    if (!has_small(k, 0, (last - k) * p.step + p.width)) continue;
    for (int64_t w = k; w <= last; ++w) {
      if (uint32_t(p.row[w]) >= uint32_t(p.n) || !has_small(w, 0, p.width)) continue;
      for (int64_t c = 0; c < p.width; ++c) {
        if (has_small(w, c, 1)) found.push_back(p.row[w] * p.width + c);
      }
    }
  }
}

// For each thread a table of float64 sums [n, width], of how many updates each row has, and of the ranges of
// the exponents of each sum, if wanted, with room for a vector behind.
struct Tables {
  Tables(ffi::ThreadPool* pool, const Problem& p, bool with_ranges)
      : n(p.n), width(p.width), has_ranges(with_ranges) {
    const int64_t size = n * width;
    bytes = round_up(8 * size + 4 * n + (has_ranges ? 4 * (size + kMostLanes) : 0), 64);
    if (bytes <= kTable && 2 * n <= p.windows) {
      threads = useful_threads(pool, 2.0 * p.windows * width, kThread);
    }
    memory = scratch<kSums, char>(bytes * threads);
  }

  double* sums(int64_t i) const { return reinterpret_cast<double*>(memory + i * bytes); }
  int32_t* counts(int64_t i) const { return reinterpret_cast<int32_t*>(sums(i) + n * width); }
  uint32_t* ranges(int64_t i) const { return reinterpret_cast<uint32_t*>(counts(i) + n); }

  void clear(int64_t i) const { std::memset(sums(i), 0, bytes); }

  // Brings rows [begin, end) of all tables to the first one.
  void join(int64_t begin, int64_t end) const {
    const int64_t first = begin * width, last = end * width;
    for (int64_t i = 1; i < threads; ++i) {
      for (int64_t j = first; j < last; ++j) sums(0)[j] += sums(i)[j];
      for (int64_t r = begin; r < end; ++r) counts(0)[r] += counts(i)[r];
      for (int64_t j = first; has_ranges && j < last; ++j) {
        ranges(0)[j] = joined_ranges(ranges(0)[j], ranges(i)[j]);
      }
    }
  }

  int64_t n, width, bytes, threads = 1;
  bool has_ranges;
  char* memory;
};

// Adds all updates as they come to float64 sums, a table [n, width] for each thread, where nearly all
// are large enough for one grid; else does nothing.  Returns whether it did.
bool add_in_tables(ffi::ThreadPool* pool, const Problem& p, const Scatter& set) {
  const Tables tables(pool, p, false);
  const int64_t threads = tables.threads;

  // What is too small for the grid of the largest update, so that float64 sums are not exact.
  const auto least = [&](uint32_t largest) {
    const int32_t exponent = int32_t(largest >> 23) - (p.precision - 23);
    return exponent > 0 ? (uint32_t(exponent) << 23) - 1 : 0;
  };
  const int64_t together = std::max<int64_t>(1, kScattered / p.width);
  const int64_t blocks = blocks_of(p.windows, together), most_wide = 2 + blocks / threads / 4;
  std::vector<uint32_t> smallest(blocks);  // magnitude of each block, less one
  std::atomic<uint32_t> largest{0};
  std::atomic<bool> too_wide{false};
  in_parallel(pool, threads, threads, [&](int64_t i) {
    const IeeeArithmetic ieee(true);
    tables.clear(i);
    uint32_t most = 0;
    int64_t wide = 0;
    for (int64_t b = i * blocks / threads; b < (i + 1) * blocks / threads; ++b) {
      const int64_t k = b * together, here = std::min(together, p.windows - k);
      uint32_t of_block;
      set.add_in_table(p.updates + k * p.step, p.step, p.row + k, here, uint32_t(p.n), p.width,
                       tables.sums(i), tables.counts(i), &of_block, &smallest[b]);
      most = std::max(most, of_block);
      wide += smallest[b] < least(most);
      if (most >= 0x7F800000 || wide > most_wide) too_wide = true;
      if (too_wide) return;
    }
    uint32_t before = largest;
    while (before < most && !largest.compare_exchange_weak(before, most)) {
    }
  });
  if (too_wide) return false;

  const uint32_t limit = least(largest);
  std::vector<std::vector<int64_t>> found(threads);
  in_parallel(pool, threads, threads, [&](int64_t i) {
    int64_t wide = 0;
    for (int64_t b = i * blocks / threads; b < (i + 1) * blocks / threads; ++b) {
      if (smallest[b] >= limit) continue;
      if (++wide > most_wide) too_wide = true;
      if (too_wide) return;
      find_small(p, set, limit, b * together, std::min(p.windows, (b + 1) * together), found[i]);
    }
  });
  if (too_wide) return false;
  std::vector<int64_t> small;  // elements of the table, each as often as it has such an update
  for (const auto& part : found) small.insert(small.end(), part.begin(), part.end());
  std::sort(small.begin(), small.end());

  const double power = std::ldexp(1, int(largest >> 23) - 127);
  std::vector<char> unsure(p.n + 1);
  std::atomic<bool> any_unsure{false};
  const int64_t rows = std::max<int64_t>(1, kBlock / p.width);
  share(pool, blocks_of(p.n, rows), 4.0 * p.n * p.width, kThread, [&](int64_t block) {
    const IeeeArithmetic ieee(true);
    const int64_t begin = block * rows, end = std::min(p.n, begin + rows);
    tables.join(begin, end);
    const double* const sum = tables.sums(0);
    const int32_t* const count = tables.counts(0);
    auto at = std::lower_bound(small.begin(), small.end(), begin * p.width);
    const auto small_end = std::lower_bound(at, small.end(), end * p.width);
    for (int64_t r = begin; r < end; ++r) {
      // Rows side by side whose sums are exact, also those without updates.
      const int64_t last = at == small_end ? end : *at / p.width;
      const int64_t most = p.step == p.width ? last - r : std::min<int64_t>(last - r, 1);
      int64_t exact = 0;
      while (exact < most && count[r + exact] <= kExactCount) ++exact;
      if (exact > 0) {
        float* const to = p.out + r * p.step;
        set.finish_row(to, sum + r * p.width, 0, exact * p.width, to);
        r += exact - 1;
        continue;
      }
      const double n = count[r];
      bool sure = true;
      while (at != small_end && *at < (r + 1) * p.width) {
        const auto next = std::upper_bound(at, small_end, *at);
        const double error = power * difference(n, next - at, p.precision);
        sure &= float(sum[*at] - error) == float(sum[*at] + error);
        at = next;
      }
      float* const to = p.out + r * p.step;
      const double error = n <= kExactCount ? 0 : power * difference(n, n, p.precision);
      unsure[r] = !sure || !set.finish_row(to, sum + r * p.width, error, p.width, to);
      if (unsure[r]) any_unsure = true;
    }
  });
  if (any_unsure) add_by_rows(pool, p, set, unsure.data());
  return true;
}

// The same, where many updates are too small for one grid: of each sum it is known which exponents its
// own updates have.
void add_in_tables_of_ranges(ffi::ThreadPool* pool, const Problem& p, const Scatter& set) {
  const Tables tables(pool, p, true);
  const int64_t threads = tables.threads;
  in_parallel(pool, threads, threads, [&](int64_t i) {
    const IeeeArithmetic ieee(true);
    tables.clear(i);
    const int64_t begin = i * p.windows / threads, end = (i + 1) * p.windows / threads;
    set.add_with_ranges(p.updates + begin * p.step, p.step, p.row + begin, end - begin,
                        uint32_t(p.n), p.width, tables.sums(i), tables.ranges(i), tables.counts(i));
  });
  std::vector<char> unsure(p.n + 1);
  std::atomic<bool> any_unsure{false};
  const int64_t rows = std::max<int64_t>(1, kBlock / p.width);
  share(pool, blocks_of(p.n, rows), 8.0 * p.n * p.width, kThread, [&](int64_t block) {
    const IeeeArithmetic ieee(true);
    const int64_t begin = block * rows, end = std::min(p.n, begin + rows);
    tables.join(begin, end);
    for (int64_t r = begin; r < end; ++r) {
      const int32_t n = tables.counts(0)[r];
      if (n == 0) continue;
      const double* const sum = tables.sums(0) + r * p.width;
      float* const to = p.out + r * p.step;
      if (set.are_sure(sum, tables.ranges(0) + r * p.width, n, p.precision, p.width)) {
        set.finish_row(to, sum, 0, p.width, to);
      } else {
        unsure[r] = any_unsure = true;
      }
    }
  });
  if (any_unsure) add_by_rows(pool, p, set, unsure.data());
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
  const Problem p = {updates.typed_data(), rows.typed_data(), size / width,     windows, width,
                     width,                int(precision),    out->typed_data()};
  if (order != "order_independent") {
    add_exactly(&pool, p, instruction_set().exact, slack, order == "exact, odd");
    return ffi::Error::Success();
  }
  const Scatter& set = instruction_set().scatter;
  // Wide rows are sorted in less time than it takes to bring their sums into the cache again and again;
  // but few rows are too few blocks of work.
  const bool is_dense = width < kNarrow ? p.n <= 2 * windows
                                        : 2 * p.n <= windows && p.n * width * 8 <= kTable &&
                                              (width < kWide || p.n < kFewRows);
  if (!is_dense) {
    add_by_rows(&pool, p, set);
    return ffi::Error::Success();
  }
  // Wide rows in parts, a thread each, that have nothing to do with each other.
  const int64_t threads = useful_threads(&pool, 2.0 * windows * width, kThread);
  const int64_t parts = std::clamp<int64_t>(width / (2 * kLine), 1, threads);
  in_parallel(&pool, parts, parts, [&](int64_t i) {
    const int64_t begin = blocks_of(width, kLine) * i / parts * kLine;
    const int64_t end = blocks_of(width, kLine) * (i + 1) / parts * kLine;
    Problem part = p;
    part.updates += begin;
    part.out += begin;
    part.width = std::min(end, width) - begin;
    ffi::ThreadPool* const threads_of_part = parts == 1 ? &pool : nullptr;
    if (!add_in_tables(threads_of_part, part, set)) {
      add_in_tables_of_ranges(threads_of_part, part, set);
    }
  });
  return ffi::Error::Success();
}

// out[r, c] = the largest or the smallest of operand[r, c] and of updates[k, c], rows[k] = r.  Each
// thread joins some updates, all but the first one to a table of their own.
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
    const IeeeArithmetic flushing(true);
    const int64_t begin = i * windows / threads, end = (i + 1) * windows / threads;
    set.join[int(join)](from + begin * width, at + begin, end - begin, n, width, table(i));
  });
  const IeeeArithmetic flushing(true);
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
