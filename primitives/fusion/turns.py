"""Products that are only transposed.

The gradient of a weight is one.  A transposed product of matrices is that of the two in turn, whose
chains have the same steps: ``fma(a, b, s)`` is ``fma(b, a, s)``.  So there is no pass over memory
for the transposition.
"""

from __future__ import annotations

import collections

import numpy as np

from repjax.primitives.fusion.entries import raw_dot_general_p
from repjax.primitives.fusion.views import variables
from repjax.primitives.operations.products import dot_general_p


def without_transposes(jaxpr):
    """The program with products in turn in the place of those that are only transposed."""
    users = collections.Counter(
        v for atoms in (*(e.invars for e in jaxpr.eqns), jaxpr.outvars) for v in variables(atoms)
    )
    transposes = {
        e.invars[0]: e
        for e in jaxpr.eqns
        if e.primitive.name == "transpose"
        and tuple(e.params["permutation"]) == (1, 0)
        and users[e.invars[0]] == 1
    }
    equations, gone = [], set()
    for equation in jaxpr.eqns:
        transpose = transposes.get(equation.outvars[0]) if _is_product(equation) else None
        if transpose is not None:
            gone.add(id(transpose))
            equation = _in_turn(equation).replace(outvars=transpose.outvars)
        if id(equation) not in gone:
            equations.append(equation)
    return jaxpr.replace(eqns=equations) if gone else jaxpr


def _is_product(equation) -> bool:
    """Whether it is a sequential product of two matrices."""
    return (
        equation.primitive in (dot_general_p, raw_dot_general_p)
        and equation.params["contraction"] == "sequential"
        and all(v.aval.dtype == np.float32 for v in (*equation.invars, *equation.outvars))
        and not equation.params["dimension_numbers"][1][0]
    )


def _in_turn(equation):
    contracting, batch = equation.params["dimension_numbers"]
    params = {**equation.params, "dimension_numbers": (contracting[::-1], batch)}
    if "raw" in params:
        params["raw"] = params["raw"][::-1]
    return equation.replace(invars=equation.invars[::-1], params=params)
