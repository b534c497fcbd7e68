"""Sequential contractions against the NumPy reference and against stock JAX, bit for bit."""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
import pytest
import reference
from jax import lax

from repjax.primitives import native
from repjax.primitives.contract import convolution, sequential
from repjax.primitives.contract import native as kernel

#: The algorithms: dot_general and conv_general_dilated, compiled by XLA or by the C++ kernel.
BODIES = sequential.dot_general_body, convolution.conv_general_dilated_body
KERNEL = kernel.dot_general, kernel.conv_general_dilated


def each_instruction_set():
    """The kernel uses each of this machine's while its name is yielded."""
    in_use, _ = native.in_use()
    try:
        for name in native.instruction_sets():
            native.choose(name)
            yield name
    finally:
        if in_use:
            native.choose(in_use)


def implementations():
    """Both of the bodies, then of the kernel with each of this machine's instruction sets."""
    yield BODIES
    for _ in each_instruction_set():
        yield KERNEL


# --- data ------------------------------------------------------------------------------


def _normal(rng, shape):
    return rng.standard_normal(shape).astype(np.float32)


def _integers(rng, shape):
    """Small enough that every order gives the same exact result."""
    return rng.integers(-4, 5, shape).astype(np.float32)


def _exponents(rng, shape, low, high):
    x = np.ldexp(rng.integers(1 << 23, 1 << 24, shape), rng.integers(low, high, shape) - 23)
    return (x * rng.choice([-1, 1], shape)).astype(np.float32)


def _underflowing(rng, shape):
    """Products around the smallest normal number: the sums are often subnormal."""
    return _exponents(rng, shape, -65, -60)


def _overflowing(rng, shape):
    return _exponents(rng, shape, 61, 65)


def _ties(rng, shape):
    """Sums that cancel, and that lie on or very near to the middle of two numbers."""
    x = rng.choice([1, 1 + 2.0**-12, 1 + 2.0**-23, 1 - 2.0**-23], shape)
    small = rng.random(shape) < 0.5
    x = np.where(small, np.ldexp(x, -rng.integers(11, 14, shape)), x)
    return (x * rng.choice([-1, 1], shape)).astype(np.float32)


def _any_bits(rng, shape):
    """Every exponent, and some zeros, infinities and NaNs."""
    x = _exponents(rng, shape, -126, 128)
    special = rng.choice(np.float32([0, np.inf, -np.inf, np.nan, 2.0**-126, 1]), shape)
    return np.where(rng.random(shape) < 0.03, special, x).astype(np.float32)


DATA = {
    f.__name__[1:]: f for f in (_normal, _integers, _underflowing, _overflowing, _ties, _any_bits)
}


@functools.cache
def _compiled(body, parameters):
    def traced(*operands):
        with jax.enable_x64(True):
            return body(*operands, **dict(parameters))

    return jax.jit(traced)


def run(body, *operands, **parameters):
    out = _compiled(body, tuple(parameters.items()))(*operands)
    assert out.dtype == np.float32
    return np.asarray(out)


def assert_same_bits(actual, expected):
    np.testing.assert_array_equal(reference.bits(actual), reference.bits(expected))


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
    return a, b, reference.flush(c)


def test_reference_fma_is_exact():
    operands = _fma_operands(np.random.default_rng(1), 200)
    finite = np.isfinite(operands).all(0)
    operands = [x[finite] for x in operands]
    exact = [reference.fma_exact(*x) for x in zip(*operands, strict=True)]
    actual = reference.fma(*operands) + np.float32(0)  # no negative zero
    assert_same_bits(actual, np.array(exact))
    assert (np.abs(actual) < reference.TINY).sum() > 100  # subnormals were tried
    assert np.isinf(actual).sum() > 50


def test_fma():
    operands = _fma_operands(np.random.default_rng(2), 5000)
    expected = reference.guard(reference.fma(*operands))
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
    expected = reference.fma(a, b, c)
    assert actual.dtype == np.float64
    np.testing.assert_array_equal(actual, expected.astype(np.float64))
    assert ((np.abs(expected) < reference.TINY) & (expected != 0)).sum() > 1000


# --- dot_general -----------------------------------------------------------------------

DOTS = {
    "matrix": ((5, 7), (7, 4), (((1,), (0,)), ((), ()))),
    "transposed": ((7, 5), (4, 7), (((0,), (1,)), ((), ()))),
    "wide": ((3, 40), (40, 33), (((1,), (0,)), ((), ()))),
    "tall": ((33, 40), (40, 3), (((1,), (0,)), ((), ()))),
    "vectors": ((50,), (50,), (((0,), (0,)), ((), ()))),
    "matrix vector": ((6, 9), (9,), (((1,), (0,)), ((), ()))),
    "outer product": ((3,), (4, 2), (((), ()), ((), ()))),
    "scalars": ((), (), (((), ()), ((), ()))),
    "batch": ((3, 5, 7), (3, 7, 4), (((2,), (1,)), ((0,), (0,)))),
    "batch behind": ((5, 7, 3), (7, 3, 4), (((1,), (0,)), ((2,), (1,)))),
    "square": ((3, 3), (3, 3), (((0,), (1,)), ((1,), (0,)))),
    "cube": ((3,), (3, 3, 3), (((), ()), ((0,), (2,)))),
    "two batches": ((2, 5, 3, 7), (7, 3, 2), (((3,), (0,)), ((0, 2), (2, 1)))),
    "large batch": ((60, 2, 3), (60, 3, 2), (((2,), (1,)), ((0,), (0,)))),
    "only batch": ((4, 3), (3, 4), (((), ()), ((0, 1), (1, 0)))),
    "two contracted": ((3, 4, 5), (5, 4, 2), (((1, 2), (1, 0)), ((), ()))),
    "their order": ((3, 4, 5), (5, 4, 2), (((2, 1), (0, 1)), ((), ()))),
    "everything": ((2, 3, 4, 5, 6), (4, 7, 3, 6, 2), (((3 - 1, 4), (0, 3)), ((1,), (2,)))),
    "no terms": ((3, 0), (0, 4), (((1,), (0,)), ((), ()))),
    "no rows": ((0, 3), (3, 4), (((1,), (0,)), ((), ()))),
    "no batch": ((0, 2, 3), (0, 3, 4), (((2,), (1,)), ((0,), (0,)))),
}


@pytest.mark.parametrize("case", DOTS)
def test_dot_general(case):
    lhs_shape, rhs_shape, dimension_numbers = DOTS[case]
    rng = np.random.default_rng(0)
    for data in DATA.values():
        lhs, rhs = data(rng, lhs_shape), data(rng, rhs_shape)
        expected = reference.dot_general(lhs, rhs, dimension_numbers)
        for dot_general, _ in implementations():
            actual = run(dot_general, lhs, rhs, dimension_numbers=dimension_numbers)
            assert_same_bits(actual, expected)
    lhs, rhs = _integers(rng, lhs_shape), _integers(rng, rhs_shape)
    stock = lax.dot_general(lhs, rhs, dimension_numbers, precision="highest")
    actual = run(sequential.dot_general_body, lhs, rhs, dimension_numbers=dimension_numbers)
    np.testing.assert_array_equal(actual, stock)


MATRIX = (((1,), (0,)), ((), ()))


def _matmul(lhs, rhs, dot_general=sequential.dot_general_body):
    return run(dot_general, lhs, rhs, dimension_numbers=MATRIX)


@pytest.mark.parametrize("data", DATA)
def test_long_chains(data):
    rng = np.random.default_rng(4)
    lhs, rhs = DATA[data](rng, (16, 500)), DATA[data](rng, (500, 33))
    expected = reference.dot_general(lhs, rhs, MATRIX)
    for dot_general, _ in implementations():
        assert_same_bits(_matmul(lhs, rhs, dot_general), expected)


def _flushing(a, b, s):
    return reference.flush(reference.fma(a, b, s))


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
    wrong = reference.dot_general(lhs, rhs, MATRIX, **change)
    for dot_general, _ in implementations():
        actual = _matmul(lhs, rhs, dot_general)
        assert_same_bits(actual, reference.dot_general(lhs, rhs, MATRIX))
        assert (reference.bits(actual) != reference.bits(wrong)).any()


def test_rows_do_not_depend_on_their_batch():
    rng = np.random.default_rng(6)
    lhs, rhs = _normal(rng, (37, 29)), _normal(rng, (29, 11))
    whole = _matmul(lhs, rhs)
    for rows in (slice(0, 1), slice(3, 10), slice(36, 37), slice(None, None, 2)):
        assert_same_bits(_matmul(lhs[rows], rhs), whole[rows])
    assert_same_bits(_matmul(rhs.T, lhs.T).T, whole)


def test_vmap_is_a_loop():
    rng = np.random.default_rng(7)
    lhs, rhs = _normal(rng, (3, 5, 9)), _normal(rng, (9, 4))

    def body(lhs, rhs):
        return sequential.dot_general_body(lhs, rhs, dimension_numbers=MATRIX)

    mapped = run(jax.vmap(body, in_axes=(0, None)), lhs, rhs)
    assert_same_bits(mapped, np.stack([_matmul(x, rhs) for x in lhs]))


def test_other_formats_are_refused():
    x = np.zeros((2, 2), np.float64)
    with pytest.raises(TypeError, match=r"expected float32 operands, got float64; convert"):
        sequential.dot_general_body(x, x, dimension_numbers=MATRIX)


# --- convolution -----------------------------------------------------------------------

NHWC = ("NHWC", "HWIO", "NHWC")
CONVOLUTIONS = {
    "1d": ((2, 3, 9), (4, 3, 3), {}),
    "2d": ((2, 3, 8, 7), (4, 3, 3, 2), {}),
    "3d": ((1, 2, 4, 5, 4), (2, 2, 2, 3, 2), {"padding": "SAME"}),
    "no spatial dimension": ((4, 3), (5, 3), {}),
    "strides": ((2, 3, 9, 8), (4, 3, 3, 2), {"window_strides": (2, 3)}),
    "same": ((2, 3, 8, 7), (4, 3, 3, 4), {"padding": "SAME"}),
    "same, strided": ((2, 3, 8, 7), (4, 3, 3, 4), {"padding": "SAME", "window_strides": (2, 2)}),
    "padding": ((1, 2, 6, 6), (3, 2, 3, 3), {"padding": ((2, 0), (1, 3))}),
    "negative padding": ((1, 2, 8, 8), (3, 2, 3, 3), {"padding": ((-1, 2), (0, -2))}),
    "rhs dilation": ((2, 3, 9, 8), (2, 3, 3, 2), {"rhs_dilation": (2, 3)}),
    "lhs dilation": ((2, 3, 4, 5), (2, 3, 3, 3), {"lhs_dilation": (2, 3)}),
    "all of these": (
        (2, 2, 7, 6),
        (3, 2, 3, 2),
        {
            "window_strides": (2, 1),
            "padding": ((3, -1), (0, 2)),
            "lhs_dilation": (2, 3),
            "rhs_dilation": (2, 3),
        },
    ),
    "channels last": ((2, 6, 7, 3), (3, 2, 3, 4), {"dimension_numbers": NHWC, "padding": "SAME"}),
    "odd layout": ((6, 3, 7, 2), (2, 4, 3, 3), {"dimension_numbers": ("WCHN", "HOIW", "HNCW")}),
    "1x1": ((2, 5, 3, 3), (4, 5, 1, 1), {"window_strides": (2, 2)}),
    "feature groups": ((2, 6, 5, 4), (4, 3, 2, 2), {"feature_group_count": 2}),
    "depthwise": (
        (2, 5, 4, 3),
        (3, 2, 1, 6),
        {"feature_group_count": 3, "dimension_numbers": NHWC, "padding": "SAME"},
    ),
    "batch groups": ((6, 2, 5, 4), (9, 2, 2, 3), {"batch_group_count": 3}),
    "whole image": ((2, 3, 5, 5), (4, 3, 5, 5), {}),
    "no output": ((2, 3, 2, 2), (4, 3, 3, 3), {}),
    "no features": ((2, 0, 4, 4), (3, 0, 2, 2), {}),
    "no batch": ((0, 2, 4, 4), (3, 2, 2, 2), {}),
}
PARAMETERS = (
    "window_strides",
    "padding",
    "lhs_dilation",
    "rhs_dilation",
    "dimension_numbers",
    "feature_group_count",
    "batch_group_count",
)


def _stock(lhs, rhs, parameters):
    n = lhs.ndim - 2
    filled = {"window_strides": (1,) * n, "padding": ((0, 0),) * n, **parameters}
    return lax.conv_general_dilated(lhs, rhs, precision="highest", **filled)


def _equations(function, *operands):
    """The convolutions of a function's jaxpr: operand shapes, parameters."""
    found = []

    def walk(jaxpr):
        for e in jaxpr.eqns:
            if e.primitive is lax.conv_general_dilated_p:
                shapes = [v.aval.shape for v in e.invars]
                found.append((*shapes, {k: e.params[k] for k in PARAMETERS}))
            for inner in e.params.values():
                if hasattr(inner, "jaxpr"):
                    walk(inner.jaxpr)

    walk(jax.make_jaxpr(function)(*operands).jaxpr)
    return found


def with_gradients(*shapes, **parameters):
    """The equation of a convolution and those of its two gradients."""
    lhs, rhs = (np.zeros(shape, np.float32) for shape in shapes)

    def gradients(lhs, rhs, cotangent):
        return jax.vjp(lambda lhs, rhs: _stock(lhs, rhs, parameters), lhs, rhs)[1](cotangent)

    forward = _equations(lambda lhs, rhs: _stock(lhs, rhs, parameters), lhs, rhs)
    cotangent = jax.eval_shape(lambda lhs, rhs: _stock(lhs, rhs, parameters), lhs, rhs)
    if 0 in (*lhs.shape, *cotangent.shape):
        return forward
    equations = _equations(gradients, lhs, rhs, np.zeros(cotangent.shape, np.float32))
    assert len(equations) == 3
    return equations


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_convolution_and_its_gradients(case):
    rng = np.random.default_rng(8)
    for *shapes, parameters in with_gradients(*CONVOLUTIONS[case][:2], **CONVOLUTIONS[case][2]):
        for data in DATA.values():
            lhs, rhs = (data(rng, shape) for shape in shapes)
            expected = reference.conv_general_dilated(lhs, rhs, **parameters)
            for _, convolve in implementations():
                assert_same_bits(run(convolve, lhs, rhs, **parameters), expected)
        lhs, rhs = (_integers(rng, shape) for shape in shapes)
        stock = lax.conv_general_dilated(lhs, rhs, precision="highest", **parameters)
        for _, convolve in implementations():
            np.testing.assert_array_equal(run(convolve, lhs, rhs, **parameters), stock)


@pytest.mark.parametrize("mistake", WRONG)
def test_mistakes_in_convolutions_are_noticed(mistake):
    data, change = WRONG[mistake]
    rng = np.random.default_rng(9)
    lhs, rhs = DATA[data](rng, (2, 3, 9, 9)), DATA[data](rng, (6, 3, 4, 4))
    (*_, parameters) = _equations(lambda x, y: _stock(x, y, {}), lhs, rhs)[0]
    wrong = reference.conv_general_dilated(lhs, rhs, **parameters, **change)
    for _, convolve in implementations():
        actual = run(convolve, lhs, rhs, **parameters)
        assert (reference.bits(actual) != reference.bits(wrong)).any()


def test_padding_takes_part():
    """0 * inf at the border is NaN, as if the zeros were stored."""
    lhs, rhs = np.ones((1, 1, 3), np.float32), np.float32([[[np.inf, 1, 1]]])
    (*_, parameters) = _equations(lambda x, y: _stock(x, y, {"padding": "SAME"}), lhs, rhs)[0]
    for _, convolve in implementations():
        out = run(convolve, lhs, rhs, **parameters)
        np.testing.assert_array_equal(out, [[[np.nan, np.inf, np.inf]]])


@pytest.mark.parametrize("case", ["2d", "feature groups", "batch groups", "channels last"])
def test_pieces_of_a_batch_change_nothing(case, monkeypatch):
    rng = np.random.default_rng(10)
    *shapes, parameters = with_gradients(*CONVOLUTIONS[case][:2], **CONVOLUTIONS[case][2])[0]
    lhs, rhs = (_normal(rng, shape) for shape in shapes)
    body = functools.partial(convolution.conv_general_dilated_body)
    whole = run(body, lhs, rhs, **parameters)
    monkeypatch.setattr(convolution, "_PATCHES", 1)
    assert convolution.pieces(lhs.shape[0], lhs.size) > 1
    pieces = run(functools.partial(body), lhs, rhs, **parameters)
    assert_same_bits(pieces, whole)


def test_images_do_not_depend_on_their_batch():
    rng = np.random.default_rng(11)
    lhs, rhs = _normal(rng, (7, 3, 8, 8)), _normal(rng, (4, 3, 3, 3))
    (*_, parameters) = _equations(lambda x, y: _stock(x, y, {}), lhs, rhs)[0]
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
    (*_, parameters) = _equations(lambda x, y: _stock(x, y, {"padding": "SAME"}), shape, kernel)[0]
    body = _compiled(convolution.conv_general_dilated_body, tuple(parameters.items()))
    patches = math.prod(shape.shape) * 9 * 4
    assert body.lower(shape, kernel).compile().memory_analysis().temp_size_in_bytes < patches
