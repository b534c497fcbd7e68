"""Digamma function, the logarithmic derivative of the gamma function, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is digamma(x) rounded to nearest even,
then canonical.

Special values: digamma(NaN) = NaN, digamma(+inf) = +inf, digamma(-inf) = NaN,
digamma(0) = -inf (the limit from the right, as there is no -0), NaN at the other poles, the
negative integers, among them every x <= -2**23.  MPFR and SciPy say the same; JAX gives NaN or
-inf at the poles, depending on its version.

Design, in the arithmetic of :mod:`.double_double`: one graph for every x, without cases for
the zeros.  With y = |x|, and z = y + 8 where y < 8, else z = y,

    x > 0    digamma(x) = D(z) - 1 / y - s                  without the last two for y >= 8
    x < 0    digamma(x) = D(z) - s + pi cot(pi y)           with 1 / y for -s for y >= 8

    s = 1 / (y + 1) + ... + 1 / (y + 7)
    D(z) = log(z) - 1 / (2 z) - p(1 / z**2) / z**2

where D(z) = digamma(z) for z >= 8, with p minimax, of degree 10, error of D below 2**-72, the
first coefficient a pair.  log is that of :mod:`.logarithm`; s and cot = cos / sin are in
:mod:`.gamma`.

Error: at most 2**-66 (1 + |digamma(x)|) before the one rounding to float32 (MPFR, 60,000
inputs of all magnitudes).  Close to a zero (1.4616... and one between -n and -n - 1 for each
n >= 0) that is not relative to the result; but half as close to a zero are half as many
float32, so that a smaller error is not needed there.

Hard inputs: the closest a result comes to a rounding boundary is 0.030 units in the last
place of binary64, 2**-58, at 0x1.b121a6p+76 (``tests/data/hard_inputs/digamma.txt`` has
those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2, and by the C++ kernel (``docs/proofs/digamma-*.json``); on
the hard inputs contraction of any multiply-adds changes nothing (sampled patterns, in the tests).

Reference: Bernardo, "Algorithm AS 103: Psi (digamma) function", Applied Statistics 25, 1976
(shift and asymptotic series).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary import double_double
from repjax.primitives.operations.elementary.basics import const, constant_pairs, constants
from repjax.primitives.operations.elementary.double_double import (
    add,
    divide,
    multiply,
    negate,
    single,
)
from repjax.primitives.operations.elementary.gamma import (
    cos,
    fraction,
    shift,
    sin_ratio,
    sum_of_reciprocals,
)
from repjax.primitives.operations.elementary.logarithm import log_quotient

# python -m repjax.primitives.operations.elementary.generate digamma
# degree 10, weighted error 2**-72.42
BINET_PAIRS = constant_pairs("""
    0x1.5555555555555p-4 0x1.554f50c3838fcp-58
""")
BINET = constants("""
    -0x1.1111111111110p-7
    0x1.041041040fcf9p-8
    -0x1.1111110feea9bp-8
    0x1.f07c1d56782c3p-8
    -0x1.59953333ef0cep-6
    0x1.55456d8bf55dfp-4
    -0x1.c43a6ffec194bp-2
    0x1.77bf04236e3abp+1
    -0x1.4ba6899f713a2p+4
    0x1.9809b206f7977p+6
""")


def body(x, rounded=canonical.to_float32):
    """Correctly rounded digamma of a canonical float32 array."""
    x64 = canonical.to_float64(x)
    y, negative = lax.abs(x64), lax.lt(x64, const(x64, 0))
    small, z = shift(y)
    r = fraction(y)
    zero, one, half = (const(y, c) for c in (0, 1, 0.5))
    # log(z) -+ 1 / (2 z) - p(w) / z**2
    inverse = divide(single(one), z)
    series = double_double.horner(single(inverse[0] * inverse[0]), BINET_PAIRS, BINET)
    first = single(lax.select(negative & ~small, half, lax.neg(half)))
    tail = multiply(inverse, add(first, negate(multiply(inverse, series))))
    value = add(log_quotient(z, single(one)), tail)
    # -1 / y or pi cot(pi y).
    n = double_double.select(negative, cos(r), single(lax.select(small, lax.neg(one), zero)))
    d = double_double.select(negative, multiply(sin_ratio(r), single(r)), single(y))
    value = add(value, divide(n, d))
    shifted = double_double.select(small, sum_of_reciprocals(y), single(zero))
    value = add(value, negate(shifted))
    result = rounded(canonical.round_to_odd(*value))
    result = lax.select(lax.eq(x, const(x, np.inf)), x, result)
    result = lax.select(negative & lax.eq(r, const(r, 0)), const(x, np.nan), result)
    result = lax.select(lax.eq(x, const(x, 0)), const(x, -np.inf), result)
    return lax.select(canonical.is_nan(x), x, result)
