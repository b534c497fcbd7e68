// The largest elements of rows (repjax_top_k), descending, NaNs first, equal ones in their order; and
// where they are.

#include "axes.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 15;  // elements that are worth a thread
constexpr int64_t kFew = 64;          // which are inserted one by one

// An element's key, and behind it its position: what is larger comes first.
uint64_t code_of(float x, int64_t position) {
  return uint64_t(uint32_t(key_of(x)) ^ 0x80000000u) << 32 | uint32_t(~position);
}
int32_t key_of_code(uint64_t code) { return int32_t(uint32_t(code >> 32) ^ 0x80000000u); }

// Keeps the largest codes in their order: those of the elements that are above the last of them.
void find_few(const Sums& set, const float* x, int64_t n, int64_t k, uint64_t* codes) {
  int64_t count = 0;
  for (int64_t at = 0; at < n; ++at) {
    if (count == k) {
      at = set.next_above(x, at, n, key_of_code(codes[k - 1]));
      if (at == n) return;
    }
    const uint64_t code = code_of(x[at], at);
    int64_t place = count < k ? count++ : k - 1;
    for (; place > 0 && codes[place - 1] < code; --place) codes[place] = codes[place - 1];
    codes[place] = code;
  }
}

void find_many(const float* x, int64_t n, int64_t k, uint64_t* codes) {
  for (int64_t i = 0; i < n; ++i) codes[i] = code_of(x[i], i);
  if (k < n) std::nth_element(codes, codes + k, codes + n, std::greater<>());
  std::sort(codes, codes + k, std::greater<>());
}

void find_row(const Sums& set, const float* x, int64_t n, int64_t k, float* values,
              int32_t* positions) {
  uint64_t few[kFew];
  const std::unique_ptr<uint64_t[]> many(k > kFew ? new uint64_t[n] : nullptr);
  uint64_t* const codes = k > kFew ? many.get() : few;
  k > kFew ? find_many(x, n, k, codes) : find_few(set, x, n, k, codes);
  for (int64_t i = 0; i < k; ++i) {
    positions[i] = int32_t(~uint32_t(codes[i]));
    values[i] = x[positions[i]];
  }
}

ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, int64_t n,
                  ffi::ResultBuffer<ffi::F32> values, ffi::ResultBuffer<ffi::S32> positions) {
  const int64_t size = x.element_count(), rows = n > 0 ? size / n : 0;
  const int64_t k = rows > 0 ? int64_t(values->element_count()) / rows : 0;
  if (rows * n != size || k < 1 || k > n || rows * k != int64_t(values->element_count()) ||
      rows * k != int64_t(positions->element_count())) {
    return ffi::Error::InvalidArgument("expected rows of n elements, and at most n of each");
  }
  const Sums& set = instruction_set().sums;
  share(&pool, rows, size, kThread,
        [=, &set, from = x.typed_data(), to = values->typed_data(),
         at = positions->typed_data()](int64_t row) {
    find_row(set, from + row * n, n, k, to + row * k, at + row * k);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_top_k, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("n")
                                  .Ret<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());
