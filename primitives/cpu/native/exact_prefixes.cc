// Exact cumulative sums of float32 (repjax_exact_cumsum).
//
//   out[o, i, c] = guard(RN(the exact sum of x[o, j, c] over j <= i, or over j >= i))
//
// The bits are those of repjax.primitives.operations.accumulators.  Running sums keep what each
// addition loses, and bound what that loses: nearly always, both ends of the interval round alike
// (Ziv 1991).  The sums of a whole axis that has others are added again by a superaccumulator.

#include "axes.h"
#include "exact.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kThread = 1 << 14;            // terms that are worth a thread
constexpr int64_t kRows = 64, kColumns = 512;   // of a block
constexpr int64_t kLeastPart = 256;             // terms of a part of an axis
constexpr int64_t kPartsOfThread = 4;           // of which some are late, in whole vectors

struct Call {
  const Exact& set;
  const float* x;
  float* out;
  int64_t outer, n, inner;
  bool reverse;
  double slack;
  bool odd;
  ffi::ThreadPool* pool;

  int64_t axes() const { return outer * inner; }
  // The place of the first term of an axis, and how far one is from the next.
  int64_t first(int64_t axis) const {
    return axis / inner * n * inner + axis % inner + (reverse ? (n - 1) * inner : 0);
  }
  int64_t step() const { return reverse ? -inner : inner; }
};

// Sums of so many columns that go on.
class Sums {
 public:
  explicit Sums(int64_t columns) : columns_(columns), all_(3 * columns) {}
  Running from(int64_t column) {
    double* const at = all_.data() + column;
    return {at, at + columns_, at + 2 * columns_};
  }

 private:
  int64_t columns_;
  std::vector<double> all_;
};

void add(double x, double* sum, double* rest) {
  const double s = *sum + x, of_x = s - *sum;
  *rest = (*sum - (s - of_x)) + (x - of_x);
  *sum = s;
}

// Sums that are those of parts become the sums of all parts before.
void before_each(Running parts, int64_t count) {
  double high = 0, low = 0, lost = 0;
  for (int64_t i = 0; i < count; ++i) {
    std::swap(high, parts.high[i]);
    std::swap(low, parts.low[i]);
    std::swap(lost, parts.lost[i]);
    double rest, lost_of_low, lost_of_rest;
    // The sum of this part is in high, low and lost, and that of those before in the array.
    add(parts.high[i], &high, &rest);
    add(parts.low[i], &low, &lost_of_low);
    add(rest, &low, &lost_of_rest);
    lost += parts.lost[i] + std::fabs(lost_of_low) + std::fabs(lost_of_rest);
  }
}

// What is unsure along an axis.
void finish(const Call& call, int64_t axis) {
  const IeeeArithmetic ieee;
  Superaccumulator sum;
  int64_t at = call.first(axis);
  for (int64_t k = 0; k < call.n && std::isfinite(call.x[at]); ++k, at += call.step()) {
    sum.add(call.x[at]);
    int32_t bits;
    std::memcpy(&bits, call.out + at, sizeof bits);
    if (bits == kUnsure) call.set.round_one[call.odd](sum.odd(), call.out + at);
  }
}

// Neighbouring axes, whose terms lie beside each other.  Sets the axes that are not sure.
void side_by_side(const Call& call, int64_t threads, std::vector<char>& unsure) {
  const int64_t line = 2 * call.set.lanes;
  int64_t width = std::min(kColumns, call.inner);
  while (call.outer * blocks_of(call.inner, width) < 2 * threads && width > line) {
    width = round_up(blocks_of(width, 2), line);
  }
  const int64_t blocks = blocks_of(call.inner, width);
  in_parallel(call.pool, threads, call.outer * blocks, [=, &call, &unsure](int64_t i) {
    const IeeeArithmetic ieee;
    const int64_t c = i % blocks * width, columns = std::min(width, call.inner - c);
    const int64_t axis = i / blocks * call.inner + c, first = call.first(axis);
    Sums sums(columns);
    for (int64_t k = 0; k < call.n; k += kRows) {
      const int64_t at = first + k * call.step();
      const bool sure = call.set.prefixes[call.odd](
          call.x + at, std::min(kRows, call.n - k), call.step(), columns, call.slack, sums.from(0),
          call.out + at, call.step());
      if (!sure) std::fill_n(&unsure[axis], columns, 1);
    }
  });
}

// Axes in parts, several of which are brought together as columns.
class Parts {
 public:
  Parts(const Call& call, int64_t threads)
      : call_(call), threads_(threads), width_(2 * call.set.lanes) {
    const int64_t wanted = blocks_of(kPartsOfThread * threads * width_, call.axes());
    const int64_t enough = call.axes() >= threads * width_ ? 1 : wanted;
    const int64_t parts = std::max<int64_t>(1, std::min(enough, call.n / kLeastPart));
    terms_ = round_up(blocks_of(call.n, parts), kRows);
    parts_ = blocks_of(call.n, terms_);
  }

  void run(std::vector<char>& unsure) {
    Sums sums(call_.axes() * parts_);
    if (parts_ > 1) {
      for_each([&](int64_t i, int64_t count) { go_on(sums.from(i), i, count, nullptr); });
      for (int64_t i = 0; i < call_.axes(); ++i) before_each(sums.from(i * parts_), parts_);
    }
    std::vector<char> of_parts(call_.axes() * parts_);
    for_each([&](int64_t i, int64_t count) { go_on(sums.from(i), i, count, &of_parts[i]); });
    for (size_t i = 0; i < of_parts.size(); ++i) unsure[i / parts_] |= of_parts[i];
  }

 private:
  const Call& call_;
  const int64_t threads_, width_;
  int64_t terms_, parts_;  // of a part, of an axis

  // Calls run(i, count) for parts i to i + count - 1.
  template <class Run>
  void for_each(Run run) {
    const int64_t all = call_.axes() * parts_;
    in_parallel(call_.pool, threads_, blocks_of(all, width_), [=](int64_t block) {
      const IeeeArithmetic ieee;
      run(block * width_, std::min(width_, all - block * width_));
    });
  }

  // Continues the sums of parts; where `unsure`, with results, and sets those that are not sure.
  void go_on(Running sums, int64_t first, int64_t count, char* unsure) const {
    const Chains& floats = instruction_set().floats;
    const int64_t n = call_.n, inner = call_.inner;
    float* const terms = scratch<kStaged, float>(3 * kRows * width_);
    float* const results = terms + kRows * width_;
    float* const turned = results + kRows * width_;
    int64_t begins[64], at[64], row[kRows], place[kRows], column[64];
    for (int64_t j = 0; j < count; ++j) {
      begins[j] = (first + j) % parts_ * terms_;
      column[j] = j;
    }
    for (int64_t i = 0; i < kRows; ++i) row[i] = i * inner, place[i] = i * width_;
    const int64_t most = std::min(terms_, n - *std::min_element(begins, begins + count));
    for (int64_t k = 0; k < most; k += kRows) {
      // In the order of memory, which may be against that of the axis.
      const int64_t rows = std::min(kRows, most - k);
      bool whole = true;
      for (int64_t j = 0; j < count; ++j) {
        const int64_t left = n - begins[j] - k;
        whole &= left >= rows;
        at[j] = call_.first((first + j) / parts_) + (begins[j] + k) * call_.step() -
                (call_.reverse ? (rows - 1) * inner : 0);
      }
      if (whole) {
        floats.pack[false](call_.x, row, rows, at, count, terms, width_);
      } else {
        for_places(rows, count, begins, k, [&](int64_t i, int64_t j) {
          terms[i * width_ + j] = call_.x[at[j] + i * inner];
        }, [&](int64_t i, int64_t j) { terms[i * width_ + j] = 0; });
      }
      const int64_t begin = call_.reverse ? (rows - 1) * width_ : 0;
      const int64_t step = call_.reverse ? -width_ : width_;
      if (!unsure) {
        call_.set.go_on(terms + begin, rows, step, count, call_.slack, sums, nullptr, 0);
        continue;
      }
      const bool sure = call_.set.prefixes[call_.odd](terms + begin, rows, step, count,
                                                      call_.slack, sums, results + begin, step);
      if (!sure) std::fill_n(unsure, count, 1);
      if (whole && inner == 1) {
        floats.pack[false](results, column, count, place, rows, turned, kRows);
        for (int64_t j = 0; j < count; ++j) {
          std::copy_n(turned + j * kRows, rows, call_.out + at[j]);
        }
      } else {
        for_places(rows, count, begins, k, [&](int64_t i, int64_t j) {
          call_.out[at[j] + i * inner] = results[i * width_ + j];
        }, [](int64_t, int64_t) {});
      }
    }
  }

  // Calls inside(i, j) for places in a block that the axis has, and outside(i, j) for the others.
  template <class Inside, class Outside>
  void for_places(int64_t rows, int64_t count, const int64_t* begins, int64_t k, Inside inside,
                  Outside outside) const {
    for (int64_t i = 0; i < rows; ++i) {
      const int64_t term = call_.reverse ? rows - 1 - i : i;
      for (int64_t j = 0; j < count; ++j) {
        if (begins[j] + k + term < call_.n) {
          inside(i, j);
        } else {
          outside(i, j);
        }
      }
    }
  }
};

// sizes: those of the three axes of x.  slack and odd: see exact_products.cc.
ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<ffi::F32> x, ffi::Span<const int64_t> sizes,
                  int64_t reverse, double slack, int64_t odd, ffi::ResultBuffer<ffi::F32> out) {
  const int64_t count = x.element_count();
  if (sizes.size() != 3 || sizes[0] * sizes[1] * sizes[2] != count ||
      int64_t(out->element_count()) != count) {
    return ffi::Error::InvalidArgument("sizes: expected those of the array, [outer, n, inner]");
  }
  if (count == 0) return ffi::Error::Success();
  const Call call = {instruction_set().exact, x.typed_data(), written(out), sizes[0], sizes[1],
                     sizes[2], reverse != 0, slack, odd != 0, &pool};
  std::vector<char> unsure(call.axes());
  const int64_t threads = useful_threads(&pool, count, kThread);
  const int64_t line = 2 * call.set.lanes;
  if (call.inner >= line && call.axes() >= threads * line) {
    side_by_side(call, threads, unsure);
  } else {
    Parts(call, threads).run(unsure);
  }
  std::vector<int64_t> again;
  for (int64_t i = 0; i < call.axes(); ++i) {
    if (unsure[i]) again.push_back(i);
  }
  share(&pool, again.size(), double(again.size()) * call.n, kThread,
        [&](int64_t i) { finish(call, again[i]); });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_exact_cumsum, repjax::handle,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<ffi::Span<const int64_t>>("sizes")
                                  .Attr<int64_t>("reverse")
                                  .Attr<double>("slack")
                                  .Attr<int64_t>("odd")
                                  .Ret<ffi::Buffer<ffi::F32>>());
