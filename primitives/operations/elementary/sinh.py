"""Hyperbolic sine, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is sinh(x) rounded to nearest even,
then canonical.

Special values: sinh(NaN) = NaN, sinh(+-inf) = +-inf, sinh(0) = +0; overflow gives +-inf;
sinh(-x) = -sinh(x).

Range reduction: that of :mod:`.exp` on |x| = k log(2) + r, r as hi + lo.

Polynomials: sinh(r) = r + r**3 p(r**2) and cosh(r) = 1 + r**2/2 + r**4 q(r**2), both of
degree 4, minimax, relative errors below 2**-59.  With a = 2**(k-1) and b = 2**(-k-1),

    sinh(x) = (a - b) cosh(r) + (a + b) sinh(r)
    cosh(x) = (a + b) cosh(r) + (a - b) sinh(r)

Ending: a -+ b + a r with its rounding errors (Dekker's sum), the rest is a small ``lo``;
for k = 0 sinh(x) = r + r**3 p(r**2).  hi + lo is rounded to odd at 53 bits.

Hard inputs: results come as close to a rounding boundary as 0.23 units in the last place
of binary64 (``tests/data/hard_inputs/sinh.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/sinh-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import (
    const,
    constants,
    fast_two_sum,
    horner,
    power_of_two,
)
from repjax.primitives.operations.elementary.exp import INV_LOG2, LOG2_HI, LOG2_LO

# python -m repjax.primitives.operations.elementary.generate sinh
# degree 4, weighted error 2**-60.52
SINH = constants("""
    0x1.5555555555559p-3
    0x1.111111110f6d0p-7
    0x1.a01a01afd7b97p-13
    0x1.71ddf875bede8p-19
    0x1.af5e833265988p-26
""")
# degree 4, weighted error 2**-66.79
COSH = constants("""
    0x1.5555555555558p-5
    0x1.6c16c16c1509dp-10
    0x1.a01a01ad49aeap-16
    0x1.27e4cc8665ec4p-22
    0x1.1f8b24ca1f9abp-29
""")


def parts(x):
    """``(k, a, b, r, s, c)`` of a canonical float32 array's absolute value, clamped to 150.

    sinh of the reduced argument is r + s, cosh is 1 + c.
    """
    x64 = canonical.to_float64(x)
    ax = lax.min(lax.abs(x64), const(x64, 150))
    k = lax.floor(ax * const(ax, INV_LOG2) + const(ax, 0.5))
    r, e = fast_two_sum(ax - k * const(k, LOG2_HI), lax.neg(k) * const(k, LOG2_LO))
    r2 = r * r
    s = e + (r * r2) * horner(r2, SINH)
    c = const(r, 0.5) * r2 + ((r2 * r2) * horner(r2, COSH) + r * e)
    n = lax.convert_element_type(k, np.int64)
    one = const(n, 1)
    return k, power_of_two(n - one), power_of_two(lax.neg(n) - one), r, s, c


def body(x, rounded=canonical.to_float32):
    """Correctly rounded hyperbolic sine of a canonical float32 array."""
    k, a, b, r, s, c = parts(x)
    difference, error_1 = fast_two_sum(a, lax.neg(b))
    hi, error_2 = fast_two_sum(difference, a * r)
    lo = (error_1 + error_2) + (b * r + ((a - b) * c + (a + b) * s))
    zero = lax.eq(k, const(k, 0))
    y = canonical.round_to_odd(*fast_two_sum(lax.select(zero, r, hi), lax.select(zero, s, lo)))
    y = lax.select(lax.lt(x, const(x, 0)), lax.neg(y), y)
    return lax.select(canonical.is_nan(x), x, rounded(y))
