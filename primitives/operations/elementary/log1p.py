"""log(1 + x), correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is log(1 + x) rounded to nearest
even, then canonical.

Special values: log1p(NaN) = NaN, log1p(x < -1) = NaN, log1p(-1) = -inf,
log1p(+inf) = +inf, log1p(0) = +0.

Range reduction, polynomial and ending: those of :mod:`.log`, with
1 + x = 2**k (1 + f).  1 + x is exact in float64 below 2**53 unless |x| is small, where
k = 0 and f = x; above 2**53 its rounding is far below the error that the result allows.

Hard inputs: results come as close to a rounding boundary as 7e-5 units in the last
place of binary64 (``tests/data/hard_inputs/log1p.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/log1p-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import const
from repjax.primitives.operations.elementary.log import log_parts, split


def body(x, rounded=canonical.to_float32):
    """Correctly rounded log(1 + x) of a canonical float32 array."""
    x64 = canonical.to_float64(x)
    k, f = split(x64 + const(x64, 1))
    f = lax.select(lax.eq(k, const(k, 0)), x64, f)
    y = rounded(canonical.round_to_odd(*log_parts(k, f)))
    y = lax.select(lax.eq(x, const(x, -1)), const(y, -np.inf), y)
    y = lax.select(lax.lt(x, const(x, -1)), const(y, np.nan), y)
    y = lax.select(lax.eq(x, const(x, np.inf)), x, y)
    return lax.select(canonical.is_nan(x), x, y)
