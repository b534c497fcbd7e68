// The terms of reductions, which may be computed as they are taken.

#pragma once

#include "bytecode.h"
#include "instruction_sets.h"
#include "threads.h"

#include <cstdint>
#include <string_view>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace repjax {

// The terms of a reduction: elements in memory, or results of bytecode.
struct Elements {
  const float* x = nullptr;
  const Bytecode* code = nullptr;
  int64_t first = 0;
  Summed terms = Summed::kElements;  // of those in memory, or where they are moved
  bool moved = false;                // the code only takes elements in another order

  // Where runs of terms that lie together are so long that they are read where they are.
  bool in_long_runs() const {
    constexpr int64_t kLong = 4096;
    return moved && code->inputs[0].axes[code->inputs[0].rank - 1].size >= kLong;
  }

  Elements from(int64_t i) const { return {code ? x : x + i, code, first + i, terms, moved}; }

  // So many elements from `begin` on, where they are, or at `to`.
  const float* get(int64_t begin, int64_t count, float* to) const {
    if (!code) return x + begin;
    const int64_t at = first + begin;
    if (moved) {
      take_elements(code->inputs[0], at, count, reinterpret_cast<int32_t*>(to));
      return to;
    }
    Bytecode here = *code;
    const Output output = {to, kWord, at};
    here.outputs = &output;
    evaluate(here, instruction_set().elementwise, at, at + count);
    return to;
  }

  // So many rows of `width` elements, `*row` apart, which it sets to how far apart they are there.
  const float* get(int64_t begin, int64_t rows, int64_t* row, int64_t width, float* to) const {
    if (!code) return x + begin;
    if (*row == width) return get(begin, rows * width, to);
    for (int64_t i = 0; i < rows; ++i) get(begin + i * *row, width, to + i * width);
    *row = width;
    return to;
  }

  float* memory(int64_t count) const {
    return code ? scratch<kStaged, float>(count + kMostLanes) : nullptr;
  }
  int64_t operations() const { return code ? 1 + code->cost : 1; }
};

// What bytecode makes of a single array, if it is one of these; else kElements.
inline Summed terms_of(const Bytecode& code) {
  int64_t canonical = 0;  // the register of the canonical elements: the input's, or another
  for (int64_t i = 0; i < code.instruction_count; ++i) {
    const Instruction& x = code.instructions[i];
    const bool is_last = i + 1 == code.instruction_count;
    if (Operation(x.operation) == Operation::canonicalize && i == 0) {
      if (is_last) return Summed::kRawElements;
      canonical = x.to;
    } else if (Operation(x.operation) == Operation::mul && is_last && x.from[0] == canonical &&
               x.from[1] == canonical) {
      return Summed::kSquares;
    } else {
      break;
    }
  }
  return Summed::kElements;
}

// Whether it makes nothing of it.
inline bool is_copy(const Bytecode& code) {
  const Instruction& x = code.instructions[0];
  return code.instruction_count == 1 && Operation(x.operation) == Operation::bitwise_or &&
         x.from[0] == 0 && x.from[1] == 0;
}

// Those of bytecode; their memory is the thread's.
struct Inputs {
  std::vector<Input> inputs;
};

// The terms of a call, and what they are computed from.
struct Source {
  Elements x;

  // The one operand, or bytecode of all, which has `count` results.  Where that makes of what lies in
  // memory terms up to `most`, the terms are those.
  xla::ffi::Error read(const void* const* operands, size_t operand_count,
                       xla::ffi::Span<const int64_t> encoded, int64_t count, Summed most) {
    if (encoded.size() == 0) {
      x.x = static_cast<const float*>(operands[0]);
      return xla::ffi::Error::Success();
    }
    const int64_t* next = encoded.begin();
    const xla::ffi::Error of_others =
        xla::ffi::Error::InvalidArgument("the bytecode is for other operands");
    if (next[0] != count || next[1] > int64_t(operand_count) || next[2] != 1) return of_others;
    auto& inputs = of_thread<Inputs>().inputs;
    inputs.resize(next[1]);
    code_ = decode(next, inputs.data(), &output_);
    if (count_operands(code_.inputs, code_.input_count) != int64_t(operand_count)) return of_others;
    take_operands(inputs.data(), code_.input_count, operands);
    const Input& input = inputs[0];
    const bool is_single = code_.input_count == 1 && input.storage == kWord;
    const Summed terms = is_single ? terms_of(code_) : Summed::kElements;
    const bool is_known = terms != Summed::kElements && terms <= most;
    if (is_known && input.contiguous()) {
      x.x = static_cast<const float*>(input.data);
      x.terms = terms;
      return xla::ffi::Error::Success();
    }
    x.code = &code_;
    const bool in_runs = is_single && input.rank > 0 && input.axes[input.rank - 1].strides[0] == 1;
    if (in_runs && most == Summed::kSquares && (is_known || is_copy(code_))) {
      x.moved = true;
      x.terms = terms;
    }
    return xla::ffi::Error::Success();
  }
  xla::ffi::Error read(const xla::ffi::RemainingArgs& args,
                       xla::ffi::Span<const int64_t> encoded, int64_t count, Summed most) {
    const std::vector<const void*>& operands = operands_of(args);
    return read(operands.data(), operands.size(), encoded, count, most);
  }

 private:
  Output output_;
  Bytecode code_;
};

// Sums over the second of three axes of these sizes, or extrema: accumulation is pairwise,
// sequential, max or min.  The terms are the operand or, if there is bytecode, its results.
xla::ffi::Error reduce_sum(xla::ffi::ThreadPool* pool, const void* const* operands,
                           size_t operand_count, xla::ffi::Span<const int64_t> sizes,
                           std::string_view accumulation, xla::ffi::Span<const int64_t> encoded,
                           float* out);

}  // namespace repjax
