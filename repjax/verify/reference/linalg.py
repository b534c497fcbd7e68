"""Linear algebra, one element after the other: docs/numerics.md, section 17."""

from __future__ import annotations

import functools

import numpy as np

from repjax.verify.reference import tridiagonal
from repjax.verify.reference.sums import halves
from repjax.verify.reference.table import NoReference, Operation, of
from repjax.verify.reference.tridiagonal import snap
from repjax.verify.reference.values import (
    add,
    canonical,
    divide,
    guard,
    multiply,
    root,
)


def subtract(x, y):
    return add(x, -y)


def pairwise(terms, dtype=np.float32):
    """The pairwise sum of a list, of float32 or of float64."""
    with np.errstate(all="ignore"):
        return halves(add if dtype == np.float32 else np.add, np.asarray(terms, dtype))


def matrices(function):
    """Over the leading dimensions of the operands; vectors among them have one less."""

    @functools.wraps(function)
    def batched(*operands, **options):
        operands = [canonical(x) for x in operands]
        if operands[0].ndim == 2:
            with np.errstate(all="ignore"):
                found = function(*operands, **options)
            return canonical(found) if isinstance(found, np.ndarray) else [*map(canonical, found)]
        if not len(operands[0]):
            raise NoReference("linear algebra: expected matrices, received a batch of none")
        rows = [batched(*row, **options) for row in zip(*operands, strict=True)]
        if isinstance(rows[0], np.ndarray):
            return np.stack(rows)
        return [np.stack(xs) for xs in zip(*rows, strict=True)]

    return batched


@matrices
def triangular_solve(a, b, *, left_side, lower, transpose_a, unit_diagonal):
    if not left_side:
        solution = triangular_solve(
            a,
            b.T,
            left_side=True,
            lower=lower,
            transpose_a=not transpose_a,
            unit_diagonal=unit_diagonal,
        )
        return solution.T
    if transpose_a:
        a, lower = a.T, not lower
    n, x = len(a), b.copy()
    for k in range(n) if lower else reversed(range(n)):
        for j in range(b.shape[1]):
            if not unit_diagonal:
                x[k, j] = divide(x[k, j], a[k, k])
            for i in range(k + 1, n) if lower else range(k):
                x[i, j] = subtract(x[i, j], multiply(a[i, k], x[k, j]))
    return x


@matrices
def cholesky(a):
    n, a = len(a), np.tril(a)
    for k in range(n):
        if not a[k, k] > 0:
            return np.full_like(a, np.nan)
        a[k, k] = root(a[k, k])
        for i in range(k + 1, n):
            a[i, k] = divide(a[i, k], a[k, k])
        for j in range(k + 1, n):
            for i in range(j, n):
                a[i, j] = subtract(a[i, j], multiply(a[i, k], a[j, k]))
    return a


@matrices
def lu(a):
    (m, n), a = a.shape, a.copy()
    pivots, permutation = [], np.arange(m, dtype=np.int32)
    for k in range(min(m, n)):
        sizes = [np.inf if np.isnan(x) else abs(x) for x in a[k:, k]]
        nan = np.isnan(a[k:, k])
        i = k + int(np.argmax(nan if nan.any() else sizes))
        pivots.append(i)
        a[[k, i]], permutation[[k, i]] = a[[i, k]], permutation[[i, k]]
        for i in range(k + 1, m):
            if a[k, k] != 0:
                a[i, k] = divide(a[i, k], a[k, k])
            for j in range(k + 1, n):
                a[i, j] = subtract(a[i, j], multiply(a[i, k], a[k, j]))
    return [a, np.array(pivots, np.int32), permutation]


# --- QR factors -------------------------------------------------------------------------


def reflect(a, v, tau, k):
    """Columns of ``a``, rows from k on."""
    for j in range(a.shape[1]):
        w = pairwise([np.float32(0)] * k + [multiply(v[i], a[i, j]) for i in range(k, len(v))])
        for i in range(k, len(v)):
            a[i, j] = subtract(a[i, j], multiply(v[i], multiply(tau, w)))


@matrices
def geqrf(a):
    """R, with the vectors of the reflections below it, and their factors tau."""
    (m, n), a = a.shape, a.copy()
    taus = np.zeros(min(m, n), np.float32)
    for k in range(min(m, n)):
        squares = [np.float64(0)] * k + [np.float64(x) ** 2 for x in a[k:, k]]
        norm = guard(np.float32(np.sqrt(pairwise(squares, np.float64))))
        alpha, v = a[k, k], np.zeros(m, np.float32)
        v[k] = 1
        if not a[k + 1 :, k].any():
            continue
        beta = norm if alpha < 0 else subtract(np.float32(0), norm)
        taus[k] = divide(subtract(beta, alpha), beta)
        v[k + 1 :] = divide(a[k + 1 :, k], subtract(alpha, beta))
        reflect(a[:, k + 1 :], v, taus[k], k)
        a[k, k], a[k + 1 :, k] = beta, v[k + 1 :]
    return [a, taus]


@matrices
def _applied(a, taus):
    """The product of the reflections, applied to the first columns of the identity."""
    q = np.eye(*a.shape, dtype=np.float32)
    for k in reversed(range(len(taus))):
        v = np.zeros(len(a), np.float32)
        v[k], v[k + 1 :] = 1, a[k + 1 :, k]
        reflect(q[:, k:], v, taus[k], k)
    return q


def householder_product(a, taus):
    return _applied(a, taus)


@matrices
def qr(a, *, full_matrices):
    m, count = len(a), min(a.shape)
    packed, taus = geqrf(a)
    columns = m if full_matrices else count
    wide = np.zeros((m, columns), np.float32)
    wide[:, :count] = packed[:, :count]
    return [householder_product(wide, taus), np.triu(packed[:columns])]


# --- eigenvalues and singular values ----------------------------------------------------


def tournament(n):
    """The pairs of each round, the first row of a pair the one above.

    Of an odd number of rows, those of round k have the sum k modulo n.  Another row plays against
    the one that is left over.
    """
    odd = n - 1 + n % 2
    for k in range(odd):
        pairs = {(min(i, (k - i) % odd), max(i, (k - i) % odd)) for i in range(odd)}
        alone = next(i for i, j in pairs if i == j)
        pairs -= {(alone, alone)}
        yield sorted(pairs) if n % 2 else sorted(pairs | {(alone, n - 1)})


def orthogonalize(x, length, cosine, rounds=list):
    """The rows of ``x``, and after how many sweeps; ``rounds`` orders those of a sweep."""
    x = np.array(x)
    pairwise64 = functools.partial(pairwise, dtype=np.float64)
    for sweep in range(60):
        squares = [pairwise64(row[:length] ** 2) for row in x]
        rotated = False
        for pairs in rounds(tournament(len(x))):
            for i, j in pairs:
                a, b, g = squares[i], squares[j], pairwise64(x[i, :length] * x[j, :length])
                if not g * g > max(a * b * cosine**2, 0):
                    continue
                rotated = True
                z = (b - a) / (2 * g)
                t = 1 / (np.abs(z) + np.sqrt(1 + z * z))
                t = -t if z < 0 else t
                c = 1 / np.sqrt(1 + t * t)
                s = t * c
                u = s / (1 + c)
                first, second = x[i].copy(), x[j].copy()
                x[i] = snap(first - s * (second + u * first))
                x[j] = snap(second + s * (first - u * second))
                squares[i], squares[j] = a - t * g, b + t * g
                if b > a:
                    x[[i, j]], squares[i], squares[j] = x[[j, i]], squares[j], squares[i]
        if not rotated:
            return x, sweep
    return x, sweep


def scaled(a):
    """With the largest element in [1, 2), and by which power of two; None unless all is finite."""
    if not np.isfinite(a).all():
        return None
    largest = np.abs(a).max(initial=0)
    power = 2.0 ** (np.frexp(largest)[1] - 1) if largest > 0 else 1.0
    return snap(a.astype(np.float64) / power), power


def narrow(x):
    return guard(np.asarray(x, np.float64).astype(np.float32))


@matrices
def eigh(a, lower=True, rounds=list):
    """Vectors as columns, and ascending values."""
    n = len(a)
    nan = [np.full((n, n), np.nan, np.float32), np.full(n, np.nan, np.float32)]
    a = np.tril(a) + np.tril(a, -1).T if lower else np.triu(a) + np.triu(a, 1).T
    if (at := scaled(a)) is None:
        return nan
    x, power = at
    if n > tridiagonal.ROWS:
        found, rows = tridiagonal.eigh(x, orthogonalize)
    else:
        size = 2.0 ** (n - 1).bit_length()
        x, _ = orthogonalize(x + 4 * size * np.eye(n), n, 2.0**-28 / (2 * size), rounds)
        lengths = np.sqrt(tridiagonal.rowwise(x**2))
        found, rows = lengths - 4 * size, x * (1 / lengths)[:, None]
    found = narrow(found * power)
    ascending = np.argsort(found, kind="stable")
    return [narrow(rows)[ascending].T, found[ascending]]


@matrices
def svd(a, full_matrices=False, rounds=list):
    """Left vectors as columns, descending values, right vectors as rows."""
    (m, n), count = a.shape, min(a.shape)
    sizes = (m, n) if full_matrices else (count, count)
    nan = [np.full(s, np.nan, np.float32) for s in ((m, sizes[0]), (count,), (sizes[1], n))]
    if (at := scaled(a.T if m >= n else a)) is None:
        return nan
    x, power = at
    length, short = x.shape[1], np.eye(count)
    if count > tridiagonal.ROWS or length >= 4 * count:
        _, rows = tridiagonal.eigh(tridiagonal.product(x, x.T), orthogonalize)
        short = rows[::-1]
        x = tridiagonal.product(short, x)
    x, _ = orthogonalize(np.hstack([x, short]), length, 2.0**-28, rounds)
    lengths = np.sqrt(tridiagonal.rowwise(x[:, :length] ** 2))
    long = [row * (1 / d) if d > 0 else row for row, d in zip(x[:, :length], lengths, strict=True)]
    found, long, short = narrow(lengths * power), narrow(long), narrow(x[:, length:])
    descending = np.argsort(-found, kind="stable")
    found, long, short = (v[descending] for v in (found, long, short))
    none = ~long.any(1)
    if none.any() or (full_matrices and length > count):
        q, _ = qr(long.T, full_matrices=full_matrices)
        long = np.vstack([np.where(none[:, None], q.T[:count], long), q.T[count:]])
    return [long.T, found, short] if m >= n else [short.T, found, long]


# --- the operations ---------------------------------------------------------------------


@of("triangular_solve", ending=guard)
def _triangular_solve(operation: Operation):
    names = ("left_side", "lower", "transpose_a", "unit_diagonal")
    return [triangular_solve(*operation.operands, **{k: operation.params[k] for k in names})]


@of("cholesky", ending=guard)
def _cholesky(operation: Operation):
    return [cholesky(*operation.operands)]


@of("lu", ending=guard)
def _lu(operation: Operation):
    return lu(*operation.operands)


@of("geqrf", ending=guard)
def _geqrf(operation: Operation):
    return geqrf(*operation.operands)


@of("householder_product", ending=guard)
def _householder_product(operation: Operation):
    return [householder_product(*operation.operands)]


@of("qr", ending=guard)
def _qr(operation: Operation):
    if operation.params.get("pivoting"):
        raise NoReference("qr: expected no pivoting, which is refused")
    return qr(*operation.operands, full_matrices=operation.params["full_matrices"])


def _some(x, subset, axis: int):
    """Of all values or vectors, those that are asked for."""
    return x if subset is None else np.take(x, range(*subset), axis)


@of("eigh", ending=guard)
def _eigh(operation: Operation):
    (a,), params = operation.operands, operation.params
    if not a.size:
        raise NoReference("eigh: expected elements, received an empty matrix")
    vectors, found = eigh(a, lower=params["lower"])
    subset = params.get("subset_by_index")
    return [_some(vectors, subset, -1), _some(found, subset, -1)]


@of("svd", ending=guard)
def _svd(operation: Operation):
    (a,), params = operation.operands, operation.params
    if not a.size:
        raise NoReference("svd: expected elements, received an empty matrix")
    full, subset = params["full_matrices"], params.get("subset_by_index")
    left, found, right = svd(a, full_matrices=full)
    results = [_some(found, subset, -1)]
    if params["compute_uv"]:
        subset = None if full else subset
        results += [_some(left, subset, -1), _some(right, subset, -2)]
    return results
