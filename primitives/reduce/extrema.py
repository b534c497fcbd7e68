"""Maximum, minimum and their positions over axes: exact, in any order.

Computed on integer keys whose order is the order of the canonical values, because what a
float reduction does with a NaN, and which of several equal elements it names, depends on
the order in which a platform combines them.  A NaN among the elements is the result, as in
``jax.lax``; ``argmax`` and ``argmin`` give the first position of the result.
"""

from __future__ import annotations

import numpy as np
from jax import lax

from repjax.primitives import canonical
from repjax.primitives.arithmetic import require_float32
from repjax.primitives.define import define
from repjax.primitives.interpret import rule
from repjax.primitives.reduce.sums import collapse

_MAGNITUDE = np.int32(0x7FFFFFFF)
_NAN = {max: np.int32(0x7FFFFFFF), min: np.int32(-0x80000000)}
# The key of the identity, -inf or +inf: the result over no elements.
_IDENTITY = {max: np.int32(-0x7F800001), min: np.int32(0x7F800000)}


def _keys(x, nan):
    """int32 keys in the order of the values, with ``nan`` for every NaN."""
    i = canonical.bits(x)
    negative = lax.lt(i, lax.full_like(i, 0))
    keys = lax.select(negative, i ^ lax.full_like(i, _MAGNITUDE), i)
    return lax.select(canonical.is_nan(x), lax.full_like(i, nan), keys)


def _values(keys, nan):
    negative = lax.lt(keys, lax.full_like(keys, 0))
    i = lax.select(negative, keys ^ lax.full_like(keys, _MAGNITUDE), keys)
    i = lax.select(lax.eq(keys, lax.full_like(keys, nan)), lax.full_like(i, 0x7FC00000), i)
    return canonical.from_bits(i, np.float32)


def _reduce(which, reduce):
    def body(x, *, axes):
        keys = reduce(_keys(x, _NAN[which]), axes)
        bound = lax.max if which is max else lax.min
        return _values(bound(keys, lax.full_like(keys, _IDENTITY[which])), _NAN[which])

    return body


def _position(which, arg):
    def body(x, *, axes, index_dtype):
        flat, axis = collapse(_keys(x, _NAN[which]), axes)
        return arg(flat, axis, index_dtype)

    return body


def _stock_position(arg):
    def stock(x, *, axes, index_dtype):
        (axis,) = axes
        return arg(x, axis, index_dtype)

    return stock


reduce_max_p = define("reduce_max", _reduce(max, lax.reduce_max), lax.reduce_max)
reduce_min_p = define("reduce_min", _reduce(min, lax.reduce_min), lax.reduce_min)
argmax_p = define("argmax", _position(max, lax.argmax), _stock_position(lax.argmax))
argmin_p = define("argmin", _position(min, lax.argmin), _stock_position(lax.argmin))


def _register(name, primitive, *keep):
    @rule(name)
    def extremum(context, operands, params):
        require_float32(context, operands)
        kept = {k: params[k] for k in keep}
        return primitive.bind(*operands, axes=tuple(int(a) for a in params["axes"]), **kept)


_register("reduce_max", reduce_max_p)
_register("reduce_min", reduce_min_p)
_register("argmax", argmax_p, "index_dtype")
_register("argmin", argmin_p, "index_dtype")
