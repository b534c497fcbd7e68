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
  several::BitsPart most() const { return as<several::BitsPart>(largest >> 23); }
  several::BitsPart least() const { return as<several::BitsPart>((smallest + 1) >> 23); }
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

// Whether the sums of n updates of such exponents are exact, and those on the grids as well.
static inline several::BitsPart is_exact(several::BitsPart largest, several::BitsPart smallest,
                                         double n, int precision) {
  const int32_t most = n <= kExactCount ? precision - 23 : -1;
  return (largest - smallest <= most) & (largest < 255);
}

// Whether sums of n updates of such exponents are surely those on the grids, when they are rounded.
static inline several::BitsPart is_sure(Wide sum, several::BitsPart largest,
                                        several::BitsPart smallest, double n, int precision) {
  const Wide error = power_of_two(widened(largest) - 127) * difference(n, n, precision);
  const several::BitsPart alike = rounded(sum - error) == rounded(sum + error);
  return is_exact(largest, smallest, n, precision) | (alike & (largest < 255));
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
    const BitsPart sure = is_sure(u.sum, u.most(), u.least(), count, precision);
    if (all(sure)) return rounded(u.sum);
    return sum_on_grid([=](int64_t i) { return load(i, j); }, count, precision);
  };
  BitsPart exact = ~BitsPart{};
#pragma GCC unroll 4
  for (int j = 0; j < kParts; ++j) exact &= is_exact(sums[j].most(), sums[j].least(), count, precision);
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

// The bits of the largest magnitude among some numbers, and those of the smallest but zero, less one.
struct Magnitudes {
  static constexpr int kParts = 4;  // side by side
  Unsigned largest[kParts], smallest[kParts];

  Magnitudes() {
    for (int part = 0; part < kParts; ++part) {
      largest[part] = Unsigned{};
      smallest[part] = ~Unsigned{};
    }
  }
  void add(Vector v, int part) {
    const Unsigned m = as<Unsigned>(magnitude(v));
    largest[part] = larger(m, largest[part]);
    smallest[part] = smaller(m - 1, smallest[part]);
  }
  void add(const float* x, int64_t n) {
    int64_t i = 0;
    for (; i + kParts * kLanes <= n; i += kParts * kLanes) {
#pragma GCC unroll 4
      for (int part = 0; part < kParts; ++part) add(load(x + i + part * kLanes), part);
    }
    for (; i + kLanes <= n; i += kLanes) add(load(x + i), 0);
    if (i == n) return;
    Vector v = {};
    __builtin_memcpy(&v, x + i, sizeof(float) * (n - i));
    add(v, 0);
  }
  void store(uint32_t* of_largest, uint32_t* of_smallest) {
    for (int part = 1; part < kParts; ++part) {
      largest[0] = larger(largest[part], largest[0]);
      smallest[0] = smaller(smallest[part], smallest[0]);
    }
    uint32_t most[kLanes], least[kLanes];
    __builtin_memcpy(most, &largest[0], sizeof most);
    __builtin_memcpy(least, &smallest[0], sizeof least);
    for (int half = kLanes / 2; half > 0; half /= 2) {
      for (int i = 0; i < half; ++i) {
        most[i] = std::max(most[i], most[i + half]);
        least[i] = std::min(least[i], least[i + half]);
      }
    }
    *of_largest = most[0];
    *of_smallest = least[0];
  }
};

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

// Calls of_width(width) such that usual widths are known when it is compiled.
template <class OfWidth>
static inline void with_known(int64_t width, OfWidth of_width) {
  switch (width) {
    case 1: return of_width(1);
    case 2: return of_width(2);
    case 3: return of_width(3);
    case 4: return of_width(4);
    case 8: return of_width(8);
    case 16: return of_width(16);
    case 32: return of_width(32);
    case 64: return of_width(64);
    default: return of_width(width);
  }
}

// to += from.
static inline __attribute__((always_inline)) void add_to_sums(const float* from, int64_t width,
                                                              double* to) {
  constexpr int64_t kHalf = kLanes / 2;
  int64_t c = 0;
  for (; c + kHalf <= width; c += kHalf) {
    Narrow u;
    Wide sum;
    __builtin_memcpy(&u, from + c, sizeof u);
    __builtin_memcpy(&sum, to + c, sizeof sum);
    sum += wide(u);
    __builtin_memcpy(to + c, &sum, sizeof sum);
  }
  for (; c < width; ++c) to[c] += from[c];
}

// Adds updates to the sums [n, width] of their rows and counts them, where there is such a row; and
// says what magnitudes all of them have.
static void add_in_table(const float* updates, int64_t row, const int32_t* at, int64_t count,
                         uint32_t n, int64_t width, double* sums, int32_t* counts,
                         uint32_t* of_largest, uint32_t* of_smallest) {
  Magnitudes magnitudes;
  if (width % kLanes != 0) {  // rows may be less than a vector, which are looked at together
    const bool together = row == width;
    for (int64_t k = 0; k < (together ? 1 : count); ++k) {
      magnitudes.add(updates + k * row, together ? count * width : width);
    }
  }
  with_known(width, [&](int64_t size) __attribute__((always_inline)) {
    for (int64_t k = 0; k < count; ++k) {
      const float* const from = updates + k * row;
      for (int64_t c = 0; size % kLanes == 0 && c < size; c += kLanes) {
        magnitudes.add(load(from + c), c / kLanes % Magnitudes::kParts);
      }
      const uint32_t r = at[k];
      if (r >= n) continue;
      ++counts[r];
      add_to_sums(from, size, sums + r * size);
    }
  });
  magnitudes.store(of_largest, of_smallest);
}

typedef uint16_t Extents __attribute__((vector_size(4 * kLanes)));

// The range of one update's exponent, 0 of what the processor flushes.
template <class V>
static inline V range_of(V bits) {
  const V exponent = (bits >> 23) & 0xFF;
  return exponent == 0 ? V{} : exponent | (255 - exponent) << 16;
}

constexpr int64_t kNarrow = 4;

// Of rows of up to kNarrow elements, one behind the other.  It reads and writes as many of the ranges for
// each row, of which those that are not the row's stay as they are.
static void add_narrow_with_ranges(const float* updates, const int32_t* at, int64_t count, uint32_t n,
                                   int64_t width, double* sums, uint32_t* ranges, int32_t* counts) {
  constexpr int64_t kRows = 256;
  typedef uint32_t Row __attribute__((vector_size(4 * kNarrow)));
  typedef uint16_t Parts __attribute__((vector_size(4 * kNarrow)));
  Row is_row;
  for (int64_t c = 0; c < kNarrow; ++c) is_row[c] = c < width ? ~0u : 0;
  uint32_t staged[kNarrow * (kRows + 1)] = {};
  for (int64_t first = 0; first < count; first += kRows) {
    const float* const from = updates + first * width;
    const int64_t here = std::min(kRows, count - first), size = here * width;
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) {
      const Unsigned range = range_of(as<Unsigned>(load(from + i)));
      __builtin_memcpy(staged + i, &range, sizeof range);
    }
    for (; i < size; ++i) staged[i] = range_of(as<uint32_t>(from[i]));
    with_known(width, [=, &staged](int64_t size) __attribute__((always_inline)) {
      for (int64_t k = 0; k < here; ++k) {
        const uint32_t r = at[first + k];
        if (r >= n) continue;
        ++counts[r];
        add_to_sums(from + k * size, size, sums + r * size);
        Row row;
        Parts range;
        __builtin_memcpy(&row, staged + k * size, sizeof row);
        __builtin_memcpy(&range, ranges + r * size, sizeof range);
        range = larger(as<Parts>(row & is_row), range);
        __builtin_memcpy(ranges + r * size, &range, sizeof range);
      }
    });
  }
}

static void add_with_ranges(const float* updates, int64_t row, const int32_t* at, int64_t count,
                            uint32_t n, int64_t width, double* sums, uint32_t* ranges,
                            int32_t* counts) {
  if (row == width && width <= kNarrow) {
    return add_narrow_with_ranges(updates, at, count, n, width, sums, ranges, counts);
  }
  with_known(width, [=](int64_t size) __attribute__((always_inline)) {
    for (int64_t k = 0; k < count; ++k) {
      const uint32_t r = at[k];
      if (r >= n) continue;
      ++counts[r];
      const float* const from = updates + k * row;
      uint32_t* const to = ranges + r * size;
      int64_t c = 0;
      for (; c + kLanes <= size; c += kLanes) {
        Extents range;
        __builtin_memcpy(&range, to + c, sizeof range);
        range = larger(as<Extents>(range_of(as<Unsigned>(load(from + c)))), range);
        __builtin_memcpy(to + c, &range, sizeof range);
      }
      for (; c < size; ++c) to[c] = joined_ranges(range_of(as<uint32_t>(from[c])), to[c]);
      add_to_sums(from, size, sums + r * size);
    }
  });
}

static bool are_sure(const double* sums, const uint32_t* ranges, double n, int precision,
                     int64_t width) {
  using several::BitsPart;
  constexpr int64_t kHalf = kLanes / 2;
  const auto sure = [=](Wide sum, BitsPart range) {
    return is_sure(sum, range & 0xFFFF, 255 - (range >> 16), n, precision);
  };
  BitsPart lane, all_sure = ~BitsPart{};
  for (int i = 0; i < kHalf; ++i) lane[i] = i;
  for (int64_t c = 0; c < width; c += kHalf) {
    Wide sum;
    BitsPart range;
    __builtin_memcpy(&sum, sums + c, sizeof sum);
    __builtin_memcpy(&range, ranges + c, sizeof range);
    all_sure &= sure(sum, range) | (lane >= int32_t(std::min(width - c, kHalf)));
  }
  return all(all_sure);
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
    add_in_table,
    add_with_ranges,
    are_sure,
    has_below,
    finish_row,
    {nullptr, join_updates<Join::kLargest>, join_updates<Join::kSmallest>},
    {nullptr, join_row<Join::kLargest>, join_row<Join::kSmallest>}};
