// Parts of Fourier transforms (repjax.primitives.operations.fourier): chains of fused multiply-adds
// with the matrix of a transform, and what is between them.
//
// Elements j and n - j are folded: the cosines of the two rows are equal and the sines negatives,
// exactly, so that cosines take the sum of the two, and sines the difference.  So are those of
// columns k and n - k, which have the chains over sums in common.

static inline Vector negative(Vector x) { return as<Vector>(as<Bits>(x) ^ INT32_MIN); }

static inline Vector sum(Vector a, Vector b) { return as<Vector>(flush(a + b)); }

// (a + b i) times (c + d i); b is not read if numbers are real.
template <bool complex>
static inline void multiply(Vector a, Vector b, Vector c, Vector d, Vector& real,
                            Vector& imaginary) {
  real = as<Vector>(guard(a * c)), imaginary = as<Vector>(guard(a * d));
  if (complex) {
    real = as<Vector>(flush(real - as<Vector>(guard(b * d))));
    imaginary = sum(imaginary, as<Vector>(guard(b * c)));
  }
}

// The terms of the real and of the imaginary part, row after row, as the matrix has them.
template <int kColumns>
struct Terms {
  static constexpr int kRow = kColumns * kLanes;
  alignas(64) float parts[2][kMostOfMatrix * kRow];

  void put(int part, int64_t j, const Vector (&x)[kColumns]) {
#pragma GCC unroll 2
    for (int v = 0; v < kColumns; ++v) store(parts[part] + j * kRow + v * kLanes, x[v]);
  }
};

enum Turning { kNotTurned, kRowsTurned, kElementsTurned };

// Element j of a few vectors of transforms, times a root.
template <bool complex, Turning turning, int kColumns>
static inline void load_turned(const Columns& x, const Turns& turns, int64_t j, int64_t at,
                               Vector (&part)[2][kColumns]) {
#pragma GCC unroll 2
  for (int v = 0; v < kColumns; ++v) {
    const int64_t place = j * x.row + at + v * kLanes;
    Vector &real = part[0][v] = load(x.real + place), &imaginary = part[1][v];
    if (complex) imaginary = load(x.imaginary + place);
    if (turning == kNotTurned) continue;
    const int64_t root = j * turns.row + (turning == kElementsTurned ? at + v * kLanes : 0);
    const auto root_of = [=](const float* from) {
      return turning == kRowsTurned ? broadcast(from[root]) : load(from + root);
    };
    multiply<complex>(real, imaginary, root_of(turns.cosine), root_of(turns.sine), real, imaginary);
  }
}

// The terms of a few vectors of transforms; those of zeros are left out.
template <bool complex, Turning turning, int kColumns>
static void fold(int64_t n, const Columns& x, const Turns& turns, int64_t at,
                 Terms<kColumns>& terms) {
  const int64_t half = n / 2;
  Vector a[2][kColumns], b[2][kColumns], sums[kColumns], differences[kColumns];
  const auto put_alone = [&](int64_t j) {
    load_turned<complex, turning>(x, turns, j, at, a);
    terms.put(0, j, a[0]);
    if (complex) terms.put(1, j, a[1]);
  };
  put_alone(0);
  if (n % 2 == 0) put_alone(half);
  for (int64_t j = 1; 2 * j < n; ++j) {
    load_turned<complex, turning>(x, turns, j, at, a);
    load_turned<complex, turning>(x, turns, n - j, at, b);
#pragma GCC unroll 2
    for (int part = 0; part < (complex ? 2 : 1); ++part) {
#pragma GCC unroll 2
      for (int v = 0; v < kColumns; ++v) {
        sums[v] = sum(a[part][v], b[part][v]);
        differences[v] = as<Vector>(flush(part ? a[part][v] - b[part][v] : b[part][v] - a[part][v]));
      }
      terms.put(part, j, sums);
      terms.put(1 - part, half + j, differences);
    }
  }
}

template <int kColumns>
static void fold(int64_t n, const Columns& x, const Turns& turns, int64_t at,
                 Terms<kColumns>& terms) {
  if (!x.imaginary) return fold<false, kNotTurned>(n, x, turns, at, terms);
  if (!turns.cosine) return fold<true, kNotTurned>(n, x, turns, at, terms);
  turns.of_rows ? fold<true, kRowsTurned>(n, x, turns, at, terms)
                : fold<true, kElementsTurned>(n, x, turns, at, terms);
}

// Rows of the matrix, and the terms of a part.
struct Chain {
  const float *matrix, *terms;
  int64_t n, begin, end;

  Chain first(int64_t rows) const { return {matrix, terms, n, begin, end < rows ? end : rows}; }
  Chain after(int64_t rows) const { return {matrix, terms, n, begin > rows ? begin : rows, end}; }
};

// Adds the terms of outputs k, k + step and so on.
template <int kOutputs, int kColumns>
static inline void add_terms(const Chain& chain, int64_t k, int64_t step,
                             Vector (&sums)[kOutputs][kColumns]) {
  for (int64_t j = chain.begin; j < chain.end; ++j) {
    const float* const row = chain.matrix + j * chain.n + k;
    Vector x[kColumns];
#pragma GCC unroll 2
    for (int v = 0; v < kColumns; ++v) x[v] = load(chain.terms + (j * kColumns + v) * kLanes);
#pragma GCC unroll 8
    for (int i = 0; i < kOutputs; ++i) {
      const Vector c = broadcast(row[i * step]);
#pragma GCC unroll 2
      for (int v = 0; v < kColumns; ++v) sums[i][v] = fma(x[v], c, sums[i][v]);
    }
  }
}

template <int kColumns>
static inline void store_output(float* to, const Vector (&sums)[kColumns]) {
#pragma GCC unroll 2
  for (int v = 0; v < kColumns; ++v) store(to + v * kLanes, as<Vector>(guard(sums[v])));
}

// Outputs k, k + step and so on of a few vectors of transforms.
template <int kColumns, int kOutputs>
static inline void outputs_tile(const Chain& chain, int64_t k, int64_t step, float* to,
                                int64_t row) {
  Vector sums[kOutputs][kColumns] = {};
  add_terms(chain, k, step, sums);
#pragma GCC unroll 8
  for (int i = 0; i < kOutputs; ++i) store_output(to + (k + i * step) * row, sums[i]);
}

// Outputs k, k + 1 and so on, and n - k, n - k - 1 and so on.
template <int kColumns, int kPairs>
static inline void pairs_tile(const Chain& chain, int64_t k, float* to, int64_t row) {
  const Chain differences = chain.after(chain.n / 2 + 1);
  Vector a[kPairs][kColumns] = {}, b[kPairs][kColumns];
  if (chain.begin == differences.begin) {
    add_terms(chain, k, 1, a);
#pragma GCC unroll 8
    for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kColumns; ++v) b[i][v] = negative(a[i][v]);
    }
  } else {
    add_terms(chain.first(chain.n / 2 + 1), k, 1, a);
#pragma GCC unroll 8
    for (int i = 0; i < kPairs; ++i) {
#pragma GCC unroll 2
      for (int v = 0; v < kColumns; ++v) b[i][v] = a[i][v];
    }
    for (int64_t j = differences.begin; j < differences.end; ++j) {
      const float* const sines = chain.matrix + j * chain.n + k;
      Vector x[kColumns], negated[kColumns];
#pragma GCC unroll 2
      for (int v = 0; v < kColumns; ++v) {
        x[v] = load(chain.terms + (j * kColumns + v) * kLanes);
        negated[v] = negative(x[v]);
      }
#pragma GCC unroll 8
      for (int i = 0; i < kPairs; ++i) {
        const Vector s = broadcast(sines[i]);
#pragma GCC unroll 2
        for (int v = 0; v < kColumns; ++v) {
          a[i][v] = fma(x[v], s, a[i][v]);
          b[i][v] = fma(negated[v], s, b[i][v]);
        }
      }
    }
  }
#pragma GCC unroll 8
  for (int i = 0; i < kPairs; ++i) {
    store_output(to + (k + i) * row, a[i]);
    store_output(to + (chain.n - k - i) * row, b[i]);
  }
}

// The most outputs, or pairs of them, of a tile: what registers hold.
constexpr int kMostOutputs = kVectors == 4 ? 8 : 6, kMostPairs = kVectors == 4 ? 6 : 2;

template <int kColumns, int kOutputs = kMostOutputs>
static void outputs_tile_of(int64_t count, const Chain& chain, int64_t k, int64_t step, float* to,
                            int64_t row) {
  if constexpr (kOutputs > 1) {
    if (count < kOutputs) {
      return outputs_tile_of<kColumns, kOutputs - 1>(count, chain, k, step, to, row);
    }
  }
  outputs_tile<kColumns, kOutputs>(chain, k, step, to, row);
}

template <int kColumns, int kPairs = kMostPairs>
static void pairs_tile_of(int64_t count, const Chain& chain, int64_t k, float* to, int64_t row) {
  if constexpr (kPairs > 1) {
    if (count < kPairs) return pairs_tile_of<kColumns, kPairs - 1>(count, chain, k, to, row);
  }
  pairs_tile<kColumns, kPairs>(chain, k, to, row);
}

// The first outputs of a part; few of them without their partners.
template <int kColumns>
static void multiply_part(const Chain& chain, float* to, int64_t row, int64_t outputs) {
  const int64_t n = chain.n;
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
      outputs_tile_of<kColumns>(count, chain, k, 1, to, row);
    });
    return;
  }
  // Those that are their own partners: 0, and n / 2.
  outputs_tile_of<kColumns>(n % 2 == 0 ? 2 : 1, chain, 0, n / 2, to, row);
  in_tiles((n - 1) / 2, kMostPairs, [&](int64_t k, int64_t count) {
    pairs_tile_of<kColumns>(count, chain, 1 + k, to, row);
  });
}

// The first outputs of a few vectors of transforms.
template <int kColumns>
static void transform_vectors(const Roots& w, const Columns& x, const Turns& turns,
                              const Columns& to, int64_t at, int64_t outputs) {
  Terms<kColumns> terms;
  fold(w.n, x, turns, at, terms);
  const int64_t sums = w.n / 2 + 1;
  const Chain real = {w.elements, terms.parts[0], w.n, 0, x.imaginary ? w.n : sums};
  const Chain imaginary = {w.elements, terms.parts[1], w.n, x.imaginary ? 0 : sums, w.n};
  multiply_part<kColumns>(real, to.real + at, to.row, outputs);
  if (to.imaginary) multiply_part<kColumns>(imaginary, to.imaginary + at, to.row, outputs);
}

static void transform_columns(const Roots& w, const Columns& x, const Turns& turns, int64_t count,
                              const Columns& to, int64_t outputs) {
  int64_t at = 0;
  for (; at + 2 * kLanes <= count; at += 2 * kLanes) {
    transform_vectors<2>(w, x, turns, to, at, outputs);
  }
  if (at < count) transform_vectors<1>(w, x, turns, to, at, outputs);
}

// Vectors of outputs of a single transform, from output k on.
template <int kColumns>
static inline void outputs_of_one(const Roots& w, const float* real, const float* imaginary,
                                  const Columns& to, int64_t k) {
  Vector a[kColumns] = {}, b[kColumns] = {};
  for (int64_t j = 0; j < w.n; ++j) {
    const Vector x = broadcast(real[j]), y = broadcast(imaginary[j]);
#pragma GCC unroll 4
    for (int v = 0; v < kColumns; ++v) {
      const Vector root = load(w.elements + j * w.n + k + v * kLanes);
      a[v] = fma(x, root, a[v]);
      b[v] = fma(y, root, b[v]);
    }
  }
#pragma GCC unroll 4
  for (int v = 0; v < kColumns; ++v) {
    store(to.real + k + v * kLanes, as<Vector>(guard(a[v])));
    if (to.imaginary) store(to.imaginary + k + v * kLanes, as<Vector>(guard(b[v])));
  }
}

static void transform_one(const Roots& w, const Columns& x, const Columns& to, int64_t outputs) {
  const int64_t n = w.n, half = n / 2;
  float terms[2][kMostOfMatrix] = {};
  for (int part = 0; part < (x.imaginary ? 2 : 1); ++part) {
    const float* const from = part ? x.imaginary : x.real;
    terms[part][0] = from[0];
    if (n % 2 == 0) terms[part][half] = from[half];
    for (int64_t j = 1; 2 * j < n; ++j) {
      const float a = from[j], b = from[n - j];
      terms[part][j] = factor<true>(a + b);
      terms[1 - part][half + j] = factor<true>(part ? a - b : b - a);
    }
  }
  int64_t k = 0;
  for (; k + 4 * kLanes <= outputs; k += 4 * kLanes) {
    outputs_of_one<4>(w, terms[0], terms[1], to, k);
  }
  for (; k < outputs; k += kLanes) outputs_of_one<1>(w, terms[0], terms[1], to, k);
}

template <bool complex>
static inline void multiply_vector(const Columns& x, Vector c, Vector d, const Columns& to,
                                   int64_t at) {
  Vector real, imaginary = {};
  if (complex) imaginary = load(x.imaginary + at);
  multiply<complex>(load(x.real + at), imaginary, c, d, real, imaginary);
  store(to.real + at, real);
  store(to.imaginary + at, imaginary);
}

// Rows of a few elements times a number each.
static void multiply_rows(const Columns& x, const float* real, const float* imaginary,
                          int64_t rows, const Columns& to) {
  for (int64_t i = 0; i < rows; ++i) {
    const Vector c = broadcast(real[i]), d = broadcast(imaginary[i]);
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
