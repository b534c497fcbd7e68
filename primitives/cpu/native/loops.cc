// Loops (repjax_loop): a scan or a while of products, fused groups, sums, row groups, draws, moves and
// other loops, in one call.
//
// XLA takes longer to make a call than a small step takes.  A step is what the call of the same name
// would be, by the same function, so the bits are the same.

#include "bytecode.h"
#include "draws.h"
#include "elements.h"
#include "groups.h"
#include "products.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <memory>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

// Where a value is: of each array, the arguments first and then the results, and the byte in it; in
// the first iteration, in the other even ones and in the odd ones, by turns since what a loop
// carries is read while it is made anew; how many bytes further from one iteration to the next; and
// how many elements it has.
struct Place {
  struct At {
    int64_t array, byte;
    bool operator==(const At& other) const { return array == other.array && byte == other.byte; }
  } first, even, odd;
  int64_t step, count;

  bool moves() const { return step != 0 || !(first == even && first == odd); }
  char* find(char* const* arrays, int64_t iteration) const {
    const At& at = iteration == 0 ? first : iteration % 2 ? odd : even;
    return arrays[at.array] + at.byte + iteration * step;
  }
};

struct Loop;

struct Step {
  int64_t kind, operand_count, result_count, integer_count;
  const int64_t *operands, *results, *integers;  // places; what the call has as attributes
  std::unique_ptr<Groups> groups;
  std::unique_ptr<SmallProduct> product;  // if it is a small one
  std::vector<Loop> loops;  // one, or those of choices
};

// A loop, decoded.  Encoded are how many iterations, places and steps there are; the places; of each step its
// kind, how many operands, results and integers it has, and these.
//
// Of a while: -1, how many places there are, behind how many steps it is known whether there is another
// iteration, behind how many that is done, and how many there are, of which the others are done in the end;
// the place that says whether there is another iteration, of one of several examples; and the same
// places and steps.
struct Loop {
  int64_t iterations, looks = 0, in_body, is_next = 0;
  const Place* places;
  int64_t place_count;
  std::vector<int64_t> moving;  // the places that are elsewhere in other iterations
  std::vector<Step> steps;
  size_t most_operands = 0, most_results = 0;  // of a step

  void decode(const int64_t* words);
};

// As repjax.primitives.cpu.steps numbers them.
enum { kProduct, kElementwise, kSum, kCopy, kRows, kKeep, kMove, kPosition, kBits, kKeys, kLoop, kChoice };
constexpr std::string_view kAccumulations[] = {"pairwise", "sequential", "max", "min"};

void Loop::decode(const int64_t* next) {
  iterations = next[0];
  place_count = next[1];
  const bool is_while = iterations < 0;
  looks = is_while ? next[2] : 0;
  in_body = next[is_while ? 3 : 2];
  steps.resize(is_while ? next[4] : in_body);
  is_next = is_while ? next[5] : 0;
  next += is_while ? 6 : 3;
  static_assert(sizeof(Place) == 8 * sizeof(int64_t), "as it is encoded");
  places = reinterpret_cast<const Place*>(next);
  next += 8 * place_count;
  moving.clear();
  for (int64_t i = 0; i < place_count; ++i) {
    if (places[i].moves()) moving.push_back(i);
  }
  for (Step& step : steps) {
    const int64_t* const operands = next + 4;
    step = {next[0], next[1], next[2], next[3], operands, operands + next[1]};
    most_operands = std::max<size_t>(most_operands, step.operand_count);
    most_results = std::max<size_t>(most_results, step.result_count);
    step.integers = step.results + step.result_count;
    next = step.integers + step.integer_count;
    if (step.kind == kElementwise) {
      step.groups = std::make_unique<Groups>();
      step.groups->decode(step.integers, step.integer_count);
    } else if (step.kind == kProduct) {
      SmallProduct product;
      const ffi::Span<const int64_t> problems(step.integers + 1, step.integer_count - 1);
      const auto count = [&](int64_t place) { return places[place].count; };
      if (product.decode(instruction_set().floats, problems, count(step.operands[0]),
                         count(step.operands[1]), count(step.results[0]), step.integers[0] != 0) &&
          product.work() < 2 * SmallProduct::kThread) {
        step.product = std::make_unique<SmallProduct>(product);
      }
    } else if (step.kind == kLoop) {
      step.loops.resize(1);
      step.loops[0].decode(step.integers);
    } else if (step.kind == kChoice) {
      step.loops.resize(step.integers[1]);
      for (int64_t i = 0; i < step.integers[1]; ++i) {
        step.loops[i].decode(step.integers + step.integers[2 + 3 * i + 2]);
      }
    }
  }
}

// Where the arrays of a loop and its values are, and what a step takes and gives; of a small loop, getting
// memory takes the longest.
struct Frame {
  std::vector<char*> arrays;
  std::vector<void*> at, results;
  std::vector<const void*> operands;

  void add(const void* x) { arrays.push_back(static_cast<char*>(const_cast<void*>(x))); }
  void reserve(const Loop& loop) {
    const auto grow = [](auto& x, size_t count) {
      if (x.size() < count) x.resize(count);
    };
    grow(at, loop.place_count);
    grow(operands, loop.most_operands);
    grow(results, loop.most_results + 1);
  }
};
// That of a loop within so many others.
Frame& frame(size_t depth) {
  auto& frames = of_thread<std::deque<Frame>>();  // whose elements stay where they are
  while (frames.size() <= depth) frames.emplace_back();
  return frames[depth];
}

// An axis of a window, and how many bytes are from element to element in the arrays.
struct Moved {
  int64_t size, from, to;
};

template <class Element>
void move_elements(const Moved& axis, const char* from, char* to) {
  for (int64_t i = 0; i < axis.size; ++i, from += axis.from, to += axis.to) {
    std::memcpy(to, from, sizeof(Element));
  }
}

void move(const Moved* axes, int64_t rank, int64_t bytes, const char* from, char* to) {
  if (rank > 1) {
    for (int64_t i = 0; i < axes->size; ++i) {
      move(axes + 1, rank - 1, bytes, from + i * axes->from, to + i * axes->to);
    }
    return;
  }
  if (axes->from == bytes && axes->to == bytes) {
    std::memcpy(to, from, axes->size * bytes);
    return;
  }
  switch (bytes) {
    case 1: return move_elements<uint8_t>(*axes, from, to);
    case 2: return move_elements<uint16_t>(*axes, from, to);
    case 4: return move_elements<uint32_t>(*axes, from, to);
    default: return move_elements<uint64_t>(*axes, from, to);
  }
}

// A window of an array to one of another, which begin where integers say; as it is encoded: the bytes
// of an element, the axes, where both windows begin, and of each integer the operand and the element
// that it is, the largest it may be, how far it takes the windows, and whether nothing is moved where it is
// negative or larger.
void move_window(const int64_t* next, const void* const* operands, void* result) {
  struct Begin {
    int64_t operand, element, most, from, to, drops;
  };
  const int64_t bytes = next[0], rank = next[1];
  const auto* const axes = reinterpret_cast<const Moved*>(next + 2);
  next += 2 + 3 * rank;
  const char* from = static_cast<const char*>(operands[0]) + next[0];
  char* to = static_cast<char*>(result) + next[1];
  const auto* begin = reinterpret_cast<const Begin*>(next + 3);
  for (const auto* const end = begin + next[2]; begin != end; ++begin) {
    const int64_t given = static_cast<const int32_t*>(operands[begin->operand])[begin->element];
    const int64_t at = std::clamp<int64_t>(given, 0, begin->most);
    if (begin->drops && at != given) return;
    from += at * begin->from;
    to += at * begin->to;
  }
  move(axes, rank, bytes, from, to);
}

// Of x [outer, n, inner], the first position over n of the largest or of the smallest, or of a NaN; of some
// columns together.
void find_positions(const float* x, bool largest, const int64_t* sizes, int32_t* to) {
  constexpr int64_t kColumns = 16;
  const int64_t n = sizes[1], inner = sizes[2];
  const int32_t turned = largest ? 0 : -1;
  const auto key = [=](float x) { return x != x ? INT32_MAX : key_of(x) ^ turned; };
  for (int64_t o = 0; o < sizes[0]; ++o, x += n * inner, to += inner) {
    if (inner == 1) {
      int32_t best = INT32_MIN;
      for (int64_t j = 0; j < n; ++j) best = std::max(best, key(x[j]));
      *to = std::find_if(x, x + n, [=](float x) { return key(x) == best; }) - x;
      continue;
    }
    for (int64_t first = 0; first < inner; first += kColumns) {
      const int64_t here = std::min(kColumns, inner - first);
      int32_t best[kColumns], position[kColumns] = {};
      std::fill_n(best, kColumns, INT32_MIN);
      for (int64_t j = 0; j < n; ++j) {
        const float* const row = x + j * inner + first;
        for (int64_t c = 0; c < here; ++c) {
          const int32_t other = key(row[c]);
          position[c] = other > best[c] ? j : position[c];
          best[c] = std::max(best[c], other);
        }
      }
      std::copy_n(position, here, to + first);
    }
  }
}

// Runs the loops of a call, which ends at the first error.
class Runner {
 public:
  explicit Runner(ffi::ThreadPool* pool) : pool_(pool) {}

  // Whether there was no error: a loop within so many others, whose arrays the frame has.
  bool run(const Loop& loop, Frame& here, size_t depth);
  ffi::Error error() const { return error_; }

 private:
  ffi::ThreadPool* const pool_;
  ffi::Error error_;

  bool run(const Step& step, const Place* places, Frame& here, size_t depth);
  bool keep(ffi::Error error) {
    if (error.success()) return true;
    error_ = std::move(error);
    return false;
  }
};

bool Runner::run(const Step& step, const Place* places, Frame& here, size_t depth) {
  // Read once, since what the steps write might be these addresses.
  const void** const operands = here.operands.data();
  void** const results = here.results.data();
  void* const* const at = here.at.data();
  const int64_t operand_count = step.operand_count, result_count = step.result_count;
  const int64_t *const from_places = step.operands, *const to_places = step.results;
  for (int64_t i = 0; i < operand_count; ++i) operands[i] = at[from_places[i]];
  for (int64_t i = 0; i < result_count; ++i) results[i] = at[to_places[i]];
  const int64_t* const integers = step.integers;
  const auto from = [&](int64_t i) {
    return ffi::Span<const int64_t>(integers + i, step.integer_count - i);
  };
  const auto inner_frame = [&]() -> Frame& {
    Frame& inner = frame(depth + 1);
    inner.arrays.clear();
    return inner;
  };
  switch (step.kind) {
    case kProduct:
      if (const Chains& set = instruction_set().floats; step.product && step.product->is_for(set)) {
        const auto *lhs = static_cast<const float*>(operands[0]),
                   *rhs = static_cast<const float*>(operands[1]);
        auto* const out = static_cast<float*>(results[0]);
        if (step.product->compute(set, lhs, rhs, out, 0, step.product->groups())) return true;
      }
      return keep(sequential_product(
          pool_, static_cast<const float*>(operands[0]), places[step.operands[0]].count,
          static_cast<const float*>(operands[1]), places[step.operands[1]].count, from(1),
          static_cast<float*>(results[0]), places[step.results[0]].count, integers[0]));
    case kElementwise:
      step.groups->compute(pool_, operands, results);
      return true;
    case kSum:
      return keep(reduce_sum(pool_, operands, operand_count, {integers + 1, 3},
                             kAccumulations[integers[0]], from(4), static_cast<float*>(results[0])));
    case kCopy:
      if (results[0] != operands[0]) std::memcpy(results[0], operands[0], integers[0]);
      return true;
    case kKeep:  // what was, in the examples whose loops have ended
      for (int64_t i = 0; i < integers[0]; ++i) {
        const int64_t at = i * integers[1];
        if (static_cast<const bool*>(operands[0])[i]) continue;
        std::memcpy(static_cast<char*>(results[0]) + at, static_cast<const char*>(operands[1]) + at,
                    integers[1]);
      }
      return true;
    case kRows:
      results[result_count] = nullptr;  // the empty one of the call
      return keep(row_group(pool_, operands, operand_count, results, result_count + 1, from(0)));
    case kMove:
      move_window(integers, operands, results[0]);
      return true;
    case kPosition:
      find_positions(static_cast<const float*>(operands[0]), integers[0], integers + 1,
                     static_cast<int32_t*>(results[0]));
      return true;
    case kBits:
      return keep(draw_bits(pool_, static_cast<const uint32_t*>(operands[0]), integers[0],
                            integers[1], static_cast<uint32_t*>(results[0])));
    case kKeys:
      return keep(draw_keys(pool_, static_cast<const uint32_t*>(operands[0]), integers[0],
                            operand_count > 1 ? static_cast<const uint32_t*>(operands[1]) : nullptr,
                            integers[1], static_cast<uint32_t*>(results[0])));
    case kLoop: {
      Frame& inner = inner_frame();
      for (int64_t i = 0; i < operand_count; ++i) inner.add(operands[i]);
      for (int64_t i = 0; i < result_count; ++i) inner.add(results[i]);
      return run(step.loops[0], inner, depth + 1);
    }
    case kChoice: {
      // How many operands all choices have, how many choices there are, and of each which operands it has
      // besides, how many, and where its integers are.
      const int64_t given = *static_cast<const int32_t*>(operands[0]);
      const int64_t chosen = std::clamp<int64_t>(given, 0, integers[1] - 1);
      const int64_t* const own = integers + 2 + 3 * chosen;
      Frame& inner = inner_frame();
      for (int64_t i = 0; i < integers[0]; ++i) inner.add(operands[1 + i]);
      for (int64_t i = 0; i < own[1]; ++i) inner.add(operands[own[0] + i]);
      for (int64_t i = 0; i < result_count; ++i) inner.add(results[i]);
      return run(step.loops[chosen], inner, depth + 1);
    }
  }
  return keep(ffi::Error::InvalidArgument("a step of another kind"));
}

bool Runner::run(const Loop& loop, Frame& here, size_t depth) {
  const Place* const places = loop.places;
  here.reserve(loop);
  void** const at = here.at.data();
  char* const* const arrays = here.arrays.data();
  const auto run_steps = [&, this, depth](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      if (!run(loop.steps[i], places, here, depth)) return false;
    }
    return true;
  };
  for (int64_t i = 0; i < loop.place_count; ++i) at[i] = places[i].find(arrays, 0);
  for (int64_t t = 0; t != loop.iterations; ++t) {
    if (t > 0) {
      for (const int64_t i : loop.moving) at[i] = places[i].find(arrays, t);
    }
    if (!run_steps(0, loop.looks)) return false;
    if (loop.iterations < 0) {
      const bool* const is_another = static_cast<const bool*>(at[loop.is_next]);
      const bool* const end = is_another + places[loop.is_next].count;
      if (std::find(is_another, end, true) == end) return run_steps(loop.in_body, loop.steps.size());
    }
    if (!run_steps(loop.looks, loop.in_body)) return false;
  }
  return true;
}

ffi::Error handle(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                  ffi::Span<const int64_t> encoded) {
  const Loop& loop = *of_thread<Calls<Loop>>().find(
      encoded, [](const std::vector<int64_t>& words, Loop& loop) {
        loop.decode(words.data());
        return true;
      });
  Frame& outermost = frame(0);
  outermost.arrays.clear();
  for (size_t i = 0; i < args.size(); ++i) {
    outermost.add(args.get<ffi::AnyBuffer>(i)->untyped_data());
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    outermost.add((*rets.get<ffi::AnyBuffer>(i))->untyped_data());
  }
  const IeeeArithmetic ieee;  // of most steps
  Runner runner(&pool);
  runner.run(loop, outermost, 0);
  return runner.error();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_loop, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const int64_t>>("program"));
