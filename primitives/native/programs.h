// Programs of elementwise operations, encoded by repjax.primitives.elementwise as
//
//   the elements of the results, and how many inputs, outputs, constants, instructions and registers
//   of each input: its storage, its axes, and of each axis the size and the step
//   of each output: its storage
//   of each constant: its register and its bits
//   of each instruction: the operation, the register it writes and three that it reads
//
// The first registers are the inputs, broadcast to the shape of the results; the next the outputs.

#pragma once

#include "instruction_sets.h"

#include <cstdint>

#include "xla/ffi/api/ffi.h"

namespace repjax {

constexpr int64_t kBlock = 512;  // elements of a register

enum Storage : int64_t { kWord, kBoolean, kHalf };  // 32 bits; one; 16

struct Input {
  struct Axis {
    int64_t size, step;
  };
  const void* data;
  Storage storage;
  int64_t rank;
  const Axis* axes;

  bool scalar() const { return rank == 0; }
  bool contiguous() const { return rank == 1 && axes[0].step == 1; }
  // A row that is repeated.
  bool row() const { return rank == 2 && axes[0].step == 0 && axes[1].step == 1; }

  // Whether all blocks from element `begin` on have the same elements.
  bool same_in_blocks(int64_t begin) const {
    return scalar() || (row() && kBlock % axes[1].size == 0 && begin % axes[1].size == 0);
  }

  // Where the elements of the block from `begin` on are, if they lie together, or -1.
  int64_t together(int64_t begin) const {
    if (contiguous()) return begin;
    const bool in_row = row() && begin % axes[1].size + kBlock <= axes[1].size;
    return in_row ? begin % axes[1].size : -1;
  }
};

struct Output {
  void* data;
  Storage storage;
};

struct Constant {
  int64_t to, bits;
};

struct Instruction {
  int64_t operation, to, from[3];
};

struct Program {
  int64_t size, input_count, output_count, constant_count, instruction_count, registers;
  const Input* inputs;
  const Output* outputs;
  const Constant* constants;
  const Instruction* instructions;

  // Of an element, in additions.
  int64_t cost() const {
    int64_t sum = 0;
    for (int64_t i = 0; i < instruction_count; ++i) {
      sum += repjax::cost(Operation(instructions[i].operation));
    }
    return sum;
  }
};

// The program encoded at `next`, which goes behind it; its inputs are arguments, the first of them
// number `first`.  The data of the outputs are left to the caller.
Program decode(const int64_t*& next, const xla::ffi::RemainingArgs& args, size_t first,
               Input* inputs, Output* outputs);

// The elements [begin, end) of the outputs, whose data begin with element `origin`.
void evaluate(const Program& program, const Elementwise& set, int64_t begin, int64_t end,
              int64_t origin);

}  // namespace repjax
