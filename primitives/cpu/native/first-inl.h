// First tries of elementary functions: in float64, to about 2**-43 and not to the last bit, which
// takes fewer operations.  A try settles a result if all that is within 2**-40 of it rounds alike;
// else the function of elementary-inl.h computes it, for one vector in a thousand.  So the
// results are correctly rounded, and the same, whichever of the two gives them.
//
// docs/kernels.md, "First tries", has the bounds of the errors.  Included by several-inl.h.

namespace first {

// python -m repjax.primitives.operations.elementary.generate first
constexpr double kExp[] = {  // degree 8, weighted error 2**-43.55
    0x1.fffffffffff9cp-1, 0x1.fffffffff7379p-2, 0x1.555555556db0ep-3, 0x1.55555573f1ac6p-5,
    0x1.111110d8b52a6p-7, 0x1.6c164e667e9c3p-10, 0x1.a01a8ec7b9e8bp-13, 0x1.a159c832a8607p-16,
    0x1.71dcbf430ec3ap-19,
};
constexpr double kLog[] = {  // degree 6, weighted error 2**-43.99
    0x1.ffffffffffff9p-1, -0x1.000000001c0dbp-1, 0x1.55555555c062ap-2, -0x1.fffff1fb28a3ap-3,
    0x1.9999886dc3911p-3, -0x1.55c570f79302ap-3, 0x1.250270c7e4265p-3,
};
alignas(64) constexpr double kInverses[16] = {
    0x1.642c8590b2164p+0, 0x1.5555555555555p+0, 0x1.47ae147ae147bp+0, 0x1.3b13b13b13b14p+0,
    0x1.2f684bda12f68p+0, 0x1.2492492492492p+0, 0x1.1a7b9611a7b96p+0, 0x1.1111111111111p+0,
    0x1.0842108421084p+0, 0x1.0000000000000p+0, 0x1.e1e1e1e1e1e1ep-1, 0x1.c71c71c71c71cp-1,
    0x1.af286bca1af28p-1, 0x1.999999999999ap-1, 0x1.8618618618618p-1, 0x1.745d1745d1746p-1,
};
alignas(64) constexpr double kLogarithms[16] = {
    -0x1.522ae0738a3d7p-2, -0x1.269621134db91p-2, -0x1.f991c6cb3b37ap-3, -0x1.a93ed3c8ad9e5p-3,
    -0x1.5bf406b543db0p-3, -0x1.1178e8227e47ap-3, -0x1.9335e5d594988p-4, -0x1.08598b59e3a06p-4,
    -0x1.0415d89e74440p-5, 0x0.0p+0, 0x1.f0a30c01162a8p-5, 0x1.e27076e2af2eap-4,
    0x1.5ff3070a793d6p-3, 0x1.c8ff7c79a9a20p-3, 0x1.1675cababa60fp-2, 0x1.4618bc21c5ec2p-2,
};
constexpr double kLog2[] = {  // degree 8, weighted error 2**-54.69
    0x1.71547652b82fep+0, -0x1.71547652b82b8p-1, 0x1.ec709dc3a02b8p-2, -0x1.71547654519dcp-2,
    0x1.2776c5114aa5ep-2, -0x1.ec7075505f2cdp-3, 0x1.a617341f1cb5ep-3, -0x1.7211e6569751fp-3,
    0x1.490882394b9d0p-3,
};
alignas(64) constexpr double kShortInverses[16] = {
    0x1.0000000000000p+0, 0x1.e000000000000p-1, 0x1.c800000000000p-1, 0x1.b000000000000p-1,
    0x1.9800000000000p-1, 0x1.8800000000000p-1, 0x1.7400000000000p-1, 0x1.6400000000000p+0,
    0x1.5400000000000p+0, 0x1.4800000000000p+0, 0x1.3c00000000000p+0, 0x1.3000000000000p+0,
    0x1.2400000000000p+0, 0x1.1c00000000000p+0, 0x1.1000000000000p+0, 0x1.0800000000000p+0,
};
alignas(64) constexpr double kLog2Heads[16] = {
    0x0.0p+0, 0x1.7d60000000000p-4, 0x1.563e000000000p-3, 0x1.f5fd800000000p-3,
    0x1.4f6fc00000000p-2, 0x1.8a89800000000p-2, 0x1.d7e6c00000000p-2, -0x1.e726c00000000p-2,
    -0x1.a337800000000p-2, -0x1.6e22000000000p-2, -0x1.3712400000000p-2, -0x1.fbc1800000000p-3,
    -0x1.84c2800000000p-3, -0x1.32ae800000000p-3, -0x1.663f000000000p-4, -0x1.6bae000000000p-5,
};
alignas(64) constexpr double kLog2Rests[16] = {
    0x0.0p+0, 0x1.25b3eed319cedp-22, -0x1.eb0029a6f9bc7p-22, 0x1.520c7c69211fep-24,
    -0x1.34c4e99e1c6c6p-24, 0x1.57f7a64ccd537p-27, 0x1.5786af187a96bp-27, 0x1.5e18ab2df3ae6p-22,
    0x1.f5809faf6283cp-22, -0x1.cd9d0cde578d5p-22, -0x1.9d499bd9b3226p-23, 0x1.46fd97f5dc572p-23,
    -0x1.e81781d97ee91p-22, -0x1.e278ae1a1f51fp-23, -0x1.beb244c59f331p-22, 0x1.914e204f19d94p-22,
};
constexpr double kBinet[] = {  // degree 4, weighted error 2**-52.25
    0x1.55555555550b8p-4, -0x1.6c16c13d7b44ep-9, 0x1.a018f9b19f543p-11, -0x1.377a2fb7da676p-11,
    0x1.91c9d78970665p-11,
};
constexpr double kDigamma[] = {  // degree 4, weighted error 2**-52.70
    0x1.555555554e498p-4, -0x1.1111104740c8fp-7, 0x1.040e6a7966de6p-8, -0x1.1020078518a1fp-8,
    0x1.b76966f9a9427p-8,
};
constexpr double kCos[] = {  // degree 7, weighted error 2**-48.80
    0x1.fffffffffffefp-1, -0x1.3bd3cc9be4183p+2, 0x1.03c1f0819ec7dp+2, -0x1.55d3c7d85648bp+0,
    0x1.e1f500e6411bdp-3, -0x1.a6d0710d0c6d1p-6, 0x1.f9613affa25d0p-10, -0x1.a52e7b289bf40p-14,
};
constexpr double kSin[] = {  // degree 7, weighted error 2**-52.00
    0x1.fffffffffffffp-1, -0x1.a51a66253069bp+0, 0x1.9f9cb402affa9p-1, -0x1.86a8e46c17969p-3,
    0x1.ac6802f43b833p-6, -0x1.3380ab97b8194p-9, 0x1.370f87cb84469p-13, -0x1.c3375f910d5d4p-18,
};
constexpr double kPi2[] = {0x1.921fb54800000p+0, -0x1.de973dc800000p-31, -0x1.9d9cceba3f91fp-62};
constexpr double kSine[] = {  // degree 5, weighted error 2**-47.64
    0x1.fffffffffffd7p-1, -0x1.5555555550c65p-3, 0x1.1111110bbd1bep-7, -0x1.a019f87c84181p-13,
    0x1.71d72029b7f4ap-19, -0x1.a94ae42f00ff3p-26,
};
constexpr double kCosine[] = {  // degree 5, weighted error 2**-43.79
    0x1.ffffffffffdb0p-1, -0x1.ffffffffdfed5p-2, 0x1.555555430cb04p-5, -0x1.6c16b208acf14p-10,
    0x1.a00e390b2841bp-16, -0x1.23b6ae75e74a5p-22,
};
alignas(64) constexpr double kErf[9][16] = {
    {0x1.20dd750429b6dp+0, 0x1.1ac5d850b77d8p+0, 0x1.09d544f1eebe6p+0, 0x1.e2fe8029d79f2p-1,
    0x1.abfd584d78879p-1, 0x1.75f58784aaf7cp-1, 0x1.458787cc267c6p-1, 0x1.1c904c69e6ecbp-1,
    0x1.f5f3ee887afa0p-2, 0x1.bf734210892f4p-2, 0x1.931148974ac30p-2, 0x1.6e8453fab5308p-2,
    0x1.4ffe987c78fbfp-2, 0x1.362724fc280edp-2, 0x1.1ffff6a929e55p-2, 0x1.0ccccb8a91fffp-2},
    {0x1.920718b33ca43p-47, -0x1.7e7196403bc21p-5, -0x1.5541f0c285767p-4, -0x1.a9d3d725caa0cp-4,
    -0x1.bc4b962417a0ep-4, -0x1.9e068bad39b82p-4, -0x1.667d43a1255cbp-4, -0x1.2937a101938eep-4,
    -0x1.e35516b02479cp-5, -0x1.883465bc13be2p-5, -0x1.40fe35ca17d27p-5, -0x1.0a3708afcb86bp-5,
    -0x1.bfd9a255d70c1p-6, -0x1.7db34eab207c7p-6, -0x1.49236fc983fcdp-6, -0x1.1eb8285848112p-6},
    {-0x1.8d7a4114f592bp-6, -0x1.610fb9ff8ca31p-6, -0x1.dd8195f4e756bp-7, -0x1.8e2708d374014p-8,
    0x1.3702e2386e89cp-10, 0x1.75d96b19bf175p-8, 0x1.e82ad9c735886p-8, 0x1.dd18291ce4069p-8,
    0x1.9677993b28270p-8, 0x1.42f34e6b32fd7p-8, 0x1.f282e41bcab46p-9, 0x1.7f54a3b26a986p-9,
    0x1.29af1f66ac621p-9, 0x1.d56ee209c4f6cp-10, 0x1.7818b4d9c2065p-10, 0x1.31d31191cdae7p-10},
    {0x1.97fc5174bef88p-37, 0x1.c7bc86a1afb1bp-10, 0x1.687c6c5a5e8a6p-9, 0x1.68eecf04ecc0bp-9,
    0x1.067cdb98c32f0p-9, 0x1.0932c26fa81d5p-10, 0x1.aaf8dc127a06dp-13, -0x1.0e863602eb59fp-12,
    -0x1.b91cd52ae29abp-12, -0x1.ae5d3c4904af8p-12, -0x1.5ef6904a28477p-12, -0x1.09014dd6ec1cbp-12,
    -0x1.86045921063ccp-13, -0x1.1f6148bdb27c5p-13, -0x1.ad40fec035f25p-14, -0x1.461e3b4f33b3dp-14},
    {0x1.ec3c30fd393c0p-12, 0x1.8146ba7a8207bp-12, 0x1.08fcac9acf7a2p-13, -0x1.d8c1204230de6p-14,
    -0x1.f6c2c90f55f8dp-13, -0x1.f1ecc912bf658p-13, -0x1.4fb859772cf9ep-13, -0x1.338b5174d1a9ap-14,
    -0x1.cb2c693fe0abbp-17, 0x1.dd7e075889e6bp-17, 0x1.642662f0c84d4p-16, 0x1.3df35f84893e2p-16,
    0x1.e22fbd855f280p-17, 0x1.5897a49384165p-17, 0x1.e6caefb3e93b4p-18, 0x1.5b2dbdd2412dfp-18},
    {0x1.5df369e22ac04p-31, -0x1.4253e63d02f77p-15, -0x1.bba247a45e247p-15, -0x1.45e1f97b132e6p-15,
    -0x1.81530f3254305p-17, 0x1.5bab9bb5d9105p-17, 0x1.32209c9899cd9p-16, 0x1.ff6ff61d423edp-17,
    0x1.1e1ffe51e277ep-17, 0x1.9970965bde199p-19, 0x1.480a6cff4f57dp-23, -0x1.c06042e38a1fbp-21,
    -0x1.e9a7413e39870p-21, -0x1.7eb09fb1b91b3p-21, -0x1.0ca668d9ba3f2p-21, -0x1.6e943185902ddp-22},
    {-0x1.e3ee70bdf6aeep-18, -0x1.46d22620ec995p-18, 0x1.7728b8b972045p-23, 0x1.0e6548681c5b1p-18,
    0x1.2fa5f2daa2d51p-18, 0x1.52848e23d94b8p-19, 0x1.d153568471ea1p-23, -0x1.0c5c7db94fb68p-20,
    -0x1.26df5250a6dccp-20, -0x1.756deafe685adp-21, -0x1.3ba38a2b3e98ap-22, -0x1.165853060bd15p-24,
    0x1.758abff6b5dc8p-26, 0x1.45d6c0c6d6182p-25, 0x1.0d8504a9fef87p-25, 0x1.76b0bb96f54a5p-26},
    {0x1.e653d871defb0p-29, 0x1.4813bc6e759e6p-21, 0x1.81bce1d26c302p-21, 0x1.5ae3bb5a7cd37p-22,
    -0x1.4a905b11ac4f6p-23, -0x1.7d703e53c5460p-22, -0x1.1dbcd0b48edffp-22, -0x1.6413280283e0bp-24,
    0x1.3b0875807c971p-25, 0x1.16e9a4af1db43p-24, 0x1.8943f117f64f7p-25, 0x1.66a13581357e1p-26,
    0x1.93cb7b50e28d9p-28, -0x1.64153bc82f6cdp-36, -0x1.7a599394d8bcep-30, -0x1.55cb9e2b16f44p-30},
    {0x1.783050de74b00p-24, 0x1.b7f88e13c7e37p-25, -0x1.9fe3eba99d914p-26, -0x1.1609774ce7768p-24,
    -0x1.8e787047ff8b7p-25, -0x1.0afbb770e711ep-28, 0x1.727280492a2d3p-26, 0x1.65290a6b4e29ap-26,
    0x1.29bd824aaa33ap-27, -0x1.2ae8485e55a78p-31, -0x1.cc3fc511e6bc9p-29, -0x1.62d2543c9d9ccp-29,
    -0x1.4cc2c8e057dcap-30, -0x1.9268ab71c8f31p-32, -0x1.34fd14c9b79f5p-35, 0x1.8bee42308b8b1p-35},
};
constexpr double kErfc[] = {  // degree 15, weighted error 2**-44.18
    0x1.12f21ddd9f5a9p+0, -0x1.c44c471bacd26p-1, 0x1.2e326945e6f3cp-1, -0x1.3deb213f99b66p-2,
    0x1.e995f110b802cp-4, -0x1.b78996ab34501p-6, -0x1.3dd3d1408b15fp-10, 0x1.8daf3c6a6e4bfp-9,
    -0x1.1f77f250d87c2p-11, -0x1.2266ec4cfa278p-12, 0x1.c291185ced7e0p-14, 0x1.02e585d8d3a37p-15,
    -0x1.1a643cb8004ebp-16, -0x1.59fc17dcc3125p-18, 0x1.c4cd2a10c5a2ap-20, 0x1.711de47ae2ef9p-21,
};

struct Tried {
  Narrow y;
  bool settled;
};

// Rounds what is within 2**-40 of y, and made canonical.  The last 29 bits of y are rounded away;
// where they are within 2**13 of 2**28, a half, the rounding is in doubt: 2**-40 of y is at most
// 2**13 of its last bits.
INLINE Tried rounded(Wide y, Long doubt = {}) {
  const auto from = full<Long>(INT64_C(0x10000000 - 0x2000));
  const auto others = full<Long>(INT64_C(0x1FFFC000));
  const bool settled = !any((((as<Long>(y) - from) & others) == full<Long>(0)) | doubt);
  const NarrowBits z = as<NarrowBits>(narrow(y));
  const NarrowBits normal = (z & full<NarrowBits>(0x7FFFFFFF)) > full<NarrowBits>(0x00800000);
  return {as<Narrow>(z & normal), settled};
}

// The same, and x where that is a NaN.
INLINE Tried rounded(Wide y, Narrow x) {
  Tried tried = rounded(y);
  tried.y = where(x != x, x, tried.y);
  return tried;
}

template <int n, class Coefficient>
INLINE Wide polynomial(Wide x, Coefficient c) {
  Wide y = c(n - 1);
  for (int i = n - 1; i-- > 0;) y = fused(y, x, c(i));
  return y;
}
template <int n>
INLINE Wide polynomial(Wide x, const double (&c)[n]) {
  return polynomial<n>(x, [&](int i) { return full<Wide>(c[i]); });
}

// y times 2**k, of k + kInteger.
constexpr double kInteger = 0x1.8p52;
INLINE Wide times_power(Wide y, Wide k) {
  return as<Wide>(as<Long>(y) + (as<Long>(k) << 52));
}

// e**x = 2**k (1 + q), for |x| <= 700.
struct Power {
  Wide k, q;  // k + kInteger
};
INLINE Power power(Wide x) {
  const Wide k = fused(x, full<Wide>(0x1.71547652b82fep+0), full<Wide>(kInteger));
  const Wide r = fused(full<Wide>(kInteger) - k, full<Wide>(0x1.62e42fefa39efp-1), x);
  return {k, r * polynomial(r, kExp)};
}

// x, or the bound with its sign where that is smaller in magnitude, or x is a NaN.
INLINE Wide clamped(Narrow x, float bound) {
  const NarrowBits i = as<NarrowBits>(x), most = as<NarrowBits>(full<Narrow>(bound));
  const NarrowBits magnitude = i & full<NarrowBits>(0x7FFFFFFF);
  const NarrowBits sign = i & full<NarrowBits>(INT32_MIN);
  return wide(as<Narrow>(where(magnitude < most, magnitude, most) | sign));
}

INLINE Tried exp(Narrow x) {
  const Power e = power(clamped(x, 150));
  return rounded(times_power(e.q + full<Wide>(1), e.k), x);
}

INLINE Tried exp2(Narrow x) {
  const Wide t = clamped(x, 150), k = t + full<Wide>(kInteger);
  const Wide r = (t - (k - full<Wide>(kInteger))) * full<Wide>(0x1.62e42fefa39efp-1);
  return rounded(times_power(fused(r, polynomial(r, kExp), full<Wide>(1)), k), x);
}

// e**x - 1: 2**k q + (2**k - 1).
INLINE Wide expm1(Wide x) {
  const Power e = power(x);
  const Wide s = times_power(full<Wide>(1), e.k);
  return fused(s, e.q, s - full<Wide>(1));
}

INLINE Tried expm1(Narrow x) { return rounded(expm1(clamped(x, 150)), x); }

INLINE Tried tanh(Narrow x) {
  const Wide t = clamped(x, 20), e = expm1(t + t);
  return rounded(e / (e + full<Wide>(2)), x);
}

INLINE Tried logistic(Narrow x) {
  const Power e = power(-clamped(x, 150));
  const Wide s = times_power(full<Wide>(1), e.k);
  return rounded(full<Wide>(1) / fused(s, e.q, s + full<Wide>(1)), x);
}

// log(u) = k log(2) + log(m) for u > 0, m in [45/64, 45/32).  m is in interval i of 16, c is the
// inverse of the middle, and log(m) = -log(c) + log(1 + f), f = m c - 1, |f| < 1/31.  In the interval
// that 1 is in the middle of, c = 1 and f = u - 1, which is `near`.
INLINE Wide log(Wide u, Wide near) {
  const auto from = full<Long>(INT64_C(0x3FE6800000000000));
  const Long above = as<Long>(u) - from, k = above >> 52, i = (above >> 48) & full<Long>(15);
  const Wide m = as<Wide>(as<Long>(u) - (k << 52));
  Wide f = fused(m, lookup(kInverses, i), full<Wide>(-1));
  f = where((above >> 48) == full<Long>(9), near, f);
  const auto log_2 = full<Wide>(0x1.62e42fefa39efp-1);
  return fused(f, polynomial(f, kLog), fused(number(k), log_2, lookup(kLogarithms, i)));
}

INLINE Tried rounded_log(Wide y, Narrow x) {
  Tried tried = rounded(y);
  const NarrowBits i = as<NarrowBits>(x);
  tried.y = where(i == full<NarrowBits>(0), full<Narrow>(-__builtin_inf()), tried.y);
  tried.y = where(i < full<NarrowBits>(0), full<Narrow>(__builtin_nan("")), tried.y);
  tried.y = where(i >= full<NarrowBits>(0x7F800000), x, tried.y);
  return tried;
}

INLINE Wide log(Wide u) { return log(u, u - full<Wide>(1)); }
INLINE Tried log(Narrow x) { return rounded_log(log(wide(x)), x); }
INLINE Tried log2(Narrow x) {
  return rounded_log(log(wide(x)) * full<Wide>(0x1.71547652b82fep+0), x);
}
INLINE Tried log10(Narrow x) {
  return rounded_log(log(wide(x)) * full<Wide>(0x1.bcb7b1526e50ep-2), x);
}

INLINE Tried log1p(Narrow x) {
  const Wide t = wide(x);
  Tried tried = rounded(log(t + full<Wide>(1), t));
  tried.y = where(x == full<Narrow>(-1), full<Narrow>(-__builtin_inf()), tried.y);
  // Also of a NaN with a sign, as operations make them.
  tried.y = where(x >= full<Narrow>(-1), tried.y, full<Narrow>(__builtin_nan("")));
  tried.y = where(as<NarrowBits>(x) >= full<NarrowBits>(0x7F800000), x, tried.y);
  return tried;
}

// log2(u) = k + head + lo for normal u > 0: k and m are those of pow's body, c is a short number
// near 1 / m, f = m c - 1, |f| < 0.0334, lo = f p(f) + rest.  hi = k + head has up to 28 bits.  For
// a float32 u f is exact, and lo is within 2**-51.5 of itself.
struct Log2 {
  Wide hi, lo;
};
INLINE Log2 precise_log2(Wide u) {
  const Long j = (as<Long>(u) + full<Long>(INT64_C(1) << 47)) >> 48, i = j & full<Long>(15);
  const Long k = ((j + full<Long>(9)) >> 4) - full<Long>(0x3FF);
  const Wide m = as<Wide>(as<Long>(u) - (k << 52));
  const Wide f = fused(m, lookup(kShortInverses, i), full<Wide>(-1));
  return {number(k) + lookup(kLog2Heads, i), fused(f, polynomial(f, kLog2), lookup(kLog2Rests, i))};
}

// x**y = 2**(y log2(x)) for x > 0.  The product t of y and hi is exact; lo is below 1.1 of log2(x),
// and y log2(x), of at most 160, within 2**-43.4.  0**y, y > 0, is 0.
INLINE Tried pow(Narrow x, Narrow y) {
  const Wide u = wide(x), v = wide(y);
  const Log2 log = precise_log2(u);
  const Wide t = v * log.hi, power = fused(v, log.lo, t), n = power + full<Wide>(kInteger);
  const Wide r = fused(v, log.lo, t - (n - full<Wide>(kInteger)));
  const Wide s = r * full<Wide>(0x1.62e42fefa39efp-1);
  const Wide zero = full<Wide>(0), infinity = full<Wide>(__builtin_inf());
  const Long in_range = (u > zero) & (u < infinity) & (abs(power) <= full<Wide>(160));
  const Long is_zero = (u == zero) & (v > zero);
  const Wide z = times_power(fused(s, polynomial(s, kExp), full<Wide>(1)), n);
  return rounded(where(is_zero, zero, z), ~(in_range | is_zero));
}

// log(u), within 2**-51 of itself.
INLINE Wide precise_log(Wide u) {
  const Wide log_2 = full<Wide>(0x1.62e42fefa39efp-1);
  const Log2 log2 = precise_log2(u);
  return fused(log2.hi, log_2, log2.lo * log_2);
}

// Rounds what is within 2**-43 (1 + |y|) of y, and made canonical; or 0, where it is known to be.
INLINE Tried rounded_within(Wide y, Long in_range, Long is_zero) {
  const Wide bound = fused(abs(y), full<Wide>(0x1p-43), full<Wide>(0x1p-43));
  const Narrow least = narrow(y - bound), most = narrow(y + bound);
  const Long differ = widened(as<NarrowBits>(least) != as<NarrowBits>(most));
  const NarrowBits i = as<NarrowBits>(most);
  const NarrowBits normal = (i & full<NarrowBits>(INT32_MAX)) > full<NarrowBits>(0x00800000);
  return {as<Narrow>(i & normal & ~narrowed(is_zero)), !any((differ | ~in_range) & ~is_zero)};
}

// The sum of the squares is within 2**-52, its root within 2**-50.  An infinity may be with a NaN.
INLINE Tried hypot(Narrow x, Narrow y) {
  const Wide u = wide(x), v = wide(y), squares = fused(u, u, v * v);
  const Wide h = near_root(squares);
  return rounded(h, h != h);
}

// Up to 8 the first of their polynomials is all that they take.
#define UP_TO_8(name)                                                                  \
  INLINE Tried name(Narrow x) {                                                        \
    return {near_##name(x), !any(~(abs(wide(x)) <= full<Wide>(8)))};                   \
  }
REPJAX_SPECIAL(UP_TO_8)
#undef UP_TO_8

// Of 0, of infinity and of what is negative it may be a NaN.
INLINE Tried rsqrt(Narrow x) {
  const Wide y = near_inverse_root(wide(x));
  return rounded(y, y != y);
}

// As in the body: S(z) - log(a), of z = y + 8 where y = |x| < 8, else y; for x < 0 its negative,
// with another a.  S(z) = (z - 1/2) (log(z) - 1) + (log(2 pi) - 1) / 2 + p(1 / z**2) / z.
//
// Where y < 20, z - 1/2 times log(z), within 2**-51, takes 2**-46.6, z, rounded, 2**-48.5, a
// 2**-50, and four roundings of what is below 64, as log(a) is unless x is so small that the result
// is as large, 2**-46.  Elsewhere the result is at least S / 3, and within 2**-48 S.  The bound is
// 2**-43 (1 + |result|).
INLINE Tried lgamma(Narrow x) {
  const Wide u = wide(x), y = abs(u), one = full<Wide>(1), eight = full<Wide>(8);
  const Long negative = u < full<Wide>(0), small = y < eight;
  const Wide v = y + full<Wide>(4), q = v * v;
  const Wide cubic = (q - one) * (q - full<Wide>(4)) * (q - full<Wide>(9));
  const Wide above = where(small, v * cubic * where(negative, one, y), one);
  const Wide r = abs(y - floor(y + full<Wide>(0.5)));
  const Wide sine = r * polynomial(r * r, kSin) * where(small, one, y);
  const Wide below = where(negative, sine, one);
  const Wide z = where(small, y + eight, y), both = one / (z * below), inverse = both * below;
  const Wide a = above * both * z, series = polynomial(inverse * inverse, kBinet) * inverse;
  const Wide rest = full<Wide>(0x1.acfe390c97d69p-2);  // (log(2 pi) - 1) / 2
  const Wide stirling = fused(z - full<Wide>(0.5), precise_log(z) - one, rest);
  const Wide result = (stirling - precise_log(a)) + series;
  const Wide signed_result = where(negative, -result, result);
  const Long zero = (u == one) | (u == full<Wide>(2));
  const Long in_range = (a > full<Wide>(0)) & (a < full<Wide>(__builtin_inf()));
  return rounded_within(signed_result, in_range, zero);
}

// As in the body: log(z) - 1 / (2 z) - p(1 / z**2) / z**2, z as of lgamma, without the sum of
// 1 / (y + k), k < 8, where y < 8; for x < 0 also 1 / y + pi cot(pi y).
//
// Where y < 8 the sum is (2 y + 7) Q'(w) / Q(w), Q(w) = w (w + 6) (w + 10) (w + 12), w = y (y + 7).
// The fractions are one, within 2**-48 of the largest: that is below 10, or as large as the result.
// log(z) is within 2**-51 of itself.  The bound is 2**-43 (1 + |result|).
INLINE Tried digamma(Narrow x) {
  const auto number = [](double c) __attribute__((always_inline)) { return full<Wide>(c); };
  const Wide u = wide(x), y = abs(u), zero = number(0), one = number(1), half = number(0.5);
  const Long negative = u < zero, small = y < number(8);
  const Wide w = y * (y + number(7)), first = (w + number(6)) * (w + number(10));
  const Wide last = w + number(12), others = first * last;
  const Wide slope = fused(first, last + w, w * last * (w + w + number(16)));
  const Wide sum = (y + y + number(7)) * slope - where(negative, (y + number(7)) * others, zero);
  const Wide above = where(small, sum, where(negative, -one, zero));
  const Wide below = where(small, w * others, where(negative, y, one));
  const Wide r = y - floor(y + half), t = r * r;
  const Wide sine = where(negative, r * polynomial(t, kSin), one);
  const Wide cosine = where(negative, polynomial(t, kCos), zero);
  const Wide z = where(small, y + number(8), y), both = one / (z * below * sine);
  const Wide inverse = both * below * sine, square = inverse * inverse;
  const Wide fractions = fused(cosine, below, -(above * sine)) * (both * z);
  const Wide smooth = precise_log(z) - fused(polynomial(square, kDigamma), square, half * inverse);
  const Wide result = smooth + fractions;
  const Wide infinity = number(__builtin_inf());
  return rounded_within(result, (abs(result) < infinity) & (y < infinity), {});  // nor a NaN
}

// sin(r) and cos(r), x = k pi/2 + r, for |x| < 2**22.
//
// k times the first two parts of pi/2 is exact, and so is what the first one leaves of x, unless
// k = 0 and r = x.  r is at least 2**-29.2 (trigonometric.py), and within 2**-51.9 of itself.
struct Turned {
  Long k;  // its last two bits count
  Wide sine, cosine;
  Long out_of_range;
};
INLINE Turned turned(Narrow x) {
  const Wide u = wide(x), at = fused(u, full<Wide>(0x1.45f306dc9c883p-1), full<Wide>(kInteger));
  const Wide k = full<Wide>(kInteger) - at;
  Wide r = u;
  for (const double part : kPi2) r = fused(k, full<Wide>(part), r);
  const Wide t = r * r;
  return {as<Long>(at), r * polynomial(t, kSine), polynomial(t, kCosine),
          ~(abs(u) < full<Wide>(0x1p22))};
}

// y, negated where bit 1 of k is set.
INLINE Wide negated(Wide y, Long k) {
  return as<Wide>(as<Long>(y) ^ ((k & full<Long>(2)) << 62));
}
INLINE Long is_odd(Long k) { return (k & full<Long>(1)) != full<Long>(0); }

INLINE Tried sin(Narrow x) {
  const Turned at = turned(x);
  const Wide y = where(is_odd(at.k), at.cosine, at.sine);
  return rounded(negated(y, at.k), at.out_of_range);
}

INLINE Tried cos(Narrow x) {
  const Turned at = turned(x);
  const Wide y = where(is_odd(at.k), at.sine, at.cosine);
  return rounded(negated(y, at.k + full<Long>(1)), at.out_of_range);
}

INLINE Tried tan(Narrow x) {
  const Turned at = turned(x);
  const Long odd = is_odd(at.k);
  const Wide above = where(odd, -at.cosine, at.sine), below = where(odd, at.sine, at.cosine);
  return rounded(above / below, at.out_of_range);
}

// erf(x) = x p(t), 63/16 |x| = i + t, |t| <= 1/2; from 3.93 on, it rounds to 1.
INLINE Tried erf(Narrow x) {
  const Wide bounded = clamped(x, 3.93f), at = abs(bounded) * full<Wide>(0x1.f8p+1);
  const Wide i = at + full<Wide>(kInteger), t = at - (i - full<Wide>(kInteger));
  const Long place = as<Long>(i) & full<Long>(15);
  const Wide y = polynomial<9>(t, [&](int n) { return lookup(kErf[n], place); });
  return rounded(bounded * y, x);
}

// erfc(x) = e**(-x**2) p(t) / (x + 3), t = (x - 3) / (x + 3), for x >= 0, and 2 - erfc(-x) below;
// x**2 is exact; from 9.25 on, it rounds to +0 or 2.
INLINE Tried erfc(Narrow x) {
  const Wide bounded = clamped(x, 9.25f), y = abs(bounded), three = full<Wide>(3);
  const Wide inverse = full<Wide>(1) / (y + three);
  const Power e = power(-(y * y));
  const Wide s = times_power(polynomial((y - three) * inverse, kErfc) * inverse, e.k);
  const Wide z = fused(s, e.q, s);
  return rounded(where(bounded < full<Wide>(0), full<Wide>(2) - z, z), x);
}

// The others are not tried.
#define NOT_TRIED(name) \
  INLINE Tried name(Narrow x) { return {x, false}; }
NOT_TRIED(erf_inv) NOT_TRIED(sinh) NOT_TRIED(cosh)
#undef NOT_TRIED

}  // namespace first
