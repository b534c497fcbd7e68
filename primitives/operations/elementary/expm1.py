"""e**x - 1, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is e**x - 1 rounded to nearest
even, then canonical.

Special values: expm1(NaN) = NaN, expm1(+inf) = +inf, expm1(-inf) = -1, expm1(0) = +0.

Range reduction and polynomial: those of :mod:`.exp`, e**x = s + s q with s = 2**k;
then e**x - 1 = s q + (s - 1), where s q is exact, and s - 1 too as long as it matters.

Hard inputs: the closest a result comes to a rounding boundary is 0.91 units in the
last place of binary64 (``tests/data/hard_inputs/expm1.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/expm1-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import const
from repjax.primitives.operations.elementary.exp import expm1_parts


def expm1_float64(x):
    """e**x - 1 for float64 ``|x| <= 700``, within about one unit in the last place."""
    s, q = expm1_parts(x)
    return s * q + (s - const(s, 1))


def body(x, rounded=canonical.to_float32):
    """Correctly rounded e**x - 1 of a canonical float32 array."""
    # Beyond +-150 the result is +inf or -1.
    bound = np.float64(150)
    y = rounded(expm1_float64(lax.clamp(-bound, canonical.to_float64(x), bound)))
    return lax.select(canonical.is_nan(x), x, y)
