"""Fourier transforms: docs/numerics.md, section 19."""

from __future__ import annotations

import functools
import math

import numpy as np

from repjax.verify.reference.complex_numbers import join, product, split
from repjax.verify.reference.elementary import mpmath, require_mpmath
from repjax.verify.reference.products import (
    contraction_of,
    dot_general,
    dot_general_in_no_order,
    exact_chain,
)
from repjax.verify.reference.table import COMPLEX, NoReference, Operation, of
from repjax.verify.reference.values import FLOAT32, add, divide, nearest

#: The numbers of JAX's FftType.
KINDS = ("FFT", "IFFT", "RFFT", "IRFFT")


@functools.lru_cache(64)
def _roots(n: int) -> np.ndarray:
    """[n, 2]: cosines and sines of k / n of a turn, correctly rounded."""
    require_mpmath()

    def rounded(x) -> float:
        sign, mantissa, exponent, _ = mpmath.mpf(x)._mpf_
        return nearest(sign, int(mantissa), exponent, 24)

    with mpmath.workprec(200):
        turns = [mpmath.mpf(2 * k) / n for k in range(n)]
        pairs = [(rounded(mpmath.cospi(x)), rounded(mpmath.sinpi(x))) for x in turns]
    return np.array(pairs, FLOAT32).reshape(n, 2) + np.float32(0)


def roots(k, n: int):
    """Cosine and sine of k / n of a turn."""
    found = _roots(n)[np.asarray(k) % n]
    return found[..., 0], found[..., 1]


def _folded(x):
    """Elements that are their own partners, or sums with them; and differences."""
    n = x.shape[-1]
    j = np.arange(1, (n + 1) // 2)
    sums, differences = add(x[..., j], x[..., n - j]), add(x[..., j], -x[..., n - j])
    middle = [x[..., n // 2, None]] if n % 2 == 0 else []
    return np.concatenate([x[..., :1], sums, *middle], -1), differences


def matrix_product(x, sign, multiply=dot_general):
    n = x[0].shape[-1]
    cosine, sine = roots(np.outer(np.arange(n), sign * np.arange(n)), n)
    matrix = np.concatenate([cosine[: n // 2 + 1], -sine[1 : (n + 1) // 2]]) + np.float32(0)
    (sums, differences), (others, other_differences) = map(_folded, x)
    rows = [np.concatenate(a, -1) for a in ((sums, other_differences), (others, -differences))]
    terms = np.stack(rows, -2)
    both = multiply(terms, matrix, (((terms.ndim - 1,), (0,)), ((), ())))
    return both[..., 0, :], both[..., 1, :]


def transform(x, sign, multiply=dot_general):
    """The sums over j of x[j] exp(sign 2 pi i j k / n) along the last axis, of pairs."""
    n = x[0].shape[-1]
    p = max(d for d in range(1, 33) if n % d == 0 and d * d <= n)
    if n == 1:
        return x
    if n <= 32 or (p == 1 and n <= 256):
        return matrix_product(x, sign, multiply)
    return by_convolution(x, sign, multiply) if p == 1 else by_parts(x, p, sign, multiply)


def by_parts(x, p, sign, multiply):
    n = x[0].shape[-1]
    m = n // p
    # [..., p, m], all of them together: in no order, exponents are shared by columns.
    strided = tuple(np.stack([a[..., j::p] for j in range(p)], -2) for a in x)
    inner = transform(strided, sign, multiply)
    turned = product(inner, roots(sign * np.outer(np.arange(p), np.arange(m)), n))
    columns = tuple(np.swapaxes(a, -1, -2) for a in turned)  # [..., m, p]
    found = matrix_product(columns, sign, multiply)
    return tuple(np.swapaxes(a, -1, -2).reshape(x[0].shape) for a in found)


def by_convolution(x, sign, multiply):
    n = x[0].shape[-1]
    size = 2
    while size < 2 * n - 1:
        size *= 2
    squares = np.arange(n) ** 2
    chirp = roots(sign * squares, 2 * n)
    padded = [np.zeros((*x[0].shape[:-1], size), np.float32) for _ in range(2)]
    around = [np.zeros(size, np.float32) for _ in range(2)]
    for whole, part in zip(padded, product(x, chirp), strict=True):
        whole[..., :n] = part
    for whole, part in zip(around, roots(-sign * squares, 2 * n), strict=True):
        whole[:n], whole[size - n + 1 :] = part, part[:0:-1]
    both = product(*(transform(tuple(a), -1, multiply) for a in (padded, around)))
    result = divided(tuple(a[..., :n] for a in transform(both, 1, multiply)), size)
    return product(result, chirp)


def divided(x, n: int):
    return tuple(divide(a, np.float32(n)) for a in x)


def _along(x, axis, sign, multiply):
    x = transform(tuple(np.moveaxis(a, axis, -1) for a in x), sign, multiply)
    return tuple(np.moveaxis(a, -1, axis) for a in x)


def _from_half(x, n: int):
    """All n elements of a transform of real numbers, of the first n // 2 + 1."""
    real, imaginary = x[0], x[1].copy()
    imaginary[..., 0] = 0
    if n % 2 == 0:
        imaginary[..., -1] = 0
    rest = slice(n - n // 2 - 1, 0, -1)
    return (
        np.concatenate([real, real[..., rest]], -1),
        np.concatenate([imaginary, np.float32(0) - imaginary[..., rest]], -1),
    )


@of("fft", table=COMPLEX)
def fft(operation: Operation):
    (x,), params = operation.operands, operation.params
    kind = KINDS[int(params["fft_type"])]
    lengths = params["fft_lengths"]
    n = lengths[-1]
    if 0 in x.shape or 0 in lengths:
        return [np.zeros(operation.shape, operation.dtype)]
    if x.dtype not in (FLOAT32, np.complex64):
        raise NoReference(f"fft: expected float32 or complex64, received {x.dtype}")
    multiply = dot_general
    if contraction_of(operation) == "order_independent":
        multiply = functools.partial(dot_general_in_no_order, precision=("HIGHEST",) * 2)
    elif contraction_of(operation) == "exact":
        multiply = functools.partial(dot_general, chain=exact_chain(FLOAT32))
    pair, axes = split(x), range(-1, -1 - len(lengths), -1)
    sign = -1 if kind in ("FFT", "RFFT") else 1
    for axis in axes if kind != "IRFFT" else axes[1:]:
        pair = _along(pair, axis, sign, multiply)
        if kind == "RFFT" and axis == -1:
            pair = tuple(a[..., : n // 2 + 1] for a in pair)
    if kind == "IRFFT":
        pair = _along(_from_half(pair, n), -1, sign, multiply)
    if sign == 1:
        pair = divided(pair, math.prod(lengths))
    return [pair[0] if kind == "IRFFT" else join(pair)]
