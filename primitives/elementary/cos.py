"""Cosine, correctly rounded.

Contract: for a canonical float32 ``x`` (radians), ``body(x)`` is cos(x) rounded to nearest
even, then canonical.

Special values: cos(NaN) = NaN, cos(+-inf) = NaN, cos(0) = 1; cos(-x) = cos(x).

Design: cos(x) = sin(|x| + pi/2), by :mod:`.sin`.

Hard inputs: results come as close to a rounding boundary as 0.13 units in the last place
of binary64 (``tests/data/hard_inputs/cos.txt`` has those within 64).

Not yet proven over all inputs.
"""

import numpy as np
from jax import lax

from repjax.primitives.elementary.sin import sin_shifted


def body(x):
    """Correctly rounded cosine of a canonical float32 array."""
    return sin_shifted(x, 1, lax.full_like(x, False, np.bool_))
