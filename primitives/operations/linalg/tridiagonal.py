"""Eigenvalues and eigenvectors of symmetric matrices of many rows, by way of tridiagonal ones.

Reflections make a matrix tridiagonal (Householder 1958, "Unitary triangularization of a
nonsymmetric matrix"), which is cut into leaves of at most :data:`ROWS` rows.  Rotations diagonalize
those, and they are merged two by two (Cuppen 1981, "A divide and conquer method for the symmetric
tridiagonal eigenproblem"): the eigenvalues of the sum of a diagonal matrix and one of rank one are
the roots of a rational function, each between two of its poles (Golub 1973, "Some modified matrix
eigenvalue problems").  The eigenvectors are those of the matrix whose eigenvalues the rounded roots
are, so that they are orthogonal however close the roots lie (Gu and Eisenstat 1994, "A stable and
efficient algorithm for the rank-one modification of the symmetric eigenproblem").

All of it is float64 and its results are to become float32, which leaves bits to spare: poles that
are too close to each other are simply moved apart, by 2**-48 of the largest element.

Arrays are float64 ``[batch, n, n]``; what becomes a factor of products went through :func:`snap`.
Sums are in ``pairwise`` order, those of products of matrices ``sequential``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.linalg import matrices
from repjax.primitives.operations.reductions import sums

#: The most rows of a leaf; matrices that have no more are rotated as they are.
ROWS = 32
#: How far apart poles are, and what is too small to change them, beside the largest element.
_GAP, _NEGLIGIBLE = 2.0**-48, 2.0**-50
#: A root is found where the function is at most this, beside its terms.
FOUND = 2.0**-48
#: The most steps to a root; mostly there are four.
STEPS = 100
#: Smaller numbers become zero, so that no product of a few is subnormal.
SMALLEST = 2.0**-200
#: Rows of leaves are taken for orthogonal where the cosine of their angle is at most this.
_COSINE = 2.0**-45


def snap(x):
    return lax.select(lax.abs(x) < SMALLEST, lax.full_like(x, 0), x)


def pairwise_sum(x):
    """The ``pairwise`` sum over the last axis, which stays."""
    (total,) = sums.pairwise(lambda xs, ys: [xs[0] + ys[0]], [x], x.ndim - 1)
    return lax.expand_dims(total, [total.ndim])


def lengths(x):
    """The Euclidean norms of the rows of ``x[batch, n, columns]``: ``[batch, n, 1]``."""
    return canonical.guard(lax.sqrt(pairwise_sum(canonical.product(x, x))))


def inverse(x):
    """1 / x.  Of divisions by what is the same for many elements XLA makes products with it, and of
    some it does not; so they are all written as such products."""
    return canonical.guard(1 / x)


# --- steps that a kernel may take -------------------------------------------------------


def tridiagonalize(a):
    """The diagonal, what is left of it, reflectors and their factors: H A H is tridiagonal.

    ``a[batch, n, n]`` is symmetric.  Reflectors are rows, the one of row k with k elements that are
    not 0; H is the product of those of rows 1, 2, ...  Of ``left[batch, n]`` the first is 0.
    """
    batch, n, _ = a.shape
    place = lax.broadcasted_iota(np.int32, (batch, 1, n), 2)

    def step(j, state):
        a, left, reflectors, factors = state
        k = n - 1 - lax.convert_element_type(j, np.int32)
        row = matrices.row(a, k)
        x = lax.select(place < k, row, lax.full_like(row, 0))
        last = place == k - 1
        alpha = matrices.column(x, k - 1)
        nothing = ~lax.reduce_or((x != 0) & ~last, (1, 2))[:, None, None]

        norm = lengths(x)
        beta = lax.select(alpha < 0, norm, -norm)
        tau = lax.select(nothing, lax.full_like(beta, 0), (beta - alpha) / beta)
        v = jnp.where(last, 1.0, snap(canonical.product(x, inverse(alpha - beta))))
        v = jnp.where(nothing, 0.0, v)

        p = pairwise_sum(canonical.product(a, v))
        p = snap(matrices.transpose(canonical.product(tau, p)))
        half = canonical.product(tau, pairwise_sum(canonical.product(p, v))) * 0.5
        w = snap(p - canonical.product(half, v))
        # Their elements from k on are 0, also where p has others.
        w = lax.select(place < k, w, lax.full_like(w, 0))
        v_column, w_column = matrices.transpose(v), matrices.transpose(w)
        change = canonical.product(v_column, w) + canonical.product(w_column, v)
        a = snap(a - change)

        def put(into, x, axis):
            return lax.dynamic_update_slice_in_dim(into, x, k, axis)

        left = put(left, lax.select(nothing, alpha, beta), 2)
        return a, left, put(reflectors, v, 1), put(factors, tau, 2)

    zeros = lax.full((batch, 1, n), 0.0, np.float64)
    state = lax.fori_loop(0, n - 1, step, (a, zeros, lax.full_like(a, 0), zeros))
    a, left, reflectors, factors = state
    diagonal = jnp.diagonal(a, axis1=1, axis2=2)
    return [diagonal, lax.squeeze(left, [1]), reflectors, lax.squeeze(factors, [1])]


def reflect(rows, reflectors, factors):
    """The rows of ``rows[batch, n, n]`` times H of :func:`tridiagonalize`, transposed."""

    def step(k, rows):
        v = matrices.row(reflectors, k)
        tau = lax.expand_dims(lax.dynamic_slice_in_dim(factors, k, 1, 1), [2])
        along = canonical.product(tau, pairwise_sum(canonical.product(rows, v)))
        return snap(rows - canonical.product(along, v))

    return lax.fori_loop(1, rows.shape[1], step, rows)


def multiply(x, y):
    """Products ``[batch, m, parts, n]`` of ``x[batch, m, parts, k]`` and ``y[batch, parts, k, n]``.

    The terms are added in their order.
    """
    together = 8
    spare = -x.shape[3] % together
    zero = np.float64(0)
    x = lax.pad(x, zero, [(0, 0, 0)] * 3 + [(0, spare, 0)])
    y = lax.pad(y, zero, [(0, 0, 0)] * 2 + [(0, spare, 0), (0, 0, 0)])
    batch, m, parts, count = x.shape

    def step(i, total):
        a = lax.dynamic_slice_in_dim(x, i * together, together, 3)
        b = lax.dynamic_slice_in_dim(y, i * together, together, 2)
        for k in range(together):
            total = total + canonical.product(a[..., k : k + 1], b[:, None, :, k])
        return total

    start = lax.full((batch, m, parts, y.shape[3]), 0.0, np.float64)
    return snap(lax.fori_loop(0, count // together, step, start))


def merge(poles, z, rho, count, order):
    """Eigenvalues ``[batch, m]`` and eigenvectors ``[batch, m, m]`` of ``diag(poles) + rho z z'``.

    The first ``count`` of ``poles[batch, m]`` ascend, with elements of z that are not negligible;
    the others are eigenvalues.  Row i of the vectors belongs to eigenvalue i, column ``order[j]``
    to pole j.
    """

    def column(x):
        return x[:, :, None]

    def row(x):
        return x[:, None, :]

    batch, m = poles.shape
    root, pole = (lax.broadcasted_iota(np.int32, (batch, m, m), axis) for axis in (1, 2))
    rho, count = column(rho), column(count)
    place = lax.broadcasted_iota(np.int32, (batch, m, 1), 1)
    is_found, is_last = place < count, place == count - 1
    taken, on_left = (root < count) & (pole < count), pole <= root

    q = jnp.where(matrices.transpose(is_found), row(canonical.product(z, z)), 0.0)
    left = column(poles)
    following = lax.concatenate([left[:, 1:], left[:, -1:]], 1)
    of_rho = inverse(rho)

    def function(distances, mu):
        """It at D[origin] + mu, the sums of its terms of the poles on the left and on the right,
        and those of the terms' derivatives."""
        t = canonical.guard(1 / jnp.where(taken, distances - mu, 1.0))
        terms = canonical.product(q, t)
        slopes = canonical.product(terms, t)
        parts = [jnp.where(side, x, 0.0) for x in (terms, slopes) for side in (on_left, ~on_left)]
        found = sums.pairwise(lambda xs, ys: [x + y for x, y in zip(xs, ys, strict=True)], parts, 2)
        psi, phi, of_psi, of_phi = map(column, found)
        return (of_rho + psi) + phi, psi, phi, of_psi, of_phi

    # The last root is at most the sum of all weights away from its pole.
    beyond = canonical.product(rho, pairwise_sum(q))
    width = lax.select(is_last, matrices.spread(beyond, left.shape), following - left)
    half = width * 0.5
    value, *_ = function(row(poles) - left, half)
    from_left = is_last | (value >= 0)
    origin = lax.select(from_left, left, following)
    distances = row(poles) - origin
    mu = lax.select(from_left, half, -half)
    low = jnp.where(from_left, jnp.where(value >= 0, 0.0, half), -half)
    high = jnp.where(from_left, jnp.where(value >= 0, half, width), 0.0)
    to_left, to_right = left - origin, following - origin

    def step(state):
        mu, low, high, wanted, steps = state
        value, psi, phi, of_psi, of_phi = function(distances, mu)
        wanted = wanted & ~(lax.abs(value) <= FOUND * ((of_rho - psi) + phi))
        low = lax.select(wanted & (value < 0), mu, low)
        high = lax.select(wanted & ~(value < 0), mu, high)

        # The root of the function that has the poles next to it alone, with what makes the two
        # sums and their derivatives the same (Li 1993, "Solving secular equations stably and
        # efficiently").
        x, y = to_left - mu, to_right - mu
        c = value - canonical.product(of_psi, x)
        of_last = canonical.product(x, value) / c
        c = c - canonical.product(of_phi, y)
        xy = canonical.product(x, y)
        a = canonical.product(x + y, value) - canonical.product(xy, of_psi + of_phi)
        b = canonical.product(xy, value)
        r = lax.abs(canonical.product(a, a) - canonical.product(4 * b, c))
        r = canonical.guard(lax.sqrt(r))
        eta = lax.select(a <= 0, (a - r) / canonical.guard(2 * c), (2 * b) / (a + r))
        after = mu + lax.select(is_last, of_last, eta)
        after = lax.select((low < after) & (after < high), after, (low + high) * 0.5)
        wanted = wanted & (after != mu)
        return lax.select(wanted, after, mu), low, high, wanted, steps + 1

    def go_on(state):
        return lax.reduce_or(state[3], (0, 1, 2)) & (state[4] < STEPS)

    mu, *_ = lax.while_loop(go_on, step, (mu, low, high, is_found, np.int32(0)))
    values = lax.select(is_found, origin + mu, left)

    # What z would have to be for the roots to be exact.
    distances = jnp.where(taken, distances - mu, 1.0)
    between = lax.select(pole > root, row(poles) - left, following - row(poles))
    between = jnp.where(taken & ((pole > root) | ~is_last), between, 1.0)
    ratios = canonical.guard(lax.abs(distances) / between)
    (square,) = sums.pairwise(lambda xs, ys: [canonical.product(xs[0], ys[0])], [ratios], 1)
    exact = canonical.guard(lax.sqrt(square))
    exact = row(lax.select(z < 0, -exact, exact))
    vectors = jnp.where(taken, canonical.guard(exact / distances), 0.0)
    vectors = snap(canonical.product(vectors, inverse(lengths(vectors))))
    vectors = lax.select(taken, vectors, matrices.unit(vectors))
    _, places = lax.sort((order, lax.broadcasted_iota(np.int32, order.shape, 1)), num_keys=1)
    return [lax.squeeze(values, [2]), jnp.take_along_axis(vectors, row(places), 2, mode="clip")]


class Steps(NamedTuple):
    """What a platform may have kernels for; ``orthogonalize`` is that of :mod:`.eigen`."""

    orthogonalize: Callable
    tridiagonalize: Callable = tridiagonalize
    merge: Callable = merge
    multiply: Callable = multiply
    reflect: Callable = reflect


# --- all together -----------------------------------------------------------------------


def _sorted(values, rows):
    places = lax.broadcasted_iota(np.int32, values.shape, 1)
    values, places = lax.sort((values, places), dimension=1, num_keys=1)
    return values, jnp.take_along_axis(rows, places[:, :, None], axis=1, mode="clip")


def _leaves(diagonal, left, scale, steps):
    """Eigenvalues ``[batch, s]`` and eigenvectors ``[batch, s, s]`` of tridiagonal matrices."""
    shape = (*diagonal.shape, diagonal.shape[1])
    i, j = (lax.broadcasted_iota(np.int32, shape, axis) for axis in (1, 2))
    shift = 8 * scale
    x = jnp.where(i == j, (diagonal + shift)[:, :, None], 0.0)
    # What is left of the diagonal is above it, too.
    x = jnp.where(i == j + 1, left[:, :, None], x)
    x = jnp.where(j == i + 1, left[:, None, :], x)
    x = steps.orthogonalize(x, x.shape[1], _COSINE)
    of_rows = lengths(x)
    values = lax.squeeze(of_rows, [2]) - shift
    return _sorted(values, snap(canonical.product(x, inverse(of_rows))))


def _merged(values, rows, coupling, scale, steps):
    """The same of two neighbours each: ``values[batch, 2, s]``, ``rows[batch, 2, s, s]``."""
    batch, _, s = values.shape
    rho = lax.abs(coupling)
    d = lax.reshape(values, [batch, 2 * s])
    sign = jnp.where(coupling < 0, -1.0, 1.0)
    z = lax.concatenate([rows[:, 0, :, -1], sign * rows[:, 1, :, 0]], 1)

    negligible = canonical.product(rho, lax.abs(z)) <= _NEGLIGIBLE * scale
    flag = lax.convert_element_type(negligible, np.int32)
    place = lax.broadcasted_iota(np.int32, d.shape, 1)
    _, d, order = lax.sort((flag, d, place), dimension=1, num_keys=2)
    z = jnp.take_along_axis(z, order, axis=1, mode="clip")
    count = lax.reduce_sum(1 - flag, (1,))[:, None]

    offsets = canonical.product(lax.convert_element_type(place, np.float64), _GAP * scale)
    shifted = d - offsets
    largest = lax.cummax(shifted, axis=1)
    apart = lax.select(shifted == largest, d, largest + offsets)
    poles = lax.select(place < count, apart, d)

    values, vectors = steps.merge(poles, z, rho, count, order)
    values, vectors = _sorted(values, vectors)
    rows = steps.multiply(lax.reshape(vectors, [batch, 2 * s, 2, s]), rows)
    return values, lax.reshape(rows, [batch, 2 * s, 2 * s])


def eigh(a, steps: Steps):
    """Ascending eigenvalues ``[batch, n]`` and eigenvectors as rows ``[batch, n, n]``.

    ``a[batch, n, n]`` is symmetric.
    """
    batch, n, _ = a.shape
    levels = (-(-n // ROWS) - 1).bit_length()
    s = -(-n // 2**levels)
    size = s * 2**levels
    diagonal, left, reflectors, factors = steps.tridiagonalize(a)

    largest = lax.reduce_max(lax.max(lax.abs(diagonal), lax.abs(left)), (1,))[:, None]
    largest = lax.max(largest, lax.full_like(largest, SMALLEST))
    power = canonical.bits(largest) & np.int64(0x7FF0000000000000)
    scale = 2 * canonical.from_bits(power, np.float64)

    # Further elements, larger than all eigenvalues, until leaves have as many rows.
    spare = [(0, 0), (0, size - n)]
    diagonal = lax.concatenate([diagonal, jnp.broadcast_to(4 * scale, (batch, spare[1][1]))], 1)
    left = jnp.pad(left, spare)
    place = lax.broadcasted_iota(np.int32, diagonal.shape, 1)
    cut = (lax.rem(place, np.int32(s)) == 0) & (place > 0)
    rho = jnp.where(cut, lax.abs(left), 0.0)
    diagonal = (diagonal - rho) - lax.concatenate([rho[:, 1:], rho[:, :1]], 1)

    def of_each(rows):
        """The scale for each block of so many rows."""
        return jnp.repeat(scale, size // rows, axis=0)

    shape = [-1, s]
    values, rows = _leaves(diagonal.reshape(shape), left.reshape(shape), of_each(s), steps)
    for _ in range(levels):
        s = values.shape[1]
        values, rows = values.reshape(-1, 2, s), rows.reshape(-1, 2, s, s)
        coupling = left.reshape(-1, 2 * s)[:, s : s + 1]
        values, rows = _merged(values, rows, coupling, of_each(2 * s), steps)
    rows = lax.slice(rows, (0, 0, 0), (batch, n, n))
    return values[:, :n], steps.reflect(rows, reflectors, factors)
