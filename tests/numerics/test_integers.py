"""Contractions of integers: two's complement arithmetic, by XLA on CPUs, by digits elsewhere."""

from __future__ import annotations

import functools

import jax
import numpy as np
import pytest
from jax import export, lax
from jax import numpy as jnp

import repjax
from helpers.bits import assert_same_bits, patterns
from helpers.products import CONVOLUTIONS, DOTS, with_gradients
from repjax.primitives.gpu import products
from repjax.primitives.operations.products import digits, integers
from repjax.verify import reference

TYPES = ["int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"]
#: Of operands, and of the result.
PAIRS = [(name, wide) for name in TYPES for wide in TYPES[TYPES.index(name) :: 2]]
PRODUCTS = integers.dot_general_body, functools.partial(products.dot_of_integers)
CONVOLVED = integers.conv_general_dilated_body, products.convolution_of_integers
MATRIX = (((1,), (0,)), ((), ()))


def of_any_bits(name: str, shape, seed: int) -> np.ndarray:
    """The ends of the type are frequent, and those of digits of 8 and 16 bits."""
    x = patterns(int(np.prod(shape)), seed, name)
    x[::3], x[1::5] = np.iinfo(name).max, np.iinfo(name).min
    for i, end in enumerate((127, 128, -128, -129, 32767, 32768, -32768, -32769)):
        x[2 + i :: 29] = np.int64(end).astype(name)
    return x.reshape(shape)


def both(function):
    """The body, and the kernel interpreted."""
    body, kernel = function
    return body, functools.partial(kernel, interpret=True)


def run(function, *operands, **parameters):
    with jax.enable_x64(True):
        # Compiling takes longer than running.
        options = {"xla_backend_optimization_level": 0}
        compiled = jax.jit(functools.partial(function, **parameters), compiler_options=options)
        return np.asarray(compiled(*operands))


@pytest.mark.parametrize(("name", "wide"), PAIRS)
def test_products(name, wide):
    lhs, rhs = of_any_bits(name, (3, 70), 0), of_any_bits(name, (70, 5), 1)
    expected = reference.products.dot_general(
        lhs, rhs, MATRIX, chain=reference.products.wrapping
    ).astype(wide)
    wanted = {"dimension_numbers": MATRIX, "preferred_element_type": np.dtype(wide)}
    with jax.enable_x64(True):
        product = functools.partial(lax.dot_general, **wanted)
        assert_same_bits(repjax.reproducible(product)(lhs, rhs), expected)
        assert_same_bits(repjax.lax.dot_general(lhs, rhs, **wanted), expected)
    for function in both(PRODUCTS):
        assert_same_bits(run(function, lhs, rhs, **wanted), expected)


@pytest.mark.parametrize("case", DOTS)
@pytest.mark.parametrize("name", ["int8", "uint16"])
def test_dimensions(case, name):
    *shapes, numbers = DOTS[case]
    lhs, rhs = (of_any_bits(name, shape, i) for i, shape in enumerate(shapes))
    expected = reference.products.dot_general(
        lhs, rhs, numbers, chain=reference.products.wrapping
    ).astype(name)
    wanted = {"dimension_numbers": numbers, "preferred_element_type": np.dtype(name)}
    for function in both(PRODUCTS):
        assert_same_bits(run(function, lhs, rhs, **wanted), expected)
    product = repjax.reproducible(functools.partial(lax.dot_general, dimension_numbers=numbers))
    assert_same_bits(product(lhs, rhs), expected)


@pytest.mark.parametrize(
    "case",
    sorted({*CONVOLUTIONS} - {"1d", "2d", "same", "1x1", "padding", "strides", "lhs dilation"}),
)
def test_convolutions(case):
    """And what their gradients would be, with holes."""
    *shapes, options = CONVOLUTIONS[case]
    for name, problem in zip(
        ("int16", "uint8", "int32"), with_gradients(*shapes, **options), strict=False
    ):
        *shapes, parameters = problem
        lhs, rhs = (of_any_bits(name, shape, i) for i, shape in enumerate(shapes))
        expected = reference.products.conv_general_dilated(
            lhs, rhs, chain=reference.products.wrapping, **parameters
        ).astype(name)
        stock = functools.partial(lax.conv_general_dilated, **parameters)
        assert_same_bits(repjax.reproducible(stock)(lhs, rhs), expected)
        wanted = {"preferred_element_type": np.dtype(name)}
        for function in both(CONVOLVED):
            assert_same_bits(run(function, lhs, rhs, **parameters, **wanted), expected)


def test_wide_sums_of_convolutions():
    """Of 64 bits, in several tiles of terms, from operands of 32."""
    (*shapes, parameters), *_ = with_gradients((2, 40, 4, 3), (4, 20, 2, 2), feature_group_count=2)
    lhs, rhs = (of_any_bits("uint32", shape, i) for i, shape in enumerate(shapes))
    expected = reference.products.conv_general_dilated(
        lhs, rhs, chain=reference.products.wrapping, **parameters
    )
    for function in both(CONVOLVED):
        result = run(function, lhs, rhs, preferred_element_type=np.dtype(np.int64), **parameters)
        assert_same_bits(result, expected)


def test_sums_that_leave_int32():
    """Of the products of digits, in sums of 64 bits: the largest of all, so many times."""
    lhs = np.full((1, 1 << 18), -128, np.int8)
    expected = np.array([[1 << 32]])
    for function in both(PRODUCTS):
        wanted = {"dimension_numbers": MATRIX, "preferred_element_type": np.dtype(np.int64)}
        assert_same_bits(run(function, lhs, lhs.T, **wanted), expected)


def test_a_missing_digit_is_noticed(monkeypatch):
    """Negative control."""
    lhs, rhs = of_any_bits("int32", (3, 70), 0), of_any_bits("int32", (70, 5), 1)
    expected = lhs @ rhs
    wanted = {"dimension_numbers": MATRIX, "preferred_element_type": np.dtype(np.int32)}
    by_weight = digits.by_weight
    monkeypatch.setattr(digits, "by_weight", lambda *args: [*by_weight(*args)][:-1])
    for body in PRODUCTS:
        function = functools.partial(body, **({"interpret": True} if body is PRODUCTS[1] else {}))
        assert (run(function, lhs, rhs, **wanted) != expected).any()


def test_digits():
    for name, wanted, bits, count in (
        ("int8", 32, 8, 1),
        ("uint8", 32, 8, 2),
        ("uint8", 8, 8, 1),
        ("int16", 32, 8, 3),
        ("int16", 32, 16, 1),
        ("uint16", 64, 16, 2),
        ("int32", 32, 8, 4),
        ("uint32", 64, 8, 5),
        ("int64", 64, 16, 4),
    ):
        assert digits.count_of(name, wanted, bits) == count
        word = integers.word_of(f"int{max(32, wanted)}")
        x = of_any_bits(name, (300,), 0).astype(word)
        with jax.enable_x64(True):
            parts = [np.asarray(d) for d in digits.split(x, count, bits)]
            if bits == digits.BITS:
                for order in (1, -1):
                    stacked = np.asarray(digits.stack(x, count, order))
                    assert_same_bits(stacked, np.stack(parts[::order]).astype(np.int8))
        assert all((abs(d + 0.5) <= 1 << (bits - 1)).all() for d in parts)
        total = sum(d.astype(object) << (bits * i) for i, d in enumerate(parts))
        assert not ((total - x.astype(object)) % (1 << min(wanted, bits * count))).any()


def test_other_types():
    """Booleans, of which a sum is whether a term is true; two types; and batches of vmap."""
    x, y = (np.random.default_rng(seed).random((6, 6)) < 0.3 for seed in range(2))
    product = repjax.reproducible(jnp.dot)
    assert_same_bits(product(x, y), x @ y)
    images, kernels = x.reshape(1, 1, 6, 6), y[:3, :2].reshape(1, 1, 3, 2)
    windows = np.lib.stride_tricks.sliding_window_view(x, (3, 2))
    convolution = functools.partial(lax.conv, window_strides=(1, 1), padding="VALID")
    expected = (windows & kernels[0, 0]).any((2, 3))[None, None]
    assert_same_bits(repjax.reproducible(convolution)(images, kernels), expected)
    counts = functools.partial(lax.dot, preferred_element_type=np.int32)
    assert_same_bits(repjax.reproducible(counts)(x, y), x.astype(np.int32) @ y)
    lhs, rhs = of_any_bits("uint8", (3, 7), 0), of_any_bits("int16", (7, 2), 1)
    assert_same_bits(repjax.reproducible(lax.dot)(lhs, rhs), (lhs.astype(np.int16) @ rhs))
    batches = of_any_bits("int32", (4, 3, 7), 2), of_any_bits("int32", (7, 4, 2), 3)
    batched = jax.vmap(lax.dot, (0, 1), 1)
    expected = np.einsum("bik,kbj->ibj", *batches)
    assert_same_bits(repjax.reproducible(batched)(*batches), expected)
    assert_same_bits(jax.vmap(repjax.lax.dot, (0, 1), 1)(*batches), expected)
    with repjax.enabled(), jax.default_matmul_precision("BF16_BF16_F32"):
        assert_same_bits(jnp.dot(batches[0][0], batches[1][:, 0]), expected[:, 0])


def test_derivatives_pass_them_by():
    def loss(x, i):
        return (x * lax.dot(i, i).astype(x.dtype)).sum()

    x, i = np.ones((2, 2), np.float32), np.int32([[1, 2], [3, 4]])
    expected = np.float32([[7, 10], [15, 22]])
    assert_same_bits(repjax.reproducible(jax.grad(loss))(x, i), expected)
    gradient = jax.grad(lambda x: repjax.lax.mul(x, repjax.lax.dot(i, i).astype(x.dtype)).sum())
    assert_same_bits(gradient(x), expected)


@pytest.mark.parametrize("sizes", ["2, 70", "b, 70", "2, k"])
def test_exported_without_products_of_integers(sizes):
    """For GPUs, too, where XLA's would depend on an autotuner."""
    x = of_any_bits("int32", (2, 70), 0)
    shape = export.symbolic_shape(sizes)
    program = jax.jit(repjax.reproducible(lambda x: lax.dot(x, x.T)))
    exported = export.export(program, platforms=["cpu", "cuda"])(
        jax.ShapeDtypeStruct(shape, x.dtype)
    )
    text = exported.mlir_module()
    products = [line for line in text.splitlines() if "stablehlo.dot_general" in line]
    assert products and all("xf64>" in line.split("->")[0] for line in products)
    assert_same_bits(exported.call(x), x @ x.T)
