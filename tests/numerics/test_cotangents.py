"""The sum of the cotangents of a value: exact, rounded once, in no order."""

from __future__ import annotations

import functools
import itertools
import operator
from typing import Any

import gmpy2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import linen
from jax import lax

import repjax
from helpers.bits import SPECIALS, assert_same_bits, canonical, patterns, same_bits
from helpers.instruction_sets import each_instruction_set
from repjax import cotangents, nn
from repjax import lax as rlax
from repjax.explicit import explicit
from repjax.primitives.operations.add_n import MOST_PARTS, add_n, add_n_p

RNG = np.random.default_rng(21)
PRECISION = {np.dtype(np.float32): (24, 128), np.dtype(np.float16): (11, 16)}
PRECISION[np.dtype(jnp.bfloat16)] = (8, 128)


def spread(shape, seed=0):
    """Numbers of some binades, whose sums depend on their order."""
    rng = np.random.default_rng(seed)
    return np.ldexp(rng.uniform(-1, 1, shape), rng.integers(-6, 6, shape)).astype(np.float32)


# --- the operation ----------------------------------------------------------------------


def rounded_sum(terms):
    """flush(RN(the sum of rational numbers)) of each element of canonical arrays."""
    dtype = terms[0].dtype
    bits, largest = PRECISION[dtype]
    smallest = 2.0 ** (2 - largest)
    sums = []
    for xs in zip(*(np.ravel(x).astype(np.float64) for x in terms), strict=True):
        with np.errstate(all="ignore"):
            total = functools.reduce(operator.add, xs)
        if np.isfinite(total):
            exact = sum(map(gmpy2.mpq, xs), gmpy2.mpq(0))
            with gmpy2.context(precision=bits, emax=largest):
                total = float(gmpy2.mpfr(exact))
            total = total if abs(exact) >= smallest else 0.0
        sums.append(total)
    return np.array(sums).astype(dtype).reshape(terms[0].shape)


def hostile(count, dtype=np.float32, size=300):
    """Terms that cancel, that lie in the middle of two numbers or close to it, special ones."""
    dtype = np.dtype(dtype)
    bits, largest = PRECISION[dtype]
    x = spread((count, size)).astype(dtype).astype(np.float64)
    for column in range(size):
        i, j, k = RNG.permutation(count)[:3]
        case = column % 6
        if case < 3:
            x[j, column] = -x[i, column]
        if case in (1, 3):  # half a unit, and the least there is, or nothing
            x[i, column] = 2.0 ** RNG.integers(-4, 4) * RNG.integers(2 ** (bits - 1), 2**bits)
            x[j, column] = 2.0 ** np.floor(np.log2(abs(x[i, column]))) * 2.0**-bits
            x[k, column] = RNG.choice([-1.0, 0.0, 1.0]) * 2.0 ** (2 - largest)
        if case == 4:  # overflows on the way, and not at the end, or at the end
            x[:, column] = (2.0**largest - 2.0 ** (largest - bits)) * RNG.choice([-1, 1], count)
        if case == 5 and column % 5 == 0:
            x[i, column] = RNG.choice([np.inf, -np.inf, np.nan])
    return [canonical(y) for y in x.astype(dtype)]


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
@pytest.mark.parametrize("count", [3, 4, 5, MOST_PARTS, MOST_PARTS + 1, 40])
def test_rounds_the_exact_sum_once(count, dtype):
    terms = hostile(count, dtype)
    expected = rounded_sum(terms)
    assert_same_bits(jax.jit(add_n_p.bind)(*terms), expected)
    backwards = repjax.reproducible(lambda *terms: add_n(*terms))(*terms[::-1])
    assert_same_bits(backwards, expected)
    one_by_one = functools.reduce(rlax.add, terms)
    assert not same_bits(one_by_one, expected)  # what it is not


def test_special_values():
    pairs = itertools.product(canonical(SPECIALS), repeat=2)
    x, y = (np.array(z) for z in zip(*pairs, strict=True))
    z = np.resize(canonical(SPECIALS)[::-1], x.shape)
    assert_same_bits(canonical(jax.jit(add_n_p.bind)(x, y, z)), canonical(rounded_sum([x, y, z])))
    assert_same_bits(canonical(add_n(x, y)), canonical(rlax.add(x, y)))


@pytest.mark.parametrize("dtype", PRECISION, ids=str)
def test_the_kernel_has_the_bits_of_the_body(dtype):
    """Among other elementwise operations, where the C++ kernel computes it, in blocks."""

    def program(factor, *terms):
        return -add_n(*(x * factor for x in terms)) * terms[0]

    for count in range(3, MOST_PARTS + 2):
        terms = [canonical(patterns(1037, k, dtype)) for k in range(count)]
        factor = np.array(1.5, dtype)
        total = rounded_sum([np.asarray(rlax.mul(x, factor)) for x in terms])
        expected = rlax.mul(rlax.neg(total), terms[0])
        run = repjax.reproducible(program)
        for name in each_instruction_set():
            assert_same_bits(run(factor, *terms), expected, f"{name} {count}")


def test_batched_terms():
    x, y, z = spread((4, 5)), spread((5, 4), 1), spread((4,), 2)
    expected = np.stack([add_n(x[:, k], y[k], z) for k in range(5)])
    assert_same_bits(jax.vmap(add_n, (1, 0, None))(x, y, z), expected)


def test_derivatives():
    x, y, z = spread((3, 4))
    assert_same_bits(jax.jvp(add_n, (x, y, z), (y, z, x)), (add_n(x, y, z), add_n(y, z, x)))
    _, pullback = jax.vjp(add_n, x, y, z)
    assert_same_bits(pullback(x), (x, x, x))


# --- the cotangents of a value ----------------------------------------------------------

#: Uses of a value, some of which have functions under ``jax.jit`` inside, or pass it on.
USES = {
    "sine": lambda x: jnp.sin(x) * x,
    "quotient": lambda x: x / (x * x + 1),
    "product": lambda x: jnp.tanh(x @ x),
    "variance": lambda x: jnp.var(x, 0),
    "jit": jax.jit(lambda x: jnp.exp(x) - x),
    "passed on": lambda x: jax.jit(lambda x: (jnp.cos(x), x))(x)[1] * x,
    "checkpoint": jax.checkpoint(lambda x: jnp.exp(-x) * x),
    "scan": lambda x: lax.scan(lambda c, _: (jnp.sin(c) * x, None), x, None, length=2)[0],
    "cond": lambda x: lax.cond(x[0, 0] > 0, lambda x: x * x * x, jnp.sin, x),
    "row": lambda x: x[1] * x[2],
}


def gradient_of_uses(names, transform=lambda f: f):
    def loss(x):
        # An array of the cotangents' sum alone, whatever the order of the losses.
        return [jnp.sum(transform(USES[name])(x)) for name in names]

    def gradient(x):
        losses, pullback = jax.vjp(loss, x)
        return pullback([jnp.ones_like(value) for value in losses])[0]

    return gradient


ORDERS = [[*USES], [*USES][::-1], sorted(USES), sorted(USES, key=lambda name: name[1:])]


@pytest.mark.parametrize(
    "transform", [lambda f: f, jax.jit, jax.checkpoint], ids=["", "jit", "remat"]
)
def test_the_order_of_uses_does_not_matter(transform):
    x = spread((5, 5))
    gradients = [gradient_of_uses(names, transform) for names in ORDERS]
    expected = repjax.reproducible(gradients[0])(x)
    for gradient in gradients:
        assert_same_bits(repjax.reproducible(gradient)(x), expected)
        with repjax.enabled():
            assert_same_bits(jax.jit(gradient)(x), expected)
            assert_same_bits(gradient(x), expected)
            assert_same_bits(jax.vmap(gradient)(x[None])[0], expected)
    stock = [np.asarray(gradient(jnp.asarray(x))) for gradient in gradients]
    assert not all(same_bits(y, stock[0]) for y in stock)  # what JAX itself gives


def test_it_is_the_exact_sum():
    x, weights = spread((7,)), spread((6, 7), 1)

    def gradient(x):
        return jax.grad(lambda x: sum(jnp.sum(x * w) for w in weights))(x)

    expected = rounded_sum([*weights])
    assert_same_bits(repjax.reproducible(gradient)(x), expected)
    with repjax.enabled():
        assert_same_bits(gradient(x), expected)
    assert not same_bits(gradient(x), expected)


@pytest.mark.parametrize("dtype", [*PRECISION, np.dtype(np.complex64)], ids=str)
def test_formats(dtype):
    x, weights = spread((7,)).astype(dtype), spread((3, 7), 1).astype(dtype)
    if dtype == np.complex64:
        weights = weights + 1j * spread((3, 7), 2)

    def gradient(x):
        return jax.vjp(lambda x: [x + 0 * w for w in weights], x)[1]([*weights])[0]

    parts = [weights.real, weights.imag] if dtype == np.complex64 else [weights]
    expected = [rounded_sum([*part]) for part in parts]
    got = np.asarray(repjax.reproducible(gradient)(x))
    assert_same_bits([got.real, got.imag] if dtype == np.complex64 else [got], expected)


def test_second_derivatives():
    x = spread((5, 5))

    def second(names):
        def squares(x):
            return jnp.sum(gradient_of_uses(names)(x) ** 2)

        return jax.grad(squares)

    expected = repjax.reproducible(second(ORDERS[0]))(x)
    for names in ORDERS[1:]:
        assert_same_bits(repjax.reproducible(second(names))(x), expected)
    with repjax.enabled():
        assert_same_bits(second(ORDERS[0])(x), expected)


def test_explicit_functions():
    """Differentiated by JAX, they are added the same way where primitives of repjax use them."""
    x, weights = spread((7,)), spread((5, 7), 1)

    def gradient(x, weights):
        return jax.grad(lambda x: sum(rlax.reduce_sum(rlax.mul(x, w), (0,)) for w in weights))(x)

    expected = rounded_sum([*weights])
    assert_same_bits(gradient(x, weights), expected)
    assert_same_bits(jax.jit(gradient)(x, weights[::-1]), expected)

    def layers(x):
        return jnp.sum(nn.softmax(x)) + jnp.sum(nn.gelu(x)) + jnp.sum(nn.relu(x))

    program = str(jax.make_jaxpr(jax.grad(layers))(x))
    assert "repjax_add_n" in program and "add_any" not in program


class Mixed(linen.Module):
    """Several layers use one value, and what one returns is used inside of it, too."""

    layers: Any
    lax: Any

    @linen.compact
    def __call__(self, x):
        nn, lax = self.layers, self.lax
        h = nn.LayerNorm()(x)
        gate, up = nn.silu(nn.Dense(8)(h)), nn.gelu(nn.Dense(8)(h))
        (_, carry), y = nn.OptimizedLSTMCell(8)((x, h), x)
        x = lax.add(lax.add(x, nn.MultiHeadDotProductAttention(2)(h)), lax.mul(gate, up))
        return lax.add(x, lax.mul(lax.add(carry, y), h))


def mixed_gradient(layers, lax, within=lambda f: f):
    """Of parameters and operands."""
    model = Mixed(layers, lax)

    def loss(params, x):
        y = within(model.apply)(params, x)
        return lax.reduce_sum(lax.mul(y, y), (0, 1, 2))

    return jax.grad(loss, (0, 1))


MIXED = {
    "eager": lambda: mixed_gradient(nn, rlax),
    "jit of grad": lambda: jax.jit(mixed_gradient(nn, rlax)),
    "grad of jit": lambda: mixed_gradient(nn, rlax, jax.jit),
    "grad of remat": lambda: mixed_gradient(nn, rlax, jax.checkpoint),
}


@pytest.fixture(scope="module")
def mixed():
    x = spread((2, 5, 8), 3)
    params = repjax.reproducible(Mixed(linen, lax).init)(jax.random.key(0), x)
    return params, x, repjax.reproducible(mixed_gradient(linen, lax))(params, x)


@pytest.mark.parametrize("way", MIXED)
def test_models_of_explicit_layers_have_the_sums_of_the_decorator(way, mixed):
    params, x, expected = mixed
    assert_same_bits(MIXED[way]()(params, x), expected)


def test_sums_layer_by_layer_are_noticed(mixed, monkeypatch):
    """Negative control."""
    params, x, expected = mixed
    monkeypatch.setattr(cotangents, "_one_value", lambda jaxpr, linear: jaxpr)
    got = jax.tree.leaves(MIXED["eager"]()(params, x))
    assert not all(map(same_bits, got, jax.tree.leaves(expected)))


def test_what_plain_code_gives_an_explicit_function_is_made_canonical():
    """Code of the user between explicit functions, and at the end."""
    x = np.float32([1, 2])
    for function in (explicit(lambda x: x), explicit(lambda x: x * 1)):
        for cotangent in (np.float32(-0.0), np.uint32([1]).view(np.float32)[0]):
            _, pullback = jax.vjp(function, x)
            assert_same_bits(pullback(np.full_like(x, cotangent))[0], np.zeros_like(x))
            gradient = jax.grad(lambda x, f=function, c=cotangent: (f(f(x)) * c)[0])
            assert_same_bits(gradient(x), np.zeros_like(x))


def test_plain_uses_of_what_an_explicit_function_returns():
    """They are terms of one sum, too."""
    x, weights = spread((7,)), spread((5, 7), 1)

    def gradient(x):
        y = lambda x: rlax.mul(x, np.float32(1))  # noqa: E731
        return jax.grad(lambda x: sum((y(x) * w).sum() for w in weights))(x)

    def shared(x):
        def loss(x):
            y = rlax.mul(x, np.float32(1))
            return sum((y * w).sum() for w in weights)

        return jax.grad(loss)(x)

    expected = rounded_sum([*weights])
    assert_same_bits(gradient(x), expected)
    assert_same_bits(shared(x), expected)


def test_a_program_without_repjax_is_left_alone():
    x = spread((5, 5))
    program = str(jax.make_jaxpr(gradient_of_uses([*USES]))(x))
    assert "add_any" in program and "repjax" not in program


def test_accumulation_into_references():
    """Of gradients that JAX adds to references, in its order; they are sums of ``add``."""
    x, weights = spread((7,)), spread((3, 7), 1)

    @repjax.reproducible
    def gradient(x):
        total = jax.new_ref(jnp.zeros_like(x))
        for w in weights:
            total[...] += jax.grad(lambda x, w=w: jnp.sum(x * w))(x)
        return total[...]

    assert_same_bits(gradient(x), functools.reduce(rlax.add, weights))
