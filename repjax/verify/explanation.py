"""Why has this bit this value?  The way of one element of a result: ``repjax.explain``.

The program is computed equation by equation (:mod:`repjax.verify.walk`).  The element is followed
through what only moves values, such as a transposition, to the equation that computed it; then to
those that computed what this one read.  Each is computed once more by the independent reference
(:mod:`repjax.verify.reference`) from the operands that it had.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import functools
import itertools
import linecache
import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from repjax import config
from repjax.digests import names, show
from repjax.primitives.core import tables
from repjax.primitives.core.tables import RefusedError
from repjax.primitives.cpu import library
from repjax.verify import definitions, recomputation, reference, settings, traces, walk
from repjax.verify.progress import counter
from repjax.verify.reference.movement import CONTROLS, MOVEMENT

DEPTH = 2


class ExplanationError(ValueError):
    """What cannot be explained."""


Index = tuple[int, ...]


@dataclasses.dataclass(frozen=True)
class Operand:
    """What an equation read of one of its operands for the element.

    Attributes:
      text: the values, as bits and as numbers.
      source: where they come from: an explanation, or the words for what was not computed.
    """

    text: str
    source: Element | str


@dataclasses.dataclass(frozen=True)
class Element:
    """One element of what an equation gives.

    Attributes:
      place, primitive, line: as in a trace; ``code`` is the text of the line.
      index: of the element in the equation's result, whose type is ``kind``.
      moved: what moved the element from there to where it was asked for, the last first.
      value: its bits and its number.
      section: of docs/numerics.md, which states it as ``formula``; ``body`` is the file and line
        of what computes that.
      computed: what computes it here, and why that.
      operands: what it was made of.
      reference: the bits and the number that the reference gives, or None.
      reason: why there is no reference.
      plain: whether it was computed by plain JAX.
    """

    place: str
    primitive: str
    line: str
    code: str
    index: Index
    kind: str
    moved: tuple[str, ...]
    value: str
    section: int
    formula: str
    body: str | None
    computed: str
    operands: tuple[Operand, ...]
    reference: str | None
    reason: str
    plain: bool

    @property
    def agrees(self) -> bool | None:
        """Whether the reference gives the same bits; None where there is none."""
        return None if self.reference is None else self.reference == self.value

    @property
    def verdict(self) -> str:
        if self.reference is None:
            return f"no reference: {self.reason}"
        if self.agrees:
            return f"reference {self.reference}: the same bits"
        other = "not the contract's bits" if self.plain else "OTHER BITS"
        return f"reference {self.reference}: {other}"


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The way of one element; its text is :func:`str` of it.

    Attributes:
      output, index: the result of the function, and the element in it.
      value: its bits and its number.
      source: the equation that it comes from.
    """

    output: str
    index: Index
    value: str
    source: Element

    @property
    def elements(self) -> list[Element]:
        """All that are explained, the first one first."""
        found, left = [], [self.source]
        while left:
            found.append(x := left.pop(0))
            left += [y.source for y in x.operands if isinstance(y.source, Element)]
        return found

    @property
    def agrees(self) -> bool:
        """Whether the reference agrees wherever there is one."""
        return all(x.agrees is not False for x in self.elements)

    def __str__(self) -> str:
        where = f"{self.output}{list(self.index)}" if self.index else self.output
        return "\n".join([f"{where} = {self.value}", *_lines(self.source)])


def _lines(x: Element) -> list[str]:
    """The first one, in full, and below it what it was made of."""
    lines = [*_moved(x), _head(x)]
    lines += [f"    {x.code}"] if x.code else []
    formula = [f"  gives     {x.formula}"] if x.formula else []
    body = [f"  body      {x.body}"] if x.body else []
    lines += [
        *formula,
        f"  defined   docs/numerics.md#{definitions.anchor(x.section)}",
        *body,
        f"  computed  {x.computed}",
    ]
    lines += [f"  operand   {y.text}" for y in x.operands]
    lines += [f"  value     {x.value}", f"  {x.verdict}"]
    return lines + [line for y in x.operands for line in _below(y, "  ", x.code)]


def _head(x: Element) -> str:
    element = f", its element {list(x.index)}" if x.index else ""
    return f"{x.place} {x.primitive} {x.kind}{element}, at {x.line}"


def _moved(x: Element) -> list[str]:
    return [f"moved by {', '.join(x.moved)}, from"] if x.moved else []


def _below(operand: Operand, indent: str, above: str) -> list[str]:
    """An equation above another one, whose line is shown if it is not ``above``."""
    x = operand.source
    if isinstance(x, str):
        return []
    moved = f" (moved by {', '.join(x.moved)})" if x.moved else ""
    lines = [
        f"{indent}from {_head(x)}{moved}",
        f"{indent}  {x.code}" if x.code not in ("", above) else "",
        *(f"{indent}  operand {y.text}" for y in x.operands),
        f"{indent}  gives {x.value}; {x.verdict}",
    ]
    inner = [line for y in x.operands for line in _below(y, indent + "  ", x.code)]
    return [line for line in lines if line] + inner


# --- values as text ---------------------------------------------------------------------


def _kind(x) -> str:
    return f"{x.dtype.name}[{','.join(map(str, x.shape))}]"


def _show(x) -> str:
    """The bits of one element, and its number."""
    x = np.asarray(x)
    if x.dtype.kind == "b":
        return str(bool(x))
    if x.dtype.kind == "c":
        return f"{_show(x.real)} + i {_show(x.imag)}"
    if x.dtype.itemsize == 8 and x.dtype.kind == "V":
        return "the key " + " ".join(f"0x{int(w):08x}" for w in reference.words(x.reshape(1))[0])
    word = np.dtype(f"u{x.dtype.itemsize}")
    bits = int(np.ascontiguousarray(x).reshape(1).view(word)[0])
    number = x.astype(np.float32) if x.dtype in reference.values.HALVES else x
    return f"0x{bits:0{2 * word.itemsize}x} ({number[()]!s})"


# --- the program ------------------------------------------------------------------------


class _Program:
    """A program that was computed, and where each of its arrays comes from."""

    def __init__(self, found: walk.Program, progress: Callable[[int], None] | None = None):
        self.found = found
        self.moves = walk.Moves()
        self.steps: list[walk.Step] = []
        #: By the identity of an array: the steps that gave it, and as which result.
        self.givers: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
        walking = walk.steps(found, self.moves)
        while True:
            try:
                step = next(walking)
            except StopIteration as end:
                self.results = end.value
                break
            for number, x in enumerate(step.results):
                self.givers[id(x)].append((len(self.steps), number))
            self.steps.append(step)
            if progress:
                progress(len(self.steps))
        self.inputs = {id(x): place for place, x in found.inputs.items()}

    def giver(self, x, before: int) -> tuple[int, int] | None:
        """The last step before one that gave an array: some give what they were given."""
        known = [pair for pair in self.givers.get(id(x), ()) if pair[0] < before]
        return known[-1] if known else None

    def explain(self, x, index: Index, before: int, depth: int, moved=()) -> Element | str:
        """Where an element comes from."""
        if (giver := self.giver(x, before)) is not None:
            number, result = giver
            step = self.steps[number]
            asked = _Asked(step)
            if asked.moves:
                return self._through(asked, number, result, index, depth, moved)
            return self._computed(asked, number, result, index, depth, moved)
        if id(x) in self.inputs:
            place = self.inputs[id(x)]
            return f"the {'' if place.startswith('constant') else 'argument '}{place}{_at(index)}"
        if id(x) in self.moves.entries:
            _, given = self.moves.entries[id(x)]
            return self.explain(given, index, before, depth, moved)
        if id(x) in self.moves.slices:
            _, whole, i = self.moves.slices[id(x)]
            return self.explain(whole, (i, *index), before, depth, moved)
        if id(x) in self.moves.stacks:
            _, parts = self.moves.stacks[id(x)]
            return self.explain(parts[index[0]], index[1:], before, depth, moved)
        return "a constant of the program" if index else "a number in the program"

    def _through(self, asked, number: int, result: int, index: Index, depth, moved):
        """Follow an element through what moves it."""
        step = self.steps[number]
        at = asked.origin(index, result)
        primitive = step.equation.primitive.name
        if at is None:
            return f"what {primitive} ({step.place}) fills in"
        operand, position = at
        x = step.operands[operand]
        return self.explain(x, position, number, depth, (*moved, f"{primitive} ({step.place})"))

    def _computed(self, asked, number: int, result: int, index: Index, depth, moved):
        step = self.steps[number]
        equation = step.equation
        if depth < 0:
            return f"from {step.place} {equation.primitive.name}"
        value = _show(recomputation.as_numpy(step.results[result])[index])
        try:
            again, reason = _show(asked.recompute(index, result)), ""
        except reference.NoReference as error:
            again, reason = None, str(error)
        line, code = self._line(number)
        orders = step.orders or recomputation.DEFAULT_ORDERS
        body = definitions.body_of(equation, orders)
        return Element(
            place=step.place,
            primitive=equation.primitive.name,
            line=line,
            code=code,
            index=index,
            kind=_kind(step.results[result]),
            moved=tuple(moved),
            value=value,
            section=definitions.section_of(equation),
            formula=definitions.formula_of(equation, orders),
            body=body,
            computed=computed_here(step, body),
            operands=tuple(self._operands(asked, number, index, result, depth)),
            reference=again,
            reason=reason,
            plain=step.orders is None,
        )

    def _line(self, number: int) -> tuple[str, str]:
        """The line of a step and its text; of what it reads, where JAX has not kept its own."""
        left, seen = [number], {number}
        while left:
            at = left.pop(0)
            if (source := traces.source(self.steps[at])) != traces.UNKNOWN:
                line = traces.line(self.steps[at])
                shown = line if at == number else f"{traces.UNKNOWN} that reads from {line}"
                return shown, _code(source)
            givers = (self.giver(x, at) for x in self.steps[at].operands)
            above = {pair[0] for pair in givers if pair} - seen
            seen |= above
            left += sorted(above, reverse=True)
        return traces.UNKNOWN, ""

    def _operands(self, asked, number: int, index: Index, result: int, depth: int):
        step = self.steps[number]
        for x, positions in zip(step.operands, asked.reads(index, result), strict=True):
            flat = recomputation.as_numpy(x).reshape(-1)
            if positions is None:
                yield Operand(f"all of {_kind(x)}", "")
                continue
            inside = positions[positions >= 0]
            if not len(inside):
                yield Operand(f"nothing of {_kind(x)}", "")
                continue
            first = tuple(int(i) for i in np.unravel_index(inside[0], x.shape))
            source = self.explain(x, first, number, depth - 1)
            origin = source if isinstance(source, str) else f"from {source.place}"
            text = asked.terms(flat, positions)
            if len(positions) == 1:
                text += f", element {list(first)} of {_kind(x)}" if first else ""
            else:
                text += f", of {_kind(x)}"
                origin = f"the first is {origin}"
            yield Operand(f"{text}, {origin}", source)


def _at(index: Index) -> str:
    return str(list(index)) if index else ""


@functools.cache
def _code(place: str) -> str:
    """The text of a line, where the file is here."""
    found = re.match(r"(.+?):(\d+)", place)
    return linecache.getline(found[1], int(found[2])).strip() if found else ""


class _Asked:
    """A step as the reference takes it, and what one element of it is made of."""

    def __init__(self, step: walk.Step):
        self.step = step
        self.arguments = recomputation.asked(step)
        self.name = reference.short(self.arguments["primitive"])

    @property
    def moves(self) -> bool:
        return self.name in MOVEMENT

    def recompute(self, index: Index, result: int) -> np.ndarray:
        return recomputation.recompute_element(self.step, index, result)

    def _positions(self) -> tuple[reference.Operation, list[int]]:
        """The operation of positions in place of values, counted from 1 over all operands, and
        where those of each operand begin."""
        operands, starts, count = [], [], 1
        controls = CONTROLS.get(self.name, lambda n: ())(len(self.step.operands))
        for i, x in enumerate(self.arguments["operands"]):
            starts.append(count)
            if i in controls:
                operands.append(x)
                continue
            operands.append(np.arange(count, count + x.size).reshape(x.shape))
            count += x.size
        params = self.arguments["params"]
        if "fill_value" in params:
            params = {**params, "fill_value": 0}
        results = [("int64", shape) for _, shape in self.arguments["results"]]
        asked = {**self.arguments, "operands": operands, "params": params, "results": results}
        return reference.operation(**asked), [*starts, count]

    def origin(self, index: Index, result: int) -> tuple[int, Index] | None:
        """The operand and the element of it that is moved to this one, if one is."""
        operation, starts = self._positions()
        position = int(reference.call(operation)[result][index])
        controls = CONTROLS.get(self.name, lambda n: ())(len(self.step.operands))
        for i, (low, high) in enumerate(itertools.pairwise(starts)):
            if i not in controls and low <= position < high:
                shape = self.step.operands[i].shape
                found = np.unravel_index(position - low, shape) if shape else ()
                return i, tuple(int(k) for k in found)
        return None

    def reads(self, index: Index, result: int) -> list[np.ndarray | None]:
        """For each operand, the flat positions that are read in their order, -1 for padding; None
        for all of it."""
        if self.name not in reference.PARTS:
            return [None for _ in self.step.operands]
        operation, starts = self._positions()
        part, _ = reference.PARTS[self.name](operation, index, result)
        controls = CONTROLS.get(self.name, lambda n: ())(len(self.step.operands))
        found: list[np.ndarray | None] = []
        for i, x in enumerate(part.operands):
            flat = np.asarray(x).reshape(-1)
            low, high = starts[i], starts[i + 1]
            found.append(
                None
                if i in controls
                else np.where((flat >= low) & (flat < high), flat - low, -1).astype(np.int64)
            )
        return found

    def terms(self, flat: np.ndarray, positions: np.ndarray) -> str:
        """The values that are read, the first and the last ones of many."""

        def one(p):
            return _show(flat[p]) if p >= 0 else "+0 (padding)"

        if len(positions) <= 3:
            return ", ".join(map(one, positions))
        text = f"{len(positions)} terms: {one(positions[0])}, {one(positions[1])}, ..., "
        text += one(positions[-1])
        return text + self.halves(flat, positions)

    def halves(self, flat: np.ndarray, positions: np.ndarray) -> str:
        """For a pairwise sum, what its two last sums are."""
        order = self.arguments["params"].get("accumulation") or self.arguments["accumulation"]
        if self.name != "reduce_sum" or order != "pairwise" or flat.dtype != np.float32:
            return ""
        half = 1 << ((len(positions) - 1).bit_length() - 1)
        terms = reference.values.canonical(flat[positions])
        padded = np.concatenate([terms, np.zeros(2 * half - len(terms), np.float32)])
        # The tree adds the second half to the first, so that the last two are those of even and
        # odd positions.
        both = (reference.sums.reduced(padded[i::2], (0,), "pairwise") for i in range(2))
        return f"; the last two sums {' and '.join(map(_show, both))}"


# --- what computes it -------------------------------------------------------------------


#: The C++ kernel of groups of elementwise operations, by which values enter a program, too.
_ELEMENTWISE = "repjax_elementwise"
#: Names of platforms in the table of kernels, by JAX's.
_PLATFORMS = {"gpu": "cuda"}


def computed_here(step: walk.Step, body: str | None) -> str:
    """What computes an equation on this machine, and why that."""
    platform = jax.default_backend()
    if step.orders is None:
        refused = tables.ADVICE.get(step.equation.primitive.name)
        more = f"; repjax refuses it: {refused}" if refused else ""
        return f"XLA's {platform} code, which plain JAX has; repjax is off here{more}"
    calls = _calls(step)
    name = reference.short(step.equation.primitive.name)
    instruction_set, why_not = library.in_use()
    in_groups = definitions.in_groups(name)
    if calls == [_ELEMENTWISE] and in_groups:
        return (
            f"repjax's C++ kernel {_ELEMENTWISE} for {instruction_set}, whose bytecode has it, "
            "with the elementwise operations around it"
        )
    if calls := [x for x in calls if x != _ELEMENTWISE]:
        code = f"C++ kernel {', '.join(calls)} for {instruction_set}"
        code = code if platform == "cpu" else f"kernel {', '.join(calls)}"
        return f"repjax's {code}, which primitives/kernels.py has for this primitive"
    known = definitions.primitive_of(step.equation)
    if known is None and definitions.is_exact(step.equation):
        return f"XLA's {platform} code, since the operation is exact"
    if known is None:
        return f"XLA, which compiles the operations that its rule states: {body}"
    if platform == "cpu" and instruction_set is None:
        return f"XLA, which compiles the body, since there is no C++ kernel: {why_not}"
    if tables.KERNELS[_PLATFORMS.get(platform, platform)](known) is not None:
        return "XLA, which compiles what primitives/kernels.py has in place of the body"
    return "XLA, which compiles the body, since primitives/kernels.py has no kernel for it here"


def _calls(step: walk.Step) -> list[str]:
    """The kernels that the equation, compiled by itself, calls."""
    accumulation, contraction = step.orders
    with config.enabled(accumulation=accumulation, contraction=contraction):
        try:
            lowered = jax.jit(lambda *xs: walk.bind(step.equation, xs)).lower(*step.operands)
        except (RefusedError, TypeError, ValueError, NotImplementedError):
            return []
    found = re.findall(r"custom_call @(repjax_\w+)", lowered.as_text())
    return [*dict.fromkeys(found)]


# --- the interface ----------------------------------------------------------------------


def explain(
    fn: Callable[..., Any],
    *args: Any,
    output: str | int | None = None,
    index: int | Sequence[int] | None = None,
    depth: int = DEPTH,
    **kwargs: Any,
) -> Explanation:
    """Why one element of what a function gives has its bits.

    ``print(repjax.explain(f, x))`` shows for the element the equation that computed it, the line of
    the source, the section of docs/numerics.md that defines the operation, the file of what
    computes it, which kernel or compiled code that is here, the operands' bits, and what the
    independent reference (:mod:`repjax.verify.reference`) computes from them; and likewise, more
    briefly, for the equations that gave the operands.

    Functions of :func:`repjax.reproducible` in it, or all under the switch, are explained as repjax
    computes them, the rest as plain JAX does: the reference then shows where plain JAX has other
    bits than the contract.

    Args:
      fn: a function of trees of arrays, or of none.
      *args, **kwargs: its arguments.
      output: the path of a result, such as ``"0/w"``, or its number; the first one if None.
      index: of the element in it, one number for each dimension; the first one if None.
      depth: how many equations up from the first one.

    Raises:
      ExplanationError: no such result or element, or it was not computed; an argument is no array.
      RefusedError: an operation that has no reproducible form.
    """
    _check_arguments(args, kwargs)
    return explain_program(walk.program(fn, args, kwargs), output, index, depth)


def _check_arguments(args, kwargs) -> None:
    for path, x in jax.tree_util.tree_flatten_with_path((args, kwargs))[0]:
        try:
            jax.numpy.asarray(x)
        except TypeError as error:
            name = show(names(path)[1:])
            raise ExplanationError(
                f"explain: expected arrays as arguments, received {type(x).__name__} as {name}; "
                "give the function what is no array by functools.partial"
            ) from error


def explain_program(
    found: walk.Program,
    output: str | int | None = None,
    index: int | Sequence[int] | None = None,
    depth: int = DEPTH,
    progress: Callable[[int], None] | None = None,
) -> Explanation:
    """:func:`explain` of a program."""
    if depth < 0:
        raise ExplanationError(f"explain: expected a depth from 0 on, received {depth}")
    number = _output(found.results, output)
    at = _index(found.jaxpr.outvars[number].aval.shape, index)
    program = _Program(found, progress)
    x, name = program.results[number], found.results[number]
    shown = "the result" if name == "the root" else name
    source = program.explain(x, at, len(program.steps), depth)
    if isinstance(source, str):
        raise ExplanationError(
            f"{shown}{_at(at)}: expected an element that an equation computed, received {source}, "
            f"as it is: {_show(recomputation.as_numpy(x)[at])}"
        )
    return Explanation(shown, at, _show(recomputation.as_numpy(x)[at]), source)


def _output(results: list[str], output: str | int | None) -> int:
    if not results:
        raise ExplanationError("explain: expected a function with a result, received one without")
    if output is None:
        return 0
    if isinstance(output, int) and -len(results) <= output < len(results):
        return output % len(results)
    if output in results:
        return results.index(output)
    names = ", ".join(results[:8]) + (", ..." if len(results) > 8 else "")
    raise ExplanationError(
        f"explain: expected a result among {names} or a number below {len(results)}, received "
        f"{output!r}"
    )


def _index(shape: Sequence[int], index: int | Sequence[int] | None) -> Index:
    if 0 in shape:
        raise ExplanationError(f"explain: expected a result with elements, received {[*shape]}")
    given = (0,) * len(shape) if index is None else index
    given = (given,) if isinstance(given, int) else tuple(given)
    inside = len(given) == len(shape) and all(
        -n <= i < n for i, n in zip(given, shape, strict=False)
    )
    if not inside:
        raise ExplanationError(
            f"explain: expected an index into the shape {[*shape]}, received {[*given]}"
        )
    return tuple(int(i) % n for i, n in zip(given, shape, strict=True))


# --- the command ------------------------------------------------------------------------


def add_command(commands) -> None:
    parser = commands.add_parser(
        "explain",
        help="why has this bit this value?",
        description="Show how one element of what a function without arguments of a script gives, "
        "or a step of a repjax.verify.Training, comes about, and compute its operations once more "
        "by the independent reference.  Exit status: 0 the reference has the same bits wherever "
        "there is one, 1 it has others, 2 the request cannot be met.",
        epilog="examples: repjax explain train.py:main --output 0/w --index 0,3; "
        "repjax explain train.py:training --step 1 --repjax",
    )
    parser.add_argument("program", metavar="SCRIPT:NAME", help="such as train.py:main")
    parser.add_argument("--output", metavar="PATH", help="of a result; the default is the first")
    parser.add_argument("--index", metavar="0,3", help="of an element; the default is the first")
    parser.add_argument("--depth", type=int, default=DEPTH, help="equations up from the first one")
    parser.add_argument("--step", type=int, default=1, help="of a training; 0: its initial state")
    parser.add_argument("--from", dest="run_of", metavar="RUN", help="a log with the state before")
    settings.add_options(parser)
    parser.set_defaults(run=run, level="equation", inputs=None)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings.enable(arguments)
        index = _parsed(arguments.index)
        output = arguments.output
        with contextlib.redirect_stdout(sys.stderr):  # what is the script's
            program = traces.program_of(arguments)
            if output is not None and output not in program.results and output.isdecimal():
                output = int(output)
            with counter("equations") as progress:
                found = explain_program(program, output, index, arguments.depth, progress)
    except (OSError, ValueError, RefusedError) as error:
        print(f"repjax explain: {str(error).removeprefix('explain: ')}", file=sys.stderr)
        return 2
    print(found)
    return 0 if found.agrees else 1


def _parsed(index: str | None) -> Index | None:
    if index is None:
        return None
    try:
        return tuple(int(i) for i in index.strip("[]()").split(",") if i.strip())
    except ValueError as error:
        raise ExplanationError(
            f"--index: expected numbers with commas, such as 0,3, received {index!r}"
        ) from error
