"""Integer keys in the order of the canonical values.

What a float reduction does with a NaN, and which of several equal elements it names, depends
on the order in which a platform combines them.  The maximum of integers does not.
"""

from __future__ import annotations

import numpy as np
from jax import lax

from repjax.primitives.core import canonical

#: The key of the identity: of -inf for the largest, of +inf for the smallest.
IDENTITY = np.int32(-0x7F800001)

_MAGNITUDE = 0x7FFFFFFF


def _flip(i):
    """Sign and magnitude to two's complement, and back."""
    return lax.select(lax.lt(i, lax.full_like(i, 0)), i ^ lax.full_like(i, _MAGNITUDE), i)


def of(x, largest: bool):
    """int32 keys of a canonical float32 array.

    The largest key belongs to a NaN, if there is one, and otherwise to the largest value of
    ``x`` or, unless ``largest``, to the smallest.
    """
    i = _flip(canonical.bits(x))
    i = i if largest else lax.bitwise_not(i)
    return lax.select(canonical.is_nan(x), lax.full_like(i, _MAGNITUDE), i)


def values(keys, largest: bool):
    """The float32 values of :func:`of`; NaNs get some payload."""
    return canonical.from_bits(_flip(keys if largest else lax.bitwise_not(keys)), np.float32)
