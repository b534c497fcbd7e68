"""Collectives inside ``shard_map`` and ``pmap``: what devices exchange, and add up.

Moving data between devices is exact.  A sum or an extremum over a mesh axis brings together the
operands of all devices, in the order of the axis, and reduces them like an array of that
many elements: so the network's topology, its algorithm and the number of hosts do not matter.
The number of devices does: it is how the program divides its data.

The small operands of an equation go together, since devices wait for each other at each exchange;
large ones go alone, since what goes together is copied.  Where there is much to reduce, a device
reduces its share, and the results are gathered: what goes from device to device is then twice the
operands, however many devices there are.
"""

from __future__ import annotations

import functools

import jax
from jax import lax

from repjax.primitives.core.tables import (
    NOT_DIFFERENTIABLE,
    TOGETHER,
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


#: Elements of all devices that take less time to gather than another exchange does.
_FEW = 1 << 16
#: Elements of a device that are worth an exchange, and more of which would take more memory: what
#: is exchanged is copied.
_MANY = 1 << 21


def _over_axes(reduce, flat, axes, groups) -> list[jax.Array]:
    """The reductions over mesh axes of several vectors of one type."""
    devices = len(groups[0]) if groups else lax.psum(1, axes)
    unequal = groups and any(len(group) != devices for group in groups)
    sizes = [x.size for x in flat]
    if sum(sizes) * devices <= _FEW or unequal:
        gathered = lax.all_gather(lax.concatenate(flat, 0), axes, axis_index_groups=groups)
        return list(lax.split(reduce(gathered, (0,)), sizes))
    # One more vector makes the shares equal: padding the others, and cutting what comes back,
    # would copy all of them.
    filling = -sum(sizes) % devices
    filled = lax.concatenate([*flat, lax.full((filling,), 0, flat[0].dtype)], 0)
    shares = filled.reshape(devices, -1)
    share = reduce(lax.all_to_all(shares, axes, 0, 0, axis_index_groups=groups), (0,))
    reduced = lax.all_gather(share, axes, axis_index_groups=groups, tiled=True)
    return list(lax.split(reduced, [*sizes, filling]))[: len(flat)]


def _over_devices(reduce, operands, axes, groups) -> list[jax.Array]:
    """The reductions over mesh axes of several operands, in the parts of :func:`_together`."""
    results = list(operands)
    for places in _together(operands):
        reduced = _over_axes(reduce, [operands[i].reshape(-1) for i in places], axes, groups)
        for i, x in zip(places, reduced, strict=True):
            results[i] = x.reshape(operands[i].shape)
    return results


def _together(operands) -> list[list[int]]:
    """Which operands go together: of one type, and of ``_MANY`` elements, or one that is larger."""
    parts: list[list[int]] = []
    for dtype in dict.fromkeys(x.dtype for x in operands):
        small: list[int] = []
        held = 0
        for i, x in enumerate(operands):
            if x.dtype != dtype:
                continue
            if x.size > _MANY:
                parts.append([i])
                continue
            if held + x.size > _MANY:
                parts.append(small)
                small, held = [], 0
            small.append(i)
            held += x.size
        if small:
            parts.append(small)
    return parts


def _collective(name: str, reduce, stock, *others: str) -> None:
    """The rules of a reduction over mesh axes: of an equation, and of several ones together."""

    def together(context, operands, params):
        _check(context, operands)
        axes, groups = params["axes"], params.get("axis_index_groups")
        mapped = tuple(axis for axis in axes if isinstance(axis, int))  # over an array's, by vmap
        named = tuple(axis for axis in axes if not isinstance(axis, int))
        here = functools.partial(reduce, context)
        operands = [here(x, mapped) if mapped else jax.numpy.asarray(x) for x in operands]
        return _over_devices(here, operands, named, groups) if named else operands

    def one(context, operands, params):
        (x,) = operands
        if is_inexact(jax.typeof(x)):
            return together(context, operands, params)[0]
        _check(context, operands)
        return stock(x, params["axes"], axis_index_groups=params.get("axis_index_groups"))

    for each in (name, *others):
        rule(each)(one)
        TOGETHER[each] = together


_collective("psum", _sum, lax.psum, "psum_invariant")
_collective("pmax", lambda _, x, axes: reduce_max_p.bind(x, axes=axes), lax.pmax)
_collective("pmin", lambda _, x, axes: reduce_min_p.bind(x, axes=axes), lax.pmin)


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
