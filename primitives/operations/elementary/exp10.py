"""10**x, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is 10**x rounded to nearest even,
then canonical.

Special values: exp10(NaN) = NaN, exp10(+inf) = +inf, exp10(-inf) = +0; exact for the integers
0 to 10; x > 0x1.344134p+5 gives +inf, results <= 2**-126 give +0.

Range reduction: x = k log10(2) + r + e with |r| <= log10(2)/2.  log10(2) is split into
``UNIT_HI``, 37 bits, so that k * UNIT_HI and r = x - k * UNIT_HI are exact, and ``UNIT_LO``, of
which e = -k * UNIT_LO.

Polynomial: 10**(r + e) = e**t with t = t_hi + t_lo, |t| <= log(2)/2: log(10) = LOG_HI + LOG_LO
with LOG_HI of 27 bits, so that its product with the upper 26 bits of r, which is t_hi, is exact.
Of e**t - 1 = t + t**2/2 + t**3 p(t) all but t_hi is a small ``lo``, by the polynomial of
:mod:`.exp`.

Ending: that of :mod:`.exp2`; hi = 2**k + 2**k t_hi with its rounding error (Dekker's sum), and
hi + lo is rounded to odd at 53 bits.

Hard inputs: results come as close to a rounding boundary as 0.54 units in the last place
of binary64 (``tests/data/hard_inputs/exp10.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX2 (FMA), jax
0.10.2 (``docs/proofs/exp10-*.json``); with SSE4.2 (no FMA) 0 of the 577,765,376 inputs with
2**-29 <= |x| < 46, compared with SciPy's exp10 and, within 72 units in the last place of binary64
of a rounding boundary, with MPFR.  On the hard inputs contraction of any multiply-adds changes
nothing (sampled patterns, in the tests).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import (
    const,
    fast_two_sum,
    horner,
    power_of_two,
)
from repjax.primitives.operations.elementary.exp import COEFFICIENTS
from repjax.primitives.operations.elementary.pairs import head

# log10(2) and log(10), each in two parts (a multiple of 2**-38 or 2**-25 and the binary64 nearest
# the rest), and 1/log10(2) and log(10) in one.
UNIT_HI = float.fromhex("0x1.34413509f0000p-2")
UNIT_LO = float.fromhex("0x1.e7fbcc47c4acdp-40")
LOG_HI = float.fromhex("0x1.26bb1bc000000p+1")
LOG_LO = float.fromhex("-0x1.2aaba9f48ad49p-29")
INV_UNIT = float.fromhex("0x1.a934f0979a371p+1")
LOG = float.fromhex("0x1.26bb1bbb55516p+1")


def body(x, rounded=canonical.to_float32):
    """Correctly rounded 10**x of a canonical float32 array."""
    # Beyond +-64 the result has long overflowed or underflowed.
    bound = np.float64(64)
    x64 = lax.clamp(-bound, canonical.to_float64(x), bound)
    # floor(y + 1/2): a contracted product may move k by one at a tie, which r allows.
    k = lax.floor(x64 * const(x64, INV_UNIT) + const(x64, 0.5))
    r = x64 - k * const(k, UNIT_HI)
    h = head(r)
    t_hi = h * const(h, LOG_HI)
    t_lo = h * const(h, LOG_LO) + ((r - h) - k * const(k, UNIT_LO)) * const(h, LOG)
    t = t_hi + t_lo
    lo = t_lo + (t * t) * horner(t, (0.5, *COEFFICIENTS))
    s = power_of_two(lax.convert_element_type(k, np.int64))
    hi, error = fast_two_sum(s, s * t_hi)
    y = canonical.round_to_odd(*fast_two_sum(hi, error + s * lo))
    return lax.select(canonical.is_nan(x), x, rounded(y))
