// Parts of Fourier transforms (repjax.primitives.operations.fourier): chains of fused multiply-adds
// with the matrix of a transform, and what is between them.
//
// Chains share what they have in common: the cosines of column k are those of column n - k, the
// sines are the negatives, exactly.  So the two columns have the sums over real parts in common, one
// of them negated.

static inline Vector negative(Vector x) { return as<Vector>(as<Bits>(x) ^ INT32_MIN); }

// Stores an output of a few vectors of transforms.
template <bool both, int kColumns>
static inline void store_output(const Columns& to, int64_t output, int64_t at,
                                const Vector (&real)[kColumns],
                                const Vector (&imaginary)[kColumns]) {
#pragma GCC unroll 2
  for (int v = 0; v < kColumns; ++v) {
    const int64_t place = output * to.row + at + v * kLanes;
    store(to.real + place, as<Vector>(guard(real[v])));
    if (both) store(to.imaginary + place, as<Vector>(guard(imaginary[v])));
  }
}

// Adds the terms of the real parts to outputs k, k + step and so on.
template <bool both, int kOutputs, int kColumns>
static inline void add_real(const Roots& w, int64_t k, int64_t step, const Columns& x, int64_t at,
                            Vector (&a)[kOutputs][kColumns], Vector (&b)[kOutputs][kColumns]) {
  const float *cosine = w.cosine + k, *sine = w.sine + k;
  for (int64_t j = 0; j < w.n; ++j, cosine += w.n, sine += w.n) {
    Vector real[kColumns];
#pragma GCC unroll 2
    for (int v = 0; v < kColumns; ++v) real[v] = load(x.real + j * x.row + at + v * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kOutputs; ++i) {
      const Vector c = broadcast(cosine[i * step]), s = broadcast(sine[i * step]);
#pragma GCC unroll 2
      for (int v = 0; v < kColumns; ++v) {
        a[i][v] = fma(real[v], c, a[i][v]);
        if (both) b[i][v] = fma(real[v], s, b[i][v]);
      }
    }
  }
}

// Outputs k, k + step and so on of a few vectors of transforms.
template <bool complex, bool both, int kOutputs, int kColumns>
static inline void outputs_tile(const Roots& w, int64_t k, int64_t step, const Columns& x,
                                const Columns& to, int64_t at) {
  Vector a[kOutputs][kColumns] = {}, b[kOutputs][kColumns] = {};
  add_real<both>(w, k, step, x, at, a, b);
  if (complex) {
    const float *cosine = w.cosine + k, *sine = w.sine + k;
    for (int64_t j = 0; j < w.n; ++j, cosine += w.n, sine += w.n) {
      Vector imaginary[kColumns], negated[kColumns];
#pragma GCC unroll 2
      for (int v = 0; v < kColumns; ++v) {
        imaginary[v] = load(x.imaginary + j * x.row + at + v * kLanes);
        negated[v] = negative(imaginary[v]);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kOutputs; ++i) {
        const Vector c = broadcast(cosine[i * step]), s = broadcast(sine[i * step]);
#pragma GCC unroll 2
        for (int v = 0; v < kColumns; ++v) {
          a[i][v] = fma(negated[v], s, a[i][v]);
          if (both) b[i][v] = fma(imaginary[v], c, b[i][v]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kOutputs; ++i) store_output<both>(to, k + i * step, at, a[i], b[i]);
}

// Outputs k, k + 1 and so on, and n - k, n - k - 1 and so on.
template <bool complex, bool both, int kPairs, int kColumns>
static inline void pairs_tile(const Roots& w, int64_t k, const Columns& x, const Columns& to,
                              int64_t at) {
  Vector a[kPairs][kColumns] = {}, b[kPairs][kColumns] = {};
  Vector c[kPairs][kColumns], d[kPairs][kColumns];
  add_real<both>(w, k, 1, x, at, a, b);
#pragma GCC unroll 4
  for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 2
    for (int v = 0; v < kColumns; ++v) c[i][v] = a[i][v], d[i][v] = negative(b[i][v]);
  }
  if (complex) {
    const float *cosine = w.cosine + k, *sine = w.sine + k;
    for (int64_t j = 0; j < w.n; ++j, cosine += w.n, sine += w.n) {
      Vector imaginary[kColumns], negated[kColumns];
#pragma GCC unroll 2
      for (int v = 0; v < kColumns; ++v) {
        imaginary[v] = load(x.imaginary + j * x.row + at + v * kLanes);
        negated[v] = negative(imaginary[v]);
      }
#pragma GCC unroll 4
      for (int i = 0; i < kPairs; ++i) {
        const Vector p = broadcast(cosine[i]), q = broadcast(sine[i]);
#pragma GCC unroll 2
        for (int v = 0; v < kColumns; ++v) {
          a[i][v] = fma(negated[v], q, a[i][v]);
          c[i][v] = fma(imaginary[v], q, c[i][v]);
          if (both) b[i][v] = fma(imaginary[v], p, b[i][v]);
          if (both) d[i][v] = fma(imaginary[v], p, d[i][v]);
        }
      }
    }
  }
#pragma GCC unroll 4
  for (int i = 0; i < kPairs; ++i) {
    store_output<both>(to, k + i, at, a[i], b[i]);
    store_output<both>(to, w.n - k - i, at, c[i], d[i]);
  }
}

// The most outputs, or pairs of them, of a tile: what registers hold.
constexpr int kMostOutputs = kVectors == 4 ? 6 : 2, kMostPairs = kVectors == 4 ? 3 : 1;

template <bool complex, bool both, int kColumns, int kOutputs = kMostOutputs>
static void outputs_tile_of(int64_t count, const Roots& w, int64_t k, int64_t step,
                            const Columns& x, const Columns& to, int64_t at) {
  if constexpr (kOutputs > 1) {
    if (count < kOutputs) {
      return outputs_tile_of<complex, both, kColumns, kOutputs - 1>(count, w, k, step, x, to, at);
    }
  }
  outputs_tile<complex, both, kOutputs, kColumns>(w, k, step, x, to, at);
}

template <bool complex, bool both, int kColumns, int kPairs = kMostPairs>
static void pairs_tile_of(int64_t count, const Roots& w, int64_t k, const Columns& x,
                          const Columns& to, int64_t at) {
  if constexpr (kPairs > 1) {
    if (count < kPairs) {
      return pairs_tile_of<complex, both, kColumns, kPairs - 1>(count, w, k, x, to, at);
    }
  }
  pairs_tile<complex, both, kPairs, kColumns>(w, k, x, to, at);
}

// The first outputs of transforms; few of them without their partners.
template <bool complex, bool both, int kColumns>
static void transform_vectors(const Roots& w, const Columns& x, const Columns& to, int64_t at,
                              int64_t outputs) {
  const int64_t n = w.n;
  // Chains take tiles of nearly the same size.
  const auto in_tiles = [](int64_t count, int64_t most, auto tile) {
    for (int64_t done = 0, tiles = (count + most - 1) / most; tiles > 0; --tiles) {
      const int64_t here = (count - done + tiles - 1) / tiles;
      tile(done, here);
      done += here;
    }
  };
  if (4 * outputs < 3 * n) {
    in_tiles(outputs, kMostOutputs, [&](int64_t k, int64_t count) {
      outputs_tile_of<complex, both, kColumns>(count, w, k, 1, x, to, at);
    });
    return;
  }
  // Those that are their own partners: 0, and n / 2.
  outputs_tile_of<complex, both, kColumns>(n % 2 == 0 ? 2 : 1, w, 0, n / 2, x, to, at);
  in_tiles((n - 1) / 2, kMostPairs, [&](int64_t k, int64_t count) {
    pairs_tile_of<complex, both, kColumns>(count, w, 1 + k, x, to, at);
  });
}

template <bool complex, bool both>
static void transform_columns(const Roots& w, const Columns& x, int64_t count, const Columns& to,
                              int64_t outputs) {
  int64_t at = 0;
  for (; at + 2 * kLanes <= count; at += 2 * kLanes) {
    transform_vectors<complex, both, 2>(w, x, to, at, outputs);
  }
  if (at < count) transform_vectors<complex, both, 1>(w, x, to, at, outputs);
}

static void transform_columns(const Roots& w, const Columns& x, int64_t count, const Columns& to,
                              int64_t outputs) {
  const bool complex = x.imaginary, both = to.imaginary;
  if (both) {
    complex ? transform_columns<true, true>(w, x, count, to, outputs)
            : transform_columns<false, true>(w, x, count, to, outputs);
  } else {
    complex ? transform_columns<true, false>(w, x, count, to, outputs)
            : transform_columns<false, false>(w, x, count, to, outputs);
  }
}

// Vectors of outputs of a single transform, from output k on.
template <int kColumns>
static inline void outputs_of_one(const Roots& w, const Columns& x, const Columns& to, int64_t k) {
  Vector a[kColumns] = {}, b[kColumns] = {};
  const float *cosine = w.cosine + k, *sine = w.sine + k;
  for (int64_t j = 0; j < w.n; ++j) {
    const Vector real = broadcast(x.real[j]);
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) {
      a[v] = fma(real, load(cosine + j * w.n + v * kLanes), a[v]);
      b[v] = fma(real, load(sine + j * w.n + v * kLanes), b[v]);
    }
  }
  for (int64_t j = 0; x.imaginary && j < w.n; ++j) {
    const Vector imaginary = broadcast(x.imaginary[j]), negated = negative(imaginary);
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) {
      a[v] = fma(negated, load(sine + j * w.n + v * kLanes), a[v]);
      b[v] = fma(imaginary, load(cosine + j * w.n + v * kLanes), b[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kColumns; ++v) {
    store(to.real + k + v * kLanes, as<Vector>(guard(a[v])));
    if (to.imaginary) store(to.imaginary + k + v * kLanes, as<Vector>(guard(b[v])));
  }
}

static void transform_one(const Roots& w, const Columns& x, const Columns& to, int64_t outputs) {
  int64_t k = 0;
  for (; k + 4 * kLanes <= outputs; k += 4 * kLanes) outputs_of_one<4>(w, x, to, k);
  for (; k < outputs; k += kLanes) outputs_of_one<1>(w, x, to, k);
}

template <bool complex>
static inline void multiply_vector(const Columns& x, Vector c, Vector d, const Columns& to,
                                   int64_t at) {
  const Vector a = load(x.real + at);
  Vector real = as<Vector>(guard(a * c)), imaginary = as<Vector>(guard(a * d));
  if (complex) {
    const Vector b = load(x.imaginary + at);
    real = as<Vector>(flush(real - as<Vector>(guard(b * d))));
    imaginary = as<Vector>(flush(imaginary + as<Vector>(guard(b * c))));
  }
  store(to.real + at, real);
  store(to.imaginary + at, imaginary);
}

// Rows of a few elements times a number each, which are `step` apart.
static void multiply_rows(const Columns& x, const float* real, const float* imaginary, int64_t step,
                          int64_t rows, const Columns& to) {
  for (int64_t i = 0; i < rows; ++i) {
    const Vector c = broadcast(real[i * step]), d = broadcast(imaginary[i * step]);
    for (int64_t j = i * x.row; j < (i + 1) * x.row; j += kLanes) {
      x.imaginary ? multiply_vector<true>(x, c, d, to, j) : multiply_vector<false>(x, c, d, to, j);
    }
  }
}

// Each of so many elements times a number, up to a vector more.
static void multiply_each(const Columns& x, const float* real, const float* imaginary,
                          int64_t count, const Columns& to) {
  for (int64_t i = 0; i < count; i += kLanes) {
    const Vector c = load(real + i), d = load(imaginary + i);
    x.imaginary ? multiply_vector<true>(x, c, d, to, i) : multiply_vector<false>(x, c, d, to, i);
  }
}

// to[j][i] = from[i][j], of rows and columns that fill vectors.
static void transpose_all(const float* from, int64_t row, int64_t rows, int64_t columns, float* to,
                          int64_t to_row) {
  for (int64_t i = 0; i < rows; i += kLanes) {
    for (int64_t j = 0; j < columns; j += kLanes) {
      Vector x[kLanes];
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) x[l] = load(from + (i + l) * row + j);
      transpose(x);
#pragma GCC unroll 16
      for (int l = 0; l < kLanes; ++l) store(to + (j + l) * to_row + i, x[l]);
    }
  }
}

// Raw numbers that lie together, complex ones if `to` has imaginary parts.
static void read_numbers(const float* from, int64_t count, const Columns& to) {
  if (!to.imaginary) return copy<true>(from, count, to.real);
  const std::make_integer_sequence<int, kLanes> all;
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    const Vector a = factor<true>(load(from + 2 * i));
    const Vector b = factor<true>(load(from + 2 * i + kLanes));
    store(to.real + i, every_other<false>(a, b, all));
    store(to.imaginary + i, every_other<true>(a, b, all));
  }
  for (; i < count; ++i) {
    to.real[i] = factor<true>(from[2 * i]);
    to.imaginary[i] = factor<true>(from[2 * i + 1]);
  }
}

// The other way round: numbers divided by `divisor`, if it is not 0, with one NaN.
static void write_numbers(const Columns& x, int64_t count, float divisor, float* to) {
  const std::make_integer_sequence<int, kLanes> all;
  const auto finished = [=](const float* p, int64_t here) {
    Vector y = here == kLanes ? load(p) : load_some(p, here);
    if (divisor != 0) y = as<Vector>(guard(y / (divisor - Vector{})));
    return as<Vector>(with_one_nan(y, as<Bits>(y)));
  };
  for (int64_t i = 0; i < count; i += kLanes) {
    const int64_t here = count - i < kLanes ? count - i : kLanes;
    const Vector real = finished(x.real + i, here);
    if (!x.imaginary) {
      here == kLanes ? store(to + i, real)
                     : (void)__builtin_memcpy(to + i, &real, sizeof(float) * here);
      continue;
    }
    const Vector imaginary = finished(x.imaginary + i, here);
    const Vector both[2] = {in_turn<false>(real, imaginary, all),
                            in_turn<true>(real, imaginary, all)};
    if (here == kLanes) {
      store(to + 2 * i, both[0]);
      store(to + 2 * i + kLanes, both[1]);
    } else {
      __builtin_memcpy(to + 2 * i, both, 2 * sizeof(float) * here);
    }
  }
}

// Divides parts in their place.
static void divide_all(float* x, int64_t count, float by) {
  for (int64_t i = 0; i < count; i += kLanes) {
    store(x + i, as<Vector>(guard(load(x + i) / (by - Vector{}))));
  }
}

constexpr Fourier kFourier = {kLanes,        transform_columns, transform_one, multiply_rows,
                              multiply_each, transpose_all,     read_numbers,  write_numbers,
                              divide_all};
