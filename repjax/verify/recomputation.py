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


def _is_weak(aval) -> bool:
    """Weakly typed float64, which is float32 in the contract (docs/numerics.md, section 11)."""
    return bool(getattr(aval, "weak_type", False)) and aval.dtype == np.float64


def types(equation) -> list[tuple[str, tuple[int, ...]]]:
    """The types of what an equation gives, as the contract has them."""
    return [
        ("float32" if _is_weak(v.aval) else str(v.aval.dtype), tuple(v.aval.shape))
        for v in equation.outvars
    ]


def asked(step: walk.Step) -> dict[str, Any]:
    """The arguments of ``reference.compute`` for a step."""
    accumulation, contraction = step.orders or DEFAULT_ORDERS
    equation = step.equation
    operands = [as_numpy(x) for x in step.operands]
    return {
        "primitive": equation.primitive.name,
        "operands": [
            x.astype(np.float32) if _is_weak(v.aval) else x
            for x, v in zip(operands, equation.invars, strict=True)
        ],
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
    found = reference.compute(**asked(step))
    return [_widened(x, v) for x, v in zip(found, step.equation.outvars, strict=True)]


def recompute_element(step: walk.Step, index: tuple[int, ...], result: int = 0) -> np.ndarray:
    """One element of it."""
    found = reference.element(**asked(step), index=index, result=result)
    return _widened(found, step.equation.outvars[result])


def _widened(x, variable) -> np.ndarray:
    return x.astype(np.float64) if _is_weak(variable.aval) else x
