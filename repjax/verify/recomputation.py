"""Steps of a program (:mod:`repjax.verify.walk`), recomputed by the independent reference."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np

from repjax.verify import reference, walk

#: The orders where no option says otherwise: those that plain JAX is compared with.
DEFAULT_ORDERS = ("pairwise", "sequential")


def as_numpy(x) -> np.ndarray:
    """An array as the reference takes it: a key is one element (``reference.keys``)."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return reference.keys(np.asarray(jax.random.key_data(x)))
    return np.asarray(x)


def types(equation) -> list[tuple[str, tuple[int, ...]]]:
    """The types of what an equation gives."""
    return [(str(v.aval.dtype), tuple(v.aval.shape)) for v in equation.outvars]


def asked(step: walk.Step) -> dict[str, Any]:
    """The arguments of ``reference.compute`` for a step."""
    accumulation, contraction = step.orders or DEFAULT_ORDERS
    equation = step.equation
    return {
        "primitive": equation.primitive.name,
        "operands": [as_numpy(x) for x in step.operands],
        "params": {
            **equation.params,
            reference.random.PARTITIONABLE: jax.config.jax_threefry_partitionable,
        },
        "results": types(equation),
        "accumulation": accumulation,
        "contraction": contraction,
    }


def recompute(step: walk.Step) -> list[np.ndarray]:
    """What a step gives, by the reference.

    Raises:
      NoReference: there is none for it.
    """
    return reference.compute(**asked(step))


def recompute_element(step: walk.Step, index: tuple[int, ...], result: int = 0) -> np.ndarray:
    """One element of it."""
    return reference.element(**asked(step), index=index, result=result)
