"""Elementary functions, correctly rounded: docs/numerics.md, section 3.

mpmath computes a value with more and more bits, until the rounding is certain (Ziv, "Fast
evaluation of elementary mathematical functions with correctly rounded last bit", ACM TOMS 17(3),
1991).  A value that no precision settles is a number of the format or a tie, and exact.

Many elements are filtered first: a float64 reference y of NumPy is taken for any number in
y (1 +- 2**-41), where it claims an error of a few 2**-53; if all of the interval has one rounding,
it is that of the function.  mpmath computes the rest, some 1 in 2**16.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from repjax.verify.reference import values
from repjax.verify.reference.arithmetic import power_by_integers, power_of_integers
from repjax.verify.reference.table import (
    NoReference,
    Operation,
    elementwise_part,
    of,
    part,
)

try:
    import mpmath
except ImportError:  # an extra: the rest of repjax does without
    mpmath = None

inf, nan = math.inf, math.nan
#: Half of the filter's interval, relative; and elements, so few that mpmath computes all of them.
FILTER, FEW = 2.0**-41, 256
#: mpmath's precisions, and the bits that its functions may lose.
PRECISIONS, LOST_BITS = (100, 250, 1200), 40


@dataclasses.dataclass(frozen=True)
class Function:
    """A function of one number.

    Attributes:
      exact: on an ``mpf`` in the open domain.
      domain: beyond it, and at its ends, the result is NaN, if it is not special.
      specials: results that the contract states.
      near: on float64 arrays, within a few units in the last place, if there is one.
      scale: the errors of ``exact`` are relative to abs(y) + scale, where terms of 1 cancel.
    """

    exact: Callable[[Any], Any]
    domain: tuple[float, float] = (-inf, inf)
    specials: dict[float, float] = dataclasses.field(default_factory=dict)
    near: Callable[[np.ndarray], np.ndarray] | None = None
    scale: int = 0


def is_pole(x) -> bool:
    """Whether ``x`` is a pole of the gamma function."""
    return x <= 0 and mpmath.isint(x)


def _cbrt(x):
    return mpmath.sign(x) * mpmath.cbrt(abs(x))


def _logistic(x):
    return 1 / (1 + mpmath.exp(-x))


def _near_logistic(x):
    return 1 / (1 + np.exp(-x))


#: Functions of one number; mpmath's are looked up when they are needed.
FUNCTIONS = {
    "exp": Function(lambda x: mpmath.exp(x), specials={-inf: 0, inf: inf, 0: 1}, near=np.exp),
    "exp2": Function(
        lambda x: mpmath.mpf(2) ** x, specials={-inf: 0, inf: inf, 0: 1}, near=np.exp2
    ),
    "exp10": Function(lambda x: mpmath.mpf(10) ** x, specials={-inf: 0, inf: inf, 0: 1}),
    "expm1": Function(
        lambda x: mpmath.expm1(x), specials={-inf: -1, inf: inf, 0: 0}, near=np.expm1
    ),
    "log": Function(lambda x: mpmath.log(x), (0, inf), {0: -inf, 1: 0, inf: inf}, np.log),
    "log1p": Function(lambda x: mpmath.log1p(x), (-1, inf), {-1: -inf, 0: 0, inf: inf}, np.log1p),
    "log2": Function(
        lambda x: mpmath.log(x) / mpmath.log(2), (0, inf), {0: -inf, 1: 0, inf: inf}, np.log2
    ),
    "log10": Function(lambda x: mpmath.log10(x), (0, inf), {0: -inf, 1: 0, inf: inf}, np.log10),
    "tanh": Function(lambda x: mpmath.tanh(x), specials={-inf: -1, inf: 1, 0: 0}, near=np.tanh),
    "logistic": Function(_logistic, specials={-inf: 0, inf: 1, 0: 0.5}, near=_near_logistic),
    "erf": Function(lambda x: mpmath.erf(x), specials={-inf: -1, inf: 1, 0: 0}),
    "erfc": Function(lambda x: mpmath.erfc(x), specials={-inf: 2, inf: 0, 0: 1}),
    "erf_inv": Function(lambda x: mpmath.erfinv(x), (-1, 1), {-1: -inf, 0: 0, 1: inf}),
    "sinh": Function(lambda x: mpmath.sinh(x), specials={-inf: -inf, inf: inf, 0: 0}, near=np.sinh),
    "cosh": Function(lambda x: mpmath.cosh(x), specials={-inf: inf, inf: inf, 0: 1}, near=np.cosh),
    "cbrt": Function(_cbrt, specials={-inf: -inf, inf: inf, 0: 0}, near=np.cbrt),
    "sin": Function(lambda x: mpmath.sin(x), specials={0: 0}, near=np.sin),
    "cos": Function(lambda x: mpmath.cos(x), specials={0: 1}, near=np.cos),
    "tan": Function(lambda x: mpmath.tan(x), specials={0: 0}, near=np.tan),
    "atan": Function(
        lambda x: mpmath.atan(x),
        specials={-inf: -math.pi / 2, inf: math.pi / 2, 0: 0},
        near=np.arctan,
    ),
    "asin": Function(
        lambda x: mpmath.asin(x), (-1, 1), {-1: -math.pi / 2, 0: 0, 1: math.pi / 2}, np.arcsin
    ),
    "acos": Function(lambda x: mpmath.acos(x), (-1, 1), {-1: math.pi, 1: 0}, np.arccos),
    "asinh": Function(
        lambda x: mpmath.asinh(x), specials={-inf: -inf, inf: inf, 0: 0}, near=np.arcsinh
    ),
    "acosh": Function(lambda x: mpmath.acosh(x), (1, inf), {1: 0, inf: inf}, np.arccosh),
    "atanh": Function(lambda x: mpmath.atanh(x), (-1, 1), {-1: -inf, 0: 0, 1: inf}, np.arctanh),
    "lgamma": Function(
        lambda x: mpmath.inf if is_pole(x) else mpmath.re(mpmath.loggamma(x)),
        specials={-inf: inf, inf: inf, 0: inf, 1: 0, 2: 0},
        scale=1,
    ),
    "digamma": Function(
        lambda x: mpmath.nan if is_pole(x) else mpmath.digamma(x),
        specials={-inf: nan, inf: inf, 0: -inf},
        scale=1,
    ),
}


def require_mpmath() -> None:
    if mpmath is None:
        raise NoReference(
            "elementary functions: expected the package mpmath, which computes them "
            "independently; received none; install it with pip install 'repjax[instruments]'"
        )


def settled(compute, dtype, scale: int = 0) -> float:
    """What ``compute()`` gives, rounded once to a format's precision, by mpmath.

    The exponent is not limited to the format's.
    """
    require_mpmath()
    bits = values.precision(dtype)
    for precision in PRECISIONS:
        with mpmath.workprec(precision):
            y = compute()
            if not mpmath.isfinite(y):
                return float(y)
            margin = mpmath.ldexp(abs(y) + scale, LOST_BITS - precision)
            low, high = (_nearest(end, bits) for end in (y - margin, y + margin))
            if low == high:
                return low
    with mpmath.workprec(PRECISIONS[-1] - LOST_BITS):
        return _nearest(+y, bits)  # which is exact, without what the function lost


def _nearest(y, bits: int) -> float:
    sign, mantissa, exponent, _ = mpmath.mpf(y)._mpf_
    return values.nearest(sign, int(mantissa), exponent, bits)


def _to(dtype, x: float) -> np.ndarray:
    with np.errstate(all="ignore"):
        return np.float64(x).astype(dtype)


def _one(function: Function, x: float, dtype) -> float:
    if math.isnan(x):
        return nan
    if x in function.specials:
        return _rounded_special(function.specials[x], dtype)
    if not function.domain[0] < x < function.domain[1]:
        return nan
    return settled(lambda: function.exact(mpmath.mpf(x)), dtype, function.scale)


def _rounded_special(value: float, dtype) -> float:
    """Those that are not exact, pi and its half, are no ties: float64 decides their rounding."""
    return float(values.narrow(np.float64(value), dtype)) if math.isfinite(value) else value


def correctly_rounded(function: Function, x: np.ndarray, dtype) -> np.ndarray:
    """Of an array of float32 or of a narrower format, canonical."""
    dtype = np.dtype(dtype)
    flat = np.asarray(x, np.float64).ravel()
    out = np.empty(flat.shape, dtype)
    left = np.arange(flat.size)
    if flat.size > FEW and function.near is not None:
        with np.errstate(all="ignore"):
            y = function.near(flat)
            low, high = (values.narrow(y * s, dtype) for s in (1 - FILTER, 1 + FILTER))
        word = f"u{dtype.itemsize}"
        sure = (low.view(word) == high.view(word)) & np.isfinite(y) & (np.abs(y) > 2.0**-1000)
        sure &= ~np.isin(flat, [v for v in function.specials if math.isfinite(v)])
        sure &= (flat > function.domain[0]) & (flat < function.domain[1])
        out[sure] = low[sure]
        left = np.flatnonzero(~sure)
    known: dict[float, Any] = {}
    for i in left:
        if (v := float(flat[i])) not in known:
            known[v] = _to(dtype, _one(function, v, dtype))
        out[i] = known[v]
    return values.guard(out).reshape(np.shape(x))


def _check(operation: Operation) -> None:
    if operation.dtype not in values.FORMATS:
        raise NoReference(
            f"{operation.name}: expected float32, float16 or bfloat16, received {operation.dtype}"
        )


for _name, _function in FUNCTIONS.items():

    def _compute(operation: Operation, function=_function):
        _check(operation)
        return [correctly_rounded(function, operation.operands[0], operation.dtype)]

    of(_name)(_compute)


# --- two arguments ----------------------------------------------------------------------


def _pow(x: float, y: float, dtype) -> float:
    if y == 0 or x == 1:
        return 1.0
    if math.isnan(x) or math.isnan(y):
        return nan
    if math.isinf(y):
        return 1.0 if x == -1 else (inf if (abs(x) > 1) == (y > 0) else 0.0)
    odd = y % 2 == 1
    if x == 0:
        return 0.0 if y > 0 else inf
    if x < 0 and y % 1:
        return inf if math.isinf(x) and y > 0 else 0.0 if math.isinf(x) else nan
    sign = -1.0 if x < 0 and odd else 1.0
    if math.isinf(x):
        return sign * inf if y > 0 else 0.0
    return sign * settled(lambda: mpmath.mpf(abs(x)) ** mpmath.mpf(y), dtype)


def _atan2(y: float, x: float, dtype) -> float:
    if math.isnan(x) or math.isnan(y):
        return nan
    if y == 0:
        return 0.0 if x >= 0 else settled(lambda: +mpmath.pi, dtype)
    if math.isinf(y):
        quarters = 2 if math.isfinite(x) else 1 if x > 0 else 3
        return math.copysign(settled(lambda: quarters * mpmath.pi / 4, dtype), y)
    if math.isinf(x):
        return 0.0 if x > 0 else math.copysign(settled(lambda: +mpmath.pi, dtype), y)
    return settled(lambda: mpmath.atan2(mpmath.mpf(y), mpmath.mpf(x)), dtype)


def _hypot(x: float, y: float, dtype) -> float:
    if math.isinf(x) or math.isinf(y):
        return inf
    if math.isnan(x) or math.isnan(y):
        return nan
    return settled(lambda: mpmath.sqrt(mpmath.mpf(x) ** 2 + mpmath.mpf(y) ** 2), dtype)


OF_TWO = {"pow": _pow, "atan2": _atan2, "hypot": _hypot}


def of_two(name: str, x, y, dtype) -> np.ndarray:
    """One of the functions of two numbers, of arrays; canonical."""
    require_mpmath()
    x, y = np.broadcast_arrays(x, y)
    out = np.empty(x.shape, dtype)
    for i in np.ndindex(out.shape):
        out[i] = _to(dtype, OF_TWO[name](float(x[i]), float(y[i]), dtype))
    return values.guard(out)


@of("pow")
def power(operation: Operation):
    """With an integer exponent, binary powering in float64."""
    if not values.is_float(operation.dtype):
        return power_of_integers(operation)
    if not values.is_float(operation.operands[1].dtype):
        return power_by_integers(operation)
    return _of_two(operation)


@of("atan2", "hypot")
def _of_two(operation: Operation):
    _check(operation)
    return [of_two(operation.name, *operation.operands, operation.dtype)]


part(*FUNCTIONS, *OF_TWO)(elementwise_part)
