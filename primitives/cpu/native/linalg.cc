// Triangular systems, Cholesky, LU and QR factors of float32 (repjax_triangular_solve, _cholesky,
// _lu, _qr, _householder_product).
//
// The bits are those of repjax.primitives.operations.linalg.factorizations: an element receives its
// terms one after another.  Columns are taken in panels, so that the rest of a matrix is read once
// for many terms.  Results are where the operands were.

#include "axes.h"
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

constexpr int64_t kPanel = 32;        // columns of a panel
constexpr int64_t kRows = 32;         // of the rest of a matrix that are a task
constexpr int64_t kColumns = 64;      // of unknowns that are a task
constexpr int64_t kReflectedColumns = 32;  // that are a task: of 256 rows, the L1 cache has them

// From one row of a panel to the next, of so many elements: not a power of two, whose rows would be in
// the same few sets of the cache.
int64_t row_of_panel(int64_t rows) { return round_up(rows, kPanel) + kPanel / 2; }

// panel[k][i] = a[i][begin + k], begin + k below end and i from begin on; or the other way round.
template <bool back>
void transpose(float* a, int64_t row, int64_t rows, int64_t begin, int64_t end, float* panel) {
  const int64_t of_panel = row_of_panel(rows);
  for (int64_t i = begin; i < rows; ++i) {
    for (int64_t k = begin; k < end; ++k) {
      float &x = a[i * row + k], &y = panel[(k - begin) * of_panel + i];
      back ? x = y : y = x;
    }
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

// The same for a few columns, all of them: transposed, a vector has an element of each of many rows.
void solve_few(const Linalg& set, const float* a, int64_t n, float* x, int64_t m, bool unit) {
  const int64_t row = row_of_panel(n);
  float* const panel = scratch<kLeft, float>(kPanel * row);
  float* const columns = scratch<kRight, float>(m * n);
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) columns[j * n + i] = x[i * m + j];
  }
  for (int64_t begin = 0; begin < n; begin += kPanel) {
    const int64_t end = std::min(begin + kPanel, n);
    transpose<false>(const_cast<float*>(a), n, n, begin, end, panel);
    for (int64_t k = begin; k < end; ++k) {
      const float* const column = panel + (k - begin) * row;
      for (int64_t j = 0; j < m && !unit; ++j) set.divide(columns + j * n + k, 1, column[k]);
      set.subtract({1, columns + k, 0, n, column + k + 1, 0, columns + k + 1, n}, m, end - k - 1);
    }
    set.subtract({end - begin, columns + begin, 1, n, panel + end, row, columns + end, n}, m,
                 n - end);
  }
  for (int64_t i = 0; i < n; ++i) {
    for (int64_t j = 0; j < m; ++j) x[i * m + j] = columns[j * n + i];
  }
}

// a becomes its lower factor, or NaN.
void cholesky(const Linalg& set, float* a, int64_t n, ffi::ThreadPool* pool) {
  const int64_t row = row_of_panel(n);
  std::vector<float> memory(kPanel * row);
  float* const panel = memory.data();
  for (int64_t begin = 0; begin < n; begin += kPanel) {
    const int64_t end = std::min(begin + kPanel, n);
    transpose<false>(a, n, n, begin, end, panel);
    for (int64_t k = begin; k < end; ++k) {
      float* const column = panel + (k - begin) * row;
      if (!(column[k] > 0)) {
        const int32_t nan = 0x7FC00000;
        for (int64_t i = 0; i < n * n; ++i) std::memcpy(a + i, &nan, sizeof nan);
        return;
      }
      column[k] = std::sqrt(column[k]);  // far from subnormal
      set.divide(column + k + 1, n - k - 1, column[k]);
      // Also above the diagonal, where nothing is read.
      float* const next = column + row + k + 1;
      set.subtract({1, column + k + 1, 0, 1, column + k + 1, 0, next, row}, end - k - 1, n - k - 1);
    }
    transpose<true>(a, n, n, begin, end, panel);
    const int64_t tasks = blocks_of(n - end, kRows);
    const double terms = 0.5 * (n - end) * (n - end) * (end - begin);
    share_terms(pool, tasks, terms, [=](int64_t task) {
      const int64_t first = end + task * kRows, last = std::min(first + kRows, n);
      float* const to = a + first * n + end;
      set.subtract({end - begin, panel + first, row, 1, panel + end, row, to, n}, last - first,
                   last - end);
    });
  }
  for (int64_t i = 0; i < n; ++i) std::fill(a + i * n + i + 1, a + (i + 1) * n, 0.0f);
}

// a of m rows and n columns becomes its factors.
void lu(const Linalg& set, float* a, int64_t m, int64_t n, int32_t* pivots, int32_t* permutation,
        ffi::ThreadPool* pool) {
  const int64_t count = std::min(m, n);
  const int64_t row = row_of_panel(m);
  std::vector<float> memory(kPanel * row);
  float* const panel = memory.data();
  for (int64_t i = 0; i < m; ++i) permutation[i] = int32_t(i);
  for (int64_t begin = 0; begin < count; begin += kPanel) {
    const int64_t end = std::min(begin + kPanel, count);
    transpose<false>(a, n, m, begin, end, panel);
    for (int64_t k = begin; k < end; ++k) {
      float* const column = panel + (k - begin) * row;
      int64_t pivot = k;
      for (int64_t i = k; i < m && column[pivot] == column[pivot]; ++i) {
        if (!(std::fabs(column[i]) <= std::fabs(column[pivot]))) pivot = i;
      }
      pivots[k] = int32_t(pivot);
      if (pivot != k) {
        for (int64_t j = 0; j < end - begin; ++j) std::swap(panel[j * row + k], panel[j * row + pivot]);
        std::swap_ranges(a + k * n, a + k * n + begin, a + pivot * n);
        std::swap_ranges(a + k * n + end, a + (k + 1) * n, a + pivot * n + end);
        std::swap(permutation[k], permutation[pivot]);
      }
      if (column[k] != 0) set.divide(column + k + 1, m - k - 1, column[k]);
      float* const next = column + row + k;
      set.subtract({1, next, 0, row, column + k + 1, 0, next + 1, row}, end - k - 1, m - k - 1);
    }
    transpose<true>(a, n, m, begin, end, panel);
    for (int64_t k = begin; k < end; ++k) {
      float* const next = a + (k + 1) * n;
      set.subtract({1, next + k, 0, n, a + k * n + end, 0, next + end, n}, end - k - 1, n - end);
    }
    const int64_t tasks = blocks_of(m - end, kRows);
    const double terms = 1.0 * (m - end) * (n - end) * (end - begin);
    share_terms(pool, tasks, terms, [=](int64_t task) {
      const int64_t first = end + task * kRows, last = std::min(first + kRows, m);
      float* const to = a + first * n + end;
      set.subtract({end - begin, panel + first, row, 1, a + begin * n + end, n, to, n}, last - first,
                   n - end);
    });
  }
}

// Whether to factor or solve so many matrices of m rows and n columns side by side, one in each
// element of a vector, where the rows of one would fill no vectors.
constexpr int64_t kSmall = 32;
bool are_small(const Linalg& set, int64_t count, int64_t m, int64_t n) {
  return 2 * count >= set.lanes && m <= kSmall && n <= kSmall;
}

// to[i][l] = from[l][i], of arrays of `size` elements; or the other way round.  The last one stands
// in where there are fewer arrays than lanes.
template <bool back, class T>
void interleave(T* from, int64_t size, int64_t count, int64_t lanes, T* to) {
  for (int64_t l = 0; l < (back ? count : lanes); ++l) {
    T* const array = from + std::min(l, count - 1) * size;
    for (int64_t i = 0; i < size; ++i) {
      T &x = array[i], &y = to[i * lanes + l];
      back ? x = y : y = x;
    }
  }
}

// An array for each of some matrices, and as many of them as there are lanes, interleaved.
template <Use use, class T>
class Several {
 public:
  Several(T* arrays, int64_t size, int64_t first, int64_t count, int64_t lanes)
      : arrays_(arrays + first * size), size_(size), count_(count), lanes_(lanes) {
    interleaved_ = scratch<use, T>(size * lanes);
  }
  T* read() {
    interleave<false>(arrays_, size_, count_, lanes_, interleaved_);
    return interleaved_;
  }
  T* get() { return interleaved_; }
  void write() { interleave<true>(arrays_, size_, count_, lanes_, interleaved_); }

 private:
  T* arrays_;
  int64_t size_, count_, lanes_;
  T* interleaved_;
};

// do_some(first, count) for parts of `count` matrices, as many as there are lanes.
template <class F>
void share_small(ffi::ThreadPool* pool, const Linalg& set, int64_t count, double terms, F do_some) {
  const int64_t lanes = set.lanes;
  share_terms(pool, blocks_of(count, lanes), terms * count, [=](int64_t task) {
    const int64_t first = task * lanes;
    do_some(first, std::min(lanes, count - first));
  });
}

// Columns of a matrix, in dense rows that fill vectors, and what is needed to reflect them.  Rows of
// the whole matrix would be in the same few sets of the cache.
class Block {
 public:
  Block(const Linalg& set, int64_t m, int64_t columns)
      : set_(set), m_(m), columns_(columns), width_(round_up(columns, set.lanes)) {
    const int64_t of_partial = std::max<int64_t>(1, m / 4) * 2 * set.lanes;
    a_ = scratch<kReflected, float>((m + 1) * width_ + of_partial);
    known_ = a_ + m * width_;
    partial_ = known_ + width_;
  }

  float* row(int64_t i) { return a_ + i * width_; }

  // The columns of a matrix of so many columns, and the other way round.
  void read(const float* from, int64_t row_of_matrix) {
    for (int64_t i = 0; i < m_; ++i) {
      std::copy_n(from + i * row_of_matrix, columns_, row(i));
      std::fill(row(i) + columns_, row(i) + width_, 0.0f);
    }
  }
  void write(float* to, int64_t row_of_matrix) {
    for (int64_t i = 0; i < m_; ++i) std::copy_n(row(i), columns_, to + i * row_of_matrix);
  }
  void fill_with_zeros() { std::fill_n(a_, m_ * width_, 0.0f); }

  // The first k rows are known.  They have zeros in v, which matter for infinities and NaN alone.
  void know_first(int64_t k) {
    std::fill_n(known_, width_, 0.0f);
    for (int64_t i = 0; i < k; ++i) know(i);
  }
  void know(int64_t i) { set_.know(row(i), width_, known_); }

  // Reflected from row k on, and at least from column `first` on.
  void reflect(const float* v, float tau, int64_t k, int64_t first, bool zeros_above = false) {
    set_.reflect({v, tau, m_, k, a_, width_, zeros_above ? nullptr : known_, partial_}, first);
  }

 private:
  const Linalg& set_;
  int64_t m_, columns_, width_;
  float *a_, *known_, *partial_;
};

// The pairwise sum of x, which it changes, in float64.
double pairwise(double* x, int64_t n) {
  while (n > 1) {
    const int64_t half = power_of_two_from(n) / 2;
    for (int64_t i = half; i < n; ++i) x[i - half] += x[i];
    n = half;
  }
  return x[0];
}

float flushed(float x) { return std::fabs(x) >= 0x1p-126f || x != x ? x : 0; }
float guarded(float x) { return std::fabs(x) > 0x1p-126f || x != x ? x : 0; }

// The reflector v of column k, whose first elements it has in v, and its factor; what the column
// becomes on the diagonal.  Returns whether it reflects anything.
bool reflector(const Linalg& set, int64_t m, int64_t k, float* v, float* tau, float* diagonal) {
  const float alpha = *diagonal = v[k];
  *tau = 0;
  const bool nothing = std::all_of(v + k + 1, v + m, [](float x) { return x == 0; });
  if (!nothing) {
    std::vector<double> squares(m);
    for (int64_t i = k; i < m; ++i) squares[i] = double(v[i]) * v[i];
    const float norm = guarded(float(std::sqrt(pairwise(squares.data(), m))));
    const float beta = alpha < 0 ? norm : flushed(-norm);
    *tau = guarded(flushed(beta - alpha) / beta);
    *diagonal = beta;
    set.divide(v + k + 1, m - k - 1, flushed(alpha - beta));
  }
  std::fill(v, v + k, 0.0f);
  v[k] = 1;
  return !nothing;
}

// a of m rows and n columns becomes R, with the reflectors below it.
void qr(const Linalg& set, float* a, int64_t m, int64_t n, float* taus, ffi::ThreadPool* pool) {
  const int64_t count = std::min(m, n);
  std::vector<float> memory(kPanel * m);
  float* const panel = memory.data();
  bool reflects[kPanel];
  for (int64_t begin = 0; begin < count; begin += kPanel) {
    const int64_t end = std::min(begin + kPanel, count);
    Block own(set, m, end - begin);
    own.read(a + begin, n);
    own.know_first(begin);
    for (int64_t k = begin; k < end; ++k) {
      float* const v = panel + (k - begin) * m;
      for (int64_t i = 0; i < m; ++i) v[i] = own.row(i)[k - begin];
      float diagonal;
      reflects[k - begin] = reflector(set, m, k, v, taus + k, &diagonal);
      // Also from the diagonal on and below earlier ones, where nothing is read.
      if (reflects[k - begin] && k + 1 < end) own.reflect(v, taus[k], k, k + 1 - begin);
      own.row(k)[k - begin] = diagonal;
      own.know(k);
    }
    for (int64_t k = begin; k < end; ++k) {
      for (int64_t i = k + 1; i < m; ++i) own.row(i)[k - begin] = panel[(k - begin) * m + i];
    }
    own.write(a + begin, n);
    const int64_t tasks = blocks_of(n - end, kReflectedColumns);
    const double terms = 3.0 * m * (n - end) * (end - begin);
    share_terms(pool, tasks, terms, [=, &set, &reflects](int64_t task) {
      const int64_t j = end + task * kReflectedColumns;
      Block block(set, m, std::min(kReflectedColumns, n - j));
      block.read(a + j, n);
      block.know_first(begin);
      for (int64_t k = begin; k < end; ++k) {
        if (reflects[k - begin]) block.reflect(panel + (k - begin) * m, taus[k], k, 0);
        block.know(k);
      }
      block.write(a + j, n);
    });
  }
}

// q of m rows and n columns becomes the first columns of H[0] H[1] ..., whose reflectors are a's.
void householder_product(const Linalg& set, const float* a, const float* taus, int64_t m,
                         int64_t n, int64_t count, float* q, ffi::ThreadPool* pool) {
  std::vector<float> v(count * m);
  for (int64_t k = 0; k < count; ++k) {
    for (int64_t i = k + 1; i < m; ++i) v[k * m + i] = a[i * n + k];
    v[k * m + k] = 1;
  }
  const int64_t tasks = blocks_of(n, kReflectedColumns);
  share_terms(pool, tasks, 2.0 * m * n * count, [=, &set, &v](int64_t task) {
    const int64_t begin = task * kReflectedColumns, end = std::min(begin + kReflectedColumns, n);
    Block block(set, m, end - begin);
    block.fill_with_zeros();
    for (int64_t i = begin; i < std::min(m, end); ++i) block.row(i)[i - begin] = 1;
    for (int64_t k = std::min(count, end); k-- > 0;) {
      const int64_t first = std::max(begin, k) - begin;
      block.reflect(v.data() + k * m, taus[k], k, first, true);
      // What is in the first vector before is still a part of the identity.
      const int64_t vector = first / set.lanes * set.lanes;
      for (int64_t i = k; i < m; ++i) std::fill(block.row(i) + vector, block.row(i) + first, 0.0f);
    }
    block.write(q + begin, n);
  });
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
  if (are_small(set, count, n, m) && m < set.lanes) {
    share_small(&pool, set, count, 0.5 * n * n * m, [=, &set](int64_t first, int64_t some) {
      Several<kLeft, float> systems(const_cast<float*>(from), n * n, first, some, set.lanes);
      Several<kRight, float> sides(to, n * m, first, some, set.lanes);
      set.solve_each(systems.read(), n, sides.read(), m, unit);
      sides.write();
    });
    return ffi::Error::Success();
  }
  if (m < set.lanes) {
    share_terms(&pool, count, 0.5 * count * n * n * m, [=](int64_t i) {
      solve_few(set, from + i * n * n, n, to + i * n * m, m, unit);
    });
    return ffi::Error::Success();
  }
  const int64_t blocks = blocks_of(m, kColumns);
  share_terms(&pool, count * blocks, 0.5 * count * n * n * m, [=](int64_t task) {
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
  if (are_small(set, count, n, n)) {
    share_small(&pool, set, count, n * n * n / 6.0, [=, &set](int64_t first, int64_t some) {
      Several<kLeft, float> matrices(to, n * n, first, some, set.lanes);
      set.cholesky_each(matrices.read(), n);
      matrices.write();
    });
    return ffi::Error::Success();
  }
  share_matrices(&pool, count, n * n * n / 6.0, [=](int64_t i, ffi::ThreadPool* pool) {
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
  const int64_t columns = std::min(m, n);
  if (are_small(set, count, m, n)) {
    share_small(&pool, set, count, columns * m * n / 3.0, [=, &set](int64_t first, int64_t some) {
      Several<kLeft, float> matrices(to, m * n, first, some, set.lanes);
      Several<kRight, int32_t> some_pivots(p, columns, first, some, set.lanes);
      Several<kStaged, int32_t> permutations(q, m, first, some, set.lanes);
      set.lu_each(matrices.read(), m, n, some_pivots.get(), permutations.get());
      matrices.write(), some_pivots.write(), permutations.write();
    });
    return ffi::Error::Success();
  }
  share_matrices(&pool, count, columns * m * n / 3.0, [=](int64_t i, ffi::ThreadPool* pool) {
    lu(set, to + i * m * n, m, n, p + i * columns, q + i * m, pool);
  });
  return ffi::Error::Success();
}

ffi::Error handle_qr(ffi::ThreadPool pool, Matrices a, Factors factors, Factors taus) {
  int64_t count, m, n;
  if (!sizes(a, &count, &m, &n) || factors->typed_data() != a.typed_data()) {
    return ffi::Error::InvalidArgument("expected matrices [count, m, n]");
  }
  const Linalg& set = instruction_set().linalg;
  float *const to = factors->typed_data(), *const tau = taus->typed_data();
  const int64_t reflectors = std::min(m, n);
  const double terms = 2.0 * reflectors * m * n;
  share_matrices(&pool, count, terms, [=, &set](int64_t i, ffi::ThreadPool* pool) {
    qr(set, to + i * m * n, m, n, tau + i * reflectors, pool);
  });
  return ffi::Error::Success();
}

ffi::Error handle_householder_product(ffi::ThreadPool pool, Matrices a, Matrices taus, Factors q) {
  int64_t count, m, n;
  if (!sizes(a, &count, &m, &n) || count == 0 || taus.dimensions().size() != 2) {
    return ffi::Error::InvalidArgument("expected matrices [count, m, n], factors [count, k]");
  }
  const Linalg& set = instruction_set().linalg;
  const float *const from = a.typed_data(), *const tau = taus.typed_data();
  float* const to = q->typed_data();
  const int64_t reflectors = taus.dimensions()[1];
  const double terms = 2.0 * reflectors * m * n;
  share_matrices(&pool, count, terms, [=, &set](int64_t i, ffi::ThreadPool* pool) {
    householder_product(set, from + i * m * n, tau + i * reflectors, m, n, reflectors,
                        to + i * m * n, pool);
  });
  return ffi::Error::Success();
}

}  // namespace
}  // namespace repjax

XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_qr, repjax::handle_qr,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<repjax::Matrices>()
                                  .Ret<repjax::Matrices>()
                                  .Ret<repjax::Matrices>());
XLA_FFI_DEFINE_HANDLER_SYMBOL(repjax_householder_product, repjax::handle_householder_product,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::ThreadPool>()
                                  .Arg<repjax::Matrices>()
                                  .Arg<repjax::Matrices>()
                                  .Ret<repjax::Matrices>());
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
