"""Integers as digits with a sign, whose products matrix units add without rounding.

x = d[0] + 2**bits d[1] + 2**(2 bits) d[2] + ...,    -2**(bits - 1) <= d[i] < 2**(bits - 1)
"""

from __future__ import annotations

from collections.abc import Iterator

import jax
import numpy as np
from jax import lax

#: Bits of a digit, by default: what integer matrix units multiply.
BITS = 8


def split(x, count: int, bits: int = BITS) -> list[jax.Array]:
    """The lowest ``count`` digits of an array of signed integers, in its type.

    If these are too few, or a carry leaves the type, they are x modulo 2**(count * bits), or
    modulo what the type holds.
    """
    half = 1 << (bits - 1)
    rest, digits = x, []
    for _ in range(count):
        digit = ((rest + x.dtype.type(half)) & x.dtype.type(2 * half - 1)) - x.dtype.type(half)
        rest = lax.shift_right_arithmetic(rest - digit, x.dtype.type(bits))
        digits.append(digit)
    return digits


def stack(x, count: int, order: int = 1) -> jax.Array:
    """:func:`split` of int32 or int64 in one int8 array, [count, ...]; last digit first if -1.

    With 2**(BITS - 1) added to each digit, they are the bytes of a number without a sign.
    """
    width = 8 * x.dtype.itemsize
    half = sum(1 << (i + BITS - 1) for i in range(0, width, BITS)) - (1 << width)
    halves = lax.full_like(x, half)
    shape = (count, *x.shape)
    bytes_of = lax.broadcast_in_dim((x + halves) ^ halves, shape, range(1, len(shape)))
    number = lax.broadcasted_iota(x.dtype, shape, 0)
    number = number if order > 0 else lax.full_like(number, count - 1) - number
    shifts = number * lax.full_like(number, BITS)
    return lax.convert_element_type(lax.shift_right_logical(bytes_of, shifts), np.int8)


def count_of(dtype, wanted: int, bits: int = BITS) -> int:
    """How many digits are any integer of a type, modulo 2**wanted."""
    info = np.iinfo(dtype)
    width = info.bits + (info.min == 0)  # with a sign
    # 2**15 - 1 is -1 + 2**7 * 2**8, which is no digit.
    exact = 1 if width <= bits else width // bits + 1
    return min(exact, -(-wanted // bits))


def by_weight(left: int, right: int, most: int) -> Iterator[tuple[int, int, int, int]]:
    """The products of ``left`` digits with ``right`` ones, by the sum of the two indices.

    Yields each sum below ``most``, the number of its products, and where they begin: in the one
    factor's digits, and in the other's, last digit first.  Both go up from there.
    """
    for weight in range(min(left + right - 1, most)):
        low, high = max(0, weight - (right - 1)), min(left - 1, weight)
        yield weight, high - low + 1, low, right - 1 - weight + low
