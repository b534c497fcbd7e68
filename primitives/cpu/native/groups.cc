// Fused groups (repjax_elementwise): connected elementwise operations, as bytecode; and
// repjax_canonicalize, which makes an array canonical where it is.
//
// The names of the call and of its attribute stay as they are: the certificates in docs/proofs name
// a program, in which they stand, by its digest.

#include "axes.h"
#include "bytecode.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 18;  // operations that are worth a thread

// Elements [begin, end) of one of the groups.
struct Blocks {
  const Bytecode* code;
  int64_t begin, end;
};

// Whether an output is a result or, of its two parts, the first one.
bool is_first(const Output& output) { return output.storage != kImaginary; }

struct Groups {
  std::vector<Bytecode> groups;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<Blocks> parts;
  int64_t operands, results, operations;

  // Whether the words are those of groups with so many results.
  bool decode(const std::vector<int64_t>& words, size_t result_count) {
    const int64_t* next = words.data();
    groups.resize(*next++);
    inputs.clear();
    outputs.clear();
    for (Bytecode& code : groups) {
      const size_t input = inputs.size(), output = outputs.size();
      inputs.resize(input + next[1]);
      outputs.resize(output + next[2]);
      code = repjax::decode(next, inputs.data() + input, outputs.data() + output);
    }
    operands = count_operands(inputs.data(), inputs.size());
    results = std::count_if(outputs.begin(), outputs.end(), is_first);
    const Input* input = inputs.data();
    const Output* output = outputs.data();
    for (Bytecode& code : groups) {  // where the vectors are in the end
      code.inputs = input;
      code.outputs = output;
      input += code.input_count;
      output += code.output_count;
    }
    for (; next != words.data() + words.size(); next += 3) {
      Bytecode& code = groups[next[0]];
      put_in_place(code, next[1], outputs[code.outputs - outputs.data() + next[2]]);
    }
    divide();
    return results <= int64_t(result_count);
  }

  // Into parts for several threads.
  void divide() {
    operations = 0;
    parts.clear();
    for (const Bytecode& code : groups) {
      const int64_t here = code.size * code.cost;
      operations += here;
      if (here < 2 * kThread) {
        parts.push_back({&code, 0, code.size});
        continue;
      }
      const int64_t blocks = blocks_of(code.size, code.block);
      const int64_t count = std::min(blocks, here / kThread);
      for (int64_t i = 0; i < count; ++i) {
        const int64_t begin = i * blocks / count * code.block;
        const int64_t end = (i + 1) * blocks / count * code.block;
        parts.push_back({&code, begin, std::min(end, code.size)});
      }
    }
  }
};

}  // namespace

ffi::Error elementwise(ffi::ThreadPool* pool, const void* const* operands, size_t operand_count,
                       void* const* results, size_t result_count,
                       ffi::Span<const int64_t> encoded) {
  Groups* const call = of_thread<Calls<Groups>>().find(
      encoded, [=](const std::vector<int64_t>& words, Groups& groups) {
        return groups.decode(words, result_count);
      });
  if (!call || call->operands > int64_t(operand_count) || call->results > int64_t(result_count)) {
    return ffi::Error::InvalidArgument("the bytecode is for other operands");
  }
  take_operands(call->inputs.data(), call->inputs.size(), operands);
  for (Output& output : call->outputs) output.data = is_first(output) ? *results++ : results[-1];
  const Elementwise& set = instruction_set().elementwise;
  share(pool, call->parts.size(), call->operations, kThread,
        [of = call->parts.data(), &set](int64_t i) {
    evaluate(*of[i].code, set, of[i].begin, of[i].end);
  });
  return ffi::Error::Success();
}

namespace {

ffi::Error handle(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                  ffi::Span<const int64_t> encoded) {
  const std::vector<const void*>& operands = operands_of(args);
  const std::vector<void*>& results = results_of(rets);
  return elementwise(&pool, operands.data(), operands.size(), results.data(), results.size(),
                     encoded);
}

// Where elements are not canonical, which is rare, since what this library makes is.
ffi::Error canonicalize(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x,
                        ffi::ResultBuffer<ffi::F32> result) {
  constexpr int64_t kTogether = 1 << 12;
  const Elementwise& set = instruction_set().elementwise;
  const int64_t size = x.element_count(), lanes = set.lanes;
  auto* const to = reinterpret_cast<int32_t*>(result->typed_data());
  if (result->typed_data() != x.typed_data()) {  // XLA has them in one place
    return ffi::Error::InvalidArgument("the result is not in the place of the operand");
  }
  share(&pool, blocks_of(size, kTogether), size, kThread, [=, &set](int64_t i) {
    const IeeeArithmetic ieee;
    int32_t* const y = to + i * kTogether;
    const int64_t count = std::min(kTogether, size - i * kTogether), whole = count & -lanes;
    if (set.are_canonical && whole > 0 && set.are_canonical(count, y)) return;
    const auto apply = [&](int64_t count, int32_t* y) {
      const Operand operand = {y, false};
      set.apply(Operation::canonicalize, count, operand, operand, operand, y);
    };
    apply(whole, y);
    int32_t rest[kMostLanes] = {};
    std::copy(y + whole, y + count, rest);
    apply(lanes, rest);
    std::copy_n(rest, count - whole, y + whole);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_elementwise, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const int64_t>>("programs"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_canonicalize, repjax::canonicalize,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Ret<ffi::Buffer<ffi::F32>>());
