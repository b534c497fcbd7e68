// Elementwise operations: the instructions of bytecode.
//
// Elements are 32 bits wide: float32, integers, and booleans as masks of all bits; float16 and
// bfloat16 are the float32 numbers they stand for, rounded after each operation.  Rounded results
// are those of repjax.primitives.operations.arithmetic: division, square root and their relatives
// round correctly here without a detour.

typedef uint32_t Unsigned __attribute__((vector_size(4 * kLanes)));

static inline Bits fill(int32_t x) { return Bits{} + x; }
template <class Mask, class V>
static inline V where(Mask mask, V a, V b) {
  return mask ? a : b;
}

static inline Bits largest(Vector a, Vector b) {
  return where(is_nan(a) | (Bits)(a > b), as<Bits>(a), as<Bits>(b));
}

static inline Bits smallest(Vector a, Vector b) {
  return where(is_nan(a) | (Bits)(a < b), as<Bits>(a), as<Bits>(b));
}

static inline Bits sign(Vector x) {
  const Bits i = as<Bits>(x);
  const Bits one = (i & fill(int32_t(0x80000000u))) | fill(0x3F800000);
  return where(is_nan(x) | (Bits)(x == Vector{}), i, one);
}

#include "several-inl.h"

#define INLINE static inline __attribute__((always_inline))
#include "pairs-inl.h"
#undef INLINE

// A format of 16 bits within float32.
struct Half {
  int shift;                   // bits of float32 that it has not
  int32_t tiny, largest;       // its smallest and its largest number, as bits of float32
  int32_t shift_of_exponents;  // by how much the exponents of float32 are higher
};
constexpr Half kFloat16 = {13, 0x38800000, 0x477FE000, 112 << 23};
constexpr Half kBfloat16 = {16, 0x00800000, 0x7F7F0000, 0};

// canonical.narrow, as float32: to nearest even, and +0 below `least`.
static inline Bits rounded(Bits i, Half format, int32_t least) {
  const Bits exact = magnitude(i), odd = (exact >> format.shift) & fill(1);
  const Unsigned sum = as<Unsigned>(exact) + as<Unsigned>(odd) + ((1u << (format.shift - 1)) - 1);
  Bits kept = as<Bits>(sum >> format.shift << format.shift);
  kept = where(kept > fill(format.largest), fill(0x7F800000), kept);
  kept = where(exact > fill(0x7F800000), exact, kept);
  return (kept | (i & fill(int32_t(0x80000000u)))) & (kept >= fill(least));
}

// Between the bits of the format and the float32 number; subnormals become others, which rounding
// makes +0.
static inline Bits widen(Bits i, Half format) {
  const Bits wide = (i & fill(0x7FFF)) << format.shift;
  const Bits finite = (wide + fill(format.shift_of_exponents)) & (wide != fill(0));
  const Bits special = wide >= fill(0x7F800000 - format.shift_of_exponents * 2);
  return where(special, wide | fill(0x7F800000), finite) | ((i & fill(0x8000)) << 16);
}

static inline Bits narrow(Bits i, Half format) {
  const Bits exact = magnitude(i);
  Bits kept = (exact - fill(format.shift_of_exponents)) >> format.shift & (exact != fill(0));
  const int32_t infinity = (0x7F800000 - 2 * format.shift_of_exponents) >> format.shift;
  kept = where(exact >= fill(0x7F800000), fill(infinity), kept);
  kept |= as<Bits>(as<Unsigned>(i) >> 16) & fill(0x8000);
  const int32_t nan = infinity | 1 << (22 - format.shift);
  return where(exact > fill(0x7F800000), fill(nan), kept);
}

// What a function of float64 numbers gives for integers, as integers, half a vector at a time.
template <class Function, class... I>
static inline Bits in_float64(Function function, I... x) {
  using Integer = std::common_type_t<std::decay_t<decltype(x[0])>...>;
  typedef Integer Half __attribute__((vector_size(2 * kLanes)));
  struct Halves {
    Half of[2];
  };
  Halves result;
  for (int i = 0; i < 2; ++i) {
    result.of[i] = __builtin_convertvector(
        function(__builtin_convertvector(as<Halves>(x).of[i], Wide)...), Half);
  }
  return as<Bits>(result);
}

// Quotients of 32-bit integers, towards zero: exact in float64, whose last bits are far below the
// distance of a quotient to the next integer.  As XLA has them where there is none: x / 0 is -1, all
// bits, and the least integer by -1 is itself.
template <class I>
static inline Bits quotient(I x, I y) {
  constexpr bool is_signed = I{}[0] - 1 < 0;
  const Bits by_zero = (Bits)(y == I{}), by_minus_one = is_signed ? (Bits)(y == I{} - 1) : Bits{};
  const I divisor = (by_zero | by_minus_one) ? I{} + 1 : y;
  const Bits rounded = in_float64([](Wide a, Wide b) { return a / b; }, x, divisor);
  const Bits negative = as<Bits>(Unsigned{} - as<Unsigned>(x));
  return where(by_zero, fill(-1), where(by_minus_one, negative, rounded));
}

// The same of a number y beyond -1, 0 and 1, by 1 / y in float64.  What is rounded towards zero is
// (|x| + 1/2) / |y|, which is 1 / (2 |x| + 1) of itself away from all integers, or more.
template <class I>
static inline Bits quotient(I x, double inverse) {
  const auto by = [=](Wide a) {
    const Wide half = Wide{} + 0.5;
    return (a < 0.0 ? a - half : a + half) * inverse;
  };
  return in_float64(by, x);
}

// Numbers of 2**23 and more are integers.
template <class Round>
static inline Bits rounded(Vector x, Round round) {
  const Bits is_fraction = magnitude(x) < fill(0x4B000000);
  const Vector truncated = __builtin_convertvector(__builtin_convertvector(x, Bits), Vector);
  return where(is_fraction, as<Bits>(round(x, truncated) + Vector{}), as<Bits>(x));
}
static inline Bits floor(Vector x) {
  return rounded(x, [](Vector x, Vector t) { return t > x ? t - 1.0f : t; });
}
static inline Bits ceil(Vector x) {
  return rounded(x, [](Vector x, Vector t) { return t < x ? t + 1.0f : t; });
}
static inline Bits round_even(Vector x) {
  return rounded(x, [](Vector x, Vector) {
    const Vector large = x < 0.0f ? Vector{} - 0x1p23f : Vector{} + 0x1p23f;
    return (x + large) - large;
  });
}
static inline Bits round_away(Vector x) {
  return rounded(x, [](Vector x, Vector t) {
    const Vector up = x - t >= 0.5f ? t + 1.0f : t;
    return x - t <= -0.5f ? t - 1.0f : up;
  });
}

// Towards zero; what is out of range saturates, and a NaN gives 0.
static inline Bits to_integer(Vector x) {
  const Bits below = (Bits)(x < Vector{} - 0x1p31f), above = (Bits)(x >= Vector{} + 0x1p31f);
  const Bits inside = ~(below | above | is_nan(x));
  const Bits i = __builtin_convertvector(as<Vector>(as<Bits>(x) & inside), Bits);
  return where(above, fill(INT32_MAX), where(below, fill(INT32_MIN), i));
}

// Shifts by 32 and more leave nothing, or the sign.
static inline Bits in_range(Bits by) { return (Bits)(as<Unsigned>(by) < Unsigned{} + 32u); }
static inline Unsigned clipped(Bits by) { return as<Unsigned>(by & fill(31)); }

// x / by, by products with 1 / by in float64, which are within 2**-52 of the quotients.  A quotient is
// no middle between two float32 numbers (an odd number of 25 bits would divide one of 24), and is
// 2**-49 away from all, as two integers below 2**49 that differ.  So both round alike.
static void divide_in_doubles(const int32_t* x, int64_t count, float by, int32_t* to) {
  const Wide inverse = Wide{} + 1 / double(by);
#pragma GCC unroll 2
  for (int64_t i = 0; i < count; i += kLanes / 2) {
    Narrow quotient;
    __builtin_memcpy(&quotient, x + i, sizeof quotient);
    quotient = __builtin_convertvector(wide(quotient) * inverse, Narrow);
    const auto bits = guard(quotient);
    __builtin_memcpy(to + i, &bits, sizeof bits);
  }
}

// x / by in float32; whether the processor noted nothing that is infinite, a NaN or smaller than normal
// numbers on the way, and these are the quotients.
//
// With y = 1 / by rounded, y + rest is within 2**-47 of 1 / by, relatively, so that q is within one place
// of the quotient, and x - q by is a float32 number.  Then q + (x - q by) y rounds to the quotient, rounded
// (P. W. Markstein, Computation of elementary functions on the IBM RISC System/6000 processor, IBM
// Journal of Research and Development 34 (1), 1990).
static bool divide_in_floats(const int32_t* x, int64_t count, float by, int32_t* to) {
  const float size = by < 0 ? -by : by;
  if (!(size > 0x1p-60f && size < 0x1p60f)) return false;
  const Vector y = broadcast(1 / by), minus = broadcast(-by), one = broadcast(1);
  const Vector rest = fma(y, minus, one) * y;
  const IeeeArithmetic flushing(true);
  flushing.forget();
#pragma GCC unroll 4
  for (int64_t i = 0; i < count; i += kLanes) {
    Vector a;
    __builtin_memcpy(&a, x + i, sizeof a);
    const Vector q = fma(a, y, a * rest);
    const auto bits = InFlushing::guard(fma(fma(q, minus, a), y, q));
    __builtin_memcpy(to + i, &bits, sizeof bits);
  }
  return !flushing.noted_any();
}

// x / by.  To set the arithmetic, and to ask what it noted, takes as long as some vectors.
static void divide_by(const int32_t* x, int64_t count, int32_t by, int32_t* to) {
  constexpr int64_t kLeast = 16 * kLanes;
  const float divisor = as<float>(by);
  const bool is_apart = to + count <= x || x + count <= to;
  if (is_apart && count >= kLeast && divide_in_floats(x, count, divisor, to)) return;
  divide_in_doubles(x, count, divisor, to);
}

// to = function(operands...)
template <class Function, class... Of>
static inline __attribute__((always_inline)) void for_each(Function function, int64_t count,
                                                           int32_t* to, Of... of) {
  const auto vector = [](const int32_t* at) {
    Bits x;
    __builtin_memcpy(&x, at, sizeof x);
    return x;
  };
  const auto loop = [&](auto... steps) __attribute__((always_inline)) {
#pragma GCC unroll 2
    for (int64_t i = 0; i < count; i += kLanes) {
      const Bits x = function(vector(of.at + i * steps)...);
      __builtin_memcpy(to + i, &x, sizeof x);
    }
  };
  if (!(of.same | ...)) return loop((of, std::integral_constant<int64_t, 1>())...);
  loop(int64_t(!of.same)...);
}

// Calls `each` with what an operation makes of three elements, and `others` for those that take more
// than a few instructions, or other operands.  `In` says in which arithmetic.
template <class In, class Each, class Others>
static inline __attribute__((always_inline)) void each_of(Operation operation, Each each,
                                                          Others others) {
#define FLOATS(name, result)                                                     \
  case Operation::name:                                                          \
    return each([](Bits i, Bits j, Bits) {                                       \
      const Vector x = as<Vector>(i), y = as<Vector>(j);                         \
      (void)x, (void)y;                                                          \
      return (Bits)(result);                                                     \
    });
#define INTEGERS(name, result)                                                   \
  case Operation::name:                                                          \
    return each([](Bits i, Bits j, Bits k) {                                     \
      (void)i, (void)j, (void)k;                                                 \
      return (Bits)(result);                                                     \
    });
  switch (operation) {
    FLOATS(canonicalize, In::canonical(x))
    FLOATS(add, In::flush(x + y))
    FLOATS(sub, In::flush(x - y))
    FLOATS(mul, In::guard(multiplied(x, y)))
    FLOATS(div, In::guard(divided(x, y)))
    FLOATS(neg, In::flush(-x))
    FLOATS(sqrt, as<Bits>(root(x)))
    FLOATS(one_minus_square, In::guard(fma(-x, x, as<Vector>(fill(0x3F800000)))))
    FLOATS(max, largest(x, y))
    FLOATS(min, smallest(x, y))
    FLOATS(sign, sign(x))
    FLOATS(eq, x == y)
    FLOATS(ne, x != y)
    FLOATS(lt, x < y)
    FLOATS(le, x <= y)
    INTEGERS(from_integer, as<Bits>(__builtin_convertvector(i, Vector)))
    INTEGERS(integer_add, as<Unsigned>(i) + as<Unsigned>(j))
    INTEGERS(integer_sub, as<Unsigned>(i) - as<Unsigned>(j))
    INTEGERS(integer_mul, as<Unsigned>(i) * as<Unsigned>(j))
    INTEGERS(integer_max, where(i > j, i, j))
    INTEGERS(integer_min, where(i < j, i, j))
    INTEGERS(integer_eq, i == j)
    INTEGERS(integer_lt, i < j)
    INTEGERS(integer_le, i <= j)
    INTEGERS(bitwise_and, i & j)
    INTEGERS(bitwise_or, i | j)
    INTEGERS(bitwise_xor, i ^ j)
    INTEGERS(bitwise_not, ~i)
    INTEGERS(round_float16_flush, rounded(i, kFloat16, kFloat16.tiny))
    INTEGERS(round_float16_guard, rounded(i, kFloat16, kFloat16.tiny + 1))
    INTEGERS(round_bfloat16_flush, rounded(i, kBfloat16, kBfloat16.tiny))
    INTEGERS(round_bfloat16_guard, rounded(i, kBfloat16, kBfloat16.tiny + 1))
    INTEGERS(widen_float16, widen(i, kFloat16))
    INTEGERS(widen_bfloat16, widen(i, kBfloat16))
    INTEGERS(narrow_float16, narrow(i, kFloat16))
    INTEGERS(narrow_bfloat16, narrow(i, kBfloat16))
    INTEGERS(select, where(i, k, j))
    INTEGERS(shift_left, in_range(j) & as<Bits>(as<Unsigned>(i) << clipped(j)))
    INTEGERS(shift_right_logical, in_range(j) & as<Bits>(as<Unsigned>(i) >> clipped(j)))
    INTEGERS(shift_right_arithmetic, i >> where(in_range(j), j, fill(31)))
    INTEGERS(integer_div, quotient(i, j))
    INTEGERS(unsigned_div, quotient(as<Unsigned>(i), as<Unsigned>(j)))
    FLOATS(floor, floor(x))
    FLOATS(ceil, ceil(x))
    FLOATS(round_even, round_even(x))
    FLOATS(round_away, round_away(x))
    FLOATS(to_integer, to_integer(x))
    default:
      return others();
  }
#undef FLOATS
#undef INTEGERS
}

static void apply_function(Operation operation, int64_t count, Operand a, Operand b, Operand c,
                       int32_t* to) {
#define IN_LOOP(function) \
  [](auto... x) __attribute__((always_inline)) { return function(x...); }
#define OF_TWO(name)                                                                         \
  case Operation::name:                                                                      \
    return in_pairs::each(                                                                   \
        count, a, b, to, IN_LOOP(in_pairs::name),                                            \
        [](int64_t count, int32_t* to, Operand a, Operand b) __attribute__((noinline)) {     \
          several::each(count, a, b, to, IN_LOOP(several::first::name),                      \
                        [](const auto&... x)                                                 \
                            __attribute__((noinline)) { return several::name(x...); });      \
        });
#define ELEMENTARY(name)                                                                       \
  case Operation::name:                                                                        \
    return in_pairs::each(                                                                        \
        count, a, to, IN_LOOP(in_pairs::name),                                                    \
        [](int64_t count, int32_t* to, Operand a) __attribute__((noinline)) {                  \
          several::each(count, a, to, IN_LOOP(several::first::name), IN_LOOP(several::name));  \
        });
#define SPECIAL(name)      \
  case Operation::name: \
    return several::each(count, a, to, IN_LOOP(several::first::name), IN_LOOP(several::name));
  switch (operation) {
    REPJAX_ELEMENTARY(ELEMENTARY)
    ELEMENTARY(rsqrt)
    REPJAX_ELEMENTARY_OF_TWO(OF_TWO)
    REPJAX_SPECIAL(SPECIAL)
    case Operation::pow_integer: {
      const auto power = IN_LOOP(several::pow_integer);
      const auto settled = [=](auto... x) __attribute__((always_inline)) {
        return several::first::Tried{power(x...), true};
      };
      return several::each(count, a, b, to, settled, power);
    }
    default:  // not for one block of three operands
      return;
  }
#undef ELEMENTARY
#undef OF_TWO
#undef SPECIAL
#undef IN_LOOP
}

// Whether a function has the same results in flushing arithmetic, as all of them show (docs/proofs).
static bool is_alike_in_flushing(Operation operation) {
  if (operation == Operation::erf) return false;  // of which parts are subnormal
#define REPJAX_CASE(name) case Operation::name:
  switch (operation) {
    REPJAX_ELEMENTARY(REPJAX_CASE)
      return true;
    default:
      return false;
  }
#undef REPJAX_CASE
}

// In flushing arithmetic, as all but `run`.
static void apply(Operation operation, int64_t count, Operand a, Operand b, Operand c,
                  int32_t* to) {
  // Where vectors are long, divisions of float32 take longer.
  if (kLanes == 16 && operation == Operation::div && b.same && !a.same) {
    return divide_by(a.at, count, *b.at, to);
  }
  const auto each = [=](auto function) { for_each(function, count, to, a, b, c); };
  if (operation == Operation::integer_div && b.same && (*b.at > 1 || *b.at < -1)) {
    return each([inverse = 1.0 / *b.at](Bits i, Bits, Bits) { return quotient(i, inverse); });
  }
  if (operation == Operation::unsigned_div && b.same && uint32_t(*b.at) > 1) {
    return each([inverse = 1.0 / uint32_t(*b.at)](Bits i, Bits, Bits) {
      return quotient(as<Unsigned>(i), inverse);
    });
  }
  each_of<InFlushing>(operation, each, [=] {
    if (is_alike_in_flushing(operation)) return apply_function(operation, count, a, b, c, to);
    const IeeeArithmetic ieee;
    apply_function(operation, count, a, b, c, to);
  });
}

// As for_each; whether the results, which are canonical but for NaNs, have none, or all are made the one: 0
// times a NaN, or an infinity, is one.
template <class Function, class... Of>
static inline __attribute__((always_inline)) bool for_each_and_look(Function function, int64_t count,
                                                                    int32_t* to, Of... of) {
  if constexpr (kClasses) {
    const auto canonical = [=](auto... x) __attribute__((always_inline)) {
      return InFlushing::canonical(as<Vector>(function(x...)));
    };
    for_each(canonical, count, to, of...);
    return true;
  }
  Vector sum = {};
  for_each(
      [&](auto... x) __attribute__((always_inline)) {
        const Bits result = function(x...);
        sum += as<Vector>(result) * Vector{};
        return result;
      },
      count, to, of...);
  const Bits other = (Bits)(sum != sum);
  int64_t words[sizeof other / 8], any = 0;
  __builtin_memcpy(words, &other, sizeof other);
  for (const int64_t word : words) any |= word;
  return any == 0;
}

static bool apply_and_look(Operation operation, int64_t count, Operand a, Operand b, Operand c,
                           int32_t* to) {
  const auto each = [=](auto function) { return for_each_and_look(function, count, to, a, b, c); };
  switch (operation) {
    case Operation::add:
      return each([](Bits x, Bits y, Bits) { return InFlushing::flush(as<Vector>(x) + as<Vector>(y)); });
    case Operation::sub:
      return each([](Bits x, Bits y, Bits) { return InFlushing::flush(as<Vector>(x) - as<Vector>(y)); });
    case Operation::mul:
      return each([](Bits x, Bits y, Bits) {
        return InFlushing::guard(multiplied(as<Vector>(x), as<Vector>(y)));
      });
    case Operation::div:
      return each([](Bits x, Bits y, Bits) { return InFlushing::guard(divided(as<Vector>(x), as<Vector>(y))); });
    case Operation::sqrt:
      return each([](Bits x, Bits, Bits) { return as<Bits>(root(as<Vector>(x))); });
    case Operation::select:
      return each([](Bits x, Bits y, Bits z) { return where(x, z, y); });
    default:
      apply(operation, count, a, b, c, to);
      return false;
  }
}

// Calls `with` with a rounded operation on two vectors; `turned`: on the second and the first one.
template <class With>
static inline __attribute__((always_inline)) bool with_arithmetic(Operation operation, bool turned,
                                                                  With with) {
#define OF_TWO(result) with([](Vector x, Vector y) { return as<Vector>(result); })
  switch (operation) {
    case Operation::add:
      return OF_TWO(InFlushing::flush(x + y));
    case Operation::mul:
      return OF_TWO(InFlushing::guard(multiplied(x, y)));
    case Operation::sub:
      return turned ? OF_TWO(InFlushing::flush(y - x)) : OF_TWO(InFlushing::flush(x - y));
    default:
      return turned ? OF_TWO(InFlushing::guard(divided(y, x))) : OF_TWO(InFlushing::guard(divided(x, y)));
  }
#undef OF_TWO
}

// The same, rounded and no more.
template <class With>
static inline __attribute__((always_inline)) bool with_rounded(Operation operation, With with) {
  switch (operation) {
    case Operation::add:
      return with([](Vector x, Vector y) { return x + y; });
    case Operation::mul:
      return with([](Vector x, Vector y) { return x * y; });
    case Operation::sub:
      return with([](Vector x, Vector y) { return x - y; });
    default:
      return with([](Vector x, Vector y) { return x / y; });
  }
}

// Whether an operation with a number gives the same of t, |t| <= 2**-126, as of 0: a sum is the number, as t
// is less than half the way to its neighbours, and a product becomes 0.
static inline bool drops_tiny(Operation operation, float number) {
  const float size = number < 0 ? -number : number;
  if (operation == Operation::mul) return size <= 1;
  return operation != Operation::div && size >= 0x1p-100f;
}

template <class With>
static inline __attribute__((always_inline)) bool with_comparison(Operation operation, With with) {
#define COMPARED(type, op) with([](Bits x, Bits y) { return (Bits)(as<type>(x) op as<type>(y)); })
  switch (operation) {
    case Operation::eq:
      return COMPARED(Vector, ==);
    case Operation::ne:
      return COMPARED(Vector, !=);
    case Operation::lt:
      return COMPARED(Vector, <);
    case Operation::le:
      return COMPARED(Vector, <=);
    case Operation::integer_eq:
      return COMPARED(Bits, ==);
    case Operation::integer_lt:
      return COMPARED(Bits, <);
    default:
      return COMPARED(Bits, <=);
  }
#undef COMPARED
}

static bool apply_pair(Operation first, Operation second, bool turned, bool looks, int64_t count,
                       Operand a, Operand b, Operand c, Operand d, int32_t* to) {
  const auto each = [=](auto both, auto... of) __attribute__((always_inline)) {
    if (looks) return for_each_and_look(both, count, to, of...);
    for_each(both, count, to, of...);
    return false;
  };
  if (second == Operation::select) {
    return with_comparison(first, [&](auto compare) {
      const auto chosen = [=](Bits x, Bits y, Bits z, Bits w) __attribute__((always_inline)) {
        return where(compare(x, y), w, z);
      };
      return each(chosen, a, b, c, d);
    });
  }
  if (!c.at) {
    return with_arithmetic(first, false, [&](auto inner) {
      const auto square = [=](Bits x, Bits y) __attribute__((always_inline)) {
        const Vector z = inner(as<Vector>(x), as<Vector>(y));
        return InFlushing::guard(multiplied(z, z));
      };
      return each(square, a, b);
    });
  }
  if (c.same && drops_tiny(second, as<float>(*c.at))) {
    const Vector number = broadcast(as<float>(*c.at));
    return with_rounded(first, [&](auto inner) {
      return with_arithmetic(second, turned, [&](auto outer) {
        const auto both = [=](Bits x, Bits y) __attribute__((always_inline)) {
          return as<Bits>(outer(inner(as<Vector>(x), as<Vector>(y)), number));
        };
        return each(both, a, b);
      });
    });
  }
  return with_arithmetic(first, false, [&](auto inner) {
    return with_arithmetic(second, turned, [&](auto outer) {
      const auto both = [=](Bits x, Bits y, Bits z) __attribute__((always_inline)) {
        return as<Bits>(outer(inner(as<Vector>(x), as<Vector>(y)), as<Vector>(z)));
      };
      return each(both, a, b, c);
    });
  });
}

// repjax.primitives.operations.add_n: an expansion in float64, then its parts from the smallest on;
// but nearly always float64 holds the sums of the terms, and nothing is rounded.

typedef int64_t Long __attribute__((vector_size(4 * kLanes)));

static inline Wide two_sum(Wide a, Wide b, Wide& rest) {
  const Wide s = a + b, from_b = s - a;
  rest = (a - (s - from_b)) + (b - from_b);
  return s;
}

// canonical.round_to_odd and canonical.to_odd.
static inline Wide round_to_odd(Wide high, Wide low) {
  const Long i = as<Long>(high), inexact = (Long)(low < Wide{}) | (Long)(low > Wide{});
  const Long towards_zero = (as<Long>(low) ^ i) < Long{};
  return as<Wide>(where(inexact, (i + towards_zero) | 1, i));
}
static inline Wide to_odd(Wide y) {
  const Long i = as<Long>(y), inexact = (i & 0x1FFFFFFF) != Long{};
  return as<Wide>((i & ~int64_t{0x1FFFFFFF}) | (inexact & (1 << 29)));
}

// The terms' sum, rounded to odd in float64; `plain` where that is no number.
template <int n>
static Wide expanded(Wide (&parts)[n], Wide plain) {
  for (int k = 1; k < n; ++k) {
    for (int j = 0; j < k; ++j) parts[k] = two_sum(parts[j], parts[k], parts[j]);
  }
  Wide total = parts[0], rest;
  for (int k = 1; k < n; ++k) {
    total = two_sum(parts[k], total, rest);
    total = round_to_odd(total, rest);
  }
  const Long infinity = Long{} + (int64_t{0x7FF} << 52);
  return where((as<Long>(plain) & INT64_MAX) < infinity, total, plain);
}

template <int n>
static void add_terms(bool odd, const Operand* terms, int64_t count, int32_t* to) {
  for (int64_t i = 0; i < count; i += kLanes / 2) {
    Wide parts[n], plain = {};
    Long lost = {};  // not 0 where an addition to `plain` is rounded
    for (int k = 0; k < n; ++k) {
      Narrow x;
      __builtin_memcpy(&x, terms[k].at + (terms[k].same ? 0 : i), sizeof x);
      parts[k] = wide(x);
      const Wide sum = plain + parts[k];
      lost |= as<Long>(sum - plain) ^ as<Long>(parts[k]);
      lost |= as<Long>(sum - parts[k]) ^ as<Long>(plain);
      plain = sum;
    }
    Wide total = plain;
    if (any(as<Wide>(lost))) total = expanded<n>(parts, plain);
    if (odd) total = to_odd(total);
    const auto y = flush(__builtin_convertvector(total, Narrow));
    __builtin_memcpy(to + i, &y, sizeof y);
  }
}

static void add_n(bool odd, const Operand* terms, int64_t terms_count, int64_t count,
                  int32_t* to) {
  static_assert(kMostTerms == 8, "the cases below");
  switch (terms_count) {
    case 3: return add_terms<3>(odd, terms, count, to);
    case 4: return add_terms<4>(odd, terms, count, to);
    case 5: return add_terms<5>(odd, terms, count, to);
    case 6: return add_terms<6>(odd, terms, count, to);
    case 7: return add_terms<7>(odd, terms, count, to);
    case 8: return add_terms<8>(odd, terms, count, to);
  }
}

static inline int32_t word(int32_t x) { return x; }
static inline int32_t word(bool x) { return -int32_t(x); }
static inline int32_t word(uint16_t x) { return x; }

// some(vector, at) for vectors of elements, the first of which is `at`: together `count` ones, of
// which the last vector may have some once more.
template <class Some>
static inline __attribute__((always_inline)) void in_vectors(int64_t count, Some some) {
  if (count >= kLanes) {
    for (int64_t i = 0; i + kLanes <= count; i += kLanes) some(Bits{}, i);
    some(Bits{}, count - kLanes);
  } else if (count >= kLanes / 2) {
    some(Integers<Narrow>{}, 0);
    some(Integers<Narrow>{}, count - kLanes / 2);
  } else {
    for (int64_t i = 0; i < count; ++i) some(int32_t{}, i);
  }
}

// As std::copy_n and std::fill_n, of few elements without a call.
static inline void copy_words(const int32_t* from, int64_t count, int32_t* to) {
  in_vectors(count, [=](auto vector, int64_t at) __attribute__((always_inline)) {
    __builtin_memcpy(&vector, from + at, sizeof vector);
    __builtin_memcpy(to + at, &vector, sizeof vector);
  });
}
static inline void fill_words(int32_t word, int64_t count, int32_t* to) {
  in_vectors(count, [=](auto vector, int64_t at) __attribute__((always_inline)) {
    vector += word;
    __builtin_memcpy(to + at, &vector, sizeof vector);
  });
}

constexpr std::make_integer_sequence<int, kLanes> kEach;

// As load_run, whole vectors only, how many elements; what is behind the last one is not read.
static inline int64_t load_every_second(const int32_t* from, int64_t count, int32_t* to) {
  int64_t i = 0;
  for (; i + kLanes < count; i += kLanes) {
    Vector a, b;
    __builtin_memcpy(&a, from + 2 * i, sizeof a);
    __builtin_memcpy(&b, from + 2 * i + kLanes, sizeof b);
    a = every_other<false>(a, b, kEach);
    __builtin_memcpy(to + i, &a, sizeof a);
  }
  return i;
}

static void store_pairs(const int32_t* real, const int32_t* imaginary, int64_t count, void* to,
                        int64_t first) {
  int32_t* const at = static_cast<int32_t*>(to) + 2 * first;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    Vector a, b;
    __builtin_memcpy(&a, real + i, sizeof a);
    __builtin_memcpy(&b, imaginary + i, sizeof b);
    const Vector low = in_turn<false>(a, b, kEach), high = in_turn<true>(a, b, kEach);
    __builtin_memcpy(at + 2 * i, &low, sizeof low);
    __builtin_memcpy(at + 2 * i + kLanes, &high, sizeof high);
  }
  for (; i < count; ++i) {
    at[2 * i] = real[i];
    at[2 * i + 1] = imaginary[i];
  }
}

template <class Element>
static inline void load_run(const Element* from, int64_t step, int64_t count, int32_t* to) {
  if (step == 0) {
    fill_words(word(*from), count, to);
  } else if (step == 1) {
    if constexpr (sizeof(Element) == 4) return copy_words(from, count, to);
    for (int64_t i = 0; i < count; ++i) to[i] = word(from[i]);
  } else {
    int64_t i = 0;
    if constexpr (sizeof(Element) == 4) i = step == 2 ? load_every_second(from, count, to) : 0;
    for (; i < count; ++i) to[i] = word(from[i * step]);
  }
}

// Runs of so few elements that a loop over them takes longer than they do.
template <int64_t count, class Element>
static void load_short_runs(const Element* from, int64_t step, Runs runs, int32_t* to) {
  for (int64_t i = 0; i < runs.count; ++i, from += runs.stride, to += runs.apart) {
    for (int64_t j = 0; j < count; ++j) to[j] = word(from[j * step]);
  }
}

static void load_elements(Storage storage, const void* from, int64_t first, int64_t step,
                          int64_t count, Runs runs, int32_t* to) {
  if (storage == kWord && step == 1 && count % kLanes == 0) {  // the runs of many moves
    const auto* x = static_cast<const int32_t*>(from) + first;
    for (int64_t i = 0; i < runs.count; ++i, x += runs.stride, to += runs.apart) {
      for (int64_t j = 0; j < count; j += kLanes) {
        Bits v;
        __builtin_memcpy(&v, x + j, sizeof v);
        __builtin_memcpy(to + j, &v, sizeof v);
      }
    }
    return;
  }
  const auto load = [=](auto* from) {
    const auto* const x = from + first;
    switch (count) {
      case 2: return load_short_runs<2>(x, step, runs, to);
      case 3: return load_short_runs<3>(x, step, runs, to);
      case 4: return load_short_runs<4>(x, step, runs, to);
      default: break;
    }
    for (int64_t i = 0; i < runs.count; ++i) {
      load_run(x + i * runs.stride, step, count, to + i * runs.apart);
    }
  };
  switch (storage) {
    case kWord: return load(static_cast<const int32_t*>(from));
    case kBoolean: return load(static_cast<const bool*>(from));
    case kHalf: return load(static_cast<const uint16_t*>(from));
    default: return;  // of results only
  }
}

static void store_elements(Storage storage, const int32_t* from, int64_t count, void* to,
                           int64_t first) {
  switch (storage) {
    case kWord:
      __builtin_memcpy(static_cast<int32_t*>(to) + first, from, count * sizeof(int32_t));
      return;
    case kBoolean:
      for (int64_t i = 0; i < count; ++i) static_cast<bool*>(to)[first + i] = from[i] != 0;
      return;
    case kHalf:
      for (int64_t i = 0; i < count; ++i) static_cast<uint16_t*>(to)[first + i] = from[i];
      return;
    default:  // store_pairs
      return;
  }
}

static bool are_canonical(int64_t count, const int32_t* x) {
  if constexpr (kClasses) {
    const auto at = [=](int64_t i) {
      Vector v;
      __builtin_memcpy(&v, x + std::min(i, count - kLanes), sizeof v);
      return v;
    };
    for (int64_t i = 0; i < count; i += 4 * kLanes) {
      if (any_other(at(i), at(i + kLanes), at(i + 2 * kLanes), at(i + 3 * kLanes))) return false;
    }
  }
  return kClasses;
}

// The elements that are there, and in the other lanes the first one, so that no function takes longer for
// numbers that nothing asks for.
static inline Bits load_few(Few x) {
  const Bits first = Bits{} + *x.at;
  if (x.count == 1) return first;
  Bits elements = as<Bits>(load_part(reinterpret_cast<const float*>(x.at), x.count));
  Bits lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  return where(lanes < fill(x.count), elements, first);
}

// In registers of so many vectors.
template <int kVectors>
static void run(const Short& code, int32_t* lines) {
  constexpr int64_t kLine = kVectors * kLanes;
  const int64_t whole = (code.elements + kLanes - 1) / kLanes * kLanes;
  const auto line = [=](int64_t r) { return lines + r * kLine; };
  const auto set = [=](int32_t* to, Bits x) __attribute__((always_inline)) {
    __builtin_memcpy(to, &x, sizeof x);
  };
  const auto get = [=](const int32_t* from) __attribute__((always_inline)) {
    Bits x;
    __builtin_memcpy(&x, from, sizeof x);
    return x;
  };
  for (int64_t i = 0; i < code.constant_count; ++i) {
    const Bits x = fill(code.constants[i].bits);
    for (int v = 0; v < kVectors; ++v) set(line(code.constants[i].to) + v * kLanes, x);
  }
  for (int64_t i = 0; i < code.input_count; ++i) {
    const Few from = code.ends[i];
    if (kVectors == 1 || from.count == 1) {
      const Bits x = load_few(from);
      for (int v = 0; v < kVectors; ++v) set(line(i) + v * kLanes, x);
      continue;
    }
    for (int64_t at = 0; at < kLine; at += kLanes) {
      const int64_t here = at < from.count ? std::min<int64_t>(from.count - at, kLanes) : 1;
      set(line(i) + at, load_few({from.at + (at < from.count ? at : 0), here}));
    }
  }
  Operand terms[kMostTerms];
  int64_t held = 0;
  for (int64_t i = 0; i < code.instruction_count; ++i) {
    const Instruction& x = code.instructions[i];
    const auto operation = Operation(x.operation);
    const auto each = [&](auto function) __attribute__((always_inline)) {
      int32_t* const to = line(x.to);
      const int32_t *const a = line(x.from[0]), *const b = line(x.from[1]), *const c = line(x.from[2]);
#pragma GCC unroll 4
      for (int64_t at = 0; at < kLine; at += kLanes) {
        set(to + at, function(get(a + at), get(b + at), get(c + at)));
      }
    };
    each_of<InIeee>(operation, each, [&] {
      const auto operand = [=](int64_t r) { return Operand{line(r), false}; };
      if (operation == Operation::hold) {
        terms[held++] = operand(x.from[0]);
      } else if (operation == Operation::add_n || operation == Operation::add_n_odd) {
        for (const int64_t from : x.from) terms[held++] = operand(from);
        add_n(operation == Operation::add_n_odd, terms, held, kLine, line(x.to));
        held = 0;
      } else {  // of the vectors that have elements
        apply_function(operation, whole, operand(x.from[0]), operand(x.from[1]),
                       operand(x.from[2]), line(x.to));
      }
    });
  }
  for (int64_t i = code.input_count; i < code.input_count + code.output_count; ++i) {
    copy_words(line(i), code.elements, code.ends[i].at);
  }
}

constexpr Elementwise kElementwise = {
    kLanes,        apply,          apply_and_look, apply_pair, add_n,
    load_elements, store_elements, store_pairs,    kClasses ? are_canonical : nullptr,
    {run<1>, run<kShortVectors>}};
