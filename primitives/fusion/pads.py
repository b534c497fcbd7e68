"""Sums of arrays that are zero but for a part: sums of the parts.

The gradient of ``p[0]`` is zero but for its first element, and that of a function of ``p[0]``,
``p[1]`` and ``p[2]`` a sum of three such arrays, which is rounded once.  In a loop it is added to
the sum of what was before.  An exact sum is the same without its zeros: parts that do not overlap
lie side by side, and are one term of it.

Of few elements, parts are chosen by their positions.  XLA's code for CPU has a jump in each pad and
each concatenation, and computes what was before it again for each use behind it: of a sum of three
pads in a loop, which is one function, it makes more code than can be compiled.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal

from repjax.primitives.core.programs import open_jaxpr, renamed, struct, without_unused
from repjax.primitives.operations.add_n import add_n_p
from repjax.primitives.operations.arithmetic import add_p, materialize_p

_SUMS = (add_p, add_n_p)
#: Elements of a sum whose parts are chosen by their positions; and rows of a part, one by one.
_FEW, _ROWS = 128, 4


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
        layers = _layers(equation, made_by) if equation.primitive in _SUMS else []
        equation = equation.replace(invars=renamed(equation.invars, program.same))
        if layers:
            program.add(equation, layers)
        else:
            program.equations.append(equation)
    if len(program.equations) == len(jaxpr.eqns) and not program.same:
        return closed
    outvars = renamed(jaxpr.outvars, program.same)
    jaxpr = jaxpr.replace(eqns=program.equations, outvars=outvars)
    return without_unused(ClosedJaxpr(jaxpr, consts))


def _layers(equation, made_by) -> list[dict[int, _Part]]:
    """The terms of a sum that are parts, by their numbers, in groups that do not overlap; none if
    the sum is better as it is."""
    (result,) = equation.outvars
    shape = result.aval.shape
    is_known = all(isinstance(n, int) for n in shape) and result.aval.dtype == np.float32
    if not is_known or any(v.aval.shape != shape for v in equation.invars):
        return []
    layers: list[dict[int, _Part]] = []
    for i, term in enumerate(equation.invars):
        part = _part(term, made_by)
        if part is None:
            continue
        for layer in layers:
            if all(x.axis == part.axis and not _overlap(x, part) for x in layer.values()):
                layer[i] = part
                break
        else:
            layers.append({i: part})
    if result.aval.size <= _FEW and equation.primitive is add_n_p:
        return layers
    return [layer for layer in layers if len(layer) > 1]


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


def _shifted(x, part: _Part, n: int):
    """The rows of a part where they are among ``n``, beside any others of it."""
    others = [d for d in range(x.ndim) if d != part.axis]
    dimensions = lax.GatherDimensionNumbers(tuple(others), (part.axis,), (part.axis,))
    at = lax.broadcasted_iota(np.int32, (n, 1), 0) - np.int32(part.start)
    sizes = [1 if d == part.axis else x.shape[d] for d in range(x.ndim)]
    return lax.gather(x, at, dimensions, sizes, mode="clip")


class _Program:
    """The equations so far, and in whose place other variables are."""

    def __init__(self):
        self.equations: list[Any] = []
        self.same: dict[Any, Any] = {}

    def add(self, equation, layers: list[dict[int, _Part]]) -> None:
        """Adds a sum of layers and other terms."""
        aval = equation.outvars[0].aval
        terms = [v for i, v in enumerate(equation.invars) if all(i not in x for x in layers)]
        for layer in layers:
            parts = sorted(layer.values(), key=lambda part: part.start)
            atoms = renamed([part.atom for part in parts], self.same)
            parts = [part._replace(atom=v) for part, v in zip(parts, atoms, strict=True)]
            join = self.chosen if aval.size <= _FEW else self.joined
            terms.append(join(equation, parts))
        if len(terms) == 1:
            self.same[equation.outvars[0]] = terms[0]
        else:
            primitive = add_p if len(terms) == 2 else add_n_p
            self.equations.append(equation.replace(primitive=primitive, invars=terms))

    def joined(self, equation, parts: Sequence[_Part]):
        """The parts side by side, with zeros between them."""
        aval, axis = equation.outvars[0].aval, parts[0].axis
        end = aval.shape[axis]

        def function(*atoms):
            pieces, place = [], 0
            for start, x in [
                *((part.start, x) for part, x in zip(parts, atoms, strict=True)),
                (end, None),
            ]:
                if start > place:
                    shape = (*aval.shape[:axis], start - place, *aval.shape[axis + 1 :])
                    pieces.append(lax.full(shape, 0, aval.dtype))
                if x is not None:
                    pieces.append(x)
                    place = start + x.shape[axis]
            return lax.concatenate(pieces, axis)

        return self.traced(equation, function, [part.atom for part in parts])

    def chosen(self, equation, parts: Sequence[_Part]):
        """The parts by the positions of elements."""
        aval, axis = equation.outvars[0].aval, parts[0].axis

        def function(*atoms):
            found = lax.full(aval.shape, 0, aval.dtype)
            position = lax.broadcasted_iota(np.int32, aval.shape, axis)
            for part, x in zip(parts, atoms, strict=True):
                if part.end - part.start > _ROWS:
                    is_in = (position >= np.int32(part.start)) & (position < np.int32(part.end))
                    found = lax.select(is_in, _shifted(x, part, aval.shape[axis]), found)
                    continue
                for i in range(part.end - part.start):
                    row = lax.slice_in_dim(x, i, i + 1, axis=axis)
                    row = lax.broadcast_in_dim(row, aval.shape, range(aval.ndim))
                    found = lax.select(position == np.int32(part.start + i), row, found)
            return found

        return self.traced(equation, function, [part.atom for part in parts])

    def traced(self, equation, function, atoms: Sequence[Any]):
        """The result of a function of lax operations, in the context of an equation."""
        jaxpr, _ = open_jaxpr(jax.make_jaxpr(function)(*(struct(v.aval) for v in atoms)))
        names = dict(zip(jaxpr.invars, atoms, strict=True))
        for new in jaxpr.eqns:
            new = new.replace(invars=renamed(new.invars, names), ctx=equation.ctx)
            self.equations.append(new)
        return jaxpr.outvars[0]
