"""Arc cosine, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is acos(x) rounded to nearest even,
then canonical.

Special values: acos(NaN) = NaN, acos(|x| > 1) = NaN, acos(1) = +0.

Design: with the s and the polynomial of :mod:`.asin`,

    |x| <= 1/2   acos(x) = pi/2 -+ asin(s)
    x > 1/2      acos(x) = 2 asin(s)
    x < -1/2     acos(x) = pi - 2 asin(s)

summed and rounded in the same way.

Hard inputs: results come as close to a rounding boundary as 0.045 units in the last place
of binary64 (``tests/data/hard_inputs/acos.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/acos-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.asin import finish, half_angle
from repjax.primitives.operations.elementary.basics import const


def body(x, rounded=canonical.to_float32):
    """Correctly rounded arc cosine of a canonical float32 array."""
    x64 = canonical.to_float64(x)
    large, s, tail = half_angle(lax.abs(x64))
    negative = lax.lt(x64, const(x64, 0))
    one, two = const(x64, 1), const(x64, 2)
    scale = lax.select(large, lax.select(negative, two, const(x64, 0)), one)
    sign = lax.select(negative, one, lax.neg(one))
    factor = lax.select(large, const(x64, -2) * sign, sign)
    return finish(x, scale, factor, s, tail, rounded)
