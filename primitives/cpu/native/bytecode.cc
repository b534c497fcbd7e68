// The interpreter of bytecode: block by block, so that what is between two operations stays in the
// cache.  Each instruction is a loop over a block, by a function of the instruction set.

#include "bytecode.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <vector>

namespace repjax {
namespace {

constexpr int64_t kFew = 8;         // the most registers of long blocks, which stay in the cache

// The registers of a thread, which keeps them, since getting memory takes longer than little
// bytecode does.
struct Registers {
  struct alignas(64) Line {
    int32_t elements[kMostLanes];
  };
  std::vector<Line> lines;
  std::vector<int32_t*> own, to;  // `to`: outputs where they are in memory
  std::vector<Operand> at;
  std::vector<int64_t> varying;  // inputs whose elements differ from block to block
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

// Places, as they are encoded.
int64_t rank(const int64_t* place) { return place[0]; }
const Axis<1>* axes(const int64_t* place) { return reinterpret_cast<const Axis<1>*>(place + 1); }
const int64_t* end_of(const int64_t* place);

struct Piece {
  int64_t length, operand, first;
  const int64_t* place;

  explicit Piece(const int64_t* at) : length(at[0]), operand(at[1]), first(at[2]), place(at + 3) {}
};
Piece first_piece(const int64_t* place) { return Piece(place + 3); }
Piece after(const Piece& part) { return Piece(end_of(part.place)); }

const int64_t* end_of(const int64_t* place) {
  if (rank(place) >= 0) return place + 1 + 2 * rank(place);
  const int64_t* next = place + 3;
  for (int64_t i = rank(place); i < 0; ++i) next = end_of(Piece(next).place);
  return next;
}

// Reads elements from where they are to registers.
struct Reader {
  const Elementwise& set;
  Storage storage;

  void load(const void* data, int64_t first, int64_t step, int64_t count, Runs runs,
            int32_t* to) const {
    set.load(storage, data, first, step, count, runs, to);
  }

  // `count` rows of `width` elements from a position on, which lie together; at `to`, they are
  // `apart`.
  void rows(const void* data, int64_t first, const Axis<1>& last, Walk<1>& walk, int64_t count,
            int64_t width, int64_t apart, int32_t* to) const {
    const int64_t run = last.size, step = last.strides[0];
    for (int64_t i = 0; i < count;) {
      if (width == run && walk.runs() > 0) {
        const Runs runs = {std::min(count - i, walk.runs()), walk.stride_of_runs(), apart};
        load(data, first + walk.offsets[0], step, run, runs, to + i * apart);
        walk.go_runs(runs.count);
        i += runs.count;
        continue;
      }
      for (int64_t j = 0, here; j < width; j += here) {
        const Runs runs = {std::min((width - j) / run, walk.runs()), walk.stride_of_runs(), run};
        here = runs.count > 0 ? runs.count * run : std::min(width - j, walk.left());
        const int64_t offset = first + walk.offsets[0];
        int32_t* const there = to + i * apart + j;
        if (runs.count > 0) {
          load(data, offset, step, run, runs, there);
          walk.go_runs(runs.count);
        } else {
          load(data, offset, step, here, {}, there);
          walk.go(here);
        }
      }
      ++i;
    }
  }

  // The same of a piece, from element `at` on.
  void rows(const Piece& piece, const void* const* operands, int64_t at, int64_t count,
            int64_t width, int64_t apart, int32_t* to) const {
    const int64_t dimensions = rank(piece.place);
    operands += piece.operand;
    if (dimensions > 0) {
      Walk<1> walk(axes(piece.place), dimensions, at);
      const Axis<1>& last = axes(piece.place)[dimensions - 1];
      rows(*operands, piece.first, last, walk, count, width, apart, to);
    } else if (dimensions == 0) {
      load(*operands, piece.first, 0, width, {count, 0, apart}, to);
    } else {
      for (int64_t i = 0; i < count; ++i) {
        joined(piece.place, operands, at + i * width, width, to + i * apart);
      }
    }
  }

  // The elements [begin, begin + count) of several parts.
  void joined(const int64_t* place, const void* const* operands, int64_t begin, int64_t count,
              int32_t* to) const {
    const int64_t row = place[1], end = begin + count;
    while (begin < end) {
      // The rest of a row, or whole rows, or the begin of one.
      const int64_t number = begin / row, left = begin % row;
      const int64_t right = std::min(row, left + end - begin);
      const int64_t whole = left == 0 ? std::max<int64_t>(1, (end - begin) / row) : 1;
      Piece part = first_piece(place);
      for (int64_t i = rank(place), start = 0; i < 0; ++i) {
        const int64_t from = std::max(start, left), until = std::min(start + part.length, right);
        if (from < until) {
          rows(part, operands, number * part.length + from - start, whole, until - from, row,
               to + from - left);
        }
        start += part.length;
        if (i < -1) part = after(part);
      }
      to += whole * row - left;
      begin += whole * row - left;
    }
  }
};

// The elements [begin, begin + count) of an input that does not lie together, at `to`.
Operand load(const Input& input, const Elementwise& set, int64_t begin, int64_t count,
             int32_t* to) {
  const Reader reader{set, input.storage};
  if (input.rank < 0) {
    reader.joined(input.parts, input.operands, begin, count, to);
    return {to, false};
  }
  if (input.rank == 0) {
    reader.load(input.data, -input.origin, 0, set.lanes, {}, to);
    return {to, true};
  }
  Walk<1> walk(input.axes, input.rank, begin);
  const Axis<1>& last = input.axes[input.rank - 1];
  if (last.strides[0] == 0 && walk.left() >= count) {
    reader.load(input.data, walk.offsets[0] - input.origin, 0, set.lanes, {}, to);
    return {to, true};
  }
  reader.rows(input.data, -input.origin, last, walk, 1, count, 0, to);
  return {to, false};
}

}  // namespace

void take_elements(const Input& input, int64_t begin, int64_t count, int32_t* to) {
  load(input, instruction_set().elementwise, begin, count, to);
}

const float* elements_at(const Input& input, int64_t begin, int64_t* count) {
  const Walk<1> walk(input.axes, input.rank, begin);
  *count = walk.left();
  return static_cast<const float*>(input.data) + walk.offsets[0] - input.origin;
}

namespace {

// Elements of an output's register to memory, from `begin` on; `before` is that of the output before.
void store(const Output& output, const Elementwise& set, const int32_t* before, const int32_t* from,
           int64_t count, int64_t begin) {
  if (output.storage == kReal) return;  // with the imaginary parts
  const int64_t first = begin - output.origin;
  if (output.storage == kImaginary) return set.store_pairs(before, from, count, output.data, first);
  set.store(output.storage, from, count, output.data, first);
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

// What is said of instructions by the bits of a number is of bytecode with no more of them, and of
// registers.
constexpr int64_t kMostNoted = 64;

// Whether an operation has the same result for an operand that is subnormal as for the zero that it is made: in
// flushing arithmetic it is a zero to sums, products, comparisons and as a dividend, where the sign of one is not
// asked for, and what these functions give rounds to the number, which is guarded, or to 1 or 1/2.
bool takes_subnormals(const Instruction& x, int64_t operand) {
  switch (Operation(x.operation)) {
    case Operation::div:
      return operand != x.from[1];
    case Operation::add:
    case Operation::sub:
    case Operation::mul:
    case Operation::eq:
    case Operation::ne:
    case Operation::lt:
    case Operation::le:
    case Operation::exp:
    case Operation::exp2:
    case Operation::expm1:
    case Operation::log1p:
    case Operation::tanh:
    case Operation::logistic:
    case Operation::sinh:
    case Operation::cosh:
      return true;
    default:
      return false;
  }
}

// The instructions that make an input canonical for such operations alone, to which also a NaN is a NaN.
uint64_t find_needless(const Bytecode& code) {
  uint64_t found = 0, others = 0;  // registers that others read
  for (int64_t i = code.instruction_count; i-- > 0;) {
    const Instruction& x = code.instructions[i];
    const auto operation = Operation(x.operation);
    if (operation == Operation::width || operation == Operation::runs) continue;
    if (operation == Operation::move) {  // of several to one place
      const bool is_output = x.to < code.input_count + code.output_count;
      others |= (is_output ? 1 : others >> x.to & 1) << x.from[0];
      continue;
    }
    if (operation == Operation::canonicalize && x.from[0] < code.input_count &&
        x.to >= code.input_count + code.output_count && !(others >> x.to & 1)) {
      found |= uint64_t{1} << i;
    }
    others &= ~(uint64_t{1} << x.to);
    for (const int64_t from : x.from) others |= uint64_t{!takes_subnormals(x, from)} << from;
  }
  return found;
}

// Of arithmetic operations that follow each other, and of comparisons by which the next one selects: what
// is between two of them stays in a register of the processor.
uint64_t find_pairs(const Bytecode& code) {
  uint64_t found = 0, read = 0, read_after_next = 0;  // registers that are read behind an instruction
  for (int64_t i = code.instruction_count; i-- > 0;) {
    const Instruction& x = code.instructions[i];
    const auto operation = Operation(x.operation);
    if (operation == Operation::width || operation == Operation::runs) continue;
    if (operation == Operation::move) {  // of several to one place
      read |= uint64_t{1} << x.from[0];
      continue;
    }
    if (i + 1 < code.instruction_count && x.to >= code.input_count + code.output_count) {
      const Instruction& next = code.instructions[i + 1];
      const bool is_over = next.to == x.to || !(read_after_next >> x.to & 1);
      const auto following = Operation(next.operation);
      const bool first = next.from[0] == x.to, second = next.from[1] == x.to;
      const bool are_arithmetic = is_arithmetic(operation) && is_arithmetic(following);
      const bool chooses = is_comparison(operation) && following == Operation::select;
      const bool squares = first && second && following == Operation::mul;
      const bool once =
          chooses ? first && !second && next.from[2] != x.to : first != second || squares;
      if (is_over && once && (are_arithmetic || chooses)) found |= uint64_t{1} << i;
    }
    read_after_next = read;
    read &= ~(uint64_t{1} << x.to);
    for (const int64_t from : x.from) read |= uint64_t{1} << from;
  }
  return found;
}

bool is_output(const Bytecode& code, int64_t r) {
  return r >= code.input_count && r < code.input_count + code.output_count;
}

// The instructions that read what each instruction makes, as bits.
std::vector<uint64_t> find_users(const Bytecode& code) {
  std::vector<uint64_t> users(code.instruction_count);
  std::vector<int64_t> makers(code.registers, -1);
  for (int64_t i = 0; i < code.instruction_count; ++i) {
    const Instruction& x = code.instructions[i];
    for (const int64_t from : x.from) {
      if (makers[from] >= 0) users[makers[from]] |= uint64_t{1} << i;
    }
    makers[x.to] = i;
  }
  return users;
}

// The choices by inputs that are a number.  Not in bytecode of moves, or of additions of more operands than
// an instruction has.
void find_choices(Bytecode& code) {
  for (int64_t i = 0; i < code.instruction_count; ++i) {
    const auto operation = Operation(code.instructions[i].operation);
    if (operation == Operation::width || operation == Operation::hold) return;
  }
  const auto by_number = [&](const Instruction& x) {
    return Operation(x.operation) == Operation::select && x.from[0] < code.input_count &&
           code.inputs[x.from[0]].scalar();
  };
  std::vector<uint64_t> users;
  for (int64_t s = 0; s < code.instruction_count; ++s) {
    const Instruction& x = code.instructions[s];
    if (!by_number(x) || code.choice_count == Bytecode::kMostChoices) continue;
    if (users.empty()) users = find_users(code);
    const auto alone = [&](int64_t operand) {
      uint64_t found = uint64_t{1} << s;
      for (int64_t i = s; i-- > 0;) {
        const int64_t to = code.instructions[i].to;
        const bool reads = users[i] >> s & 1;
        const bool is_other = reads && (to != x.from[operand] || to == x.from[3 - operand]);
        if (users[i] && !is_output(code, to) && !(users[i] & ~found) && !is_other) found |= uint64_t{1} << i;
      }
      return found & ~(uint64_t{1} << s);
    };
    code.choices[code.choice_count++] = {x.from[0], alone(2), alone(1)};
    if (!is_output(code, x.to)) code.chosen |= uint64_t{1} << s;
  }
}

// Those of which nothing has to be looked after but their operands.
uint64_t find_plain(const Bytecode& code) {
  uint64_t found = 0;
  for (int64_t i = 0; i < code.instruction_count; ++i) {
    const Instruction& x = code.instructions[i];
    const auto operation = Operation(x.operation);
    const bool is_last = i + 1 == code.instruction_count;
    const bool ends = !is_last && Operation(code.instructions[i + 1].operation) == Operation::canonicalize;
    const bool is_function = cost(operation) == 1 && operation != Operation::canonicalize &&
                             operation != Operation::hold && operation != Operation::width &&
                             operation != Operation::runs && operation != Operation::move;
    const bool chooses = operation == Operation::select && x.from[0] < code.input_count;
    if (is_function && !chooses && !ends && !(code.pairs >> i & 1)) found |= uint64_t{1} << i;
  }
  return found;
}

}  // namespace

bool is_short(const Bytecode& code, const Elementwise& set, int64_t count, int64_t blocks) {
  const int64_t most = blocks * kShortVectors * set.lanes;
  return count > 0 && count <= most && code.registers <= kShort && code.row == 0;
}

void evaluate_short(const Bytecode& code, const Elementwise& set, int64_t begin, int64_t end) {
  ShortLines lines;
  Few ends[kShort];
  const int64_t inputs = code.input_count, outputs = code.output_count;
  const int64_t count = end - begin, length = line_of(set, count);
  for (int64_t i = 0; i < inputs; ++i) {
    const Input& input = code.inputs[i];
    int32_t* const line = lines.elements + i * length;
    const int64_t together = input.scalar() ? -input.origin : input.together(begin, count);
    if (input.storage == kWord && (input.scalar() || together >= 0)) {
      auto* const data = static_cast<int32_t*>(const_cast<void*>(input.data));
      ends[i] = {data + together, input.scalar() ? 1 : count};
    } else {
      ends[i] = {line, load(input, set, begin, count, line).same ? 1 : count};
    }
  }
  for (int64_t i = 0; i < outputs; ++i) {
    const Output& output = code.outputs[i];
    int32_t* const line = lines.elements + (inputs + i) * length;
    auto* const data = static_cast<int32_t*>(output.data) - output.origin + begin;
    ends[inputs + i] = {output.storage == kWord ? data : line, count};
  }
  run_short(code, set, ends, count, lines);
  for (int64_t i = 0; i < outputs; ++i) {
    if (code.outputs[i].storage == kWord) continue;
    const int32_t* const line = lines.elements + (inputs + i) * length;
    store(code.outputs[i], set, line - length, line, count, begin);
  }
}

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
    const int64_t* const place = next + 1;
    const auto storage = Storage(*next % kStorages);
    inputs[i] = {nullptr, storage, rank(place), axes(place)};
    if (rank(place) < 0) inputs[i].parts = place;
    if (rank(place) == -1 && rank(first_piece(place).place) >= 0) {  // of one operand
      const Piece only = first_piece(place);
      inputs[i] = {nullptr, storage, rank(only.place), axes(only.place), only.first};
    }
    inputs[i].width = *next / kStorages;
    next = end_of(place);
  }
  for (int64_t i = 0; i < code.output_count; ++i, ++next) {
    outputs[i] = {nullptr, Storage(*next % kStorages)};
    outputs[i].width = *next / kStorages;
  }
  static_assert(sizeof(Axis<1>) == 16, "as it is encoded");
  static_assert(sizeof(Constant) == 16 && sizeof(Instruction) == 40, "as they are encoded");
  code.constants = reinterpret_cast<const Constant*>(next);
  next += 2 * code.constant_count;
  code.instructions = reinterpret_cast<const Instruction*>(next);
  next += 5 * code.instruction_count;
  for (int64_t i = 0; i < code.instruction_count; ++i) {
    code.cost += repjax::cost(Operation(code.instructions[i].operation));
  }
  const bool has_long = code.cost > code.instruction_count;
  if (!has_long && code.registers <= kFew) code.block = kLongBlock;
  if (code.instruction_count <= kMostNoted && code.registers <= kMostNoted) {
    code.pairs = find_pairs(code);
    find_choices(code);
    code.plain = find_plain(code);
    code.needless = find_needless(code);
  }
  if (code.instruction_count > 0) {
    const Instruction& first = code.instructions[0];
    if (Operation(first.operation) == Operation::width) {
      code.row = first.from[0];
      code.block = code.block / code.row * code.row;
    }
  }
  return code;
}

void put_in_place(Bytecode& code, int64_t input, Output& output) {
  const int64_t to = code.input_count + (&output - code.outputs);
  std::vector<bool> is_input(code.registers);  // or may be where it is
  is_input[input] = true;
  bool is_written = false;
  for (int64_t i = 0; i < code.instruction_count; ++i) {
    const Instruction& x = code.instructions[i];
    const auto operation = Operation(x.operation);
    const bool is_simple = operation != Operation::hold && operation != Operation::width;
    const bool reads = is_input[x.from[0]] || is_input[x.from[1]] || is_input[x.from[2]];
    output.waits |= !is_simple || (is_written && reads);
    is_written |= x.to == to;
    const bool is_same = operation == Operation::canonicalize || operation == Operation::select;
    is_input[x.to] = is_same && reads && x.to != to;
  }
}

int64_t count_operands(const Input* inputs, int64_t count) {
  int64_t sum = 0;
  for (int64_t i = 0; i < count; ++i) sum += inputs[i].parts ? inputs[i].parts[2] : 1;
  return sum;
}

void take_operands(Input* inputs, int64_t count, const void* const* operands) {
  for (int64_t i = 0; i < count; ++i) {
    Input& input = inputs[i];
    input.operands = operands;
    input.data = static_cast<const char*>(*operands) + input.first * bytes_of(input.storage);
    operands += input.parts ? input.parts[2] : 1;
  }
}

void evaluate(const Bytecode& code, const Elementwise& set, int64_t begin, int64_t end) {
  if (is_short(code, set, end - begin)) {
    const IeeeArithmetic ieee;
    return evaluate_short(code, set, begin, end);
  }
  const IeeeArithmetic flushing(true);
  const int64_t lanes = set.lanes;  // a power of two: of little bytecode, divisions are what is slow
  const auto whole = [=](int64_t n) { return (n + lanes - 1) & -lanes; };
  const auto is_whole = [=](int64_t n) { return (n & (lanes - 1)) == 0; };
  const int64_t block = std::min(code.block, end - begin);
  auto& registers = of_thread<Registers>();
  registers.reserve(code.registers, whole(block));
  int32_t* const* const own = registers.own.data();
  int32_t** const to = registers.to.data();
  Operand* const at = registers.at.data();
  std::vector<int64_t>& varying = registers.varying;
  const int64_t behind = registers.behind;
  const int64_t inputs = code.input_count, outputs = code.output_count;
  for (int64_t i = 0; i < code.constant_count; ++i) {
    const Constant& x = code.constants[i];
    std::fill_n(own[x.to], lanes, int32_t(x.bits));
    at[x.to].same = true;
  }
  varying.clear();
  for (int64_t i = 0; i < inputs; ++i) {
    const Input& input = code.inputs[i];
    const int64_t from = code.of_rows(begin, input.width);
    if (input.same_in_blocks(from, code.of_rows(code.block, input.width))) {
      at[i] = load(input, set, from, code.of_rows(block, input.width), own[i]);
    } else {
      varying.push_back(i);
    }
  }
  // Field by field: to read both at once would have to wait for what was written to arrive in the cache.
  const auto read = [=](int64_t r) { return Operand{at[r].at, at[r].same}; };
  const auto is_at = [=](int64_t r, const int32_t* elements) {
    at[r].at = elements;
    at[r].same = false;
  };
  const auto is_output = [=](int64_t r) { return r >= inputs && r < inputs + outputs; };
  // Whether an instruction's result is made canonical by the next one, which gives an output.  Then
  // it is written where that is, and made canonical at once or there.
  const auto made_canonical = [=, &code](int64_t i) {
    if (i + 1 == code.instruction_count) return false;
    const Instruction &x = code.instructions[i], &next = code.instructions[i + 1];
    return Operation(next.operation) == Operation::canonicalize && next.from[0] == x.to &&
           is_output(next.to) && !is_output(x.to);
  };
  constexpr int64_t kPieces = 4, kLong = 32;  // pieces and cost of a long instruction
  Ahead ahead(code.cost);
  // Where all that is read and written stays in a cache, there is nothing to wait for.
  constexpr int64_t kNear = 1 << 21;
  const bool is_near = code.size * (inputs + outputs) <= kNear;
  uint64_t skipped = 0;  // instructions that only what is not chosen needs
  for (int64_t i = 0; i < code.choice_count; ++i) {
    const Choice& choice = code.choices[i];
    skipped |= *at[choice.by].at ? choice.if_false : choice.if_true;
  }
  const Instruction* const instructions = code.instructions;
  const int64_t instruction_count = code.instruction_count;
  const uint64_t plain = code.plain;
  const auto compute = [=, &code, &set, &ahead, &varying](int64_t begin) {
    const int64_t count = std::min(code.block, end - begin);
    ahead.start();
    const int64_t following = std::min(code.block, std::max(code.until, end) - begin - count);
    for (const int64_t i : varying) {
      const Input& input = code.inputs[i];
      const int64_t first = code.of_rows(begin, input.width);
      const int64_t here = code.of_rows(count, input.width), together = input.together(first, here);
      if (is_whole(here) && together >= 0 && input.storage == kWord) {
        is_at(i, static_cast<const int32_t*>(input.data) + together);
        if (following > 0 && input.contiguous() && !input.in_cache && !is_near) {
          ahead.add(at[i].at + here, code.of_rows(following, input.width) * 4, false);
        }
      } else {
        at[i] = load(input, set, first, here, own[i]);
      }
    }
    for (int64_t i = 0; i < outputs; ++i) {
      const Output& output = code.outputs[i];
      const int64_t here = code.of_rows(count, output.width);
      const bool direct = is_whole(here) && output.storage == kWord && !output.waits;
      int32_t* const data = static_cast<int32_t*>(output.data) - output.origin;
      to[inputs + i] = direct ? data + code.of_rows(begin, output.width) : own[inputs + i];
      at[inputs + i].at = to[inputs + i];
      if (direct && following > 0 && !output.in_cache && !is_near) {
        ahead.add(to[inputs + i] + here, code.of_rows(following, output.width) * 4, true);
      }
    }
    for (int64_t i = 0; i < code.soon_count; ++i) {
      const Soon& soon = code.soon[i];
      ahead.add(soon.data + begin * soon.bytes, count * soon.bytes, soon.writes, false);
    }
    Operand terms[kMostTerms];
    int64_t held = 0, done = 0, here = 0;
    int64_t elements = count, all = whole(count);  // that are computed
    Instruction runs{};
    for (int64_t i = 0; i < instruction_count; ++i, ahead.fetch(done += here)) {
      const Instruction& x = instructions[i];
      const auto operation = Operation(x.operation);
      if (skipped >> i & 1) continue;
      if (plain >> i & 1) {
        const Operand a = read(x.from[0]), b = read(x.from[1]), c = read(x.from[2]);
        if (!(a.same & b.same & c.same)) {
          int32_t* const there = to[x.to];
          set.apply(operation, all, a, b, c, there);
          is_at(x.to, there);
          here = 1;
          continue;
        }
      }
      here = cost(operation);
      if (operation == Operation::width) {
        elements = code.of_rows(count, x.to);
        all = whole(elements);
        continue;
      }
      if (operation == Operation::runs) {
        runs = x;
        continue;
      }
      if (operation == Operation::move) {
        const auto [from_row, to_row, unused] = runs.from;
        const auto [source, first, at_result] = x.from;
        const Operand from = read(source);
        const Runs rows = {elements / to_row, from.same ? 0 : from_row, to_row};
        set.load(kWord, from.at, from.same ? 0 : first, !from.same, runs.to, rows,
                 to[x.to] + at_result);
        is_at(x.to, to[x.to]);
        continue;
      }
      Operand a = read(x.from[0]);
      Operand b = read(x.from[1]), c = read(x.from[2]);
      Operand& result = at[x.to];
      if (operation == Operation::select && a.same) {
        (*a.at ? b : c) = *a.at ? c : b;  // the other one may not have been computed
        if (code.chosen >> i & 1) {
          result = b;
          continue;
        }
      }
      if (operation == Operation::hold) {
        terms[held++] = a;
        continue;
      }
      if (operation == Operation::add_n || operation == Operation::add_n_odd) {
        for (const int64_t from : x.from) terms[held++] = read(from);
        set.add_n(operation == Operation::add_n_odd, terms, held, all, to[x.to]);
        is_at(x.to, to[x.to]);
        held = 0;
        continue;
      }
      if (code.needless >> i & 1 && !a.same) {
        result = a;
        continue;
      }
      if (a.same && b.same && c.same && !is_output(x.to)) {
        int32_t* const there = own[x.to] + behind;
        set.apply(operation, lanes, a, b, c, there);
        result = {there, true};
        continue;
      }
      const bool by_number = operation == Operation::div && b.same;  // which `apply` does faster
      if (code.pairs >> i & 1 && !(a.same && b.same) && !by_number) {
        const Instruction& next = code.instructions[i + 1];
        const auto following = Operation(next.operation);
        const bool turned = next.from[1] == x.to;
        const bool squares = turned && next.from[0] == x.to;
        const Operand other = squares ? Operand{} : read(next.from[!turned]);
        if (following != Operation::div || turned || !other.same) {
          const bool is_last = made_canonical(i + 1);
          const int64_t written = is_last ? code.instructions[i + 2].to : next.to;
          const bool is_canonical = set.apply_pair(operation, following, turned, is_last, all, a, b,
                                                   other, read(next.from[2]), to[written]);
          is_at(next.to, to[written]);
          is_at(written, to[written]);
          here += 1 + is_canonical;
          i += 1 + is_canonical;
          continue;
        }
      }
      const bool is_last = made_canonical(i);
      const int64_t written = is_last ? code.instructions[i + 1].to : x.to;
      int32_t* const there = to[written];
      if (is_last && is_looked_at(operation) && !by_number &&
          set.apply_and_look(operation, all, a, b, c, there)) {
        is_at(x.to, there);
        is_at(written, there);
        done += cost(Operation(code.instructions[++i].operation));
        continue;
      }
      // A long instruction piece by piece, and some lines after each.
      const int64_t piece = here < kLong || !ahead.any() ? all : whole(blocks_of(all, kPieces));
      const auto from = [](Operand x, int64_t at) {
        return Operand{x.at + (x.same ? 0 : at), x.same};
      };
      for (int64_t at = 0, before = done; at < all; at += piece, before += here / kPieces) {
        ahead.fetch(before);
        set.apply(operation, std::min(piece, all - at), from(a, at), from(b, at), from(c, at),
                  there + at);
      }
      is_at(x.to, there);
    }
    for (int64_t i = 0; i < outputs; ++i) {
      const Output& output = code.outputs[i];
      const int64_t here = code.of_rows(count, output.width);
      if (output.storage == kWord && is_whole(here) && !output.waits) continue;
      const int32_t* const before = i == 0 ? nullptr : to[inputs + i - 1];
      store(output, set, before, to[inputs + i], here, code.of_rows(begin, output.width));
    }
  };
  for (; begin < end; begin += code.block) compute(begin);
}

}  // namespace repjax
