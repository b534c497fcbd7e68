"""Special functions that are not correctly rounded: Bessel functions, and those of Hurwitz's zeta.

``bessel_i0e`` and ``bessel_i1e`` are polynomials in float64, rounded once at the end: within
0.50001 units in the last place.  ``zeta`` and ``polygamma`` are graphs of float32 operations, each
of them correctly rounded, with errors of some units.
"""

from __future__ import annotations

import math
from fractions import Fraction
from typing import Any

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.core.define import define
from repjax.primitives.core.tables import CODE_SIZE, ELEMENTWISE
from repjax.primitives.operations.arithmetic import add, div, mul, neg, plain_rule, sub
from repjax.primitives.operations.elementary import digamma_p, exp_p, lgamma_p, pow_p
from repjax.primitives.operations.elementary.basics import constants

# --- Bessel functions -------------------------------------------------------------------

# python -m repjax.primitives.operations.elementary.generate bessel
# degree 24, weighted error 2**-44.54
SMALL_0 = constants("""
    0x1.a7f09f8eededdp-3
    -0x1.cedda00482d56p-6
    0x1.8322d1d8b58a1p-8
    -0x1.6cb8d0ca7d39bp-10
    0x1.65c235bc9c89cp-12
    -0x1.5c028fb914bb9p-14
    0x1.44b619a689c83p-16
    -0x1.1cd73d2d90edcp-18
    0x1.d11e0cb17657ap-21
    -0x1.6023e67dc1ba4p-23
    0x1.ee6f81f589eeap-26
    -0x1.427cc37ab8edap-28
    0x1.87e76354e1f6fp-31
    -0x1.bd0eb4f806493p-34
    0x1.da21412961c09p-37
    -0x1.dbc3cf973b7bep-40
    0x1.c0e78885bbe0fp-43
    -0x1.8cce8e27b62e8p-46
    0x1.54122db2f3eeep-49
    -0x1.253571b3ce068p-52
    0x1.b00fa3d040ac3p-56
    -0x1.b70272baa8022p-60
    0x1.6f5b6908a06f2p-63
    -0x1.0de425fe7bec1p-65
    0x1.34cb21d09031fp-69
""")
# degree 14, weighted error 2**-43.06
LARGE_0 = constants("""
    0x1.9884533d43340p-2
    0x1.98845350c225dp-5
    0x1.cb948b777f838p-6
    0x1.deff0d89e1951p-6
    0x1.5ff1f758e3fe7p-5
    0x1.a7217de0f77d6p-3
    -0x1.268ab94bd0595p+2
    0x1.0d32c409df644p+7
    -0x1.3a39d11609073p+11
    0x1.f3e9043b9cd40p+14
    -0x1.05c1071906224p+18
    0x1.5372793572d0fp+20
    -0x1.d2a5d974a5bb8p+21
    0x1.747ff23e0d052p+21
    0x1.22877cdb86dcep+22
""")
# degree 24, weighted error 2**-45.92
SMALL_1 = constants("""
    0x1.6e14eb8e5d2c2p-5
    -0x1.f4bb071a771d5p-7
    0x1.16c390ddb3e23p-8
    -0x1.188137a009b1ap-10
    0x1.0530f817555d0p-12
    -0x1.c4daa50efa6d7p-15
    0x1.6df95ea616ec8p-17
    -0x1.13d5f3a155c41p-19
    0x1.84125900a30e3p-22
    -0x1.fe3d9186de09bp-25
    0x1.3a0c31bb4fed9p-27
    -0x1.6ab7184864a97p-30
    0x1.89f7523c50cd6p-33
    -0x1.9361a379dc7d3p-36
    0x1.8662e708630d0p-39
    -0x1.65fcdb699b8a8p-42
    0x1.36fce67b85537p-45
    -0x1.002191e38ab26p-48
    0x1.987216fc69104p-52
    -0x1.3ee43fe859691p-55
    0x1.b460f354282d0p-59
    -0x1.e230ee1d13ba0p-63
    0x1.8a92329bb2c6bp-66
    -0x1.b939f0ccbdf42p-69
    0x1.b678fdcdb0a78p-73
""")
# degree 14, weighted error 2**-42.95
LARGE_1 = constants("""
    0x1.9884533d4399dp-2
    -0x1.32633e7328524p-3
    -0x1.7efbe260966c8p-5
    -0x1.4f407537baafbp-5
    -0x1.c7eeab0468cbep-5
    -0x1.dae7b9f71a358p-3
    0x1.2fa0a7403cb25p+2
    -0x1.15ae6d5f2bf6dp+7
    0x1.413c7ea2a8c1bp+11
    -0x1.f9a0c5f2bb224p+14
    0x1.0485172512429p+18
    -0x1.485fb48ee038ap+20
    0x1.a4c75daabef73p+21
    -0x1.8b9e45ccd9604p+20
    -0x1.a4ccc636eef7bp+22
""")


def _horner(x, coefficients, product):
    """As ``polynomial.horner``, each operation rounded by itself."""
    y = lax.full_like(x, coefficients[-1])
    for c in reversed(coefficients[:-1]):
        y = product(y, x) + c
    return y


def bessel(order: int, product=canonical.product, up_to_8: bool = False):
    """The body of exp(-|x|) I(x) of order 0, or of the odd order 1; or that for |x| <= 8 only.

    With t = |x|: p(t - 4) up to 8, times t if it is odd; p(1 / t) / sqrt(t) beyond.  No ``product``
    is subnormal, and a compiler that fuses none with a sum may take ``lax.mul`` for it.
    """
    small, large = (SMALL_1, LARGE_1) if order else (SMALL_0, LARGE_0)

    def of_small(t):
        near = _horner(t - 4, small, product)
        return product(near, t) if order else near

    def of_any(t):
        eight = lax.full_like(t, 8)
        near, far = of_small(lax.min(t, eight)), lax.max(t, eight)
        far = _horner(1 / far, large, product) / canonical.guard(lax.sqrt(far))
        return lax.select(t == t, lax.select(t <= 8, near, far), t)

    def body(x):
        t = lax.abs(canonical.to_float64(x))
        y = of_small(t) if up_to_8 else of_any(t)
        return canonical.to_float32(canonical.guard(lax.select(x < 0, -y, y) if order else y))

    return body


bessel_i0e_p = define("bessel_i0e", bessel(0), lax.bessel_i0e)
bessel_i1e_p = define("bessel_i1e", bessel(1), lax.bessel_i1e)

# --- zeta and polygamma -----------------------------------------------------------------

#: Terms of zeta that are added one by one, and of the Euler-Maclaurin formula for the rest.
_TERMS, _CORRECTIONS = 10, 12


def _bernoulli(count: int) -> list[Fraction]:
    """B[0], ..., B[count]."""
    numbers = [Fraction(1)]
    for n in range(1, count + 1):
        terms = (math.comb(n + 1, k) * b for k, b in enumerate(numbers))
        numbers.append(-sum(terms, Fraction(0)) / (n + 1))
    return numbers


#: B[2 j] / (2 j)!, rounded to float32.
_COEFFICIENTS = [
    np.float32(float(b / math.factorial(2 * j)))
    for j, b in enumerate(_bernoulli(2 * _CORRECTIONS)[::2])
]


def _is_integer(x):
    return lax.floor(x) == x


def _powers(terms, exponent) -> list[Any]:
    """The terms to this power, which XLA compiles once for all."""
    stacked = lax.concatenate([lax.expand_dims(x, (0,)) for x in terms], 0)
    powers = pow_p.bind(stacked, lax.broadcast(exponent, [len(terms)]))
    return [powers[i] for i in range(len(terms))]


def zeta(s, q, powers=_powers):
    """The sum of (q + k)**-s over k = 0, 1, ...

    Ten terms are added, k ascending; with w = q + 9 the others are

        w**(1 - s) / (s - 1) - w**-s / 2 + s w**(-s - 1) (B[2] / 2! + (s + 1) (s + 2) / w**2 (
        B[4] / 4! + ...))

    (Euler-Maclaurin; Johansson 2015, "Rigorous high-precision computation of the Hurwitz zeta
    function and its derivatives"), twelve corrections one after the other.
    """
    s, q = canonical.broadcast(s, q)
    one = lax.full_like(s, 1)
    terms = [add(q, lax.full_like(q, k)) for k in range(_TERMS)]
    w = terms[-1]
    total, *others = powers(terms, neg(s))
    for term in others:
        total = add(total, term)
    last = others[-1]
    total = add(total, div(pow_p.bind(w, sub(one, s)), sub(s, one)))
    total = sub(total, mul(last, lax.full_like(last, 0.5)))

    correction = div(mul(last, s), w)
    for j, coefficient in enumerate(_COEFFICIENTS[1:], 1):
        no_more = correction == 0  # nor any factor that is too large
        term = mul(correction, lax.full_like(last, coefficient))
        total = add(total, lax.select(no_more, lax.full_like(term, 0), term))
        for i in (2 * j - 1, 2 * j):
            factor = div(add(s, lax.full_like(s, i)), w)
            correction = lax.select(no_more, correction, mul(correction, factor))

    infinite, nan = lax.full_like(total, np.inf), lax.full_like(total, np.nan)
    even = _is_integer(mul(s, lax.full_like(s, 0.5)))
    total = lax.select((q <= 0) & _is_integer(q), lax.select(even, infinite, nan), total)
    total = lax.select(s == 1, infinite, total)
    return lax.select((s >= 1) & (q == q), total, nan)


zeta_p = define("zeta", zeta, lax.zeta)


def polygamma(n, x, zeta=zeta_p.bind):
    """digamma for n = 0; else (-1)**(n + 1) exp(lgamma(n + 1)) zeta(n + 1, x)."""
    n, x = canonical.broadcast(n, x)
    one = lax.full_like(n, 1)
    order = add(n, one)
    value = mul(exp_p.bind(lgamma_p.bind(order)), zeta(order, x))
    even = _is_integer(mul(n, lax.full_like(n, 0.5)))
    value = lax.select(even, neg(value), value)
    value = lax.select(n == 0, digamma_p.bind(x), value)
    return lax.select((n >= 0) & _is_integer(n), value, lax.full_like(value, np.nan))


polygamma_p = define("polygamma", polygamma, lax.polygamma)

for _primitive in (bessel_i0e_p, bessel_i1e_p, zeta_p, polygamma_p):
    _name = _primitive.name.removeprefix("repjax_")
    plain_rule(_name, _primitive)
    ELEMENTWISE.add(_name)
    CODE_SIZE[_name] = 256
