// Row groups (repjax_rows): softmax, layer norm and their like, some rows at a time, so that what
// is between their steps stays in the cache.
//
// repjax.primitives.cpu.rows writes a group as integers:
//
//   the rows and the elements of each; how many arrays in between have all elements, and how many
//   one element for each row; how many pieces of bytecode (bytecode.h) come first, and how many
//   steps
//   of each piece that comes first: the bytecode, and the number of the array that it takes
//   of each step: kCanonical, and the numbers of an operand of all elements and of the array that
//   it is when it is canonical; kFull, bytecode on all elements, or kOfRows, bytecode on one element
//   for each row, and the numbers of the arrays of its inputs and outputs; or kReduction, which join or
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
constexpr int64_t kFetched = 1 << 16;   // elements that are not in the L2 cache anyway

constexpr int64_t kOnGrid = 3;  // among the joins: an order-independent sum

enum Kind : int64_t { kFull, kOfRows, kReduction, kCanonical };

struct Step {
  Kind kind;
  Bytecode code;
  const int64_t* arrays;  // of the inputs and the outputs
  int64_t join, bits, from, to;
};

// An operand or result of all elements; where it is first used behind the longest step, that fetches
// it for the same rows, and else for the next ones.
struct Fetched {
  int64_t array, bytes;  // of an element
  bool writes, of_next;
};

// Where an array is, and the element that it begins with.
struct Place {
  float* data;
  int64_t origin;
  bool in_cache;

  float* at(int64_t element) const { return data + (element - origin); }
};

// Bytecode that comes first, and the array that it takes.
struct First {
  Bytecode code;
  Input input;
  Output output;
  int64_t from;
  std::vector<float> made;
};

// The steps, and the inputs and outputs of their bytecode, where each thread writes which rows it computes.
struct Work {
  std::vector<Step> steps;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
};

struct Rows {
  int64_t rows, n, full_count, row_count, cost;
  std::vector<First> first;
  std::vector<void*> memory;  // of arrays that are not in between
  Work work;
  int64_t longest;  // the step of most operations, which the memory has time to overlap
  std::vector<Fetched> fetched;

  bool decode(const std::vector<int64_t>& words, int64_t of_call);
  void find_fetched(int64_t known);
  void compute(Work& work, int64_t begin, int64_t end) const;
};

// What a thread needs to compute rows.
struct Computed {
  std::vector<Place> places;
  std::vector<Soon> soon;
};

// Of the arrays below `known`.
void Rows::find_fetched(int64_t known) {
  const std::vector<Step>& steps = work.steps;
  longest = -1;
  fetched.clear();
  for (size_t i = 0; i < steps.size(); ++i) {
    if (steps[i].kind != kFull) continue;
    if (longest < 0 || steps[i].code.cost > steps[longest].code.cost) longest = i;
  }
  if (longest < 0 || rows * n < kFetched) return;
  std::vector<bool> found(known);
  const auto add = [&](int64_t array, int64_t bytes, bool writes, bool of_next) {
    if (array >= known || found[array]) return;
    found[array] = true;
    fetched.push_back({array, bytes, writes, of_next});
  };
  const Input* input = work.inputs.data();
  const Output* output = work.outputs.data();
  for (const Step& step : steps) {
    if (step.kind == kReduction) continue;
    const bool of_next = &step <= &steps[longest];
    if (step.kind == kCanonical) {
      add(step.from, 4, false, of_next);
      continue;
    }
    const Bytecode& code = step.code;
    for (int64_t i = 0; i < code.input_count; ++i, ++input) {
      if (step.kind == kFull && input->contiguous()) {
        add(step.arrays[i], bytes_of(input->storage), false, of_next);
      }
    }
    for (int64_t i = 0; i < code.output_count; ++i, ++output) {
      if (step.kind == kFull) {
        add(step.arrays[code.input_count + i], bytes_of(output->storage), true, of_next);
      }
    }
  }
}

// Of a call with so many operands and results; whether the words are those of one.
bool Rows::decode(const std::vector<int64_t>& words, int64_t of_call) {
  const int64_t* next = words.data();
  rows = *next++;
  n = *next++;
  full_count = *next++;
  row_count = *next++;
  first.resize(*next++);
  auto& [steps, inputs, outputs] = work;
  steps.resize(*next++);
  inputs.clear();
  outputs.clear();
  for (First& x : first) {
    x.code = repjax::decode(next, &x.input, &x.output);
    x.from = *next++;
    x.made.resize(x.code.size);
    x.output.data = x.made.data();
  }
  cost = 0;
  for (Step& step : steps) {
    step.kind = Kind(*next++);
    if (step.kind == kCanonical) {
      step.from = *next++;
      step.to = *next++;
      ++cost;
      continue;
    }
    if (step.kind == kReduction) {
      step.join = *next++;
      step.bits = *next++;
      step.from = *next++;
      step.to = *next++;
      ++cost;
      continue;
    }
    const size_t input = inputs.size(), output = outputs.size();
    inputs.resize(input + next[1]);
    outputs.resize(output + next[2]);
    step.code = repjax::decode(next, inputs.data() + input, outputs.data() + output);
    if (step.kind == kFull) cost += step.code.cost;
    step.arrays = next;
    next += step.code.input_count + step.code.output_count;
  }
  find_fetched(of_call);
  return next == words.data() + words.size();
}

// The same numbers, made canonical: nearly always they are, and stay where they are.
Place canonical(const Elementwise& set, const Place& from, int64_t first, int64_t count,
                Place to) {
  const int64_t whole = round_up(count, set.lanes);
  const auto* x = reinterpret_cast<const int32_t*>(from.at(first));
  if (set.are_canonical && count == whole && set.are_canonical(count, x)) {
    return {from.data, from.origin, true};
  }
  auto* const y = reinterpret_cast<int32_t*>(to.data);
  std::copy_n(x, count, y);
  const Operand copy = {y, false};
  const IeeeArithmetic flushing(true);
  set.apply(Operation::canonicalize, whole, copy, copy, copy, y);
  return to;
}

void Rows::compute(Work& work, int64_t begin, int64_t end) const {
  const IeeeArithmetic ieee;
  const InstructionSet& set = instruction_set();
  const int64_t most = std::min(std::max<int64_t>(1, kTogether / n), end - begin);
  const int64_t full = round_up(most * n, kLine), row = round_up(most, kLine);
  const int64_t of_sums = n / 4 + 8 * set.sums.lanes;
  float* const between = scratch<kBetween, float>(full_count * full + row_count * row + of_sums);
  float* const of_rows = between + full_count * full;
  float* const partial = of_rows + row_count * row;
  auto& [places, soon] = of_thread<Computed>();
  places.clear();
  for (void* array : memory) places.push_back({static_cast<float*>(array), 0, false});
  const int64_t known = memory.size();
  places.resize(known + full_count + row_count);
  soon.clear();
  for (const Fetched& x : fetched) {
    const char* const array = static_cast<const char*>(memory[x.array]);
    soon.push_back({array + (x.of_next ? most * n * x.bytes : 0), x.bytes, x.writes});
  }
  for (int64_t first = begin; first < end; first += most) {
    const int64_t last = std::min(first + most, end);
    for (int64_t i = 0; i < full_count; ++i) {
      places[known + i] = {between + i * full, first * n, true};
    }
    for (int64_t i = 0; i < row_count; ++i) {
      places[known + full_count + i] = {of_rows + i * row, first, true};
    }
    Input* input = work.inputs.data();
    Output* output = work.outputs.data();
    for (Step& step : work.steps) {
      if (step.kind == kCanonical) {
        const int64_t count = (last - first) * n;
        Place& to = places[step.to];
        to = canonical(set.elementwise, places[step.from], first * n, count, to);
        continue;
      }
      if (step.kind == kReduction) {
        const float* from = places[step.from].at(first * n);
        float* to = places[step.to].at(first);
        if (step.join == kOnGrid) {
          order_independent_rows(set.grid_sums, from, last - first, n, step.bits, to);
        } else {
          const IeeeArithmetic flushing(true);
          set.sums.pairwise_rows[false][step.join](from, last - first, n, partial, to);
        }
        continue;
      }
      Bytecode& code = step.code;
      code.inputs = input;
      code.outputs = output;
      const int64_t* array = step.arrays;
      for (int64_t i = 0; i < code.input_count; ++i, ++input, ++array) {
        const Place& place = places[*array];
        input->data = place.data;
        input->origin = place.origin;
        input->in_cache = place.in_cache;
      }
      for (int64_t i = 0; i < code.output_count; ++i, ++output, ++array) {
        const Place& place = places[*array];
        output->data = place.data;
        output->origin = place.origin;
        output->in_cache = place.in_cache;
      }
      if (step.kind == kOfRows) {
        evaluate(code, set.elementwise, first, last);
        continue;
      }
      if (&step == &work.steps[longest]) {
        code.soon = soon.data();
        code.soon_count = last + most <= end ? soon.size() : 0;
      }
      if (n < code.block || n % code.block == 0) {
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
    for (const Fetched& x : fetched) places[x.array].in_cache = true;
  }
}

}  // namespace

ffi::Error row_group(ffi::ThreadPool* pool, const void* const* operands, size_t operand_count,
                     void* const* results, size_t result_count, ffi::Span<const int64_t> encoded) {
  const int64_t of_call = operand_count + result_count;
  Rows* const call = of_thread<Calls<Rows>>().find(
      encoded, [=](const std::vector<int64_t>& words, Rows& rows) {
        return rows.decode(words, of_call);
      });
  if (!call) return ffi::Error::InvalidArgument("the bytecode is for other operands");
  Rows& rows = *call;
  rows.memory.clear();
  for (size_t i = 0; i < operand_count; ++i) {
    rows.memory.push_back(const_cast<void*>(operands[i]));
  }
  rows.memory.insert(rows.memory.end(), results, results + result_count);
  for (First& first : rows.first) {
    first.input.data = rows.memory[first.from];
    evaluate(first.code, instruction_set().elementwise, 0, first.code.size);
    rows.memory.push_back(first.made.data());
  }

  const int64_t threads = useful_threads(pool, rows.rows * rows.n * rows.cost, kThread);
  if (threads == 1) {
    rows.compute(rows.work, 0, rows.rows);
    return ffi::Error::Success();
  }
  const int64_t parts = std::min(rows.rows, threads * kParts);
  in_parallel(pool, threads, parts, [&](int64_t i) {
    Work& own = of_thread<Work>();
    own = rows.work;
    rows.compute(own, i * rows.rows / parts, (i + 1) * rows.rows / parts);
  });
  return ffi::Error::Success();
}

namespace {

ffi::Error handle(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                  ffi::Span<const int64_t> encoded) {
  const std::vector<const void*>& operands = operands_of(args);
  const std::vector<void*>& results = results_of(rets);
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
