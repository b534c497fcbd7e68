"""complex64: the graphs of operations in NumPy; data movement, control flow, refusals."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.audited import audited
from helpers.bits import SPECIALS, assert_same_bits, normal
from helpers.complex_parts import assert_same
from repjax.verify.reference.complex_numbers import (
    exponential,
    hypot,
    join,
    logarithm,
    power,
    product,
    quotient,
    sign,
    split,
)
from repjax.verify.reference.values import add, fma
from repjax.verify.reference.values import multiply as mul


def numbers(n: int, seed: int) -> np.ndarray:
    """Ordinary parts and special ones, in all combinations of the two kinds."""
    rng = np.random.default_rng(seed)
    ordinary = np.ldexp(normal(4 * n, seed), rng.integers(-9, 10, 4 * n)).astype(np.float32)
    special = rng.permutation(np.resize(SPECIALS, 4 * n))
    chosen = np.where(rng.random(4 * n) < 0.5, ordinary, special)
    return join(chosen[: 2 * n].reshape(2, n))


# --- the contract, by the reference -----------------------------------------------------

ONE = {
    "neg": (lambda x: -x, lambda x: (-x[0], -x[1])),
    "conj": (jnp.conj, lambda x: (x[0], -x[1])),
    "square": (lax.square, lambda x: product(x, x)),
    "cube": (lambda x: lax.integer_pow(x, 3), lambda x: power(x, 3)),
    "inverse square": (lambda x: lax.integer_pow(x, -2), lambda x: power(x, -2)),
    "exp": (lax.exp, exponential),
    "log": (lax.log, logarithm),
    "sign": (lax.sign, sign),
    "abs": (lambda x: lax.complex(lax.abs(x), jnp.real(x)), lambda x: (hypot(*x), x[0])),
    "swapped parts": (lambda x: lax.complex(x.imag, x.real), lambda x: (x[1], x[0])),
    "a real factor": (lambda x: 1.5 * x, lambda x: product((np.float32(1.5), 0 * x[0]), x)),
    "flip": (lambda x: jnp.roll(x[::-1], 2), lambda x: [np.roll(a[::-1], 2) for a in x]),
}
TWO = {
    "add": (lax.add, lambda x, y: (add(x[0], y[0]), add(x[1], y[1]))),
    "sub": (lax.sub, lambda x, y: (add(x[0], -y[0]), add(x[1], -y[1]))),
    "mul": (lax.mul, product),
    "div": (lax.div, quotient),
    "where": (
        lambda x, y: jnp.where(x.real > 0, x, y),
        lambda x, y: [np.where(x[0] > 0, *pair) for pair in zip(x, y, strict=True)],
    ),
}


@pytest.mark.parametrize("name", ONE)
def test_functions_of_one(name):
    function, expected = ONE[name]
    x = numbers(500, 1)
    if name == "a real factor":  # infinity times an imaginary part of zero
        x = x[np.isfinite(x)]
    with np.errstate(all="ignore"):
        wanted = expected(split(x))
    assert_same(repjax.reproducible(lambda x: function(x))(x), wanted)


@pytest.mark.parametrize("name", TWO)
def test_functions_of_two(name):
    function, expected = TWO[name]
    x, y = numbers(2000, 1), numbers(2000, 2)
    with np.errstate(all="ignore"):
        wanted = expected(split(x), split(y))
    assert_same(repjax.reproducible(lambda *xs: function(*xs))(x, y), wanted)


def test_fused_products_are_noticed():
    x, y = (split(join(normal(200, s).reshape(2, 100))) for s in (1, 2))
    fused = fma(x[0], y[0], -mul(x[1], y[1])), product(x, y)[1]
    with pytest.raises(AssertionError):
        assert_same(join(product(x, y)), fused)


def test_comparisons():
    x, y = numbers(300, 1), numbers(300, 2)
    y[::3] = x[::3]
    equal = repjax.reproducible(lambda x, y: (x == y, x != y))
    (a, b), (c, d) = split(x), split(y)
    assert_same_bits(equal(x, y), ((a == c) & (b == d), (a != c) | (b != d)))


# --- sums and products ------------------------------------------------------------------

Z = join(normal(2 * 6 * 7, 3).reshape(2, 6, 7))


def on_parts(function, x):
    program = repjax.reproducible(lambda x: function(x))
    return tuple(np.asarray(program(a)) for a in split(x))


@pytest.mark.parametrize(
    "function",
    [
        lambda x: x.sum(0),
        lambda x: jnp.cumsum(x, 1),
        lambda x: x.at[1, 2].add(x[0, 0]),
        lambda x: x.at[:, 3].set(x[:, 0]),
        lambda x: jnp.concatenate([x.T[1:, :2], jnp.pad(x, 1)[:6, :2]]),
        lambda x: lax.reduce_window(x, np.zeros((), x.dtype), lax.add, (2, 1), (1, 1), "VALID"),
    ],
)
def test_what_is_linear_is_done_to_each_part(function):
    assert_same(repjax.reproducible(lambda x: function(x))(Z), on_parts(function, Z))


@pytest.mark.parametrize("contraction", repjax.primitives.core.tables.CONTRACTIONS)
def test_contractions(contraction):
    w = join(normal(2 * 7 * 5, 4).reshape(2, 7, 5))

    def four(contract):
        real = repjax.reproducible(lambda a, c: contract(a, c), contraction=contraction)
        (a, b), (c, d) = split(Z), split(w)
        products = [np.asarray(real(x, y)) for x, y in ((a, c), (b, d), (a, d), (b, c))]
        return add(products[0], -products[1]), add(products[2], products[3])

    def convolve(x, y):
        numbers = ("NHWC", "HWIO", "NHWC")
        x, y = x[None, :, :, None], y[:2, :3, None, None]
        return lax.conv_general_dilated(x, y, (1, 1), "SAME", dimension_numbers=numbers)

    for contract in (jnp.matmul, convolve):
        actual = repjax.reproducible(lambda x, y, f=contract: f(x, y), contraction=contraction)
        assert_same(actual(Z, w), four(contract))


# --- programs ---------------------------------------------------------------------------


def program(x):
    """What a network of complex numbers does."""
    z = lax.complex(x, jnp.roll(x, 1)) * jnp.exp(1j * x)
    z, _ = lax.scan(lambda c, a: (c * a + (0.5 - 1j), None), z[0], z)
    z = lax.cond(x[0, 0] > 0, lambda z: z / (1 + jnp.abs(z)), lambda z: -z, z)
    return z, jnp.mean(z), jnp.angle(z), jnp.vdot(z, z).real


def test_ways_to_run_it():
    x = normal((5, 4), 5)
    expected = repjax.reproducible(program)(x)
    with repjax.enabled(), audited() as findings:
        assert_same_bits(jax.jit(program)(x), expected)
        assert_same_bits(program(x), expected)
    assert not findings
    mapped = repjax.reproducible(jax.vmap(program))(x[None])
    assert_same_bits(jax.tree.map(lambda x: x[0], mapped), expected)


def test_derivatives():
    def loss(x):
        z, mean, *_ = program(x)
        return (jnp.abs(z - mean) ** 2).sum()

    x = normal((5, 4), 6)
    gradient = repjax.reproducible(jax.grad(loss))(x)
    with repjax.enabled():
        assert_same_bits(jax.jit(jax.grad(loss))(x), gradient)
    plain = np.asarray(jax.grad(loss)(x))
    assert np.abs(gradient - plain).max() < 1e-4 * np.abs(plain).max()


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (jnp.sqrt, "sqrt on complex numbers has no reproducible form"),
        (jnp.sort, "sort on complex numbers"),
        (lambda x: x**x, "pow on complex numbers"),
        (lambda x: jnp.linalg.cholesky(x @ x.T), "cholesky on complex numbers"),
        (lambda x: x.at[np.array([1, 1])].multiply(2), "scatter-mul on complex .* expected one"),
    ],
)
def test_refused(function, message):
    with pytest.raises(repjax.RefusedError, match=message):
        repjax.reproducible(lambda x: function(x))(Z[:, :6])


def test_products_with_a_slice():
    """And nothing else is touched, be it infinite."""
    z = Z.copy()
    z[0] = complex(np.inf, 1)
    product = repjax.reproducible(lambda z: z[1:3] * z[2:4])(z)
    result = repjax.reproducible(lambda z: z.at[1:3].multiply(z[2:4]))(z)
    assert_same_bits(result[1:3], product)
    assert_same_bits(result[:1], z[:1])
    assert_same_bits(result[3:], z[3:])


def test_complex128_is_refused():
    with jax.enable_x64(True), pytest.raises(repjax.RefusedError, match="expected complex64"):
        repjax.reproducible(lambda x: x * x)(Z.astype(np.complex128))


def test_explicit_functions_refuse():
    with pytest.raises(repjax.RefusedError, match="inside an explicit repjax function"):
        repjax.numpy.sum(Z)
