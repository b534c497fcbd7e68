// Discrete Fourier transforms of float32 (repjax_fourier).
//
// The bits are those of repjax.primitives.operations.fourier: products with the same matrices are
// chains of fused multiply-adds, k ascending, and what is between them is rounded as it is there.
// Vectors are of independent transforms; nothing but the operand and the result is in memory that
// does not stay in the caches, as long as a transform does.
//
// Columns are transforms side by side: element i of row j is element j of transform i.  A transform
// of length p m by parts is p transforms of length m, which lie side by side as they are, a
// multiplication, and m transforms of length p; of a single transform, these lie side by side when
// the matrix between is transposed.

#include "axes.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

constexpr int64_t kMostLanes = 16;  // of a vector

// How a transform is done (`kind` of primitives/cpu/fourier.py).
enum Kind : int64_t { kNothing, kMatrix, kParts, kConvolution };
struct Stage {
  Kind kind;
  int64_t n;
  int64_t p, m;                  // n = p m; of a convolution, m is its length
  Roots matrix;                  // of the transform of length p
  const float *cosine, *sine;    // what is multiplied with: [p, m], or [n]
  std::unique_ptr<Stage> inner;  // of the transform of length m, and of that back
  std::unique_ptr<Stage> back;
  Columns around = {};           // what a convolution is with, transformed
  std::vector<float> memory;
};

// Memory of a thread, taken in the order of a stack, and kept for the next call.
class Memory {
 public:
  class Mark {
   public:
    explicit Mark(Memory& memory) : memory_(memory), chunk_(memory.chunk_), used_(memory.used_) {}
    ~Mark() { memory_.chunk_ = chunk_, memory_.used_ = used_; }
    Mark(const Mark&) = delete;
    Mark& operator=(const Mark&) = delete;

   private:
    Memory& memory_;
    size_t chunk_;
    int64_t used_;
  };

  float* take(int64_t count) {
    count = round_up(count, kMostLanes);
    while (chunk_ < chunks_.size() && used_ + count > chunks_[chunk_].size) ++chunk_, used_ = 0;
    if (chunk_ == chunks_.size()) {
      const int64_t size = std::max(count, kChunk);
      chunks_.push_back({size, std::unique_ptr<float[]>(new float[size + kMostLanes])});
    }
    float* const from = chunks_[chunk_].memory.get();
    constexpr uintptr_t kLine = sizeof(float) * kMostLanes;
    const int64_t skipped = (kLine - reinterpret_cast<uintptr_t>(from) % kLine) / sizeof(float);
    used_ += count;
    return from + skipped + used_ - count;
  }

  Columns columns(int64_t rows, int64_t row, bool complex = true) {
    return {take(rows * row), complex ? take(rows * row) : nullptr, row};
  }

 private:
  static constexpr int64_t kChunk = 1 << 16;
  struct Chunk {
    int64_t size;
    std::unique_ptr<float[]> memory;
  };
  std::vector<Chunk> chunks_;
  size_t chunk_ = 0;
  int64_t used_ = 0;
};

Memory& memory_of_thread() {
  thread_local Memory memory;
  return memory;
}

void copy_rows(const Columns& x, int64_t rows, int64_t count, const Columns& to) {
  for (int64_t i = 0; i < rows; ++i) {
    std::copy_n(x.real + i * x.row, count, to.real + i * to.row);
    if (!to.imaginary) continue;
    if (x.imaginary) {
      std::copy_n(x.imaginary + i * x.row, count, to.imaginary + i * to.row);
    } else {
      std::fill_n(to.imaginary + i * to.row, count, 0.0f);
    }
  }
}

// The transforms of one plan, by the functions of an instruction set, in this thread's memory.
class Transforms {
 public:
  Transforms(const Fourier& set, Memory& memory) : set_(set), memory_(memory) {}

  // The first outputs of columns that fill vectors, or of one column: element j is in row j.  Both
  // have dense rows.
  void run(const Stage& s, const Columns& x, const Columns& to, int64_t outputs) {
    const Memory::Mark mark(memory_);
    switch (s.kind) {
      case kNothing: return copy_rows(x, 1, x.row, to);
      case kMatrix:
        return x.row == 1 ? set_.transform_one(s.matrix, x, to, outputs)
                          : set_.transform(s.matrix, x, {}, x.row, to, outputs);
      case kParts:
        return x.row == 1 ? by_parts_of_one(s, x, to, outputs) : by_parts(s, x, to, outputs);
      case kConvolution: return by_convolution(s, x, to, outputs);
    }
  }

 private:
  const Fourier& set_;
  Memory& memory_;

  void by_parts(const Stage& s, const Columns& x, const Columns& to, int64_t outputs) {
    const int64_t lanes = x.row, row = s.p * lanes;
    const Columns y = memory_.columns(s.m, row);
    run(*s.inner, {x.real, x.imaginary, row}, y, s.m);
    for (int64_t k = 0; k < std::min(s.m, outputs); ++k) {
      Columns at = y.from(k * row);
      at.row = lanes;
      Columns results = to.from(k * lanes);
      results.row = s.m * lanes;
      const Turns turns = {s.cosine + k, s.sine + k, s.m, true};
      set_.transform(s.matrix, at, turns, lanes, results, blocks_of(outputs - k, s.m));
    }
  }

  void by_parts_of_one(const Stage& s, const Columns& x, const Columns& to, int64_t outputs) {
    const int64_t width = round_up(s.p, set_.lanes), height = round_up(s.m, set_.lanes);
    const Columns y = memory_.columns(width, height);
    if (2 * s.p < set_.lanes) {
      const Columns part = memory_.columns(round_up(s.m, set_.lanes), 1, x.imaginary);
      for (int64_t i = 0; i < s.p; ++i) {
        for (int64_t j = 0; j < s.m; ++j) part.real[j] = x.real[j * s.p + i];
        for (int64_t j = 0; x.imaginary && j < s.m; ++j) {
          part.imaginary[j] = x.imaginary[j * s.p + i];
        }
        Columns results = y.from(i * height);
        results.row = 1;
        run(*s.inner, part, results, s.m);
      }
    } else {
      Columns parts = {x.real, x.imaginary, s.p};
      if (s.p != width) {
        const Columns padded = memory_.columns(s.m, width, x.imaginary);
        copy_rows(parts, s.m, s.p, padded);
        parts = padded;
      }
      const Columns turned = memory_.columns(height, width);
      run(*s.inner, parts, turned, s.m);
      set_.transpose(turned.real, width, height, width, y.real, height);
      set_.transpose(turned.imaginary, width, height, width, y.imaginary, height);
    }
    const int64_t rows = blocks_of(outputs, s.m);
    Columns results = {to.real, to.imaginary, s.m};
    if (s.m != height) results = memory_.columns(s.p, height, to.imaginary);
    set_.transform(s.matrix, y, {s.cosine, s.sine, s.m, false}, height, results, rows);
    if (s.m != height) copy_rows(results, rows, s.m, {to.real, to.imaginary, s.m});
  }

  void by_convolution(const Stage& s, const Columns& x, const Columns& to, int64_t outputs) {
    const int64_t lanes = x.row, size = s.m * lanes;
    const Columns y = memory_.columns(s.m, lanes), z = memory_.columns(s.m, lanes);
    multiply(x, s.cosine, s.sine, s.n, y);
    std::fill(y.real + s.n * lanes, y.real + size, 0.0f);
    std::fill(y.imaginary + s.n * lanes, y.imaginary + size, 0.0f);
    run(*s.inner, y, z, s.m);
    multiply(z, s.around.real, s.around.imaginary, s.m, z);
    run(*s.back, z, y, outputs);
    set_.divide(y.real, outputs * lanes, float(s.m));
    set_.divide(y.imaginary, outputs * lanes, float(s.m));
    Columns results = to;
    if (!to.imaginary) results.imaginary = z.imaginary;
    multiply(y, s.cosine, s.sine, outputs, results);
  }

  void multiply(const Columns& x, const float* real, const float* imaginary, int64_t rows,
                const Columns& to) {
    if (x.row == 1) return set_.multiply_each(x, real, imaginary, rows, to);
    set_.multiply_rows(x, real, imaginary, rows, to);
  }
};

// The stages of a plan, by the numbers and the roots that describe it.
class Plan {
 public:
  Plan(ffi::Span<const int64_t> numbers, ffi::Buffer<ffi::F32> roots)
      : at_(numbers.begin()), end_(numbers.end()), roots_(roots.typed_data()),
        size_(roots.element_count()) {}

  bool is_right() const { return is_right_; }
  bool is_done() const { return at_ == end_; }

  std::unique_ptr<Stage> next() {
    auto s = std::make_unique<Stage>();
    s->kind = Kind(number());
    s->n = number();
    s->p = number();
    s->m = number();
    s->matrix = {s->p, nullptr};
    if (s->kind == kMatrix || s->kind == kParts) {
      is_right_ = is_right_ && s->p <= kMostOfMatrix;
      s->matrix.elements = roots(s->p * s->p);
    }
    if (s->kind == kParts || s->kind == kConvolution) {
      s->cosine = roots(s->n);
      s->sine = roots(s->n);
    }
    if (s->kind == kConvolution) {
      s->around = {const_cast<float*>(roots(s->m)), const_cast<float*>(roots(s->m)), 1};
    }
    is_right_ = is_right_ && s->n >= 1 && s->p >= 1 && s->m >= 1;
    if (!is_right_) return s;
    if (s->kind == kParts || s->kind == kConvolution) {
      s->inner = next();
      is_right_ = is_right_ && s->inner->n == s->m;
    }
    if (s->kind == kConvolution) {
      s->back = next();
      is_right_ = is_right_ && s->back->n == s->m && s->m >= s->n;
    } else if (s->kind != kNothing) {
      is_right_ = is_right_ && s->n == s->p * s->m;
    }
    return s;
  }

 private:
  const int64_t *at_, *end_;
  const float* roots_;
  int64_t size_;
  bool is_right_ = true;

  int64_t number() {
    if (at_ < end_) return *at_++;
    is_right_ = false;
    return 0;
  }
  // So many, and as many more as what reads whole vectors may read.
  const float* roots(int64_t count) {
    const int64_t at = number();
    if (at < 0 || count < 0 || at + count + 4 * kMostLanes > size_) is_right_ = false;
    return roots_ + at;
  }
};

// Transforms what convolutions are with: once for all transforms of a call.
void prepare(const Fourier& set, Stage* s) {
  if (s->inner) prepare(set, s->inner.get());
  if (s->kind != kConvolution) return;
  s->memory.resize(2 * s->m);
  const Columns to = {s->memory.data(), s->memory.data() + s->m, 1};
  Transforms(set, memory_of_thread()).run(*s->inner, s->around, to, s->m);
  s->around = to;
}

// Transforms along one axis: element (i, j, k) is `from[(i * n + j) * inner + k]`.
struct Pass {
  const Stage* stage;
  int64_t outer, n, outputs, inner;
  bool from_real, to_real;  // the others are complex numbers
  bool from_half;           // what is missing are the conjugates
  float divisor;
  const float* from;
  float* to;

  int64_t from_width() const { return from_real ? 1 : 2; }
  int64_t to_width() const { return to_real ? 1 : 2; }
};

// Half a transform of real numbers becomes all of it.
void fill(const Columns& x, int64_t n) {
  for (int64_t i = 0; i < x.row; ++i) x.imaginary[i] = 0;
  if (n % 2 == 0) std::fill_n(x.imaginary + n / 2 * x.row, x.row, 0.0f);
  if (x.row == 1) {
    for (int64_t j = n / 2 + 1; j < n; ++j) x.real[j] = x.real[n - j];
    for (int64_t j = n / 2 + 1; j < n; ++j) x.imaginary[j] = -x.imaginary[n - j];
    return;
  }
  for (int64_t j = n / 2 + 1; j < n; ++j) {
    const int64_t at = j * x.row, other = (n - j) * x.row;
    std::copy_n(x.real + other, x.row, x.real + at);
    for (int64_t i = 0; i < x.row; ++i) x.imaginary[at + i] = -x.imaginary[other + i];
  }
}

// How transforms of a pass are taken: each by itself, side by side as they lie, or rows, which are
// transposed for that.
struct Blocks {
  const Fourier& set;
  const Pass& pass;
  bool single;
  int64_t lanes;  // of a block

  Blocks(const Fourier& set, const Pass& pass) : set(set), pass(pass) {
    const Stage& s = *pass.stage;
    const int64_t beside = pass.inner == 1 ? pass.outer : pass.inner;
    // A single one by parts wastes what does not fill vectors; rows, what is not in the L1 cache.
    const bool many = beside >= set.lanes;
    const auto fills = [&](int64_t n) {
      return many ? n % set.lanes == 0 : 4 * n >= 3 * round_up(n, set.lanes);
    };
    const bool fills_alone = s.kind == kParts && fills(s.p) && fills(s.m);
    single = 4 * beside <= set.lanes || (pass.inner == 1 && (s.kind == kConvolution || fills_alone));
    lanes = single ? 1 : std::min(round_up(beside, set.lanes), 2 * set.lanes);
  }

  int64_t of_outer() const { return blocks_of(pass.inner, lanes); }
  int64_t count(int64_t outer) const {
    return pass.inner == 1 ? blocks_of(outer, lanes) : outer * of_outer();
  }

  // Block number i of those from `begin` on, before `end`, of the outer positions.
  void run(int64_t i, int64_t begin, int64_t end, Memory& memory) const {
    const Memory::Mark mark(memory);
    if (pass.inner == 1 && !single) return run_rows(begin + i * lanes, end, memory);
    const int64_t outer = begin + i / of_outer(), first = i % of_outer() * lanes;
    const int64_t here = std::min(lanes, pass.inner - first), width = pass.from_width();
    const int64_t given = pass.from_half ? pass.n / 2 + 1 : pass.n;
    const float* const from = pass.from + (outer * given * pass.inner + first) * width;
    float* const to = pass.to + (outer * pass.outputs * pass.inner + first) * pass.to_width();
    const Columns x = columns(pass.n, pass.from_real, memory);
    if (pass.inner == 1) {
      set.read(from, given, x);
    } else {
      for (int64_t j = 0; j < given; ++j) {
        set.read(from + j * pass.inner * width, here, x.from(j * lanes));
        for (int64_t l = here; l < lanes; ++l) {
          x.real[j * lanes + l] = 0;
          if (x.imaginary) x.imaginary[j * lanes + l] = 0;
        }
      }
    }
    const Columns y = transformed(x, memory);
    if (pass.inner == 1) return set.write(y, pass.outputs, pass.divisor, to);
    for (int64_t j = 0; j < pass.outputs; ++j) {
      set.write(y.from(j * lanes), here, pass.divisor, to + j * pass.inner * pass.to_width());
    }
  }

 private:
  // Rows and columns fill vectors.
  Columns columns(int64_t n, bool real, Memory& memory) const {
    return memory.columns(round_up(n, set.lanes), lanes, !real);
  }

  Columns transformed(const Columns& x, Memory& memory) const {
    if (pass.from_half) fill(x, pass.n);
    const Columns y = columns(pass.n, pass.to_real, memory);
    Transforms(set, memory).run(*pass.stage, x, y, pass.outputs);
    return y;
  }

  void run_rows(int64_t first, int64_t end, Memory& memory) const {
    const int64_t given = pass.from_half ? pass.n / 2 + 1 : pass.n;
    const auto row_of = [&](int64_t n) { return round_up(n, set.lanes) + kMostLanes; };
    const auto rows_of = [&](int64_t n, bool real) {
      return memory.columns(lanes, row_of(n), !real);
    };
    const Columns rows = rows_of(given, pass.from_real);
    for (int64_t i = 0; i < lanes; ++i) {  // the last one again and again
      const int64_t row = std::min(first + i, end - 1);
      set.read(pass.from + row * given * pass.from_width(), given, rows.from(i * rows.row));
    }
    const Columns x = columns(pass.n, pass.from_real, memory);
    transpose(rows, lanes, round_up(given, set.lanes), x);
    const Columns y = transformed(x, memory);
    const Columns results = rows_of(pass.outputs, pass.to_real);
    transpose(y, round_up(pass.outputs, set.lanes), lanes, results);
    for (int64_t i = 0; i < std::min(lanes, end - first); ++i) {
      set.write(results.from(i * results.row), pass.outputs, pass.divisor,
                pass.to + (first + i) * pass.outputs * pass.to_width());
    }
  }

  void transpose(const Columns& x, int64_t rows, int64_t columns, const Columns& to) const {
    set.transpose(x.real, x.row, rows, columns, to.real, to.row);
    if (x.imaginary) set.transpose(x.imaginary, x.row, rows, columns, to.imaginary, to.row);
  }
};

// Multiply-adds for each element of a transform, of two numbers.
double operations(const Stage& s) {
  switch (s.kind) {
    case kNothing: return 1;
    case kMatrix: return 2.0 * s.p;
    case kParts: return 2.0 * s.p + operations(*s.inner);
    default: return (operations(*s.inner) + operations(*s.back)) * s.m / s.n;
  }
}

// kind: that of JAX's FftType.  The plan has the stages of each axis, the last axis first.
ffi::Error handle_fourier(ffi::ThreadPool pool, ffi::AnyBuffer x, ffi::Buffer<ffi::F32> roots,
                          int64_t kind, int64_t axes, ffi::Span<const int64_t> plan,
                          ffi::Result<ffi::AnyBuffer> result) {
  enum { kFft, kInverse, kReal, kInverseReal };
  const auto from = x.dimensions(), to = result->dimensions();
  const bool from_real = x.element_type() == ffi::F32, to_real = result->element_type() == ffi::F32;
  const int64_t rank = from.size();
  if (axes < 1 || rank < axes || to.size() != from.size() || from_real != (kind == kReal) ||
      to_real != (kind == kInverseReal)) {
    return ffi::Error::InvalidArgument("expected complex numbers [..., n], or real ones one way");
  }
  const Fourier& set = instruction_set().fourier;
  Plan stages(plan, roots);
  std::vector<std::unique_ptr<Stage>> kept;
  std::vector<float> between;  // of transforms to real numbers
  std::vector<Pass> passes;
  double lengths = 1;
  for (int64_t i = 0; i < axes; ++i) {
    kept.push_back(stages.next());
    lengths *= to[rank - 1 - i];
  }
  if (!stages.is_right() || !stages.is_done()) {
    return ffi::Error::InvalidArgument("plan: not that of a transform");
  }
  {
    const IeeeArithmetic ieee;
    for (auto& stage : kept) prepare(set, stage.get());
  }
  // The sizes of what is transformed: half of the last axis first comes, or last goes.
  std::vector<int64_t> sizes(from.begin(), from.end());
  const float* source = static_cast<const float*>(x.untyped_data());
  float* const target = static_cast<float*>(result->untyped_data());
  float* place = target;
  if (kind == kInverseReal && axes > 1) {
    between.resize(2 * x.element_count());
    place = between.data();
  }
  const auto add = [&](int64_t i, int64_t n, int64_t outputs, bool divides) {
    Pass pass = {kept[i].get(), 1, n, outputs, 1, false, false, false, 0, source, place};
    for (int64_t d = 0; d < rank - 1 - i; ++d) pass.outer *= sizes[d];
    for (int64_t d = rank - i; d < rank; ++d) pass.inner *= sizes[d];
    pass.from_real = kind == kReal && i == 0;
    pass.to_real = pass.from_half = kind == kInverseReal && i == 0;
    if (pass.to_real) pass.to = target;
    if (divides) pass.divisor = float(lengths);
    passes.push_back(pass);
    sizes[rank - 1 - i] = outputs;
    source = pass.to;
  };
  for (int64_t i = kind == kInverseReal; i < axes; ++i) {
    add(i, from[rank - 1 - i], to[rank - 1 - i], i == axes - 1 && kind == kInverse);
  }
  if (kind == kInverseReal) add(0, to[rank - 1], to[rank - 1], true);
  for (const Pass& pass : passes) {
    if (pass.stage->n != pass.n) return ffi::Error::InvalidArgument("plan: of other lengths");
  }

  double work = 0;
  for (const Pass& pass : passes) {
    work += double(pass.outer) * pass.inner * pass.n * operations(*pass.stage) / set.lanes;
  }
  int64_t batch = 1;
  for (int64_t d = 0; d < rank - axes; ++d) batch *= from[d];
  if (axes > 1 && batch >= 2 * pool.num_threads()) {  // each through all passes: it is in the cache
    share_terms(&pool, batch, work, [&](int64_t i) {
      for (const Pass& pass : passes) {
        const Blocks blocks(set, pass);
        const int64_t outer = pass.outer / batch;
        for (int64_t b = 0; b < blocks.count(outer); ++b) {
          blocks.run(b, i * outer, (i + 1) * outer, memory_of_thread());
        }
      }
    });
    return ffi::Error::Success();
  }
  for (const Pass& pass : passes) {
    const Blocks blocks(set, pass);
    share_terms(&pool, blocks.count(pass.outer), work / passes.size(), [&](int64_t i) {
      blocks.run(i, 0, pass.outer, memory_of_thread());
    });
  }
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_fourier, repjax::handle_fourier,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<int64_t>("kind")
                                  .Attr<int64_t>("axes")
                                  .Attr<ffi::Span<const int64_t>>("plan")
                                  .Ret<ffi::AnyBuffer>());
