"""Inverse error function, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is the y with erf(y) = x, rounded to
nearest even, then canonical.

Special values: erf_inv(NaN) = NaN, erf_inv(|x| > 1) = NaN, erf_inv(+-1) = +-inf,
erf_inv(0) = +0; results <= 2**-126 give +0.

Design: erf_inv(x) = x g(w) with w = -log(1 - x**2) from :mod:`.log`, in float64; x**2 is
exact.  Then

    w < 5   hi = x * NEAR_HI (exact)   lo = x * (NEAR_LO + w p(w))
    else    hi = x * FAR_HI (exact)    lo = x * p(sqrt(w) - 25/8)

and hi + lo is rounded to odd at 53 bits.  g(0) = sqrt(pi)/2 = NEAR_HI + NEAR_LO.

Polynomials: minimax, errors relative to erf_inv(x): of degree 22, 2**-54.

Hard inputs: the closest a result comes to a rounding boundary is 0.32 units in the last
place of binary64, at 0x1.74c3fap-8 (``tests/data/hard_inputs/erf_inv.txt`` has those
within 64).  The oracle was erf, and its complement above 1/2, at the two rounding
boundaries next to the result.

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/erf_inv-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).

Reference: Giles, "Approximating the erfinv function", GPU Computing Gems Jade Edition,
2011 (the variables w and sqrt(w); polynomials and ending are ours).
"""

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.basics import (
    const,
    constants,
    fast_two_sum,
    horner,
)
from repjax.primitives.operations.elementary.log import log_parts, split

# python -m repjax.primitives.operations.elementary.generate erf_inv
# degree 22, weighted error 2**-54.91
NEAR = constants("""
    0x1.db29fb2fee5e6p-3
    0x1.7a72e72c1e7d1p-7
    -0x1.3211025de1e48p-9
    -0x1.0c86b86a6fd41p-13
    0x1.87014f7f2d62bp-15
    0x1.0f1e0965c8b48p-19
    -0x1.0fccf5afbbf03p-20
    -0x1.40a5eb8851c81p-25
    0x1.88610fffa2c1bp-26
    0x1.837f894144863p-31
    -0x1.0900684bf0d0cp-31
    -0x1.8b65fdb7e12a8p-35
    0x1.eb229b9ef8378p-36
    -0x1.c73e02e3c270bp-38
    0x1.25af79a219ed0p-39
    -0x1.74c814320372ap-41
    0x1.49e1a0963f55fp-43
    -0x1.8d910fbe933bfp-46
    0x1.4ae685fabb4abp-49
    -0x1.78d7c75116c52p-53
    0x1.181cf25cb0202p-57
    -0x1.e540e03f269acp-63
    0x1.6a96a7724dbd8p-69
""")
# degree 22, weighted error 2**-54.90
FAR = constants("""
    0x1.2aa3c1430b734p-3
    0x1.00f3b54ba7ef1p+0
    0x1.cde3e1149528cp-8
    -0x1.5b68333300cbep-8
    0x1.f1579bc073417p-9
    -0x1.4a493b7f8e285p-9
    0x1.4a7a1f6aa45cbp-10
    -0x1.58a094ff1ac0cp-12
    -0x1.779ced047a5ecp-14
    0x1.1d6ec9dd3c925p-13
    -0x1.edb3270ada6a7p-15
    0x1.25242b1502237p-19
    0x1.7eb506f2fbcfep-17
    -0x1.a4d5ea6398a43p-18
    0x1.dd04ab74d6364p-21
    0x1.919a585a6d347p-21
    -0x1.1e8cc7c876840p-21
    0x1.22c5e5788bee4p-23
    0x1.0ce78361cae90p-25
    -0x1.8dae2e6cf4a05p-25
    0x1.f82052d449485p-27
    0x1.0a99041dda50bp-28
    -0x1.6fdf7d81e2a22p-29
""")

# sqrt(pi)/2 in two parts: a multiple of 2**-29 and the binary64 nearest the rest.
NEAR_HI = float.fromhex("0x1.c5bf892000000p-1")
NEAR_LO = float.fromhex("-0x1.2c4255618f13fp-31")
FAR_HI = 45 / 16


def body(x, rounded=canonical.to_float32):
    """Correctly rounded erf_inv of a canonical float32 array."""
    x64 = canonical.to_float64(x)
    x2 = x64 * x64
    one = const(x64, 1)
    # |x| >= 1 is excluded at the end; until then any number of the domain will do.
    x2 = lax.select(lax.lt(x2, one), x2, const(x64, 0))
    k, f = split(one - x2)
    f = lax.select(lax.eq(k, const(k, 0)), lax.neg(x2), f)
    w = lax.neg(log_parts(k, f)[0])
    near = lax.lt(w, const(w, 5))
    p = lax.select(
        near,
        horner(w, (NEAR_LO, *NEAR)),
        horner(lax.sqrt(w) - const(w, 25 / 8), FAR),
    )
    hi = x64 * lax.select(near, const(w, NEAR_HI), const(w, FAR_HI))
    y = rounded(canonical.round_to_odd(*fast_two_sum(hi, x64 * p)))
    infinity = lax.select(lax.lt(x, const(x, 0)), const(x, -np.inf), const(x, np.inf))
    y = lax.select(lax.eq(lax.abs(x), const(x, 1)), infinity, y)
    y = lax.select(lax.gt(lax.abs(x), const(x, 1)), const(x, np.nan), y)
    return lax.select(canonical.is_nan(x), x, y)
