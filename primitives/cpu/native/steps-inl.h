// A chain of rounded steps, s = RN(s + term), one term after the other, many at a time.
//
// The order of a single chain is fixed, and so are its bits.  While s stays between two powers of two,
// though, its last bit, the unit, stays the same, and RN(s + term) is s and the integer of units that
// is nearest the term, whatever s is; unless the term is half way between two integers.  Integers may
// be added in any order: what is to be seen is whether all sums on the way stay between the powers.
//
// The integer is found by a step from the middle between the powers: whole = RN(middle + term) -
// middle, if that is not half the way to a power, and if the rest, term - whole, which a step from
// -whole gives, is less than half a unit.  A rest that is half a unit is not rounded to less.
//
// Terms have add(i, s) = RN(s + term i), of one term, or of a vector of terms from i on, and kQuick
// if that is quick.

struct Numbers {
  static constexpr bool kQuick = true;
  const float* x;

  float add(int64_t i, float s) const { return s + x[i]; }
  Vector add(int64_t i, Vector s) const { return s + load(x + i); }
};

template <bool raw>
struct Products {
  static constexpr bool kQuick = kFused;
  const float *x, *y;

  float add(int64_t i, float s) const {
    return __builtin_fmaf(factor<raw>(x[i]), factor<raw>(y[i]), s);
  }
  Vector add(int64_t i, Vector s) const {
    return fma(factor<raw>(load(x + i)), factor<raw>(load(y + i)), s);
  }
};

// A sum between two powers of two: its sign, and its bits and those of the lower power without it.
struct Place {
  int32_t sign, first, at;
};
constexpr int32_t kPowers = 1 << 23;  // from the bits of a power of two to those of the next

// x[i - kStep], and 0 where there is none.
template <int kStep, int... kAt>
static inline Bits behind(Bits x, std::integer_sequence<int, kAt...>) {
  return as<Bits>(shuffled<(kAt < kStep ? kLanes + kAt : kAt - kStep)...>(as<Vector>(x), Vector{}));
}

// The sums of the elements up to each.
template <int kStep = 1>
static inline Bits sums_up_to(Bits x) {
  const Bits sums = x + behind<kStep>(x, std::make_integer_sequence<int, kLanes>());
  if constexpr (2 * kStep < kLanes) return sums_up_to<2 * kStep>(sums);
  return sums;
}

// Takes kLanes * kLanes steps, or of these rows of kLanes only the first, as far as all sums are
// known; returns how many rows.
template <class Terms>
static inline int known_rows(const Terms& terms, int64_t i, Place& place) {
  constexpr int32_t kUnknown = -(1 << 26);  // beyond the powers, and kLanes of them are an int32
  const Vector middle = as<float>(place.sign | place.first | kPowers / 2) - Vector{};
  const Bits half_way = Bits{} + (place.first - kPowers);
  const Bits half_unit = Bits{} + (place.first - 24 * kPowers);
  Vector units[kLanes];
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) {
    const int64_t at = i + r * kLanes;
    const Vector sum = terms.add(at, middle), whole = sum - middle, rest = terms.add(at, -whole);
    Bits here = as<Bits>(sum) - as<Bits>(middle);
    here = magnitude(whole) < half_way ? here : Bits{} + kUnknown;
    here = magnitude(rest) < half_unit ? here : Bits{} + kUnknown;
    units[r] = as<Vector>(here);
  }
  transpose(units);  // now an element for each row
  Bits sum = {}, most = {}, least = {};
#pragma GCC unroll 16
  for (int r = 0; r < kLanes; ++r) {
    sum += as<Bits>(units[r]);
    most = sum > most ? sum : most;
    least = sum < least ? sum : least;
  }
  const Bits after = sums_up_to(sum) + place.at, before = after - sum;
  const Bits beyond = (before + most >= place.first + kPowers) | (before + least <= place.first);
  int rows = kLanes;
  if (any(as<Wide>(beyond))) {
    for (rows = 0; !beyond[rows];) ++rows;
  }
  if (rows > 0) place.at = after[rows - 1];
  return rows;
}

// Steps from the terms [i, n), in blocks, as long as whole rows are known; returns how many steps.
template <class Terms>
static int64_t known_steps(const Terms& terms, int64_t i, int64_t n, float& s) {
  constexpr int32_t kLeast = 32, kMost = 250;  // exponents with which all numbers here are normal
  const int32_t bits = as<int32_t>(s), size = bits & 0x7FFFFFFF;
  Place place = {bits - size, bits & 0x7F800000, size};
  if (place.first < kLeast * kPowers || place.first > kMost * kPowers) return 0;
  const int64_t begin = i;
  for (int rows = kLanes; rows == kLanes && i + kLanes * kLanes <= n; i += rows * kLanes) {
    rows = known_rows(terms, i, place);
  }
  s = as<float>(place.sign | place.at);
  return i - begin;
}

// s after n steps.
template <class Terms>
static float steps(const Terms& terms, int64_t n, float s) {
  constexpr int64_t kShort = 1 << 12, kFew = kLanes, kMost = 1 << 10;
  for (int64_t i = 0, one_by_one = Terms::kQuick && n >= kShort ? kFew : n;;) {
    const int64_t end = n - i < one_by_one ? n : i + one_by_one;
    for (; i < end; ++i) s = terms.add(i, s);
    if (i == n) return s;
    const int64_t known = known_steps(terms, i, n, s);
    i += known;
    // Where it was hardly worth it, it is not tried again so soon.
    one_by_one = known >= kLanes * kLanes / 4 ? kFew : one_by_one < kMost ? 2 * one_by_one : kMost;
  }
}
