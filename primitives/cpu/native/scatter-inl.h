// Sums of the updates of a scatter-add: on the grid of the largest one, as
// repjax.primitives.operations.scatter says, or in float64, where that surely rounds alike.
//
// Where no update is too small for the grid of the largest one, of exponent E, and there are no more
// than 2**14 of them, a float64 sum is exact, and that on the grid, too.  Else the two differ by at
// most m * 2**(E - precision - 1), if m of the n updates are too small; and the former is off by at
// most n**2 * 2**(E - 53), in any order, since an addition that makes a sum of i updates is off by no
// more than 2**-53 of i * 2**(E + 1).  Two more such roundings, of all n, are those of the ends of what
// the sum may be.  E may be larger than that of the largest update, that of all updates of all sums,
// for instance: the numbers of a coarser grid are on the finer one.
//
// Updates need not be canonical: the arithmetic flushes, so that subnormal ones are zeros, of either
// sign, which no sum tells.

typedef uint32_t UnsignedHalf __attribute__((vector_size(2 * kLanes)));

template <class V>
static inline V larger(V a, V b) {
  return a > b ? a : b;
}
template <class V>
static inline V smaller(V a, V b) {
  return a < b ? a : b;
}

// Sums in float64: the bits of the largest magnitude among the updates, and of the smallest but
// zero, less one.
struct UpdatesOfColumns {
  Wide sum = {};
  UnsignedHalf largest = {}, smallest = ~UnsignedHalf{};

  void add(Narrow u) {
    const UnsignedHalf m = as<UnsignedHalf>(magnitude(u));
    sum += wide(u);
    largest = larger(m, largest);
    smallest = smaller(m - 1, smallest);
  }
};

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

// Rounded to float32, and guarded, as bits.
static inline several::BitsPart rounded(Wide x) {
  return guard(__builtin_convertvector(x, Narrow));
}
static inline int32_t rounded(double x) {
  const int32_t bits = as<int32_t>(float(x));
  return (bits & 0x7FFFFFFF) > 0x00800000 ? bits : 0;
}

// Whether the sums of n updates are exact, and those on the grids as well.
static inline several::BitsPart is_exact(const UpdatesOfColumns& u, double n, int precision) {
  using several::BitsPart;
  const auto range = as<BitsPart>((u.largest >> 23) - ((u.smallest + 1) >> 23));
  return (range <= BitsPart{} + (n <= kExactCount ? precision - 23 : -1)) &
         (as<BitsPart>(u.largest) < BitsPart{} + 0x7F800000);
}

// The rounded sums of n updates, and whether they are surely those on the grids.
static inline several::BitsPart round_sums(const UpdatesOfColumns& u, double n, int precision,
                                           several::BitsPart& sum) {
  const Wide largest = power_of_two(widened(as<several::BitsPart>(u.largest >> 23)) - 127);
  const Wide error = largest * difference(n, n, precision);
  sum = rounded(u.sum);
  const auto alike = rounded(u.sum - error) == rounded(u.sum + error);
  const auto is_finite = as<several::BitsPart>(u.largest) < several::BitsPart{} + 0x7F800000;
  return is_exact(u, n, precision) | (alike & is_finite);
}

static inline bool all(several::BitsPart mask) { return !any(as<Wide>(widened(~mask))); }

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
  using several::BitsPart;
  constexpr int64_t kHalf = kLanes / 2;
  UpdatesOfColumns sums[kParts];
  for (int64_t i = 0; i < count; ++i) {
#pragma GCC unroll 4
    for (int j = 0; j < kParts; ++j) sums[j].add(load(i, j));
  }
  const auto doubtful = [=](UpdatesOfColumns u, int j) __attribute__((noinline)) {
    BitsPart sum;
    if (all(round_sums(u, count, precision, sum))) return sum;
    return sum_on_grid([=](int64_t i) { return load(i, j); }, count, precision);
  };
  BitsPart exact = ~BitsPart{};
#pragma GCC unroll 4
  for (int j = 0; j < kParts; ++j) exact &= is_exact(sums[j], count, precision);
  const bool all_exact = all(exact);
  const int64_t n = kParts == 1 ? here : kHalf;
#pragma GCC unroll 4
  for (int j = 0; j < kParts; ++j) {
    const BitsPart sum = all_exact ? rounded(sums[j].sum) : doubtful(sums[j], j);
    Narrow y = {};
    __builtin_memcpy(&y, x + j * kHalf, sizeof(float) * n);
    y += as<Narrow>(sum);
    y = as<Narrow>(canonical(y));
    __builtin_memcpy(to + j * kHalf, &y, sizeof(float) * n);
  }
}

static void add_updates(const float* x, const float* updates, const int32_t* at, int64_t count,
                        int64_t row, int64_t width, int precision, float* to) {
  constexpr int64_t kHalf = kLanes / 2;
  const auto from = [=](int64_t c) {
    return [=](int64_t i, int j) {
      if (j * kHalf % 16 == 0) {  // a line
        __builtin_prefetch(updates + at[i + kUpdatesAhead] * row + c + j * kHalf);
      }
      Narrow u;
      __builtin_memcpy(&u, updates + at[i] * row + c + j * kHalf, sizeof u);
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
    __builtin_memcpy(&u, updates + at[i] * row + c, sizeof(float) * (width - c));
    return u;
  };
  add_columns<1>(x + c, load_rest, count, precision, width - c, to + c);
}

typedef uint32_t Unsigned __attribute__((vector_size(4 * kLanes)));

// The largest of some lanes and the smallest of others.
template <class V>
static void store_extrema(V largest, V smallest, uint32_t* of_largest, uint32_t* of_smallest) {
  constexpr int kCount = sizeof(V) / sizeof(uint32_t);
  uint32_t most[kCount], least[kCount];
  __builtin_memcpy(most, &largest, sizeof most);
  __builtin_memcpy(least, &smallest, sizeof least);
  *of_largest = *std::max_element(most, most + kCount);
  *of_smallest = *std::min_element(least, least + kCount);
}

// Of n numbers the bits of the largest magnitude, and those of the smallest but zero, less one.
static void magnitudes(const float* x, int64_t n, uint32_t* of_largest, uint32_t* of_smallest) {
  constexpr int kParts = 4;
  Unsigned largest[kParts] = {}, smallest[kParts];
  for (Unsigned& part : smallest) part = ~Unsigned{};
  int64_t i = 0;
  for (; i + kParts * kLanes <= n; i += kParts * kLanes) {
#pragma GCC unroll 4
    for (int part = 0; part < kParts; ++part) {
      const Unsigned m = as<Unsigned>(magnitude(load(x + i + part * kLanes)));
      largest[part] = larger(m, largest[part]);
      smallest[part] = smaller(m - 1, smallest[part]);
    }
  }
  for (; i < n; i += kLanes) {
    Vector v = {};
    __builtin_memcpy(&v, x + i, sizeof(float) * std::min<int64_t>(kLanes, n - i));
    const Unsigned m = as<Unsigned>(magnitude(v));
    largest[0] = larger(m, largest[0]);
    smallest[0] = smaller(m - 1, smallest[0]);
  }
  for (int part = 1; part < kParts; ++part) {
    largest[0] = larger(largest[part], largest[0]);
    smallest[0] = smaller(smallest[part], smallest[0]);
  }
  store_extrema(largest[0], smallest[0], of_largest, of_smallest);
}

// Whether a magnitude but zero, less one, is below the limit.
static bool has_below(const float* x, int64_t n, uint32_t limit) {
  Unsigned found = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    found |= as<Unsigned>(as<Unsigned>(magnitude(load(x + i))) - 1 < limit);
  }
  bool rest = false;
  for (; i < n; ++i) rest |= (as<uint32_t>(x[i]) & 0x7FFFFFFF) - 1 < limit;
  return rest || any(as<Wide>(found));
}

// Adds updates to the sums [n, width] of their rows and counts them, where there is such a row; and
// says what magnitudes they have.
static void add_in_table(const float* updates, int64_t row, const int32_t* at, int64_t count,
                         uint32_t n, int64_t width, double* sums, int32_t* counts,
                         uint32_t* of_largest, uint32_t* of_smallest) {
  constexpr int64_t kHalf = kLanes / 2;
  UnsignedHalf largest = {}, smallest = ~UnsignedHalf{};
  for (int64_t k = 0; k < count; ++k) {
    const uint32_t r = at[k];
    if (r >= n) continue;
    const float* const from = updates + k * row;
    double* const to = sums + r * width;
    ++counts[r];
    int64_t c = 0;
    for (; c + kHalf <= width; c += kHalf) {
      Narrow u;
      Wide sum;
      __builtin_memcpy(&u, from + c, sizeof u);
      __builtin_memcpy(&sum, to + c, sizeof sum);
      sum += wide(u);
      __builtin_memcpy(to + c, &sum, sizeof sum);
      const UnsignedHalf m = as<UnsignedHalf>(magnitude(u));
      largest = larger(m, largest);
      smallest = smaller(m - 1, smallest);
    }
    for (; c < width; ++c) {
      to[c] += from[c];
      const UnsignedHalf m = UnsignedHalf{} + (as<uint32_t>(from[c]) & 0x7FFFFFFF);
      largest = larger(m, largest);
      smallest = smaller(m - 1, smallest);
    }
  }
  store_extrema(largest, smallest, of_largest, of_smallest);
}

// The same of rows of few elements, one behind the other.
static void add_narrow_in_table(const float* updates, int64_t, const int32_t* at, int64_t count,
                                uint32_t n, int64_t width, double* sums, int32_t* counts,
                                uint32_t* largest, uint32_t* smallest) {
  magnitudes(updates, count * width, largest, smallest);
  const auto add = [=](int64_t size) {
    for (int64_t k = 0; k < count; ++k) {
      const uint32_t r = at[k];
      if (r >= n) continue;
      ++counts[r];
      for (int64_t c = 0; c < size; ++c) sums[r * size + c] += updates[k * size + c];
    }
  };
  width == 1 ? add(1) : add(width);  // 1 is known when it is compiled
}

static inline float with_sum(float x, double sum) {
  const float y = x + as<float>(rounded(sum));
  return y != y ? __builtin_nanf("") : std::fabs(y) < 0x1p-126f ? 0 : y;
}

// to = x + sums, if they are surely those on the grids, which are off by no more than `error`.
static bool finish_row(const float* x, const double* sums, double error, int64_t width, float* to) {
  constexpr int64_t kHalf = kLanes / 2;
  const auto load_sums = [=](int64_t c) {
    Wide sum;
    __builtin_memcpy(&sum, sums + c, sizeof sum);
    return sum;
  };
  int64_t c = 0;
  if (error > 0) {
    bool sure = true;
    for (; c + kHalf <= width; c += kHalf) {
      sure &= all(rounded(load_sums(c) - error) == rounded(load_sums(c) + error));
    }
    for (; c < width; ++c) sure &= rounded(sums[c] - error) == rounded(sums[c] + error);
    if (!sure) return false;
  }
  for (c = 0; c + kHalf <= width; c += kHalf) {
    Narrow y;
    __builtin_memcpy(&y, x + c, sizeof y);
    y += as<Narrow>(rounded(load_sums(c)));
    y = as<Narrow>(canonical(y));
    __builtin_memcpy(to + c, &y, sizeof y);
  }
  for (; c < width; ++c) to[c] = with_sum(x[c], sums[c]);
  return true;
}

// The same of n rows of one element and sums that are exact, where there are any.
static void finish_column(const float* x, const double* sums, const int32_t* counts, int64_t n,
                          float* to) {
  constexpr int64_t kHalf = kLanes / 2;
  int64_t r = 0;
  for (; r + kHalf <= n; r += kHalf) {
    Wide sum;
    Narrow y;
    several::BitsPart count;
    __builtin_memcpy(&sum, sums + r, sizeof sum);
    __builtin_memcpy(&y, x + r, sizeof y);
    __builtin_memcpy(&count, counts + r, sizeof count);
    const several::BitsPart result = canonical(y + as<Narrow>(rounded(sum)));
    y = as<Narrow>(count == 0 ? as<several::BitsPart>(y) : result);
    __builtin_memcpy(to + r, &y, sizeof y);
  }
  for (; r < n; ++r) to[r] = counts[r] == 0 ? x[r] : with_sum(x[r], sums[r]);
}

// The larger or the smaller of a canonical number and a raw one, or NaN, where the processor flushes.
// The only branch is for NaNs: which number is the larger one no processor foretells.
template <Join join>
static inline float extremum(float a, float b) {
  b += 0;  // canonical, unless it is a NaN
  if (__builtin_expect(b != b, false)) return as<float>(0x7FC00000);
  return (join == Join::kLargest ? b > a : b < a) ? b : a;
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
  const auto join_all = [=](int64_t size) {
    for (int64_t k = 0; k < count; ++k) {
      if (uint32_t(at[k]) >= uint32_t(n)) continue;
      join_row<join>(updates + k * size, size, table + at[k] * size);
    }
  };
  width == 1 ? join_all(1) : join_all(width);  // 1 is known when it is compiled
}

static const Scatter kScatter = {
    add_updates,
    {add_in_table, add_narrow_in_table},
    has_below,
    finish_row,
    finish_column,
    {nullptr, join_updates<Join::kLargest>, join_updates<Join::kSmallest>},
    {nullptr, join_row<Join::kLargest>, join_row<Join::kSmallest>}};
