"""Explicit functions: a stock function made reproducible, and still differentiable.

:func:`explicit` is how ``repjax.lax``, ``repjax.numpy`` and ``repjax.nn`` are made.  In
contrast to ``repjax.reproducible``, which is applied after autodiff and outermost, the
result may be differentiated, batched and mixed with other code.  What JAX itself then adds
between two explicit functions, the sum of the cotangents of a value that is used several
times, is the contract's (:mod:`repjax.cotangents`), unless all uses are inside ``jax.jit``, where
it is JAX's own: so a whole training step belongs inside ``repjax.reproducible``.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax

from repjax import config, rewrite
from repjax.primitives.core.interpret import interpret_closed
from repjax.primitives.core.tables import (
    Accumulation,
    Context,
    Contraction,
    RefusedError,
    check_orders,
    orders,
)
from repjax.primitives.core.values import canonicalize
from repjax.primitives.core.weak import leave
from repjax.rules import match_types
from repjax.sharding import in_auto_axes
from repjax.tracebacks import boundary
from repjax.tracing import trace

P = ParamSpec("P")
R = TypeVar("R")


def explicit(
    function: Callable[P, R],
    *,
    accumulation: Accumulation | None = None,
    contraction: Contraction | None = None,
    listing: bool = False,
) -> Callable[P, R]:
    """A reproducible, differentiable twin of a function of arrays.

    JAX and NumPy arrays among the arguments are its operands; anything else is static.

    Args:
      listing: whether the error for what has no reproducible form lists all of it, with the
        user's file and line; without, it is about the first.
    """
    check_orders(accumulation, contraction)

    @boundary
    @functools.wraps(function)
    def twin(*args, **kwargs):
        jaxpr, operands, rebuild = trace(function, args, kwargs, accumulation, contraction)

        def run(refusals, *operands):
            with orders(accumulation, contraction):
                context = Context(refusals=refusals, tracing=config.tracing)

            def program(*operands):
                results = interpret_closed(context, jaxpr, [canonicalize(x) for x in operands])
                results = map(canonicalize, map(leave, results, jaxpr.out_avals))
                return match_types(results, jaxpr.out_avals)

            # What is sharded is canonical, too, so that its cotangents have one sum.
            return in_auto_axes(program, operands, jaxpr.out_avals, sharded=canonicalize)

        try:
            return rebuild(run(None, *operands))
        except RefusedError:
            if not listing:
                raise
            refusals: list[Any] = []
            jax.eval_shape(functools.partial(run, refusals), *operands)  # nothing is computed
            raise RefusedError(rewrite.report(refusals)) from None

    return twin
