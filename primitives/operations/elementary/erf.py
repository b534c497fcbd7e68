"""Error function, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is erf(x) rounded to nearest even,
then canonical.

Special values: erf(NaN) = NaN, erf(+-inf) = +-1, erf(0) = +0.

Design: with x = |x| in float64, the sign put back at the end,

    x < 3/2   hi = x * C_HI (exact)   lo = x * (C_LO + x**2 p(x**2))
    else      hi = 1                  lo = -p(x - 87/32)

and hi + lo is rounded to odd at 53 bits.  2/sqrt(pi) = C_HI + C_LO, C_HI of 29 bits.
From 63/16 on erf(x) rounds to 1.

Polynomials: below 3/2 of degree 13, minimax, error relative to erf(x) below 2**-54;
above of degree 23, absolute error below 2**-53.

Hard inputs: above 0x1p-8 no result is closer to a rounding boundary than 9 units in the
last place of binary64; below, where ``lo`` is small, one comes as close as 0.08
(``tests/data/hard_inputs/erf.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/erf-*.json``); on the hard inputs
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

# python -m repjax.primitives.operations.elementary.generate erf
# degree 13, weighted error 2**-54.49
SMALL = constants("""
    -0x1.812746b0379dcp-2
    0x1.ce2f21a04252bp-4
    -0x1.b82ce312717bfp-6
    0x1.565bcd0bddc66p-8
    -0x1.c02db3aaf3db1p-11
    0x1.f9a31fba7b9abp-14
    -0x1.f4d1f0403fdaep-17
    0x1.b9e25739e9bcep-20
    -0x1.5f5265520a436p-23
    0x1.fb5124a94e18fp-27
    -0x1.4c0d7256a5f92p-30
    0x1.7dad4af667d69p-34
    -0x1.58bfe3e4f4d77p-38
    0x1.6436b5f490150p-43
""")
# degree 23, weighted error 2**-53.63
LARGE = constants("""
    0x1.f9da9fde9436ep-14
    -0x1.6caa0d3582391p-11
    0x1.efb729f4cd3edp-10
    -0x1.a2da7cec0df39p-9
    0x1.e6c27ad1bd37fp-9
    -0x1.93b1f34a2b863p-9
    0x1.d8179ce440228p-10
    -0x1.5cf51cc92ef7dp-11
    0x1.16daa852d9f05p-14
    0x1.76592d9e7737bp-14
    -0x1.fa4032661bd5dp-15
    0x1.fef0a65483637p-17
    0x1.2d26364fc5d1cp-19
    -0x1.9e2f98b9d8733p-19
    0x1.e4ea8ce51455cp-21
    0x1.d5954fba89d1bp-25
    -0x1.0b742e557bb4fp-23
    0x1.223bcb186c86dp-25
    0x1.bc114fb29ed3bp-29
    -0x1.25935390617b4p-28
    0x1.70dc574daab6cp-31
    0x1.c9a8dea4263dap-33
    -0x1.11ef765b44b84p-34
    -0x1.9ac43843c9453p-40
""")

# 2/sqrt(pi) in two parts: a multiple of 2**-28 and the binary64 nearest the rest.
C_HI = float.fromhex("0x1.20dd750000000p+0")
C_LO = float.fromhex("0x1.0a6db446b8ea4p-30")


def body(x, rounded=canonical.to_float32):
    """Correctly rounded erf of a canonical float32 array."""
    x64 = canonical.to_float64(x)
    ax = lax.min(lax.abs(x64), const(x64, 63 / 16))
    small = lax.lt(ax, const(ax, 1.5))
    t = ax * ax
    near = ax * (const(t, C_LO) + t * horner(t, SMALL))
    far = lax.neg(horner(ax - const(ax, 87 / 32), LARGE))
    hi = lax.select(small, ax * const(ax, C_HI), const(ax, 1))
    y = canonical.round_to_odd(*fast_two_sum(hi, lax.select(small, near, far)))
    y = lax.select(lax.lt(x64, const(x64, 0)), lax.neg(y), y)
    return lax.select(canonical.is_nan(x), x, rounded(y))
