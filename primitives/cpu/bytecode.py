"""Bytecode: elementwise operations as the C++ kernels read them (``native/bytecode.h``).

The kernels interpret them: registers hold blocks of elements, and an instruction computes a block
from up to three others (``add_n``: from up to eight).  Elements are 32 bits wide there: float32,
integers, and booleans as masks of all bits; float16 and bfloat16 are the float32 numbers that they
stand for.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from repjax.primitives.core.canonical import HALVES
from repjax.primitives.core.programs import open_jaxpr, staged
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.cpu import library
from repjax.primitives.fusion.row_moves import RowMove, Run
from repjax.primitives.operations import special
from repjax.primitives.operations.add_n import MOST_PARTS
from repjax.primitives.operations.arithmetic import multiplication_chain
from repjax.primitives.operations.elementary import pow_p
from repjax.primitives.operations.elementary.table import names

_FLOAT, _BOOL = np.dtype(np.float32), np.dtype(np.bool_)
_FLOAT16, _BFLOAT16 = HALVES
_FLOATING = frozenset((_FLOAT, *HALVES))
#: How the kernel finds the types that it knows in memory.
_WORD, _BOOLEAN, _HALF, _REAL, _IMAGINARY = range(5)
_STORAGES = 8  # room for them where they are encoded
_STORAGE = {
    **dict.fromkeys(map(np.dtype, (np.float32, np.int32, np.uint32)), _WORD),
    _BOOL: _BOOLEAN,
    **dict.fromkeys(HALVES, _HALF),
}


# --- operations -------------------------------------------------------------------------


def _bits(value, dtype) -> int:
    """A number as the kernel has it: formats of 16 bits are float32 there."""
    value = np.asarray(value, dtype)
    if dtype in HALVES:
        value = value.astype(_FLOAT)
    return -int(value) if dtype == _BOOL else int(value.view(np.int32))


def _integer_pow(emit, equation, x):
    y = equation.params["y"]
    one = emit.constant(_bits(1, _FLOAT))
    if y == 0:
        return one
    power = multiplication_chain(functools.partial(emit, "mul"), x, abs(y))
    return power if y > 0 else emit("div", one, power)


def _add_n(emit, equation, *terms):
    # What is rounded once more is rounded to odd.
    halves = equation.outvars[0].aval.dtype in HALVES
    return emit("add_n_odd" if halves else "add_n", *terms)


def _comparison(name, swapped=False):
    def compare(emit, equation, x, y):
        dtype = equation.invars[0].aval.dtype
        if swapped:
            x, y = y, x
        if dtype in _FLOATING:
            return emit(name, x, y)
        if dtype == np.uint32:  # in the order of signed integers
            x, y = (emit("bitwise_xor", a, emit.constant(1 << 31)) for a in (x, y))
        return emit(f"integer_{name}", x, y)

    return compare


def _ne(emit, equation, x, y):
    if equation.invars[0].aval.dtype in _FLOATING:
        return emit("ne", x, y)
    return emit("bitwise_not", emit("integer_eq", x, y))


def _convert(emit, equation, x):
    old, new = equation.invars[0].aval.dtype, equation.outvars[0].aval.dtype
    if old == new:
        return x
    if new == _BOOL:
        zero = emit.constant(0)
        if old in _FLOATING:
            return emit("ne", x, zero)
        return emit("bitwise_not", emit("integer_eq", x, zero))
    if old == _BOOL:
        return emit("bitwise_and", x, emit.constant(_bits(1, new)))
    if old in _FLOATING and new == np.int32:
        return emit("to_integer", x)
    return emit("from_integer", x) if old == np.int32 and new == _FLOAT else x


_MAGNITUDE = 0x7FFFFFFF
#: Comparisons of floats, which are known where both are constants.
_COMPARED = {"eq": operator.eq, "ne": operator.ne, "lt": operator.lt, "le": operator.le}


def _abs(emit, equation, x):
    return emit("bitwise_and", x, emit.constant(_MAGNITUDE))


def _is_finite(emit, equation, x):
    return emit("integer_lt", _abs(emit, equation, x), emit.constant(_bits(np.inf, _FLOAT)))


def _extremum(name):
    def extremum(emit, equation, x, y):
        is_float = equation.invars[0].aval.dtype in _FLOATING
        return emit(name if is_float else f"integer_{name}", x, y)

    return extremum


def _clamp(emit, equation, low, x, high):
    return _extremum("min")(emit, equation, _extremum("max")(emit, equation, low, x), high)


def _plain(name: str):
    return lambda emit, equation, *operands: emit(name, *operands)


def _same(emit, equation, x):
    return x


def _integer_div(emit, equation, x, y):
    is_unsigned = equation.outvars[0].aval.dtype == np.uint32
    return emit("unsigned_div" if is_unsigned else "integer_div", x, y)


def _integer_rem(emit, equation, x, y):
    return emit("integer_sub", x, emit("integer_mul", _integer_div(emit, equation, x, y), y))


def _round(emit, equation, x):
    to_even = equation.params["rounding_method"] == lax.RoundingMethod.TO_NEAREST_EVEN
    return emit("round_even" if to_even else "round_away", x)


def _integer_neg(emit, equation, x):
    return emit("integer_sub", emit.constant(0), x)


def _integer_abs(emit, equation, x):
    return emit("integer_max", x, _integer_neg(emit, equation, x))


def _integer_sign(emit, equation, x):
    if equation.outvars[0].aval.dtype == np.uint32:  # 1 but for 0
        return emit("bitwise_and", _ne(emit, equation, x, emit.constant(0)), emit.constant(1))
    return emit("integer_max", emit("integer_min", x, emit.constant(1)), emit.constant(-1))


_Function = Callable[..., int]


def _graph(body) -> _Function:
    """A function of two float32 numbers that is a graph of other operations."""

    @functools.cache
    def traced():
        with staged():
            jaxpr = jax.make_jaxpr(body)(*[jax.ShapeDtypeStruct((), np.float32)] * 2)
        return open_jaxpr(jaxpr)

    def compute(emit, equation, *operands):
        jaxpr, consts = traced()
        values = dict(zip(jaxpr.invars, operands, strict=True))
        for v, value in zip(jaxpr.constvars, consts, strict=True):
            values[v] = emit.constant(_bits(value, v.aval.dtype))
        for e in jaxpr.eqns:
            taken = [
                emit.constant(_bits(v.val, v.aval.dtype)) if isinstance(v, Literal) else values[v]
                for v in e.invars
            ]
            values[e.outvars[0]] = emit.compute(e, *taken)
        return values[jaxpr.outvars[0]]

    return compute


def _zeta(s, q):
    return special.zeta(s, q, lambda terms, exponent: [pow_p.bind(x, exponent) for x in terms])


def _rounding(function: _Function, ending: str = "flush") -> _Function:
    """The function with a result that is rounded to its format where that has 16 bits."""

    def rounded(emit, equation, *operands):
        result = function(emit, equation, *operands)
        dtype = equation.outvars[0].aval.dtype
        return emit(f"round_{dtype}_{ending}", result) if dtype in HALVES else result

    return rounded


_FLOATS: dict[str, _Function] = {
    **{PREFIX + name: _rounding(_plain(name)) for name in ("canonicalize", "add", "sub", "neg")},
    PREFIX + "leave": _plain("canonicalize"),
    **{PREFIX + name: _rounding(_plain(name), "guard") for name in ("mul", "div", "sqrt")},
    PREFIX + "square": _rounding(lambda emit, equation, x: emit("mul", x, x), "guard"),
    PREFIX + "integer_pow": _rounding(_integer_pow, "guard"),
    PREFIX + "add_n": _rounding(_add_n),
    PREFIX + "convert_element_type": _rounding(_convert, "guard"),
    **{name: _plain(name) for name in ("floor", "sign")},
    **{PREFIX + name: _plain(name) for name in ("floor", "ceil")},
    PREFIX + "round": _round,
    "abs": _abs,
    "is_finite": _is_finite,
}
#: Functions that are as long as many others; the kernel has their bodies (``write_elementary.py``).
ELEMENTARY, OF_TWO = (names(in_cpp=True, arity=arity) for arity in (1, 2))
#: Functions that are not correctly rounded: Bessel functions of order 0 and 1.
SPECIAL = ("bessel_i0e", "bessel_i1e")
#: Functions that are graphs of others.
GRAPHS = {
    "zeta": _graph(_zeta),
    "polygamma": _graph(lambda n, x: special.polygamma(n, x, _zeta)),
}
#: Functions of one number that are rounded once, also to formats of 16 bits.
ROUNDED_ONCE = frozenset(("rsqrt", "one_minus_square", *ELEMENTARY))
_FLOAT32: dict[str, _Function] = {
    **{PREFIX + name: _plain(name) for name in (*ROUNDED_ONCE, *OF_TWO, *SPECIAL)},
    **{PREFIX + name: function for name, function in GRAPHS.items()},
}
#: Those whose float32 results, rounded once more to a format of 16 bits, are the same for each of
#: its 65,536 numbers (tests/kernels/test_groups.py).
ROUNDED_TWICE: dict[np.dtype, frozenset[str]] = {
    _FLOAT16: frozenset(("rsqrt", "one_minus_square", "log2", "tanh")),
    _BFLOAT16: ROUNDED_ONCE,
}
_HALVES: dict[np.dtype, dict[str, _Function]] = {
    dtype: {PREFIX + name: _rounding(_plain(name), "guard") for name in functions}
    for dtype, functions in ROUNDED_TWICE.items()
}
_INTEGERS: dict[str, _Function] = {
    **{name: _plain(f"integer_{name}") for name in ("add", "sub", "mul")},
    **{name: _plain(f"bitwise_{name}") for name in ("and", "or", "xor", "not")},
    **{f"shift_{name}": _plain(f"shift_{name}") for name in ("left", "right_logical")},
    "shift_right_arithmetic": _plain("shift_right_arithmetic"),
    "div": _integer_div,
    "rem": _integer_rem,
    "neg": _integer_neg,
    "abs": _integer_abs,
    "sign": _integer_sign,
    "square": lambda emit, equation, x: emit("integer_mul", x, x),
    "convert_element_type": _convert,
}
_ANY: dict[str, _Function] = {
    **{name: _comparison(name) for name in ("eq", "lt", "le")},
    **{name: _comparison(other, True) for name, other in (("gt", "lt"), ("ge", "le"))},
    "ne": _ne,
    "select_n": _plain("select"),
    "max": _extremum("max"),
    "min": _extremum("min"),
    "clamp": _clamp,
}


#: Names of the primitives of which the kernel computes some.
NAMES = frozenset((*_FLOATS, *_FLOAT32, *_INTEGERS, *_ANY, PREFIX + "pow_integer"))


def function_of(equation) -> _Function | None:
    """How the kernel computes an equation, or None."""
    avals = [v.aval for v in (*equation.invars, *equation.outvars)]
    if not all(getattr(aval, "dtype", None) in _STORAGE for aval in avals):
        return None
    if avals[-1].size == 0 or len(equation.outvars) != 1 or equation.effects:
        return None
    if len(equation.invars) > MOST_PARTS:
        return None
    # Comparisons of float16, which repjax has in float32.
    name = equation.primitive.name.removeprefix(PREFIX + "exact_")
    *old, new = (aval.dtype for aval in avals)
    if name == "select_n":
        return _ANY[name] if len(old) == 3 and old[0] == _BOOL else None
    if name == "bitcast_convert_type":
        return _same if {_STORAGE[dtype] for dtype in (*old, new)} == {_WORD} else None
    if name == PREFIX + "convert_element_type":
        is_converted = old[0] in _FLOATING and new in (*_FLOATING, _BOOL, np.int32)
        from_exact = old[0] == _BOOL or (old[0] == np.int32 and new == _FLOAT)
        return _FLOATS[name] if is_converted or from_exact else None
    if name in _ANY:
        unordered = _BOOL in old and name not in ("eq", "ne")
        is_extremum = name in ("max", "min", "clamp")
        return None if unordered or (is_extremum and np.uint32 in old) else _ANY[name]
    if not {*old, new} & _FLOATING:
        return _INTEGERS.get(name)
    if name == PREFIX + "pow_integer":
        return _plain("pow_integer") if (*old, new) == (_FLOAT, np.int32, _FLOAT) else None
    return _FLOATS.get(name) or (_FLOAT32 if new == _FLOAT else _HALVES.get(new, {})).get(name)


# --- bytecode ---------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Place:
    """Where elements are: of a source, of the caller's choice, from element ``first`` on.

    ``axes`` are pairs of a size and a step.
    """

    source: Any
    axes: tuple[tuple[int, int], ...]
    first: int = 0

    @classmethod
    def along(cls, source, axes, first: int = 0) -> Place:
        return cls(source, tuple(map(tuple, axes)), first)

    def sources(self) -> list[Any]:
        return [self.source]

    def is_number(self) -> bool:
        return not self.axes

    def encode(self) -> list[int]:
        """As integers, but for the first element, which only parts of a joint have."""
        return [len(self.axes), *itertools.chain(*self.axes)]


@dataclasses.dataclass(frozen=True)
class Joint:
    """Where elements are that come from several places in turn, so many of each."""

    places: tuple[Place | Joint, ...]
    lengths: tuple[int, ...]

    def sources(self) -> list[Any]:
        return [source for place in self.places for source in place.sources()]

    def is_number(self) -> bool:
        return len(self.places) == 1 and self.places[0].is_number()

    def encode(self) -> list[int]:
        """As :meth:`Place.encode`."""
        numbers = [-len(self.places), sum(self.lengths), len(self.sources())]
        operand = 0
        for place, length in zip(self.places, self.lengths, strict=True):
            first = place.first if isinstance(place, Place) else 0
            numbers += [length, operand, first, *place.encode()]
            operand += len(place.sources())
        return numbers


class _Instruction(NamedTuple):
    """An instruction, which makes a value of others."""

    operation: str
    result: int
    operands: tuple[int, ...]
    runs: tuple[Run, ...] = ()  # of a move


class Bytecode:
    """Bytecode that is being written.

    Its values are numbers, in the order in which they are made; calling it gives that of an
    instruction, which is made once.  Where there are moves within rows, ``rows`` is how many rows
    there are, and each value has a width, the elements of a row, which follows from the size that
    was last set.
    """

    def __init__(self, rows: int | None = None):
        self.values = 0
        self.constants: dict[int, int] = {}  # bits to value
        self._bits: dict[int, int] = {}  # value to bits
        self.instructions: list[_Instruction] = []
        self._made: dict[Any, int] = {}  # what instructions make
        self._how: dict[int, tuple[str, tuple[int, ...]]] = {}  # operations and operands of values
        self.inputs: dict[Place | Joint, int] = {}
        self._storage: list[int] = []  # of inputs
        self._loaded: dict[Place | Joint, int] = {}  # inputs as numbers
        self._canonical: dict[Place | Joint, int] = {}  # and made canonical
        #: Of these, those of float32: halves keep their NaNs until they are stored.
        self._canonical_floats: set[int] = set()
        self._rows = rows
        self._width = 0
        self._widths: dict[int, int] = {}  # of values
        self._slices: dict[int, tuple[int, Run]] = {}  # values to what they are parts of

    def set_size(self, size: int) -> None:
        """Of what is read or computed from now on."""
        self._width = max(1, size // self._rows) if self._rows else 0

    def _value(self) -> int:
        self._widths[self.values] = self._width
        self.values += 1
        return self.values - 1

    def __call__(self, operation: str, *operands: int) -> int:
        known = self._known(operation, operands)
        return self._instruction(operation, operands) if known is None else known

    def _known(self, operation: str, operands: tuple[int, ...]) -> int | None:
        """The value of an instruction that need not be, for operands that are canonical.

        Scatter-adds to zeros, as of gradients, are what is added; softplus of x and of -x, as a
        cross-entropy of two classes has them, have an exponential and a logarithm in common; a sum
        of two selections that are zero in turn, as in the gradient of a magnitude, is one.  Where
        values have widths, none becomes a constant, which has that of its first use.
        """
        x, y = (operands * 2)[:2]
        if operation == "canonicalize":
            return x if x in self._canonical_floats else None
        if operation == "add" and self._bits.get(x) == 0:
            return y
        if operation in ("add", "sub") and self._bits.get(y) == 0:
            return x
        if operation == "neg" and self._bits.get(x) == 0:
            return x
        if operation in ("add", "neg") and not self._rows:
            selected = self._of_selections(operation, operands)
            if selected is not None:
                return selected
        if operation == "select":
            if x in self._bits and not self._rows:
                return operands[1 if self._bits[x] == 0 else 2]
            return operands[1] if operands[1] == operands[2] else None
        if operation in _COMPARED and x in self._bits and y in self._bits and not self._rows:
            numbers = np.asarray([self._bits[x], self._bits[y]], np.int32).view(_FLOAT)
            return self.constant(-int(_COMPARED[operation](*numbers)))
        made_by, (inner, *_) = self._how.get(x, ("", (x,)))
        if made_by != "neg":
            return None
        if operation == "neg":
            return inner
        if operation == "ne" and x == y:  # whether it is a NaN
            return self("ne", inner, inner)
        is_magnitude = operation == "bitwise_and" and self._bits.get(y) == _MAGNITUDE
        return self("bitwise_and", inner, y) if is_magnitude else None

    def _of_selections(self, operation: str, operands: tuple[int, ...]) -> int | None:
        """A sum or negative of what the same choice selects, as what it selects of sums or
        negatives, where these are nothing to compute but for one negative."""
        made_by, made_of = zip(*(self._how.get(v, ("", ())) for v in operands), strict=True)
        if {*made_by} != {"select"} or len({choice for choice, *_ in made_of}) > 1:
            return None
        (choice, *_), sides = made_of[0], [*zip(*made_of, strict=True)][1:]
        zeros = [any(self._bits.get(v) == 0 for v in side) for side in sides]
        if not (all(zeros) if operation == "add" else any(zeros)):
            return None
        return self("select", choice, *(self(operation, *side) for side in sides))

    def move(self, move: RowMove, operands: Sequence[int]) -> int:
        """A move within rows, of its equation's operands; what is a slice is read where it was."""
        values, runs = [], []
        for run in move.runs:
            x = operands[run.operand]
            source, part = self._slices.get(x, (x, None))
            if part is not None and part.to_row == run.row:
                x = source
                run = dataclasses.replace(run, row=part.row, first=part.first + run.first)
            values.append(x)
            runs.append(run)
        result = self._instruction("move", tuple(values), tuple(runs))
        if len(runs) == 1:
            self._slices[result] = values[0], runs[0]
        return result

    def _instruction(self, operation: str, operands: tuple[int, ...], runs=()) -> int:
        key = operation, operands, runs, self._width
        if key not in self._made:
            self._made[key] = self._value()
            self._how[self._made[key]] = operation, operands
            self.instructions.append(_Instruction(operation, self._made[key], operands, runs))
        return self._made[key]

    def constant(self, bits: int) -> int:
        bits = (bits + (1 << 31)) % (1 << 32) - (1 << 31)
        if bits not in self.constants:
            self.constants[bits] = self._value()
            self._bits[self.constants[bits]] = bits
        return self.constants[bits]

    def number(self, value, dtype) -> int:
        return self.constant(_bits(value, dtype))

    def read(self, place: Place | Joint, dtype, canonical: bool = False) -> int:
        """The elements of an input, of this type in memory."""
        if place not in self.inputs:
            self.inputs[place] = self._loaded[place] = self._value()
            self._storage.append(_STORAGE[dtype])
            if dtype in HALVES:
                self._loaded[place] = self(f"widen_{dtype}", self.inputs[place])
        if not canonical:
            return self._loaded[place]
        if place not in self._canonical:
            name = f"round_{dtype}_flush" if dtype in HALVES else "canonicalize"
            value = self._canonical[place] = self(name, self._loaded[place])
            if name == "canonicalize":
                self._canonical_floats.add(value)
        return self._canonical[place]

    def sources(self) -> list[Any]:
        """What the kernel takes, in this order."""
        return [source for place in self.inputs for source in place.sources()]

    def _stored(self, value: int, storage: int) -> int:
        """The storage and the width of an input or output."""
        return storage + _STORAGES * self._widths[value]

    def compute(self, equation, *operands: int) -> int:
        return function_of(equation)(self, equation, *operands)

    def _copy(self, value: int) -> int:
        self.instructions.append(_Instruction("bitwise_or", self._value(), (value, value)))
        return self.instructions[-1].result

    def _finish_results(self, outputs: Sequence[int]) -> None:
        """Make each output canonical where it is made, which the kernel does at once."""
        ends = {
            x.operands[0]: x
            for x in self.instructions
            if x.operation == "canonicalize" and x.result in outputs
        }
        made = {x.result for x in self.instructions}
        moved = {x.result for value, x in ends.items() if value in made}  # not those of inputs
        instructions: list[_Instruction] = []
        for x in self.instructions:
            following = None if x.result in moved else x
            while following is not None:  # of a result another one may be made
                instructions.append(following)
                following = ends.get(following.result)
        self.instructions = instructions

    def _ending(self) -> dict[int, list[int]]:
        """The values that are needed no more after each instruction.

        What a number chooses from is needed as long as the result, which is one of them.
        """
        numbers = {value for place, value in self.inputs.items() if place.is_number()}
        last = {x: i for i, of in enumerate(self.instructions) for x in of.operands}
        for i, x in reversed([*enumerate(self.instructions)]):
            if x.operation == "select" and x.operands[0] in numbers:
                end = last.get(x.result, i)
                last.update((y, max(last[y], end)) for y in x.operands[1:])
        ending = collections.defaultdict(list)
        for value, i in last.items():
            ending[i].append(value)
        return ending

    def encode(self, size: int, results: Iterable[tuple[Sequence[int], Any]]) -> list[int]:
        """The bytecode for so many elements; its results are values, with their types in memory.

        One value each, of complex numbers the real and the imaginary parts.
        """
        outputs: list[int] = []
        storage: list[int] = []
        for values, dtype in results:
            kinds = (_REAL, _IMAGINARY) if len(values) == 2 else (_STORAGE[dtype],)
            for value, kind in zip(values, kinds, strict=True):
                self._width = self._widths[value]
                if dtype in HALVES:
                    value = self(f"narrow_{dtype}", value)
                if value in (*self.inputs.values(), *self.constants.values(), *outputs):
                    value = self._copy(value)
                outputs.append(value)
                storage.append(self._stored(value, kind))

        fixed = [*self.inputs.values(), *outputs, *self.constants.values()]
        registers = {value: i for i, value in enumerate(fixed)}
        needed = {*outputs}  # others have been read or computed in another way
        for x in reversed(self.instructions):
            if x.result in needed:
                needed.update(x.operands)
        self.instructions = [x for x in self.instructions if x.result in needed]
        self._finish_results(outputs)
        ending = self._ending()
        free: set[int] = set()
        instructions, count, width = [], len(fixed), 0
        numbers = library.operations()
        for i, (name, result, operands, runs) in enumerate(self.instructions):
            read_from = [registers[x] for x in operands]
            done = {registers[x] for x in ending[i] if registers[x] >= len(fixed)}
            if not runs:  # a move may not write what it still reads
                free |= done
            if result not in registers:
                if not free:
                    free.add(count)
                    count += 1
                registers[result] = free.pop()
            if width != self._widths[result]:
                width = self._widths[result]
                instructions += [numbers["width"], width, size // self._rows, 0, 0]
            if runs:
                for run, source in zip(runs, read_from, strict=True):
                    instructions += [numbers["runs"], run.length, run.row, run.to_row, 0]
                    instructions += [numbers[name], registers[result], source, run.first, run.at]
                free |= done
                continue
            *held, a, b, c = read_from if len(read_from) > 3 else (read_from * 3)[:3]
            for x in held:
                instructions += [numbers["hold"], registers[result], x, x, x]
            instructions += [numbers[name], registers[result], a, b, c]

        pairs = zip(self._storage, self.inputs.items(), strict=True)
        inputs = [[self._stored(x, kind), *place.encode()] for kind, (place, x) in pairs]
        constants = [[registers[value], bits] for bits, value in self.constants.items()]
        encoded = [
            *(size, len(inputs), len(outputs)),
            *(len(constants), len(instructions) // 5, count),
            *(x for numbers in inputs for x in numbers),
            *storage,
            *(x for numbers in constants for x in numbers),
            *instructions,
        ]
        return [*map(int, encoded)]
