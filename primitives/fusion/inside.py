"""Programs inside of equations: branches of ``cond``, bodies of ``scan``.

What is made canonical to go into one, and what comes out of it, would be passes over memory before
and after it.  Inside they are parts of its kernels: of a branch's operands and results, and of the
elements that a scan takes and gives in each step.  What a scan keeps or carries would be made
canonical in every step, but for what is taken raw (:mod:`repjax.primitives.fusion.entries`).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal

from repjax.primitives.core.programs import carried, open_jaxpr, struct
from repjax.primitives.core.values import canonicalize
from repjax.primitives.fusion.entries import is_taken_raw
from repjax.primitives.fusion.views import is_canonicalize, variables


def plan_inside(closed, plan: Callable[..., Sequence[Any]]):
    """The closed jaxpr with the programs inside of its equations planned,
    ``plan(function, *operands)``, with the ``carry`` of scans.

    They take inputs of the program as these came, and their results are canonical where the program
    makes them so.
    """
    jaxpr, consts = open_jaxpr(closed)
    if not any(map(_holds, jaxpr.eqns)):
        return closed
    inputs = {*jaxpr.invars, *jaxpr.constvars}
    entering, leaving = {}, {}  # what is canonical, to what it is made of: an input or a result
    for equation in filter(is_canonicalize, jaxpr.eqns):
        (x,), (result,) = equation.invars, equation.outvars
        if not isinstance(x, Literal):
            (entering if x in inputs else leaving)[result] = x
    to_leave = set(leaving.values())
    left, equations = set(), []  # results that are canonical

    def now(atom):
        has_left = not isinstance(atom, Literal) and leaving.get(atom) in left
        return leaving[atom] if has_left else atom

    for equation in jaxpr.eqns:
        if is_canonicalize(equation) and left.intersection(variables(equation.invars)):
            continue
        equation = equation.replace(invars=list(map(now, equation.invars)))
        if _holds(equation):
            equation, has_left = _planned(equation, entering, to_leave, plan)
            left |= has_left
        equations.append(equation)
    outvars = list(map(now, jaxpr.outvars))
    return ClosedJaxpr(jaxpr.replace(eqns=equations, outvars=outvars), consts)


def _holds(equation) -> bool:
    return equation.primitive.name in ("cond", "scan")


def _planned(equation, entering, leaving, plan) -> tuple[Any, set[Any]]:
    """The equation with what is inside planned, and those of its results that are canonical.

    Args:
      entering: what may be made canonical inside, and what of.
      leaving: the results that are to be canonical.
    """
    params, is_cond = equation.params, equation.primitive.name == "cond"
    first, count = (0, 0) if is_cond else carried(params)
    at = 1 if is_cond else 0  # behind the number of the branch
    before, operands = equation.invars[:at], equation.invars[at:]

    def may_enter(i: int) -> bool:
        return i >= first + count or (i < first and is_taken_raw(params["jaxpr"], i))

    enters = [
        not isinstance(x, Literal) and x in entering and may_enter(i)
        for i, x in enumerate(operands)
    ]
    leaves = [i >= count and v in leaving for i, v in enumerate(equation.outvars)]
    operands = [entering[x] if enter else x for x, enter in zip(operands, enters, strict=True)]

    if not is_cond:
        plan = functools.partial(plan, carry=(first, count))

    def planned(inner):
        return _inside(inner, enters, leaves, plan)

    if is_cond:
        params = {**params, "branches": tuple(map(planned, params["branches"]))}
    else:
        params = {**params, "jaxpr": planned(params["jaxpr"])}
    left = {v for v, leave in zip(equation.outvars, leaves, strict=True) if leave}
    return equation.replace(invars=[*before, *operands], params=params), left


def _inside(inner, enters: Sequence[bool], leaves: Sequence[bool], plan):
    """A program that makes canonical what enters and what leaves."""
    jaxpr, consts = open_jaxpr(inner)

    def canonical(xs, are_to_be):
        return [canonicalize(x) if y else x for x, y in zip(xs, are_to_be, strict=True)]

    def program(*operands):
        results = jax.core.eval_jaxpr(jaxpr, consts, *canonical(operands, enters))
        return canonical(results, leaves)

    types = [struct(v.aval) for v in jaxpr.invars]
    return jax.make_jaxpr(functools.partial(plan, program))(*types)
