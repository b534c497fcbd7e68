"""Sine, correctly rounded.

Contract: for a canonical float32 ``x`` (radians), ``body(x)`` is sin(x) rounded to nearest
even, then canonical.

Special values: sin(NaN) = NaN, sin(+-inf) = NaN, sin(0) = +0; sin(-x) = -sin(x).

Range reduction and polynomials: :mod:`.trigonometric`; an odd quadrant takes the cosine's
series.  hi + lo is rounded to odd at 53 bits.

Hard inputs: results come as close to a rounding boundary as 0.25 units in the last place
of binary64 (``tests/data/hard_inputs/sin.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/sin-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import const, fast_two_sum
from repjax.primitives.operations.elementary.trigonometric import finish, reduce, sin_and_cos


def sin_shifted(x, quadrants, negative, rounded):
    """sin(|x| + quadrants pi/2), negated where told, of a canonical float32 array."""
    k, r, e = reduce(x)
    k = k + const(k, quadrants)
    (sin_hi, sin_lo), (cos_hi, cos_lo) = sin_and_cos(r, e)
    odd = lax.eq(k & const(k, 1), const(k, 1))
    hi, lo = lax.select(odd, cos_hi, sin_hi), lax.select(odd, cos_lo, sin_lo)
    y = canonical.round_to_odd(*fast_two_sum(hi, lo))
    return finish(x, lax.ne(lax.eq(k & const(k, 2), const(k, 2)), negative), y, rounded)


def body(x, rounded=canonical.to_float32):
    """Correctly rounded sine of a canonical float32 array."""
    return sin_shifted(x, 0, lax.lt(x, const(x, 0)), rounded)
