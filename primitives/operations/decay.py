"""1 - b**t in binary64, for a constant b and an integer array t: what Adam divides by.

An optimizer that computes its constants in double precision on the host,

    correction = 1 - b**t;  float32(numerator / correction);  float32(sqrt(correction))

needs the number of the step as a Python number.  Here t is an array, and may be traced.  Each
operation of binary64 is rounded on its own: b**t, the difference, the quotient or the root,
and then the conversion to binary32.

b**t is the product of b**(2**i) over the bits i of t.  These are constants, pairs of binary64
numbers computed with integers, within 2**-106 of the exact power or 2**-250, whichever is more;
the product of up to 31 pairs, each within 2**-101, is within 2**-96 of b**t.  So b**t is
correctly rounded unless it lies as close as that to the middle of two binary64 numbers; where it
is below 2**-54, 1 - b**t is 1 in any case.  How the compiler contracts products does not matter
(:mod:`repjax.primitives.operations.elementary.double_double`).
"""

from __future__ import annotations

import functools
from fractions import Fraction

import jax
import numpy as np
from jax import lax
from jax.interpreters import batching

from repjax.primitives.core import canonical
from repjax.primitives.core.define import define
from repjax.primitives.operations.elementary import double_double as dd
from repjax.primitives.operations.elementary.basics import const

_BITS = 31  # of a non-negative int32
_FIXED = 1 << 256


@functools.cache
def _squares(base: float) -> np.ndarray:
    """The pairs of base**(2**i), i = 0, ..., 30, as an array [31, 2]."""
    power, pairs = int(Fraction(base) * _FIXED), []
    for _ in range(_BITS):
        high = float(Fraction(power, _FIXED))
        pairs.append((high, float(Fraction(power, _FIXED) - Fraction(high))))
        power = power * power // _FIXED
    return np.array(pairs)


def _one_minus_power(t, base: float):
    """1 - base**t as float64."""
    t = lax.convert_element_type(t, np.int64)
    table = jax.numpy.asarray(_squares(base))

    def step(i, power):
        row = lax.dynamic_index_in_dim(table, i, keepdims=False)
        factor = tuple(lax.broadcast(row[k], t.shape) for k in range(2))
        bit = lax.shift_right_logical(t, lax.full_like(t, i)) & 1
        return dd.select(bit == 1, dd.multiply(power, factor), power)

    one = lax.full_like(t, 1, np.float64)
    high, _ = lax.fori_loop(0, _BITS, step, dd.single(one))
    return canonical.guard(const(high, 1) - canonical.guard(high))


def _quotient(t, *, base: float, numerator: float):
    correction = _one_minus_power(t, base)
    return canonical.to_float32(canonical.guard(lax.div(const(correction, numerator), correction)))


def _root(t, *, base: float):
    return canonical.to_float32(canonical.guard(lax.sqrt(_one_minus_power(t, base))))


def _define(name: str, body):
    def stock(t, **_):
        return lax.full_like(t, 0, np.float32)

    primitive = define(name, body, stock, halves=None)
    batching.defvectorized(primitive)
    return primitive


#: float32(numerator / (1 - base**t)), elementwise, for int32 t >= 0 and 0 <= base < 1.
decayed_quotient_p = _define("decayed_quotient", _quotient)
#: float32(sqrt(1 - base**t)), likewise.
decayed_root_p = _define("decayed_root", _root)
