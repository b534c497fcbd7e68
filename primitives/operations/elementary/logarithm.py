"""The logarithm of a quotient of two pairs, to about 2**-70.

For functions that need more than the float64 of :mod:`.log`: with 2**k the power of two
nearest to n/d, logarithmically, log(n/d) = k log(2) + log(n/m), m = 2**k d, and

    log(n/m) = 2 atanh(s),  s = (n - m) / (n + m),  |s| <= (sqrt(2) - 1) / (sqrt(2) + 1)

in the arithmetic of :mod:`.double_double`; atanh(s) = s + s**3 p(s**2), p of degree 9 with
two coefficients given as pairs.
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary import double_double
from repjax.primitives.operations.elementary.basics import (
    const,
    constant_pairs,
    constants,
    power_of_two,
)
from repjax.primitives.operations.elementary.double_double import (
    add,
    divide,
    multiply,
    negate,
    scale,
)
from repjax.primitives.operations.elementary.log import LOG2_HI, LOG2_LO, split

# python -m repjax.primitives.operations.elementary.generate logarithm
# degree 9, weighted error 2**-71.35
ATANH_PAIRS = constant_pairs("""
    0x1.5555555555555p-2 0x1.554c26e53d25fp-56
    0x1.999999999999ap-3 -0x1.2377e8d5fd325p-57
""")
ATANH = constants("""
    0x1.2492492492451p-3
    0x1.c71c71c72580dp-4
    0x1.745d174016138p-4
    0x1.3b13b378b6eb2p-4
    0x1.111081f6503fcp-4
    0x1.e20f7b43b9b6dp-5
    0x1.aaae6921e7889p-5
    0x1.c4b175d2daa08p-5
""")


def log_quotient(n, d):
    """The pair log(n/d) of two positive pairs, within 2**-70 |log(n/d)| (MPFR, 20,000 quotients).

    n, d and n/d must lie between 2**-400 and 2**400.
    """
    k, _ = split(canonical.guard(lax.div(n[0], d[0])))
    power = power_of_two(lax.convert_element_type(k, np.int64))
    m = d[0] * power, d[1] * power
    s = divide(add(n, negate(m)), add(n, m))
    t = multiply(s, s)
    p = double_double.horner(t, ATANH_PAIRS, ATANH)
    atanh = add(s, multiply(multiply(s, t), p))
    return add((k * const(k, LOG2_HI), k * const(k, LOG2_LO)), scale(atanh, const(k, 2)))
