// IEEE arithmetic for a while: XLA's threads flush subnormals.

#pragma once

#include <cstdint>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace repjax {

class IeeeArithmetic {
 public:
#if defined(__x86_64__)
  IeeeArithmetic() : saved_(_mm_getcsr()) { _mm_setcsr(0x1F80); }
  ~IeeeArithmetic() { _mm_setcsr(saved_); }

 private:
  unsigned saved_;
#elif defined(__aarch64__)
  IeeeArithmetic() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    asm volatile("msr fpcr, %0" : : "r"(uint64_t{0}));
  }
  ~IeeeArithmetic() { asm volatile("msr fpcr, %0" : : "r"(saved_)); }

 private:
  uint64_t saved_;
#endif
};

}  // namespace repjax
