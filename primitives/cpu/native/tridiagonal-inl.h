// Symmetric matrices of float64 made tridiagonal, and what diagonalizes those: the steps of
// repjax.primitives.operations.linalg.tridiagonal, whose guards change no values.

// Elements below kSmallest become zero.  Of the vectors before the last one it is asked in the end
// whether there is one; the last one may be filled up with zeros.
template <class Result>
static inline void store_snapped(double* x, int64_t vectors, Result result) {
  // Four, since each takes as long as it takes to compute several vectors.
  Vector least_of[4] = {broadcast(1), broadcast(1), broadcast(1), broadcast(1)};
  const auto to = [&](int64_t i, Vector& least) {
    const Vector y = result(i * kLanes);
    store(x + i * kLanes, y);
    least = smaller(least, y);
  };
  int64_t v = 0;
  for (; v + 4 < vectors; v += 4) {
#pragma GCC unroll 4
    for (int k = 0; k < 4; ++k) to(v + k, least_of[k]);
  }
  for (; v + 1 < vectors; ++v) to(v, least_of[0]);
  const Vector least = smaller(smaller(least_of[0], least_of[1]), smaller(least_of[2], least_of[3]));
  store(x + (vectors - 1) * kLanes, snapped(result((vectors - 1) * kLanes)));
  if (!some(least < kSmallest - Vector{})) return;
  for (int64_t i = 0; i < vectors * kLanes; i += kLanes) store(x + i, snapped(load(x + i)));
}

// The sums of products of a row with so many rows, up to kLanes.
static inline Vector sums_of_products(const double* x, const double* rows, int64_t width,
                                      int64_t count, int64_t vectors) {
  Vector sums[kLanes];
#pragma GCC unroll 8
  for (int l = 0; l < kLanes; ++l) {
    sums[l] = l < count ? products_sum(rows + l * width, x, 0, 1, vectors) : Vector{};
  }
  return sum_of_each(sums);
}

// Rows of the matrix less the change of the step before.
static void change_rows(const Tridiagonal& t, int64_t begin, int64_t end, int64_t vectors) {
  for (int64_t i = begin; i < end; ++i) {
    double* const row = t.a + i * t.width;
    const Vector v = broadcast(t.v_before[i]), w = broadcast(t.w[i]);
    store_snapped(row, vectors, [=, &t](int64_t j) {
      return load(row + j) - (v * load(t.w + j) + w * load(t.v_before + j));
    });
  }
}

// Their products with v, times tau.
static void multiply_rows(const Tridiagonal& t, int64_t begin, int64_t end, int64_t vectors) {
  for (int64_t i = begin; i < end; i += kLanes) {
    const int64_t count = end - i < kLanes ? end - i : kLanes;
    const Vector sums = sums_of_products(t.v, t.a + i * t.width, t.width, count, vectors);
    store(t.p + i, snapped(broadcast(t.tau) * sums));
  }
}

// The reflector and its factor for row k; false where there is nothing to reflect.
static bool find_reflector(Tridiagonal& t, const double* x, int64_t k, double* left) {
  const double alpha = x[k - 1];
  *left = alpha, t.tau = 0;
  bool nothing = true;
  for (int64_t i = 0; i < k - 1; ++i) nothing = nothing && x[i] == 0;
  if (nothing) return false;
  const int64_t vectors = (k + kLanes - 1) / kLanes;
  for (int64_t i = 0; i < vectors * kLanes; ++i) t.v[i] = i < k ? x[i] : 0;
  const double norm = root(broadcast(square(t.v, vectors)))[0];
  const double beta = alpha < 0 ? norm : -norm;
  *left = beta, t.tau = (beta - alpha) / beta;
  const Vector inverse = broadcast(1 / (alpha - beta));
  for (int64_t i = 0; i < vectors * kLanes; i += kLanes) {
    store(t.v + i, snapped(load(t.v + i) * inverse));
  }
  t.v[k - 1] = 1;
  return true;
}

// What a step takes from rows: w, of p, which becomes it.
static void find_change(const Tridiagonal& t, double* p, int64_t k) {
  const int64_t vectors = (k + kLanes - 1) / kLanes;
  for (int64_t i = k; i < vectors * kLanes; ++i) p[i] = 0;
  Vector sums[kLanes] = {products_sum(p, t.v, 0, 1, vectors)};
  const Vector half = broadcast(t.tau * sum_of_each(sums)[0] * 0.5);
  for (int64_t i = 0; i < vectors * kLanes; i += kLanes) {
    store(p + i, snapped(load(p + i) - half * load(t.v + i)));
  }
}

// Rows times the reflections.
static void reflect_rows(const double* reflectors, const double* factors, int64_t n, int64_t width,
                         double* rows, int64_t count) {
  for (int64_t k = 1; k < n; ++k) {
    if (factors[k] == 0) continue;
    const double* const v = reflectors + k * width;
    const int64_t vectors = (k + kLanes - 1) / kLanes;
    for (int64_t i = 0; i < count; i += kLanes) {
      const int64_t here = count - i < kLanes ? count - i : kLanes;
      double along[kLanes];
      store(along, broadcast(factors[k]) *
                       sums_of_products(v, rows + i * width, width, here, vectors));
      for (int64_t l = 0; l < here; ++l) {
        double* const row = rows + (i + l) * width;
        const Vector factor = broadcast(along[l]);
        store_snapped(row, vectors, [=](int64_t j) { return load(row + j) - factor * load(v + j); });
      }
    }
  }
}

// --- products of matrices ---------------------------------------------------------------

template <int kRows, int kColumns>
static inline void multiply_tile(const DoubleProduct& t, int64_t i, int64_t j, int64_t last) {
  const auto bytes = [=](int v) { return sizeof(double) * (v + 1 < kColumns ? kLanes : last); };
  Vector s[kRows][kColumns] = {};
  for (int64_t k = 0; k < t.terms; ++k) {
    Vector y[kColumns] = {};
#pragma GCC unroll 2
    for (int v = 0; v < kColumns; ++v) {
      const double* const from = t.y + k * t.y_row + j + v * kLanes;
      if (last == kLanes) {
        y[v] = load(from);
      } else {
        __builtin_memcpy(&y[v], from, bytes(v));
      }
    }
#pragma GCC unroll 4
    for (int r = 0; r < kRows; ++r) {
      const Vector x = broadcast(t.x[(i + r) * t.x_row + k]);
#pragma GCC unroll 2
      for (int v = 0; v < kColumns; ++v) s[r][v] += x * y[v];
    }
  }
#pragma GCC unroll 4
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 2
    for (int v = 0; v < kColumns; ++v) {
      const Vector result = snapped(s[r][v]);
      __builtin_memcpy(t.to + (i + r) * t.to_row + j + v * kLanes, &result, bytes(v));
    }
  }
}

template <int kRows>
static inline void multiply_some(const DoubleProduct& t, int64_t i, int64_t j, int64_t columns) {
  if (columns > kLanes) {
    multiply_tile<kRows, 2>(t, i, j, columns - kLanes);
  } else {
    multiply_tile<kRows, 1>(t, i, j, columns);
  }
}

// Column by column, so that those of y stay in the L1 cache.
static void multiply(const DoubleProduct& t, int64_t begin, int64_t end) {
  for (int64_t j = 0; j < t.columns; j += 2 * kLanes) {
    const int64_t columns = t.columns - j < 2 * kLanes ? t.columns - j : 2 * kLanes;
    int64_t i = begin;
    for (; i + 4 <= end; i += 4) multiply_some<4>(t, i, j, columns);
    for (; i < end; ++i) multiply_some<1>(t, i, j, columns);
  }
}

// --- roots ------------------------------------------------------------------------------

// Sums of terms of the poles on the left and on the right of roots, and of their derivatives.
struct OfPoles {
  Vector psi, phi, of_psi, of_phi;
};

static inline Vector chosen(Bits where, Vector x) { return and_bits(x, where); }

// Roots in the lanes of vectors: their places, their poles, and how far they are from those.
struct RootsHere {
  const Poles& p;
  Bits place;
  Vector origin, mu;

  OfPoles term(int64_t j) const {
    const Vector t = 1 / ((broadcast(p.at[j]) - origin) - mu);
    const Vector term = broadcast(p.weights[j]) * t, slope = term * t;
    const Bits left = Bits{} + j <= place;
    return {chosen(left, term), chosen(~left, term), chosen(left, slope), chosen(~left, slope)};
  }

  static inline OfPoles sum(const OfPoles& a, const OfPoles& b) {
    return {a.psi + b.psi, a.phi + b.phi, a.of_psi + b.of_psi, a.of_phi + b.of_phi};
  }

  // In pairwise order, of the poles `first`, `first + step`, ...
  OfPoles sums(int64_t first, int64_t step) const {
    if (first + step >= p.count) return term(first);
    if (first + 2 * step >= p.count) return sum(term(first), term(first + step));
    return sum(sums(first, 2 * step), sums(first + step, 2 * step));
  }
};

// kLanes roots, or fewer, from the one of place `first` on.
static void find_roots(const Poles& p, int64_t first) {
  const int64_t here = p.count - first < kLanes ? p.count - first : kLanes;
  Bits place;
  double left_poles[kLanes], right_poles[kLanes];
  for (int l = 0; l < kLanes; ++l) {
    // Those beyond the last are the last.
    const int64_t i = first + (l < here ? l : here - 1);
    place[l] = i;
    left_poles[l] = p.at[i], right_poles[l] = p.at[i + 1 < p.count ? i + 1 : i];
  }
  const Vector left = load(left_poles), following = load(right_poles), none = {};
  const Bits is_last = place == Bits{} + (p.count - 1);
  const Vector inverse = broadcast(1 / p.rho);
  // The last root is at most the sum of all weights away from its pole.
  const Vector width = is_last ? broadcast(p.rho * p.weight) : following - left;
  const Vector half = width * 0.5;

  RootsHere roots = {p, place, left, half};
  OfPoles at = roots.sums(0, 1);
  const Bits positive = (inverse + at.psi) + at.phi >= none, from_left = is_last | positive;
  roots.origin = from_left ? left : following;
  roots.mu = from_left ? half : -half;
  Vector low = from_left ? (positive ? none : half) : -half;
  Vector high = from_left ? (positive ? half : width) : none;
  const Vector to_left = left - roots.origin, to_right = following - roots.origin;

  Bits wanted = ~Bits{};
  for (int64_t step = 0; step < p.steps && some(wanted); ++step) {
    at = roots.sums(0, 1);
    const Vector value = (inverse + at.psi) + at.phi;
    wanted &= ~(absolute(value) <= broadcast(p.found) * ((inverse - at.psi) + at.phi));
    low = wanted & (value < none) ? roots.mu : low;
    high = wanted & ~(value < none) ? roots.mu : high;
    const Vector x = to_left - roots.mu, y = to_right - roots.mu;
    const Vector of_left = value - at.of_psi * x, of_last = x * value / of_left;
    const Vector c = of_left - at.of_phi * y, xy = x * y;
    const Vector a = (x + y) * value - xy * (at.of_psi + at.of_phi), b = xy * value;
    const Vector r = root(absolute(a * a - 4 * b * c));
    const Vector eta = a <= none ? (a - r) / (2 * c) : 2 * b / (a + r);
    Vector after = roots.mu + (is_last ? of_last : eta);
    after = (low < after) & (after < high) ? after : (low + high) * 0.5;
    wanted &= after != roots.mu;
    roots.mu = wanted ? after : roots.mu;
  }
  store(left_poles, roots.origin), store(right_poles, roots.mu);
  for (int64_t l = 0; l < here; ++l) {
    p.origins[first + l] = left_poles[l], p.offsets[first + l] = right_poles[l];
    p.values[first + l] = left_poles[l] + right_poles[l];
  }
}

// How far kLanes poles from `j` on are from root i.
static inline Vector to_root(const Poles& p, int64_t i, int64_t j) {
  return (load(p.at + j) - broadcast(p.origins[i])) - broadcast(p.offsets[i]);
}

static Vector product_of_ratios(const Poles& p, Bits poles, int64_t j, int64_t first, int64_t step) {
  if (first + step < p.count) {
    return product_of_ratios(p, poles, j, first, 2 * step) *
           product_of_ratios(p, poles, j, first + step, 2 * step);
  }
  const int64_t i = first;
  const Vector at = load(p.at + j), one = broadcast(1);
  const Vector right = i + 1 < p.count ? broadcast(p.at[i + 1]) - at : one;
  const Vector between = poles > Bits{} + i ? at - broadcast(p.at[i]) : right;
  return absolute(to_root(p, i, j)) / between;
}

static void find_weights(const Poles& p, int64_t j) {
  Bits poles;
  for (int l = 0; l < kLanes; ++l) poles[l] = j + l;
  const Vector size = root(product_of_ratios(p, poles, j, 0, 1)), z = load(p.z + j);
  const Bits real = poles < Bits{} + p.count;
  store(p.exact + j, chosen(real, z < Vector{} ? -size : size));
}

// The vector of root i; where the poles were, `order` tells.
static void find_vector(const Poles& p, int64_t i, double* row, double* to) {
  const int64_t vectors = (p.count + kLanes - 1) / kLanes;
  for (int64_t j = 0; j < vectors * kLanes; j += kLanes) {
    store(row + j, load(p.exact + j) / to_root(p, i, j));
  }
  for (int64_t j = p.count; j < vectors * kLanes; ++j) row[j] = 0;
  const Vector inverse = 1 / root(broadcast(square(row, vectors)));
  for (int64_t j = 0; j < vectors * kLanes; j += kLanes) {
    store(row + j, snapped(load(row + j) * inverse));
  }
  for (int64_t j = 0; j < p.count; ++j) to[p.order[j]] = row[j];
}

static const TridiagonalKernels kTridiagonal = {
    kLanes,       square,   find_reflector, change_rows,  multiply_rows, find_change,
    reflect_rows, multiply, find_roots,     find_weights, find_vector};
