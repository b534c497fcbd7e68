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
from repjax.primitives import kernels
from repjax.primitives.cpu import library
from repjax.primitives.fusion import turns

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


# --- constants of loops ---------------------------------------------------------------------


def powers(a, x):
    return lax.fori_loop(0, 20, lambda _, x: a @ x, x)


def powers_of_rows(a, x):
    return lax.fori_loop(0, 20, lambda _, x: jnp.einsum("ij,kj->ik", x, a), x)


def powers_of_transposed(a, x):
    return lax.fori_loop(0, 20, lambda _, x: x @ a.T, x)


def powers_by_columns(a, x):
    return lax.fori_loop(0, 20, lambda _, x: a.T @ x, x)


def with_the_transposed(a, x):
    return lax.fori_loop(0, 20, lambda _, x: (x @ a.T) @ a + a.T[0], x)


def until_small(a, x):
    return lax.while_loop(lambda x: jnp.abs(x).max() > 1e-3, lambda x: a @ x, x)


def two_matrices(a, x):
    def step(x, y):
        x = jnp.tanh(a @ x + y @ a)
        return x, a[0] @ x

    return lax.scan(step, x, jnp.stack([x] * 9))


def nested(a, x):
    return lax.fori_loop(0, 10, lambda _, x: powers(a, x) / 7, x)


def few_iterations(a, x):
    return lax.fori_loop(0, 7, lambda _, x: a @ x, x)


def carried(a, x):
    return lax.fori_loop(0, 20, lambda _, s: (-s[0], s[0] @ s[1]), (a, x))[1]


def symmetric(a, x):
    return lax.fori_loop(0, 20, lambda _, x: a @ x + x @ a, x)


#: Programs of a matrix and a vector, and whether the matrix is transposed before a loop.
LOOPS = [
    (powers, (40,), True),
    (powers_of_rows, (3, 40), True),
    (powers_of_transposed, (3, 40), True),
    (powers_by_columns, (40,), False),
    (with_the_transposed, (40,), False),
    (until_small, (40,), True),
    (nested, (40,), True),
    (jax.vmap(powers, in_axes=(None, 0)), (2, 40), True),
    (jax.grad(lambda a, x: powers(a, x).sum()), (40,), True),
    (powers_of_rows, (33, 40), False),
    (few_iterations, (40,), False),
    (carried, (40,), False),
    (two_matrices, (40,), False),
    (symmetric, (40,), False),
]


@pytest.mark.parametrize(("function", "shape", "is_turned"), LOOPS)
def test_matrices_are_transposed_before_loops(function, shape, is_turned, monkeypatch):
    more = []

    def recorded(closed, of=kernels.with_turned_constants):
        result = of(closed)
        more.append(len(result.eqns) - len(closed.eqns))
        return result

    monkeypatch.setattr(kernels, "with_turned_constants", recorded)
    rng = np.random.default_rng(0)
    for data in ("normal", "underflowing", "any_bits"):
        a, x = DATA[data](rng, (40, 40)), DATA[data](rng, shape)
        actual = repjax.reproducible(lambda a, x: function(a / 8, x))(a, x)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(library, "available", lambda: False)
            expected = repjax.reproducible(lambda a, x: function(a / 8, x))(a, x)
        assert_same_bits(actual, expected)
    assert any(more) == is_turned


def test_a_matrix_that_is_not_transposed_is_caught(monkeypatch):
    rng = np.random.default_rng(0)
    a, x = DATA["normal"](rng, (40, 40)), DATA["normal"](rng, (40,))
    expected = repjax.reproducible(powers)(a, x)
    monkeypatch.setattr(
        turns,
        "_with_turned_operands",
        lambda equation, turned: equation.replace(
            invars=[turned.get(v, v) for v in equation.invars]
        ),
    )
    with pytest.raises(AssertionError):
        assert_same_bits(repjax.reproducible(lambda a, x: powers(a, x))(a, x), expected)
