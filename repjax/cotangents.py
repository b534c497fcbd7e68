"""The cotangents of a value that is used several times: one sum, whose order cannot matter.

Each use of a value gives it a cotangent, and JAX adds them two by two in the order in which it
meets the uses, which differs between its versions.  So does what it takes for one value: a function
under ``jax.jit``, of which ``jax.numpy`` is full, may have variables of its own for what it takes
and for what it passes on.  Here such functions are seen through, and all cotangents of a value are
collected and added by :func:`repjax.primitives.operations.add_n.add_n`, rounded once.

That is so while repjax is active, and for the cotangents of a value that a primitive of repjax
uses: explicit functions are differentiated by a JAX that knows nothing of the switch.  What an
explicit function takes and returns it makes canonical, by a primitive.  That is seen through, too,
so that a value has one sum of cotangents, however many explicit functions use it.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal
from jax.extend.core.primitives import jit_p
from jax.interpreters import ad

from repjax.primitives.core.jax_internals import (
    GradAccum,
    RefAccum,
    ValAccum,
    autodiff,
    ct_check,
    fancy_transposes,
    weakref_lru_cache,
)
from repjax.primitives.core.programs import open_jaxpr
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.operations.add_n import add_n
from repjax.primitives.operations.arithmetic import FORMATS, canonicalize_p

_FORMATS = (*FORMATS, np.dtype(np.complex64))


def add_at_once(is_active: Callable[[], bool]) -> None:
    """Make JAX add cotangents by ``add_n``, where repjax is active and has their format."""
    stock_accum, stock_freeze = ValAccum.accum, ValAccum.freeze
    stock_backward, stock_transpose = autodiff.backward_pass3, fancy_transposes[jit_p]

    def accum(self, x):
        reproducible = is_active() or getattr(self, "reproducible", False)
        if not reproducible or any(y is None or type(y) is ad.Zero for y in (self.val, x)):
            return stock_accum(self, x)
        if jax.typeof(x).dtype not in _FORMATS:
            return stock_accum(self, x)
        ct_check(self, x)
        self.more = (*getattr(self, "more", ()), x)

    def freeze(self):
        terms, self.more = _terms(self), ()
        if len(terms) > 1:
            self.val = add_n(*terms)
        return stock_freeze(self)

    def backward(jaxpr, transform_stack, consts, primals, cotangents):
        jaxpr = _seen_through(jaxpr) if is_active() else jaxpr
        linear = tuple(isinstance(x, GradAccum) for x in (*consts, *primals))
        jaxpr = _one_value(jaxpr, linear)
        return stock_backward(jaxpr, transform_stack, consts, primals, cotangents)

    def transpose_jit(cotangents, *args, jaxpr, **params):
        if not is_active() or any(isinstance(x, RefAccum) for x in args):
            return stock_transpose(cotangents, *args, jaxpr=jaxpr, **params)
        linear = [(type(x), x.aval) if isinstance(x, GradAccum) else None for x in args]
        zeros = [ct.aval if type(ct) is ad.Zero else None for ct in cotangents]
        known = [x for x, kind in zip(args, linear, strict=True) if kind is None]
        given = [ct for ct, aval in zip(cotangents, zeros, strict=True) if aval is None]
        terms, logs = _terms_of_jit(
            known, given, jaxpr=jaxpr, linear=tuple(linear), zeros=tuple(zeros)
        )
        for x, terms_of_x in zip(_values(args), terms, strict=True):
            for term in terms_of_x:
                x.accum(term)
        return logs

    ValAccum.accum, ValAccum.freeze = accum, freeze
    autodiff.backward_pass3, fancy_transposes[jit_p] = backward, transpose_jit


def _values(args) -> list[ValAccum]:
    return [x for x in args if isinstance(x, ValAccum)]


def _terms(accumulator: ValAccum) -> tuple[jax.Array, ...]:
    if type(accumulator.val) is ad.Zero:
        return ()
    return (accumulator.val, *getattr(accumulator, "more", ()))


@functools.partial(jax.jit, static_argnames=("jaxpr", "linear", "zeros"))
def _terms_of_jit(known, cotangents, *, jaxpr, linear, zeros):
    """The cotangents that a linear function under ``jax.jit`` gives its arguments, not added."""
    known, cotangents = iter(known), iter(cotangents)
    args = [next(known) if x is None else x[0](x[1]) for x in linear]
    cotangents = [next(cotangents) if aval is None else ad.Zero(aval) for aval in zeros]
    inner, consts = open_jaxpr(jaxpr)
    logs = autodiff.backward_pass3(inner, False, consts, args, cotangents)
    return [_terms(x) for x in _values(args)], logs


@weakref_lru_cache
def _seen_through(jaxpr):
    """The jaxpr where what functions under ``jax.jit`` pass on is one variable, before and behind.

    Those that JAX inlines, in some versions before differentiation and in others after it, are
    inlined.
    """
    equations = []

    def visit(jaxpr, operands):
        values = dict(zip(jaxpr.invars, operands, strict=True))

        def read(atom):
            return atom if isinstance(atom, Literal) else values.get(atom, atom)

        for equation in jaxpr.eqns:
            operands, params = [read(v) for v in equation.invars], equation.params
            passed_on = {}
            if getattr(equation.primitive, "prim", equation.primitive) is jit_p:
                inner, consts = open_jaxpr(params["jaxpr"])
                if params["inline"] and not consts and not inner.effects:
                    values |= zip(equation.outvars, visit(inner, operands), strict=True)
                    continue
                given = dict(zip(inner.invars, operands, strict=True))
                for v, x in zip(equation.outvars, inner.outvars, strict=True):
                    if not isinstance(x, Literal) and x in given:
                        passed_on[v] = given[x]
            results = [type(v)(v.aval) for v in equation.outvars]
            equations.append(equation.replace(invars=operands, outvars=results))
            values |= zip(equation.outvars, results, strict=True)
            values |= passed_on
        return [read(v) for v in jaxpr.outvars]

    results = visit(jaxpr, jaxpr.invars)
    return jaxpr.replace(eqns=equations, outvars=results)


@weakref_lru_cache
def _one_value(jaxpr, linear: tuple[bool, ...]):
    """The jaxpr where a linear value has one canonical form, which all primitives of repjax read.

    Other uses, which the user wrote between explicit functions, have a canonical form of it each,
    so that what they give back is made canonical.  What flows back from the one form is, too.

    Args:
      linear: which of the jaxpr's variables for constants and arguments it is linear in; others
        have values.
    """
    if not any(equation.primitive is canonicalize_p for equation in jaxpr.eqns):
        return jaxpr
    given = (*jaxpr.constvars, *jaxpr.invars)
    unknown = {v for v, is_linear in zip(given, linear, strict=True) if is_linear}
    #: By canonical variable, the equation that makes it so, the one form of its value, and the
    #: equation that moves that to the shardings of its type, if these are others.
    forms: dict[Any, tuple[Any, Any, Any]] = {}
    #: By value, its one form.
    first: dict[Any, Any] = {}
    equations = []

    def own(atom):
        """A canonical form for one use."""
        if isinstance(atom, Literal) or atom not in forms:
            return atom
        canonicalized, value, moved = forms[atom]
        for equation in (canonicalized, moved) if moved else (canonicalized,):
            result = type(atom)(equation.outvars[0].aval)
            equations.append(equation.replace(invars=[value], outvars=[result]))
            value = result
        return value

    def shared(atom):
        if isinstance(atom, Literal) or atom not in forms or forms[atom][2]:
            return own(atom)
        return forms[atom][1]

    for equation in jaxpr.eqns:
        if not any(not isinstance(v, Literal) and v in unknown for v in equation.invars):
            equations.append(equation)
            continue
        unknown.update(equation.outvars)
        name = equation.primitive.name
        if equation.primitive is canonicalize_p:
            (x,), (result,) = equation.invars, equation.outvars
            if x not in forms and x not in first:
                first[x] = result
                equations.append(equation)
            forms[result] = forms[x] if x in forms else (equation, first[x], None)
            continue
        if name == "reshard" and equation.invars[0] in forms:
            (x,), (result,) = equation.invars, equation.outvars
            canonicalized, form, _ = forms[x]
            forms[result] = canonicalized, form, None if result.aval == form.aval else equation
            continue
        read = shared if name.startswith(PREFIX) else own
        equations.append(equation.replace(invars=[*map(read, equation.invars)]))
    results = [*map(own, jaxpr.outvars)]  # which appends to the equations
    return jaxpr.replace(eqns=equations, outvars=results)
