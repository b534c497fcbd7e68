"""Canonical values, guards and error-free transformations.

Everything else in repjax is built from the few functions of this module.  They
are plain functions on arrays, meant to be called inside the body of a primitive
(see :mod:`repjax.primitives.core.define`), where 64-bit types are enabled.

**Canonical values.**  A float format's canonical values are +0, the finite normal
numbers, +inf, -inf and one quiet NaN.  Backends disagree about everything else:
XLA's CPU code flushes subnormals and GPU code keeps them, x86 detects tininess
after rounding and others before, algebraic rewrites change the sign of a zero,
and the payload of a NaN depends on the platform.

**Guards.**  A guard is a select by the magnitude of a result, by its bits or, of few
elements on some platforms, by its value (:data:`few_by_value`).  It makes the
result canonical, and because the compiler cannot look through it, it also keeps
LLVM from fusing a product into an FMA and XLA's algebraic simplifier from
reassociating through it.  Every rounded operation ends in a guard, but for those of short loops
on some CPUs, where all are looked at together (``cpu/speculation.py``):

* :func:`flush` after add and subtract, which are exact below the smallest normal
  number, so that only true subnormals and -0 become +0;
* :func:`guard` after every other operation.  It also flushes the smallest normal
  number itself, which a platform that detects tininess before rounding would
  flush and another would return.
"""

from __future__ import annotations

import contextvars
import dataclasses

import jax
import numpy as np
from jax import lax


@dataclasses.dataclass(frozen=True)
class Format:
    """The encoding of a binary floating-point format, as integers of its width."""

    float_dtype: np.dtype
    int_dtype: np.dtype
    mantissa_bits: int
    bias: int
    magnitude: int  # mask of everything but the sign
    tiny: int  # the smallest normal number
    infinity: int
    nan: int  # the one canonical NaN: quiet, positive, no payload


def _format(float_dtype, int_dtype, exponent_bits: int) -> Format:
    width = np.dtype(int_dtype).itemsize * 8
    mantissa_bits = width - 1 - exponent_bits
    infinity = ((1 << exponent_bits) - 1) << mantissa_bits
    return Format(
        float_dtype=np.dtype(float_dtype),
        int_dtype=np.dtype(int_dtype),
        mantissa_bits=mantissa_bits,
        bias=(1 << (exponent_bits - 1)) - 1,
        magnitude=(1 << (width - 1)) - 1,
        tiny=1 << mantissa_bits,
        infinity=infinity,
        nan=infinity | (1 << (mantissa_bits - 1)),
    )


FORMATS = {
    f.float_dtype: f
    for f in (
        _format(np.float64, np.int64, 11),
        _format(np.float32, np.int32, 8),
        _format(np.float16, np.int16, 5),
        _format(jax.numpy.bfloat16, np.int16, 8),
    )
}


#: The formats of 16 bits, in which bodies do not compute.
HALVES = (np.dtype(np.float16), np.dtype(jax.numpy.bfloat16))


def format_of(x) -> Format:
    """The :class:`Format` of a floating-point array, or TypeError."""
    try:
        return FORMATS[np.dtype(x.dtype)]
    except KeyError:
        raise TypeError(
            f"repjax expected a float16, bfloat16, float32 or float64 array, got {x.dtype}; "
            "convert it to one of these formats first"
        ) from None


def bits(x):
    """The bits of a float array as signed integers of the same width."""
    return lax.bitcast_convert_type(x, format_of(x).int_dtype)


def from_bits(i, float_dtype):
    """The float array whose bits are the integers ``i``."""
    return lax.bitcast_convert_type(i, float_dtype)


def _const(i, value: int):
    return lax.full_like(i, value)


def _zero_where(condition, x):
    return lax.select(condition, _const(x, 0), x)


#: Whether guards of few elements compare numbers instead of bits, for platforms that choose a
#: number by the bits of another more slowly; and how many are few: those that LLVM does not put
#: into one vector.
few_by_value = contextvars.ContextVar("few_by_value", default=False)
FEW = 3


def _zero_where_tiny(x, compare):
    """Canonical zero wherever the magnitude compares so with the smallest normal number."""
    f = format_of(x)
    if few_by_value.get() and x.size <= FEW and f.float_dtype not in HALVES:
        tiny = np.array(f.tiny, f.int_dtype).view(f.float_dtype)
        # Whether a thread takes subnormal numbers for zero or not, they are less than it.
        return _zero_where(compare(lax.abs(x), _const(x, tiny)), x)
    i = bits(x)
    magnitude = i & _const(i, f.magnitude)
    return from_bits(_zero_where(compare(magnitude, _const(i, f.tiny)), i), x.dtype)


def guard(x):
    """Canonical zero wherever ``|x|`` is at most the smallest normal number.

    The result of every rounded operation except add and subtract passes through
    here.  NaNs keep their payload; see :func:`canonicalize`.
    """
    return _zero_where_tiny(x, lax.le)


def flush(x):
    """Canonical zero wherever ``x`` is -0 or subnormal; the guard of add and subtract."""
    return _zero_where_tiny(x, lax.lt)


def unseen(x, by):
    """``x``, of which LLVM sees what it is, and XLA only that it differs as the integers do."""
    return from_bits((bits(x) ^ by) ^ by, x.dtype)


def product(x, y):
    """``x * y``, guarded: rounded by itself, where the compiler could fuse it with a sum."""
    return guard(x * y)


def canonicalize(x):
    """The canonical value of any bit pattern: :func:`flush`, and one NaN."""
    f = format_of(x)
    i = bits(x)
    magnitude = i & _const(i, f.magnitude)
    i = _zero_where(lax.lt(magnitude, _const(i, f.tiny)), i)
    i = lax.select(lax.gt(magnitude, _const(i, f.infinity)), _const(i, f.nan), i)
    return from_bits(i, x.dtype)


def is_nan(x):
    """Where ``x`` is NaN, decided on the bits (a float comparison may be folded)."""
    f = format_of(x)
    i = bits(x)
    return lax.gt(i & _const(i, f.magnitude), _const(i, f.infinity))


def one_nan(x):
    """The canonical value of what a guard has left: every NaN the one.

    It ends in a select of floating-point numbers, since XLA computes an operation of one operand,
    such as a conversion of bits, again in each loop that reads it, and all that it is made of.
    """
    nan = from_bits(_const(bits(x), format_of(x).nan), x.dtype)
    return lax.select(is_nan(x), nan, x)


def broadcast(*arrays):
    """The arrays, each broadcast to the shape of all of them together."""
    shape = lax.broadcast_shapes(*(x.shape for x in arrays))
    return [lax.broadcast_in_dim(x, shape, range(len(shape) - x.ndim, len(shape))) for x in arrays]


def broadcast_axes(x, shape, axes):
    """``x`` in this shape, its axes made these, in any order.

    Not by ``lax.broadcast_in_dim`` alone: where shapes are equal, as those of square matrices, JAX
    leaves it out when it is traced, whatever the order of the axes.
    """
    order = sorted(range(len(axes)), key=axes.__getitem__)
    return lax.broadcast_in_dim(lax.transpose(x, order), shape, sorted(axes))


def to_float64(x):
    """Exact conversion of a canonical float array to float64."""
    return lax.convert_element_type(x, np.float64)


def to_float32(y):
    """float64 to float32, rounded to nearest even, then canonical.

    ``y`` must come from a guard or from arithmetic that no rewrite can merge with
    the conversion: a bare ``float64(float32)`` quotient is narrowed on GPUs.
    """
    return guard(lax.convert_element_type(y, np.float32))


def to_odd(y):
    """float64 rounded to odd at float32's precision; exact in a conversion to float32.

    For results that are rounded once more, to a format of at most 22 bits: that rounding
    is then the one of ``y`` (:func:`round_to_odd`).
    """
    i = bits(y)
    inexact = lax.convert_element_type(lax.ne(i & _const(i, 0x1FFFFFFF), _const(i, 0)), np.int64)
    return from_bits((i & _const(i, ~0x1FFFFFFF)) | lax.shift_left(inexact, _const(i, 29)), y.dtype)


def to_float32_odd(y):
    """:func:`to_float32`, but rounded to odd, where the result is yet to be narrowed."""
    return to_float32(to_odd(y))


def power_of_two(exponent):
    """2.0**exponent as float64, for an int64 array of normal exponents."""
    return from_bits((exponent + 1023) << 52, np.float64)


def to_integers(x, exponent):
    """``x * 2**exponent`` rounded to an integer, ties to even, as float64.

    Finite float32 and int64 of shapes that broadcast, with 2**exponent normal in float64.
    """
    product = to_float64(x) * power_of_two(exponent)
    return lax.round(product, lax.RoundingMethod.TO_NEAREST_EVEN)


def from_integers(total, exponent):
    """``total * 2**exponent`` rounded to float32 once, canonical; two int64 arrays.

    ``total * 2**exponent`` is to be a normal number of float64, or zero.
    """
    return scale_to_float32(odd_integers(total), exponent)


def odd_integers(total):
    """An int64 array as float64, rounded to odd, so that float32 rounds the exact integers."""
    half = np.int64(1 << 31)  # in two parts, each of them exact
    high = to_float64(lax.shift_right_arithmetic(total, np.int64(31)))
    sums = two_sum(high * np.float64(half), to_float64(total & (half - 1)))
    return guard(round_to_odd(*sums))


def scale_to_float32(y, exponent):
    """Float64 times 2**exponent, a normal number of float64 or zero, rounded to float32 once."""
    return to_float32(guard(y * power_of_two(exponent)))


# On the bits, because not every CPU has instructions for float16, nor XLA's code a substitute,
# and because hardware rounds subnormals or flushes them.


def widen(x):
    """float16 or bfloat16 to float32; exact."""
    f = format_of(x)
    i = lax.convert_element_type(bits(x), np.int32)
    magnitude = i & f.magnitude
    shift = 23 - f.mantissa_bits
    rebias = (127 - f.bias) << 23
    wide = lax.select(
        magnitude >= f.infinity,
        (magnitude << shift) | 0x7F800000,
        (magnitude << shift) + rebias,
    )
    # Not ``magnitude == 0``: of that LLVM makes a comparison of float16 with zero.
    wide = lax.select(magnitude < f.tiny, _const(i, 0), wide)
    return from_bits(wide | (i & np.int32(-0x80000000)), np.float32)


def narrow(x, dtype, ending=guard):
    """Canonical float32 to float16 or bfloat16: rounded to nearest even, then ``ending``."""
    f = FORMATS[np.dtype(dtype)]
    i = bits(x)
    magnitude = i & 0x7FFFFFFF
    shift = 23 - f.mantissa_bits
    rebias = (127 - f.bias) << 23
    odd = lax.shift_right_logical(magnitude, np.int32(shift)) & 1
    rounded = lax.shift_right_logical(
        magnitude - rebias + ((1 << (shift - 1)) - 1) + odd, np.int32(shift)
    )
    rounded = lax.min(rounded, np.int32(f.infinity))
    rounded = lax.select(magnitude > 0x7F800000, _const(i, f.nan), rounded)
    rounded = lax.select(magnitude <= rebias, _const(i, 0), rounded)  # which wraps around
    sign = lax.shift_right_logical(i, np.int32(31)) << (16 - 1)
    return ending(from_bits(lax.convert_element_type(rounded | sign, np.int16), f.float_dtype))


def two_sum(a, b):
    """Error-free sum (Knuth 1969; Moller 1965): ``s + e == a + b`` exactly, ``s = RN(a + b)``.

    The same whether or not compilers fuse, as long as ``a`` and ``b`` are not themselves inexact
    products.  ``e`` is NaN where ``s`` is not finite.
    """
    s = a + b
    bb = s - a
    return s, (a - (s - bb)) + (b - bb)


def round_to_odd(hi, lo):
    """float64 rounding to odd of the exact ``hi + lo``, for ``|lo| <= ulp(hi)/2``.

    Where ``lo`` is zero (or NaN) the result is ``hi``.  A value rounded to odd at 53
    bits rounds to float32 as the exact value would (Boldo and Melquiond 2008,
    "Emulation of FMA and correctly rounded sums: proved algorithms using rounding
    to odd"): the last bit is sticky.
    """
    i = bits(hi)
    inexact = lax.bitwise_or(lax.lt(lo, lax.full_like(lo, 0)), lax.gt(lo, lax.full_like(lo, 0)))
    # Opposite signs: the exact value lies towards zero, so truncate first.
    towards_zero = lax.shift_right_logical(bits(lo) ^ i, _const(i, 63))
    odd = (i - towards_zero) | _const(i, 1)
    return from_bits(lax.select(inexact, odd, i), hi.dtype)
