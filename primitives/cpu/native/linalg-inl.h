// Steps of linear algebra: products and differences are rounded separately, as in
// repjax.primitives.operations.linalg.factorizations.

// Subtracts the terms of a tile, whose last vector has so many elements.
template <int kRows, int kColumns>
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
        s[r][v] = as<Vector>(flush(s[r][v] - as<Vector>(guard(a * b[v]))));
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

template <int kRows>
static inline void subtract_rows(const Terms& t, int64_t i, int64_t columns) {
  int64_t j = 0;
  for (; j + 2 * kLanes <= columns; j += 2 * kLanes) subtract_tile<kRows, 2>(t, i, j, kLanes);
  if (j + kLanes < columns) {
    subtract_tile<kRows, 2>(t, i, j, columns - j - kLanes);
  } else if (j < columns) {
    subtract_tile<kRows, 1>(t, i, j, columns - j);
  }
}

static void subtract(const Terms& t, int64_t rows, int64_t columns) {
  int64_t i = 0;
  for (; i + 4 <= rows; i += 4) subtract_rows<4>(t, i, columns);
  for (; i < rows; ++i) subtract_rows<1>(t, i, columns);
}

static void divide(float* x, int64_t count, float by) {
  const Vector divisor = by - Vector{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(x + i, as<Vector>(guard(load(x + i) / divisor)));
  }
  if (i == count) return;
  const Bits rest = guard(load_some(x + i, count - i, 1) / divisor);
  __builtin_memcpy(x + i, &rest, sizeof(float) * (count - i));
}

static void multiply(const float* x, int64_t count, float by, float* to) {
  const Vector factor = by - Vector{};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    store(to + i, as<Vector>(guard(load(x + i) * factor)));
  }
  const Bits rest = guard(load_some(x + i, count - i) * factor);
  __builtin_memcpy(to + i, &rest, sizeof(float) * (count - i));
}

constexpr Linalg kLinalg = {subtract, divide, multiply};
