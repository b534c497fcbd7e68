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
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kPairs = 16;  // that are a task

// The pairs of a round, which have no row in common: rows whose sum is k modulo the number of
// rounds. Where the number of rows is even, the last row plays against the one that would play
// against itself.
std::vector<Pair> pairs_of_round(int64_t n, int64_t k) {
  const int64_t rounds = n - 1 + n % 2;
  std::vector<Pair> pairs;
  for (int64_t i = 0; i < rounds; ++i) {
    int64_t j = k - i + (i > k ? rounds : 0);
    if (j == i && rounds < n) j = rounds;
    if (i < j) pairs.push_back({int32_t(i), int32_t(j)});
  }
  return pairs;
}

// The rows become orthogonal in their first elements.
void orthogonalize(const Rotations& set, double* x, int64_t n, int64_t length, int64_t width,
                   double tolerance, int64_t sweeps, ffi::ThreadPool* pool) {
  const auto vectors = [&](int64_t elements) { return blocks_of(elements, set.lanes); };
  RotatedRows rows;
  rows.of_length = vectors(length);
  rows.of_row = rows.of_length + vectors(width - length);
  rows.square_of_tolerance = tolerance * tolerance;
  const int64_t row = rows.of_row * set.lanes, others = rows.of_length * set.lanes;
  const int64_t of_thread = (rows.of_length + 1) * set.lanes;
  std::vector<double> memory(n * row), squares(n);
  rows.x = memory.data();
  rows.squares = squares.data();
  for (int64_t i = 0; i < n; ++i) {
    const double* const from = x + i * width;
    std::copy_n(from, length, rows.x + i * row);
    std::copy_n(from + length, width - length, rows.x + i * row + others);
  }

  bool rotated = true;
  while (rotated && sweeps-- > 0) {
    std::atomic<bool> any{false};
    for (int64_t i = 0; i < n; ++i) {
      const double* const from = rows.x + i * row;
      squares[i] = set.dot(from, from, rows.of_length, scratch<kBetween, double>(of_thread));
    }
    for (int64_t k = 0; k < n - 1 + n % 2; ++k) {
      const std::vector<Pair> pairs = pairs_of_round(n, k);
      const int64_t count = pairs.size(), tasks = blocks_of(count, kPairs);
      share_terms(pool, tasks, double(count) * row, [=, &set, &pairs, &any](int64_t task) {
        RotatedRows mine = rows;
        mine.partial = scratch<kBetween, double>(of_thread);
        const int64_t begin = task * kPairs;
        if (set.rotate(mine, pairs.data() + begin, std::min(kPairs, count - begin))) any = true;
      });
    }
    rotated = any;
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
  const double terms = 20.0 * n * n * width;
  share_matrices(&pool, dimensions[0], terms, [=, &set](int64_t i, ffi::ThreadPool* pool) {
    orthogonalize(set, to + i * n * width, n, length, width, tolerance, sweeps, pool);
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
