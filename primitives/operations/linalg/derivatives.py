"""Derivatives of factorizations that versions of JAX state as other graphs: the contract's.

They are traced where the stock primitives are differentiated (:mod:`repjax.config`), in stock
operations.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
from jax import lax


def _transposed(x):
    return jnp.swapaxes(x, -1, -2)


def symmetric_by_lower_triangle(x):
    """The symmetric matrix of which the lower triangle is given.

    The tangent of ``cholesky``, which reads the lower triangle alone; before 0.12, JAX took what
    stands above the diagonal too.
    """
    return jnp.tril(x) + _transposed(jnp.tril(x, -1))


def eigh(tangent, v, w):
    """The tangents (dv, dw) of the eigenvectors v and the eigenvalues w of a symmetric matrix.

    dw is the diagonal of P = v' dA v, and dv is v (F * P) with F[i, j] = 1 / (w[j] - w[i]) off the
    diagonal and 0 on it, by products of the precision ``HIGHEST``.  Source: M. Giles, An extended
    collection of matrix derivative results for forward and reverse mode algorithmic
    differentiation, Oxford 2008, section 3.1.  F adds 1 on the diagonal to the differences; JAX
    0.10 added it to w[j] before, where it rounds.
    """
    unit = jnp.eye(w.shape[-1], dtype=v.dtype)
    differences = w[..., None, :] - w[..., None]
    factors = lax.integer_pow(differences + unit, -1) - unit
    dot = functools.partial(jnp.matmul, precision=lax.Precision.HIGHEST)
    product = dot(dot(_transposed(v), tangent), v)
    i = jnp.arange(w.shape[-1])
    return dot(v, factors * product), product[..., i, i]
