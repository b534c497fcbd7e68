"""First tries of elementary functions (``primitives/cpu/native/first-inl.h`` and ``pairs-inl.h``),
in NumPy: where they are in doubt, they have to be, and the kernel's proven functions are called."""

from __future__ import annotations

import functools
import pathlib
import re

import jax
import mpmath
import numpy as np
import pytest

import repjax
from helpers.bits import assert_same_bits
from helpers.instruction_sets import each_instruction_set
from helpers.kernels import without_kernel
from repjax.primitives.core.define import PRIMITIVES
from repjax.primitives.cpu import library, sources
from repjax.primitives.operations.elementary import generate

NATIVE = pathlib.Path(sources.__file__).parent / "native"
HEADER, PAIRS = ((NATIVE / name).read_text() for name in ("first-inl.h", "pairs-inl.h"))
HARD_INPUTS = pathlib.Path(__file__).parent.parent / "data" / "hard_inputs"


def numbers(name: str, header: str = HEADER) -> list[float]:
    """The constants that the header has under a name."""
    body = re.search(rf"{name}(?:\[\d*\])+ = {{(.*?)}};", header, re.DOTALL).group(1)
    return [float.fromhex(x) for x in re.findall(r"-?0x[0-9a-f.]+p[+-]\d+|0x0\.0p\+0", body)]


def polynomial(x, coefficients):
    y = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        y = y * x + c
    return y


def tried_exp(x):
    k = np.rint(x * float.fromhex("0x1.71547652b82fep+0"))
    r = x - k * float.fromhex("0x1.62e42fefa39efp-1")
    return np.ldexp(r * polynomial(r, numbers("kExp")) + 1, k.astype(int))


def tried_log(x):
    above = x.view(np.int64) - 0x3FE6800000000000
    k, i = above >> 52, above >> 48 & 15
    m = (x.view(np.int64) - (k << 52)).view(np.float64)
    f = np.where(above >> 48 == 9, x - 1, m * np.array(numbers("kInverses"))[i] - 1)
    rest = k * float.fromhex("0x1.62e42fefa39efp-1") + np.array(numbers("kLogarithms"))[i]
    return f * polynomial(f, numbers("kLog")) + rest


def turned(x):
    k = np.rint(x * float.fromhex("0x1.45f306dc9c883p-1"))
    r = x
    for part in numbers("kPi2"):
        r = r - k * part
    t = r * r
    return k.astype(int), r * polynomial(t, numbers("kSine")), polynomial(t, numbers("kCosine"))


def tried_sin(x, quadrants=0):
    k, sine, cosine = turned(x)
    y = np.where(k + quadrants & 1, cosine, sine)
    return np.where(k + quadrants & 2, -y, y)


def tried_cos(x):
    return tried_sin(x, 1)


def tried_tan(x):
    k, sine, cosine = turned(x)
    return np.where(k & 1, -cosine, sine) / np.where(k & 1, sine, cosine)


def in_doubt(y):
    """The condition of ``first::rounded``."""
    return (y.view(np.int64) - (0x10000000 - 0x2000) & 0x1FFFC000) == 0


TRIED = {
    "exp": (tried_exp, mpmath.exp),
    "log": (tried_log, mpmath.log),
    "sin": (tried_sin, mpmath.sin),
    "cos": (tried_cos, mpmath.cos),
    "tan": (tried_tan, mpmath.tan),
}
#: What is tried; below, results of exp are zeros, and of log NaN.
TURNS = (-(2.0**22), 2.0**22)
BETWEEN = {"exp": (-87, 89), "log": (0, np.inf), "sin": TURNS, "cos": TURNS, "tan": TURNS}


def hard_inputs(name):
    lines = (HARD_INPUTS / f"{name}.txt").read_text().splitlines()
    bits = [int(line.split()[0], 16) for line in lines if not line.startswith("#")]
    x = np.array(bits, np.uint32).view(np.float32)
    low, high = BETWEEN[name]
    return x[(x > low) & (x < high)]


def relative_errors(name, x):
    tried, exact = TRIED[name]
    with mpmath.workprec(120):
        return [
            abs((mpmath.mpf(float(y)) - exact(v)) / exact(v))
            for y, v in zip(tried(x), (mpmath.mpf(float(v)) for v in x), strict=True)
        ]


@pytest.mark.parametrize("name", TRIED)
def test_hard_inputs_are_in_doubt(name):
    x = hard_inputs(name)
    assert (
        len(x) > (50 if BETWEEN[name] is TURNS else 100)
        and in_doubt(TRIED[name][0](x.astype(np.float64))).all()
    )


@pytest.mark.parametrize("name", TRIED)
def test_control_the_tries_alone_are_wrong_there(name):
    x = hard_inputs(name)
    tried, exact = TRIED[name]
    alone = tried(x.astype(np.float64)).astype(np.float32)
    with mpmath.workprec(24):  # rounds to float32's precision, to nearest even
        right = np.array([float(exact(mpmath.mpf(float(v)))) for v in x], np.float32)
    assert (alone.view(np.uint32) != right.view(np.uint32)).sum() > len(x) // 100


@pytest.mark.parametrize("name", TRIED)
def test_errors_are_within_the_bound(name):
    rng = np.random.default_rng(0)
    x = np.exp(rng.uniform(-85, 85, 2000)) if name == "log" else rng.uniform(-87, 88, 2000)
    near_one = 1 + rng.uniform(-1, 1, 500) * 2.0 ** rng.integers(-20, -3, 500)
    if BETWEEN[name] is TURNS:  # also where they are nearly 0, and -1 or 1
        near_one = np.concatenate([near_one, rng.integers(-(2**21), 2**21, 2000) * (np.pi / 2)])
    x = np.concatenate([x, near_one]).astype(np.float32).astype(np.float64)
    x = x[x != 1]
    assert max(relative_errors(name, x)) < 2.0**-41


def test_constants_are_those_of_their_script():
    made = {p.name: p for p in generate.FUNCTIONS["first"]()}
    for name in ("EXP", "LOG", "LOG2", "BINET", "SIN", "DIGAMMA", "COS", "SINE", "COSINE"):
        there = f"k{name.capitalize()}"
        coefficients, _ = generate.minimax(made[name])
        assert numbers(there) == [c for (c,) in coefficients]
    with mpmath.workprec(generate.PRECISION):
        for name, there in [
            ("INVERSES", "kInverses"),
            ("LOGARITHMS", "kLogarithms"),
            ("SHORT_INVERSES", "kShortInverses"),
            ("LOG2_HEADS", "kLog2Heads"),
            ("LOG2_RESTS", "kLog2Rests"),
            ("PI_2", "kPi2"),
        ]:
            assert numbers(there) == list(map(float, made[name].values()))
        rows = [float(x) for n in range(9) for x in made[f"ERF_{n}"].values()]
        assert numbers("kErf") == rows


def precise_log2(x):
    bits = x.view(np.int64)
    j = bits + (1 << 47) >> 48
    k, i = (j + 9 >> 4) - 0x3FF, j & 15
    names = ("kShortInverses", "kLog2Heads", "kLog2Rests")
    inverse, head, rest = (np.array(numbers(name))[i] for name in names)
    f = (bits - (k << 52)).view(np.float64) * inverse - 1
    return k + head, f * polynomial(f, numbers("kLog2")) + rest


def tried_pow(x, y):
    hi, lo = precise_log2(x)
    t = y * hi
    n = np.rint(t + y * lo)
    r = ((t - n) + y * lo) * float.fromhex("0x1.62e42fefa39efp-1")
    return np.ldexp(r * polynomial(r, numbers("kExp")) + 1, n.astype(int))


def hard_pairs():
    lines = (HARD_INPUTS / "pow.txt").read_text().splitlines()
    bits = [[int(i, 16) for i in line.split()[:2]] for line in lines if line[0] != "#"]
    x, y = np.array(bits, np.uint32).view(np.float32).astype(np.float64).T
    return x, y, [mpmath.power(mpmath.mpf(a), mpmath.mpf(b)) for a, b in zip(x, y, strict=True)]


def test_hard_pairs_are_in_doubt_and_tries_alone_are_wrong_there():
    with mpmath.workprec(200):
        x, y, exact = hard_pairs()
    tried = tried_pow(x, y)
    assert len(x) > 100 and in_doubt(tried).all()
    with mpmath.workprec(24):
        right = np.array([float(+v) for v in exact])
    assert (tried.astype(np.float32) != right).sum() > len(x) // 20


def test_errors_of_pow_are_within_the_bound():
    rng = np.random.default_rng(2)
    near_one = 1 + rng.choice([-1, 1], 1000) * 2.0 ** rng.uniform(-20, -3, 1000)
    x = np.concatenate([np.exp(rng.uniform(-80, 80, 1000)), near_one]).astype(np.float32)
    x = x.astype(np.float64)
    y = (rng.uniform(-125, 127, 2000) / np.log2(x)).astype(np.float32).astype(np.float64)
    with mpmath.workprec(200):
        for a, b, z in zip(x, y, tried_pow(x, y), strict=True):
            exact = mpmath.power(mpmath.mpf(a), mpmath.mpf(b))
            assert abs(mpmath.mpf(z) - exact) < exact * 2.0**-41


def precise_log(u):
    hi, lo = precise_log2(u)
    return (hi + lo) * np.log(2)


def tried_lgamma(x):
    """The result and the bound of its error."""
    y, negative = abs(x), x < 0
    small, v = y < 8, y + 4
    q = v * v
    cubic = (q - 1) * (q - 4) * (q - 9)
    above = np.where(small, v * cubic * np.where(negative, 1, y), 1)
    r = abs(y - np.floor(y + 0.5))
    below = np.where(negative, r * polynomial(r * r, numbers("kSin")) * np.where(small, 1, y), 1)
    z = np.where(small, y + 8, y)
    series = polynomial(1 / z**2, numbers("kBinet")) / z
    stirling = (z - 0.5) * (precise_log(z) - 1) + float.fromhex("0x1.acfe390c97d69p-2")
    result = (stirling - precise_log(above / below)) + series
    return np.where(negative, -result, result), (abs(result) + 1) * 2.0**-43


def tried_digamma(x):
    """The result and the bound of its error."""
    y, negative = abs(x), x < 0
    small, w = y < 8, y * (y + 7)
    first, last = (w + 6) * (w + 10), w + 12
    slope = first * (last + w) + w * last * (2 * w + 16)
    of_small = (2 * y + 7) * slope - np.where(negative, (y + 7) * first * last, 0)
    above = np.where(small, of_small, np.where(negative, -1, 0))
    below = np.where(small, w * first * last, np.where(negative, y, 1))
    r = y - np.floor(y + 0.5)
    sine = np.where(negative, r * polynomial(r * r, numbers("kSin")), 1)
    cosine = np.where(negative, polynomial(r * r, numbers("kCos")), 0)
    z = np.where(small, y + 8, y)
    smooth = precise_log(z) - (0.5 / z + polynomial(1 / z**2, numbers("kDigamma")) / z**2)
    result = smooth + (cosine * below - above * sine) / (below * sine)
    return result, (abs(result) + 1) * 2.0**-43


def _lgamma(x):
    value = mpmath.log(abs(mpmath.gamma(x))) if abs(x) < 1e4 else mpmath.loggamma(x)
    return mpmath.re(value)


OF_GAMMA = {
    "lgamma": (
        tried_lgamma,
        _lgamma,
        [1, 2, -2.4570247, -2.7476826, -3.1435807, -3.9552942, -10.0000003],
    ),
    "digamma": (
        tried_digamma,
        mpmath.digamma,
        [1.4616321, -0.50408300, -1.5734984, -7.6877883, -9.7026725, -11.7126682],
    ),
}


@pytest.mark.parametrize("name", OF_GAMMA)
def test_hard_inputs_of_gamma_are_in_doubt_and_the_try_alone_is_wrong_there(name):
    tried, function, _ = OF_GAMMA[name]
    lines = (HARD_INPUTS / f"{name}.txt").read_text().splitlines()
    bits = np.array([int(line.split()[0], 16) for line in lines if line[0] != "#"], np.uint32)
    x = bits.view(np.float32).astype(np.float64)
    y, bound = tried(x)
    assert len(x) > 20 and ((y - bound).astype(np.float32) != (y + bound).astype(np.float32)).all()
    with mpmath.workprec(400):
        exact = [function(mpmath.mpf(v)) for v in x]
    with mpmath.workprec(24):
        right = np.array([float(+v) for v in exact])
    assert (y.astype(np.float32) != right).any()


@pytest.mark.parametrize("name", OF_GAMMA)
def test_errors_of_gamma_are_within_the_bound(name):
    tried, function, zeros = OF_GAMMA[name]
    rng = np.random.default_rng(3)

    def near(points, count):
        x = np.repeat(np.asarray(points, np.float64), count)
        return x * (1 + rng.choice([-1, 1], x.size) * 2.0 ** rng.uniform(-22, -4, x.size))

    x = np.concatenate(
        [
            rng.uniform(-20, 20, 1000),
            np.exp(rng.uniform(-60, 60, 300)),
            -np.exp(rng.uniform(-60, 12, 300)),
            near(zeros, 50),
            near(range(-10, 0), 30),
        ]
    )
    x = x.astype(np.float32).astype(np.float64)
    x = x[(x > 0) | (x != np.floor(x))]
    y, bound = tried(x)
    with mpmath.workprec(300):
        for v, result, most in zip(x, y, bound, strict=True):
            assert abs(mpmath.mpf(result) - function(mpmath.mpf(v))) < most / 4


# --- pairs of float32 -------------------------------------------------------------------


def fma(a, b, c):
    """Of float32 arrays; at worst a second rounding, of the last bit of float64, is wrong."""
    return (np.float64(a) * np.float64(b) + np.float64(c)).astype(np.float32)


def _float32(text: str) -> np.float32:
    return np.float32(float.fromhex(text))


#: The bound of what is tried with tables of so many entries.
BOUNDS = {32: _float32("0x1.8p-35"), 16: _float32("0x1.8p-33")}


def _power(x, entries):
    zero = _float32("0x1.8p18" if entries == 32 else "0x1.8p19")
    at = fma(x, _float32("0x1.715476p+0"), zero)
    k, j = at - zero, (at.view(np.int32) & entries - 1) * (32 // entries)
    roots, rests = (np.array(numbers(n, PAIRS), np.float32)[j] for n in ("kRoots", "kRests"))
    r = fma(k, _float32("-0x1.62e43p-1"), x)
    return k, roots, r, fma(k, _float32("0x1.05c61p-29"), rests)


def _polynomial_in_pairs(x, name):
    coefficients = np.array(numbers(name, PAIRS), np.float32)
    y = np.full_like(x, coefficients[-1])
    for c in coefficients[-2::-1]:
        y = fma(y, x, c)
    return y


def _sum(x, entries):
    k, root, r, low = _power(x, entries)
    q = r + low
    c = _polynomial_in_pairs(q, f"kExp{entries}")
    s = fma(q * q, fma(c, q, np.float32(0.5)), low)
    hi = fma(root, r, root)
    return k, hi, fma(root, s, fma(root, r, root - hi))


def _quotient(hi, lo, d, rest, k, entries):
    def left(q, hi):
        return fma(-q, rest, fma(-q, d, hi))

    near = (1 / np.float64(d) * (1 + 2.0**-14)).astype(np.float32)  # as wrong as it may be
    inverse = fma(left(near, np.float32(1)), near, near)
    q = hi * inverse
    return q, (left(q, hi) + lo) * inverse, np.abs(q) * BOUNDS[entries], k


def exp_in_pairs(x, entries):
    k, hi, lo = _sum(x, entries)
    return hi, lo, np.full_like(hi, BOUNDS[entries]), k


def logistic_in_pairs(x, entries):
    k, hi, lo = _sum(-abs(x), entries)
    one, power = np.float32(1), np.floor(k).astype(int)
    a = np.ldexp(hi, power)
    d = a + one
    rest = (a - (d - one)) + np.ldexp(lo, power)
    is_negative = x < 0
    hi, lo = np.where(is_negative, hi, one), np.where(is_negative, lo, np.float32(0))
    return _quotient(hi, lo, d, rest, np.where(is_negative, k, 0), entries)


def tanh_in_pairs(x, entries):
    k, root, r, low = _power(-2 * abs(x), entries)
    c = _polynomial_in_pairs(r, f"kExp{entries}")
    half, one, two = np.float32([0.5, 1, 2])
    p = r * r
    of_p, t = fma(r, r, -p), fma(half, p, r)
    of_t = fma(half, p, r - t)
    s = fma(low, t, low) + fma(half, of_p, fma(p * r, c, of_t))
    m = np.ldexp(root, np.floor(k).astype(int))
    n = m - one
    of_n = m - (n + one)
    hi = fma(m, t, n)
    lo = fma(m, s, fma(m, t, n - hi) + of_n)
    d = hi + two
    y, lo, bound, k = _quotient(hi, lo, d, (hi - (d - two)) + lo, 0 * k, entries)
    return np.copysign(y, x), np.copysign(np.float32(1), x) * -lo, bound, k


def erf_in_pairs(x):
    y = abs(x)
    i = (y + _float32("0x1.8p20")).view(np.int32) & 31
    *coefficients, places = np.array(numbers("kErf", PAIRS), np.float32).reshape(8, 32)[:, i]
    t, c = y - places, coefficients[6]
    for n in (5, 4, 3, 2):
        c = fma(c, t, coefficients[n])
    b = fma(c, t, coefficients[1])
    p = fma(b, t, coefficients[0])
    of_b = fma(c, t, coefficients[1] - b)
    of_p = fma(of_b, t, fma(b, t, coefficients[0] - p))
    hi = x * p
    lo = fma(x, of_p, fma(x, p, -hi))
    return hi, lo, abs(hi) * _float32("0x1.cp-34"), np.full_like(hi, -32)


def hypot_in_pairs(x, y):
    u, v = np.maximum(abs(x), abs(y)), np.minimum(abs(x), abs(y))
    p, q = u * u, v * v
    s = p + q
    t = (q - (s - p)) + (fma(u, u, -p) + fma(v, v, -q))
    h, one = np.sqrt(s), np.float32(1)
    near = (1 / np.float64(h) * (1 + 2.0**-14)).astype(np.float32)  # as wrong as it may be
    inverse = fma(fma(-h, near, one), near, near)
    return h, (fma(-h, h, s) + t) * (inverse * np.float32(0.5)), h * _float32("0x1p-43")


def _split(x):
    above = x.view(np.int32) - 0x3F340000
    k, interval = above >> 23, above >> 19
    m = (x.view(np.int32) - (k << 23)).view(np.float32)
    return k, interval, m, np.array(numbers("kInverses", PAIRS), np.float32)[interval & 15]


def _log(k, interval, f, of_f):
    heads, rests = (
        np.array(numbers(n, PAIRS), np.float32)[interval & 15] for n in ("kHeads", "kHeadsRests")
    )
    log_2, of_log_2 = np.array(numbers("kLog2", PAIRS), np.float32)
    n, half, q = k.astype(np.float32), np.float32(-0.5), f * f
    of_q = fma(f, f, -q)
    head, rest = fma(n, log_2, heads), fma(n, of_log_2, rests)
    s = head + f
    hi = fma(half, q, s)
    left = fma(half, q, s - hi) + (f - (s - head))
    of_log = fma(-of_f, f, of_f)
    lo = (fma(f * q, _polynomial_in_pairs(f, "kLog"), rest) + left) + fma(
        half, of_q, fma(of_log, q, of_log)
    )
    return hi, lo, abs(hi) * BOUNDS[16], np.zeros_like(hi)


def log_in_pairs(x):
    k, interval, m, c = _split(x)
    p = m * c
    return _log(k, interval, p - np.float32(1), fma(m, c, -p))


def log1p_in_pairs(x):
    one = np.float32(1)
    a, b = np.where(abs(x) > 1, x, one), np.where(abs(x) > 1, one, x)
    k, interval, m, c = _split(x + one)
    of_m = np.ldexp(b - ((x + one) - a), -k)
    p, is_near = m * c, interval == 9
    f = np.where(is_near, x, p - one)
    return _log(k, interval, f, np.where(is_near, np.float32(0), fma(of_m, c, fma(m, c, -p))))


def rsqrt_in_pairs(x):
    one, half = np.float32([1, 0.5])
    near = (1 / np.sqrt(np.float64(x)) * (1 + 1.5 * 2.0**-12)).astype(np.float32)
    y = fma(near * half, fma(-(x * near), near, one), near)
    a = x * y
    e = fma(-fma(x, y, -a), y, fma(-a, y, one))
    lo = (y * half) * fma(e * np.float32(0.75), e, e)
    return y, lo, y * _float32("0x1p-40"), np.zeros_like(y)


def _with_entries(name, tried, exact, between):
    """With the tables of AVX-512 and of AVX2."""
    return {
        f"{name}, {entries}": (functools.partial(tried, entries=entries), exact, between)
        for entries in BOUNDS
    }


def _logistic(x):
    return 1 / (1 + mpmath.exp(-x))


IN_PAIRS = {
    **_with_entries("exp", exp_in_pairs, mpmath.exp, (-87, 88)),
    **_with_entries("logistic", logistic_in_pairs, _logistic, (-87, 17)),
    **_with_entries("tanh", tanh_in_pairs, mpmath.tanh, (-9, 9)),
    "erf": (erf_in_pairs, mpmath.erf, (-3.93, 3.93)),
    "log": (log_in_pairs, mpmath.log, (0, 1e30)),
    "log1p": (log1p_in_pairs, mpmath.log1p, (-1, 1e30)),
    "rsqrt": (rsqrt_in_pairs, lambda x: 1 / mpmath.sqrt(x), (0, 1e30)),
}
HARD_IN_PAIRS = [name for name in IN_PAIRS if name != "rsqrt"]  # of which no input is as hard


def hard_inputs_in_pairs(name):
    file = HARD_INPUTS / f"{name.split(',')[0]}.txt"
    lines = file.read_text().splitlines()
    x = np.array([int(i.split()[0], 16) for i in lines if i[0] != "#"], np.uint32).view(np.float32)
    low, high = IN_PAIRS[name][2]
    return x[(x > low) & (x < high)]


@pytest.mark.parametrize("name", HARD_IN_PAIRS)
def test_hard_inputs_are_in_doubt_in_pairs(name):
    x = hard_inputs_in_pairs(name)
    hi, lo, bound, _ = IN_PAIRS[name][0](x)
    assert len(x) > 20 and (hi + (lo - bound) != hi + (lo + bound)).all()


@pytest.mark.parametrize("name", HARD_IN_PAIRS)
def test_control_pairs_alone_are_wrong_there(name):
    x = hard_inputs_in_pairs(name)
    tried, exact, _ = IN_PAIRS[name]
    hi, lo, _, k = tried(x)
    with mpmath.workprec(24):
        right = np.array([float(exact(mpmath.mpf(float(v)))) for v in x], np.float32)
    alone = np.ldexp(hi + lo, np.floor(k).astype(int))
    assert (alone.view(np.uint32) != right.view(np.uint32)).sum() > len(x) // 20


@pytest.mark.parametrize("name", IN_PAIRS)
def test_errors_of_pairs_are_within_the_bound(name):
    rng = np.random.default_rng(1)
    tried, exact, (low, high) = IN_PAIRS[name]
    near_zero = rng.choice([-1, 1], 1000) * 2.0 ** rng.uniform(-24, 0, 1000)
    x = np.concatenate([rng.uniform(low, high, 2000), near_zero, 1 + near_zero]).astype(np.float32)
    x = x[(x > low) & (x < high) & (x != (1 if name == "log" else 0))]
    hi, lo, bound, k = tried(x)
    with mpmath.workprec(120):
        for i, v in enumerate(x):
            scaled = mpmath.ldexp(exact(mpmath.mpf(float(v))), -int(np.floor(k[i])))
            assert abs(mpmath.mpf(float(hi[i])) + float(lo[i]) - scaled) < bound[i]


def legs():
    """Of the lengths that are tried: alike, a long and a short one, and with zeros."""
    rng = np.random.default_rng(1)
    exponents = rng.integers(-50, 60, 3000)
    x, y = np.ldexp(rng.uniform(1, 2, (2, 3000)), [exponents, exponents - 1]).astype(np.float32)
    y[1000:2000] *= np.float32(2.0) ** -rng.integers(0, 30, 1000)
    y[2990:] = 0
    return x, y


def test_errors_of_hypot_in_pairs_are_within_the_bound():
    x, y = legs()
    hi, lo, bound = hypot_in_pairs(x, y)
    with mpmath.workprec(120):
        for i in range(len(x)):
            exact = mpmath.hypot(mpmath.mpf(float(x[i])), mpmath.mpf(float(y[i])))
            assert abs(mpmath.mpf(float(hi[i])) + float(lo[i]) - exact) <= bound[i] / 2


def test_ties_of_hypot_are_in_doubt_in_pairs():
    """Hypotenuses of 25 bits, which are half way between two numbers."""
    m, n = np.random.default_rng(2).integers(2, 5792, (2, 200_000))
    a, b, c = abs(m * m - n * n), 2 * m * n, m * m + n * n
    ties = (a < 2**24) & (b < 2**24) & (c > 2**24) & (c < 2**25) & (c % 2 == 1) & (a > 0)
    assert ties.sum() > 1000
    hi, lo, bound = hypot_in_pairs(a[ties].astype(np.float32), b[ties].astype(np.float32))
    assert (hi + (lo - bound) != hi + (lo + bound)).all()


@pytest.mark.skipif(not library.available(), reason="there is no kernel")
def test_the_kernel_has_the_bits_of_the_body():
    """Also beyond what is tried, next to it, and where it is in doubt."""
    x, y = legs()
    far = np.float32([2.0**-51, 2.0**-50, 2.0**60, 2.0**61, 1e-40, 3e38, np.inf, np.nan, 0])
    m, n = np.random.default_rng(3).integers(2, 5792, (2, 3000))
    x = np.concatenate([x, np.repeat(far, 9), abs(m * m - n * n).astype(np.float32), x[:7]])
    y = np.concatenate([y, np.tile(far, 9), (2 * m * n).astype(np.float32), -x[:7]])

    def function(x, y):
        return PRIMITIVES["hypot"].bind(x, y), PRIMITIVES["hypot"].bind(y, np.float32(1.5))

    expected = without_kernel(function, x, y)
    for name in each_instruction_set():
        actual = repjax.reproducible(function)(x, y)
        jax.tree.map(lambda *pair, name=name: assert_same_bits(*pair, name), actual, expected)


def test_constants_of_pairs_are_those_of_their_script():
    made = {p.name: p for p in generate.FUNCTIONS["pairs"]()}
    for name, there in [("EXP_32", "kExp32"), ("EXP_16", "kExp16"), ("LOG", "kLog")]:
        coefficients, _ = generate.minimax(made[name])
        assert numbers(there, PAIRS) == [c for (c,) in coefficients]
    tables = {
        "ROOTS": "kRoots",
        "RESTS": "kRests",
        "INVERSES": "kInverses",
        "HEADS": "kHeads",
        "HEADS_RESTS": "kHeadsRests",
        "LOG_2": "kLog2",
    }
    with mpmath.workprec(generate.PRECISION):
        for name, there in tables.items():
            assert numbers(there, PAIRS) == [np.float32(x) for x in map(float, made[name].values())]
        columns = [*(f"ERF_{n}" for n in range(7)), "PLACES"]
        rows = [np.float32(float(x)) for name in columns for x in made[name].values()]
        assert numbers("kErf", PAIRS) == rows
