"""Logarithm to base 2, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is log2(x) rounded to nearest even,
then canonical.

Special values: log2(NaN) = NaN, log2(x < 0) = NaN, log2(0) = -inf, log2(+inf) = +inf;
powers of two are exact.

Range reduction and polynomial: those of :mod:`.log`, x = 2**k (1 + f), and
log(1 + f) - f is multiplied by 1/log(2).

Ending: 1/log(2) = INV_HI + INV_LO with INV_HI of 28 bits, so that f * INV_HI is exact;
hi = k + f * INV_HI with its rounding error (Dekker's sum), the rest is a small ``lo``, and
hi + lo is rounded to odd at 53 bits.

Hard inputs: the closest a result comes to a rounding boundary is 2.69 units in the last
place of binary64 (``tests/data/hard_inputs/log2.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/log2-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import const, fast_two_sum, horner
from repjax.primitives.operations.elementary.log import COEFFICIENTS, split

# 1/log(2) in two parts: a multiple of 2**-27 and the binary64 nearest the rest.
INV_HI = float.fromhex("0x1.7154766000000p+0")
INV_LO = float.fromhex("-0x1.a8fa03d1105e0p-29")


def scaled_log(x, unit_hi, unit_lo, inv_hi, inv_lo, rounded):
    """Logarithm of a canonical float32 array to another base, correctly rounded.

    ``unit_hi + unit_lo`` is log(2) in that base, ``k * unit_hi`` exact;
    ``inv_hi + inv_lo`` is log(e) in that base, ``inv_hi`` of at most 28 bits.
    """
    k, f = split(canonical.to_float64(x))
    f2 = f * f
    tail = (f2 * f) * horner(f, COEFFICIENTS) - const(f, 0.5) * f2
    small = f * const(f, inv_lo) + tail * const(f, inv_hi + inv_lo)
    hi, error = fast_two_sum(k * const(k, unit_hi), f * const(f, inv_hi))
    lo = error + (k * const(k, unit_lo) + small)
    y = rounded(canonical.round_to_odd(*fast_two_sum(hi, lo)))
    # The bits order the exceptions: +0, finite, +inf, NaN; negative numbers are below +0.
    i = canonical.bits(x)
    y = lax.select(lax.eq(i, const(i, 0)), const(y, -np.inf), y)
    y = lax.select(lax.lt(i, const(i, 0)), const(y, np.nan), y)
    return lax.select(lax.ge(i, const(i, canonical.format_of(x).infinity)), x, y)


def body(x, rounded=canonical.to_float32):
    """Correctly rounded base-2 logarithm of a canonical float32 array."""
    return scaled_log(x, 1.0, 0.0, INV_HI, INV_LO, rounded)
