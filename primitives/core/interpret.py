"""Interpret stock JAX equations with reproducible operations.

The heart of repjax is one table, ``tables.RULES``, from the name of a stock JAX
primitive to its reproducible form, and one interpreter that walks a jaxpr and
applies it.  The same table serves the derivative rules of repjax's primitives
(:mod:`repjax.primitives.core.define` traces the stock derivative and interprets it),
the explicit functions (``repjax.lax``, ``repjax.nn``), ``repjax.reproducible``
and the global switch, which is why they agree bit for bit.

A rule is called for equations that touch floating-point values; for equations that touch none
there is one if their primitive is listed in :mod:`repjax.primitives.operations.exact`.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal

from repjax.primitives.core import weak
from repjax.primitives.core.canonical import HALVES
from repjax.primitives.core.jax_internals import lowering_rules
from repjax.primitives.core.programs import (
    bind_equation,
    is_explicit,
    open_jaxpr,
    staged,
    struct_of,
)
from repjax.primitives.core.tables import (
    ADVICE,
    CODE_SIZE,
    COMPARING,
    COMPLEX,
    ELEMENTWISE,
    EXACT,
    EXACT_ON_INTEGERS,
    LARGEST_LOOP,
    LARGEST_REPEATED,
    NOT_DIFFERENTIABLE,
    PREFIX,
    PRIMITIVES,
    RULES,
    STRUCTURAL,
    TOGETHER,
    TURN_X64_OFF,
    WRITE_IT,
    Context,
    RefusedError,
    Rule,
    rule,
)
from repjax.primitives.core.values import (
    canonical_number,
    constant,
    hidden,
    is_complex,
    is_inexact,
)


def program(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as what the stock primitives ``names`` compute.

    The function is written in stock operations, ``function(*operands, **params)``; the rule is
    to interpret it.
    """

    def register(function):
        @rule(*names, structural=True, holding=False)
        def interpreted(context, operands, params):
            return _interpreted(function, context, operands, params)

        return function

    return register


def _find_rule(context: Context, equation) -> Rule:
    """The rule of an equation, or RefusedError."""
    name = equation.primitive.name
    if name == PREFIX + "canonicalize" and not context.differentiable:
        return _as_its_operand
    if name.startswith(PREFIX):
        return _as_it_stands
    if name in STRUCTURAL:
        return RULES[name]
    if (function := _function_of(equation.primitive)) is not None:
        if context.differentiable:
            raise RefusedError(f"{name} {NOT_DIFFERENTIABLE}")
        return functools.partial(_interpreted, function)
    if not _has_form(name):
        raise RefusedError(f"{name} has no reproducible form; {ADVICE.get(name, WRITE_IT)}")
    avals = [v.aval for v in (*equation.invars, *equation.outvars)]
    if any(map(is_complex, avals)):
        return _find_complex_rule(context, name, avals)
    if name in EXACT:
        return EXACT[name]
    if name in EXACT_ON_INTEGERS and not any(map(is_inexact, avals)):
        return EXACT_ON_INTEGERS[name]
    if name not in RULES:
        raise RefusedError(
            f"{name} of these types has no reproducible form; {ADVICE.get(name, WRITE_IT)}"
        )
    return RULES[name]


def _has_form(name: str) -> bool:
    """Whether the stock primitive has a reproducible form, for operands of some types."""
    return any(name in names for names in (RULES, EXACT, EXACT_ON_INTEGERS, COMPLEX))


def _function_of(primitive) -> Callable[..., Any] | None:
    """What a primitive without a rule is on every platform, if that is a function in JAX.

    So are some of JAX's (``igamma``) and most of those that other libraries define, by
    ``mlir.lower_fun``, which has no other record of the function than its closure.
    """
    name = primitive.name
    if _has_form(name):
        return None
    entry = lowering_rules.get(primitive)
    lowering = getattr(entry, "rule", entry)
    if not getattr(lowering, "__qualname__", "").startswith("lower_fun.<locals>"):
        return None
    return inspect.getclosurevars(lowering).nonlocals.get("fun")


def _as_it_stands(context: Context, operands, params):
    results = bind_equation(context.equation, operands, params)
    return results if context.equation.primitive.multiple_results else results[0]


def _as_its_operand(context: Context, operands, params):
    """Of what is made canonical: all values of :func:`interpret` are."""
    return operands[0]


def _interpreted(function, context: Context, operands, params):
    results = interpret_function(context, functools.partial(function, **params), operands)
    return results if context.equation.primitive.multiple_results else results[0]


def _without_shardings(params: dict[str, Any]) -> dict[str, Any]:
    """The params without shardings over explicit axes, which no type has here."""
    names = [name for name in ("sharding", "out_sharding") if is_explicit(params.get(name))]
    return {**params, **dict.fromkeys(names)} if names else params


def _find_complex_rule(context: Context, name: str, avals) -> Rule:
    if wide := [str(aval.dtype) for aval in avals if getattr(aval, "dtype", None) == np.complex128]:
        raise RefusedError(
            f"{name} expected complex64, received {wide[0]}; convert with .astype('complex64'), "
            f"{TURN_X64_OFF}"
        )
    if context.differentiable:
        raise RefusedError(f"{name} on complex numbers {NOT_DIFFERENTIABLE}")
    if name in COMPLEX:
        return COMPLEX[name]
    if name in EXACT and name not in COMPARING:
        return EXACT[name]
    raise RefusedError(
        f"{name} on complex numbers has no reproducible form; "
        + ADVICE.get(name, "use pairs of real arrays")
    )


def _changes_nothing(equation) -> bool:
    """Whether it scatters no updates.

    Where such a call meets an unrolled loop, XLA forgets the attributes of custom calls.
    """
    is_scatter = equation.primitive.name.startswith("scatter")
    return is_scatter and equation.invars[2].aval.size == 0


def apply_equation(context: Context, equation, operands) -> list[Any]:
    """The results of one stock equation in its reproducible form."""
    context = dataclasses.replace(context, equations=(*context.equations, equation))
    if _changes_nothing(equation):
        return operands[:1]
    if (result := weak.undecided(equation, operands)) is not None:
        return [result]
    params = None
    try:
        operands, params = weak.decided(equation, operands)
        found = _find_rule(context, equation)
        params = _without_shardings(params)
        results = found(context, operands, params)
        return list(results) if equation.primitive.multiple_results else [results]
    except RefusedError as error:
        if context.refusals is None:
            raise
        context.refusals.append((context.equations, error))
        if params is None:
            types = [v.aval for v in equation.invars]
            operands, params = list(map(weak.widened, operands, types)), equation.params
        return bind_equation(equation, operands, params)  # never run: the caller raises in the end


def _literal(literal):
    """The canonical value of a literal, which no entry guard has seen."""
    if not is_inexact(literal.aval):
        return literal.val
    if weak.is_float64(literal.aval):
        return weak.Constant.of(np.float64, literal.val)
    return canonical_number(literal.val, literal.aval.dtype)


def interpret(context: Context, jaxpr, consts, operands) -> list[Any]:
    """The results of a jaxpr with every equation in its reproducible form.

    Operands and consts must be canonical (:mod:`repjax.primitives.core.canonical`); so are
    the results, except for the payload of NaNs.  Those of the type float64 are what
    :mod:`repjax.primitives.core.weak` says.
    """
    jaxpr, _ = open_jaxpr(jaxpr)
    environment: dict[Any, Any] = {}

    uses = _uses(jaxpr)

    def read(atom):
        return _literal(atom) if isinstance(atom, Literal) else environment[atom]

    def write(variables, values):
        for variable, value in zip(variables, values, strict=True):
            if not context.differentiable:
                value = _in_memory(context, value, uses[variable])
            environment[variable] = value

    write(jaxpr.constvars, consts)
    write(jaxpr.invars, operands)
    for equation, others in _together(jaxpr.eqns):
        if others:
            equations = [equation, *others]
            values = [read(v) for each in equations for v in each.invars]
            results = _apply_together(context, equations, values)
            write([v for each in equations for v in each.outvars], results)
            continue
        values = [read(v) for v in equation.invars]
        context.constants.update(
            (id(x), x)
            for v, x in zip(equation.invars, values, strict=True)
            if isinstance(v, Literal)
        )
        repeated = _of_scalars(context, equation, values)
        results = apply_equation(context, equation, values) if repeated is None else repeated
        results = _hide_constants(context, equation, values, results, repeated is not None)
        _measure(context, equation, values, results)
        write(equation.outvars, results)
    return [read(v) for v in jaxpr.outvars]


def _together(equations) -> Iterator[tuple[Any, list[Any]]]:
    """The equations in an order in which they can be computed, and with each those that may be
    computed with it: of a name in TOGETHER, that wait for nothing of each other."""
    waiting: list[Any] = []
    made: set[Any] = set()
    for equation in equations:
        can_wait = equation.primitive.name in TOGETHER and all(
            v.aval.dtype in (np.float32, *HALVES) for v in equation.invars
        )
        needed = not made.isdisjoint(v for v in equation.invars if not isinstance(v, Literal))
        another = waiting and (can_wait or equation.effects) and not _alike(waiting[0], equation)
        if waiting and (needed or another):
            yield waiting[0], waiting[1:]
            waiting, made = [], set()
        if can_wait:
            waiting.append(equation)
            made.update(equation.outvars)
        else:
            yield equation, []
    if waiting:
        yield waiting[0], waiting[1:]


def _alike(first, second) -> bool:
    return first.primitive is second.primitive and first.params == second.params


def _apply_together(context: Context, equations, operands) -> list[Any]:
    """The results of several equations of one operand and one result."""
    inside = dataclasses.replace(context, equations=(*context.equations, equations[0]))
    try:
        first = equations[0]
        return TOGETHER[first.primitive.name](inside, operands, first.params)
    except RefusedError:  # each says so itself
        pairs = zip(equations, operands, strict=True)
        return [result for e, x in pairs for result in apply_equation(context, e, [x])]


def _of_scalars(context: Context, equation, values) -> list[Any] | None:
    """The results of an elementwise operation on scalars that were broadcast, broadcast again.

    XLA would arrive there by itself, but one operation of a body at a time, and complains of a body
    that is longer than it has patience.  None where that is not what the equation is.
    """
    name = equation.primitive.name
    if context.differentiable:  # the derivative of a broadcast is a sum
        return None
    if any(isinstance(x, weak.Undecided) for x in values):
        return None
    if name == "broadcast_in_dim" and (scalar := context.scalar_of(values[0])) is not None:
        results = apply_equation(context, equation, values)
    elif name in ELEMENTWISE and equation.outvars[0].aval.shape != ():
        scalars = [context.scalar_of(x) for x in values]
        if name == "add" and any(map(_is_zero, scalars)):  # as of imaginary parts of real numbers
            x = values[0] if _is_zero(scalars[1]) else values[1]
            return [x] if jax.typeof(x) == equation.outvars[0].aval else None
        if any(x is None for x in scalars):
            return None
        if name == "square" and _is_zero(*scalars):
            scalar = scalars[0]
        else:
            (scalar,) = apply_equation(context, equation, scalars)
        shape = jax.lax.broadcast_shapes(*(jax.typeof(x).shape for x in values))
        results = [jax.lax.broadcast_in_dim(scalar, shape, ())]
    else:
        return None
    context.repeated[id(results[0])] = scalar, results[0]
    return results


def _is_zero(x) -> bool:
    return isinstance(x, np.ndarray | np.generic) and x.ndim == 0 and is_inexact(x) and x == 0


def _uses(jaxpr) -> collections.Counter:
    """How many loops use each variable; reductions and the like read theirs more than once."""
    uses = collections.Counter(v for v in jaxpr.outvars if not isinstance(v, Literal))
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        times = 1 if name in CODE_SIZE or name in STRUCTURAL else 2
        for atom in equation.invars:
            if not isinstance(atom, Literal):
                uses[atom] += times
    return uses


def _size(context: Context, value) -> int:
    return context.sizes.get(id(value), (0, None))[0]


def _measure(context: Context, equation, operands, results) -> None:
    """Note the code size of the results of an equation."""
    if context.differentiable:  # nothing asks for it, and values are not to outlive their trace
        return
    own = CODE_SIZE.get(equation.primitive.name.removeprefix(PREFIX))
    if own is not None:
        total = own + sum(_size(context, x) for x in operands)
        context.sizes.update((id(x), (total, x)) for x in results)


def _in_memory(context: Context, value, uses: int):
    """The value, in memory if computing it where it is used would take too much code."""
    if isinstance(value, weak.Undecided) or (size := _size(context, value)) < LARGEST_REPEATED:
        return value
    aval = jax.typeof(value)
    repeated = uses > 1 and aval.dtype == np.float32
    long = size >= LARGEST_LOOP and aval.dtype in HALVES
    if getattr(aval, "size", 1) != 1 and (repeated or long):
        return PRIMITIVES["materialize"].bind(value)
    return value


#: These make equal elements of equal elements, which have no order; they stay visible to XLA.
_UNIFORM = {
    *("broadcast_in_dim", "broadcast_to", "reshape", "convert_element_type"),
    *("neg", "add", "sub", "mul", "div", "select_n"),
}


def _hide_constants(context: Context, equation, operands, results, repeated) -> list[Any]:
    """The results, hidden if they are constants whose elements may differ."""
    if not operands or not all(id(x) in context.constants for x in operands):
        return results
    undecided = any(isinstance(x, weak.Undecided) for x in results)  # numbers of the program
    if undecided or repeated or equation.primitive.name in _UNIFORM:
        context.constants.update((id(x), x) for x in results)
        return results
    # What a call gives may be a scalar that was broadcast.
    return [x if id(x) in context.repeated else hidden(x) for x in results]


def interpret_closed(context: Context, jaxpr, operands) -> list[Any]:
    """:func:`interpret` of a closed jaxpr, whose consts are made canonical here."""
    inner, consts = open_jaxpr(jaxpr)
    types = [[v.aval for v in variables] for variables in (inner.constvars, inner.invars)]
    consts = map(weak.enter, map(constant, consts), types[0])
    return interpret(context, inner, list(consts), list(map(weak.enter, operands, types[1])))


def interpret_function(context: Context, function, operands) -> list[Any]:
    """:func:`interpret` of a function of arrays, traced on the types of the operands."""
    with staged():
        jaxpr = jax.make_jaxpr(function)(*map(struct_of, operands))
    return list(map(weak.leave, interpret_closed(context, jaxpr, operands), jaxpr.out_avals))
