"""Correctly rounded elementary functions, one file each.

Each file states its contract, special values, range reduction, polynomial and hard inputs,
and what has been proven, and holds the algorithm, ``body``.  Here they become primitives,
with their derivatives.
"""

from __future__ import annotations

from jax import lax

from repjax.primitives.arithmetic import mul, one_minus_square_p, plain_rule
from repjax.primitives.define import define
from repjax.primitives.elementary import exp, expm1, log, log1p, logistic, tanh


def _elementary(name, body, stock, **options):
    primitive = define(name, body, stock, **options)
    plain_rule(name, primitive)
    return primitive


exp_p = _elementary("exp", exp.body, lax.exp)
log_p = _elementary("log", log.body, lax.log)
log1p_p = _elementary("log1p", log1p.body, lax.log1p)
logistic_p = _elementary("logistic", logistic.body, lax.logistic)
# Versions of JAX differentiate these two into different graphs: the contract states one.
expm1_p = _elementary("expm1", expm1.body, lax.expm1, jvp=lambda t, y, x: mul(t[0], exp_p.bind(x)))
tanh_p = _elementary(
    "tanh", tanh.body, lax.tanh, jvp=lambda t, y, x: mul(t[0], one_minus_square_p.bind(y))
)
