"""Arc sine, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is asin(x) rounded to nearest even,
then canonical.

Special values: asin(NaN) = NaN, asin(|x| > 1) = NaN, asin(0) = +0; asin(-x) = -asin(x).

Range reduction: with x = |x|,

    x <= 1/2   asin(x) = asin(s),             s = x
    x > 1/2    asin(x) = pi/2 - 2 asin(s),    s = sqrt((1 - x) / 2)

where s is a head and the rest (:mod:`.pairs`), and s**2 is exact.

Polynomial: asin(s) = s + s**3 p(s**2), p of degree 12, minimax, relative error below
2**-58, s <= 1/2.  The large terms are added with their rounding error, the rest is a small
``lo``, and hi + lo is rounded to odd at 53 bits.

Hard inputs: results come as close to a rounding boundary as 0.37 units in the last place
of binary64 (``tests/data/hard_inputs/asin.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/asin-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.atan import PI_2_HI, PI_2_LO
from repjax.primitives.operations.elementary.basics import (
    const,
    constants,
    fast_two_sum,
    horner,
)
from repjax.primitives.operations.elementary.pairs import square_root

# python -m repjax.primitives.operations.elementary.generate asin
# degree 12, weighted error 2**-58.63
COEFFICIENTS = constants("""
    0x1.5555555555577p-3
    0x1.333333332e0f5p-4
    0x1.6db6db7214990p-5
    0x1.f1c71a94425eap-6
    0x1.6e8bdef129a89p-6
    0x1.1c49ef4ec0c95p-6
    0x1.ca1fa43929d86p-7
    0x1.7584e05b66592p-7
    0x1.613feec032b27p-7
    0x1.e5c6b1834b5b2p-9
    0x1.63a9866fe17dfp-6
    -0x1.580e8093f9debp-6
    0x1.0b4ba2ec1bdeap-5
""")


def half_angle(ax):
    """``(large, s, tail)`` for 0 <= ax <= 1: asin(ax) is s + tail or pi/2 - 2 (s + tail).

    Shared by asin and acos.  ``large`` is ax > 1/2, and s has at most 26 bits.
    """
    large = lax.gt(ax, const(ax, 0.5))
    z = lax.select(large, (const(ax, 1) - ax) * const(ax, 0.5), ax * ax)
    root_hi, root_lo = square_root(z, const(z, 0))
    s = lax.select(large, root_hi, ax)
    s_lo = lax.select(large, root_lo, const(ax, 0))
    return large, s, s_lo + ((s + s_lo) * z) * horner(z, COEFFICIENTS)


def finish(x, scale, factor, s, tail, rounded):
    """scale pi/2 + factor (s + tail) as a canonical result; NaN where |x| > 1.

    Scale and factor are small integers; where scale is not zero, the first term is the larger.
    """
    hi, error = fast_two_sum(scale * const(s, PI_2_HI), factor * s)
    lo = error + (scale * const(s, PI_2_LO) + factor * tail)
    y = rounded(canonical.round_to_odd(*fast_two_sum(hi, lo)))
    y = lax.select(lax.gt(lax.abs(x), const(x, 1)), const(y, np.nan), y)
    return lax.select(canonical.is_nan(x), x, y)


def body(x, rounded=canonical.to_float32):
    """Correctly rounded arc sine of a canonical float32 array."""
    x64 = canonical.to_float64(x)
    large, s, tail = half_angle(lax.abs(x64))
    sign = lax.select(lax.lt(x64, const(x64, 0)), const(x64, -1), const(x64, 1))
    scale = lax.select(large, sign, const(x64, 0))
    factor = lax.select(large, const(x64, -2) * sign, sign)
    return finish(x, scale, factor, s, tail, rounded)
