// Random bits (repjax_random_bits), and keys made of others (repjax_random_keys): of each key as many as
// there are results for it.

#include "axes.h"
#include "draws.h"
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

}  // namespace

ffi::Error draw_bits(ffi::ThreadPool* pool, const uint32_t* keys, int64_t count, int64_t words,
                     uint32_t* to) {
  if (count == 0 || words % count) {
    return ffi::Error::InvalidArgument("expected keys of two words and as many results for each");
  }
  const int64_t of_each = words / count, blocks = blocks_of(of_each, kBlock);
  const Random& set = instruction_set().random;
  if (count > 1 && of_each < set.together) {
    share(pool, blocks_of(words, kBlock), words, kThread, [=, &set](int64_t i) {
      const int64_t first = i * kBlock;
      set.bits_of_each(keys, of_each, nullptr, first, std::min(kBlock, words - first), to + first);
    });
    return ffi::Error::Success();
  }
  share(pool, count * blocks, words, kThread, [=, &set](int64_t i) {
    const int64_t k = i / blocks, first = i % blocks * kBlock;
    set.bits(keys + 2 * k, first, std::min(kBlock, of_each - first), to + k * of_each + first);
  });
  return ffi::Error::Success();
}

ffi::Error draw_keys(ffi::ThreadPool* pool, const uint32_t* keys, int64_t count,
                     const uint32_t* numbers, int64_t words, uint32_t* to) {
  if (count == 0 || words % (2 * count) || (numbers && words != 2 * count)) {
    return ffi::Error::InvalidArgument("expected keys of two words and as many results for each");
  }
  const Random& set = instruction_set().random;
  const int64_t of_each = words / (2 * count);
  if (count > 1 && of_each < set.together) {
    const int64_t size = count * of_each;
    share(pool, blocks_of(size, kBlock), size, kThread, [=, &set](int64_t i) {
      const int64_t first = i * kBlock;
      set.keys_of_each(keys, of_each, numbers, first, std::min(kBlock, size - first),
                       to + 2 * first);
    });
    return ffi::Error::Success();
  }
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t i = 0; i < of_each; i += kBlock) {
      const uint64_t first = numbers ? numbers[k] : i;
      set.keys(keys + 2 * k, first, std::min(kBlock, of_each - i), to + 2 * (k * of_each + i));
    }
  }
  return ffi::Error::Success();
}

namespace {

ffi::Error bits_of_call(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> keys,
                        ffi::ResultBuffer<ffi::U32> result) {
  const int64_t words = result->element_count();
  return draw_bits(&pool, keys.typed_data(), keys.element_count() / 2, words, written(result));
}

ffi::Error keys_of_call(ffi::ThreadPool pool, ffi::Buffer<ffi::U32> keys,
                        ffi::Buffer<ffi::U32> numbers, ffi::ResultBuffer<ffi::U32> result) {
  const int64_t count = keys.element_count() / 2, given = numbers.element_count();
  if (given && given != count) {
    return ffi::Error::InvalidArgument("expected a number for each key");
  }
  return draw_keys(&pool, keys.typed_data(), count, given ? numbers.typed_data() : nullptr,
                   result->element_count(), result->typed_data());
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_random_bits, repjax::bits_of_call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_random_keys, repjax::keys_of_call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Arg<ffi::Buffer<ffi::U32>>()
                                  .Ret<ffi::Buffer<ffi::U32>>());
