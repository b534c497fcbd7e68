// Scatter-add of rows of float32 (repjax_scatter_add).
//
//   out[r, c] = operand[r, c] + the exact sum of updates[k, c] over the k with rows[k] = r
//
// The result is where the operand was, so that rows without updates are not touched.
// The bits are those of repjax.primitives.operations.scatter: no order of the updates matters.

#include "axes.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 17;  // additions that are worth a thread
constexpr int64_t kBlock = 1 << 13;   // elements of a block of rows

// Rows out of bounds are left out.
ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> operand, ffi::Buffer<ffi::S32> rows,
                  ffi::Buffer<ffi::F32> updates, int64_t width, int64_t precision,
                  ffi::ResultBuffer<ffi::F32> out) {
  const int64_t size = operand.element_count(), windows = rows.element_count();
  if (width < 1 || size % width || int64_t(updates.element_count()) != windows * width) {
    return ffi::Error::InvalidArgument("expected an operand [n, width] and updates [k, width]");
  }
  const int64_t n = size / width;
  const int32_t* const row = rows.typed_data();
  const auto inside = [=](int32_t r) { return r >= 0 && r < n; };
  // The updates of each row, together.
  std::vector<int32_t> first(n + 1), order(windows);
  for (int64_t k = 0; k < windows; ++k) {
    if (inside(row[k])) ++first[row[k] + 1];
  }
  for (int64_t r = 0; r < n; ++r) first[r + 1] += first[r];
  std::vector<int32_t> next(first.begin(), first.end() - 1);
  for (int64_t k = 0; k < windows; ++k) {
    if (inside(row[k])) order[next[row[k]]++] = int32_t(k);
  }

  const auto add = instruction_set().add_updates;
  const int64_t together = std::max<int64_t>(1, kBlock / width);
  const int64_t blocks = blocks_of(n, together);
  const double work = 8.0 * windows * width;
  const float *x = operand.typed_data(), *u = updates.typed_data();
  float* const to = out->typed_data();
  if (to != x) return ffi::Error::InvalidArgument("expected the result in the operand's place");
  share(&pool, blocks, work, kThread, [&](int64_t block) {
    const IeeeArithmetic ieee;
    const int64_t end = std::min(n, (block + 1) * together);
    for (int64_t r = block * together; r < end; ++r) {
      const int64_t count = first[r + 1] - first[r], at = r * width;
      if (count > 0) {
        add(x + at, u, order.data() + first[r], count, width, int(precision), to + at);
      }
    }
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_scatter_add, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("width")
                                  .Attr<int64_t>("precision")
                                  .Ret<ffi::Buffer<ffi::F32>>());
