"""Inverse hyperbolic cosine, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is acosh(x) rounded to nearest even,
then canonical.

Special values: acosh(NaN) = NaN, acosh(x < 1) = NaN, acosh(1) = +0, acosh(+inf) = +inf.

Range reduction: with w = sqrt(x**2 - 1) and u = x + w, acosh(x) = log(u)
= k log(2) + 2 atanh(q) as in :mod:`.asinh`; for k = 0, q = w / (1 + x).

Polynomial and ending: those of :mod:`.atanh`.

Hard inputs: results come as close to a rounding boundary as 0.03 units in the last place
of binary64 (``tests/data/hard_inputs/acosh.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/acosh-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.asinh import half_log
from repjax.primitives.operations.elementary.basics import const, fast_two_sum
from repjax.primitives.operations.elementary.pairs import square_root


def body(x, rounded=canonical.to_float32):
    """Correctly rounded inverse hyperbolic cosine of a canonical float32 array."""
    x64 = lax.clamp(np.float64(1), canonical.to_float64(x), np.float64(2.0**128))
    w_hi, w_lo = square_root(*fast_two_sum(x64 * x64, const(x64, -1)))
    u_hi, u_lo = fast_two_sum(x64, w_hi)
    one = const(x64, 1)
    y = half_log(u_hi, u_lo + w_lo, w_hi, w_lo, x64 + one, const(x64, 0))
    y = rounded(y + y)
    y = lax.select(lax.lt(x, const(x, 1)), const(x, np.nan), y)
    y = lax.select(lax.eq(x, const(x, np.inf)), x, y)
    return lax.select(canonical.is_nan(x), x, y)
