// The kernels for each instruction set: the same -inl.h files, in a namespace of its own and under
// the compiler's options for it; and the choice of one.

#include "instruction_sets.h"
#include "axes.h"
#include "threads.h"

#include <atomic>
#include <cmath>
#include <cstdint>
#include <type_traits>
#include <utility>
#include <vector>

#if defined(__x86_64__)
#include <immintrin.h>
// Where the compiler knows AMX, and the system has a way to ask for it.
#if defined(__linux__) && (__has_include(<amxtileintrin.h>) || __has_include(<amxintrin.h>))
#define REPJAX_AMX
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif
#if !defined(__clang__)  // GCC 12 warns of its own intrinsic functions (its bug 105593).
#pragma GCC diagnostic ignored "-Wuninitialized"
#pragma GCC diagnostic ignored "-Wmaybe-uninitialized"
#endif
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(REPJAX_AMX)
// Whether the processor has AMX with tiles of int8, and Linux gives it to this process.  The one
// symbol that the emulator of the tests replaces, so that the instructions below are tested on
// processors without them.
extern "C" __attribute__((visibility("default"), noinline)) int repjax_has_amx() {
  constexpr unsigned kTiles = 1 << 24 | 1 << 25;       // AMX-TILE, AMX-INT8: CPUID.(7, 0):EDX
  constexpr unsigned kStates = 1 << 17 | 1 << 18;      // XTILECFG, XTILEDATA: XCR0
  constexpr long kRequestPermission = 0x1023, kTileData = 18;  // ARCH_REQ_XCOMP_PERM
  unsigned a, b, c, d;
  if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE)) return 0;
  if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & kTiles) != kTiles) return 0;
  unsigned states, others;
  __asm__ volatile("xgetbv" : "=a"(states), "=d"(others) : "c"(0));
  if ((states & kStates) != kStates) return 0;
  return syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
}
#endif

namespace repjax {
namespace {

// Opens and closes a target: a namespace whose functions are compiled for these instructions.
#define REPJAX_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define REPJAX_BEGIN_TARGET(name, instructions)                                                   \
  REPJAX_PRAGMA(clang attribute push(__attribute__((target(instructions))), apply_to = function)) \
  namespace name {
#define REPJAX_END_TARGET \
  }                       \
  REPJAX_PRAGMA(clang attribute pop)
#else
#define REPJAX_BEGIN_TARGET(name, instructions) \
  REPJAX_PRAGMA(GCC push_options)               \
  REPJAX_PRAGMA(GCC target(instructions))       \
  namespace name {
#define REPJAX_END_TARGET \
  }                       \
  REPJAX_PRAGMA(GCC pop_options)
#endif

#if defined(__x86_64__)

REPJAX_BEGIN_TARGET(avx512, "avx512f,avx512dq")
constexpr int Rows(int vectors) { return vectors <= 2 ? 12 : vectors == 3 ? 8 : 6; }
// For words and digits: adds eight sums of a block of terms, which is the first one or a later one.
inline void add_to(int64_t* to, __m512i sum, bool first) {
  if (!first) sum = _mm512_add_epi64(sum, _mm512_loadu_si512(to));
  _mm512_storeu_si512(to, sum);
}
namespace float32 {
constexpr int kLanes = 16, kVectors = 4, kSeveral = 4;
constexpr bool kFused = true, kPairs = true, kClasses = true;
#include "float32-inl.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
static inline Vector broadcast(float x) { return _mm512_set1_ps(x); }
static inline Vector load_part(const float* from, int count) {
  return _mm512_maskz_loadu_ps((1u << count) - 1, from);
}
static inline Vector load_fours(const float* from, const int64_t* row) {
  Vector x = _mm512_castps128_ps512(_mm_loadu_ps(from + row[0]));
  x = _mm512_insertf32x4(x, _mm_loadu_ps(from + row[4]), 1);
  x = _mm512_insertf32x4(x, _mm_loadu_ps(from + row[8]), 2);
  return _mm512_insertf32x4(x, _mm_loadu_ps(from + row[12]), 3);
}
static inline Vector root(Vector x) { return _mm512_maskz_sqrt_ps(0xFFFF, x); }
static inline Wide root(Wide x) { return _mm512_maskz_sqrt_pd(0xFF, x); }
// y / sqrt(1 - e) = y (1 + e / 2 + 3 / 8 e**2 + 5 / 16 e**3 + ...), with e = 1 - x inverse**2, takes
// less time than the processor's root.
static inline Wide near_root(Wide x, Wide inverse, Wide y) {
  const Wide e = _mm512_fnmadd_pd(x * inverse, inverse, _mm512_set1_pd(1));
  const Wide third = _mm512_fmadd_pd(e, _mm512_set1_pd(0x1.4p-2), _mm512_set1_pd(0x1.8p-2));
  const Wide terms = e * Wide(_mm512_fmadd_pd(e, third, _mm512_set1_pd(0x1p-1)));
  return _mm512_fmadd_pd(y, terms, y);
}
static inline Wide near_root(Wide x) {
  const Wide inverse = _mm512_maskz_rsqrt14_pd(0xFF, x);
  return x == 0 ? x : near_root(x, inverse, x * inverse);
}
static inline Wide near_inverse_root(Wide x) {
  const Wide inverse = _mm512_maskz_rsqrt14_pd(0xFF, x);
  return near_root(x, inverse, inverse);
}
static inline Wide wide(Narrow x) { return _mm512_maskz_cvtps_pd(0xFF, x); }
static inline Wide floor(Wide x) { return _mm512_maskz_roundscale_pd(0xFF, x, 9); }
static inline Wide fused(Wide a, Wide b, Wide c) { return _mm512_fmadd_pd(a, b, c); }
static inline bool any(Wide bits) {
  const auto x = (__m512i)bits;
  return _mm512_test_epi64_mask(x, x) != 0;
}
static inline bool any_other(Vector a, Vector b, Vector c, Vector d) {
  constexpr int kOthers = 0x01 | 0x80 | 0x04 | 0x20;  // NaNs, -0, subnormal numbers
  return (_mm512_fpclass_ps_mask(a, kOthers) | _mm512_fpclass_ps_mask(b, kOthers) |
          _mm512_fpclass_ps_mask(c, kOthers) | _mm512_fpclass_ps_mask(d, kOthers)) != 0;
}
static inline Bits normal_or_zero(Bits x) {
  const auto i = (__m512i)x;
  return (Bits)_mm512_maskz_mov_epi32(_mm512_test_epi32_mask(i, _mm512_set1_epi32(0x7F800000)), i);
}
static inline Vector above_tiny(Vector x) {
  const __m512 tiny = _mm512_set1_ps(0x1p-126f);
  return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(_mm512_abs_ps(x), tiny, _CMP_NLE_UQ), x);
}
static inline Vector with_one_nan(Vector x) {
  // By classes, four bits each from the last ones on: quiet and signaling NaNs remain what they are the result
  // of, zeros are +0, 1 and what is infinite, negative or positive is x.
  constexpr int kClassesTo = 0x11111800;
  const auto nan = (__m512)_mm512_set1_epi32(0x7FC00000);
  return _mm512_fixupimm_ps(nan, x, _mm512_set1_epi32(kClassesTo), 0);
}
static inline Wide lookup(const double (&table)[16], Wide at) {
  return _mm512_permutex2var_pd(_mm512_load_pd(table), (__m512i)at, _mm512_load_pd(table + 8));
}
static inline Vector lookup(const float (&table)[kEntries], Bits at) {
  return _mm512_permutex2var_ps(_mm512_load_ps(table), (__m512i)at, _mm512_load_ps(table + 16));
}
static inline Vector times_power(Vector x, Vector k) { return _mm512_maskz_scalef_ps(0xFFFF, x, k); }
static inline Vector bounded(float low, Vector x, float high) {
  return _mm512_max_ps(_mm512_set1_ps(low), _mm512_min_ps(_mm512_set1_ps(high), x));
}
static inline Vector near_inverse(Vector x) { return _mm512_maskz_rcp14_ps(0xFFFF, x); }
static inline bool any(Bits bits) {
  return _mm512_test_epi32_mask((__m512i)bits, (__m512i)bits) != 0;
}
}  // namespace float32
namespace float64 {
constexpr int kLanes = 8, kVectors = 4;
#include "float64-inl.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return _mm512_fmadd_pd(a, b, c); }
static inline Vector broadcast(double x) { return _mm512_set1_pd(x); }
static inline Vector widen(const float* x) { return _mm512_cvtps_pd(_mm256_loadu_ps(x)); }
static inline Vector root(Vector x) { return _mm512_maskz_sqrt_pd(0xFF, x); }
static inline Vector smaller(Vector a, Vector b) { return _mm512_maskz_range_pd(0xFF, a, b, 10); }
}  // namespace float64
REPJAX_END_TARGET

REPJAX_BEGIN_TARGET(avx512_vnni, "avx512f,avx512dq,avx512bw,avx512vnni")
using avx512::add_to;
using avx512::Rows;
namespace words {
constexpr int kDigits = 2;
#include "words-inl.h"
}  // namespace words
namespace long_words {
constexpr int kDigits = 3;
#include "words-inl.h"
}  // namespace long_words
REPJAX_END_TARGET

#if defined(REPJAX_AMX)
REPJAX_BEGIN_TARGET(avx512_amx, "avx512f,avx512dq,avx512bw,amx-tile,amx-int8")
using avx512::add_to;
namespace digits {
#include "digits-inl.h"
#include "exact_digits-inl.h"
}  // namespace digits
REPJAX_END_TARGET
#endif

REPJAX_BEGIN_TARGET(avx2, "avx2,fma")
constexpr int Rows(int vectors) { return vectors == 1 ? 8 : 6; }
namespace float32 {
constexpr int kLanes = 8, kVectors = 2, kSeveral = 2;
constexpr bool kFused = true, kPairs = true, kClasses = false;
#include "float32-inl.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
static inline Vector broadcast(float x) { return _mm256_set1_ps(x); }
static inline Vector load_part(const float* from, int count) {
  const __m256i places = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  return _mm256_maskload_ps(from, _mm256_cmpgt_epi32(_mm256_set1_epi32(count), places));
}
static inline Vector load_fours(const float* from, const int64_t* row) {
  const __m256 x = _mm256_castps128_ps256(_mm_loadu_ps(from + row[0]));
  return _mm256_insertf128_ps(x, _mm_loadu_ps(from + row[4]), 1);
}
static inline Vector root(Vector x) { return _mm256_sqrt_ps(x); }
static inline Wide root(Wide x) { return _mm256_sqrt_pd(x); }
static inline Wide near_root(Wide x) { return root(x); }
static inline Wide near_inverse_root(Wide x) { return 1.0 / root(x); }
static inline Wide wide(Narrow x) { return _mm256_cvtps_pd(x); }
static inline Wide floor(Wide x) { return _mm256_floor_pd(x); }
static inline Wide fused(Wide a, Wide b, Wide c) { return _mm256_fmadd_pd(a, b, c); }
static inline bool any(Wide bits) { return !_mm256_testz_si256((__m256i)bits, (__m256i)bits); }
static inline Wide lookup(const double (&table)[16], Wide at) {
  return _mm256_i64gather_pd(table, (__m256i)at, 8);
}
static inline Vector lookup(const float (&table)[kEntries], Bits at) {
  const auto part = [&](int i) {
    return _mm256_permutevar8x32_ps(_mm256_load_ps(table + 8 * i), (__m256i)at);
  };
  return _mm256_blendv_ps(part(0), part(1), (__m256)(at << 28));
}
static inline void lookup(const float (&rows)[32][8], Bits at, Vector (&to)[8]) {
  int64_t row[8];
  for (int i = 0; i < 8; ++i) row[i] = 8 * (at[i] & 31);
  for (int i = 0; i < 8; ++i) to[i] = load_fours(&rows[0][i / 4 * 4], row + i % 4);
  transpose<2>(to);
}
static inline Vector bounded(float low, Vector x, float high) {
  return _mm256_max_ps(_mm256_set1_ps(low), _mm256_min_ps(_mm256_set1_ps(high), x));
}
static inline Vector near_inverse(Vector x) {
  const Vector y = _mm256_rcp_ps(x);  // within 1.5 * 2**-12
  return fma(fma(-x, y, broadcast(1)), y, y);
}
static inline Vector near_inverse_root(Vector x) { return _mm256_rsqrt_ps(x); }
static inline bool any(Bits bits) { return !_mm256_testz_si256((__m256i)bits, (__m256i)bits); }
}  // namespace float32
namespace float64 {
constexpr int kLanes = 4, kVectors = 2;
#include "float64-inl.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return _mm256_fmadd_pd(a, b, c); }
static inline Vector broadcast(double x) { return _mm256_set1_pd(x); }
static inline Vector widen(const float* x) { return _mm256_cvtps_pd(_mm_loadu_ps(x)); }
static inline Vector root(Vector x) { return _mm256_sqrt_pd(x); }
static inline Vector smaller(Vector a, Vector b) {
  return _mm256_min_pd(absolute(a), absolute(b));
}
}  // namespace float64
REPJAX_END_TARGET

#elif defined(__aarch64__)

namespace neon {
constexpr int Rows(int vectors) { return vectors <= 2 ? 8 : vectors == 3 ? 6 : 5; }
namespace float32 {
constexpr int kLanes = 4, kVectors = 4, kSeveral = 4;
constexpr bool kFused = true, kPairs = false, kClasses = false;
#include "float32-inl.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
static inline Vector broadcast(float x) { return vdupq_n_f32(x); }
static inline Vector load_part(const float* from, int count) {
  Vector x = {};
  for (int i = 0; i < count; ++i) x[i] = from[i];
  return x;
}
static inline Vector load_fours(const float* from, const int64_t* row) {
  return load(from + row[0]);
}
static inline Vector root(Vector x) { return vsqrtq_f32(x); }
static inline Wide root(Wide x) { return vsqrtq_f64(x); }
static inline Wide near_root(Wide x) { return root(x); }
static inline Wide near_inverse_root(Wide x) { return 1.0 / root(x); }
static inline Wide wide(Narrow x) { return vcvt_f64_f32(x); }
static inline Wide floor(Wide x) { return vrndmq_f64(x); }
static inline Wide fused(Wide a, Wide b, Wide c) { return vfmaq_f64(c, a, b); }
static inline bool any(Wide bits) { return vmaxvq_u32(vreinterpretq_u32_f64(bits)) != 0; }
static inline Wide lookup(const double (&table)[16], Wide at) {
  const int64x2_t i = vreinterpretq_s64_f64(at);
  return Wide{table[i[0]], table[i[1]]};
}
}  // namespace float32
namespace float64 {
constexpr int kLanes = 2, kVectors = 4;
#include "float64-inl.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return vfmaq_f64(c, a, b); }
static inline Vector broadcast(double x) { return vdupq_n_f64(x); }
static inline Vector widen(const float* x) { return vcvt_f64_f32(vld1_f32(x)); }
static inline Vector root(Vector x) { return vsqrtq_f64(x); }
static inline Vector smaller(Vector a, Vector b) { return vminq_f64(vabsq_f64(a), vabsq_f64(b)); }
}  // namespace float64
}  // namespace neon

#endif

// Any processor.  The C library's fma is slow where the processor has none; exact products of
// integers need none.
namespace plain {
constexpr int Rows(int) { return 1; }
namespace float32 {
constexpr int kLanes = 4, kVectors = 2, kSeveral = 2;
constexpr bool kFused = false, kPairs = false, kClasses = false;
#include "float32-inl.h"
static inline Vector fma(Vector a, Vector b, Vector c) {
  for (int i = 0; i < kLanes; ++i) c[i] = std::fmaf(a[i], b[i], c[i]);
  return c;
}
static inline Vector broadcast(float x) { return Vector{x, x, x, x}; }
static inline Vector load_part(const float* from, int count) {
  Vector x = {};
  for (int i = 0; i < count; ++i) x[i] = from[i];
  return x;
}
static inline Vector load_fours(const float* from, const int64_t* row) {
  return load(from + row[0]);
}
static inline Vector root(Vector x) {
  for (int i = 0; i < kLanes; ++i) x[i] = std::sqrt(x[i]);
  return x;
}
static inline Wide root(Wide x) {
  for (int i = 0; i < kLanes / 2; ++i) x[i] = std::sqrt(x[i]);
  return x;
}
static inline Wide near_root(Wide x) { return root(x); }
static inline Wide near_inverse_root(Wide x) { return 1.0 / root(x); }
static inline Wide wide(Narrow x) { return __builtin_convertvector(x, Wide); }
static inline Wide floor(Wide x) {
  for (int i = 0; i < kLanes / 2; ++i) x[i] = std::floor(x[i]);
  return x;
}
static inline Wide fused(Wide a, Wide b, Wide c) { return a * b + c; }
static inline bool any(Wide bits) {
  const auto x = as<Integers<Wide>>(bits);
  return (x[0] | x[1]) != 0;
}
static inline Wide lookup(const double (&table)[16], Wide at) {
  const auto i = as<Integers<Wide>>(at);
  return Wide{table[i[0]], table[i[1]]};
}
}  // namespace float32
namespace float64 {
constexpr int kLanes = 2, kVectors = 2;
#include "float64-inl.h"
static inline Vector fma(Vector a, Vector b, Vector c) { return a * b + c; }
static inline Vector broadcast(double x) { return Vector{x, x}; }
static inline Vector widen(const float* x) { return Vector{x[0], x[1]}; }
static inline Vector root(Vector x) { return Vector{std::sqrt(x[0]), std::sqrt(x[1])}; }
static inline Vector smaller(Vector a, Vector b) {
  a = absolute(a), b = absolute(b);
  return a < b ? a : b;
}
}  // namespace float64
}  // namespace plain

// What a target has in the order of InstructionSet.
#define REPJAX_KERNELS_OF(target)                                                             \
  target::float32::kChains, target::float64::kIntegerProducts, target::float32::kSums,        \
      target::float64::kGrids, target::float32::kElementwise, target::float32::kScatter,      \
      target::float32::kLinalg, target::float32::kRandom, target::float32::kFourier,          \
      target::float64::kRotations, target::float64::kTridiagonal,                             \
      target::float64::exact::kExact, target::float64::grid_sums::kGridSums
#if defined(__x86_64__)
const InstructionSet kAvx512 = {"AVX512", REPJAX_KERNELS_OF(avx512)};
#define REPJAX_WORDS \
  { &avx512_vnni::words::kIntegerProducts, &avx512_vnni::long_words::kIntegerProducts }
const InstructionSet kAvx512Vnni = {"AVX512_VNNI", REPJAX_KERNELS_OF(avx512), REPJAX_WORDS};
#if defined(REPJAX_AMX)
#define REPJAX_DIGITS \
  { &avx512_amx::digits::kIntegerProducts<3>, &avx512_amx::digits::kIntegerProducts<4> }
const InstructionSet kAvx512Amx = {"AVX512_AMX", REPJAX_KERNELS_OF(avx512), REPJAX_WORDS,
                                   REPJAX_DIGITS, &avx512_amx::digits::kExactProducts};
#endif
const InstructionSet kAvx2 = {"AVX2", REPJAX_KERNELS_OF(avx2)};
#elif defined(__aarch64__)
const InstructionSet kNeon = {"NEON", REPJAX_KERNELS_OF(neon)};
#endif
const InstructionSet kPlain = {"PLAIN", REPJAX_KERNELS_OF(plain)};
#undef REPJAX_KERNELS_OF

// All of this machine, the best first.
std::vector<const InstructionSet*> instruction_sets() {
  std::vector<const InstructionSet*> all;
#if defined(__x86_64__)
  const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512dq");
  if (avx512 && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vnni")) {
#if defined(REPJAX_AMX)
    using namespace avx512_amx::digits;
    static const bool amx = repjax_has_amx() && correct<3>() && correct<4>() && exact_correct();
    if (amx) all.push_back(&kAvx512Amx);
#endif
    all.push_back(&kAvx512Vnni);
  }
  if (avx512) all.push_back(&kAvx512);
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) all.push_back(&kAvx2);
#elif defined(__aarch64__)
  all.push_back(&kNeon);
#endif
  all.push_back(&kPlain);
  return all;
}

// Whether multiply-adds of these tiles note a subnormal operand, wherever it is; emulators of
// processors may not.
bool tiles_note_subnormals(const Chains& set) {
  constexpr float kSubnormal = 0x1p-130f;
  constexpr float kCases[][3] = {
      {kSubnormal, 1, 1}, {1, kSubnormal, 1}, {1, 1, kSubnormal}, {kSubnormal, kSubnormal, 0},
      {kSubnormal, __builtin_inff(), 1}, {__builtin_inff(), -kSubnormal, 1}, {1, 1, 1}};
  const int64_t offset = 0;
  for (const float* at : kCases) {
    std::vector<float> right(set.lanes, at[1]), sums(set.lanes, at[2]);
    const float* left[] = {at};
    float* to[] = {sums.data()};
    const bool is_subnormal = at != kCases[6];
    const IeeeArithmetic ieee;
    ieee.forget();
    set.tile_for(1, 1).run(1, left, &offset, right.data(), &offset, to, false, false);
    if (ieee.noted_subnormals() != is_subnormal) return false;
  }
  return true;
}

std::atomic<const InstructionSet*> chosen{nullptr};
std::atomic<bool> chosen_notes_subnormals{false};

}  // namespace

const InstructionSet& instruction_set() { return *chosen.load(); }
bool notes_subnormals() { return chosen_notes_subnormals.load(); }

}  // namespace repjax

// The name of the instruction set number i of this machine, the best first; null after them.
extern "C" const char* repjax_instruction_set(int64_t i) {
  const auto sets = repjax::instruction_sets();
  return i < int64_t(sets.size()) ? sets[i]->name : nullptr;
}

// The name of the elementwise operation number i; null after them.
extern "C" const char* repjax_operation(int64_t i) {
#define REPJAX_NAME(name) #name,
  static const char* const names[] = {REPJAX_OPERATIONS(REPJAX_NAME) nullptr};
#undef REPJAX_NAME
  return names[i];
}

// The digest of the sources that this was compiled from (primitives/cpu/sources.py).
extern "C" const char* repjax_sources() { return REPJAX_SOURCES; }

// Chooses the instruction set number i.
extern "C" void repjax_choose(int64_t i) {
  const repjax::InstructionSet* set = repjax::instruction_sets().at(i);
  repjax::chosen_notes_subnormals = repjax::tiles_note_subnormals(set->floats);
  repjax::chosen = set;
}
