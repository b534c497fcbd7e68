"""Complex numbers as their parts: comparison."""

from __future__ import annotations

import numpy as np

from helpers.bits import assert_same_bits, canonical


def assert_same(actual, expected) -> None:
    """Parts have the same bits; NaNs are canonical."""
    for x, y in zip(split_bits(actual), map(canonical, expected), strict=True):
        assert_same_bits(x, y.astype(np.float32))


def split_bits(x) -> list[np.ndarray]:
    x = np.ascontiguousarray(x)
    return list(np.moveaxis(x.view(np.float32).reshape(*x.shape, 2), -1, 0))
