// Chains of elementwise operations on the CPU as an XLA FFI call: programs of
// repjax.primitives.programs, block by block, so that what is between stays in the cache.

#include "ieee.h"
#include "instruction_sets.h"
#include "programs.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 18;  // operations that are worth a thread

// The registers of a thread, which keeps them, since getting memory takes longer than a small
// program.
struct Registers {
  struct alignas(64) Line {
    int32_t elements[16];
  };
  std::vector<Line> lines;
  std::vector<int32_t*> own, to;  // `to`: outputs where they are in memory
  std::vector<Operand> at;

  void reserve(int64_t count, int64_t elements) {
    const size_t length = (elements + 15) / 16;
    if (lines.size() < count * length) lines.resize(count * length);
    own.resize(count);
    at.resize(count);
    for (int64_t r = 0; r < count; ++r) at[r] = {own[r] = lines[r * length].elements, false};
    to = own;
  }
};

// The elements [begin, begin + count) of an input that is broadcast, at `to`.
Operand load(const Input& input, const Elementwise& set, int64_t begin, int64_t count,
             int32_t* to) {
  const int64_t rank = input.rank;
  thread_local std::vector<int64_t> at;  // kept: most blocks are small
  at.resize(rank);
  int64_t offset = -input.origin, rest = begin;
  for (int64_t d = rank; d-- > 0; rest /= input.axes[d].size) {
    at[d] = rest % input.axes[d].size;
    offset += at[d] * input.axes[d].step;
  }
  const auto [size, step] = rank ? input.axes[rank - 1] : Input::Axis{count, 0};
  if (step == 0 && (rank == 0 || size - at.back() >= count)) {
    set.load(input.storage, input.data, offset, 0, set.lanes, to);
    return {to, true};
  }
  for (int64_t i = 0; i < count;) {
    const int64_t run = std::min(count - i, size - at.back());
    set.load(input.storage, input.data, offset, step, run, to + i);
    i += run;
    if (i == count) break;
    // The run ended with its axis.
    offset += (run - 1) * step;
    at.back() += run - 1;
    for (int64_t d = rank; d-- > 0;) {
      offset += input.axes[d].step;
      if (++at[d] < input.axes[d].size) break;
      offset -= at[d] * input.axes[d].step;
      at[d] = 0;
    }
  }
  return {to, false};
}

}  // namespace

Program decode(const int64_t*& next, Input* inputs, Output* outputs) {
  Program program;
  program.size = *next++;
  program.input_count = *next++;
  program.output_count = *next++;
  program.constant_count = *next++;
  program.instruction_count = *next++;
  program.registers = *next++;
  program.inputs = inputs;
  program.outputs = outputs;
  for (int64_t i = 0; i < program.input_count; ++i) {
    const int64_t rank = next[1];
    inputs[i] = {nullptr, Storage(next[0]), rank, reinterpret_cast<const Input::Axis*>(next + 2)};
    next += 2 + 2 * rank;
  }
  for (int64_t i = 0; i < program.output_count; ++i) outputs[i] = {nullptr, Storage(*next++)};
  static_assert(sizeof(Input::Axis) == 16, "as it is encoded");
  static_assert(sizeof(Constant) == 16 && sizeof(Instruction) == 40, "as they are encoded");
  program.constants = reinterpret_cast<const Constant*>(next);
  next += 2 * program.constant_count;
  program.instructions = reinterpret_cast<const Instruction*>(next);
  next += 5 * program.instruction_count;
  return program;
}

void evaluate(const Program& program, const Elementwise& set, int64_t begin, int64_t end) {
  const IeeeArithmetic ieee;
  const auto whole = [&](int64_t n) { return (n + set.lanes - 1) / set.lanes * set.lanes; };
  const int64_t block = std::min(whole(program.block), whole(end - begin));
  thread_local Registers registers;
  registers.reserve(program.registers, block);
  auto& [lines, own, to, at] = registers;
  const int64_t inputs = program.input_count, outputs = program.output_count;
  for (int64_t i = 0; i < program.constant_count; ++i) {
    const Constant& x = program.constants[i];
    std::fill_n(own[x.to], set.lanes, int32_t(x.bits));
    at[x.to].same = true;
  }
  for (int64_t i = 0; i < inputs; ++i) {
    const Input& input = program.inputs[i];
    if (input.same_in_blocks(begin, program.block)) at[i] = load(input, set, begin, block, own[i]);
  }
  for (; begin < end; begin += program.block) {
    const int64_t count = std::min(program.block, end - begin);
    const bool in_place = count == whole(count);
    for (int64_t i = 0; i < inputs; ++i) {
      const Input& input = program.inputs[i];
      if (input.same_in_blocks(begin, program.block)) continue;
      const int64_t together = input.together(begin, count);
      if (in_place && together >= 0 && input.storage == kWord) {
        at[i] = {static_cast<const int32_t*>(input.data) + together, false};
      } else {
        at[i] = load(input, set, begin, count, own[i]);
      }
    }
    for (int64_t i = 0; i < outputs; ++i) {
      const Output& output = program.outputs[i];
      const bool direct = in_place && output.storage == kWord;
      to[inputs + i] = direct ? static_cast<int32_t*>(output.data) + (begin - output.origin)
                              : own[inputs + i];
      at[inputs + i].at = to[inputs + i];
    }
    Operand terms[kMostTerms];
    int64_t held = 0;
    for (int64_t i = 0; i < program.instruction_count; ++i) {
      const Instruction& x = program.instructions[i];
      const auto operation = Operation(x.operation);
      if (operation == Operation::hold) {
        terms[held++] = at[x.from[0]];
      } else if (operation == Operation::add_n || operation == Operation::add_n_odd) {
        for (const int64_t from : x.from) terms[held++] = at[from];
        set.add_n(operation == Operation::add_n_odd, terms, held, whole(count), to[x.to]);
        held = 0;
      } else {
        set.apply(operation, whole(count), at[x.from[0]], at[x.from[1]], at[x.from[2]], to[x.to]);
      }
    }
    for (int64_t i = 0; i < outputs; ++i) {
      const Output& output = program.outputs[i];
      if (output.storage == kWord && in_place) continue;
      set.store(output.storage, to[inputs + i], count, output.data, begin - output.origin);
    }
  }
}

namespace {

// Blocks of one of the programs.
struct Blocks {
  const Program* program;
  int64_t begin, end;
};

// encoded: how many programs there are, and the programs.
ffi::Error handle(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                  ffi::Span<const int64_t> encoded) {
  const int64_t* next = encoded.begin();
  std::vector<Program> programs(*next++);
  std::vector<Input> inputs(args.size());
  std::vector<Output> outputs(rets.size());
  size_t input = 0, output = 0;
  for (Program& program : programs) {
    if (input + next[1] > args.size() || output + next[2] > rets.size()) {
      return ffi::Error::InvalidArgument("the programs are for other operands");
    }
    program = decode(next, inputs.data() + input, outputs.data() + output);
    for (const size_t last = input + program.input_count; input < last; ++input) {
      inputs[input].data = args.get<ffi::AnyBuffer>(input)->untyped_data();
    }
    for (const size_t last = output + program.output_count; output < last; ++output) {
      outputs[output].data = (*rets.get<ffi::AnyBuffer>(output))->untyped_data();
    }
  }

  std::vector<Blocks> parts;
  int64_t operations = 0;
  for (const Program& program : programs) {
    const int64_t here = program.size * program.cost();
    const int64_t blocks = (program.size + kBlock - 1) / kBlock;
    const int64_t count = std::max<int64_t>(1, std::min(blocks, here / kThread));
    for (int64_t i = 0; i < count; ++i) {
      const int64_t begin = i * blocks / count * kBlock, end = (i + 1) * blocks / count * kBlock;
      parts.push_back({&program, begin, std::min(end, program.size)});
    }
    operations += here;
  }
  const Elementwise& set = instruction_set().elementwise;
  const int64_t threads = useful_threads(&pool, operations, kThread);
  in_parallel(&pool, threads, parts.size(), [&](int64_t i) {
    evaluate(*parts[i].program, set, parts[i].begin, parts[i].end);
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
