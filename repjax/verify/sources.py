"""Where the operands of each equation of a program come from, without computing any of them.

Places and numbers are those of :func:`repjax.verify.walk.steps`.  So whoever knows the program can
say which values an equation has to read, before it knows what they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from repjax.verify import walk


@dataclasses.dataclass(frozen=True)
class Source:
    """Where a value comes from; subclasses say it."""

    shape: tuple[int, ...]
    dtype: Any


@dataclasses.dataclass(frozen=True)
class Input(Source):
    """An argument of the program, or an array that it holds, by its name."""

    name: str


@dataclasses.dataclass(frozen=True)
class Constant(Source):
    """A literal of the program, or an array that a part of it holds."""

    value: Any = dataclasses.field(compare=False)


@dataclasses.dataclass(frozen=True)
class Result(Source):
    """Result ``number`` of the equation that is computed as the ``index``-th."""

    index: int
    number: int


@dataclasses.dataclass(frozen=True)
class Canonical(Source):
    """What a reproducible function makes of an argument."""

    source: Source


@dataclasses.dataclass(frozen=True)
class Element(Source):
    """What a loop reads in an iteration: element ``index`` along the first axis."""

    source: Source
    index: int


@dataclasses.dataclass(frozen=True)
class Stack(Source):
    """What a loop gives of all iterations, along a new first axis."""

    sources: tuple[Source, ...]


def steps(found: walk.Program, number: Callable[[Source], int]) -> Iterator[walk.Step]:
    """The steps of a program, whose operands and results are sources; its results' sources are the
    generator's value.

    Args:
      found: the program; its inputs may be shapes.
      number: gives the scalar that a branch or the end of a loop depends on.
    """
    inputs = [Input(x.shape, x.dtype, name) for name, x in found.inputs.items()]
    return (yield from _Sources(number).jaxpr(found.jaxpr, (), inputs, ""))


class _Sources(walk.Walk):
    def __init__(self, number: Callable[[Source], int]):
        super().__init__()
        self._number = number
        self._count = 0

    def compute(self, equation, operands) -> list[Source]:
        index, self._count = self._count, self._count + 1
        kinds = [v.aval for v in equation.outvars]
        return [Result(x.shape, x.dtype, index, i) for i, x in enumerate(kinds)]

    def constant(self, x) -> Source:
        return Constant(x.shape, x.dtype, x)

    def number(self, x: Source) -> int:
        return int(np.asarray(x.value)) if isinstance(x, Constant) else self._number(x)

    def entry(self, x: Source) -> Source:
        return Canonical(x.shape, x.dtype, x)

    def element(self, x: Source, i: int) -> Source:
        return Element(x.shape[1:], x.dtype, x, i)

    def stack(self, xs) -> Source:
        first = xs[0]
        return Stack((len(xs), *first.shape), first.dtype, tuple(xs))
