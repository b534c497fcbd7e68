"""Collectives inside ``shard_map`` and ``pmap``: what devices exchange, and add up.

Moving data between devices is exact.  A sum or an extremum over a mesh axis gathers the
operands of all devices, in the order of the axis, and reduces them like an array of that
many elements: so the network's topology, its algorithm and the number of hosts do not matter.
The number of devices does: it is how the program divides its data.
"""

from __future__ import annotations

import jax
from jax import lax

from repjax.primitives.core.tables import (
    NOT_DIFFERENTIABLE,
    Context,
    RefusedError,
    check_accumulation,
    rule,
)
from repjax.primitives.core.values import is_inexact
from repjax.primitives.operations.arithmetic import require_format
from repjax.primitives.operations.exact import take_as_they_stand
from repjax.primitives.operations.reductions.extrema import reduce_max_p, reduce_min_p
from repjax.primitives.operations.reductions.sums import reduce_sum_p

take_as_they_stand("all_gather", "all_to_all", "axis_index", "ppermute")


def _check(context: Context, operands) -> None:
    require_format(context, operands)
    if context.differentiable:
        raise RefusedError(f"{context.equation.primitive.name} {NOT_DIFFERENTIABLE}")


def _sum(context: Context, x, axes: tuple[int, ...]):
    accumulation = check_accumulation(context.accumulation)
    return reduce_sum_p.bind(x, axes=axes, accumulation=accumulation)


def _over_devices(reduce, stock):
    """The rule of a reduction of several operands over mesh axes."""

    def collective(context, operands, params):
        _check(context, operands)
        axes, groups = params["axes"], params.get("axis_index_groups")
        mapped = tuple(axis for axis in axes if isinstance(axis, int))  # over an array's, by vmap
        named = tuple(axis for axis in axes if not isinstance(axis, int))

        def one(x):
            if not is_inexact(jax.typeof(x)):
                return stock(x, axes, axis_index_groups=groups)
            x = reduce(context, x, mapped) if mapped else x
            if not named:
                return x
            return reduce(context, lax.all_gather(x, named, axis_index_groups=groups), (0,))

        results = [one(x) for x in operands]
        return results if context.equation.primitive.multiple_results else results[0]

    return collective


rule("psum", "psum_invariant")(_over_devices(_sum, lax.psum))
rule("pmax")(_over_devices(lambda _, x, axes: reduce_max_p.bind(x, axes=axes), lax.pmax))
rule("pmin")(_over_devices(lambda _, x, axes: reduce_min_p.bind(x, axes=axes), lax.pmin))


@rule("reduce_scatter")
def _reduce_scatter(context, operands, params):
    """The sum over devices, of which each keeps its part: exchanged, then added as in psum."""
    _check(context, operands)
    (x,) = operands
    axis, dimension, n = (params[k] for k in ("axis_name", "scatter_dimension", "axis_size"))
    groups = params["axis_index_groups"]
    if not is_inexact(jax.typeof(x)):
        return lax.psum_scatter(
            x,
            axis,
            scatter_dimension=dimension,
            axis_index_groups=groups,
            tiled=params["tiled"],
        )
    if params["tiled"]:
        x = x.reshape(*x.shape[:dimension], n, -1, *x.shape[dimension + 1 :])
    return _sum(context, lax.all_to_all(x, axis, dimension, 0, axis_index_groups=groups), (0,))


@rule("all_gather_invariant")
def _all_gather_invariant(context, operands, params):
    _check(context, operands)
    axis, dimension = params["axis_name"], params["all_gather_dimension"]
    return lax.all_gather(*operands, axis, axis=dimension, tiled=params["tiled"])


@rule("pvary")
def _pvary(context, operands, params):
    # A statement about types, which the rewritten program does not make.
    return operands if context.equation.primitive.multiple_results else operands[0]
