"""The steps of the kernel for loops (``loops.py``).

Each is what a call of a kernel would be, moves elements, or finds the positions of extrema.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy as np
from jax import lax

from repjax.primitives.core.sizes import row_major
from repjax.primitives.cpu import groups, library, products, rows, short, sums
from repjax.primitives.fusion.draws import random_bits_p, random_fold_in_p, random_split_p
from repjax.primitives.fusion.entries import raw_dot_general_p
from repjax.primitives.fusion.exits import ended_p
from repjax.primitives.fusion.groups import Group, accumulation_of, group_sum_p, groups_p
from repjax.primitives.fusion.kernels import Kernels
from repjax.primitives.fusion.rows import rows_p
from repjax.primitives.fusion.views import Number, order_of_terms, variables, views_of
from repjax.primitives.operations.products import dot_general_p, problems
from repjax.primitives.operations.reductions.extrema import (
    argmax_p,
    argmin_p,
    reduce_max_p,
    reduce_min_p,
)
from repjax.primitives.operations.reductions.sums import reduce_sum_p
from repjax.primitives.operations.scatter import scatter_p, window_sizes

#: What the kernel knows steps and sums by.
PRODUCT, ELEMENTWISE, SUM, COPY, ROWS, KEEP, MOVE, POSITION, BITS, KEYS, LOOP, CHOICE = range(12)
_ACCUMULATIONS = ("pairwise", "sequential", "max", "min")
#: Elements that are moved or looked at one by one, by one thread.
_FEW = 1 << 12
#: Bytes of an array that is copied where XLA would write a part of it in its place.
_FEW_BYTES = 1 << 12


#: Nanoseconds of a step of few elements (``benchmarks/short_loops.py``).
_NANOSECONDS = {
    **dict.fromkeys((ELEMENTWISE, MOVE, LOOP, CHOICE), 40),
    **dict.fromkeys((PRODUCT, POSITION, BITS, KEYS, ROWS), 60),
    **dict.fromkeys((COPY, KEEP), 20),
    SUM: 100,
}
#: Those of an operation and of an elementary function, and of each vector of 16 elements; and of a
#: reduction in a row group.
_OF_OPERATION, _OF_FUNCTION, _OF_REDUCTION = (2, 0.5), (25, 7), 90


class Step(NamedTuple):
    """A call: what it is, the variables that it takes and gives, its integers, and the nanoseconds
    that it takes besides those of any such step."""

    kind: int
    operands: list[Any]
    results: list[Any]
    integers: list[int]
    besides: float = 0

    @property
    def nanoseconds(self) -> float:
        return _NANOSECONDS[self.kind] + self.besides


def _of_operations(equations) -> float:
    """What they add to the nanoseconds of a step."""
    found = 0.0
    for equation in equations:
        if equation.primitive in short.REDUCTIONS:
            found += _OF_REDUCTION
            continue
        each, of_vector = _OF_FUNCTION if short.is_long(equation) else _OF_OPERATION
        found += each + of_vector * equation.outvars[0].aval.size / 16
    return found


def size_in_bytes(aval) -> int:
    return aval.size * aval.dtype.itemsize


def steps_of(equation) -> list[Step] | None:
    """The steps of an equation, or None if the kernel has none for it."""
    steps = _MAKERS.get(equation.primitive) or _MAKERS.get(equation.primitive.name, _move)
    return steps(equation)


# --- calls --------------------------------------------------------------------------------


def _product(equation) -> list[Step] | None:
    inner = equation.params["end"].eqns[0] if equation.primitive is ended_p else equation
    if inner.primitive not in (dot_general_p, raw_dot_general_p):
        return None
    dtypes = {v.aval.dtype for v in (*equation.invars, *equation.outvars)}
    if inner.params["contraction"] != "sequential" or dtypes != {np.dtype(np.float32)}:
        return None
    lhs, rhs = (v.aval for v in equation.invars)
    _, problem = problems.dot_general(lhs, rhs, inner.params["dimension_numbers"])
    left, right = inner.params.get("raw", (False, False))
    integers = [left + 2 * right, *products.encode(problem)]
    return [Step(PRODUCT, equation.invars, equation.outvars, integers)]


def _code(group: Group, operands, order=None) -> tuple[list[Any], list[int]]:
    """What a group takes of the operands, and its bytecode."""
    by_variable = dict(zip(group.invars, operands, strict=True))
    roots, code = groups.encode(group, order)
    return [by_variable.get(v, v) for v in roots], code


def _elementwise(equation) -> list[Step]:
    of_equation = iter(equation.invars)
    taken, integers = [], [len(equation.params["groups"])]
    for group in equation.params["groups"]:
        operands, code = _code(group, [next(of_equation) for _ in group.invars])
        taken += operands
        integers += code
    operations = _of_operations(e for group in equation.params["groups"] for e in group.eqns)
    return [Step(ELEMENTWISE, taken, equation.outvars, integers, operations)]


def _sum(equation, operand, taken, code, results) -> list[Step] | None:
    """A reduction of ``operand``, which is an array in memory or what bytecode makes."""
    accumulation = accumulation_of(equation)
    if accumulation not in _ACCUMULATIONS or operand.aval.size > library.LARGE:
        return None
    sizes = sums.sizes_of_sum(operand.aval.shape, equation.params["axes"])
    integers = [_ACCUMULATIONS.index(accumulation), *map(int, sizes), *code]
    return [Step(SUM, taken, results, integers)]


def _reduction(equation) -> list[Step] | None:
    (x,), axes = equation.invars, equation.params["axes"]
    code = sums.code_of_terms(x.aval, axes) if axes and x.aval.size else []
    if code and accumulation_of(equation) == "sequential":
        return None
    return _sum(equation, x, [x], code, equation.outvars)


def _group_sum(equation) -> list[Step] | None:
    found = equation.params["sum"]
    (terms,) = found.group.outvars
    order = order_of_terms(terms.aval.shape, found.equation.params["axes"])
    taken, code = _code(found.group, equation.invars, order)
    return _sum(found.equation, terms, taken, code, equation.outvars)


def _rows(equation) -> list[Step] | None:
    positions, integers = rows.encode(equation.params["group"])
    operations = _of_operations(equation.params["group"].eqns)
    return (
        None if positions else [Step(ROWS, equation.invars, equation.outvars, integers, operations)]
    )


def _bits(equation) -> list[Step] | None:
    (key,), (result,) = equation.invars, equation.outvars
    if equation.params["bit_width"] != 32:
        return None
    return [Step(BITS, [key], [result], [key.aval.size, result.aval.size])]


def _keys(equation) -> list[Step] | None:
    key, *number = equation.invars
    (result,) = equation.outvars
    if any(v.aval.shape != key.aval.shape for v in number):
        return None
    return [Step(KEYS, [key, *number], [result], [key.aval.size, 2 * result.aval.size])]


# --- moves --------------------------------------------------------------------------------

#: What groups of moves ask kernels for.
_NONE = Kernels("cpu", is_elementwise=lambda _: False, is_reduction=lambda *_: False)


def _move(equation) -> list[Step] | None:
    """What only moves elements (a slice, a concatenation), as a group that computes nothing."""
    if not views_of(equation, {}, set()):
        return None
    operands = tuple(dict.fromkeys(variables(equation.invars)))
    group = Group((equation,), operands, tuple(equation.outvars), _NONE)
    taken, code = _code(group, operands)
    return [Step(ELEMENTWISE, taken, equation.outvars, [1, *code])]


class _Begin(NamedTuple):
    """What says where windows begin: an element of an operand.

    Attributes:
      most: the largest it may be.
      in_source, in_target: how many elements each takes the windows further.
      drops: whether nothing is moved where it is negative or larger; else it is clamped.
    """

    operand: int
    element: int
    most: int
    in_source: int
    in_target: int
    drops: bool = False


def _window(
    operands,
    result,
    axes: Iterable[tuple[int, int, int]],
    begins: Iterable[_Begin] = (),
    source: int = 0,
    target: int = 0,
) -> Step | None:
    """Moves a window of the first operand to one of the result.

    Args:
      axes: their sizes, and how many elements are from one to the next in the two arrays.
      source, target: the elements with which the windows begin.
    """
    item, merged = result.aval.dtype.itemsize, []
    for size, *steps in axes:
        if merged and all(a == size * b for a, b in zip(merged[-1][1:], steps, strict=True)):
            size *= merged.pop()[0]
        merged.append((size, *steps))
    merged = [axis for axis in merged if axis[0] != 1] or [(1, 1, 1)]
    begins = list(begins)
    if any(operands[x.operand].aval.dtype != np.int32 for x in begins):
        return None
    is_run = merged[-1][1:] == (1, 1)
    if math.prod(n for n, *_ in (merged[:-1] if is_run else merged)) > _FEW:
        return None
    integers = [item, len(merged)]
    integers += itertools.chain.from_iterable((n, a * item, b * item) for n, a, b in merged)
    integers += [source * item, target * item, len(begins)]
    for x in begins:
        integers += [x.operand, x.element, x.most, x.in_source * item, x.in_target * item, x.drops]
    return Step(MOVE, operands, [result], list(map(int, integers)))


def _alone(step: Step | None) -> list[Step] | None:
    return step and [step]


def _begins(shape, window) -> list[_Begin]:
    """Of a window in a source of this shape, by an operand for each axis, behind the first one."""
    sizes = zip(shape, window, row_major(shape), strict=True)
    return [_Begin(1 + d, 0, n - m, step, 0) for d, (n, m, step) in enumerate(sizes) if n != m]


def _dynamic_slice(equation) -> list[Step] | None:
    (x, *_), (result,) = equation.invars, equation.outvars
    shape, window = x.aval.shape, result.aval.shape
    axes = zip(window, row_major(shape), row_major(window), strict=True)
    return _alone(_window(equation.invars, result, axes, _begins(shape, window)))


def _written(x, update, window, begins, operands, result) -> list[Step] | None:
    """``x``, with the elements of ``update`` in a window of this shape."""
    if size_in_bytes(x.aval) > _FEW_BYTES:
        return None
    axes = zip(window, row_major(window), row_major(x.aval.shape), strict=True)
    step = _window([update, *operands], result, axes, begins)
    copy = Step(COPY, [x], [result], [size_in_bytes(x.aval)])
    return step and [copy, step]


def _dynamic_update_slice(equation) -> list[Step] | None:
    (x, update, *indices), (result,) = equation.invars, equation.outvars
    window = update.aval.shape
    begins = [
        begin._replace(in_source=0, in_target=begin.in_source)
        for begin in _begins(x.aval.shape, window)
    ]
    return _written(x, update, window, begins, indices, result)


def _scatter(equation) -> list[Step] | None:
    """Of one window."""
    (x, indices, update), (result,) = equation.invars, equation.outvars
    numbers, mode = equation.params["dimension_numbers"], equation.params["mode"]
    if indices.aval.ndim != 1 or numbers.operand_batching_dims:
        return None
    shape, window = x.aval.shape, window_sizes(x.aval.ndim, update.aval.shape, numbers)
    steps = row_major(shape)
    drops = lax.GatherScatterMode.from_any(mode) == lax.GatherScatterMode.FILL_OR_DROP
    begins = [
        _Begin(1, k, shape[d] - window[d], 0, steps[d], drops)
        for k, d in enumerate(numbers.scatter_dims_to_operand_dims)
    ]
    return _written(x, update, window, begins, [indices], result)


def _transpose(equation) -> list[Step] | None:
    (x,), (result,) = equation.invars, equation.outvars
    steps = row_major(x.aval.shape)
    source = [steps[d] for d in equation.params["permutation"]]
    shape = result.aval.shape
    return _alone(_window([x], result, zip(shape, source, row_major(shape), strict=True)))


def _without(axis: int, steps) -> list[int]:
    return [*steps[:axis], *steps[axis + 1 :]]


def _stack(equation) -> list[Step] | None:
    (result,), axis = equation.outvars, equation.params["axis"]
    target, steps = row_major(result.aval.shape), []
    for i, x in enumerate(equation.invars):
        axes = zip(x.aval.shape, row_major(x.aval.shape), _without(axis, target), strict=True)
        steps.append(_window([x], result, axes, target=i * target[axis]))
    return None if None in steps else steps


def _unstack(equation) -> list[Step] | None:
    (x,), axis = equation.invars, equation.params["axis"]
    source, steps = row_major(x.aval.shape), []
    for i, result in enumerate(equation.outvars):
        shape = result.aval.shape
        axes = zip(shape, _without(axis, source), row_major(shape), strict=True)
        steps.append(_window([x], result, axes, source=i * source[axis]))
    return None if None in steps else steps


def _position(equation) -> list[Step] | None:
    (x,), (result,) = equation.invars, equation.outvars
    dtypes = x.aval.dtype, result.aval.dtype
    if dtypes != (np.float32, np.int32) or x.aval.size > _FEW:
        return None
    sizes = map(int, sums.sizes_of_sum(x.aval.shape, equation.params["axes"]))
    largest = equation.primitive is argmax_p
    return [Step(POSITION, [x], [result], [int(largest), *sizes])]


def _iota(equation) -> list[Step]:
    (result,) = equation.outvars
    shape, axis = result.aval.shape, equation.params["dimension"]
    along = np.arange(shape[axis], dtype=result.aval.dtype)
    along = along.reshape([-1 if d == axis else 1 for d in range(len(shape))])
    numbers = Number(np.broadcast_to(along, shape).tobytes(), result.aval.dtype, shape)
    return [Step(COPY, [numbers], [result], [size_in_bytes(result.aval)])]


_MAKERS = {
    **dict.fromkeys((dot_general_p, raw_dot_general_p, ended_p), _product),
    groups_p: _elementwise,
    group_sum_p: _group_sum,
    **dict.fromkeys((reduce_sum_p, reduce_max_p, reduce_min_p), _reduction),
    rows_p: _rows,
    random_bits_p: _bits,
    **dict.fromkeys((random_split_p, random_fold_in_p), _keys),
    **dict.fromkeys((argmax_p, argmin_p), _position),
    scatter_p: _scatter,
    "dynamic_slice": _dynamic_slice,
    "dynamic_update_slice": _dynamic_update_slice,
    "transpose": _transpose,
    "stack": _stack,
    "unstack": _unstack,
    "iota": _iota,
}
