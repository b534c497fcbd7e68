"""e**x, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is e**x rounded to nearest even,
then canonical.

Special values: exp(NaN) = NaN, exp(+inf) = +inf, exp(-inf) = +0; x > 0x1.62e42ep+6
gives +inf, results <= 2**-126 give +0.

Range reduction: x = k log(2) + r with |r| <= log(2)/2.  log(2) is split into
``LOG2_HI``, 38 bits, so that k * LOG2_HI and x - k * LOG2_HI are exact, and
``LOG2_LO``, 53 bits.

Polynomial: e**r = 1 + r + r**2/2 + r**3 p(r), p of degree 9, minimax, relative error of
e**r - 1 below 2**-59; then e**x = 2**k + 2**k (e**r - 1), where the products by 2**k
are exact.

Hard inputs: the closest a result comes to a rounding boundary is 1.27 units in the
last place of binary64 (``tests/data/hard_inputs/exp.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/exp-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).

Reference: Tang, "Table-driven implementation of the exponential function in IEEE
floating-point arithmetic", ACM TOMS 15(2), 1989 (the reduction; no tables here).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import (
    const,
    constants,
    horner,
    power_of_two,
)

# python -m repjax.primitives.operations.elementary.generate exp
# degree 9, weighted error 2**-59.17
COEFFICIENTS = constants("""
    0x1.5555555555559p-3
    0x1.5555555555549p-5
    0x1.111111110f7ecp-7
    0x1.6c16c16c1cd06p-10
    0x1.a01a01af75bb2p-13
    0x1.a01a0182ed184p-16
    0x1.71ddf953d51cep-19
    0x1.27e52b79b4387p-22
    0x1.af5d1ff9cb0a8p-26
    0x1.1ef48ff286297p-29
""")

# log(2) in two parts (a multiple of 2**-38 and the binary64 nearest the rest), 1/log(2).
LOG2_HI = float.fromhex("0x1.62e42fefa0000p-1")
LOG2_LO = float.fromhex("0x1.cf79abc9e3b3ap-40")
INV_LOG2 = float.fromhex("0x1.71547652b82fep+0")


def expm1_parts(x):
    """``(s, q)`` with s = 2**k and e**x = s + s*q, |q| < 0.42, for float64 ``|x| <= 700``.

    Shared by exp, expm1, tanh and logistic.  q is within about one unit in the last
    place of binary64 of e**r - 1.
    """
    # floor(t + 1/2): a contracted product may move k by one at a tie, which r allows.
    k = lax.floor(x * const(x, INV_LOG2) + const(x, 0.5))
    r = (x - k * const(x, LOG2_HI)) - k * const(x, LOG2_LO)
    q = r + (r * r) * horner(r, (0.5, *COEFFICIENTS))
    return power_of_two(lax.convert_element_type(k, np.int64)), q


def body(x, rounded=canonical.to_float32):
    """Correctly rounded e**x of a canonical float32 array."""
    # Beyond +-150 the result has long overflowed or underflowed.
    bound = np.float64(150)
    s, q = expm1_parts(lax.clamp(-bound, canonical.to_float64(x), bound))
    return lax.select(canonical.is_nan(x), x, rounded(s + s * q))
