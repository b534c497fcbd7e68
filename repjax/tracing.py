"""Trace a function of pytrees to a jaxpr of its array arguments."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from repjax import config


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
    dynamic = [i for i, x in enumerate(leaves) if isinstance(x, (jax.Array, np.ndarray))]
    out_structure = None

    def flat(*arrays):
        nonlocal out_structure
        filled = list(leaves)
        for i, array in zip(dynamic, arrays, strict=True):
            filled[i] = array
        inner_args, inner_kwargs = jax.tree.unflatten(structure, filled)
        results, out_structure = jax.tree.flatten(function(*inner_args, **inner_kwargs))
        return results

    operands = [jax.numpy.asarray(leaves[i]) for i in dynamic]
    with config.tracing(accumulation, contraction):
        jaxpr = jax.make_jaxpr(flat)(*operands)
    return jaxpr, operands, lambda results: jax.tree.unflatten(out_structure, results)
