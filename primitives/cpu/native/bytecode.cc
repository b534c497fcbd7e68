// The interpreter of bytecode: block by block, so that what is between two operations stays in the
// cache.  Each instruction is a loop over a block, by a function of the instruction set.

#include "bytecode.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace repjax {
namespace {

// The registers of a thread, which keeps them, since getting memory takes longer than little
// bytecode does.
struct Registers {
  struct alignas(64) Line {
    int32_t elements[16];
  };
  std::vector<Line> lines;
  std::vector<int32_t*> own, to;  // `to`: outputs where they are in memory
  std::vector<Operand> at;
  int64_t behind;  // own[r] + behind: what is the same everywhere, whose register may be written
                   // while it is read

  void reserve(int64_t count, int64_t elements) {
    const size_t length = blocks_of(elements, 16) + 1;
    behind = (length - 1) * 16;
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
  if (input.rank == 0) {
    set.load(input.storage, input.data, -input.origin, 0, set.lanes, to);
    return {to, true};
  }
  Walk<1> walk(input.axes, input.rank, begin);
  const int64_t step = input.axes[input.rank - 1].strides[0];
  if (step == 0 && walk.left() >= count) {
    set.load(input.storage, input.data, walk.offsets[0] - input.origin, 0, set.lanes, to);
    return {to, true};
  }
  for (int64_t i = 0; i < count;) {
    const int64_t run = std::min(count - i, walk.left());
    set.load(input.storage, input.data, walk.offsets[0] - input.origin, step, run, to + i);
    i += run;
    if (i < count) walk.go(run);
  }
  return {to, false};
}

// Brings the next block's elements into the cache while this block is computed, a few lines at a
// time: the processor's own prefetching ends with a page, which is as long as a block, and it waits
// where it has many lines to fetch.
class Ahead {
 public:
  explicit Ahead(int64_t cost) : cost_(cost), part_(1.0 / cost) {}

  void start() { arrays_ = next_ = lines_ = fetched_ = 0; }
  bool any() const { return lines_ > 0; }
  // `writes`: to write there; `near`: into the L1 cache.
  void add(const void* from, int64_t bytes, bool writes, bool near = true) {
    if (arrays_ == kMost) return;
    spans_[arrays_++] = {static_cast<const char*>(from), blocks_of(bytes, kLine), writes, near};
    lines_ += spans_[arrays_ - 1].lines;
  }
  // Where so much of the cost is done.
  void fetch(int64_t done) {
    if (fetched_ == lines_) return;
    int64_t left = done < cost_ ? int64_t(part_ * lines_ * done) - fetched_ : lines_ - fetched_;
    fetched_ += left;
    while (left > 0) {
      Span& span = spans_[next_];
      const int64_t here = std::min(left, span.lines);
      for (int64_t line = 0; line < here; ++line, span.at += kLine) {
        if (span.writes) __builtin_prefetch(span.at, 1);
        else if (span.near) __builtin_prefetch(span.at, 0);
        else __builtin_prefetch(span.at, 0, 2);
      }
      left -= here;
      span.lines -= here;
      if (span.lines == 0) ++next_;
    }
  }

 private:
  static constexpr int64_t kMost = 16, kLine = 64;
  struct Span {
    const char* at;
    int64_t lines;
    bool writes, near;
  };
  Span spans_[kMost];
  const int64_t cost_;
  const double part_;
  int64_t arrays_, next_, lines_, fetched_;
};

}  // namespace

Bytecode decode(const int64_t*& next, Input* inputs, Output* outputs) {
  Bytecode code;
  code.size = *next++;
  code.input_count = *next++;
  code.output_count = *next++;
  code.constant_count = *next++;
  code.instruction_count = *next++;
  code.registers = *next++;
  code.inputs = inputs;
  code.outputs = outputs;
  for (int64_t i = 0; i < code.input_count; ++i) {
    const int64_t rank = next[1];
    inputs[i] = {nullptr, Storage(next[0]), rank, reinterpret_cast<const Axis<1>*>(next + 2)};
    next += 2 + 2 * rank;
  }
  for (int64_t i = 0; i < code.output_count; ++i) outputs[i] = {nullptr, Storage(*next++)};
  static_assert(sizeof(Axis<1>) == 16, "as it is encoded");
  static_assert(sizeof(Constant) == 16 && sizeof(Instruction) == 40, "as they are encoded");
  code.constants = reinterpret_cast<const Constant*>(next);
  next += 2 * code.constant_count;
  code.instructions = reinterpret_cast<const Instruction*>(next);
  next += 5 * code.instruction_count;
  if (code.registers - code.constant_count > kInCache) code.block = kBlock / 2;
  return code;
}

void evaluate(const Bytecode& code, const Elementwise& set, int64_t begin, int64_t end) {
  const IeeeArithmetic ieee;
  const auto whole = [&](int64_t n) { return round_up(n, set.lanes); };
  const int64_t block = std::min(whole(code.block), whole(end - begin));
  thread_local Registers registers;
  registers.reserve(code.registers, block);
  auto& [lines, own, to, at, behind] = registers;
  const int64_t inputs = code.input_count, outputs = code.output_count;
  for (int64_t i = 0; i < code.constant_count; ++i) {
    const Constant& x = code.constants[i];
    std::fill_n(own[x.to], set.lanes, int32_t(x.bits));
    at[x.to].same = true;
  }
  for (int64_t i = 0; i < inputs; ++i) {
    const Input& input = code.inputs[i];
    if (input.same_in_blocks(begin, code.block)) at[i] = load(input, set, begin, block, own[i]);
  }
  const auto is_output = [=](int64_t r) { return r >= inputs && r < inputs + outputs; };
  // Whether an instruction's result is made canonical by the next one, which gives an output.  Then
  // it is written where that is, as it nearly always is canonical and can stay there.
  const auto made_canonical = [&](int64_t i) {
    if (!set.are_canonical || i + 1 == code.instruction_count) return false;
    const Instruction &x = code.instructions[i], &next = code.instructions[i + 1];
    return Operation(next.operation) == Operation::canonicalize && next.from[0] == x.to &&
           is_output(next.to) && !is_output(x.to);
  };
  constexpr int64_t kPieces = 4, kLong = 32;  // pieces and cost of a long instruction
  Ahead ahead(code.cost());
  for (; begin < end; begin += code.block) {
    const int64_t count = std::min(code.block, end - begin);
    const bool in_place = count == whole(count);
    ahead.start();
    const int64_t following = std::min(code.block, std::max(code.until, end) - begin - count);
    for (int64_t i = 0; i < inputs; ++i) {
      const Input& input = code.inputs[i];
      if (input.same_in_blocks(begin, code.block)) continue;
      const int64_t together = input.together(begin, count);
      if (in_place && together >= 0 && input.storage == kWord) {
        at[i] = {static_cast<const int32_t*>(input.data) + together, false};
        if (following > 0 && input.contiguous() && !input.in_cache) {
          ahead.add(at[i].at + count, following * 4, false);
        }
      } else {
        at[i] = load(input, set, begin, count, own[i]);
      }
    }
    for (int64_t i = 0; i < outputs; ++i) {
      const Output& output = code.outputs[i];
      const bool direct = in_place && output.storage == kWord;
      to[inputs + i] = direct ? static_cast<int32_t*>(output.data) + (begin - output.origin)
                              : own[inputs + i];
      at[inputs + i].at = to[inputs + i];
      if (direct && following > 0 && !output.in_cache) {
        ahead.add(to[inputs + i] + count, following * 4, true);
      }
    }
    for (int64_t i = 0; i < code.soon_count; ++i) {
      const Soon& soon = code.soon[i];
      ahead.add(soon.data + begin * soon.bytes, count * soon.bytes, soon.writes, false);
    }
    Operand terms[kMostTerms];
    int64_t held = 0, done = 0, here = 0;
    for (int64_t i = 0; i < code.instruction_count; ++i, ahead.fetch(done += here)) {
      const Instruction& x = code.instructions[i];
      const auto operation = Operation(x.operation);
      here = cost(operation);
      Operand &a = at[x.from[0]], b = at[x.from[1]], c = at[x.from[2]], &result = at[x.to];
      if (operation == Operation::hold) {
        terms[held++] = a;
        continue;
      }
      if (operation == Operation::add_n || operation == Operation::add_n_odd) {
        for (const int64_t from : x.from) terms[held++] = at[from];
        set.add_n(operation == Operation::add_n_odd, terms, held, whole(count), to[x.to]);
        result = {to[x.to], false};
        held = 0;
        continue;
      }
      if (operation == Operation::canonicalize && set.are_canonical && !a.same) {
        const bool in_its_place = a.at == to[x.to];
        if ((in_its_place || (x.from[0] < inputs && !is_output(x.to))) &&
            set.are_canonical(whole(count), a.at)) {
          result = a;
          continue;
        }
        if (in_its_place) a.at = std::copy_n(a.at, whole(count), own[x.from[0]]) - whole(count);
      }
      if (a.same && b.same && c.same && !is_output(x.to)) {
        int32_t* const there = own[x.to] + behind;
        set.apply(operation, set.lanes, a, b, c, there);
        result = {there, true};
        continue;
      }
      int32_t* const there = to[made_canonical(i) ? code.instructions[i + 1].to : x.to];
      // A long instruction piece by piece, and some lines after each.
      const int64_t all = whole(count);
      const int64_t piece = here < kLong || !ahead.any() ? all : whole(blocks_of(all, kPieces));
      const auto from = [](Operand x, int64_t at) {
        return Operand{x.at + (x.same ? 0 : at), x.same};
      };
      for (int64_t at = 0, before = done; at < all; at += piece, before += here / kPieces) {
        ahead.fetch(before);
        set.apply(operation, std::min(piece, all - at), from(a, at), from(b, at), from(c, at),
                  there + at);
      }
      result = {there, false};
    }
    for (int64_t i = 0; i < outputs; ++i) {
      const Output& output = code.outputs[i];
      if (output.storage == kWord && in_place) continue;
      set.store(output.storage, to[inputs + i], count, output.data, begin - output.origin);
    }
  }
}

}  // namespace repjax
