"""The angle of the point (x, y), correctly rounded.

Contract: for canonical float32 ``y`` and ``x``, ``body(y, x)`` is the angle between the positive
x axis and (x, y), in (-pi, pi], rounded to nearest even, then canonical.

Special values, as in C99 for +0, the only zero here: NaN if one of the two is NaN;

* atan2(0, x) = +0 for x >= 0, pi rounded for x < 0; atan2(y, 0) = pi/2 rounded, with the sign of y;
* atan2(y, +inf) = +0 and atan2(y, -inf) = pi rounded, with the sign of y, for finite y;
* atan2(+-inf, x) = +-pi/2 rounded for finite x, +-pi/4 for x = +inf, +-3 pi/4 for x = -inf;
* results <= 2**-126 in magnitude give +0.

Design, all of it in the arithmetic of :mod:`.double_double`, without a fast path. With
a = min(|x|, |y|), b = max(|x|, |y|) and c = j/16 the nearest to a/b, j <= 15:

    atan(a/b) = atan(c) + atan(t),  t = (a - c b) / (b + c a),  |t| <= 1/31

For c = 0 numerator and denominator are a and b; otherwise a > b/33, so that a - c b and b + c a
are multiples of 1/16 of a's last place and have at most 24 + 4 + 7 bits: both are exact.
atan(t) = t + t**3 p(t**2), p of degree 8, four of its coefficients pairs; atan(c) is one of 16
pairs. The angle is added to, or subtracted from, that of the nearest half axis (0, pi/2 or pi,
as pairs), and rounded to odd.

Error bound, relative to the result: t is within 2**-100 (divide), t**3 p(t**2) is below
2**-11.4 |t| and within 2**-98 of itself, the polynomial 2**-107 |t|: atan(t) within 2**-99.9.
If j > 0, |atan(t)| is less than the sum atan(c) + atan(t), and the pairs of the table are within
2**-106. Each of the three sums adds 2**-104 of its terms, which are together at most 4 times
the sum, as no point is farther than pi/4 from the nearest half axis. Together below 2**-98.5;
the largest error among 60,000 random pairs was 2**-104.4. Products that feed additions are
exact, or their rounding is in these bounds, so contraction does not matter.

Ties: none. a/b > 0 is rational, so its arc tangent and its sums with multiples of pi/2 are
not (Lindemann).

What this proves. Scaling both arguments by a power of two changes nothing, which leaves some 2**56
pairs, at 2**-98.5 of a boundary with a probability of 2**-73.5 each if their distances are
distributed like those of random numbers: a misrounded pair exists with a probability of about
2**-17. Measured on the compiled XLA CPU code, jax 0.10.2: 0 of 52,428,800 random pairs are
misrounded, with AVX-512 (FMA) and with SSE4.2 (no FMA). ``tests/data/hard_inputs/atan2.txt`` has
the hardest of 1.2e9 random pairs.
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary import double_double as dd
from repjax.primitives.operations.elementary.basics import const, constant_pairs, constants

# python -m repjax.primitives.operations.elementary.generate atan2
ANGLES = constant_pairs("""
    0x0.0p+0 0x0.0p+0
    0x1.ff55bb72cfdeap-5 -0x1.c934d86d23f1dp-60
    0x1.fd5ba9aac2f6ep-4 -0x1.cd37686760c17p-59
    0x1.7b97b4bce5b02p-3 0x1.347b0b4f881cap-58
    0x1.f5b75f92c80ddp-3 0x1.8ab6e3cf7afbdp-57
    0x1.362773707ebccp-2 -0x1.963a544b672d8p-57
    0x1.6f61941e4def1p-2 -0x1.c63aae6f6e918p-56
    0x1.a64eec3cc23fdp-2 -0x1.24dec1b50b7ffp-56
    0x1.dac670561bb4fp-2 0x1.a2b7f222f65e2p-56
    0x1.0657e94db30d0p-1 -0x1.d5b495f6349e6p-56
    0x1.1e00babdefeb4p-1 -0x1.928df287a668fp-58
    0x1.345f01cce37bbp-1 0x1.1021137c71102p-55
    0x1.4978fa3269ee1p-1 0x1.2419a87f2a458p-56
    0x1.5d58987169b18p-1 0x1.0028e4bc5e7cap-57
    0x1.700a7c5784634p-1 -0x1.8c34d25aadef6p-56
    0x1.819d0b7158a4dp-1 -0x1.bf76229d3b917p-56
""")
(PI_2,) = constant_pairs("""
    0x1.921fb54442d18p+0 0x1.1a62633145c07p-54
""")
# degree 8, weighted error 2**-107.05
ATAN_PAIRS = constant_pairs("""
    -0x1.5555555555555p-2 -0x1.5555555555550p-56
    0x1.999999999999ap-3 -0x1.9999999a04b0bp-57
    -0x1.2492492492492p-3 -0x1.2492337618956p-57
    0x1.c71c71c71c71cp-4 0x1.c2ce95b018277p-58
""")
ATAN = constants("""
    -0x1.745d1745d1736p-4
    0x1.3b13b13b0b4cfp-4
    -0x1.111110e430989p-4
    0x1.e1e0c0a919b79p-5
    -0x1.ad25462770347p-5
""")


def _quotient(a, b):
    """The pair atan(a/b) for float64 0 <= a <= b, b > 0, of 24 bits each."""
    q = canonical.guard(lax.div(a, b))
    j = lax.min(lax.floor(q * const(q, 16) + const(q, 0.5)), const(q, 15))
    c = j * const(j, 1 / 16)
    t = dd.divide(dd.single(a - c * b), dd.single(b + c * a))
    square = dd.multiply(t, t)
    p = dd.horner(square, ATAN_PAIRS, ATAN)
    angle = dd.add(t, dd.multiply(dd.multiply(t, square), p))
    return dd.add(angle, dd.lookup(lax.convert_element_type(j, np.int64), ANGLES))


def body(y, x, rounded=canonical.to_float32):
    """Correctly rounded atan2(y, x) of canonical float32 arrays."""
    y, x = canonical.broadcast(canonical.to_float64(y), canonical.to_float64(x))
    zero, one, infinity = (const(x, value) for value in (0, 1, np.inf))
    a, b = lax.min(lax.abs(y), lax.abs(x)), lax.max(lax.abs(y), lax.abs(x))
    # a/b is 1 for two infinities, 0 for one or for two zeros.
    is_infinite = lax.eq(b, infinity)
    a = lax.select(is_infinite, lax.select(lax.eq(a, b), one, zero), a)
    b = lax.select(is_infinite | lax.eq(b, zero), one, b)
    angle = _quotient(a, b)
    # From the nearest half axis, at 0, pi/2 or pi; to the left it turns away from pi, else from 0.
    steep, left = lax.gt(lax.abs(y), lax.abs(x)), lax.lt(x, zero)
    pi_2 = dd.constant(x, PI_2)
    axis = dd.select(left, dd.scale(pi_2, const(x, 2)), dd.single(zero))
    axis = dd.select(steep, pi_2, axis)
    angle = dd.add(dd.select(steep ^ left, dd.negate(angle), angle), axis)
    result = canonical.round_to_odd(*angle)
    result = lax.select(lax.lt(y, zero), lax.neg(result), result)
    is_nan = canonical.is_nan(x) | canonical.is_nan(y)
    return rounded(lax.select(is_nan, const(x, np.nan), result))
