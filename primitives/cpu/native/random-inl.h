// Random bits: Threefry-2x32 of 20 rounds (J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, Parallel
// random numbers: as easy as 1, 2, 3, SC 2011), as JAX has them: bits number i are the two words of the
// counter i under the key, joined by an exclusive or.

template <int by>
static inline Unsigned rotated(Unsigned x) {
  return x << by | x >> (32 - by);
}

// Several vectors of counters, whose rounds take turns: each waits for the one before.
struct Counters {
  Unsigned x[kSeveral], y[kSeveral];

  template <int by>
  void round() {
#pragma GCC unroll 4
    for (int i = 0; i < kSeveral; ++i) {
      x[i] += y[i];
      y[i] = rotated<by>(y[i]) ^ x[i];
    }
  }
  template <int a, int b, int c, int d>
  void rounds(uint32_t to_x, uint32_t to_y) {
    round<a>();
    round<b>();
    round<c>();
    round<d>();
    add(to_x, to_y);
  }
  void add(uint32_t to_x, uint32_t to_y) {
#pragma GCC unroll 4
    for (int i = 0; i < kSeveral; ++i) {
      x[i] += to_x;
      y[i] += to_y;
    }
  }
};

// Of each counter its bits or, as new keys, both words.
template <bool both>
static void draw(const uint32_t* key, uint64_t first, int64_t count, uint32_t* to) {
  constexpr int64_t kTogether = kSeveral * kLanes;
  const uint32_t a = key[0], b = key[1], c = a ^ b ^ 0x1BD11BDA;
  Unsigned lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  for (int64_t at = 0; at < count; at += kTogether) {
    Counters n;
    for (int i = 0; i < kSeveral; ++i) {
      n.x[i] = Unsigned{} + uint32_t(first >> 32);
      n.y[i] = lanes + uint32_t(first + at + i * kLanes);
    }
    n.add(a, b);
    n.rounds<13, 15, 26, 6>(b, c + 1);
    n.rounds<17, 29, 16, 24>(c, a + 2);
    n.rounds<13, 15, 26, 6>(a, b + 3);
    n.rounds<17, 29, 16, 24>(b, c + 4);
    n.rounds<13, 15, 26, 6>(c, a + 5);
    const int64_t here = std::min(kTogether, count - at);
    if (both) {
      uint32_t words[2][kTogether];
      __builtin_memcpy(words[0], n.x, sizeof n.x);
      __builtin_memcpy(words[1], n.y, sizeof n.y);
      for (int64_t i = 0; i < here; ++i) {
        to[2 * (at + i)] = words[0][i];
        to[2 * (at + i) + 1] = words[1][i];
      }
    } else {
      Unsigned bits[kSeveral];
      for (int i = 0; i < kSeveral; ++i) bits[i] = n.x[i] ^ n.y[i];
      __builtin_memcpy(to + at, bits, sizeof(uint32_t) * here);
    }
  }
}

constexpr Random kRandom = {draw<false>, draw<true>};
