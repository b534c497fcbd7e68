"""Short loops: of so few elements that XLA makes one function of them, if they call no kernel; and
loops that round nothing.

A call of a kernel takes XLA longer than all that such a loop does in an iteration.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from repjax.primitives.core.programs import open_jaxpr
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.core.values import is_inexact
from repjax.primitives.cpu.bytecode import ELEMENTARY, GRAPHS, OF_TWO, SPECIAL, function_of
from repjax.primitives.fusion.entries import raw_dot_general_p
from repjax.primitives.fusion.loops import loop_p
from repjax.primitives.fusion.views import is_move
from repjax.primitives.operations.products import dot_general_p, problems
from repjax.primitives.operations.reductions.extrema import reduce_max_p, reduce_min_p
from repjax.primitives.operations.reductions.sums import reduce_sum_p

#: Elements of all results in a body and of what is reduced, and operations that are soon compiled:
#: XLA makes a function of a loop that reads and writes less than 1024 bytes in an iteration.
_ELEMENTS, _OPERATIONS = 256, 64
#: Multiplications of a product, and terms of its chains, whose steps wait for each other.
_PRODUCT, _CHAIN = 64, 16

_LONG = frozenset(PREFIX + name for name in (*ELEMENTARY, *OF_TWO, *SPECIAL, *GRAPHS))
_BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr")}
_MOVES = frozenset(
    (
        *("broadcast_in_dim", "iota", "dynamic_update_slice", "concatenate", "stack"),
        *("unstack", "stop_gradient", "name"),
        PREFIX + "scatter",
    )
)
_GUARDS = frozenset(PREFIX + name for name in ("canonicalize", "enter", "leave", "materialize"))
_CHOOSING = frozenset(("gather", "select_n", "eq_to", "le_to", "lt_to"))
_REDUCTIONS = (reduce_sum_p, reduce_max_p, reduce_min_p)


def is_long(equation) -> bool:
    """Whether it is an elementary function, which XLA compiles and computes more slowly."""
    return equation.primitive.name in _LONG


def _operations(jaxpr) -> Iterator[Any]:
    """The equations of a program, those in loops and in what is fused one by one."""
    for equation in open_jaxpr(jaxpr)[0].eqns:
        flat = [p for x in equation.params.values() for p in (x if isinstance(x, tuple) else [x])]
        inside = [p for p in flat if hasattr(p, "eqns") and not hasattr(p, "jaxpr")]
        if equation.primitive is loop_p:
            yield from _operations_of(equation.params["loop"].equation)
        elif inside:
            yield from (e for program in inside for e in program.eqns)
        else:
            yield equation


def _operations_of(loop) -> Iterator[Any]:
    for name in _BODIES[loop.primitive.name]:
        yield from _operations(loop.params[name])


def _moves(operation) -> bool:
    """Whether an operation gives elements as they are, or canonical."""
    name = operation.primitive.name
    if name == "convert_element_type":  # of a weak type
        return operation.invars[0].aval.dtype == operation.outvars[0].aval.dtype
    return is_move(operation) or name in _MOVES | _GUARDS


def _is_short(operation) -> bool:
    """Whether XLA is fast at an operation on few elements."""
    primitive = operation.primitive
    if primitive in (dot_general_p, raw_dot_general_p):
        lhs, rhs = (v.aval for v in operation.invars)
        _, problem = problems.dot_general(lhs, rhs, operation.params["dimension_numbers"])
        is_small = math.prod(problem.sizes) <= _PRODUCT and problem.sizes[3] <= _CHAIN
        return is_small and operation.params["contraction"] == "sequential"
    if primitive in _REDUCTIONS:
        return operation.params.get("accumulation", "pairwise") == "pairwise"
    if _moves(operation):
        return True
    return function_of(operation) is not None and not is_long(operation)


def _without_rounding(operation) -> bool:
    """Whether an operation rounds no numbers: it moves, chooses, compares, or has integers."""
    if _moves(operation) or operation.primitive.name in _CHOOSING:
        return True
    rounds = any(is_inexact(v.aval) for v in operation.outvars)
    return not rounds and function_of(operation) is not None


def is_short(loop) -> bool:
    """Whether a scan or a while is a short loop, or one, as of a search, that rounds nothing.

    XLA fuses what is around a gather with it, where it needs no guards.
    """
    if loop.primitive.name not in _BODIES:
        return False
    operations = list(_operations_of(loop))
    if operations and all(map(_without_rounding, operations)):
        return not any(e.effects for e in operations)
    reduced = [v for e in operations if e.primitive in _REDUCTIONS for v in e.invars]
    results = [v for e in operations for v in e.outvars]
    return (
        len(operations) <= _OPERATIONS
        and sum(v.aval.size for v in (*results, *reduced)) <= _ELEMENTS
        and not any(e.effects for e in operations)
        and all(map(_is_short, operations))
    )
