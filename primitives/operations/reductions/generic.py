"""Reductions by a function that the program states: ``reduce`` and ``reduce_window``.

``jax.lax`` asks that the function be associative and commutative, and leaves open in which
order it is applied.  Here the order is ``pairwise`` (``reductions/sums.py``), always,
and the initial value comes last: ``function(initial, total)``.
"""

from __future__ import annotations

import math

import jax
from jax import lax

from repjax.primitives.core.interpret import program
from repjax.primitives.core.programs import open_jaxpr
from repjax.primitives.operations.reductions.sums import collapse, pairwise
from repjax.primitives.operations.reductions.window import gather_windows, output_size


def _combine(jaxpr, consts=()):
    """The function of a jaxpr of scalars on two lists of arrays of one shape."""
    inner, own = open_jaxpr(jaxpr)

    def scalars(*xs):
        return jax.core.eval_jaxpr(inner, own or consts, *xs)

    def combine(x, y):
        shape = x[0].shape
        flat = [lax.reshape(a, [a.size]) for a in (*x, *y)]
        return [lax.reshape(a, shape) for a in jax.vmap(scalars)(*flat)]

    return combine


def _reduce_axis(combine, xs, initial, axis):
    n, shape = xs[0].shape[axis], (*xs[0].shape[:axis], *xs[0].shape[axis + 1 :])
    initial = [lax.broadcast(x, shape) for x in initial]
    if n == 0 or 0 in shape:
        return initial
    return combine(initial, pairwise(combine, xs, axis))


@program("reduce")
def _reduce(*operands, jaxpr, dimensions, **_):
    xs, initial = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    flat, (axis, *_) = zip(*(collapse(x, dimensions) for x in xs), strict=True)
    return _reduce_axis(_combine(jaxpr), list(flat), initial, axis)


@program("reduce_window")
def _reduce_window(
    *operands,
    jaxpr,
    consts,
    window_dimensions,
    window_strides,
    padding,
    base_dilation,
    window_dilation,
):
    xs, initial = operands[: len(operands) // 2], operands[len(operands) // 2 :]
    window = (window_dimensions, window_strides, window_dilation)

    def windows(x, value):
        """[window, *outputs]"""
        holes = [(*p, d - 1) for p, d in zip(padding, base_dilation, strict=True)]
        x = lax.pad(x, value, holes)
        outputs = [output_size(*args) for args in zip(x.shape, *window, strict=True)]
        if 0 in outputs:
            return lax.full([1, *outputs], value)
        return lax.reshape(gather_windows(x, *window), [math.prod(window_dimensions), *outputs])

    xs = [windows(x, value) for x, value in zip(xs, initial, strict=True)]
    return _reduce_axis(_combine(jaxpr, consts), xs, initial, 0)
