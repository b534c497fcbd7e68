"""Logistic function 1 / (1 + e**-x), correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is 1 / (1 + e**-x) rounded to
nearest even, then canonical.

Special values: logistic(NaN) = NaN, logistic(-inf) = +0, logistic(+inf) = 1,
logistic(0) = 1/2; results <= 2**-126 give +0.

Design: with E = e**x - 1 (:mod:`.exp`, :mod:`.expm1`), in float64,

    x < -1    hi = 0    lo = e**x / (E + 2)
    else      hi = 1/2  lo = (E/2) / (E + 2)

and hi + lo is rounded to odd at 53 bits.  The quotient is guarded at 64 bits.

Hard inputs: near zero the result is 1/2 + x/4 - x**3/48, as close to a rounding
boundary as 8e-8 units in the last place of binary64, which is why ``lo`` needs its
full relative accuracy (``tests/data/hard_inputs/logistic.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/logistic-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import const, fast_two_sum
from repjax.primitives.operations.elementary.exp import expm1_parts


def body(x, rounded=canonical.to_float32):
    """Correctly rounded logistic function of a canonical float32 array."""
    # Beyond +-150 the result is 1 or +0.
    bound = np.float64(150)
    x64 = lax.clamp(-bound, canonical.to_float64(x), bound)
    s, q = expm1_parts(x64)
    sq = s * q
    e = sq + (s - const(s, 1))
    low = lax.lt(x64, const(x64, -1))
    # hi depends on the data, so that XLA cannot fold (hi + lo) - hi.
    hi = lax.select(low, const(e, 0), const(e, 0.5))
    lo = canonical.guard(lax.select(low, s + sq, e * const(e, 0.5)) / (e + const(e, 2)))
    y = rounded(canonical.round_to_odd(*fast_two_sum(hi, lo)))
    return lax.select(canonical.is_nan(x), x, y)
