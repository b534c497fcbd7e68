"""Scatters: sums, products, extrema and assignments at indices.

**Windows.**  A scatter brings one window of ``updates`` to each index vector of ``indices``;
the windows are numbered in row-major order over the axes of ``indices`` but the last.

**Scatter-add**, and with it segment sums and the gradients of gathers and embeddings.
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
Indices out of bounds follow ``mode`` as in ``jax.lax``.  Scatter-sub adds the negated updates.

**Scatter** (assignment): of the windows that reach one element of the operand, the last wins.

**Scatter-mul**: the element is multiplied by one window after the other, in their order.

**Scatter-min, scatter-max**: exact; NaN if the element or one of its updates is NaN.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax

from repjax.primitives import canonical
from repjax.primitives.arithmetic import neg, plain_rule, require_format
from repjax.primitives.define import define
from repjax.primitives.interpret import RefusedError, rule
from repjax.primitives.reduce import order
from repjax.primitives.reduce.window import take

_PRECISION = 38  # bits kept below the largest exponent
_INFINITE, _NAN = 0x100, 0x200  # above every finite exponent field


def _gather_like(updates, operand, indices, numbers, fill_value=0, **options):
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
    return lax.gather(operand, indices, gather_numbers, sizes, fill_value=fill_value, **options)


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
    own_grid = _gather_like(updates, grid, indices, dimension_numbers, **options)
    finite_updates = lax.select(finite, updates, lax.full_like(updates, 0))
    steps = canonical.to_integers(finite_updates, -own_grid)
    total = lax.scatter_add(
        lax.full(operand.shape, 0, np.int64),
        indices,
        lax.convert_element_type(steps, np.int64),
        dimension_numbers,
        **options,
    )
    result = canonical.from_integers(total, grid)
    infinity = lax.full_like(result, np.inf)
    result = lax.select(high == _INFINITE, infinity, result)
    result = lax.select(low == 1, -infinity, result)
    nan = (high == _NAN) | ((high == _INFINITE) & (low == 1))
    result = lax.select(nan, lax.full_like(result, np.nan), result)
    return canonical.flush(lax.add(operand, result))


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
        return lax.scatter(
            operand, indices, updates, dimension_numbers, unique_indices=True, mode=mode
        )

    def scatter_max(x, least):
        start = lax.full(operand.shape, least, x.dtype)
        return lax.scatter_max(start, indices, x, dimension_numbers, mode=mode)

    number = _window_numbers(updates, dimension_numbers)
    last = scatter_max(number, -1)
    wins = lax.eq(number, _gather_like(updates, last, indices, dimension_numbers, mode=mode))

    integers, from_integers = _as_integers(updates)
    least = np.iinfo(integers.dtype).min
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
        operand, updates = (order.keys(x, largest) for x in (operand, updates))
        found = lax.scatter_max(operand, indices, updates, dimension_numbers, mode=mode)
        return order.values(found, largest)

    return body


# --- primitives and rules ---------------------------------------------------------------

_OPTIONS = ("dimension_numbers", "indices_are_sorted", "unique_indices", "mode")

scatter_p = define("scatter", scatter_body, lax.scatter, own_value=True, halves=None)
scatter_add_p = define("scatter_add", scatter_add_body, lax.scatter_add, halves=canonical.flush)
scatter_mul_p = define("scatter_mul", scatter_mul_body, lax.scatter_mul)
scatter_min_p = define(
    "scatter_min", _scatter_extremum(False), lax.scatter_min, halves=canonical.flush
)
scatter_max_p = define(
    "scatter_max", _scatter_extremum(True), lax.scatter_max, halves=canonical.flush
)
plain_rule("scatter-add", scatter_add_p, keep=_OPTIONS)
plain_rule("scatter-mul", scatter_mul_p, keep=_OPTIONS)
plain_rule("scatter-min", scatter_min_p, keep=_OPTIONS)
plain_rule("scatter-max", scatter_max_p, keep=_OPTIONS)


@rule("scatter-sub")
def _scatter_sub_rule(context, operands, params):
    operand, indices, updates = operands
    require_format(context, operands)
    return scatter_add_p.bind(operand, indices, neg(updates), **{k: params[k] for k in _OPTIONS})


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
