"""Contractions as matrix products over strided arrays, for kernels.

``dot_general`` with any dimension numbers, and convolutions with their gradients, are all

    out[g, m, n] = the chain over k of lhs[g, m, k] * rhs[g, k, n]

where g, m, n and k each stand for several axes, and every axis has a stride in each array.  So a
kernel that computes this needs no transpositions, and a convolution no patches.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import jax
from jax import lax

from repjax.primitives.contract.sequential import free_dimensions
from repjax.primitives.partition import Axes
from repjax.primitives.reduce.window import output_size, pad_dilated


@dataclasses.dataclass(frozen=True)
class Axis:
    """Its size, and its strides in lhs, rhs and out, in elements."""

    size: int
    lhs: int
    rhs: int
    out: int


@dataclasses.dataclass(frozen=True)
class Problem:
    """The axes of each of the four dimensions, row-major: k ascends with the last axis first.

    ``offsets`` are those of the first elements in lhs, rhs and out.
    """

    g: tuple[Axis, ...]
    m: tuple[Axis, ...]
    n: tuple[Axis, ...]
    k: tuple[Axis, ...]
    offsets: tuple[int, int, int] = (0, 0, 0)

    @property
    def sizes(self) -> tuple[int, int, int, int]:
        return tuple(math.prod(axis.size for axis in d) for d in (self.g, self.m, self.n, self.k))


def merged(axes) -> list[tuple[int, int]]:
    """Pairs of a size and a stride, row-major: what lies together is one axis."""
    found: list[tuple[int, int]] = []
    for size, stride in axes:
        if size < 2:  # there is one index at most
            continue
        if found and found[-1][1] == size * stride:
            size *= found.pop()[0]
        found.append((size, stride))
    return found


def strides(shape) -> list[int]:
    """Row-major, in elements."""
    return [math.prod(shape[d + 1 :]) for d in range(len(shape))]


def dot_general(lhs, rhs, dimension_numbers) -> tuple[list[int], Problem]:
    """The shape of a ``dot_general`` of two arrays, and its problem."""
    contracting, batch = dimension_numbers
    free = [free_dimensions(x, contracting[i], batch[i]) for i, x in enumerate((lhs, rhs))]
    shape = [lhs.shape[d] for d in (*batch[0], *free[0])] + [rhs.shape[d] for d in free[1]]
    in_lhs, in_rhs, in_out = map(strides, (lhs.shape, rhs.shape, shape))
    out = iter(in_out)
    pairs = [list(zip(*dims, strict=True)) for dims in (batch, contracting)]
    return shape, Problem(
        g=tuple(Axis(lhs.shape[i], in_lhs[i], in_rhs[j], next(out)) for i, j in pairs[0]),
        m=tuple(Axis(lhs.shape[i], in_lhs[i], 0, next(out)) for i in free[0]),
        n=tuple(Axis(rhs.shape[j], 0, in_rhs[j], next(out)) for j in free[1]),
        k=tuple(Axis(lhs.shape[i], in_lhs[i], in_rhs[j], 0) for i, j in pairs[1]),
    )


def fill_holes(lhs, lhs_spec, padding, lhs_dilation):
    """``lhs`` dilated and padded, and the padding and dilation that are left to do: none."""
    pads, dilations = [(0, 0)] * lhs.ndim, [1] * lhs.ndim
    for d, pad, dilation in zip(lhs_spec[2:], padding, lhs_dilation, strict=True):
        pads[d], dilations[d] = pad, dilation
    rank = len(padding)
    return pad_dilated(lhs, 0, pads, dilations), [(0, 0)] * rank, [1] * rank


def has_strided_holes(strides, lhs_dilation) -> bool:
    """Whether an axis has both, of which :func:`convolution` takes one."""
    return any(s > 1 and d > 1 for s, d in zip(strides, lhs_dilation, strict=True))


@dataclasses.dataclass(frozen=True)
class Phase:
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


def _phases(outputs, window, stride, padding, lhs_dilation, rhs_dilation) -> list[Phase]:
    """All outputs along an axis, by their position between the elements of a dilated lhs."""
    common = math.gcd(lhs_dilation, rhs_dilation)
    phases = []
    for first in range(min(lhs_dilation, outputs)):
        position = [first * stride + tap * rhs_dilation - padding for tap in range(window)]
        met = [tap for tap in range(window) if position[tap] % lhs_dilation == 0]
        phases.append(
            Phase(
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


def convolution(
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
) -> tuple[jax.Array, list[int], list[tuple[Problem, tuple[Phase, ...]]]]:
    """A convolution without the steps at the holes; lhs_dilation or window_strides are 1.

    Returns the padded ``lhs``, the shape of the result, and the problems that fill it together,
    each with its phase along each spatial axis.
    """
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
        lhs = lax.pad(lhs, lax.full((), 0, lhs.dtype), pads)

    in_lhs, in_rhs, in_out = map(strides, (lhs.shape, rhs.shape, shape))
    of_group = (
        batch * in_lhs[lhs_spec[0]] if batch_group_count > 1 else features * in_lhs[lhs_spec[1]]
    )
    group = Axis(groups, of_group, outs * in_rhs[rhs_spec[0]], outs * in_out[out_spec[1]])
    axes = list(zip(lhs_spec[2:], rhs_spec[2:], out_spec[2:], strict=True))

    def problem(phases):
        at = list(zip(axes, phases, strict=True))
        return Problem(
            g=(group,),
            m=(
                Axis(batch, in_lhs[lhs_spec[0]], 0, in_out[out_spec[0]]),
                *(Axis(p.size, p.stride * in_lhs[i], 0, p.step * in_out[o]) for (i, _, o), p in at),
            ),
            n=(Axis(outs, 0, in_rhs[rhs_spec[0]], in_out[out_spec[1]]),),
            k=(
                Axis(features, in_lhs[lhs_spec[1]], in_rhs[rhs_spec[1]], 0),
                *(
                    Axis(p.taps, p.dilation * in_lhs[i], p.tap_step * in_rhs[j], 0)
                    for (i, j, _), p in at
                ),
            ),
            offsets=(
                sum((p.start + pads[i][0]) * in_lhs[i] for (i, _, _), p in at if p.taps),
                sum(p.first_tap * in_rhs[j] for (_, j, _), p in at),
                sum(p.first * in_out[o] for (_, _, o), p in at),
            ),
        )

    return lhs, shape, [(problem(phases), phases) for phases in itertools.product(*spatial)]


def axes_of_dot_general(lhs, rhs, *, dimension_numbers, contraction, **_) -> Axes:
    """Along which axes a sharded ``dot_general`` may be split.

    Not along those of the terms, if there is an order; else across these, and across those of the
    columns, which share the exponents of the terms.  ``contraction`` may also be ``integers``,
    which have none.
    """
    contracting, batch = dimension_numbers
    names = []
    for i, (x, letter) in enumerate(((lhs, "m"), (rhs, "n"))):
        named = [f"{letter}{d}" for d in range(x.ndim)]
        for letter, dims in (("b", batch[i]), ("k", contracting[i])):
            for j, d in enumerate(dims):
                named[d] = f"{letter}{j}"
        names.append(named)
    free = [free_dimensions(x, contracting[i], batch[i]) for i, x in enumerate((lhs, rhs))]
    columns = [names[1][d] for d in free[1]]
    result = [*(names[0][d] for d in (*batch[0], *free[0])), *columns]
    terms = [names[0][d] for d in sorted(contracting[0])]
    if contraction == "sequential":
        return Axes(names, [result], whole=terms, takes_long=True)
    across = dict.fromkeys(terms, "terms")
    if contraction == "order_independent":
        across |= dict.fromkeys(columns, "columns")
    return Axes(names, [result], across=across)


def axes_of_convolution(
    lhs, rhs, *, dimension_numbers, feature_group_count, batch_group_count, contraction, **_
) -> Axes:
    """Likewise of a convolution: the images, and without groups the features."""
    names = []
    for letter, spec in zip(("x", "w", "y"), dimension_numbers, strict=True):
        named = [""] * lhs.ndim
        for role, d in enumerate(spec):
            named[d] = f"{letter}{role}"
        names.append(named)
    same = {"x0": "n", "y0": "n"} if batch_group_count == 1 else {}
    if feature_group_count == batch_group_count == 1:
        same |= {"w0": "o", "y1": "o", "x1": "i", "w1": "i"}
    names = [[same.get(name, name) for name in named] for named in names]
    every = dict.fromkeys(name for named in names for name in named)
    across = {
        "order_independent": {"i": "terms", "o": "columns"},
        "integers": {"i": "terms"},
    }.get(contraction, {})
    across = {name: what for name, what in across.items() if name in every}
    whole = [name for name in every if name not in ("n", "o", *across)]
    return Axes(names[:2], names[2:], whole, across, takes_long=True)
