"""Short loops: those that XLA alone computes faster than calls of kernels do; and loops that round
nothing.

XLA makes one function of a loop of few elements, if it calls no kernel.  A call of a kernel takes
it longer than all that such a loop does in an iteration.  The kernel for loops (``loops.py``),
which interprets the body, takes longer for most steps, too, but not for products, whose fused
multiply-adds are several operations of XLA that wait for each other.  So what an iteration takes is
estimated for both, by what was measured of each operation: ``benchmarks/short_loops.py`` has both
beside the estimates.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from repjax.primitives.core.programs import open_jaxpr
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.core.values import is_inexact
from repjax.primitives.cpu.bytecode import ELEMENTARY, GRAPHS, OF_TWO, SPECIAL, function_of
from repjax.primitives.fusion.draws import random_bits_p, random_fold_in_p, random_split_p
from repjax.primitives.fusion.entries import raw_dot_general_p
from repjax.primitives.fusion.loops import loop_p
from repjax.primitives.fusion.views import is_move
from repjax.primitives.operations.products import dot_general_p, problems
from repjax.primitives.operations.reductions.extrema import (
    argmax_p,
    argmin_p,
    reduce_max_p,
    reduce_min_p,
)
from repjax.primitives.operations.reductions.sums import reduce_sum_p
from repjax.primitives.operations.scatter import scatter_add_p, scatter_p

#: Elements of the largest array that a short loop computes; operations, and elementary functions
#: among these, that are soon compiled: each function takes LLVM some 20 ms.
_ELEMENTS, _OPERATIONS, _FUNCTIONS = 128, 192, 32

_LONG = frozenset(PREFIX + name for name in (*ELEMENTARY, *OF_TWO, *SPECIAL, *GRAPHS))
_LONGEST = frozenset(
    PREFIX + name for name in ("pow", "lgamma", "digamma", "bessel_i0e", "bessel_i1e", *GRAPHS)
)
_BODIES = {"scan": ("jaxpr",), "while": ("cond_jaxpr", "body_jaxpr"), "cond": ("branches",)}
_MOVES = frozenset(
    (
        *("broadcast_in_dim", "iota", "dynamic_update_slice", "concatenate", "stack"),
        *("unstack", "stop_gradient", "name", "random_wrap", "random_unwrap", "pad", "rev"),
        *("transpose", "split", "tile"),
        PREFIX + "scatter",
    )
)
_GUARDS = frozenset(PREFIX + name for name in ("canonicalize", "enter", "leave", "materialize"))
_CHOOSING = frozenset(("gather", "select_n", "eq_to", "le_to", "lt_to"))
REDUCTIONS = (reduce_sum_p, reduce_max_p, reduce_min_p, argmax_p, argmin_p)
_OF_INTEGERS = frozenset(
    ("reduce_sum", "reduce_max", "reduce_min", "reduce_and", "reduce_or", "argmax", "argmin")
)
#: Operations of numbers that take longer than others.
_SLOW = frozenset(PREFIX + name for name in ("div", "sqrt", "rsqrt"))
#: Nanoseconds of an element.
_ONE_BY_ONE = {"gather": 2, "sort": 30, "cumsum": 5, "cumprod": 5, "cummax": 5, "cummin": 5}
_ONE_BY_ONE |= {PREFIX + name: time for name, time in _ONE_BY_ONE.items()}
_DRAWS = (random_bits_p, random_split_p, random_fold_in_p)
#: What XLA writes a window of in its place: the operand that the window is.
_WRITERS = {"dynamic_update_slice": 1, PREFIX + "scatter": 2, PREFIX + "scatter_add": 2}

#: Nanoseconds of a call of a kernel that XLA makes; iterations of a while, which nobody knows.
_CALL, _ITERATIONS = 400, 8


def is_long(equation) -> bool:
    """Whether it is an elementary function, which XLA compiles and computes more slowly."""
    return equation.primitive.name in _LONG


def _operations(jaxpr) -> Iterator[tuple[Any, int]]:
    """The equations of a program, those in loops and in what is fused one by one, and how often
    each is computed."""
    for equation in open_jaxpr(jaxpr)[0].eqns:
        flat = [p for x in equation.params.values() for p in (x if isinstance(x, tuple) else [x])]
        inside = [p for p in flat if hasattr(p, "eqns") and not hasattr(p, "jaxpr")]
        loop = equation.params["loop"].equation if equation.primitive is loop_p else equation
        if loop.primitive.name in _BODIES:
            yield from ((e, iterations(loop) * times) for e, times in _operations_of(loop))
        elif inside:
            yield from ((e, 1) for program in inside for e in program.eqns)
        else:
            yield equation, 1


def _operations_of(loop) -> Iterator[tuple[Any, int]]:
    """Those of an iteration."""
    for name in _BODIES[loop.primitive.name]:
        programs = loop.params[name]
        for program in programs if isinstance(programs, tuple) else [programs]:
            yield from _operations(program)


def iterations(loop) -> int:
    """How many iterations a loop has, or is taken to have."""
    if loop.primitive.name == "cond":
        return 1
    return loop.params.get("length", _ITERATIONS)


def _moves(operation) -> bool:
    """Whether an operation gives elements as they are, or canonical."""
    name = operation.primitive.name
    if name == "convert_element_type":  # of a weak type
        return operation.invars[0].aval.dtype == operation.outvars[0].aval.dtype
    return is_move(operation) or name in _MOVES | _GUARDS


def _made(operation) -> list[Any]:
    """What takes memory of what an operation gives."""
    of_window = _WRITERS.get(operation.primitive.name)
    return operation.outvars if of_window is None else [operation.invars[of_window]]


def _by_xla(operation) -> float:
    """The nanoseconds that XLA takes for an operation on few elements; infinite if unknown."""
    primitive, elements = operation.primitive, sum(v.aval.size for v in _made(operation))
    vectors = -(-elements // 16)
    if primitive in (dot_general_p, raw_dot_general_p):
        lhs, rhs = (v.aval for v in operation.invars)
        _, problem = problems.dot_general(lhs, rhs, operation.params["dimension_numbers"])
        if operation.params["contraction"] != "sequential":
            return math.inf
        return max(13 * problem.sizes[3], 4 * math.prod(problem.sizes))
    if primitive in REDUCTIONS or primitive.name in _OF_INTEGERS:
        is_pairwise = operation.params.get("accumulation", "pairwise") == "pairwise"
        return 5 + operation.invars[0].aval.size / 2 if is_pairwise else math.inf
    if primitive in (scatter_p, scatter_add_p):
        return 10 if math.prod(operation.invars[1].aval.shape[:-1]) == 1 else math.inf
    if primitive in _DRAWS:
        return 60 + 5 * elements
    if _moves(operation):
        return vectors
    if primitive.name in _ONE_BY_ONE:
        return _ONE_BY_ONE[primitive.name] * elements
    if function_of(operation) is None:
        return math.inf
    if is_long(operation):
        return vectors * 600 if primitive.name in _LONGEST else 10 + vectors * 25
    return 3 + vectors * 2.5 if primitive.name in _SLOW else vectors * 2


def nanoseconds(loop) -> float:
    """Those that XLA is estimated to take for an iteration; infinite if unknown."""
    return sum(times * _by_xla(e) for e, times in _operations_of(loop))


def _without_rounding(operation) -> bool:
    """Whether an operation rounds no numbers: it moves, chooses, compares, or has integers."""
    if _moves(operation) or operation.primitive.name in _CHOOSING:
        return True
    rounds = any(is_inexact(v.aval) for v in operation.outvars)
    return not rounds and function_of(operation) is not None


def is_short(loop, code) -> bool:
    """Whether a scan or a while is a short loop, or one, as of a search, that rounds nothing.

    ``code`` is what the kernel has the loop as, or None.  XLA fuses what is around a gather with
    it, where it needs no guards.
    """
    if loop.primitive.name not in ("scan", "while"):
        return False
    times_of = list(_operations_of(loop))
    operations = [e for e, _ in times_of]
    if any(e.effects for e in operations):
        return False
    if operations and all(map(_without_rounding, operations)):
        return True
    if (
        len(operations) > _OPERATIONS
        or sum(map(is_long, operations)) > _FUNCTIONS
        or any(v.aval.size > _ELEMENTS for e in operations for v in _made(e))
    ):
        return False
    calls = sum(times for e, times in times_of if not _moves(e))
    by_kernels = code.nanoseconds if code else _CALL * calls
    return nanoseconds(loop) < by_kernels
