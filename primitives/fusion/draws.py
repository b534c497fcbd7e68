"""Random bits, and keys that are made of others, as calls of a kernel.

XLA computes Threefry in a loop of passes over memory, one for every four rounds, that takes it as
long to compile as many other operations; a kernel goes once.  Equations of ``random_bits``,
``random_split`` and ``random_fold_in`` are such calls where there is a kernel, and elsewhere (other
platforms, several devices) what they were: the same bits.
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
from repjax.primitives.core.values import is_threefry
from repjax.primitives.fusion.kernels import Kernels


def as_draw(equation, kernels: Kernels):
    """An equation as one for the kernel, if that computes it.

    That is, of keys of Threefry, and bits of up to 32, as they are drawn since JAX 0.5: each by its
    own count (``jax_threefry_partitionable``).
    """
    draw = _DRAWS.get(equation.primitive)
    if draw is None or not kernels.draws:
        return equation
    key, result = equation.invars[0].aval, equation.outvars[0].aval
    is_known = is_threefry(key.dtype) and jax.config.jax_threefry_partitionable
    if not is_known or result.size == 0 or equation.params.get("bit_width", 32) > 32:
        return equation
    return equation.replace(primitive=draw)


# --- the primitives ---------------------------------------------------------------------


def _define(of: Primitive) -> Primitive:
    """The same as a stock primitive, by the kernel where there is one."""
    primitive = Primitive(PREFIX + of.name)

    def as_stock(*operands, **params):
        with jax.threefry_partitionable(True):
            return of.bind(*operands, **params)

    def lower(ctx, *operands, platform=None, **params):
        kernel = kernel_for(primitive, platform, ctx) if platform else None
        if kernel is not None:
            return lower_body(ctx, kernel, *operands, multiple_results=False, **params)
        with settled():
            return mlir.lower_fun(as_stock, multiple_results=False)(ctx, *operands, **params)

    def batch(operands, dimensions, **params):
        if len(operands) > 1:  # not of the same shape
            function = functools.partial(as_stock, **params)
            return jax.vmap(function, in_axes=tuple(dimensions))(*operands), 0
        key = jax.numpy.moveaxis(operands[0], dimensions[0], 0)
        return primitive.bind(key, **params), 0

    primitive.def_impl(as_stock)
    primitive.def_abstract_eval(lambda *avals, **params: of.abstract_eval(*avals, **params)[0])
    batching.primitive_batchers[primitive] = batch
    mlir.register_lowering(primitive, lower)
    mlir.register_lowering(primitive, functools.partial(lower, platform="cpu"), platform="cpu")
    prim_requires_devices_during_lowering.add(primitive)
    return primitive


random_bits_p = _define(stock.random_bits_p)
random_split_p = _define(stock.random_split_p)
random_fold_in_p = _define(stock.random_fold_in_p)
_DRAWS = {
    stock.random_bits_p: random_bits_p,
    stock.random_split_p: random_split_p,
    stock.random_fold_in_p: random_fold_in_p,
}
