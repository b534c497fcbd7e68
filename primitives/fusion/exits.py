"""Exits: results of a program, which are made canonical where they are made.

All values are canonical except for their NaNs, and a program ends with a ``canonicalize`` of each
result.  That would be one more pass over memory where a kernel has made the result: some kernels
see to their NaNs themselves.  And where a loop of XLA makes it and others read it too, XLA would
compute it twice, and could not write it where an operand was that has been given to it
(``donate_argnums``).
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
from jax.extend.core import Literal, Primitive, Var
from jax.interpreters import batching, mlir

from repjax.primitives.core import canonical
from repjax.primitives.core.define import kernel_for
from repjax.primitives.core.jax_internals import prim_requires_devices_during_lowering
from repjax.primitives.core.programs import bind_equation, renamed, settled
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.core.values import canonicalize
from repjax.primitives.fusion.entries import (
    RAW_SCATTERS,
    WRITING,
    canonicalize_in_place_p,
    of_each_element,
    raw_dot_general_p,
)
from repjax.primitives.fusion.kernels import Kernels
from repjax.primitives.fusion.views import is_canonicalize, is_move, variables
from repjax.primitives.operations.fourier import fourier_p
from repjax.primitives.operations.products import conv_general_dilated_p, dot_general_p

_PRODUCTS = (dot_general_p, raw_dot_general_p, conv_general_dilated_p)
_SCATTERS = (*RAW_SCATTERS, *RAW_SCATTERS.values())
#: Operations whose results have no other elements than their operand, besides moves.
_SPREADING = frozenset(("broadcast_in_dim", "real", "imag"))


def _ends_canonical(equation, operand_is_canonical: bool) -> bool:
    """Whether the kernel of an equation gives its result one NaN, if there is one."""
    if equation.primitive in _PRODUCTS:
        return equation.params["contraction"] in ("sequential", "order_independent")
    if equation.primitive is fourier_p:
        return True
    return equation.primitive in _SCATTERS and operand_is_canonical  # of rows without updates


def _sources(jaxpr) -> dict[Any, Any]:
    """For what is canonical, or would be if an equation's kernel ended so: the variable that this
    equation makes, or None."""
    sources: dict[Any, Any] = {}
    for equation in jaxpr.eqns:
        x, result = (atoms[0] if atoms else None for atoms in (equation.invars, equation.outvars))
        is_literal = isinstance(x, Literal)
        is_known, source = is_literal or x in sources, None if is_literal else sources.get(x)
        if is_canonicalize(equation) or equation.primitive is canonicalize_in_place_p:
            sources[result] = None
        elif _ends_canonical(equation, is_known and source is None):
            sources[result] = result
        elif is_known and (is_move(equation) or equation.primitive.name in _SPREADING):
            sources[result] = source
    return sources


def _writes(equation) -> bool:
    """Whether it writes few elements to some places of an array of numbers."""
    if equation.primitive.name not in WRITING:
        return False
    array, written = (equation.invars[i].aval for i in (0, WRITING[equation.primitive.name]))
    return array.dtype in canonical.FORMATS and 2 * written.size <= array.size


def _writing_canonical(jaxpr):
    """The program in which what is written to some places of a canonical array is canonical.

    And the results of that, in which nothing else is to be made canonical.
    """
    known = {v for v, source in _sources(jaxpr).items() if source is None}
    written, equations = set(), []
    for equation in jaxpr.eqns:
        array = set(variables(equation.invars[:1]))
        if _writes(equation) and array <= known | written:
            at = WRITING[equation.primitive.name]
            x, made = equation.invars[at], Var(equation.invars[at].aval)
            if not isinstance(x, Literal) and x not in known | written:
                leaving = {"primitive": leave_p, "params": {}, "invars": [x], "outvars": [made]}
                equations.append(equation.replace(**leaving))
                invars = [*equation.invars[:at], made, *equation.invars[at + 1 :]]
                equation = equation.replace(invars=invars)
            written.update(equation.outvars)
        elif is_move(equation) and array and array <= written:
            written.update(equation.outvars)
        equations.append(equation)
    return jaxpr.replace(eqns=equations), written


def with_exits(jaxpr, kernels: Kernels):
    """The program in which others read results as they leave it, and kernels end with theirs."""
    jaxpr, written = _writing_canonical(jaxpr)
    returned, sources = set(variables(jaxpr.outvars)), _sources(jaxpr)
    inputs = {*jaxpr.invars, *jaxpr.constvars}
    elementwise = (e for e in jaxpr.eqns if kernels.is_elementwise(e) and not is_canonicalize(e))
    by_loops = {v for e in elementwise for v in e.outvars}
    ending = set()  # what kernels make canonical
    leaving: dict[Any, Any] = {}  # for what loops make, what it is when it has left
    read: dict[Any, Any] = {}  # what to read in the place of a variable
    for equation in filter(is_canonicalize, jaxpr.eqns):
        (x,), (result,) = equation.invars, equation.outvars
        if isinstance(x, Literal):
            continue
        if x in written:
            read[result] = read.get(x, x)
        elif sources.get(x) is not None:
            ending.add(sources[x])
            read[result] = read.get(x, x)
        elif x in by_loops and (x in leaving or result in returned):
            read[result] = read[x] = leaving.setdefault(x, result)

    equations = []
    for equation in jaxpr.eqns:
        if is_canonicalize(equation) and equation.outvars[0] in read:
            continue
        equation = equation.replace(invars=renamed(equation.invars, read))
        is_exit = is_canonicalize(equation) and returned.intersection(equation.outvars)
        if is_exit and not inputs.intersection(variables(equation.invars)):
            equation = equation.replace(primitive=leave_p, params={})
        if ending.intersection(equation.outvars):
            equation = equation.replace(primitive=ended_p, params={"end": End((equation,))})
        equations.append(equation)
        for x in equation.outvars:
            if x in leaving:
                leaves = {"primitive": leave_p, "params": {}, "invars": [x]}
                equations.append(equation.replace(**leaves, outvars=[leaving[x]]))
    return jaxpr.replace(eqns=equations, outvars=renamed(jaxpr.outvars, read))


@dataclasses.dataclass(frozen=True, eq=False)
class End:
    """An equation whose result is made canonical, as a program of one equation."""

    eqns: tuple[Any]


# --- primitives -------------------------------------------------------------------------

#: Makes canonical what is so except for its NaNs.
leave_p = of_each_element("leave", canonical.one_nan)


def _as_it_is(*operands, end: End):
    (equation,) = end.eqns
    (result,) = bind_equation(equation, operands, equation.params)
    return result


def _made_canonical(*operands, end: End):
    return canonicalize(_as_it_is(*operands, end=end))


def _lower(ctx, *operands, end: End, platform=None):
    primitive = end.eqns[0].primitive
    has_kernel = platform is not None and kernel_for(primitive, platform, ctx) is not None
    function = _as_it_is if has_kernel else _made_canonical
    with settled():
        lower = mlir.lower_fun(functools.partial(function, end=end), False)
        return lower(ctx, *operands)


def _batch(operands, dimensions, *, end: End):
    function = functools.partial(_made_canonical, end=end)
    return jax.vmap(function, in_axes=tuple(dimensions), out_axes=0)(*operands), 0


#: The result of an equation, made canonical, by its kernel or after it.
ended_p = Primitive(PREFIX + "ended")
ended_p.def_impl(_made_canonical)
ended_p.def_abstract_eval(lambda *_, end: end.eqns[0].outvars[0].aval)
mlir.register_lowering(ended_p, _lower)
mlir.register_lowering(ended_p, functools.partial(_lower, platform="cpu"), platform="cpu")
batching.primitive_batchers[ended_p] = _batch
prim_requires_devices_during_lowering.add(ended_p)
