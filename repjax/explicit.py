"""Explicit functions: a stock function made reproducible, and still differentiable.

:func:`explicit` is how ``repjax.lax``, ``repjax.numpy`` and ``repjax.nn`` are made.  In
contrast to ``repjax.reproducible``, which is applied after autodiff and outermost, the
result may be differentiated, batched and mixed with other code.  What JAX itself then adds
between two explicit functions, the sum of the cotangents of a value that is used several
times, is the contract's (:mod:`repjax.cotangents`), unless all uses are inside ``jax.jit``, where
it is JAX's own: so a whole training step belongs inside ``repjax.reproducible``.

Outside of what JAX traces, an explicit function of JAX or Flax that is called a third time with the
same static arguments is compiled, as one program for each of its operands' types.
"""

from __future__ import annotations

import enum
import functools
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, TypeVar

import jax
import numpy as np

from repjax import config, rewrite
from repjax.primitives.core.interpret import interpret_closed
from repjax.primitives.core.jax_internals import trace_state_clean
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
from repjax.tracing import is_operand, trace

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

    def run(*args, **kwargs):
        jaxpr, operands, rebuild = trace(function, args, kwargs, accumulation, contraction)

        def interpret(refusals, *operands):
            with orders(accumulation, contraction):
                context = Context(refusals=refusals, tracing=config.tracing)

            def program(*operands):
                results = interpret_closed(context, jaxpr, [canonicalize(x) for x in operands])
                results = map(canonicalize, map(leave, results, jaxpr.out_avals))
                return match_types(results, jaxpr.out_avals)

            # What is sharded is canonical, too, so that its cotangents have one sum.
            return in_auto_axes(program, operands, jaxpr.out_avals, sharded=canonicalize)

        try:
            return rebuild(interpret(None, *operands))
        except RefusedError:
            if not listing:
                raise
            refusals: list[Any] = []
            jax.eval_shape(functools.partial(interpret, refusals), *operands)  # nothing is computed
            raise RefusedError(rewrite.report(refusals)) from None

    return boundary(compiled_when_repeated(run, function, accumulation, contraction))


# --- calls outside of what JAX traces -----------------------------------------------------

#: The number of calls with the same static arguments that are not compiled.
_COMPILED_FROM = 2


class _Calls:
    """Calls with the same static arguments: how many there were, and the compiled program."""

    number = 0
    compiled: Callable[[list[Any]], Any] | None = None


@functools.lru_cache(4096)
def _calls(*key: Hashable) -> _Calls:
    return _Calls()


def compiled_when_repeated(
    run: Callable[P, R], function: Callable[P, Any], *key: Hashable
) -> Callable[P, R]:
    """``run``, a twin of a function, whose third call and those after it are one program.

    Calls are the same whose static arguments are.  None is compiled that JAX traces, or that has
    results other than arrays, or whose function may be another one the next time.

    Args:
      key: what else ``run`` depends on.
    """
    is_lasting = _is_lasting(function)

    @functools.wraps(function)
    def twin(*args, **kwargs):
        if not is_lasting or not trace_state_clean():
            return run(*args, **kwargs)
        leaves, structure = jax.tree.flatten((args, kwargs))
        static = tuple(None if is_operand(x) else _key(x) for x in leaves)
        if ... in static:
            return run(*args, **kwargs)
        calls = _calls(function, *key, structure, static)
        if calls.number < _COMPILED_FROM:
            results = run(*args, **kwargs)
            calls.number += all(isinstance(x, jax.Array) for x in jax.tree.leaves(results))
            return results
        if calls.compiled is None:
            calls.compiled = _compiled(run, leaves, structure)
        return calls.compiled([x for x in leaves if is_operand(x)])

    return twin


def _compiled(run, leaves, structure) -> Callable[[list[Any]], Any]:
    static = [None if is_operand(x) else x for x in leaves]

    @jax.jit
    def program(operands):
        given = iter(operands)
        filled = [next(given) if x is None else x for x in static]
        args, kwargs = jax.tree.unflatten(structure, filled)
        return run(*args, **kwargs)

    return program


def _is_lasting(function) -> bool:
    """Whether it is the same function, of nothing but its arguments, in each of its calls."""
    name, module = (getattr(function, x, "") or "" for x in ("__qualname__", "__module__"))
    return (
        bool(name) and "<locals>" not in name and module.split(".")[0] in ("jax", "flax", "optax")
    )


def _key(x: Any) -> Any:
    """What a static argument is looked up by; ``...`` for what may change.  (-0.0 is 0.0 here.)"""
    lasting = bool | int | float | complex | str | np.generic | np.dtype | type | enum.Enum
    return (type(x), x) if isinstance(x, lasting) else ...
