// Sums of the updates of a scatter-add: on the grid of the largest one, as
// repjax.primitives.operations.scatter says, or in float64, where that surely rounds alike.
//
// Where no update is too small for the grid of the largest one, of exponent E, and there are no more
// than 2**14 of them, a float64 sum is exact, and that on the grid, too.  Else the two differ by at
// most n * 2**(E - precision - 1); and the former is off by at most n**2 * 2**(E - 52), since it is
// smaller than n * 2**(E + 1).
//
// Updates need not be canonical: the arithmetic flushes, so that subnormal ones are zeros, of either
// sign, which no sum tells.

typedef uint32_t UnsignedHalf __attribute__((vector_size(2 * kLanes)));

// Of sums in float64: the bits of the largest magnitude among the updates, and of the smallest but
// zero, which is negated, so that 0 is where both begin.
template <class Sum, class Largest, class Smallest>
struct Updates {
  Sum sum;
  Largest largest;
  Smallest smallest;

  void add(Sum u, Largest magnitude) {
    const Smallest negated = -as<Smallest>(magnitude);
    sum += u;
    largest = magnitude > largest ? magnitude : largest;
    smallest = negated > smallest ? negated : smallest;
  }
};
typedef Updates<Wide, several::BitsPart, UnsignedHalf> UpdatesOfColumns;
typedef Updates<double, int32_t, uint32_t> UpdatesOfOne;

// The bits of magnitudes, 0 of what arithmetic flushes.
template <class V>
static inline Integers<V> normal_magnitude(V u) {
  const Integers<V> m = magnitude(u);
  return m & (m >= (Integers<V>{} + 0x00800000));
}

// 2**exponent.
static inline Wide power_of_two(several::LongPart exponent) {
  return as<Wide>((exponent + 1023) << 52);
}
static inline double power_of_two(int64_t exponent) {
  return as<double>((exponent + 1023) << 52);
}

static inline several::LongPart widened(several::BitsPart x) {
  return __builtin_convertvector(x, several::LongPart);
}
static inline int64_t widened(int32_t x) { return x; }

// Rounded to float32, and guarded, as bits.
static inline several::BitsPart rounded(Wide x) {
  return guard(__builtin_convertvector(x, Narrow));
}
static inline int32_t rounded(double x) {
  const int32_t bits = as<int32_t>(float(x));
  return (bits & 0x7FFFFFFF) > 0x00800000 ? bits : 0;
}

// Whether the sums of n updates are exact, and those on the grids as well.
template <class Sum, class Largest, class Smallest>
static inline Largest is_exact(const Updates<Sum, Largest, Smallest>& u, double n, int precision) {
  const Largest largest = u.largest >> 23, smallest = as<Largest>(-u.smallest) >> 23;
  return (largest - smallest <= Largest{} + (n <= 0x1p14 ? precision - 23 : -1)) &
         (u.largest < Largest{} + 0x7F800000);
}

// The rounded sums of n updates, and whether they are surely those on the grids.
template <class Sum, class Largest, class Smallest>
static inline auto round_sums(const Updates<Sum, Largest, Smallest>& u, double n, int precision,
                              Largest& sum) {
  const double slack = n * (power_of_two(-precision - 1) + n * 0x1p-50);
  const Sum error = power_of_two(widened(u.largest >> 23) - 127) * slack;
  sum = rounded(u.sum);
  const auto alike = rounded(u.sum - error) == rounded(u.sum + error);
  return is_exact(u, n, precision) | (alike & (u.largest < Largest{} + 0x7F800000));
}

// Of a mask.
static inline bool all(several::BitsPart mask) { return !any(as<Wide>(widened(~mask))); }
static inline bool all(int32_t mask) { return mask; }

// The sums of load(i) over i < count, on the grids.
template <class Load>
static inline several::BitsPart sum_on_grid(Load load, int64_t count, int precision) {
  using several::BitsPart;
  using several::LongPart;
  const auto finite = [=](Narrow v) {
    return (BitsPart)(magnitude(v) < (0x7F800000 - BitsPart{}));
  };
  BitsPart largest = {}, all_finite = ~BitsPart{};
  Narrow sum = {};
  for (int64_t i = 0; i < count; ++i) {
    const Narrow u = load(i);
    const BitsPart is_finite = finite(u), m = magnitude(u) & is_finite;
    largest = m > largest ? m : largest;
    sum += count == 1 ? u : as<Narrow>(as<BitsPart>(u) & ~is_finite);  // others as IEEE adds them
    all_finite &= is_finite;
  }
  if (count > 1) {
    const LongPart grid = __builtin_convertvector(largest >> 23, LongPart) - (127 + precision);
    const Wide steps = power_of_two(-grid), zero = 0x1.8p52 - Wide{};  // where integers begin
    LongPart total = {};
    for (int64_t i = 0; i < count; ++i) {
      const Narrow u = load(i);
      const Wide q = wide(as<Narrow>(as<BitsPart>(u) & finite(u))) * steps;
      total += as<LongPart>(q + zero) - as<LongPart>(zero);
    }
    const Wide rounded = wide(__builtin_convertvector(total, Narrow)) * power_of_two(grid);
    sum = all_finite ? __builtin_convertvector(rounded, Narrow) : sum;
  }
  return guard(sum);
}

// to[j] = x[j] + the sum of load(i, j) over i < count, the last part only to `here`.
template <int kParts, class Load>
static inline void add_columns(const float* x, Load load, int64_t count, int precision, int64_t here,
                               float* to) {
  constexpr int64_t kHalf = kLanes / 2;
  UpdatesOfColumns sums[kParts] = {};
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kParts; ++j) {
      const Narrow u = load(i, j);
      sums[j].add(wide(u), normal_magnitude(u));
    }
  }
  several::BitsPart exact = ~several::BitsPart{};
  for (int j = 0; j < kParts; ++j) exact &= is_exact(sums[j], count, precision);
  const bool all_exact = all(exact);
  for (int j = 0; j < kParts; ++j) {
    const int64_t n = kParts == 1 ? here : kHalf;
    several::BitsPart sum = rounded(sums[j].sum);
    const bool sure = all_exact || all(round_sums(sums[j], count, precision, sum));
    if (!sure) sum = sum_on_grid([=](int64_t i) { return load(i, j); }, count, precision);
    Narrow y = {};
    __builtin_memcpy(&y, x + j * kHalf, sizeof(float) * n);
    y += as<Narrow>(sum);
    y = as<Narrow>(canonical(y));
    __builtin_memcpy(to + j * kHalf, &y, sizeof(float) * n);
  }
}

static void add_updates(const float* x, const float* updates, const int32_t* at, int64_t count,
                        int64_t width, int precision, float* to) {
  constexpr int64_t kHalf = kLanes / 2;
  const auto from = [=](int64_t c) {
    return [=](int64_t i, int j) {
      if (j * kHalf % 16 == 0) {  // a line
        __builtin_prefetch(updates + at[i + kUpdatesAhead] * width + c + j * kHalf);
      }
      Narrow u;
      __builtin_memcpy(&u, updates + at[i] * width + c + j * kHalf, sizeof u);
      return u;
    };
  };
  int64_t c = 0;
  for (; c + 4 * kHalf <= width; c += 4 * kHalf) {
    add_columns<4>(x + c, from(c), count, precision, kHalf, to + c);
  }
  for (; c + 2 * kHalf <= width; c += 2 * kHalf) {
    add_columns<2>(x + c, from(c), count, precision, kHalf, to + c);
  }
  for (; c + kHalf <= width; c += kHalf) {
    add_columns<1>(x + c, from(c), count, precision, kHalf, to + c);
  }
  if (c == width) return;
  const auto load_rest = [=](int64_t i, int) {
    Narrow u = {};
    __builtin_memcpy(&u, updates + at[i] * width + c, sizeof(float) * (width - c));
    return u;
  };
  add_columns<1>(x + c, load_rest, count, precision, width - c, to + c);
}

// A row of sums in memory: sums, largest and smallest updates of each column, and how many updates
// there were.
struct Row {
  double* sum;
  int32_t* largest;
  uint32_t *smallest, *count;

  Row(char* at, int64_t width) {
    sum = reinterpret_cast<double*>(at);
    largest = reinterpret_cast<int32_t*>(sum + width);
    smallest = reinterpret_cast<uint32_t*>(largest + width);
    count = smallest + width;
  }

  UpdatesOfOne one(int64_t c) const { return {sum[c], largest[c], smallest[c]}; }
  UpdatesOfColumns columns(int64_t c) const {
    UpdatesOfColumns of;
    __builtin_memcpy(&of.sum, sum + c, sizeof of.sum);
    __builtin_memcpy(&of.largest, largest + c, sizeof of.largest);
    __builtin_memcpy(&of.smallest, smallest + c, sizeof of.smallest);
    return of;
  }
};

// Adds updates[k] to row at[k] of n, if there is one, for k in [begin, end).
static void add_rows_in_table(const float* updates, const int32_t* at, int64_t begin, int64_t end,
                              uint32_t n, int64_t of_row, int64_t width, char* table) {
  constexpr int64_t kHalf = kLanes / 2;
  for (int64_t k = begin; k < end; ++k) {
    if (uint32_t(at[k]) >= n) continue;
    const Row row(table + at[k] * of_row, width);
    const float* const from = updates + k * width;
    ++*row.count;
    int64_t c = 0;
    for (; c + kHalf <= width; c += kHalf) {
      Narrow u;
      __builtin_memcpy(&u, from + c, sizeof u);
      UpdatesOfColumns of = row.columns(c);
      of.add(wide(u), normal_magnitude(u));
      __builtin_memcpy(row.sum + c, &of.sum, sizeof of.sum);
      __builtin_memcpy(row.largest + c, &of.largest, sizeof of.largest);
      __builtin_memcpy(row.smallest + c, &of.smallest, sizeof of.smallest);
    }
    for (; c < width; ++c) {
      UpdatesOfOne of = row.one(c);
      const float u = std::fabs(from[c]) < 0x1p-126f ? 0 : from[c];
      of.add(u, as<int32_t>(u) & 0x7FFFFFFF);
      row.sum[c] = of.sum;
      row.largest[c] = of.largest;
      row.smallest[c] = of.smallest;
    }
  }
}

// The same of rows of one element, whose integers are one vector.
static void add_elements_in_table(const float* updates, const int32_t* at, int64_t begin,
                                  int64_t end, uint32_t n, int64_t of_row, char* table) {
  typedef uint32_t Four __attribute__((vector_size(16)));
  for (int64_t k = begin; k < end; ++k) {
    if (uint32_t(at[k]) >= n) continue;
    const Row row(table + at[k] * of_row, 1);
    const float u = std::fabs(updates[k]) < 0x1p-126f ? 0 : updates[k];
    const uint32_t magnitude = as<uint32_t>(u) & 0x7FFFFFFF;
    *row.sum += u;
    // The largest, the smallest, the count, and what follows it.
    const Four of_one = {magnitude, -magnitude, 0, 0}, one_more = {0, 0, 1, 0};
    Four of;
    __builtin_memcpy(&of, row.largest, sizeof of);
    of = (of > of_one ? of : of_one) + one_more;
    __builtin_memcpy(row.largest, &of, sizeof of);
  }
}

static void add_in_table(const float* updates, const int32_t* at, int64_t begin, int64_t end,
                         int64_t n, int64_t of_row, int64_t width, char* table) {
  if (width == 1) {
    add_elements_in_table(updates, at, begin, end, uint32_t(n), of_row, table);
  } else {
    add_rows_in_table(updates, at, begin, end, uint32_t(n), of_row, width, table);
  }
}

static void merge_tables(char* more, int64_t n, int64_t of_row, int64_t width, char* table) {
  for (int64_t r = 0; r < n; ++r, more += of_row, table += of_row) {
    const Row from(more, width), to(table, width);
    for (int64_t c = 0; c < width; ++c) {
      to.sum[c] += from.sum[c];
      to.largest[c] = std::max(to.largest[c], from.largest[c]);
      to.smallest[c] = std::max(to.smallest[c], from.smallest[c]);
    }
    *to.count += *from.count;
  }
}

// to = x + the sums of a row, if they are sure.
static bool finish_row(const float* x, char* at, int64_t width, int precision, float* to) {
  constexpr int64_t kHalf = kLanes / 2;
  const Row row(at, width);
  const double n = *row.count;
  if (n == 0) return true;
  bool sure = true;
  int64_t c = 0;
  for (; c + kHalf <= width; c += kHalf) {
    several::BitsPart sum;
    sure &= all(round_sums(row.columns(c), n, precision, sum));
    __builtin_memcpy(row.largest + c, &sum, sizeof sum);
  }
  for (; c < width; ++c) {
    int32_t sum;
    sure &= round_sums(row.one(c), n, precision, sum);
    row.largest[c] = sum;
  }
  if (!sure) return false;
  for (c = 0; c < width; ++c) {
    const float y = x[c] + as<float>(row.largest[c]);
    to[c] = y != y ? __builtin_nanf("") : std::fabs(y) < 0x1p-126f ? 0 : y;
  }
  return true;
}

// The larger or the smaller of a canonical number and a raw one, or NaN.
template <Join join>
static inline float extremum(float a, float b) {
  const int32_t bits = as<int32_t>(b), size = bits & 0x7FFFFFFF;
  b = as<float>(size > 0x7F800000 ? kNan : size < 0x00800000 ? 0 : bits);
  const bool first = (join == Join::kLargest ? a > b : a < b) | (a != a);
  return first ? a : b;
}

template <Join join>
static inline void join_row(const float* from, int64_t width, float* to) {
  int64_t c = 0;
  for (; c + kLanes <= width; c += kLanes) {
    store(to + c, both<join>(load(to + c), as<Vector>(canonical(load(from + c)))));
  }
  for (; c < width; ++c) to[c] = extremum<join>(to[c], from[c]);
}

template <Join join>
static void join_updates(const float* updates, const int32_t* at, int64_t count, int64_t n,
                         int64_t width, float* table) {
  for (int64_t k = 0; k < count; ++k) {
    if (uint32_t(at[k]) >= uint32_t(n)) continue;
    join_row<join>(updates + k * width, width, table + at[k] * width);
  }
}

static const Scatter kScatter = {
    add_updates,
    add_in_table,
    merge_tables,
    finish_row,
    {nullptr, join_updates<Join::kLargest>, join_updates<Join::kSmallest>},
    {nullptr, join_row<Join::kLargest>, join_row<Join::kSmallest>}};
