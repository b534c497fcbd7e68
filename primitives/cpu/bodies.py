"""Bodies written another way, which XLA compiles to faster code for CPU: the same bits."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.arithmetic import div_body
from repjax.primitives.operations.reductions import sort_keys
from repjax.primitives.operations.reductions.extrema import top_k_body

#: Results of ``top_k`` that is found one by one.
_FEW = 32


def _div_by_number(x, y):
    """In float64, without the 64-bit guard, for LLVM to narrow to float32 where that is the same.

    With the guard from jax 0.11 on: of some loops with such divisions and few iterations, LLVM's
    vectorizer there asks the users of each value, and theirs, which takes exponential time: hours
    for a small network in float16 with SSE4.2, or for ``jax.random.t``.
    """
    if jax.__version_info__ >= (0, 11):
        return div_body(x, y)
    return div_body(x, y, narrowed=lambda quotient: quotient)


def div(x, y):
    """In float32, where the instruction of CPUs rounds correctly, unless ``y`` is a number.

    XLA makes of a division by a number a product with its reciprocal, which is right in float64:
    within 2**-52 of the quotient, which lies at least 2**-49 of itself from the middle of two
    float32 numbers, X / C of 24 bits from m of 25, since X - m C is not 0.  In float32 it is not
    right, so that XLA may not see of what ``y`` is made, such as of a number or of a root.
    """
    x, y, is_number = *canonical.broadcast(x, y), y.size == 1
    if x.size == 1:
        x, y, shape = x.reshape(()), y.reshape(()), x.shape
        return canonical.guard(lax.div(x, canonical.unseen(y, canonical.bits(x)))).reshape(shape)
    if is_number and x.size > canonical.FEW:
        return _div_by_number(x, y)
    axes = [d for d, n in enumerate(x.shape) if n > 1]
    position = sum(lax.broadcasted_iota(np.int32, x.shape, d) for d in axes)
    return canonical.guard(lax.div(x, canonical.unseen(y, position)))


def sqrt(x):
    """In float32, where the instruction of CPUs rounds correctly; its vectors have twice as many
    elements as in float64, and XLA rewrites no square root of what a guard gives."""
    return canonical.guard(lax.sqrt(x))


def top_k(x, *, k, axis):
    """Where they are few, one after the other: XLA's sort takes long on CPU."""
    if not 0 < k <= _FEW or x.size == 0:
        return top_k_body(x, k=k, axis=axis)
    at = lax.broadcasted_iota(np.int32, x.shape, axis)
    least = lax.full_like(at, np.iinfo(np.int32).min)  # no number's key

    def step(keys, _):
        position = lax.argmax(keys, axis, np.int32)
        found = lax.reduce_max(keys, (axis,)), position
        return lax.select(at == lax.expand_dims(position, [axis]), least, keys), found

    _, found = lax.scan(step, sort_keys.of(x, True), length=k)
    keys, positions = (jax.numpy.moveaxis(y, 0, axis) for y in found)
    return [sort_keys.values(keys, True), positions]
