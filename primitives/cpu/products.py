"""Products by the C++ kernels."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math

import jax
import numpy as np
from jax import lax

from repjax.primitives.core.sizes import row_major
from repjax.primitives.operations.accumulators import check_terms
from repjax.primitives.operations.grids import bits_of_product
from repjax.primitives.operations.products import problems
from repjax.primitives.operations.products.geometry import Geometry
from repjax.primitives.operations.products.orders import in_order, in_parts
from repjax.primitives.operations.products.sequential import check_float32

_DIMENSIONS = ("g", "m", "n", "k")


def encode(problem: problems.Problem, grids: problems.Problem | None = None) -> list[int]:
    """For the kernel: the offsets, and of each axis the dimension, the size and the strides, also
    among the exponents, of which there is one for each position on the axes of ``grids``.
    """
    axes = []
    for d, name in enumerate(_DIMENSIONS):
        of_dimension = []
        for i, axis in enumerate(getattr(problem, name)):
            in_exponents = _steps(grids, name, i, "mnk") if grids else (0, 0, 0)
            of_dimension.append((d, *dataclasses.astuple(axis), *in_exponents))
        if grids:  # in any order, so in that of the memory, of rhs or of lhs
            of_dimension.sort(key=lambda axis, name=name: axis[2 + (name == "n")], reverse=True)
        axes += of_dimension
    return [*problem.offsets, len(axes), *itertools.chain(*axes)]


def _steps(grids: problems.Problem, name: str, i: int, kinds) -> list[int]:
    """The strides of axis i of a dimension among the exponents of ``kinds``, dimensions too.

    The exponents of a kind are those of every position on g and on its dimension.
    """
    dimension = getattr(grids, name)
    if i >= len(dimension):
        return [0] * len(kinds)
    inner = math.prod(axis.size for axis in dimension[i + 1 :])
    sizes = dict(zip(_DIMENSIONS, grids.sizes, strict=True))
    return [inner * (sizes[kind] if name == "g" else int(name == kind)) for kind in kinds]


def _chains(lhs, rhs, shape, *parts, raw=(False, False)):
    """The array of ``shape`` that the problems ``parts`` fill with chains of float32.

    ``raw``: which operands the kernel makes canonical as it reads them.
    """
    if 0 in shape:
        return lax.full(shape, 0, np.float32)
    call = jax.ffi.ffi_call("repjax_product", jax.ShapeDtypeStruct(shape, np.float32))
    return call(lhs, rhs, problems=_flat(map(encode, parts)), raw=np.int64(raw[0] + 2 * raw[1]))


def _layout(array: str, kinds, grids: problems.Problem, whole) -> list[int]:
    """The axes of an array in the order of its memory, for the kernel: sizes, and the steps
    among the exponents of two kinds.
    """
    axes = [(stride, size, 0, 0) for size, stride in whole]
    for name in ("g", *kinds):
        for i, axis in enumerate(getattr(grids, name)):
            axes.append((getattr(axis, array), axis.size, *_steps(grids, name, i, kinds)))
    joined: list[list[int]] = []
    for _, size, *steps in sorted((a for a in axes if a[1] != 1), reverse=True):
        last = joined[-1] if joined else None
        if last and last[1:] == [size * step for step in steps]:
            joined[-1] = [last[0] * size, *steps]
        else:
            joined.append([size, *steps])
    return [*itertools.chain(*joined)]


def _on_grids(lhs, rhs, shape, parts, grids, terms, precision, whole=((), ())):
    """The array of ``shape`` that the problems ``parts`` fill, order-independent.

    There is an exponent for each position on the axes of ``grids``: on g and m of the rows, on g
    and n of the columns, on g and k of the terms.  ``whole`` are the other axes of lhs and rhs:
    sizes and strides.
    """
    if 0 in (*shape, terms):
        return lax.full(shape, 0, np.float32)
    g, m, n, k = grids.sizes
    kinds = {"lhs": ("k", "m"), "rhs": ("k", "n")}
    layouts = {
        f"{array}_layout": np.asarray(_layout(array, kinds[array], grids, others), np.int64)
        for array, others in zip(kinds, whole, strict=True)
    }
    call = jax.ffi.ffi_call(
        "repjax_order_independent_product", jax.ShapeDtypeStruct(shape, np.float32)
    )
    return call(
        lhs,
        rhs,
        problems=_flat(encode(problem, grids) for problem in parts),
        **layouts,
        counts=np.asarray([g * k, g * m, g * n], np.int64),
        t=np.int64(bits_of_product(terms, precision)),
    )


def _flat(lists) -> np.ndarray:
    return np.asarray([*itertools.chain(*lists)], np.int64)


def dot_general(lhs, rhs, *, dimension_numbers, raw=(False, False)):
    """``sequential.dot_general_body`` by the kernel."""
    check_float32("dot_general", lhs, rhs)
    shape, problem = problems.dot_general(lhs, rhs, dimension_numbers)
    return _chains(lhs, rhs, shape, problem, raw=raw)


def order_independent_dot_general(lhs, rhs, *, dimension_numbers, precision=None, raw=None):
    """``order_independent.dot_general_body`` by the kernel, which takes operands raw."""
    del raw
    check_float32("dot_general", lhs, rhs)
    shape, problem = problems.dot_general(lhs, rhs, dimension_numbers)
    return _on_grids(lhs, rhs, shape, [problem], problem, problem.sizes[3], precision)


#: What bounds of errors are multiplied by; less would be wrong, which the tests show.
SLACK = 1.0


def _exactly(lhs, rhs, shape, *parts, odd):
    """The array of ``shape`` that the problems ``parts`` fill with exact sums."""
    if 0 in shape:
        return lax.full(shape, 0, np.float32)
    call = jax.ffi.ffi_call("repjax_exact_product", jax.ShapeDtypeStruct(shape, np.float32))
    options = {"slack": np.float64(SLACK), "odd": np.int64(odd)}
    return call(lhs, rhs, problems=_flat(map(encode, parts)), **options)


def exact_dot_general(lhs, rhs, *, dimension_numbers, precision=None, odd=False):
    """``exact.dot_general_body`` by the kernel."""
    del precision
    check_float32("dot_general", lhs, rhs)
    shape, problem = problems.dot_general(lhs, rhs, dimension_numbers)
    check_terms("a product", problem.sizes[3])
    return _exactly(lhs, rhs, shape, problem, odd=odd)


def exact_convolution(lhs, rhs, *, odd=False, **parameters):
    """``exact.conv_general_dilated_body`` by the kernel."""

    def convolve(lhs, rhs, geometry: Geometry, precision):
        del precision
        check_terms("a convolution", geometry.terms(rhs))
        lhs, shape, parts = problems.convolution(lhs, rhs, geometry)
        return _exactly(lhs, rhs, shape, *(problem for problem, _ in parts), odd=odd)

    return _convolution(convolve, lhs, rhs, **parameters)


def conv_general_dilated(lhs, rhs, **parameters):
    """``convolution.conv_general_dilated_body`` by the kernel."""
    return _convolution(_sequential_convolution, lhs, rhs, **parameters)


def order_independent_convolution(lhs, rhs, **parameters):
    """``order_independent.conv_general_dilated_body`` by the kernel."""
    return _convolution(_convolution_on_grids, lhs, rhs, **parameters)


def _convolution(convolve, lhs, rhs, *, precision=None, **parameters):
    """A convolution by ``convolve(lhs, rhs, geometry, precision)``.

    The patches are not made: their elements are those of the padded ``lhs``, by its strides.
    Nor are the holes of ``lhs_dilation``, which gradients of strided convolutions have: where
    ``rhs`` is finite, a step ``fma(0, rhs, s)`` is none.
    """
    check_float32("conv_general_dilated", lhs, rhs)
    geometry = Geometry(**parameters)

    def with_holes(lhs, rhs):
        return convolve(geometry.filled(lhs), rhs, geometry.of_filled(), precision)

    def without_holes(lhs, rhs):
        return convolve(lhs, rhs, geometry, precision)

    if geometry.crops or geometry.has_strided_holes:
        return with_holes(lhs, rhs)
    if not geometry.has_holes:
        return without_holes(lhs, rhs)
    return lax.cond(jax.numpy.isfinite(rhs).all(), without_holes, with_holes, lhs, rhs)


def _sequential_convolution(lhs, rhs, geometry: Geometry, precision):
    del precision  # a chain has no other
    by_windows, by_taps = (functools.partial(f, geometry=geometry) for f in (_by_windows, _by_taps))
    if not _is_of_one_position(lhs, rhs, geometry):
        return by_windows(lhs, rhs)
    return lax.cond(jax.numpy.isfinite(rhs).all(), by_taps, by_windows, lhs, rhs)


def _is_of_one_position(lhs, rhs, geometry: Geometry) -> bool:
    """Whether ``lhs`` has one position, which each output meets at a tap of its own.

    So has the gradient of a convolution whose window is as large as the image: all else that a
    window meets is padding, whose steps are none where ``rhs`` is finite.
    """
    spec, rhs_spec, _ = geometry.dimension_numbers
    windows = [rhs.shape[d] for d in rhs_spec[2:]]

    def meets_each_once(window: int, low: int, high: int) -> bool:
        outputs = low + 1 + high - window + 1
        return 0 < outputs <= low + 1 <= window

    return (
        geometry.groups == 1
        and max(windows, default=1) > 1
        and all(lhs.shape[d] == 1 for d in spec[2:])
        and {*geometry.window_strides, *geometry.rhs_dilation} == {1}
        and all(meets_each_once(n, *pad) for n, pad in zip(windows, geometry.padding, strict=True))
    )


def _by_taps(lhs, rhs, geometry: Geometry):
    """The convolution of one position: output u is the product of it and of tap ``low - u``."""
    spec, rhs_spec, out_spec = geometry.dimension_numbers
    position = lax.reshape(lax.transpose(lhs, spec), [lhs.shape[d] for d in spec[:2]])
    taps = lax.transpose(rhs, [*rhs_spec[1:], rhs_spec[0]])
    for d, (low, high) in enumerate(geometry.padding, 1):
        first = taps.shape[d] - 1 - high
        taps = lax.rev(lax.slice_in_dim(taps, first, low + 1, axis=d), [d])
    shape, problem = problems.dot_general(position, taps, (((1,), (0,)), ((), ())))
    out = _chains(position, taps, shape, problem)  # the features last
    made = [0, out.ndim - 1, *range(1, out.ndim - 1)]
    return lax.transpose(out, [made[out_spec.index(d)] for d in range(out.ndim)])


def _by_windows(lhs, rhs, geometry: Geometry):
    lhs, geometry = _with_positions_together(lhs, rhs, geometry)
    lhs, shape, parts = problems.convolution(lhs, rhs, geometry)
    return _chains(lhs, rhs, shape, *(problem for problem, _ in parts))


#: Output features that fill so little of a vector that positions are its elements instead, and
#: positions that are worth it.
_FEW_FEATURES, _POSITIONS = 8, 1 << 10


def _with_positions_together(lhs, rhs, geometry: Geometry) -> tuple[jax.Array, Geometry]:
    """``lhs`` with its positions last where the kernel reads vectors of them, window by window."""
    spec, rhs_spec, out_spec = geometry.dimension_numbers
    features = rhs.shape[rhs_spec[0]] // geometry.groups
    positions = math.prod(lhs.shape[d] for d in (spec[0], *spec[2:]))
    taps = math.prod(rhs.shape[d] for d in rhs_spec[2:])
    if features > _FEW_FEATURES or positions < _POSITIONS or taps == 1 or lhs.shape[spec[1]] == 1:
        return lhs, geometry
    specs = tuple(range(lhs.ndim)), rhs_spec, out_spec
    return lax.transpose(lhs, spec), dataclasses.replace(geometry, dimension_numbers=specs)


def _convolution_on_grids(lhs, rhs, geometry: Geometry, precision):
    lhs, shape, parts = problems.convolution(lhs, rhs, geometry)
    if not parts:
        return lax.full(shape, 0, np.float32)
    first = parts[0][0]
    # One for each image, input feature and output feature, which come first in their dimensions.
    scaled = dataclasses.replace(first, m=first.m[:1], k=first.k[:1])
    whole = [
        [(s[d], row_major(s)[d]) for d in spec[2:]]
        for s, spec in zip((lhs.shape, rhs.shape), geometry.dimension_numbers[:2], strict=True)
    ]
    parts = [problem for problem, _ in parts]
    return _on_grids(lhs, rhs, shape, parts, scaled, geometry.terms(rhs), precision, whole)


#: By primitive and order.
_KERNELS = {
    "dot_general": {
        "sequential": dot_general,
        "order_independent": order_independent_dot_general,
        "exact": exact_dot_general,
    },
    "conv_general_dilated": {
        "sequential": conv_general_dilated,
        "order_independent": order_independent_convolution,
        "exact": exact_convolution,
    },
}


def kernel(name: str):
    """The kernel of a product, by its order, in parts."""
    kernels = _KERNELS[name].items()
    return in_order({order: in_parts(name, kernel, order) for order, kernel in kernels})
