"""Bodies written another way for XLA on CPU: whatever XLA sees of their operands, the same bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

from helpers.bits import assert_same_bits, canonical, normal, patterns, same_bits
from repjax.primitives.core import canonical as values
from repjax.primitives.cpu import bodies

SHAPES = [(1,), (7,), (1000,), (3, 1, 50), (64, 64), (1, 1)]


def _operands(shape):
    """Any two arrays and, of everyday size, two others and two numbers."""
    n = int(np.prod(shape))
    x, y = (canonical(patterns(n, seed)).reshape(shape) for seed in (1, 2))
    u, v = (np.abs(normal(n, seed)).reshape(shape) for seed in (3, 4))
    return x, y, u, v, *(np.float32(c) for c in normal(2, 5))


#: Quotients as their operands may come: full(c) is an array of one number.
QUOTIENTS = {
    "arrays": lambda div, full, x, y, u, v, s, t: div(x, y),
    "by a number": lambda div, full, x, y, u, v, s, t: div(u, s),
    "by an array of a number": lambda div, full, x, y, u, v, s, t: div(u, full(s)),
    "by an array of a constant": lambda div, full, x, y, u, v, s, t: div(u, full(np.float32(0.1))),
    "of arrays of numbers": lambda div, full, x, y, u, v, s, t: div(full(s), full(t)),
    "of a constant": lambda div, full, x, y, u, v, s, t: div(full(np.float32(1)), full(t)),
    "by rows of a number": lambda div, full, x, y, u, v, s, t: div(u, v[..., :1] + full(0)),
    "of quotients": lambda div, full, x, y, u, v, s, t: div(div(u, v), div(v, u)),
    "by a quotient": lambda div, full, x, y, u, v, s, t: div(u, div(v, u)),
}


def _compiled(name, shape, div):
    def program(*operands):
        return QUOTIENTS[name](div, lambda c: jnp.full(shape, c, np.float32), *operands)

    with jax.enable_x64():
        return np.asarray(jax.jit(program)(*_operands(shape)))


def _expected(name, shape):
    def div(x, y):
        with np.errstate(all="ignore"):
            return np.asarray(values.guard(np.float32(x / y)))

    return QUOTIENTS[name](div, lambda c: np.full(shape, c, np.float32), *_operands(shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", QUOTIENTS)
def test_quotients(name, shape):
    """XLA makes products of quotients by what it knows to be a number."""
    assert_same_bits(
        canonical(_compiled(name, shape, bodies.div)), canonical(_expected(name, shape))
    )


def test_quotients_that_xla_sees_through_are_caught():
    name, shape = "by an array of a number", (64, 64)
    found = _compiled(name, shape, lambda x, y: values.guard(lax.div(x, y)))
    assert not same_bits(found, _expected(name, shape))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_roots(shape):
    """XLA makes another root of the inverse of one, and of a quotient by one."""
    x, _, u, *_ = _operands(shape)

    def program(sqrt, div):
        return lambda x, u: (sqrt(x), div(u, sqrt(u)), div(np.ones(shape, np.float32), sqrt(u)))

    with jax.enable_x64():
        found = jax.jit(program(bodies.sqrt, bodies.div))(x, u)
    with np.errstate(all="ignore"):
        expected = program(np.sqrt, np.divide)(x, u)
    for a, b in zip(found, expected, strict=True):
        assert_same_bits(canonical(np.asarray(a)), canonical(b))
