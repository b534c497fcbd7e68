"""Contractions by the C++ kernel of :mod:`repjax.primitives.native`."""

from __future__ import annotations

import dataclasses
import itertools
import math

import jax
import numpy as np
from jax import lax

from repjax.primitives.contract import order_independent
from repjax.primitives.contract.sequential import check_float32, free_dimensions
from repjax.primitives.reduce.window import output_size, pad_dilated

#: The operands' type, the result's and the name of the FFI call.
_TARGETS = {
    np.dtype(np.float32): (np.float32, "repjax_contract"),
    np.dtype(np.float64): (np.int64, "repjax_contract_integers"),
}


def _strides(shape) -> list[int]:
    """Row-major, in elements."""
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def _problem(g=(), m=(), n=(), k=(), offsets=(0, 0, 0)) -> list[int]:
    """``out[g, m, n]`` = the chain over k of ``lhs[g, m, k] * rhs[g, k, n]``, for the kernel.

    Of each of the four dimensions, the axes: row-major, tuples of the size and the strides in
    lhs, rhs and out.  ``offsets`` are those of the first elements in the three.
    """
    axes = [(i, *axis) for i, dims in enumerate((g, m, n, k)) for axis in dims]
    return [*offsets, len(axes), *itertools.chain(*axes)]


def _call(lhs, rhs, shape, *problems):
    """The array of ``shape`` that the problems fill, by the kernel.

    For operands of float32, chains of fused multiply-adds in float32; for integers in float64,
    exact sums in int64.
    """
    dtype, target = _TARGETS[lhs.dtype]
    if 0 in shape:
        return lax.full(shape, 0, dtype)
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shape, dtype))
    return call(lhs, rhs, problems=np.asarray([*itertools.chain(*problems)], np.int64))


def dot_general(lhs, rhs, *, dimension_numbers):
    """:func:`~repjax.primitives.contract.sequential.dot_general_body` by the kernel."""
    check_float32("dot_general", lhs, rhs)
    return _dot_general(lhs, rhs, dimension_numbers)


def order_independent_dot_general(lhs, rhs, *, dimension_numbers):
    """``order_independent.dot_general_body`` with its sums by the kernel."""
    return order_independent.dot_general_body(
        lhs, rhs, dimension_numbers=dimension_numbers, exact_dot=_dot_general
    )


def order_independent_convolution(lhs, rhs, **parameters):
    """``order_independent.conv_general_dilated_body`` with its sums by the kernel."""

    def exact_convolution(lhs, rhs, strides, padding, lhs_dilation, rhs_dilation, groups):
        axes = tuple(range(lhs.ndim))
        if _has_strided_holes(strides, lhs_dilation):
            lhs, padding, lhs_dilation = _fill_holes(lhs, axes, padding, lhs_dilation)
        return _convolution(
            lhs,
            rhs,
            strides,
            padding,
            lhs_dilation,
            rhs_dilation=rhs_dilation,
            dimension_numbers=(axes, axes, axes),
            feature_group_count=groups,
            batch_group_count=1,
        )

    return order_independent.conv_general_dilated_body(
        lhs, rhs, **parameters, exact_convolution=exact_convolution
    )


def _dot_general(lhs, rhs, dimension_numbers):
    contracting, batch = dimension_numbers
    free = [free_dimensions(x, contracting[i], batch[i]) for i, x in enumerate((lhs, rhs))]
    shape = [lhs.shape[d] for d in (*batch[0], *free[0])] + [rhs.shape[d] for d in free[1]]
    in_lhs, in_rhs, in_out = map(_strides, (lhs.shape, rhs.shape, shape))
    out = iter(in_out)
    problem = _problem(
        g=[(lhs.shape[i], in_lhs[i], in_rhs[j], next(out)) for i, j in zip(*batch, strict=True)],
        m=[(lhs.shape[i], in_lhs[i], 0, next(out)) for i in free[0]],
        n=[(rhs.shape[j], 0, in_rhs[j], next(out)) for j in free[1]],
        k=[(lhs.shape[i], in_lhs[i], in_rhs[j], 0) for i, j in zip(*contracting, strict=True)],
    )
    return _call(lhs, rhs, shape, problem)


def conv_general_dilated(
    lhs,
    rhs,
    *,
    window_strides,
    padding,
    lhs_dilation,
    rhs_dilation,
    dimension_numbers,
    feature_group_count,
    batch_group_count,
):
    """:func:`~repjax.primitives.contract.convolution.conv_general_dilated_body` by the kernel.

    The patches are not made: their elements are those of the padded ``lhs``, by its strides.
    Nor are the holes of ``lhs_dilation``, which gradients of strided convolutions have: where
    ``rhs`` is finite, a step ``fma(0, rhs, s)`` is none.
    """
    check_float32("conv_general_dilated", lhs, rhs)
    parameters = {
        "rhs_dilation": rhs_dilation,
        "dimension_numbers": dimension_numbers,
        "feature_group_count": feature_group_count,
        "batch_group_count": batch_group_count,
    }

    def with_holes(lhs, rhs):
        lhs, *filled = _fill_holes(lhs, dimension_numbers[0], padding, lhs_dilation)
        return _convolution(lhs, rhs, window_strides, *filled, **parameters)

    def without_holes(lhs, rhs):
        return _convolution(lhs, rhs, window_strides, padding, lhs_dilation, **parameters)

    if all(dilation == 1 for dilation in lhs_dilation):
        return without_holes(lhs, rhs)
    if _has_strided_holes(window_strides, lhs_dilation):
        return with_holes(lhs, rhs)
    return lax.cond(jax.numpy.isfinite(rhs).all(), without_holes, with_holes, lhs, rhs)


def _fill_holes(lhs, lhs_spec, padding, lhs_dilation):
    """``lhs`` dilated and padded, and the padding and dilation that are left to do: none."""
    pads, dilations = [(0, 0)] * lhs.ndim, [1] * lhs.ndim
    for d, pad, dilation in zip(lhs_spec[2:], padding, lhs_dilation, strict=True):
        pads[d], dilations[d] = pad, dilation
    rank = len(padding)
    return pad_dilated(lhs, 0, pads, dilations), [(0, 0)] * rank, [1] * rank


def _has_strided_holes(strides, lhs_dilation) -> bool:
    """Whether an axis has both, of which the kernel takes one."""
    return any(s > 1 and d > 1 for s, d in zip(strides, lhs_dilation, strict=True))


@dataclasses.dataclass
class _Outputs:
    """Outputs ``first + step * u``, and the taps of the window that meet elements of lhs.

    Output u and tap v, ``first_tap + tap_step * v``, meet at ``start + stride * u + dilation * v``.
    """

    first: int
    step: int
    size: int
    first_tap: int
    tap_step: int
    taps: int
    start: int
    stride: int
    dilation: int


def _phases(outputs, window, stride, padding, lhs_dilation, rhs_dilation) -> list[_Outputs]:
    """All outputs along an axis, by their position between the elements of a dilated lhs."""
    common = math.gcd(lhs_dilation, rhs_dilation)
    phases = []
    for first in range(min(lhs_dilation, outputs)):
        position = [first * stride + tap * rhs_dilation - padding for tap in range(window)]
        met = [tap for tap in range(window) if position[tap] % lhs_dilation == 0]
        phases.append(
            _Outputs(
                first,
                lhs_dilation,
                -(-(outputs - first) // lhs_dilation),
                met[0] if met else 0,
                lhs_dilation // common,
                len(met),
                position[met[0]] // lhs_dilation if met else 0,
                stride,
                rhs_dilation // common,
            )
        )
    return phases


def _convolution(
    lhs,
    rhs,
    window_strides,
    padding,
    lhs_dilation,
    *,
    rhs_dilation,
    dimension_numbers,
    feature_group_count,
    batch_group_count,
):
    """A convolution without the steps at the holes; lhs_dilation or window_strides are 1."""
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    groups = feature_group_count * batch_group_count  # one of the two is 1
    batch = lhs.shape[lhs_spec[0]] // batch_group_count
    features = rhs.shape[rhs_spec[1]]
    outs = rhs.shape[rhs_spec[0]] // groups
    shape = [0] * lhs.ndim
    shape[out_spec[0]], shape[out_spec[1]] = batch, outs * groups

    spatial, pads = [], [(0, 0, 0)] * lhs.ndim
    for d, o, window, *numbers in zip(
        lhs_spec[2:],
        out_spec[2:],
        [rhs.shape[j] for j in rhs_spec[2:]],
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation,
        strict=True,
    ):
        stride, (low, high), dilation, window_dilation = numbers
        size = low + high + max(0, (lhs.shape[d] - 1) * dilation + 1)
        shape[o] = output_size(size, window, stride, window_dilation)
        phases = _phases(shape[o], window, stride, low, dilation, window_dilation)
        spatial.append(phases)
        if 0 in (window, shape[o]):
            continue
        reach = [
            (p.start, p.start + (p.size - 1) * p.stride + (p.taps - 1) * p.dilation)
            for p in phases
            if p.taps
        ]
        before = max(0, -min(first for first, _ in reach)) if reach else 0
        after = max(0, max(last for _, last in reach) + 1 - lhs.shape[d]) if reach else 0
        pads[d] = (before, after, 0)
    if any(any(pad) for pad in pads):
        lhs = lax.pad(lhs, np.zeros((), lhs.dtype), pads)

    in_lhs, in_rhs, in_out = map(_strides, (lhs.shape, rhs.shape, shape))
    of_group = (
        batch * in_lhs[lhs_spec[0]] if batch_group_count > 1 else features * in_lhs[lhs_spec[1]]
    )
    group = (groups, of_group, outs * in_rhs[rhs_spec[0]], outs * in_out[out_spec[1]])
    axes = list(zip(lhs_spec[2:], rhs_spec[2:], out_spec[2:], strict=True))

    def problem(phases):
        at = list(zip(axes, phases, strict=True))
        return _problem(
            offsets=(
                sum((p.start + pads[i][0]) * in_lhs[i] for (i, _, _), p in at if p.taps),
                sum(p.first_tap * in_rhs[j] for (_, j, _), p in at),
                sum(p.first * in_out[o] for (_, _, o), p in at),
            ),
            g=[group],
            m=[
                (batch, in_lhs[lhs_spec[0]], 0, in_out[out_spec[0]]),
                *((p.size, p.stride * in_lhs[i], 0, p.step * in_out[o]) for (i, _, o), p in at),
            ],
            n=[(outs, 0, in_rhs[rhs_spec[0]], in_out[out_spec[1]])],
            k=[
                (features, in_lhs[lhs_spec[1]], in_rhs[rhs_spec[1]], 0),
                *(
                    (p.taps, p.dilation * in_lhs[i], p.tap_step * in_rhs[j], 0)
                    for (i, j, _), p in at
                ),
            ],
        )

    return _call(lhs, rhs, shape, *map(problem, itertools.product(*spatial)))
