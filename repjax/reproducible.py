"""``repjax.reproducible``: make one function reproducible."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax

from repjax import environment, objects, rewrite
from repjax.primitives.core.tables import check_orders, orders
from repjax.tracing import Written, as_written, named, trace

_DIFFERENTIATED = (
    "repjax.reproducible: expected to be the outermost transformation, received a derivative "
    "of a reproducible function; put it outside: repjax.reproducible(jax.grad(f)) instead of "
    "jax.grad(repjax.reproducible(f))"
)


def reproducible(
    fn: Callable[..., Any] | None = None,
    *,
    accumulation: str | None = None,
    contraction: str | None = None,
    **jit_options: Any,
) -> Callable[..., Any]:
    """Make a function of arrays, or of objects of Flax NNX, reproducible: the same bits everywhere.

    Use it like ``jax.jit``, on the outermost function, such as a whole training step; what
    is inside may use any transformation::

        @repjax.reproducible
        def train_step(params, batch):
            loss, grads = jax.value_and_grad(loss_fn)(params, batch)
            ...

    The function is traced and compiled as by ``jax.jit``.  Each operation of the traced
    program, derivatives included, is replaced by its correctly rounded, fixed-order form
    (``docs/numerics.md``).  Inputs are made canonical: subnormals and -0 become +0.  Objects of NNX
    among the arguments, which the function may update, are updated as by ``nnx.jit``
    (``docs/nnx.md``).

    Args:
      fn: the function; without it, a decorator is returned.
      accumulation: the order of sums, ``"pairwise"``, ``"sequential"`` or
        ``"order_independent"``; the default is the option ``repjax_accumulation``.
      contraction: the order of matrix products and convolutions, ``"sequential"`` or
        ``"order_independent"``; the default is the option ``repjax_contraction``.
      **jit_options: passed to ``jax.jit``: ``static_argnums``, ``static_argnames``,
        ``donate_argnums``, ``donate_argnames``, ``inline``.

    Returns:
      A function with the signature and result structure of ``fn``.  It may be called inside
      ``jax.jit``, ``jax.vmap`` and ``jax.lax.scan``, but not differentiated.

    Raises:
      RefusedError: when called with arguments for which ``fn`` uses operations that have no
        reproducible form; it lists them all.
      TypeError: when the result is differentiated, or objects of NNX are static arguments or
        cannot be split.
      RuntimeError: when called in a process, or with compiler options, that change arithmetic
        (:mod:`repjax.environment`).
    """
    if fn is None:
        return functools.partial(
            reproducible, accumulation=accumulation, contraction=contraction, **jit_options
        )
    check_orders(accumulation, contraction)

    def compiled(function, options):
        """``function``, of trees of arrays, by ``jax.jit``."""

        @functools.wraps(function)
        def program(*args, **kwargs):
            environment.check(options.get("compiler_options"))
            jaxpr, operands, rebuild = trace(function, args, kwargs, accumulation, contraction)

            @jax.custom_jvp
            def sealed(*arrays):
                with orders(accumulation, contraction):
                    return rewrite.run(jaxpr, arrays)

            @sealed.defjvp
            def refuse(primals, tangents):
                raise TypeError(_DIFFERENTIATED)

            if as_written.value:
                sealed = named(sealed, Written(jaxpr, accumulation, contraction))
            return rebuild(sealed(*operands))

        return jax.jit(program, **options)

    return objects.Jitted(fn, compiled, jit_options)
