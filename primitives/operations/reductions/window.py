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
from repjax.primitives.core.sizes import power_of_two_from
from repjax.primitives.core.tables import RefusedError
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


def _selected(operand, select_prim, **window):
    """The flat index of the element of ``operand`` that each window selects, or -1 for none.

    The first in row-major order among equals, and the first NaN if there is one.  Padding
    and holes are never selected.

    Raises:
      RefusedError: where the last index is no int32.
    """
    if operand.size > 1 << 31:
        raise RefusedError(
            f"the derivative of max and min pooling expected up to 2**31 elements, received "
            f"{operand.size}; pool parts of the batch or of the channels one after the other"
        )
    key = lax.convert_element_type(sort_keys.of(operand, select_prim is lax.ge_p), np.int64)
    index = lax.reshape(lax.iota(np.int64, operand.size), operand.shape)
    # One integer for both: the largest has the largest key, and of those the first index.
    packed = (key << np.int64(32)) | (index ^ np.int64(0xFFFFFFFF))
    none = np.int64(np.iinfo(np.int64).min)
    packed = _largest(packed, none, **window)
    return lax.convert_element_type(lax.bitwise_not(packed), np.int32)


def select_and_gather_add_body(tangents, operand, *, select_prim, **window):
    """The tangent at the element that each window of ``operand`` selects; no arithmetic.

    ``select_prim`` is ``lax.ge_p`` (maximum) or ``lax.le_p``.  Selected is the first in
    row-major order among equals, or the first NaN; where a window holds only padding, +0.
    """
    selected = _selected(operand, select_prim, **window)
    none = lax.lt(selected, lax.full_like(selected, 0))
    if tangents.size == 0:
        return lax.full(selected.shape, 0, tangents.dtype)
    position = lax.select(none, lax.full_like(selected, 0), selected)
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
    selected = _selected(
        operand,
        select_prim,
        window_dimensions=window_dimensions,
        window_strides=window_strides,
        padding=padding,
    )
    index = lax.reshape(lax.iota(np.int32, operand.size), operand.shape)

    # In each dimension, element q lies in the windows (q + low) // stride - j, j < overlap.
    # So every window is repeated `stride` times, and then cropped and padded such that a
    # shift of j * stride brings it to the elements it is the j-th window of.
    strides, overlap, margins = [], [], []
    for size, windows, window, stride, (low, _) in zip(
        operand.shape, source.shape, window_dimensions, window_strides, padding, strict=True
    ):
        if windows == 1:  # the only one belongs to every element, whatever its stride
            stride, low = size, 0
        overlap.append(1 if windows == 1 else -(-window // stride))
        margins.append(((overlap[-1] - 1) * stride - low, low + size - windows * stride))
        strides.append(stride)
    ones = [1] * operand.ndim
    owner = pad_dilated(_repeat(selected, strides), -1, margins, ones)
    value = pad_dilated(_repeat(source, strides), 0, margins, ones)
    shifts = np.array(list(np.ndindex(*overlap)), np.int32) * np.int32(strides)

    def add(j, total):
        start = shifts[j] if isinstance(j, int) else lax.dynamic_index_in_dim(shifts, j, 0, False)
        here, x = (lax.dynamic_slice(a, list(start), operand.shape) for a in (owner, value))
        x = lax.select(lax.eq(here, index), x, lax.full_like(x, 0))
        return canonical.flush(total + x)

    total = lax.full(operand.shape, 0, np.float32)
    if len(shifts) > _UNROLLED:
        return lax.fori_loop(np.int32(0), np.int32(len(shifts)), add, total)
    for j in range(len(shifts)):
        total = add(j, total)
    return total


def _repeat(x, counts):
    """Every element of ``x`` repeated ``counts[d]`` times along each dimension ``d``."""
    n = x.ndim
    pairs = [size for pair in zip(x.shape, counts, strict=True) for size in pair]
    x = lax.broadcast_in_dim(x, pairs, range(0, 2 * n, 2))
    return lax.reshape(x, [size * c for size, c in zip(pairs[::2], counts, strict=True)])
