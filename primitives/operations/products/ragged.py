"""Matrix products with a matrix for each group of rows: ``ragged_dot_general``.

Each element is the FMA chain of ``dot_general`` over the terms of its own group, k ascending;
other groups take no part.  What belongs to no group is +0.
"""

from __future__ import annotations

from jax import lax
from jax import numpy as jnp

from repjax.primitives.core.interpret import program
from repjax.primitives.core.tables import RefusedError


@program("ragged_dot_general")
def _ragged_dot_general(
    lhs,
    rhs,
    group_sizes,
    *,
    ragged_dot_dimension_numbers,
    precision=None,
    preferred_element_type=None,
    group_offset=None,
    **_,
):
    numbers = ragged_dot_dimension_numbers
    contracting, batch = numbers.dot_dimension_numbers
    if any(batch) or group_sizes.ndim != 1 or group_offset is not None:
        raise RefusedError(
            "ragged_dot_general expected group_sizes of one dimension and neither batch dimensions "
            f"nor a group_offset, received {numbers} and group_sizes{group_sizes.shape}; map over "
            "the batch with jax.lax.map instead of jax.vmap"
        )
    (ragged,) = numbers.lhs_ragged_dimensions
    group = _groups(lhs.shape[ragged], group_sizes)
    options = {"precision": precision, "preferred_element_type": preferred_element_type}
    if ragged not in contracting[0]:
        (axis,) = numbers.rhs_group_dimensions
        return _rows_of_groups(lhs, rhs, group, ragged, axis, contracting, options)
    along = contracting[1][contracting[0].index(ragged)]
    masked = [_masked(x, group, d, len(group_sizes)) for x, d in ((lhs, ragged), (rhs, along))]
    shifted = tuple(tuple(d + 1 for d in dims) for dims in contracting)
    return lax.dot_general(*masked, (shifted, ((0,), (0,))), **options)


def _groups(rows, group_sizes):
    """The group of each row; the number of groups for rows behind the last."""
    ends = jnp.cumsum(group_sizes)
    row = lax.broadcasted_iota(ends.dtype, (rows, len(ends)), 0)
    return jnp.sum(row >= ends, axis=1, dtype=ends.dtype)


def _rows_of_groups(lhs, rhs, group, ragged, axis, contracting, options):
    """All rows times the matrices of all groups, of which each row keeps its own."""
    products = lax.dot_general(lhs, rhs, (contracting, ((), ())), **options)
    row_axis = ragged - sum(d < ragged for d in contracting[0])
    axis += lhs.ndim - len(contracting[0]) - sum(d < axis for d in contracting[1])
    position = jnp.expand_dims(group, [d for d in range(products.ndim) if d != row_axis])
    picked = jnp.take_along_axis(products, position, axis, mode="fill", fill_value=0)
    return lax.squeeze(picked, [axis])


def _masked(x, group, axis, count):
    """``[count, *x.shape]``: for each group ``x`` with +0 in the rows of all others."""
    groups = lax.broadcasted_iota(group.dtype, (count, *x.shape), 0)
    own = groups == jnp.expand_dims(group, [d for d in range(x.ndim) if d != axis])
    return jnp.where(own, x, jnp.zeros_like(x))
