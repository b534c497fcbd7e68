"""Hyperbolic tangent, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is tanh(x) rounded to nearest
even, then canonical.

Special values: tanh(NaN) = NaN, tanh(+-inf) = +-1, tanh(0) = +0.

Design: tanh(x) = E / (E + 2) with E = e**(2x) - 1 from :mod:`.expm1`, in float64, the
quotient guarded at 64 bits.  Its error is about 3 units in the last place of binary64.

Hard inputs: the closest a result comes to a rounding boundary is 5.04 such units
(``tests/data/hard_inputs/tanh.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/tanh-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import const
from repjax.primitives.operations.elementary.expm1 import expm1_float64


def body(x, rounded=canonical.to_float32):
    """Correctly rounded tanh of a canonical float32 array."""
    # Beyond +-20 the result is +-1.
    bound = np.float64(20)
    x64 = lax.clamp(-bound, canonical.to_float64(x), bound)
    e = expm1_float64(x64 + x64)
    y = canonical.guard(e / (e + const(e, 2)))
    return lax.select(canonical.is_nan(x), x, rounded(y))
