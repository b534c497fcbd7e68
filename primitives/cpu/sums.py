"""Sums, exact prefixes and extrema by the C++ kernels."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
import numpy as np

from repjax.primitives.core.partition import Axes, partitioned
from repjax.primitives.core.sizes import row_major
from repjax.primitives.cpu import library
from repjax.primitives.cpu.bytecode import Bytecode, Place
from repjax.primitives.fusion.views import merged_axes, order_of_terms
from repjax.primitives.operations.accumulators import check_terms
from repjax.primitives.operations.grids import bits_of_sum
from repjax.primitives.operations.reductions.cumulative import axes_of_prefixes, cumsum_body
from repjax.primitives.operations.reductions.extrema import (
    reduce_max_body,
    reduce_min_body,
    top_k_body,
)
from repjax.primitives.operations.reductions.sums import (
    axes_of_reduction,
    axes_of_terms,
    by_accumulation,
    collapse,
    reduce_sum_across,
    reduce_sum_body,
)

#: What bounds of errors of exact sums are multiplied by; less would be wrong, which tests show.
SLACK = 1.0


def sizes_of_sum(shape, axes):
    """How many outer sums, terms of each and inner sums there are (:func:`order_of_terms`)."""
    kept = [d for d in range(len(shape)) if d not in axes]
    outer = [d for d in kept if d < max(axes)]
    parts = outer, axes, kept[len(outer) :]
    return np.int64([math.prod(shape[d] for d in part) for part in parts])


def call_kernel(*operands, shape, axes, accumulation, bytecode=(), odd=False):
    """The sum over axes of an array of this shape, by the kernel.

    Or, with an accumulation ``max`` or ``min``, the extremum.  The array is the operand, or the
    results of bytecode (:mod:`repjax.primitives.cpu.bytecode`), with its elements in the order of
    the terms.
    """
    sizes = sizes_of_sum(shape, axes)
    kept = tuple(n for d, n in enumerate(shape) if d not in axes)
    result = jax.ShapeDtypeStruct(kept, np.float32)
    integers = {"sizes": sizes, "bytecode": np.asarray(bytecode, np.int64)}
    if accumulation == "exact":
        call = jax.ffi.ffi_call("repjax_exact_sum", result)
        return call(*operands, slack=np.float64(SLACK), odd=np.int64(odd), **integers)
    if accumulation == "order_independent":
        call = jax.ffi.ffi_call("repjax_order_independent_sum", result)
        return call(*operands, t=np.int64(bits_of_sum(int(integers["sizes"][1]))), **integers)
    call = jax.ffi.ffi_call("repjax_reduce_sum", result)
    return call(*operands, accumulation=accumulation, **integers)


def code_of_terms(x, axes) -> list[int]:
    """Bytecode of the elements in the order of the terms, none if they lie so."""
    order = order_of_terms(x.shape, axes)
    if order is None:
        return []
    code, steps = Bytecode(), row_major(x.shape)
    place = Place.along(x, merged_axes((x.shape[d], steps[d]) for d in order))
    return code.encode(x.size, [([code.read(place, x.dtype)], x.dtype)])


def _reduce(x, *, axes, accumulation, **odd):
    """The reduction of an array in memory."""
    code = code_of_terms(jax.typeof(x), axes) if axes else []
    if not axes or (code and accumulation == "sequential"):  # of no terms, or of elements in order
        x, axis = collapse(x, axes)
        axes, code = (axis,), []
    options = {"accumulation": accumulation, "bytecode": code, **odd}
    return call_kernel(x, shape=x.shape, axes=axes, **options)


def _sum(x, *, axes, accumulation):
    is_large = accumulation == "pairwise" and x.size > library.LARGE
    if x.size == 0 or (is_large and not (axes and order_of_terms(x.shape, axes))):
        return reduce_sum_body(x, axes=axes, accumulation=accumulation)
    return _reduce(x, axes=axes, accumulation=accumulation)


def order_independent_sum(x, *, axes, accumulation):
    """``reduce_sum_body`` of order-independent sums by the kernel."""
    if x.size == 0:
        return reduce_sum_body(x, axes=axes, accumulation=accumulation)
    return _reduce(x, axes=axes, accumulation=accumulation)


def exact_sum(x, *, axes, accumulation, odd=False):
    """``reduce_sum_body`` of exact sums by the kernel."""
    check_terms("a sum", math.prod(x.shape[d] for d in axes))
    if x.size == 0:
        return reduce_sum_body(x, axes=axes, accumulation=accumulation, odd=odd)
    return _reduce(x, axes=axes, accumulation=accumulation, odd=odd)


def exact_cumsum(x, *, axis, reverse, accumulation, odd=False):
    """``cumsum_body`` of exact sums by the kernel."""
    check_terms("cumsum", x.shape[axis])
    call = jax.ffi.ffi_call("repjax_exact_cumsum", jax.ShapeDtypeStruct(x.shape, np.float32))
    options = {"slack": np.float64(SLACK), "odd": np.int64(odd), "reverse": np.int64(reverse)}
    return call(x, sizes=sizes_of_sum(x.shape, (axis,)), **options)


def _extremum(name: str, body):
    def kernel(x, *, axes):
        if x.size == 0:
            return body(x, axes=axes)
        return _reduce(x, axes=axes, accumulation=name)

    return partitioned(kernel, axes_of_reduction)


def _top_k(x, *, k, axis):
    if k == 0 or x.size == 0:
        return top_k_body(x, k=k, axis=axis)
    rows = jnp.moveaxis(x, axis, -1)
    results = [
        jax.ShapeDtypeStruct((*rows.shape[:-1], k), dtype) for dtype in (np.float32, np.int32)
    ]
    found = jax.ffi.ffi_call("repjax_top_k", results)(rows, n=np.int64(rows.shape[-1]))
    return [jnp.moveaxis(y, -1, axis) for y in found]


def _axes_of_top_k(x, *, axis, **_) -> Axes:
    names = [f"d{i}" for i in range(x.ndim)]
    found = [*names]
    found[axis] = "k"
    return Axes([names], [found, found], [names[axis], "k"])


top_k = partitioned(_top_k, _axes_of_top_k)
_in_parts = partitioned(_sum, axes_of_reduction)
_KERNELS = dict.fromkeys(("pairwise", "sequential"), _in_parts)
_KERNELS["order_independent"] = partitioned(order_independent_sum, axes_of_terms, reduce_sum_across)
_KERNELS["exact"] = partitioned(exact_sum, axes_of_reduction)
reduce_sum = by_accumulation(_KERNELS, reduce_sum_body)
cumsum = by_accumulation({"exact": partitioned(exact_cumsum, axes_of_prefixes)}, cumsum_body)
reduce_max, reduce_min = _extremum("max", reduce_max_body), _extremum("min", reduce_min_body)
