// What the kernels have for each instruction set, and which one is used: README.md has the map.
//
// The functions are in the -inl.h files, which are compiled once for each instruction set.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

namespace repjax {

// Elements are *raw* if they need not be canonical: whoever reads them makes them so.

constexpr int64_t kMostLanes = 16;  // of a vector

// A function that continues the sums of some rows of accumulators over the terms [0, terms).
template <class Element, class Result>
struct Tile {
  int rows;
  void (*run)(int64_t terms, const Element* const* lhs, const int64_t* lhs_k, const Element* rhs,
              const int64_t* rhs_k, Result* const* rows, bool first, bool last);
};

// floats-inl.h: chains of fused multiply-adds of float32.
struct Chains {
  int lanes;
  int vectors;
  int across;  // vectors of a tile of columns whose terms lie together
  Tile<float, float> (*tile_for)(int vectors, int64_t rows);
  Tile<float, float> (*tile_across_for)(int64_t rows, int vectors);
  // One row of columns that lie together, at least a vector: to[0 : columns] continues its chains.
  // What does not fill a vector is in `rest`, the last vector of columns, instead.
  void (*row)(int64_t terms, const float* lhs, const int64_t* lhs_k, const float* rhs,
              const int64_t* rhs_k, int64_t columns, float* to, float* rest, bool first,
              bool last);
  // Rows of fewer columns than a vector has, which lie together: to[m * apart + j] is the chain of
  // lhs[m * of_row + k * of_term] * rhs[k * step + j].
  void (*narrow)(int64_t rows, int64_t terms, const float* lhs, int64_t of_row, int64_t of_term,
                 const float* rhs, int64_t step, int columns, float* to, int64_t apart);
  // By whether the elements are raw.
  void (*pack[2])(const float* from, const int64_t* a, int64_t rows, const int64_t* b,
                  int64_t columns, float* to, int64_t width);
  // Up to a vector of chains: *to[i] is that of x[i][k] * y[i][k].
  void (*chains)(int64_t count, int64_t terms, const float* const* x, const float* const* y,
                 float* const* to);
  // A single chain, which goes on from s over terms that lie together; by whether they are raw.
  float (*chain[2])(const float* x, const float* y, int64_t terms, float s);
};

enum class Join { kAdd, kLargest, kSmallest };
// Terms that are elements, raw ones, or the squares of these.
enum class Summed { kElements, kRawElements, kSquares };

// sums-inl.h: sums of float32, and extrema.  Pairwise ones by the terms, and by what joins them.
// Integers in the order of the numbers, that of all NaNs above the others
// (repjax.primitives.operations.reductions.sort_keys).
inline int32_t key_of(float x) {
  int32_t i;
  __builtin_memcpy(&i, &x, sizeof i);
  return x != x ? INT32_MAX : i < 0 ? i ^ INT32_MAX : i;
}

struct Sums {
  int64_t lanes;
  void (*pairwise[3][3])(const float* x, int64_t n, int64_t row, int64_t width, float* scratch,
                         float* out);
  void (*pairwise_apart[3][3])(const float* const* x, int64_t n, int64_t width, float* scratch,
                               float* out);
  void (*pairwise_rows[3][3])(const float* x, int64_t count, int64_t n, float* scratch,
                              float* out);
  void (*sequential)(const float* x, int64_t n, int64_t row, int64_t width, float* out);
  float (*sequential_row)(const float* x, int64_t n);
  // The first element from `at` on whose key is above this one, or n.
  int64_t (*next_above)(const float* x, int64_t at, int64_t n, int32_t key);
};

// Elements of an array that go with others that lie together: every `step`, or at `offsets`.  The
// elements that go with the next run of others are `of_run` further.
template <class Element>
struct Along {
  Element* first;
  int64_t step;
  const int32_t* offsets;
  int64_t of_run;

  Element& operator[](int64_t i) const { return first[offsets ? offsets[i] : i * step]; }
};

// Below every exponent: of zeros.
constexpr int32_t kNone = -(1 << 20);

// Exact sums, of high * 2**shift + low; high may be null.
struct Sum {
  const int64_t *high, *low;
  int shift;
};

// grids-inl.h: exponents, and sums of integers.
struct Grids {
  bool (*largest)(const float* x, int64_t runs, int64_t n, Along<const int32_t> at,
                  Along<int32_t> to);
  void (*carry)(Sum sums, int64_t n, int64_t* high, int64_t* low);
  void (*scale)(const Sum& sums, int64_t step, int64_t m, int64_t n, const double* rows,
                const double* columns, float* const* to);
};

// The bits of an integer: all, or the lower ones with a sign, or the others.
enum class Part { kWhole, kLow, kHigh };
constexpr int kLow = 15;

// Elements x[at[i] + j] of float32, i < rows and j < columns, that are to be multiplied by the
// scales row[i] and column[j] and rounded to integers.
template <class Scale>
struct Panel {
  const float* x;
  const int64_t* at;
  int64_t rows, columns;
  const Scale *row, *column;
};

// Exact sums of products of integers, which are held by float64 (integers-inl.h), by words of 16
// bits (words-inl.h), or by digits of 8 bits (digits-inl.h).
template <class Element>
struct IntegerProducts {
  // float64 is multiplied by powers of two, words and digits are given exponents.
  typedef std::conditional_t<std::is_same_v<Element, double>, double, float> Scale;

  int lanes, vectors;
  int64_t terms;  // the most of a block
  int planes;     // elements of an integer
  int64_t step;   // what terms are filled up to
  int64_t strip;  // rows of the left operand that are rounded together, and stay in the L1 cache
  // Sums of integers of more than 22 bits are high * 2**shift + low, of at most so many terms;
  // longer ones of float64 are carried.
  int shift;
  int64_t most;
  Tile<Element, int64_t> (*tile_for)(int vectors, int64_t rows);
  // Rounds the left operand, in rows of so many elements (digits: in tiles), or the right one, in
  // rows of the width of a panel.
  void (*left)(const Panel<Scale>& from, Element* to, int64_t row);
  void (*right)(const Panel<Scale>& from, Part part, Element* to, int64_t row);
  // What a thread does before and after it computes tiles, if anything.
  void (*begin)() = nullptr;
  void (*end)() = nullptr;
};

// Sums that go on, each within `lost` of high + low.
struct Running {
  double *high, *low, *lost;
};
// The one NaN, and what is in the place of a result that is not known: no number and not that NaN.
constexpr int32_t kNan = 0x7FC00000, kUnsure = 0x7FC00001;

// A bound of the errors of the results of a row: the sum of up to three products of what the row has
// and what the columns have.  Two of them are a bound, and the size of the terms in their steps: up to
// 2**52 there is no error.
struct Bound {
  int pairs;
  double row[3];
  const double* column[3];
};

// What is added up of rows or columns: squares of the terms, and of what is lost of them, and of the
// units, for each term.
struct Norms {
  double *squares, *losses, *units;
};

// exact_digits-inl.h: sums of products of float32 numbers in blocks, each with a grid of its own.
struct ExactProducts {
  int lanes;           // columns of a tile
  int64_t rows, step;  // rows of a tile, and what terms are filled up to
  int digits;          // bytes of a term
  int64_t terms;       // the most of a block
  double dropped;      // units of the row and the column that each term is off by
  // Make digits of a block, and give the units; false if an element is not finite.
  bool (*left)(const float* x, const int64_t* at, int64_t rows, int64_t terms, int8_t* to,
               double* units, const Norms& norms);
  bool (*right)(const float* x, const int64_t* at, int64_t terms, int64_t columns, int8_t* to,
                double* units, const Norms& norms);
  void (*tile)(int64_t terms, const int8_t* left, const int8_t* right, int64_t rows,
               const double* row_units, const double* column_units, double* to, int64_t row,
               bool first);
  // What a thread does before and after it computes tiles.
  void (*begin)();
  void (*end)();
};

// exact-inl.h: float64 sums with bounds of their errors, of products and of float32 numbers.
struct Exact {
  int lanes, vectors;
  int64_t block;      // the most terms of `sum`
  int64_t additions;  // of which its error has the size
  Tile<double, double> (*tile_for)(int vectors, int64_t rows);
  // Widen rows of terms and rows of columns, and add up the squares of the rows and the columns.
  void (*left)(const float* x, const int64_t* at, int64_t rows, int64_t terms, double* to,
               int64_t row, double* squares);
  void (*right)(const float* x, const int64_t* at, int64_t terms, int64_t columns, double* to,
                int64_t width, double* squares);
  // Widens an array, and gives the largest finite magnitude.
  double (*widen_all)(const float* x, int64_t n, double* to);
  // Steps that rows, or columns, are multiples of, and least before.
  void (*steps)(const float* x, const int64_t* at, int64_t rows, int64_t columns, bool of_rows,
                float* least);
  // To nearest even, and to odd: rounds what is sure, and says which are not.
  int64_t (*round_sure[2])(const double* s, int64_t n, const Bound& bound, float* to,
                           int32_t* unsure);
  void (*round_one[2])(double x, float* to);
  // Sums with what each addition loses.
  void (*refine)(const float* a, const float* b, int64_t n, double* state);
  void (*sum)(const float* x, int64_t n, double* total, double* magnitude);
  void (*sum_columns)(const float* x, int64_t rows, int64_t row, int64_t width, double* total,
                      double* magnitude);
  // Continues the sums of columns, a row after the other; puts each sum to `to`, rounded to nearest
  // or to odd, or kUnsure, and returns whether all are sure; or only continues them.
  bool (*prefixes[2])(const float* x, int64_t rows, int64_t row, int64_t columns, double slack,
                      Running sums, float* to, int64_t to_row);
  bool (*go_on)(const float* x, int64_t rows, int64_t row, int64_t columns, double slack,
                Running sums, float* to, int64_t to_row);
};

// grid_sums-inl.h: sums of float32 numbers on grids.
struct GridSums {
  int words;  // of a vector, float32
  // The bits of the largest magnitude, of a row and of columns, whose `to` is not less before.
  int32_t (*largest)(const float* x, int64_t n);
  void (*largest_of_columns)(const float* x, int64_t rows, int64_t row, int64_t columns,
                             int32_t* to);
  // The sum of a row on the grid of a number, in its steps, and what is added to those of columns.
  int64_t (*sum)(const float* x, int64_t n, double number);
  void (*sum_of_columns)(const float* x, int64_t rows, int64_t row, int64_t columns,
                         const double* numbers, int64_t* to);
  float (*rounded)(int64_t total, double step);
};

// Elementary functions, each as long as many other operations.
#define REPJAX_ELEMENTARY(of)                                                                    \
  of(exp) of(exp2) of(expm1) of(log) of(log1p) of(log2) of(log10) of(tanh) of(logistic) of(erf)  \
  of(erfc) of(erf_inv) of(sinh) of(cosh) of(lgamma) of(digamma) of(sin) of(cos) of(tan)
#define REPJAX_ELEMENTARY_OF_TWO(of)                                                             \
  of(pow) of(hypot)
// The same, not correctly rounded.
#define REPJAX_SPECIAL(of)                                                                       \
  of(bessel_i0e) of(bessel_i1e)

// Operations on elements of 32 bits; elementwise-inl.h says what they do.  Bytecode names them by
// their numbers, and the certificates in docs/proofs name bytecode of the first ones and of
// elementary functions, so new ones come behind these.
#define REPJAX_OPERATIONS(of)                                                                    \
  of(canonicalize) of(add) of(sub) of(mul) of(div) of(neg) of(sqrt) of(rsqrt)                    \
  of(one_minus_square) of(max) of(min) of(sign) of(eq) of(ne) of(lt) of(le)                      \
  of(from_integer) of(integer_add) of(integer_sub) of(integer_mul) of(integer_max)               \
  of(integer_min) of(integer_eq) of(integer_lt) of(integer_le)                                   \
  of(bitwise_and) of(bitwise_or) of(bitwise_xor) of(bitwise_not) of(select)                      \
  of(round_float16_flush) of(round_float16_guard) of(round_bfloat16_flush)                       \
  of(round_bfloat16_guard) of(widen_float16) of(widen_bfloat16) of(narrow_float16)               \
  of(narrow_bfloat16)                                                                            \
  of(shift_left) of(shift_right_logical) of(shift_right_arithmetic)                              \
  REPJAX_ELEMENTARY(of)                                                                          \
  REPJAX_ELEMENTARY_OF_TWO(of)                                                                   \
  of(hold) of(add_n) of(add_n_odd)                                                               \
  of(width) of(runs) of(move)                                                                    \
  of(integer_div) of(unsigned_div)                                                               \
  of(floor) of(ceil) of(round_even) of(round_away) of(to_integer)                                \
  REPJAX_SPECIAL(of)                                                                             \
  of(pow_integer)
#define REPJAX_NAME(name) name,
enum class Operation : int64_t { REPJAX_OPERATIONS(REPJAX_NAME) };
#undef REPJAX_NAME

// How many additions take as long.
inline int64_t cost(Operation operation) {
#define REPJAX_CASE(name) case Operation::name:
  switch (operation) {
    REPJAX_ELEMENTARY(REPJAX_CASE)
    REPJAX_ELEMENTARY_OF_TWO(REPJAX_CASE)
    REPJAX_SPECIAL(REPJAX_CASE)
    case Operation::pow_integer:
      return 32;
    case Operation::add_n:
    case Operation::add_n_odd:
    case Operation::integer_div:
    case Operation::unsigned_div:
      return 8;
    default:
      return 1;
  }
#undef REPJAX_CASE
}

// Of which Elementwise::apply_and_look knows more than `apply`.
inline bool is_looked_at(Operation operation) {
  return operation == Operation::add || operation == Operation::sub ||
         operation == Operation::mul || operation == Operation::div ||
         operation == Operation::sqrt || operation == Operation::select;
}

// Operations of two operands of which, and of the next one, a loop is made.
inline bool is_arithmetic(Operation operation) {
  return operation == Operation::add || operation == Operation::sub ||
         operation == Operation::mul || operation == Operation::div;
}
inline bool is_comparison(Operation operation) {
  return operation == Operation::eq || operation == Operation::ne || operation == Operation::lt ||
         operation == Operation::le || operation == Operation::integer_eq ||
         operation == Operation::integer_lt || operation == Operation::integer_le;
}

constexpr int kMostTerms = 8;  // of add_n

// 32 bits; one; 16; and, of results, the real and the imaginary parts of complex64, which are outputs
// one after the other.
enum Storage : int64_t { kWord, kBoolean, kHalf, kReal, kImaginary };
constexpr int64_t kStorages = 8;                    // room for them where they are encoded

// Elements of a register, or where `same` one that all are, as often as a vector has elements.
struct Operand {
  const int32_t* at;
  bool same;
};

// So many runs of elements, and how far apart they are in memory and in a register.
struct Runs {
  int64_t count = 1, stride = 0, apart = 0;
};

// As bytecode has them (bytecode.h): a register's value; the operation, the register it writes and
// those it reads.
struct Constant {
  int64_t to, bits;
};
struct Instruction {
  int64_t operation, to, from[3];
};

// Elements in memory, or one that all are.
struct Few {
  int32_t* at;
  int64_t count;
};

// Bytecode for so few elements that registers are of one vector, or of kShortVectors.  The first registers
// are the inputs, the next the outputs.
struct Short {
  const Instruction* instructions;
  const Constant* constants;
  const Few* ends;  // of the inputs and the outputs
  int64_t instruction_count, constant_count, input_count, output_count, elements;
};
constexpr int kShortVectors = 4;

// elementwise-inl.h: the instructions of bytecode.
struct Elementwise {
  int64_t lanes;
  // to = operation(a, b, c) on `count` elements, a multiple of `lanes`, in flushing arithmetic (IeeeArithmetic);
  // so are the next two.
  void (*apply)(Operation operation, int64_t count, Operand a, Operand b, Operand c, int32_t* to);
  // The same, or made canonical; whether canonicalize would leave the results, which it may deny.  Operands are canonical but
  // for NaNs and, unless they are selected, zeros.
  bool (*apply_and_look)(Operation operation, int64_t count, Operand a, Operand b, Operand c,
                         int32_t* to);
  // to = second(first(a, b), c), or second(c, first(a, b)) if `turned`, of what is_arithmetic, or the square of
  // first(a, b) where c is none; or of what is_comparison first(a, b) ? d : c.  If it `looks`, it says what apply_and_look says.
  bool (*apply_pair)(Operation first, Operation second, bool turned, bool looks, int64_t count,
                     Operand a, Operand b, Operand c, Operand d, int32_t* to);
  // to = the sum of so many terms, 3 to kMostTerms, rounded once, to nearest or to odd.
  void (*add_n)(bool odd, const Operand* terms, int64_t terms_count, int64_t count, int32_t* to);
  // Runs of `count` elements in memory, from `first` on and `step` apart, to a register.
  void (*load)(Storage storage, const void* from, int64_t first, int64_t step, int64_t count,
               Runs runs, int32_t* to);
  // Elements of a register, to memory from `first` on.
  void (*store)(Storage storage, const int32_t* from, int64_t count, void* to, int64_t first);
  // Elements of two registers, in turn, to memory from the pair `first` on.
  void (*store_pairs)(const int32_t* real, const int32_t* imaginary, int64_t count, void* to,
                      int64_t first);
  // Whether canonicalize would leave these as they are, in IEEE's arithmetic; null where asking takes as long
  // as that.
  bool (*are_canonical)(int64_t count, const int32_t* x);
  // Computes bytecode with registers of one vector each, or of kShortVectors.
  void (*run[2])(const Short& code, int32_t* lines);
};

// scatter-inl.h: scatter-add.
struct Scatter {
  // to[c] = x[c] + the sum of updates[at[i] * row + c] over i < count, c < width.  It looks
  // kUpdatesAhead further into `at`.
  void (*add)(const float* x, const float* updates, const int32_t* at, int64_t count, int64_t row,
              int64_t width, int precision, float* to);
  // Adds updates[k * row + c], c < width, to the float64 sums [n, width] of the rows at[k], k < count, if
  // there are such rows, and counts them; and says what the bits of their largest magnitude are, and
  // those of the smallest but zero, less one.
  void (*add_in_table)(const float* updates, int64_t row, const int32_t* at, int64_t count, uint32_t n,
                       int64_t width, double* sums, int32_t* counts, uint32_t* largest,
                       uint32_t* smallest);
  // The same, without the magnitudes; but of each sum the range of the exponents of its updates that are
  // not zero, as the larger of 16 bits each: the largest of them, and 255 less the smallest.  It may
  // write what it reads behind the ranges, up to a vector.
  void (*add_with_ranges)(const float* updates, int64_t row, const int32_t* at, int64_t count,
                          uint32_t n, int64_t width, double* sums, uint32_t* ranges,
                          int32_t* counts);
  // Whether sums of n updates of such ranges are surely those on their grids, when they are rounded.
  // It looks a vector further into both.
  bool (*are_sure)(const double* sums, const uint32_t* ranges, double n, int precision,
                   int64_t width);
  // Whether the magnitude of one of n numbers that are not zero, less one, is below the limit.
  bool (*has_below)(const float* x, int64_t n, uint32_t limit);
  // to = x + the sums of a row, if they are sure, which are off by no more than `error`.
  bool (*finish_row)(const float* x, const double* sums, double error, int64_t width, float* to);
  // Joins rows of raw updates to the rows at[k] of n, by Join, which is no sum; and all of one table to
  // those of another.
  void (*join[3])(const float* updates, const int32_t* at, int64_t count, int64_t n, int64_t width,
                  float* table);
  void (*join_tables[3])(const float* more, int64_t size, float* table);
};
constexpr int64_t kUpdatesAhead = 48;
constexpr int64_t kScattered = 1024;      // elements of updates that are added to a table together
constexpr int64_t kExactCount = 1 << 14;  // updates whose float64 sum is exact if none is too small

// Of the updates of both, as Scatter::add_with_ranges says.
inline uint32_t joined_ranges(uint32_t a, uint32_t b) {
  return std::max(a & 0xFFFF, b & 0xFFFF) | std::max(a >> 16, b >> 16) << 16;
}

// How far the float64 sum of n updates may be from that on the grid, for which m of them are too small,
// in units of the largest power of two among the updates (scatter-inl.h).
inline double difference(double n, double m, int precision) {
  const int64_t bits = int64_t(1023 - precision - 1) << 52;
  double grid;  // 2**(-precision - 1), without a call, as rows of few updates are many
  std::memcpy(&grid, &bits, sizeof grid);
  return m * grid + n * (n + 4) * 0x1p-53;
}

// Terms a[k][i] * b[k][j] of c[i][j]: how many, where they are, and how far one is from the next.
struct Terms {
  int64_t count;
  const float* a;
  int64_t a_term, a_row;
  const float* b;
  int64_t b_term;
  float* c;
  int64_t c_row;
};

// A reflection by v, of m elements of which the first k are 0, of rows of a, whose width fills
// vectors.
struct Reflection {
  const float* v;
  float tau;
  int64_t m, k;
  float* a;
  int64_t width;
  const float* known;  // what the first k rows add to sums, nothing or NaN; null for nothing
  float* partial;      // of max(1, m / 4) rows of two vectors
};

// linalg-inl.h: steps of linear algebra.
struct Linalg {
  int64_t lanes;
  // Subtracts the terms, k ascending; each product and each difference is rounded.
  void (*subtract)(const Terms& terms, int64_t rows, int64_t columns);
  // x[i] / by in its place.
  void (*divide)(float* x, int64_t count, float by);
  // Reflects the columns from the vector on in which column `first` is.
  void (*reflect)(const Reflection& reflection, int64_t first);
  void (*know)(const float* row, int64_t width, float* known);
  // Of `lanes` small matrices, element by element of all of them: lower triangular systems [n, n]
  // with right sides [n, m], and factors of matrices [n, n] and [m, n].
  void (*solve_each)(const float* systems, int64_t n, float* sides, int64_t m, bool unit);
  void (*cholesky_each)(float* matrices, int64_t n);
  void (*lu_each)(float* matrices, int64_t m, int64_t n, int32_t* pivots, int32_t* permutation);
};

// The matrix of a Fourier transform, [n, n], of at most 256: cosines of j k / n of a turn for j up to
// n / 2, and then the negative sines for j from 1 up.  What is read beyond an array of roots is in
// memory.
constexpr int64_t kMostOfMatrix = 256;
struct Roots {
  int64_t n;
  const float* elements;
};

// What elements are multiplied with before they are transformed, if there is something: row j has
// the roots of element j, one for all transforms (`of_rows`), or one for each.
struct Turns {
  const float *cosine, *sine;
  int64_t row;
  bool of_rows;
};

// Real and imaginary parts of rows; null for zeros, or for what nobody needs.  Element i of the
// rows is that of transform i.
struct Columns {
  float *real, *imaginary;
  int64_t row;

  Columns from(int64_t i) const {
    return {real + i, imaginary ? imaginary + i : nullptr, row};
  }
};

// fourier-inl.h: parts of Fourier transforms.
struct Fourier {
  int64_t lanes;
  // The first outputs of transforms, and of a single one, whose elements lie together.
  void (*transform)(const Roots& matrix, const Columns& x, const Turns& turns, int64_t count,
                    const Columns& to, int64_t outputs);
  void (*transform_one)(const Roots& matrix, const Columns& x, const Columns& to, int64_t outputs);
  void (*multiply_rows)(const Columns& x, const float* real, const float* imaginary, int64_t rows,
                        const Columns& to);
  void (*multiply_each)(const Columns& x, const float* real, const float* imaginary, int64_t count,
                        const Columns& to);
  void (*transpose)(const float* from, int64_t row, int64_t rows, int64_t columns, float* to,
                    int64_t to_row);
  void (*read)(const float* from, int64_t count, const Columns& to);
  void (*write)(const Columns& x, int64_t count, float divisor, float* to);
  void (*divide)(float* x, int64_t count, float by);
};

// Rows of float64, filled up to vectors.
struct RotatedRows {
  double* x;
  double* squares;
  int64_t of_length, of_row;  // vectors of the elements that are to be orthogonal, and of all
  double square_of_tolerance;
};

struct Pair {
  int32_t first, second;
};

// rotations-inl.h: squares and rotations of rows of float64.
struct Rotations {
  int64_t lanes;
  double (*square)(const double* x, int64_t vectors);
  bool (*rotate)(const RotatedRows& rows, const Pair* pairs, int64_t count);
};

// A symmetric matrix that is made tridiagonal, rows of `width` elements, filled up to vectors.
struct Tridiagonal {
  double* a;
  int64_t width;
  double *v, *v_before;  // the reflectors of this step and of the one before
  double *p, *w;         // what becomes the change of this step, and that of the one before
  double tau;
};

// to = x y, for some rows.
struct DoubleProduct {
  const double* x;
  int64_t x_row;
  const double* y;
  int64_t y_row;
  double* to;
  int64_t to_row;
  int64_t terms, columns;
};

// The poles of rho times the sum of weights[j] / (at[j] - x) + 1 / rho, of which `weight` is the sum,
// and what is found: where its roots are, seen from poles, and what makes them exact.  Arrays are
// filled up to vectors.
struct Poles {
  int64_t count;
  const double *at, *z, *weights;
  double weight, rho, found;
  int64_t steps;
  const int32_t* order;
  double *origins, *offsets, *values, *exact;
};

// tridiagonal-inl.h: tridiagonal matrices, and their eigenvectors.
struct TridiagonalKernels {
  int64_t lanes;
  double (*square)(const double* x, int64_t vectors);
  bool (*find_reflector)(Tridiagonal& t, const double* x, int64_t k, double* left);
  void (*change_rows)(const Tridiagonal& t, int64_t begin, int64_t end, int64_t vectors);
  void (*multiply_rows)(const Tridiagonal& t, int64_t begin, int64_t end, int64_t vectors);
  void (*find_change)(const Tridiagonal& t, double* p, int64_t k);
  void (*reflect_rows)(const double* reflectors, const double* factors, int64_t n, int64_t width,
                       double* rows, int64_t count);
  void (*multiply)(const DoubleProduct& product, int64_t begin, int64_t end);
  void (*find_roots)(const Poles& poles, int64_t first);
  void (*find_weights)(const Poles& poles, int64_t first);
  void (*find_vector)(const Poles& poles, int64_t root, double* row, double* to);
};

struct Random {
  // Bits number first to first + count - 1 of a key, whose numbers differ in their low words alone; and
  // keys of two words with these numbers.
  int64_t together;  // numbers that are drawn at once
  void (*bits)(const uint32_t* key, uint64_t first, int64_t count, uint32_t* to);
  void (*keys)(const uint32_t* key, uint64_t first, int64_t count, uint32_t* to);
  // The same of many keys, `of_each` of each: results number first to first + count - 1 of all.  The
  // numbers of a key are from 0 on or, where there are some, the one for it.
  void (*bits_of_each)(const uint32_t* keys, int64_t of_each, const uint32_t* numbers,
                       int64_t first, int64_t count, uint32_t* to);
  void (*keys_of_each)(const uint32_t* keys, int64_t of_each, const uint32_t* numbers,
                       int64_t first, int64_t count, uint32_t* to);
};

struct InstructionSet {
  const char* name;
  const Chains& floats;
  const IntegerProducts<double>& integers;
  const Sums& sums;
  const Grids& grids;
  const Elementwise& elementwise;
  const Scatter& scatter;
  const Linalg& linalg;
  const Random& random;
  const Fourier& fourier;
  const Rotations& rotations;
  const TridiagonalKernels& tridiagonal;
  const Exact& exact;
  const GridSums& grid_sums;
  // For integers of up to 22 bits, and of more, where there are such instructions.
  const IntegerProducts<int16_t>* words[2] = {};
  const IntegerProducts<int8_t>* digits[2] = {};
  const ExactProducts* exact_digits = nullptr;
};

// The one that is used, and whether the processor notes that operands of its multiply-adds are
// subnormal (IeeeArithmetic::noted_subnormals).
const InstructionSet& instruction_set();
bool notes_subnormals();

}  // namespace repjax
