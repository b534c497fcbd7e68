// Random bits, and keys made of others.

#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace repjax {

// `words` bits of so many keys, as many of each.
xla::ffi::Error draw_bits(xla::ffi::ThreadPool* pool, const uint32_t* keys, int64_t count,
                          int64_t words, uint32_t* to);
// Keys of so many words of others: with the numbers from 0 on or, where there are some, with one number
// for each key.
xla::ffi::Error draw_keys(xla::ffi::ThreadPool* pool, const uint32_t* keys, int64_t count,
                          const uint32_t* numbers, int64_t words, uint32_t* to);

}  // namespace repjax
