// Random bits (repjax_random_bits), and keys made of others (repjax_random_keys): of each key as many as
// there are results for it.

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

ffi::Error draw_bits(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> keys,
                     ffi::ResultBuffer<ffi::U32> result) {
  const int64_t count = keys.element_count() / 2, size = result->element_count();
  if (count == 0 || size % count) {
    return ffi::Error::InvalidArgument("expected keys of two words and as many results for each");
  }
  const int64_t of_each = size / count, blocks = blocks_of(of_each, kBlock);
  const Random& set = instruction_set().random;
  const uint32_t* const key = keys.typed_data();
  uint32_t* const to = written(result);
  if (count > 1 && of_each < set.together) {
    share(&pool, blocks_of(size, kBlock), size, kThread, [=, &set](int64_t i) {
      const int64_t first = i * kBlock;
      set.bits_of_each(key, of_each, nullptr, first, std::min(kBlock, size - first), to + first);
    });
    return ffi::Error::Success();
  }
  share(&pool, count * blocks, size, kThread, [=, &set](int64_t i) {
    const int64_t k = i / blocks, first = i % blocks * kBlock;
    set.bits(key + 2 * k, first, std::min(kBlock, of_each - first), to + k * of_each + first);
  });
  return ffi::Error::Success();
}

// With the numbers from 0 on or, where there are some, with one number for each key.
ffi::Error draw_keys(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> keys,
                     ffi::Buffer<ffi::U32> numbers, ffi::ResultBuffer<ffi::U32> result) {
  const int64_t count = keys.element_count() / 2, given = numbers.element_count();
  const int64_t words = result->element_count();
  if (count == 0 || words % (2 * count) || (given && (given != count || words != 2 * count))) {
    return ffi::Error::InvalidArgument("expected keys of two words and as many results for each");
  }
  const Random& set = instruction_set().random;
  const int64_t of_each = words / (2 * count);
  if (count > 1 && of_each < set.together) {
    const int64_t size = count * of_each;
    share(&pool, blocks_of(size, kBlock), size, kThread,
          [=, &set, key = keys.typed_data(), to = result->typed_data(),
           number = given ? numbers.typed_data() : nullptr](int64_t i) {
      const int64_t first = i * kBlock;
      set.keys_of_each(key, of_each, number, first, std::min(kBlock, size - first), to + 2 * first);
    });
    return ffi::Error::Success();
  }
  for (int64_t k = 0; k < count; ++k) {
    const uint32_t* const key = keys.typed_data() + 2 * k;
    uint32_t* const to = result->typed_data() + 2 * k * of_each;
    for (int64_t i = 0; i < of_each; i += kBlock) {
      const uint64_t first = given ? numbers.typed_data()[k] : i;
      set.keys(key, first, std::min(kBlock, of_each - i), to + 2 * i);
    }
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_random_bits, repjax::draw_bits,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_random_keys, repjax::draw_keys,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>());
