// Random bits: Threefry-2x32 of 20 rounds (J. K. Salmon, M. A. Moraes, R. O. Dror and D. E. Shaw, Parallel
// random numbers: as easy as 1, 2, 3, SC 2011), as JAX has them: bits number i are the two words of the
// counter i under the key, joined by an exclusive or.

template <int by>
static inline Unsigned rotated(Unsigned x) {
  return x << by | x >> (32 - by);
}

// The three words of a key; or of the key of each of several vectors of counters.
struct OneKey {
  uint32_t word[3];
  uint32_t get(int w, int) const { return word[w]; }
};
struct KeyOfEach {
  Unsigned word[3][kSeveral];
  Unsigned get(int w, int i) const { return word[w][i]; }
};
constexpr uint32_t kParity = 0x1BD11BDA;

// Several vectors of counters, whose rounds take turns: each waits for the one before.
struct Counters {
  Unsigned x[kSeveral], y[kSeveral];

  template <class Key>
  void hash(const Key& key) {
    add(key, 0, 1, 0);
    rounds<13, 15, 26, 6>();
    add(key, 1, 2, 1);
    rounds<17, 29, 16, 24>();
    add(key, 2, 0, 2);
    rounds<13, 15, 26, 6>();
    add(key, 0, 1, 3);
    rounds<17, 29, 16, 24>();
    add(key, 1, 2, 4);
    rounds<13, 15, 26, 6>();
    add(key, 2, 0, 5);
  }

 private:
  template <int a, int b, int c, int d>
  void rounds() {
    round<a>();
    round<b>();
    round<c>();
    round<d>();
  }
  template <int by>
  void round() {
#pragma GCC unroll 4
    for (int i = 0; i < kSeveral; ++i) {
      x[i] += y[i];
      y[i] = rotated<by>(y[i]) ^ x[i];
    }
  }
  template <class Key>
  void add(const Key& key, int to_x, int to_y, uint32_t number) {
#pragma GCC unroll 4
    for (int i = 0; i < kSeveral; ++i) {
      x[i] += key.get(to_x, i);
      y[i] += key.get(to_y, i) + number;
    }
  }
};
constexpr int64_t kTogether = kSeveral * kLanes;

// Of so many counters their bits or, as new keys, both words.
template <bool both>
static inline void write(const Counters& n, int64_t count, uint32_t* to) {
  if (both) {
    uint32_t words[2][kTogether];
    __builtin_memcpy(words[0], n.x, sizeof n.x);
    __builtin_memcpy(words[1], n.y, sizeof n.y);
    for (int64_t i = 0; i < count; ++i) {
      to[2 * i] = words[0][i];
      to[2 * i + 1] = words[1][i];
    }
  } else {
    Unsigned bits[kSeveral];
    for (int i = 0; i < kSeveral; ++i) bits[i] = n.x[i] ^ n.y[i];
    __builtin_memcpy(to, bits, sizeof(uint32_t) * count);
  }
}

template <bool both>
static void draw(const uint32_t* key, uint64_t first, int64_t count, uint32_t* to) {
  const OneKey of_all = {key[0], key[1], key[0] ^ key[1] ^ kParity};
  Unsigned lanes;
  for (int i = 0; i < kLanes; ++i) lanes[i] = i;
  for (int64_t at = 0; at < count; at += kTogether) {
    Counters n;
    for (int i = 0; i < kSeveral; ++i) {
      n.x[i] = Unsigned{} + uint32_t(first >> 32);
      n.y[i] = lanes + uint32_t(first + at + i * kLanes);
    }
    n.hash(of_all);
    write<both>(n, std::min(kTogether, count - at), to + (both ? 2 : 1) * at);
  }
}

template <bool both>
static void draw_each(const uint32_t* keys, int64_t of_each, const uint32_t* numbers, int64_t first,
                      int64_t count, uint32_t* to) {
  int64_t k = first / of_each, number = first % of_each;
  for (int64_t at = 0; at < count; at += kTogether) {
    const int64_t here = std::min(kTogether, count - at);
    uint32_t words[3][kTogether] = {};  // of keys, and the counters
    for (int64_t i = 0; i < here; ++i) {
      words[0][i] = keys[2 * k];
      words[1][i] = keys[2 * k + 1];
      words[2][i] = numbers ? numbers[k] : uint32_t(number);
      if (++number == of_each) number = 0, ++k;
    }
    KeyOfEach key;
    Counters n = {};
    __builtin_memcpy(key.word, words, 2 * sizeof words[0]);
    __builtin_memcpy(n.y, words[2], sizeof words[2]);
    for (int i = 0; i < kSeveral; ++i) {
      key.word[2][i] = key.word[0][i] ^ key.word[1][i] ^ kParity;
    }
    n.hash(key);
    write<both>(n, here, to + (both ? 2 : 1) * at);
  }
}

constexpr Random kRandom = {kTogether, draw<false>, draw<true>, draw_each<false>, draw_each<true>};
