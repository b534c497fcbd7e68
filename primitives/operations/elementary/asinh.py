"""Inverse hyperbolic sine, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is asinh(x) rounded to nearest even,
then canonical.

Special values: asinh(NaN) = NaN, asinh(+-inf) = +-inf, asinh(0) = +0;
asinh(-x) = -asinh(x).

Range reduction: with x = |x|, w = sqrt(x**2 + 1) and u = x + w, asinh(x) = log(u)
= k log(2) + 2 atanh(q) with sqrt(1/2) <= u / 2**k < sqrt(2) and

    k = 0   q = x / (1 + w)
    else    q = (u - 2**k) / (u + 2**k)

where w, u and q are hi + lo (:mod:`.pairs`), |q| < 0.172.

Polynomial and ending: those of :mod:`.atanh`.

Hard inputs: results come as close to a rounding boundary as 0.03 units in the last place
of binary64 (``tests/data/hard_inputs/asinh.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/asinh-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.atanh import atanh_sum
from repjax.primitives.operations.elementary.basics import const, fast_two_sum, power_of_two
from repjax.primitives.operations.elementary.log import split
from repjax.primitives.operations.elementary.pairs import quotient, square_root


def half_log(u_hi, u_lo, n_hi, n_lo, d_hi, d_lo):
    """log(u_hi + u_lo) / 2 rounded to odd; n / d is (u - 1) / (u + 1), used where k = 0.

    Shared by asinh and acosh, whose own forms of that quotient do not cancel.
    """
    k, _ = split(u_hi)
    unit = power_of_two(lax.convert_element_type(k, np.int64))
    zero = lax.eq(k, const(k, 0))
    sum_hi, sum_lo = canonical.two_sum(u_hi, unit)
    q_hi, q_lo = quotient(
        lax.select(zero, n_hi, u_hi - unit),
        lax.select(zero, n_lo, u_lo),
        lax.select(zero, d_hi, sum_hi),
        lax.select(zero, d_lo, sum_lo + u_lo),
    )
    return atanh_sum(k, q_hi, q_lo)


def body(x, rounded=canonical.to_float32):
    """Correctly rounded inverse hyperbolic sine of a canonical float32 array."""
    x64 = canonical.to_float64(x)
    ax = lax.min(lax.abs(x64), const(x64, 2.0**128))
    one = const(ax, 1)
    w_hi, w_lo = square_root(*canonical.two_sum(ax * ax, one))
    u_hi, u_lo = fast_two_sum(w_hi, ax)
    y = half_log(u_hi, u_lo + w_lo, ax, const(ax, 0), one + w_hi, w_lo)
    y = y + y
    y = rounded(lax.select(lax.lt(x64, const(x64, 0)), lax.neg(y), y))
    finite = lax.lt(lax.abs(x), const(x, np.inf))
    return lax.select(finite, y, x)
