"""Sizes and strides, in elements: powers of two, and how the axes of an array lie in memory."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence


def ceil_log2(n: int) -> int:
    """The least k with 2**k >= n, for n >= 1."""
    return (n - 1).bit_length()


def power_of_two_from(n: int) -> int:
    """The least power of two that is n or more, for n >= 1."""
    return 1 << ceil_log2(n)


def is_power_of_two(n: int) -> bool:
    return n > 0 and n & (n - 1) == 0


def row_major(shape: Sequence[int]) -> tuple[int, ...]:
    """The strides of an array whose last axis is the fastest: (12, 4, 1) for a shape (2, 3, 4)."""
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def merged(axes: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """Pairs of a size and a stride, row-major: what lies together is one axis.

    Axes of one element are left out: [(2, 12), (3, 4), (1, 7), (4, 1)] is [(24, 1)], since
    12 = 3 * 4 and 4 = 4 * 1; [(2, 12), (4, 1)] stays as it is.
    """
    found: list[tuple[int, int]] = []
    for size, stride in axes:
        if size < 2:  # there is one index at most
            continue
        if found and found[-1][1] == size * stride:
            size *= found.pop()[0]
        found.append((size, stride))
    return found
