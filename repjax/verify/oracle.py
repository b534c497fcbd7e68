"""The oracle of the proofs: correctly rounded, then canonical, results of any function.

Shares no code with ``repjax.primitives``.  A result is settled in one of two ways:

* by a **filter**: a float64 reference y (NumPy or SciPy) is widened to the interval
  y (1 +- 2**-41), 4096 units in the last place of float64 on either side, where the
  references claim errors of a few units.  If both ends have the same canonical result,
  so does every number between them.  Some 1 in 2**16 inputs is left over.  A function
  whose reference cancels near its zeros has a *scale*, and the interval is
  y +- 2**-41 (|y| + scale): more is left over close to a zero;
* by **MPFR** (gmpy2), at 256 bits and, if a rounding boundary is still too near, at
  1024.  Exact results, which may be ties, are recognised by MPFR's inexact flag.

The filter does not rest on the references' claims alone: one input in 16,381 is an
**audit**, where MPFR checks both the result and the error of the reference.

Source of the method: Ziv, "Fast evaluation of elementary mathematical functions with
correctly rounded last bit", ACM TOMS 17(3), 1991.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
import scipy
import scipy.special

try:
    import gmpy2
except ImportError:  # an extra: the rest of repjax does without
    gmpy2 = None


@dataclasses.dataclass(frozen=True)
class Format:
    """A binary format: its NumPy types and the bits of its significand, the hidden one too."""

    float_type: type
    uint_type: type
    precision: int

    @property
    def width(self) -> int:
        return np.dtype(self.uint_type).itemsize * 8

    @property
    def tiny(self) -> int:
        """The bits of the smallest normal number."""
        return 1 << (self.precision - 1)

    @property
    def sign(self) -> int:
        return 1 << (self.width - 1)

    @property
    def infinity(self) -> int:
        return self.sign - self.tiny

    @property
    def nan(self) -> int:
        """The one canonical NaN: quiet, positive, without payload."""
        return self.infinity | self.tiny >> 1


FLOAT32 = Format(np.float32, np.uint32, 24)
FLOAT16 = Format(np.float16, np.uint16, 11)
BFLOAT16 = Format(ml_dtypes.bfloat16, np.uint16, 8)
#: Half of the filter's interval, relative; the largest error an audit may find in a reference.
FILTER, AUDIT_LIMIT = 2.0**-41, 2.0**-45
#: Every input whose bits are a multiple of this prime is an audit.
AUDIT_STRIDE = 16381
#: MPFR's precisions, and the bits that may be lost to roundings within a function.
PRECISIONS, LOST_BITS = (256, 1024), 64


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of one variable, twice.

    Attributes:
      reference: on float64 arrays, with an error far below the filter's interval.
      exact: on an ``mpfr``, in the precision of gmpy2's current context, with an error
        below 2**64 units in the last place.
      scale: the errors of ``reference`` are relative to |reference| + scale.

    Both give IEEE 754's results at poles (the sign of x / 0 being that of x), NaN
    outside of the domain.
    """

    reference: Callable[[np.ndarray], np.ndarray]
    exact: Callable[[Any], Any]
    scale: float = 0.0


def _erf_inv_reference(x):
    return scipy.special.erfinv(np.where(np.abs(x) <= 1, x, np.nan))  # its errors are slow


def _erf_inv(x):
    """Newton's method on erf(y) = x, from float64."""
    y = gmpy2.mpfr(float(scipy.special.erfinv(float(x))))
    if not gmpy2.is_finite(y) or y == 0:
        return y
    precision = gmpy2.get_context().precision
    for _ in range(precision.bit_length() - 4):  # 53 bits, 106, 212, ...
        y -= (gmpy2.erf(y) - x) * gmpy2.exp(y * y) * gmpy2.sqrt(gmpy2.const_pi()) / 2
    return y


def _lgamma_reference(x):
    return scipy.special.gammaln(np.where(x == -np.inf, np.inf, x))  # its limit, not its value


def _digamma_reference(x):
    """The reflection by the distance from the nearest pole; SciPy's is by that from one side."""
    r = x - np.rint(x)
    cotangent = np.pi / np.tan(np.pi * np.where(r == 0, np.nan, r))
    return scipy.special.psi(np.where(x < 0, 1 - x, x)) - np.where(x < 0, cotangent, 0)


#: A new function needs one line here; its compiled form is ``repjax.lax.<name>``.
FUNCTIONS = {
    "acos": Function(np.arccos, lambda x: gmpy2.acos(x)),
    "acosh": Function(np.arccosh, lambda x: gmpy2.acosh(x)),
    "asin": Function(np.arcsin, lambda x: gmpy2.asin(x)),
    "asinh": Function(np.arcsinh, lambda x: gmpy2.asinh(x)),
    "atan": Function(np.arctan, lambda x: gmpy2.atan(x)),
    "atanh": Function(np.arctanh, lambda x: gmpy2.atanh(x)),
    "cbrt": Function(np.cbrt, lambda x: gmpy2.cbrt(x)),
    "cos": Function(np.cos, lambda x: gmpy2.cos(x)),
    "cosh": Function(np.cosh, lambda x: gmpy2.cosh(x)),
    "digamma": Function(_digamma_reference, lambda x: gmpy2.digamma(x), scale=1),
    "erf": Function(scipy.special.erf, lambda x: gmpy2.erf(x)),
    "erf_inv": Function(_erf_inv_reference, _erf_inv),
    "erfc": Function(scipy.special.erfc, lambda x: gmpy2.erfc(x)),
    "exp": Function(np.exp, lambda x: gmpy2.exp(x)),
    "exp10": Function(scipy.special.exp10, lambda x: gmpy2.exp10(x)),
    "exp2": Function(np.exp2, lambda x: gmpy2.exp2(x)),
    "expm1": Function(np.expm1, lambda x: gmpy2.expm1(x)),
    "lgamma": Function(_lgamma_reference, lambda x: gmpy2.lgamma(x)[0], scale=1),
    "log": Function(np.log, lambda x: gmpy2.log(x)),
    "log10": Function(np.log10, lambda x: gmpy2.log10(x)),
    "log1p": Function(np.log1p, lambda x: gmpy2.log1p(x)),
    "log2": Function(np.log2, lambda x: gmpy2.log2(x)),
    "logistic": Function(lambda x: 1 / (1 + np.exp(-x)), lambda x: 1 / (1 + gmpy2.exp(-x))),
    "reciprocal": Function(np.reciprocal, lambda x: 1 / x),
    "rsqrt": Function(lambda x: 1 / np.sqrt(x), lambda x: gmpy2.rec_sqrt(x)),
    "sin": Function(np.sin, lambda x: gmpy2.sin(x)),
    "sinh": Function(np.sinh, lambda x: gmpy2.sinh(x)),
    "sqrt": Function(np.sqrt, lambda x: gmpy2.sqrt(x)),
    "square": Function(np.square, lambda x: x * x),
    "tan": Function(np.tan, lambda x: gmpy2.tan(x)),
    "tanh": Function(np.tanh, lambda x: gmpy2.tanh(x)),
}


@dataclasses.dataclass(frozen=True)
class Expected:
    """The canonical, correctly rounded results for an array of inputs.

    Attributes:
      bits: the results' bits.
      reference: the float64 reference values.
      by_mpfr: how many of them the filter left to MPFR.
      audited: how many MPFR audited.
      reference_error: the largest error of the reference among them, in units in the
        last place of float64 (of |y| + scale).
    """

    bits: np.ndarray
    reference: np.ndarray
    by_mpfr: int
    audited: int
    reference_error: float


class InaccurateReferenceError(ArithmeticError):
    """A float64 reference is worse than the filter may assume."""


def require_gmpy2() -> None:
    """Raise ImportError where gmpy2 is missing."""
    if gmpy2 is None:
        raise ImportError(
            "prove: expected the package gmpy2, which computes what float64 cannot settle; "
            "received none; install it with pip install 'repjax[prove]'"
        )


def versions() -> dict[str, str]:
    """The versions of everything that the oracle rests on."""
    require_gmpy2()
    return {
        "numpy": np.__version__,
        "scipy": scipy.__version__,
        "gmpy2": gmpy2.version(),
        "mpfr": gmpy2.mpfr_version().removeprefix("MPFR "),
    }


def canonical_input(bits: np.ndarray, fmt: Format = FLOAT32) -> np.ndarray:
    """What a program's entry makes of input bits: no subnormal, no -0, one NaN."""
    return _canonical(bits, fmt, fmt.tiny)


def canonical_result(bits: np.ndarray, fmt: Format = FLOAT32) -> np.ndarray:
    """The same of a rounded result, where the smallest normal number becomes +0 too."""
    return _canonical(bits, fmt, fmt.tiny + 1)


def _canonical(bits, fmt, smallest):
    magnitude = bits & fmt.uint_type(fmt.sign - 1)
    bits = np.where(magnitude < fmt.uint_type(smallest), fmt.uint_type(0), bits)
    bits[magnitude > fmt.uint_type(fmt.infinity)] = fmt.nan
    return bits


def _narrow(y, fmt):
    """float64 to the format's bits, rounded to nearest even, not yet canonical."""
    i = np.asarray(y, np.float64).view(np.uint64)
    # On the bits, to the format's precision: ml_dtypes rounds twice, to float32 in between.
    dropped = 53 - fmt.precision
    odd = i >> np.uint64(dropped) & np.uint64(1)
    i = i + (np.uint64((1 << (dropped - 1)) - 1) + odd) & ~np.uint64((1 << dropped) - 1)
    rounded = np.where(np.isnan(y), np.nan, i.view(np.float64))
    return rounded.astype(fmt.float_type).view(fmt.uint_type)


def rounded(function: Function, x: float, fmt: Format = FLOAT32) -> tuple[float, Any]:
    """``function(x)`` rounded once to the format's precision, and MPFR's value of it.

    The exponent is not yet limited to the format's: what is too large or too small is
    rounded to as many bits, and left to conversion and :func:`canonical_result`.

    Raises:
      ArithmeticError: if 1024 bits do not settle it.
    """
    require_gmpy2()
    for precision in PRECISIONS:
        with gmpy2.context(precision=precision):
            y = function.exact(gmpy2.mpfr(x))
            if not gmpy2.is_finite(y) or y == 0:
                return float(y), y
            inexact = gmpy2.get_context().inexact
            margin = gmpy2.div_2exp(abs(y), precision - LOST_BITS) if inexact else gmpy2.mpfr(0)
            low, high = (gmpy2.mpfr(end, fmt.precision) for end in (y - margin, y + margin))
        if low == high:
            return float(low), y
    raise ArithmeticError(
        f"at {x.hex()}: expected {precision} bits to settle the rounding, received a value "
        f"as close to a boundary as 2**-{precision - LOST_BITS}; raise PRECISIONS or treat "
        "the input as a special value"
    )


def expected(function: Function, bits: np.ndarray, fmt: Format = FLOAT32) -> Expected:
    """The canonical, correctly rounded results of a function for input bits.

    Args:
      function: one of :data:`FUNCTIONS`.
      bits: a flat array of the format's unsigned integer type: inputs, canonical or not.

    Raises:
      InaccurateReferenceError: if an audit finds an error of the reference above 256 units in the
        last place of float64, 1/16 of what the filter allows for, or a wrong result.
    """
    inputs = canonical_input(bits, fmt).view(fmt.float_type)
    with np.errstate(all="ignore"):
        reference = function.reference(inputs.astype(np.float64))
        # A reference of 0 stands for anything below 2**-1022: the result is 0 as well.
        margin = np.copysign(FILTER * function.scale, reference)
        low = _narrow(reference * (1 - FILTER) - margin, fmt)
        high = _narrow(reference * (1 + FILTER) + margin, fmt)
    result = canonical_result(low, fmt)
    differ = np.flatnonzero(low != high)
    unsettled = differ[result[differ] != canonical_result(high[differ], fmt)]
    result[unsettled] = _by_mpfr(function, inputs[unsettled], fmt)[0]

    audits = np.flatnonzero(bits % fmt.uint_type(AUDIT_STRIDE) == 0)
    error = _audit(function, inputs[audits], reference[audits], result[audits], fmt)
    return Expected(result, reference, len(unsettled), len(audits), error)


def _by_mpfr(function, inputs, fmt):
    """Result bits and MPFR's values for float inputs."""
    pairs = [rounded(function, x, fmt) for x in inputs.tolist()]
    with np.errstate(over="ignore"):
        bits = _narrow([value for value, _ in pairs], fmt)
    return canonical_result(bits, fmt), [y for _, y in pairs]


def _audit(function, inputs, reference, result, fmt) -> float:
    """The largest error of the reference, in units in the last place of float64."""
    bits, exact = _by_mpfr(function, inputs, fmt)
    pairs = zip(reference.tolist(), exact, strict=True)
    errors = [_relative_error(r, y, function.scale) for r, y in pairs]
    for x, error, same in zip(inputs.tolist(), errors, bits == result, strict=True):
        if error > AUDIT_LIMIT or not same:
            raise InaccurateReferenceError(
                f"the float64 reference at {x.hex()}: expected a relative error below "
                f"{AUDIT_LIMIT}, received {error}; use a better reference in FUNCTIONS"
            )
    return max(errors, default=0.0) * 2.0**53


def _relative_error(reference, exact, scale) -> float:
    with gmpy2.context(precision=PRECISIONS[0]):
        # Beyond float64's normal numbers nothing is left to compare: the results are.
        if not gmpy2.is_finite(exact) or not 2.0**-1022 <= abs(exact) < 2.0**1023:
            return 0.0
        return float(abs(gmpy2.mpfr(reference) - exact) / (abs(exact) + scale))


def function(name: str) -> Function:
    """The table's entry, or ValueError."""
    if name not in FUNCTIONS:
        raise ValueError(
            f"expected one of {', '.join(FUNCTIONS)}; received {name!r}; a new function needs "
            "a line in repjax/verify/oracle.py"
        )
    return FUNCTIONS[name]
