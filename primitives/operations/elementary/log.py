"""Natural logarithm, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is log(x) rounded to nearest even,
then canonical.

Special values: log(NaN) = NaN, log(x < 0) = NaN, log(0) = -inf, log(+inf) = +inf,
log(1) = +0.

Range reduction: x = 2**k (1 + f) with sqrt(1/2) <= 1 + f < sqrt(2).  log(2) is split
into ``LOG2_HI``, a multiple of 2**-44, and ``LOG2_LO``, 53 bits.

Polynomial: log(1 + f) = f - f**2/2 + f**3 p(f), p of degree 20, minimax, relative
error below 2**-57.

Ending: hi = k * LOG2_HI + f is exact (multiples of 2**-44 below 2**7; f is a multiple
of 2**-24), f**2 too; the rest is a small ``lo``, and hi + lo is rounded to odd at 53
bits, which the conversion to float32 rounds as it would the exact sum.

Hard inputs: results come as close to a rounding boundary as 0.03 units in the last
place of binary64 (``tests/data/hard_inputs/log.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/log-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).

References: Tang, "Table-driven implementation of the logarithm function in IEEE
floating-point arithmetic", ACM TOMS 16(4), 1990; Boldo and Melquiond 2008 for
rounding to odd.
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import (
    const,
    constants,
    fast_two_sum,
    horner,
)

# python -m repjax.primitives.operations.elementary.generate log
# degree 20, weighted error 2**-57.22
COEFFICIENTS = constants("""
    0x1.5555555555558p-2
    -0x1.0000000000042p-2
    0x1.9999999999118p-3
    -0x1.555555554ae29p-3
    0x1.24924924ddcd8p-3
    -0x1.00000004ffe2ap-3
    0x1.c71c71a31c4a9p-4
    -0x1.9999971e850b0p-4
    0x1.745d1afe69eeep-4
    -0x1.5555b11fdc368p-4
    0x1.3b13aa330be99p-4
    -0x1.248a39c04a38bp-4
    0x1.1109024ae41a4p-4
    -0x1.006cb634d2ffap-4
    0x1.e38895488e354p-5
    -0x1.c0e0f32b283ffp-5
    0x1.9be2f11f9b4a9p-5
    -0x1.a91860526cf3bp-5
    0x1.efdaa34a1785cp-5
    -0x1.bb2c9263a0bcdp-5
    0x1.7064e4640d3e0p-6
""")

# log(2) in two parts: a multiple of 2**-44 and the binary64 nearest the rest.
LOG2_HI = float.fromhex("0x1.62e42fefa3a00p-1")
LOG2_LO = float.fromhex("-0x1.0ca86c3898d00p-49")
# The significand of sqrt(1/2), above which k grows, so that 1 + f < sqrt(2).
SQRT_HALF = 0x3FE6A09E667F3BCD


def split(u):
    """``(k, f)`` with u = 2**k (1 + f), sqrt(1/2) <= 1 + f < sqrt(2), for float64 u > 0."""
    i = canonical.bits(u) - const(canonical.bits(u), SQRT_HALF)
    exponent = lax.shift_right_arithmetic(i, const(i, 52))
    m = canonical.bits(u) - lax.shift_left(exponent, const(i, 52))
    f = canonical.from_bits(m, np.float64) - const(u, 1)
    return lax.convert_element_type(exponent, np.float64), f


def log_parts(k, f):
    """``(hi, lo)`` with hi + lo = k log(2) + log(1 + f) and |lo| <= ulp(hi)/2.

    Shared by log and log1p, where f may have 53 bits and the first sum an error.
    """
    f2 = f * f
    tail = (f2 * f) * horner(f, COEFFICIENTS) - const(f, 0.5) * f2
    hi, lo = fast_two_sum(k * const(k, LOG2_HI), f)
    return fast_two_sum(hi, lo + (k * const(k, LOG2_LO) + tail))


def body(x, rounded=canonical.to_float32):
    """Correctly rounded natural logarithm of a canonical float32 array."""
    y = rounded(canonical.round_to_odd(*log_parts(*split(canonical.to_float64(x)))))
    # The bits order the exceptions: +0, finite, +inf, NaN; negative numbers are below +0.
    i = canonical.bits(x)
    y = lax.select(lax.eq(i, const(i, 0)), const(y, -np.inf), y)
    y = lax.select(lax.lt(i, const(i, 0)), const(y, np.nan), y)
    return lax.select(lax.ge(i, const(i, canonical.format_of(x).infinity)), x, y)
