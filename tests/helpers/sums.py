"""Sums in their stated orders, in NumPy."""

from __future__ import annotations

import math

import numpy as np

from helpers.bits import canonical
from helpers.reference import add


def flatten(x, axes):
    """[n, kept...]: the reduced axes in front, flattened row-major."""
    axes = sorted(a % x.ndim for a in axes)
    kept = [d for d in range(x.ndim) if d not in axes]
    shape = [x.shape[d] for d in kept]
    return x.transpose([*axes, *kept]).reshape([math.prod(x.shape[d] for d in axes), *shape])


def pairwise(x, axes):
    x = flatten(canonical(x), axes)
    length = 1
    while length < len(x):
        length *= 2
    x = np.concatenate([x, np.zeros((length - len(x), *x.shape[1:]), np.float32)])
    while length > 1:
        length //= 2
        x = add(x[:length], x[length:])
    return canonical(x[0])


def sequential(x, axes):
    x = flatten(canonical(x), axes)
    total = np.zeros(x.shape[1:], np.float32)
    for term in x:
        total = add(total, term)
    return canonical(total)
