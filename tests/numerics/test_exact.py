"""Exact sums and products: rational numbers, rounded once, whatever the order of the terms."""

from __future__ import annotations

import functools
import itertools
import math
from fractions import Fraction

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax import lax

import repjax
from helpers.bits import assert_same_bits, patterns
from helpers.instruction_sets import each_instruction_set
from helpers.products import CONVOLUTIONS, DATA, DOTS, MATRIX, run, with_gradients
from repjax.primitives.cpu import library, sums
from repjax.primitives.cpu import products as kernel
from repjax.primitives.cpu import scatter as kernel_of_scatters
from repjax.primitives.operations import accumulators
from repjax.primitives.operations.products import exact
from repjax.primitives.operations.reductions import cumulative
from repjax.primitives.operations.reductions import sums as reductions
from repjax.verify import reference

EXACT = {"accumulation": "exact", "contraction": "exact"}
FORMATS = tuple(map(np.dtype, ("float32", "float16", jnp.bfloat16)))
exactly = functools.partial(repjax.reproducible, **EXACT)


def rounded(terms, dtype=np.float32):
    """The contract: guard(RN(the sum)), or what IEEE arithmetic makes of infinities and NaNs."""
    terms = [float(x) for x in terms]
    if not np.isfinite(terms).all():
        with np.errstate(invalid="ignore"):
            total = np.sum([x for x in terms if not np.isfinite(x)]).astype(dtype)
        return canonical(total)[()]
    total = sum(map(Fraction, terms), Fraction(0))
    return reference.values.guard(reference.values.rounded_to(total, dtype))[()]


def products(a, b):
    """The terms of an element, of which float64 holds each."""
    with np.errstate(invalid="ignore"):
        return np.multiply(a, b, dtype=np.float64)


def canonical(x):
    return reference.values.canonical(x)


@np.errstate(over="ignore", invalid="ignore")
def made(data, rng, shape, dtype):
    return canonical(data(rng, shape).astype(dtype))


_numbers = st.one_of(
    st.floats(width=32, allow_nan=False, allow_infinity=False),
    st.integers(-8, 8).map(float),
    st.sampled_from([0.0, 1.0, 2.0**-24, 2.0**-126, -(2.0**-126), 3.4e38, -3.4e38]),
)


# --- sums against rational numbers ------------------------------------------------------


def wide(rng, shape):
    """Terms over 250 binades, of which half cancel the others."""
    x = np.ldexp(rng.standard_normal(shape), rng.integers(-124, 124, shape))
    x[: len(x) // 2] = -x[len(x) - len(x) // 2 :][::-1]
    return x.astype(np.float32)


def cancelling(rng, shape):
    """All terms cancel except one of the smallest numbers."""
    x = rng.standard_normal(shape).astype(np.float32)
    x[: len(x) // 2] = -x[len(x) - len(x) // 2 :][::-1]
    x[-1] = rng.choice(np.float32([2.0**-126, 2.0**-125, 3 * 2.0**-127, -(2.0**-125)]))
    return x


def subnormal(rng, shape):
    """Normal numbers whose sums are often below the smallest one, or at it."""
    x = rng.integers(1 << 23, 1 << 24, shape) * 2.0**-149
    return (x * rng.choice([-1, 1], shape)).astype(np.float32)


SUMS = {**DATA, "wide": wide, "cancelling": cancelling, "subnormal": subnormal}


@exactly
def _all_sums(x):
    # Not jax.numpy's, which adds narrow formats as float32 numbers.
    columns, whole = (lax.reduce_sum(x, axes) for axes in ((0,), (0, 1)))
    return columns, whole, lax.cumsum(x, 0), lax.cumsum(x, 0, True)


@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("data", SUMS)
def test_sums(data, dtype):
    for n in (1, 6, 75):
        x = made(SUMS[data], np.random.default_rng(n), (n, 5), dtype)
        columns, whole, prefixes, suffixes = map(np.asarray, _all_sums(x))
        for j, column in enumerate(x.T):
            assert_same_bits(columns[j], rounded(column, dtype), f"{data}, {n}")
        assert_same_bits(whole[()], rounded(x.ravel(), dtype))
        for k in {0, n // 2, n - 1}:
            assert_same_bits(prefixes[k, 0], rounded(x[: k + 1, 0], dtype))
            assert_same_bits(suffixes[k, 1], rounded(x[k:, 1], dtype))


def sums_of_kernels(x, axis):
    """By the body and with each instruction set, from memory."""
    params = {"axes": (axis,), "accumulation": "exact"}
    for way, total in implementations(reductions.reduce_sum_body, sums.exact_sum):
        yield way, canonical(run(total, x, **params))


@pytest.mark.parametrize("data", SUMS)
def test_kernels_of_sums(data):
    """Rows and columns of several blocks."""
    for shape, axis in (((3, 4500), 1), ((300, 70), 0), ((2, 150, 9), 1), ((5, 3), 1)):
        x = SUMS[data](np.random.default_rng(9), shape)
        terms = np.moveaxis(x, axis, 0)
        expected = np.empty(terms.shape[1:], np.float32)
        for i in np.ndindex(expected.shape):
            expected[i] = rounded(terms[(slice(None), *i)])
        for way, found in sums_of_kernels(x, axis):
            assert_same_bits(found, expected, f"{shape}, {way}")


def prefixes(x):
    """The definition along the first axis; a column of these is enough to tell."""
    return np.array([rounded(x[: k + 1]) for k in range(len(x))])


def prefixes_of_kernels(x, axis, reverse=False):
    params = {"axis": axis, "reverse": reverse, "accumulation": "exact"}
    for way, sums_of_prefixes in implementations(cumulative.cumsum_body, sums.exact_cumsum):
        # Its own NaN has the kernel: another one would be what it is not sure of.
        yield way, np.asarray(run(sums_of_prefixes, x, **params))


@pytest.mark.parametrize("data", SUMS)
def test_kernels_of_prefixes(data):
    """Axes side by side, rows, axes in parts, blocks that are not whole, in both directions."""
    shapes = ((700, 5), 0), ((3, 70), 1), ((2, 150, 90), 1), ((20, 2, 3), 0)
    for (shape, axis), reverse in itertools.product(shapes, (False, True)):
        x = made(SUMS[data], np.random.default_rng(9), shape, np.float32)
        column = np.moveaxis(x, axis, 0).reshape(shape[axis], -1)[:, -1]
        right = prefixes(column[::-1])[::-1] if reverse else prefixes(column)
        by_body = None
        for way, found in prefixes_of_kernels(x, axis, reverse):
            found = canonical(found) if by_body is None else found
            by_body = found if by_body is None else by_body
            assert_same_bits(found, by_body, f"{shape}, {reverse}, {way}")
            last = np.moveaxis(found, axis, 0).reshape(shape[axis], -1)[:, -1]
            assert_same_bits(last, right, f"{shape}, {reverse}, {way}")


def test_a_long_axis_of_prefixes_is_shared_by_threads():
    """Also where all of it is within what sums with their errors lose of a tie."""
    x = SUMS["normal"](np.random.default_rng(9), 100_000)
    x[1::2] = -x[::2]
    x[12345] = 3e-30
    for reverse in (False, True):
        along = slice(None, None, -1 if reverse else 1)
        totals = itertools.accumulate(Fraction(v) for v in x[along].tolist())
        right = [reference.values.rounded_to(t, np.float32) for t in totals]
        right = reference.values.guard(np.array(right))[along]
        for way, found in prefixes_of_kernels(x, 0, reverse):
            assert_same_bits(found, right, way)


@settings(max_examples=20, deadline=None)
@given(st.lists(_numbers, min_size=1, max_size=40), st.integers(1, 5), st.randoms())
def test_prefixes_depend_on_their_terms_only(terms, columns, random):
    """In another order and place, among others, with zeros: the sums over the same terms."""
    x = canonical(np.float32(terms))
    order = random.sample(range(len(x)), len(x))
    y = np.ones((64, columns), np.float32)
    y[: len(x) + 7, -1] = 0
    y[7 : len(x) + 7, -1] = x[order]
    found = np.asarray(_prefixes(y))[6 : len(x) + 7, -1]
    assert_same_bits(found[0], np.float32(0))
    assert_same_bits(found[-1], rounded(x))
    assert_same_bits(found[-1], np.asarray(_prefixes(x[:, None]))[-1, 0])


_prefixes = exactly(lambda x: lax.cumsum(x, 0))


def test_gradients_of_prefixes():
    """Sums against the direction, and under vmap along another axis."""
    rng = np.random.default_rng(12)
    x, cotangent = wide(rng, (9, 70)), wide(rng, (9, 70))

    def gradient(x, ct, axis):
        return jax.vjp(lambda x: lax.cumsum(x, axis), x)[1](ct)[0]

    rows = exactly(lambda x, ct: gradient(x, ct, 1))(x, cotangent)
    mapped = exactly(jax.vmap(lambda x, ct: gradient(x, ct, 0)))(x, cotangent)
    expected = np.array([prefixes(c[::-1])[::-1] for c in cotangent])
    for found in (rows, mapped):
        assert_same_bits(np.asarray(found), expected)


def test_a_long_row_is_shared_by_threads():
    x = SUMS["normal"](np.random.default_rng(9), (1, 300_000))
    x[0, ::2] = -x[0, 1::2]
    x[0, 12345] = 3e-30
    for way, found in sums_of_kernels(x, 1):
        assert_same_bits(found, np.array([math.fsum(x[0].tolist())]).astype("f4"), way)


def test_computed_terms():
    """Terms that the kernel computes as it adds them, and such that are not canonical in memory."""
    x = wide(np.random.default_rng(10), (200, 40))
    x[3, :7] = 1e-40, -0.0, -1e-39, 3, 1e-44, 2.0**-126, -2e-38
    totals = exactly(lambda x: (x.sum(0), x.sum(1), jnp.abs(x * 3).sum(0), jnp.sum(x - 1)))
    in_memory = exactly(lambda x: (jnp.abs(x * 3), x - 1))
    tripled, less = map(np.asarray, in_memory(x))
    y = canonical(x)
    expected = (
        np.array([rounded(c) for c in y.T]),
        np.array([rounded(r) for r in y]),
        np.array([rounded(c) for c in tripled.T]),
        np.asarray(rounded(less.ravel())),
    )
    for _ in each_instruction_set():
        assert_same_bits(tuple(map(np.asarray, totals(x))), expected)


def test_sum_over_nothing():
    assert_same_bits(exactly(lambda x: x.sum(0))(np.zeros((0, 3), np.float32)), np.zeros(3, "f4"))


def _scatters(x, i, u):
    return x.at[i].add(u, mode="drop"), x.at[i].subtract(u, mode="drop")


_by_kernel, _by_body = exactly(_scatters), exactly(lambda *xs: _scatters(*xs))


@pytest.mark.parametrize("kernel", [True, False], ids=["kernel", "body"])
@pytest.mark.parametrize("dtype", FORMATS, ids=str)
@pytest.mark.parametrize("data", SUMS)
def test_scatter_add(data, dtype, kernel, monkeypatch):
    if not kernel:
        monkeypatch.setattr(library, "available", lambda: False)
        monkeypatch.setattr(library, "serves", lambda: False)
    both_scatters = _by_kernel if kernel else _by_body
    rng = np.random.default_rng(5)
    operand, updates = (made(SUMS[data], rng, (n, 3), dtype) for n in (7, 60))
    rows = rng.integers(-2, 9, 60)
    rows[:4] = 1, -1, 8, 1  # the last of which is out of bounds
    for found, sign in zip(both_scatters(operand, rows, updates), (1, -1), strict=True):
        for i, j in np.ndindex(7, 3):
            own = updates[(rows % 7 == i) & (rows < 7), j]
            terms = [float(operand[i, j]), *(sign * own.astype(np.float64))]
            assert_same_bits(np.asarray(found)[i, j], rounded(terms, dtype))


def test_gradient_of_an_embedding():
    rng = np.random.default_rng(6)
    table, cotangent = wide(rng, (9, 4)), wide(rng, (30, 4))
    tokens = rng.integers(0, 9, 30)
    gradient = exactly(lambda t, ct: jax.vjp(lambda t: t[tokens], t)[1](ct)[0])(table, cotangent)
    for i, j in np.ndindex(9, 4):
        assert_same_bits(np.asarray(gradient)[i, j], rounded(cotangent[tokens == i, j]))


# --- products ---------------------------------------------------------------------------


def reference_dot(a, b, numbers=MATRIX, dtype=np.float32):
    return reference.products.dot_general(
        a, b, numbers, chain=reference.products.exact_chain(dtype)
    )


@pytest.mark.parametrize("data", DATA)
def test_the_reference_is_the_definition(data):
    rng = np.random.default_rng(1)
    a, b = (DATA[data](rng, shape) for shape in ((4, 30), (30, 3)))
    for dtype in FORMATS:
        found = reference_dot(a, b, dtype=dtype)
        for i, j in np.ndindex(found.shape):
            assert_same_bits(found[i, j], rounded(products(a[i], b[:, j]), dtype))


def implementations(body, of_kernel):
    """The body, and the kernel with each of this machine's instruction sets."""
    yield "the body", body
    for name in each_instruction_set():
        yield name, of_kernel


#: Of several blocks and tiles, and with more elements than a strip of rows.
LARGER = {
    "blocks": ((50, 300), (300, 70), MATRIX),
    "a column": ((300, 260), (260,), (((1,), (0,)), ((), ()))),
    "transposed blocks": ((270, 30), (35, 270), (((0,), (1,)), ((), ()))),
}


@pytest.mark.parametrize("data", DATA)
def test_dot_general(data):
    operands = {}
    for name, (left, right, numbers) in {**DOTS, **LARGER}.items():
        rng = np.random.default_rng(len(name))
        a, b = DATA[data](rng, left), DATA[data](rng, right)
        operands[name] = a, b, numbers, reference_dot(a, b, numbers)
    for way, dot in implementations(exact.dot_general_body, kernel.exact_dot_general):
        for name, (a, b, numbers, expected) in operands.items():
            found = canonical(run(dot, a, b, dimension_numbers=numbers))
            assert_same_bits(found, expected, f"{name}, {way}")


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_convolutions_and_their_gradients(name):
    *shapes, parameters = CONVOLUTIONS[name]
    for left, right, kept in with_gradients(*shapes, **parameters):
        hashable = {k: v if k == "dimension_numbers" else _hashable(v) for k, v in kept.items()}
        for data in ("ties", "any_bits"):
            rng = np.random.default_rng(len(name))
            a, b = DATA[data](rng, left), DATA[data](rng, right)
            chain = reference.products.exact_chain(np.float32)
            expected = reference.products.conv_general_dilated(a, b, chain=chain, **kept)
            ways = exact.conv_general_dilated_body, kernel.exact_convolution
            for way, convolve in implementations(*ways):
                found = canonical(run(convolve, a, b, **hashable))
                assert_same_bits(found, expected, f"{name}, {data}, {way}")


def _hashable(x):
    return tuple(map(_hashable, x)) if isinstance(x, (list, tuple)) else x


@pytest.mark.parametrize("dtype", FORMATS[1:], ids=str)
@pytest.mark.parametrize("data", ["normal", "ties", "integers", "any_bits"])
def test_narrow_formats_are_rounded_once(data, dtype):
    rng = np.random.default_rng(2)
    a, b = (made(DATA[data], rng, shape, dtype) for shape in ((9, 50), (50, 8)))
    narrow = exactly(lambda a, b: lax.dot(a, b))(a, b)
    wide_result = exactly(lambda a, b: lax.dot(a, b, preferred_element_type=np.float32))(a, b)
    assert_same_bits(np.asarray(narrow), reference_dot(a, b, dtype=dtype))
    assert_same_bits(np.asarray(wide_result), reference_dot(a, b))


def test_two_roundings_would_be_others():
    """1 + 2**-8 + 2**-60: float32 rounds it to a tie of bfloat16, which goes down."""
    a = jnp.bfloat16([1, 2.0**-8, 2.0**-30])
    b = jnp.bfloat16([1, 1, 2.0**-30])
    dot = functools.partial(repjax.lax.dot, contraction="exact")
    assert dot(a, b) == 1 + 2.0**-7
    assert jnp.bfloat16(dot(a, b, preferred_element_type=np.float32)) == 1
    terms = jnp.bfloat16([1, 2.0**-8, 2.0**-60])
    assert repjax.lax.reduce_sum(terms, (0,), accumulation="exact") == 1 + 2.0**-7
    assert repjax.lax.cumsum(terms, accumulation="exact")[2] == 1 + 2.0**-7


def test_ragged_products_and_gradients():
    rng = np.random.default_rng(3)
    x, w, ct = (DATA["ties"](rng, s) for s in ((11, 25), (3, 25, 4), (11, 4)))
    sizes = np.int32([4, 0, 6])

    def ragged(x, w):
        return lax.ragged_dot(x, w, sizes)

    out, (to_x, to_w) = exactly(lambda x, w, ct: (ragged(x, w), jax.vjp(ragged, x, w)[1](ct)))(
        x, w, ct
    )
    groups = [(0, slice(0, 4)), (2, slice(4, 10))]
    expected, wanted_x, wanted_w = np.zeros_like(ct), np.zeros_like(x), np.zeros_like(w)
    for g, rows in groups:
        expected[rows] = reference_dot(x[rows], w[g])
        wanted_x[rows] = reference_dot(ct[rows], w[g].T)
        wanted_w[g] = reference_dot(x[rows].T, ct[rows])
    assert_same_bits(tuple(map(np.asarray, (out, to_x, to_w))), (expected, wanted_x, wanted_w))


def test_every_way_in():
    rng = np.random.default_rng(4)
    a, b = DATA["ties"](rng, (5, 30)), DATA["ties"](rng, (30, 4))
    expected = reference_dot(a, b), np.array([rounded(x) for x in a])

    def program(a, b):
        return a @ b, a.sum(1)

    ways = [exactly(program)(a, b)]
    with repjax.enabled(**EXACT):
        ways += [program(*map(jnp.asarray, (a, b))), jax.jit(program)(a, b)]
    ways += [
        (
            repjax.lax.dot(a, b, contraction="exact"),
            repjax.lax.reduce_sum(a, (1,), accumulation="exact"),
        )
    ]
    ways += [jax.tree.map(lambda y: y[0], exactly(jax.vmap(program))(a[None], b[None]))]
    for way in ways:
        assert_same_bits(tuple(map(np.asarray, way)), expected)
    to_a, to_b = jax.grad(lambda a, b: repjax.lax.dot(a, b, contraction="exact")[2, 1], (0, 1))(
        a, b
    )
    one = np.zeros((5, 4), np.float32)
    one[2, 1] = 1
    assert_same_bits(np.asarray(to_a), reference_dot(one, b.T))
    assert_same_bits(np.asarray(to_b), reference_dot(a.T, one))


def test_fft():
    x = DATA["normal"](np.random.default_rng(8), (3, 60))
    found = exactly(jnp.fft.fft)(x)
    numbers = {"fft_type": 0, "fft_lengths": (60,)}
    operation = reference.table.Operation(
        "fft",
        (x.astype(np.complex64),),
        numbers,
        ((np.dtype(np.complex64), (3, 60)),),
        contraction="exact",
    )
    (expected,) = reference.table.call(operation)
    assert (np.asarray(found).view(np.uint32) == expected.view(np.uint32)).all()


# --- nothing but the terms matters ------------------------------------------------------

_PAD = 16


@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(_numbers, _numbers), min_size=1, max_size=_PAD), st.randoms())
def test_order_padding_and_blocks_change_nothing(pairs, random):
    """Terms in another order, with zeros among them, beside other rows and columns."""
    a, b = canonical(np.float32(pairs)).T
    expected = rounded(products(a, b))
    places = sorted(random.sample(range(_PAD), len(pairs)))
    order = random.sample(range(len(pairs)), len(pairs))
    x, y = np.zeros((3, _PAD), np.float32), np.zeros((_PAD, 2), np.float32)
    x[0], y[:, 1] = 1e30, 7  # other rows and columns
    x[1, places], y[places, 0] = a[order], b[order]
    assert_same_bits(np.asarray(_product(x, y))[1, 0], expected)
    assert_same_bits(np.asarray(_total(x.T))[1], rounded(a))
    # In two parts, of which the digits are added.
    with jax.enable_x64(True):
        total = _in_two_parts(products(x[1], y[:, 0]))
    assert_same_bits(np.asarray(total)[()], expected)


_product = exactly(lambda x, y: x @ y)
_total = exactly(lambda x: x.sum(0))


@jax.jit
def _in_two_parts(x):
    digits = accumulators.digits(x, accumulators.PRODUCTS)
    parts = (lax.reduce_sum(part, (1,)) for part in jnp.split(digits, 2, 1))
    return accumulators.rounded(sum(parts), jnp.zeros(()), accumulators.PRODUCTS)


def test_other_orders_change_bits():
    """The control: the same data tell orders that round each sum."""
    x = DATA["normal"](np.random.default_rng(0), (40, 200))
    for order in ("pairwise", "sequential"):
        total = functools.partial(repjax.lax.reduce_sum, axes=(0,), accumulation=order)
        assert (np.asarray(total(x)) != np.asarray(total(np.roll(x, 3, 0)))).any()
    dot = functools.partial(repjax.lax.dot, contraction="order_independent")
    exact_dot = functools.partial(repjax.lax.dot, contraction="exact")
    x = np.ldexp(x, np.random.default_rng(1).integers(0, 40, x.shape))
    assert (np.asarray(dot(x.T, x)) != np.asarray(exact_dot(x.T, x))).any()


# --- the bound --------------------------------------------------------------------------


def hard_products(terms: int, of_error: float):
    """Rows whose float64 sums, k ascending, are off by nearly as much as they can be.

    The first two products are 1 and little less than 2**-24; every other one is 2**-53, half of
    what the sum's last bit counts: a tie, which goes down.  The float64 sum is ``of_error`` times
    ``terms * 2**-53`` below the middle of two float32 numbers, and the exact sum above it.
    """
    below = 32 * round(of_error * terms / 32)  # of 2**-53, so that float32 holds the product
    small = np.float32(2.0**-24) - np.float32(below * 2.0**-53)
    assert float(small) == 2.0**-24 - below * 2.0**-53
    a = np.full(terms, 2.0**-26, np.float32)
    b = np.full(terms, 2.0**-27, np.float32)
    a[0], b[0], a[1], b[1] = 1, 1, small, 1
    return a, b


@pytest.fixture
def weaker(monkeypatch):
    """Bounds of a bit less."""
    right = exact.error_bound

    def weaken():
        monkeypatch.setattr(exact, "error_bound", lambda terms: right(terms) / 2)

    return weaken


def hard_terms(terms: int, of_error: float):
    """The same of a row of terms, of which float64 sums of many chains lose every small one."""
    below = 2 * round(of_error * terms / 2)
    x = np.full(terms, 2.0**-53, np.float32)
    x[0], x[1], x[2] = 1, 2.0**-24, -below * 2.0**-53
    return x


def hard_prefix():
    """Terms whose sum is above a tie, and whose float64 sum, with what its additions lose, below.

    Beside 2**-60, which later leaves again, three times 2**-114 is lost, a quarter of its last bit.
    """
    lost = 2.0**-114
    return np.float32([1, 2.0**-24, 2.0**-60, lost, lost, lost, -(2.0**-60), -2.25 * lost])


@pytest.mark.parametrize("slack", [1.0, 0.5])
def test_the_bound_of_prefixes(slack, monkeypatch):
    x = hard_prefix()
    right = prefixes(x)
    assert right[-1] == np.float32(1 + 2.0**-23)
    monkeypatch.setattr(sums, "SLACK", slack)

    def compute(x):
        with jax.enable_x64(True):
            return sums.exact_cumsum(x, axis=0, reverse=False, accumulation="exact")

    for name in each_instruction_set():
        found = np.asarray(jax.jit(compute)(x))
        assert (found[-1] == right[-1]) == (slack == 1), name
        assert_same_bits(found[:-1], right[:-1], name)


@pytest.mark.parametrize("slack", [1.0, 0.5])
def test_the_bounds_of_kernels(slack, monkeypatch):
    """Those of 128 products of a block, 128 terms of columns, 128 updates; and weaker ones."""
    a, b = hard_products(128, 0.75)
    x, y = np.stack([a] * 2), np.stack([b] * 2, 1)
    column = np.stack([hard_terms(128, 0.75)] * 40, 1)
    total = rounded(column[:, 0])
    expected = rounded(products(a, b)), total, total
    assert expected == (np.float32(1 + 2.0**-23),) * 3
    monkeypatch.setattr(kernel, "SLACK", slack)
    monkeypatch.setattr(sums, "SLACK", slack)
    monkeypatch.setattr(kernel_of_scatters, "SLACK", slack)

    def compute(x, y, column):
        with jax.enable_x64(True):
            total = sums.exact_sum(column, axes=(0,), accumulation="exact")
            row = kernel_of_scatters.scatter_add(
                *(np.zeros((1, 40), np.float32), np.zeros((128, 1), np.int32), column),
                dimension_numbers=lax.ScatterDimensionNumbers((1,), (0,), (0,)),
                mode=lax.GatherScatterMode.FILL_OR_DROP,
                accumulation="exact",
            )
            return kernel.exact_dot_general(x, y, dimension_numbers=MATRIX), total, row

    for name in each_instruction_set():
        found = jax.jit(compute)(x, y, column)
        for results, right in zip(found, expected, strict=True):
            assert (np.asarray(results) == right).all() == (slack == 1), name


@pytest.mark.parametrize("first", [1.0, 1 + 2.0**-23])
@pytest.mark.parametrize("slack", [1.0, 0.125])
def test_sums_of_few_bits(slack, first, monkeypatch):
    """A product is lost below a tie: the sum is not exact, though its terms have one bit each.

    With a first row and column that have more bits, that is found once many are uncertain.
    """
    x = np.tile(np.float32([1, 2.0**-12, 2.0**-27]), (9, 1))
    y = np.tile(np.float32([1, 2.0**-12, 2.0**-26])[:, None], (1, 40))
    x[0, 0] = y[0, 0] = first
    monkeypatch.setattr(kernel, "SLACK", slack)

    def compute(x, y):
        with jax.enable_x64(True):
            return kernel.exact_dot_general(x, y, dimension_numbers=MATRIX)

    for name in each_instruction_set():
        found = np.asarray(jax.jit(compute)(x, y))
        assert (found[1:, 1:] == np.float32(1 + 2.0**-23)).all() == (slack == 1), name


def test_what_is_uncertain_everywhere():
    """Rows of mean zero times nearly constant columns: each sum cancels, by the kernel twice."""
    rng = np.random.default_rng(11)
    a = rng.standard_normal((20, 301)).astype(np.float32)
    a[:, 150:300] = -a[:, :150]
    a[:, 300] = 2.0**-100
    b = np.ones((301, 33), np.float32)
    b[7] += np.float32(2.0**-20)
    b[300] = rng.standard_normal(33) * 2.0**-26
    expected = reference_dot(a, b)
    for way, dot in implementations(exact.dot_general_body, kernel.exact_dot_general):
        assert_same_bits(run(dot, a, b, dimension_numbers=MATRIX), expected, way)


def _hard_result(terms=2048, of_error=0.8):
    a, b = hard_products(terms, of_error)
    x, y = np.stack([a] * 2), np.stack([b] * 2, 1)
    expected = rounded(products(a, b))
    assert expected == np.float32(1 + 2.0**-23)

    def compute(lhs, rhs):  # not by `run`, which keeps what is compiled
        return exact.dot_general_body(lhs, rhs, dimension_numbers=MATRIX)

    with jax.enable_x64(True):
        return np.asarray(jax.jit(compute)(x, y)), expected


def in_order(lhs, rhs, numbers, precision):
    """``lax.dot_general`` of float64 ``[k, 1, m]`` and ``[k, 1, n]``, k ascending."""

    def step(s, terms):
        a, b = terms
        return s + lax.expand_dims(a, (1,)) * lax.expand_dims(b, (0,)), None

    start = jnp.zeros((lhs.shape[2], rhs.shape[2]))
    return lax.expand_dims(lax.scan(step, start, (lhs[:, 0], rhs[:, 0]))[0], (0,))


def test_the_bound(monkeypatch):
    monkeypatch.setattr(exact.lax, "dot_general", in_order)
    found, expected = _hard_result()
    assert (found == expected).all()


def test_a_bound_of_one_bit_less_is_caught(monkeypatch, weaker):
    monkeypatch.setattr(exact.lax, "dot_general", in_order)
    weaker()
    found, expected = _hard_result()
    assert (found != expected).all()


def test_what_is_exact_needs_no_test(monkeypatch):
    """Ties of integers, where an interval would always have two roundings."""
    a = np.float32([[2.0**12, 1, 1]])
    b = np.float32([[2.0**12], [1], [0]])
    assert _product(a, b)[0, 0] == 2.0**24

    def never(*args, **kwargs):
        raise AssertionError

    monkeypatch.setattr(
        exact,
        "_again",
        lambda lhs, rhs, uncertain, result, **_: jnp.where(uncertain, jnp.nan, result),
    )
    with jax.enable_x64(True):
        found = exact.dot_general_body(*map(jnp.asarray, (a, b)), dimension_numbers=MATRIX)
        halves = jnp.bfloat16(DATA["normal"](np.random.default_rng(0), (30, 100)))
        wide_halves = halves.astype(np.float32)
        of_halves = exact.dot_general_body(wide_halves, wide_halves.T, dimension_numbers=MATRIX)
    assert found[0, 0] == 2.0**24
    assert jnp.isfinite(of_halves).mean() > 0.9


def test_overflow():
    """To infinity only where the exact value rounds there, whatever partial sums are."""
    most = np.finfo(np.float32).max
    half_ulp = np.float32(2.0**103)
    cases = [
        ([most, most, -most], most),
        ([most, half_ulp], np.inf),
        ([most, half_ulp, -(2.0**-126)], most),
        ([most, most], np.inf),
        ([-most, -half_ulp, 2.0**-120], -most),
    ]
    for terms, expected in cases:
        for order in itertools.permutations(np.float32(terms)):
            x = np.array(order)
            assert _total(x[:, None])[0] == expected
            assert _product(x[None], np.ones((len(x), 1), np.float32))[0, 0] == expected


def test_too_many_terms():
    with pytest.raises(repjax.RefusedError, match=r"at most 2\*\*34 terms, received"):
        accumulators.check_terms("a sum", (1 << 34) + 1)


def test_special_values_in_every_place():
    x = patterns(4000, 3).reshape(100, 40)
    y = patterns(4000, 4).reshape(40, 100)
    few = np.random.default_rng(1).random(x.shape) < 0.9
    x = np.where(few, np.float32(1), x)  # lest all results be NaN
    found = np.asarray(_product(x, y))
    expected = reference_dot(canonical(x), canonical(y))
    assert_same_bits(canonical(found), canonical(expected))
    assert np.isfinite(found).any() and np.isinf(found).any() and np.isnan(found).any()
