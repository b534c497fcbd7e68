"""Parts of complex numbers that were joined from parts: these.

Each operation on complex numbers takes their parts and joins those of its result.  Without what is
between, operations on parts are of one group.
"""

from __future__ import annotations

from typing import Any

from jax.extend.core import Literal

from repjax.primitives.fusion.views import variables

_PARTS = ("real", "imag")


def without_joins(jaxpr):
    """The program without complex numbers of which only parts are needed."""
    joined: dict[Any, list[Any]] = {}  # complex numbers to their parts
    found: dict[Any, Any] = {}  # what takes a part of one to that part

    def now(atoms):
        return [x if isinstance(x, Literal) else found.get(x, x) for x in atoms]

    equations = []
    for equation in jaxpr.eqns:
        if found:
            equation = equation.replace(invars=now(equation.invars))
        name, invars = equation.primitive.name, equation.invars
        if name == "complex":
            joined[equation.outvars[0]] = invars
        if name in _PARTS and not joined.keys().isdisjoint(variables(invars)):
            found[equation.outvars[0]] = joined[invars[0]][_PARTS.index(name)]
        else:
            equations.append(equation)
    if not found:
        return jaxpr
    outvars = now(jaxpr.outvars)
    needed = set(variables([v for e in equations for v in e.invars] + outvars))
    equations = [e for e in equations if e.primitive.name != "complex" or e.outvars[0] in needed]
    return jaxpr.replace(eqns=equations, outvars=outvars)
