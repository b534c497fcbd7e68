"""Linear algebra in a stated order: triangular solves, Cholesky, LU and QR factors.

Every step is an operation of ``docs/numerics.md``, section 2: products and differences are
rounded separately, and each result is canonical.  Updates of the rest of a matrix come column
after column, so an element receives its terms in ascending order of k:

    a[i, j] = sub(a[i, j], mul(a[i, k], a[k, j])),  k = 0, 1, ...

This is the unblocked, right-looking form of the algorithms (Golub and Van Loan 2013, "Matrix
computations", sections 3.1, 3.4, 4.2 and 5.2).  Arrays are float32 ``[..., m, n]``.
"""

from __future__ import annotations

import numpy as np
from jax import lax
from jax.extend.core import primitives as stock

from repjax.primitives.core import canonical
from repjax.primitives.core.define import define
from repjax.primitives.core.jax_internals import geqrf as stock_geqrf
from repjax.primitives.core.tables import RefusedError, rule
from repjax.primitives.operations.arithmetic import (
    div,
    mul,
    neg,
    plain_rule,
    require_format,
    sqrt_p,
    sub,
)
from repjax.primitives.operations.linalg import matrices
from repjax.primitives.operations.reductions import sort_keys, sums


def _zero_unless(condition, x):
    return lax.select(condition, x, lax.full_like(x, 0))


def _outer(column, row):
    shape = (*column.shape[:2], row.shape[2])
    return mul(matrices.spread(column, shape), matrices.spread(row, shape))


def _loop(n, step, state):
    """``step(k, state)`` for k = 0, ..., n - 1, k int32."""
    return lax.fori_loop(0, n, lambda k, s: step(lax.convert_element_type(k, np.int32), s), state)


# --- triangular systems -----------------------------------------------------------------


def triangular_solve(
    a,
    b,
    *,
    left_side,
    lower,
    transpose_a,
    conjugate_a=False,
    unit_diagonal=False,
    substitute=None,
):
    """X of ``op(A) X = B``, or of ``X op(A) = B``; the other triangle of A is not read."""
    del conjugate_a
    leading = b.shape[:-2]
    a, b = matrices.flat(a), matrices.flat(b)
    if not left_side:
        b = matrices.transpose(b)
    if transpose_a == left_side:
        a, lower = matrices.transpose(a), not lower
    x = (substitute or _substitute)(a, b, lower, unit_diagonal) if b.size else b
    return matrices.like(x if left_side else matrices.transpose(x), leading)


def _substitute(a, b, lower: bool, unit_diagonal: bool):
    """X of ``A X = B``, one unknown row after the other.

    x[k] = b[k] / a[k, k], and then b[i] = b[i] - a[i, k] x[k] for the rows i that are left.
    """
    n = a.shape[1]

    def step(j, b):
        k = j if lower else np.int32(n - 1) - j
        column, x = matrices.column(a, k), matrices.row(b, k)
        if not unit_diagonal:
            x = div(x, matrices.spread(matrices.row(column, k), x.shape))
        rows = matrices.rows(b)
        left = (rows > k) if lower else (rows < k)
        b = lax.select(left, sub(b, _outer(column, x)), b)
        return lax.select((rows == k), matrices.spread(x, b.shape), b)

    return _loop(n, step, b)


# --- Cholesky ---------------------------------------------------------------------------


def cholesky(a):
    """The lower factor, of the lower triangle; all NaN if a pivot is not positive."""
    leading, a = a.shape[:-2], matrices.flat(a)

    def step(k, state):
        a, positive = state
        column = matrices.column(a, k)
        pivot = matrices.row(column, k)
        positive = positive & lax.gt(pivot, lax.full_like(pivot, 0))
        root = sqrt_p.bind(pivot)
        rows = matrices.rows(column)
        column = lax.select(
            (rows == k),
            matrices.spread(root, column.shape),
            div(column, matrices.spread(root, column.shape)),
        )
        column = _zero_unless((rows >= k), column)
        rest = sub(a, _outer(column, matrices.transpose(column)))
        a = lax.select((matrices.columns(a) > k), rest, a)
        return lax.dynamic_update_slice_in_dim(a, column, k, 2), positive

    start = a, lax.full((a.shape[0], 1, 1), True)
    factor, positive = _loop(a.shape[1], step, start) if a.size else start
    factor = lax.select(matrices.spread(positive, a.shape), factor, lax.full_like(a, np.nan))
    return matrices.like(factor, leading)


# --- LU ---------------------------------------------------------------------------------


def _swap(x, k, i):
    """Rows k and i[batch] of ``x[batch, rows, columns]`` exchanged."""
    rows = matrices.rows(x)
    at = matrices.spread(lax.reshape(i, [i.size, 1, 1]), x.shape)
    first = matrices.spread(matrices.row(x, k), x.shape)
    # One row of x is at i: the sum of its bits and of zeros.
    bits = lax.bitcast_convert_type(x, np.int32)
    second = lax.reduce_sum(_zero_unless(lax.eq(rows, at), bits), (1,))
    second = lax.bitcast_convert_type(lax.expand_dims(second, [1]), x.dtype)
    x = lax.select(lax.eq(rows, at), first, x)
    return lax.select((rows == k), matrices.spread(second, x.shape), x)


def lu(a):
    """Factors in one matrix, pivots and permutation.

    The pivot of column k is the first of the largest magnitudes in the rows from k on, a NaN
    if there is one; where it is 0, the column stays as it is.
    """
    leading, a = a.shape[:-2], matrices.flat(a)
    batch, m, n = a.shape
    count = min(m, n)
    permutation = lax.broadcasted_iota(np.int32, (batch, m, 1), 1)
    pivots = lax.full((batch, count), 0, np.int32)

    def step(k, state):
        a, pivots, permutation = state
        column = matrices.column(a, k)
        keys = sort_keys.of(lax.abs(column), True)
        keys = lax.select(
            (matrices.rows(column) >= k), keys, lax.full_like(keys, sort_keys.IDENTITY)
        )
        i = lax.argmax(lax.squeeze(keys, [2]), 1, np.int32)
        pivots = lax.dynamic_update_slice_in_dim(pivots, lax.expand_dims(i, [1]), k, 1)
        a, permutation = _swap(a, k, i), _swap(permutation, k, i)

        column, row = matrices.column(a, k), matrices.row(a, k)
        below = matrices.rows(column) > k
        pivot = matrices.spread(matrices.row(column, k), column.shape)
        divided = below & lax.ne(pivot, lax.full_like(pivot, 0))
        column = lax.select(divided, div(column, pivot), column)
        rest = sub(a, _outer(column, row))
        inside = (matrices.rows(a) > k) & (matrices.columns(a) > k)
        a = lax.select(inside, rest, a)
        return lax.dynamic_update_slice_in_dim(a, column, k, 2), pivots, permutation

    state = a, pivots, permutation
    a, pivots, permutation = _loop(count, step, state) if a.size else state
    return [
        matrices.like(a, leading),
        matrices.like(pivots, leading),
        matrices.like(lax.squeeze(permutation, [2]), leading),
    ]


# --- QR ---------------------------------------------------------------------------------


def _length(x):
    """The Euclidean norm over the rows of ``x[batch, rows, 1]``, rounded once to float32.

    The squares are exact in float64; they are summed in ``pairwise`` order, in float64.
    """
    wide = canonical.to_float64(x)
    (total,) = sums.pairwise(sums.add, [wide * wide], 1)
    root = canonical.guard(lax.sqrt(total))
    return lax.expand_dims(canonical.to_float32(root), [1])


def _all_zero(column):
    """Whether all elements of ``column[batch, rows, 1]`` are 0."""
    largest = lax.reduce_max(canonical.bits(lax.abs(column)), (1,))
    return lax.expand_dims(lax.eq(largest, lax.full_like(largest, 0)), [1])


def _reflect(a, v, tau):
    """(I - tau v v^T) a: w = v^T a by the ``pairwise`` sum over all rows, a - (tau w) v."""
    (w,) = sums.pairwise(sums.add, [mul(matrices.spread(v, a.shape), a)], 1)
    w = lax.expand_dims(w, [1])
    return sub(a, _outer(v, mul(matrices.spread(tau, w.shape), w)))


def _with_one(column, k):
    """The reflector whose elements below row k are those of ``column``: 1 at k, 0 above."""
    rows = matrices.rows(column)
    v = _zero_unless((rows > k), column)
    return lax.select((rows == k), lax.full_like(v, 1), v)


def geqrf(a):
    """R in the upper triangle, the reflectors below it, and their factors tau.

    With alpha = a[k, k] and x what is below it, as in LAPACK's ``larfg``: beta has the sign
    that alpha has not (and is negative for 0) and the norm of the column from k on;
    tau = (beta - alpha) / beta; v = x / (alpha - beta).  Where x is 0, beta = alpha, tau = 0.
    """
    leading, a = a.shape[:-2], matrices.flat(a)
    batch, m, n = a.shape
    count = min(m, n)
    taus = lax.full((batch, count), 0, np.float32)

    def step(k, state):
        a, taus = state
        column = matrices.column(a, k)
        rows = matrices.rows(column)
        alpha = matrices.row(column, k)
        below = _zero_unless((rows > k), column)
        nothing = _all_zero(below)
        norm = _length(_zero_unless((rows >= k), column))
        beta = lax.select(lax.lt(alpha, lax.full_like(alpha, 0)), norm, neg(norm))
        tau = lax.select(nothing, lax.full_like(beta, 0), div(sub(beta, alpha), beta))
        scaled = div(below, matrices.spread(sub(alpha, beta), below.shape))
        below = lax.select(matrices.spread(nothing, below.shape), below, scaled)
        beta = lax.select(nothing, alpha, beta)

        reflected = _reflect(a, _with_one(below, k), tau)
        inside = (matrices.rows(a) >= k) & (matrices.columns(a) > k)
        a = lax.select(inside & matrices.spread(lax.bitwise_not(nothing), a.shape), reflected, a)
        column = lax.select((rows > k), below, column)
        column = lax.select((rows == k), matrices.spread(beta, column.shape), column)
        a = lax.dynamic_update_slice_in_dim(a, column, k, 2)
        return a, lax.dynamic_update_slice_in_dim(taus, lax.squeeze(tau, [2]), k, 1)

    a, taus = _loop(count, step, (a, taus)) if a.size else (a, taus)
    return [matrices.like(a, leading), matrices.like(taus, leading)]


def householder_product(a, taus):
    """The first columns of H[0] H[1] ...: of the identity, the last reflector comes first."""
    leading = a.shape[:-2]
    a, taus = matrices.flat(a), matrices.flat(taus, 1)
    identity = lax.convert_element_type(lax.eq(matrices.rows(a), matrices.columns(a)), np.float32)
    count = taus.shape[1]

    def step(j, q):
        k = np.int32(count - 1) - j
        tau = lax.expand_dims(lax.dynamic_slice_in_dim(taus, k, 1, 1), [2])
        reflected = _reflect(q, _with_one(matrices.column(a, k), k), tau)
        inside = (matrices.rows(q) >= k) & (matrices.columns(q) >= k)
        return lax.select(inside, reflected, q)

    return matrices.like(_loop(count, step, identity) if taus.size else identity, leading)


def qr(
    a,
    *,
    full_matrices,
    pivoting=False,
    use_magma=None,
    factorize=geqrf,
    multiply=householder_product,
):
    """Q and R; see :func:`geqrf` and :func:`householder_product`."""
    del pivoting, use_magma
    *leading, m, n = a.shape
    k = min(m, n)
    columns = m if full_matrices else k
    factors, taus = factorize(a)
    reflectors = lax.slice_in_dim(factors, 0, k, axis=-1)
    spare = [(0, 0, 0)] * (a.ndim - 1) + [(0, columns - k, 0)]
    q = multiply(lax.pad(reflectors, np.float32(0), spare), taus)
    r = matrices.flat(lax.slice_in_dim(factors, 0, columns, axis=-2))
    r = _zero_unless(lax.le(matrices.rows(r), matrices.columns(r)), r)
    return [q, matrices.like(r, leading)]


# --- primitives and rules ---------------------------------------------------------------

_linalg = lax.linalg
_TRIANGULAR = ("left_side", "lower", "transpose_a", "conjugate_a", "unit_diagonal")


triangular_solve_p = define("triangular_solve", triangular_solve, _linalg.triangular_solve)
cholesky_p = define("cholesky", cholesky, stock.cholesky_p.bind)
lu_p = define("lu", lu, _linalg.lu, multiple_results=True)
householder_product_p = define(
    "householder_product", householder_product, _linalg.householder_product
)
geqrf_p = define("geqrf", geqrf, stock_geqrf, multiple_results=True)
qr_p = define("qr", qr, stock.qr_p.bind, multiple_results=True)

plain_rule("triangular_solve", triangular_solve_p, keep=_TRIANGULAR)
plain_rule("cholesky", cholesky_p)
plain_rule("lu", lu_p)
plain_rule("householder_product", householder_product_p)
plain_rule("geqrf", geqrf_p)


@rule("qr")
def _qr_rule(context, operands, params):
    require_format(context, operands)
    if params["pivoting"]:
        raise RefusedError("qr with pivoting has no reproducible form; use pivoting=False")
    return qr_p.bind(*operands, **params)
