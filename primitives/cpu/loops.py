"""Scans of products, fused groups, sums and row groups, by the C++ kernel (``native/loops.cc``).

The kernel computes a body in steps, each of which is what a call of the kernel for it would be.
Values are where they are needed: what a body takes of an array and gives for one lies in the array,
and what it carries from one iteration to the next has two places, one that is read and one that is
written.  So nothing is copied, but for what is needed in two places.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal

from repjax.primitives.core.programs import carried, open_jaxpr
from repjax.primitives.core.sizes import row_major
from repjax.primitives.cpu import groups, library, products, rows, sums
from repjax.primitives.fusion.entries import raw_dot_general_p
from repjax.primitives.fusion.exits import ended_p
from repjax.primitives.fusion.groups import Group, accumulation_of, group_sum_p, groups_p
from repjax.primitives.fusion.kernels import Kernels
from repjax.primitives.fusion.loops import Loop
from repjax.primitives.fusion.rows import rows_p
from repjax.primitives.fusion.views import (
    DTYPES,
    Number,
    long_axes,
    variables,
    view_of,
    views_of,
)
from repjax.primitives.operations.products import dot_general_p, problems
from repjax.primitives.operations.reductions.extrema import reduce_max_p, reduce_min_p
from repjax.primitives.operations.reductions.sums import reduce_sum_p

#: Bytes of what is between steps, and of the second places of what is carried.  What does not stay
#: in the caches gains nothing, and takes memory.
_MOST = 1 << 22
_LINE = 64  # bytes of the cache
#: What the kernel knows steps and sums by.
_PRODUCT, _ELEMENTWISE, _SUM, _COPY, _ROWS = range(5)
_ACCUMULATIONS = ("pairwise", "sequential", "max", "min")


class Code(NamedTuple):
    """A loop as the kernel reads it, the numbers that it takes behind its operands, and the bytes
    that it needs besides its results."""

    integers: list[int]
    numbers: list[Number]
    scratch: int


class _Step(NamedTuple):
    """A call: what it is, the variables that it takes and gives, and its integers."""

    kind: int
    operands: list[Any]
    results: list[Any]
    integers: list[int]


@dataclasses.dataclass(frozen=True)
class _Place:
    """Where a value is, as ``native/loops.cc`` has it: numbers of arrays, and bytes in them."""

    first: tuple[int, int]
    even: tuple[int, int]
    odd: tuple[int, int]
    step: int = 0

    def moved(self, by: int) -> _Place:
        arrays = ((array, byte + by) for array, byte in (self.first, self.even, self.odd))
        return _Place(*arrays, self.step)


def _bytes(aval) -> int:
    return aval.size * aval.dtype.itemsize


# --- steps --------------------------------------------------------------------------------


def _steps(equations) -> list[_Step] | None:
    """The steps of equations that are no aliases, or None if there are others among them."""
    found = []
    for equation in equations:
        step = _MAKERS.get(equation.primitive, _move)(equation)
        if step is None or any(isinstance(v, Literal) for v in step.operands):
            return None
        found.append(step)
    return found


def _product(equation) -> _Step | None:
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
    return _Step(_PRODUCT, equation.invars, equation.outvars, integers)


def _code(group: Group, operands, encoded) -> tuple[list[Any], list[int]]:
    """What a group takes of the operands, and its bytecode."""
    by_variable = dict(zip(group.invars, operands, strict=True))
    roots, code = encoded
    return [by_variable.get(v, v) for v in roots], code


def _elementwise(equation) -> _Step:
    of_equation = iter(equation.invars)
    taken, integers = [], [len(equation.params["groups"])]
    for group in equation.params["groups"]:
        operands, code = _code(
            group, [next(of_equation) for _ in group.invars], groups.encode(group)
        )
        taken += operands
        integers += code
    return _Step(_ELEMENTWISE, taken, equation.outvars, integers)


def _sum(equation, operand, taken, code) -> _Step | None:
    """A reduction of ``operand``, which is an array in memory or what bytecode makes."""
    accumulation = accumulation_of(equation)
    if accumulation not in _ACCUMULATIONS or operand.aval.size > library.LARGE:
        return None
    sizes = sums.sizes_of_sum(operand.aval.shape, equation.params["axes"])
    integers = [_ACCUMULATIONS.index(accumulation), *map(int, sizes), *code]
    return _Step(_SUM, taken, [], integers)


def _reduction(equation) -> _Step | None:
    (x,), axes = equation.invars, equation.params["axes"]
    code = sums.code_of_terms(x.aval, axes) if axes and x.aval.size else []
    if code and accumulation_of(equation) == "sequential":
        return None
    step = _sum(equation, x, [x], code)
    return step and step._replace(results=equation.outvars)


def _group_sum(equation) -> _Step | None:
    found = equation.params["sum"]
    taken, code = _code(found.group, equation.invars, groups.encode_terms(found))
    step = _sum(found.equation, found.group.outvars[0], taken, code)
    return step and step._replace(results=equation.outvars)


def _rows(equation) -> _Step | None:
    positions, integers = rows.encode(equation.params["group"])
    return None if positions else _Step(_ROWS, equation.invars, equation.outvars, integers)


#: What groups of moves ask kernels for.
_NONE = Kernels("cpu", is_elementwise=lambda _: False, is_reduction=lambda *_: False)


def _move(equation) -> _Step | None:
    """What only moves elements (a slice, a concatenation), as a group that computes nothing."""
    if not views_of(equation, {}, set()):
        return None
    operands = tuple(dict.fromkeys(variables(equation.invars)))
    group = Group((equation,), operands, tuple(equation.outvars), _NONE)
    taken, code = _code(group, operands, groups.encode(group))
    return _Step(_ELEMENTWISE, taken, equation.outvars, [1, *code])


_MAKERS = {
    **dict.fromkeys((dot_general_p, raw_dot_general_p, ended_p), _product),
    groups_p: _elementwise,
    group_sum_p: _group_sum,
    **dict.fromkeys((reduce_sum_p, reduce_max_p, reduce_min_p), _reduction),
    rows_p: _rows,
}


# --- aliases ------------------------------------------------------------------------------


def _alias(equation) -> int | None:
    """By how many bytes the result of an equation is behind its operand, as a part of which it
    lies in memory; None if it is none."""
    if (len(equation.invars), len(equation.outvars)) != (1, 1):
        return None
    (x,), (result,) = equation.invars, equation.outvars
    if isinstance(x, Literal):
        return None
    old, new = x.aval.shape, result.aval.shape
    if equation.primitive.name == "slice":
        starts, strides = equation.params["start_indices"], equation.params["strides"]
        shorter = [d for d, (n, m) in enumerate(zip(old, new, strict=True)) if n != m]
        together = math.prod(new[: max(shorter, default=0)]) == 1
        if not together or any(stride != 1 for stride in strides or ()):
            return None
        steps = row_major(old)
        return x.aval.dtype.itemsize * sum(map(int.__mul__, map(int, starts), map(int, steps)))
    view = view_of(equation, {}, False)
    in_order = view and long_axes(new, view.steps) == long_axes(new, row_major(new))
    return 0 if in_order and x.aval.size == result.aval.size else None


# --- loops --------------------------------------------------------------------------------


class _Encoder:
    """A scan whose body has been divided into aliases and steps."""

    def __init__(self, equation, jaxpr, aliases, steps: list[_Step]):
        self.equation, self.jaxpr, self.aliases, self.steps = equation, jaxpr, aliases, steps
        self.scratch = 0
        self.integers: list[int] = []  # of the places
        self.numbers: dict[Any, int] = {}
        self.given: list[_Place] = []  # where the body puts its results
        taken = dict.fromkeys(v for step in steps for v in step.operands)
        self.constants = [v for v in taken if isinstance(v, Number)]
        self.operands = len(equation.invars) + len(self.constants)
        self.places = dict(zip(jaxpr.invars, self._taken(), strict=True))
        for i, number in enumerate(self.constants, len(equation.invars)):
            self.places[number] = _Place(*[(i, 0)] * 3)
        carry = len(self.given)
        for j, v in enumerate(jaxpr.outvars[carry:], self.operands + carry):
            self.given.append(self._moving(j, v.aval))
        self.made = {v for step in steps for v in step.results}

    def _moving(self, array: int, aval) -> _Place:
        """That of the elements of an array that there are for each iteration."""
        length, step = self.equation.params["length"], _bytes(aval)
        if not self.equation.params["reverse"]:
            return _Place(*[(array, 0)] * 3, step)
        return _Place(*[(array, (length - 1) * step)] * 3, -step)

    def _more(self, aval) -> tuple[int, int]:
        """Memory that is neither an operand nor a result."""
        byte, self.scratch = self.scratch, self.scratch + -(-_bytes(aval) // _LINE) * _LINE
        return self.operands + len(self.equation.outvars), byte

    def _taken(self) -> Iterator[_Place]:
        """Where the body finds what it takes; and of what it carries, where it puts it."""
        consts, carry = carried(self.equation.params)
        for i, v in enumerate(self.jaxpr.invars):
            if i < consts:
                yield _Place(*[(i, 0)] * 3)
            elif i < consts + carry:
                # The last iteration writes the result.
                turns = (self.operands + i - consts, 0), self._more(v.aval)
                odd, even = turns if self.equation.params["length"] % 2 == 0 else turns[::-1]
                self.given.append(_Place(even, even, odd))
                yield _Place((i, 0), odd, even)
            else:
                yield self._moving(i, v.aval)

    def _root(self, variable) -> tuple[Any, int]:
        """The variable that another one is a part of, and the bytes before the part."""
        before = 0
        while variable in self.aliases:
            variable, by = self.aliases[variable]
            before += by
        return variable, before

    def _number(self, place: _Place, size: int) -> int:
        """Of a new place for so many elements."""
        self.integers += [*place.first, *place.even, *place.odd, place.step, size]
        return len(self.integers) // 8 - 1

    def _number_of(self, variable) -> int:
        if variable not in self.numbers and isinstance(variable, Number):
            self.numbers[variable] = self._number(self.places[variable], 1)
        elif variable not in self.numbers:
            root, before = self._root(variable)
            if root not in self.places:
                self.places[root] = _Place(*[self._more(root.aval)] * 3)
            place = self.places[root].moved(before)
            self.numbers[variable] = self._number(place, variable.aval.size)
        return self.numbers[variable]

    def code(self) -> Code:
        copied = []
        for v, place in zip(self.jaxpr.outvars, self.given, strict=True):
            root, before = self._root(v)
            is_whole = before == 0 and root.aval.size == v.aval.size
            if is_whole and root in self.made and root not in self.places:
                self.places[root] = place
            else:
                copied.append((v, place))
        steps: list[int] = []
        for kind, operands, results, integers in self.steps:
            places = [*map(self._number_of, operands), *map(self._number_of, results)]
            steps += [kind, len(operands), len(results), len(integers), *places, *integers]
        for v, place in copied:
            places = [self._number_of(v), self._number(place, v.aval.size)]
            steps += [_COPY, 1, 1, 1, *places, _bytes(v.aval)]
        counts = len(self.integers) // 8, len(self.steps) + len(copied)
        start = [self.equation.params["length"], *counts]
        return Code([*start, *self.integers, *steps], self.constants, self.scratch)


def encode(equation) -> Code | None:
    """A scan for the kernel, if all of its body are steps that the kernel has."""
    if equation.params["length"] == 0:  # nothing would write what is carried
        return None
    jaxpr, consts = open_jaxpr(equation.params["jaxpr"])
    atoms = [v for e in jaxpr.eqns for v in (*e.invars, *e.outvars)]
    atoms += [*equation.invars, *equation.outvars, *jaxpr.outvars]
    if consts or jaxpr.effects or not all(v.aval.dtype in DTYPES and v.aval.size for v in atoms):
        return None
    if any(isinstance(v, Literal) for v in jaxpr.outvars):
        return None
    aliases, others = {}, []
    for e in jaxpr.eqns:
        by = _alias(e)
        if by is None:
            others.append(e)
        else:
            aliases[e.outvars[0]] = e.invars[0], by
    steps = _steps(others)
    code = _Encoder(equation, jaxpr, aliases, steps).code() if steps else None
    return code if code and code.scratch <= _MOST else None


def evaluate(*operands, loop: Loop):
    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in loop.equation.outvars]
    scratch = jax.ShapeDtypeStruct((loop.code.scratch,), np.uint8)
    call = jax.ffi.ffi_call("repjax_loop", [*types, scratch])
    numbers = [number.value for number in loop.code.numbers]
    return call(*operands, *numbers, program=np.asarray(loop.code.integers, np.int64))[:-1]
