"""Windows over an array: pooling, and the selections that differentiate max pooling.

A maximum or a minimum of canonical values needs no order and an integer reduction
none either, so those go to XLA's own window reduction.  Sums get a fixed tree.

Shapes and parameters are those of the primitives of ``jax.lax`` of the same names:
the operand is dilated by ``base_dilation`` and padded (a negative padding crops),
and in each dimension output ``o`` and window position ``w`` meet at element
``o * window_strides + w * window_dilation`` of the result.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.core.sizes import power_of_two_from, row_major
from repjax.primitives.core.tables import RefusedError
from repjax.primitives.operations.arithmetic import materialize_p
from repjax.primitives.operations.reductions import sort_keys
from repjax.primitives.operations.reductions.sums import add, pairwise

# Windows up to this size are unrolled, which lets XLA fuse all of it into one loop.
_UNROLLED = 64


def output_size(size: int, window: int, stride: int, dilation: int) -> int:
    """How many windows fit into a padded dimension of ``size`` elements."""
    return max(0, (size - (window - 1) * dilation - 1) // stride + 1)


def pad_dilated(x, value, padding, base_dilation):
    """``x`` dilated by ``base_dilation`` and then padded, both with the constant ``value``."""
    value = lax.full((), value, x.dtype)
    return lax.pad(x, value, [(*p, d - 1) for p, d in zip(padding, base_dilation, strict=True)])


def gather_windows(x, window, strides, dilation):
    """All windows of the padded ``x`` as an array ``[*window, *outputs]``.

    One gather for each dimension that needs one, whatever the size of the window.
    """
    n = x.ndim
    for axis in reversed(range(n)):  # x: [..., axis, <window and output of later axes>]
        if window[axis] == strides[axis] == 1:
            x = lax.expand_dims(x, [axis])
            continue
        out = output_size(x.shape[axis], window[axis], strides[axis], dilation[axis])
        index = (
            np.arange(window[axis], dtype=np.int32)[:, None] * dilation[axis]
            + np.arange(out, dtype=np.int32) * strides[axis]
        )
        shape = (*x.shape[:axis], *index.shape, *x.shape[axis + 1 :])
        if not np.array_equal(index.ravel(), np.arange(x.shape[axis])):
            x = take(x, index.ravel(), axis)
        x = lax.reshape(x, shape)
    return lax.transpose(x, [*range(0, 2 * n, 2), *range(1, 2 * n, 2)])


def take(x, index, axis):
    """``x`` at the positions ``index`` of ``axis``, all of them in bounds."""
    numbers = lax.GatherDimensionNumbers(
        offset_dims=tuple(d for d in range(x.ndim) if d != axis),
        collapsed_slice_dims=(axis,),
        start_index_map=(axis,),
    )
    sizes = [1 if d == axis else size for d, size in enumerate(x.shape)]
    return lax.gather(
        x, lax.expand_dims(index, [1]), numbers, sizes, mode=lax.GatherScatterMode.PROMISE_IN_BOUNDS
    )


def _slice_windows(x, outputs, window, strides, dilation):
    """The elements at each window position, row-major, as arrays of shape ``outputs``."""
    for position in np.ndindex(*window):
        start = [w * d for w, d in zip(position, dilation, strict=True)]
        stop = [b + (n - 1) * s + 1 for b, n, s in zip(start, outputs, strides, strict=True)]
        yield lax.slice(x, start, stop, strides)


def _largest(
    x,
    least,
    *,
    window_dimensions,
    window_strides,
    padding,
    base_dilation=None,
    window_dilation=None,
):
    """The largest integer of each window; padding and holes are ``least``."""
    ones = (1,) * x.ndim
    window = (window_dimensions, window_strides, window_dilation or ones)
    if math.prod(window_dimensions) > _UNROLLED:
        args = (*window[:2], padding, base_dilation, window_dilation)
        return lax.reduce_window(x, least, lax.max, *args)
    x = pad_dilated(x, least, padding, base_dilation or ones)
    outputs = tuple(output_size(*args) for args in zip(x.shape, *window, strict=True))
    if 0 in outputs:
        return lax.full(outputs, least, x.dtype)
    return functools.reduce(lax.max, _slice_windows(x, outputs, *window))


def _extremum(x, largest: bool, window):
    return sort_keys.values(
        _largest(sort_keys.of(x, largest), sort_keys.IDENTITY, **window), largest
    )


def reduce_window_max_body(operand, **window):
    """The maximum over each window of a canonical float32 array; NaN if the window holds one.

    Padding and the holes of ``base_dilation`` are -inf.
    """
    return _extremum(operand, True, window)


def reduce_window_min_body(operand, **window):
    """The minimum over each window of a canonical float32 array; NaN if the window holds one.

    Padding and the holes of ``base_dilation`` are +inf.
    """
    return _extremum(operand, False, window)


def reduce_window_sum_body(
    operand, *, window_dimensions, window_strides, padding, base_dilation, window_dilation
):
    """The sum over each window of a canonical float32 array, by the pairwise tree.

    The positions of the window are flattened row-major and padded with +0 to a power of
    two; then ``x[:h] + x[h:]`` until one is left, each sum canonical.  Padding and the
    holes of ``base_dilation`` are +0 elements.
    """
    x = pad_dilated(operand, 0, padding, base_dilation)
    window = (window_dimensions, window_strides, window_dilation)
    outputs = tuple(output_size(*args) for args in zip(x.shape, *window, strict=True))
    n = math.prod(window_dimensions)
    if 0 in outputs:
        return lax.full(outputs, 0, x.dtype)
    if n > _UNROLLED:
        windows = lax.reshape(gather_windows(x, *window), [n, *outputs])
        return pairwise(add, [windows], 0)[0]
    terms = list(_slice_windows(x, outputs, *window))
    while n > 1:
        half = power_of_two_from(n) // 2
        # The padding is never made: x + 0 is x for every canonical x.
        sums = [canonical.flush(a + b) for a, b in zip(terms, terms[half:], strict=False)]
        terms = sums + terms[n - half : half]
        n = half
    return terms[0]


def _selected(operand, select_prim, weights, **window):
    """The number of the position that each window selects, or -1 for none: an int32 array.

    The number of a position is the sum of its coordinates times their ``weights``.  Selected is
    the first in row-major order among equals, and the first NaN if there is one.  Padding and
    holes are never selected.

    Raises:
      RefusedError: the window is large, and the last index of ``operand`` is no int32.
    """
    keys = sort_keys.of(operand, select_prim is lax.ge_p)
    if math.prod(window["window_dimensions"]) > _UNROLLED:
        return _number_of_index(_selected_index(keys, **window), keys.shape, weights, **window)
    sizes, strides = window["window_dimensions"], window["window_strides"]
    least = np.int32(np.iinfo(np.int32).min)  # no number's key
    padded = pad_dilated(keys, least, window["padding"], window["base_dilation"])
    outputs = tuple(map(output_size, padded.shape, sizes, strides, window["window_dilation"]))
    found, largest = lax.full(outputs, -1, np.int32), lax.full(outputs, least, np.int32)
    if 0 in outputs:
        return found
    # From the last position on, so that the first of equals is found.
    numbers = np.array(list(np.ndindex(*sizes))) @ np.array(weights)
    slices = [*_slice_windows(padded, outputs, sizes, strides, window["window_dilation"])]
    for number, key in zip(numbers[::-1], slices[::-1], strict=True):
        is_here = lax.ge(key, largest) & lax.gt(key, lax.full_like(key, least))
        found = lax.select(is_here, lax.full_like(found, np.int32(number)), found)
        largest = lax.max(largest, key)
    return found


def _selected_index(keys, **window):
    """The flat index of what each window selects of the operand with these keys, or -1."""
    _check_indices(keys.size)
    index = lax.reshape(lax.iota(np.int64, keys.size), keys.shape)
    # One integer for both: the largest has the largest key, and of those the first index.
    packed = lax.convert_element_type(keys, np.int64) << np.int64(32)
    packed = packed | (index ^ np.int64(0xFFFFFFFF))
    packed = _largest(packed, np.int64(np.iinfo(np.int64).min), **window)
    return lax.convert_element_type(lax.bitwise_not(packed), np.int32)


def _check_indices(size: int) -> None:
    if size > 1 << 31:
        raise RefusedError(
            f"this derivative of max and min pooling expected up to 2**31 elements, received "
            f"{size}; pool parts of the batch or of the channels one after the other"
        )


def _geometry(shape, window_dimensions, window_strides, padding, base_dilation, window_dilation):
    """Of each dimension: its step in the flat index, the sizes of the operand and the window, the
    stride, the padding in front and both dilations; int32[ndim, 7]."""
    lows = [low for low, _ in padding]
    steps = map(int, row_major(shape))
    sizes = (steps, shape, window_dimensions, window_strides, lows, base_dilation, window_dilation)
    return np.array([*zip(*sizes, strict=True)], np.int64).astype(np.int32)


def _number_of_index(index, shape, weights, **window):
    """Numbers of positions in their windows of flat indices of an operand; -1 stays so."""
    number = lax.full_like(index, 0)
    of_dimensions = _geometry(shape, **window)
    for d, (step, size, _, stride, low, base, dilation) in enumerate(of_dimensions):
        padded = index // step % size * base + low
        begin = lax.broadcasted_iota(np.int32, index.shape, d) * stride
        number += (padded - begin) // dilation * np.int32(weights[d])
    return lax.select(lax.lt(index, lax.full_like(index, 0)), index, number)


def _index_of_number(number, shape, **window):
    """The flat index in the operand of row-major numbers of positions in their windows."""
    index = lax.full_like(number, 0)
    weights = row_major(window["window_dimensions"])
    of_dimensions = _geometry(shape, **window)
    for d, (step, _, places, stride, low, base, dilation) in enumerate(of_dimensions):
        begin = lax.broadcasted_iota(np.int32, number.shape, d) * stride
        padded = begin + number // np.int32(weights[d]) % places * dilation
        index += (padded - low) // base * step
    return index


def select_and_gather_add_body(tangents, operand, *, select_prim, **window):
    """The tangent at the element that each window of ``operand`` selects; no arithmetic.

    ``select_prim`` is ``lax.ge_p`` (maximum) or ``lax.le_p``.  Selected is the first in
    row-major order among equals, or the first NaN; where a window holds only padding, +0.

    Raises:
      RefusedError: where the last index is no int32.
    """
    _check_indices(operand.size)
    selected = _selected(operand, select_prim, row_major(window["window_dimensions"]), **window)
    none = lax.lt(selected, lax.full_like(selected, 0))
    if tangents.size == 0:
        return lax.full(selected.shape, 0, tangents.dtype)
    position = _index_of_number(selected, operand.shape, **window)
    position = lax.select(none, lax.full_like(position, 0), position)
    position = lax.reshape(position, [position.size])
    picked = take(lax.reshape(tangents, [tangents.size]), position, 0)
    picked = lax.reshape(picked, selected.shape)
    return lax.select(none, lax.full_like(picked, 0), picked)


def select_and_scatter_add_body(
    source, operand, *, select_prim, window_dimensions, window_strides, padding
):
    """Adds each element of ``source`` to the element of ``operand``'s window it selects.

    ``source`` is canonical float32 with one element for each window of ``operand``.
    Selected is as in :func:`select_and_gather_add_body`.  What several windows add to one
    element is summed in row-major order of the windows, from +0, each sum canonical.
    """
    if 0 in source.shape:
        return lax.full(operand.shape, 0, np.float32)
    # In each dimension element q, at place r of o * stride + r = q + low, lies in the windows
    # o - j, j < overlap, at their position r + j * stride.
    counts, strides, lows, overlap, reach = [], [], [], [], []
    for size, windows, window, stride, (low, _) in zip(
        operand.shape, source.shape, window_dimensions, window_strides, padding, strict=True
    ):
        if windows == 1:  # the only one belongs to every element, whatever its stride
            stride = low + size
        overlap.append(1 if windows == 1 else -(-window // stride))
        counts.append(-(-(low + size) // stride))
        strides.append(stride)
        lows.append(low)
        reach.append(overlap[-1] * stride)  # of positions, some of which lie behind the window
    weights, ones = row_major(reach), (1,) * operand.ndim
    owner = _selected(
        operand,
        select_prim,
        weights,
        window_dimensions=window_dimensions,
        window_strides=window_strides,
        padding=padding,
        base_dilation=ones,
        window_dilation=ones,
    )
    if math.prod(reach) < 1 << 24:  # not to be found again for each element
        owner = materialize_p.bind(lax.convert_element_type(owner, np.float32))
        owner = lax.convert_element_type(owner, np.int32)
    pads = [(j - 1, n - m) for j, n, m in zip(overlap, counts, source.shape, strict=True)]
    owner, value = pad_dilated(owner, -1, pads, ones), pad_dilated(source, 0, pads, ones)

    # An axis of o and one of r for each dimension.
    shape = [n for pair in zip(counts, strides, strict=True) for n in pair]
    place = lax.full(shape, 0, np.int32)
    for d, weight in enumerate(weights):
        place += lax.broadcasted_iota(np.int32, shape, 2 * d + 1) * np.int32(weight)
    shifts = np.array(list(np.ndindex(*overlap)), np.int32)
    further = (np.array(overlap) - 1 - shifts) * strides @ np.array(weights)
    further = further.astype(np.int32)

    def add(j, total):
        if isinstance(j, int):
            start, behind = shifts[j], further[j]
        else:
            start, behind = (lax.dynamic_index_in_dim(a, j, 0, False) for a in (shifts, further))
        here, x = (
            lax.broadcast_in_dim(
                lax.dynamic_slice(a, list(start), counts), shape, range(0, len(shape), 2)
            )
            for a in (owner, value)
        )
        x = lax.select(lax.eq(here, place + behind), x, lax.full_like(x, 0))
        return canonical.flush(total + x)

    total = lax.full(shape, 0, np.float32)
    if len(shifts) > _UNROLLED:
        total = lax.fori_loop(np.int32(0), np.int32(len(shifts)), add, total)
    else:
        for j in range(len(shifts)):
            total = add(j, total)
    total = lax.reshape(total, [n * stride for n, stride in zip(counts, strides, strict=True)])
    # Behind the padding, and whole where this crops.
    shape = operand.shape
    ends = [(-low, low + n - m) for low, n, m in zip(lows, shape, total.shape, strict=True)]
    return pad_dilated(total, 0, ends, ones)
