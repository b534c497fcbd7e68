"""Cube root, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is the real cube root of x rounded to
nearest even, then canonical.

Special values: cbrt(NaN) = NaN, cbrt(+-inf) = +-inf, cbrt(0) = +0; cbrt(-x) = -cbrt(x).

Range reduction: |x| = 2**(3 q) a with a = 2**s m, s in {0, 1, 2}, 1 <= m < 2.

Polynomial: t = 2**(-s/3) p(m) is a**(-1/3) within 2**-20, p of degree 6, minimax.  With
y = a t**2 and h = 1 - y t, cbrt(a) = y (1 - h)**(-2/3) = y (1 + 2/3 h + 5/9 h**2 + O(h**3)).
The error is below 3 units in the last place of binary64: that of y enters by a third, the
correction sees it.

Hard inputs: the closest a result comes to a rounding boundary is 9.65 such units
(``tests/data/hard_inputs/cbrt.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/cbrt-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
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

# python -m repjax.primitives.operations.elementary.generate cbrt
# degree 6, weighted error 2**-20.09
COEFFICIENTS = constants("""
    0x1.e13948875b9a1p+0
    -0x1.fc418622c1409p+0
    0x1.fa1b78fdcc9a8p+0
    -0x1.45fab1a3970a2p+0
    0x1.0104b6e6fdcd9p-1
    -0x1.c43c624a12e17p-4
    0x1.5468f6a88ab5bp-7
""")

# 2**(-1/3) and 2**(-2/3).
ROOT_1 = float.fromhex("0x1.965fea53d6e3dp-1")
ROOT_2 = float.fromhex("0x1.428a2f98d728bp-1")


def body(x, rounded=canonical.to_float32):
    """Correctly rounded cube root of a canonical float32 array."""
    x64 = lax.abs(canonical.to_float64(x))
    i = canonical.bits(x64)
    exponent = lax.shift_right_logical(i, const(i, 52)) - const(i, 1023)
    n = exponent + const(i, 3 * 43)  # 3 <= n <= 256, where 21846 n / 2**16 is n / 3
    q = lax.shift_right_logical(n * const(i, 21846), const(i, 16))
    s = n - const(i, 3) * q
    m = canonical.from_bits(i - lax.shift_left(exponent, const(i, 52)), np.float64)
    a = m * power_of_two(s)
    t = horner(m, COEFFICIENTS)
    root = lax.select(lax.eq(s, const(s, 1)), const(t, ROOT_1), const(t, ROOT_2))
    t = t * lax.select(lax.eq(s, const(s, 0)), const(t, 1), root)
    y = a * (t * t)
    h = const(y, 1) - y * t
    y = y + y * (h * (const(h, 2 / 3) + const(h, 5 / 9) * h))
    y = y * power_of_two(q - const(q, 43))
    y = rounded(lax.select(lax.lt(x, const(x, 0)), lax.neg(y), y))
    ordinary = lax.lt(lax.abs(x), const(x, np.inf)) & lax.ne(x, const(x, 0))
    return lax.select(ordinary, y, x)
