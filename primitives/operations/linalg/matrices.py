"""Matrices ``[batch, m, n]``, for which linear algebra is written."""

from __future__ import annotations

import math

import numpy as np
from jax import lax


def flat(x, rank: int = 2):
    """``x`` with its leading dimensions made one."""
    return lax.reshape(x, [math.prod(x.shape[: x.ndim - rank]), *x.shape[x.ndim - rank :]])


def like(x, leading):
    """``x`` with its first dimension made the leading ones again."""
    return lax.reshape(x, [*leading, *x.shape[1:]])


def transpose(x):
    return lax.transpose(x, [0, 2, 1])


def spread(x, shape):
    return lax.broadcast_in_dim(x, shape, range(len(shape)))


def row(a, k):
    return lax.dynamic_slice_in_dim(a, k, 1, 1)


def column(a, k):
    return lax.dynamic_slice_in_dim(a, k, 1, 2)


def rows(a):
    """The row that each element is in."""
    return lax.broadcasted_iota(np.int32, a.shape, 1)


def columns(a):
    return lax.broadcasted_iota(np.int32, a.shape, 2)


def unit(like):
    """Unit matrices, of any number of rows and columns."""
    return lax.convert_element_type(rows(like) == columns(like), like.dtype)
