"""Scatter-add, and with it segment sums and the gradients of gathers and embeddings.

Accumulation is ``order_independent``: the updates that reach one element of the operand are
added as integers on a common grid, and integer addition commutes, so the order in which a
platform applies them, atomics included, cannot matter (Demmel and Nguyen 2015, "Parallel
reproducible summation": one bin).  For the updates u of one element:

    E = the largest exponent of the u
    q = u rounded to the nearest multiple of 2**(E - 38), ties to even
    result = operand + float32(sum of the q)

The q are exact unless some u is below 2**(E - 15), and a single u always is; the sum of the q
is exact; it is rounded once, and the final addition once more.  Nothing depends on the updates
of other elements.  (Beyond 2**23 scattered windows the 38 becomes 61 - ceil(log2 windows), to
keep the sum within 64 bits.)  Infinities and NaNs give what IEEE summation gives in any order.
Indices out of bounds follow ``mode`` as in ``jax.lax``.
"""

from __future__ import annotations

import math

import numpy as np
from jax import lax

from repjax.primitives import canonical
from repjax.primitives.arithmetic import plain_rule
from repjax.primitives.define import define

_PRECISION = 38  # bits kept below the largest exponent
_INFINITE, _NAN = 0x100, 0x200  # above every finite exponent field


def _gather_like(updates, operand, indices, numbers, **options):
    """The elements of ``operand`` that the updates of a scatter reach, as the updates lie."""
    collapsed = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = iter(updates.shape[d] for d in numbers.update_window_dims)
    sizes = tuple(1 if d in collapsed else next(window) for d in range(operand.ndim))
    gather_numbers = lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    return lax.gather(operand, indices, gather_numbers, sizes, fill_value=0, **options)


def _power_of_two(exponent):
    """2.0**exponent as float64, for an int64 array of normal exponents."""
    return canonical.from_bits((exponent + 1023) << 52, np.float64)


def scatter_add_body(operand, indices, updates, *, dimension_numbers, **options):
    """The order-independent scatter-add of float32 ``updates`` into ``operand``."""
    if 0 in updates.shape:
        return operand
    windows = math.prod(indices.shape[:-1])
    t = min(_PRECISION, 61 - (windows - 1).bit_length())

    i = canonical.bits(updates)
    field = lax.shift_right_logical(i & 0x7FFFFFFF, np.int32(23))
    finite = field < 0xFF
    zeros = lax.full(operand.shape, 0, np.int32)
    high = lax.select(
        canonical.is_nan(updates), lax.full_like(i, _NAN), lax.full_like(i, _INFINITE)
    )
    positive = (i > 0) | canonical.is_nan(updates)
    high = lax.select(finite, field, lax.select(positive, high, lax.full_like(i, 0)))
    low = lax.convert_element_type((~finite) & (~positive), np.int32)
    high = lax.scatter_max(zeros, indices, high, dimension_numbers, **options)
    low = lax.scatter_max(zeros, indices, low, dimension_numbers, **options)

    # E - t, from the exponent field of float32, whose bias is 127.
    grid = lax.convert_element_type(lax.min(high, np.int32(0xFE)), np.int64) - (127 + t)
    scale = _power_of_two(-_gather_like(updates, grid, indices, dimension_numbers, **options))
    finite_updates = lax.select(finite, updates, lax.full_like(updates, 0))
    steps = lax.round(
        canonical.to_float64(finite_updates) * scale, lax.RoundingMethod.TO_NEAREST_EVEN
    )
    total = lax.scatter_add(
        lax.full(operand.shape, 0, np.int64),
        indices,
        lax.convert_element_type(steps, np.int64),
        dimension_numbers,
        **options,
    )
    # To float64 in two exact halves, rounded to odd, so that float32 rounds the exact sum.
    half = np.int64(1 << 31)
    high_half = canonical.to_float64(lax.shift_right_arithmetic(total, np.int64(31)))
    sums = canonical.two_sum(high_half * np.float64(half), canonical.to_float64(total & (half - 1)))
    exact = canonical.guard(canonical.round_to_odd(*sums))
    result = canonical.to_float32(canonical.guard(exact * _power_of_two(grid)))

    infinity = lax.full_like(result, np.inf)
    result = lax.select(high == _INFINITE, infinity, result)
    result = lax.select(low == 1, -infinity, result)
    nan = (high == _NAN) | ((high == _INFINITE) & (low == 1))
    result = lax.select(nan, lax.full_like(result, np.nan), result)
    return canonical.flush(lax.add(operand, result))


scatter_add_p = define("scatter_add", scatter_add_body, lax.scatter_add, halves=canonical.flush)
plain_rule(
    "scatter-add",
    scatter_add_p,
    keep=("dimension_numbers", "indices_are_sorted", "unique_indices", "mode"),
)
