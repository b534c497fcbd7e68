"""Complex numbers as their parts: comparison, and their product in NumPy."""

from __future__ import annotations

import numpy as np

from helpers.bits import assert_same_bits, canonical
from helpers.reference import add, guard


def join(parts) -> np.ndarray:
    real, imaginary = parts
    result = np.empty(np.shape(real), np.complex64)
    result.real, result.imag = real, imaginary
    return result


def split(x) -> tuple[np.ndarray, np.ndarray]:
    return canonical(np.asarray(x).real.copy()), canonical(np.asarray(x).imag.copy())


def assert_same(actual, expected) -> None:
    """Parts have the same bits; NaNs are canonical."""
    for x, y in zip(split_bits(actual), map(canonical, expected), strict=True):
        assert_same_bits(x, y.astype(np.float32))


def split_bits(x) -> list[np.ndarray]:
    x = np.ascontiguousarray(x)
    return list(np.moveaxis(x.view(np.float32).reshape(*x.shape, 2), -1, 0))


@np.errstate(all="ignore")
def mul(x, y):
    return guard(x * y)


def product(x, y):
    (a, b), (c, d) = x, y
    return add(mul(a, c), -mul(b, d)), add(mul(a, d), mul(b, c))
