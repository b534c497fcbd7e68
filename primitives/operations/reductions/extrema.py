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

from repjax.primitives.core.canonical import flush
from repjax.primitives.core.define import define
from repjax.primitives.core.tables import RefusedError, rule
from repjax.primitives.core.values import is_inexact
from repjax.primitives.operations.arithmetic import plain_rule, require_format
from repjax.primitives.operations.exact import bind_exact
from repjax.primitives.operations.reductions import sort_keys
from repjax.primitives.operations.reductions.sums import (
    collapse,
    neighbouring,
    one_after_the_other,
)


def _extremum(largest: bool):
    def body(x, *, axes):
        keys = lax.reduce_max(sort_keys.of(x, largest), axes)
        return sort_keys.values(lax.max(keys, lax.full_like(keys, sort_keys.IDENTITY)), largest)

    return body


def _position(largest: bool):
    def body(x, *, axes, index_dtype):
        keys, axis = collapse(sort_keys.of(x, largest), axes)
        return lax.argmax(keys, axis, index_dtype)

    return body


def top_k_body(x, *, k, axis):
    """The ``k`` largest, descending, NaNs first, equals in their order; and their positions."""
    keys = lax.bitwise_not(sort_keys.of(x, True))
    positions = lax.broadcasted_iota(np.int32, x.shape, axis)
    keys, positions = lax.sort((keys, positions), dimension=axis, num_keys=1, is_stable=True)
    keys, positions = (lax.slice_in_dim(y, 0, k, axis=axis) for y in (keys, positions))
    return [sort_keys.values(lax.bitwise_not(keys), True), positions]


def _stock_top_k(x, *, k, axis):
    return lax.top_k(x, k, axis=axis)


def _stock_position(stock):
    def stock_function(x, *, axes, index_dtype):
        (axis,) = axes
        return stock(x, axis, index_dtype)

    return stock_function


reduce_max_body, reduce_min_body = _extremum(True), _extremum(False)
reduce_max_p = define("reduce_max", reduce_max_body, lax.reduce_max, halves=flush)
reduce_min_p = define("reduce_min", reduce_min_body, lax.reduce_min, halves=flush)
argmax_p = define("argmax", _position(True), _stock_position(lax.argmax))
argmin_p = define("argmin", _position(False), _stock_position(lax.argmin))
top_k_p = define(
    "top_k",
    top_k_body,
    _stock_top_k,
    multiple_results=True,
    halves=flush,
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
