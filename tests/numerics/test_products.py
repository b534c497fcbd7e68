"""Sequential contractions against the NumPy reference and against stock JAX, bit for bit."""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import SPECIALS, patterns
from helpers.products import (
    CONVOLUTIONS,
    DATA,
    DOTS,
    MATRIX,
    assert_same_bits,
    compiled,
    equations,
    implementations,
    integers,
    normal,
    run,
    stock,
    with_gradients,
)
from repjax.primitives.operations.products import convolution, sequential
from repjax.verify import reference

# --- fma -------------------------------------------------------------------------------


def _fma_operands(rng, n):
    kinds = [f(rng, (3, n)) for f in DATA.values()]
    a, b, c = np.concatenate(kinds, axis=1)
    # c close to -a*b: massive cancellation; and c half an ulp of the product or less
    with np.errstate(all="ignore"):
        product = (a * b).astype(np.float32)
        near = -np.nextafter(product, np.float32(np.inf))
        tie = np.ldexp(product, -24).astype(np.float32)
    a, b = np.tile(a, 3), np.tile(b, 3)
    c = np.concatenate([c, near, tie])
    return a, b, reference.values.flush(c)


def test_reference_fma_is_exact():
    operands = _fma_operands(np.random.default_rng(1), 200)
    finite = np.isfinite(operands).all(0)
    operands = [x[finite] for x in operands]
    exact = [reference.values.fma_exact(*x) for x in zip(*operands, strict=True)]
    actual = reference.values.fma(*operands) + np.float32(0)  # no negative zero
    assert_same_bits(actual, np.array(exact))
    assert (np.abs(actual) < reference.values.TINY).sum() > 100  # subnormals were tried
    assert np.isinf(actual).sum() > 50


def test_fma():
    operands = _fma_operands(np.random.default_rng(2), 5000)
    expected = reference.values.guard(reference.values.fma(*operands))
    assert_same_bits(run(sequential.fma_body, *operands), expected)


def test_fma_step_keeps_subnormals_and_rounds_once():
    """The accumulator itself, before it is made canonical."""
    a, b, c = _fma_operands(np.random.default_rng(3), 2000)

    @jax.jit
    def step(a, b, c):
        with jax.enable_x64(True):
            wide = [lax.convert_element_type(x, np.float64) for x in (a, b, c)]
            return sequential.fma_step(*wide)

    actual = np.asarray(step(a, b, c))
    expected = reference.values.fma(a, b, c)
    assert actual.dtype == np.float64
    np.testing.assert_array_equal(actual, expected.astype(np.float64))
    assert ((np.abs(expected) < reference.values.TINY) & (expected != 0)).sum() > 1000


# --- dot_general -----------------------------------------------------------------------


@pytest.mark.parametrize("case", DOTS)
def test_dot_general(case):
    lhs_shape, rhs_shape, dimension_numbers = DOTS[case]
    rng = np.random.default_rng(0)
    for data in DATA.values():
        lhs, rhs = data(rng, lhs_shape), data(rng, rhs_shape)
        expected = reference.products.dot_general(lhs, rhs, dimension_numbers)
        for dot_general, _ in implementations():
            actual = run(dot_general, lhs, rhs, dimension_numbers=dimension_numbers)
            assert_same_bits(actual, expected)
    lhs, rhs = integers(rng, lhs_shape), integers(rng, rhs_shape)
    stock = lax.dot_general(lhs, rhs, dimension_numbers, precision="highest")
    actual = run(sequential.dot_general_body, lhs, rhs, dimension_numbers=dimension_numbers)
    np.testing.assert_array_equal(actual, stock)


def _matmul(lhs, rhs, dot_general=sequential.dot_general_body):
    return run(dot_general, lhs, rhs, dimension_numbers=MATRIX)


@pytest.mark.parametrize("data", DATA)
def test_long_chains(data):
    rng = np.random.default_rng(4)
    lhs, rhs = DATA[data](rng, (16, 500)), DATA[data](rng, (500, 33))
    expected = reference.products.dot_general(lhs, rhs, MATRIX)
    for dot_general, _ in implementations():
        assert_same_bits(_matmul(lhs, rhs, dot_general), expected)


def _flushing(a, b, s):
    return reference.values.flush(reference.values.fma(a, b, s))


def _separate(a, b, s):
    with np.errstate(all="ignore"):
        return (a * b).astype(np.float32) + s


def _doubly_rounded(a, b, s):
    with np.errstate(all="ignore"):
        return (np.multiply(a, b, dtype=np.float64) + s).astype(np.float32)


def _descending(positions):
    return list(positions)[::-1]


WRONG = {
    "subnormal sums flushed": ("underflowing", {"step": _flushing}),
    "multiplication and addition": ("normal", {"step": _separate}),
    "rounded twice": ("ties", {"step": _doubly_rounded}),
    "another order": ("normal", {"order": _descending}),
}


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_are_noticed(mistake):
    """The data of these tests tell the definition from what is close to it."""
    data, change = WRONG[mistake]
    rng = np.random.default_rng(5)
    lhs, rhs = DATA[data](rng, (20, 60)), DATA[data](rng, (60, 30))
    wrong = reference.products.dot_general(lhs, rhs, MATRIX, **change)
    for dot_general, _ in implementations():
        actual = _matmul(lhs, rhs, dot_general)
        assert_same_bits(actual, reference.products.dot_general(lhs, rhs, MATRIX))
        assert (reference.values.bits(actual) != reference.values.bits(wrong)).any()


def test_rows_do_not_depend_on_their_batch():
    rng = np.random.default_rng(6)
    lhs, rhs = normal(rng, (37, 29)), normal(rng, (29, 11))
    whole = _matmul(lhs, rhs)
    for rows in (slice(0, 1), slice(3, 10), slice(36, 37), slice(None, None, 2)):
        assert_same_bits(_matmul(lhs[rows], rhs), whole[rows])
    assert_same_bits(_matmul(rhs.T, lhs.T).T, whole)


def test_vmap_is_a_loop():
    rng = np.random.default_rng(7)
    lhs, rhs = normal(rng, (3, 5, 9)), normal(rng, (9, 4))

    def body(lhs, rhs):
        return sequential.dot_general_body(lhs, rhs, dimension_numbers=MATRIX)

    mapped = run(jax.vmap(body, in_axes=(0, None)), lhs, rhs)
    assert_same_bits(mapped, np.stack([_matmul(x, rhs) for x in lhs]))


def test_other_formats_are_refused():
    x = np.zeros((2, 2), np.float64)
    with pytest.raises(TypeError, match=r"expected float32 operands, got float64; convert"):
        sequential.dot_general_body(x, x, dimension_numbers=MATRIX)


# --- convolution -----------------------------------------------------------------------


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_and_its_gradients(case):
    rng = np.random.default_rng(8)
    for *shapes, parameters in with_gradients(*CONVOLUTIONS[case][:2], **CONVOLUTIONS[case][2]):
        for data in DATA.values():
            lhs, rhs = (data(rng, shape) for shape in shapes)
            expected = reference.products.conv_general_dilated(lhs, rhs, **parameters)
            for _, convolve in implementations():
                assert_same_bits(run(convolve, lhs, rhs, **parameters), expected)
        lhs, rhs = (integers(rng, shape) for shape in shapes)
        stock = lax.conv_general_dilated(lhs, rhs, precision="highest", **parameters)
        for _, convolve in implementations():
            np.testing.assert_array_equal(run(convolve, lhs, rhs, **parameters), stock)


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_in_convolutions_are_noticed(mistake):
    data, change = WRONG[mistake]
    rng = np.random.default_rng(9)
    lhs, rhs = DATA[data](rng, (2, 3, 9, 9)), DATA[data](rng, (6, 3, 4, 4))
    (*_, parameters) = equations(lambda x, y: stock(x, y, {}), lhs, rhs)[0]
    wrong = reference.products.conv_general_dilated(lhs, rhs, **parameters, **change)
    for _, convolve in implementations():
        actual = run(convolve, lhs, rhs, **parameters)
        assert (reference.values.bits(actual) != reference.values.bits(wrong)).any()


def test_padding_takes_part():
    """0 * inf at the border is NaN, as if the zeros were stored."""
    lhs, rhs = np.ones((1, 1, 3), np.float32), np.float32([[[np.inf, 1, 1]]])
    (*_, parameters) = equations(lambda x, y: stock(x, y, {"padding": "SAME"}), lhs, rhs)[0]
    for _, convolve in implementations():
        out = run(convolve, lhs, rhs, **parameters)
        np.testing.assert_array_equal(out, [[[np.nan, np.inf, np.inf]]])


@pytest.mark.parametrize("case", ["2d", "feature groups", "batch groups", "channels last"])
def test_pieces_of_a_batch_change_nothing(case, monkeypatch):
    rng = np.random.default_rng(10)
    *shapes, parameters = with_gradients(*CONVOLUTIONS[case][:2], **CONVOLUTIONS[case][2])[0]
    lhs, rhs = (normal(rng, shape) for shape in shapes)
    body = functools.partial(convolution.conv_general_dilated_body)
    whole = run(body, lhs, rhs, **parameters)
    monkeypatch.setattr(convolution, "_PATCHES", 1)
    assert convolution.pieces(lhs.shape[0], lhs.size) > 1
    pieces = run(functools.partial(body), lhs, rhs, **parameters)
    assert_same_bits(pieces, whole)


def test_images_do_not_depend_on_their_batch():
    rng = np.random.default_rng(11)
    lhs, rhs = normal(rng, (7, 3, 8, 8)), normal(rng, (4, 3, 3, 3))
    (*_, parameters) = equations(lambda x, y: stock(x, y, {}), lhs, rhs)[0]
    body = convolution.conv_general_dilated_body
    whole = run(body, lhs, rhs, **parameters)
    for images in (slice(0, 1), slice(2, 5), slice(6, 7)):
        assert_same_bits(run(body, lhs[images], rhs, **parameters), whole[images])
    mapped = run(
        jax.vmap(lambda x, y: body(x[None], y, **parameters)[0], in_axes=(0, None)), lhs, rhs
    )
    assert_same_bits(mapped, whole)


def test_memory_of_patches_is_bounded():
    """Patches of a whole large batch are never built."""
    shape = jax.ShapeDtypeStruct((64, 64, 56, 56), np.float32)
    kernel = jax.ShapeDtypeStruct((8, 64, 3, 3), np.float32)
    (*_, parameters) = equations(lambda x, y: stock(x, y, {"padding": "SAME"}), shape, kernel)[0]
    body = compiled(convolution.conv_general_dilated_body, tuple(parameters.items()))
    patches = math.prod(shape.shape) * 9 * 4
    assert body.lower(shape, kernel).compile().memory_analysis().temp_size_in_bytes < patches


@pytest.mark.parametrize("of_number", [0, 1])
def test_a_number_times_an_array_is_a_chain_of_one(of_number):
    """It is an elementwise product (``mul``), which has the bits of an fma with +0."""
    array = np.concatenate([SPECIALS, patterns(3000, 1)])

    def product(x, y):
        return lax.dot_general(x, y, (((), ()), ((), ())))

    def chain(x, y):
        return lax.dot_general(x[..., None], y[..., None], (((x.ndim,), (y.ndim,)), ((), ())))

    for number in np.concatenate([SPECIALS, patterns(20, 2)]):
        operands = [array, array]
        operands[of_number] = np.array(number)
        results = [repjax.reproducible(f)(*operands) for f in (product, chain)]
        assert_same_bits(*results)
    text = repjax.reproducible(product).trace(*operands).jaxpr.pretty_print()
    assert "repjax_mul" in text and "dot_general" not in text
