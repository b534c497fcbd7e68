"""Triangular solves, Cholesky, LU and QR factors, against loops over elements in NumPy."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export, lax

import repjax
from helpers.bits import SPECIALS, assert_same_bits, canonical, normal, patterns, same_bits
from helpers.instruction_sets import each_instruction_set
from helpers.kernels import body_of
from helpers.linalg import (
    check_kernel,
    kernel_of,
    positive_definite,
    with_a_kernel,
)
from repjax.primitives.cpu import library
from repjax.primitives.cpu import linalg as kernel_module
from repjax.primitives.operations.linalg import factorizations as primitive
from repjax.verify.reference.linalg import cholesky, lu, qr, triangular_solve

linalg = lax.linalg

# --- data ---------------------------------------------------------------------------------


def any_bits(shape, seed=0):
    return patterns(int(np.prod(shape)), seed).reshape(shape)


def special(shape, seed=0):
    return np.random.default_rng(seed).choice(SPECIALS, shape)


def small_integers(shape, seed=0):
    """Ties, zero pivots and zero columns."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


DATA = [normal, small_integers, special, any_bits]

# --- every element ------------------------------------------------------------------------

FLAGS = ("left_side", "lower", "transpose_a", "unit_diagonal")


@pytest.mark.parametrize("flags", list(np.ndindex(2, 2, 2, 2)))
def test_triangular_solve(flags):
    options = dict(zip(FLAGS, map(bool, flags), strict=True))
    run = repjax.reproducible(lambda a, b: linalg.triangular_solve(a, b, **options))
    shape = (2, 5, 3) if options["left_side"] else (2, 3, 5)
    for data in DATA:
        a, b = data((2, 5, 5), 1), data(shape, 2)
        assert_same_bits(run(a, b), triangular_solve(a, b, **options), data.__name__)


def test_the_other_triangle_is_not_read():
    a, b = normal((5, 5)) + 3 * np.eye(5, dtype=np.float32), normal((5, 2), 1)
    run = repjax.reproducible(
        lambda a, b: linalg.triangular_solve(a, b, left_side=True, lower=True)
    )
    other = np.where(np.tri(5, dtype=bool), a, np.float32(np.nan))
    assert_same_bits(run(other, b), run(a, b))


def test_cholesky():
    run = repjax.reproducible(lambda a: linalg.cholesky(a, symmetrize_input=False))
    a = positive_definite((6, 6, 6))
    a[1, 2, 2] = -1  # not positive definite, and not finite
    a[2, 3, 3], a[3, 4, 1], a[4, 5, 5] = 0, np.nan, np.inf
    want = np.tril(cholesky(a))
    assert np.isnan(want).any((1, 2)).sum() == 3
    assert_same_bits(run(a), want)
    for data in DATA:
        x = data((3, 3, 3))
        assert_same_bits(run(x), np.tril(cholesky(x)), data.__name__)


@pytest.mark.parametrize("shape", [(3, 6, 6), (4, 7), (7, 4), (1, 1)])
def test_lu(shape):
    run = repjax.reproducible(linalg.lu)
    for data in DATA:
        x = data(shape)
        assert_same_bits(list(run(x)), lu(x), data.__name__)


@pytest.mark.parametrize("full_matrices", [True, False])
@pytest.mark.parametrize("shape", [(3, 5, 5), (4, 7), (7, 4), (1, 1), (6, 1)])
def test_qr(shape, full_matrices):
    run = repjax.reproducible(lambda x: linalg.qr(x, full_matrices=full_matrices))
    for data in (normal, small_integers):
        x = data(shape)
        assert_same_bits(list(run(x)), qr(x, full_matrices=full_matrices), data.__name__)


def test_qr_of_huge_and_tiny_numbers():
    """Lengths neither overflow nor underflow."""
    run = repjax.reproducible(lambda x: linalg.qr(x, full_matrices=False))
    for scale in (2.0**100, 2.0**-100):
        x = normal((6, 3)) * np.float32(scale)
        q, r = run(x)
        assert_same_bits([q, r], qr(x, full_matrices=False))
        assert np.isfinite(q).all() and np.isfinite(r).all() and r[0, 0] != 0


@pytest.mark.parametrize("shape", [(0, 3), (3, 0), (2, 0, 0)])
def test_empty_matrices(shape):
    for function in linalg.lu, lambda x: linalg.qr(x, full_matrices=True):
        x = np.zeros(shape, np.float32)
        got = repjax.reproducible(function)(x)
        assert_same_bits(list(got), list(map(np.asarray, function(x))))


# --- the C++ kernel -----------------------------------------------------------------------

KERNELS = {
    "cholesky": lambda a: linalg.cholesky(a, symmetrize_input=False),
    "lu": linalg.lu,
    "lower": lambda a: linalg.triangular_solve(a, a[..., ::2], left_side=True, lower=True),
    "qr": lambda a: linalg.qr(a, full_matrices=False),
    "householder_product": lambda a: linalg.householder_product(a, a[..., -1, ::2]),
    "upper": lambda a: linalg.triangular_solve(a, a[..., :2, :], unit_diagonal=True),
}


def by_kernel(function, *operands):
    return kernel_of(function, *operands)(*operands)


def by_body(function, *operands):
    return body_of(function, *operands)(*operands)


# Around vectors and panels (32); of several matrices, each is a task.
@with_a_kernel
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize("shape", [(1, 1), (17, 17), (7, 33, 33), (64, 64), (150, 150)], ids=str)
def test_kernels(name, shape):
    check_kernel(KERNELS[name], [data(shape, 1) for data in (positive_definite, *DATA)])


#: Of which a vector has an element of each: fewer than its elements, as many, more.
SMALL = [(3, 4, 4), (16, 1, 1), (8, 32, 32), (37, 5, 5), (2, 9, 7, 7)]


@with_a_kernel
@pytest.mark.parametrize("name", ["cholesky", "lu", "lower", "upper"])
@pytest.mark.parametrize("shape", SMALL, ids=str)
def test_many_small_matrices_by_the_kernel(name, shape):
    operands = [data(shape, 1) for data in (positive_definite, *DATA)]
    mixed = operands[0].copy()  # with a pivot that is negative, zero, infinite, NaN
    for i, value in enumerate([-1, 0, np.inf, np.nan]):
        mixed[(-1 - i) % len(mixed), ..., i % shape[-1], i % shape[-1]] = value
    check_kernel(KERNELS[name], [*operands, mixed])


@with_a_kernel
@pytest.mark.parametrize("shape", [(21, 5, 9), (21, 9, 5), (9, 32, 2), (9, 1, 32)], ids=str)
def test_factors_of_many_small_rectangles_by_the_kernel(shape):
    check_kernel(linalg.lu, [data(shape, 1) for data in DATA])


@with_a_kernel
def test_side_by_side_or_one_by_one():
    """A matrix has its bits alone, among few and among many; a control: not those of another."""
    x = positive_definite((40, 6, 6))
    for name in ("cholesky", "lu", "lower", "upper"):
        each = by_kernel(jax.vmap(KERNELS[name]), x)
        alone = [by_kernel(KERNELS[name], a) for a in x]
        for i, results in enumerate(alone):
            own = jax.tree.map(lambda r, i=i: r[i], each)
            assert_same_bits(own, results, f"{name} {i}")
        assert not same_bits(jax.tree.leaves(each)[0][1], jax.tree.leaves(alone[0])[0])


@with_a_kernel
@pytest.mark.parametrize("shape", [(40, 100), (100, 40), (3, 33, 65), (2, 70, 31)], ids=str)
def test_factors_of_rectangles_by_the_kernel(shape):
    def function(x):
        return linalg.lu(x), linalg.qr(x, full_matrices=True), linalg.qr(x, full_matrices=False)

    for data in DATA:
        x = data(shape, 2)
        assert_same_bits(by_kernel(function, x), by_body(function, x), data.__name__)


@with_a_kernel
def test_columns_of_zeros_by_the_kernel():
    """Which are not reflected."""
    x = normal((70, 70))
    x[10:, 10] = x[:, 40] = x[11:, 11] = 0
    x[:, 50] *= np.float32(2.0**-120)
    assert_same_bits(by_kernel(KERNELS["qr"], x), by_body(KERNELS["qr"], x))


@with_a_kernel
@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_reflectors_and_rows_that_are_not_finite_by_the_kernel(value):
    """Rows above a reflector are times 0, and what it does not reflect stays as it is."""
    x = normal((70, 70))
    x[40, 65] = value
    x[:, 0] = 1 + 0.01 * np.arange(70)
    x[0, 60:], x[1:, 60:] = -2e38, 4.6e37  # the first row becomes infinite
    for function in KERNELS["qr"], KERNELS["householder_product"]:
        expected = by_body(function, x)
        for name in each_instruction_set():
            assert_same_bits(by_kernel(function, x), expected, name)


@with_a_kernel
@pytest.mark.parametrize("name", ["cholesky", "lu", "lower"])
def test_numbers_whose_products_are_nearly_subnormal(name):
    """The kernel looks whether products and differences may be: here some may, and some are."""
    operands, wide = [], normal((70, 70), 3) * np.float32(2.0) ** np.arange(70)
    for exponent in (-40, -48, -50, -52, -58, -62, -66, -98, -104, -110, -120):
        scale = np.float32(2.0**exponent)
        operands += [positive_definite((70, 70), 1) * scale, normal((70, 70), 2) * scale]
        operands.append(canonical(wide * scale))
    check_kernel(KERNELS[name], operands)


@with_a_kernel
def test_many_right_sides():
    """More than a task, and few."""
    a = normal((70, 70)) + 9 * np.eye(70, dtype=np.float32)
    for count in (1, 3, 15, 16, 63, 64, 65, 200):
        b = normal((70, count), 1)

        def function(a, b):
            return [linalg.triangular_solve(a, b, left_side=True, lower=low) for low in (0, 1)]

        assert_same_bits(by_kernel(function, a, b), by_body(function, a, b))


@with_a_kernel
def test_pivots_that_are_not_positive_by_the_kernel():
    a = positive_definite((5, 70, 70))
    a[1, 50, 50], a[2, 69, 69], a[3, 40, 7], a[4, 3, 3] = -1, 0, np.nan, np.inf
    expected = by_body(KERNELS["cholesky"], a)
    assert np.isnan(np.asarray(expected)).any((1, 2)).sum() == 3  # and one factor is infinite
    assert_same_bits(by_kernel(KERNELS["cholesky"], a), expected)


def _solve(kernel, lower, unit, a, b, *_):
    return kernel(a, b, lower, unit)


@with_a_kernel
def test_other_steps_of_the_kernel_are_noticed(monkeypatch):
    """Unknowns in the other order, and a diagonal that is taken for ones."""
    a, b = normal((40, 40)) + 9 * np.eye(40, dtype=np.float32), normal((40, 3), 1)
    a = np.tril(a) + np.tril(a, -1).T

    def function(a, b):
        return linalg.triangular_solve(a, b, left_side=True, lower=True)

    expected = by_body(function, a, b)
    kernel = kernel_module._substitute
    for lower, unit in ((False, False), (True, True)):
        with monkeypatch.context() as patch:
            patch.setattr(library, "available", lambda: False)
            wrong = functools.partial(_solve, kernel, lower, unit)
            patch.setattr(primitive, "_substitute", wrong)
            lowered = repjax.reproducible(lambda a, b: function(a, b)).lower(a, b)
        assert not same_bits(lowered.compile()(a, b), expected)


@with_a_kernel
def test_export_does_without_the_kernel():
    x = positive_definite((9, 9))
    for name, function in KERNELS.items():
        exported = export.export(jax.jit(repjax.reproducible(function)))(x)
        assert "custom_call @repjax_" not in exported.mlir_module()
        assert_same_bits(exported.call(x), by_body(function, x), name)


# --- the data can tell --------------------------------------------------------------------


def test_the_data_can_tell_fused_and_reordered_updates():
    """The backend's library, and sums in the other order, have other bits."""
    a = positive_definite((12, 12))
    want = np.tril(cholesky(a))
    assert not same_bits(np.asarray(linalg.cholesky(a)), want)
    flipped = np.tril(cholesky(a[::-1, ::-1].T))[::-1, ::-1].T  # of a permuted matrix
    assert not same_bits(flipped, want)
    assert np.abs(want @ want.T - a).max() < 1e-4


# --- ways to run it, derivatives ------------------------------------------------------------

FUNCTIONS = {
    "cholesky": (linalg.cholesky, positive_definite),
    "lu": (lambda a: linalg.lu(a)[0], normal),
    "qr": (lambda a: linalg.qr(a, full_matrices=False), normal),
    "solve": (lambda a: jnp.linalg.solve(a, a[:, :2] ** 2), positive_definite),
    "inv": (jnp.linalg.inv, positive_definite),
    "slogdet": (lambda a: jnp.linalg.slogdet(a)[1], normal),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_batches_and_eager(name):
    function, data = FUNCTIONS[name]
    x = data((3, 5, 5))
    rows = [repjax.reproducible(function)(row) for row in x]
    want = jax.tree.map(lambda *xs: np.stack(xs), *rows)
    assert_same_bits(repjax.reproducible(jax.vmap(function))(x), want, "vmap")
    with repjax.enabled():
        eager = jax.tree.map(lambda *xs: np.stack(xs), *[function(jnp.asarray(r)) for r in x])
    assert_same_bits(eager, want, "eager")


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name):
    """Close to JAX's in value, with the value of the function itself."""
    function, data = FUNCTIONS[name]
    x = data((5, 5)) + np.eye(5, dtype=np.float32)

    def loss(x):
        leaves = jax.tree.leaves(function(x))
        return sum(jnp.sum(leaf * jnp.cos(leaf)) for leaf in leaves)

    value, gradient = repjax.reproducible(jax.value_and_grad(loss))(x)
    assert_same_bits(value, repjax.reproducible(loss)(x))
    with jax.enable_x64(True):
        close = np.asarray(jax.grad(loss)(x.astype(np.float64)))
    assert float(np.abs(np.asarray(gradient) - close).max()) < 2e-3 * max(
        1, float(np.abs(close).max())
    )


def test_pivoting_is_refused():
    with pytest.raises(repjax.RefusedError, match="use pivoting=False"):
        repjax.reproducible(lambda x: linalg.qr(x, pivoting=True)[0])(normal((3, 3)))
