// Rotations of rows of float64: those of repjax.primitives.operations.linalg.eigen, whose guards
// change no values.

static inline Vector and_bits(Vector x, Bits bits) {
  Bits of_x;
  __builtin_memcpy(&of_x, &x, sizeof x);
  bits &= of_x;
  __builtin_memcpy(&x, &bits, sizeof x);
  return x;
}

static inline Vector absolute(Vector x) { return and_bits(x, Bits{} + 0x7FFFFFFFFFFFFFFF); }

// The sum in pairwise order of the products of the vectors `first`, `first + step`, ...
static Vector products_sum(const double* x, const double* y, int64_t first, int64_t step,
                           int64_t vectors) {
  if (8 * step < vectors) {
    return products_sum(x, y, first, 2 * step, vectors) +
           products_sum(x, y, first + step, 2 * step, vectors);
  }
  const auto sum_of_eight = [](auto term) {
    return ((term(0) + term(4)) + (term(2) + term(6))) +
           ((term(1) + term(5)) + (term(3) + term(7)));
  };
  const auto product = [=](int64_t t) {
    const int64_t at = (first + t * step) * kLanes;
    return load(x + at) * load(y + at);
  };
  if (first + 7 * step < vectors) return sum_of_eight(product);
  return sum_of_eight([=](int64_t t) {
    return first + t * step < vectors ? product(t) : Vector{};
  });
}

// The sum in pairwise order of each of kPart vectors, one after the other.
template <int kPart = kLanes>
static inline Vector sum_of_each(Vector* x) {
  const std::make_integer_sequence<int, kLanes> all;
#pragma GCC unroll 8
  for (int i = 0; i < kPart / 2; ++i) {
    const Vector a = x[2 * i], b = x[2 * i + 1];
    x[i] = halves<kPart, false>(a, b, all) + halves<kPart, true>(a, b, all);
  }
  if constexpr (kPart > 2) return sum_of_each<kPart / 2>(x);
  return x[0];
}

// The sum of the squares of so many vectors.
static double square(const double* x, int64_t vectors) {
  Vector sums[kLanes] = {products_sum(x, x, 0, 1, vectors)};
  return sum_of_each(sums)[0];
}

constexpr double kSmallest = 0x1p-200;

static inline Vector snapped(Vector x) { return and_bits(x, absolute(x) >= kSmallest - Vector{}); }

static inline bool some(Bits bits) {
  int64_t all = 0;
  for (int l = 0; l < kLanes; ++l) all |= bits[l];
  return all != 0;
}

// x = x - s (y + u x), y = y + s (x - u y); or the other way round.
static inline void rotate(const RotatedRows& rows, double* x, double* y, double s, double u,
                          bool swap) {
  double *const to_x = swap ? y : x, *const to_y = swap ? x : y;
  const Vector sine = broadcast(s), half_tangent = broadcast(u);
  const auto rotated = [=](int64_t i, Vector& first, Vector& second) {
    const Vector a = load(x + i * kLanes), b = load(y + i * kLanes);
    first = a - sine * (b + half_tangent * a);
    second = b + sine * (a - half_tangent * b);
  };
  // Few elements are ever so small that they become zero: whether one is, is asked in the end.  The
  // last vectors, which may be filled up with zeros, are not asked.
  Vector least = broadcast(1), first, second;
  int64_t i = 0;
  for (const int64_t end : {rows.of_length, rows.of_row}) {
#pragma GCC unroll 2
    for (; i + 1 < end; ++i) {
      rotated(i, first, second);
      store(to_x + i * kLanes, first);
      store(to_y + i * kLanes, second);
      least = smaller(least, smaller(first, second));
    }
    if (i == end) break;
    rotated(i, first, second);
    store(to_x + i * kLanes, snapped(first));
    store(to_y + i * kLanes, snapped(second));
    ++i;
  }
  if (!some(least < kSmallest - Vector{})) return;
  for (i = 0; i < rows.of_row * kLanes; i += kLanes) {
    store(x + i, snapped(load(x + i)));
    store(y + i, snapped(load(y + i)));
  }
}

// Rotates the pairs; whether that was to be done of any.  The angles of so many at a time are
// vectors.
static bool rotate_pairs(const RotatedRows& rows, const Pair* pairs, int64_t count) {
  const int64_t width = rows.of_row * kLanes;
  bool any = false;
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    const int64_t here = count - begin < kLanes ? count - begin : kLanes;
    const Pair* const pair = pairs + begin;
    double of_first[kLanes] = {}, of_second[kLanes] = {};
    Vector products[kLanes];
    for (int64_t l = 0; l < here; ++l) {
      of_first[l] = rows.squares[pair[l].first];
      of_second[l] = rows.squares[pair[l].second];
      products[l] = products_sum(rows.x + pair[l].first * width, rows.x + pair[l].second * width, 0,
                                 1, rows.of_length);
    }
    for (int64_t l = here; l < kLanes; ++l) products[l] = Vector{};
    const Vector a = load(of_first), b = load(of_second), g = sum_of_each(products), zero = {};
    Vector bound = a * b * (rows.square_of_tolerance - Vector{});
    bound = bound > zero ? bound : zero;
    const Bits rotated = g * g > bound;
    if (!some(rotated)) continue;
    any = true;
    const Vector z = (b - a) / (2 * g);
    Vector t = 1 / (absolute(z) + root(1 + z * z));
    t = z < zero ? -t : t;
    const Vector c = 1 / root(1 + t * t), s = t * c;
    double sines[kLanes], half_tangents[kLanes];
    store(sines, s);
    store(half_tangents, s / (1 + c));
    store(of_first, a - t * g);
    store(of_second, b + t * g);
    for (int64_t l = 0; l < here; ++l) {
      if (!rotated[l]) continue;
      const bool swap = b[l] > a[l];
      rows.squares[pair[l].first] = swap ? of_second[l] : of_first[l];
      rows.squares[pair[l].second] = swap ? of_first[l] : of_second[l];
      rotate(rows, rows.x + pair[l].first * width, rows.x + pair[l].second * width, sines[l],
             half_tangents[l], swap);
    }
  }
  return any;
}

static const Rotations kRotations = {kLanes, square, rotate_pairs};
