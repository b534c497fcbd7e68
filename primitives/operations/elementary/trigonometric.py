"""What sin, cos and tan share: the reduction modulo pi/2 and the two series.

**Reduction** (Payne and Hanek 1983, "Radian reduction for trigonometric functions"):
|x| = k pi/2 + r with |r| <= pi/4 and k modulo 4, for every finite float32, without tables
and without branches.  With |x| = M 2**e, M an integer of 24 bits, only 128 bits of 2/pi
matter: those above contribute multiples of 4 to x * 2/pi, those below less than 2**-102.
The nine 32-bit words of 2/pi (26 leading zeros, so that |x| >= 1/2 needs no other case)
are chosen by selects; M times the window is exact, in four 64-bit integer products.  The
product modulo 4 is k, to nearest, and a fraction A 2**-30 + B 2**-94 with integers
|A| <= 2**29, |B| <= 2**63, so that r + e = A P_HI + (A P_LO + B P), where A P_HI is exact,
within 2**-77 |r| + 2**-83.  The float32 closest to a multiple of pi/2 is 16367173 * 2**72,
at 2**-29.2 (all inputs tried).  |x| < 0.785 is its own r.

**Series**, hi + lo, accurate to about a tenth of a unit in the last place of binary64:

    sin(r + e) = r + (r**3 p(r**2) + e (1 - r**2 / 2))            p of degree 6
    cos(r + e) = (1 - h**2 / 2) + (r**4 q(r**2) - t (h + t / 2))  q of degree 5

where h is r to 26 bits, so that h**2 is exact, and t = (r - h) + e.  Relative errors of p
and q below 2**-57.
"""

from __future__ import annotations

import itertools

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import (
    const,
    constants,
    fast_two_sum,
    horner,
)
from repjax.primitives.operations.elementary.pairs import head

# python -m repjax.primitives.operations.elementary.generate trigonometric
# degree 6, weighted error 2**-57.14
SIN = constants("""
    -0x1.5555555555555p-3
    0x1.111111111110bp-7
    -0x1.a01a01a018a6dp-13
    0x1.71de3a5330951p-19
    -0x1.ae64528d8bd05p-26
    0x1.61208c4f9dfc1p-33
    -0x1.aaa24a3c62a57p-41
""")
# degree 5, weighted error 2**-59.72
COS = constants("""
    0x1.555555555554bp-5
    -0x1.6c16c16c14f94p-10
    0x1.a01a019c8487dp-16
    -0x1.27e4f7eaeab16p-22
    0x1.1ee9d7ccf6e13p-29
    -0x1.8fa4a5ad00e71p-37
""")

# floor(2/pi * 2**262), most significant word first.
TWO_OVER_PI = (
    0x00000028,
    0xBE60DB93,
    0x91054A7F,
    0x09D5F47D,
    0x4D377036,
    0xD8A5664F,
    0x10E4107F,
    0x9458EAF7,
    0xAEF1586D,
)
# pi/2 in two parts (a multiple of 2**-23 and the binary64 nearest the rest), and in one,
# each times the weight of the integer it multiplies.
P_HI = float.fromhex("0x1.921fb60000000p+0") * 2.0**-30
P_LO = float.fromhex("-0x1.777a5cf72cecep-25") * 2.0**-30
P = float.fromhex("0x1.921fb54442d18p+0") * 2.0**-94

_WORD = 0xFFFFFFFF


def _window(offset):
    """Four words (uint64) of 2/pi from bit ``offset`` (uint64, 0 to 128) on."""
    index = lax.shift_right_logical(offset, const(offset, 5))
    words = []
    for j in range(5):
        word = const(offset, TWO_OVER_PI[j])
        for i in range(1, 5):
            chosen = const(offset, TWO_OVER_PI[i + j])
            word = lax.select(lax.eq(index, const(index, i)), chosen, word)
        words.append(word)
    shift = const(offset, 32) - (offset & const(offset, 31))
    return [
        lax.shift_right_logical(lax.shift_left(high, const(high, 32)) | low, shift)
        & const(high, _WORD)
        for high, low in itertools.pairwise(words)
    ]


def _low(x):
    return x & const(x, _WORD)


def _high(x):
    return lax.shift_right_logical(x, const(x, 32))


def reduce(x):
    """``(k, r, e)`` with ``|x| = k pi/2 + r + e``, for a canonical float32 array.

    ``k`` is int64, 0 to 3; r and e are float64, ``|r| < 0.7855``, ``|e| <= ulp(r)/2``.
    Meaningless where ``x`` is not finite.
    """
    i = lax.convert_element_type(canonical.bits(lax.abs(x)), np.uint64)
    m = (i & const(i, 0x7FFFFF)) | const(i, 0x800000)
    exponent = lax.shift_right_logical(i, const(i, 23))
    # Biased exponent 126 (x >= 1/2) starts at bit 0.
    offset = lax.max(exponent, const(i, 126)) - const(i, 126)
    w0, w1, w2, w3 = _window(lax.min(offset, const(i, 128)))
    p2 = m * w2 + _high(m * w3)
    p1 = m * w1 + _high(p2)
    p0 = m * w0 + _high(p1)
    top = lax.shift_left(p0, const(p0, 32)) | _low(p1)  # modulo 4, in units of 2**-62
    k = lax.shift_right_logical(top + const(top, 1 << 61), const(top, 62))
    fraction = top - lax.shift_left(k, const(k, 62))
    fraction = lax.bitcast_convert_type(fraction, np.int64)
    a = lax.shift_right_arithmetic(fraction + const(fraction, 1 << 31), const(fraction, 32))
    b = lax.shift_left(fraction - lax.shift_left(a, const(a, 32)), const(a, 32))
    b = b | lax.bitcast_convert_type(_low(p2), np.int64)
    a, b = (lax.convert_element_type(v, np.float64) for v in (a, b))
    r, e = fast_two_sum(a * const(a, P_HI), a * const(a, P_LO) + b * const(b, P))
    x64 = lax.abs(canonical.to_float64(x))
    small = lax.lt(x64, const(x64, 0.785))
    k = lax.bitcast_convert_type(k, np.int64)
    return (
        lax.select(small, const(k, 0), k),
        lax.select(small, x64, r),
        lax.select(small, const(e, 0), e),
    )


def sin_and_cos(r, e):
    """``((hi, lo), (hi, lo))``, sin and cos of r + e, not normalised: ``|lo| < |hi| / 4``."""
    r2 = r * r
    sin_lo = (r * r2) * horner(r2, SIN) + e * (const(r, 1) - const(r, 0.5) * r2)
    h = head(r)
    t = (r - h) + e
    # A 1 that depends on the data, so that XLA cannot fold (1 + b) - 1.
    one = lax.select(lax.lt(r, const(r, 2)), const(r, 1), const(r, 0))
    cos_hi, error = fast_two_sum(one, const(h, -0.5) * (h * h))
    cos_lo = error + ((r2 * r2) * horner(r2, COS) - t * (h + const(t, 0.5) * t))
    return (r, sin_lo), (cos_hi, cos_lo)


def finish(x, negative, y, rounded):
    """float64 ``y``, negated where told, as a canonical result; NaN where x is not finite."""
    y = rounded(lax.select(negative, lax.neg(y), y))
    finite = lax.lt(lax.abs(x), const(x, np.inf))
    return lax.select(finite, y, const(y, np.nan))
