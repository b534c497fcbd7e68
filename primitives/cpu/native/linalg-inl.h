// Steps of linear algebra: products and differences are rounded separately, as in
// repjax.primitives.operations.linalg.factorizations.

// Subtracts the terms of a tile, whose last vector has so many elements.  Where products and
// differences `may_be_tiny`, they are made canonical.
template <bool may_be_tiny, int kRows, int kColumns>
static inline void subtract_tile(const Terms& t, int64_t i, int64_t j, int64_t last) {
  const auto get = [=](const float* p, int v) {
    return v + 1 < kColumns || last == kLanes ? load(p + v * kLanes)
                                              : load_some(p + v * kLanes, last);
  };
  Vector s[kRows][kColumns];
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kColumns; ++v) s[r][v] = get(t.c + (i + r) * t.c_row + j, v);
  }
  for (int64_t k = 0; k < t.count; ++k) {
    Vector b[kColumns];
#pragma GCC unroll 2
    for (int v = 0; v < kColumns; ++v) b[v] = get(t.b + k * t.b_term + j, v);
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vector a = broadcast(t.a[k * t.a_term + (i + r) * t.a_row]);
#pragma GCC unroll 2
      for (int v = 0; v < kColumns; ++v) {
        if constexpr (may_be_tiny) {
          s[r][v] = as<Vector>(flush(s[r][v] - as<Vector>(guard(a * b[v]))));
        } else {
          s[r][v] -= a * b[v];
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
    float* const to = t.c + (i + r) * t.c_row + j;
#pragma GCC unroll 2
    for (int v = 0; v < kColumns; ++v) {
      if (v + 1 < kColumns || last == kLanes) {
        store(to + v * kLanes, s[r][v]);
      } else {
        __builtin_memcpy(to + v * kLanes, &s[r][v], sizeof(float) * last);
      }
    }
  }
}

template <bool may_be_tiny, int kRows>
static inline void subtract_rows(const Terms& t, int64_t i, int64_t columns) {
  int64_t j = 0;
  for (; j + 2 * kLanes <= columns; j += 2 * kLanes) {
    subtract_tile<may_be_tiny, kRows, 2>(t, i, j, kLanes);
  }
  if (j + kLanes < columns) {
    subtract_tile<may_be_tiny, kRows, 2>(t, i, j, columns - j - kLanes);
  } else if (j < columns) {
    subtract_tile<may_be_tiny, kRows, 1>(t, i, j, columns - j);
  }
}

template <bool may_be_tiny>
static void subtract_all(const Terms& t, int64_t rows, int64_t columns) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) subtract_rows<may_be_tiny, 4>(t, i, columns);
  for (; i < rows; ++i) subtract_rows<may_be_tiny, 1>(t, i, columns);
}

// The exponent of the smallest number that is not 0, of so many rows of elements, and of 1.
static int least_exponent(const float* x, int64_t rows, int64_t row, int64_t columns) {
  // 0 is the largest of these.
  Unsigned least = Unsigned{} + 0x3F800000u;
  for (int64_t i = 0; i < rows; ++i, x += row) {
    int64_t j = 0;
    for (; j < columns; j += kLanes) {
      const int64_t here = columns - j;
      const Vector v = here < kLanes ? load_some(x + j, here) : load(x + j);
      const Unsigned below = as<Unsigned>(magnitude(v)) - 1u;
      least = below < least ? below : least;
    }
  }
  uint32_t one = least[0];
  for (int l = 1; l < kLanes; ++l) one = least[l] < one ? least[l] : one;
  return int((one + 1) >> 23) - 127;
}

// Whether neither a product nor a difference is below 2**-124, but for zeros.  Where products and
// what they are subtracted from are at least 2**-101, all are multiples of 2**-124, and so are their
// differences, rounded or not.
static bool are_far_from_tiny(const Terms& t, int64_t rows, int64_t columns) {
  if (least_exponent(t.c, rows, t.c_row, columns) < -101) return false;
  const int a = t.a_term == 1 ? least_exponent(t.a, rows, t.a_row, t.count)
                              : least_exponent(t.a, t.count, t.a_term, rows);
  return a + least_exponent(t.b, t.count, t.b_term, columns) >= -101;
}

// Terms, rows and columns for which it pays to look.
constexpr int64_t kLooked = 8;

static void subtract(const Terms& t, int64_t rows, int64_t columns) {
  const bool is_dense = t.a_term == 1 || t.a_row == 1;
  const bool looks = is_dense && t.count >= kLooked && rows >= kLooked && columns >= kLooked;
  if (looks && are_far_from_tiny(t, rows, columns)) {
    subtract_all<false>(t, rows, columns);
  } else {
    subtract_all<true>(t, rows, columns);
  }
}

static void divide(float* x, int64_t count, float by) {
  const Vector divisor = by - Vector{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(x + i, as<Vector>(guard(divided(load(x + i), divisor))));
  }
  if (i == count) return;
  const Bits rest = guard(divided(load_some(x + i, count - i, 1), divisor));
  __builtin_memcpy(x + i, &rest, sizeof(float) * (count - i));
}

static inline Vector plus(Vector x, Vector y) { return as<Vector>(flush(x + y)); }

// Vectors of columns are reflected: w is the pairwise sum over all rows of v a, and a loses v (tau w).
template <int kColumns>
static inline void reflect_columns(const Reflection& r, float* a, const float* known) {
  const auto product = [&](int64_t i, int v) {
    return as<Vector>(guard(broadcast(r.v[i]) * load(a + i * r.width + v * kLanes)));
  };
  // Eight terms at a time, an eighth of the rows apart; rows that are not there, or are known, have
  // zeros.
  int64_t step = power_of_two_from(r.m) / 8;
  step = step > 1 ? step : 1;
  for (int64_t i = 0; i < step; ++i) {
    Vector terms[8][kColumns] = {};
#pragma GCC unroll 8
    for (int t = 0; t < 8; ++t) {
      const int64_t at = i + t * step;
      if (at < r.k || at >= r.m) continue;
#pragma GCC unroll 2
      for (int v = 0; v < kColumns; ++v) terms[t][v] = product(at, v);
    }
#pragma GCC unroll 2
    for (int v = 0; v < kColumns; ++v) {
#pragma GCC unroll 4
      for (int t = 0; t < 4; ++t) terms[t][v] = plus(terms[t][v], terms[t + 4][v]);
      const Vector even = plus(terms[0][v], terms[2][v]), odd = plus(terms[1][v], terms[3][v]);
      store(r.partial + (i * kColumns + v) * kLanes, plus(even, odd));
    }
  }
  for (int64_t half = step * kColumns * kLanes / 2; step > 1; step /= 2, half /= 2) {
    for (int64_t i = 0; i < half; i += kLanes) {
      store(r.partial + i, plus(load(r.partial + i), load(r.partial + half + i)));
    }
  }
  Vector w[kColumns];
#pragma GCC unroll 2
  for (int v = 0; v < kColumns; ++v) {
    w[v] = load(r.partial + v * kLanes);
    if (known) w[v] += load(known + v * kLanes);
    w[v] = as<Vector>(guard(w[v] * broadcast(r.tau)));
  }
  for (int64_t i = r.k; i < r.m; ++i) {
    const Vector factor = broadcast(r.v[i]);
#pragma GCC unroll 2
    for (int v = 0; v < kColumns; ++v) {
      float* const to = a + i * r.width + v * kLanes;
      store(to, as<Vector>(flush(load(to) - as<Vector>(guard(factor * w[v])))));
    }
  }
}

static void reflect(const Reflection& r, int64_t first) {
  int64_t j = first / kLanes * kLanes;
  const auto known = [&] { return r.known ? r.known + j : nullptr; };
  for (; j + 2 * kLanes <= r.width; j += 2 * kLanes) reflect_columns<2>(r, r.a + j, known());
  for (; j < r.width; j += kLanes) reflect_columns<1>(r, r.a + j, known());
}

// What zeros times a row, which is known now, add to later sums: nothing, or NaN.
static void know(const float* row, int64_t width, float* known) {
  for (int64_t j = 0; j < width; j += kLanes) {
    store(known + j, load(known + j) + load(row + j) * Vector{});
  }
}

// Of small matrices, as many as a vector has elements: a vector has an element of each.
struct Each {
  float* a;
  int64_t columns;
  float* at(int64_t i, int64_t j) const { return a + (i * columns + j) * kLanes; }
  Vector get(int64_t i, int64_t j) const { return load(at(i, j)); }
  void set(int64_t i, int64_t j, Vector x) const { store(at(i, j), x); }
  void subtract(int64_t i, int64_t j, Vector x, Vector y) const {
    set(i, j, as<Vector>(flush(get(i, j) - as<Vector>(guard(x * y)))));
  }
};

static void solve_each(const float* systems, int64_t n, float* sides, int64_t m, bool unit) {
  const Each a = {const_cast<float*>(systems), n}, x = {sides, m};
  for (int64_t k = 0; k < n; ++k) {
    for (int64_t j = 0; j < m && !unit; ++j) {
      x.set(k, j, as<Vector>(guard(divided(x.get(k, j), a.get(k, k)))));
    }
    for (int64_t i = k + 1; i < n; ++i) {
      const Vector factor = a.get(i, k);
      for (int64_t j = 0; j < m; ++j) x.subtract(i, j, factor, x.get(k, j));
    }
  }
}

static void cholesky_each(float* matrices, int64_t n) {
  const Each a = {matrices, n};
  Bits positive = ~Bits{};
  for (int64_t k = 0; k < n; ++k) {
    const Vector pivot = a.get(k, k), diagonal = root(pivot);
    positive &= (Bits)(pivot > Vector{});
    a.set(k, k, diagonal);
    for (int64_t i = k + 1; i < n; ++i) {
      a.set(i, k, as<Vector>(guard(divided(a.get(i, k), diagonal))));
      a.set(k, i, Vector{});
    }
    for (int64_t i = k + 1; i < n; ++i) {
      const Vector factor = a.get(i, k);
      for (int64_t j = k + 1; j <= i; ++j) a.subtract(i, j, factor, a.get(j, k));
    }
  }
  for (int64_t i = 0; i < n * n; ++i) {
    float* const element = matrices + i * kLanes;
    store(element, as<Vector>(where(positive, as<Bits>(load(element)), fill(0x7FC00000))));
  }
}

static void lu_each(float* matrices, int64_t m, int64_t n, int32_t* pivots, int32_t* permutation) {
  const Each a = {matrices, n};
  for (int64_t i = 0; i < m * kLanes; ++i) permutation[i] = int32_t(i / kLanes);
  for (int64_t k = 0; k < m && k < n; ++k) {
    Vector most = a.get(k, k);
    Bits pivot = fill(int32_t(k));
    for (int64_t i = k + 1; i < m; ++i) {
      const Vector x = a.get(i, k);
      const Bits is_less = (Bits)(as<Vector>(magnitude(x)) <= as<Vector>(magnitude(most)));
      const Bits is_next = ~is_less & (Bits)(most == most);
      most = where(is_next, x, most);
      pivot = where(is_next, fill(int32_t(i)), pivot);
    }
    for (int64_t l = 0; l < kLanes; ++l) {
      const int64_t p = pivots[k * kLanes + l] = pivot[l];
      if (p == k) continue;
      for (int64_t j = 0; j < n; ++j) std::swap(a.at(k, j)[l], a.at(p, j)[l]);
      std::swap(permutation[k * kLanes + l], permutation[p * kLanes + l]);
    }
    const Bits is_divisor = (Bits)(most != Vector{});
    for (int64_t i = k + 1; i < m; ++i) {
      const Vector x = a.get(i, k);
      const Vector factor = where(is_divisor, as<Vector>(guard(divided(x, most))), x);
      a.set(i, k, factor);
      for (int64_t j = k + 1; j < n; ++j) a.subtract(i, j, factor, a.get(k, j));
    }
  }
}

constexpr Linalg kLinalg = {kLanes,     subtract,      divide, reflect, know,
                            solve_each, cholesky_each, lu_each};
