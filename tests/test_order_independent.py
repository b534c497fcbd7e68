"""Order-independent sums and contractions: what the contract says, whatever the order."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
import reference
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax
from test_contract import (
    CONVOLUTIONS,
    DATA,
    DOTS,
    MATRIX,
    assert_same_bits,
    each_instruction_set,
    run,
    with_gradients,
)

import repjax
from repjax.primitives import native
from repjax.primitives.contract import native as kernel
from repjax.primitives.contract import order_independent

ANY_ORDER = {"accumulation": "order_independent", "contraction": "order_independent"}


@functools.partial(repjax.reproducible, **ANY_ORDER)
def product(a, b):
    return a @ b


@functools.partial(repjax.reproducible, **ANY_ORDER)
def total(x):
    return x.sum(0)


def _finite(x):
    return np.where(np.isfinite(x), x, np.float32(0))


def _scaled_features(rng, shape):
    """Columns, or rows, of very different sizes."""
    scale = np.ldexp(np.float32(1), rng.integers(-40, 40, max(shape))).astype(np.float32)
    x = rng.standard_normal(shape).astype(np.float32)
    return x * (scale if shape[1] == len(scale) else scale[:, None])


ALL_DATA = {**DATA, "scaled_features": _scaled_features}


@pytest.mark.parametrize("data", ALL_DATA)
@pytest.mark.parametrize("shape", [(5, 7, 4), (3, 600, 2), (1, 1, 1), (2, 513, 3)])
def test_product(shape, data):
    m, k, n = shape
    rng = np.random.default_rng(k)
    a, b = _finite(ALL_DATA[data](rng, (m, k))), _finite(ALL_DATA[data](rng, (k, n)))
    a[0, :2], b[-1, :] = 0, 0  # a term without a column
    assert_same_bits(product(a, b), reference.order_independent_dot(a, b))


def test_a_coarser_grid_is_noticed():
    rng = np.random.default_rng(0)
    a, b = (rng.standard_normal(shape).astype(np.float32) for shape in ((4, 9), (9, 3)))
    coarser = reference.order_independent_dot(a, b, bits=21)
    assert (reference.bits(product(a, b)) != reference.bits(coarser)).any()


@pytest.mark.parametrize("case", DOTS)
def test_dimensions(case):
    """Integers are exact in any order, so that stock JAX gives the same."""
    lhs_shape, rhs_shape, numbers = DOTS[case]
    rng = np.random.default_rng(1)
    lhs, rhs = DATA["integers"](rng, lhs_shape), DATA["integers"](rng, rhs_shape)
    actual = repjax.lax.dot_general(lhs, rhs, numbers, accumulation="order_independent")
    np.testing.assert_array_equal(actual, lax.dot_general(lhs, rhs, numbers, precision="highest"))


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_dimensions_of_convolutions(case):
    *shapes, parameters = CONVOLUTIONS[case]
    rng = np.random.default_rng(2)
    lhs, rhs = (DATA["integers"](rng, shape) for shape in shapes)
    n = lhs.ndim - 2
    options = {"window_strides": (1,) * n, "padding": ((0, 0),) * n, **parameters}
    stock = functools.partial(lax.conv_general_dilated, precision="highest", **options)
    ours = functools.partial(
        repjax.lax.conv_general_dilated, accumulation="order_independent", **options
    )
    np.testing.assert_array_equal(ours(lhs, rhs), stock(lhs, rhs))
    if stock(lhs, rhs).size and lhs.size:
        cotangent = DATA["integers"](rng, stock(lhs, rhs).shape)
        expected = jax.vjp(stock, lhs, rhs)[1](cotangent)
        for x, y in zip(jax.vjp(ours, lhs, rhs)[1](cotangent), expected, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("shapes", [((2, 3, 6, 5), (4, 3, 2, 3)), ((1, 90, 4, 4), (2, 90, 3, 3))])
def test_convolution(shapes, data):
    rng = np.random.default_rng(3)
    x, w = (_finite(DATA[data](rng, shape)) for shape in shapes)
    w[:, 1] = 0  # an input feature that is not used
    expected = reference.order_independent_convolution(x, w, (2, 1))
    actual = repjax.lax.conv_general_dilated(
        x, w, (2, 1), "VALID", accumulation="order_independent"
    )
    assert_same_bits(actual, expected)


@pytest.mark.parametrize("data", DATA)
def test_sum(data):
    rng = np.random.default_rng(4)
    for n in (1, 2, 7, 1000):
        x = _finite(DATA[data](rng, (n, 3)))
        expected = [reference.order_independent_sum(column) for column in x.T]
        assert_same_bits(total(x), np.array(expected))


@pytest.mark.skipif(not native.instruction_sets(), reason="the kernel was not compiled")
@pytest.mark.parametrize("data", ["normal", "underflowing", "any_bits"])
def test_the_kernel_has_the_bits_of_the_bodies(data):
    rng = np.random.default_rng(8)
    for m, k, n in ((13, 1030, 67), (70, 300, 35), (1, 129, 1)):
        operands = DATA[data](rng, (m, k)), DATA[data](rng, (k, n))
        expected = run(order_independent.dot_general_body, *operands, dimension_numbers=MATRIX)
        for _ in each_instruction_set():
            actual = run(kernel.order_independent_dot_general, *operands, dimension_numbers=MATRIX)
            assert_same_bits(actual, expected)
    for case in ("batch groups", "feature groups", "all of these", "same, strided"):
        *shapes, options = CONVOLUTIONS[case]
        for *sizes, parameters in with_gradients(*shapes, **options):
            operands = [DATA[data](rng, shape) for shape in sizes]
            expected = run(order_independent.conv_general_dilated_body, *operands, **parameters)
            for _ in each_instruction_set():
                actual = run(kernel.order_independent_convolution, *operands, **parameters)
                assert_same_bits(actual, expected)


SPECIAL = np.float32([0, 1, -2, np.inf, -np.inf, np.nan])


def test_infinities_and_nans_are_those_of_ieee_arithmetic():
    rng = np.random.default_rng(5)
    a, b = rng.choice(SPECIAL, (200, 3)), rng.choice(SPECIAL, (3, 200))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(product(a, b), (a[:, :, None] * b).sum(1))
        np.testing.assert_array_equal(total(b), b.sum(0))
    x, w = rng.choice(SPECIAL, (50, 2, 3)), rng.choice(SPECIAL, (4, 2, 2))
    actual = repjax.lax.conv_general_dilated(x, w, (1,), [(1, 0)], accumulation="order_independent")
    padded = np.pad(x, [(0, 0), (0, 0), (1, 0)])
    with np.errstate(all="ignore"):
        windows = np.stack([padded[:, :, i : i + 2] for i in range(3)], -1)
        expected = np.einsum("bcko,fck->bfcko", windows, w).sum((2, 3))
    np.testing.assert_array_equal(actual, expected)


@st.composite
def problems(draw):
    seed = draw(st.integers(0, 2**32 - 1))
    m, n = draw(st.sampled_from([(1, 1), (3, 5)]))
    k = draw(st.sampled_from([2, 31, 1030]))
    data = draw(st.sampled_from(sorted(DATA)))
    return np.random.default_rng(seed), DATA[data], m, k, n


@settings(deadline=None, max_examples=60)
@given(problems())
def test_any_order_of_the_terms(problem):
    rng, data, m, k, n = problem
    a, b, order = data(rng, (m, k)), data(rng, (k, n)), rng.permutation(k)
    assert_same_bits(product(a[:, order], b[order]), np.asarray(product(a, b)))
    assert_same_bits(total(b[order]), np.asarray(total(b)))


def test_another_order_changes_what_is_sequential():
    """Negative control."""
    rng = np.random.default_rng(6)
    a, b, order = *(DATA["normal"](rng, s) for s in ((3, 1030), (1030, 5))), rng.permutation(1030)
    sequential = repjax.reproducible(lambda a, b: a @ b)
    assert (sequential(a[:, order], b[order]) != sequential(a, b)).any()


def test_ways_in():
    rng = np.random.default_rng(7)
    a, b = DATA["normal"](rng, (4, 30)), DATA["normal"](rng, (30, 5))
    expected = np.asarray(product(a, b))
    assert (np.asarray(repjax.lax.dot(a, b)) != expected).any()
    assert_same_bits(repjax.lax.dot(a, b, accumulation="order_independent"), expected)
    with repjax.enabled(contraction="order_independent"):
        assert_same_bits(jax.jit(lambda a, b: a @ b)(a, b), expected)
        gradients = jax.grad(lambda a: (a @ b).sum())(a)
    jax.config.update("repjax_contraction", "order_independent")
    try:
        assert_same_bits(repjax.lax.dot(a, b), expected)
        assert repjax.info()["repjax_contraction"] == "order_independent"
        same = repjax.reproducible(jax.grad(lambda a: (a @ b).sum()))(a)
        assert_same_bits(gradients, np.asarray(same))
    finally:
        jax.config.update("repjax_contraction", "sequential")
    mapped = jax.vmap(functools.partial(repjax.lax.dot, accumulation="order_independent"))
    assert_same_bits(mapped(a[:, None], np.stack([b] * 4))[:, 0], expected)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: repjax.reproducible(lambda x: x, contraction="pairwise"),
        lambda: repjax.lax.dot(np.ones(2), np.ones(2), accumulation="pairwise"),
        lambda: jax.config.update("repjax_contraction", "fast"),
        lambda: repjax.enabled(contraction="fast").__enter__(),
    ],
)
def test_unknown_orders(wrong):
    with pytest.raises(ValueError, match="expected one of sequential, order_independent; received"):
        wrong()
