"""Exact sums, rounded once: what the order ``exact`` is made of.

A term is cut into digits of 28 bits at fixed places, as a superaccumulator has them (Kulisch and
Miranker 1986, "The arithmetic of the digital computer: a new approach"; Neal 2015, "Fast exact
summation using small and large superaccumulators").  Digits of one place are integers, and are
added as such: whatever the order, the blocks, the threads or the devices, the sums are the same.
At the end carries go up and the exact sum is rounded.

The places are those of :data:`SUMS`, which hold any sum of float32 numbers, or of
:data:`PRODUCTS`, which hold any sum of products of two; each digit has room for 2**34 terms.

A term that is infinite or a NaN has no digits.  Such terms are added apart, in float64, and give
what IEEE arithmetic gives in any order.
"""

from __future__ import annotations

import dataclasses

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.core.tables import RefusedError

_WIDTH = 28
#: So many terms have sums of digits that int64 holds, with the carries.
MOST_TERMS = 1 << 34


@dataclasses.dataclass(frozen=True)
class Places:
    """Digits: 2**lowest is what the lowest one counts, and there are ``count`` of them.

    The highest has all bits of a term from its place on, and so the sign.
    """

    lowest: int
    count: int

    def exponent(self, i: int) -> int:
        return self.lowest + _WIDTH * i


#: Canonical float32 numbers are multiples of 2**-149 below 2**128, and products of two, of
#: 2**-298 and below 2**256.
SUMS = Places(-149, 10)
PRODUCTS = Places(-298, 20)


def check_terms(operation: str, terms) -> None:
    """Refuse so many that a sum of digits could overflow."""
    if isinstance(terms, int) and terms > MOST_TERMS:
        raise RefusedError(
            f"{operation} in exact order expected at most 2**34 terms, received {terms}; add parts "
            "and then their sums, or choose another order"
        )


def digits(x, places: Places):
    """The digits of float64 multiples of 2**lowest, int64 ``[count, ...]``, the lowest first.

    All but the last are from 0 to 2**28 - 1.  Infinities and NaNs have zeros.
    """
    x = lax.select(_is_finite(x), x, lax.full_like(x, 0))
    shape = (places.count, *x.shape)
    x = lax.broadcast_in_dim(x, shape, range(1, len(shape)))

    place = lax.broadcasted_iota(np.int64, shape, 0)

    def floors(place):
        return lax.floor(x * canonical.power_of_two(-places.lowest - _WIDTH * place))

    # Above the last place there is nothing but the sign, which the last digit keeps.
    higher = floors(lax.min(place + 1, lax.full_like(place, places.count - 1)))
    is_last = place == places.count - 1
    higher = lax.select(is_last, lax.full_like(x, 0), higher * np.float64(1 << _WIDTH))
    return lax.convert_element_type(floors(place) - higher, np.int64)


def not_finite(x):
    """The infinities and NaNs among float64 numbers, and zeros elsewhere."""
    return lax.select(_is_finite(x), lax.full_like(x, 0), x)


def rounded(totals, special, places: Places, odd: bool = False):
    """Sums of :func:`digits` as canonical float32, rounded to nearest even, or to odd if ``odd``.

    ``special`` is the sum of :func:`not_finite`, which takes the place of the others if it is not
    zero.  Results that are rounded to odd are yet to be narrowed.
    """
    wanted = canonical.to_float32_odd if odd else canonical.to_float32
    result = wanted(_odd(totals, places))
    instead = lax.convert_element_type(special, np.float32)
    return lax.select(lax.eq(special, lax.full_like(special, 0)), result, instead)


def _odd(totals, places: Places):
    """Exact sums as float64, rounded to odd with 33 bits or more.

    Carried, the digits below a place are together at most little more than half of what it counts.
    So a sum with the next digit, rounded to odd, is at most one binade below what it was, and each
    of 20 places loses at most a bit.  What overflows the last place's 53 bits is beyond float32.
    """
    half, carry, parts = np.int64(1 << (_WIDTH - 1)), np.int64(0), []
    for i in range(places.count):
        digit = lax.index_in_dim(totals, i, keepdims=False) + carry
        if i < places.count - 1:
            carry = lax.shift_right_arithmetic(digit + half, np.int64(_WIDTH))
            digit = digit - lax.shift_left(carry, np.int64(_WIDTH))
        part = canonical.to_float64(digit) * np.float64(2.0 ** places.exponent(i))
        parts.append(part)
    total = parts[0]
    for part in parts[1:]:
        total = canonical.round_to_odd(*canonical.two_sum(part, total))
    return total


def _is_finite(x):
    f = canonical.format_of(x)
    return (canonical.bits(x) & np.int64(f.magnitude)) < np.int64(f.infinity)


def exact_sum(x, axis: int, odd: bool = False):
    """The exact sum of float32 over one axis, rounded."""
    check_terms("a sum", x.shape[axis])
    x = canonical.to_float64(x)
    totals = lax.reduce_sum(digits(x, SUMS), (axis + 1,))
    return rounded(totals, lax.reduce_sum(not_finite(x), (axis,)), SUMS, odd)
