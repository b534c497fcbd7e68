"""The kernels for GPUs, interpreted on the CPU: what they read and write, and in which order.

Interpreted, the one step whose bits depend on the compiler is emulated; what Triton makes of it
has to be read off the PTX.
"""

from __future__ import annotations

import functools
import itertools

import jax
import numpy as np
import pytest

import repjax
from helpers.gpu import compiling_for, for_one_device  # noqa: F401  (a fixture)
from helpers.products import (
    BODIES,
    CONVOLUTIONS,
    DATA,
    DOTS,
    KERNEL,
    assert_same_bits,
    with_gradients,
)
from repjax.primitives import gpu
from repjax.primitives.cpu import library
from repjax.primitives.gpu import products, rows, sums, triton
from repjax.primitives.operations.products import order_independent
from repjax.primitives.operations.reductions import cumulative
from repjax.primitives.operations.reductions import sums as reduce_sums
from repjax.verify import reference

DOT, CONVOLUTION = (
    functools.partial(f, interpret=True)
    for f in (products.dot_general, products.conv_general_dilated)
)


#: On CPU: the C++ kernel compiles faster than the bodies, and has their bits (test_products.py).
ON_CPU = KERNEL if library.available() else BODIES


@functools.cache
def _compiled(function, parameters):
    # Compiling takes longer than running.
    options = {"xla_backend_optimization_level": 0}
    return jax.jit(functools.partial(function, **dict(parameters)), compiler_options=options)


def _run(function, *operands, **parameters):
    with jax.enable_x64(True):
        return np.asarray(_compiled(function, tuple(parameters.items()))(*operands))


def _compare(kernel, expected, shapes, parameters, data=("any_bits", "underflowing")):
    rng = np.random.default_rng(0)
    for name in data:
        operands = [DATA[name](rng, shape) for shape in shapes]
        actual = _run(kernel, *operands, **parameters)
        assert_same_bits(actual, _run(expected, *operands, **parameters))


@pytest.mark.parametrize("case", DOTS)
def test_dot_general(case, monkeypatch):
    monkeypatch.setattr(products, "_TRANSPOSED_FROM", 2)
    *shapes, numbers = DOTS[case]
    _compare(DOT, ON_CPU[0], shapes, {"dimension_numbers": numbers})


# Around the sizes of tiles and of blocks of terms.
@pytest.mark.parametrize("shape", [(1, 64, 3), (16, 32, 16), (33, 65, 130), (129, 31, 64)])
def test_tiles(shape, monkeypatch):
    m, k, n = shape
    for programs in (1, 256):
        monkeypatch.setattr(products, "_PROGRAMS", programs)
        for flip_lhs in (False, True):
            kernel = functools.partial(DOT)  # compiled again
            shapes = (k, m) if flip_lhs else (m, k), (n, k) if flip_lhs else (k, n)
            numbers = ((1 - flip_lhs,), (0 + flip_lhs,)), ((), ())
            _compare(kernel, ON_CPU[0], shapes, {"dimension_numbers": numbers})


def test_sums_of_blocks_are_noticed(monkeypatch):
    """What Triton would compute if it did not start a block's chain from the sum so far."""

    def separately(a, b, sums):
        return sums + chain(a, b, jax.numpy.zeros_like(sums))

    chain = triton.dot_fma
    monkeypatch.setattr(triton, "dot_fma", separately)
    shapes, numbers = ((20, 300), (300, 20)), (((1,), (0,)), ((), ()))
    with pytest.raises(AssertionError, match="not equal"):
        kernel = functools.partial(DOT)
        _compare(kernel, ON_CPU[0], shapes, {"dimension_numbers": numbers}, ["normal"])


def test_bands_of_tiles_cover_all():
    """More rows of tiles than are computed next to each other, and not a multiple of them."""
    shapes, numbers = ((16 * 19 + 3, 5), (5, 16 * 3)), (((1,), (0,)), ((), ()))
    _compare(DOT, ON_CPU[0], shapes, {"dimension_numbers": numbers})


@pytest.mark.parametrize("case", sorted({*CONVOLUTIONS} - {"1d", "2d", "same", "1x1", "padding"}))
def test_convolution_and_its_gradients(case):
    for *shapes, parameters in with_gradients(*CONVOLUTIONS[case][:2], **CONVOLUTIONS[case][2]):
        _compare(CONVOLUTION, ON_CPU[1], shapes, parameters)


@pytest.mark.parametrize("many", [0, 1 << 14])
def test_offsets_of_64_bits(many, monkeypatch):
    monkeypatch.setattr(triton, "index_type", lambda *sizes: np.int64)
    monkeypatch.setattr(products, "_MANY", many)
    kernel = functools.partial(CONVOLUTION)
    options = {"feature_group_count": 4, "padding": "SAME", "window_strides": (2, 1)}
    *shapes, parameters = with_gradients((2, 4, 7, 6), (4, 1, 3, 2), **options)[0]
    _compare(kernel, ON_CPU[1], shapes, parameters)


@pytest.mark.parametrize("case", ["vectors", "large batch", "only batch", "two batches"])
def test_thin_products(case, monkeypatch):
    monkeypatch.setattr(products, "_MANY", 0)
    monkeypatch.setattr(products, "_UNROLLED", 2)
    *shapes, numbers = DOTS[case]
    kernel = functools.partial(DOT)
    _compare(kernel, ON_CPU[0], shapes, {"dimension_numbers": numbers})


@pytest.mark.parametrize("case", ["depthwise", "feature groups", "same, strided"])
def test_thin_convolutions(case, monkeypatch):
    monkeypatch.setattr(products, "_MANY", 0)
    monkeypatch.setattr(products, "_UNROLLED", 2)
    for *shapes, parameters in with_gradients(*CONVOLUTIONS[case][:2], **CONVOLUTIONS[case][2]):
        kernel = functools.partial(CONVOLUTION)
        _compare(kernel, ON_CPU[1], shapes, parameters)


@pytest.mark.parametrize("case", ["same, strided", "feature groups", "lhs dilation", "two batches"])
def test_operands_in_order(case, monkeypatch):
    """Of few outputs with long chains; only what is not in order is copied."""
    copies, copy = [], products._copy
    monkeypatch.setattr(products, "_LONG", 1)
    monkeypatch.setattr(products, "_copy", lambda *args: copies.append(args[0].size) or copy(*args))
    if case in DOTS:
        *shapes, numbers = DOTS[case]
        _compare(functools.partial(DOT), ON_CPU[0], shapes, {"dimension_numbers": numbers})
    else:
        for *shapes, parameters in with_gradients(*CONVOLUTIONS[case][:2], **CONVOLUTIONS[case][2]):
            _compare(functools.partial(CONVOLUTION), ON_CPU[1], shapes, parameters)
        assert copies


def test_holes_meet_infinities():
    """A chain begins with NaN where only a hole meets an infinity, and there alone."""
    shapes, options = CONVOLUTIONS["lhs dilation"][:2], CONVOLUTIONS["lhs dilation"][2]
    *_, parameters = with_gradients(*shapes, **options)[0]
    lhs, rhs = (DATA["normal"](np.random.default_rng(1), shape) for shape in shapes)
    rhs[1, 2, 1, 0] = np.inf
    actual = _run(CONVOLUTION, lhs, rhs, **parameters)
    assert_same_bits(actual, _run(ON_CPU[1], lhs, rhs, **parameters))
    assert np.isnan(actual[:, 1]).any() and not np.isnan(actual[:, 1]).all()
    assert np.isfinite(actual[:, 0]).all()


SUM, PREFIXES = (functools.partial(f, interpret=True) for f in (sums.sequential, sums.prefixes))


def _sum(x, *, order, combine, axis):
    return order(combine, [x], axis)[0]


def _prefixes(x, *, order, combine, axis):
    return order(combine, x, axis)


@pytest.mark.parametrize(
    "shape", [(7,), (1, 300), (5, 3, 33), (2, 18, 2), (3, 1, 2), (4, 0, 3), (0, 4, 3)]
)
def test_sequential_sums(shape):
    """Long and short axes, with many and few elements behind them; and prefixes of products."""
    rng = np.random.default_rng(2)
    bodies = (_sum, reduce_sums.sequential), (_prefixes, cumulative._sequential)
    axes = [axis for axis, size in enumerate(shape) if size]
    for axis, name in itertools.product(axes, ("any_bits", "underflowing")):
        x = reference.values.flush(DATA[name](rng, shape))
        for (function, body), kernel in zip(bodies, (SUM, PREFIXES), strict=True):
            combine = reduce_sums.add if function is _sum else reduce_sums.multiply
            expected, actual = (
                _run(function, x, order=order, combine=combine, axis=axis)
                for order in (body, kernel)
            )
            assert_same_bits(actual, expected)


@pytest.mark.parametrize("shape", [(70, 33), (2, 65, 3), (129, 1), (64, 200), (3, 70)])
def test_large_sums_of_columns(shape, monkeypatch):
    """XLA's kernel, ours, XLA's: the order of one tree."""
    for name, value in (("_LARGE", 0), ("_TERMS", 4), ("_COLUMN_TERMS", 8)):
        monkeypatch.setattr(sums, name, value)
    kernel = functools.partial(rows.pairwise, interpret=True)
    rng = np.random.default_rng(5)
    for axis, name in itertools.product(range(len(shape) - 1), ("any_bits", "underflowing")):
        x = reference.values.flush(DATA[name](rng, shape))
        expected, actual = (
            _run(_sum, x, order=order, combine=reduce_sums.add, axis=axis)
            for order in (reduce_sums.pairwise, kernel)
        )
        assert_same_bits(actual, expected)


def test_another_tree_of_columns_is_noticed(monkeypatch):
    """Negative control: neighbours first."""
    monkeypatch.setattr(sums, "_LARGE", 0)
    columns = sums._columns

    def neighbours(x, axis, interpret):
        pairs = jax.lax.reshape(x, (2, x.shape[0] // 2, x.shape[1]))
        return columns(
            jax.lax.reshape(jax.lax.transpose(pairs, (1, 0, 2)), x.shape), axis, interpret
        )

    monkeypatch.setattr(sums, "_columns", neighbours)
    x = DATA["normal"](np.random.default_rng(6), (1 << 10, 40))
    expected, actual = (
        _run(_sum, x, order=order, combine=reduce_sums.add, axis=0)
        for order in (reduce_sums.pairwise, functools.partial(rows.pairwise, interpret=True))
    )
    with pytest.raises(AssertionError, match="not equal"):
        assert_same_bits(actual, expected)


@pytest.mark.parametrize("t", [22, 30])
def test_digits_are_exact(t):
    """Integers of every digit, sums of several blocks, the largest of all included."""
    rng = np.random.default_rng(3)
    most = 1 << t
    for shapes, numbers in (
        (((4, 3, 5), (5, 4, 6, 3)), (((1, 2), (3, 0)), ((0,), (1,)))),
        (((2, 70000), (70000, 2)), (((1,), (0,)), ((), ()))),
    ):
        lhs, rhs = (rng.integers(-most, most + 1, shape).astype(np.float64) for shape in shapes)
        lhs[rng.random(lhs.shape) < 0.3], rhs[rng.random(rhs.shape) < 0.3] = most, -most
        with jax.enable_x64(True):
            words = jax.jit(
                functools.partial(
                    order_independent.digit_dot,
                    dimension_numbers=numbers,
                    t=t,
                    exact_dot=functools.partial(products.exact_dot, interpret=True),
                )
            )(lhs, rhs)
            # In two parts, so that no sum is too large.
            left, right = (x.astype(np.int64) for x in (lhs, rhs))
            low = right & 0x7FFF
            parts = [jax.lax.dot_general(left, x, numbers) for x in (low, (right - low) >> 15)]
        assert all(x.dtype == np.int64 for x in words)
        *high, rest = (np.asarray(x).astype(object) for x in words)
        expected = [np.asarray(x).astype(object) for x in parts]
        assert (sum(high) * (1 << 32) + rest == expected[0] + expected[1] * (1 << 15)).all()


def _lowered(function, *operands):
    """For CUDA, which needs neither a GPU nor its plugin."""
    traced = jax.jit(repjax.reproducible(function, accumulation="sequential")).trace(*operands)
    return traced.lower(lowering_platforms=("cuda",)).as_text()


X = np.ones((40, 40), np.float32)
LOWERED = {
    "product of integers": (lambda x: x @ x, X.astype(np.int16)),
    "convolution of integers": (
        lambda x: jax.lax.conv(x[None, None], x[None, None], (2, 2), "SAME"),
        X.astype(np.uint8),
    ),
    "product": (lambda x: x @ x, X),
    "product of vectors": (
        lambda x: jax.numpy.einsum("ij,ij->i", x, x),
        np.ones((1 << 14, 3), "f"),
    ),
    "convolution": (lambda x: jax.lax.conv(x[None, None], x[None, None], (2, 2), "SAME"), X),
    "gradient": (
        jax.grad(lambda x: jax.lax.conv(x[None, None], x[None, None], (2, 2), "SAME").sum()),
        X,
    ),
    "sum": (lambda x: x.sum(0), X),
    "product of all": (lambda x: x.prod(), X),
    "prefixes": (lambda x: x.cumsum(1), X),
    "large product": (
        lambda x: x @ x[:, :17],
        jax.ShapeDtypeStruct((1 << 16, 1 << 16), np.float32),
    ),
    "large sum": (lambda x: x.sum(1), jax.ShapeDtypeStruct((3, 1 << 16, 1 << 16), np.float32)),
}


@pytest.mark.usefixtures("for_one_device")
@pytest.mark.parametrize("name", LOWERED)
def test_the_primitives_use_them(name):
    with compiling_for("NVIDIA H100"):
        text = _lowered(*LOWERED[name])
    assert "__gpu$xla.gpu.triton" in text
    assert not {"stablehlo.dot_general", "stablehlo.convolution"} & {*text.split()}


def test_too_old_a_gpu(monkeypatch):
    monkeypatch.setattr(triton, "compute_capability", lambda: 75)
    with pytest.raises(RuntimeError, match=r"capability 8\.0 or newer, received 7\.5; use a newer"):
        _lowered(lambda x: x + x, X)


def test_without_knowledge_of_the_gpu(monkeypatch):
    """The bodies are compiled, with a warning."""
    monkeypatch.setattr(triton, "compute_capability", lambda: None)
    gpu._warn.cache_clear()
    with pytest.warns(UserWarning, match="without its kernels"):
        assert "triton" not in _lowered(lambda x: x @ x, X)
