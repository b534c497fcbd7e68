"""Eigenvalues of symmetric matrices of many rows: docs/numerics.md, section 17.

Written from there, one root after the other.  All numbers are float64.
"""

from __future__ import annotations

import itertools

import numpy as np

from repjax.verify.reference.sums import halves

#: The most rows of a leaf.
ROWS = 32


def snap(x):
    return np.where(np.abs(x) < 2.0**-200, 0.0, x)


def pairwise(x):
    """The pairwise sum over the first axis."""
    return halves(np.add, x)


def rowwise(x):
    """The pairwise sums of the rows of ``x``."""
    return pairwise(x.T)


def householder(a):
    """The diagonal, the elements left of it, and the reflectors with their factors."""
    a, n = np.array(a), len(a)
    d, e, reflectors = np.zeros(n), np.zeros(n), {}
    for k in reversed(range(1, n)):
        x, alpha = a[k, :k].copy(), a[k, k - 1]
        d[k], e[k] = a[k, k], alpha
        if not x[:-1].any():
            continue
        beta = np.sqrt(pairwise(x * x))
        beta = beta if alpha < 0 else -beta
        tau = (beta - alpha) / beta
        v = snap(x * (1 / (alpha - beta)))
        e[k], v[-1] = beta, 1
        p = snap(tau * rowwise(a[:k, :k] * v))
        w = snap(p - ((tau * pairwise(p * v)) / 2) * v)
        a[:k, :k] = snap(a[:k, :k] - (v[:, None] * w + w[:, None] * v))
        reflectors[k] = v, tau
    d[0] = a[0, 0]
    return d, e, reflectors


def ascending(values, rows):
    places = np.argsort(values, kind="stable")
    return values[places], rows[places]


def leaf(d, e, scale, rotate):
    """Eigenvalues and vectors of the tridiagonal matrix of ``d`` and, left of it, ``e[1:]``."""
    x = np.diag(d + 8 * scale) + np.diag(e[1:], -1) + np.diag(e[1:], 1)
    x, _ = rotate(x, len(d), 2.0**-45)
    lengths = np.sqrt(rowwise(x * x))
    return ascending(lengths - 8 * scale, snap(x * (1 / lengths)[:, None]))


def product(x, y):
    """The product of matrices, in sequential order."""
    total = x[:, :1] * y[:1]
    for k in range(1, len(y)):
        total = total + x[:, k : k + 1] * y[k]
    return snap(total)


# --- merging ------------------------------------------------------------------------------


def at(poles, weights, rho, i, origin, mu, places):
    """f at D[origin] + mu, psi and phi, and the sums psi' and phi'."""
    t = 1 / ((poles - poles[origin]) - mu)
    left = np.arange(len(poles)) <= i
    padding = np.zeros(places - len(poles))

    def both(terms):
        sides = np.where(left, terms, 0), np.where(left, 0, terms)
        return [pairwise(np.concatenate([side, padding])) for side in sides]

    terms = weights * t
    (psi, phi), slopes = both(terms), both(terms * t)
    return (1 / rho + psi) + phi, psi, phi, *slopes


def root(poles, weights, rho, i, places):
    """Where root i is: a pole, and the distance from it."""
    last = i == len(poles) - 1
    if last:
        h = rho * pairwise(np.concatenate([weights, np.zeros(places - len(poles))])) / 2
    else:
        h = (poles[i + 1] - poles[i]) / 2
    value = at(poles, weights, rho, i, i, h, places)[0]
    if value >= 0:
        origin, mu, low, high = i, h, 0.0, h
    elif last:
        origin, mu, low, high = i, h, h, 2 * h
    else:
        origin, mu, low, high = i + 1, -h, -h, 0.0
    for _ in range(100):
        value, psi, phi, of_psi, of_phi = at(poles, weights, rho, i, origin, mu, places)
        if np.abs(value) <= 2.0**-48 * ((1 / rho - psi) + phi):
            break
        low, high = (mu, high) if value < 0 else (low, mu)
        x = (poles[i] - poles[origin]) - mu
        c = value - of_psi * x
        if last:
            eta = (x * value) / c
        else:
            y = (poles[i + 1] - poles[origin]) - mu
            c = c - of_phi * y
            a, b = (x + y) * value - (x * y) * (of_psi + of_phi), (x * y) * value
            r = np.sqrt(np.abs(a * a - (4 * b) * c))
            eta = (a - r) / (2 * c) if a <= 0 else (2 * b) / (a + r)
        after = mu + eta
        if not low < after < high:
            after = (low + high) / 2
        if after == mu:
            break
        mu = after
    return origin, mu


def rank_one(poles, z, rho, places):
    """Eigenvalues of diag(poles) + rho z z', and their vectors as rows."""
    k = len(poles)
    roots = [root(poles, z * z, rho, i, places) for i in range(k)]
    values = np.array([poles[origin] + mu for origin, mu in roots])
    away = np.array([(poles - poles[origin]) - mu for origin, mu in roots])
    ratios = np.ones((places, k))
    for i, j in itertools.product(range(k), range(k)):
        between = poles[j] - poles[i] if i < j else poles[i + 1] - poles[j] if i < k - 1 else 1
        ratios[i, j] = np.abs(away[i, j]) / between
    exact = np.copysign(np.sqrt(halves(np.multiply, ratios)), z)
    vectors = exact / away
    padded = np.hstack([vectors**2, np.zeros((k, places - k))])
    return values, snap(vectors * (1 / np.sqrt(rowwise(padded)))[:, None])


def merged(left, right, coupling, scale):
    """Eigenvalues and vectors of two neighbours together."""
    rho, sign, size = np.abs(coupling), -1 if coupling < 0 else 1, len(left[0])
    d = np.concatenate([left[0], right[0]])
    z = np.concatenate([left[1][:, -1], sign * right[1][:, 0]])
    stays = rho * np.abs(z) <= 2.0**-50 * scale
    order = np.lexsort((d, stays))
    k = int((~stays).sum())
    values, vectors = d[order], np.eye(2 * size)
    if k:
        poles, gap = values[:k].copy(), 2.0**-48 * scale
        largest = -np.inf
        for i in range(k):
            shifted = values[i] - i * gap
            poles[i] = values[i] if shifted >= largest else largest + i * gap
            largest = max(largest, shifted)
        values[:k], vectors[:k, :k] = rank_one(poles, z[order[:k]], rho, 2 * size)
    in_order = np.zeros_like(vectors)
    in_order[:, order] = vectors
    parts = product(in_order[:, :size], left[1]), product(in_order[:, size:], right[1])
    return ascending(values, np.hstack(parts))


def eigh(a, rotate):
    """Ascending eigenvalues of a symmetric matrix, and eigenvectors as rows.

    ``rotate`` makes the rows of a matrix orthogonal.
    """
    n, levels = len(a), 0
    while n > ROWS << levels:
        levels += 1
    size = -(-n // (1 << levels))
    d, e, reflectors = householder(a)
    largest = max(np.abs(d).max(), np.abs(e).max(), 2.0**-200)
    scale = 2.0 ** np.frexp(largest)[1]
    spare = (size << levels) - n
    d, e = np.append(d, np.full(spare, 4 * scale)), np.append(e, np.zeros(spare))
    for c in range(size, len(d), size):
        d[c - 1], d[c] = d[c - 1] - np.abs(e[c]), d[c] - np.abs(e[c])
    places = [slice(c, c + size) for c in range(0, len(d), size)]
    parts = [leaf(d[place], e[place], scale, rotate) for place in places]
    while len(parts) > 1:
        size = len(parts[0][0])
        pairs = enumerate(zip(parts[::2], parts[1::2], strict=True))
        parts = [merged(*pair, e[(2 * i + 1) * size], scale) for i, pair in pairs]
    values, rows = parts[0]
    rows = rows[:n, :n].copy()
    for k in sorted(reflectors):
        v, tau = reflectors[k]
        along = tau * rowwise(rows[:, :k] * v)
        rows[:, :k] = snap(rows[:, :k] - along[:, None] * v)
    return values[:n], rows
