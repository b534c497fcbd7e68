"""Hyperbolic cosine, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is cosh(x) rounded to nearest even,
then canonical.

Special values: cosh(NaN) = NaN, cosh(+-inf) = +inf, cosh(0) = 1; overflow gives +inf;
cosh(-x) = cosh(x).

Range reduction, polynomials and ending: those of :mod:`.sinh`.

Hard inputs: results come as close to a rounding boundary as 0.40 units in the last place
of binary64 (``tests/data/hard_inputs/cosh.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/cosh-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import fast_two_sum
from repjax.primitives.operations.elementary.sinh import parts


def body(x, rounded=canonical.to_float32):
    """Correctly rounded hyperbolic cosine of a canonical float32 array."""
    _, a, b, r, s, c = parts(x)
    total, error_1 = fast_two_sum(a, b)
    hi, error_2 = fast_two_sum(total, a * r)
    lo = (error_1 + error_2) + (((a + b) * c + (a - b) * s) - b * r)
    y = canonical.round_to_odd(*fast_two_sum(hi, lo))
    return lax.select(canonical.is_nan(x), x, rounded(y))
