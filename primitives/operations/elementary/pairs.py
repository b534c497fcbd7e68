"""Values carried as unevaluated sums hi + lo of two float64: quotients, square roots.

A *head* is a float64 of at most 26 significant bits, so that the product of two heads is
exact.  Results are a head and the rest, good to about 2**-78 relative to the exact
quotient or root of the pairs given.  Every product that feeds an addition is either exact or
far below the error allowed, so contraction does not matter.
"""

from __future__ import annotations

from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import const

_HEAD = -(1 << 27)  # mask of a float64's bits: sign, exponent, 25 of 52 fraction bits


def head(x):
    """``x`` truncated to 26 significant bits; ``x - head(x)`` is exact."""
    i = canonical.bits(x)
    return canonical.from_bits(i & const(i, _HEAD), x.dtype)


def quotient(n_hi, n_lo, d_hi, d_lo):
    """``(hi, lo)`` of (n_hi + n_lo) / (d_hi + d_lo), ``hi`` a head.

    The parts of numerator and denominator need not be normalised beyond
    ``|lo| < 2**-25 |hi|``; both must be finite, the denominator nonzero.
    """
    inverse = canonical.guard(lax.div(const(d_hi, 1), d_hi))
    hi = head(n_hi * inverse)
    d_head = head(d_hi)
    rest = (n_hi - hi * d_head) - hi * ((d_hi - d_head) + d_lo)
    return hi, (rest + n_lo) * inverse


def square_root(x_hi, x_lo):
    """``(hi, lo)`` of sqrt(x_hi + x_lo), ``hi`` a head, for x_hi = x_lo = 0 or x_hi > 2**-900."""
    root = canonical.guard(lax.sqrt(x_hi))
    hi = head(root)
    rest = (x_hi - hi * hi) + x_lo
    twice = lax.max(root + hi, const(root, 2.0**-500))  # the root of zero is zero
    return hi, canonical.guard(lax.div(rest, twice))
