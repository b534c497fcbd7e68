"""Scatter-add by the C++ kernel."""

from __future__ import annotations

import jax
import numpy as np

from repjax.primitives.core import canonical
from repjax.primitives.operations.scatter import as_rows, grid_precision, scatter_add_body


def scatter_add(operand, indices, updates, *, dimension_numbers, mode, raw=(), **options):
    """``scatter.scatter_add_body`` by the kernel, if it is one of rows and not ``exact``.

    The updates may be ``raw``.
    """
    rows = None
    if options.get("accumulation") != "exact":
        rows = as_rows(operand, indices, updates, dimension_numbers, mode)
    if rows is None:
        updates = canonical.canonicalize(updates) if any(raw) else updates
        options |= {"dimension_numbers": dimension_numbers, "mode": mode}
        return canonical.one_nan(scatter_add_body(operand, indices, updates, **options))
    _, width, row, matrix = rows
    result = jax.ShapeDtypeStruct(operand.shape, operand.dtype)
    call = jax.ffi.ffi_call("repjax_scatter_add", result, input_output_aliases={0: 0})
    integers = {"width": np.int64(width), "precision": np.int64(grid_precision(len(matrix)))}
    return call(operand, row, matrix, **integers)
