"""Parts of complex numbers, taken before the numbers are joined or moved.

Each operation on complex numbers takes their parts and joins those of its result; what moves them
takes them as they are.  Parts of what is joined are these, and parts of what is moved are moved
parts: then operations on parts are of one group, which reads them where they are.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from jax.extend.core import Literal, Var

from repjax.primitives.core.programs import renamed
from repjax.primitives.core.values import is_complex
from repjax.primitives.fusion.views import PARTS, variables

#: What moves or chooses elements, as kernels of groups do.
_MOVES = frozenset(
    (
        *("slice", "reshape", "squeeze", "expand_dims", "copy", "broadcast_in_dim"),
        *("concatenate", "select_n"),
    )
)


class _Parts:
    """The equations of a program, and the parts that they take."""

    def __init__(self):
        self.equations: list[Any] = []
        self.joined: dict[Any, list[Any]] = {}  # complex numbers to their parts
        self.moved: dict[Any, Any] = {}  # complex numbers to what moves others there
        self.taken: dict[Any, Any] = {}  # complex numbers, and which part, to this
        self.found: dict[Any, Any] = {}  # what takes a part to this

    def add(self, equation) -> None:
        if self.found:
            equation = equation.replace(invars=renamed(equation.invars, self.found))
        name, results = equation.primitive.name, equation.outvars
        if name in PARTS:
            self.found[results[0]] = self._part(equation.invars[0], equation)
            return
        if name == "complex":
            self.joined[results[0]] = equation.invars
        elif name in _MOVES and is_complex(results[0].aval):
            self.moved[results[0]] = equation
        self.equations.append(equation)

    def _part(self, x, take) -> Any:
        """The part of ``x`` that the equation ``take`` takes of its operand."""
        which = PARTS[take.primitive.name]
        aval = x.aval.update(dtype=np.dtype(np.float32), weak_type=False)
        if isinstance(x, Literal):
            return Literal((np.real, np.imag)[which](x.val).astype(np.float32), aval)
        if x in self.joined:
            return self.joined[x][which]
        if (x, which) not in self.taken:
            if x in self.moved:
                invars = [
                    self._part(v, take) if is_complex(v.aval) else v for v in self.moved[x].invars
                ]
                take = self.moved[x].replace(invars=invars)
            else:
                take = take.replace(invars=[x])
            self.taken[x, which] = Var(aval)
            self.equations.append(take.replace(outvars=[self.taken[x, which]]))
        return self.taken[x, which]


def without_joins(jaxpr):
    """The program without complex numbers of which only parts are needed."""
    if all(e.primitive.name not in PARTS for e in jaxpr.eqns):
        return jaxpr
    parts = _Parts()
    for equation in jaxpr.eqns:
        parts.add(equation)
    outvars = renamed(jaxpr.outvars, parts.found)
    needed, equations = set(variables(outvars)), []
    for equation in reversed(parts.equations):
        may_go = all(v in parts.joined or v in parts.moved for v in equation.outvars)
        if not may_go or not needed.isdisjoint(equation.outvars):
            needed.update(variables(equation.invars))
            equations.append(equation)
    return jaxpr.replace(eqns=equations[::-1], outvars=outvars)


def without_copies(jaxpr):
    """The program without complex numbers that are joined from both parts of others: these."""
    if all(e.primitive.name != "complex" for e in jaxpr.eqns):
        return jaxpr
    taken: dict[Any, tuple[int, Any]] = {}  # parts, which they are and of what
    same: dict[Any, Any] = {}
    equations = []
    for equation in jaxpr.eqns:
        equation = equation.replace(invars=renamed(equation.invars, same)) if same else equation
        name, invars = equation.primitive.name, equation.invars
        if name in PARTS and not isinstance(invars[0], Literal):
            taken[equation.outvars[0]] = PARTS[name], invars[0]
        parts = [taken.get(v) for v in variables(invars)]
        if name == "complex" and len(parts) == 2 and None not in parts:
            (first, x), (second, y) = parts
            if (first, second) == (0, 1) and x is y:
                same[equation.outvars[0]] = x
                continue
        equations.append(equation)
    return jaxpr.replace(eqns=equations, outvars=renamed(jaxpr.outvars, same)) if same else jaxpr
