"""Order-independent sums and contractions: what the contract says, whatever the order."""

from __future__ import annotations

import functools
import itertools
import operator
from fractions import Fraction

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import repjax
from helpers.instruction_sets import each_instruction_set
from helpers.products import CONVOLUTIONS, DATA, DOTS, MATRIX, assert_same_bits, run, with_gradients
from repjax.primitives.cpu import library
from repjax.primitives.cpu import products as kernel
from repjax.primitives.cpu import sums as kernel_of_sums
from repjax.primitives.gpu import products
from repjax.primitives.operations.products import order_independent
from repjax.primitives.operations.reductions import sums
from repjax.verify import reference

ANY_ORDER = {"accumulation": "order_independent", "contraction": "order_independent"}


#: None and HIGHEST, which is the only one that asks for more.
PRECISIONS = list(reference.products.GRIDS)
#: As JAX records it.
HIGHEST = (lax.Precision.HIGHEST,) * 2


@functools.partial(repjax.reproducible, **ANY_ORDER)
def product(a, b):
    return a @ b


@functools.partial(repjax.reproducible, **ANY_ORDER)
def finer_product(a, b):
    return jax.numpy.matmul(a, b, precision="highest")


PRODUCTS = dict(zip(PRECISIONS, (product, finer_product), strict=True))


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


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("data", ALL_DATA)
@pytest.mark.parametrize("shape", [(5, 7, 4), (3, 600, 2), (1, 1, 1), (2, 513, 3)])
def test_product(shape, data, precision):
    m, k, n = shape
    rng = np.random.default_rng(k)
    a, b = _finite(ALL_DATA[data](rng, (m, k))), _finite(ALL_DATA[data](rng, (k, n)))
    a[0, :2], b[-1, :] = 0, 0  # a term without a column
    expected = reference.products.order_independent_dot(a, b, *reference.products.GRIDS[precision])
    assert_same_bits(PRODUCTS[precision](a, b), expected)


@pytest.mark.parametrize("precision", PRECISIONS)
def test_another_grid_is_noticed(precision):
    rng = np.random.default_rng(0)
    a, b = (_scaled_features(rng, shape) for shape in ((40, 9), (9, 30)))
    a = np.ascontiguousarray(a[:, ::-1])  # not balanced
    actual = PRODUCTS[precision](a, b)
    bits, of_sum = reference.products.GRIDS[precision]
    assert_same_bits(actual, reference.products.order_independent_dot(a, b, bits, of_sum))
    for other in (bits - 1, bits + 1):
        expected = reference.products.order_independent_dot(a, b, other, of_sum)
        assert (reference.values.bits(actual) != reference.values.bits(expected)).any()


@pytest.mark.parametrize("terms", [(1 << 17) - 1, 1 << 17, (1 << 17) + 1, (1 << 18) + 77, 1 << 22])
def test_long_sums_of_the_highest_precision(terms):
    """The largest integers, whose sums need all of two words and, for the kernel, several parts."""
    rng = np.random.default_rng(terms)
    a, b = (np.float32(2) - rng.integers(1, 4, terms).astype(np.float32) * 2.0**-23 for _ in "ab")
    a, b = a.astype(np.float32), b.astype(np.float32)
    a[1], b[1] = -a[1], 2.0**-30
    actual = finer_product(a, b)
    integers = [(x.astype(np.float64) * 2.0**29).astype(np.int64).astype(object) for x in (a, b)]
    assert all((abs(x) < 1 << 30).all() for x in integers)
    assert_same_bits(
        actual, reference.values.rounded(Fraction(int(integers[0] @ integers[1]), 1 << 58))
    )
    expected = run(
        order_independent.dot_general_body,
        *(a, b),
        dimension_numbers=(((0,), (0,)), ((), ())),
        precision=HIGHEST,
    )
    assert_same_bits(actual, expected)


def test_the_highest_precision_rounds_exact_products_once():
    """Of numbers whose sizes differ by up to 2**6, which are integers on its grid."""
    rng = np.random.default_rng(9)
    a, b = (np.exp2(rng.uniform(-3, 2.9, shape)).astype(np.float32) for shape in ((3, 90), (90, 4)))
    b *= rng.choice(np.float32([-1, 1]), b.shape)
    wide = [[[Fraction(float(x)) for x in row] for row in rows] for rows in (a, b.T)]
    exact = np.array(
        [
            [reference.values.rounded(sum(map(operator.mul, row, column))) for column in wide[1]]
            for row in wide[0]
        ]
    )
    assert_same_bits(finer_product(a, b), exact)
    assert (reference.values.bits(product(a, b)) != reference.values.bits(exact)).any()


@pytest.mark.parametrize("case", DOTS)
def test_dimensions(case):
    """Integers are exact in any order, so that stock JAX gives the same."""
    lhs_shape, rhs_shape, numbers = DOTS[case]
    rng = np.random.default_rng(1)
    lhs, rhs = DATA["integers"](rng, lhs_shape), DATA["integers"](rng, rhs_shape)
    expected = lax.dot_general(lhs, rhs, numbers, precision="highest")
    actual = repjax.lax.dot_general(lhs, rhs, numbers, contraction="order_independent")
    np.testing.assert_array_equal(actual, expected)
    actual = run(order_independent.dot_general_body, lhs, rhs, dimension_numbers=numbers)
    np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize("case", CONVOLUTIONS)
def test_dimensions_of_convolutions(case):
    *shapes, parameters = CONVOLUTIONS[case]
    rng = np.random.default_rng(2)
    lhs, rhs = (DATA["integers"](rng, shape) for shape in shapes)
    n = lhs.ndim - 2
    options = {"window_strides": (1,) * n, "padding": ((0, 0),) * n, **parameters}
    stock = functools.partial(lax.conv_general_dilated, precision="highest", **options)
    ours = functools.partial(
        repjax.lax.conv_general_dilated, contraction="order_independent", **options
    )
    np.testing.assert_array_equal(ours(lhs, rhs), stock(lhs, rhs))
    if stock(lhs, rhs).size and lhs.size:
        cotangent = DATA["integers"](rng, stock(lhs, rhs).shape)
        expected = jax.vjp(stock, lhs, rhs)[1](cotangent)
        for x, y in zip(jax.vjp(ours, lhs, rhs)[1](cotangent), expected, strict=True):
            np.testing.assert_array_equal(x, y)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("data", DATA)
@pytest.mark.parametrize("shapes", [((2, 3, 6, 5), (4, 3, 2, 3)), ((1, 90, 4, 4), (2, 90, 3, 3))])
def test_convolution(shapes, data, precision):
    rng = np.random.default_rng(3)
    x, w = (_finite(DATA[data](rng, shape)) for shape in shapes)
    w[:, 1] = 0  # an input feature that is not used
    expected = reference.products.order_independent_convolution(
        x, w, (2, 1), *reference.products.GRIDS[precision]
    )
    actual = repjax.lax.conv_general_dilated(
        x, w, (2, 1), "VALID", contraction="order_independent", precision=precision
    )
    assert_same_bits(actual, expected)


@pytest.mark.parametrize("data", DATA)
def test_sum(data):
    rng = np.random.default_rng(4)
    for n in (1, 2, 7, 1000):
        x = _finite(DATA[data](rng, (n, 3)))
        expected = [reference.sums.order_independent_sum(column) for column in x.T]
        assert_same_bits(total(x), np.array(expected))


#: Rows and columns of several blocks, in parts, and a long axis.
SUMS = (
    ((3, 4500), 1),
    ((40, 130), 1),
    ((2, 150, 40), 1),
    ((5, 3), 1),
    ((300, 70), 0),
    ((9, 5000, 3), 1),
    ((200_000,), 0),
)


@pytest.mark.skipif(not library.instruction_sets(), reason="the kernel was not compiled")
@pytest.mark.parametrize("ascending", [False, True], ids=["", "ascending"])
@pytest.mark.parametrize("data", DATA)
def test_kernels_of_sums(data, ascending):
    """Ascending, each part has a larger element than those before."""
    for shape, axis in SUMS:
        x = reference.values.canonical(DATA[data](np.random.default_rng(9), shape))
        x = np.sort(x, axis) if ascending else x
        params = {"axes": (axis,), "accumulation": "order_independent"}
        expected = reference.values.canonical(run(sums.reduce_sum_body, x, **params))
        for _ in each_instruction_set():
            found = run(kernel_of_sums.order_independent_sum, x, **params)
            assert_same_bits(found, expected)
        other = np.random.default_rng(1).permutation(x, axis)
        assert_same_bits(run(kernel_of_sums.order_independent_sum, other, **params), expected)


@pytest.mark.skipif(not library.instruction_sets(), reason="the kernel was not compiled")
def test_computed_terms_of_sums():
    """Terms that the kernel computes as it adds them, and such that are not canonical in memory."""
    x = np.random.default_rng(10).standard_normal((200, 40)).astype(np.float32)
    x[3, :7] = 1e-40, -0.0, -1e-39, 3, 1e-44, 2.0**-126, -2e-38
    wanted = functools.partial(repjax.reproducible, **ANY_ORDER)

    def program(x):
        y = jax.numpy.abs(x * 3)
        return y.sum(0), x.sum(1), x.sum(), y.sum(), x.sum(0)

    results = np.asarray(wanted(lambda x: jax.numpy.abs(x * 3))(x))
    x = reference.values.canonical(x)
    terms = (*results.T, *x, x.ravel(), results.ravel(), *x.T)
    expected = np.array([reference.sums.order_independent_sum(t) for t in terms])
    for _ in each_instruction_set():
        found = [np.ravel(y) for y in wanted(program)(x)]
        assert_same_bits(np.concatenate(found), expected)


@pytest.mark.skipif(not library.instruction_sets(), reason="the kernel was not compiled")
def test_another_grid_of_sums_is_noticed(monkeypatch):
    """The control: a grid of one bit less in the body has other bits than the kernel."""
    x = np.float32([1, 2.0**-38, 2.0**-38, 3 * 2.0**-39, -1])
    params = {"axes": (0,), "accumulation": "order_independent"}
    found = run(kernel_of_sums.order_independent_sum, x, **params)
    with jax.enable_x64(True):
        assert_same_bits(np.asarray(sums.reduce_sum_body(jax.numpy.asarray(x), **params)), found)
        monkeypatch.setattr(sums.grids, "bits_of_sum", lambda terms: 37)
        assert np.asarray(sums.reduce_sum_body(jax.numpy.asarray(x), **params)) != found


@pytest.mark.skipif(not library.instruction_sets(), reason="the kernel was not compiled")
@pytest.mark.parametrize("precision", [None, HIGHEST])
@pytest.mark.parametrize("data", ["normal", "underflowing", "any_bits"])
def test_the_kernel_has_the_bits_of_the_bodies(data, precision):
    rng = np.random.default_rng(8)
    matrix = {"dimension_numbers": MATRIX, "precision": precision}
    for m, k, n in ((13, 1030, 67), (70, 300, 35), (1, 129, 1)):
        operands = DATA[data](rng, (m, k)), DATA[data](rng, (k, n))
        expected = run(order_independent.dot_general_body, *operands, **matrix)
        for _ in each_instruction_set():
            actual = run(kernel.order_independent_dot_general, *operands, **matrix)
            assert_same_bits(actual, expected)
    for case in ("batch groups", "feature groups", "all of these", "same, strided"):
        *shapes, options = CONVOLUTIONS[case]
        for *sizes, parameters in with_gradients(*shapes, **options):
            parameters["precision"] = precision
            operands = [DATA[data](rng, shape) for shape in sizes]
            expected = run(order_independent.conv_general_dilated_body, *operands, **parameters)
            for _ in each_instruction_set():
                actual = run(kernel.order_independent_convolution, *operands, **parameters)
                assert_same_bits(actual, expected)


#: Integers at the ends of digits, of 11 bits or with HIGHEST of 10, and a power of two; as
#: fractions of 2.
ENDS = {
    None: np.float32([0x3FF, 0x400, -0x400, -0x401, 1 << 21]) / (1 << 21),
    HIGHEST: np.float32(
        [
            *(low + middle for low in (0x1FF, 0x200) for middle in (0, 0x7FC00, 0x80000)),
            *(middle + high for middle in (0x7FC00, 0x80000) for high in (0x1FF00000, 0x20000000)),
        ]
    )
    / (1 << 29),
}
#: Rounded to the largest of all, with HIGHEST to 2**30 - 64.
LARGEST = np.nextafter(np.float32(2), np.float32(0))


def _ends(rng, shape, precision):
    x = rng.choice([*ENDS[precision], LARGEST], shape) * rng.choice([-1, 1], shape)
    x.flat[:: max(1, min(x.shape) - 1)] = LARGEST
    return x.astype(np.float32)


BLOCKS = {
    "ends": _ends,
    "largest": lambda rng, shape, precision: np.full(shape, LARGEST),
    "any_bits": lambda rng, shape, precision: DATA["any_bits"](rng, shape),
}


@pytest.mark.skipif(not library.instruction_sets(), reason="the kernel was not compiled")
@pytest.mark.parametrize("precision", [None, HIGHEST])
@pytest.mark.parametrize("data", BLOCKS)
@pytest.mark.parametrize(
    "shape", [(3, 255, 5), (25, 513, 65), (257, 2, 259), (64, 1, 16), (1, 2049, 70)]
)
def test_blocks_of_the_kernel(shape, data, precision):
    """Around the sizes of its tiles, strips of 24 rows, blocks of 256 rows, columns and words of
    16 bits (128 or 64 float64), and pairs of terms; with both operands stored in both ways."""
    m, k, n = shape
    rng = np.random.default_rng(k)
    lhs, rhs = (BLOCKS[data](rng, size, precision) for size in ((m, k), (k, n)))
    options = {"dimension_numbers": MATRIX, "precision": precision}
    expected = run(order_independent.dot_general_body, lhs, rhs, **options)
    for _ in each_instruction_set():
        for flip_lhs, flip_rhs in ((0, 0), (0, 1), (1, 0), (1, 1)):
            options["dimension_numbers"] = (((1 - flip_lhs,), (flip_rhs,)), ((), ()))
            stored = lhs.T if flip_lhs else lhs, rhs.T if flip_rhs else rhs
            actual = run(kernel.order_independent_dot_general, *stored, **options)
            assert_same_bits(actual, expected)


@pytest.mark.skipif(not library.instruction_sets(), reason="the kernel was not compiled")
@pytest.mark.parametrize("window", [1, 3])
@pytest.mark.parametrize("layout", [("NHWC", "HWIO", "NHWC"), ("NCHW", "OIHW", "NCHW")])
def test_convolutions_by_the_kernel(layout, window):
    """With and without elements that windows share, and gradients with results without terms."""
    rng = np.random.default_rng(window)
    sizes = {"N": 3, "C": 5, "O": 20, "I": 5}
    shapes = [
        tuple({**sizes, "H": height, "W": width}[c] for c in spec)
        for spec, height, width in zip(layout[:2], (13, window), (10, window), strict=True)
    ]
    options = {"dimension_numbers": layout, "window_strides": (2, 2), "padding": "SAME"}
    for *operands, parameters in with_gradients(*shapes, **options):
        lhs, rhs = (DATA["any_bits"](rng, size) for size in operands)
        expected = run(order_independent.conv_general_dilated_body, lhs, rhs, **parameters)
        for _ in each_instruction_set():
            actual = run(kernel.order_independent_convolution, lhs, rhs, **parameters)
            assert_same_bits(actual, expected)


SPECIAL = np.float32([0, 1, -2, np.inf, -np.inf, np.nan])


@pytest.mark.parametrize("precision", PRECISIONS)
def test_infinities_and_nans_are_those_of_ieee_arithmetic(precision):
    rng = np.random.default_rng(5)
    a, b = rng.choice(SPECIAL, (200, 3)), rng.choice(SPECIAL, (3, 200))
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(PRODUCTS[precision](a, b), (a[:, :, None] * b).sum(1))
        np.testing.assert_array_equal(total(b), b.sum(0))
    x, w = rng.choice(SPECIAL, (50, 2, 3)), rng.choice(SPECIAL, (4, 2, 2))
    actual = repjax.lax.conv_general_dilated(
        x, w, (1,), [(1, 0)], contraction="order_independent", precision=precision
    )
    padded = np.pad(x, [(0, 0), (0, 0), (1, 0)])
    with np.errstate(all="ignore"):
        windows = np.stack([padded[:, :, i : i + 2] for i in range(3)], -1)
        expected = np.einsum("bcko,fck->bfcko", windows, w).sum((2, 3))
    np.testing.assert_array_equal(actual, expected)


#: With infinities of both signs, a NaN, and what they may meet; none of it in some rows.
KINDS = np.float32([np.nan, -np.inf, -2.5, 0, 3e-3, np.inf])


@pytest.mark.parametrize("terms", [2, 3, 40])
def test_infinities_are_counted_by_products_of_int8(terms):
    """Of every pair of kinds with every other; as on GPUs, where the kernel is interpreted here."""
    rows = [*itertools.product(KINDS, repeat=2), *itertools.product(KINDS[2:5], repeat=2)]
    lhs = np.zeros((len(rows), terms), np.float32)
    lhs[:, [0, -1]] = rows
    tiles = functools.partial(products.exact_dot, interpret=True)
    exact_dot = functools.partial(order_independent.digit_dot, exact_dot=tiles)
    with np.errstate(all="ignore"):
        ieee = (lhs.astype(np.float64)[:, :, None] * lhs.T.astype(np.float64)).sum(1)
    expected = run(order_independent.dot_general_body, lhs, lhs.T, dimension_numbers=MATRIX)
    finite = np.isfinite(ieee)
    assert finite.any() and {np.inf, -np.inf} <= {*ieee[~finite]} and np.isnan(ieee).any()
    np.testing.assert_array_equal(expected[~finite], ieee[~finite].astype(np.float32))
    assert np.isfinite(expected[finite]).all()
    options = {"dimension_numbers": MATRIX, "exact_dot": exact_dot}
    assert_same_bits(run(order_independent.dot_general_body, lhs, lhs.T, **options), expected)
    *sizes, parameters = with_gradients((2, 3, 7, 4), (4, 3, 3, 2), lhs_dilation=(1, 2))[0]
    x, w = (np.random.default_rng(terms).choice(KINDS, size) for size in sizes)
    w[1:] = 1
    expected = run(order_independent.conv_general_dilated_body, x, w, **parameters)
    body = functools.partial(order_independent.conv_general_dilated_body, exact_dot=exact_dot)
    assert_same_bits(run(body, x, w, **parameters), expected)


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
    for dot in PRODUCTS.values():
        assert_same_bits(dot(a[:, order], b[order]), np.asarray(dot(a, b)))
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
    assert_same_bits(repjax.lax.dot(a, b, contraction="order_independent"), expected)
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
    mapped = jax.vmap(functools.partial(repjax.lax.dot, contraction="order_independent"))
    assert_same_bits(mapped(a[:, None], np.stack([b] * 4))[:, 0], expected)


def test_precision_of_gradients():
    """They have that of the equation that they are gradients of, in each way in."""
    rng = np.random.default_rng(10)
    a, b, c = (DATA["normal"](rng, shape) for shape in ((4, 30), (30, 5), (4, 5)))
    x, w = DATA["normal"](rng, (2, 3, 9)), DATA["normal"](rng, (4, 3, 2))
    y = DATA["normal"](rng, (2, 4, 8))

    def gradients(precision, lax=lax, **options):
        dot = functools.partial(lax.dot, precision=precision, **options)
        conv = functools.partial(lax.conv, precision=precision, **options)
        conv = functools.partial(conv, window_strides=(1,), padding="VALID")
        return lambda: (*jax.vjp(dot, a, b)[1](c), *jax.vjp(conv, x, w)[1](y))

    by_precision = {
        p: [np.asarray(g) for g in repjax.reproducible(gradients(p), **ANY_ORDER)()]
        for p in (None, "high", "highest", ("default", "highest"))
    }
    for coarse, fine in zip(by_precision[None], by_precision["highest"], strict=True):
        assert (coarse != fine).any()  # that of a and of x as well as that of b and of w
    finer = [finer_product(c, b.T), finer_product(c.T, a).T]
    with repjax.enabled(**ANY_ORDER):
        ways = [jax.jit(gradients("highest"))(), gradients("highest")()]
    ways += [finer, gradients("highest", repjax.lax, contraction="order_independent")()]
    ways += [by_precision[("default", "highest")]]
    with jax.default_matmul_precision("highest"):
        ways += [repjax.reproducible(gradients(None), **ANY_ORDER)()]
        ways += [gradients(None, repjax.lax, contraction="order_independent")()]
    for way in ways:
        for actual, expected in zip(way, by_precision["highest"], strict=False):
            assert_same_bits(actual, expected)
    for actual, expected in zip(by_precision["high"], by_precision[None], strict=True):
        assert_same_bits(actual, expected)


def test_precision_of_batches_and_of_ragged_products():
    rng = np.random.default_rng(11)
    a, b = DATA["normal"](rng, (3, 4, 30)), DATA["normal"](rng, (3, 30, 5))
    dot = functools.partial(repjax.lax.dot, contraction="order_independent", precision="highest")
    expected = np.stack([finer_product(x, y) for x, y in zip(a, b, strict=True)])
    assert_same_bits(jax.vmap(dot)(a, b), expected)
    ragged = repjax.reproducible(
        functools.partial(lax.ragged_dot, precision="highest"), **ANY_ORDER
    )
    assert_same_bits(ragged(a[0], b[:1], np.int32([4])), expected[0])


def test_other_requests_change_nothing():
    rng = np.random.default_rng(12)
    a, b = DATA["normal"](rng, (4, 30)), DATA["normal"](rng, (30, 5))
    for order, requests in (
        ("order_independent", ["high", "default", lax.DotAlgorithmPreset.F32_F32_F32]),
        ("sequential", ["highest"]),
    ):
        dot = functools.partial(repjax.lax.dot, contraction=order)
        for request in requests:
            assert_same_bits(dot(a, b, precision=request), np.asarray(dot(a, b)))


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: repjax.reproducible(lambda x: x, contraction="pairwise"),
        lambda: repjax.lax.dot(np.ones(2), np.ones(2), contraction="pairwise"),
        lambda: jax.config.update("repjax_contraction", "fast"),
        lambda: repjax.enabled(contraction="fast").__enter__(),
    ],
)
def test_unknown_orders(wrong):
    expected = "expected one of sequential, order_independent, exact; received"
    with pytest.raises(ValueError, match=expected):
        wrong()
