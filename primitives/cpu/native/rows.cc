// Row groups (repjax_rows): softmax, layer norm and their like, some rows at a time, so that what
// is between their steps stays in the cache.
//
// repjax.primitives.cpu.rows writes a group as integers:
//
//   the rows and the elements of each; how many arrays in between have all elements, and how many
//   one element for each row; how many pieces of bytecode (bytecode.h) come first, and how many
//   steps
//   of each piece that comes first: the bytecode, and the number of the array that it takes
//   of each step: kFull, bytecode on all elements, or kOfRows, bytecode on one element for each
//   row, and the numbers of the arrays of its inputs and outputs; or kReduction, which join or
//   kOnGrid, the bits of the grid (grid_sums.h), and the numbers of the array of all elements that
//   it takes and of the array of rows that it makes
//
// The arrays are numbered: the operands, the results, what the pieces that come first make, and in
// between the arrays of all elements and those of one element for each row.

#include "axes.h"
#include "bytecode.h"
#include "grid_sums.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 17;    // operations that are worth a thread
constexpr int64_t kParts = 8;           // of the rows for a thread, some of which are late
constexpr int64_t kLine = 16;           // elements of a line of the cache
constexpr int64_t kTogether = 1 << 13;  // elements of rows that are computed together

constexpr int64_t kOnGrid = 3;  // among the joins: an order-independent sum

enum Kind : int64_t { kFull, kOfRows, kReduction };

struct Step {
  Kind kind;
  Bytecode code;
  const int64_t* arrays;  // of the inputs and the outputs
  int64_t join, bits, from, to;
};

struct Rows {
  int64_t rows, n, full_count, row_count;
  std::vector<void*> memory;  // of arrays that are not in between
  std::vector<Step> steps;
  std::vector<Input> inputs;
  std::vector<Output> outputs;

  int64_t cost() const {
    int64_t sum = 0;
    for (const Step& step : steps) {
      if (step.kind != kOfRows) sum += step.kind == kFull ? step.code.cost() : 1;
    }
    return sum;
  }

  void compute(int64_t begin, int64_t end) const;
};

void Rows::compute(int64_t begin, int64_t end) const {
  const IeeeArithmetic ieee;
  const InstructionSet& set = instruction_set();
  const int64_t most = std::min(std::max<int64_t>(1, kTogether / n), end - begin);
  const int64_t full = round_up(most * n, kLine), row = round_up(most, kLine);
  const int64_t of_sums = n / 4 + 8 * set.sums.lanes;
  float* const between = scratch<kBetween, float>(full_count * full + row_count * row + of_sums);
  float* const of_rows = between + full_count * full;
  float* const partial = of_rows + row_count * row;
  const int64_t known = memory.size();
  const auto at = [&](int64_t array) -> float* {
    if (array < known) return static_cast<float*>(memory[array]);
    array -= known;
    return array < full_count ? between + array * full : of_rows + (array - full_count) * row;
  };
  // The first element that the array has.
  const auto origin = [&](int64_t array, int64_t first) {
    return array < known ? 0 : array - known < full_count ? first * n : first;
  };

  std::vector<Input> own_inputs = inputs;
  std::vector<Output> own_outputs = outputs;
  for (int64_t first = begin; first < end; first += most) {
    const int64_t last = std::min(first + most, end);
    Input* input = own_inputs.data();
    Output* output = own_outputs.data();
    for (const Step& step : steps) {
      if (step.kind == kReduction) {
        const float* from = at(step.from) + (first * n - origin(step.from, first));
        float* to = at(step.to) + (first - origin(step.to, first));
        if (step.join == kOnGrid) {
          order_independent_rows(set.grid_sums, from, last - first, n, step.bits, to);
        } else {
          set.sums.pairwise_rows[false][step.join](from, last - first, n, partial, to);
        }
        continue;
      }
      Bytecode code = step.code;
      code.inputs = input;
      code.outputs = output;
      const int64_t* array = step.arrays;
      for (int64_t i = 0; i < code.input_count; ++i, ++input, ++array) {
        input->data = at(*array);
        input->origin = origin(*array, first);
        input->in_cache = *array >= known;
      }
      for (int64_t i = 0; i < code.output_count; ++i, ++output, ++array) {
        output->data = at(*array);
        output->origin = origin(*array, first);
        output->in_cache = *array >= known;
      }
      if (step.kind == kOfRows) {
        evaluate(code, set.elementwise, first, last);
      } else if (n < code.block || n % code.block == 0) {
        // Whole rows, or parts of one.
        if (n < code.block) code.block = code.block / n * n;
        code.until = end * n;
        evaluate(code, set.elementwise, first * n, last * n);
      } else {
        for (int64_t r = first; r < last; ++r) {
          evaluate(code, set.elementwise, r * n, (r + 1) * n);
        }
      }
    }
  }
}

}  // namespace

ffi::Error row_group(ffi::ThreadPool* pool, const void* const* operands, size_t operand_count,
                     void* const* results, size_t result_count, ffi::Span<const int64_t> encoded) {
  const int64_t* next = encoded.begin();
  Rows rows = {next[0], next[1], next[2], next[3], {}, {}, {}, {}};
  const int64_t first = next[4];
  rows.steps.resize(next[5]);
  next += 6;
  for (size_t i = 0; i < operand_count; ++i) {
    rows.memory.push_back(const_cast<void*>(operands[i]));
  }
  rows.memory.insert(rows.memory.end(), results, results + result_count);
  std::vector<std::vector<float>> made(first);
  for (std::vector<float>& array : made) {
    Input input;
    Output output;
    const Bytecode code = decode(next, &input, &output);
    input.data = rows.memory[*next++];
    array.resize(code.size);
    output.data = array.data();
    evaluate(code, instruction_set().elementwise, 0, code.size);
    rows.memory.push_back(array.data());
  }
  for (Step& step : rows.steps) {
    step.kind = Kind(*next++);
    if (step.kind == kReduction) {
      step.join = *next++;
      step.bits = *next++;
      step.from = *next++;
      step.to = *next++;
      continue;
    }
    const size_t inputs = rows.inputs.size(), outputs = rows.outputs.size();
    rows.inputs.resize(inputs + next[1]);
    rows.outputs.resize(outputs + next[2]);
    step.code = decode(next, rows.inputs.data() + inputs, rows.outputs.data() + outputs);
    step.arrays = next;
    next += step.code.input_count + step.code.output_count;
  }
  if (next != encoded.end()) {
    return ffi::Error::InvalidArgument("the bytecode is for other operands");
  }

  const int64_t operations = rows.rows * rows.n * rows.cost();
  const int64_t threads = useful_threads(pool, operations, kThread);
  const int64_t parts = std::min(rows.rows, threads == 1 ? 1 : threads * kParts);
  in_parallel(pool, threads, parts, [&](int64_t i) {
    rows.compute(i * rows.rows / parts, (i + 1) * rows.rows / parts);
  });
  return ffi::Error::Success();
}

namespace {

ffi::Error handle(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                  ffi::Span<const int64_t> encoded) {
  std::vector<const void*> operands;
  std::vector<void*> results;
  for (size_t i = 0; i < args.size(); ++i) {
    operands.push_back(args.get<ffi::AnyBuffer>(i)->untyped_data());
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    results.push_back((*rets.get<ffi::AnyBuffer>(i))->untyped_data());
  }
  return row_group(&pool, operands.data(), operands.size(), results.data(), results.size(),
                   encoded);
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_rows, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const int64_t>>("bytecode"));
