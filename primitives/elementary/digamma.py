"""TODO
"""

import numpy as np
from jax import lax

from repjax.primitives import canonical
from repjax.primitives.elementary import double_double
from repjax.primitives.elementary.double_double import add, divide, multiply, negate, single
from repjax.primitives.elementary.gamma import cos, fraction, shift, sin_ratio, sum_of_reciprocals
from repjax.primitives.elementary.logarithm import log_quotient
from repjax.primitives.elementary.polynomial import const, constant_pairs, constants

# python -m repjax.primitives.elementary.generate digamma
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


def body(x):
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
    # Poles: -1 / y or pi cot(pi y).
    n = double_double.select(negative, cos(r), single(lax.select(small, lax.neg(one), zero)))
    d = double_double.select(negative, multiply(sin_ratio(r), single(r)), single(y))
    value = add(value, divide(n, d))
    shifted = double_double.select(small, sum_of_reciprocals(y), single(zero))
    hi, lo = add(value, negate(shifted))
    result = canonical.to_float32(canonical.round_to_odd(hi, lo))
    result = lax.select(lax.eq(x, const(x, np.inf)), x, result)
    result = lax.select(negative & lax.eq(r, const(r, 0)), const(x, np.nan), result)
    result = lax.select(lax.eq(x, const(x, 0)), const(x, -np.inf), result)
    return lax.select(canonical.is_nan(x), x, result)
