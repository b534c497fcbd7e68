"""Complementary error function, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is 1 - erf(x) rounded to nearest even,
then canonical.

Special values: erfc(NaN) = NaN, erfc(+inf) = +0, erfc(-inf) = 2, erfc(0) = 1; results
<= 2**-126 give +0.

Design:

    |x| < 1/2   1 - erf(x), the parts of :mod:`.erf` added with their rounding error
    x >= 1/2    E(x) = e**(-x**2) (139/128 + p(t)) / (x + 7/2),  t = (x - 7/2) / (x + 7/2)
    x <= -1/2   2 - E(-x)

x**2 is exact in float64 and e**(-x**2) = s + s q by :mod:`.exp`; both divisions are one
reciprocal.  hi + lo is rounded to odd at 53 bits; where E stands alone its error is up to
about 3.2 units in the last place of binary64 (measured).

Polynomial: p of degree 18, minimax on 1/2 <= x <= 37/4, relative error below 2**-54.

Hard inputs: near zero results come as close to a rounding boundary as 0.075 units in the
last place of binary64; for x >= 1/2 the closest are 4.4 (0x400df51a) and 15
(``tests/data/hard_inputs/erfc.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/erfc-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import (
    const,
    constants,
    fast_two_sum,
    horner,
)
from repjax.primitives.operations.elementary.erf import C_HI, C_LO, SMALL
from repjax.primitives.operations.elementary.exp import expm1_parts

# python -m repjax.primitives.operations.elementary.generate erfc
# degree 18, weighted error 2**-54.48
COEFFICIENTS = constants("""
    0x1.2519b342fc5eap-10
    -0x1.e02749166d56ep-1
    0x1.6362dd280193ep-1
    -0x1.bdb3c1808b3f9p-2
    0x1.ce500ceb5e6fep-3
    -0x1.7a232e1d18be2p-4
    0x1.b27b2745691e0p-6
    -0x1.a06c1ed1077acp-9
    -0x1.5630dc453ec94p-10
    0x1.769ede2c36691p-11
    -0x1.60da5cb9a821cp-15
    -0x1.39a715dbee590p-14
    0x1.38ebecc0104b1p-16
    0x1.e7719cfe1cafap-18
    -0x1.c777314b6b2d3p-19
    -0x1.c8881fcef44aap-21
    0x1.13b81a78088e6p-21
    0x1.6e892b88667c8p-23
    -0x1.28d6c1127c201p-28
""")


def body(x, rounded=canonical.to_float32):
    """Correctly rounded complementary error function of a canonical float32 array."""
    x64 = canonical.to_float64(x)
    ax = lax.min(lax.abs(x64), const(x64, 9.25))  # from there on the result is +0 or 2
    t = ax * ax
    s, q = expm1_parts(lax.neg(t))
    small, negative = lax.lt(ax, const(ax, 0.5)), lax.lt(x64, const(x64, 0))
    inverse = canonical.guard(lax.div(const(ax, 1), ax + const(ax, 3.5)))
    # An offset that depends on the data, so that XLA cannot fold it into a coefficient.
    offset = lax.select(small, const(ax, 1), const(ax, 139 / 128))
    p = offset + horner((ax - const(ax, 3.5)) * inverse, COEFFICIENTS)
    # 1 - erf, E or 2 - E: whole + sign * (first + second), e**(-x**2) = s + s q.
    far = canonical.guard(s * (p * inverse))
    first = lax.select(small, ax * const(ax, C_HI), far)
    second = lax.select(small, ax * (const(t, C_LO) + t * horner(t, SMALL)), far * q)
    one, two = const(ax, 1), const(ax, 2)
    whole = lax.select(negative, two, const(ax, 0))
    whole = lax.select(small, one, whole)
    sign = lax.select(small ^ negative, lax.neg(one), one)
    hi, error = fast_two_sum(whole, sign * first)
    lo = error + sign * second
    y = canonical.round_to_odd(*fast_two_sum(hi, lo))
    return lax.select(canonical.is_nan(x), x, rounded(y))
