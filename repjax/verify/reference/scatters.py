"""Scatters: docs/numerics.md, section 7."""

from __future__ import annotations

import dataclasses
import math
from fractions import Fraction

import numpy as np

from repjax.verify.reference import values
from repjax.verify.reference.arithmetic import exact, maximum, minimum, wrap
from repjax.verify.reference.movement import mode_of, moves, window_starts
from repjax.verify.reference.sums import exactly, exponent, largest
from repjax.verify.reference.table import NoReference, Operation, in_float32, of, part
from repjax.verify.reference.values import add, canonical, flush, guard, multiply, rounded

#: Bits of the grid below the largest exponent, for up to 2**23 windows.
PRECISION = 38


def total(updates, precision: int = PRECISION):
    """The order-independent sum of the updates of one element."""
    u = canonical(np.asarray(updates, np.float32))
    if not np.isfinite(u).all():
        with np.errstate(invalid="ignore"):
            return np.sum(u[~np.isfinite(u)])
    if not u.any():
        return np.float32(0)
    step = Fraction(2) ** (largest(map(exponent, u.tolist())) - precision)
    return guard(rounded(sum(round(Fraction(float(x)) / step) for x in u) * step))


def scatter_add(operand, positions, updates, precision: int = PRECISION):
    """``positions``: the flat element of the operand that each update reaches, or -1."""
    operand = canonical(operand)
    out = operand.ravel().copy()
    positions, updates = np.ravel(positions), np.ravel(updates)
    by_element: dict[int, list[int]] = {}
    for i, e in enumerate(positions.tolist()):
        by_element.setdefault(e, []).append(i)
    for e, which in by_element.items():
        if e >= 0:
            out[e] = add(out[e], total(updates[which], precision))
    return canonical(out.reshape(operand.shape))


#: What a scatter makes of an element and one update.
METHODS = {"set": lambda x, y: y, "mul": multiply, "max": maximum, "min": minimum}


def scatter_in_order(method, operand, positions, updates, order=1):
    """One update after the other; ``positions`` as in :func:`scatter_add`."""
    out = canonical(operand).ravel().copy()
    function = METHODS[method] if isinstance(method, str) else method
    pairs = zip(np.ravel(positions), np.ravel(canonical(updates)), strict=True)
    for e, y in list(pairs)[::order]:
        if e >= 0:
            out[e] = function(out[e], y)
    return canonical(out.reshape(operand.shape))


def positions_of(operation: Operation) -> np.ndarray:
    """The flat element of the operand that each update reaches, or -1; in the shape of the updates.

    A window that is not whole reaches none, or is moved into the operand by the mode.
    """
    operand, indices, updates = operation.operands
    numbers, mode = operation.params["dimension_numbers"], mode_of(operation.params)
    batching = tuple(numbers.operand_batching_dims)
    single = (*numbers.inserted_window_dims, *batching)
    window_dims = tuple(numbers.update_window_dims)
    kept = [d for d in range(operand.ndim) if d not in single]
    sizes = {d: updates.shape[w] for d, w in zip(kept, window_dims, strict=True)}
    limits = [n - sizes.get(d, 1) for d, n in enumerate(operand.shape)]
    starts, inside = window_starts(indices, numbers.scatter_dims_to_operand_dims, limits, mode)
    scattered = [d for d in range(updates.ndim) if d not in window_dims]

    def along(x, dims):
        """An array whose axes are these of the updates, in their shape."""
        shape = [1] * updates.ndim
        for d, n in zip(dims, x.shape, strict=True):
            shape[d] = n
        return x.reshape(shape)

    flat = np.zeros(updates.shape, np.int64)
    for d in range(operand.ndim):
        position = np.zeros((1,) * updates.ndim, np.int64)
        if d in numbers.scatter_dims_to_operand_dims:
            i = tuple(numbers.scatter_dims_to_operand_dims).index(d)
            position = position + along(starts[..., i], scattered)
        if d in batching:
            axis = numbers.scatter_indices_batching_dims[batching.index(d)]
            position = position + along(np.arange(indices.shape[axis]), [scattered[axis]])
        if d in sizes:
            position = position + along(np.arange(sizes[d]), [window_dims[kept.index(d)]])
        flat = flat * operand.shape[d] + position
    return np.where(along(inside, scattered), flat, -1)


def in_order(operation: Operation) -> tuple[np.ndarray, np.ndarray]:
    """Positions and updates by windows, in their order."""
    updates = operation.operands[2]
    window_dims = tuple(operation.params["dimension_numbers"].update_window_dims)
    scattered = [d for d in range(updates.ndim) if d not in window_dims]
    order = (*scattered, *window_dims)
    return (x.transpose(order).ravel() for x in (positions_of(operation), updates))


def add_exactly(operand, positions, updates, dtype):
    """Each element and the updates that reach it, added exactly and rounded once."""
    terms: dict[int, list[float]] = {}
    for i, u in zip(np.ravel(positions).tolist(), np.ravel(updates).tolist(), strict=True):
        terms.setdefault(i, []).append(u)
    out = canonical(operand).ravel().copy()
    for i, x in enumerate(out.tolist()):
        out[i] = exactly(np.array([x, *terms.get(i, [])], np.float64), dtype)
    return out.reshape(operand.shape)


def _windows(operation: Operation) -> int:
    return math.prod(operation.operands[1].shape[:-1])


def _is_exact(operation: Operation) -> bool:
    order = operation.params.get("accumulation") or operation.accumulation
    return values.is_float(operation.dtype) and order == "exact"


def _sum(operation: Operation, sign: int = 1):
    operand, _, updates = operation.operands
    if _is_exact(operation):
        updates = updates if sign > 0 else np.negative(updates)
        return [add_exactly(operand, positions_of(operation), updates, operation.dtype)]
    windows = _windows(operation)
    precision = PRECISION if windows <= 1 << 23 else 61 - (windows - 1).bit_length()
    updates = updates if sign > 0 else flush(-updates)
    return [scatter_add(operand, positions_of(operation), updates, precision)]


def _by_integers(operation: Operation, function):
    """Modulo 2**bits, which is of any order."""
    operand, out = operation.operands[0], exact(operation.operands[0]).ravel()
    positions, updates = in_order(operation)
    for e, y in zip(positions, exact(updates), strict=True):
        if e >= 0:
            out[e] = function(out[e], y)
    return [wrap(out.reshape(operand.shape), operation.dtype)]


_INTEGER = {
    "add": lambda x, y: x + y,
    "sub": lambda x, y: x - y,
    "mul": lambda x, y: x * y,
}


def _product(operation: Operation):
    return [scatter_in_order("mul", operation.operands[0], *in_order(operation))]


def _enter(method: str, function, ending) -> None:
    narrow = in_float32(function, ending)

    def compute(operation: Operation):
        if values.is_float(operation.dtype):
            is_exact = method in ("add", "sub") and _is_exact(operation)
            return (function if is_exact else narrow)(operation)
        return _by_integers(operation, _INTEGER[method])

    of(f"scatter-{method}", f"scatter_{method}")(compute)


_enter("add", _sum, flush)
_enter("sub", lambda operation: _sum(operation, -1), flush)
_enter("mul", _product, guard)


@of("scatter-max", "scatter_max", "scatter-min", "scatter_min")
def _extreme(operation: Operation):
    method = operation.name[-3:]
    return [scatter_in_order(method, operation.operands[0], *in_order(operation))]


@moves("scatter")
def _assign(operation: Operation):
    """The last window that reaches an element."""
    if operation.params.get("update_jaxpr") is not None:
        raise NoReference("scatter: expected an assignment, received a function, which is refused")
    operand = operation.operands[0]
    out = operand.ravel().copy()
    for e, y in zip(*in_order(operation), strict=True):
        if e >= 0:
            out[e] = y
    return [out.reshape(operand.shape)]


# --- parts ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class _Points:
    """The numbers of a scatter of single elements into a vector."""

    update_window_dims: tuple[int, ...] = ()
    inserted_window_dims: tuple[int, ...] = (0,)
    scatter_dims_to_operand_dims: tuple[int, ...] = (0,)
    operand_batching_dims: tuple[int, ...] = ()
    scatter_indices_batching_dims: tuple[int, ...] = ()


@part(
    *("scatter-add", "scatter_add", "scatter-sub", "scatter-mul", "scatter_mul"),
    *("scatter-max", "scatter_max", "scatter-min", "scatter_min"),
)
def _reaching(operation: Operation, index, result=0):
    """The element, and the updates that reach it, in the order of their windows."""
    operand = operation.operands[0]
    if _windows(operation) > 1 << 23:  # on which the grid depends
        return operation, index
    positions, updates = in_order(operation)
    flat = int(np.ravel_multi_index(index, operand.shape)) if index else 0
    updates = updates[positions == flat]
    indices = np.zeros((len(updates), 1), np.int32)
    params = {**operation.params, "dimension_numbers": _Points()}
    one = np.asarray(operand[index]).reshape(1)
    return (
        operation.with_(
            operands=(one, indices, updates), params=params, results=((operation.dtype, (1,)),)
        ),
        (0,),
    )
