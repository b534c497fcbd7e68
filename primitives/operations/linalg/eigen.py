"""Eigenvalues and singular values, by rotations in a stated order.

One-sided Jacobi (Hestenes 1958, "Inversion of matrices by biorthogonalization and related
results"): rotations of two rows at a time make the rows of a matrix orthogonal.  Then the norms of
the rows are its singular values.  A sweep rotates every pair once, in the order of a tournament
(Brent and Luk 1985, "The solution of singular-value and symmetric eigenvalue problems on
multiprocessor arrays"): the pairs of a round have no row in common, so that they may be rotated in
any order, or at once.  Of many rows the eigenvectors come from :mod:`.tridiagonal`, and the
rotations have little left to do.

All of it is float64, in which float32 results are nearly always the correctly rounded ones
(``docs/accuracy.md``).  Each operation is rounded by itself: guards between products and sums keep
the compiler from fusing them, and change no values, since :func:`snap` leaves none that are so
small.  Arrays are float32 ``[..., m, n]``.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.extend.core import primitives as stock

from repjax.primitives.core import canonical
from repjax.primitives.core.define import define
from repjax.primitives.core.sizes import power_of_two_from
from repjax.primitives.operations.arithmetic import plain_rule
from repjax.primitives.operations.linalg import factorizations, matrices, tridiagonal
from repjax.primitives.operations.linalg.tridiagonal import inverse, lengths, pairwise_sum, snap
from repjax.primitives.operations.reductions import sort_keys

#: Rows are taken for orthogonal where the cosine of their angle is at most this.
_COSINE = 2.0**-28
#: Rows are long if they have so many times as many elements as there are rows.
_LONG = 4
#: The most sweeps; mostly it takes less than ten.
SWEEPS = 60


def _partners(n: int, k):
    """For each row, the other row of its pair in round ``k`` of ``rounds(n)``; int32[n].

    Rows whose sum is k modulo the number of rounds; of an even number of rows, the last one plays
    against the one that would play against itself.
    """
    rounds = _rounds(n)
    i = lax.iota(np.int32, n)
    partner = lax.rem(k - i + rounds, lax.full_like(i, rounds))
    if n % 2 == 0:
        partner = lax.select(partner == i, lax.full_like(i, n - 1), partner)
        of_last = lax.rem(k * np.int32(n // 2), np.int32(rounds))
        partner = lax.select(i == n - 1, lax.broadcast(of_last, [n]), partner)
    return partner


def _rounds(n: int) -> int:
    return n - 1 + n % 2


def _rotate(x, squares, partner, length: int, tolerance: float):
    """``x[batch, n, width]`` after a round, the squares of its rows, and whether any was rotated.

    The rows x and y of a pair, x the first, have the squares a and b, and g = x.y over the first
    ``length`` columns; z = (b - a) / (2 g); t = sign(z) / (|z| + sqrt(1 + z**2)), the tangent of
    the smaller angle; c = 1 / sqrt(1 + t**2), s = t c, u = s / (1 + c).  x becomes
    x - s (y + u x), y becomes y + s (x - u y) (Rutishauser 1966, "The Jacobi method for real
    symmetric matrices"), a becomes a - t g, and b becomes b + t g.  Where b > a they then change
    places: with long rows first it takes fewer sweeps (de Rijk 1989, "A one-sided Jacobi algorithm
    for computing the singular value decomposition on a vector computer").
    """
    other = jnp.take(x, partner, axis=1, mode="clip")
    own = lax.iota(np.int32, len(partner))
    first = lax.broadcast_in_dim(own < partner, squares.shape, [1])
    alone = lax.broadcast_in_dim(own == partner, squares.shape, [1])

    of_length = [lax.slice_in_dim(v, 0, length, axis=2) for v in (x, other)]
    g = pairwise_sum(canonical.product(*of_length))
    of_other = jnp.take(squares, partner, axis=1, mode="clip")
    bound = squares * of_other * (tolerance * tolerance)
    rotated = (g * g > lax.max(bound, lax.full_like(bound, 0))) & ~alone

    difference = of_other - squares
    difference = lax.select(first, difference, -difference)
    z = difference / (2 * g)
    t = 1 / (lax.abs(z) + lax.sqrt(1 + canonical.product(z, z)))
    t = lax.select(z < 0, -t, t)
    c = 1 / canonical.guard(lax.sqrt(1 + canonical.product(t, t)))
    s = canonical.guard(t * c)

    swapped = rotated & (difference > 0)
    was_first = first ^ swapped

    def on_both(v):
        """Less for what was the first, more for the second; nothing where none is rotated."""
        return lax.select(rotated, lax.select(was_first, -v, v), lax.full_like(v, 0))

    of_rows = matrices.spread(swapped, x.shape)
    x, other = lax.select(of_rows, other, x), lax.select(of_rows, x, other)
    s, u = (matrices.spread(on_both(v), x.shape) for v in (s, s / (1 + c)))
    x = snap(x + canonical.product(s, other - canonical.product(u, x)))
    squares = lax.select(swapped, of_other, squares) + on_both(canonical.product(t, g))
    return x, squares, lax.reduce_or(rotated, (0, 1, 2))


def _orthogonalize(x, length: int, tolerance: float):
    """The rows of ``x[batch, n, width]``, rotated until they are orthogonal.

    They are orthogonal in their first ``length`` columns; the others are rotated with them.  The
    squares of rows are computed at the beginning of a sweep.  One that rotates nothing is the last;
    so what a matrix of a batch becomes does not depend on the others, which may take more.
    """
    n = x.shape[1]

    def go_on(state):
        return state[1] & (state[2] < SWEEPS)

    def sweep(state):
        def step(k, state):
            x, squares, any_rotated = state
            partner = _partners(n, lax.convert_element_type(k, np.int32))
            x, squares, rotated = _rotate(x, squares, partner, length, tolerance)
            return x, squares, any_rotated | rotated

        x, _, count = state
        of_length = lax.slice_in_dim(x, 0, length, axis=2)
        squares = pairwise_sum(canonical.product(of_length, of_length))
        start = x, squares, np.bool_(False)
        x, _, rotated = lax.fori_loop(0, _rounds(n), step, start)
        return x, rotated, count + 1

    return lax.while_loop(go_on, sweep, (x, np.bool_(True), np.int32(0)))[0]


# --- before and after -------------------------------------------------------------------


def _scaled(a):
    """``a`` in float64 with its largest element in [1, 2), the power of two that it was divided
    by, and where a matrix has elements that are not finite; such a matrix is 0."""
    magnitude = canonical.bits(lax.abs(a))
    largest = lax.reduce_max(magnitude, (1, 2))[:, None, None]
    finite = largest < 0x7F800000
    power = lax.select(
        finite & (largest > 0), largest & 0x7F800000, lax.full_like(largest, 0x3F800000)
    )
    power = canonical.to_float64(canonical.from_bits(power, np.float32))
    a = lax.select(matrices.spread(finite, a.shape), a, lax.full_like(a, 0))
    a = canonical.to_float64(a)
    return snap(a / matrices.spread(power, a.shape)), power, ~finite


def _narrow(x, invalid):
    """float64 to float32, NaN for invalid matrices."""
    x = canonical.to_float32(canonical.guard(x))
    nan = lax.full_like(x, np.nan)
    return lax.select(matrices.spread(invalid, x.shape), nan, x)


def _sorted(values, *rows, descending: bool):
    """``values[batch, n, 1]`` in their order, and rows with them; equal ones as they are."""
    keys = sort_keys.of(lax.squeeze(values, [2]), True)
    keys = lax.bitwise_not(keys) if descending else keys
    places = lax.broadcasted_iota(np.int32, keys.shape, 1)
    _, places = lax.sort((keys, places), dimension=1, num_keys=1)
    places = lax.expand_dims(places, [2])
    return [jnp.take_along_axis(x, places, axis=1, mode="clip") for x in (values, *rows)]


def _some(x, subset_by_index):
    """Those rows of ``x[batch, n, columns]``."""
    return x if subset_by_index is None else lax.slice_in_dim(x, *subset_by_index, axis=1)


def _of_nothing(stock, a, **params):
    """Results for empty matrices: no values, and vectors of unit matrices."""
    results = jax.eval_shape(functools.partial(stock, **params), a)
    return [
        matrices.unit(x) if len(x.shape) == 3 else lax.full(x.shape, 0, x.dtype) for x in results
    ]


# --- eigenvalues ------------------------------------------------------------------------


_STEPS = tridiagonal.Steps(_orthogonalize)


def eigh(a, *, lower, subset_by_index, steps=_STEPS):
    """Eigenvectors, as columns, and eigenvalues, ascending, by one triangle of symmetric matrices.

    Of few rows, by rotations: the elements are less than 2, so that the eigenvalues of A + 4 N I,
    N the power of two that is at least n, are between 2 N and 6 N: they are its singular values
    too, and the rows become they times the eigenvectors.  The tolerance is as if A's own elements
    were to be within 2**-28.  Of many rows by way of a tridiagonal matrix.
    """
    leading, n = a.shape[:-2], a.shape[-1]
    a = matrices.flat(a)
    if not a.size:
        params = {"lower": lower, "subset_by_index": subset_by_index}
        return [matrices.like(x, leading) for x in _of_nothing(_stock_eigh, a, **params)]
    rows, columns = matrices.rows(a), matrices.columns(a)
    read = (rows >= columns) if lower else (rows <= columns)
    x, power, invalid = _scaled(lax.select(read, a, matrices.transpose(a)))

    if n > tridiagonal.ROWS:
        values, vectors = tridiagonal.eigh(x, steps)
        values = lax.expand_dims(values, [2])
    else:
        shift = 4.0 * power_of_two_from(n)
        x = steps.orthogonalize(x + shift * matrices.unit(x), n, 2 * _COSINE / shift)
        of_rows = lengths(x)
        values, vectors = of_rows - shift, canonical.product(x, inverse(of_rows))
    values, vectors = _narrow(values * power, invalid), _narrow(vectors, invalid)
    values, vectors = _sorted(values, vectors, descending=False)
    vectors = matrices.transpose(_some(vectors, subset_by_index))
    values = lax.squeeze(_some(values, subset_by_index), [2])
    return [matrices.like(vectors, leading), matrices.like(values, leading)]


# --- singular values --------------------------------------------------------------------


def svd(
    a,
    *,
    full_matrices,
    compute_uv,
    subset_by_index,
    steps=_STEPS,
    factorize=factorizations.qr,
):
    """Singular values, descending; if ``compute_uv`` left vectors as columns, right ones as rows.

    Rows or columns, whichever are fewer, become the singular values times the *long* vectors, and a
    unit matrix that is rotated with them the *short* ones.  Where they are many, or long, the
    eigenvectors of X X' take the place of the unit matrix, and their products with X that of X, so
    that little is left to be rotated.  Long vectors of the singular value 0, and those that
    ``full_matrices`` asks for, are columns of the factor Q of the others.
    """
    leading, tall = a.shape[:-2], a.shape[-2] >= a.shape[-1]
    a = matrices.flat(a)
    if not a.size:
        params = {"full_matrices": full_matrices, "compute_uv": compute_uv}
        results = _of_nothing(_stock_svd, a, subset_by_index=subset_by_index, **params)
        return [matrices.like(x, leading) for x in results]
    x, power, invalid = _scaled(matrices.transpose(a) if tall else a)
    _, count, length = x.shape
    if count > tridiagonal.ROWS or length >= _LONG * count:
        _, rows = tridiagonal.eigh(_product(x, matrices.transpose(x), steps), steps)
        short = lax.rev(rows, (1,))
        x = _product(short, x, steps)
    else:
        short = matrices.unit(x[:, :, :count])
    if compute_uv:
        x = lax.concatenate([x, short], 2)
    x = steps.orthogonalize(x, length, _COSINE)
    long, short = lax.slice_in_dim(x, 0, length, axis=2), x[:, :, length:]
    of_rows = lengths(long)
    values = _narrow(of_rows * power, invalid)
    none = matrices.spread(of_rows == 0, long.shape)
    unit = canonical.product(long, inverse(of_rows))
    long = _narrow(lax.select(none, long, unit), invalid)
    values, long, short = _sorted(values, long, _narrow(short, invalid), descending=True)
    results = [lax.squeeze(_some(values, subset_by_index), [2])]
    if compute_uv:
        long = _completed(long, full_matrices, factorize)
        if not full_matrices:
            long, short = _some(long, subset_by_index), _some(short, subset_by_index)
        results += [matrices.transpose(long), short] if tall else [matrices.transpose(short), long]
    return [matrices.like(x, leading) for x in results]


def _product(x, y, steps):
    """The product of matrices ``[batch, m, k]`` and ``[batch, k, n]``."""
    return lax.squeeze(steps.multiply(lax.expand_dims(x, [2]), lax.expand_dims(y, [1])), [2])


def _completed(x, square: bool, factorize):
    """Orthonormal rows in place of those of ``x[batch, n, columns]`` that are 0, and further ones
    until it is square."""
    none = lax.reduce_and(x == 0, (2,))

    def complete(x):
        q, _ = factorize(matrices.transpose(x), full_matrices=square)
        rows = matrices.transpose(q)
        first = lax.slice_in_dim(rows, 0, x.shape[1], axis=1)
        first = lax.select(matrices.spread(none[:, :, None], x.shape), first, x)
        return lax.concatenate(
            [first, lax.slice_in_dim(rows, x.shape[1], rows.shape[1], axis=1)], 1
        )

    if square and x.shape[1] < x.shape[2]:
        return complete(x)
    return lax.cond(lax.reduce_or(none, (0, 1)), complete, lambda x: x, x)


# --- primitives and rules ---------------------------------------------------------------


def _stock_eigh(a, **params):
    return stock.eigh_p.bind(a, sort_eigenvalues=True, algorithm=None, **params)


def _stock_svd(a, **params):
    return stock.svd_p.bind(a, algorithm=None, **params)


eigh_p = define("eigh", eigh, _stock_eigh, multiple_results=True)
svd_p = define("svd", svd, _stock_svd, multiple_results=True)


plain_rule("eigh", eigh_p, keep=("lower", "subset_by_index"))
plain_rule("svd", svd_p, keep=("full_matrices", "compute_uv", "subset_by_index"))
