"""What moves values, of any type, keys included: docs/numerics.md, section 8."""

from __future__ import annotations

import math

import numpy as np

from repjax.verify.reference import values
from repjax.verify.reference.arithmetic import exact, total_order, wrap
from repjax.verify.reference.products import dilate_and_pad
from repjax.verify.reference.sums import least_and_greatest
from repjax.verify.reference.table import Operation, of_all

#: By name, which operands say where values go or come from, and are none of these values.
CONTROLS = {
    "select_n": lambda n: {0},
    "gather": lambda n: {1},
    "dynamic_slice": lambda n: {*range(1, n)},
    "dynamic_update_slice": lambda n: {*range(2, n)},
    **dict.fromkeys(("scatter", "scatter-add", "scatter-sub", "scatter-mul"), lambda n: {1}),
    **dict.fromkeys(("scatter-max", "scatter-min"), lambda n: {1}),
    **dict.fromkeys(("scatter_add", "scatter_mul", "scatter_max", "scatter_min"), lambda n: {1}),
}
#: What only moves values.
MOVEMENT: set[str] = set()


def moves(*names: str):
    MOVEMENT.update(names)
    return of_all(*names)


@moves(
    *("copy", "copy_p", "stop_gradient", "optimization_barrier", "name", "sharding_constraint"),
    *("device_put", "reshard", "mesh_cast", "pvary", "random_clone"),
)
def same(operation: Operation):
    return [*operation.operands]


@moves("reshape")
def reshape(operation: Operation):
    (x, *_), dimensions = operation.operands, operation.params.get("dimensions")
    x = x if dimensions is None else x.transpose(dimensions)
    return [x.reshape(operation.shape)]


@moves("expand_dims", "squeeze")
def reshaped(operation: Operation):
    return [operation.operands[0].reshape(operation.shape)]


@moves("transpose")
def transpose(operation: Operation):
    return [operation.operands[0].transpose(operation.params["permutation"])]


@moves("broadcast_in_dim")
def broadcast_in_dim(operation: Operation):
    x, *_ = operation.operands
    axes, shape = operation.params["broadcast_dimensions"], operation.shape
    order = sorted(range(len(axes)), key=axes.__getitem__)
    sizes = [1] * len(shape)
    for i in order:
        sizes[axes[i]] = x.shape[i]
    return [np.broadcast_to(x.transpose(order).reshape(sizes), shape)]


@moves("broadcast_to")
def broadcast_to(operation: Operation):
    return [np.broadcast_to(operation.operands[0], operation.shape)]


@moves("concatenate")
def concatenate(operation: Operation):
    return [np.concatenate(operation.operands, operation.params["dimension"])]


@moves("stack")
def stack(operation: Operation):
    return [np.stack(operation.operands, operation.params["axis"])]


@moves("unstack")
def unstack(operation: Operation):
    return [*np.moveaxis(operation.operands[0], operation.params["axis"], 0)]


@moves("split")
def split(operation: Operation):
    ends = np.cumsum([int(n) for n in operation.params["sizes"]])[:-1]
    return np.split(operation.operands[0], ends, operation.params["axis"])


@moves("tile")
def tile(operation: Operation):
    return [np.tile(operation.operands[0], operation.params["reps"])]


@moves("rev")
def rev(operation: Operation):
    return [np.flip(operation.operands[0], operation.params["dimensions"])]


@moves("slice")
def slice_(operation: Operation):
    p = operation.params
    strides = p["strides"] or [1] * len(p["start_indices"])
    parts = map(slice, p["start_indices"], p["limit_indices"], strides)
    return [operation.operands[0][tuple(parts)]]


@moves("pad")
def pad(operation: Operation):
    x, value = operation.operands
    config = operation.params["padding_config"]
    padding = [(low, high) for low, high, _ in config]
    return [dilate_and_pad(x, value, padding, [holes + 1 for *_, holes in config])]


@moves("select_n")
def select_n(operation: Operation):
    which, *cases = operation.operands
    which = np.asarray(which).astype(np.int64)
    out = np.broadcast_to(cases[0], operation.shape)
    for i, case in enumerate(cases[1:], 1):
        out = np.where(which == i, case, out)
    return [out.astype(cases[0].dtype)]


def _starts(starts, shape, sizes) -> list[int]:
    """Where a window of these sizes begins, all of it inside."""
    return [max(0, min(int(s), n - m)) for s, n, m in zip(starts, shape, sizes, strict=True)]


@moves("dynamic_slice")
def dynamic_slice(operation: Operation):
    x, *starts = operation.operands
    sizes = operation.shape
    starts = _starts(starts[: x.ndim], x.shape, sizes)
    return [x[tuple(slice(s, s + m) for s, m in zip(starts, sizes, strict=True))]]


@moves("dynamic_update_slice")
def dynamic_update_slice(operation: Operation):
    x, update, *starts = operation.operands
    starts = _starts(starts, x.shape, update.shape)
    out = x.copy()
    out[tuple(slice(s, s + m) for s, m in zip(starts, update.shape, strict=True))] = update
    return [out]


@of_all("empty", "empty2")
def empty(operation: Operation):
    return [np.zeros(operation.shape, operation.dtype)]


# --- indices ----------------------------------------------------------------------------


def mode_of(params) -> str:
    """The name of a mode, which may be an object."""
    mode = params["mode"]
    return str(getattr(mode, "name", mode)).upper()


def window_starts(indices, mapped, limits, mode: str):
    """Where windows begin along these dimensions, and whether they are whole.

    Args:
      indices: vectors along the last axis.
      mapped: the dimension that each element is of.
      limits: the last start that there is, by dimension.
      mode: ``CLIP`` moves windows into the operand.
    """
    starts = exact(indices)
    inside = np.ones(indices.shape[:-1], bool)
    for i, d in enumerate(mapped):
        if mode == "CLIP":
            clipped = np.minimum(np.maximum(starts[..., i], 0), limits[d])
            starts[..., i] = clipped
        inside &= np.asarray((starts[..., i] >= 0) & (starts[..., i] <= limits[d]), bool)
    return np.where(inside[..., None], starts, 0).astype(np.int64), inside


@moves("gather")
def gather(operation: Operation):
    x, indices = operation.operands
    p = operation.params
    numbers, sizes, mode = p["dimension_numbers"], p["slice_sizes"], mode_of(p)
    batching = tuple(numbers.operand_batching_dims)
    collapsed = (*numbers.collapsed_slice_dims, *batching)
    limits = [n - m for n, m in zip(x.shape, sizes, strict=True)]
    # Indices that are promised to be inside are clipped by XLA, if they are not.
    clipped = "CLIP" if mode in ("CLIP", "PROMISE_IN_BOUNDS") else mode
    starts, inside = window_starts(indices, numbers.start_index_map, limits, clipped)
    batch = indices.shape[:-1]
    kept = [d for d in range(x.ndim) if d not in collapsed]
    window = [sizes[d] for d in kept]
    # For each element: [batch..., window...] positions along each dimension of the operand.
    ones = (1,) * len(window)
    at = []
    for d in range(x.ndim):
        position = np.zeros((*batch, *ones), np.int64)
        if d in numbers.start_index_map:
            start = starts[..., tuple(numbers.start_index_map).index(d)]
            position = position + start.reshape((*batch, *ones))
        if d in batching:
            axis = numbers.start_indices_batching_dims[batching.index(d)]
            along = [-1 if i == axis else 1 for i in range(len(batch))]
            position = position + np.arange(batch[axis]).reshape([*along, *ones])
        if d in kept:
            k = kept.index(d)
            offsets = np.arange(window[k])
            position = position + offsets.reshape(
                (1,) * len(batch) + tuple(-1 if i == k else 1 for i in range(len(window)))
            )
        at.append(np.broadcast_to(position, (*batch, *window)))
    if x.ndim and 0 in x.shape:
        found = np.zeros((*batch, *window), x.dtype)
    else:
        found = np.broadcast_to(x[tuple(at)], (*batch, *window))
    if clipped != "CLIP":
        fill = _fill(p.get("fill_value"), x.dtype)
        found = np.where(inside.reshape((*batch, *ones)), found, fill).astype(x.dtype)
    offset = tuple(numbers.offset_dims)
    rank = len(batch) + len(window)
    scattered = [d for d in range(rank) if d not in offset]
    order = [0] * rank
    for i, d in enumerate((*scattered, *offset)):
        order[d] = i
    return [found.transpose(order)]


def _fill(value, dtype):
    """What stands for an index that is out of bounds."""
    if value is not None:
        return np.asarray(value).astype(dtype)
    if values.is_float(dtype) or dtype.kind == "c":
        return np.asarray(np.nan).astype(dtype)
    if values.is_bool(dtype):
        return np.asarray(True)
    if dtype.kind == "V" and not values.is_integer(dtype):  # keys
        return np.full(1, 0xFF, np.uint8).repeat(dtype.itemsize).view(dtype)[0]
    least, greatest = least_and_greatest(dtype)
    return wrap(least if least < 0 else greatest, dtype)


# --- sorting ----------------------------------------------------------------------------


@of_all("sort")
def sort(operation: Operation):
    """Values ascend, NaNs come last, equal keys keep their order."""
    axis = operation.params["dimension"]
    operands = [np.moveaxis(x, axis, -1) for x in operation.operands]
    keys = [_key(x) for x in operands[: operation.params["num_keys"]]]
    order = np.broadcast_to(np.arange(operands[0].shape[-1]), operands[0].shape)
    for key in reversed(keys):
        now = np.take_along_axis(key, order, -1)
        order = np.take_along_axis(order, np.argsort(now, axis=-1, kind="stable"), -1)
    return [np.moveaxis(np.take_along_axis(x, order, -1), -1, axis) for x in operands]


def _key(x):
    return total_order(x) if values.is_float(x.dtype) else x


@of_all("lu_pivots_to_permutation")
def lu_pivots_to_permutation(operation: Operation):
    (pivots,) = operation.operands
    size = operation.params["permutation_size"]
    out = np.broadcast_to(np.arange(size, dtype=pivots.dtype), operation.shape).copy()
    for i in np.ndindex(*pivots.shape[:-1]):
        for k, j in enumerate(pivots[i]):
            out[i][[k, j]] = out[i][[j, k]]
    return [out]


@of_all("iota_2x32_shape")
def iota_2x32_shape(operation: Operation):
    """64-bit counts, in their high and low words."""
    shape = operation.params["shape"]
    count = np.arange(math.prod(shape), dtype=np.uint64).reshape(shape)
    return [(count >> np.uint64(32)).astype(np.uint32), count.astype(np.uint32)]
