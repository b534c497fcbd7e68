"""Correctly rounded elementary functions, one file each.

Each file states its contract, special values, range reduction, polynomial and hard inputs,
and what has been proven, and holds the algorithm, ``body``.  Here they become primitives,
with their derivatives.
"""

from __future__ import annotations

import numpy as np
from jax import lax

from repjax.primitives.arithmetic import mul, neg, one_minus_square_p, plain_rule, square_p
from repjax.primitives.define import define
from repjax.primitives.elementary import erf, erf_inv, exp, expm1, log, log1p, logistic, tanh

#: Derivatives that versions of JAX write as different graphs, by stock primitive: the
#: contract's graph, ``jvp(tangents, result, x)``.
DERIVATIVES = {}


def _elementary(name, body, stock, jvp=None):
    primitive = define(name, body, stock, jvp=jvp)
    plain_rule(name, primitive)
    if jvp is not None:
        DERIVATIVES[getattr(lax, f"{name}_p")] = jvp
    return primitive


def _expm1_jvp(tangents, result, x):
    return mul(tangents[0], exp_p.bind(x))


def _tanh_jvp(tangents, result, x):
    return mul(tangents[0], one_minus_square_p.bind(result))


def _erf_jvp(tangents, result, x):
    gaussian = exp_p.bind(neg(square_p.bind(x)))
    return mul(np.float32(2 / np.sqrt(np.pi)), mul(tangents[0], gaussian))


exp_p = _elementary("exp", exp.body, lax.exp)
expm1_p = _elementary("expm1", expm1.body, lax.expm1, _expm1_jvp)
log_p = _elementary("log", log.body, lax.log)
log1p_p = _elementary("log1p", log1p.body, lax.log1p)
tanh_p = _elementary("tanh", tanh.body, lax.tanh, _tanh_jvp)
logistic_p = _elementary("logistic", logistic.body, lax.logistic)
erf_p = _elementary("erf", erf.body, lax.erf, _erf_jvp)
erf_inv_p = _elementary("erf_inv", erf_inv.body, lax.erf_inv)
