"""Reductions and cumulative operations: docs/numerics.md, section 4."""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

import ml_dtypes
import numpy as np

from repjax.verify.reference import values
from repjax.verify.reference.arithmetic import exact, maximum, minimum, wrap
from repjax.verify.reference.table import NoReference, Operation, call, in_float32, of, part
from repjax.verify.reference.values import (
    ExactSum,
    add,
    flush,
    guard,
    multiply,
    rounded,
)


def flatten(x, axes):
    """[n, kept...]: the reduced axes in front, flattened row-major."""
    axes = sorted(a % x.ndim for a in axes)
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = [x.shape[d] for d in kept]
    return x.transpose([*axes, *kept]).reshape([math.prod(x.shape[d] for d in axes), *shape])


# --- along the first axis ---------------------------------------------------------------


def halves(combine, x):
    """The ``pairwise`` reduction: the second half is added to the first, one without a partner
    stays.  With +0 for the missing ones, a sum is the same."""
    while len(x) > 1:
        half = 1 << ((len(x) - 1).bit_length() - 1)
        combined = combine(x[: len(x) - half], x[half:])
        x = np.concatenate([combined, x[len(x) - half : half]])
    return x[0]


def one_by_one(combine, x):
    """The ``sequential`` prefixes."""
    out = x.copy()
    for k in range(1, len(x)):
        out[k] = combine(out[k - 1], x[k])
    return out


def neighbours(combine, x):
    """One block of a power of two of elements."""
    while len(x) > 1:
        x = combine(x[0::2], x[1::2])
    return x[0]


def blocks(combine, x):
    """The ``pairwise`` prefixes: blocks of powers of two, the largest first."""
    out = np.empty_like(x)
    for k in range(len(x)):
        out[k] = last_prefix(combine, x[: k + 1])
    return out


def last_prefix(combine, x):
    """The last one of :func:`blocks`."""
    total, start = None, 0
    for bit in reversed(range(len(x).bit_length())):
        if len(x) >> bit & 1:
            block = neighbours(combine, x[start : start + (1 << bit)])
            total = block if total is None else combine(total, block)
            start += 1 << bit
    return total


def exponent(x) -> int | None:
    """E with ``2**E <= |x| < 2**(E + 1)``, None of zero."""
    return math.frexp(x)[1] - 1 if x else None


def largest(exponents) -> int:
    return max((e for e in exponents if e is not None), default=0)


def order_independent_sum(xs) -> np.float32:
    """Of finite numbers."""
    t = min(38, 61 - (len(xs) - 1).bit_length())
    unit = Fraction(2) ** (largest(map(exponent, xs)) - t)
    return guard(rounded(sum(round(Fraction(float(x)) / unit) for x in xs) * unit))


def in_no_order(xs) -> np.float32:
    """:func:`order_independent_sum` of any numbers: what is not finite decides."""
    xs = np.asarray(xs, np.float32)
    if not np.isfinite(xs).all():
        with np.errstate(invalid="ignore"):
            return np.sum(xs[~np.isfinite(xs)])
    return order_independent_sum(xs.tolist())


def exact_prefixes(x, dtype) -> list[np.ndarray]:
    """The exact sums of the first elements along the first axis, each rounded once."""
    total, out = ExactSum(x.shape[1:]), []
    for row in x:
        total.add(row)
        out.append(total.rounded(dtype))
    return out


def exactly(x, dtype) -> np.ndarray:
    """The exact sum along the first axis, rounded once."""
    total = ExactSum(x.shape[1:])
    for row in x:
        total.add(row)
    return total.rounded(dtype)


# --- reductions -------------------------------------------------------------------------


def reduced(x, axes, accumulation: str) -> np.ndarray:
    """The sum of a float32 array over axes."""
    x = flatten(x, axes)
    if not len(x):
        return np.zeros(x.shape[1:], np.float32)
    if accumulation == "pairwise":
        return flush(halves(add, x))
    if accumulation == "sequential":
        return one_by_one(add, np.concatenate([np.zeros_like(x[:1]), x]))[-1]
    if accumulation == "exact":
        return exactly(x, x.dtype)
    if accumulation != "order_independent":
        raise NoReference(
            "reduce_sum: expected the accumulation pairwise, sequential, order_independent or "
            f"exact, received {accumulation!r}"
        )
    out = np.zeros(x.shape[1:], np.float32)
    for i in np.ndindex(out.shape):
        out[i] = in_no_order(x[(slice(None), *i)])
    return out


def _axes(operation: Operation):
    return operation.params["axes"]


def _of_floats(function, ending, of_integers):
    """A reduction of floats by ``function``, of integers by a function of NumPy."""
    narrow = in_float32(function, ending)

    def compute(operation: Operation):
        (x,) = operation.operands
        if function is _sum and values.is_float(x.dtype) and _accumulation(operation) == "exact":
            return function(operation)
        if values.is_float(x.dtype):
            return narrow(operation)
        return [wrap(of_integers(exact(x), axis=tuple(_axes(operation))), operation.dtype)]

    return compute


def _accumulation(operation: Operation) -> str:
    return operation.params.get("accumulation") or operation.accumulation


def _sum(operation: Operation):
    return [reduced(operation.operands[0], _axes(operation), _accumulation(operation))]


def _product(operation: Operation):
    x = flatten(operation.operands[0], _axes(operation))
    if not len(x):
        return [np.ones(x.shape[1:], np.float32)]
    if _accumulation(operation) == "sequential":
        return [one_by_one(multiply, x)[-1]]
    return [halves(multiply, x)]


of("reduce_sum")(_of_floats(_sum, flush, np.sum))
of("reduce_prod")(_of_floats(_product, guard, np.prod))


def _extreme(x, axes, combine, empty):
    x = flatten(x, axes)
    if not len(x):
        return np.full(x.shape[1:], empty, x.dtype)
    return halves(combine, x)


def least_and_greatest(dtype):
    """The ends of a type."""
    dtype = np.dtype(dtype)
    if values.is_float(dtype):
        return -np.inf, np.inf
    if values.is_bool(dtype):
        return False, True
    info = ml_dtypes.iinfo(dtype)
    return info.min, info.max


@of("reduce_max")
def reduce_max(operation: Operation):
    (x,) = operation.operands
    return [_extreme(x, _axes(operation), maximum, least_and_greatest(x.dtype)[0])]


@of("reduce_min")
def reduce_min(operation: Operation):
    (x,) = operation.operands
    return [_extreme(x, _axes(operation), minimum, least_and_greatest(x.dtype)[1])]


for _name, _combine, _empty in (
    ("reduce_and", np.bitwise_and, -1),
    ("reduce_or", np.bitwise_or, 0),
    ("reduce_xor", np.bitwise_xor, 0),
):

    def _bitwise(operation: Operation, combine=_combine, empty=_empty):
        (x,) = operation.operands
        if x.dtype.kind == "b":
            return [_extreme(x, _axes(operation), combine, bool(empty))]
        whole = exact(x)
        return [wrap(_extreme(whole, _axes(operation), combine, empty), operation.dtype)]

    of(_name)(_bitwise)


def _first(operation: Operation, better):
    """The first position of the best element, or of the first NaN."""
    (x,) = operation.operands
    (axis,) = operation.params["axes"]
    x = np.moveaxis(x, axis, 0)
    if not len(x):
        raise NoReference(f"{operation.name}: expected elements, received an empty axis")
    best, position = x[0], np.zeros(x.shape[1:], np.int64)
    is_nan = values.is_float(x.dtype)
    for k in range(1, len(x)):
        wins = better(x[k], best)
        if is_nan:
            wins = (wins | np.isnan(x[k])) & ~np.isnan(best)
        best, position = np.where(wins, x[k], best), np.where(wins, k, position)
    return [wrap(position, operation.dtype)]


of("argmax")(lambda operation: _first(operation, np.greater))
of("argmin")(lambda operation: _first(operation, np.less))


def descending(x) -> np.ndarray:
    """The order of ``top_k`` along the last axis: NaNs first, equal elements as they stand."""
    if values.is_float(x.dtype):
        wide = np.asarray(x, np.float64)
        keys = np.where(np.isnan(wide), -np.inf, -wide)
        keys = np.where(np.isposinf(wide), -np.finfo(np.float64).max, keys)
        return np.argsort(keys, axis=-1, kind="stable")
    return np.argsort(-exact(x) if x.dtype.kind != "b" else ~x, axis=-1, kind="stable")


@of("top_k")
def top_k(operation: Operation):
    (x,) = operation.operands
    axis = operation.params.get("axis", -1) % x.ndim
    x = np.moveaxis(x, axis, -1)
    order = descending(x)[..., : operation.params["k"]]
    found = np.take_along_axis(x, order, -1), wrap(order, operation.results[1][0])
    return [np.moveaxis(y, -1, axis) for y in found]


# --- cumulative operations --------------------------------------------------------------


def logaddexp(x, y):
    """max(x, y) + log1p(exp(-|x - y|)), or x + y where x - y is NaN, each operation rounded."""

    def apply(name, *xs):
        return call(Operation(name, xs, {}, ((x.dtype, xs[0].shape),)))[0]

    difference = apply("sub", x, y)
    small = apply("log1p", apply("exp", apply("neg", apply("abs", difference))))
    usual = apply("add", apply("max", x, y), small)
    return np.where(np.isnan(difference), apply("add", x, y), usual)


PREFIXES: dict[str, Callable[..., np.ndarray]] = {"pairwise": blocks, "sequential": one_by_one}
COMBINE = {"cumsum": add, "cumprod": multiply, "cummax": maximum, "cummin": minimum}


def prefixes(name: str, x, axis: int, reverse: bool, accumulation: str) -> np.ndarray:
    """A cumulative operation of float32, or an exact one of any format."""
    along = PREFIXES["sequential" if accumulation == "sequential" else "pairwise"]
    x = np.moveaxis(x, axis, 0)
    x = x[::-1] if reverse else x
    if name == "cumsum" and accumulation == "exact":
        out = np.reshape(exact_prefixes(x, x.dtype), x.shape).astype(x.dtype)
    else:
        out = along(COMBINE[name], x)
    return np.moveaxis(out[::-1] if reverse else out, 0, axis)


def _cumulative(operation: Operation):
    (x,), params = operation.operands, operation.params
    order = _accumulation(operation)
    return [prefixes(operation.name, x, params["axis"], params["reverse"], order)]


def _enter_cumulative(name: str, ending, of_integers) -> None:
    narrow = in_float32(_cumulative, ending)

    @of(name)
    def compute(operation: Operation):
        (x,), params = operation.operands, operation.params
        if values.is_float(x.dtype):
            is_exact = name == "cumsum" and _accumulation(operation) == "exact"
            return (_cumulative if is_exact else narrow)(operation)
        whole = np.moveaxis(exact(x), params["axis"], 0)
        out = of_integers(whole[::-1] if params["reverse"] else whole, axis=0)
        out = out[::-1] if params["reverse"] else out
        return [wrap(np.moveaxis(out, 0, params["axis"]), operation.dtype)]


_enter_cumulative("cumsum", flush, np.cumsum)
_enter_cumulative("cumprod", guard, np.cumprod)
of("cummax", "cummin")(_cumulative)


@of("cumlogsumexp")
def cumlogsumexp(operation: Operation):
    (x,), params = operation.operands, operation.params
    x = np.moveaxis(x, params["axis"], 0)
    out = blocks(logaddexp, x[::-1] if params["reverse"] else x)
    return [np.moveaxis(out[::-1] if params["reverse"] else out, 0, params["axis"])]


# --- parts ------------------------------------------------------------------------------


@part(
    *("reduce_sum", "reduce_prod", "reduce_max", "reduce_min", "argmax", "argmin"),
    *("reduce_and", "reduce_or", "reduce_xor"),
)
def _row(operation: Operation, index, result=0):
    """What is reduced to the element, in its order, as one axis."""
    (x,) = operation.operands
    row = flatten(x, operation.params["axes"])[(slice(None), *index)]
    params = {**operation.params, "axes": (0,)}
    return operation.with_(operands=(row,), params=params, results=((operation.dtype, ()),)), ()


@part("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _prefix(operation: Operation, index, result=0):
    """The elements up to this one."""
    (x,), params = operation.operands, operation.params
    axis = params["axis"]
    k = index[axis]
    lane = x[(*index[:axis], slice(None), *index[axis + 1 :])]
    lane = lane[k:][::-1] if params["reverse"] else lane[: k + 1]
    params = {**params, "axis": 0, "reverse": False}
    results = ((operation.dtype, lane.shape),)
    return operation.with_(operands=(lane,), params=params, results=results), (len(lane) - 1,)


@part("top_k")
def _best(operation: Operation, index, result=0):
    (x,) = operation.operands
    axis = operation.params.get("axis", -1) % x.ndim
    lane = x[(*index[:axis], slice(None), *index[axis + 1 :])]
    params = {**operation.params, "axis": 0}
    results = tuple((dtype, (params["k"],)) for dtype in operation.dtypes)
    return operation.with_(operands=(lane,), params=params, results=results), (index[axis],)
