"""Arithmetic on unevaluated sums hi + lo of two float64, to about 2**-100.

Where :mod:`.pairs` is not enough: functions of two variables, and near the zeros of others.
A number is a pair ``(hi, lo)`` with ``|lo| <= ulp(hi)``, about 106 bits.  No operation
here rests on how the compiler rounds a product: each product that feeds an addition is exact,
or so small that its rounding is below the error stated (``u`` = 2**-53).

Source: Dekker, "A floating-point technique for extending the available precision",
Numerische Mathematik 18, 1971; the heads are cut by a mask, not by his multiplication,
which a compiler may contract.
"""

from __future__ import annotations

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import const, fast_two_sum
from repjax.primitives.operations.elementary.pairs import head


def single(x):
    """The pair of a float64 array."""
    return x, const(x, 0)


def constant(x, pair):
    """A pair of Python floats as arrays of the shape of ``x``."""
    return const(x, pair[0]), const(x, pair[1])


def negate(a):
    return lax.neg(a[0]), lax.neg(a[1])


def scale(a, power):
    """``a`` times a power of two; exact."""
    return a[0] * power, a[1] * power


def select(which, a, b):
    return lax.select(which, a[0], b[0]), lax.select(which, a[1], b[1])


def multiply(a, b):
    """``a * b``, within 2**-101 relative."""
    (a_hi, a_lo), (b_hi, b_lo) = a, b
    a_head, b_head = head(a_hi), head(b_hi)
    a_tail, b_tail = a_hi - a_head, b_hi - b_head
    # 26 and 27 bits: the first three products are exact.
    cross, cross_error = canonical.two_sum(a_head * b_tail, a_tail * b_head)
    rest = cross_error + (a_tail * b_tail + (a_hi * b_lo + a_lo * b_hi))
    hi, error = fast_two_sum(a_head * b_head, cross)
    return fast_two_sum(hi, error + rest)


def add(a, b):
    """``a + b``, within 2**-104 (|a| + |b|): not relative to the sum where the two cancel.

    Either may be a :func:`constant`, but not both: XLA would fold (literal + x) - literal
    (:func:`canonical.two_sum` subtracts its first operand, so that is never the literal).
    """
    hi, error = canonical.two_sum(a[0], b[0])
    return fast_two_sum(hi, error + (a[1] + b[1]))


def divide(a, b):
    """``a / b``, within 2**-100 relative; ``a`` may be a :func:`constant`."""
    inverse = canonical.guard(lax.div(const(b[0], 1), b[0]))
    # Within 2 u, and guarded: it is added and subtracted, and must be one number in both.
    first = canonical.guard(a[0] * inverse)
    hi, lo = add(negate(multiply(single(first), b)), a)
    return fast_two_sum(first, (hi + lo) * inverse)


def horner(x, pairs, singles=()):
    """``p[0] + x*(p[1] + ... + x*(s[0] + x*(s[1] + ...)))``.

    Args:
      x: a pair of arrays.
      pairs: coefficients given as two floats each, from the constant one.
      singles: the coefficients of the higher powers, evaluated in float64.
    """
    if singles:
        value = const(x[0], singles[-1])
        for c in reversed(singles[:-1]):
            value = value * x[0] + const(value, c)
        value = single(value)
    else:
        value, pairs = constant(x[0], pairs[-1]), pairs[:-1]
    for c in reversed(pairs):
        value = add(multiply(value, x), constant(x[0], c))
    return value


def lookup(index, table):
    """``table[index]`` for each element of an integer array: a tree of selects.

    Args:
      index: an int64 array; its low bits count.
      table: 2**n Python floats, or pairs of them, which give a pair of arrays.
    """
    if isinstance(table[0], tuple):
        return tuple(lookup(index, column) for column in zip(*table, strict=True))
    rows = [lax.full(index.shape, row, np.float64) for row in table]
    bit = 1
    while len(rows) > 1:
        odd = lax.ne(index & const(index, bit), const(index, 0))
        rows = [lax.select(odd, b, a) for a, b in zip(rows[::2], rows[1::2], strict=True)]
        bit *= 2
    return rows[0]
