// Fused groups (repjax_elementwise): connected elementwise operations, as bytecode; and
// repjax_canonicalize, which makes an array canonical where it is.
//
// The names of the call and of its attribute stay as they are: the certificates in docs/proofs name
// a program, in which they stand, by its digest.

#include "axes.h"
#include "groups.h"
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

// Whether an output is a result or, of its two parts, the first one.
bool is_first(const Output& output) { return output.storage != kImaginary; }

}  // namespace

void Groups::decode(const int64_t* words, size_t count) {
  const int64_t* next = words;
  groups_.resize(*next++);
  inputs_.clear();
  outputs_.clear();
  for (Bytecode& code : groups_) {
    const size_t input = inputs_.size(), output = outputs_.size();
    inputs_.resize(input + next[1]);
    outputs_.resize(output + next[2]);
    code = repjax::decode(next, inputs_.data() + input, outputs_.data() + output);
  }
  const Input* input = inputs_.data();
  const Output* output = outputs_.data();
  for (Bytecode& code : groups_) {  // where the vectors are in the end
    code.inputs = input;
    code.outputs = output;
    input += code.input_count;
    output += code.output_count;
  }
  for (; next != words + count; next += 3) {
    Bytecode& code = groups_[next[0]];
    put_in_place(code, next[1], outputs_[code.outputs - outputs_.data() + next[2]]);
  }
  operands_ = count_operands(inputs_.data(), inputs_.size());
  results_ = std::count_if(outputs_.begin(), outputs_.end(), is_first);
  divide();
  find_ends();
}

void Groups::find_ends() {
  ends_.clear();
  constexpr int64_t kBlocks = 4;
  const Bytecode& code = groups_[0];
  const Elementwise& set = instruction_set().elementwise;
  if (groups_.size() > 1 || !is_short(code, set, code.size, kBlocks)) return;
  const bool are_words = std::all_of(outputs_.begin(), outputs_.end(),
                                     [](const Output& output) { return output.storage == kWord; });
  if (!are_words) return;
  for (const Input& input : inputs_) {
    const int64_t together = input.parts ? -1 : input.scalar() ? 0 : input.together(0, code.size);
    if (input.storage != kWord || together < 0) return ends_.clear();
    ends_.push_back({input.first + together, input.scalar()});
  }
}

void Groups::compute_short(const void* const* operands, void* const* results) const {
  const Elementwise& set = instruction_set().elementwise;
  const Bytecode& code = groups_[0];
  const int64_t inputs = code.input_count, outputs = code.output_count;
  ShortLines lines;
  Few ends[kShort];
  const int64_t length = line_of(set, code.size);
  for (int64_t begin = 0; begin < code.size; begin += length) {
    const int64_t count = std::min(length, code.size - begin);
    for (int64_t i = 0; i < inputs; ++i) {
      const End& end = ends_[i];
      auto* const data = static_cast<int32_t*>(const_cast<void*>(operands[i])) + end.first;
      ends[i] = {end.is_number ? data : data + begin, end.is_number ? 1 : count};
    }
    for (int64_t i = 0; i < outputs; ++i) {
      ends[inputs + i] = {static_cast<int32_t*>(results[i]) + begin, count};
    }
    run_short(code, set, ends, count, lines);
  }
}

// Into parts for several threads.
void Groups::divide() {
  operations_ = 0;
  parts_.clear();
  for (const Bytecode& code : groups_) {
    const int64_t here = code.size * code.cost;
    operations_ += here;
    if (here < 2 * kThread) {
      parts_.push_back({&code, 0, code.size});
      continue;
    }
    const int64_t blocks = blocks_of(code.size, code.block);
    const int64_t count = std::min(blocks, here / kThread);
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = i * blocks / count * code.block;
      const int64_t end = (i + 1) * blocks / count * code.block;
      parts_.push_back({&code, begin, std::min(end, code.size)});
    }
  }
}

void Groups::compute(ffi::ThreadPool* pool, const void* const* operands, void* const* results) {
  if (!ends_.empty()) return compute_short(operands, results);
  take_operands(inputs_.data(), inputs_.size(), operands);
  for (Output& output : outputs_) output.data = is_first(output) ? *results++ : results[-1];
  const Elementwise& set = instruction_set().elementwise;
  const Blocks* const of = parts_.data();
  if (operations_ < 2 * kThread) {  // by this thread
    for (const auto& [code, begin, end] : parts_) {
      const bool is_short = repjax::is_short(*code, set, end - begin);
      (is_short ? evaluate_short : evaluate)(*code, set, begin, end);
    }
    return;
  }
  share(pool, parts_.size(), operations_, kThread, [=, &set](int64_t i) {
    evaluate(*of[i].code, set, of[i].begin, of[i].end);
  });
}

namespace {

ffi::Error handle(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                  ffi::Span<const int64_t> encoded) {
  Groups* const groups = of_thread<Calls<Groups>>().find(
      encoded, [](const std::vector<int64_t>& words, Groups& groups) {
        groups.decode(words.data(), words.size());
        return true;
      });
  if (!groups->fits(args.size(), rets.size())) {
    return ffi::Error::InvalidArgument("the bytecode is for other operands");
  }
  const IeeeArithmetic ieee;
  groups->compute(&pool, operands_of(args).data(), results_of(rets).data());
  return ffi::Error::Success();
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
    int32_t* const y = to + i * kTogether;
    const int64_t count = std::min(kTogether, size - i * kTogether), whole = count & -lanes;
    if (set.are_canonical && whole > 0) {
      const IeeeArithmetic ieee;
      if (set.are_canonical(count, y)) return;
    }
    const IeeeArithmetic flushing(true);
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
