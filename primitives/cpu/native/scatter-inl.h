// Exact sums of updates of a scatter-add.

// to[c] = x[c] + the sum of updates[at[i] * width + c] over i < count, c < here: of integers on the
// grid of the column's largest update, as repjax.primitives.operations.scatter says.
static inline void add_columns(const float* x, const float* updates, const int32_t* at,
                               int64_t count, int64_t width, int precision, int64_t here,
                               float* to) {
  using several::BitsPart;
  using several::LongPart;
  const auto load = [here](const float* p) {
    Narrow v = {};
    __builtin_memcpy(&v, p, sizeof(float) * here);
    return v;
  };
  const auto finite = [=](Narrow v) {
    return (BitsPart)(magnitude(v) < (0x7F800000 - BitsPart{}));
  };
  const auto exponent = [](LongPart e) { return as<Wide>((e + 1023) << 52); };

  BitsPart largest = {}, all_finite = ~BitsPart{};
  Narrow sum = {};
  for (int64_t i = 0; i < count; ++i) {
    const Narrow u = load(updates + at[i] * width);
    const BitsPart is_finite = finite(u), m = magnitude(u) & is_finite;
    largest = m > largest ? m : largest;
    sum += count == 1 ? u : as<Narrow>(as<BitsPart>(u) & ~is_finite);  // others as IEEE adds them
    all_finite &= is_finite;
  }
  if (count > 1) {
    const LongPart grid = __builtin_convertvector(largest >> 23, LongPart) - (127 + precision);
    const Wide steps = exponent(-grid), zero = 0x1.8p52 - Wide{};  // where integers begin
    LongPart total = {};
    for (int64_t i = 0; i < count; ++i) {
      const Narrow u = load(updates + at[i] * width);
      const Wide q = wide(as<Narrow>(as<BitsPart>(u) & finite(u))) * steps;
      total += as<LongPart>(q + zero) - as<LongPart>(zero);
    }
    const Wide rounded = wide(__builtin_convertvector(total, Narrow)) * exponent(grid);
    sum = all_finite ? __builtin_convertvector(rounded, Narrow) : sum;
  }
  sum = as<Narrow>(flush(as<Narrow>(guard(sum)) + load(x)));
  __builtin_memcpy(to, &sum, sizeof(float) * here);
}

static void add_updates(const float* x, const float* updates, const int32_t* at, int64_t count,
                        int64_t width, int precision, float* to) {
  constexpr int64_t kHalf = kLanes / 2;
  int64_t c = 0;
  for (; c + kHalf <= width; c += kHalf) {
    add_columns(x + c, updates + c, at, count, width, precision, kHalf, to + c);
  }
  if (c < width) add_columns(x + c, updates + c, at, count, width, precision, width - c, to + c);
}
