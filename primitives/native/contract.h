// Contractions over strided arrays, for the kernels that are made of them.

#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace repjax {

// Of the terms of a sum, which to add, and how many products of them have a sum that an
// accumulator holds: for integers, below 2**51 in magnitude.
struct Terms {
  int64_t begin = 0, end = INT64_MAX, block = 128;
};

// Chains of fused multiply-adds of float to float, and exact sums of integers held by double to
// int64_t.
//
// problems: of each, the offsets of its first elements in lhs, rhs and out, the number of its
// axes, and of every axis its dimension (0 to 3 for g, m, n, k), its size, and its strides in
// lhs, rhs and out.
template <class Element, class Result>
xla::ffi::Error contract(xla::ffi::ThreadPool* pool, const Element* lhs, int64_t lhs_count,
                         const Element* rhs, int64_t rhs_count,
                         xla::ffi::Span<const int64_t> problems, Result* out, int64_t out_count,
                         Terms terms);

}  // namespace repjax
