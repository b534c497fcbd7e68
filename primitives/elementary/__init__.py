"""Correctly rounded elementary functions, one file each.

Each file states its contract, special values, range reduction, polynomial and hard inputs,
and what has been proven, and holds the algorithm, ``body``.  Here they become primitives,
with their derivatives.
"""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax import lax
from jax.interpreters import batching

from repjax.primitives.arithmetic import (
    add,
    div,
    mul,
    neg,
    one_minus_square_p,
    plain_rule,
    pow_integer_p,
    require_format,
    rounded_to_odd,
    rsqrt_p,
    square_p,
    sub,
)
from repjax.primitives.define import define
from repjax.primitives.elementary import (
    acos,
    acosh,
    asin,
    asinh,
    atan,
    atan2,
    atanh,
    cbrt,
    cos,
    cosh,
    digamma,
    erf,
    erf_inv,
    erfc,
    exp,
    exp2,
    expm1,
    hypot,
    lgamma,
    log,
    log1p,
    log2,
    log10,
    logistic,
    pow,
    sin,
    sinh,
    tan,
    tanh,
)
from repjax.primitives.interpret import CODE_SIZE, ELEMENTWISE, is_inexact, rule

#: Derivatives that versions of JAX write as different graphs, by stock primitive: the
#: contract's graph, ``jvp(tangents, result, x)``.
DERIVATIVES = {}


def _elementary(name, body, jvp=None):
    """The primitive of a function of ``jax.lax``, its rule and its contract derivative."""
    primitive = define(name, body, getattr(lax, name), jvp=jvp, half_body=rounded_to_odd(body))
    plain_rule(name, primitive)
    CODE_SIZE[name] = 16
    ELEMENTWISE.add(name)
    if jvp is not None:
        DERIVATIVES[getattr(lax, f"{name}_p")] = jvp
    return primitive


def _erf_derivative(sign):
    factor = sign * 2 / np.sqrt(np.pi)

    def jvp(tangents, result, x):
        return mul(_scalar(factor, x), mul(tangents[0], exp_p.bind(neg(square_p.bind(x)))))

    return jvp


def _scalar(value, x):
    return np.asarray(value, x.dtype)


def _acosh_factor(x):
    one = _scalar(1, x)
    return mul(rsqrt_p.bind(sub(x, one)), rsqrt_p.bind(add(x, one)))


def _log_derivative(base):
    def jvp(tangents, result, x):
        return div(tangents[0], mul(x, _scalar(np.log(base), x)))

    return jvp


def _logarithm(name, body, base):
    """A logarithm that not every supported version of ``jax.lax`` has."""
    jvp = _log_derivative(base)
    stock = getattr(lax, name, lambda x: lax.div(lax.log(x), lax.full_like(x, np.log(base))))
    primitive = define(name, body, stock, jvp=jvp, half_body=rounded_to_odd(body))
    batching.defvectorized(primitive)
    return primitive


exp_p = _elementary("exp", exp.body)
exp2_p = _elementary("exp2", exp2.body)
expm1_p = _elementary("expm1", expm1.body, lambda t, y, x: mul(t[0], exp_p.bind(x)))
log_p = _elementary("log", log.body)
log1p_p = _elementary("log1p", log1p.body)
log2_p = _logarithm("log2", log2.body, 2)
log10_p = _logarithm("log10", log10.body, 10)
plain_rule("log2", log2_p)  # which jax.lax has from 0.11 on
ELEMENTWISE.add("log2")
cbrt_p = _elementary("cbrt", cbrt.body)
logistic_p = _elementary("logistic", logistic.body)

sin_p = _elementary("sin", sin.body)
cos_p = _elementary("cos", cos.body)
tan_p = _elementary("tan", tan.body)
asin_p = _elementary(
    "asin",
    asin.body,
    lambda t, y, x: mul(t[0], rsqrt_p.bind(one_minus_square_p.bind(x))),
)
acos_p = _elementary(
    "acos",
    acos.body,
    lambda t, y, x: mul(t[0], neg(rsqrt_p.bind(one_minus_square_p.bind(x)))),
)
atan_p = _elementary("atan", atan.body)

sinh_p = _elementary("sinh", sinh.body)
cosh_p = _elementary("cosh", cosh.body)
tanh_p = _elementary("tanh", tanh.body, lambda t, y, x: mul(t[0], one_minus_square_p.bind(y)))
asinh_p = _elementary(
    "asinh",
    asinh.body,
    lambda t, y, x: mul(t[0], rsqrt_p.bind(add(square_p.bind(x), _scalar(1, x)))),
)
acosh_p = _elementary(
    "acosh",
    acosh.body,
    lambda t, y, x: mul(t[0], _acosh_factor(x)),
)
atanh_p = _elementary("atanh", atanh.body, lambda t, y, x: div(t[0], one_minus_square_p.bind(x)))

erf_p = _elementary("erf", erf.body, _erf_derivative(1))
erfc_p = _elementary("erfc", erfc.body, _erf_derivative(-1))
erf_inv_p = _elementary("erf_inv", erf_inv.body)

pow_p = define("pow", pow.body, lax.pow, half_body=rounded_to_odd(pow.body))


@rule("pow")
def _pow_rule(context, operands, params):
    """Two operations of one name: with an integer exponent it is a chain of products."""
    require_format(context, operands)
    base, exponent = operands
    if not is_inexact(jax.typeof(exponent)):
        return pow_integer_p.bind(base, exponent)
    if not context.differentiable and jax.typeof(exponent).shape != ():
        scalar = context.scalar_of(base)  # whose logarithm is taken once
        base = base if scalar is None else scalar
    return pow_p.bind(base, exponent)


atan2_p = _elementary("atan2", atan2.body)


def _hypot_jvp(tangents, result, x, y):
    terms = [
        mul(div(leg, result), t) for leg, t in zip((x, y), tangents, strict=True) if t is not None
    ]
    return functools.reduce(add, terms)


# jax.lax has none; jax.numpy.hypot is a graph of other operations.
hypot_p = define(
    "hypot",
    hypot.body,
    lambda x, y: lax.sqrt(lax.add(lax.square(x), lax.square(y))),
    jvp=_hypot_jvp,
    half_body=rounded_to_odd(hypot.body),
)
batching.defbroadcasting(hypot_p)
lgamma_p = _elementary("lgamma", lgamma.body)
digamma_p = _elementary("digamma", digamma.body)
