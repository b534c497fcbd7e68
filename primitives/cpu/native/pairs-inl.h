// First tries of elementary functions in pairs, unevaluated sums of two float32 numbers, for
// instruction sets with tables in registers (kPairs), whose vectors hold twice as many float32 as
// float64.  A try is hi + lo with a bound of its error, and settles a result if all that is within
// the bound rounds alike; else first-inl.h tries two vectors, with AVX-512 three in a hundred.
//
// The errors below are in units of w = 2**-40; hi + lo is within kBound, but of erf and roots.  What is
// rounded to float32 is off by 2**-24 of it at most, and by half of its last bit.  Included by
// elementwise-inl.h.
//
// Tables of powers are in two registers.  Where these hold 16 numbers instead of 32, r below is twice as
// large, what is relative to r**2 four times, and so is kBound.

namespace in_pairs {

// python -m repjax.primitives.operations.elementary.generate pairs
constexpr float kRoots[32] = {
    0x1.000000p+0f, 0x1.059b0ep+0f, 0x1.0b5586p+0f, 0x1.11301ep+0f, 0x1.172b84p+0f, 0x1.1d4874p+0f,
    0x1.2387a6p+0f, 0x1.29e9e0p+0f, 0x1.306fe0p+0f, 0x1.371a74p+0f, 0x1.3dea64p+0f, 0x1.44e086p+0f,
    0x1.4bfdaep+0f, 0x1.5342b6p+0f, 0x1.5ab07ep+0f, 0x1.6247ecp+0f, 0x1.6a09e6p+0f, 0x1.71f75ep+0f,
    0x1.7a1148p+0f, 0x1.82589ap+0f, 0x1.8ace54p+0f, 0x1.93737cp+0f, 0x1.9c4918p+0f, 0x1.a5503cp+0f,
    0x1.ae89fap+0f, 0x1.b7f770p+0f, 0x1.c199bep+0f, 0x1.cb720ep+0f, 0x1.d5818ep+0f, 0x1.dfc974p+0f,
    0x1.ea4afap+0f, 0x1.f50766p+0f,
};
constexpr float kRests[32] = {
    0x0.0p+0f, -0x1.947416p-25f, 0x1.8d96d4p-25f, -0x1.dda2fep-25f, -0x1.9c0c22p-27f,
    -0x1.a2fbb4p-25f, 0x1.964902p-25f, -0x1.2b0dbcp-25f, 0x1.125002p-25f, -0x1.cde8cep-26f,
    0x1.370be4p-25f, 0x1.336de2p-30f, -0x1.0a3552p-25f, -0x1.c541b6p-26f, -0x1.00d8acp-27f,
    -0x1.6cb284p-25f, 0x1.26055cp-26f, 0x1.8b2bb8p-26f, -0x1.05cb44p-25f, -0x1.1c2142p-26f,
    0x1.67a1cap-28f, -0x1.348e56p-25f, 0x1.a3b5e4p-28f, -0x1.0b7ec8p-25f, -0x1.f9c306p-27f,
    -0x1.e4c886p-26f, -0x1.6961b4p-28f, -0x1.b5151ep-28f, -0x1.a5217cp-28f, -0x1.ab7132p-26f,
    0x1.61428ep-28f, -0x1.2ad5f8p-27f,
};
constexpr float kExp32[] = {0x1.5555c2p-3f, 0x1.5555acp-5f};  // degree 1, weighted error 2**-35.55
constexpr float kExp16[] = {  // degree 2, weighted error 2**-38.18
    0x1.555556p-3f, 0x1.555686p-5f, 0x1.111242p-7f,
};
alignas(64) constexpr float kInverses[16] = {
    0x1.642c86p+0f, 0x1.555556p+0f, 0x1.47ae14p+0f, 0x1.3b13b2p+0f, 0x1.2f684cp+0f, 0x1.24924ap+0f,
    0x1.1a7b96p+0f, 0x1.111112p+0f, 0x1.084210p+0f, 0x1.000000p+0f, 0x1.e1e1e2p-1f, 0x1.c71c72p-1f,
    0x1.af286cp-1f, 0x1.99999ap-1f, 0x1.861862p-1f, 0x1.745d18p-1f,
};
alignas(64) constexpr float kHeads[16] = {
    -0x1.522c00p-2f, -0x1.269800p-2f, -0x1.f99000p-3f, -0x1.a94000p-3f, -0x1.5bf800p-3f,
    -0x1.117800p-3f, -0x1.933000p-4f, -0x1.086000p-4f, -0x1.042000p-5f, 0x0.0p+0f, 0x1.f0a000p-5f,
    0x1.e27000p-4f, 0x1.5ff000p-3f, 0x1.c90000p-3f, 0x1.167400p-2f, 0x1.461800p-2f,
};
alignas(64) constexpr float kHeadsRests[16] = {
    0x1.1e4c76p-18f, 0x1.dcecb2p-18f, -0x1.c3cb3cp-19f, 0x1.273752p-19f, 0x1.fc255ep-18f,
    -0x1.dc44fcp-20f, -0x1.793566p-18f, 0x1.99a988p-18f, 0x1.46ec32p-18f, 0x0.0p+0f,
    0x1.85008cp-20f, 0x1.d38abcp-22f, 0x1.83053cp-18f, -0x1.0b0cacp-20f, 0x1.c97abap-18f,
    0x1.74438cp-19f,
};
constexpr float kLog2[] = {0x1.62e400p-1f, 0x1.7f7d1cp-20f};
constexpr float kLog[] = {  // degree 3, weighted error 2**-36.35
    0x1.555552p-2f, -0x1.fffff4p-3f, 0x1.99ff2cp-3f, -0x1.55c510p-3f,
};
alignas(64) constexpr float kErf[8][32] = {  // the last are the places
    {0x1.20d6b0p+32f, 0x1.1f7814p+32f, 0x1.1b6a7cp+32f, 0x1.141334p+32f, 0x1.0ac9dap+32f,
    0x1.00384cp+32f, 0x1.e85e74p+31f, 0x1.cceed8p+31f, 0x1.b46a90p+31f, 0x1.94e360p+31f,
    0x1.7c5244p+31f, 0x1.618a8ap+31f, 0x1.4be864p+31f, 0x1.33aac2p+31f, 0x1.1f660ap+31f,
    0x1.0ec2e4p+31f, 0x1.fb48f0p+30f, 0x1.e2208cp+30f, 0x1.c69b3ep+30f, 0x1.ae5544p+30f,
    0x1.96942ap+30f, 0x1.876b00p+30f, 0x1.73e46ep+30f, 0x1.6384a2p+30f, 0x1.5591f8p+30f,
    0x1.4741ecp+30f, 0x1.3e0542p+30f, 0x1.2f732ep+30f, 0x1.256460p+30f, 0x1.1a2bd8p+30f,
    0x1.11b196p+30f, 0x1.08da62p+30f},
    {-0x1.987226p+25f, -0x1.7095bap+28f, -0x1.6525fcp+29f, -0x1.07e71ep+30f, -0x1.4a8d3cp+30f,
    -0x1.7b7a74p+30f, -0x1.9dd9b0p+30f, -0x1.b1ba7cp+30f, -0x1.b63bbep+30f, -0x1.ad6080p+30f,
    -0x1.9cfbf4p+30f, -0x1.8333b8p+30f, -0x1.6947f4p+30f, -0x1.47d0aap+30f, -0x1.29094cp+30f,
    -0x1.0e6ceep+30f, -0x1.e49ae0p+29f, -0x1.baf53ap+29f, -0x1.8db682p+29f, -0x1.6690b8p+29f,
    -0x1.415c92p+29f, -0x1.2a5ad8p+29f, -0x1.0db916p+29f, -0x1.ed586ap+28f, -0x1.c78f78p+28f,
    -0x1.a24558p+28f, -0x1.8b060cp+28f, -0x1.67ae0cp+28f, -0x1.503d40p+28f, -0x1.370406p+28f,
    -0x1.249bfcp+28f, -0x1.12030cp+28f},
    {-0x1.80f68ap+30f, -0x1.77252ep+30f, -0x1.5a9456p+30f, -0x1.28bae2p+30f, -0x1.da7ac6p+29f,
    -0x1.5d16bep+29f, -0x1.b78776p+28f, -0x1.6a58c2p+27f, 0x1.ee87d8p+23f, 0x1.b59f32p+27f,
    0x1.515cd2p+28f, 0x1.a9e45ep+28f, 0x1.d2561ep+28f, 0x1.df769ap+28f, 0x1.d1dbfcp+28f,
    0x1.b7af50p+28f, 0x1.90d43ep+28f, 0x1.6e35bcp+28f, 0x1.4449c4p+28f, 0x1.1d67a2p+28f,
    0x1.ee3e0ep+27f, 0x1.be656cp+27f, 0x1.8325dap+27f, 0x1.5445dcp+27f, 0x1.2ec4dap+27f,
    0x1.0ad55ap+27f, 0x1.ea258ap+26f, 0x1.aa235ep+26f, 0x1.8141c4p+26f, 0x1.56c6b2p+26f,
    0x1.38d164p+26f, 0x1.1b7b5ep+26f},
    {0x1.ea0e3ep+24f, 0x1.b68188p+27f, 0x1.9e1f1ep+28f, 0x1.234a16p+29f, 0x1.54dcd6p+29f,
    0x1.66df80p+29f, 0x1.5d7e1ap+29f, 0x1.3a0b3cp+29f, 0x1.0c2c92p+29f, 0x1.8ccf82p+28f,
    0x1.1a5248p+28f, 0x1.43d8eap+27f, 0x1.295148p+26f, -0x1.dd323ap+22f, -0x1.d5e278p+25f,
    -0x1.5dcfaep+26f, -0x1.9f4d6ep+26f, -0x1.ae5b3ap+26f, -0x1.a204d0p+26f, -0x1.827fd0p+26f,
    -0x1.561f1cp+26f, -0x1.356694p+26f, -0x1.090de8p+26f, -0x1.c7ea9cp+25f, -0x1.8b41e0p+25f,
    -0x1.51035ap+25f, -0x1.2e12f2p+25f, -0x1.f7522cp+24f, -0x1.b8aef8p+24f, -0x1.797d8ep+24f,
    -0x1.4e4a60p+24f, -0x1.2539dcp+24f},
    {0x1.cdbb18p+28f, 0x1.b675d4p+28f, 0x1.73f7f6p+28f, 0x1.04910ap+28f, 0x1.10515cp+27f,
    0x1.0c66b4p+24f, -0x1.6bc934p+26f, -0x1.64868cp+27f, -0x1.c3d386p+27f, -0x1.f0f330p+27f,
    -0x1.ded0dcp+27f, -0x1.9fb966p+27f, -0x1.544e04p+27f, -0x1.e2326ap+26f, -0x1.37d628p+26f,
    -0x1.6c5e56p+25f, -0x1.144b34p+24f, -0x1.04b8eap+20f, 0x1.743728p+23f, 0x1.2356d0p+24f,
    0x1.4cd6fap+24f, 0x1.4c6f92p+24f, 0x1.34944ep+24f, 0x1.12c582p+24f, 0x1.e13e6ep+23f,
    0x1.97f2d0p+23f, 0x1.6984b0p+23f, 0x1.24c7c0p+23f, 0x1.f3a7eep+22f, 0x1.9de2ecp+22f,
    0x1.645eb8p+22f, 0x1.2ef098p+22f},
    {-0x1.5e62c4p+23f, -0x1.35ee02p+26f, -0x1.1cd278p+27f, -0x1.7b3312p+27f, -0x1.99aec0p+27f,
    -0x1.825f6cp+27f, -0x1.3f8e56p+27f, -0x1.b44bf6p+26f, -0x1.e58cdap+25f, -0x1.b4763cp+21f,
    0x1.03f78ap+25f, 0x1.d81712p+25f, 0x1.161a36p+26f, 0x1.1592e2p+26f, 0x1.e642ecp+25f,
    0x1.8ac676p+25f, 0x1.1a922cp+25f, 0x1.8cd9a8p+24f, 0x1.c923c0p+23f, 0x1.ab0b16p+22f,
    0x1.373ae0p+20f, -0x1.20ae04p+20f, -0x1.78da78p+21f, -0x1.c91e50p+21f, -0x1.ce51f0p+21f,
    -0x1.aa8044p+21f, -0x1.85c3dep+21f, -0x1.4191dcp+21f, -0x1.1151c8p+21f, -0x1.bd26ccp+20f,
    -0x1.77a8b4p+20f, -0x1.372460p+20f},
    {-0x1.b5cfb4p+26f, -0x1.92d110p+26f, -0x1.2d24a0p+26f, -0x1.38a3b6p+25f, 0x1.d6afe2p+17f,
    0x1.187758p+25f, 0x1.dd4b92p+25f, 0x1.1ced0ap+26f, 0x1.182106p+26f, 0x1.d4ce14p+25f,
    0x1.4bbc06p+25f, 0x1.6c281ap+24f, 0x1.87166ep+22f, -0x1.9e1280p+22f, -0x1.c512dcp+23f,
    -0x1.15faa8p+24f, -0x1.12f120p+24f, -0x1.dbee9ap+23f, -0x1.731746p+23f, -0x1.074d3ep+23f,
    -0x1.513192p+22f, -0x1.81a2bcp+21f, -0x1.68a782p+20f, -0x1.8d019cp+18f, 0x1.8d3654p+17f,
    0x1.e74d98p+18f, 0x1.24aa1cp+19f, 0x1.219f54p+19f, 0x1.0543e8p+19f, 0x1.c03cc0p+18f,
    0x1.75f574p+18f, 0x1.351370p+18f},
    {0x1.0f86ccp-6f, 0x1.ee4554p-4f, 0x1.eb6714p-3f, 0x1.7cf06ep-2f, 0x1.fc6254p-2f, 0x1.3af27ep-1f,
    0x1.78e20ep-1f, 0x1.baf5a6p-1f, 0x1.f46be0p-1f, 0x1.1f5114p+0f, 0x1.3d23e2p+0f, 0x1.5f5e62p+0f,
    0x1.7cf332p+0f, 0x1.a0f6c4p+0f, 0x1.c23002p+0f, 0x1.e0393cp+0f, 0x1.013886p+1f, 0x1.0f1decp+1f,
    0x1.1fe576p+1f, 0x1.3058f6p+1f, 0x1.424230p+1f, 0x1.4ecac4p+1f, 0x1.60694cp+1f, 0x1.70a968p+1f,
    0x1.7fb9a2p+1f, 0x1.908336p+1f, 0x1.9c25b6p+1f, 0x1.aff04ep+1f, 0x1.bebf1cp+1f, 0x1.d08318p+1f,
    0x1.dee678p+1f, 0x1.eee2bep+1f},
};

// 2**(i / kEntries), and what is left of it.
struct Powers {
  alignas(64) float at[kEntries];
};
constexpr Powers some_of(const float (&all)[32]) {
  Powers powers = {};
  for (int i = 0; i < kEntries; ++i) powers.at[i] = all[i * (32 / kEntries)];
  return powers;
}
constexpr Powers kSomeRoots = some_of(kRoots), kSomeRests = some_of(kRests);

// As rows of eight columns, which fill a vector where that has eight elements.
struct Rows {
  alignas(32) float at[32][8];
};
constexpr Rows transposed(const float (&columns)[8][32]) {
  Rows rows = {};
  for (int i = 0; i < 32; ++i) {
    for (int n = 0; n < 8; ++n) rows.at[i][n] = columns[n][i];
  }
  return rows;
}
constexpr Rows kErfRows = transposed(kErf);

// With vectors of eight elements more functions are tried, and exponents are added as integers: with sixteen,
// tables of float64 are in registers, too, and powers of two have an instruction.
constexpr bool kMore = kLanes == 8;

constexpr float kBound = kEntries == 32 ? 0x1.8p-35f : 0x1.8p-33f;

// Several vectors, whose operations take turns, as in several-inl.h.
using several::as;
using several::map;
typedef several::Vectors<float32::Vector> Vector;
typedef several::Vectors<float32::Bits> Bits;

struct Tried {
  Vector y;
  Bits doubt;
};
struct NotTried {};
struct Pair {
  Vector hi, lo;
};

// The functions on one vector; templates, since some are there where kPairs only.
INLINE Vector full(float x) { return several::full<Vector>(x); }
INLINE Bits fill(int32_t x) { return several::full<Bits>(x); }
INLINE Vector fma(Vector a, Vector b, Vector c) {
  return map([](auto... x) { return float32::fma(x...); }, a, b, c);
}
INLINE Bits magnitude(Vector x) { return as<Bits>(x) & fill(INT32_MAX); }
INLINE Vector negative_of(Vector x) { return as<Vector>(as<Bits>(x) | fill(INT32_MIN)); }
INLINE Bits guard(Vector x) {
  return map([](auto a) { return float32::guard(a); }, x);
}
template <int kCount, class V>
INLINE Vector lookup(const float (&table)[kCount], V at) {
  return map([&](auto i) { return float32::lookup(table, i); }, at);
}
template <class V>
INLINE void lookup(const Rows& rows, V at, Vector (&to)[8]) {
#pragma GCC unroll 4
  for (int k = 0; k < kSeveral; ++k) {
    float32::Vector found[8];
    float32::lookup(rows.at, at.part[k], found);
#pragma GCC unroll 8
    for (int n = 0; n < 8; ++n) to[n].part[k] = found[n];
  }
}
template <class V>
INLINE V bounded(float low, V x, float high) {
  return map([=](auto a) { return float32::bounded(low, a, high); }, x);
}
INLINE Bits less(Bits a, Bits b) {
  return map([](auto x, auto y) { return (float32::Bits)(x < y); }, a, b);
}
// Also of a NaN.
INLINE Bits exceeds(Vector x, Vector most) {
  return map([](auto a, auto b) { return ~(float32::Bits)(a <= b); }, x, most);
}
INLINE Bits equal(Bits a, Bits b) {
  return map([](auto x, auto y) { return (float32::Bits)(x == y); }, a, b);
}
INLINE Vector number(Bits x) {
  return map([](auto a) { return __builtin_convertvector(a, float32::Vector); }, x);
}
INLINE Vector root(Vector x) {
  return map([](auto a) { return float32::root(a); }, x);
}
template <class V>
INLINE V near_inverse(V x) {
  return map([](auto a) { return float32::near_inverse(a); }, x);
}
template <class V>
INLINE V near_inverse_root(V x) {
  return map([](auto a) { return float32::near_inverse_root(a); }, x);
}

// hi and a rest between `least` and `most`: rounding is monotone.
INLINE Tried rounded(Vector hi, Vector least, Vector most) {
  const Vector y = hi + most;
  return {y, as<Bits>(y) ^ as<Bits>(hi + least)};
}

// e**x = 2**k e**(r + low) for |x| <= 104, k the multiple of 1/kEntries, here 1/32, next to x / log(2).
// `root` is the float32 number next to 2**(k - floor(k)).
//
// k is next to x / log(2) but for 2**-17, so that |r| < log(2) / 64 + 2**-18 < 0.010836.  r is
// exact: unless k = 0 and r = x, |x| > 2**-7, so that x and k times a number of 21 bits are
// multiples of 2**-30.  |low| < 2**-21.6, for |k| < 60 below 2**-22.6; it is within 2**-44.8, or
// 2**-45.9.
struct Power {
  Vector k, root, r, low;
  Bits n;  // where kMore: floor(k), in the place of an exponent
};
template <class V>
INLINE Power power(V x) {
  const auto zero = full(kEntries == 32 ? 0x1.8p18f : 0x1.8p19f);  // its last bit is 1/kEntries
  const V at = fma(x, full(0x1.715476p+0f), zero), k = at - zero;
  const V r = fma(k, full(-0x1.62e43p-1f), x);
  const V low = fma(k, full(0x1.05c61p-29f), lookup(kSomeRests.at, as<Bits>(at)));
  const Bits n = (as<Bits>(at) & fill(-kEntries)) << (23 - 4);
  return {k, lookup(kSomeRoots.at, as<Bits>(at)), r, low, n};
}

// x 2**floor(k), with one rounding, for k < 128; where kMore, zeros where that power is no normal number.
template <class V>
INLINE V times_power(V x, V k, Bits n) {
  if constexpr (kMore) {
    const Bits power = n + as<Bits>(full(1));
    return x * as<V>(power & less(Bits{}, power));
  } else {
    return map([](auto a, auto k) { return float32::times_power(a, k); }, x, k);
  }
}
// The same, made canonical, of x next to 1.
template <class V>
INLINE Bits canonical_times_power(V x, V k, Bits n) {
  if constexpr (kMore) {
    const Bits y = as<Bits>(x) + n;
    return y & less(fill(0x00800000), y);
  } else {
    return guard(times_power(x, k, n));
  }
}

// (e**r - 1 - r - r**2 / 2) / r**3
INLINE Vector cubic(Vector r) {
  if (kEntries == 32) return fma(full(kExp32[1]), r, full(kExp32[0]));
  return fma(fma(full(kExp16[2]), r, full(kExp16[1])), r, full(kExp16[0]));
}

// root (1 + r + s), s = low + q**2 / 2 + q**3 p(q), q = r + low, as hi = root (1 + r), rounded, and
// lo.
//
// |q| < 0.01084, |s| < 2**-14.  Relative to the root: rounding q, times q: 5.6 w; q**2: 2 w; its
// factor near 1/2: 3.9 w; s: 2 w; p: 0.3 w; low: 0.1 w; together 13.9 w.  root - hi is exact, |lo|
// is below 2**-13, and rounding lo takes 4 w.
INLINE Pair sum(const Power& e) {
  const Vector q = e.r + e.low;
  const Vector c = fma(cubic(q), q, full(0.5f));
  const Vector s = fma(q * q, c, e.low);
  const Vector hi = fma(e.root, e.r, e.root);
  return {hi, fma(e.root, s, fma(e.root, e.r, e.root - hi))};
}

// The root is below 2: 2 * 13.9 w + 4 w, and 4 w in lo + 48 w, are within these.
template <class V>
INLINE Tried exp(V x) {
  const Power e = power(bounded(-104, x, kMore ? 88 : 89));
  const Pair y = sum(e);
  const auto bound = full(kBound);
  Tried tried = rounded(y.hi, y.lo - bound, y.lo + bound);
  tried.y = as<V>(canonical_times_power(tried.y, e.k, e.n));
  if (kMore) tried.doubt = tried.doubt | exceeds(x, full(88));  // its exponent may be that of a NaN
  return tried;
}

// (hi + lo) / (d + rest), with |lo| < 2**-14 hi and |rest| < 2**-13.9 d, as q and what is left.
//
// Relative to q: `inverse` is within 2**-23.9 of that of d + rest.  What is left of hi is below
// 2**-13.8 hi; roundings of this, of the sum with lo, of the product, the error of `inverse` in it,
// and the last rounding take 4.6 w, 4 w, 4.3 w, 4.3 w and 4.3 w; a sixteenth of that where lo and
// rest are below 2**-18.
template <class V>
INLINE Tried quotient(Pair x, V d, V rest) {
  const auto left = [=](Vector q, Vector hi) { return fma(-q, rest, fma(-q, d, hi)); };
  const Vector near = near_inverse(d), inverse = fma(left(near, full(1)), near, near);
  const Vector q = x.hi * inverse, lo = (left(q, x.hi) + x.lo) * inverse;
  return rounded(q, fma(q, full(-kBound), lo), fma(q, full(kBound), lo));
}

// 1 / (1 + e**-x): with e = e**-|x|, 1 / (1 + e), or e / (1 + e) where x < 0.
//
// e is within 18.1 w of itself, e / (1 + e) so, too, 1 + e within 9.1 w and, with the rounding of
// `rest`, 4 w: 22.1 w, and 21.5 w in the quotient.
template <class V>
INLINE Tried logistic(V x) {
  const Bits is_negative = as<Bits>(x) >> 31;
  const Power e = power(bounded(-104, negative_of(x), 0));
  const Pair y = sum(e);
  const Vector a = times_power(y.hi, e.k, e.n), d = a + full(1);
  const Vector rest = (a - (d - full(1))) + times_power(y.lo, e.k, e.n);
  const auto if_negative = [=](auto y, auto z) { return where(is_negative, y, z); };
  Tried tried = quotient({if_negative(y.hi, full(1)), if_negative(y.lo, Vector{})}, d, rest);
  const Bits z =
      canonical_times_power(tried.y, if_negative(e.k, Vector{}), if_negative(e.n, Bits{}));
  tried.y = as<Vector>(z & fill(INT32_MAX));  // a NaN has lost its sign
  if (kMore) tried.doubt = tried.doubt | exceeds(x, full(__builtin_inff()));
  return tried;
}

// e**x - 1 = (m - 1) + m (t + s), m = 2**k, t + s = r + r**2 / 2 + r**3 p(r) + low (1 + t), for
// -40 <= x <= 0.
//
// m - 1 is n and of_n, r + r**2 / 2 is t, of_t and half of of_p, all exactly (but for underflow
// where |x| < 2**-50, and the result is x).  |m t| is at most half of |n|, or n = 0, so that n - hi
// is exact, and |m r| is below 1.01 times the result, e.  Relative to e: p 22.6 w; four roundings
// of at most 2**-46 in s, or where k = 0 of 2**-25 |r|**3, 6 w; low 1.6 w; lo, which is below
// 2**-15 e, 2 w: 32.2 w.
template <class V>
INLINE Pair less_one(V x) {
  const Power e = power(x);
  const Vector p = e.r * e.r, of_p = fma(e.r, e.r, -p), half = full(0.5f);
  const Vector t = fma(half, p, e.r), of_t = fma(half, p, e.r - t);
  const Vector c = cubic(e.r);
  const Vector s = fma(e.low, t, e.low) + fma(half, of_p, fma(p * e.r, c, of_t));
  const Vector m = times_power(e.root, e.k, e.n), n = m - full(1), of_n = m - (n + full(1));
  const Vector hi = fma(m, t, n);
  return {hi, fma(m, s, fma(m, t, n - hi) + of_n)};
}

// -e / (2 + e), e = e**(-2 |x|) - 1.
//
// Errors of e count 2 / (2 + e) times: 32.6 w for k >= -1/32, and elsewhere at most 2 / 3 of that,
// as |e| is three times |m r|; the quotient takes 8 w, as lo is below 2**-15 e.
template <class V>
INLINE Tried tanh(V x) {
  const Vector a = negative_of(x);
  const Pair e = less_one(bounded(-40, a + a, 0));
  const Vector d = e.hi + full(2), rest = (e.hi - (d - full(2))) + e.lo;
  Tried tried = quotient(e, d, rest);
  tried.y = as<Vector>(guard(as<Vector>(as<Bits>(tried.y) ^ (~as<Bits>(x) & fill(INT32_MIN)))));
  return tried;
}

// x (c0 + c1 t + c2 t**2 + ...), t = |x| - places[i], i the integer next to 8 |x|; from 3.93 on, it
// rounds to 1.  The coefficients are those of 2**32 erf, so that nothing is subnormal.
//
// The places are such that c0, c1 and c2 are nearly float32 numbers.  |t| < 0.0926, and t is exact
// but for i = 0, where it counts for less than 12 w.  Relative to the result: the rounding of the
// three and of c2 + c3 t + ..., 104 w at most, which is what the script makes smallest; the
// polynomial without it 1.2 w; the rounding of c3 + c4 t + ... 3 w, of what follows less than 1 w.
// The bound is 112 w, 2**-33.2; the largest error of all inputs is 86 w.
template <class V>
INLINE Tried erf(V x) {
  const V a = bounded(-3.93f, x, 3.93f), y = as<Vector>(magnitude(a));
  const Bits at = as<Bits>(y + full(0x1.8p20f));  // its last bit is 1/8
  V row[8];
  if constexpr (kMore) lookup(kErfRows, at, row);
  const auto coefficient = [&](int n) {
    if constexpr (kMore) return row[n];
    else return lookup(kErf[n], at);
  };
  const V t = y - coefficient(7), c0 = coefficient(0), c1 = coefficient(1);
  V c = coefficient(6);
  for (int n = 5; n >= 2; --n) c = fma(c, t, coefficient(n));
  const V b = fma(c, t, c1), of_b = fma(c, t, c1 - b);
  const V p = fma(b, t, c0), of_p = fma(of_b, t, fma(b, t, c0 - p));
  const V hi = a * p, lo = fma(a, of_p, fma(a, p, -hi));
  Tried tried = rounded(hi, fma(hi, full(-0x1.cp-34f), lo), fma(hi, full(0x1.cp-34f), lo));
  tried.y = tried.y * full(0x1p-32f);
  return tried;
}

// The root of u**2 + v**2, u >= v >= 0, as s + t, and h next to its root: h + (s - h**2 + t) / (2 h), for u
// from 2**-50 to 2**60, so that no square of u, or what is left of it, is subnormal; what is lost of v is
// below 2**-48 of the sum.  0 for zeros.
//
// s - h**2 is exact, as h is rounded.  |t| is below 2**-23 s and within 2**-46.3 s, |s - h**2| below 2**-23 s.
// Relative to h, in units of 2**-46: t takes 0.4, the sum of the two 0.5, the next term of the series 0.5,
// `inverse`, within 2**-23, 1, and two roundings of the quotient, 1: 3.4 of 8.
template <class V>
INLINE Tried hypot(V x, V y) {
  const Bits a = magnitude(x), b = magnitude(y), is_first = less(b, a);
  const Bits larger = where(is_first, a, b);
  const V u = as<Vector>(larger), v = as<Vector>(where(is_first, b, a));
  const V p = u * u, q = v * v, s = p + q;
  const V t = (q - (s - p)) + (fma(u, u, -p) + fma(v, v, -q)), h = root(s);
  const V near = near_inverse(h), inverse = fma(fma(-h, near, full(1)), near, near);
  const V lo = (fma(-h, h, s) + t) * (inverse * full(0.5f));
  Tried tried = rounded(h, fma(h, full(-0x1p-43f), lo), fma(h, full(0x1p-43f), lo));
  const Bits is_small = less(larger, fill(0x26800000)), is_large = less(fill(0x5D800000), larger);
  const Bits is_number = less(fill(0), larger);
  tried.y = as<Vector>(as<Bits>(tried.y) & is_number);
  tried.doubt = (tried.doubt | is_small | is_large) & is_number;
  return tried;
}

// x where that is +infinity, or the one NaN or infinity that a logarithm of it is; else y.
INLINE Tried with_limits(Tried tried, Bits is_positive, Vector x, Bits of_zero) {
  const Bits i = as<Bits>(x), infinity = fill(0x7F800000);
  const Bits is_usual = is_positive & less(i, infinity);
  const Bits other = where(less(fill(0), i), i, where(of_zero, fill(INT32_MIN) | infinity, fill(0x7FC00000)));
  return {as<Vector>(where(is_usual, guard(tried.y), other)), tried.doubt & is_usual};
}

// x = 2**k m for x > 0, m in [45/64, 45/32), in one of 16 intervals, of whose middle c is next to the inverse.
// In that of 1, the tenth, c is 1.
struct Split {
  Bits k, interval;
  Vector m, c;
};
template <class V>
INLINE Split split(V x) {
  const Bits above = as<Bits>(x) - fill(0x3F340000), k = above >> 23, interval = above >> 19;
  return {k, interval, as<V>(as<Bits>(x) - (k << 23)), lookup(kInverses, interval)};
}

// k log(2) - log(c) + log(1 + f + of_f), with 1 + f + of_f = m c, |f| <= 1/32 and |of_f| < 2**-23.
//
// Exact are head, which has 23 bits, what the sum of head and f leaves, as head is 0 or the larger,
// f**2 = q + of_q, and what is left of hi.  Relative to the result, which is f at most or, where c is not 1 or
// k not 0, at least 2**-6: the polynomial 12 w; where f = 1/32, q, f q, the cubic and three roundings of lo, of
// 2**-11.6, 21 w each; elsewhere at most 17 w each, and the rests 16 w; of_f f**4 3 w: 158 w.
template <class V>
INLINE Tried log(const Split& x, V f, V of_f) {
  const V n = number(x.k), half = full(-0.5f), q = f * f, of_q = fma(f, f, -q);
  const V head = fma(n, full(kLog2[0]), lookup(kHeads, x.interval));
  const V rest = fma(n, full(kLog2[1]), lookup(kHeadsRests, x.interval));
  const V s = head + f, hi = fma(half, q, s), left = fma(half, q, s - hi) + (f - (s - head));
  V cubic = full(kLog[3]);
  for (int i = 2; i >= 0; --i) cubic = fma(cubic, f, full(kLog[i]));
  const V of_log = fma(-of_f, f, of_f);  // of_f / (1 + f) = of_f (1 - f) (1 + f**2), but for f**4
  const V lo = (fma(f * q, cubic, rest) + left) + fma(half, of_q, fma(of_log, q, of_log));
  return rounded(hi, fma(hi, full(-kBound), lo), fma(hi, full(kBound), lo));
}

template <class V>
INLINE auto log(V x) {
  if constexpr (kMore) {
    const Split at = split(x);
    const V p = at.m * at.c;
    const Bits i = as<Bits>(x), zero = {};
    return with_limits(log(at, p - full(1), fma(at.m, at.c, -p)), less(zero, i), x, equal(i, zero));
  } else {
    return NotTried{};
  }
}

// Of the sum of 1 and x is exactly left what it takes from the larger less the smaller.  In the interval of 1, f
// is x.
template <class V>
INLINE auto log1p(V x) {
  if constexpr (kMore) {
    const V one = full(1), sum = x + one;
    const Bits is_large = less(as<Bits>(one), magnitude(x));
    const V a = where(is_large, x, one), b = where(is_large, one, x);
    const Split at = split(sum);
    const Bits inverse = as<Bits>(one) - (at.k << 23), is_near = equal(at.interval, fill(9));
    const V of_m = (b - (sum - a)) * as<V>(where(less(inverse, Bits{}), Bits{}, inverse));
    const V p = at.m * at.c, of_p = fma(of_m, at.c, fma(at.m, at.c, -p));
    const V f = where(is_near, x, p - one), of_f = where(is_near, V{}, of_p);
    const Bits is_zero = equal(as<Bits>(x), fill(INT32_MIN) | as<Bits>(one));
    return with_limits(log(at, f, of_f), less(Bits{}, as<Bits>(sum)), x, is_zero);
  } else {
    return NotTried{};
  }
}

// y + y (e / 2 + 3 e**2 / 8), e = 1 - x y**2, y next to the result by a step of Newton's.
//
// |e| < 2**-20.7, x y is a and of_a exactly, and roundings of 2**-46 in e and of 2**-45 in lo are all.
// What is not a positive number is left to float64.
template <class V>
INLINE auto rsqrt(V x) {
  if constexpr (kMore) {
    const V one = full(1), half = full(0.5f), near = near_inverse_root(x);
    const V y = fma(near * half, fma(-(x * near), near, one), near);
    const V a = x * y, of_a = fma(x, y, -a), e = fma(-of_a, y, fma(-a, y, one));
    const V lo = (y * half) * fma(e * full(0.75f), e, e);
    Tried tried = rounded(y, fma(y, full(-0x1p-40f), lo), fma(y, full(0x1p-40f), lo));
    const Bits is_usual = less(Bits{}, as<Bits>(x)) & less(as<Bits>(x), fill(0x7F800000));
    tried.doubt = tried.doubt | ~is_usual;
    return tried;
  } else {
    return NotTried{};
  }
}

// The others are not tried.
#define NOT_TRIED(name) \
  template <class V>    \
  INLINE NotTried name(V) { return {}; }
NOT_TRIED(exp2) NOT_TRIED(expm1) NOT_TRIED(log2) NOT_TRIED(log10)
NOT_TRIED(erfc) NOT_TRIED(erf_inv) NOT_TRIED(sinh) NOT_TRIED(cosh)
NOT_TRIED(lgamma) NOT_TRIED(digamma) NOT_TRIED(sin) NOT_TRIED(cos) NOT_TRIED(tan)
#undef NOT_TRIED

template <class V>
INLINE NotTried pow(V, V) {
  return {};
}

// `to` = first(of...) where that settles the results of two vectors, else rest(count, to, of...), of kSeveral
// vectors.
template <class First, class Rest, class... Of>
INLINE void try_several(First first, Rest rest, int32_t* to, const Of*... of) {
  const auto load = [](const int32_t* from) {
    Vector x;
#pragma GCC unroll 4
    for (int k = 0; k < kSeveral; ++k) {
      __builtin_memcpy(&x.part[k], from + k * kLanes, sizeof x.part[k]);
    }
    return x;
  };
  const Tried tried = first(load(of)...);
  float32::Bits doubt = tried.doubt.part[0];
#pragma GCC unroll 4
  for (int k = 1; k < kSeveral; ++k) doubt |= tried.doubt.part[k];
  const bool settled = !float32::any(doubt);
#pragma GCC unroll 4
  for (int k = 0; k < kSeveral; k += 2) {
    const int at = k * kLanes;
    if (!settled && float32::any(tried.doubt.part[k] | tried.doubt.part[k + 1])) {
      rest(2 * kLanes, to + at, Operand{of + at, false}...);
    } else {
      __builtin_memcpy(to + at, &tried.y.part[k], sizeof tried.y.part[k]);
      __builtin_memcpy(to + at + kLanes, &tried.y.part[k + 1], sizeof tried.y.part[k]);
    }
  }
}

constexpr int64_t kElements = kSeveral * kLanes;
template <class First, class... V>
constexpr bool is_tried() {
  if constexpr (kPairs) return std::is_same_v<decltype(std::declval<First>()(V{}...)), Tried>;
  return false;
}

// to = first(from) where that settles it, else rest(count, to, from).  `count` is a multiple of kLanes.
template <class First, class Rest>
static inline void each(int64_t count, Operand from, int32_t* to, First first, Rest rest) {
  if constexpr (is_tried<First, Vector>()) {
    const auto run = [&](const int32_t* in, int32_t* out, int64_t here) {
      for (int64_t i = 0; i < here; i += kElements) try_several(first, rest, out + i, in + i);
    };
    return several::in_steps<kElements>(count, from, to, run);
  }
  rest(count, to, from);
}

// The same of two operands; what is no kElements, or of a number, is left to `rest`.
template <class First, class Rest>
static inline void each(int64_t count, Operand a, Operand b, int32_t* to, First first, Rest rest) {
  int64_t done = 0;
  if constexpr (is_tried<First, Vector, Vector>()) {
    if (!a.same && !b.same) done = count / kElements * kElements;
    for (int64_t i = 0; i < done; i += kElements) try_several(first, rest, to + i, a.at + i, b.at + i);
  }
  const auto from = [=](Operand x) { return Operand{x.at + (x.same ? 0 : done), x.same}; };
  if (done < count) rest(count - done, to + done, from(a), from(b));
}

}  // namespace in_pairs
