"""Loops of products, fused groups, sums and row groups, by the C++ kernel (``native/loops.cc``).

The kernel computes a body in steps, each of which is what a call of the kernel for it would be.
Values are where they are needed: what a body takes of an array and gives for one lies in the array,
and what it carries from one iteration to the next has two places, one that is read and one that is
written.  So nothing is copied, but for what is needed in two places.
"""

from __future__ import annotations

import dataclasses
import math
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
    order_of_terms,
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
#: The same of a ``while``, whose state XLA writes in its place where the kernel has two by turns.
_MOST_OF_WHILE = 1 << 18
_LINE = 64  # bytes of the cache
#: What the kernel knows steps and sums by.
_PRODUCT, _ELEMENTWISE, _SUM, _COPY, _ROWS, _KEEP = range(6)
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


def _code(group: Group, operands, order=None) -> tuple[list[Any], list[int]]:
    """What a group takes of the operands, and its bytecode."""
    by_variable = dict(zip(group.invars, operands, strict=True))
    roots, code = groups.encode(group, order)
    return [by_variable.get(v, v) for v in roots], code


def _elementwise(equation) -> _Step:
    of_equation = iter(equation.invars)
    taken, integers = [], [len(equation.params["groups"])]
    for group in equation.params["groups"]:
        operands, code = _code(group, [next(of_equation) for _ in group.invars])
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
    (terms,) = found.group.outvars
    order = order_of_terms(terms.aval.shape, found.equation.params["axes"])
    taken, code = _code(found.group, equation.invars, order)
    step = _sum(found.equation, terms, taken, code)
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
    taken, code = _code(group, operands)
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


class _Program(NamedTuple):
    """A program of a loop, divided into aliases and steps."""

    jaxpr: Any
    aliases: dict[Any, tuple[Any, int]]
    steps: list[_Step]


def _program(closed) -> _Program | None:
    """The aliases and steps of a program, if the kernel has all of it."""
    jaxpr, consts = open_jaxpr(closed)
    atoms = [v for e in jaxpr.eqns for v in (*e.invars, *e.outvars)]
    atoms += [*jaxpr.invars, *jaxpr.outvars]
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
    return None if steps is None else _Program(jaxpr, aliases, steps)


def _everywhere(array: int, byte: int = 0) -> _Place:
    return _Place(*[(array, byte)] * 3)


class _Encoder:
    """A loop, of one program or of two."""

    def __init__(self, equation, programs: list[_Program]):
        self.equation, self.programs = equation, programs
        self.scratch = 0
        self.integers: list[int] = []  # of the places
        self.numbers: dict[Any, int] = {}
        self.places: dict[Any, _Place] = {}
        self.aliases = {v: x for program in programs for v, x in program.aliases.items()}
        steps = [step for program in programs for step in program.steps]
        taken = dict.fromkeys(v for step in steps for v in step.operands)
        self.constants = [v for v in taken if isinstance(v, Number)]
        self.operands = len(equation.invars) + len(self.constants)
        for i, number in enumerate(self.constants, len(equation.invars)):
            self.places[number] = _everywhere(i)
        self.made = {v for step in steps for v in step.results}

    def _more(self, aval) -> tuple[int, int]:
        """Memory that is neither an operand nor a result."""
        byte, self.scratch = self.scratch, self.scratch + -(-_bytes(aval) // _LINE) * _LINE
        return self.operands + len(self.equation.outvars), byte

    def _carried(self, operand: int, even, odd) -> tuple[_Place, _Place]:
        """Where what is carried is found and where it is put, by turns: in even iterations at
        ``even``, and in odd ones at ``odd``."""
        return _Place((operand, 0), odd, even), _Place(even, even, odd)

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
                self.places[root] = _everywhere(*self._more(root.aval))
            place = self.places[root].moved(before)
            self.numbers[variable] = self._number(place, variable.aval.size)
        return self.numbers[variable]

    def _copy(self, variable, place: _Place) -> list[int]:
        places = [self._number_of(variable), self._number(place, variable.aval.size)]
        return [_COPY, 1, 1, 1, *places, _bytes(variable.aval)]

    def _steps(self, program: _Program, given: dict[int, _Place]) -> tuple[int, list[int]]:
        """How many steps a program is, and these; ``given`` are the places of its results."""
        copied = []
        for i, place in given.items():
            v = program.jaxpr.outvars[i]
            root, before = self._root(v)
            is_whole = before == 0 and root.aval.size == v.aval.size
            if is_whole and root in self.made and root not in self.places:
                self.places[root] = place
            else:
                copied.append((v, place))
        steps: list[int] = []
        for kind, operands, results, integers in program.steps:
            places = [*map(self._number_of, operands), *map(self._number_of, results)]
            steps += [kind, len(operands), len(results), len(integers), *places, *integers]
        for v, place in copied:
            steps += self._copy(v, place)
        return len(program.steps) + len(copied), steps

    def _code(self, start: list[int], steps: list[int]) -> Code:
        return Code([*start, *self.integers, *steps], self.constants, self.scratch)


class _Scan(_Encoder):
    def _moving(self, array: int, aval) -> _Place:
        """That of the elements of an array that there are for each iteration."""
        length, step = self.equation.params["length"], _bytes(aval)
        if not self.equation.params["reverse"]:
            return dataclasses.replace(_everywhere(array), step=step)
        return dataclasses.replace(_everywhere(array, (length - 1) * step), step=-step)

    def code(self) -> Code:
        (program,) = self.programs
        consts, carry = carried(self.equation.params)
        length, given = self.equation.params["length"], {}
        for i, v in enumerate(program.jaxpr.invars):
            if i < consts:
                self.places[v] = _everywhere(i)
            elif i < consts + carry:
                # The last iteration writes the result.
                turns = (self.operands + i - consts, 0), self._more(v.aval)
                odd, even = turns if length % 2 == 0 else turns[::-1]
                self.places[v], given[i - consts] = self._carried(i, even, odd)
            else:
                self.places[v] = self._moving(i, v.aval)
        for i, v in enumerate(program.jaxpr.outvars[carry:], carry):
            given[i] = self._moving(self.operands + i, v.aval)
        count, steps = self._steps(program, given)
        return self._code([length, len(self.integers) // 8, count], steps)


class _While(_Encoder):
    def code(self) -> Code:
        cond, body = self.programs
        params, given = self.equation.params, {}
        first, consts = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        of_cond, of_body = cond.jaxpr.invars, body.jaxpr.invars
        self.places |= {v: _everywhere(i) for i, v in enumerate(of_cond[:first])}
        self.places |= {v: _everywhere(first + i) for i, v in enumerate(of_body[: consts - first])}
        state = of_body[consts - first :]
        for i, v in enumerate(state):
            if v is body.jaxpr.outvars[i]:
                self.places[v] = _everywhere(consts + i)
            else:
                turns = (self.operands + i, 0), self._more(v.aval)
                self.places[v], given[i] = self._carried(consts + i, *turns)
        self.places |= {v: self.places[w] for v, w in zip(of_cond[first:], state, strict=True)}
        looks, of_looks = self._steps(cond, {})
        is_next = self._number_of(cond.jaxpr.outvars[0])
        count, steps = self._steps(body, given)
        shape = cond.jaxpr.outvars[0].aval.shape
        if shape:  # of a loop for each of so many examples, some of which have ended
            for i, place in given.items():
                places = [is_next, self._number_of(state[i]), self._number(place, 1)]
                examples = math.prod(shape)
                sizes = [examples, _bytes(state[i].aval) // examples]
                steps += [_KEEP, 2, 1, 2, *places, *sizes]
            count += len(given)
        for i, v in enumerate(state):  # in the iteration that is none
            steps += self._copy(v, _everywhere(self.operands + i))
        counts = [looks, looks + count, looks + count + len(state), is_next]
        return self._code([-1, len(self.integers) // 8, *counts], [*of_looks, *steps])


def encode(equation) -> Code | None:
    """A loop for the kernel, if all of it are steps that the kernel has."""
    params, is_scan = equation.params, equation.primitive.name == "scan"
    if is_scan and params["length"] == 0:  # nothing would write what is carried
        return None
    if any(not v.aval.size for v in (*equation.invars, *equation.outvars)):
        return None
    names = ("jaxpr",) if is_scan else ("cond_jaxpr", "body_jaxpr")
    programs = [_program(params[name]) for name in names]
    if None in programs or not programs[-1].steps:
        return None
    code = (_Scan if is_scan else _While)(equation, programs).code()
    return code if code.scratch <= (_MOST if is_scan else _MOST_OF_WHILE) else None


def evaluate(*operands, loop: Loop):
    types = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in loop.equation.outvars]
    scratch = jax.ShapeDtypeStruct((loop.code.scratch,), np.uint8)
    call = jax.ffi.ffi_call("repjax_loop", [*types, scratch])
    numbers = [number.value for number in loop.code.numbers]
    return call(*operands, *numbers, program=np.asarray(loop.code.integers, np.int64))[:-1]
