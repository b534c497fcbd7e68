"""Arc tangent, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is atan(x) rounded to nearest even,
then canonical.

Special values: atan(NaN) = NaN, atan(+-inf) = +-pi/2 rounded, atan(0) = +0;
atan(-x) = -atan(x).

Range reduction: with x = |x|, atan(x) = base + atan(q),

    x < tan(pi/8)              base = 0     q = x
    x < tan(3 pi/8)            base = pi/4  q = (x - 1) / (x + 1)
    else                       base = pi/2  q = -1 / x

q as hi + lo (:mod:`.pairs`), |q| < 0.41422.

Polynomial: atan(q) = q + q**3 p(q**2), p of degree 10, minimax, relative error below
2**-57; base + q_hi with its rounding error (Dekker's sum), the rest is a small ``lo``, and
hi + lo is rounded to odd at 53 bits.

Hard inputs: results come as close to a rounding boundary as 0.13 units in the last place
of binary64 (``tests/data/hard_inputs/atan.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/atan-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import (
    const,
    constants,
    fast_two_sum,
    horner,
)
from repjax.primitives.operations.elementary.pairs import quotient

# python -m repjax.primitives.operations.elementary.generate atan
# degree 10, weighted error 2**-57.49
COEFFICIENTS = constants("""
    -0x1.555555555553dp-2
    0x1.99999999957c3p-3
    -0x1.24924922aa0b0p-3
    0x1.c71c70e4f53e0p-4
    -0x1.745cf8c0d2f37p-4
    0x1.3b111769acf71p-4
    -0x1.10eba6fd71ae1p-4
    0x1.df0e67e064a27p-5
    -0x1.9ccf18a376c9cp-5
    0x1.37cd2be848ebcp-5
    -0x1.2559467ff956dp-6
""")

# pi/2 as the sum of two binary64 numbers.
PI_2_HI = float.fromhex("0x1.921fb54442d18p+0")
PI_2_LO = float.fromhex("0x1.1a62633145c07p-54")


def body(x, rounded=canonical.to_float32):
    """Correctly rounded arc tangent of a canonical float32 array."""
    # Beyond 2**64 the result is pi/2 rounded.
    ax = lax.min(lax.abs(canonical.to_float64(x)), const(canonical.to_float64(x), 2.0**64))
    one = const(ax, 1)
    near, far = lax.lt(ax, const(ax, 0.41421356)), lax.ge(ax, const(ax, 2.41421356))
    n = lax.select(near, ax, lax.select(far, lax.neg(one), ax - one))
    d = lax.select(near, one, lax.select(far, ax, ax + one))
    q_hi, q_lo = quotient(n, const(n, 0), d, const(d, 0))
    scale = lax.select(near, const(ax, 0), lax.select(far, one, const(ax, 0.5)))
    q = q_hi + q_lo
    q2 = q * q
    tail = q_lo + (q * q2) * horner(q2, COEFFICIENTS)
    hi, error = fast_two_sum(scale * const(ax, PI_2_HI), q_hi)
    lo = error + (scale * const(ax, PI_2_LO) + tail)
    y = canonical.round_to_odd(*fast_two_sum(hi, lo))
    y = lax.select(lax.lt(x, const(x, 0)), lax.neg(y), y)
    return lax.select(canonical.is_nan(x), x, rounded(y))
