"""Cosine, correctly rounded.

Contract: for a canonical float32 ``x`` (radians), ``body(x)`` is cos(x) rounded to nearest
even, then canonical.

Special values: cos(NaN) = NaN, cos(+-inf) = NaN, cos(0) = 1; cos(-x) = cos(x).

Design: cos(x) = sin(|x| + pi/2), by :mod:`.sin`.

Hard inputs: results come as close to a rounding boundary as 0.13 units in the last place
of binary64 (``tests/data/hard_inputs/cos.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/cos-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.sin import sin_shifted


def body(x, rounded=canonical.to_float32):
    """Correctly rounded cosine of a canonical float32 array."""
    return sin_shifted(x, 1, lax.full_like(x, False, np.bool_), rounded)
