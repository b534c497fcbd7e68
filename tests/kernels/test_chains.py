"""Sequential products without the C++ library, by the shorter step: the bits of the bodies."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.products import (
    BODIES,
    CONVOLUTIONS,
    DATA,
    DOTS,
    MATRIX,
    assert_same_bits,
    normal,
    run,
    with_gradients,
)
from repjax.primitives.core import canonical
from repjax.primitives.cpu import chains, library
from repjax.primitives.operations.products import convolution
from repjax.verify import reference

DOT, CONVOLUTION = BODIES


@pytest.fixture(autouse=True)
def small_products(monkeypatch):
    """They are worth it here."""
    monkeypatch.setattr(chains, "_LEAST", 1)


def dot(lhs, rhs, dimension_numbers=MATRIX):
    """By the shorter step."""
    return run(chains.dot_general, lhs, rhs, dimension_numbers=dimension_numbers)


def changed_dot(lhs, rhs):
    """Compiled anew, since a test has changed what it is made of."""
    return run(lambda *xs: chains.dot_general(*xs, dimension_numbers=MATRIX), lhs, rhs)


def bfloat16(rng, shape):
    return np.asarray(jax.numpy.bfloat16(normal(rng, shape)), np.float32)


def pixels(rng, shape):
    """Integers among other numbers: of the middles that sums lie on, most are exact."""
    return np.where(rng.random(shape) < 0.5, rng.integers(0, 256, shape), normal(rng, shape))


def one_nan(rng, shape):
    x = normal(rng, shape)
    x.flat[:1] = np.nan
    return x


KINDS = {
    **DATA,
    "bfloat16": bfloat16,
    "pixels": lambda rng, shape: pixels(rng, shape).astype(np.float32),
    "zeros": lambda rng, shape: np.zeros(shape, np.float32),
    "one NaN": one_nan,
    "small": lambda rng, shape: normal(rng, shape) * np.float32(2.0**-44),
}


@pytest.mark.parametrize("case", DOTS)
def test_dot_general(case):
    lhs_shape, rhs_shape, dimension_numbers = DOTS[case]
    rng = np.random.default_rng(0)
    for data in KINDS.values():
        lhs, rhs = data(rng, lhs_shape), data(rng, rhs_shape)
        expected = run(DOT, lhs, rhs, dimension_numbers=dimension_numbers)
        assert_same_bits(dot(lhs, rhs, dimension_numbers), expected)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(16, 300, 33), (3, 90, 601), (140, 7, 150)])
def test_many_terms_or_chains(kind, shape):
    m, k, n = shape
    rng = np.random.default_rng(1)
    for other in ("normal", kind):
        lhs, rhs = KINDS[kind](rng, (m, k)), KINDS[other](rng, (k, n))
        assert_same_bits(dot(lhs, rhs), reference.products.dot_general(lhs, rhs, MATRIX))


@pytest.mark.parametrize("case", ["2d", "all of these", "depthwise", "batch groups", "no features"])
def test_convolutions_and_their_gradients(case):
    rng = np.random.default_rng(2)
    for *shapes, parameters in with_gradients(*CONVOLUTIONS[case][:2], **CONVOLUTIONS[case][2]):
        for kind in ("normal", "ties", "any_bits"):
            lhs, rhs = (DATA[kind](rng, shape) for shape in shapes)
            expected = run(CONVOLUTION, lhs, rhs, **parameters)
            assert_same_bits(run(chains.conv_general_dilated, lhs, rhs, **parameters), expected)


def test_convolution_in_pieces(monkeypatch):
    rng = np.random.default_rng(3)
    shapes = (4, 3, 8, 8), (5, 3, 3, 3)
    lhs, rhs = (DATA["ties"](rng, shape) for shape in shapes)
    parameters = with_gradients(*shapes, padding="SAME")[0][-1]
    expected = run(CONVOLUTION, lhs, rhs, **parameters)
    monkeypatch.setattr(convolution, "_PATCHES", 1)
    convolve = functools.partial(chains.conv_general_dilated, **parameters)
    assert_same_bits(run(convolve, lhs, rhs), expected)


def test_a_few_marked_chains():
    """Random data: most chains of so many meet no middle, and some do."""
    rng = np.random.default_rng(4)
    lhs, rhs = normal(rng, (128, 512)), normal(rng, (512, 320))
    expected = run(DOT, lhs, rhs, dimension_numbers=MATRIX)
    assert_same_bits(dot(lhs, rhs), expected)

    @jax.jit
    def marked(lhs, rhs):
        with jax.enable_x64(True):
            wide = [lax.convert_element_type(x, np.float64) for x in (lhs.T, rhs)]
            wide = wide[0][:, :, None], wide[1][:, None, :]
            return lax.convert_element_type(chains._steps(chains.float64_step, *wide), np.float32)

    s = np.asarray(marked(lhs, rhs))
    assert 0 < np.isnan(s).sum() < 200
    assert_same_bits(s[~np.isnan(s)], expected[~np.isnan(s)])


def test_step():
    """It is a fused multiply-add or unknown, at each step and on data where it is either."""
    rng = np.random.default_rng(5)

    @jax.jit
    def step(a, b, s):
        with jax.enable_x64(True):
            s, unknown = chains.float64_step(
                *(lax.convert_element_type(x, np.float64) for x in (a, b, s))
            )
            return lax.convert_element_type(s, np.float32), unknown

    for kind in ("normal", "integers", "ties"):
        a, b, s = (DATA[kind](rng, 20000) for _ in range(3))
        near = np.ldexp(a * b, -24)
        s = np.where(rng.random(s.shape) < 0.5, s, near).astype(np.float32)
        exact = reference.values.fma(a, b, s) + np.float32(0)  # no negative zero
        actual, unknown = map(np.asarray, step(a, b, s))
        actual = actual + np.float32(0)
        assert_same_bits(actual[~unknown], exact[~unknown])
        if kind == "ties":
            assert (actual[unknown] != exact[unknown]).sum() > 5


def few_bits(bits):
    """Two products a chain: a small one, then one of ``bits`` bits, which is odd."""
    rng = np.random.default_rng(6)
    first = bits // 2, bits - bits // 2
    a, b = (2 * rng.integers(1 << (n - 2), 1 << (n - 1), 256) + 1 for n in first)
    small = np.float32(2.0**-30)
    return np.float32([small * np.ones(256), a]).T, np.float32([small * np.ones(256), b])


def cancelling(place):
    """Products of 48 bits that end in 2**place, then their negatives, then products again.

    The second sum is the rounding error of the first product, about 2**(place + 22).
    """
    rng = np.random.default_rng(8)
    a, b, c, d = (2 * rng.integers(1 << 22, 1 << 23, 64) + 1 for _ in range(4))
    lhs, rhs = np.stack([a, -a, c], 1), np.stack([b, b, d])
    exponents = place // 2, place - place // 2
    return [np.ldexp(x, e).astype(np.float32) for x, e in zip((lhs, rhs), exponents, strict=True)]


@pytest.mark.parametrize("place", [-150, -149, -148, -127, -126])
def test_sums_that_are_subnormal(place):
    lhs, rhs = cancelling(place)
    assert chains._way(lhs, rhs) == (chains._Way.BODY if place < -149 else chains._Way.IN_FLOAT64)
    with np.errstate(under="ignore"):
        expected = reference.products.dot_general(lhs, rhs, MATRIX)
    assert_same_bits(dot(lhs, rhs), expected)


@pytest.mark.parametrize("place", [-150, -149, -126])
def test_sums_of_few_bits_that_are_small(place):
    """Products of 24 bits: where they may be float32 numbers, none of their sums is subnormal."""
    rng = np.random.default_rng(9)
    x, y = (
        rng.integers(1 << 11, 1 << 12, shape) * rng.choice([-1, 1], shape)
        for shape in [(64, 9), (9, 64)]
    )
    x[0, 0] = y[0, 0] = 1 << 11  # the least, whose last places, of 24 bits, are those meant
    lhs, rhs = (np.ldexp(v, e + 12).astype(np.float32) for v, e in ((x, -80), (y, place + 80)))
    assert chains._way(lhs, rhs) == (chains._Way.BODY if place < -149 else chains._Way.IN_FLOAT32)
    assert_same_bits(dot(lhs, rhs), reference.products.dot_general(lhs, rhs, MATRIX))


def test_products_of_25_bits_are_too_long():
    for bits in (22, 23, 24, 25, 26):
        lhs, rhs = few_bits(bits)
        assert_same_bits(dot(lhs, rhs), reference.products.dot_general(lhs, rhs, MATRIX))


def without_marks(a, b, s, step=chains.float64_step):
    s, unknown = step(a, b, s)
    return s, lax.full_like(unknown, False)


def rounded_twice(a, b, s):
    """What a processor without fused multiply-adds makes of a step in float32."""
    return canonical.guard(a * b) + s, lax.full(s.shape, False)


def always(way):
    changes = {"_way": lambda lhs, rhs: np.int32(way)}
    return changes | ({"float32_step": rounded_twice} if way == chains._Way.IN_FLOAT32 else {})


def matrices(kind):
    rng = np.random.default_rng(7)
    return DATA[kind](rng, (20, 60)), DATA[kind](rng, (60, 30))


#: Operands, and what may not be done with them.
MISTAKES = {
    "middles are not marked": (lambda: matrices("ties"), {"float64_step": without_marks}),
    "more than 24 bits in float32": (lambda: matrices("ties"), always(chains._Way.IN_FLOAT32)),
    "subnormal sums": (lambda: cancelling(-170), always(chains._Way.IN_FLOAT64)),
    "subnormal sums in float32": (lambda: cancelling(-149), always(chains._Way.IN_FLOAT32)),
    "sums that are too large": (lambda: matrices("overflowing"), always(chains._Way.IN_FLOAT64)),
    "products of 25 bits": (lambda: few_bits(25), always(chains._Way.IN_FLOAT32)),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_noticed(mistake, monkeypatch):
    data, changes = MISTAKES[mistake]
    lhs, rhs = data()
    expected = reference.products.dot_general(lhs, rhs, MATRIX)
    assert_same_bits(dot(lhs, rhs), expected)
    with monkeypatch.context() as context:
        for name, change in changes.items():
            context.setattr(chains, name, change)
        wrong = changed_dot(lhs, rhs)
    assert (reference.values.bits(wrong) != reference.values.bits(expected)).any()


def test_marks_that_stay_are_noticed(monkeypatch):
    rng = np.random.default_rng(9)
    lhs, rhs = normal(rng, (128, 512)), normal(rng, (512, 320))
    monkeypatch.setattr(chains._Marks, "removed", lambda self, lhs, rhs, s: (s, False))
    assert np.isnan(changed_dot(lhs, rhs)).any()


@pytest.mark.parametrize("order", ["matrix", "batch", "convolution"])
def test_programs_without_the_library(order, monkeypatch):
    """They have it, with the bits that the library gives them; batched and differentiated too."""
    if not library.available():
        pytest.skip(f"there is no kernel: {library.in_use()[1]}")
    rng = np.random.default_rng(10)

    def product(x, y):
        if order == "convolution":
            return lax.conv(x, y, (1, 1), "SAME")
        return jax.vmap(lax.dot)(x, y) if order == "batch" else lax.dot(x, y)

    shapes = {
        "matrix": ((40, 50), (50, 60)),
        "batch": ((3, 20, 50), (3, 50, 30)),
        "convolution": ((2, 3, 9, 9), (4, 3, 3, 3)),
    }[order]
    operands = [DATA["ties"](rng, shape) for shape in shapes]

    def results():
        def program(x, y):
            value, pullback = jax.vjp(product, x, y)
            return value, *pullback(value)

        return [np.asarray(r) for r in jax.jit(repjax.reproducible(program))(*operands)]

    expected = results()
    seen = []
    short = chains.float64_step
    monkeypatch.setattr(chains, "float64_step", lambda *xs: seen.append(0) or short(*xs))
    monkeypatch.setattr(library, "serves", lambda: False)
    for actual, wanted in zip(results(), expected, strict=True):
        assert_same_bits(actual, wanted)
    assert len(seen) >= 3
