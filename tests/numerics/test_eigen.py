"""Eigenvalues and singular values: against loops over pairs in NumPy, and against exact ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import mpmath
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, normal, patterns, same_bits
from helpers.instruction_sets import each_instruction_set
from helpers.linalg import check_kernel, positive_definite, with_a_kernel
from repjax.primitives.core import canonical as canonical_module
from repjax.primitives.cpu import linalg as kernels
from repjax.primitives.operations.linalg import eigen as spectral
from repjax.primitives.operations.linalg import factorizations as linalg
from repjax.primitives.operations.linalg import tridiagonal
from repjax.verify.reference.linalg import eigh, orthogonalize, svd, tournament
from repjax.verify.reference.values import bits
from repjax.verify.reference.values import canonical as canonical_values

# --- data -----------------------------------------------------------------------------------


def symmetric(shape, seed=0):
    a = normal(shape, seed)
    return np.tril(a) + np.swapaxes(np.tril(a, -1), -1, -2)


def deficient(shape, seed=0):
    """Of a lower rank, with columns of zeros and rows twice."""
    a = normal(shape, seed)
    a[..., :, ::3] = 0
    a[..., 1::2, :] = a[..., :-1:2, :][..., : a[..., 1::2, :].shape[-2], :]
    return a


def clustered(shape, seed=0):
    """Eigenvalues 1, and 2."""
    q, _ = np.linalg.qr(normal(shape, seed).astype(np.float64))
    values = 1.0 + (np.arange(shape[-1]) % 2)
    return ((q * values) @ np.swapaxes(q, -1, -2)).astype(np.float32)


def graded(shape, seed=0):
    """Elements from 1 to 2**-120."""
    exponents = np.linspace(0, -60, shape[-1])
    scale = np.exp2(exponents)[:, None] * np.exp2(exponents)
    return (symmetric(shape, seed) * scale[: shape[-2]]).astype(np.float32)


def small_integers(shape, seed=0):
    """Ties, and zeros."""
    return np.random.default_rng(seed).integers(-1, 2, shape).astype(np.float32)


def huge(shape, seed=0):
    return normal(shape, seed) * np.float32(2.0**120)


def tiny(shape, seed=0):
    return normal(shape, seed) * np.float32(2.0**-115)


def ones(shape, seed=0):
    """Of rank 1, the elements after a reflection smaller and smaller."""
    return np.ones(shape, np.float32)


def diagonal(shape, seed=0):
    return symmetric(shape, seed) * np.eye(shape[-1], dtype=np.float32)


def wilkinson(shape, seed=0):
    """Tridiagonal, eigenvalues that are nearly pairs (Wilkinson 1965)."""
    n = shape[-1]
    a = np.diag(np.abs(np.arange(n) - n // 2)) + np.eye(n, k=1) + np.eye(n, k=-1)
    return np.broadcast_to(a, shape).astype(np.float32)


def low_rank(shape, seed=0):
    """Most eigenvalues nearly 0."""
    a = normal(shape, seed)[..., :3]
    return (a @ np.swapaxes(a, -1, -2)).astype(np.float32)


SQUARE = [symmetric, positive_definite, clustered, graded, small_integers, huge, tiny]
MANY_ROWS = [*SQUARE, ones, diagonal, wilkinson, low_rank]
ANY = [normal, deficient, small_integers, huge, tiny]

# --- every element --------------------------------------------------------------------------

_eigh = repjax.reproducible(lambda a: lax.linalg.eigh(a, symmetrize_input=False))
_upper = repjax.reproducible(lambda a: lax.linalg.eigh(a, lower=False, symmetrize_input=False))


@pytest.mark.parametrize("shape", [(1, 1), (2, 2), (3, 3, 3), (2, 6, 6), (9, 9)], ids=str)
def test_eigh(shape):
    for data in (*SQUARE, np.zeros):
        a = np.asarray(data(shape), np.float32)
        assert_same_bits(list(_eigh(a)), eigh(a), data.__name__)
        assert_same_bits(list(_upper(a)), eigh(a, lower=False), data.__name__)


@pytest.mark.parametrize("full_matrices", [True, False])
@pytest.mark.parametrize("shape", [(1, 1), (3, 1), (2, 5, 3), (3, 3, 5), (6, 6), (9, 7)], ids=str)
def test_svd(shape, full_matrices):
    def run(a):
        return jnp.linalg.svd(a, full_matrices=full_matrices)

    for data in (*ANY, np.zeros):
        a = np.asarray(data(shape), np.float32)
        u, s, vt = repjax.reproducible(run)(a)
        assert_same_bits([u, s, vt], svd(a, full_matrices=full_matrices), data.__name__)
        values = repjax.reproducible(lambda a: jnp.linalg.svd(a, compute_uv=False))(a)
        assert_same_bits(values, s, data.__name__)


# Around the numbers of leaves, and with rows that fill up the last one.
@pytest.mark.parametrize("shape", [(33, 33), (2, 37, 37), (65, 65)], ids=str)
def test_eigh_of_many_rows(shape):
    for data in (*MANY_ROWS, np.zeros):
        a = np.asarray(data(shape), np.float32)
        assert_same_bits(list(_eigh(a)), eigh(a), data.__name__)
    assert_same_bits(list(_upper(a)), eigh(a, lower=False))


# Of many rows, and of long ones.
SHAPES = [(34, 33), (2, 35, 45), (9, 2), (2, 3, 12), (1, 5), (150, 36)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_svd_of_many_rows(shape):
    vectors = repjax.reproducible(lambda a: jnp.linalg.svd(a, full_matrices=False))
    values = repjax.reproducible(lambda a: jnp.linalg.svd(a, compute_uv=False))
    for data in (*ANY, ones, np.zeros):
        a = np.asarray(data(shape), np.float32)
        u, s, vt = vectors(a)
        assert_same_bits([u, s, vt], svd(a), data.__name__)
        assert_same_bits(values(a), s, data.__name__)


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5, 8, 9, 16])
def test_a_sweep_is_a_tournament(n):
    """Each pair once, no row twice in a round; and the rounds are those of the reference."""
    rounds = list(tournament(n))
    pairs = [pair for pairs in rounds for pair in pairs]
    assert sorted(pairs) == [(i, j) for i in range(n) for j in range(i + 1, n)]
    for k, pairs in enumerate(rounds):
        partner = np.arange(n)
        for i, j in pairs:
            partner[i], partner[j] = j, i
        assert np.asarray(spectral._partners(n, np.int32(k))).tolist() == partner.tolist()


def test_matrices_that_are_not_finite():
    """Are NaN; the others of the batch are what they are alone."""
    a = symmetric((4, 5, 5))
    a[1, 3, 2], a[2, 4, 4] = np.inf, np.nan
    vectors, values = _eigh(a)
    u, s, vt = repjax.reproducible(jnp.linalg.svd)(a)
    for x in (vectors, values, u, s, vt):
        x = np.asarray(x)
        assert np.isnan(x[1:3]).all() and np.isfinite(x[[0, 3]]).all()
        assert (bits(x[1:3]) == 0x7FC00000).all()
    assert_same_bits([vectors[0], values[0]], list(_eigh(a[0])))
    assert_same_bits([vectors, values], eigh(a))


def test_the_other_triangle_is_not_read():
    a = symmetric((5, 5))
    lower, upper = (np.where(t, a, np.float32(np.nan)) for t in (np.tri(5), np.tri(5).T))
    assert_same_bits(_eigh(lower), _eigh(a))
    assert_same_bits(_upper(upper), _eigh(a))


def test_any_bit_pattern():
    a = patterns(3 * 4 * 4).reshape(3, 4, 4)
    a = np.where(np.isfinite(a), a, np.float32(1))
    assert_same_bits(list(_eigh(a)), eigh(a))
    u, s, vt = repjax.reproducible(jnp.linalg.svd)(a)
    assert_same_bits([u, s, vt], svd(a))


def test_a_batch_has_the_bits_of_its_matrices():
    """Whose numbers of sweeps differ: what is done stays as it is."""
    a = np.stack([np.eye(9, dtype=np.float32), symmetric((9, 9)), graded((9, 9))])
    rows = [_eigh(x) for x in a]
    want = jax.tree.map(lambda *xs: np.stack(xs), *rows)
    assert_same_bits(list(_eigh(a)), list(want))
    assert_same_bits(list(jax.vmap(_eigh)(a)), list(want))
    with repjax.enabled():
        eager = [lax.linalg.eigh(jnp.asarray(x), symmetrize_input=False) for x in a]
    assert_same_bits(jax.tree.map(lambda *xs: np.stack(xs), *eager), want)


@pytest.mark.parametrize("shape", [(0, 0), (0, 3), (3, 0), (0, 3, 3), (2, 0, 0)], ids=str)
def test_empty_matrices(shape):
    x = np.zeros(shape, np.float32)
    for full in (True, False):

        def function(x, full=full):
            return tuple(jnp.linalg.svd(x, full_matrices=full))

        assert_same_bits(list(repjax.reproducible(function)(x)), list(map(np.asarray, function(x))))
    if shape[-1] == shape[-2]:
        got = repjax.reproducible(lambda x: tuple(jnp.linalg.eigh(x)))(x)
        assert_same_bits(list(got), list(map(np.asarray, jnp.linalg.eigh(x))))


def test_some_of_the_values():
    """Which JAX has for no CPU and no GPU."""
    a = normal((2, 6, 4))
    u, s, vt = repjax.reproducible(lambda a: lax.linalg.svd(a, full_matrices=False))(a)

    @repjax.reproducible
    def some(a):
        return lax.linalg.svd(a, full_matrices=False, subset_by_index=(1, 3))

    assert_same_bits(list(some(a)), [u[..., 1:3], s[..., 1:3], vt[:, 1:3]])
    a = symmetric((5, 5))
    vectors, values = _eigh(a)
    some = repjax.reproducible(lambda a: lax.linalg.eigh(a, subset_by_index=(2, 5)))
    assert_same_bits(list(some(a)), [vectors[:, 2:], values[2:]])


# --- accuracy -------------------------------------------------------------------------------


@pytest.mark.parametrize("data", SQUARE, ids=lambda data: data.__name__)
def test_eigenvalues_are_the_closest(data):
    """Within 0.51 units in the last place of the largest; vectors have the length 1."""
    a = data((12, 12))
    a = np.tril(a) + np.tril(a, -1).T
    vectors, values = map(np.asarray, _eigh(a))
    with mpmath.workprec(120):
        exact = sorted(mpmath.eigsy(mpmath.matrix(a.astype(object)), eigvals_only=True))
        largest = max(map(abs, exact))
        worst = max(abs(mpmath.mpf(float(v)) - e) for v, e in zip(values, exact, strict=True))
        assert worst <= largest * 0.51 * 2.0**-23
        v = mpmath.matrix(vectors.astype(object))
        errors = v.T * v - mpmath.eye(12)
        assert max(map(abs, errors)) < 2.0**-22
        errors = v.T * mpmath.matrix(a.astype(object)) * v - mpmath.diag(list(map(float, values)))
        assert max(map(abs, errors)) < largest * 2.0**-22


@pytest.mark.parametrize("data", ANY, ids=lambda data: data.__name__)
def test_singular_values_are_the_closest(data):
    a = data((12, 8))
    u, s, vt = (np.asarray(x).astype(np.float64) for x in repjax.reproducible(jnp.linalg.svd)(a))
    exact = np.linalg.svd(a.astype(np.float64), compute_uv=False)
    assert np.abs(s - exact).max() <= exact[0] * 0.51 * 2.0**-23
    for x in (u.T @ u, vt @ vt.T):
        assert np.abs(x - np.eye(len(x))).max() < 2.0**-21
    assert np.abs((u[:, :8] * s) @ vt - a).max() < exact[0] * 2.0**-22


@pytest.mark.parametrize("data", MANY_ROWS, ids=lambda data: data.__name__)
def test_eigenvalues_of_many_rows_are_the_closest(data):
    """As those of few rows; exact ones are those of float64, far more than close enough."""
    a = data((70, 70))
    a = canonical_values(np.tril(a) + np.tril(a, -1).T)
    vectors, values = (np.asarray(x).astype(np.float64) for x in _eigh(a))
    exact = np.linalg.eigvalsh(a.astype(np.float64))
    largest = np.abs(exact).max()
    assert np.abs(values - exact).max() <= largest * 0.51 * 2.0**-23
    assert np.abs(vectors.T @ vectors - np.eye(70)).max() < 2.0**-22
    assert np.abs(vectors.T @ a @ vectors - np.diag(values)).max() < largest * 2.0**-21


@pytest.mark.parametrize("shape", [(80, 45), (120, 20)], ids=str)
@pytest.mark.parametrize("data", [*ANY, ones], ids=lambda data: data.__name__)
def test_singular_values_of_many_rows_are_the_closest(data, shape):
    a = canonical_values(data(shape))
    run = repjax.reproducible(lambda a: jnp.linalg.svd(a, full_matrices=False))
    u, s, vt = (np.asarray(x).astype(np.float64) for x in run(a))
    exact = np.linalg.svd(a.astype(np.float64), compute_uv=False)
    assert np.abs(s - exact).max() <= exact[0] * 0.51 * 2.0**-23
    for x in (u.T @ u, vt @ vt.T):
        assert np.abs(x - np.eye(len(x))).max() < 2.0**-20
    assert np.abs((u * s) @ vt - a).max() < exact[0] * 2.0**-21


# --- the C++ kernel -------------------------------------------------------------------------

KERNELS = {
    "eigh": (lambda a: lax.linalg.eigh(a, symmetrize_input=False), SQUARE),
    "svd": (lambda a: jnp.linalg.svd(a, full_matrices=False), ANY),
    "svd of rows": (lambda a: jnp.linalg.svd(a[..., ::2, :]), ANY),
    "singular values": (lambda a: jnp.linalg.svd(a[..., ::3], compute_uv=False), ANY),
    "svd of long rows": (lambda a: jnp.linalg.svd(a[..., ::9], full_matrices=False), ANY),
}


# Around vectors, and blocks of rows (16 of either half); of several matrices, each is a task.
@with_a_kernel
@pytest.mark.parametrize("name", KERNELS)
@pytest.mark.parametrize(
    "shape", [(1, 1), (7, 9, 9), (33, 33), (2, 70, 70), (101, 101), (5, 40, 40)], ids=str
)
def test_kernels(name, shape):
    function, kinds = KERNELS[name]
    check_kernel(function, [data(shape, 1) for data in kinds])


@with_a_kernel
def test_kernels_of_many_rows():
    """Of so many that threads share each step."""
    function, _ = KERNELS["eigh"]
    check_kernel(function, [data((201, 201), 1) for data in (symmetric, low_rank, ones)])


def merged(merge, poles, z, count):
    order = np.random.default_rng(0).permutation(poles.shape[1]).astype(np.int32)
    order = np.broadcast_to(order, poles.shape)
    with jax.enable_x64(True):
        rho = np.full((len(poles), 1), 0.75)
        return [np.asarray(x) for x in jax.jit(merge)(poles, z, rho, count, order)]


@with_a_kernel
@pytest.mark.parametrize("m", [2, 7, 34, 66])
def test_kernels_find_roots(m):
    """Close to poles and between close ones, of few and of none; the vectors are orthogonal."""
    random = np.random.default_rng(m)
    poles = np.sort(random.standard_normal((6, m)))
    poles[1] = 1 + np.arange(m) * 2.0**-48
    poles[2, m // 2 :] += 2.0**20
    z = random.standard_normal((6, m))
    z[2:4] *= np.exp2(-random.uniform(0, 50, (2, m)))
    count = np.array([[m], [m], [m], [1], [0], [m - 1]], np.int32)
    expected = merged(tridiagonal.merge, poles, z, count)
    for instruction_set in each_instruction_set():
        assert_same_bits(merged(kernels._merge, poles, z, count), expected, instruction_set)
    values, vectors = expected
    assert np.abs(vectors @ np.swapaxes(vectors, 1, 2) - np.eye(m)).max() < 2.0**-42
    live = np.arange(m) < count
    assert_same_bits(values[~live], poles[~live])
    assert (values >= poles).all()


@with_a_kernel
@pytest.mark.parametrize("width", [32, 41, 56])
def test_kernels_drop_small_elements(width, monkeypatch):
    """Whether an element is small is asked once for two rows; the last vectors are never asked."""
    x = np.float64(normal((1, 40, width))) * np.exp2(-np.linspace(0, 190, 40))[:, None]

    def rotated(orthogonalize):
        with jax.enable_x64(True):
            return np.asarray(jax.jit(lambda x: orthogonalize(x, 32, 2.0**-28))(x))

    expected = rotated(spectral._orthogonalize)
    for instruction_set in each_instruction_set():
        assert_same_bits(rotated(kernels._orthogonalize), expected, instruction_set)
    monkeypatch.setattr(spectral, "snap", lambda x: x)
    assert not same_bits(rotated(spectral._orthogonalize), expected)


# --- the data can tell ----------------------------------------------------------------------


def test_the_data_can_tell_another_order_of_rounds():
    a = symmetric((9, 9))

    def reverse(rounds):
        return list(rounds)[::-1]

    assert not same_bits(eigh(a, rounds=reverse)[0], eigh(a)[0])


@pytest.mark.parametrize("name", ["product", "snap", "pairwise_sum"])
def test_other_arithmetic_is_noticed(name, monkeypatch):
    """Rotations in float32, elements that are dropped, and sums in another order."""
    x = np.asarray(graded((9, 9)), np.float64)
    others = {
        "product": lambda x, y: (x * y).astype(np.float32).astype(np.float64),
        "snap": lambda x: jnp.where(jnp.abs(x) < 2.0**-30, 0, x),
        "pairwise_sum": lambda x: jnp.cumsum(x, -1)[..., -1:],
    }
    with jax.enable_x64(True):
        want = spectral._orthogonalize(jnp.asarray(x)[None], 9, 2.0**-28)[0]
        assert_same_bits(want, orthogonalize(x, 9, 2.0**-28)[0])
        module = canonical_module if name == "product" else spectral
        monkeypatch.setattr(module, name, others[name])
        assert not same_bits(spectral._orthogonalize(jnp.asarray(x)[None], 9, 2.0**-28)[0], want)


@pytest.mark.parametrize("name", ["product", "snap", "pairwise_sum", "FOUND", "STEPS", "_GAP"])
def test_other_arithmetic_of_many_rows_is_noticed(name, monkeypatch):
    others = {
        "product": lambda x, y: (x * y).astype(np.float32).astype(np.float64),
        "snap": lambda x: jnp.where(jnp.abs(x) < 2.0**-10, 0, x),
        "pairwise_sum": lambda x: jnp.cumsum(x, -1)[..., -1:],
        "FOUND": 2.0**-20,
        "STEPS": 1,
        "_GAP": 2.0**-3,
    }
    a = np.asarray(symmetric((1, 40, 40)), np.float64)

    def run():
        with jax.enable_x64(True):
            return jax.jit(lambda a: tridiagonal.eigh(a, spectral._STEPS)[0])(a)

    want = run()
    module = canonical_module if name == "product" else tridiagonal
    monkeypatch.setattr(module, name, others[name])
    assert not same_bits(run(), want)


def test_a_limit_of_sweeps_is_kept(monkeypatch):
    a = jnp.asarray(symmetric((9, 9)))
    monkeypatch.setattr(spectral, "SWEEPS", 2)
    few = repjax.reproducible(lambda a: jnp.linalg.eigvalsh(a))(a)
    monkeypatch.undo()
    assert not same_bits(few, repjax.reproducible(lambda a: jnp.linalg.eigvalsh(a))(a))


# --- derivatives, and what stands on them ---------------------------------------------------

FUNCTIONS = {
    "eigh": (lambda a: jnp.linalg.eigh(a), symmetric),
    "eigvalsh": (jnp.linalg.eigvalsh, symmetric),
    "svd": (lambda a: jnp.linalg.svd(a, full_matrices=False), normal),
    "singular values": (lambda a: jnp.linalg.svd(a, compute_uv=False), normal),
    "nuclear norm": (lambda a: jnp.linalg.norm(a, "nuc"), normal),
    "spectral norm": (lambda a: jnp.linalg.norm(a, 2), normal),
    "pinv": (jnp.linalg.pinv, normal),
    "lstsq": (lambda a: jnp.linalg.lstsq(a, a[:, :2] ** 2)[0], normal),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_derivatives(name):
    """Close to those in float64 (of float32 matrices), and as eager as compiled."""
    function, data = FUNCTIONS[name]
    a = data((5, 5)) + np.diag(np.arange(5, dtype=np.float32))

    def loss(a):
        # The signs of vectors are nobody's.
        return sum(jnp.sum(jnp.cos(leaf) ** 2) for leaf in jax.tree.leaves(function(a)))

    value, gradient = repjax.reproducible(jax.value_and_grad(loss))(a)
    assert_same_bits(value, repjax.reproducible(loss)(a))
    with repjax.enabled():
        assert_same_bits(gradient, jax.grad(loss)(jnp.asarray(a)))
    with jax.enable_x64(True):
        close = np.asarray(jax.grad(loss)(a.astype(np.float64)))
    assert np.abs(np.asarray(gradient) - close).max() < 2e-3 * max(1, np.abs(close).max())


def test_formats_without_a_contract_are_refused():
    for dtype, message in ((np.complex64, "complex numbers"), (np.float64, "received float64")):
        with jax.enable_x64(True), pytest.raises(repjax.RefusedError, match=f"svd.*{message}"):
            repjax.reproducible(jnp.linalg.svdvals)(np.eye(3, dtype=dtype))


def test_the_completion_of_vectors_is_orthonormal():
    """Of no vectors at all, of some zeros among them, and where there is nothing to do."""
    for x in (
        np.zeros((1, 3, 5)),
        np.eye(5)[None, :3],
        np.eye(4, 6)[None] * [[[1], [1], [0], [0]]],
    ):
        x = np.asarray(x, np.float32)
        keep = x.any(-1)
        with jax.enable_x64(True):
            full = np.asarray(spectral._completed(jnp.asarray(x), True, linalg.qr))
        assert_same_bits(full[:, : x.shape[1]][keep], x[keep])
        assert np.abs(full[0] @ full[0].T - np.eye(x.shape[2])).max() < 2.0**-22
