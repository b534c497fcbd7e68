"""Parts of complex numbers that were joined from parts: these.

Each operation on complex numbers takes their parts and joins those of its result.  Without what is
between, operations on parts are of one group.
"""

from __future__ import annotations

from jax.extend.core import Literal

from repjax.primitives.fusion.views import variables

_PARTS = ("real", "imag")


def without_joins(jaxpr):
    """The program without complex numbers of which only parts are needed."""
    joined = {e.outvars[0]: e for e in jaxpr.eqns if e.primitive.name == "complex"}
    if not joined:
        return jaxpr
    found: dict = {}

    def now(atoms):
        return [x if isinstance(x, Literal) else found.get(x, x) for x in atoms]

    equations = []
    for equation in jaxpr.eqns:
        invars = now(equation.invars)
        equation = equation.replace(invars=invars)
        name = equation.primitive.name
        if name in _PARTS and not joined.keys().isdisjoint(variables(invars)):
            found[equation.outvars[0]] = joined[invars[0]].invars[_PARTS.index(name)]
            continue
        if equation.outvars and equation.outvars[0] in joined:
            joined[equation.outvars[0]] = equation
        equations.append(equation)
    outvars = now(jaxpr.outvars)
    needed = set(variables([v for e in equations for v in e.invars] + outvars))
    equations = [e for e in equations if e.primitive.name != "complex" or e.outvars[0] in needed]
    return jaxpr.replace(eqns=equations, outvars=outvars)
