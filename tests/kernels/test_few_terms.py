"""Sums of few terms are additions, with the same bits."""

from __future__ import annotations

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import repjax
from helpers.bits import assert_same_bits
from helpers.kernels import without_kernel
from helpers.products import DATA
from repjax.primitives.cpu import library
from repjax.primitives.fusion import few_terms

pytestmark = pytest.mark.skipif(
    not library.available(), reason=f"there is no kernel: {library.in_use()[1]}"
)


def distances(x, y):
    return jnp.sqrt(((x[:, None] - y) ** 2).sum(-1))


def nearest(x, y):
    return distances(x, y).min(1)


def forces(x, y):
    """A difference is used twice, and the sum is broadcast."""
    d = x[:, None] - y
    return (d / ((d * d).sum(-1, keepdims=True) + 1)).sum(1)


def of_an_input(x, y):
    return x.sum(-1), (y * 2).mean(-1)


def of_a_table(x, y):
    return (x * jnp.arange(1, x.shape[-1] + 1, dtype=x.dtype)).sum(-1) + y.sum()


def norms(x, y):
    return jnp.linalg.norm(x, axis=-1), jnp.linalg.norm(x - y[: len(x)], axis=-1, keepdims=True)


def softmax(x, y):
    return jax.nn.softmax(x), jax.nn.logsumexp(y, -1)


def extrema(x, y):
    return x.max(-1), (y * 2).min(-1, keepdims=True), jnp.ptp(x, -1)


def chosen(x, y):
    return jnp.where(x > y[: len(x)], x, 1).sum(-1)


def gradient(x, y):
    return jax.grad(lambda x: jnp.exp(-distances(x, y)).sum())(x)


FUNCTIONS = [
    distances,
    nearest,
    forces,
    of_an_input,
    of_a_table,
    norms,
    softmax,
    extrema,
    chosen,
    gradient,
]


@pytest.mark.parametrize("terms", [2, 3, 8])
@pytest.mark.parametrize("function", FUNCTIONS)
def test_same_bits(function, terms):
    rng = np.random.default_rng(0)
    for data in ("underflowing", "any_bits"):
        x, y = DATA[data](rng, (300, terms)), DATA[data](rng, (301, terms))
        actual = repjax.reproducible(lambda x, y: function(x, y))(x, y)
        assert_same_bits(actual, without_kernel(function, x, y), data)


@pytest.mark.parametrize(("terms", "is_elementwise"), [(2, True), (8, True), (9, False)])
def test_distances_are_elementwise(terms, is_elementwise):
    x = np.ones((300, terms), np.float32)
    lowered = repjax.reproducible(distances).lower(x, x).as_text()
    calls = re.findall(r"custom_call @(\w+)", lowered)
    assert (calls == ["repjax_elementwise"]) == is_elementwise


def test_orders_are_kept():
    """Only the pairwise order is a tree of additions of this kind."""
    x, y = (DATA["normal"](np.random.default_rng(i), (300, 4)) for i in range(2))
    for accumulation in ("sequential", "order_independent", "exact"):
        with repjax.enabled(accumulation=accumulation):
            actual = repjax.reproducible(lambda x, y: distances(x, y))(x, y)
            assert_same_bits(actual, without_kernel(distances, x, y), accumulation)


def test_terms_in_another_order_are_caught(monkeypatch):
    x, y = (DATA["normal"](np.random.default_rng(i), (300, 4)) for i in range(2))
    expected = without_kernel(distances, x, y)
    part = few_terms._Program._part
    other = lambda self, sum, x, i: part(self, sum, x, i ^ 1 if i < 2 else i)  # noqa: E731
    monkeypatch.setattr(few_terms._Program, "_part", other)
    with pytest.raises(AssertionError):
        assert_same_bits(repjax.reproducible(lambda x, y: distances(x, y))(x, y), expected)
