"""TODO
"""

import numpy as np
from jax import lax

from repjax.primitives import canonical
from repjax.primitives.elementary import double_double
from repjax.primitives.elementary.double_double import add, constant, divide, multiply, negate, single
from repjax.primitives.elementary.gamma import fraction, product, shift, sin_ratio
from repjax.primitives.elementary.logarithm import log_quotient
from repjax.primitives.elementary.polynomial import const, constant_pairs, constants

# python -m repjax.primitives.elementary.generate lgamma
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

# log(2 pi) / 2 - 1/2
CONSTANT = constant_pairs("0x1.acfe390c97d69p-2 0x1.3494bc9001442p-56")[0]


def stirling(z):
    """The pair lgamma(z) of a pair of at least 8."""
    log = log_quotient(z, single(const(z[0], 1)))
    w = canonical.guard(lax.div(const(z[0], 1), z[0] * z[0]))
    series = double_double.horner(single(w), BINET_PAIRS, BINET)
    rest = add(divide(series, z), constant(w, CONSTANT))
    half, one = single(const(w, -0.5)), single(const(w, -1))
    return add(multiply(add(z, half), add(log, one)), rest)


def body(x):
    """Correctly rounded log|Gamma(x)| of a canonical float32 array."""
    x64 = canonical.to_float64(x)
    y, negative = lax.abs(x64), lax.lt(x64, const(x64, 0))
    small, z = shift(y)
    r = lax.abs(fraction(y))
    one = const(y, 1)
    n = multiply(product(y), single(lax.select(negative, one, y)))
    d = multiply(sin_ratio(r), single(r * lax.select(small, one, y)))
    n = double_double.select(small, n, single(one))
    d = double_double.select(negative, d, single(one))
    hi, lo = add(stirling(z), negate(log_quotient(n, d)))
    y64 = canonical.round_to_odd(hi, lo)
    result = canonical.to_float32(lax.select(negative, lax.neg(y64), y64))
    root = lax.eq(x, const(x, 1)) | lax.eq(x, const(x, 2))
    result = lax.select(root, const(x, 0), result)
    pole = lax.le(x, const(x, 0)) & lax.eq(r, const(r, 0))
    pole = pole | lax.eq(y, const(y, np.inf))
    result = lax.select(pole, const(x, np.inf), result)
    return lax.select(canonical.is_nan(x), x, result)
