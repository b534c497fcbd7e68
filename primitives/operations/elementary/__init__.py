"""Correctly rounded elementary functions, one file each.

Each file states its contract, special values, range reduction, polynomial and hard inputs,
and what has been proven, and holds the algorithm, ``body``.  Here they become primitives, as
:mod:`.table` says, which has their derivatives too.
"""

from __future__ import annotations

import importlib

import jax
from jax import lax
from jax.extend.core import Primitive
from jax.interpreters import batching

from repjax.primitives.core.define import define
from repjax.primitives.core.tables import CODE_SIZE, ELEMENTWISE, rule
from repjax.primitives.core.values import is_inexact
from repjax.primitives.operations.arithmetic import (
    plain_rule,
    pow_integer_p,
    require_format,
    rounded_to_odd,
)
from repjax.primitives.operations.elementary.table import TABLE, Row

#: Derivatives that versions of JAX write as different graphs, by stock primitive: the
#: contract's graph, ``jvp(tangents, result, x)``.
DERIVATIVES = {}


def _primitive(row: Row) -> Primitive:
    """The primitive of a function, its rule and its contract derivative."""
    body = importlib.import_module(f"{__name__}.{row.name}").body
    stock = getattr(lax, row.name, None) or row.own.stock
    half_body = rounded_to_odd(body)
    primitive = define(row.name, body, stock, jvp=row.derivative, half_body=half_body)
    if row.own:  # operands of one shape
        vectorized = batching.defvectorized if row.arity == 1 else batching.defbroadcasting
        vectorized(primitive)
    elif row.derivative:
        DERIVATIVES[getattr(lax, f"{row.name}_p")] = row.derivative
    if row.rule == "plain":
        plain_rule(row.name, primitive)
    if row.code_size is not None:
        CODE_SIZE[row.name] = row.code_size
    if row.on_scalars:
        ELEMENTWISE.add(row.name)
    return primitive


_PRIMITIVES = {row.name: _primitive(row) for row in TABLE}
exp_p, pow_p, hypot_p = (_PRIMITIVES[name] for name in ("exp", "pow", "hypot"))
lgamma_p, digamma_p = (_PRIMITIVES[name] for name in ("lgamma", "digamma"))


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
