"""What a loop computes from its constants alone: once, before it.

XLA moves such operations out of loops by itself, but sees nothing of those that a kernel computes
with others in one call.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jax.extend.core import Literal

from repjax.primitives.core.programs import open_jaxpr
from repjax.primitives.fusion.views import is_move, run, variables


def without_invariants(
    closed, constants: Sequence[Any]
) -> tuple[list[Any], Callable[..., list[Any]]]:
    """What the body of a loop computes from the constants that are its first operands.

    Returns:
      The results, and the body as a function of them and of its operands.  What is larger than all
      constants that it follows from is no result, and neither is what only moves elements: they
      are in the body still.
    """
    jaxpr, consts = open_jaxpr(closed)
    sizes = _sizes(jaxpr, len(constants))
    needed, moved = set(variables(jaxpr.outvars)), []
    rest: list[Any] = []
    for equation in reversed(jaxpr.eqns):
        made = [v for v in equation.outvars if v in needed]
        size = sizes.get(id(equation))
        moves = is_move(equation) or equation.primitive.name == "broadcast_in_dim"
        stays = moves or any(v.aval.size > (size or 0) for v in made)
        if size is None or (made and stays):
            rest.append(equation)
            needed.update(variables(equation.invars))
        else:
            moved += made
    needed, before = set(moved), []
    for equation in reversed(jaxpr.eqns):
        if id(equation) in sizes and not needed.isdisjoint(equation.outvars):
            before.append(equation)
            needed.update(variables(equation.invars))

    def evaluate(equations, invars, operands, outvars):
        environment = dict(zip((*jaxpr.constvars, *invars), (*consts, *operands), strict=True))
        for equation in reversed(equations):
            run(equation, environment)
        return [v.val if isinstance(v, Literal) else environment[v] for v in outvars]

    def body(*operands):
        return evaluate(rest, [*moved, *jaxpr.invars], operands, jaxpr.outvars)

    return evaluate(before, jaxpr.invars[: len(constants)], constants, moved), body


def _sizes(jaxpr, count: int) -> dict[int, int]:
    """Of the equations that follow from the first operands alone, by their ids, the elements of
    the largest of those that each follows from."""
    of_variables = {v: v.aval.size for v in (*jaxpr.invars[:count], *jaxpr.constvars)}
    sizes = {}
    for equation in jaxpr.eqns:
        read = list(variables(equation.invars))
        if not equation.effects and all(v in of_variables for v in read):
            size = max((of_variables[v] for v in read), default=0)
            sizes[id(equation)] = size
            of_variables.update((v, size) for v in equation.outvars)
    return sizes
