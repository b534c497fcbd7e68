"""Random bits and keys of Threefry by the C++ kernel (``native/random.cc``)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


def bits(key, *, bit_width: int, shape):
    """Bits of each of an array of keys: the low ones of 32."""
    result = jax.ShapeDtypeStruct((*key.shape, *shape), np.uint32)
    drawn = jax.ffi.ffi_call("repjax_random_bits", result)(jax.random.key_data(key))
    return lax.convert_element_type(drawn, f"uint{bit_width}")


def split(key, *, shape):
    """So many keys made of each of an array of keys."""
    return _keys(key, np.zeros(0, np.uint32), (*key.shape, *shape))


def fold_in(key, number):
    """A key made of each of an array of keys and its number."""
    shape = jnp.broadcast_shapes(key.shape, number.shape)
    return _keys(jnp.broadcast_to(key, shape), jnp.broadcast_to(number, shape), shape)


def _keys(key, numbers, shape):
    call = jax.ffi.ffi_call("repjax_random_keys", jax.ShapeDtypeStruct((*shape, 2), np.uint32))
    return jax.random.wrap_key_data(call(jax.random.key_data(key), numbers), impl="threefry2x32")
