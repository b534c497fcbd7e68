"""Scatter-add and scatters of extrema by the C++ kernels."""

from __future__ import annotations

import math

import jax
import numpy as np

from repjax.primitives.core import canonical
from repjax.primitives.operations.accumulators import check_terms
from repjax.primitives.operations.scatter import (
    as_rows,
    grid_precision,
    scatter_add_body,
    scatter_max_body,
    scatter_min_body,
)

#: What bounds of errors of exact sums are multiplied by; less would be wrong, which tests show.
SLACK = 1.0


def scatter_add(
    operand,
    indices,
    updates,
    *,
    dimension_numbers,
    mode,
    accumulation="order_independent",
    odd=False,
    raw=(),
    **options,
):
    """``scatter.scatter_add_body`` by the kernel, if it is one of rows.  Updates may be ``raw``."""
    windows = math.prod(indices.shape[:-1])
    if accumulation == "exact":
        check_terms("scatter-add", windows)
    rows = as_rows(operand, indices, updates, dimension_numbers, mode)
    if rows is None:
        updates = canonical.canonicalize(updates) if any(raw) else updates
        options |= {"dimension_numbers": dimension_numbers, "mode": mode}
        options |= {"accumulation": accumulation} | ({"odd": True} if odd else {})
        return canonical.one_nan(scatter_add_body(operand, indices, updates, **options))
    _, width, row, matrix = rows
    result = jax.ShapeDtypeStruct(operand.shape, operand.dtype)
    call = jax.ffi.ffi_call("repjax_scatter_add", result, input_output_aliases={0: 0})
    precision = 0 if accumulation == "exact" else grid_precision(windows)
    result = call(
        operand,
        row,
        matrix,
        width=np.int64(width),
        precision=np.int64(precision),
        order=accumulation + (", odd" if odd else ""),
        slack=np.float64(SLACK),
    )
    return canonical.one_nan(result) if accumulation == "exact" else result


def _extremum(body, largest: bool):
    def kernel(operand, indices, updates, *, dimension_numbers, mode, raw=(), **options):
        """``body`` by the kernel, if it is one of rows.  Updates may be ``raw``."""
        rows = as_rows(operand, indices, updates, dimension_numbers, mode)
        if rows is None:
            updates = canonical.canonicalize(updates) if any(raw) else updates
            options |= {"dimension_numbers": dimension_numbers, "mode": mode}
            return canonical.one_nan(body(operand, indices, updates, **options))
        _, width, row, matrix = rows
        result = jax.ShapeDtypeStruct(operand.shape, operand.dtype)
        call = jax.ffi.ffi_call("repjax_scatter_extremum", result, input_output_aliases={0: 0})
        return call(operand, row, matrix, width=np.int64(width), largest=np.int64(largest))

    return kernel


scatter_max, scatter_min = _extremum(scatter_max_body, True), _extremum(scatter_min_body, False)
