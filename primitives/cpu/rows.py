"""Row groups for the C++ kernel: what it can compute, and how a group is written for it.

The kernel takes some rows at a time.  What depends on no reduction is computed first, then the
reductions of that, then what depends on these, and so on: in *passes*, each of which is bytecode
(:mod:`repjax.primitives.cpu.bytecode`) of what has one element for each row, bytecode of what has
all elements, and the reductions of that.  What a later pass takes is kept in between, in the cache.

Softmax of ``x``, made canonical, along its rows::

    pass 0    c = canonical(x)               of all elements, kept in between
              m = reduce_max(c)              a reduction: one element for each row, in between
    pass 1    e = exp(c - m)                 of all elements, kept in between
              s = reduce_sum(e)              a reduction, in between
    pass 2    y = e / s                      of all elements, the result

``c`` and ``e`` each have memory in between, which a third such array could have again: ``c`` is
last read in pass 1.
"""

from __future__ import annotations

import collections
import math
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from repjax.primitives.core.canonical import HALVES
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.cpu import library
from repjax.primitives.cpu.bytecode import Bytecode, Place
from repjax.primitives.fusion.rows import Rows
from repjax.primitives.fusion.views import is_source, merged_axes
from repjax.primitives.operations.grids import bits_of_sum

#: Elements of the longest rows, some of which have to stay in the cache; and of the longest row
#: that is the only one, which is computed in one thread.
_LONGEST, _LONGEST_ALONE = 1 << 17, 1 << 13
#: Rows that keep threads busy, and elements of an array that is for one anyway.
_MANY, _SMALL = 16, 1 << 16

#: Kinds of steps, and of what they compute: all elements, one for each row.
_FULL, _OF_ROWS, _REDUCTION, _MAKE_CANONICAL = range(4)
#: The type of all numbers in between.
_WORD = np.dtype(np.int32)
#: Groups of arrays, in the order of their numbers; those that are neither operands nor results are
#: in between, and of these kinds.
_OPERAND, _POSITIONS, _RESULT, _CANONICAL, _BETWEEN = range(5)
#: Times that an element of an operand is read, at least, for it to be made canonical but once.
_OFTEN = 4
_JOINS = {PREFIX + f"reduce_{name}": i for i, name in enumerate(("sum", "max", "min"))}
#: The number of the sum that is ``order_independent``.
_ON_GRID = len(_JOINS)


# --- what it can compute ----------------------------------------------------------------


def is_reduction(equation, rows: int, n: int) -> bool:
    dtype = equation.invars[0].aval.dtype
    if equation.primitive.name not in _JOINS or n > (_LONGEST if rows > 1 else _LONGEST_ALONE):
        return False
    if dtype in HALVES and equation.primitive.name == PREFIX + "reduce_sum":
        return False
    return rows >= _MANY or rows * n <= _SMALL


def pays(equations, makers) -> bool:
    """Whether the elements are used for more than one reduction.

    ``makers`` gives the equations that one waits for.  One reduction and what it takes have a
    kernel of their own (``repjax_group_sum``).
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


# --- encoding ---------------------------------------------------------------------------


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


def _needed_steps(group: Rows) -> tuple[list[_Step], dict[Any, Any]]:
    """The equations that compute what is needed of the group, and those that make constants.

    The latter by their results.  Others that the group has are repeated by other groups.
    """
    steps, sources = [], {}
    needed = {*group.outvars}
    for equation, reads in reversed(group.steps()):
        (result,) = equation.outvars
        if result not in needed:
            continue
        needed.update(read.root for read in reads if not isinstance(read, Literal))
        if is_source(equation):
            sources[result] = equation
        elif equation.primitive.name in _JOINS:
            steps.append(_Step(equation, reads, _REDUCTION))
        else:
            kind = _OF_ROWS if result.aval.size == group.shape[0] else _FULL
            steps.append(_Step(equation, reads, kind))
    return steps[::-1], sources


class _Store(NamedTuple):
    """A value that bytecode writes to an array of a type, and what finds it there, or None."""

    key: Any
    value: int
    array: tuple[int, int]
    dtype: Any


class _Encoder:
    """A row group as the kernel takes it (``native/rows.cc``).

    In reading order: which pass computes what (:meth:`_passes`), the whole encoding
    (:meth:`encode`), a pass (:meth:`_pass`), its bytecode (:meth:`_bytecode`) with what that reads
    (:meth:`_read`) and writes (:meth:`_stores`), and its reductions (:meth:`_reduction`).  The
    module's docstring has an example.
    """

    def __init__(self, group: Rows):
        self.group = group
        self.rows, self.n = group.shape
        self.all = [(self.rows * self.n, 1)]  # the axes of an array of all elements
        self.steps, self.sources = _needed_steps(group)
        self.made = {step.result: step.kind for step in self.steps}
        self.passes = self._passes()
        #: For each result, and for what reductions read, where it is used: pass and kind of step.
        self.users = self._users()
        #: Where values are in memory, as group and number, and of which type.
        self.memory: dict[Any, tuple[tuple[int, int], Any]] = {
            v: ((_OPERAND, i), v.aval.dtype) for i, v in enumerate(group.invars)
        }
        #: Shapes of arrays of positions along an axis, that the kernel takes as operands.
        self.positions: list[tuple[tuple[int, ...], int]] = []
        self.canonical: list[Any] = []  # operands that are made canonical first
        self.count = {_FULL: 0, _OF_ROWS: 0}  # of arrays in between
        self.free: list[Any] = []  # of those of all elements
        self.pending: list[Any] = []  # results of reductions that are to be narrowed
        self.encoded: list[Any] = []

    def _passes(self) -> dict[Any, int]:
        """For each result, the pass in which it is computed.

        What depends on at most one array that is made waits until it is used, so that nothing more
        is kept.
        """
        passes: dict[Any, int] = {}
        for step in self.steps:
            before = (passes[v] + (self.made[v] == _REDUCTION) for v in step.roots() if v in passes)
            passes[step.result] = max(before, default=0)
        users: dict[Any, list[int]] = collections.defaultdict(list)
        for step in reversed(self.steps):
            made = [v for v in step.roots() if self.made.get(v) == _FULL]
            if step.kind == _FULL and len(made) < 2 and users[step.result]:
                passes[step.result] = min(users[step.result])
            for v in made:
                users[v].append(passes[step.result])
        return passes

    def _users(self) -> dict[Any, list[tuple[int, int]]]:
        users: dict[Any, list[tuple[int, int]]] = collections.defaultdict(list)
        for step in self.steps:
            for key in (*step.roots(), *step.reads):
                if not isinstance(key, Literal):
                    users[key].append((self.passes[step.result], step.kind))
        return users

    def encode(self) -> list[int]:
        """Sizes and counts, the operands that are made canonical first, and then the passes."""
        # One more for what the last reductions leave to be narrowed.
        count = sum(self._pass(i) for i in range(2 + max(self.passes.values())))
        encoded = [x for v in self.canonical for x in self._made_canonical(v)] + self.encoded
        sizes = self.rows, self.n, self.count[_FULL], self.count[_OF_ROWS]
        return [*sizes, len(self.canonical), count, *self._numbered(encoded)]

    def _pass(self, i: int) -> int:
        """Write a pass; how many pieces of bytecode and reductions it has."""
        here = [step for step in self.steps if self.passes[step.result] == i]
        reductions = [step for step in here if step.kind == _REDUCTION]
        count = len(reductions) + self._make_canonical(here)
        for kind in (_OF_ROWS, _FULL):
            steps = [step for step in here if step.kind == kind]
            operands = reductions if kind == _FULL else []
            count += self._bytecode(i, kind, steps, operands)
        for step in reductions:
            self._reduction(step)
        self._free_after(i)
        return count

    def _make_canonical(self, here: list[_Step]) -> int:
        """Write for each operand that the steps take canonical, and not only once, that it is.

        The kernel looks whether it is so already; then it is where it was.
        """
        reads = {read: None for s in here for read in s.reads if not isinstance(read, Literal)}
        found = [read for read in reads if self._is_kept(read)]
        for read in found:
            (array, _), to = self.memory[read.root], self._new(_FULL)
            self.encoded += [_MAKE_CANONICAL, array, to]
            self.memory[read] = to, _WORD
        return len(found)

    def _is_kept(self, read) -> bool:
        """Whether an operand is all elements, to be made canonical, and taken by several steps."""
        if read in self.memory or not read.canonical or read.root not in self.group.invars:
            return False
        users = {*self.users[read]}
        is_shared = len(users) > 1 or any(kind == _REDUCTION for _, kind in users)
        is_float32 = self.memory[read.root][1] == np.float32
        return is_shared and is_float32 and self._axes(_FULL, *read[1:3]) == self.all

    def _free_after(self, i: int) -> None:
        """Leave the memory in between of what no later pass reads to others."""
        for key, (array, _) in self.memory.items():
            if array[0] == _BETWEEN + _FULL and max(use for use, _ in self.users[key]) == i:
                self.free.append(array)

    def _numbered(self, encoded: list[Any]) -> list[int]:
        """Arrays, pairs of a group and a number in it, by their numbers among all arrays.

        With two operands, no positions and one result, ``(_RESULT, 0)`` is 2.
        """
        # Behind the results is an empty one (library.call).
        inputs, outputs = len(self.group.invars), len(self.group.outvars) + 1
        counts = inputs, len(self.positions), outputs, len(self.canonical), self.count[_FULL]
        first = [sum(counts[:group]) for group in range(len(counts) + 1)]
        return [first[x[0]] + x[1] if isinstance(x, tuple) else x for x in encoded]

    def _made_canonical(self, v) -> list[Any]:
        array, dtype = self.memory[v]
        code = Bytecode()
        value = code.read(Place.along(array, ((v.aval.size, 1),)), dtype, canonical=True)
        return [*code.encode(v.aval.size, [([value], _WORD)]), array]

    def _new(self, kind: int):
        """Memory in between."""
        if kind == _FULL and self.free:
            return self.free.pop()
        self.count[kind] += 1
        return _BETWEEN + kind, self.count[kind] - 1

    def _axes(self, kind: int, rows, columns) -> list[tuple[int, int]]:
        parts = [*(rows or ((self.rows, 0),))]
        if kind == _FULL:
            parts += columns or ((self.n, 0),)
        return merged_axes(parts)

    def _read(self, code: Bytecode, values, kind: int, read) -> int:
        if isinstance(read, Literal):
            return code.number(read.val, read.aval.dtype)
        if read.root in self.sources:
            source = self.sources[read.root]
            if source.invars:
                (number,) = source.invars
                return code.number(number.val, number.aval.dtype)
            return code.read(Place.along(*self._positions(kind, source, read)), _WORD)
        if read.root in values:
            return values[read.root]
        if kind == _FULL and read in self.memory:  # what a reduction has read
            array, dtype = self.memory[read]
            return code.read(Place.along(array, self.all), dtype)
        if read.root in self.made:
            return self._made(code, kind, read.root)
        (array, dtype), axes = self.memory[read.root], self._axes(kind, *read[1:3])
        is_often = kind == _FULL and read.root.aval.size * _OFTEN <= self.rows * self.n
        if not read.canonical or not is_often:
            return code.read(Place.along(array, axes), dtype, read.canonical)
        if read.root not in self.canonical:
            self.canonical.append(read.root)
        return code.read(Place.along((_CANONICAL, self.canonical.index(read.root)), axes), _WORD)

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

    def _made(self, code: Bytecode, kind: int, v) -> int:
        array, dtype = self.memory[v]
        if self.made[v] == _FULL:
            return code.read(Place.along(array, self.all), dtype)
        return code.read(Place.along(array, self._axes(kind, ((self.rows, 1),), ())), dtype)

    def _bytecode(self, i: int, kind: int, steps, reductions) -> int:
        """Write the bytecode of a pass for elements of a kind; 1, or 0 if that stores nothing."""
        code, values = Bytecode(), {}
        for step in steps:
            operands = [self._read(code, values, kind, read) for read in step.reads]
            values[step.result] = code.compute(step.equation, *operands)
        stores = self._stores(code, values, i, kind, reductions)
        self.memory.update((s.key, (s.array, s.dtype)) for s in stores if s.key is not None)
        if not stores:
            return 0
        size = self.rows * self.n if kind == _FULL else self.rows
        encoded = code.encode(size, [([store.value], store.dtype) for store in stores])
        inputs = code.sources()
        self.encoded += [kind, *encoded, *inputs, *(store.array for store in stores)]
        return 1

    def _stores(self, code: Bytecode, values, i: int, kind: int, reductions) -> list[_Store]:
        """What is written: results, what later steps read, and what the reductions add."""
        stores = [
            store for v, value in values.items() for store in self._of_value(v, value, i, kind)
        ]
        while kind == _OF_ROWS and self.pending:
            v = self.pending.pop()
            stores.append(_Store(None, self._made(code, kind, v), self._result(v), v.aval.dtype))
        for step in reductions:
            (read,) = step.reads
            if all(read != store.key for store in stores) and not self._is_in_memory(read):
                value = self._read(code, values, kind, read)
                stores.append(_Store(read, value, self._new(kind), _WORD))
        return stores

    def _of_value(self, v, value: int, i: int, kind: int) -> list[_Store]:
        """Where a value is written: as a result, in between, both or neither."""
        stores = []
        is_result = v in self.group.outvars
        if is_result:
            stores.append(_Store(v, value, self._result(v), v.aval.dtype))
        # In between, numbers have 32 bits.
        is_added = (i, _REDUCTION) in self.users[v] and v.aval.dtype in HALVES
        if is_added or (not is_result and {*self.users[v]} != {(i, kind)}):
            stores.append(_Store(v, value, self._new(kind), _WORD))
        return stores

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
        return _RESULT, self.group.outvars.index(v)

    def _reduction(self, step: _Step) -> None:
        (read,), v = step.reads, step.result
        array, _ = self.memory[read if read in self.memory else read.root]
        is_result = v in self.group.outvars
        to = self._result(v) if is_result and v.aval.dtype not in HALVES else self._new(_OF_ROWS)
        if is_result and v.aval.dtype in HALVES:
            self.pending.append(v)
        self.memory[v] = to, _WORD
        if step.equation.params.get("accumulation") == "order_independent":
            join = _ON_GRID, bits_of_sum(self.n)
        else:
            join = _JOINS[step.equation.primitive.name], 0
        self.encoded += [_REDUCTION, *join, array, to]


def encode(group: Rows) -> tuple[list[tuple[tuple[int, ...], int]], list[int]]:
    """The shapes and axes of the positions that the kernel takes after the operands, and a group as
    it reads it."""
    encoder = _Encoder(group)
    encoded = encoder.encode()
    return encoder.positions, encoded


def evaluate(*operands, group: Rows) -> list[Any]:
    """The results of the equations of a row group, by the kernel."""
    results = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in group.outvars]
    wanted, encoded = encode(group)
    positions = [lax.broadcasted_iota(np.int32, shape, axis) for shape, axis in wanted]
    return library.call("repjax_rows", results, (*operands, *positions), bytecode=encoded)
