"""Trace a function of pytrees to a jaxpr of its array arguments."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from repjax import config

#: Whether calls of reproducible functions can be looked up by :func:`written_program`, for tools
#: that look at each equation as it was written.  Part of the key of JAX's caches.
as_written = jax.make_user_context(False)
_NAME = "repjax_as_written"


class Written(NamedTuple):
    """A program before it was made reproducible, and the orders that it was given."""

    jaxpr: Any
    accumulation: str | None
    contraction: str | None


_written: list[Written] = []


def trace(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    accumulation: str | None = None,
    contraction: str | None = None,
) -> tuple[Any, list[jax.Array], Callable[[Sequence[Any]], Any]]:
    """The jaxpr of ``function(*args, **kwargs)``, its operands, and how to rebuild results.

    JAX and NumPy arrays among the arguments become operands; anything else is static.
    Derivatives inside ``function`` are the contract's (:mod:`repjax.config`).
    """
    leaves, structure = jax.tree.flatten((args, kwargs))
    operands = [jax.numpy.asarray(x) if is_operand(x) else None for x in leaves]

    # JAX names the function and its arguments in errors, so it is given a function of the user's
    # name and signature, of trees that have None, which is no leaf, for what is static.
    @functools.wraps(function)
    def of_operands(*args, **kwargs):
        given = iter(jax.tree.leaves((args, kwargs)))
        filled = [next(given) if is_operand(x) else x for x in leaves]
        inner_args, inner_kwargs = jax.tree.unflatten(structure, filled)
        return function(*inner_args, **inner_kwargs)

    outer_args, outer_kwargs = jax.tree.unflatten(structure, operands)
    with config.tracing(accumulation, contraction):
        jaxpr, results = jax.make_jaxpr(of_operands, return_shape=True)(*outer_args, **outer_kwargs)
    rebuild = functools.partial(jax.tree.unflatten, jax.tree.structure(results))
    return jaxpr, [x for x in operands if x is not None], rebuild


def is_operand(x) -> bool:
    return isinstance(x, (jax.Array, np.ndarray))


def named(function: Callable[..., Any], program: Written) -> Callable[..., Any]:
    """The function, as a call by itself by which :func:`written_program` finds the program."""

    def call(*arrays):
        return function(*arrays)

    call.__name__ = f"{_NAME} {len(_written)}"
    _written.append(program)
    return jax.jit(call)


def written_program(name: str) -> Written | None:
    """The program of a call that :func:`named` made."""
    first, _, number = name.partition(" ")
    return _written[int(number)] if first == _NAME else None
