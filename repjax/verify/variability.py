"""How far numbers that should be the same are apart.

The measures of the study of floating-point non-associativity (section II there), computed in
float64 and summed exactly, and two of bits::

    Vs    1 - |b / a| of two numbers: losses, metrics and mean absolute errors that differ
    Vermv the mean over elements of |a - b| / |a|
    Vc    the share of elements that differ
    ULPs  the largest distance of two elements, counted in numbers of their type
    bits  how many bits differ

Conventions, where the study leaves them open: Vc compares bits, so that a zero of the other sign
counts and equal NaNs do not.  Vs does not see signs; changes of sign are counted beside it.  Where
a and b have equal bits, a term is 0.  Elsewhere, where a is 0, a or b is no finite number, or the
term is beyond float64, it is undefined: such elements are counted, and left out of Vermv's mean; Vs
is None.  ULPs are those of finite elements; 0 and -0 are none apart.
"""

from __future__ import annotations

import contextlib
import dataclasses
import fractions
import math
from collections.abc import Sequence

import jax
import numpy as np

from repjax.digests import little_endian


@dataclasses.dataclass(frozen=True)
class Variability:
    """Of the elements of two arrays, ``a`` and ``b``.

    Attributes:
      name: what they are.
      elements: how many there are.
      differ: how many differ in bits, so that Vc is their share.
      vermv: the mean over the elements for which it is defined.
      undefined: how many these are not.
      signs: how many differ in sign.
      ulps: the largest distance, None where no two finite ones of a type with 16 to 64 bits differ.
      bits, all_bits: how many bits differ, and there are.
    """

    name: str
    elements: int
    differ: int
    vermv: float
    undefined: int
    signs: int
    ulps: int | None
    bits: int
    all_bits: int

    @property
    def vc(self) -> fractions.Fraction:
        return fractions.Fraction(self.differ, self.elements or 1)

    @property
    def share_of_bits(self) -> fractions.Fraction:
        return fractions.Fraction(self.bits, self.all_bits or 1)


@dataclasses.dataclass(frozen=True)
class Scalar:
    """Of two numbers that differ: what they are, and Vs, None where that is undefined."""

    name: str
    vs: float | None


def differing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which elements of two arrays of one type differ in bits."""
    if a.size == 0:
        return np.zeros(a.shape, bool)
    words = [little_endian(x).reshape(a.size, -1) for x in (a, b)]
    return (words[0] != words[1]).any(1).reshape(a.shape)


def vs(a: float, b: float) -> float | None:
    """1 - |b / a|, None where that is undefined."""
    if np.float64(a).view(np.uint64) == np.float64(b).view(np.uint64):
        return 0.0
    if a == 0 or not (math.isfinite(a) and math.isfinite(b)):
        return None
    with contextlib.suppress(OverflowError):
        return float(1 - abs(fractions.Fraction(b) / fractions.Fraction(a)))
    return None


def measure(name: str, a: np.ndarray, b: np.ndarray) -> Variability:
    """Of two arrays of one shape and type of floats."""
    differ = differing(a, b)
    a, b = np.asarray(a)[differ], np.asarray(b)[differ]
    with np.errstate(all="ignore"):  # signalling NaNs
        x, y = (np.asarray(v, np.float64) for v in (a, b))
    finite = np.isfinite(x) & np.isfinite(y)
    with np.errstate(all="ignore"):
        terms = np.abs(x - y) / np.abs(x)
    defined = finite & (x != 0) & np.isfinite(terms)
    count = differ.size - int((~defined).sum())
    return Variability(
        name,
        differ.size,
        int(differ.sum()),
        math.fsum(terms[defined]) / count if count else 0.0,
        int((~defined).sum()),
        int((np.signbit(x) != np.signbit(y)).sum()),
        _ulps(a[finite], b[finite]),
        int(np.bitwise_count(little_endian(a) ^ little_endian(b)).sum()),
        8 * a.dtype.itemsize * differ.size,
    )


def together(name: str, found: Sequence[Variability]) -> Variability:
    """Of the elements of several arrays."""
    defined = [x.elements - x.undefined for x in found]
    total = math.fsum(x.vermv * count for x, count in zip(found, defined, strict=True))
    counts = (
        sum(getattr(x, field) for x in found)
        for field in ("elements", "differ", "undefined", "signs", "bits", "all_bits")
    )
    elements, differ, undefined, signs, bits, all_bits = counts
    ulps = max((x.ulps for x in found if x.ulps is not None), default=None)
    vermv = total / (sum(defined) or 1)
    return Variability(name, elements, differ, vermv, undefined, signs, ulps, bits, all_bits)


def _ulps(a: np.ndarray, b: np.ndarray) -> int | None:
    """The largest distance of elements of finite numbers, in numbers of their type."""
    width = a.dtype.itemsize
    if not a.size or width not in (2, 4, 8):
        return None
    words = [little_endian(v).view(f"<u{width}").astype(np.uint64) for v in (a, b)]
    sign = np.uint64(1 << (8 * width - 1))
    (p, of_p), (q, of_q) = ((w & ~sign, w & sign) for w in words)
    return int(np.where(of_p == of_q, np.maximum(p, q) - np.minimum(p, q), p + q).max())


def is_float(x: np.ndarray) -> bool:
    """Whether an array has real floats, those that NumPy lacks among them."""
    return jax.dtypes.issubdtype(x.dtype, np.floating)
