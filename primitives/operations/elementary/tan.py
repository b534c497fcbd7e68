"""Tangent, correctly rounded.

Contract: for a canonical float32 ``x`` (radians), ``body(x)`` is tan(x) rounded to nearest
even, then canonical.

Special values: tan(NaN) = NaN, tan(+-inf) = NaN, tan(0) = +0; tan(-x) = -tan(x).

Design: sin / cos, or -cos / sin in an odd quadrant, both as hi + lo from
:mod:`.trigonometric`; their quotient as hi + lo (:mod:`.pairs`) is rounded to odd at 53 bits.

Hard inputs: results come as close to a rounding boundary as 0.29 units in the last place
of binary64 (``tests/data/hard_inputs/tan.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/tan-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import const, fast_two_sum
from repjax.primitives.operations.elementary.pairs import quotient
from repjax.primitives.operations.elementary.trigonometric import finish, reduce, sin_and_cos


def body(x, rounded=canonical.to_float32):
    """Correctly rounded tangent of a canonical float32 array."""
    k, r, e = reduce(x)
    sin, cos = (fast_two_sum(*pair) for pair in sin_and_cos(r, e))
    odd = lax.eq(k & const(k, 1), const(k, 1))
    n_hi, n_lo = (lax.select(odd, c, s) for s, c in zip(sin, cos, strict=True))
    d_hi, d_lo = (lax.select(odd, s, c) for s, c in zip(sin, cos, strict=True))
    y = canonical.round_to_odd(*fast_two_sum(*quotient(n_hi, n_lo, d_hi, d_lo)))
    return finish(x, lax.ne(odd, lax.lt(x, const(x, 0))), y, rounded)
