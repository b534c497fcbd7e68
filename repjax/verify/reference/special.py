"""Special functions that are not correctly rounded: docs/numerics.md, section 20.

And 1 - b**t, which RepDL's Adam divides by (docs/repdl.md).
"""

from __future__ import annotations

import math
from fractions import Fraction

import numpy as np

from repjax.verify.reference.elementary import FUNCTIONS, correctly_rounded, of_two
from repjax.verify.reference.table import Operation, elementwise_part, of, part
from repjax.verify.reference.values import FLOAT32, add, divide, flush, guard, multiply

# --- Bessel functions -------------------------------------------------------------------


def _coefficients(order: int):
    """The polynomials, which are the definition: data of the module that computes them."""
    from repjax.primitives.operations import special

    return tuple(getattr(special, f"{name}_{order}") for name in ("SMALL", "LARGE"))


def _horner(x, coefficients):
    y = np.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        y = y * x + c
    return y


def bessel(x, order: int):
    """exp(-|x|) times the modified Bessel function, of float32."""
    small, large = _coefficients(order)
    with np.errstate(all="ignore"):
        t = np.abs(np.asarray(x, np.float64))
        near = _horner(np.minimum(t, 8.0) - 4, small)
        if order:
            near = near * t
        far = np.maximum(t, 8.0)
        far = _horner(1 / far, large) / np.sqrt(far)
        y = np.where(t <= 8, near, far)
        y = np.where(x < 0, -y, y) if order else y
        return guard(np.where(np.isnan(x), np.nan, y).astype(np.float32))


@of("bessel_i0e", ending=guard)
def _bessel_i0e(operation: Operation):
    return [bessel(operation.operands[0], 0)]


@of("bessel_i1e", ending=guard)
def _bessel_i1e(operation: Operation):
    return [bessel(operation.operands[0], 1)]


# --- zeta and polygamma -----------------------------------------------------------------


def bernoulli(count: int) -> list[Fraction]:
    """B[0], ..., B[count]."""
    numbers = [Fraction(1)]
    for n in range(1, count + 1):
        terms = (math.comb(n + 1, k) * b for k, b in enumerate(numbers))
        numbers.append(-sum(terms, Fraction(0)) / (n + 1))
    return numbers


def zeta(s, q, ascending: bool = True):
    """Hurwitz's zeta function, as its graph of float32 operations."""
    s, q = np.broadcast_arrays(np.asarray(s, np.float32), np.asarray(q, np.float32))
    one, half = np.float32(1), np.float32(0.5)

    def pow_(x, y):
        return of_two("pow", x, y, FLOAT32)

    powers = [pow_(add(q, np.float32(k)), flush(-s)) for k in range(10)]
    w, last = add(q, np.float32(9)), powers[-1]
    total = None
    for power in powers if ascending else powers[::-1]:
        total = power if total is None else add(total, power)
    total = add(total, divide(pow_(w, add(one, -s)), add(s, -one)))
    total = add(total, -multiply(last, half))
    c = divide(multiply(last, s), w)
    numbers = bernoulli(24)
    for j in range(1, 13):
        no_more = c == 0
        b = np.float32(float(numbers[2 * j] / math.factorial(2 * j)))
        total = add(total, np.where(no_more, np.float32(0), multiply(c, b)))
        for i in (2 * j - 1, 2 * j):
            factor = divide(add(s, np.float32(i)), w)
            c = np.where(no_more, c, multiply(c, factor))
    even = np.floor(multiply(s, half)) == multiply(s, half)
    poles = (q <= 0) & (np.floor(q) == q)
    total = np.where(poles, np.where(even, np.inf, np.nan), total)
    total = np.where(s == 1, np.inf, total)
    return np.where((s >= 1) & (q == q), total, np.nan).astype(np.float32)


def polygamma(n, x):
    n, x = np.broadcast_arrays(np.asarray(n, np.float32), np.asarray(x, np.float32))
    digamma, lgamma, exp = (
        lambda v, f=FUNCTIONS[name]: correctly_rounded(f, v, FLOAT32)
        for name in ("digamma", "lgamma", "exp")
    )
    order = add(n, np.float32(1))
    value = multiply(exp(lgamma(order)), zeta(order, x))
    half = multiply(n, np.float32(0.5))
    value = np.where(np.floor(half) == half, flush(-value), value)
    value = np.where(n == 0, digamma(x), value)
    return np.where((n >= 0) & (np.floor(n) == n), value, np.nan).astype(np.float32)


@of("zeta", ending=guard)
def _zeta(operation: Operation):
    return [zeta(*operation.operands)]


@of("polygamma", ending=guard)
def _polygamma(operation: Operation):
    return [polygamma(*operation.operands)]


# --- Adam's constants -------------------------------------------------------------------


def _decayed(operation: Operation, function):
    """A function of 1 - base**t, the power and the difference rounded to binary64."""
    (t,) = operation.operands
    base = Fraction(operation.params["base"])
    found = [function(1.0 - float(base ** int(k))) for k in t.ravel()]
    return [guard(np.array(found, np.float64).reshape(t.shape).astype(np.float32))]


@of("decayed_quotient")
def decayed_quotient(operation: Operation):
    """float32(numerator / (1 - base**t))."""
    numerator = np.float64(operation.params["numerator"])
    return _decayed(operation, lambda correction: numerator / np.float64(correction))


@of("decayed_root")
def decayed_root(operation: Operation):
    """float32(sqrt(1 - base**t))."""
    return _decayed(operation, math.sqrt)


part(
    *("bessel_i0e", "bessel_i1e", "zeta", "polygamma", "decayed_quotient", "decayed_root"),
)(elementwise_part)
