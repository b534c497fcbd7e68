// Fused groups, decoded.

#pragma once

#include "bytecode.h"

#include <cstdint>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace repjax {

class Groups {
 public:
  // So many words: how many groups there are, the bytecode of each, and of each result that is where an
  // operand is the numbers of the group, and of the input and the output in it.  They stay where they are.
  void decode(const int64_t* words, size_t count);
  // Whether there are enough operands and results.
  bool fits(int64_t operands, int64_t results) const {
    return operands_ <= operands && results_ <= results;
  }
  // In as many threads as the groups repay; this one's arithmetic is IEEE's.
  void compute(xla::ffi::ThreadPool* pool, const void* const* operands, void* const* results);

 private:
  // Elements [begin, end) of one of the groups.
  struct Blocks {
    const Bytecode* code;
    int64_t begin, end;
  };
  std::vector<Bytecode> groups_;
  std::vector<Input> inputs_;
  std::vector<Output> outputs_;
  std::vector<Blocks> parts_;
  int64_t operands_, results_, operations_;
  // Of one short group, all of whose arrays are words that lie together: where they begin in their operands, and
  // whether they are one number.
  struct End {
    int64_t first;
    bool is_number;
  };
  std::vector<End> ends_;

  void divide();
  void find_ends();
  void compute_short(const void* const* operands, void* const* results) const;
};

}  // namespace repjax
