"""Products that are only transposed are products in turn, with the same bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits
from helpers.products import DATA
from repjax.primitives.cpu import library

pytestmark = pytest.mark.skipif(
    not library.available(), reason=f"there is no kernel: {library.in_use()[1]}"
)


def weight_gradient(x, w):
    """What JAX transposes."""
    return jax.grad(lambda w: jnp.sum(jnp.tanh(x @ w)))(w)


def twice(x, w):
    y = x @ w
    return y.T, y


def of_columns(x, w):
    return lax.dot_general(x, w, (((0,), (1,)), ((), ()))).T


def batches(x, w):
    return jnp.swapaxes(jnp.stack([x, x]) @ jnp.stack([w, w]), 1, 2)


#: Shapes, and whether a transposition is left.
CASES = [
    (weight_gradient, (33, 20), (20, 47), False),
    (weight_gradient, (5, 300), (300, 150), False),  # of a large input, which is raw
    (lambda x, w: (x @ w).T, (13, 7), (7, 64), False),
    (lambda x, w: (x @ w).T + 1, (130, 140), (140, 120), False),
    (of_columns, (7, 13), (40, 7), False),
    (twice, (13, 7), (7, 64), True),
    (batches, (13, 7), (7, 9), True),
]


@pytest.mark.parametrize(("function", "lhs", "rhs", "is_left"), CASES)
def test_same_bits(function, lhs, rhs, is_left):
    rng = np.random.default_rng(0)
    for data in ("normal", "underflowing", "ties", "any_bits"):
        x, w = DATA[data](rng, lhs), DATA[data](rng, rhs)
        lowered = repjax.reproducible(lambda x, w: function(x, w)).lower(x, w)
        assert ("stablehlo.transpose" in lowered.as_text()) == is_left
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "available", lambda: False)
            expected = repjax.reproducible(lambda x, w: function(x, w))(x, w)
        jax.tree.map(assert_same_bits, lowered.compile()(x, w), expected)
