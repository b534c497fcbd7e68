"""A user's program, for type checkers: tests/project/test_types.py.

What is wrong in it is marked as an error that is ignored, and checkers are asked to say where there
is nothing to ignore: so both what is right and what is wrong are checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, assert_type

import jax.numpy as jnp
from jax import Array

import repjax
from repjax import checkpoint, lax, nn, nnx, verify
from repjax.objects import Jitted


@repjax.reproducible
def scale(x: Array, by: float = 2.0) -> Array:
    return x * by


@repjax.reproducible(static_argnames="steps", accumulation="sequential")
def train(x: Array, *, steps: int) -> tuple[Array, int]:
    return x, steps


class Trainer:
    @repjax.reproducible(static_argnums=0, contraction="order_independent")
    def step(self, x: Array) -> Array:
        return x + 1


def decorated(x: Array) -> None:
    assert_type(scale(x), Array)
    assert_type(scale(x, by=3.0), Array)
    assert_type(train(x, steps=3), tuple[Array, int])
    assert_type(Trainer().step(x), Array)
    scale.lower(x).compile()
    scale(x, "2")  # type: ignore[arg-type]
    scale(x, to=3.0)  # type: ignore[call-arg]
    train(x)  # type: ignore[call-arg]
    Trainer().step()  # type: ignore[call-arg]


def wrapped(function: Callable[[Array], Array]) -> Jitted[[Array], Array]:
    return repjax.reproducible(function, donate_argnums=(0,), keep_unused=True)


def misspelt(function: Callable[[Array], Array]) -> None:
    repjax.reproducible(function, static_argnum=0)  # type: ignore[call-overload]
    repjax.reproducible(function, accumulation="pairwize")  # type: ignore[call-overload]
    repjax.reproducible(accumulation="sequential", inlin=True)  # type: ignore[call-overload]
    repjax.reproducible(3)  # type: ignore[call-overload]


def switched(x: Array) -> None:
    with repjax.enabled(accumulation="order_independent", contraction="sequential"):
        jnp.sin(x)
    with repjax.enabled(False):
        jnp.sin(x)
    with repjax.enabled(contraction="pairwise"):  # type: ignore[arg-type]
        pass
    with repjax.enabled(acumulation="pairwise"):  # type: ignore[call-arg]
        pass


def explicit(x: Array) -> None:
    assert_type(lax.exp(x), Array)
    assert_type(lax.reduce_sum(x, (0,), accumulation="sequential"), Array)
    assert_type(lax.dot(x, x, contraction="order_independent"), Array)
    assert_type(lax.exp10(x), Array)
    assert_type(repjax.numpy.matmul(x, x), Array)
    assert_type(nn.softmax_cross_entropy_with_integer_labels(x, x), Array)
    lax.dot(x, x, accumulation="sequential")  # type: ignore[call-arg]
    lax.reduce_sum(x, (0,), accumulation="random")  # type: ignore[arg-type]
    lax.sinn(x)  # type: ignore[attr-defined]


class Network(nn.Module):
    width: int

    @nn.compact
    def __call__(self, x: Array) -> Any:
        layer = nn.Dense(self.width)
        assert_type(layer, nn.Dense)
        return nn.Dense(features=3, use_bias=False)(layer(x))


def layers(x: Array) -> None:
    assert_type(nn.convert(Network(width=3)), Network)
    assert_type(nnx.Linear(2, 3, rngs=nnx.Rngs(0)), nnx.Linear)
    nn.Dense()  # type: ignore[call-arg]
    nn.Dense(3, bias=True)  # type: ignore[call-arg]


def tools(x: Array) -> None:
    assert_type(repjax.digest({"x": x}), str)
    assert_type(repjax.info(), dict[str, str])
    assert_type(repjax.RefusedError(), repjax.RefusedError)
    checkpoint.save("params.npz", {"x": x}, {"step": 3})
    print(repjax.explain(scale, x), verify.audit(scale, x))
    repjax.explane(scale, x)  # type: ignore[attr-defined]
