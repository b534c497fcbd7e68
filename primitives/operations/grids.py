"""The grids of ``order_independent`` sums: of how many bits the integers are that are added.

The terms of a sum are rounded to multiples of 2**(E - t), E being the exponent of the largest,
and added as integers.  That is exact, and so the same in any order, as long as the sum of all
fits into a word (Demmel and Nguyen 2015, "Parallel reproducible summation": one bin; for products
Ozaki et al. 2012, :mod:`.products.order_independent`).  So t is as large as the contract says, and
smaller where there are very many terms:

    sums, scatter-adds      t = min(38, 61 - ceil(log2 terms))          |q| <= 2**(t + 1)
    products                t = min(22, (62 - ceil(log2 terms)) // 2)   |alpha beta| <= 2**(2 t)
    products, HIGHEST       t = min(30, (94 - ceil(log2 terms)) // 2)

A sum of 1,000 terms has t = 38, as ceil(log2 1000) = 10; one of 2**30 terms has t = 31.  Both sums
of integers are then at most 2**62, and an int64 holds them.
"""

from __future__ import annotations

from typing import NamedTuple

from jax import lax

from repjax.primitives.core.sizes import ceil_log2


class Grid(NamedTuple):
    """Bits below the largest exponent, at most, and those that a sum of all terms may have."""

    bits: int
    of_sum: int


SUMS = Grid(38, 61)
PRODUCTS = Grid(22, 62)
#: With ``precision=HIGHEST``; a sum is of two words.
FINE_PRODUCTS = Grid(30, 94)


def bits_of_sum(terms: int) -> int:
    """t, for sums of so many terms."""
    return min(SUMS.bits, SUMS.of_sum - ceil_log2(terms))


def bits_of_product(terms: int, precision) -> int:
    """t, for products with so many terms; ``precision`` is None or a pair of ``lax.Precision``."""
    grid = FINE_PRODUCTS if lax.Precision.HIGHEST in (precision or ()) else PRODUCTS
    return min(grid.bits, (grid.of_sum - ceil_log2(terms)) // 2)
