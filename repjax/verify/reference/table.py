"""An operation to compute, and the table of what computes it.

A reference is a function of an :class:`Operation` that gives its results.  It is entered by
:func:`of`, which knows how narrow formats are computed: see docs/numerics.md, section 11.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from repjax.verify.reference import values

PREFIX = "repjax_"
Result = tuple[str, tuple[int, ...]]


class NoReference(ValueError):
    """An operation that cannot be computed independently."""


def short(name: str) -> str:
    """A primitive's name, without what repjax puts in front of its own."""
    return name.removeprefix(PREFIX).removeprefix("exact_")


@dataclasses.dataclass(frozen=True)
class Operation:
    """An operation.

    Attributes:
      name: of the primitive, without the prefix of repjax.
      operands: canonical.
      params: of the equation.
      results: the types of what it gives.
      accumulation, contraction: the orders of sums and of products.
    """

    name: str
    operands: tuple[np.ndarray, ...]
    params: Mapping[str, Any]
    results: tuple[tuple[np.dtype, tuple[int, ...]], ...]
    accumulation: str = "pairwise"
    contraction: str = "sequential"

    @property
    def dtype(self) -> np.dtype:
        """Of the first result."""
        return self.results[0][0]

    @property
    def shape(self) -> tuple[int, ...]:
        return self.results[0][1]

    @property
    def is_complex(self) -> bool:
        return any(d.kind == "c" for d in (*(x.dtype for x in self.operands), *self.dtypes))

    @property
    def dtypes(self) -> tuple[np.dtype, ...]:
        return tuple(dtype for dtype, _ in self.results)

    def with_(self, **fields: Any) -> Operation:
        return dataclasses.replace(self, **fields)


Function = Callable[[Operation], Sequence[Any]]
#: By name of a primitive.
REFERENCES: dict[str, Function] = {}
#: Of operations with a complex operand or result.
COMPLEX: dict[str, Function] = {}
#: Names of references that take complex numbers as they take others.
OF_ALL: set[str] = set()
#: What makes of an operation and the index of an element a smaller one with this element.
PARTS: dict[str, Callable[..., tuple[Operation, tuple[int, ...]]]] = {}
#: Why an operation has no reference.
EXCEPTIONS: dict[str, str] = {}


def of(*names: str, ending=None, table: dict[str, Function] = REFERENCES):
    """Enter the decorated function, ``f(operation)``, which gives its results.

    Args:
      ending: for a function of float32, as :func:`in_float32` takes it; without it, the function is
        for all formats.
    """

    def enter(function: Function) -> Function:
        entered = in_float32(function, ending) if ending else function
        for name in names:
            assert name not in table, name
            table[name] = entered
        return function

    return enter


def in_float32(function: Function, ending) -> Function:
    """A function of float32 and integers, for narrow formats too.

    Their operands are widened before it, and its float32 results rounded once after it and made
    canonical by ``ending``, ``values.flush`` or ``values.guard``.
    """

    @functools.wraps(function)
    def computed(operation: Operation) -> list[np.ndarray]:
        formats = {*(x.dtype for x in operation.operands), *operation.dtypes}
        if values.FLOAT64 in formats:
            raise NoReference(
                f"{operation.name}: expected float32, float16 or bfloat16, received float64, which "
                "is defined for add, sub, mul, neg and conversions only"
            )
        wide = (
            np.asarray(x, np.float32) if x.dtype in values.HALVES else x for x in operation.operands
        )
        results = tuple(
            (values.FLOAT32 if d in values.HALVES else d, shape) for d, shape in operation.results
        )
        given = function(operation.with_(operands=tuple(wide), results=results))
        return [
            values.narrow(x, d, ending) if d in values.HALVES else x
            for x, d in zip(given, operation.dtypes, strict=True)
        ]

    return computed


def part(*names: str):
    """Enter the decorated function, ``f(operation, index, result)``.

    It gives an operation whose operands are parts of these, and the index in its result of the
    element that has the index ``index`` in the result of this number.  It reads no values, so that
    given the positions of elements in place of operands, it says which ones are read.
    """

    def enter(function):
        for name in names:
            assert name not in PARTS, name
            PARTS[name] = function
        return function

    return enter


def call(operation: Operation) -> list[np.ndarray]:
    """The results, canonical.

    Raises:
      NoReference: for this operation, or for these types.
    """
    table = COMPLEX if operation.is_complex and operation.name not in OF_ALL else REFERENCES
    function = table.get(operation.name)
    if function is None:
        reason = EXCEPTIONS.get(operation.name)
        if reason is None and operation.name in REFERENCES:
            reason = "it has none for complex numbers"
        raise NoReference(
            f"{operation.name}: expected an operation with a reference, received one without: "
            f"{reason or 'docs/numerics.md does not define it'}"
        )
    with np.errstate(all="ignore"):
        given = function(operation)
        found = [values.canonical(x) for x in given]
    for x, (dtype, shape) in zip(found, operation.results, strict=True):
        if x.dtype != dtype or x.shape != shape:
            raise NoReference(
                f"{operation.name}: expected results {dtype.name}{list(shape)}, the reference "
                f"gives {x.dtype.name}{list(x.shape)}; check the operands and parameters"
            )
    return found


def of_all(*names: str):
    """As :func:`of`, for what moves values of any type."""

    def enter(function: Function) -> Function:
        OF_ALL.update(names)
        return of(*names)(function)

    return enter


def elementwise_part(operation: Operation, index: tuple[int, ...], result: int = 0):
    """The part of an elementwise operation: one element of each operand."""
    shape = operation.results[result][1]
    operands = tuple(
        np.asarray(x if x.ndim == 0 else np.broadcast_to(x, shape)[index])
        for x in operation.operands
    )
    results = tuple((dtype, ()) for dtype, _ in operation.results)
    return operation.with_(operands=operands, results=results), ()
