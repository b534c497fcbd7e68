"""Logarithm of the gamma function, log|Gamma(x)|, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is log|Gamma(x)| rounded to nearest
even, then canonical.

Special values: lgamma(NaN) = NaN, lgamma(+-inf) = +inf, lgamma(0) = lgamma(-n) = +inf for the
poles, the integers n >= 1, among them every x <= -2**23; lgamma(1) = lgamma(2) = +0;
x > 0x1.895f1ap+121 gives +inf.

Design, in the arithmetic of :mod:`.double_double`: one graph for every x, without cases for
the zeros.  With y = |x|, and z = y + 8 where y < 8, else z = y,

    x > 0    lgamma(x) = S(z) - log(n)         n = y (y + 1) ... (y + 7), or 1
    x < 0    lgamma(x) = log(n / d) - S(z)     n = (y + 1) ... (y + 7),   or 1
                                               d = sin(pi y) / pi,        or y sin(pi y) / pi

    S(z) = (z - 1/2) (log(z) - 1) + (log(2 pi) - 1) / 2 + p(1 / z**2) / z

where S(z) = lgamma(z) for z >= 8, Stirling's series with a minimax p of degree 10 in its
place, error of S below 2**-71, the first coefficient a pair.  The logarithms are those of
:mod:`.logarithm`, n and sin(pi y) are in :mod:`.gamma`.

Error: at most 2**-66 (1 + |lgamma(x)|) before the one rounding to float32 (MPFR, 60,000
inputs of all magnitudes).  Close to a zero (1, 2 and two between -n and -n - 1 for each n >= 2)
that is not relative to the result; but half as close to a zero are half as many float32, so
that a smaller error is not needed there.

Hard inputs: the closest a result comes to a rounding boundary is 0.065 units in the last
place of binary64, 2**-57, at 0x1.f9413ep+76 (``tests/data/hard_inputs/lgamma.txt`` has those
within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/lgamma-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).

Reference: Hare, "Computing the principal branch of log-Gamma", Journal of Algorithms 25, 1997
(shift, reflection and Stirling's series).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary import double_double
from repjax.primitives.operations.elementary.basics import const, constant_pairs, constants
from repjax.primitives.operations.elementary.double_double import (
    add,
    constant,
    divide,
    multiply,
    negate,
    single,
)
from repjax.primitives.operations.elementary.gamma import fraction, product, shift, sin_ratio
from repjax.primitives.operations.elementary.logarithm import log_quotient

# python -m repjax.primitives.operations.elementary.generate lgamma
# degree 10, weighted error 2**-71.77
BINET_PAIRS = constant_pairs("""
    0x1.5555555555555p-4 0x1.55554345b0ad7p-58
""")
BINET = constants("""
    -0x1.6c16c16c16c17p-9
    0x1.a01a01a019ecdp-11
    -0x1.38138137d3ea0p-11
    0x1.b951e24562f60p-11
    -0x1.f6aad5234c996p-10
    0x1.a410b9b7179dbp-8
    -0x1.e3172b556ab9dp-6
    0x1.65b6e70dccab2p-3
    -0x1.248193cfe8bdep+0
    0x1.5c2ec66ba36d3p+2
""")

# (log(2 pi) - 1) / 2 in two parts.
CONSTANT_HI = float.fromhex("0x1.acfe390c97d69p-2")
CONSTANT_LO = float.fromhex("0x1.3494bc9001442p-56")


def stirling(z):
    """The pair lgamma(z) of a pair of at least 8."""
    log = log_quotient(z, single(const(z[0], 1)))
    w = canonical.guard(lax.div(const(z[0], 1), z[0] * z[0]))
    series = double_double.horner(single(w), BINET_PAIRS, BINET)
    rest = add(divide(series, z), constant(w, (CONSTANT_HI, CONSTANT_LO)))
    half, one = single(const(w, -0.5)), single(const(w, -1))
    return add(multiply(add(z, half), add(log, one)), rest)


def body(x, rounded=canonical.to_float32):
    """Correctly rounded log|Gamma(x)| of a canonical float32 array."""
    x64 = canonical.to_float64(x)
    y, negative = lax.abs(x64), lax.lt(x64, const(x64, 0))
    small, z = shift(y)
    r = lax.abs(fraction(y))  # |sin(pi y)| = sin(pi r)
    one = const(y, 1)
    n = multiply(product(y), single(lax.select(negative, one, y)))
    d = multiply(sin_ratio(r), single(r * lax.select(small, one, y)))
    n = double_double.select(small, n, single(one))
    d = double_double.select(negative, d, single(one))
    result = canonical.round_to_odd(*add(stirling(z), negate(log_quotient(n, d))))
    result = rounded(lax.select(negative, lax.neg(result), result))
    zero = lax.eq(x, const(x, 1)) | lax.eq(x, const(x, 2))
    result = lax.select(zero, const(x, 0), result)
    pole = lax.le(x, const(x, 0)) & lax.eq(r, const(r, 0))
    pole = pole | lax.eq(y, const(y, np.inf))
    result = lax.select(pole, const(x, np.inf), result)
    return lax.select(canonical.is_nan(x), x, result)
