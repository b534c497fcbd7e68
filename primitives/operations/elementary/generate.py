"""Minimax polynomials of the elementary functions: the origin of their coefficients.

    python -m repjax.primitives.operations.elementary.generate [NAME ...]

prints the coefficient blocks exactly as they stand in the functions' files, each with
the base-2 logarithm of its largest weighted error.  Needs mpmath.

The polynomials are minimax on a fine Chebyshev grid, found by the exchange algorithm
(Remez 1934) in 300-bit arithmetic, then rounded to binary64 coefficient by
coefficient; the error printed is that of the rounded coefficients, measured on a
second, finer grid.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
import struct
import sys
from collections.abc import Callable

import mpmath
import numpy as np
from mpmath import mpf

PRECISION = 300


@dataclasses.dataclass(frozen=True)
class Polynomial:
    """Minimise ``max |weight(x) * (p(x) - f(x))|`` over ``[low, high]``.

    The first ``pairs`` coefficients are rounded to hi + lo, two binary64 numbers, or numbers of
    ``bits`` bits.
    """

    name: str
    f: Callable
    weight: Callable
    low: float
    high: float
    degree: int
    pairs: int = 0
    bits: int = 53


@dataclasses.dataclass(frozen=True)
class Table:
    """Constants by index, each rounded to ``parts`` numbers of ``bits`` bits, to be added."""

    name: str
    values: Callable[[], list]
    parts: int = 1
    bits: int = 53


def _grid(p: Polynomial, size: int):
    """Chebyshev points; an even size keeps the middle, where a weight may vanish, out."""
    middle, radius = (mpf(p.low) + mpf(p.high)) / 2, (mpf(p.high) - mpf(p.low)) / 2
    return [middle - radius * mpmath.cospi(mpf(2 * j + 1) / (2 * size)) for j in range(size)]


def _evaluate(coefficients, x):
    return functools.reduce(lambda y, c: y * x + c, reversed(coefficients))


def _extrema(errors):
    """Indices of the largest error of each run of errors of one sign."""
    best = [0]
    for j, e in enumerate(errors):
        if (e > 0) != (errors[best[-1]] > 0):
            best.append(j)
        elif abs(e) > abs(errors[best[-1]]):
            best[-1] = j
    return best


def _round(c, parts: int, bits: int) -> tuple[float, ...]:
    """``c`` as a sum of numbers of so many bits, each the nearest to what is left."""
    rounded = []
    for _ in range(parts):
        with mpmath.workprec(bits):
            rounded.append(float(+c))
        c -= rounded[-1]
    return tuple(rounded)


def minimax(p: Polynomial) -> tuple[list[tuple[float, ...]], float]:
    """Coefficients of ``p``, constant first, and the base-2 logarithm of their error.

    A coefficient is a tuple of one number, or of two that are to be added.
    """
    with mpmath.workprec(PRECISION):
        size = p.degree + 2
        xs = _grid(p, 16 * size)
        fs, ws = [p.f(x) for x in xs], [p.weight(x) for x in xs]
        reference = [16 * i + 8 for i in range(size)]
        while True:
            rows = [
                [xs[j] ** n for n in range(p.degree + 1)] + [(-1) ** i / ws[j]]
                for i, j in enumerate(reference)
            ]
            solution = mpmath.lu_solve(rows, [fs[j] for j in reference])
            exact = list(solution)[:-1]
            errors = [w * (_evaluate(exact, x) - f) for x, f, w in zip(xs, fs, ws, strict=True)]
            candidates = _extrema(errors)
            while len(candidates) > size:  # drop the smaller end
                ends = abs(errors[candidates[0]]), abs(errors[candidates[-1]])
                candidates.pop(0 if ends[0] < ends[1] else -1)
            if len(candidates) < size:
                raise ArithmeticError(
                    f"{p.name}: expected {size} alternating errors, found {len(candidates)}; "
                    "raise PRECISION or choose another degree or weight"
                )
            if candidates == reference:
                break
            reference = candidates
        rounded = [_round(c, 2 if n < p.pairs else 1, p.bits) for n, c in enumerate(exact)]
        values = [mpmath.fsum(parts) for parts in rounded]
        worst = max(abs(p.weight(x) * (_evaluate(values, x) - p.f(x))) for x in _grid(p, 50 * size))
        return rounded, float(mpmath.log(worst, 2))


def _exp():
    # e**r = 1 + r + r**2/2 + r**3 p(r); the weight makes the error relative to
    # expm1(r), the more demanding of the two.  |r| <= log(2)/2, and a little for a
    # contracted k.
    yield Polynomial(
        "COEFFICIENTS",
        lambda r: (mpmath.expm1(r) - r - r**2 / 2) / r**3,
        lambda r: r**3 / mpmath.expm1(r),
        -0.34658,
        0.34658,
        9,
    )


def _log():
    # log(1 + f) = f - f**2/2 + f**3 p(f), error relative to log(1 + f),
    # sqrt(1/2) <= 1 + f < sqrt(2).
    yield Polynomial(
        "COEFFICIENTS",
        lambda f: (mpmath.log1p(f) - f + f**2 / 2) / f**3,
        lambda f: f**3 / mpmath.log1p(f),
        -0.292895,
        0.414215,
        20,
    )


def _erf():
    # erf(x) = x (2/sqrt(pi) + t p(t)), t = x**2, error relative to erf(x).
    def small(t):
        x = mpmath.sqrt(t)
        return (mpmath.erf(x) / x - 2 / mpmath.sqrt(mpmath.pi)) / t

    yield Polynomial(
        "SMALL", small, lambda t: t * mpmath.sqrt(t) / mpmath.erf(mpmath.sqrt(t)), 0, 2.25, 13
    )
    # 1 - erf(x) = p(x - 87/32), absolute error, 3/2 <= x <= 63/16.
    yield Polynomial(
        "LARGE", lambda t: mpmath.erfc(t + mpf(87) / 32), lambda t: mpf(1), -1.21875, 1.21875, 23
    )


def _erf_inv():
    # erf_inv(x) = x g(w) with w = -log(1 - x**2); errors relative to erf_inv(x).
    def g(w):
        x = mpmath.sqrt(-mpmath.expm1(-w))
        return mpmath.erfinv(x) / x

    # g(w) = sqrt(pi)/2 + w p(w), 0 <= w <= 5.
    yield Polynomial(
        "NEAR",
        lambda w: (g(w) - mpmath.sqrt(mpmath.pi) / 2) / w,
        lambda w: w / g(w),
        0,
        5,
        22,
    )
    # g(w) = 45/16 + p(sqrt(w) - 25/8), 5 <= w <= 16; 1 - x**2 >= 2**-23 means w < 16.
    yield Polynomial(
        "FAR",
        lambda t: g((t + mpf(25) / 8) ** 2) - mpf(45) / 16,
        lambda t: 1 / g((t + mpf(25) / 8) ** 2),
        -0.889,
        0.875,
        22,
    )


def _odd(name, f, high, degree):
    # f(x) = x + x**3 p(t), t = x**2, error relative to f(x), 0 <= t <= high.
    def rest(t):
        x = mpmath.sqrt(t)
        return (f(x) / x - 1) / t

    def weight(t):
        x = mpmath.sqrt(t)
        return t * x / f(x)

    return Polynomial(name, rest, weight, 0, high, degree)


def _even(name, f, second, high, degree):
    # f(x) = 1 + second t + t**2 p(t), t = x**2, error relative to f(x), 0 <= t <= high.
    def rest(t):
        return (f(mpmath.sqrt(t)) - 1 - mpf(second) * t) / t**2

    return Polynomial(name, rest, lambda t: t**2 / f(mpmath.sqrt(t)), 0, high, degree)


def _exp2():
    # 2**r = 1 + r log(2) + r**2 p(r), error relative to 2**r - 1.
    def expm1(r):
        return mpmath.expm1(r * mpmath.log(2))

    yield Polynomial(
        "COEFFICIENTS",
        lambda r: (expm1(r) - r * mpmath.log(2)) / r**2,
        lambda r: r**2 / expm1(r),
        -0.5,
        0.5,
        10,
    )


def _cbrt():
    # p(m) = m**(-1/3), relative error, 1 <= m <= 2.
    yield Polynomial(
        "COEFFICIENTS", lambda m: 1 / mpmath.cbrt(m), lambda m: mpmath.cbrt(m), 1, 2, 6
    )


def _trigonometric():
    # |r| <= pi/4, and a little for the rounding of k.
    yield _odd("SIN", mpmath.sin, 0.6169, 6)
    yield _even("COS", mpmath.cos, -0.5, 0.6169, 5)


def _atan():
    # |q| <= tan(pi/8).
    yield _odd("COEFFICIENTS", mpmath.atan, 0.17158, 10)


def _asin():
    # s <= 1/2.
    yield _odd("COEFFICIENTS", mpmath.asin, 0.25, 12)


def _sinh():
    # |r| <= log(2)/2, and a little for a contracted k.
    yield _odd("SINH", mpmath.sinh, 0.12012, 4)
    yield _even("COSH", mpmath.cosh, 0.5, 0.12012, 4)


def _atanh():
    # |q| <= 0.2007.
    yield _odd("COEFFICIENTS", mpmath.atanh, 0.0403, 7)


def _erfc():
    # erfc(x) = e**(-x**2) (139/128 + p(t)) / (x + 7/2), t = (x - 7/2) / (x + 7/2),
    # relative error, 1/2 <= x <= 37/4.
    def f(t):
        return _erfc_fraction(t, mpf(7) / 2)

    yield Polynomial(
        "COEFFICIENTS", lambda t: f(t) - mpf(139) / 128, lambda t: 1 / f(t), -0.75, 23 / 51, 18
    )


def _erfc_fraction(t, middle):
    """e**(x**2) erfc(x) (x + middle), of t = (x - middle) / (x + middle)."""
    x = middle * (1 + t) / (1 - t)
    return mpmath.exp(x**2) * mpmath.erfc(x) * (x + middle)


def short_logarithms():
    """Short numbers c near 1/m and -log(c) as a multiple of 2**-30 and the rest, by index.

    Index j holds the m near 1 + j/16, or near (1 + j/16) / 2 from j = 7 on.
    """
    inverses, heads, rests = [], [], []
    for j in range(16):
        bits, m = (7, 1 + mpf(j) / 16) if j < 7 else (6, (1 + mpf(j) / 16) / 2)
        c = _multiple(1 / m, -bits)
        head = _multiple(-mpmath.log(c), -30)
        inverses.append(c)
        heads.append(head)
        rests.append(-mpmath.log(c) - head)
    return inverses, heads, rests


def _pow():
    yield Table("INVERSES", lambda: short_logarithms()[0])
    yield Table("LOG_HEADS", lambda: short_logarithms()[1])
    yield Table("LOG_RESTS", lambda: short_logarithms()[2], parts=2)

    # log(1 + f) = 2 atanh(s), s = f / (2 + f): 2 atanh(s) = 2 s + s**3 p(t), t = s**2,
    # error relative to 2 atanh(s), |f| <= 0.0333.
    def atanh(t):
        s = mpmath.sqrt(t)
        return 2 * (mpmath.atanh(s) / s - 1) / t

    yield Polynomial("ATANH", atanh, lambda t: t / 2, 0, 0.000286, 6, pairs=4)

    # log(2)/16 as a number of 25 bits and the rest, 2**(j/16).
    def step():
        exact = mpmath.log(2) / 16
        head = mpmath.ldexp(mpmath.floor(mpmath.ldexp(exact, 29)), -29)
        return head, exact - head

    yield Table("(STEP_HEAD,)", lambda: step()[:1])
    yield Table("(STEP_REST,)", lambda: step()[1:], parts=2)
    yield Table("ROOTS", lambda: [mpf(2) ** (mpf(j) / 16) for j in range(16)], parts=2)
    # e**r - 1 = r + r**2 / 2 + r**3 p(r), error relative to e**r - 1, |r| <= log(2)/32, and
    # a little for the rounding of the index.
    yield Polynomial(
        "EXPM1",
        lambda r: (mpmath.expm1(r) - r - r**2 / 2) / r**3,
        lambda r: r**3 / mpmath.expm1(r),
        -0.02167,
        0.02167,
        9,
        pairs=4,
    )


def _atan2():
    # atan(j/16), pi/2; atan(q) = q + q**3 p(t), t = q**2, error relative to atan(q),
    # |q| <= 1/31 and a little for the rounding of the index.
    yield Table("ANGLES", lambda: [mpmath.atan(mpf(j) / 16) for j in range(16)], parts=2)
    yield Table("(PI_2,)", lambda: [mpmath.pi / 2], parts=2)
    yield dataclasses.replace(_odd("ATAN", mpmath.atan, 0.001041, 8), pairs=4)


def _logarithm():
    # atanh(s) = s + s**3 p(t), t = s**2, |s| <= (sqrt(2) - 1) / (sqrt(2) + 1).
    def rest(t):
        s = mpmath.sqrt(t)
        return (mpmath.atanh(s) / s - 1) / t

    yield Polynomial("ATANH", rest, lambda t: t, 0, 0.02945, 9, pairs=2)


def _gamma():
    # sin(pi r) / (pi r) = 1 + t p(t), cos(pi r) = 1 + t p(t), t = r**2, |r| <= 1/2.
    yield Polynomial(
        "SIN", lambda t: (mpmath.sincpi(mpmath.sqrt(t)) - 1) / t, lambda t: t, 0, 0.25, 10, pairs=3
    )
    yield Polynomial(
        "COS", lambda t: (mpmath.cospi(mpmath.sqrt(t)) - 1) / t, lambda t: t, 0, 0.25, 10, pairs=4
    )


def _lgamma():
    # lgamma(z) = (z - 1/2) log(z) - z + log(2 pi) / 2 + p(w) / z, w = 1 / z**2, z >= 8.
    def f(w):
        z = 1 / mpmath.sqrt(w)
        stirling = (z - mpf(1) / 2) * mpmath.log(z) - z + mpmath.log(2 * mpmath.pi) / 2
        return (mpmath.loggamma(z) - stirling) * z

    yield Polynomial("BINET", f, mpmath.sqrt, 0, 1 / 64, 10, pairs=1)


def _digamma():
    # digamma(z) = log(z) - 1 / (2 z) - w p(w), w = 1 / z**2, z >= 8.
    def f(w):
        z = 1 / mpmath.sqrt(w)
        return (mpmath.log(z) - 1 / (2 * z) - mpmath.digamma(z)) / w

    yield Polynomial("BINET", f, lambda w: w, 0, 1 / 64, 10, pairs=1)


def _bessel():
    # exp(-x) I0(x) and exp(-x) I1(x) / x as p(x - 4), x <= 8, and sqrt(x) exp(-x) I0(x), and with
    # I1, as p(1 / x), x >= 8; all relative.
    for order in (0, 1):

        def small(t, order=order):
            x = t + 4
            value = mpmath.besseli(order, x) * mpmath.exp(-x)
            return value if order == 0 else value / x

        def large(t, order=order):
            if t == 0:
                return 1 / mpmath.sqrt(2 * mpmath.pi)
            return mpmath.besseli(order, 1 / t) * mpmath.exp(-1 / t) / mpmath.sqrt(t)

        for name, f, low, high, degree in [
            ("SMALL", small, -4, 4, 24),
            ("LARGE", large, 0, 0.125, 14),
        ]:
            yield Polynomial(f"{name}_{order}", f, lambda t, f=f: 1 / f(t), low, high, degree)


def _first():
    """What the kernel tries first (``primitives/cpu/native/first-inl.h``): relative errors."""
    # e**r - 1 = r p(r), |r| <= log(2)/2, and a little for the rounding of k.
    yield Polynomial(
        "EXP",
        lambda r: mpmath.expm1(r) / r,
        lambda r: r / mpmath.expm1(r),
        -0.34658,
        0.34658,
        8,
    )
    # 1/m and -log(1/m) of the middles of 16 intervals of significands; of 1, in the tenth, 1 and 0.
    bounds, inverses = _significands(53)
    yield Table("INVERSES", lambda: inverses)
    yield Table("LOGARITHMS", lambda: [-mpmath.log(x) for x in inverses])
    # log(1 + f) = f p(f).
    widest = _widest(bounds, inverses)
    yield Polynomial(
        "LOG",
        lambda f: mpmath.log1p(f) / f,
        lambda f: f / mpmath.log1p(f),
        -widest,
        widest,
        6,
    )

    # Of pow: the short inverses c of m, -log2(c) as a multiple of 2**-20 and the rest;
    # log2(1 + f) = f p(f), |f| <= 0.0333.
    def logarithms():
        return [-mpmath.log(mpf(c), 2) for c in short_logarithms()[0]]

    def heads():
        return [_multiple(x, -20) for x in logarithms()]

    yield Table("SHORT_INVERSES", lambda: short_logarithms()[0])
    yield Table("LOG2_HEADS", heads)
    yield Table("LOG2_RESTS", lambda: [x - y for x, y in zip(logarithms(), heads(), strict=True)])
    yield Polynomial(
        "LOG2",
        lambda f: mpmath.log1p(f) / f / mpmath.log(2),
        lambda f: f * mpmath.log(2) / mpmath.log1p(f),
        -0.03334,
        0.03334,
        8,
    )
    # Of lgamma: the rest of Stirling's series is p(1 / z**2) / z, absolute error, z >= 8;
    # sin(pi r) / (pi r) = p(r**2).
    yield dataclasses.replace(next(_lgamma()), degree=4, pairs=0)
    yield Polynomial(
        "SIN",
        lambda t: mpmath.sincpi(mpmath.sqrt(t)),
        lambda t: 1 / mpmath.sincpi(mpmath.sqrt(t)),
        0,
        0.25,
        7,
    )
    # Of digamma: p(1 / z**2) / z**2 follows log(z) - 1 / (2 z), z >= 8; cos(pi r) = p(r**2).
    yield dataclasses.replace(next(_digamma()), name="DIGAMMA", degree=4, pairs=0)
    yield Polynomial("COS", lambda t: mpmath.cospi(mpmath.sqrt(t)), lambda t: 1, 0, 0.25, 7)
    # pi/2 as two numbers of 30 bits and the rest; sin(r) / r = p(r**2), cos(r) = p(r**2),
    # |r| <= pi/4, and a little for the rounding of k.
    yield Table("PI_2", _parts_of_pi)
    yield Polynomial(
        "SINE",
        lambda t: mpmath.sinc(mpmath.sqrt(t)),
        lambda t: 1 / mpmath.sinc(mpmath.sqrt(t)),
        0,
        0.6169,
        5,
    )
    yield Polynomial(
        "COSINE",
        lambda t: mpmath.cos(mpmath.sqrt(t)),
        lambda t: 1 / mpmath.cos(mpmath.sqrt(t)),
        0,
        0.6169,
        5,
    )
    # erf(x) = x p(t), t = 63/16 |x| - i, |t| <= 1/2, a column for each i.
    pieces = [
        minimax(
            Polynomial(
                f"ERF {i}",
                lambda t, i=i: _erf_over_x((t + i) * 16 / 63),
                lambda t, i=i: 1 / _erf_over_x((t + i) * 16 / 63),
                -0.5 if i else 0,
                0.5,
                8,
            )
        )
        for i in range(16)
    ]
    for n in range(9):
        yield Table(f"ERF_{n}", lambda n=n: [rounded[n][0] for rounded, _ in pieces])
    # erfc(x) = e**(-x**2) p(t) / (x + 3), t = (x - 3) / (x + 3), 0 <= x <= 37/4.
    yield Polynomial(
        "ERFC",
        lambda t: _erfc_fraction(t, mpf(3)),
        lambda t: 1 / _erfc_fraction(t, mpf(3)),
        -1,
        25 / 49,
        15,
    )


def _multiple(x, exponent: int):
    """The multiple of 2**exponent next to x."""
    return mpmath.ldexp(mpmath.nint(mpmath.ldexp(x, -exponent)), exponent)


def _significands(bits: int) -> tuple[tuple[float, ...], list[float]]:
    """The bounds of 16 intervals from 45/64 to 45/32, and the inverses of their middles, rounded to
    so many bits; 1 in the tenth, which has 1."""
    bounds = struct.unpack("17d", struct.pack("17Q", *(0x3FE68 + 16 * i << 44 for i in range(17))))
    middles = [(mpf(a) + mpf(b)) / 2 for a, b in itertools.pairwise(bounds)]
    inverses = [_round(1 / m, 1, bits)[0] for m in middles]
    inverses[9] = 1.0
    return bounds, inverses


def _widest(bounds: tuple[float, ...], inverses: list[float]) -> float:
    """The largest |m c - 1|, of m in an interval and its c."""
    ends = zip(itertools.pairwise(bounds), inverses, strict=True)
    return float(max(abs(mpf(m) * c - 1) for pair, c in ends for m in pair))


def _parts_of_pi():
    parts = _round(mpmath.pi / 2, 2, 30)
    return [*parts, mpmath.pi / 2 - mpmath.fsum(parts)]


def _erf_over_x(x):
    return mpmath.erf(x) / x if x else 2 / mpmath.sqrt(mpmath.pi)


def _pairs():
    """What is tried in pairs of float32 (``primitives/cpu/native/pairs-inl.h``)."""

    def powers():
        return [mpf(2) ** (mpf(j) / 32) for j in range(32)]

    yield Table("ROOTS", powers, bits=24)
    yield Table("RESTS", lambda: [mpmath.log(x / _round(x, 1, 24)[0]) for x in powers()], bits=24)
    # e**r = 1 + r + r**2/2 + r**3 p(r), error relative to r, with tables of 32 and 16 entries: |r|
    # is at most half a step of log(2)/32 or log(2)/16, and a little more.
    for entries, most, degree in ((32, 0.01084, 1), (16, 0.02167, 2)):
        yield Polynomial(
            f"EXP_{entries}",
            lambda r: (mpmath.expm1(r) - r - r**2 / 2) / r**3,
            lambda r: r**2,
            -most,
            most,
            degree,
            bits=24,
        )
    # 1/m of the middles of 16 intervals of significands, and 1 of that of 1, the tenth; -log of
    # these as a multiple of 2**-16 and the rest; log(2) so, too.
    bounds, inverses = _significands(24)

    def head_and_rest(x):
        head = _multiple(x, -16)
        return head, x - head

    def logarithms():
        return [head_and_rest(-mpmath.log(c)) for c in inverses]

    yield Table("INVERSES", lambda: inverses, bits=24)
    yield Table("HEADS", lambda: [head for head, _ in logarithms()], bits=24)
    yield Table("HEADS_RESTS", lambda: [rest for _, rest in logarithms()], bits=24)
    yield Table("LOG_2", lambda: head_and_rest(mpmath.log(2)), bits=24)
    # log(1 + f) = f - f**2/2 + f**3 p(f), error relative to f.
    widest = _widest(bounds, inverses)
    yield Polynomial(
        "LOG",
        lambda f: (mpmath.log1p(f) - f + f**2 / 2) / f**3,
        lambda f: f**2,
        -widest,
        widest,
        3,
        bits=24,
    )
    # erf(x) = x (c0 + c1 t + c2 t**2 + ...), t = |x| - PLACES[i], i the integer nearest 8 |x|.
    places = _erf_places()
    columns = [_erf_around(i, place) for i, place in enumerate(places)]
    yield Table("PLACES", lambda: places, bits=24)
    for n in range(7):
        yield Table(f"ERF_{n}", lambda n=n: [c[n] for c in columns], bits=24)


def _erf_interval(i: int) -> tuple[float, float]:
    return max(0, i - 0.5) / 8, min((i + 0.5) / 8, 3.93)


def _erf_derivatives(x, count: int) -> list:
    """Coefficients in t of erf(x + t) / (x + t)."""
    powers = [mpf(1), -2 * x]  # of e**(-2 x t - t**2)
    while len(powers) < count - 1:
        powers.append((-2 * x * powers[-1] - 2 * powers[-2]) / len(powers))
    scale = 2 / mpmath.sqrt(mpmath.pi) * mpmath.exp(-x * x)
    found = [mpmath.erf(x) / x]
    for n, power in enumerate(powers, 1):
        found.append((scale * power / n - found[-1]) / x)
    return found


def _erf_places() -> list[float]:
    """A float32 number in the middle of each interval around which float32 coefficients do best.

    What is added up is relative to the result: the rounding of the first three coefficients, and
    that of c2 + c3 t + ..., which the kernel makes in float32.
    """
    places = []
    for i in range(32):
        low, high = _erf_interval(i)
        middle = i / 8 if i else 1 / 64
        step = float(np.spacing(np.float32(middle)))
        away = np.arange(-1, 1, 2**-19) * min(2**19 * step, 2**-5)
        x = middle + np.unique(away // step * step)
        with mpmath.workprec(PRECISION):
            exact = list(map(float, _erf_derivatives(mpf(middle), 14)))
        size, error = np.maximum(x - low, high - x), 0
        terms = [[math.comb(k, n) * c for k, c in enumerate(exact)][n:] for n in range(3)]
        found = [abs(np.polyval(t[::-1], x - middle)) for t in terms]
        for n, c in enumerate(found):
            error = error + abs(c - c.astype(np.float32)) * size**n
        error = error + 2 ** (np.floor(np.log2(found[2])) - 24) * size**2
        places.append(float(x[np.argmin(error / found[0])]))
    return places


def _erf_around(i: int, place: float) -> list:
    """The coefficients of an interval, times 2**32, so that no product is subnormal."""
    with mpmath.workprec(PRECISION):
        c0, c1, *_ = _erf_derivatives(mpf(place), 3)
    low, high = _erf_interval(i)
    rest = Polynomial(
        f"ERF {i}",
        lambda t: (_erf_over_x(t + place) - c0 - c1 * t) / t**2,
        lambda t: t**2 / _erf_over_x(t + place),
        low - place,
        high - place,
        4,
        bits=24,
    )
    return [mpmath.ldexp(c, 32) for c in (c0, c1, *(c for (c,) in minimax(rest)[0]))]


FUNCTIONS = {
    "first": _first,
    "pairs": _pairs,
    "bessel": _bessel,
    "atan2": _atan2,
    "pow": _pow,
    "exp": _exp,
    "exp2": _exp2,
    "log": _log,
    "cbrt": _cbrt,
    "trigonometric": _trigonometric,
    "atan": _atan,
    "asin": _asin,
    "sinh": _sinh,
    "atanh": _atanh,
    "erf": _erf,
    "erfc": _erfc,
    "erf_inv": _erf_inv,
    "logarithm": _logarithm,
    "gamma": _gamma,
    "lgamma": _lgamma,
    "digamma": _digamma,
}


def _lines(name: str, rows) -> list[str]:
    """The definition of ``name`` as rows of one number, or of several that are to be added."""
    written = [" ".join(part.hex() for part in row) for row in rows]
    reader = "constants" if len(rows[0]) == 1 else "constant_pairs"
    return [f'{name} = {reader}("""', *(f"    {row}" for row in written), '""")']


def block(p: Polynomial | Table) -> str:
    """The lines of source that define ``p``'s coefficients."""
    if isinstance(p, Table):
        with mpmath.workprec(PRECISION):
            return "\n".join(_lines(p.name, [_round(c, p.parts, p.bits) for c in p.values()]))
    coefficients, error = minimax(p)
    lines = [f"# degree {p.degree}, weighted error 2**{error:.2f}"]
    if p.pairs:
        lines += _lines(f"{p.name}_PAIRS", coefficients[: p.pairs])
    if p.pairs <= p.degree:
        lines += _lines(p.name, coefficients[p.pairs :])
    return "\n".join(lines)


def main(names) -> None:
    for name in names or FUNCTIONS:
        if name not in FUNCTIONS:
            raise SystemExit(
                f"expected one of {', '.join(FUNCTIONS)}, received {name!r}; "
                "the other functions reuse these polynomials"
            )
        print(f"# python -m repjax.primitives.operations.elementary.generate {name}")
        for p in FUNCTIONS[name]():
            print(block(p))


if __name__ == "__main__":
    main(sys.argv[1:])
