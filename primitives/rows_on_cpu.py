"""Row programs for the C++ kernel: what it can compute, and how a program is written for it.

The kernel takes some rows at a time.  What depends on no reduction is computed first, then the
reductions of that, then what depends on these, and so on: in *passes*, each of which is one program
(:mod:`repjax.primitives.programs`) of what has one element for each row, and one of the others.
What a later pass takes is kept in between, in the cache.
"""

from __future__ import annotations

import collections
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from repjax.primitives import native
from repjax.primitives.define import HALVES
from repjax.primitives.elementwise import merged_axes
from repjax.primitives.interpret import PREFIX
from repjax.primitives.programs import Program

#: Elements of the longest rows, some of which have to stay in the cache.
_LONGEST = 1 << 17
#: Rows that keep threads busy, and elements of an array that is for one anyway.
_MANY, _SMALL = 16, 1 << 16

#: Kinds of steps, and of what they compute: all elements, one for each row.
_FULL, _OF_ROWS, _REDUCTION = range(3)
#: The type of all numbers in between.
_WORD = np.dtype(np.int32)
#: Groups of arrays, in the order of their numbers; those that are neither operands nor results are
#: in between, and of these kinds.
_OPERAND, _POSITIONS, _RESULT, _CANONICAL, _BETWEEN = range(5)
#: Times that an element of an operand is read, at least, for it to be made canonical but once.
_OFTEN = 4
_JOINS = {PREFIX + f"reduce_{name}": i for i, name in enumerate(("sum", "max", "min"))}


# --- what it can compute ----------------------------------------------------------------


def is_reduction(equation, rows: int, n: int) -> bool:
    dtype = equation.invars[0].aval.dtype
    if equation.primitive.name not in _JOINS or rows < 2 or n > _LONGEST:
        return False
    if dtype in HALVES and equation.primitive.name == PREFIX + "reduce_sum":
        return False
    return rows >= _MANY or rows * n <= _SMALL


def is_source(equation) -> bool:
    """Whether it makes positions, or a constant."""
    name = equation.primitive.name if equation is not None else ""
    if name == "iota":
        return equation.outvars[0].aval.dtype == np.int32
    return name == "broadcast_in_dim" and isinstance(equation.invars[0], Literal)


def pays(equations, makers) -> bool:
    """Whether the elements are used for more than one reduction.

    ``makers`` gives the equations that one waits for.  One reduction and what it takes have a
    kernel of their own (``repjax_chain_sum``).
    """
    first, *others = (e for e in equations if e.primitive.name in _JOINS)
    taken = {id(first)}
    for equation in reversed(equations):
        if id(equation) in taken:
            taken.update(id(maker) for maker in makers(equation))
    size = first.invars[0].aval.size
    return bool(others) or any(
        id(e) not in taken and e.outvars[0].aval.size == size for e in equations
    )


# --- programs ---------------------------------------------------------------------------


class _Step(NamedTuple):
    """An equation, and how it sees its operands."""

    equation: Any
    reads: list[Any]
    kind: int

    @property
    def result(self):
        return self.equation.outvars[0]

    def roots(self) -> list[Any]:
        return [read.root for read in self.reads if not isinstance(read, Literal)]


def _along(axes, inner: int, period: int):
    """Steps along one axis of an array of those along all, or None where axes are parts of one.

    That axis has steps of ``inner``, and ends with the ``period``.
    """
    found = []
    for size, step in axes:
        if step % period == 0 or size * step <= inner:
            found.append((size, 0))
        elif step % inner == 0 and size * step <= period:
            found.append((size, step // inner))
        else:
            return None
    return tuple(found)


class _Encoder:
    """A row program as the kernel takes it (``native/rows.cc``)."""

    def __init__(self, program):
        self.program = program
        self.rows, self.n = program.shape
        self.all = [[self.rows * self.n, 1]]  # the axes of an array of all elements
        self.sources: dict[Any, Any] = {}  # their equations
        self.steps: list[_Step] = []
        needed = {*program.outvars}
        for equation, reads in reversed(program.steps()):
            (result,) = equation.outvars
            if result not in needed:  # other programs repeat it
                continue
            needed.update(read.root for read in reads if not isinstance(read, Literal))
            if program.kernels.is_source(equation):
                self.sources[result] = equation
            elif equation.primitive.name in _JOINS:
                self.steps.append(_Step(equation, reads, _REDUCTION))
            else:
                kind = _OF_ROWS if result.aval.size == self.rows else _FULL
                self.steps.append(_Step(equation, reads, kind))
        self.steps.reverse()
        self.made = {step.result: step.kind for step in self.steps}
        self.passes = self._passes()
        #: Of each result, and of what reductions read, where it is used: pass and kind of step.
        self.users: dict[Any, list[tuple[int, int]]] = collections.defaultdict(list)
        for step in self.steps:
            for key in (*step.roots(), *step.reads):
                if not isinstance(key, Literal):
                    self.users[key].append((self.passes[step.result], step.kind))
        #: Where values are in memory, as group and number, and of which type.
        self.memory: dict[Any, tuple[tuple[int, int], Any]] = {
            v: ((_OPERAND, i), v.aval.dtype) for i, v in enumerate(program.invars)
        }
        #: Shapes of arrays of positions along an axis, that the kernel takes as operands.
        self.positions: list[tuple[tuple[int, ...], int]] = []
        self.canonical: list[Any] = []  # operands that are made canonical first
        self.count = {_FULL: 0, _OF_ROWS: 0}  # of arrays in between
        self.free: list[Any] = []  # of those of all elements
        self.pending: list[Any] = []  # results of reductions that are to be narrowed
        self.encoded: list[Any] = []

    def _passes(self) -> dict[Any, int]:
        """Of each result, the pass in which it is computed.

        What depends on nothing else of all elements waits until it is used.
        """
        passes: dict[Any, int] = {}
        for step in self.steps:
            before = (passes[v] + (self.made[v] == _REDUCTION) for v in step.roots() if v in passes)
            passes[step.result] = max(before, default=0)
        users: dict[Any, list[int]] = collections.defaultdict(list)
        for step in reversed(self.steps):
            made = [v for v in step.roots() if self.made.get(v) == _FULL]
            if step.kind == _FULL and not made and users[step.result]:
                passes[step.result] = min(users[step.result])
            for v in made:
                users[v].append(passes[step.result])
        return passes

    def encode(self) -> list[int]:
        count = 0
        for i in range(2 + max(self.passes.values())):
            here = [step for step in self.steps if self.passes[step.result] == i]
            reductions = [step for step in here if step.kind == _REDUCTION]
            for kind in (_OF_ROWS, _FULL):
                steps = [step for step in here if step.kind == kind]
                operands = reductions if kind == _FULL else []
                count += self._program(i, kind, steps, operands)
            for step in reductions:
                self._reduction(step)
            count += len(reductions)
            for key, (array, _) in self.memory.items():
                if array[0] == _BETWEEN + _FULL and max(use for use, _ in self.users[key]) == i:
                    self.free.append(array)
        # Behind the results is an empty one (native.call).
        inputs, outputs = len(self.program.invars), len(self.program.outvars) + 1
        counts = inputs, len(self.positions), outputs, len(self.canonical), self.count[_FULL]
        first = [sum(counts[:group]) for group in range(len(counts) + 1)]
        encoded = [x for v in self.canonical for x in self._made_canonical(v)] + self.encoded
        numbers = [first[x[0]] + x[1] if isinstance(x, tuple) else x for x in encoded]
        sizes = self.rows, self.n, self.count[_FULL], self.count[_OF_ROWS]
        return [*sizes, len(self.canonical), count, *numbers]

    def _made_canonical(self, v) -> list[Any]:
        array, dtype = self.memory[v]
        program = Program()
        value = program.read(array, [(v.aval.size, 1)], dtype, canonical=True)
        return [*program.encode(v.aval.size, [(value, _WORD)]), array]

    def _new(self, kind: int):
        """Memory in between."""
        if kind == _FULL and self.free:
            return self.free.pop()
        self.count[kind] += 1
        return _BETWEEN + kind, self.count[kind] - 1

    def _axes(self, kind: int, rows, columns) -> list[list[int]]:
        parts = [*(rows or ((self.rows, 0),))]
        if kind == _FULL:
            parts += columns or ((self.n, 0),)
        return merged_axes(*zip(*parts, strict=True))

    def _read(self, program: Program, values, kind: int, read) -> int:
        if isinstance(read, Literal):
            return program.literal(read)
        if read.root in self.sources:
            source = self.sources[read.root]
            if source.invars:
                return program.literal(source.invars[0])
            return program.read(*self._positions(kind, source, read), _WORD)
        if read.root in values:
            return values[read.root]
        if kind == _FULL and read in self.memory:  # what a reduction has read
            array, dtype = self.memory[read]
            return program.read(array, self.all, dtype)
        if read.root in self.made:
            return self._made(program, kind, read.root)
        (array, dtype), axes = self.memory[read.root], self._axes(kind, *read[1:3])
        is_often = kind == _FULL and read.root.aval.size * _OFTEN <= self.rows * self.n
        if not read.canonical or not is_often:
            return program.read(array, axes, dtype, read.canonical)
        if read.root not in self.canonical:
            self.canonical.append(read.root)
        return program.read((_CANONICAL, self.canonical.index(read.root)), axes, _WORD)

    def _positions(self, kind: int, source, read):
        """The operand of positions along an axis, and its axes here."""
        shape, axis = source.params["shape"], source.params["dimension"]
        inner = math.prod(shape[axis + 1 :])
        rows, columns = (_along(axes, inner, inner * shape[axis]) for axes in read[1:3])
        wanted = shape[axis : axis + 1], 0
        if rows is None or columns is None:  # all are made
            rows, columns, wanted = *read[1:3], (shape, axis)
        if wanted not in self.positions:
            self.positions.append(wanted)
        return (_POSITIONS, self.positions.index(wanted)), self._axes(kind, rows, columns)

    def _made(self, program: Program, kind: int, v) -> int:
        array, dtype = self.memory[v]
        if self.made[v] == _FULL:
            return program.read(array, self.all, dtype)
        return program.read(array, self._axes(kind, ((self.rows, 1),), ()), dtype)

    def _program(self, i: int, kind: int, steps, reductions) -> int:
        """Write the program of a pass, if there is one."""
        program, values = Program(), {}
        for step in steps:
            operands = [self._read(program, values, kind, read) for read in step.reads]
            values[step.result] = program.compute(step.equation, *operands)
        results: list[tuple[int, Any]] = []
        arrays: list[Any] = []
        stored: dict[Any, tuple[Any, Any]] = {}

        def store(key, value, array, dtype):
            results.append((value, dtype))
            arrays.append(array)
            stored[key] = array, dtype

        for v, value in values.items():
            is_result = v in self.program.outvars
            if is_result:
                store(v, value, self._result(v), v.aval.dtype)
            # In between, numbers have 32 bits.
            is_added = (i, _REDUCTION) in self.users[v] and v.aval.dtype in HALVES
            if is_added or (not is_result and {*self.users[v]} != {(i, kind)}):
                store(v, value, self._new(kind), _WORD)
        while kind == _OF_ROWS and self.pending:
            v = self.pending.pop()
            results.append((self._made(program, kind, v), v.aval.dtype))
            arrays.append(self._result(v))
        for step in reductions:
            (read,) = step.reads
            if read not in stored and not self._is_in_memory(read):
                value = self._read(program, values, kind, read)
                store(read, value, self._new(kind), _WORD)
        self.memory.update(stored)
        if not results:
            return 0
        size = self.rows * self.n if kind == _FULL else self.rows
        encoded = program.encode(size, results)
        self.encoded += [kind, *encoded, *(array for array, _ in program.inputs), *arrays]
        return 1

    def _is_in_memory(self, read) -> bool:
        """Whether a reduction can take an operand from where it is, or another one has had it."""
        if read.root in self.made:
            return self.made[read.root] == _FULL or read in self.memory
        if read in self.memory:
            return True
        if read.canonical or read.root in self.sources or self.memory[read.root][1] in HALVES:
            return False
        return self._axes(_FULL, *read[1:3]) == self.all

    def _result(self, v) -> tuple[int, int]:
        return _RESULT, self.program.outvars.index(v)

    def _reduction(self, step: _Step) -> None:
        (read,), v = step.reads, step.result
        array, _ = self.memory[read if read in self.memory else read.root]
        is_result = v in self.program.outvars
        to = self._result(v) if is_result and v.aval.dtype not in HALVES else self._new(_OF_ROWS)
        if is_result and v.aval.dtype in HALVES:
            self.pending.append(v)
        self.memory[v] = to, _WORD
        self.encoded += [_REDUCTION, _JOINS[step.equation.primitive.name], array, to]


def evaluate(*operands, program) -> list[Any]:
    """The results of the equations of a row program, by the kernel."""
    results = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.outvars]
    encoder = _Encoder(program)
    encoded = encoder.encode()
    positions = [lax.broadcasted_iota(np.int32, *wanted) for wanted in encoder.positions]
    return native.call("repjax_rows", results, (*operands, *positions), program=encoded)
