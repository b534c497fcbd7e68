"""Loop fission: what the iterations of a scan compute independently of each other, outside of it.

What follows from the elements of a scan alone, as the products of a recurrent network's inputs do,
is computed for all iterations before it; and what nothing carried needs, as the terms of a
likelihood, after it.  There it is a few large operations instead of many small ones.  The bits are
the same, since no operation that is moved computes an element otherwise because of others.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import jax
from jax.extend.core import ClosedJaxpr, Literal

from repjax.primitives.core.programs import is_explicit, open_jaxpr, without_unused
from repjax.primitives.core.tables import ELEMENTWISE, PREFIX
from repjax.primitives.fusion.views import is_move, run, variables

#: Iterations that repay operations before and after a loop.
_ITERATIONS = 16
#: Elements that an operation other than a product makes in an iteration, of which more gain
#: nothing outside; that any makes; and that it makes in all, more of which would leave the caches.
_FEW, _ELEMENTS, _IN_ALL = 16, 1 << 13, 1 << 19

_PRODUCT = PREFIX + "dot_general"
_REDUCTIONS = frozenset(PREFIX + name for name in ("reduce_sum", "reduce_max", "reduce_min"))
_ROUNDED = frozenset((*(PREFIX + name for name in ELEMENTWISE), _PRODUCT))
_MOVED = _ROUNDED | _REDUCTIONS | {*ELEMENTWISE, PREFIX + "canonicalize"}
#: What moves elements, or gives them as they are, besides what ``is_move`` knows.
_MOVES = frozenset(
    (*("broadcast_in_dim", "concatenate", "iota", "pad", "stop_gradient"), PREFIX + "materialize")
)


@dataclasses.dataclass(frozen=True)
class Fission:
    """A scan in three parts.

    Attributes:
      before: of the constants and the elements of all iterations, what is computed before.
      body: of the constants, what is carried, the elements and what ``before`` gives: what is
        carried and what the loop gives.
      after: of the constants, the elements, what ``before`` and what the loop give: the results
        that are not carried.
    """

    before: Callable[[Sequence[Any], Sequence[Any]], list[Any]]
    body: ClosedJaxpr
    after: Callable[[Sequence[Any], Sequence[Any], Sequence[Any], Sequence[Any]], list[Any]]


def fission(closed, first: int, count: int, length: int) -> Fission | None:
    """A scan in parts, or None if all of it has to be in the loop.

    Its program is ``closed``, of ``first`` constants, ``count`` values that are carried, and
    elements.
    """
    is_known = isinstance(length, int) and length >= _ITERATIONS
    if not is_known or any(is_explicit(x.sharding) for x in closed.in_avals):
        return None
    jaxpr, consts = open_jaxpr(without_unused(closed))
    equations, elements = jaxpr.eqns, jaxpr.invars[first + count :]
    carried, results = jaxpr.outvars[:count], jaxpr.outvars[count:]
    constants = [*jaxpr.constvars, *jaxpr.invars[:first]]

    # What follows from constants and elements, and whether from elements.
    varies = {**dict.fromkeys(constants, False), **dict.fromkeys(elements, True)}
    early = []
    for equation in equations:
        read = variables(equation.invars)
        if _may_move(equation, length) and all(v in varies for v in read):
            early.append(equation)
            varies.update(dict.fromkeys(equation.outvars, any(varies[v] for v in read)))
    late = _late(jaxpr, count, length, varies)

    made_early = {v for equation in early for v in equation.outvars if varies[v]}
    made_late = {v for equation in late for v in equation.outvars}
    given = [v for v in results if isinstance(v, Literal) or v not in made_late | made_early]
    read_late = [v for e in late for v in variables(e.invars) if v not in made_late]
    not_more = {*variables(given), *varies}
    given += [v for v in dict.fromkeys(read_late) if v not in not_more]

    outside = {id(equation) for equation in (*early, *late)}
    inside = [equation for equation in equations if id(equation) not in outside]
    needed = {v for e in inside for v in variables(e.invars)}.union(variables((*carried, *given)))
    stacked = []
    for equation in reversed(early):
        made = [v for v in equation.outvars if v in needed]
        if made and (_gains_nothing(equation) or not all(varies[v] for v in made)):
            inside.append(equation)
            needed.update(variables(equation.invars))
        else:
            stacked += made
    stacked += [v for v in (*read_late, *variables(results)) if v in made_early]
    stacked = list(dict.fromkeys(stacked))
    if not stacked and not late:
        return None
    order = {id(equation): i for i, equation in enumerate(equations)}
    body = jaxpr.replace(
        invars=[*jaxpr.invars, *stacked],
        outvars=[*carried, *given],
        eqns=sorted(inside, key=lambda equation: order[id(equation)]),
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )

    def of_all(operands, values: dict[Any, Any], outvars) -> list[Any]:
        """Variables of all iterations, from the constants and other variables of all iterations."""
        known = dict(zip(constants, (*consts, *operands), strict=True))
        steps = _needed([*early, *late], outvars, {*known, *values})

        def of_one(*given):
            environment = known | dict(zip(values, given, strict=True))
            for equation in steps:
                run(equation, environment)
            return [environment[v] for v in outvars]

        return jax.vmap(of_one)(*values.values()) if outvars else []

    def before(operands, xs):
        return of_all(operands, dict(zip(elements, xs, strict=True)), stacked)

    def after(operands, xs, made_before, ys):
        values = dict(zip((*elements, *stacked), (*xs, *made_before), strict=True))
        values |= {v: y for v, y in zip(given, ys, strict=True) if not isinstance(v, Literal)}
        outvars = [v for v in dict.fromkeys(variables(results)) if v in made_late]
        values |= zip(outvars, of_all(operands, values, outvars), strict=True)
        literals = iter([y for v, y in zip(given, ys, strict=True) if isinstance(v, Literal)])
        return [next(literals) if isinstance(v, Literal) else values[v] for v in results]

    return Fission(before, ClosedJaxpr(body, consts), after)


def _is_small(v, length: int) -> bool:
    size = v.aval.size
    return isinstance(size, int) and size <= _ELEMENTS and size * length <= _IN_ALL


def _moves(equation) -> bool:
    name = equation.primitive.name
    return name in _MOVES or (is_move(equation) and name != "dynamic_slice")


def _may_move(equation, length: int) -> bool:
    """Whether an equation may be that of all iterations at once."""
    is_known = equation.primitive.name in _MOVED or _moves(equation)
    is_small = all(_is_small(v, length) for v in equation.outvars)
    return is_known and is_small and not equation.effects


def _gains_nothing(equation) -> bool:
    """Whether what an equation makes is as well made in each iteration."""
    is_large = any(v.aval.size > _FEW for v in equation.outvars)
    return _moves(equation) or (is_large and equation.primitive.name != _PRODUCT)


def _late(jaxpr, count: int, length: int, varies: dict[Any, bool]) -> list[Any]:
    """The equations of which nothing carried is made, if it is worth it to move them."""
    inside, found = set(variables(jaxpr.outvars[:count])), []
    for equation in reversed(jaxpr.eqns):
        if all(v in varies for v in equation.outvars):
            continue
        read = variables(equation.invars)
        if (
            _may_move(equation, length)
            and inside.isdisjoint(equation.outvars)
            and all(_is_small(v, length) for v in read if varies.get(v, True))
        ):
            found.append(equation)
        else:
            inside.update(read)
    late, made = [], set()
    for equation in reversed(found):  # without what only makes less of what the loop has
        makes_less = _moves(equation) or equation.primitive.name in _REDUCTIONS
        if not makes_less or not made.isdisjoint(variables(equation.invars)):
            late.append(equation)
            made.update(equation.outvars)
    names = {equation.primitive.name for equation in late}
    gains = _PRODUCT in names or all(v.aval.size <= _FEW for v in made)
    return late if gains and not names.isdisjoint(_ROUNDED) else []


def _needed(equations: Sequence[Any], results: Iterable[Any], given: set[Any]) -> list[Any]:
    """The equations that make the results of what is given, in order."""
    needed, found = set(results), []
    for equation in reversed(equations):
        if not needed.isdisjoint(equation.outvars) and not given.issuperset(equation.outvars):
            found.append(equation)
            needed.update(variables(equation.invars))
    return found[::-1]
