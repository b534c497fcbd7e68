"""Values and roundings of docs/numerics.md, sections 1 and 11, in NumPy and rational numbers."""

from __future__ import annotations

import functools
import math
from fractions import Fraction

import ml_dtypes
import numpy as np

TINY = np.float32(2.0**-126)
CANONICAL_NAN = np.uint32(0x7FC00000)
FLOAT32, FLOAT64, COMPLEX64 = np.dtype("float32"), np.dtype("float64"), np.dtype("complex64")
HALVES = np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)
#: What is rounded; other formats are moved and compared only.
FORMATS = (FLOAT32, *HALVES)


def is_float(dtype) -> bool:
    """Whether it is a format of floating-point numbers, complex ones aside."""
    dtype = np.dtype(dtype)
    return dtype.kind == "f" or dtype == HALVES[1]


def is_integer(dtype) -> bool:
    """Those of 2 and 4 bits, too; not booleans."""
    dtype = np.dtype(dtype)
    return dtype.kind in "iu" or dtype.name in ("int2", "int4", "uint2", "uint4")


def is_bool(dtype) -> bool:
    return np.dtype(dtype).kind == "b"


@functools.cache
def smallest_normal(dtype) -> float:
    return float(ml_dtypes.finfo(dtype).smallest_normal)


@functools.cache
def precision(dtype) -> int:
    """Bits of the significand, the hidden one too."""
    return int(ml_dtypes.finfo(dtype).nmant) + 1


def bits(x):
    """The bits of a float32 array, with every NaN the canonical one."""
    x = np.asarray(x)
    assert x.dtype == np.float32, x.dtype
    return np.where(np.isnan(x), CANONICAL_NAN, x.view(np.uint32))


def guard(x):
    """The canonical value after any rounded operation but an addition, of any format."""
    x = np.asarray(x)
    return np.where(np.abs(x) <= smallest_normal(x.dtype), np.zeros_like(x), x)


def flush(x):
    """The canonical value after an addition, which is exact below the smallest normal."""
    x = np.asarray(x)
    return np.where(np.abs(x) < smallest_normal(x.dtype), np.zeros_like(x), x)


def canonical(x) -> np.ndarray:
    """The canonical value of any array: one NaN, no subnormals, no -0; integers as they are."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        return complex_of(canonical(x.real), canonical(x.imag)).astype(x.dtype)
    if not is_float(x.dtype):
        return x
    with np.errstate(invalid="ignore"):  # signalling NaNs
        return np.where(np.isnan(x), np.full_like(x, np.nan), flush(x))


def complex_of(real, imaginary) -> np.ndarray:
    """Not by arithmetic, in which an infinite part makes a NaN of the other."""
    result = np.empty(np.shape(real), COMPLEX64)
    result.real, result.imag = real, imaginary
    return result


@np.errstate(all="ignore")
def add(a, b):
    return flush(a + b)


@np.errstate(all="ignore")
def multiply(a, b):
    return guard(a * b)


@np.errstate(all="ignore")
def divide(a, b):
    """By float64, whose rounding does not matter to a quotient (Figueroa 1995)."""
    return guard((np.asarray(a, np.float64) / np.asarray(b, np.float64)).astype(np.float32))


@np.errstate(all="ignore")
def root(a):
    return guard(np.sqrt(np.asarray(a, np.float64)).astype(np.float32))


# --- roundings --------------------------------------------------------------------------


def narrow(x, dtype, ending=guard) -> np.ndarray:
    """float32 or float64 to a narrower format, to nearest even at once, and then ``ending``.

    On the bits, since ml_dtypes rounds float64 by way of float32.
    """
    x, dtype = np.asarray(x), np.dtype(dtype)
    if x.dtype == dtype:
        return ending(x)
    word = np.dtype(f"u{x.dtype.itemsize}")
    dropped = precision(x.dtype) - precision(dtype)
    i = np.ascontiguousarray(x).view(word).reshape(x.shape)
    odd = i >> word.type(dropped) & word.type(1)
    mask = ~word.type((1 << dropped) - 1)
    i = (i + (word.type((1 << (dropped - 1)) - 1) + odd)) & mask
    with np.errstate(all="ignore"):
        return ending(np.where(np.isnan(x), np.nan, i.view(x.dtype)).astype(dtype))


def nearest(sign: int, mantissa: int, exponent: int, bits: int) -> float:
    """``mantissa * 2**exponent``, rounded to so many bits, to nearest even, as a float.

    Args:
      sign: 0 or 1.
      mantissa: not negative.
      bits: at most 53; the exponent is limited by the range of float64 alone.
    """
    last = exponent + mantissa.bit_length() - bits
    if (drop := last - exponent) > 0:
        rest, mantissa = mantissa & ((1 << drop) - 1), mantissa >> drop
        half = 1 << (drop - 1)
        mantissa += rest > half or (rest == half and mantissa & 1)
        exponent = last
    try:
        value = math.ldexp(mantissa, exponent)
    except OverflowError:
        value = math.inf
    return -value if sign and value else value


def rounded(exact: Fraction) -> np.float32:
    """The nearest binary32 number, of two the even one.  The sign of a zero is positive."""
    size = abs(exact)
    if size <= Fraction(2) ** -150:  # a tie with zero goes to zero, the even one
        return np.float32(0)
    exponent = size.numerator.bit_length() - size.denominator.bit_length()
    exponent -= size < Fraction(2) ** exponent  # now 2**exponent <= size
    ulp = Fraction(2) ** (max(exponent, -126) - 23)
    nearest = round(size / ulp) * ulp  # Fraction rounds half to even
    result = math.inf if nearest >= 2**128 else float(nearest)
    return np.float32(math.copysign(result, exact))


def rounded_to(exact: Fraction, dtype) -> np.ndarray:
    """A rational number, whose denominator is a power of two, rounded once; not yet canonical."""
    mantissa, denominator = abs(exact.numerator), exact.denominator
    assert denominator & (denominator - 1) == 0, exact
    value = nearest(exact < 0, mantissa, 1 - denominator.bit_length(), precision(dtype))
    with np.errstate(over="ignore"):
        return np.asarray(np.float64(value).astype(dtype))


class ExactSum:
    """Sums of float64 arrays, exact, as Python's integers; multiples of 2**-298.

    What is not finite is added apart, as IEEE arithmetic does in any order.
    """

    LOWEST = -298

    def __init__(self, shape):
        self.total, self.special = np.zeros(shape, object), np.zeros(shape, np.float64)

    def add(self, x) -> None:
        x = np.asarray(x, np.float64)
        finite = np.isfinite(x)
        steps = np.frompyfunc(int, 1, 1)(np.ldexp(np.where(finite, x, 0), -self.LOWEST))
        self.total = np.asarray(self.total + steps, object)
        with np.errstate(invalid="ignore"):
            self.special = self.special + np.where(finite, 0, x)

    def rounded(self, dtype) -> np.ndarray:
        """guard(RN(the sum)) in a format."""
        out = np.empty(self.total.shape, dtype)
        for i in np.ndindex(out.shape):
            total = int(self.total[i])
            value = nearest(int(total < 0), abs(total), self.LOWEST, precision(dtype))
            with np.errstate(all="ignore"):
                out[i] = np.float64(value if self.special[i] == 0 else self.special[i])
        return canonical(guard(out))


# --- fused multiply-add ----------------------------------------------------------------


def fma_exact(a, b, c) -> np.float32:
    """``a*b + c`` of three finite float32 numbers, rounded to binary32, by rational numbers.

    Subnormal results are kept.
    """
    return rounded(Fraction(float(a)) * Fraction(float(b)) + Fraction(float(c)))


def fma(a, b, c):
    """``a*b + c`` rounded once to binary32 with gradual underflow, elementwise.

    The product is exact in float64; its sum with c is rounded to odd (to the neighbour
    with an odd last bit, if inexact), which makes the second rounding harmless.
    """
    with np.errstate(all="ignore"):
        return _odd_sum(np.multiply(a, b, dtype=np.float64), c).astype(np.float32)


def _odd_sum(p, c):
    """The sum of float64 numbers, rounded to odd."""
    c = np.asarray(c, np.float64)
    t = p + c
    v = t - p
    error = (p - (t - v)) + (c - v)
    even = t.view(np.int64) % 2 == 0
    inexact = np.isfinite(t) & (error != 0)
    return np.where(inexact & even, np.nextafter(t, np.copysign(np.inf, error)), t)


@np.errstate(all="ignore")
def fma_to(a, b, c, dtype):
    """:func:`fma` of any format, canonical: to float16 and bfloat16 it is rounded once."""
    p = np.asarray(np.multiply(a, b, dtype=np.float64))
    odd = _odd_sum(p, c)
    return guard(odd.astype(np.float32)) if dtype == FLOAT32 else narrow(odd, dtype)
