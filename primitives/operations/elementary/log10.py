"""Logarithm to base 10, correctly rounded.

Contract: for a canonical float32 ``x``, ``body(x)`` is log10(x) rounded to nearest even,
then canonical.

Special values: log10(NaN) = NaN, log10(x < 0) = NaN, log10(0) = -inf, log10(+inf) = +inf;
powers of ten are exact.

Range reduction, polynomial and ending: those of :mod:`.log2`, with
log10(2) = UNIT_HI + UNIT_LO (UNIT_HI a multiple of 2**-44) and
1/log(10) = INV_HI + INV_LO (INV_HI of 27 bits).

Hard inputs: results come as close to a rounding boundary as 0.09 units in the last place
of binary64 (``tests/data/hard_inputs/log10.txt`` has those within 64).

Proven: 0 of all 2**32 inputs are misrounded by the compiled XLA CPU code with AVX-512 (FMA)
and with SSE4.2 (no FMA), jax 0.10.2 (``docs/proofs/log10-*.json``); on the hard inputs
contraction of any multiply-adds changes nothing (sampled patterns, in the tests).
"""

from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary.log2 import scaled_log

# log10(2) and 1/log(10), each in two parts: a multiple of 2**-44 or 2**-28 and the binary64
# nearest the rest.
UNIT_HI = float.fromhex("0x1.34413509f7800p-2")
UNIT_LO = float.fromhex("0x1.fef311f12b358p-46")
INV_HI = float.fromhex("0x1.bcb7b14000000p-2")
INV_LO = float.fromhex("0x1.26e50e32a6ab7p-30")


def body(x, rounded=canonical.to_float32):
    """Correctly rounded base-10 logarithm of a canonical float32 array."""
    return scaled_log(x, UNIT_HI, UNIT_LO, INV_HI, INV_LO, rounded)
