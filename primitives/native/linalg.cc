// Triangular systems, Cholesky and LU factors of float32 on the CPU as XLA FFI calls.
//
// The bits are those of repjax.primitives.linalg: an element receives its terms one after the other.
// Columns are taken in panels, so that the rest of a matrix is read once for many terms.  Results
// are where the operands were.

#include "ieee.h"
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

constexpr int64_t kThread = 1 << 15;  // terms that are worth a thread
constexpr int64_t kPanel = 32;        // columns of a panel
constexpr int64_t kRows = 32;         // of the rest of a matrix that are a task
constexpr int64_t kColumns = 64;      // of unknowns that are a task

// Calls task(i) for i in [0, tasks), which are so many terms; without a pool in this thread.
template <class Task>
void run(ffi::ThreadPool* pool, int64_t tasks, double terms, Task task) {
  in_parallel(pool, pool ? useful_threads(pool, terms, kThread) : 1, tasks, [=](int64_t i) {
    const IeeeArithmetic ieee;
    task(i);
  });
}

// Calls matrix(i, pool) for each matrix: in parallel, or each with the pool.
template <class Matrix>
void each(ffi::ThreadPool* pool, int64_t count, double terms, Matrix matrix) {
  if (count < pool->num_threads()) {
    const IeeeArithmetic ieee;
    for (int64_t i = 0; i < count; ++i) matrix(i, pool);
  } else {
    run(pool, count, terms * count, [=](int64_t i) { matrix(i, nullptr); });
  }
}

// Columns of x, whose rows are m elements apart, become the solution of a x = them; a is lower
// triangular.
void solve(const Linalg& set, const float* a, int64_t n, float* x, int64_t m, int64_t columns,
           bool unit) {
  for (int64_t begin = 0; begin < n; begin += kPanel) {
    const int64_t end = std::min(begin + kPanel, n);
    for (int64_t k = begin; k < end; ++k) {
      float* const row = x + k * m;
      if (!unit) set.divide(row, columns, a[k * n + k]);
      set.subtract({1, a + (k + 1) * n + k, 0, n, row, 0, row + m, m}, end - k - 1, columns);
    }
    set.subtract({end - begin, a + end * n + begin, 1, n, x + begin * m, m, x + end * m, m},
                 n - end, columns);
  }
}

// panel[k][i] = a[i][begin + k], begin + k below end and i from begin on; or the other way round.
template <bool back>
void transpose(float* a, int64_t row, int64_t rows, int64_t begin, int64_t end, float* panel) {
  for (int64_t i = begin; i < rows; ++i) {
    for (int64_t k = begin; k < end; ++k) {
      float &x = a[i * row + k], &y = panel[(k - begin) * rows + i];
      back ? x = y : y = x;
    }
  }
}

// a becomes its lower factor, or NaN.
void cholesky(const Linalg& set, float* a, int64_t n, ffi::ThreadPool* pool) {
  std::vector<float> memory(kPanel * n);
  float* const panel = memory.data();
  for (int64_t begin = 0; begin < n; begin += kPanel) {
    const int64_t end = std::min(begin + kPanel, n);
    transpose<false>(a, n, n, begin, end, panel);
    for (int64_t k = begin; k < end; ++k) {
      float* const column = panel + (k - begin) * n;
      if (!(column[k] > 0)) {
        const int32_t nan = 0x7FC00000;
        for (int64_t i = 0; i < n * n; ++i) std::memcpy(a + i, &nan, sizeof nan);
        return;
      }
      column[k] = std::sqrt(column[k]);  // far from subnormal
      set.divide(column + k + 1, n - k - 1, column[k]);
      // Also above the diagonal, where nothing is read.
      float* const next = column + n + k + 1;
      set.subtract({1, column + k + 1, 0, 1, column + k + 1, 0, next, n}, end - k - 1, n - k - 1);
    }
    transpose<true>(a, n, n, begin, end, panel);
    const int64_t tasks = (n - end + kRows - 1) / kRows;
    const double terms = 0.5 * (n - end) * (n - end) * (end - begin);
    run(pool, tasks, terms, [=](int64_t task) {
      const int64_t first = end + task * kRows, last = std::min(first + kRows, n);
      float* const to = a + first * n + end;
      set.subtract({end - begin, panel + first, n, 1, panel + end, n, to, n}, last - first,
                   last - end);
    });
  }
  for (int64_t i = 0; i < n; ++i) std::fill(a + i * n + i + 1, a + (i + 1) * n, 0.0f);
}

// a of m rows and n columns becomes its factors.
void lu(const Linalg& set, float* a, int64_t m, int64_t n, int32_t* pivots, int32_t* permutation,
        ffi::ThreadPool* pool) {
  const int64_t count = std::min(m, n);
  std::vector<float> memory(kPanel * m);
  float* const panel = memory.data();
  for (int64_t i = 0; i < m; ++i) permutation[i] = int32_t(i);
  for (int64_t begin = 0; begin < count; begin += kPanel) {
    const int64_t end = std::min(begin + kPanel, count);
    transpose<false>(a, n, m, begin, end, panel);
    for (int64_t k = begin; k < end; ++k) {
      float* const column = panel + (k - begin) * m;
      int64_t pivot = k;
      for (int64_t i = k; i < m && column[pivot] == column[pivot]; ++i) {
        if (!(std::fabs(column[i]) <= std::fabs(column[pivot]))) pivot = i;
      }
      pivots[k] = int32_t(pivot);
      if (pivot != k) {
        for (int64_t j = 0; j < end - begin; ++j) std::swap(panel[j * m + k], panel[j * m + pivot]);
        std::swap_ranges(a + k * n, a + k * n + begin, a + pivot * n);
        std::swap_ranges(a + k * n + end, a + (k + 1) * n, a + pivot * n + end);
        std::swap(permutation[k], permutation[pivot]);
      }
      if (column[k] != 0) set.divide(column + k + 1, m - k - 1, column[k]);
      float* const next = column + m + k;
      set.subtract({1, next, 0, m, column + k + 1, 0, next + 1, m}, end - k - 1, m - k - 1);
    }
    transpose<true>(a, n, m, begin, end, panel);
    for (int64_t k = begin; k < end; ++k) {
      float* const next = a + (k + 1) * n;
      set.subtract({1, next + k, 0, n, a + k * n + end, 0, next + end, n}, end - k - 1, n - end);
    }
    const int64_t tasks = (m - end + kRows - 1) / kRows;
    const double terms = 1.0 * (m - end) * (n - end) * (end - begin);
    run(pool, tasks, terms, [=](int64_t task) {
      const int64_t first = end + task * kRows, last = std::min(first + kRows, m);
      float* const to = a + first * n + end;
      set.subtract({end - begin, panel + first, m, 1, a + begin * n + end, n, to, n}, last - first,
                   n - end);
    });
  }
}

typedef ffi::Buffer<ffi::F32> Matrices;
typedef ffi::ResultBuffer<ffi::F32> Factors;

// The sizes of matrices [count, m, n], or false.
bool sizes(const Matrices& x, int64_t* count, int64_t* m, int64_t* n) {
  const auto dimensions = x.dimensions();
  if (dimensions.size() != 3) return false;
  *count = dimensions[0], *m = dimensions[1], *n = dimensions[2];
  return true;
}

ffi::Error handle_solve(ffi::ThreadPool pool, Matrices a, Matrices b, int64_t unit, Factors x) {
  int64_t count, n, columns, same_count, rows, m;
  if (!sizes(a, &count, &n, &columns) || !sizes(b, &same_count, &rows, &m) || n != columns ||
      n != rows || count != same_count || x->typed_data() != b.typed_data()) {
    return ffi::Error::InvalidArgument("expected systems [count, n, n], right sides [count, n, m]");
  }
  const Linalg& set = instruction_set().linalg;
  const float* const from = a.typed_data();
  float* const to = x->typed_data();
  const int64_t blocks = (m + kColumns - 1) / kColumns;
  run(&pool, count * blocks, 0.5 * count * n * n * m, [=](int64_t task) {
    const int64_t i = task / blocks, j = task % blocks * kColumns;
    solve(set, from + i * n * n, n, to + i * n * m + j, m, std::min(kColumns, m - j), unit);
  });
  return ffi::Error::Success();
}

ffi::Error handle_cholesky(ffi::ThreadPool pool, Matrices a, Factors factors) {
  int64_t count, m, n;
  if (!sizes(a, &count, &m, &n) || m != n || factors->typed_data() != a.typed_data()) {
    return ffi::Error::InvalidArgument("expected matrices [count, n, n]");
  }
  const Linalg& set = instruction_set().linalg;
  float* const to = factors->typed_data();
  each(&pool, count, n * n * n / 6.0, [=](int64_t i, ffi::ThreadPool* pool) {
    cholesky(set, to + i * n * n, n, pool);
  });
  return ffi::Error::Success();
}

ffi::Error handle_lu(ffi::ThreadPool pool, Matrices a, Factors factors,
                     ffi::ResultBuffer<ffi::S32> pivots, ffi::ResultBuffer<ffi::S32> permutation) {
  int64_t count, m, n;
  if (!sizes(a, &count, &m, &n) || factors->typed_data() != a.typed_data()) {
    return ffi::Error::InvalidArgument("expected matrices [count, m, n]");
  }
  const Linalg& set = instruction_set().linalg;
  float* const to = factors->typed_data();
  int32_t *const p = pivots->typed_data(), *const q = permutation->typed_data();
  each(&pool, count, std::min(m, n) * m * n / 3.0, [=](int64_t i, ffi::ThreadPool* pool) {
    lu(set, to + i * m * n, m, n, p + i * std::min(m, n), q + i * m, pool);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_triangular_solve, repjax::handle_solve,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<repjax::Matrices>()
                                  .Arg<repjax::Matrices>()
                                  .Attr<int64_t>("unit")
                                  .Ret<repjax::Matrices>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_cholesky, repjax::handle_cholesky,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<repjax::Matrices>()
                                  .Ret<repjax::Matrices>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_lu, repjax::handle_lu,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<repjax::Matrices>()
                                  .Ret<repjax::Matrices>()
                                  .Ret<ffi::Buffer<ffi::S32>>()
                                  .Ret<ffi::Buffer<ffi::S32>>());
