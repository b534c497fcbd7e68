// Eigenvalues of symmetric matrices of float64, by way of tridiagonal ones.
//
// The bits are those of repjax.primitives.operations.linalg.tridiagonal.

#include "axes.h"
#include "instruction_sets.h"
#include "threads.h"

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace repjax {
namespace {

const TridiagonalKernels& kernels() { return instruction_set().tridiagonal; }

using Doubles = ffi::Buffer<ffi::F64>;
using DoubleResults = ffi::ResultBuffer<ffi::F64>;

// The part of the rows that a thread had in the steps before, which its caches still have.
struct Preference {
  const void* call;
  int64_t part;
};

// The threads take parts of the rows in every step, every other block of them if there are two; the
// last one to be done with its part prepares the next step.
void tridiagonalize(double* a, int64_t n, double* diagonal, double* left, double* factors,
                    ffi::ThreadPool* pool) {
  const TridiagonalKernels& set = kernels();
  const int64_t width = round_up(n, set.lanes);
  double* const memory = scratch<kBetween, double>((n + 4) * width);
  std::fill_n(memory, (n + 4) * width, 0);
  Tridiagonal t = {memory + 4 * width, width, memory, memory + width, memory + 2 * width,
                   memory + 3 * width};
  for (int64_t i = 0; i < n; ++i) std::copy_n(a + i * n, n, t.a + i * width);
  std::fill_n(a, n * n, 0);

  // Row k, which the step before may still have to change: its reflector.
  bool reflects = false, changes = false;
  const auto begin_step = [&](int64_t k) {
    if (changes) set.change_rows(t, k, k + 1, blocks_of(k + 1, set.lanes));
    diagonal[k] = t.a[k * width + k];
    left[k] = factors[k] = 0;
    if (k == 0) return;
    reflects = set.find_reflector(t, t.a + k * width, k, left + k);
    if (!reflects) return;
    factors[k] = t.tau;
    std::copy_n(t.v, k, a + k * n);
  };
  const auto end_step = [&](int64_t k) {
    changes = reflects;
    if (!reflects) return;
    set.find_change(t, t.p, k);
    std::swap(t.v, t.v_before);
    std::swap(t.p, t.w);
  };
  const double work = double(n) * n * n / 2;
  const int64_t threads = n < 192 ? 1 : useful_threads(pool, work, 1 << 22), parts = threads;
  // Parts that are done, and steps that are prepared.
  std::atomic<int64_t> done{0}, ready{0};
  std::vector<std::atomic<bool>> taken((n - 1) * parts);
  begin_step(n - 1);
  in_parallel(pool, threads, (n - 1) * parts, [&](int64_t task) {
    const IeeeArithmetic ieee;
    const int64_t step = task / parts, k = n - 1 - step, vectors = blocks_of(k, set.lanes);
    auto& mine = of_thread<Preference>();
    if (mine.call != &done) mine = {&done, task % parts};
    int64_t part = mine.part % parts;
    while (taken[step * parts + part].exchange(true)) part = (part + 1) % parts;
    wait_until([&] { return ready.load(std::memory_order_acquire) >= step; });
    for (int64_t begin = part * set.lanes; begin < k; begin += parts * set.lanes) {
      const int64_t end = std::min(k, begin + set.lanes);
      if (changes) set.change_rows(t, begin, end, vectors);
      if (reflects) set.multiply_rows(t, begin, end, vectors);
    }
    if (done.fetch_add(1, std::memory_order_acq_rel) + 1 < (step + 1) * parts) return;
    end_step(k);
    begin_step(k - 1);
    ready.fetch_add(1, std::memory_order_release);
  });
}

ffi::Error handle_tridiagonalize(ffi::ThreadPool pool, Doubles a, DoubleResults diagonal,
                                 DoubleResults left, DoubleResults reflectors,
                                 DoubleResults factors) {
  const auto dimensions = a.dimensions();
  double* const to = reflectors->typed_data();
  if (dimensions.size() != 3 || to != a.typed_data() || dimensions[1] != dimensions[2]) {
    return ffi::Error::InvalidArgument("expected matrices [count, n, n], reflectors in their place");
  }
  const int64_t n = dimensions[1];
  double* const d = diagonal->typed_data();
  double* const e = left->typed_data();
  double* const f = factors->typed_data();
  share_matrices(&pool, dimensions[0], double(n) * n * n, [=](int64_t i, ffi::ThreadPool* pool) {
    tridiagonalize(to + i * n * n, n, d + i * n, e + i * n, f + i * n, pool);
  });
  return ffi::Error::Success();
}

ffi::Error handle_reflect_rows(ffi::ThreadPool pool, Doubles rows, Doubles reflectors,
                               Doubles factors, DoubleResults result) {
  const auto dimensions = rows.dimensions();
  double* const to = result->typed_data();
  if (dimensions.size() != 3 || to != rows.typed_data() || dimensions[1] != dimensions[2]) {
    return ffi::Error::InvalidArgument("expected rows [count, n, n], result in their place");
  }
  const TridiagonalKernels& set = kernels();
  const int64_t count = dimensions[0], n = dimensions[1], width = round_up(n, set.lanes);
  double* const v = scratch<kReflected, double>(count * n * width);
  for (int64_t i = 0; i < count * n; ++i) {
    std::copy_n(reflectors.typed_data() + i * n, n, v + i * width);
    std::fill_n(v + i * width + n, width - n, 0);
  }
  const double* const all_factors = factors.typed_data();
  // So many rows as stay in the L1 cache.
  const int64_t of_block = std::clamp<int64_t>((1 << 12) / width / set.lanes, 1, 4) * set.lanes;
  const int64_t blocks = blocks_of(n, of_block);
  share_terms(&pool, count * blocks, double(count) * n * n * n, [=, &set](int64_t task) {
    const int64_t matrix = task / blocks, begin = task % blocks * of_block;
    const int64_t here = std::min(of_block, n - begin);
    double* const own = scratch<kBetween, double>(here * width);
    double* const out = to + (matrix * n + begin) * n;
    for (int64_t i = 0; i < here; ++i) {
      std::copy_n(out + i * n, n, own + i * width);
      std::fill_n(own + i * width + n, width - n, 0);
    }
    set.reflect_rows(v + matrix * n * width, all_factors + matrix * n, n, width, own, here);
    for (int64_t i = 0; i < here; ++i) std::copy_n(own + i * width, n, out + i * n);
  });
  return ffi::Error::Success();
}

ffi::Error handle_multiply_doubles(ffi::ThreadPool pool, Doubles x, Doubles y,
                                   DoubleResults result) {
  const auto of_x = x.dimensions(), of_y = y.dimensions();
  if (of_x.size() != 4 || of_y.size() != 4 || of_x[2] != of_y[1] || of_x[3] != of_y[2]) {
    return ffi::Error::InvalidArgument("expected [count, m, parts, k] and [count, parts, k, n]");
  }
  const int64_t count = of_x[0], m = of_x[1], parts = of_x[2], terms = of_x[3], n = of_y[3];
  constexpr int64_t kRows = 32;
  const int64_t blocks = blocks_of(m, kRows);
  const double* const left = x.typed_data();
  const double* const right = y.typed_data();
  double* const to = written(result);
  const TridiagonalKernels& set = kernels();
  const double work = double(count) * m * parts * terms * n;
  share_terms(&pool, count * parts * blocks, work, [=, &set](int64_t task) {
    const int64_t begin = task % blocks * kRows, product = task / blocks;
    const int64_t part = product % parts, matrix = product / parts;
    const DoubleProduct t = {
        left + (matrix * m * parts + part) * terms, parts * terms,
        right + product * terms * n,                n,
        to + (matrix * m * parts + part) * n,       parts * n,
        terms,                                      n};
    set.multiply(t, begin, std::min(begin + kRows, m));
  });
  return ffi::Error::Success();
}

// One matrix of m rows; what the vectors of an instruction set read beyond the poles is 0.
void merge(Poles p, int64_t m, double* vectors, ffi::ThreadPool* pool) {
  const TridiagonalKernels& set = kernels();
  const int64_t width = round_up(m, set.lanes) + set.lanes, k = p.count;
  double* const memory = scratch<kBetween, double>(6 * width);
  std::fill_n(memory, 6 * width, 0);
  auto filled = [&, next = memory](const double* from) mutable {
    double* const to = std::exchange(next, next + width);
    if (from) std::copy_n(from, k, to);
    return to;
  };
  std::copy_n(p.at + k, m - k, p.values + k);
  p.at = filled(p.at), p.z = filled(p.z);
  double* const weights = filled(nullptr);
  for (int64_t j = 0; j < k; ++j) weights[j] = p.z[j] * p.z[j];
  p.weights = weights;
  p.origins = filled(nullptr), p.offsets = filled(nullptr), p.exact = filled(nullptr);
  const int64_t of_roots = blocks_of(k, set.lanes);
  p.weight = set.square(p.z, of_roots);

  const double work = 32.0 * k * m;
  const int64_t counts[] = {of_roots, of_roots, blocks_of(m, set.lanes)};
  in_phases(pool, useful_threads(pool, work, 1 << 17), counts, [&](int64_t phase, int64_t block) {
    const IeeeArithmetic ieee;
    const int64_t begin = block * set.lanes;
    if (phase == 0) return set.find_roots(p, begin);
    if (phase == 1) return set.find_weights(p, begin);
    double* const row = scratch<kRight, double>(width);
    for (int64_t i = begin; i < std::min(begin + set.lanes, m); ++i) {
      double* const to = vectors + i * m;
      std::fill_n(to, m, 0);
      if (i < k) {
        set.find_vector(p, i, row, to);
      } else {
        to[p.order[i]] = 1;
      }
    }
  });
}

ffi::Error handle_merge(ffi::ThreadPool pool, Doubles poles, Doubles z, Doubles rho,
                        ffi::Buffer<ffi::S32> count, ffi::Buffer<ffi::S32> order, double found,
                        int64_t steps, DoubleResults values, DoubleResults vectors) {
  const auto dimensions = poles.dimensions();
  const int64_t m = dimensions.size() == 2 ? dimensions[1] : -1;
  const auto of_vectors = vectors->dimensions();
  if (m < 0 || of_vectors.size() != 3 || of_vectors[1] != m || of_vectors[2] != m) {
    return ffi::Error::InvalidArgument("expected poles [count, m], vectors [count, m, m]");
  }
  double* const to = written(vectors);
  share_matrices(&pool, dimensions[0], 32.0 * m * m, [=, &values](int64_t i, ffi::ThreadPool* own) {
    Poles p = {};
    p.count = count.typed_data()[i];
    p.at = poles.typed_data() + i * m, p.z = z.typed_data() + i * m, p.rho = rho.typed_data()[i];
    p.found = found, p.steps = steps;
    p.order = order.typed_data() + i * m, p.values = values->typed_data() + i * m;
    merge(p, m, to + i * m * m, own);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_tridiagonalize, repjax::handle_tridiagonalize,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Ret<ffi::Buffer<ffi::F64>>()
                                  .Ret<ffi::Buffer<ffi::F64>>()
                                  .Ret<ffi::Buffer<ffi::F64>>()
                                  .Ret<ffi::Buffer<ffi::F64>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_reflect_rows, repjax::handle_reflect_rows,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Ret<ffi::Buffer<ffi::F64>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_multiply_doubles, repjax::handle_multiply_doubles,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Ret<ffi::Buffer<ffi::F64>>());

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_merge, repjax::handle_merge,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::F64>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Arg<ffi::Buffer<ffi::S32>>()
                                  .Attr<double>("found")
                                  .Attr<int64_t>("steps")
                                  .Ret<ffi::Buffer<ffi::F64>>()
                                  .Ret<ffi::Buffer<ffi::F64>>());
