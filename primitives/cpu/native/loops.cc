// Loops (repjax_loop): a scan or a while of products, fused groups, sums and row groups, in one call.
//
// XLA takes longer to make a call than a small step takes.  A step is what the call of the same name
// would be, by the same function, so the bits are the same.

#include "bytecode.h"
#include "elements.h"
#include "products.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
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
  struct {
    int64_t array, byte;
  } first, even, odd;
  int64_t step, count;
};

struct Step {
  int64_t kind, operand_count, result_count, integer_count;
  const int64_t *operands, *results, *integers;  // places; what the call has as attributes
};

enum { kProduct, kElementwise, kSum, kCopy, kRows, kKeep };  // as repjax.primitives.cpu.loops numbers them
constexpr std::string_view kAccumulations[] = {"pairwise", "sequential", "max", "min"};

ffi::Error run(ffi::ThreadPool* pool, const Step& step, const Place* places, void* const* at,
               std::vector<const void*>& operands, std::vector<void*>& results) {
  operands.clear();
  results.clear();
  for (int64_t i = 0; i < step.operand_count; ++i) operands.push_back(at[step.operands[i]]);
  for (int64_t i = 0; i < step.result_count; ++i) results.push_back(at[step.results[i]]);
  const int64_t* const integers = step.integers;
  const auto from = [&](int64_t i) {
    return ffi::Span<const int64_t>(integers + i, step.integer_count - i);
  };
  switch (step.kind) {
    case kProduct:
      return sequential_product(pool, static_cast<const float*>(operands[0]),
                                places[step.operands[0]].count,
                                static_cast<const float*>(operands[1]),
                                places[step.operands[1]].count, from(1),
                                static_cast<float*>(results[0]), places[step.results[0]].count,
                                integers[0]);
    case kElementwise:
      return elementwise(pool, operands.data(), operands.size(), results.data(), results.size(),
                         from(0));
    case kSum:
      return reduce_sum(pool, operands.data(), operands.size(), {integers + 1, 3},
                        kAccumulations[integers[0]], from(4), static_cast<float*>(results[0]));
    case kCopy:
      if (results[0] != operands[0]) std::memcpy(results[0], operands[0], integers[0]);
      return ffi::Error::Success();
    case kKeep:  // what was, in the examples whose loops have ended
      for (int64_t i = 0; i < integers[0]; ++i) {
        const int64_t at = i * integers[1];
        if (static_cast<const bool*>(operands[0])[i]) continue;
        std::memcpy(static_cast<char*>(results[0]) + at, static_cast<const char*>(operands[1]) + at,
                    integers[1]);
      }
      return ffi::Error::Success();
    case kRows:
      results.push_back(nullptr);  // the empty one of the call
      return row_group(pool, operands.data(), operands.size(), results.data(), results.size(),
                       from(0));
  }
  return ffi::Error::InvalidArgument("a step of another kind");
}

// What a call needs; of a small call, getting memory takes the longest.
struct Call {
  std::vector<Step> steps;
  std::vector<char*> arrays;
  std::vector<void*> at, results;
  std::vector<const void*> operands;
};

// encoded: how many iterations, places and steps there are; the places; of each step its kind, how
// many operands, results and integers it has, and these.
//
// Of a while: -1, how many places there are, behind how many steps it is known whether there is another
// iteration, behind how many that is done, and how many there are, of which the others are done in the end;
// the place that says whether there is another iteration, of one of several examples; and the same
// places and steps.
ffi::Error handle(ffi::ThreadPool pool, ffi::RemainingArgs args, ffi::RemainingRets rets,
                  ffi::Span<const int64_t> encoded) {
  const int64_t* next = encoded.begin();
  const int64_t iterations = next[0], place_count = next[1];
  const bool is_while = iterations < 0;
  const int64_t looks = is_while ? next[2] : 0, in_body = next[is_while ? 3 : 2];
  const int64_t step_count = is_while ? next[4] : in_body, is_next = is_while ? next[5] : 0;
  static_assert(sizeof(Place) == 8 * sizeof(int64_t), "as it is encoded");
  next += is_while ? 6 : 3;
  const auto* const places = reinterpret_cast<const Place*>(next);
  next += 8 * place_count;
  auto& [steps, arrays, at, results, operands] = of_thread<Call>();
  steps.resize(step_count);
  at.resize(place_count);
  arrays.clear();
  for (Step& step : steps) {
    step = {next[0], next[1], next[2], next[3]};
    step.operands = next + 4;
    step.results = step.operands + step.operand_count;
    step.integers = step.results + step.result_count;
    next = step.integers + step.integer_count;
  }
  for (size_t i = 0; i < args.size(); ++i) {
    arrays.push_back(static_cast<char*>(args.get<ffi::AnyBuffer>(i)->untyped_data()));
  }
  for (size_t i = 0; i < rets.size(); ++i) {
    arrays.push_back(static_cast<char*>((*rets.get<ffi::AnyBuffer>(i))->untyped_data()));
  }
  const IeeeArithmetic ieee;  // of most steps
  const auto run_steps = [&, &operands = operands, &results = results](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      ffi::Error error = run(&pool, steps[i], places, at.data(), operands, results);
      if (error.failure()) return error;
    }
    return ffi::Error::Success();
  };
  for (int64_t t = 0; t != iterations; ++t) {
    for (int64_t i = 0; i < place_count; ++i) {
      const Place& place = places[i];
      const auto& here = t == 0 ? place.first : t % 2 ? place.odd : place.even;
      at[i] = arrays[here.array] + here.byte + t * place.step;
    }
    ffi::Error error = run_steps(0, looks);
    if (error.failure()) return error;
    if (is_while) {
      const bool* const is_another = static_cast<const bool*>(at[is_next]);
      const bool* const end = is_another + places[is_next].count;
      if (std::find(is_another, end, true) == end) return run_steps(in_body, step_count);
    }
    error = run_steps(looks, in_body);
    if (error.failure()) return error;
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_loop, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<ffi::Span<const int64_t>>("program"));
