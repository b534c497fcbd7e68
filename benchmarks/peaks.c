// What one thread of this processor can do: bytes of memory, float32 and int8 operations a second.
//
//     cc -O3 -march=native -ffp-contract=fast peaks.c -o peaks && ./peaks
//
// Prints one line of JSON.  A multiply-add is two operations.  `int8` is null where the compiler has
// no instruction that adds products of bytes.
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#define CHAINS 16 // independent, more than latency times throughput
#define LANES 16
#define STEPS 4000000
#define BYTES ((size_t)256 << 20)

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

typedef float vector __attribute__((vector_size(4 * LANES)));

static double flops(void) {
  vector x[CHAINS], a, b;
  for (int i = 0; i < LANES; i++) a[i] = 0.999f, b[i] = 1e-3f;
  for (int j = 0; j < CHAINS; j++) x[j] = b;
  double start = now();
  for (int n = 0; n < STEPS; n++)
#pragma GCC unroll 16
    for (int j = 0; j < CHAINS; j++) x[j] = x[j] * a + b;
  double time = now() - start;
  for (int j = 1; j < CHAINS; j++) x[0] += x[j];
  volatile float used = x[0][0];
  (void)used;
  return 2.0 * STEPS * CHAINS * LANES / time;
}

// Reading one array and writing another, as an elementwise operation does.
static double bandwidth(void) {
  float *from = malloc(BYTES), *to = malloc(BYTES);
  memset(from, 1, BYTES), memset(to, 1, BYTES);
  double best = 0;
  for (int turn = 0; turn < 4; turn++) {
    double start = now();
    for (size_t i = 0; i < BYTES / sizeof(float); i++) to[i] = from[i] * 1.5f;
    double time = now() - start;
    if (2.0 * BYTES / time > best) best = 2.0 * BYTES / time;
  }
  volatile float used = to[BYTES / 8];
  (void)used;
  free(from), free(to);
  return best;
}

// 0 where there is no such instruction.
static double int8(void) {
#if defined(__AVX512VNNI__)
  __m512i x[CHAINS], a = _mm512_set1_epi8(3), b = _mm512_set1_epi8(-2);
  for (int j = 0; j < CHAINS; j++) x[j] = _mm512_setzero_si512();
  double start = now();
  for (int n = 0; n < STEPS; n++)
#pragma GCC unroll 16
    for (int j = 0; j < CHAINS; j++) x[j] = _mm512_dpbusd_epi32(x[j], a, b);
  double time = now() - start;
  for (int j = 1; j < CHAINS; j++) x[0] = _mm512_add_epi32(x[0], x[j]);
  volatile int used = _mm512_reduce_add_epi32(x[0]);
  (void)used;
  return 2.0 * 64 * STEPS * CHAINS / time;
#else
  return 0;
#endif
}

int main(void) {
  double a = bandwidth(), b = flops(), c = int8();
  printf("{\"bytes\": %.4g, \"float32\": %.4g, \"int8\": ", a, b);
  c > 0 ? printf("%.4g}\n", c) : printf("null}\n");
  return 0;
}
