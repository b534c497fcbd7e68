// Exact sums of float64: digits of 28 bits at fixed places, as those of
// repjax.primitives.operations.accumulators.

#pragma once

#include <cmath>
#include <cstdint>
#include <cstring>

namespace repjax {

class Superaccumulator {
 public:
  // Finite multiples of 2**-298, below 2**290 in magnitude; what is smaller is cut off.  There is
  // room for 2**34 terms.
  void add(double x) {
    int64_t bits;
    std::memcpy(&bits, &x, sizeof x);
    const int64_t field = bits >> 52 & 0x7FF;
    if (field == 0) return;
    uint64_t mantissa = (bits & 0xFFFFFFFFFFFFF) | int64_t(1) << 52;
    int64_t place = field - 1075 - kLowest;
    if (place < 0) {
      mantissa = place > -64 ? mantissa >> -place : 0;
      place = 0;
    }
    const unsigned __int128 shifted = static_cast<unsigned __int128>(mantissa) << place % kWidth;
    int64_t* const to = digits_ + place / kWidth;
    const int64_t parts[] = {int64_t(shifted & kMask), int64_t(shifted >> kWidth & kMask),
                             int64_t(shifted >> 2 * kWidth)};
    for (int i = 0; i < 3; ++i) to[i] += bits < 0 ? -parts[i] : parts[i];
  }

  // The sum as float64, rounded to odd.
  double odd() const {
    int64_t d[kCount];
    carry(digits_, 1, d);
    const bool negative = d[kCount - 1] < 0;
    if (negative) carry(digits_, -1, d);
    int top = kCount - 1;
    while (top >= 0 && d[top] == 0) --top;
    if (top < 0) return 0;
    unsigned __int128 first = 0;
    for (int i = top; i > top - 3; --i) first = first << kWidth | (i < 0 ? 0 : d[i]);
    bool rest = false;
    for (int i = 0; i < top - 2; ++i) rest |= d[i] != 0;
    int64_t exponent = kLowest + kWidth * (top - 2);
    while (first >> 53) {
      rest |= first & 1;
      first >>= 1;
      ++exponent;
    }
    const double magnitude = std::ldexp(double(uint64_t(first) | rest), int(exponent));
    return negative ? -magnitude : magnitude;
  }

 private:
  static constexpr int kWidth = 28, kCount = 24;
  static constexpr int64_t kLowest = -298, kMask = (int64_t(1) << kWidth) - 1;
  int64_t digits_[kCount] = {};

  // The digits, of this sign: all but the last from 0 to 2**28 - 1.
  static void carry(const int64_t* digits, int sign, int64_t* to) {
    int64_t carried = 0;
    for (int i = 0; i < kCount; ++i) {
      const int64_t digit = sign * digits[i] + carried;
      carried = digit >> kWidth;
      to[i] = i < kCount - 1 ? digit & kMask : digit;
    }
  }
};

}  // namespace repjax
