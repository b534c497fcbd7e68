"""2**x, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is 2**x rounded to nearest even,
then canonical.

Special values: exp2(NaN) = NaN, exp2(+inf) = +inf, exp2(-inf) = +0; x >= 128 gives +inf,
results <= 2**-126 give +0.

Range reduction: x = k + r with |r| <= 1/2, exact.

Polynomial: 2**r - 1 = r log(2) + r**2 p(r), p of degree 10, minimax, relative error below
2**-56; log(2) = LOG2_HI + LOG2_LO with LOG2_HI of 29 bits, so that r * LOG2_HI is exact.

Ending: hi = 2**k + 2**k r LOG2_HI with its rounding error (Dekker's sum), the rest is a
small ``lo``, and hi + lo is rounded to odd at 53 bits.

Hard inputs: results come as close to a rounding boundary as 0.017 units in the last place
of binary64 (``tests/data/hard_inputs/exp2.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/exp2-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import (
    const,
    constants,
    fast_two_sum,
    horner,
    power_of_two,
)

# python -m repjax.primitives.operations.elementary.generate exp2
# degree 10, weighted error 2**-56.91
COEFFICIENTS = constants("""
    0x1.ebfbdff82c590p-3
    0x1.c6b08d704a0c2p-5
    0x1.3b2ab6fba4700p-7
    0x1.5d87fe78a5285p-10
    0x1.430912fb0a1c0p-13
    0x1.ffcbfc670710cp-17
    0x1.62c01644d29c1p-20
    0x1.b524faf8283e8p-24
    0x1.e4ff15962f28ep-28
    0x1.e9d3de26dcb40p-32
    0x1.7ebaf755728c0p-36
""")

# log(2) in two parts: a multiple of 2**-29 and the binary64 nearest the rest.
LOG2_HI = float.fromhex("0x1.62e42ff000000p-1")
LOG2_LO = float.fromhex("-0x1.718432a1b0e26p-35")


def body(x, rounded=canonical.to_float32):
    """Correctly rounded 2**x of a canonical float32 array."""
    # Beyond +-150 the result has long overflowed or underflowed.
    bound = np.float64(150)
    x64 = lax.clamp(-bound, canonical.to_float64(x), bound)
    k = lax.floor(x64 + const(x64, 0.5))
    r = x64 - k
    s = power_of_two(lax.convert_element_type(k, np.int64))
    lo = r * (const(r, LOG2_LO) + r * horner(r, COEFFICIENTS))
    hi, error = fast_two_sum(s, s * (r * const(r, LOG2_HI)))
    y = canonical.round_to_odd(*fast_two_sum(hi, error + s * lo))
    return lax.select(canonical.is_nan(x), x, rounded(y))
