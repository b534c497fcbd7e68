"""Inverse hyperbolic tangent, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is atanh(x) rounded to nearest even,
then canonical.

Special values: atanh(NaN) = NaN, atanh(|x| > 1) = NaN, atanh(+-1) = +-inf,
atanh(0) = +0; atanh(-x) = -atanh(x).

Range reduction: with x = |x|, atanh(x) = 1/2 log((1 + x) / (1 - x))
= k log(2)/2 + atanh(q) with q = (1 + x - 2**k (1 - x)) / (1 + x + 2**k (1 - x)).  k is the
nearest integer to the difference of the two exponents and fractions read as one number,
which is within 0.09 of the logarithm: |q| < 0.201.  For k = 0, q = x.

Polynomial: atanh(q) = q + q**3 p(q**2), p of degree 7, minimax, relative error below
2**-59, q as hi + lo (:mod:`.pairs`).

Ending: log(2)/2 = HALF_LOG2_HI + HALF_LOG2_LO; hi = k HALF_LOG2_HI + q_hi with its rounding
error (Dekker's sum), the rest is a small ``lo``, and hi + lo is rounded to odd at 53 bits.

Hard inputs: the closest a result comes to a rounding boundary is 1.02 units in the last
place of binary64 (``tests/data/hard_inputs/atanh.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/atanh-*.json``); on the hard inputs
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
from repjax.primitives.operations.elementary.exp import LOG2_HI, LOG2_LO
from repjax.primitives.operations.elementary.pairs import quotient

# python -m repjax.primitives.operations.elementary.generate atanh
# degree 7, weighted error 2**-60.31
COEFFICIENTS = constants("""
    0x1.555555555554fp-2
    0x1.999999999c2f4p-3
    0x1.24924921ce7e7p-3
    0x1.c71c74a2a1f46p-4
    0x1.745c46827e682p-4
    0x1.3b364cf271db9p-4
    0x1.0dc27b0ab393fp-4
    0x1.1bbea5a9c522ap-4
""")

# k * HALF_LOG2_HI is exact.
HALF_LOG2_HI, HALF_LOG2_LO = LOG2_HI / 2, LOG2_LO / 2


def atanh_sum(k, q_hi, q_lo):
    """k log(2)/2 + atanh(q_hi + q_lo) rounded to odd, q_hi a head, ``|q| < 0.201``.

    Shared by atanh, asinh and acosh.
    """
    q = q_hi + q_lo
    q2 = q * q
    tail = q_lo + (q * q2) * horner(q2, COEFFICIENTS)
    hi, error = fast_two_sum(k * const(k, HALF_LOG2_HI), q_hi)
    lo = error + (k * const(k, HALF_LOG2_LO) + tail)
    return canonical.round_to_odd(*fast_two_sum(hi, lo))


def body(x, rounded=canonical.to_float32):
    """Correctly rounded inverse hyperbolic tangent of a canonical float32 array."""
    x64 = canonical.to_float64(x)
    # The largest x below 1; the exceptions follow at the end.
    ax = lax.min(lax.abs(x64), const(x64, 1 - 2.0**-24))
    plus, minus = const(ax, 1) + ax, const(ax, 1) - ax
    gap = canonical.bits(plus) - canonical.bits(minus)
    n = lax.shift_right_arithmetic(gap + const(gap, 1 << 51), const(gap, 52))
    scaled = power_of_two(n) * minus
    zero = lax.eq(n, const(n, 0))
    numerator = lax.select(zero, ax, plus - scaled)
    denominator = lax.select(zero, const(ax, 1), plus + scaled)
    q_hi, q_lo = quotient(numerator, const(ax, 0), denominator, const(ax, 0))
    y = atanh_sum(lax.convert_element_type(n, np.float64), q_hi, q_lo)
    y = rounded(lax.select(lax.lt(x64, const(x64, 0)), lax.neg(y), y))
    one = lax.abs(x)
    infinity = lax.select(lax.lt(x, const(x, 0)), const(x, -np.inf), const(x, np.inf))
    y = lax.select(lax.eq(one, const(x, 1)), infinity, y)
    y = lax.select(lax.gt(one, const(x, 1)), const(x, np.nan), y)
    return lax.select(canonical.is_nan(x), x, y)
