"""Equations that compute what others have computed.

Programs have them, since ``x.mean()`` and ``x.var()`` both add x.  XLA would find them, but not in
the kernels that they become parts of.
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import numpy as np
from jax.extend.core import ClosedJaxpr, DropVar, Literal

from repjax.primitives.core.programs import open_jaxpr, renamed


def without_repeated(closed):
    """The program with the results of equations in the place of those of later, same ones."""
    jaxpr, consts = open_jaxpr(closed)
    made: dict[Any, Any] = {}  # what equations compute, to their results
    same: dict[Any, Any] = {}
    equations = []
    for equation in jaxpr.eqns:
        if same:
            equation = equation.replace(invars=renamed(equation.invars, same))
        key = _key(equation)
        if key is not None and key in made:
            same.update(zip(equation.outvars, made[key], strict=True))
            continue
        if key is not None:
            made[key] = equation.outvars
        equations.append(equation)
    if not same:
        return closed
    jaxpr = jaxpr.replace(eqns=equations, outvars=renamed(jaxpr.outvars, same))
    return ClosedJaxpr(jaxpr, consts)


def _key(equation) -> Hashable | None:
    """What it computes, or None where that cannot be compared."""
    if equation.effects or any(isinstance(v, DropVar) for v in equation.outvars):
        return None
    operands = tuple(
        (np.asarray(v.val).tobytes(), v.aval) if isinstance(v, Literal) else v
        for v in equation.invars
    )
    results = tuple(v.aval for v in equation.outvars)
    key = equation.primitive, operands, results, tuple(sorted(equation.params.items()))
    try:
        hash(key)
    except TypeError:
        return None
    return key
