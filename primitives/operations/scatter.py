"""Scatters: sums, products, extrema and assignments at indices.

**Windows.**  A scatter brings one window of ``updates`` to each index vector of ``indices``;
the windows are numbered in row-major order over the axes of ``indices`` but the last.

**Scatter-add**, and with it segment sums and the gradients of gathers and embeddings.
Accumulation is ``order_independent``: the updates that reach one element of the operand are
added as integers on a common grid, and integer addition commutes, so the order in which a
platform applies them, atomics included, cannot matter (:mod:`.grids`).  For the
updates u of one element:

    E = the largest exponent of the u
    q = u rounded to the nearest multiple of 2**(E - 38), ties to even
    result = operand + float32(sum of the q)

The q are exact unless some u is below 2**(E - 15), and a single u always is; the sum of the q
is exact; it is rounded once, and the final addition once more.  Nothing depends on the updates
of other elements.  (Beyond 2**23 scattered windows the 38 becomes 61 - ceil(log2 windows), to
keep the sum within 64 bits.)  Infinities and NaNs give what IEEE summation gives in any order.
Indices out of bounds follow ``mode`` as in ``jax.lax``.  Scatter-sub adds the negated updates.
With the accumulation ``exact``, an element of the result is the exact sum of the element and its
updates, rounded once (:mod:`.accumulators`).

**Scatter** (assignment): of the windows that reach one element of the operand, the last wins.

**Scatter-mul**: the element is multiplied by one window after the other, in their order.

**Scatter-min, scatter-max**: exact; NaN if the element or one of its updates is NaN.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.core.define import define
from repjax.primitives.core.interpret import interpret_function
from repjax.primitives.core.tables import RefusedError, check_accumulation, rule
from repjax.primitives.operations import accumulators, grids
from repjax.primitives.operations.arithmetic import add_p, mul_p, neg, plain_rule, require_format
from repjax.primitives.operations.reductions import sort_keys
from repjax.primitives.operations.reductions.window import take

_INFINITE, _NAN = 0x100, 0x200  # above every finite exponent field
#: Rows of the operand for each window, from which on the windows are few.
_FEW = 2


def window_sizes(ndim: int, updates, numbers) -> tuple[int, ...]:
    """Of a window along each of so many dimensions of an operand; ``updates`` is a shape."""
    single = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = iter(updates[d] for d in numbers.update_window_dims)
    return tuple(1 if d in single else next(window) for d in range(ndim))


def _gather_like(updates, operand, indices, numbers, fill_value=0, **options):
    """The elements of ``operand`` that the updates of a scatter reach, as the updates lie."""
    sizes = window_sizes(operand.ndim, updates.shape, numbers)
    gather_numbers = lax.GatherDimensionNumbers(
        offset_dims=numbers.update_window_dims,
        collapsed_slice_dims=numbers.inserted_window_dims,
        start_index_map=numbers.scatter_dims_to_operand_dims,
        operand_batching_dims=numbers.operand_batching_dims,
        start_indices_batching_dims=numbers.scatter_indices_batching_dims,
    )
    return lax.gather(operand, indices, gather_numbers, sizes, fill_value=fill_value, **options)


def _starts(shape, indices, numbers, mode) -> dict[int, Any]:
    """For each scattered dimension of an operand of this shape, where the windows start, int32.

    Where that is out of bounds, and not clipped, it is out of bounds here, too.
    """
    clip = mode == lax.GatherScatterMode.CLIP
    starts = {}
    for i, d in enumerate(numbers.scatter_dims_to_operand_dims):
        start = lax.index_in_dim(indices, i, indices.ndim - 1, keepdims=False)
        if clip or start.dtype.itemsize > 4:
            limits = jax.numpy.iinfo(start.dtype)
            low, high = (0, shape[d] - 1) if clip else (-1, shape[d])
            low, high = max(low, limits.min), min(high, limits.max)
            start = lax.clamp(np.array(low, start.dtype), start, np.array(high, start.dtype))
        starts[d] = lax.convert_element_type(start, np.int32)  # uint32 of 2**31 on is negative
    return starts


def _has_whole_windows(shape, updates, numbers) -> bool:
    """Whether windows are one element of each scattered dimension, and all of the others."""
    scattered = {*numbers.scatter_dims_to_operand_dims}
    single = (*numbers.inserted_window_dims, *numbers.operand_batching_dims)
    window = [n for d, n in enumerate(shape) if d not in single]
    return (
        scattered == {*numbers.inserted_window_dims}
        and len(scattered) > 0
        and all(isinstance(shape[d], int) and 0 < shape[d] < 1 << 31 for d in scattered)
        and window == [updates.shape[d] for d in numbers.update_window_dims]
    )


def _cannot_meet(operand, indices, updates, numbers) -> bool:
    """Whether there is one window for each element of a batch, or for all.

    Such as in the gradients of ``take_along_axis`` and of cross-entropy.
    """
    counted = [d for d in range(indices.ndim - 1) if d not in numbers.scatter_indices_batching_dims]
    return (
        _has_whole_windows(operand.shape, updates, numbers)
        and math.prod(indices.shape[d] for d in counted) == 1
        and (bool(numbers.operand_batching_dims) or updates.size == operand.size)
    )


def _one_hot(shape, indices, updates, numbers, mode):
    """Updates that cannot meet where they are added to an operand of this shape, elsewhere +0.

    As elementwise operations, which are computed with what comes next.
    """
    batch = numbers.operand_batching_dims

    def spread(x, dimensions):
        """``x``, whose axes are these of the operand or have one element, in its shape."""
        axes = [i for i, d in enumerate(dimensions) if d is not None]
        x = lax.squeeze(x, [i for i, d in enumerate(dimensions) if d is None])
        return canonical.broadcast_axes(x, shape, [dimensions[i] for i in axes])

    of_batch = dict(zip(numbers.scatter_indices_batching_dims, batch, strict=True))
    of_indices = [of_batch.get(d) for d in range(indices.ndim - 1)]
    single = (*numbers.inserted_window_dims, *batch)
    window, left = (d for d in range(len(shape)) if d not in single), iter(of_indices)
    of_updates = [
        next(window if d in numbers.update_window_dims else left) for d in range(updates.ndim)
    ]
    hits = [
        lax.eq(spread(start, of_indices), lax.broadcasted_iota(np.int32, shape, d))
        for d, start in _starts(shape, indices, numbers, mode).items()
    ]
    hit = functools.reduce(lax.bitwise_and, hits)
    if updates.dtype != np.float16:  # as the sum of one update in float32, which has a guard
        updates = canonical.guard(updates)
    updates = spread(updates, of_updates)
    return lax.select(hit, updates, lax.full(shape, 0, updates.dtype))


def _totals(updates, indices, shape, precision: int, numbers, **options):
    """The order-independent sums of float32 updates in an array of this shape."""
    i = canonical.bits(updates)
    field = lax.shift_right_logical(i & 0x7FFFFFFF, np.int32(23))
    finite = field < 0xFF
    zeros = lax.full(shape, 0, np.int32)
    high = lax.select(
        canonical.is_nan(updates), lax.full_like(i, _NAN), lax.full_like(i, _INFINITE)
    )
    positive = (i > 0) | canonical.is_nan(updates)
    high = lax.select(finite, field, lax.select(positive, high, lax.full_like(i, 0)))
    low = lax.convert_element_type((~finite) & (~positive), np.int32)
    high = lax.scatter_max(zeros, indices, high, numbers, **options)
    low = lax.scatter_max(zeros, indices, low, numbers, **options)

    # E - t, from the exponent field of float32, whose bias is 127.
    grid = lax.convert_element_type(lax.min(high, np.int32(0xFE)), np.int64) - (127 + precision)
    own_grid = _gather_like(updates, grid, indices, numbers, **options)
    finite_updates = lax.select(finite, updates, lax.full_like(updates, 0))
    steps = canonical.to_integers(finite_updates, -own_grid)
    total = lax.scatter_add(
        lax.full(shape, 0, np.int64),
        indices,
        lax.convert_element_type(steps, np.int64),
        numbers,
        **options,
    )
    result = canonical.from_integers(total, grid)
    infinity = lax.full_like(result, np.inf)
    result = lax.select(high == _INFINITE, infinity, result)
    result = lax.select(low == 1, -infinity, result)
    nan = (high == _NAN) | ((high == _INFINITE) & (low == 1))
    return lax.select(nan, lax.full_like(result, np.nan), result)


def as_rows(operand, indices, updates, numbers, mode):
    """The scatter of windows of an operand as one of rows of a matrix, if it is one, or None.

    The number of rows, their size, the row of each window in int32, which is out of bounds where
    the window is, and the updates [windows, size].
    """
    shape, batch = operand.shape, numbers.operand_batching_dims
    leading = len(numbers.inserted_window_dims) + len(batch)
    is_table = {*numbers.inserted_window_dims, *batch} == {*range(leading)}
    if not is_table or not _has_whole_windows(shape, updates, numbers):
        return None
    sizes = (*shape, *indices.shape[:-1])
    if not all(isinstance(n, int) and n > 0 for n in sizes) or math.prod(shape) >= 1 << 31:
        return None
    rows, width = math.prod(shape[:leading]), math.prod(shape[leading:])
    scattered = [d for d in range(updates.ndim) if d not in numbers.update_window_dims]
    updates = lax.transpose(updates, (*scattered, *numbers.update_window_dims))
    windows = math.prod(indices.shape[:-1])
    starts = _starts(shape, indices, numbers, mode)
    if leading == 1:
        row = starts[0]
    else:
        outside = functools.reduce(
            lax.bitwise_or, [(x < 0) | (x >= np.int32(shape[d])) for d, x in starts.items()]
        )
        for d, of_indices in zip(batch, numbers.scatter_indices_batching_dims, strict=True):
            starts[d] = lax.broadcasted_iota(np.int32, indices.shape[:-1], of_indices)
        row = starts[0]
        for d in range(1, leading):
            row = row * np.int32(shape[d]) + starts[d]
        row = lax.select(outside, lax.full_like(row, rows), row)
    return rows, width, lax.reshape(row, (windows,)), lax.reshape(updates, (windows, width))


#: Numbers of scatters of elements and of rows of a matrix.
_OF_NUMBERS = lax.ScatterDimensionNumbers((), (0,), (0,))
_OF_ROWS = lax.ScatterDimensionNumbers((1,), (0,), (0,))
_DROP = {"mode": lax.GatherScatterMode.FILL_OR_DROP}


def _last_windows(rows: int, row):
    """For each window, the last one that reaches its row, or -1; and its row, if it is that one.

    Otherwise ``rows``, which is out of bounds: no two of the rows inside are the same.
    """
    window, row = lax.iota(np.int32, len(row)), lax.expand_dims(row, [1])
    last = lax.scatter_max(lax.full((rows,), -1, np.int32), row, window, _OF_NUMBERS, **_DROP)
    last = _gather_like(window, last, row, _OF_NUMBERS, fill_value=-1, **_DROP)
    is_last = lax.expand_dims(lax.eq(last, window), [1])
    return lax.expand_dims(last, [1]), lax.select(is_last, row, lax.full_like(row, rows))


def _assign(operand, row, updates):
    """The assignment of rows, no two of which are the same."""
    table = lax.reshape(operand, (operand.size // updates.shape[1], updates.shape[1]))
    table = lax.scatter(table, row, updates, _OF_ROWS, unique_indices=True, **_DROP)
    return lax.reshape(table, operand.shape)


def _add_few(operand, rows: int, row, updates, precision: int):
    """The scatter-add of few rows of updates into a larger operand, as an embedding's gradient.

    Those of one row of the operand are added at the last of them, in an array of the updates'
    size, and each of these sums is then added to its row: the operand is read and written once.
    """
    last, row = _last_windows(rows, row)
    totals = _totals(updates, last, updates.shape, precision, _OF_ROWS, **_DROP)
    table = lax.reshape(operand, (rows, updates.shape[1]))
    before = _gather_like(updates, table, row, _OF_ROWS, **_DROP)
    return _assign(operand, row, canonical.flush(lax.add(before, totals)))


def grid_precision(windows: int) -> int:
    """Bits of the grid below the largest exponent, for so many windows."""
    if not isinstance(windows, int):
        raise RefusedError(
            f"scatter-add, and the gradient of indexing, expected a known number of windows, on "
            f"which the grid of the sums depends, received {windows}; leave other sizes open in "
            "jax.export"
        )
    return grids.bits_of_sum(windows)


def _add_exactly(operand, indices, updates, numbers, *, mode, odd=False, **options):
    """``operand`` plus what reaches each element of it, each sum exact and rounded once."""
    windows = math.prod(indices.shape[:-1]) if 0 not in updates.shape else 0
    accumulators.check_terms("scatter-add", windows)
    options["mode"] = mode
    operand, updates = canonical.to_float64(operand), canonical.to_float64(updates)

    def add(totals, terms):
        return lax.scatter_add(totals, indices, terms, numbers, **options) if windows else totals

    of_digits = (accumulators.digits(x, accumulators.SUMS) for x in (operand, updates))
    totals = jax.vmap(add)(*of_digits)
    special = add(*map(accumulators.not_finite, (operand, updates)))
    return accumulators.rounded(totals, special, accumulators.SUMS, odd)


def _with_window(operand, indices, updates, numbers, mode, change):
    """``operand`` with ``change(window, updates)`` where its only window is.

    As slices, which XLA makes parts of loops, and writes in their place.
    """
    starts = _starts(operand.shape, indices, numbers, mode)
    sizes = window_sizes(operand.ndim, updates.shape, numbers)
    zero = np.int32(0)
    starts = [lax.reshape(starts[d], ()) if d in starts else zero for d in range(operand.ndim)]
    window = lax.dynamic_slice(operand, starts, sizes)
    changed = change(window, lax.reshape(updates, sizes))
    if mode == lax.GatherScatterMode.FILL_OR_DROP:
        bounds = zip(starts, operand.shape, sizes, strict=True)
        inside = [(start >= 0) & (start <= n - size) for start, n, size in bounds]
        is_inside = functools.reduce(lax.bitwise_and, inside, np.bool_(True))
        changed = lax.select(is_inside, changed, window)
    return lax.dynamic_update_slice(operand, changed, starts)


def scatter_add_body(
    operand,
    indices,
    updates,
    *,
    dimension_numbers,
    mode,
    accumulation="order_independent",
    **options,
):
    """The scatter-add of float32 ``updates`` into ``operand``, order-independent or exact."""
    if accumulation == "exact":
        options |= {"mode": mode}
        return _add_exactly(operand, indices, updates, dimension_numbers, **options)
    if 0 in updates.shape:
        return operand
    if _cannot_meet(operand, indices, updates, dimension_numbers):
        placed = _one_hot(operand.shape, indices, updates, dimension_numbers, mode)
        return canonical.flush(lax.add(operand, placed))
    if math.prod(indices.shape[:-1]) == 1:

        def add(before, updates):  # as a sum of one update
            return canonical.flush(lax.add(before, canonical.guard(updates)))

        return _with_window(operand, indices, updates, dimension_numbers, mode, add)
    precision = grid_precision(math.prod(indices.shape[:-1]))
    in_rows = as_rows(operand, indices, updates, dimension_numbers, mode)
    if in_rows is not None:
        rows, _, row, matrix = in_rows
        if rows > _FEW * len(matrix):
            return _add_few(operand, rows, row, matrix, precision)
    options["mode"] = mode
    totals = _totals(updates, indices, operand.shape, precision, dimension_numbers, **options)
    return canonical.flush(lax.add(operand, totals))


# --- assignment -------------------------------------------------------------------------


def _window_numbers(updates, numbers):
    """The number of its window for each element of ``updates``, int64."""
    scattered = [d for d in range(updates.ndim) if d not in numbers.update_window_dims]
    shape = [updates.shape[d] for d in scattered]
    number = lax.reshape(lax.iota(np.int64, math.prod(shape)), shape)
    return lax.broadcast_in_dim(number, updates.shape, scattered)


def _as_integers(x):
    """The bits of an array of any type as integers that can be compared, and the way back."""
    if x.dtype == np.bool_:
        return lax.convert_element_type(x, np.int8), lambda i: lax.ne(i, lax.full_like(i, 0))
    if jax.dtypes.issubdtype(x.dtype, np.integer):
        return x, lambda i: i
    integers = np.dtype(f"int{8 * x.dtype.itemsize}")
    return (
        lax.bitcast_convert_type(x, integers),
        lambda i: lax.bitcast_convert_type(i, x.dtype),
    )


def scatter_body(operand, indices, updates, *, dimension_numbers, mode, **_):
    """The assignment of ``updates``, of the type of ``operand``: the last window wins.

    Integer maxima find the last window that reaches an element, and then carry its update
    there: all others are replaced by the least integer.  Promises are not relied on, except
    that one window cannot meet itself.
    """
    if 0 in updates.shape or 0 in operand.shape:
        return operand
    if math.prod(indices.shape[:-1]) == 1:
        return _with_window(
            operand, indices, updates, dimension_numbers, mode, lambda _, updates: updates
        )

    in_rows = as_rows(operand, indices, updates, dimension_numbers, mode)
    if in_rows is not None:
        rows, _, row, matrix = in_rows
        _, row = _last_windows(rows, row)
        return _assign(operand, row, matrix)

    def scatter_max(x, least):
        start = lax.full(operand.shape, least, x.dtype)
        return lax.scatter_max(start, indices, x, dimension_numbers, mode=mode)

    number = _window_numbers(updates, dimension_numbers)
    last = scatter_max(number, -1)
    wins = lax.eq(number, _gather_like(updates, last, indices, dimension_numbers, mode=mode))

    integers, from_integers = _as_integers(updates)
    least = jax.numpy.iinfo(integers.dtype).min
    assigned = scatter_max(lax.select(wins, integers, lax.full_like(integers, least)), least)
    reached = lax.ge(last, lax.full_like(last, 0))
    return lax.select(reached, from_integers(assigned), operand)


# --- products ---------------------------------------------------------------------------


def scatter_mul_body(operand, indices, updates, *, dimension_numbers, mode, **_):
    """The product of float32 ``operand`` and ``updates``, one window after the other.

    The updates are sorted by the element that they reach, which keeps the order of the
    windows.  Then step k multiplies every element by the k-th of its updates.
    """
    if 0 in updates.shape or 0 in operand.shape:
        return operand
    size = operand.size
    zeros, ones = lax.full(operand.shape, 0, np.int64), lax.full(updates.shape, 1, np.int64)
    counts = lax.scatter_add(zeros, indices, ones, dimension_numbers, mode=mode)
    counts = lax.reshape(counts, [size])
    first = lax.cumsum(counts) - counts

    element = lax.reshape(lax.iota(np.int64, size), operand.shape)
    element = _gather_like(updates, element, indices, dimension_numbers, mode=mode, fill_value=size)
    scattered = [d for d in range(updates.ndim) if d not in dimension_numbers.update_window_dims]
    by_window = [*scattered, *dimension_numbers.update_window_dims]
    element, factors = (
        lax.reshape(lax.transpose(x, by_window), [updates.size]) for x in (element, updates)
    )
    _, factors = lax.sort((element, factors), num_keys=1, is_stable=True)

    def step(state):
        k, product = state
        factor = take(factors, lax.min(first + k, lax.full_like(first, updates.size - 1)), 0)
        more = canonical.guard(lax.mul(product, factor))
        return k + 1, lax.select(lax.lt(k, counts), more, product)

    most = lax.reduce_max(counts, (0,))
    start = (np.int64(0), lax.reshape(operand, [size]))
    _, product = lax.while_loop(lambda state: state[0] < most, step, start)
    return lax.reshape(product, operand.shape)


# --- extrema ----------------------------------------------------------------------------


def _scatter_extremum(largest: bool):
    def body(operand, indices, updates, *, dimension_numbers, mode, **_):
        operand, updates = (sort_keys.of(x, largest) for x in (operand, updates))
        found = lax.scatter_max(operand, indices, updates, dimension_numbers, mode=mode)
        return sort_keys.values(found, largest)

    return body


scatter_min_body, scatter_max_body = _scatter_extremum(False), _scatter_extremum(True)


# --- primitives and rules ---------------------------------------------------------------

_OPTIONS = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")

scatter_p = define("scatter", scatter_body, lax.scatter, own_value=True, halves=None)
scatter_add_p = define(
    "scatter_add",
    scatter_add_body,
    lax.scatter_add,
    halves=canonical.flush,
)
scatter_mul_p = define("scatter_mul", scatter_mul_body, lax.scatter_mul)
scatter_min_p = define("scatter_min", scatter_min_body, lax.scatter_min, halves=canonical.flush)
scatter_max_p = define("scatter_max", scatter_max_body, lax.scatter_max, halves=canonical.flush)
plain_rule("scatter-min", scatter_min_p, keep=_OPTIONS)
plain_rule("scatter-max", scatter_max_p, keep=_OPTIONS)


@rule("scatter-add")
def _scatter_add_rule(context, operands, params):
    require_format(context, operands)
    operand, indices, updates = operands
    numbers = params["dimension_numbers"]
    if check_accumulation(context.accumulation) == "exact":
        kept = {k: params[k] for k in _OPTIONS}
        return scatter_add_p.bind(*operands, accumulation="exact", **kept)
    if not context.differentiable and _cannot_meet(operand, indices, updates, numbers):
        options = {"numbers": numbers, "mode": params["mode"]}
        place = functools.partial(_one_hot, operand.shape, **options)
        (updates,) = interpret_function(context, place, (indices, updates))
        return add_p.bind(operand, updates)
    return scatter_add_p.bind(*operands, **{k: params[k] for k in _OPTIONS})


def windows_are_apart(indices, unique_indices: bool) -> bool:
    """Whether no element is reached twice, since there is one window or JAX was told."""
    return unique_indices or math.prod(indices.shape[:-1]) == 1


@rule("scatter-mul")
def _scatter_mul_rule(context, operands, params):
    require_format(context, operands)
    operand, indices, updates = operands
    params = {k: params[k] for k in _OPTIONS}
    if not context.differentiable and windows_are_apart(indices, params["unique_indices"]):
        factors = scatter_p.bind(lax.full_like(operand, 1), indices, updates, **params)
        return mul_p.bind(operand, factors)
    return scatter_mul_p.bind(*operands, **params)


@rule("scatter-sub")
def _scatter_sub_rule(context, operands, params):
    operand, indices, updates = operands
    require_format(context, operands)
    return _scatter_add_rule(context, (operand, indices, neg(updates)), params)


@rule("scatter")
def _scatter_rule(context, operands, params):
    if params["update_jaxpr"] is not None:
        raise RefusedError(
            "scatter with a function (x.at[i].apply(f)) has no reproducible form; gather, apply "
            "and assign: x.at[i].set(f(x[i]))"
        )
    if jax.dtypes.issubdtype(jax.typeof(operands[0]).dtype, jax.dtypes.extended):
        raise RefusedError(
            "scatter of random keys has no reproducible form; scatter jax.random.key_data(keys)"
        )
    return scatter_p.bind(*operands, **{k: params[k] for k in _OPTIONS})
