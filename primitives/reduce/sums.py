"""Sums with a stated order.

``accumulation`` is a static parameter of every sum (``docs/numerics.md``, section 4).
The reduced axes are flattened in row-major order of the operand's logical shape, to
x[0..n); then

* ``pairwise``: x is padded with +0 to the next power of two, and halved by
  ``x[:h] + x[h:]`` until one element is left (Higham 1993, "The accuracy of floating
  point summation": error O(log n) ulp);
* ``sequential``: s = s + x[k], k ascending, s starting from +0.

Each addition is rounded to float32 and made canonical.  The sum over no elements is +0.
"""

from __future__ import annotations

import math

from jax import lax

from repjax.primitives import canonical
from repjax.primitives.arithmetic import require_format
from repjax.primitives.define import define
from repjax.primitives.interpret import check_accumulation, rule


def collapse(x, axes):
    """``x`` with the reduced axes flattened, row-major, to one; and which axis that is."""
    axes = tuple(sorted(axes))
    n = math.prod(x.shape[d] for d in axes)
    first = axes[0] if axes else 0
    if axes != tuple(range(first, first + len(axes))):
        kept = tuple(d for d in range(x.ndim) if d not in axes)
        x, first = lax.transpose(x, axes + kept), 0
    shape = (*x.shape[:first], n, *x.shape[first + len(axes) :])
    return lax.reshape(x, shape), first


def pairwise_sum(x, axis):
    """The pairwise sum over one axis of a float32 array."""
    n = x.shape[axis]
    while n > 1:
        half = 1 << ((n - 1).bit_length() - 1)
        low = lax.slice_in_dim(x, 0, n - half, axis=axis)
        high = lax.slice_in_dim(x, half, n, axis=axis)
        total = canonical.flush(lax.add(low, high))
        # The padding is never made: x + 0 is x for every canonical x.
        alone = lax.slice_in_dim(x, n - half, half, axis=axis)
        x = lax.concatenate([total, alone], axis) if n < 2 * half else total
        n = half
    return lax.squeeze(x, (axis,))


def sequential_sum(x, axis):
    """The sequential sum over one axis of a float32 array."""

    def step(k, total):
        term = lax.dynamic_index_in_dim(x, k, axis, keepdims=False)
        return canonical.flush(lax.add(total, term))

    start = lax.full((*x.shape[:axis], *x.shape[axis + 1 :]), 0, x.dtype)
    return lax.fori_loop(0, x.shape[axis], step, start)


_SUMS = {"pairwise": pairwise_sum, "sequential": sequential_sum}


def _reduce_sum(x, *, axes, accumulation):
    x, axis = collapse(x, axes)
    if x.shape[axis] == 0:
        return lax.full((*x.shape[:axis], *x.shape[axis + 1 :]), 0, x.dtype)
    return _SUMS[accumulation](x, axis)


reduce_sum_p = define("reduce_sum", _reduce_sum, lax.reduce_sum, halves=canonical.flush)


@rule("reduce_sum")
def _reduce_sum_rule(context, operands, params):
    require_format(context, operands)
    axes = tuple(int(a) for a in params["axes"])
    return reduce_sum_p.bind(
        *operands, axes=axes, accumulation=check_accumulation(context.accumulation)
    )
