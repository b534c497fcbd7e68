// Contractions over strided arrays, for the kernels that are made of them.

#pragma once

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace repjax {

// Chains of fused multiply-adds of float to float, and exact sums of integers held by double
// (at most 2**22 in magnitude) to int64_t.
//
// problems: of each, the offsets of its first elements in lhs, rhs and out, the number of its
// axes, and of every axis its dimension (0 to 3 for g, m, n, k), its size, and its strides in
// lhs, rhs and out.
template <class Element, class Result>
xla::ffi::Error contract(xla::ffi::ThreadPool* pool, const Element* lhs, int64_t lhs_count,
                         const Element* rhs, int64_t rhs_count,
                         xla::ffi::Span<const int64_t> problems, Result* out, int64_t out_count);

}  // namespace repjax
