// Rows of float64 made orthogonal by rotations (repjax_orthogonalize).
//
// The bits are those of repjax.primitives.operations.linalg.eigen: the pairs of a round may be
// rotated in any order.

#include "axes.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

// The rounds of a sweep, cut into tasks.  From round to round a row meets the next row: so that tasks
// are pairs of blocks of rows, which stay in the caches for some rounds.  A task needs those that had
// one of its blocks before, and no others.
class Tournament {
 public:
  Tournament(int64_t n, int64_t of_block) : n_(n), rounds_(n - 1 + n % 2) {
    // Where n is even, the last row plays against rows 0, middle, 1, middle + 1, ... in turns.
    const int64_t middle = (rounds_ + 1) / 2;
    for (const Block half : {Block{0, middle}, Block{middle, rounds_}}) {
      for (int64_t i = half.begin; i < half.end; i += of_block) {
        blocks_.push_back({i, std::min(i + of_block, half.end)});
      }
    }
    const int64_t count = blocks_.size(), in_half = blocks_of(middle, of_block);
    for (int64_t i = 0; i < count; ++i) {
      for (int64_t j = i + 1; j < count; ++j) {
        const Block a = blocks_[i], b = blocks_[j];
        if (a.begin + b.begin < rounds_) add(2 * (i + j), {i, j}, {{a, b, 0}});
        if (a.end + b.end - 2 >= rounds_) add(2 * (i + j - count), {i, j}, {{a, b, rounds_}});
      }
    }
    // The pairs within a block of each half, and those of the last row.
    for (int64_t i = 0, j = in_half; i < in_half; ++i, ++j) {
      const Block a = blocks_[i], b = j < count ? blocks_[j] : Block{};
      std::vector<int64_t> blocks = {i, count};
      if (j < count) blocks.push_back(j);
      add(4 * i + 1, std::move(blocks), {{a, a, 0}, {b, b, rounds_}});
    }
    std::stable_sort(tasks_.begin(), tasks_.end(),
                     [](const Task& a, const Task& b) { return a.place < b.place; });
    std::vector<int64_t> turns(count + 1);
    for (Task& task : tasks_) {
      for (const int64_t block : task.blocks) task.turns.push_back(turns[block]++);
    }
  }

  // All rounds of a sweep: calls play(pairs, count), from several threads, for pairs that have no row
  // in common.
  template <class Play>
  void run(ffi::ThreadPool* pool, double terms, Play play) const {
    // How many tasks have had a block; the last row is one, too.
    std::vector<std::atomic<int64_t>> turns(blocks_.size() + 1);
    share_terms(pool, tasks_.size(), terms, [&, play](int64_t i) {
      const Task& task = tasks_[i];
      // Tasks that were handed out before are at work.
      for (size_t k = 0; k < task.blocks.size(); ++k) {
        wait_until([&] {
          return turns[task.blocks[k]].load(std::memory_order_acquire) == task.turns[k];
        });
      }
      run(task, play);
      for (const int64_t block : task.blocks) turns[block].fetch_add(1, std::memory_order_release);
    });
  }

 private:
  struct Block {
    int64_t begin, end;
  };
  // The pairs of rows of two blocks, or of one, whose sum is that of a round and `above`.
  struct Meeting {
    Block a, b;
    int64_t above;
  };
  struct Task {
    int64_t place;                // in an order in which each comes after those that it needs
    std::vector<int64_t> blocks;  // that it needs
    std::vector<Meeting> meetings;
    std::vector<int64_t> turns;  // how many tasks have had these blocks before
  };

  void add(int64_t place, std::vector<int64_t> blocks, std::vector<Meeting> meetings) {
    tasks_.push_back({place, std::move(blocks), std::move(meetings), {}});
  }

  template <class Play>
  void run(const Task& task, Play play) const {
    if (task.meetings.size() > 1) return run(task.meetings, play);
    // The halves of two blocks, whose rows stay in the L1 cache.
    const auto& [a, b, above] = task.meetings[0];
    const auto half = [](const Block& block, bool second) {
      const int64_t middle = block.begin + (block.end - block.begin + 1) / 2;
      return second ? Block{middle, block.end} : Block{block.begin, middle};
    };
    for (const bool i : {false, true}) {
      for (const bool j : {false, true}) {
        run(std::vector<Meeting>{{half(a, i), half(b, j), above}}, play);
      }
    }
  }

  // Round by round.
  template <class Play>
  void run(const std::vector<Meeting>& meetings, Play play) const {
    int64_t begin = rounds_, end = 0;
    for (const auto& [a, b, above] : meetings) {
      begin = std::min(begin, a.begin + b.begin - above);
      end = std::max(end, a.end + b.end - 1 - above);
    }
    std::vector<Pair> pairs;
    for (int64_t k = std::max(begin, int64_t{0}); k < std::min(end, rounds_); ++k) {
      pairs.clear();
      for (const auto& [a, b, above] : meetings) {
        const int64_t sum = k + above, last = std::min(a.end - 1, sum - b.begin);
        for (int64_t i = std::max(a.begin, sum - b.end + 1); i <= last && 2 * i <= sum; ++i) {
          const int64_t j = 2 * i < sum ? sum - i : rounds_;
          if (j < n_) pairs.push_back({int32_t(i), int32_t(j)});
        }
      }
      if (!pairs.empty()) play(pairs.data(), int64_t(pairs.size()));
    }
  }

  int64_t n_, rounds_;
  std::vector<Block> blocks_;
  std::vector<Task> tasks_;
};

// The rows become orthogonal in their first elements.
void orthogonalize(const Rotations& set, const Tournament& tournament, double* x, int64_t n,
                   int64_t length, int64_t width, double tolerance, int64_t sweeps,
                   ffi::ThreadPool* pool) {
  const auto vectors = [&](int64_t elements) { return blocks_of(elements, set.lanes); };
  RotatedRows rows;
  rows.of_length = vectors(length);
  rows.of_row = rows.of_length + vectors(width - length);
  rows.square_of_tolerance = tolerance * tolerance;
  const int64_t row = rows.of_row * set.lanes, others = rows.of_length * set.lanes;
  rows.x = scratch<kBetween, double>(n * (row + 1));
  rows.squares = rows.x + n * row;
  std::fill_n(rows.x, n * row, 0);
  for (int64_t i = 0; i < n; ++i) {
    const double* const from = x + i * width;
    std::copy_n(from, length, rows.x + i * row);
    std::copy_n(from + length, width - length, rows.x + i * row + others);
  }

  std::atomic<bool> rotated{true};
  while (rotated && sweeps-- > 0) {
    rotated = false;
    for (int64_t i = 0; i < n; ++i) {
      rows.squares[i] = set.square(rows.x + i * row, rows.of_length);
    }
    tournament.run(pool, double(n) * n / 2 * row, [&](const Pair* pairs, int64_t count) {
      if (set.rotate(rows, pairs, count)) rotated = true;
    });
  }
  for (int64_t i = 0; i < n; ++i) {
    double* const to = x + i * width;
    std::copy_n(rows.x + i * row, length, to);
    std::copy_n(rows.x + i * row + others, width - length, to + length);
  }
}

ffi::Error handle_orthogonalize(ffi::ThreadPool pool, ffi::Buffer<ffi::F64> x, int64_t length,
                                double tolerance, int64_t sweeps,
                                ffi::ResultBuffer<ffi::F64> result) {
  const auto dimensions = x.dimensions();
  double* const to = result->typed_data();
  if (dimensions.size() != 3 || to != x.typed_data() || length < 1 || length > dimensions[2]) {
    return ffi::Error::InvalidArgument("expected rows [count, n, width], result in their place");
  }
  const int64_t n = dimensions[1], width = dimensions[2];
  const Rotations& set = instruction_set().rotations;
  // Halves of two blocks are to be in the L1 cache, but few rows are not worth a task.
  const Tournament tournament(n, std::clamp<int64_t>((1 << 12) / width, 8, 16));
  const double terms = 20.0 * n * n * width;
  share_matrices(&pool, dimensions[0], terms, [&, to](int64_t i, ffi::ThreadPool* pool) {
    orthogonalize(set, tournament, to + i * n * width, n, length, width, tolerance, sweeps, pool);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_orthogonalize, repjax::handle_orthogonalize,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Attr<int64_t>("length")
                                  .Attr<double>("tolerance")
                                  .Attr<int64_t>("sweeps")
                                  .Ret<ffi::Buffer<ffi::F64>>());
