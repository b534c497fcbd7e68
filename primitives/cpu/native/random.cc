// Random bits (repjax_random_bits): of each key as many as there are results for it.

#include "axes.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 14;  // words that are worth a thread
constexpr int64_t kBlock = 1 << 12;   // a power of two, in which only the counters' low words differ

ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> keys,
                  ffi::ResultBuffer<ffi::U32> result) {
  const int64_t count = keys.element_count() / 2, size = result->element_count();
  if (count == 0 || size % count) {
    return ffi::Error::InvalidArgument("expected keys of two words and as many results for each");
  }
  const int64_t of_each = size / count, blocks = blocks_of(of_each, kBlock);
  const Random& set = instruction_set().random;
  share(&pool, count * blocks, size, kThread,
        [=, &set, key = keys.typed_data(), to = written(result)](int64_t i) {
    const int64_t k = i / blocks, first = i % blocks * kBlock;
    set.draw(key + 2 * k, first, std::min(kBlock, of_each - first), to + k * of_each + first);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_random_bits, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>());
