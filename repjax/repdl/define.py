"""What the functions of :mod:`repjax.repdl` are made with."""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Any, NoReturn

import jax
import numpy as np
from jax import numpy as jnp

from repjax.explicit import explicit

in_order: Callable[..., Any] = functools.partial(
    explicit, accumulation="sequential", contraction="sequential"
)


def with_gradient(forward: Callable[..., Any], gradient: Callable[..., Any]) -> Callable[..., Any]:
    """``forward`` with the cotangents ``gradient(args, cotangent)`` of its arguments."""
    forward, gradient = in_order(forward), in_order(gradient)
    function = jax.custom_vjp(forward)
    function.defvjp(lambda *args: (forward(*args), args), gradient)
    return function


#: Ranks of an argument: any, or None for one that may be left out.
ANY: range = range(100)


def arrays(
    name: str, expected: str, given: Sequence[Any], ranks: Iterable[Container[int | None]]
) -> list[Any]:
    """The arguments as JAX arrays (or None), or TypeError: float32, each of one of its ranks."""
    converted = [None if x is None else jnp.asarray(x) for x in given]
    float32 = np.dtype(np.float32)
    found = (None if x is None else x.ndim for x in converted)
    if any(getattr(x, "dtype", float32) != float32 for x in (*given, *converted)) or not all(
        map(operator.contains, ranks, found)
    ):
        refuse(name, expected, *given)
    return converted


def refuse(name: str, expected: str, *given: Any) -> NoReturn:
    """Raise TypeError: what was expected and received."""
    received = ", ".join(
        "None" if x is None else f"{getattr(x, 'dtype', type(x).__name__)}{list(np.shape(x))}"
        for x in given
    )
    raise TypeError(
        f"repjax.repdl.{name}: expected {expected}; received {received}; convert with "
        ".astype, reshape or transpose (the layouts are PyTorch's)"
    )


def factor(shape: Sequence[int], axes: Iterable[int]) -> np.float32:
    """f(n) of the elements over axes."""
    return np.float32(1.0 / math.prod(shape[a] for a in axes))
