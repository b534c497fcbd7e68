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

// The sum of x[i] * y[i] of so many vectors in pairwise order; partial has room for half of them.
static double dot(const double* x, const double* y, int64_t vectors, double* partial) {
  const auto product = [=](int64_t i) { return load(x + i * kLanes) * load(y + i * kLanes); };
  Vector sum = product(0);
  if (vectors > 1) {
    int64_t half = power_of_two_from(vectors) / 2;
    int64_t i = 0;
    for (; i + half < vectors; ++i) store(partial + i * kLanes, product(i) + product(i + half));
    for (; i < half; ++i) store(partial + i * kLanes, product(i));
    while (half > 1) {
      half /= 2;
      for (i = 0; i < half * kLanes; i += kLanes) {
        store(partial + i, load(partial + i) + load(partial + half * kLanes + i));
      }
    }
    sum = load(partial);
  }
  double terms[kLanes];
  store(terms, sum);
  for (int n = kLanes / 2; n > 0; n /= 2) {
    for (int i = 0; i < n; ++i) terms[i] += terms[i + n];
  }
  return terms[0];
}

static inline Vector snapped(Vector x) { return and_bits(x, absolute(x) >= 0x1p-200 - Vector{}); }

// x = x - s (y + u x), y = y + s (x - u y); or the other way round.
static inline void rotate(double* x, double* y, int64_t vectors, double s, double u, bool swap) {
  double *const to_x = swap ? y : x, *const to_y = swap ? x : y;
  const Vector sine = broadcast(s), half_tangent = broadcast(u);
  for (int64_t i = 0; i < vectors * kLanes; i += kLanes) {
    const Vector a = load(x + i), b = load(y + i);
    store(to_x + i, snapped(a - sine * (b + half_tangent * a)));
    store(to_y + i, snapped(b + sine * (a - half_tangent * b)));
  }
}

// Rotates the pairs; whether that was to be done of any.  So many at a time stay in the L1 cache,
// and their angles are vectors.
static bool rotate_pairs(const RotatedRows& rows, const Pair* pairs, int64_t count) {
  const int64_t width = rows.of_row * kLanes;
  bool any = false;
  for (int64_t begin = 0; begin < count; begin += kLanes) {
    const int64_t here = count - begin < kLanes ? count - begin : kLanes;
    const Pair* const pair = pairs + begin;
    double of_first[kLanes] = {}, of_second[kLanes] = {}, products[kLanes] = {};
    for (int64_t l = 0; l < here; ++l) {
      of_first[l] = rows.squares[pair[l].first];
      of_second[l] = rows.squares[pair[l].second];
      products[l] = dot(rows.x + pair[l].first * width, rows.x + pair[l].second * width,
                        rows.of_length, rows.partial);
    }
    const Vector a = load(of_first), b = load(of_second), g = load(products), zero = {};
    Vector bound = a * b * (rows.square_of_tolerance - Vector{});
    bound = bound > zero ? bound : zero;
    const Bits rotated = g * g > bound;
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
      any = true;
      const bool swap = b[l] > a[l];
      rows.squares[pair[l].first] = swap ? of_second[l] : of_first[l];
      rows.squares[pair[l].second] = swap ? of_first[l] : of_second[l];
      rotate(rows.x + pair[l].first * width, rows.x + pair[l].second * width, rows.of_row, sines[l],
             half_tangents[l], swap);
    }
  }
  return any;
}

static const Rotations kRotations = {kLanes, dot, rotate_pairs};
