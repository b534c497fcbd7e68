"""Reductions in a stated order: sums, extrema, pooling windows."""

from __future__ import annotations

from jax.extend.core import primitives as stock

from repjax.primitives.core.canonical import flush
from repjax.primitives.core.define import define
from repjax.primitives.operations.arithmetic import plain_rule
from repjax.primitives.operations.reductions import (  # noqa: F401  (registers)
    cumulative,
    extrema,
    generic,
    sums,
    window,
)

_WINDOW = ("window_dimensions", "window_strides", "padding")
_DILATION = ("base_dilation", "window_dilation")


def _pooling(name, body, keep):
    primitive = define(name, body, getattr(stock, name + "_p").bind, halves=flush)
    plain_rule(name, primitive, keep=keep)
    return primitive


reduce_window_max_p = _pooling(
    "reduce_window_max", window.reduce_window_max_body, _WINDOW + _DILATION
)
reduce_window_min_p = _pooling(
    "reduce_window_min", window.reduce_window_min_body, _WINDOW + _DILATION
)
reduce_window_sum_p = _pooling(
    "reduce_window_sum", window.reduce_window_sum_body, _WINDOW + _DILATION
)
select_and_scatter_add_p = _pooling(
    "select_and_scatter_add", window.select_and_scatter_add_body, ("select_prim", *_WINDOW)
)
select_and_gather_add_p = _pooling(
    "select_and_gather_add",
    window.select_and_gather_add_body,
    ("select_prim", *_WINDOW, *_DILATION),
)
