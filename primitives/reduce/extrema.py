"""Maximum, minimum and their positions over axes: exact, in any order.

A NaN among the elements is the result, as in ``jax.lax``; ``argmax`` and ``argmin`` give the
first position of the result.  The maximum over no elements is -inf, the minimum +inf.
``top_k`` gives the largest in descending order, NaNs first, equals in their order.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax

from repjax.primitives import native
from repjax.primitives.arithmetic import plain_rule, require_format
from repjax.primitives.canonical import flush
from repjax.primitives.define import define
from repjax.primitives.interpret import RefusedError, bind_exact, is_inexact, rule
from repjax.primitives.partition import partitioned
from repjax.primitives.reduce import order
from repjax.primitives.reduce.sums import (
    axes_of_reduction,
    call_kernel,
    collapse,
    neighbouring,
    one_after_the_other,
)

#: Of ``top_k``, what is found one by one.
_FEW = 32


def _extremum(largest: bool):
    def body(x, *, axes):
        keys = lax.reduce_max(order.keys(x, largest), axes)
        return order.values(lax.max(keys, lax.full_like(keys, order.IDENTITY)), largest)

    return body


def _define_extremum(largest: bool):
    name, body = "max" if largest else "min", _extremum(largest)

    def kernel(x, *, axes):
        x, axis = collapse(x, axes)
        if x.size == 0:
            return body(x, axes=(axis,))
        return call_kernel(x, shape=x.shape, axes=(axis,), accumulation=name)

    def on_cpu():
        return partitioned(kernel, axes_of_reduction) if native.available() else None

    stock = lax.reduce_max if largest else lax.reduce_min
    return define(f"reduce_{name}", body, stock, halves=flush, on_cpu=on_cpu, in_parts=True)


def _position(largest: bool):
    def body(x, *, axes, index_dtype):
        keys, axis = collapse(order.keys(x, largest), axes)
        return lax.argmax(keys, axis, index_dtype)

    return body


def _top_k(x, *, k, axis):
    """The ``k`` largest, descending, NaNs first, equals in their order; and their positions."""
    keys = lax.bitwise_not(order.keys(x, True))
    positions = lax.broadcasted_iota(np.int32, x.shape, axis)
    keys, positions = lax.sort((keys, positions), dimension=axis, num_keys=1, is_stable=True)
    keys, positions = (lax.slice_in_dim(y, 0, k, axis=axis) for y in (keys, positions))
    return [order.values(lax.bitwise_not(keys), True), positions]


def _top_k_on_cpu(x, *, k, axis):
    """The same: where they are few, one after the other, as XLA's sort takes long on CPU."""
    if not 0 < k <= _FEW or x.size == 0:
        return _top_k(x, k=k, axis=axis)
    at = lax.broadcasted_iota(np.int32, x.shape, axis)
    least = lax.full_like(at, np.iinfo(np.int32).min)  # no number's key

    def step(keys, _):
        position = lax.argmax(keys, axis, np.int32)
        found = lax.reduce_max(keys, (axis,)), position
        return lax.select(at == lax.expand_dims(position, [axis]), least, keys), found

    _, found = lax.scan(step, order.keys(x, True), length=k)
    keys, positions = (jax.numpy.moveaxis(y, 0, axis) for y in found)
    return [order.values(keys, True), positions]


def _stock_top_k(x, *, k, axis):
    return lax.top_k(x, k, axis=axis)


def _stock_position(stock):
    def stock_function(x, *, axes, index_dtype):
        (axis,) = axes
        return stock(x, axis, index_dtype)

    return stock_function


reduce_max_p, reduce_min_p = _define_extremum(True), _define_extremum(False)
argmax_p = define("argmax", _position(True), _stock_position(lax.argmax))
argmin_p = define("argmin", _position(False), _stock_position(lax.argmin))
top_k_p = define(
    "top_k",
    _top_k,
    _stock_top_k,
    multiple_results=True,
    halves=flush,
    on_cpu=lambda: _top_k_on_cpu,
)
plain_rule("top_k", top_k_p, keep=("k", "axis"))


def _register_extremum(name, primitive):
    @rule(name)
    def extremum(context, operands, params):
        require_format(context, operands)
        (x,) = operands
        groups = neighbouring(jax.typeof(x).shape, map(int, params["axes"]))
        return one_after_the_other(lambda x, axes: primitive.bind(x, axes=axes), x, groups)


def _require_positions(name: str, sizes, index_dtype) -> None:
    """Refuse positions that do not fit into their type, which XLA would wrap around."""
    last = math.prod(sizes) - 1
    if all(isinstance(n, int) for n in sizes) and last > jax.numpy.iinfo(index_dtype).max:
        raise RefusedError(
            f"{name} expected an index_dtype for positions up to {last}, received "
            f"{np.dtype(index_dtype)}; use a wider one, int64 with jax_enable_x64, or take the "
            "largest of parts"
        )


def _register_position(name, primitive):
    @rule(name)
    def position(context, operands, params):
        require_format(context, operands)
        axes = tuple(int(a) for a in params["axes"])
        x, index_dtype = jax.typeof(operands[0]), params["index_dtype"]
        _require_positions(name, [x.shape[a] for a in axes], index_dtype)
        if not is_inexact(x):
            return bind_exact(context, operands, params)
        return primitive.bind(*operands, axes=axes, index_dtype=index_dtype)


_register_extremum("reduce_max", reduce_max_p)
_register_extremum("reduce_min", reduce_min_p)
_register_position("argmax", argmax_p)
_register_position("argmin", argmin_p)
