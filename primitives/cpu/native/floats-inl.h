// Chains of fused multiply-adds of float32, and panels of their operands.
//
// Between blocks of terms the accumulators are stored as they are, which changes no bits.

typedef float Element, Result;

static inline Vector begin(const float* from, bool first) {
  Vector s = {};
  if (!first) __builtin_memcpy(&s, from, sizeof s);
  return s;
}

static inline void end(float* to, Vector s, bool, bool last) {
  if (last) s = as<Vector>(with_one_nan(s, guard(s)));
  __builtin_memcpy(to, &s, sizeof s);
}

#include "fma_tiles-inl.h"

// What a product makes of elements: raw ones that are subnormal are zeros.  It need not know the sign
// of a zero, nor which NaN is one.
template <bool raw>
static inline Vector factor(Vector x) {
  return raw ? as<Vector>(flush(x)) : x;
}
template <bool raw>
static inline float factor(float x) {
  return raw && __builtin_fabsf(x) < 0x1p-126f ? 0 : x;
}

// to[0 : count] = from[0 : count]
template <bool raw>
static inline void copy(const float* from, int64_t count, float* to) {
  int64_t j = 0;
  for (; j + kLanes <= count; j += kLanes) {
    __builtin_prefetch(from + j + 4 * kLanes);
    store(to + j, factor<raw>(load(from + j)));
  }
  for (; j < count; ++j) to[j] = factor<raw>(from[j]);
}

// x[l][j] = from[b[j] + l], and asks the memory for what is `ahead` of that.  Loads bring together what
// is more than three rows apart: shuffles, of which there is one a cycle, take the most time here.
template <bool raw>
static inline void load_square(const float* from, const int64_t* b, Vector (&x)[kLanes],
                               int64_t ahead = 4 * kLanes) {
#pragma GCC unroll 16
  for (int j = 0; j < kLanes; ++j) {
    __builtin_prefetch(from + b[j] + ahead);
    x[j] = factor<raw>(load_fours(from + j / 4 * 4, b + j % 4));
  }
  transpose<2>(x);
}
// The first `count` of these.
template <bool raw>
static inline void load_square(const float* from, const int64_t* b, int count,
                               Vector (&x)[kLanes]) {
#pragma GCC unroll 16
  for (int j = 0; j < kLanes; ++j) x[j] = factor<raw>(load_part(from + b[j], count));
  transpose(x);
}

// to[i * width + j] = from[a[i] + b[j]] for short runs of columns that lie together, as the positions
// of small images do: vectors, whose rest the next run overwrites, but not behind the last row.
constexpr int64_t kMostRuns = 64, kShortRun = 8;

template <bool raw>
[[gnu::noinline]] static void pack_runs(const float* from, const int64_t* a, int64_t rows,
                                        const int64_t* b, int64_t columns, float* to,
                                        int64_t width) {
  int64_t begin[kMostRuns + 1] = {}, runs = 1;
  for (int64_t j = 1; j < columns; ++j) {
    if (b[j] != b[j - 1] + 1) begin[runs++] = j;
  }
  begin[runs] = columns;
  for (int64_t i = 0; i + 1 < rows; ++i) {
    for (int64_t run = 0; run < runs; ++run) {
      const float* const x = from + a[i] + b[begin[run]];
      const int64_t count = begin[run + 1] - begin[run];
      float* const here = to + i * width + begin[run];
      for (int64_t j = 0; j < count; j += kLanes) {
        store(here + j, factor<raw>(load_part(x + j, std::min<int64_t>(count - j, kLanes))));
      }
    }
  }
  const int64_t last = rows - 1;
  for (int64_t j = 0; j < columns; ++j) to[last * width + j] = factor<raw>(from[a[last] + b[j]]);
}

// to[i * width + j] = from[a[i] + b[j]], 0 from `columns` to the width: a panel of an operand, the
// columns of a row together.
template <bool raw>
static void pack(const float* from, const int64_t* a, int64_t rows, const int64_t* b,
                 int64_t columns, float* to, int64_t width) {
  int64_t runs = 1;
  for (int64_t j = 1; j < columns; ++j) runs += b[j] != b[j - 1] + 1;
  const int64_t in_squares = columns / kLanes * kLanes;
  if (runs == 1 && in_squares < columns && width == in_squares + kLanes) {
    const float* const x = from + b[0];
    for (int64_t i = 0; i < rows; ++i) {
      copy<raw>(x + a[i], in_squares, to + i * width);
      const Vector rest = load_part(x + a[i] + in_squares, columns - in_squares);
      store(to + i * width + in_squares, factor<raw>(rest));
    }
    return;
  }
  if (columns < width) __builtin_memset(to, 0, sizeof(float) * rows * width);
  if (runs == 1 || runs * kLanes <= columns) {
    for (int64_t begin = 0, end; begin < columns; begin = end) {
      for (end = begin + 1; end < columns && b[end] == b[end - 1] + 1;) ++end;
      const float* const x = from + b[begin];
      for (int64_t i = 0; i < rows; ++i) {
        copy<raw>(x + a[i], end - begin, to + i * width + begin);
      }
    }
    return;
  }
  if (runs <= kMostRuns && runs * kShortRun <= columns) {
    return pack_runs<raw>(from, a, rows, b, columns, to, width);
  }
  // Squares, the rows of a few columns one after the other: these are in memory in this order.
  for (int64_t j = 0; j < in_squares; j += kLanes) {
    for (int64_t i = 0; i < rows;) {
      if (i + kLanes <= rows && contiguous(a + i, kLanes)) {
        Vector x[kLanes];
        load_square<raw>(from + a[i], b + j, x);
#pragma GCC unroll 16
        for (int l = 0; l < kLanes; ++l) store(to + (i + l) * width + j, x[l]);
        i += kLanes;
      } else {
        for (int l = 0; l < kLanes; ++l) {
          to[i * width + j + l] = factor<raw>(from[a[i] + b[j + l]]);
        }
        ++i;
      }
    }
  }
  for (int64_t i = 0; i < rows; ++i) {
    for (int64_t j = in_squares; j < columns; ++j) {
      to[i * width + j] = factor<raw>(from[a[i] + b[j]]);
    }
  }
}

// A tile of few rows and a few vectors of columns whose terms lie together: that of column j and term
// k is rhs[columns[j] + k].  Few, since each column is read by itself, from its begin to its end; of
// shorter vectors two, since there is work on another chain while one waits for its last step.
constexpr int kAcross = kLanes < 16 ? 2 : 1;

template <int kRows, int kColumns>
static void tile_across(int64_t terms, const float* const* lhs, const int64_t* lhs_k,
                        const float* rhs, const int64_t* columns, float* const* rows, bool first,
                        bool last) {
  Vector s[kColumns][kRows];
  for (int v = 0; v < kColumns; ++v) {
    for (int m = 0; m < kRows; ++m) s[v][m] = begin(rows[m] + v * kLanes, first);
  }
  // What is to be read next are, behind the last term, the columns of the next tile.
  constexpr int64_t kAhead = 4 * kLanes;
  const int64_t next = kColumns * kLanes * (columns[1] - columns[0]) - terms;
  int64_t k = 0;
  for (; k + kLanes <= terms; k += kLanes) {
    const int64_t ahead = kAhead + (k + kAhead < terms ? 0 : next);
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) {
      Vector x[kLanes];
      load_square<false>(rhs + k, columns + v * kLanes, x, ahead);
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) {
#pragma GCC unroll 4
        for (int m = 0; m < kRows; ++m) {
          s[v][m] = fma(broadcast(lhs[m][lhs_k[k + l]]), x[l], s[v][m]);
        }
      }
    }
  }
  const int left_over = terms - k;
  for (int v = 0; left_over > 0 && v < kColumns; ++v) {
    Vector x[kLanes];
    load_square<false>(rhs + k, columns + v * kLanes, left_over, x);
    for (int l = 0; l < left_over; ++l) {
      for (int m = 0; m < kRows; ++m) {
        s[v][m] = fma(broadcast(lhs[m][lhs_k[k + l]]), x[l], s[v][m]);
      }
    }
  }
  for (int v = 0; v < kColumns; ++v) {
    for (int m = 0; m < kRows; ++m) end(rows[m] + v * kLanes, s[v][m], first, last);
  }
}

template <int kColumns>
static Tile<float, float> tile_across_of(int64_t rows) {
  switch (rows) {
    case 1: return {1, tile_across<1, kColumns>};
    case 2: return {2, tile_across<2, kColumns>};
    case 3: return {3, tile_across<3, kColumns>};
    default: return {4, tile_across<4, kColumns>};
  }
}

static Tile<float, float> tile_across_for(int64_t rows, int vectors) {
  return vectors < kAcross ? tile_across_of<1>(rows) : tile_across_of<kAcross>(rows);
}

// The next kTerms terms of so many vectors of one row, from column `at` on, whose sums are at `to`.
template <int kTerms, int kColumns>
static inline void row_step(const Vector (&a)[kTerms], const float* const (&b)[kTerms], int64_t at,
                            float* to, bool first, bool last) {
  Vector s[kColumns];
#pragma GCC unroll 8
  for (int v = 0; v < kColumns; ++v) s[v] = begin(to + v * kLanes, first);
#pragma GCC unroll 8
  for (int k = 0; k < kTerms; ++k) {
#pragma GCC unroll 8
    for (int v = 0; v < kColumns; ++v) s[v] = fma(a[k], load(b[k] + at + v * kLanes), s[v]);
  }
#pragma GCC unroll 8
  for (int v = 0; v < kColumns; ++v) end(to + v * kLanes, s[v], first, last);
}

template <int kTerms>
static void row_terms(const float* lhs, const int64_t* lhs_k, const float* rhs,
                      const int64_t* rhs_k, int64_t columns, float* to, float* rest, bool first,
                      bool last) {
  constexpr int kColumns = 2 * kVectors;
  Vector a[kTerms];
  const float* b[kTerms];
  for (int k = 0; k < kTerms; ++k) {
    a[k] = broadcast(lhs[lhs_k[k]]);
    b[k] = rhs + rhs_k[k];
  }
  int64_t j = 0;
  for (; j + kColumns * kLanes <= columns; j += kColumns * kLanes) {
    row_step<kTerms, kColumns>(a, b, j, to + j, first, last);
  }
  for (; j + kLanes <= columns; j += kLanes) row_step<kTerms, 1>(a, b, j, to + j, first, last);
  if (j < columns) row_step<kTerms, 1>(a, b, columns - kLanes, rest, first, last);
}

// Few columns stay in registers.  Of many, a few terms at a time, so that each term's are read one
// after the other, as the memory is the fastest; the sums are in the cache.
static void row(int64_t terms, const float* lhs, const int64_t* lhs_k, const float* rhs,
                const int64_t* rhs_k, int64_t columns, float* to, float* rest, bool first,
                bool last) {
  constexpr int kWide = 2 * kVectors;
  if (columns <= kWide * kLanes || terms == 0) {
    for (int64_t j = 0, vectors; j < columns; j += vectors * kLanes) {
      const int64_t left = (columns - j) / kLanes;
      vectors = left >= kWide ? kWide : left >= 4 ? 4 : left >= 2 ? 2 : 1;
      const bool is_rest = left == 0;
      const auto run = vectors == kWide ? tile<1, kWide>
                       : vectors == 4   ? tile<1, 4>
                       : vectors == 2   ? tile<1, 2>
                                        : tile<1, 1>;
      float* const here = is_rest ? rest : to + j;
      run(terms, &lhs, lhs_k, rhs + (is_rest ? columns - kLanes : j), rhs_k, &here, first, last);
    }
    return;
  }
  for (int64_t k = 0, step; k < terms; k += step, first = false) {
    step = terms - k >= 8 ? 8 : terms - k >= 4 ? 4 : 1;
    const auto run = step == 8 ? row_terms<8> : step == 4 ? row_terms<4> : row_terms<1>;
    run(lhs, lhs_k + k, rhs, rhs_k + k, columns, to, rest, first, last && k + step == terms);
  }
}

// Rows of fewer columns than a vector has, which lie together, from one term to the next a step apart.
template <int kRows>
static void narrow_rows(int64_t terms, const float* lhs, int64_t of_row, int64_t of_term,
                        const float* rhs, int64_t step, int columns, float* to, int64_t apart) {
  Vector s[kRows] = {};
  for (int64_t k = 0; k < terms; ++k) {
    const Vector b = load_part(rhs + k * step, columns);
#pragma GCC unroll 4
    for (int m = 0; m < kRows; ++m) {
      s[m] = fma(broadcast(lhs[m * of_row + k * of_term]), b, s[m]);
    }
  }
  for (int m = 0; m < kRows; ++m) {
    float results[kLanes];
    end(results, s[m], true, true);
    for (int j = 0; j < columns; ++j) to[m * apart + j] = results[j];
  }
}

static void narrow(int64_t rows, int64_t terms, const float* lhs, int64_t of_row, int64_t of_term,
                   const float* rhs, int64_t step, int columns, float* to, int64_t apart) {
  for (int64_t m = 0; m < rows;) {
    const int64_t here = rows - m >= 4 ? 4 : 1;
    (here == 4 ? narrow_rows<4> : narrow_rows<1>)(terms, lhs + m * of_row, of_row, of_term, rhs,
                                                  step, columns, to + m * apart, apart);
    m += here;
  }
}

// The chains of so few terms that the processor overlaps them, one by one.
template <int kTerms>
static void few_terms(int64_t count, const float* const* x, const float* const* y, float* sums) {
  for (int64_t i = 0; i < count; ++i) {
    sums[i] = 0;
#pragma GCC unroll 8
    for (int k = 0; k < kTerms; ++k) sums[i] = __builtin_fmaf(x[i][k], y[i][k], sums[i]);
  }
}
constexpr decltype(&few_terms<1>) kFewTerms[] = {nullptr,      few_terms<1>, few_terms<2>,
                                                 few_terms<3>, few_terms<4>, few_terms<5>,
                                                 few_terms<6>, few_terms<7>};

// Chains side by side: *to[i] is that of x[i][k] * y[i][k], up to kLanes of them.
static void chains(int64_t count, int64_t terms, const float* const* x, const float* const* y,
                   float* const* to) {
  float results[kLanes] = {};
  const bool are_few = kFused && terms < 8;
  if (are_few) kFewTerms[terms](count, x, y, results);
  Vector s = load(results);
  for (int64_t k = are_few ? terms : 0; k < terms; k += kLanes) {
    const int64_t here = std::min<int64_t>(kLanes, terms - k);
    Vector a[kLanes], b[kLanes];
#pragma GCC unroll 16
    for (int i = 0; i < kLanes; ++i) {
      const int64_t row = std::min<int64_t>(i, count - 1);
      a[i] = here == kLanes ? load(x[row] + k) : load_part(x[row] + k, here);
      b[i] = here == kLanes ? load(y[row] + k) : load_part(y[row] + k, here);
    }
    transpose(a);  // now an element for each chain
    transpose(b);
    for (int i = 0; i < here; ++i) s = fma(a[i], b[i], s);
  }
  end(results, s, true, true);
  for (int64_t i = 0; i < count; ++i) *to[i] = results[i];
}

#include "steps-inl.h"

template <bool raw>
static float chain(const float* x, const float* y, int64_t terms, float s) {
  return steps(Products<raw>{x, y}, terms, s);
}

static const Chains kChains = {kLanes,
                               kVectors,
                               kAcross,
                               tile_for,
                               tile_across_for,
                               row,
                               narrow,
                               {pack<false>, pack<true>},
                               chains,
                               {chain<false>, chain<true>}};
