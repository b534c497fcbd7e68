"""Products as matrix products over strided arrays, for kernels.

``dot_general`` with any dimension numbers, and convolutions with their gradients, are all

    out[g, m, n] = the chain over k of lhs[g, m, k] * rhs[g, k, n]

where g, m, n and k each stand for several axes, and every axis has a stride in each array.  So a
kernel that computes this needs no transpositions, and a convolution no patches.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import jax
from jax import lax

from repjax.primitives.core.partition import Axes
from repjax.primitives.core.sizes import row_major
from repjax.primitives.operations.products.geometry import Geometry
from repjax.primitives.operations.products.sequential import free_dimensions
from repjax.primitives.operations.reductions.window import output_size


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


def dot_general(lhs, rhs, dimension_numbers) -> tuple[list[int], Problem]:
    """The shape of a ``dot_general`` of two arrays, and its problem."""
    contracting, batch = dimension_numbers
    free = [free_dimensions(x, contracting[i], batch[i]) for i, x in enumerate((lhs, rhs))]
    shape = [lhs.shape[d] for d in (*batch[0], *free[0])] + [rhs.shape[d] for d in free[1]]
    in_lhs, in_rhs, in_out = map(row_major, (lhs.shape, rhs.shape, shape))
    out = iter(in_out)
    pairs = [list(zip(*dims, strict=True)) for dims in (batch, contracting)]
    return shape, Problem(
        g=tuple(Axis(lhs.shape[i], in_lhs[i], in_rhs[j], next(out)) for i, j in pairs[0]),
        m=tuple(Axis(lhs.shape[i], in_lhs[i], 0, next(out)) for i in free[0]),
        n=tuple(Axis(rhs.shape[j], 0, in_rhs[j], next(out)) for j in free[1]),
        k=tuple(Axis(lhs.shape[i], in_lhs[i], in_rhs[j], 0) for i, j in pairs[1]),
    )


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

    @property
    def reach(self) -> tuple[int, int]:
        """The first and the last element that outputs meet; both may lie outside of lhs."""
        last = self.start + (self.size - 1) * self.stride + (self.taps - 1) * self.dilation
        return self.start, last


def phases(outputs, window, stride, padding, lhs_dilation, rhs_dilation) -> list[Phase]:
    """All outputs along an axis, by their position between the elements of a dilated lhs.

    Elements are ``lhs_dilation`` apart; between them are holes, which are zeros.  An output and a
    tap that meet at a hole have no step in common, and which taps those are depends only on the
    output's place modulo ``lhs_dilation``, its phase.

    A window of 3 taps with stride 2 makes 3 outputs of 7 elements.  Its gradient is a convolution
    of the cotangents c0 c1 c2 of these, dilated by 2 and padded by 2 at either end, with stride 1::

        position      0   1   2   3   4   5   6   7   8
        cotangents    .   .   c0  .   c1  .   c2  .   .
        output 0      w0  w1  w2
        output 1          w0  w1  w2
        output 2              w0  w1  w2

    Outputs 0, 2, 4 and 6 are one phase: ``w0`` and ``w2`` meet elements, which are neighbours, the
    first one before c0: ``Phase(first=0, step=2, size=4, first_tap=0, tap_step=2, taps=2,
    start=-1, stride=1, dilation=1)``.  Outputs 1, 3 and 5 are the other: ``w1`` meets one,
    ``Phase(first=1, step=2, size=3, first_tap=1, tap_step=2, taps=1, start=0, stride=1,
    dilation=1)``.  Together they have 4 * 2 + 3 * 1 = 11 steps instead of 7 * 3.
    """
    common = math.gcd(lhs_dilation, rhs_dilation)
    found = []
    for first in range(min(lhs_dilation, outputs)):
        position = [first * stride + tap * rhs_dilation - padding for tap in range(window)]
        met = [tap for tap in range(window) if position[tap] % lhs_dilation == 0]
        found.append(
            Phase(
                first,
                step=lhs_dilation,
                size=-(-(outputs - first) // lhs_dilation),
                first_tap=met[0] if met else 0,
                tap_step=lhs_dilation // common,
                taps=len(met),
                start=position[met[0]] // lhs_dilation if met else 0,
                stride=stride,
                dilation=rhs_dilation // common,
            )
        )
    return found


def _beyond(size: int, reaches: Sequence[tuple[int, int]]) -> tuple[int, int]:
    """How many zeros outputs meet in front of and behind an axis of ``size`` elements."""
    if not reaches:
        return 0, 0
    before = max(0, -min(first for first, _ in reaches))
    return before, max(0, max(last for _, last in reaches) + 1 - size)


class _Side(NamedTuple):
    """A spatial axis of a convolution: its outputs by phases, and the padding that these need."""

    outputs: int
    phases: list[Phase]
    pad: tuple[int, int]


def _sides(lhs, rhs, geometry: Geometry) -> list[_Side]:
    """The spatial axes, in the order of the specifications.

    The padding is what outputs meet, not what the geometry has: that in front of and behind a
    dilated operand may be holes only.  In the example of :func:`phases`, where it has 2 and 2, the
    four outputs of the first phase meet elements -1 to 3 of the three: it is 1 and 1.
    """
    lhs_spec, rhs_spec, _ = geometry.dimension_numbers
    found = []
    for size, window, stride, (low, high), dilation, window_dilation in zip(
        [lhs.shape[d] for d in lhs_spec[2:]],
        [rhs.shape[d] for d in rhs_spec[2:]],
        geometry.window_strides,
        geometry.padding,
        geometry.lhs_dilation,
        geometry.rhs_dilation,
        strict=True,
    ):
        dilated = low + high + max(0, (size - 1) * dilation + 1)
        outputs = output_size(dilated, window, stride, window_dilation)
        of_side = phases(outputs, window, stride, low, dilation, window_dilation)
        is_empty = 0 in (window, outputs)
        reaches = [] if is_empty else [phase.reach for phase in of_side if phase.taps]
        found.append(_Side(outputs, of_side, _beyond(size, reaches)))
    return found


def _padded(lhs, spatial, sides: Sequence[_Side]):
    pads = [(0, 0, 0)] * lhs.ndim
    for d, side in zip(spatial, sides, strict=True):
        pads[d] = (*side.pad, 0)
    return lax.pad(lhs, lax.full((), 0, lhs.dtype), pads) if any(map(any, pads)) else lhs


def convolution(
    lhs, rhs, geometry: Geometry
) -> tuple[jax.Array, list[int], list[tuple[Problem, tuple[Phase, ...]]]]:
    """A convolution without the steps at the holes; lhs_dilation or window_strides are 1.

    Returns the padded ``lhs``, the shape of the result, and the problems that fill it together,
    each with its phase along each spatial axis: in two dimensions, with the phases of
    :func:`phases` along both, four problems.
    """
    lhs_spec, rhs_spec, out_spec = geometry.dimension_numbers
    sides = _sides(lhs, rhs, geometry)
    batch = lhs.shape[lhs_spec[0]] // geometry.batch_group_count
    shape = [0] * lhs.ndim
    sizes = (batch, rhs.shape[rhs_spec[0]], *(side.outputs for side in sides))
    for d, size in zip(out_spec, sizes, strict=True):
        shape[d] = size
    lhs = _padded(lhs, lhs_spec[2:], sides)
    make = functools.partial(_problem_of_phases, lhs, rhs, shape, geometry)
    pads = [side.pad[0] for side in sides]
    of_sides = itertools.product(*(side.phases for side in sides))
    return lhs, shape, [(make(pads, along), along) for along in of_sides]


def _problem_of_phases(lhs, rhs, shape, geometry: Geometry, pads, along) -> Problem:
    """The problem of the outputs of one phase along each spatial axis of the padded ``lhs``.

    ``pads`` is the padding in front.  In the example of :func:`phases`, with one image and one
    feature, the first phase is m = 4 outputs, each 1 further in lhs and 2 further in out, and k = 2
    taps, each 1 further in lhs and 2 further in rhs; it begins at offset -1 + 1 = 0 of lhs.  The
    second is m = 3 and k = 1, and begins at offsets 0 + 1 of lhs, 1 of rhs and 1 of out.
    """
    _, rhs_spec, out_spec = geometry.dimension_numbers
    in_lhs, in_rhs, in_out = (
        [row_major(sizes)[d] for d in spec]
        for sizes, spec in zip(
            (lhs.shape, rhs.shape, shape), geometry.dimension_numbers, strict=True
        )
    )
    batch, features = shape[out_spec[0]], rhs.shape[rhs_spec[1]]
    outs = rhs.shape[rhs_spec[0]] // geometry.groups
    of_group = batch * in_lhs[0] if geometry.batch_group_count > 1 else features * in_lhs[1]
    at = [*zip(along, pads, in_lhs[2:], in_rhs[2:], in_out[2:], strict=True)]
    return Problem(
        g=(Axis(geometry.groups, of_group, outs * in_rhs[0], outs * in_out[1]),),
        m=(
            Axis(batch, in_lhs[0], 0, in_out[0]),
            *(Axis(p.size, p.stride * i, 0, p.step * o) for p, _, i, _, o in at),
        ),
        n=(Axis(outs, 0, in_rhs[0], in_out[1]),),
        k=(
            Axis(features, in_lhs[1], in_rhs[1], 0),
            *(Axis(p.taps, p.dilation * i, p.tap_step * j, 0) for p, _, i, j, _ in at),
        ),
        offsets=(
            sum((p.start + pad) * i for p, pad, i, _, _ in at if p.taps),
            sum(p.first_tap * j for p, _, _, j, _ in at),
            sum(p.first * o for p, _, _, _, o in at),
        ),
    )


def axes_of_dot_general(lhs, rhs, *, dimension_numbers, contraction, **_) -> Axes:
    """Along which axes a sharded ``dot_general`` may be split.

    Not along those of the terms, if there is an order; else across these, and across those of the
    columns, which share the exponents of the terms.  ``exact`` products have none, nor have those
    of integers, for which ``contraction`` is ``integers``.
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
        "exact": {"i": "terms"},
        "integers": {"i": "terms"},
    }.get(contraction, {})
    across = {name: what for name, what in across.items() if name in every}
    whole = [name for name in every if name not in ("n", "o", *across)]
    return Axes(names[:2], names[2:], whole, across, takes_long=True)
