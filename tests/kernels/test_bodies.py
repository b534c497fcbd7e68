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


# --- few elements -----------------------------------------------------------------------

FEW = [(), (1,), (2,), (3,), (1, 3)]


def _runs(function, shape, *, times=200):
    """What a compiled function gives for operands of that shape, and the operands."""
    xs = np.stack([canonical(patterns(times * max(1, int(np.prod(shape))), i)) for i in (1, 2)])
    xs[:, ::3] = np.abs(normal(xs[:, ::3].shape, 3)) + np.float32(0.1)
    xs = xs.reshape(2, times, *shape)
    with jax.enable_x64():
        compiled = jax.jit(lambda x, y: function(x, y))  # traced anew
        return np.stack([compiled(x, y) for x, y in zip(*xs, strict=True)]), xs


def _guarded(x):
    return canonical(np.where(np.abs(x) <= np.float32(2**-126), np.float32(0), x))


@pytest.mark.parametrize("shape", FEW, ids=str)
def test_quotients_of_few(shape):
    """Each is another instruction: a number divides by none that XLA sees."""
    with np.errstate(all="ignore"):
        for c in (np.float32(0.1), np.float32(3.7), np.full(shape, 7, np.float32)):
            found, (xs, _) = _runs(lambda x, y, c=c: bodies.div(x, c), shape)
            assert_same_bits(canonical(found), _guarded(xs / c))
        found, (xs, ys) = _runs(bodies.div, shape)
        assert_same_bits(canonical(found), _guarded(xs / ys))
        ys = ys[..., :1] if ys.ndim > 1 else ys
        found, (xs, _) = _runs(lambda x, y: bodies.div(x, y[..., :1] if y.ndim else y), shape)
        assert_same_bits(canonical(found), _guarded(xs / ys))


def test_a_quotient_of_few_that_xla_sees_through_is_caught():
    c = np.float32(0.1)
    found, (xs, _) = _runs(lambda x, y: values.guard(lax.div(x, c)), ())
    with np.errstate(all="ignore"):
        assert not same_bits(canonical(found), _guarded(xs / c))


@pytest.fixture
def by_value():
    token = values.few_by_value.set(True)
    yield
    values.few_by_value.reset(token)


def test_guards_by_value(by_value, monkeypatch):
    """Those of few elements, for many, at all that is special and on many bits."""
    x = patterns(1 << 20, 1)
    by_bits = {}
    for guard in (values.guard, values.flush):
        by_bits[guard] = np.asarray(jax.jit(lambda x, guard=guard: guard(x))(x))
    monkeypatch.setattr(values, "FEW", x.size)
    for guard, expected in by_bits.items():
        compiled = jax.jit(lambda x, guard=guard: guard(x)).lower(x).compile()
        assert " abs(" in compiled.as_text()
        assert_same_bits(np.asarray(compiled(x)), expected)


#: Sums of a product, which hardware could compute at once.
CHAINS = {
    "a constant": lambda x, y: values.flush(values.product(x, y) + np.float32(1.2345)),
    "an operand": lambda x, y: values.flush(values.product(x, y) + x),
    "a square": lambda x, y: values.flush(y - values.product(x, x)),
    "two": lambda x, y: values.flush(values.product(x, y) - values.product(y, np.float32(0.7))),
}


@pytest.mark.parametrize("shape", FEW, ids=str)
@pytest.mark.parametrize("chain", CHAINS)
def test_products_of_few_are_rounded(by_value, chain, shape):
    found, (xs, ys) = _runs(CHAINS[chain], shape)
    with np.errstate(all="ignore"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(values, "product", lambda x, y: _guarded(x * y))
        patch.setattr(values, "flush", lambda x: np.where(np.abs(x) < 2**-126, np.float32(0), x))
        assert_same_bits(canonical(found), canonical(CHAINS[chain](xs, ys)))


def test_a_product_that_is_not_rounded_would_be_seen():
    """A negative control: the operands tell a fused multiply-add from a product and a sum."""
    found, (xs, ys) = _runs(CHAINS["a constant"], ())
    with np.errstate(all="ignore"):
        fused = np.float32(np.float64(xs) * np.float64(ys) + np.float64(np.float32(1.2345)))
    assert not same_bits(canonical(found), canonical(fused))
