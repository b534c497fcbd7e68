"""Branches of ``cond``: programs of their own, which enter and leave like one.

What is made canonical to go into a branch, and what comes out of one, would be passes over memory
before and after it; in the branch they are parts of its kernels.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal

from repjax.primitives.core.programs import open_jaxpr, struct
from repjax.primitives.core.values import canonicalize
from repjax.primitives.fusion.views import is_canonicalize, variables


def with_branches(closed, plan: Callable[..., Sequence[Any]]):
    """The closed jaxpr with its branches planned, ``plan(function, *operands)``.

    They take inputs of the program as these came, and their results are canonical where nothing
    else is done with them.
    """
    jaxpr, consts = open_jaxpr(closed)
    if not any(map(_has_branches, jaxpr.eqns)):
        return closed
    entries = {*jaxpr.invars, *jaxpr.constvars}
    raw, ended = {}, {}  # what is canonical of an input; what is to be of a result
    for equation in filter(is_canonicalize, jaxpr.eqns):
        (x,), (result,) = equation.invars, equation.outvars
        if not isinstance(x, Literal):
            (raw if x in entries else ended)[result] = x
    leaving = set(ended.values())
    made, equations = set(), []

    def now(atom):
        is_ended = not isinstance(atom, Literal) and ended.get(atom) in made
        return ended[atom] if is_ended else atom

    for equation in jaxpr.eqns:
        if made.intersection(variables(equation.invars)) and is_canonicalize(equation):
            continue
        equation = equation.replace(invars=list(map(now, equation.invars)))
        if _has_branches(equation):
            index, *operands = equation.invars
            enter = [not isinstance(x, Literal) and x in raw for x in operands]
            leave = [v in leaving for v in equation.outvars]
            branches = tuple(
                _planned(branch, enter, leave, plan) for branch in equation.params["branches"]
            )
            operands = [raw[x] if enters else x for x, enters in zip(operands, enter, strict=True)]
            equation = equation.replace(
                invars=[index, *operands], params={**equation.params, "branches": branches}
            )
            made.update(leaving.intersection(equation.outvars))
        equations.append(equation)
    jaxpr = jaxpr.replace(eqns=equations, outvars=list(map(now, jaxpr.outvars)))
    return ClosedJaxpr(jaxpr, consts)


def _has_branches(equation) -> bool:
    return equation.primitive.name == "cond"


def _planned(branch, enter: Sequence[bool], leave: Sequence[bool], plan):
    """A branch that makes canonical what enters and what leaves."""
    jaxpr, consts = open_jaxpr(branch)

    def canonical(xs, are_to_be):
        return [canonicalize(x) if y else x for x, y in zip(xs, are_to_be, strict=True)]

    def program(*operands):
        results = jax.core.eval_jaxpr(jaxpr, consts, *canonical(operands, enter))
        return canonical(results, leave)

    types = [struct(v.aval) for v in jaxpr.invars]
    return jax.make_jaxpr(functools.partial(plan, program))(*types)
