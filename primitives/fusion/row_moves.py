"""Moves within rows: slices of an axis, and what joins arrays along one.

A kernel for fused groups computes some elements before it goes on to the next.  If these are whole
rows, it can take parts of the rows that it has just computed and put them one behind the other, and
neither is in memory in between.  Rotary embeddings are of this kind, gates that are computed
together and then split, and the gradients of both.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterable

from jax import lax
from jax.extend.core import Literal

from repjax.primitives.fusion.views import DTYPES

#: The most elements of a row, and the fewest that are moved together, on average.
_ROW, _RUN = 512, 8
#: The most elements that a slice leaves out for each that it takes.
_LEFT_OUT = 3


@dataclasses.dataclass(frozen=True)
class Run:
    """Elements of each row: of an operand from ``first`` on, to those of the result from ``at`` on.

    Rows have ``row`` and ``to_row`` elements there.  An operand of one element is repeated.
    """

    operand: int
    row: int
    to_row: int
    length: int
    first: int
    at: int


@dataclasses.dataclass(frozen=True)
class RowMove:
    """An equation as a move within so many rows, which all its arrays have."""

    rows: int
    runs: tuple[Run, ...]


def row_move(equation) -> RowMove | None:
    """A slice, a concatenation or a padding along one axis as a move, if rows are short.

    XLA is faster where very few elements are moved together.
    """
    atoms, results = equation.invars, equation.outvars
    avals = [x.aval for x in (*atoms, *results)]
    if len(results) != 1 or any(getattr(aval, "dtype", None) not in DTYPES for aval in avals):
        return None
    if any(aval.size == 0 for aval in avals):
        return None
    (result,) = results
    params, shape = equation.params, result.aval.shape
    match equation.primitive.name:
        case "slice":
            axes = _axes(atoms[0].aval.shape, shape)
            if len(axes) != 1 or isinstance(atoms[0], Literal):
                return None
            if any(stride != 1 for stride in params["strides"] or ()):
                return None
            (axis,) = axes
            if atoms[0].aval.size > (1 + _LEFT_OUT) * result.aval.size:
                return None
            pieces = [(0, shape[axis], params["start_indices"][axis], 0)]
        case "concatenate":
            axis = params["dimension"]
            lengths = [x.aval.shape[axis] for x in atoms]
            ends = [0, *itertools.accumulate(lengths)]
            pieces = [(i, n, 0, end) for i, (n, end) in enumerate(zip(lengths, ends, strict=False))]
        case "pad":
            axes = [d for d, config in enumerate(params["padding_config"]) if any(config)]
            if len(axes) != 1 or isinstance(atoms[0], Literal):
                return None
            (axis,) = axes
            low, high, between = params["padding_config"][axis]
            if min(low, high) < 0 or between:
                return None
            n = atoms[0].aval.shape[axis]
            pieces = [(1, low, 0, 0), (0, n, 0, low), (1, high, 0, low + n)]
        case _:
            return None
    inner = math.prod(shape[axis + 1 :])
    rows = math.prod(shape[:axis])
    runs = tuple(
        Run(i, atoms[i].aval.size // rows, result.aval.size // rows, *(x * inner for x in sizes))
        for i, *sizes in pieces
        if sizes[0]
    )
    if max(aval.size for aval in avals) > _ROW * rows:
        return None
    if result.aval.size < _RUN * rows * len(runs):
        return None
    return RowMove(rows, runs)


def _axes(old, new) -> list[int]:
    """Those whose sizes differ."""
    return [d for d, (n, m) in enumerate(zip(old, new, strict=True)) if n != m]


@dataclasses.dataclass(eq=False)
class _Connected:
    """Equations that may be of one group; the rows of the moves among them, if any, and sizes."""

    equations: list[int]
    sizes: set[int]
    rows: int | None


class Rows:
    """The rows that equations have in common which may be of one group."""

    def __init__(self):
        self._of: dict[int, _Connected] = {}

    def connect(self, equation: int, others: Iterable[int], sizes, move: RowMove | None) -> bool:
        """Note an equation, by its id, with those that its operands come from; or refuse.

        It is refused where moves among them have rows that are no parts of each other, or are
        too long together.
        """
        parts = list({id(self._of[other]): self._of[other] for other in others}.values())
        rows = {part.rows for part in parts if part.rows is not None}
        rows |= {move.rows} if move else set()
        sizes = set(sizes).union(*(part.sizes for part in parts))
        common = min(rows, default=None)
        if common is not None and (
            any(n % common for n in rows | sizes) or max(sizes) > _ROW * common
        ):
            return False
        largest = max(
            parts, key=lambda part: len(part.equations), default=_Connected([], set(), None)
        )
        new = [equation, *(i for part in parts if part is not largest for i in part.equations)]
        largest.equations += new
        largest.sizes, largest.rows = sizes, common
        self._of.update((i, largest) for i in new)
        return True

    def of(self, equation: int) -> int | None:
        return self._of[equation].rows


def with_slices(jaxpr):
    """The program with slices in the place of splits, which have several results."""
    equations = []
    for equation in jaxpr.eqns:
        if equation.primitive.name != "split":
            equations.append(equation)
            continue
        (x,), axis = equation.invars, equation.params["axis"]
        end = 0
        for result, n in zip(equation.outvars, equation.params["sizes"], strict=True):
            begin, end = end, end + n
            bounds = {
                "start_indices": tuple(begin if d == axis else 0 for d in range(x.aval.ndim)),
                "limit_indices": tuple(end if d == axis else m for d, m in enumerate(x.aval.shape)),
                "strides": None,
            }
            equations.append(
                equation.replace(primitive=lax.slice_p, params=bounds, outvars=[result])
            )
    return jaxpr.replace(eqns=equations)
