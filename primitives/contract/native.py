"""Contractions by the C++ kernel of :mod:`repjax.primitives.native`."""

from __future__ import annotations

import dataclasses
import itertools
import math

import jax
import numpy as np
from jax import lax

from repjax.primitives.contract import order_independent, problems
from repjax.primitives.contract.sequential import check_float32

_DIMENSIONS = ("g", "m", "n", "k")


def _encode(problem: problems.Problem, grids: problems.Problem | None = None) -> list[int]:
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


def _chains(lhs, rhs, shape, *parts):
    """The array of ``shape`` that the problems ``parts`` fill with chains of float32."""
    if 0 in shape:
        return lax.full(shape, 0, np.float32)
    call = jax.ffi.ffi_call("repjax_contract", jax.ShapeDtypeStruct(shape, np.float32))
    return call(lhs, rhs, problems=_flat(map(_encode, parts)))


def _layout(array: str, kinds, grids: problems.Problem, whole) -> list[int]:
    """Of the axes of an array in the order of its memory, for the kernel: the size, and the steps
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
        "repjax_contract_order_independent", jax.ShapeDtypeStruct(shape, np.float32)
    )
    return call(
        lhs,
        rhs,
        problems=_flat(_encode(problem, grids) for problem in parts),
        **layouts,
        counts=np.asarray([g * k, g * m, g * n], np.int64),
        t=np.int64(order_independent.grid_bits(terms, precision)),
    )


def _flat(lists) -> np.ndarray:
    return np.asarray([*itertools.chain(*lists)], np.int64)


def dot_general(lhs, rhs, *, dimension_numbers):
    """:func:`~repjax.primitives.contract.sequential.dot_general_body` by the kernel."""
    check_float32("dot_general", lhs, rhs)
    shape, problem = problems.dot_general(lhs, rhs, dimension_numbers)
    return _chains(lhs, rhs, shape, problem)


def order_independent_dot_general(lhs, rhs, *, dimension_numbers, precision=None):
    """:func:`~repjax.primitives.contract.order_independent.dot_general_body` by the kernel."""
    check_float32("dot_general", lhs, rhs)
    shape, problem = problems.dot_general(lhs, rhs, dimension_numbers)
    return _on_grids(lhs, rhs, shape, [problem], problem, problem.sizes[3], precision)


def conv_general_dilated(lhs, rhs, **parameters):
    """:func:`~repjax.primitives.contract.convolution.conv_general_dilated_body` by the kernel."""
    return _convolution(_sequential_convolution, lhs, rhs, **parameters)


def order_independent_convolution(lhs, rhs, **parameters):
    """``order_independent.conv_general_dilated_body`` by the kernel."""
    return _convolution(_convolution_on_grids, lhs, rhs, **parameters)


def _convolution(
    contract, lhs, rhs, *, window_strides, padding, lhs_dilation, dimension_numbers, **parameters
):
    """A convolution by ``contract(lhs, rhs, strides, padding, lhs_dilation, ...)``.

    The patches are not made: their elements are those of the padded ``lhs``, by its strides.
    Nor are the holes of ``lhs_dilation``, which gradients of strided convolutions have: where
    ``rhs`` is finite, a step ``fma(0, rhs, s)`` is none.
    """
    check_float32("conv_general_dilated", lhs, rhs)
    parameters["dimension_numbers"] = dimension_numbers

    def with_holes(lhs, rhs):
        lhs, *filled = problems.fill_holes(lhs, dimension_numbers[0], padding, lhs_dilation)
        return contract(lhs, rhs, window_strides, *filled, **parameters)

    def without_holes(lhs, rhs):
        return contract(lhs, rhs, window_strides, padding, lhs_dilation, **parameters)

    cropped = any(low < 0 or high < 0 for low, high in padding)
    if cropped or problems.has_strided_holes(window_strides, lhs_dilation):
        return with_holes(lhs, rhs)
    if all(dilation == 1 for dilation in lhs_dilation):
        return without_holes(lhs, rhs)
    return lax.cond(jax.numpy.isfinite(rhs).all(), without_holes, with_holes, lhs, rhs)


def _sequential_convolution(lhs, rhs, *geometry, **parameters):
    lhs, shape, parts = problems.convolution(lhs, rhs, *geometry, **parameters)
    return _chains(lhs, rhs, shape, *(problem for problem, _ in parts))


def _convolution_on_grids(lhs, rhs, *geometry, dimension_numbers, precision=None, **parameters):
    parameters["dimension_numbers"] = dimension_numbers
    lhs, shape, parts = problems.convolution(lhs, rhs, *geometry, **parameters)
    if not parts:
        return lax.full(shape, 0, np.float32)
    first = parts[0][0]
    # Of an image, an input feature and an output feature, which come first in their dimensions.
    grids = dataclasses.replace(first, m=first.m[:1], k=first.k[:1])
    whole = [
        [(s[d], problems.strides(s)[d]) for d in spec[2:]]
        for s, spec in zip((lhs.shape, rhs.shape), dimension_numbers[:2], strict=True)
    ]
    features, *window = (rhs.shape[d] for d in dimension_numbers[1][1:])
    terms = features * math.prod(window)
    return _on_grids(lhs, rhs, shape, [p for p, _ in parts], grids, terms, precision, whole)
