"""What several equations compute is computed once."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import repjax
from helpers.bits import assert_same_bits, normal
from repjax.primitives import kernels
from repjax.primitives.cpu import library
from repjax.primitives.fusion import repeated
from repjax.primitives.fusion.repeated import without_repeated

pytestmark = pytest.mark.skipif(
    not library.available(), reason=f"there is no kernel: {library.in_use()[1]}"
)


def norm(x):
    """The mean of the variance is the first one again."""
    return (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)


def numbers(x):
    """Numbers that are equal, of other types and with other signs."""
    return x + 1, x * 0.0, x * -0.0, x + 1.0, (x > 0) + 1, x.astype(jnp.bfloat16) + 1


def axes(x):
    return x.sum(0), x.sum(1), x.sum(0), jnp.sum(x.T, 0), x[:, :1], x[:, 1:2], x[:, :1]


def draws(x):
    key = jax.random.key(0)
    return jax.random.normal(key, x.shape), jax.random.normal(key, x.shape), jax.random.split(key)


def branches(x):
    first, second = (jax.lax.cond(x.sum() > 0, jnp.sin, jnp.cos, x) for _ in range(2))
    return first + second


@pytest.mark.parametrize("function", [norm, numbers, axes, draws, branches])
def test_same_bits(function):
    x = normal((40, 64))
    actual = repjax.reproducible(lambda x: function(x))(x)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "without_repeated", lambda closed: closed)
        expected = repjax.reproducible(lambda x: function(x))(x)
    jax.tree.map(assert_same_bits, actual, expected)


def count(function, *arguments) -> int:
    return len(without_repeated(jax.make_jaxpr(function)(*arguments)).eqns)


def test_what_is_left():
    x = np.ones((4, 4), np.float32)
    assert count(lambda x: jnp.exp(x) + jnp.exp(x), x) == 2
    assert count(lambda x: (jnp.exp(x) * 0.0, jnp.exp(x) * -0.0), x) == 3
    assert count(lambda x: (x.astype(int) + 1, x + 1), x) == 3
    assert count(lambda x: (x.sum(0), x.sum(1)), x) == 2


def test_a_variance_shares_its_mean():
    lowered = repjax.reproducible(norm).lower(np.ones((40, 64), np.float32)).as_text()
    assert re.findall(r"custom_call @(\w+)", lowered) == ["repjax_rows"]


def test_what_differs_in_a_parameter_only_is_no_repetition(monkeypatch):
    """The comparison is needed: without parameters, sums over other axes would be the same."""
    x = normal((40, 40))
    expected = repjax.reproducible(lambda x: axes(x))(x)
    key = repeated._key
    monkeypatch.setattr(repeated, "_key", lambda equation: key(equation) and key(equation)[:3])
    with pytest.raises(AssertionError):
        jax.tree.map(assert_same_bits, repjax.reproducible(lambda x: axes(x))(x), expected)
