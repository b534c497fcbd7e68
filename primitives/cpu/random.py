"""Random bits of Threefry by the C++ kernel (``native/random.cc``)."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax


def bits(key, *, bit_width: int, shape):
    """Bits of each of an array of keys: the low ones of 32."""
    result = jax.ShapeDtypeStruct((*key.shape, *shape), np.uint32)
    drawn = jax.ffi.ffi_call("repjax_random_bits", result)(jax.random.key_data(key))
    return lax.convert_element_type(drawn, f"uint{bit_width}")
