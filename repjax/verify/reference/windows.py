"""Pooling windows: docs/numerics.md, section 6."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from repjax.verify.reference import values
from repjax.verify.reference.arithmetic import exact, maximum, minimum, wrap
from repjax.verify.reference.products import dilate_and_pad, output_sizes
from repjax.verify.reference.sums import halves, least_and_greatest
from repjax.verify.reference.table import Operation, in_float32, of, part
from repjax.verify.reference.values import add, flush

_NAMES = ("window_dimensions", "window_strides", "padding", "base_dilation", "window_dilation")


def parameters_of(
    window_dimensions, window_strides, padding, base_dilation=None, window_dilation=None
):
    """The parameters of windows in their order, dilations filled in."""
    ones = (1,) * len(window_dimensions)
    dilations = (base_dilation or ones, window_dilation or ones)
    return (window_dimensions, window_strides, padding, *dilations)


def window_outputs(shape, window, strides, padding, base_dilation, window_dilation):
    padded = dilate_and_pad(np.zeros(shape, np.int8), 0, padding, base_dilation).shape
    return output_sizes(padded, window, strides, window_dilation)


def elements(shape, window, strides, padding, base_dilation, window_dilation) -> np.ndarray:
    """[elements of a window, row-major; outputs...]: flat positions, -1 for padding and holes."""
    inside = np.arange(math.prod(shape)).reshape(shape)
    index = dilate_and_pad(inside, -1, padding, base_dilation)
    outputs = output_sizes(index.shape, window, strides, window_dilation)
    found = np.empty((math.prod(window), *outputs), np.int64)
    for k, tap in enumerate(np.ndindex(*window)):
        at = tuple(
            slice(t * d, t * d + n * s, s)
            for t, d, s, n in zip(tap, window_dilation, strides, outputs, strict=True)
        )
        found[k] = index[at][tuple(slice(0, n) for n in outputs)]
    return found


def taken(operand, at, outside):
    """What lies in the windows."""
    if not operand.size:
        return np.full(at.shape, outside, operand.dtype)
    return np.where(at < 0, np.asarray(outside, operand.dtype), operand.reshape(-1)[at])


def _reduce_window(operand, combine, outside, parameters):
    at = elements(operand.shape, *parameters)
    if 0 in at.shape:
        return np.full(at.shape[1:], outside, operand.dtype)
    return halves(combine, taken(operand, at, outside))


def reduce_window_max(operand, **parameters):
    least, _ = least_and_greatest(operand.dtype)
    return _reduce_window(operand, maximum, least, parameters_of(**parameters))


def reduce_window_min(operand, **parameters):
    _, greatest = least_and_greatest(operand.dtype)
    return _reduce_window(operand, minimum, greatest, parameters_of(**parameters))


def reduce_window_sum(operand, **parameters):
    return _reduce_window(operand, add, 0, parameters_of(**parameters))


def _selected(operand, at, largest: bool) -> np.ndarray:
    """The flat position of the first NaN, or of the first largest (smallest) element, of each
    window; -1 if there is none at all."""
    flat = np.asarray(operand, np.float64).reshape(-1)
    best = np.full(at.shape[1:], -1)
    if not flat.size:
        return best
    for position in at:
        x, y = flat[position], flat[best]
        better = x > y if largest else x < y
        wins = (best < 0) | (~np.isnan(y) & (np.isnan(x) | better))
        best = np.where(wins & (position >= 0), position, best)
    return best


def select_and_gather_add(tangents, operand, *, largest, **parameters):
    at = elements(operand.shape, *parameters_of(**parameters))
    return taken(tangents, _selected(operand, at, largest), 0)


def select_and_scatter_add(source, operand, *, largest, **parameters):
    at = elements(operand.shape, *parameters_of(**parameters))
    chosen = _selected(operand, at, largest)
    out = np.zeros(operand.size, np.float32)
    for e, x in zip(chosen.ravel(), source.ravel(), strict=True):
        if e >= 0:
            out[e] = add(out[e], x)
    return out.reshape(operand.shape)


# --- the operations ---------------------------------------------------------------------


def window_of(params) -> dict[str, Any]:
    return {name: params[name] for name in _NAMES if params.get(name) is not None}


def _is_maximum(params) -> bool:
    """Whether the first is selected among the largest: by the name of ``select_prim``."""
    select = params["select_prim"]
    return getattr(select, "name", select) == "ge"


#: What padding and holes are.
_OUTSIDE = {
    "reduce_window_max": lambda dtype: least_and_greatest(dtype)[0],
    "reduce_window_min": lambda dtype: least_and_greatest(dtype)[1],
    "reduce_window_sum": lambda dtype: 0,
}


@part(*_OUTSIDE)
def _window(operation: Operation, index, result=0):
    """The elements below the window, padding and holes included, as a window of one axis."""
    (x,) = operation.operands
    at = elements(x.shape, *parameters_of(**window_of(operation.params)))[(slice(None), *index)]
    row = taken(x, at, _OUTSIDE[operation.name](x.dtype))
    one = (1,)
    params = {
        **operation.params,
        "window_dimensions": row.shape,
        "padding": ((0, 0),),
        **dict.fromkeys(("window_strides", "base_dilation", "window_dilation"), one),
    }
    return operation.with_(operands=(row,), params=params, results=((operation.dtype, one),)), (0,)


@of("reduce_window_max")
def _max(operation: Operation):
    return [reduce_window_max(operation.operands[0], **window_of(operation.params))]


@of("reduce_window_min")
def _min(operation: Operation):
    return [reduce_window_min(operation.operands[0], **window_of(operation.params))]


def _sum(operation: Operation):
    return [reduce_window_sum(operation.operands[0], **window_of(operation.params))]


@of("reduce_window_sum")
def _any_sum(operation: Operation):
    (x,) = operation.operands
    if values.is_float(x.dtype):
        return in_float32(_sum, flush)(operation)
    whole = _reduce_window(exact(x), np.add, 0, parameters_of(**window_of(operation.params)))
    return [wrap(whole, operation.dtype)]


@of("select_and_gather_add", ending=flush)
def _gather(operation: Operation):
    params = operation.params
    window = window_of(params)
    return [select_and_gather_add(*operation.operands, largest=_is_maximum(params), **window)]


@of("select_and_scatter_add", ending=flush)
def _scatter(operation: Operation):
    params = operation.params
    window = window_of(params)
    return [select_and_scatter_add(*operation.operands, largest=_is_maximum(params), **window)]
