"""``repjax.reproducible``: make one function reproducible."""

from __future__ import annotations

import difflib
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ParamSpec, TypedDict, TypeVar, Unpack, overload

import jax

from repjax import environment, objects, rewrite
from repjax.objects import Jitted
from repjax.primitives.core.tables import Accumulation, Contraction, check_orders, orders
from repjax.tracing import Written, as_written, named, trace

_DIFFERENTIATED = (
    "repjax.reproducible: expected to be the outermost transformation, received a derivative of "
    "the reproducible function {name}; put it outside: repjax.reproducible(jax.grad(f)) instead of "
    "jax.grad(repjax.reproducible(f))"
)
P = ParamSpec("P")
R = TypeVar("R")


class JitOptions(TypedDict, total=False):
    """The options of ``jax.jit``."""

    in_shardings: Any
    out_shardings: Any
    static_argnums: int | Sequence[int] | None
    static_argnames: str | Iterable[str] | None
    donate_argnums: int | Sequence[int] | None
    donate_argnames: str | Iterable[str] | None
    keep_unused: bool
    device: Any
    backend: str | None
    inline: Any
    compiler_options: Mapping[str, Any] | None


@overload
def reproducible(
    fn: Callable[P, R],
    *,
    accumulation: Accumulation | None = None,
    contraction: Contraction | None = None,
    **jit_options: Unpack[JitOptions],
) -> Jitted[P, R]: ...


@overload
def reproducible(
    fn: None = None,
    *,
    accumulation: Accumulation | None = None,
    contraction: Contraction | None = None,
    **jit_options: Unpack[JitOptions],
) -> Callable[[Callable[P, R]], Jitted[P, R]]: ...


def reproducible(
    fn: Callable[P, R] | None = None,
    *,
    accumulation: Accumulation | None = None,
    contraction: Contraction | None = None,
    **jit_options: Unpack[JitOptions],
) -> Jitted[P, R] | Callable[[Callable[P, R]], Jitted[P, R]]:
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
      accumulation: the order of sums, ``"pairwise"``, ``"sequential"``,
        ``"order_independent"`` or ``"exact"``; the default is the option ``repjax_accumulation``.
      contraction: the order of matrix products and convolutions, ``"sequential"``,
        ``"order_independent"`` or ``"exact"``; the default is the option ``repjax_contraction``.
      **jit_options: passed to ``jax.jit``: ``static_argnums``, ``static_argnames``,
        ``donate_argnums``, ``donate_argnames``, ``inline`` and the others of :class:`JitOptions`.

    Returns:
      A function with the signature and result structure of ``fn``.  It may be called inside
      ``jax.jit``, ``jax.vmap`` and ``jax.lax.scan``, but not differentiated.

    Raises:
      TypeError: ``fn`` is no function, or there is no such option.
      RefusedError: when called with arguments for which ``fn`` uses operations that have no
        reproducible form; it lists them all.
      TypeError: when the result is differentiated, or objects of NNX are static arguments or
        cannot be split.
      RuntimeError: when called in a process, or with compiler options, that change arithmetic
        (:mod:`repjax.environment`).
    """
    _check_options(jit_options)
    if fn is None:
        return lambda fn: reproducible(
            fn, accumulation=accumulation, contraction=contraction, **jit_options
        )
    if not callable(fn):
        raise TypeError(
            f"repjax.reproducible: expected a function, received {type(fn).__name__}; pass the "
            "function itself and not what it returns, and options by their names"
        )
    check_orders(accumulation, contraction)

    def compiled(function: Callable[..., Any], options: Mapping[str, Any]) -> Any:
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
                raise TypeError(_DIFFERENTIATED.format(name=getattr(fn, "__name__", fn)))

            if as_written.value:
                sealed = named(sealed, Written(jaxpr, accumulation, contraction))
            return rebuild(sealed(*operands))

        return jax.jit(program, **options)

    return objects.Jitted(fn, compiled, dict(jit_options))


def _check_options(options: Iterable[str]) -> None:
    known = [*JitOptions.__annotations__]
    for name in options:
        if name not in known:
            near = difflib.get_close_matches(name, ["accumulation", "contraction", *known], 1)
            raise TypeError(
                f"repjax.reproducible: expected accumulation, contraction or an option of jax.jit, "
                f"received {name!r}; use {near[0] if near else 'one of ' + ', '.join(known)}"
            )
