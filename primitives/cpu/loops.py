"""Loops of products, fused groups, sums, draws and moves, by the C++ kernel (``native/loops.cc``).

The kernel computes a body in steps (``steps.py``), which may be loops and choices themselves.
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
from repjax.primitives.core.values import is_threefry
from repjax.primitives.cpu import short
from repjax.primitives.cpu.steps import CHOICE, COPY, KEEP, LOOP, Step, size_in_bytes, steps_of
from repjax.primitives.fusion.loops import Loop, loop_p
from repjax.primitives.fusion.views import DTYPES, Number, long_axes, view_of

#: Bytes of what is between steps, and of the second places of what is carried.  What does not stay
#: in the caches gains nothing, and takes memory.
_MOST = 1 << 22
#: The same of a ``while``, whose state XLA writes in its place where the kernel has two by turns.
_MOST_OF_WHILE = 1 << 18
_LINE = 64  # bytes of the cache


class Code(NamedTuple):
    """A loop as the kernel reads it, the constants that it takes behind its operands, the bytes
    that it needs besides its results, and the nanoseconds that an iteration takes, about."""

    integers: list[int]
    constants: list[Number]
    scratch: int
    nanoseconds: float


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


# --- aliases ------------------------------------------------------------------------------

#: The same words in memory.
_WORDS = frozenset(("squeeze", "reshape", "expand_dims", "random_wrap", "random_unwrap"))


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
    if equation.primitive.name in _WORDS and (
        is_threefry(x.aval.dtype) or is_threefry(result.aval.dtype)
    ):
        return 0
    view = view_of(equation, {}, False)
    in_order = view and long_axes(new, view.steps) == long_axes(new, row_major(new))
    return 0 if in_order and x.aval.size == result.aval.size else None


# --- loops --------------------------------------------------------------------------------


class _Program(NamedTuple):
    """A program of a loop, divided into aliases and steps."""

    invars: list[Any]
    outvars: list[Any]
    aliases: dict[Any, tuple[Any, int]]
    steps: list[Step]


def _program(closed) -> _Program | None:
    """The aliases and steps of a program, if the kernel has all of it."""
    jaxpr, consts = open_jaxpr(closed)
    atoms = [v for e in jaxpr.eqns for v in (*e.invars, *e.outvars)]
    atoms += [*jaxpr.invars, *jaxpr.outvars]
    is_known = all(
        (v.aval.dtype in DTYPES or is_threefry(v.aval.dtype)) and v.aval.size for v in atoms
    )
    if consts or jaxpr.effects or not is_known:
        return None
    aliases, steps = {}, []
    for e in jaxpr.eqns:
        by = _alias(e)
        if by is not None:
            aliases[e.outvars[0]] = e.invars[0], by
            continue
        found = _INNER.get(e.primitive, _INNER.get(e.primitive.name, steps_of))(e)
        if found is None:
            return None
        steps += [step._replace(operands=_without_literals(step.operands)) for step in found]
    return _Program(jaxpr.invars, _without_literals(jaxpr.outvars), aliases, steps)


def _without_literals(atoms) -> list[Any]:
    return [Number.of(v) if isinstance(v, Literal) else v for v in atoms]


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
        taken = [v for step in steps for v in step.operands]
        taken += [v for program in programs for v in program.outvars]
        self.constants = list(dict.fromkeys(v for v in taken if isinstance(v, Number)))
        self.operands = len(equation.invars) + len(self.constants)
        for i, number in enumerate(self.constants, len(equation.invars)):
            self.places[number] = _everywhere(i)
        self.made = {v for step in steps for v in step.results}

    def _more(self, aval) -> tuple[int, int]:
        """Memory that is neither an operand nor a result."""
        byte, self.scratch = self.scratch, self.scratch + -(-size_in_bytes(aval) // _LINE) * _LINE
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
        if variable not in self.numbers:
            root, before = self._root(variable)
            if root not in self.places:
                self.places[root] = _everywhere(*self._more(root.aval))
            place = self.places[root].moved(before)
            self.numbers[variable] = self._number(place, variable.aval.size)
        return self.numbers[variable]

    def _copy(self, variable, place: _Place) -> list[int]:
        places = [self._number_of(variable), self._number(place, variable.aval.size)]
        return [COPY, 1, 1, 1, *places, size_in_bytes(variable.aval)]

    def _steps(self, program: _Program, given: dict[int, _Place]) -> tuple[int, list[int]]:
        """How many steps a program is, and these; ``given`` are the places of its results."""
        copied = []
        for i, place in given.items():
            v = program.outvars[i]
            root, before = self._root(v)
            is_made = root in self.made and root not in self.places
            if is_made and before == 0 and root.aval.size == v.aval.size:
                self.places[root] = place
            else:
                copied.append((v, place))
        steps: list[int] = []
        for kind, operands, results, integers, _ in program.steps:
            places = [*map(self._number_of, operands), *map(self._number_of, results)]
            steps += [kind, len(operands), len(results), len(integers), *places, *integers]
        for v, place in copied:
            steps += self._copy(v, place)
        return len(program.steps) + len(copied), steps

    def _code(self, start: list[int], steps: list[int]) -> Code:
        nanoseconds = sum(step.nanoseconds for program in self.programs for step in program.steps)
        return Code([*start, *self.integers, *steps], self.constants, self.scratch, nanoseconds)


class _Scan(_Encoder):
    def _moving(self, array: int, aval) -> _Place:
        """That of the elements of an array that there are for each iteration."""
        length, step = self.equation.params["length"], size_in_bytes(aval)
        if not self.equation.params["reverse"]:
            return dataclasses.replace(_everywhere(array), step=step)
        return dataclasses.replace(_everywhere(array, (length - 1) * step), step=-step)

    def code(self) -> Code:
        (program,) = self.programs
        consts, carry = carried(self.equation.params)
        length, given = self.equation.params["length"], {}
        for i, v in enumerate(program.invars):
            if i < consts:
                self.places[v] = _everywhere(i)
            elif i < consts + carry:
                # The last iteration writes the result.
                turns = (self.operands + i - consts, 0), self._more(v.aval)
                odd, even = turns if length % 2 == 0 else turns[::-1]
                self.places[v], given[i - consts] = self._carried(i, even, odd)
            else:
                self.places[v] = self._moving(i, v.aval)
        for i, v in enumerate(program.outvars[carry:], carry):
            given[i] = self._moving(self.operands + i, v.aval)
        count, steps = self._steps(program, given)
        return self._code([length, len(self.integers) // 8, count], steps)


class _While(_Encoder):
    def code(self) -> Code:
        cond, body = self.programs
        params, given = self.equation.params, {}
        first, consts = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
        of_cond, of_body = cond.invars, body.invars
        self.places |= {v: _everywhere(i) for i, v in enumerate(of_cond[:first])}
        self.places |= {v: _everywhere(first + i) for i, v in enumerate(of_body[: consts - first])}
        state = of_body[consts - first :]
        for i, v in enumerate(state):
            if v is body.outvars[i]:
                self.places[v] = _everywhere(consts + i)
            else:
                turns = (self.operands + i, 0), self._more(v.aval)
                self.places[v], given[i] = self._carried(consts + i, *turns)
        self.places |= {v: self.places[w] for v, w in zip(of_cond[first:], state, strict=True)}
        looks, of_looks = self._steps(cond, {})
        is_next = self._number_of(cond.outvars[0])
        count, steps = self._steps(body, given)
        shape = cond.outvars[0].aval.shape
        if shape:  # of a loop for each of so many examples, some of which have ended
            for i, place in given.items():
                places = [is_next, self._number_of(state[i]), self._number(place, 1)]
                examples = math.prod(shape)
                sizes = [examples, size_in_bytes(state[i].aval) // examples]
                steps += [KEEP, 2, 1, 2, *places, *sizes]
            count += len(given)
        for i, v in enumerate(state):  # in the iteration that is none
            steps += self._copy(v, _everywhere(self.operands + i))
        counts = [looks, looks + count, looks + count + len(state), is_next]
        return self._code([-1, len(self.integers) // 8, *counts], [*of_looks, *steps])


# --- loops and choices in loops -----------------------------------------------------------


class _Memory(NamedTuple):
    """What a step needs besides its results."""

    aval: Any


def _memory(size: int) -> list[_Memory]:
    return [_Memory(jax.ShapeDtypeStruct((size,), np.uint8))]


def _inner_loop(equation) -> list[Step] | None:
    code = equation.params["loop"].code
    if code is None:  # XLA is faster
        return None
    operands = [*equation.invars, *code.constants]
    results = [*equation.outvars, *_memory(code.scratch)]
    iterations = short.iterations(equation.params["loop"].equation)
    return [Step(LOOP, operands, results, code.integers, iterations * code.nanoseconds)]


class _Once(NamedTuple):
    """A choice as a loop of one iteration."""

    invars: list[Any]
    outvars: list[Any]
    params: dict[str, Any]


def _choice(equation) -> list[Step] | None:
    """A ``cond``: its branches take the same operands, and each has constants of its own."""
    (index, *operands), results = equation.invars, equation.outvars
    params = {"length": 1, "reverse": False, "num_consts": len(operands), "num_carry": 0}
    programs = list(map(_program, equation.params["branches"]))
    if None in programs or index.aval.dtype != np.int32:
        return None
    once = _Once(operands, results, params)
    codes = [_Scan(once, [program]).code() for program in programs]
    integers, constants, words = [len(operands), len(codes)], [], []
    for code in codes:
        first, before = 1 + len(operands) + len(constants), 2 + 3 * len(codes) + len(words)
        integers += [first, len(code.constants), before]
        constants += code.constants
        words += code.integers
    memory = _memory(max(code.scratch for code in codes))
    operands, integers = [index, *operands, *constants], [*integers, *words]
    most = max(code.nanoseconds for code in codes)
    return [Step(CHOICE, operands, [*results, *memory], integers, most)]


_INNER = {loop_p: _inner_loop, "cond": _choice}


# --- all of it ----------------------------------------------------------------------------


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
    results = [v.aval for v in loop.equation.outvars]
    scratch = jax.ShapeDtypeStruct((loop.code.scratch,), np.uint8)
    call = jax.ffi.ffi_call("repjax_loop", [*map(_words, results), scratch])
    arrays = [jax.random.key_data(x) if is_threefry(x.dtype) else x for x in operands]
    arrays += [constant.value for constant in loop.code.constants]
    *found, _ = call(*arrays, program=np.asarray(loop.code.integers, np.int64))
    return [
        jax.random.wrap_key_data(x, impl="threefry2x32") if is_threefry(aval.dtype) else x
        for x, aval in zip(found, results, strict=True)
    ]


def _words(aval) -> jax.ShapeDtypeStruct:
    """The type of an array as the kernel has it: a key is two words."""
    if is_threefry(aval.dtype):
        return jax.ShapeDtypeStruct((*aval.shape, 2), np.uint32)
    return jax.ShapeDtypeStruct(aval.shape, aval.dtype)
