// Contractions on the CPU as an XLA FFI call: chains of fused multiply-adds at native speed.
//
//   out[g, m, n] = guard(s),  s = +0;  s = fma(lhs[g, m, k], rhs[g, k, n], s), k ascending
//
// Each of g, m, n and k stands for any number of axes with any strides, so that one call
// covers dot_general with its batch dimensions and layouts and, on a padded operand, the
// convolutions.  The bits are those of repjax.primitives.contract.sequential: nothing here
// may change the order of a chain, split it, or round it otherwise than an IEEE fma does.
//
// The same for integers held by float64, whose sums are int64: the exact products of
// repjax.primitives.contract.order_independent.

#include <algorithm>
#include <atomic>
#include <cmath>
#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <memory>
#include <mutex>
#include <type_traits>
#include <vector>

#include "xla/ffi/api/ffi.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace ffi = xla::ffi;

namespace {

// ---- Instruction sets -------------------------------------------------------------------

// A function that continues the chains of some rows of accumulators over the terms [0, terms).
template <class Element, class Result>
struct Tile {
  int rows;
  void (*run)(int64_t terms, const Element* const* lhs, const int64_t* lhs_k, const Element* rhs,
              const int64_t* rhs_k, Result* const* rows, bool first, bool last);
};

template <class Element, class Result>
struct Chains {
  int lanes;
  int vectors;
  Tile<Element, Result> (*tile_for)(int vectors, int64_t rows);
  void (*pack)(const Element* from, const int64_t* a, int64_t rows, const int64_t* b,
               int64_t columns, Element* to);
};

struct InstructionSet {
  const char* name;
  const Chains<float, float>& floats;
  const Chains<double, int64_t>& integers;
};

const Chains<float, float>& chains(const InstructionSet& set, float) { return set.floats; }
const Chains<double, int64_t>& chains(const InstructionSet& set, double) { return set.integers; }

bool contiguous(const int64_t* offsets, int64_t count) {
  for (int64_t i = 1; i < count; ++i) {
    if (offsets[i] != offsets[0] + i) return false;
  }
  return true;
}

// Four elements of two vectors of four.
template <int i, int j, int k, int l, class Four>
inline Four shuffle(Four x, Four y) {
#if defined(__clang__)
  return __builtin_shufflevector(x, y, i, j, k, l);
#else
  typedef std::conditional_t<sizeof(x[0]) == 4, int32_t, int64_t> Index;
  typedef Index Indices __attribute__((vector_size(sizeof(Four))));
  return __builtin_shuffle(x, y, Indices{i, j, k, l});
#endif
}

// to[l * width + j] = from[b[j] + l] for j and l below 4.
template <class Element>
inline void transpose_four(const Element* from, const int64_t* b, Element* to, int64_t width) {
  typedef Element Four __attribute__((vector_size(4 * sizeof(Element))));
  Four x[4];
  for (int j = 0; j < 4; ++j) __builtin_memcpy(&x[j], from + b[j], sizeof(Four));
  const Four p = shuffle<0, 4, 1, 5>(x[0], x[1]), q = shuffle<0, 4, 1, 5>(x[2], x[3]);
  const Four r = shuffle<2, 6, 3, 7>(x[0], x[1]), s = shuffle<2, 6, 3, 7>(x[2], x[3]);
  const Four y[4] = {shuffle<0, 1, 4, 5>(p, q), shuffle<2, 3, 6, 7>(p, q),
                     shuffle<0, 1, 4, 5>(r, s), shuffle<2, 3, 6, 7>(r, s)};
  for (int l = 0; l < 4; ++l) __builtin_memcpy(to + l * width, &y[l], sizeof(Four));
}

#if defined(__x86_64__)

#if defined(__clang__)
#pragma clang attribute push(__attribute__((target("avx512f"))), apply_to = function)
#else
#pragma GCC push_options
#pragma GCC target("avx512f")
#endif
namespace avx512 {
constexpr int Rows(int vectors) { return vectors <= 2 ? 12 : vectors == 3 ? 8 : 6; }
namespace floats {
constexpr int kLanes = 16, kVectors = 4;
#include "floats.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
static inline Vector broadcast(float x) { return _mm512_set1_ps(x); }
}  // namespace floats
namespace integers {
constexpr int kLanes = 8, kVectors = 4;
#include "integers.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_pd(a, b, c); }
static inline Vector broadcast(double x) { return _mm512_set1_pd(x); }
}  // namespace integers
}  // namespace avx512
#if defined(__clang__)
#pragma clang attribute pop
#pragma clang attribute push(__attribute__((target("avx2,fma"))), apply_to = function)
#else
#pragma GCC pop_options
#pragma GCC push_options
#pragma GCC target("avx2,fma")
#endif
namespace avx2 {
constexpr int Rows(int vectors) { return vectors == 1 ? 8 : 6; }
namespace floats {
constexpr int kLanes = 8, kVectors = 2;
#include "floats.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
static inline Vector broadcast(float x) { return _mm256_set1_ps(x); }
}  // namespace floats
namespace integers {
constexpr int kLanes = 4, kVectors = 2;
#include "integers.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_pd(a, b, c); }
static inline Vector broadcast(double x) { return _mm256_set1_pd(x); }
}  // namespace integers
}  // namespace avx2
#if defined(__clang__)
#pragma clang attribute pop
#else
#pragma GCC pop_options
#endif

#elif defined(__aarch64__)

namespace neon {
constexpr int Rows(int vectors) { return vectors <= 2 ? 8 : vectors == 3 ? 6 : 5; }
namespace floats {
constexpr int kLanes = 4, kVectors = 4;
#include "floats.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
static inline Vector broadcast(float x) { return vdupq_n_f32(x); }
}  // namespace floats
namespace integers {
constexpr int kLanes = 2, kVectors = 4;
#include "integers.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return vfmaq_f64(c, a, b); }
static inline Vector broadcast(double x) { return vdupq_n_f64(x); }
}  // namespace integers
}  // namespace neon

#endif

// The C library's fma for floats, which is slow where the processor has none; exact products
// of integers need none.
namespace plain {
constexpr int Rows(int) { return 1; }
namespace floats {
constexpr int kLanes = 4, kVectors = 2;
#include "floats.h"
static inline Vector fma(Vector a, Vector b, Vector c) {
  for (int i = 0; i < kLanes; ++i) c[i] = std::fmaf(a[i], b[i], c[i]);
  return c;
}
static inline Vector broadcast(float x) { return Vector{x, x, x, x}; }
}  // namespace floats
namespace integers {
constexpr int kLanes = 2, kVectors = 2;
#include "integers.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return a * b + c; }
static inline Vector broadcast(double x) { return Vector{x, x}; }
}  // namespace integers
}  // namespace plain

#if defined(__x86_64__)
const InstructionSet kAvx512 = {"AVX512", avx512::floats::kChains, avx512::integers::kChains};
const InstructionSet kAvx2 = {"AVX2", avx2::floats::kChains, avx2::integers::kChains};
#elif defined(__aarch64__)
const InstructionSet kNeon = {"NEON", neon::floats::kChains, neon::integers::kChains};
#endif
const InstructionSet kPlain = {"PLAIN", plain::floats::kChains, plain::integers::kChains};

// All of this machine, the best first.
std::vector<const InstructionSet*> instruction_sets() {
  std::vector<const InstructionSet*> all;
#if defined(__x86_64__)
  if (__builtin_cpu_supports("avx512f")) all.push_back(&kAvx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all.push_back(&kAvx2);
#elif defined(__aarch64__)
  all.push_back(&kNeon);
#endif
  all.push_back(&kPlain);
  return all;
}

std::atomic<const InstructionSet*> chosen{nullptr};

// XLA's threads flush subnormals; inside a chain they count.
class IeeeArithmetic {
 public:
#if defined(__x86_64__)
  IeeeArithmetic() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~IeeeArithmetic() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  IeeeArithmetic() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~IeeeArithmetic() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

// ---- The problem ------------------------------------------------------------------------

// One dimension of out[g, m, n] or of the sum: axes, row-major, with strides in elements.
struct Dimension {
  int64_t size = 1;
  std::vector<int64_t> sizes;
  std::vector<int64_t> strides[3];  // of lhs, rhs and out

  // Adds an axis, as one with the axis before if their strides allow.
  void add(int64_t count, const int64_t* stride) {
    size *= count;
    bool joined = !sizes.empty();
    for (int array = 0; joined && array < 3; ++array) {
      joined = strides[array].back() == count * stride[array];
    }
    if (joined) {
      sizes.back() *= count;
      for (int array = 0; array < 3; ++array) strides[array].back() = stride[array];
    } else {
      sizes.push_back(count);
      for (int array = 0; array < 3; ++array) strides[array].push_back(stride[array]);
    }
  }

  // The offsets of the positions [begin, begin + count) in one of the three arrays.
  void offsets(int array, int64_t begin, int64_t count, int64_t* to) const {
    if (sizes.empty() || count == 0) {
      std::fill_n(to, count, 0);
      return;
    }
    const size_t inner = sizes.size() - 1;
    std::vector<int64_t> at(sizes.size());
    int64_t offset = 0, rest = begin;
    for (size_t d = sizes.size(); d-- > 0;) {
      at[d] = rest % sizes[d];
      rest /= sizes[d];
      offset += at[d] * strides[array][d];
    }
    const int64_t step = strides[array][inner];
    while (true) {
      const int64_t run = std::min(count, sizes[inner] - at[inner]);
      for (int64_t i = 0; i < run; ++i) to[i] = offset + i * step;
      to += run;
      if ((count -= run) == 0) return;
      offset -= at[inner] * step;
      at[inner] = 0;
      for (size_t d = inner; d-- > 0;) {
        offset += strides[array][d];
        if (++at[d] < sizes[d]) break;
        offset -= sizes[d] * strides[array][d];
        at[d] = 0;
      }
    }
  }

  int64_t stride(int array) const {
    for (size_t d = sizes.size(); d-- > 0;) {
      if (sizes[d] > 1) return strides[array][d];
    }
    return 1;
  }

  int64_t last_offset(int array) const {
    int64_t offset = 0;
    for (size_t d = 0; d < sizes.size(); ++d) offset += (sizes[d] - 1) * strides[array][d];
    return offset;
  }
};

enum { kLhs, kRhs, kOut };

template <class Element, class Result>
struct Problem {
  Dimension g, m, n, k;
  const Element* lhs;
  const Element* rhs;
  Result* out;
};

// ---- Blocks -----------------------------------------------------------------------------

// Of a block of k: a panel of it stays in the L2 cache, and a sum of products of integers below
// 2**22 in magnitude stays within 2**51.
template <class Element>
constexpr int64_t kTerms = 1024 / sizeof(Element);
constexpr int64_t kColumns = 512;      // of a block of n
constexpr int64_t kUnpackedRows = 12;  // too few rows to repay packing
constexpr int64_t kSmall = 1 << 16;    // multiply-adds that are not worth another thread

// The chains of out[g, m0 : m1, n0 : n1].
template <class Element, class Result>
void run_block(const Problem<Element, Result>& p, const Chains<Element, Result>& set, int64_t g,
               int64_t m0, int64_t m1, int64_t n0, int64_t n1) {
  IeeeArithmetic ieee;
  int64_t lhs_g, rhs_g, out_g;
  p.g.offsets(kLhs, g, 1, &lhs_g);
  p.g.offsets(kRhs, g, 1, &rhs_g);
  p.g.offsets(kOut, g, 1, &out_g);
  const Element* lhs = p.lhs + lhs_g;
  const Element* rhs = p.rhs + rhs_g;
  Result* out = p.out + out_g;

  const int64_t width = set.lanes * set.vectors;
  const int64_t rows = m1 - m0, columns = n1 - n0;
  const int64_t panels = (columns + width - 1) / width;
  const int64_t terms = std::min(kTerms<Element>, std::max<int64_t>(1, p.k.size));
  std::vector<int64_t> lhs_m(rows), out_m(rows), rhs_n(columns), out_n(columns);
  std::vector<int64_t> lhs_k(terms), rhs_k(terms), packed_k(terms);
  p.m.offsets(kLhs, m0, rows, lhs_m.data());
  p.m.offsets(kOut, m0, rows, out_m.data());
  p.n.offsets(kRhs, n0, columns, rhs_n.data());
  p.n.offsets(kOut, n0, columns, out_n.data());
  for (int64_t k = 0; k < terms; ++k) packed_k[k] = k * width;

  // Panels whose columns do not lie together in the result have their own accumulators.
  std::vector<char> direct(panels);
  for (int64_t j = 0; j < panels; ++j) {
    const int64_t here = std::min(width, columns - j * width);
    direct[j] = here % set.lanes == 0 && contiguous(&out_n[j * width], here);
  }
  const bool all_direct = std::all_of(direct.begin(), direct.end(), [](char x) { return x; });
  std::unique_ptr<Result[]> accumulators(all_direct ? nullptr : new Result[rows * panels * width]);
  std::unique_ptr<Element[]> panel(new Element[terms * width]);

  for (int64_t k0 = 0; k0 == 0 || k0 < p.k.size; k0 += terms) {
    const int64_t here_k = std::min(terms, p.k.size - k0);
    p.k.offsets(kLhs, k0, here_k, lhs_k.data());
    p.k.offsets(kRhs, k0, here_k, rhs_k.data());
    const bool first = k0 == 0, last = k0 + here_k == p.k.size;
    for (int64_t j = 0; j < panels; ++j) {
      const int64_t* at = &rhs_n[j * width];
      const int64_t here = std::min(width, columns - j * width);
      const int vectors = (here + set.lanes - 1) / set.lanes;
      const Element* right = panel.get();
      const int64_t* right_k = packed_k.data();
      if (rows <= kUnpackedRows && here % set.lanes == 0 && contiguous(at, here)) {
        right = rhs + at[0];
        right_k = rhs_k.data();
      } else {
        set.pack(rhs, rhs_k.data(), here_k, at, here, panel.get());
      }
      for (int64_t i = 0; i < rows;) {
        const Tile<Element, Result> tile = set.tile_for(vectors, rows - i);
        const Element* left[16];
        Result* to[16];
        for (int r = 0; r < tile.rows; ++r) {
          left[r] = lhs + lhs_m[i + r];
          to[r] = direct[j] ? out + out_m[i + r] + out_n[j * width]
                            : accumulators.get() + (j * rows + i + r) * width;
        }
        tile.run(here_k, left, lhs_k.data(), right, right_k, to, first, last);
        i += tile.rows;
      }
      if (last && !direct[j]) {
        const Result* from = accumulators.get() + j * rows * width;
        for (int64_t i0 = 0; i0 < rows; i0 += 16) {
          for (int64_t c = 0; c < here; ++c) {
            Result* to = out + out_n[j * width + c];
            for (int64_t i = i0; i < std::min(i0 + 16, rows); ++i) {
              to[out_m[i]] = from[i * width + c];
            }
          }
        }
      }
    }
  }
}

// Time of a call in which m are the rows and n the columns, in vector operations: the chains,
// the packing of the right operand, and the results that do not lie together.
template <class Element, class Result>
double cost(const Problem<Element, Result>& p, const Chains<Element, Result>& set) {
  const double outputs = double(p.m.size) * p.n.size;
  const double vectors = (p.n.size + set.lanes - 1) / set.lanes;
  const double chains = p.m.size * vectors * p.k.size;
  const double packing = double(p.k.size) * p.n.size * (p.n.stride(kRhs) == 1 ? 0.1 : 1);
  return chains + packing + outputs * (p.n.stride(kOut) == 1 ? 0.1 : 1.5);
}

template <class P>
void transpose(P& p) {
  std::swap(p.m, p.n);
  std::swap(p.lhs, p.rhs);
  for (Dimension* d : {&p.g, &p.m, &p.n, &p.k}) std::swap(d->strides[kLhs], d->strides[kRhs]);
}

// Blocks of the result, done by this thread and by those of XLA's pool that have time.
template <class Element, class Result>
struct Work {
  Problem<Element, Result> problem;
  const Chains<Element, Result>* set;
  int64_t rows, columns;  // of a block
  int64_t blocks_m, blocks_n, blocks;
  std::atomic<int64_t> next{0};
  std::mutex mutex;
  std::condition_variable all_done;
  int64_t done = 0;

  void run() {
    int64_t mine = 0;
    for (int64_t i; (i = next.fetch_add(1)) < blocks; ++mine) {
      const int64_t g = i / (blocks_m * blocks_n);
      const int64_t m = i / blocks_n % blocks_m * rows, n = i % blocks_n * columns;
      run_block(problem, *set, g, m, std::min(m + rows, problem.m.size), n,
                std::min(n + columns, problem.n.size));
    }
    if (mine == 0) return;
    std::lock_guard<std::mutex> lock(mutex);
    done += mine;
    if (done == blocks) all_done.notify_all();
  }

  void wait() {
    std::unique_lock<std::mutex> lock(mutex);
    all_done.wait(lock, [this] { return done == blocks; });
  }
};

int64_t round_up(int64_t x, int64_t step) { return (x + step - 1) / step * step; }

template <class Element, class Result>
void contract(Problem<Element, Result> problem, int64_t threads,
              const Chains<Element, Result>& set, ffi::ThreadPool* pool) {
  Problem<Element, Result> transposed = problem;
  transpose(transposed);
  if (cost(transposed, set) < cost(problem, set)) problem = transposed;

  auto work = std::make_shared<Work<Element, Result>>();
  work->problem = problem;
  work->set = &set;
  const auto& p = work->problem;
  const double operations = double(p.g.size) * p.m.size * p.n.size * p.k.size;
  threads = std::max<int64_t>(1, std::min<int64_t>(threads, operations / kSmall));
  // Blocks for all threads, and some more, for those that come late.
  const int64_t wanted = threads == 1 ? 1 : 4 * threads;
  const int64_t width = set.lanes * set.vectors;
  work->rows = p.m.size;
  work->columns = std::min(p.n.size, kColumns);
  auto count = [&] {
    work->blocks_m = (p.m.size + work->rows - 1) / work->rows;
    work->blocks_n = (p.n.size + work->columns - 1) / work->columns;
    return work->blocks = p.g.size * work->blocks_m * work->blocks_n;
  };
  while (count() < wanted) {
    if (work->columns > width && work->columns * 2 > work->rows) {
      work->columns = round_up(work->columns / 2, width);
    } else if (work->rows > 12) {
      work->rows = work->rows > 96 ? round_up(work->rows / 2, 12) : (work->rows + 1) / 2;
    } else {
      break;
    }
  }
  for (int64_t i = 1; i < std::min(threads, work->blocks); ++i) {
    pool->Schedule([work] { work->run(); });
  }
  work->run();
  work->wait();
}

// problems: of each, the offsets of its first elements in lhs, rhs and out, the number of its
// axes, and of every axis its dimension (0 to 3 for g, m, n, k), its size, and its strides in
// lhs, rhs and out.
template <ffi::DataType In, ffi::DataType Out>
ffi::Error handle(ffi::ThreadPool pool, ffi::Buffer<In> lhs, ffi::Buffer<In> rhs,
                  ffi::Span<const int64_t> problems, ffi::ResultBuffer<Out> out) {
  using Element = ffi::NativeType<In>;
  const int64_t counts[] = {int64_t(lhs.element_count()), int64_t(rhs.element_count()),
                            int64_t(out->element_count())};
  const int64_t* at = problems.begin();
  while (at < problems.end()) {
    const int64_t* offsets = at;
    const int64_t axes = at[3];
    at += 4;
    Problem<Element, ffi::NativeType<Out>> problem = {
        {}, {}, {}, {}, lhs.typed_data() + offsets[kLhs], rhs.typed_data() + offsets[kRhs],
        out->typed_data() + offsets[kOut]};
    Dimension* dimensions[] = {&problem.g, &problem.m, &problem.n, &problem.k};
    for (int64_t i = 0; i < axes; ++i, at += 5) dimensions[at[0]]->add(at[1], at + 2);
    if (problem.g.size * problem.m.size * problem.n.size == 0) continue;
    for (int array : {kLhs, kRhs, kOut}) {
      if (problem.k.size == 0 && array != kOut) continue;
      int64_t last = offsets[array];
      for (const Dimension* d : dimensions) last += d->last_offset(array);
      if (last >= counts[array]) return ffi::Error::InvalidArgument("problems: out of bounds");
    }
    contract(problem, std::max<int64_t>(1, pool.num_threads()),
             chains(*chosen.load(), Element{}), &pool);
  }
  return ffi::Error::Success();
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_contract, (handle<ffi::F32, ffi::F32>),
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Arg<ffi::Buffer<ffi::F32>>()
                                  .Attr<ffi::Span<const int64_t>>("problems")
                                  .Ret<ffi::Buffer<ffi::F32>>());

// The operands are integers of at most 2**22 in magnitude, and the sums fit into int64.
XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_contract_integers, (handle<ffi::F64, ffi::S64>),
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Attr<ffi::Span<const int64_t>>("problems")
                                  .Ret<ffi::Buffer<ffi::S64>>());

// The name of the instruction set number i of this machine, the best first; null after them.
extern "C" const char* repjax_instruction_set(int64_t i) {
  const auto sets = instruction_sets();
  return i < int64_t(sets.size()) ? sets[i]->name : nullptr;
}

// Chooses the instruction set number i.
extern "C" void repjax_choose(int64_t i) { chosen = instruction_sets().at(i); }
