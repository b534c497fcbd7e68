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

// What a call needs; of a small call, getting memory takes the longest.
struct Call {
  std::vector<Bytecode> groups;
  std::vector<Input> inputs;
  std::vector<Output> outputs;
  std::vector<Blocks> parts;
};

ffi::Error of_others() {
  return ffi::Error::InvalidArgument("the bytecode is for other operands");
}

}  // namespace

ffi::Error elementwise(ffi::ThreadPool* pool, const void* const* operands, size_t operand_count,
                       void* const* results, size_t result_count,
                       ffi::Span<const int64_t> encoded) {
  auto& [groups, inputs, outputs, parts] = of_thread<Call>();
  const int64_t* next = encoded.begin();
  groups.resize(*next++);
  inputs.resize(operand_count);
  outputs.resize(result_count);
  parts.clear();
  size_t input = 0, operand = 0, output = 0;
  for (Bytecode& code : groups) {
    const size_t most = operand_count - operand;  // each input is one operand at least
    if (next[1] > int64_t(most) || output + next[2] > result_count) return of_others();
    code = decode(next, inputs.data() + input, outputs.data() + output);
    const size_t taken = count_operands(code.inputs, code.input_count);
    if (taken > most) return of_others();
    take_operands(inputs.data() + input, code.input_count, operands + operand);
    operand += taken;
    input += code.input_count;
    for (const size_t last = output + code.output_count; output < last; ++output) {
      outputs[output].data = results[output];
    }
  }

  int64_t operations = 0;
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
  const Elementwise& set = instruction_set().elementwise;
  share(pool, parts.size(), operations, kThread, [of = parts.data(), &set](int64_t i) {
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
  constexpr int64_t kTogether = 1 << 12, kMostLanes = 16;
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
