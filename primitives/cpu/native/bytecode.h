// Bytecode: elementwise operations as the interpreter reads them, which is compiled with the
// package.
//
// repjax.primitives.cpu.bytecode writes it as integers:
//
//   the elements of the results, and how many inputs, outputs, constants, instructions and
//   registers there are
//   of each input: its storage, plus kStorages times its elements of a row where rows differ (below), and its
//   place, which is one of
//     how many axes there are, and of each the size and the step
//     minus how many parts there are, the elements of a row of all parts, the operands of all parts, and
//     of each part the elements of a row, its first operand, its first element and its place
//   of each output: its storage, as of inputs
//   of each constant: its register and its bits
//   of each instruction: the operation, the register it writes and three that it reads
//
// An add_n reads also the first register of each `hold` that comes before it.
//
// Where elements are moved within rows, as by slices of an axis and by what joins them, arrays have as
// many rows, which differ in length.  Then the elements of the results are those of the longest rows,
// blocks are whole rows, and these are no operations on registers, but say of those that follow
//   width: how many elements a row has; of the three others the first: how many the longest has
//   runs: how many elements a `move` takes of each of the rows that it reads and writes, which may be
//         parts of rows; how many elements these have
// and a move has, behind the register that it reads, at which elements of its rows it begins to read
// and to write.
// The first instruction is a `width`.
//
// What a select by an input of one number chooses from is in its registers as long as its result is needed,
// which is one of them.
//
// The first registers are the inputs, broadcast to the shape of the results; the next the outputs.

#pragma once

#include "axes.h"
#include "instruction_sets.h"

#include <algorithm>
#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace repjax {

constexpr int64_t kBlock = 1024, kLongBlock = 2048;  // elements of a register, at most
constexpr int64_t kShort = 64;       // the most registers of short code

constexpr int64_t bytes_of(Storage storage) {
  return storage == kWord ? 4 : storage == kHalf ? 2 : 1;
}

struct Input {
  const void* data;
  Storage storage;
  int64_t rank;  // negative: it is of several parts, one behind the other in each row
  const Axis<1>* axes;
  int64_t first = 0;       // of the operand's elements
  int64_t origin = 0;      // the element that the data begin with
  bool in_cache = false;   // where a call before has left it
  const int64_t* parts = nullptr;  // as they are encoded, and the operands
  const void* const* operands = nullptr;
  int64_t width = 0;       // of a row, where rows differ

  bool scalar() const { return rank == 0; }
  bool contiguous() const { return rank == 1 && axes[0].strides[0] == 1; }
  // A row that is repeated.
  bool row() const {
    return rank == 2 && axes[0].strides[0] == 0 && axes[1].strides[0] == 1;
  }

  // Whether all blocks of so many elements from element `begin` on have the same ones.
  bool same_in_blocks(int64_t begin, int64_t block) const {
    return scalar() || (row() && block % axes[1].size == 0 && begin % axes[1].size == 0);
  }

  // Where the elements of a block from `begin` on are, if they lie together, or -1.
  int64_t together(int64_t begin, int64_t count) const {
    if (contiguous()) return begin - origin;
    if (!row()) return -1;
    const int64_t first = begin == 0 ? 0 : begin % axes[1].size;
    return first + count <= axes[1].size ? first - origin : -1;
  }
};

struct Output {
  void* data;
  Storage storage;
  int64_t origin = 0;
  bool in_cache = false;
  int64_t width = 0;
  bool waits = false;  // for the end of a block, as it is where an input is that is read until then
};

// An array, from its first element on, some of which are brought into the cache meanwhile.
struct Soon {
  const char* data;
  int64_t bytes;  // of an element
  bool writes;
};

// A number that chooses one of two operands everywhere, and the instructions that one of them alone needs.
struct Choice {
  int64_t by;  // the input
  uint64_t if_true, if_false;
};

struct Bytecode {
  static constexpr int64_t kMostChoices = 8;

  int64_t size, input_count, output_count, constant_count, instruction_count, registers;
  const Input* inputs;
  const Output* outputs;
  const Constant* constants;
  const Instruction* instructions;
  uint64_t needless = 0;   // instructions that make an input canonical for what does not need it
  uint64_t pairs = 0;      // instructions whose result the next one alone needs, and which are done with it
  uint64_t plain = 0;      // instructions that are functions of their operands, and no more
  uint64_t chosen = 0;     // instructions whose result is one of their operands, as a number chooses
  Choice choices[kMostChoices];
  int64_t choice_count = 0;
  int64_t block = kBlock;  // elements that are computed together
  int64_t row = 0;         // of the longest row, where rows differ
  int64_t cost = 0;        // what an element takes, in additions
  int64_t until = 0;       // the elements that the calls after this one go on to, if any
  const Soon* soon = nullptr;  // what other bytecode reads and writes next, as many elements
  int64_t soon_count = 0;

  // So many elements, which are whole rows, where a row is so wide.
  int64_t of_rows(int64_t elements, int64_t width) const {
    return row == 0 ? elements : elements / row * width;
  }
};

// The bytecode at `next`, which goes behind it.  The data of the inputs and of the outputs are left
// to the caller.
Bytecode decode(const int64_t*& next, Input* inputs, Output* outputs);

// Says that an output is where an input is, which lies together.
void put_in_place(Bytecode& code, int64_t input, Output& output);

// What a thread's calls were decoded to, by their words: a program makes the same ones again and again,
// and to compare words takes less time than to decode them.
template <class Decoded>
class Calls {
 public:
  // The call of these words: `decode` makes it of its own ones, unless it is there.  Null if they are
  // none of a call, which `decode` says.
  template <class Decode>
  Decoded* find(xla::ffi::Span<const int64_t> words, Decode decode) {
    const auto at = reinterpret_cast<uintptr_t>(words.begin());
    Call& call = calls_[words.size() > kLongest ? 0 : 1 + (at >> 5 ^ at >> 11) % kCount];
    if (call.words.size() != words.size() ||
        !std::equal(words.begin(), words.end(), call.words.begin())) {
      call.words.assign(words.begin(), words.end());
      if (!decode(call.words, call.decoded)) call.words.clear();
    }
    return call.words.empty() ? nullptr : &call.decoded;
  }

 private:
  static constexpr size_t kCount = 64, kLongest = 1 << 12;  // longer ones have one place
  struct Call {
    std::vector<int64_t> words;
    Decoded decoded;
  };
  Call calls_[1 + kCount];
};

// How many operands the inputs are, and these as their data.
int64_t count_operands(const Input* inputs, int64_t count);
void take_operands(Input* inputs, int64_t count, const void* const* operands);

// The elements of an input whose last axis lies together; what is behind them, up to a vector, is written, too.
void take_elements(const Input& input, int64_t begin, int64_t count, int32_t* to);
// Those from `begin` on that lie together, and how many they are.
const float* elements_at(const Input& input, int64_t begin, int64_t* count);

// Computes a row group (rows.cc).
xla::ffi::Error row_group(xla::ffi::ThreadPool* pool, const void* const* operands,
                          size_t operand_count, void* const* results, size_t result_count,
                          xla::ffi::Span<const int64_t> encoded);

// Short code: of few vectors, most of whose time is else to look after longer ones.  Its registers are lines of
// one vector, or of several.
struct ShortLines {
  alignas(64) int32_t elements[kShort * kShortVectors * kMostLanes];
};
inline int64_t line_of(const Elementwise& set, int64_t count) {
  return count <= set.lanes ? set.lanes : kShortVectors * set.lanes;
}
inline void run_short(const Bytecode& code, const Elementwise& set, const Few* ends, int64_t count,
                      ShortLines& lines) {
  set.run[count > set.lanes]({code.instructions, code.constants, ends, code.instruction_count,
                              code.constant_count, code.input_count, code.output_count, count},
                             lines.elements);
}
// Whether it is short, of so many elements, which may be some blocks where all inputs lie together: to read others
// block by block takes longer.
bool is_short(const Bytecode& code, const Elementwise& set, int64_t count, int64_t blocks = 1);
// Computes the elements [begin, end) of the outputs; those of `short` code in the caller's arithmetic, which is
// IEEE's.
void evaluate_short(const Bytecode& code, const Elementwise& set, int64_t begin, int64_t end);
void evaluate(const Bytecode& code, const Elementwise& set, int64_t begin, int64_t end);

}  // namespace repjax
