"""x**y with a floating-point exponent, correctly rounded.

Contract: for canonical float32 ``x`` and ``y``, ``body(x, y)`` is x**y rounded to nearest even,
then canonical.

Special values, as in C99 except for the zeros, which have no sign here, so that 0**y = +inf for
every y < 0:

* x**0 = 1 and 1**y = 1, even for NaN; else NaN if one of the two is NaN;
* x < 0: the sign of (-1)**y for an integer y, NaN for any other finite y;
* (+-0)**y = +0 for y > 0; (+-inf)**y = inf for y > 0, -inf for x = -inf and an odd y; +0 for y < 0;
* x**+inf = +inf for |x| > 1, 1 for |x| = 1, +0 for |x| < 1; x**-inf the other way round;
* results <= 2**-126 in magnitude give +0.

Design, all of it in the arithmetic of :mod:`.double_double`, without a fast path:

1. |x| = 2**k m with m in [45/64, 45/32); a short c near 1/m out of 16, f = m c - 1, exactly, with
   |f| <= 0.0333; s = f / (2 + f). Then log(m) = -log(c) + f + g with
   g = log(1 + f) - f = s (s**2 p(s**2) - f). f and the head of -log(c) are multiples of 2**-30,
   their sum has 29 bits: it is the head of log(m), and its product by y (24 bits) is exact. The
   rest is a pair below 2**-5.8 |log(m)|.
2. n = round(16 y log2(x)); r = y log(m) + (16 k y - n) log(2)/16 with |r| <= log(2)/32, where
   16 k y - n is exact; the head of log(2)/16 and the two halves of 16 k y - n have 26 bits, so
   the large products are exact and cancel exactly.
3. x**y = 2**(n/16) e**r, 2**((n mod 16)/16) being a pair out of 16. The pair is rounded to odd
   and multiplied by 2**floor(n/16), exactly. For a power of two and an integer k y, r = 0 and
   all of it is exact.

Ties. x**y lies exactly between two float32 numbers only if 4 y is an integer, 5/4 <= y <= 7: let
x = M 2**a with M odd and below 2**24, y = p / 2**i in lowest terms, and x**y = Z 2**b with Z odd,
2**24 < Z < 2**25. Then M**p = Z**(2**i) (y < 0 would need Z = 1), so that M = N**(2**i), Z = N**p
with an odd N >= 3: 3**p < 2**25 gives p <= 15, and N**(2**i) < 2**24 < N**p gives y > 1 and i <= 3.
N**p of these lies in the range for (i = 0) y = 2, ..., 7; (1) y = 3/2, 5/2, 7/2; (2) 5/4, 7/4;
(3) none. For 4 y an integer, 1 < y < 8, a pair within 2**-75 of a number of 25 bits is taken for
that number. It is a tie, or a number of 24 bits, for which rounding takes it anyway: over all
significands and all these y, the closest that x**y comes to a number of 25 bits without being
one is 2**-57.9, relative (all were enumerated; the tests do it for the y that have ties).

Error bound, relative to x**y (u = 2**-53):

* g within 2**-99 |g|: divide 2**-100, three products 2**-101, the sums far less; and
  |g| < 2**-5.8 |f|, |f| <= 1.1 |log(m)|, so log(m) is within 2**-104.6 |log(m)|. The tables add
  2**-138, the polynomial 2**-113 |g|;
* |y log(m)| < 2**7 where the result neither overflows nor underflows: y log(m) within 2**-97.6,
  the product of y and the rest within 2**-100, the sums within 2**-102: r within 2**-97.3;
* e**r - 1 within 2**-105 (Horner 2**-100 |r|, the polynomial 2**-105 |r|), 2**(j/16) within
  2**-107, the last sum within 2**-104.

Together below 2**-97; the largest error among 80,000 random pairs was 2**-103.6. Products that feed
additions are exact, or their rounding is in these bounds, so contraction does not matter; n is
guarded, so that it is the same number in all its uses.

What this proves. There is no proof over all 2**64 pairs. Some 2**60 pairs have a result that is
neither 0, 1 nor infinite after rounding; if their distances from the midpoints of float32
numbers are distributed like those of random numbers, 2**-72 of them lie within 2**-97 of one:
a misrounded pair exists with a probability of about 2**-12.

Measured on the compiled XLA CPU code, jax 0.10.2: 0 of 52,428,800 random pairs are misrounded with
AVX-512 (FMA), and 0 of as many others with SSE4.2 (no FMA). 6e10 pairs were searched for hard
ones; ``tests/data/hard_inputs/pow.txt`` has 194, as close to a rounding boundary as 3.2e-4 units
in the last place of binary64: all are right, and so are all ties and their neighbours.

The C++ kernel has a first try in float64 and this body; its results are those of XLA's code for
340 million pairs, and on the hard ones.

Source: Tang, "Table-driven implementation of the logarithm function in IEEE floating-point
arithmetic", ACM TOMS 16(4), 1990 (the reduction by short reciprocals; here by selects); Lauter and
Lefevre, "An efficient rounding boundary test for pow(x, y) in double precision", IEEE Transactions
on Computers 58(2), 2009 (the exact cases).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary import double_double as dd
from repjax.primitives.operations.elementary.basics import (
    const,
    constant_pairs,
    constants,
    power_of_two,
)
from repjax.primitives.operations.elementary.exp import INV_LOG2
from repjax.primitives.operations.elementary.pairs import head

# python -m repjax.primitives.operations.elementary.generate pow
INVERSES = constants("""
    0x1.0000000000000p+0
    0x1.e000000000000p-1
    0x1.c800000000000p-1
    0x1.b000000000000p-1
    0x1.9800000000000p-1
    0x1.8800000000000p-1
    0x1.7400000000000p-1
    0x1.6400000000000p+0
    0x1.5400000000000p+0
    0x1.4800000000000p+0
    0x1.3c00000000000p+0
    0x1.3000000000000p+0
    0x1.2400000000000p+0
    0x1.1c00000000000p+0
    0x1.1000000000000p+0
    0x1.0800000000000p+0
""")
LOG_HEADS = constants("""
    0x0.0p+0
    0x1.08598b4000000p-4
    0x1.da72764000000p-4
    0x1.5bf406c000000p-3
    0x1.d1037f2000000p-3
    0x1.1178e82000000p-2
    0x1.4718dc2000000p-2
    -0x1.51aad87000000p-2
    -0x1.22941fc000000p-2
    -0x1.fb9186e000000p-3
    -0x1.af3c94e000000p-3
    -0x1.5ff3070000000p-3
    -0x1.0d77e7c000000p-3
    -0x1.a926d3c000000p-4
    -0x1.f0a30c0000000p-5
    -0x1.f829b10000000p-6
""")
LOG_RESTS = constant_pairs("""
    0x0.0p+0 0x0.0p+0
    0x1.9e3a0688a3fdap-32 -0x1.02bf3234fb40ep-86
    -0x1.eee576bfe058fp-34 0x1.ccc062faabee7p-88
    -0x1.57849c08fada2p-32 -0x1.81befce92d3d6p-86
    0x1.9579ed6062924p-33 0x1.238d10f80ff09p-88
    0x1.3f23def19c5a1p-33 -0x1.c690bf0e22570p-93
    0x1.c7106c18fb4c1p-32 0x1.315bbbafe64d1p-86
    -0x1.6fc1684e49eb0p-33 -0x1.9f55e311d4f4fp-87
    0x1.8434d2edebd61p-33 0x1.628af342d1655p-88
    0x1.4383aae555732p-32 0x1.e435969afb6ffp-86
    -0x1.017fe5b19cc03p-32 -0x1.37ccf5cbb3b4ep-87
    -0x1.4f27a790e7c41p-32 -0x1.039091dd7f355p-86
    -0x1.a11cb2cd2ee2fp-32 -0x1.2061574712133p-86
    0x1.b52a9c9af42ddp-32 0x1.58f156ce19582p-86
    -0x1.162a6617cc971p-37 -0x1.bbaccbc4c69a4p-91
    0x1.87ccffb30703fp-34 -0x1.e3de453f5d5dfp-89
""")
# degree 6, weighted error 2**-113.13
ATANH_PAIRS = constant_pairs("""
    0x1.5555555555555p-1 0x1.55555555574a0p-55
    0x1.999999999999ap-2 -0x1.99999eed0e3f2p-56
    0x1.2492492492492p-2 0x1.270621bcd69f0p-56
    0x1.c71c71c71c6d8p-3 -0x1.6e9ee6f86b017p-59
""")
ATANH = constants("""
    0x1.745d1746517bap-3
    0x1.3b13a904265bcp-3
    0x1.1156fc735900cp-3
""")
(STEP_HEAD,) = constants("""
    0x1.62e42f0000000p-5
""")
(STEP_REST,) = constant_pairs("""
    0x1.df473de6af279p-30 -0x1.319ff03425430p-86
""")
ROOTS = constant_pairs("""
    0x1.0000000000000p+0 0x0.0p+0
    0x1.0b5586cf9890fp+0 0x1.8a62e4adc610bp-54
    0x1.172b83c7d517bp+0 -0x1.19041b9d78a76p-55
    0x1.2387a6e756238p+0 0x1.9b07eb6c70573p-54
    0x1.306fe0a31b715p+0 0x1.6f46ad23182e4p-55
    0x1.3dea64c123422p+0 0x1.ada0911f09ebcp-55
    0x1.4bfdad5362a27p+0 0x1.d4397afec42e2p-56
    0x1.5ab07dd485429p+0 0x1.6324c054647adp-54
    0x1.6a09e667f3bcdp+0 -0x1.bdd3413b26456p-54
    0x1.7a11473eb0187p+0 -0x1.41577ee04992fp-55
    0x1.8ace5422aa0dbp+0 0x1.6e9f156864b27p-54
    0x1.9c49182a3f090p+0 0x1.c7c46b071f2bep-56
    0x1.ae89f995ad3adp+0 0x1.7a1cd345dcc81p-54
    0x1.c199bdd85529cp+0 0x1.11065895048ddp-55
    0x1.d5818dcfba487p+0 0x1.2ed02d75b3707p-55
    0x1.ea4afa2a490dap+0 -0x1.e9c23179c2893p-54
""")
# degree 9, weighted error 2**-105.11
EXPM1_PAIRS = constant_pairs("""
    0x1.5555555555555p-3 0x1.555555556398bp-57
    0x1.5555555555555p-5 0x1.5555555520d0dp-59
    0x1.1111111111111p-7 0x1.110f6bc1fa2ddp-63
    0x1.6c16c16c16c17p-10 -0x1.f49c38836cf16p-65
""")
EXPM1 = constants("""
    0x1.a01a01a01a01bp-13
    0x1.a01a01a01a018p-16
    0x1.71de3a552a841p-19
    0x1.27e4fb77b9acap-22
    0x1.ae6550b1a0feep-26
    0x1.1eed9712f8345p-29
""")


def _split(x):
    """``(k, j, m)`` with x = 2**k m, m having the index j in the tables; float64 ``x > 0``."""
    i = canonical.bits(x)
    j = lax.shift_right_arithmetic(i + const(i, 1 << 47), const(i, 48))
    k = lax.shift_right_arithmetic(j + const(i, 9), const(i, 4)) - const(i, 0x3FF)
    return k, j, canonical.from_bits(i - lax.shift_left(k, const(i, 52)), x.dtype)


def _logarithm(j, m):
    """log(m) as a number of 29 bits and a pair."""
    c = dd.lookup(j, INVERSES)
    f = m * c - const(m, 1)
    s = dd.divide(dd.single(f), dd.single(f + const(f, 2)))
    t = dd.multiply(s, s)
    p = dd.multiply(t, dd.horner(t, ATANH_PAIRS, ATANH))
    g = dd.multiply(s, dd.add(p, dd.single(lax.neg(f))))
    return f + dd.lookup(j, LOG_HEADS), dd.add(g, dd.lookup(j, LOG_RESTS))


def _snap(a):
    """The pair ``a``, or the number of 25 bits that is within 2**-75 of it; 1/2 < a < 4."""
    i = canonical.bits(a[0])
    near = canonical.from_bits((i + const(i, 1 << 27)) & const(i, -(1 << 28)), a[0].dtype)
    gap = (a[0] - near) + a[1]
    is_tie = lax.lt(lax.abs(gap), const(gap, 2.0**-75))
    return dd.select(is_tie, dd.single(near), a)


def _of_base(x):
    """What is made of float64 ``x > 0`` alone: its logarithms to base 2 and e, in parts."""
    k, j, m = _split(x)
    k = lax.convert_element_type(k, np.float64)
    log_head, log_rest = _logarithm(j, m)
    log2 = k + canonical.guard((log_head + log_rest[0]) * const(x, INV_LOG2))
    return k, log2, log_head, *log_rest


def _power(x, y, k, log2, log_head, *log_rest):
    """x**y for float64 ``x > 0``, to be rounded to float32; 0 and inf count as powers of 2."""
    estimate = canonical.guard(y * log2)
    n = lax.floor(estimate * const(x, 16) + const(x, 0.5))

    # r = y log(x) - n log(2)/16 = d log(2)/16 + y log(m), d and the products of heads exact.
    d = (y * k) * const(x, 16) - n
    d_head = head(d)
    step_head = const(x, STEP_HEAD)
    hi, lo = canonical.two_sum(y * log_head, d_head * step_head)
    hi, rest = canonical.two_sum(hi, (d - d_head) * step_head)
    small = dd.add(
        dd.multiply(dd.single(y), log_rest), dd.multiply(dd.single(d), dd.constant(x, STEP_REST))
    )
    r = dd.add((hi, lo + rest), small)

    n = lax.convert_element_type(n, np.int64)
    root = dd.lookup(n, ROOTS)
    expm1 = dd.multiply(r, dd.horner(r, ((1.0, 0.0), (0.5, 0.0), *EXPM1_PAIRS), EXPM1))
    power = dd.add(root, dd.multiply(root, expm1))
    quarters = y * const(y, 4)
    may_be_tie = lax.eq(lax.floor(quarters), quarters)
    may_be_tie &= lax.gt(y, const(y, 1)) & lax.lt(y, const(y, 8))
    power = canonical.round_to_odd(*dd.select(may_be_tie, _snap(power), power))
    power = power * power_of_two(lax.shift_right_arithmetic(n, const(n, 4)))
    # Beyond +-160 the result has long overflowed or underflowed.
    power = lax.select(lax.gt(estimate, const(x, 160)), const(x, np.inf), power)
    return lax.select(lax.lt(estimate, const(x, -160)), const(x, 0), power)


def body(x, y, rounded=canonical.to_float32):
    """Correctly rounded x**y of canonical float32 arrays."""
    x = canonical.to_float64(x)
    # One base for all exponents goes through this before it is broadcast.
    of_base = _of_base(lax.abs(x))
    x, y, *of_base = canonical.broadcast(x, canonical.to_float64(y), *of_base)
    zero, one, infinity = (const(x, value) for value in (0, 1, np.inf))
    magnitude = lax.abs(x)
    # Large enough for every x but 1 to overflow or underflow; 0 and inf do for every y but 0.
    large = const(y, 2.0**32)
    is_limit = lax.eq(magnitude, zero) | lax.eq(magnitude, infinity)
    power = _power(
        magnitude,
        lax.select(is_limit, lax.sign(y) * large, lax.clamp(lax.neg(large), y, large)),
        *of_base,
    )
    negative, half = lax.lt(x, zero), y * const(y, 0.5)
    is_integer = lax.eq(lax.floor(y), y)
    is_odd = is_integer & lax.ne(lax.floor(half), half)
    power = lax.select(negative & is_odd, lax.neg(power), power)
    invalid = negative & lax.lt(magnitude, infinity) & lax.bitwise_not(is_integer)
    invalid |= canonical.is_nan(x) | canonical.is_nan(y)
    power = lax.select(invalid, const(x, np.nan), power)
    return rounded(lax.select(lax.eq(x, one) | lax.eq(y, zero), one, power))
