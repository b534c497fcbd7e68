"""What the elementary functions share: polynomials, powers of two, an exact ending.

Everything here works on float64 arrays inside the body of a primitive.  XLA may or
may not contract a product and an addition into one fused multiply-add; the callers'
error bounds hold for every choice, so none of this is guarded.
"""

from __future__ import annotations

import numpy as np
from jax import lax


def constants(text: str) -> tuple[float, ...]:
    """The binary64 numbers of a block of hexadecimal literals."""
    return tuple(map(float.fromhex, text.split()))


def constant_pairs(text: str) -> tuple[tuple[float, float], ...]:
    """The pairs hi + lo of a block of two hexadecimal literals a line."""
    return tuple(constants(line) for line in text.split("\n") if line.strip())


def const(x, value):
    """``value`` as an array of the shape and dtype of ``x`` (no weak type leaks)."""
    return lax.full_like(x, value)


def horner(x, coefficients):
    """``c[0] + x*(c[1] + x*(c[2] + ...))``."""
    y = const(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        y = y * x + const(x, c)
    return y


def power_of_two(k):
    """``2.0**k`` as float64, for an int64 array with -1022 <= k <= 1023."""
    return lax.bitcast_convert_type(lax.shift_left(k + const(k, 0x3FF), const(k, 52)), np.float64)


def fast_two_sum(a, b):
    """Error-free sum for ``|a| >= |b|`` or ``a == 0`` (Dekker 1971): ``s + e == a + b``.

    Neither may be a literal: XLA folds ``(literal + b) - literal``.
    """
    s = a + b
    return s, b - (s - a)
