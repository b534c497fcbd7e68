"""Random bits as calls of a kernel.

XLA draws the bits of Threefry in a loop of passes over memory, one for every four rounds; a kernel
draws them in one.  An equation ``random_bits`` is ``repjax_random_bits`` where there is such a
kernel, and elsewhere (other platforms, several devices) it is ``random_bits`` again: the same bits.
"""

from __future__ import annotations

import functools

import jax
from jax.extend.core import Primitive
from jax.extend.core import primitives as stock
from jax.interpreters import batching, mlir

from repjax.primitives.core.define import kernel_for, lower_body
from repjax.primitives.core.jax_internals import prim_requires_devices_during_lowering
from repjax.primitives.core.programs import settled
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.fusion.kernels import Kernels


def as_draw(equation, kernels: Kernels):
    """An equation of random bits as one for the kernel, if that can draw them.

    That is, of Threefry's bits of up to 32 as they are drawn since JAX 0.5, each by its own count
    (``jax_threefry_partitionable``).
    """
    if not kernels.draws or equation.primitive.name != "random_bits":
        return equation
    (key,), (bits,) = equation.invars, equation.outvars
    is_known = str(key.aval.dtype) == "key<fry>" and jax.config.jax_threefry_partitionable
    if not is_known or bits.aval.dtype.itemsize > 4 or bits.aval.size == 0:
        return equation
    return equation.replace(primitive=random_bits_p)


# --- the primitive ----------------------------------------------------------------------


def _stock(key, **params):
    with jax.threefry_partitionable(True):
        return stock.random_bits_p.bind(key, **params)


def _lower(ctx, key, *, platform=None, **params):
    """To the kernel where there is one, else to the stock primitive."""
    kernel = kernel_for(random_bits_p, platform, ctx) if platform else None
    if kernel is not None:
        return lower_body(ctx, kernel, key, multiple_results=False, **params)
    with settled():
        return mlir.lower_fun(_stock, multiple_results=False)(ctx, key, **params)


def _batch(keys, dimensions, **params):
    (key,), (dimension,) = keys, dimensions
    return random_bits_p.bind(jax.numpy.moveaxis(key, dimension, 0), **params), 0


random_bits_p = Primitive(PREFIX + "random_bits")
random_bits_p.def_impl(_stock)
random_bits_p.def_abstract_eval(
    lambda key, **params: stock.random_bits_p.abstract_eval(key, **params)[0]
)
batching.primitive_batchers[random_bits_p] = _batch
mlir.register_lowering(random_bits_p, _lower)
mlir.register_lowering(random_bits_p, functools.partial(_lower, platform="cpu"), platform="cpu")
prim_requires_devices_during_lowering.add(random_bits_p)
