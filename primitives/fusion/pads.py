"""Sums of arrays that are zero but for a part: sums of the parts.

The gradient of ``p[0]`` is zero but for its first element, and that of a function of ``p[0]``,
``p[1]`` and ``p[2]`` a sum of three such arrays, which is rounded once.  In a loop it is added to
the sum of what was before.  An exact sum is the same without its zeros: parts that do not overlap
lie side by side, and are one term of it.

Of few elements, a sum of parts that do overlap is computed piece by piece.  XLA's code for CPU has
a jump in each pad, and computes what was before it again for each use behind it: of a sum of three
pads in a loop, which is one function, it makes more code than can be compiled.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, Var

from repjax.primitives.core.programs import open_jaxpr, renamed, without_unused
from repjax.primitives.operations.add_n import add_n_p
from repjax.primitives.operations.arithmetic import add_p, materialize_p

_SUMS = (add_p, add_n_p)
#: Elements of a sum that is computed piece by piece.
_FEW = 128


class _Part(NamedTuple):
    """What an array has on one axis from a place on; all else of it is zero."""

    axis: int
    start: int
    atom: Any

    @property
    def end(self) -> int:
        return self.start + self.atom.aval.shape[self.axis]


def without_sums_of_pads(closed):
    """The program with sums of parts in the place of sums of them between zeros."""
    jaxpr, consts = open_jaxpr(closed)
    made_by = {v: e for e in jaxpr.eqns for v in e.outvars}
    program = _Program()
    for equation in jaxpr.eqns:
        parts = _parts(equation, made_by) if equation.primitive in _SUMS else {}
        equation = equation.replace(invars=renamed(equation.invars, program.same))
        if len(parts) > 1:
            program.add(equation, parts)
        else:
            program.equations.append(equation)
    if not program.same:
        return closed
    outvars = renamed(jaxpr.outvars, program.same)
    return without_unused(
        ClosedJaxpr(jaxpr.replace(eqns=program.equations, outvars=outvars), consts)
    )


def _parts(equation, made_by) -> dict[int, _Part]:
    """The terms of a sum that are parts of one axis; of many elements, such as do not overlap."""
    (result,) = equation.outvars
    shape = result.aval.shape
    is_known = all(isinstance(n, int) for n in shape) and result.aval.dtype == np.float32
    if not is_known or any(v.aval.shape != shape for v in equation.invars):
        return {}
    found: dict[int, _Part] = {}
    for i, term in enumerate(equation.invars):
        part = _part(term, made_by)
        if part is not None and all(
            x.axis == part.axis and (result.aval.size <= _FEW or not _overlap(x, part))
            for x in found.values()
        ):
            found[i] = part
    return found


def _overlap(x: _Part, y: _Part) -> bool:
    return x.start < y.end and y.start < x.end


def _part(atom, made_by) -> _Part | None:
    """What an atom is between zeros, if it was padded with them on one axis."""
    equation = None if isinstance(atom, Literal) else made_by.get(atom)
    if equation is not None and equation.primitive is materialize_p:
        return _part(equation.invars[0], made_by)
    if equation is None or equation.primitive is not lax.pad_p:
        return None
    x, value = equation.invars
    config = [(axis, *map(int, c)) for axis, c in enumerate(equation.params["padding_config"])]
    padded = [c for c in config if any(c[1:])]
    is_zero = isinstance(value, Literal) and value.val == 0
    if isinstance(x, Literal) or not is_zero or len(padded) != 1:
        return None
    ((axis, low, high, interior),) = padded
    return None if interior or min(low, high) < 0 else _Part(axis, low, x)


class _Program:
    """The equations so far, and in whose place other variables are."""

    def __init__(self):
        self.equations: list[Any] = []
        self.same: dict[Any, Any] = {}

    def add(self, equation, parts: dict[int, _Part]) -> None:
        """Adds a sum of parts and other terms."""
        others = [v for i, v in enumerate(equation.invars) if i not in parts]
        ordered = sorted(parts.values(), key=lambda part: part.start)
        atoms = renamed([part.atom for part in ordered], self.same)
        ordered = [part._replace(atom=v) for part, v in zip(ordered, atoms, strict=True)]
        (result,) = equation.outvars
        axis, n = ordered[0].axis, result.aval.shape[ordered[0].axis]
        bounds = sorted({0, n, *(b for part in ordered for b in (part.start, part.end))})
        overlap = any(x.end > y.start for x, y in itertools.pairwise(ordered))
        pieces = []
        for start, end in itertools.pairwise(bounds):
            terms = [
                self.slice(equation, x.atom, axis, start - x.start, end - x.start)
                for x in ordered
                if x.start < end and start < x.end
            ]
            if overlap:
                terms += [self.slice(equation, v, axis, start, end) for v in others]
            pieces.append(self.sum(equation, terms, axis, end - start))
        joined = pieces[0]
        if len(pieces) > 1:
            joined = self.made(equation, lax.concatenate_p, pieces, axis, n, dimension=axis)
        terms = [joined] if overlap else [*others, joined]
        self.same[result] = self.sum(equation, terms, axis, n)

    def made(
        self, equation, primitive, operands: Sequence[Any], axis: int, n: int, **params
    ) -> Var:
        """What a primitive makes, ``n`` elements on the axis, in the context of an equation."""
        aval = equation.outvars[0].aval
        result = Var(aval.update(shape=(*aval.shape[:axis], n, *aval.shape[axis + 1 :])))
        new = equation.replace(primitive=primitive, invars=list(operands), outvars=[result])
        self.equations.append(new.replace(params=params))
        return result

    def slice(self, equation, atom, axis: int, start: int, end: int):
        shape = atom.aval.shape
        if (start, end) == (0, shape[axis]):
            return atom
        begin, limit = [0] * len(shape), list(shape)
        begin[axis], limit[axis] = start, end
        bounds = {"start_indices": tuple(begin), "limit_indices": tuple(limit), "strides": None}
        return self.made(equation, lax.slice_p, [atom], axis, end - start, **bounds)

    def sum(self, equation, terms: Sequence[Any], axis: int, n: int):
        if len(terms) == 1:
            return terms[0]
        if terms:
            return self.made(equation, add_p if len(terms) == 2 else add_n_p, terms, axis, n)
        aval = equation.outvars[0].aval
        zero = Literal(np.float32(0), aval.update(shape=()))
        shape = (*aval.shape[:axis], n, *aval.shape[axis + 1 :])
        params = {"shape": shape, "broadcast_dimensions": (), "sharding": None}
        return self.made(equation, lax.broadcast_in_dim_p, [zero], axis, n, **params)
