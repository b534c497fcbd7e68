"""Functions of two arguments: every bit against MPFR, which rounds them correctly.

There are too many pairs to try all.  Here are the hardest of a search of billions, pairs made to
be exact, ties or next to them, those at which the algorithms change, random ones, every way of
contracting multiply-adds, and controls that show that the comparison can fail.
"""

from __future__ import annotations

import functools
import importlib
import itertools

import gmpy2
import jax
import numpy as np
import pytest
from jax import lax

import repjax
import repjax.lax as rlax
from helpers.bits import assert_same_bits, normal
from helpers.contraction import interpret
from helpers.paths import DATA
from repjax.primitives.core import canonical

HARD_INPUTS = DATA / "hard_inputs"
SIZE = 2**17
EXACT = {"pow": lambda x, y: x**y, "atan2": gmpy2.atan2, "hypot": gmpy2.hypot}
each_function = pytest.mark.parametrize("name", EXACT)


def body(name):
    return importlib.import_module(f"repjax.primitives.operations.elementary.{name}").body


def canonical_bits(values, smallest):
    """The bits of float32 numbers, zero below ``smallest``, one NaN."""
    values = np.asarray(values, np.float32)
    values = np.where(np.abs(values) < smallest, np.float32(0), values)
    return np.where(np.isnan(values), np.uint32(0x7FC00000), values.view(np.uint32))


def canonical_pairs(x, y):
    return tuple(canonical_bits(v, 2.0**-126).view(np.float32) for v in (x, y))


@functools.cache
def jitted(name):
    return jax.jit(lambda x, y: body(name)(x, y))


def compiled(name, x, y):
    """Result bits of the compiled body; one shape, so one compilation a function."""
    assert len(x) <= SIZE
    with jax.enable_x64(True):
        result = np.asarray(jitted(name)(np.resize(x, SIZE), np.resize(y, SIZE)))[: len(x)]
    return canonical_bits(result, 2.0**-126)


def oracle(name, x, y):
    with gmpy2.context(precision=24):  # the one rounding; exponents have no limits
        results = [
            EXACT[name](gmpy2.mpfr(a), gmpy2.mpfr(b))
            for a, b in zip(x.tolist(), y.tolist(), strict=True)
        ]
    with np.errstate(over="ignore", under="ignore"):
        return canonical_bits(np.array(results, np.float64), np.nextafter(np.float32(2**-126), 1))


def misrounded(name, x, y):
    x, y = canonical_pairs(x, y)
    got, want = compiled(name, x, y), oracle(name, x, y)
    return [
        f"{name}({x[i].item().hex()}, {y[i].item().hex()}): "
        f"expected {want[i]:#010x}, received {got[i]:#010x}"
        for i in np.flatnonzero(got != want)
    ]


def hard_inputs(name):
    lines = (HARD_INPUTS / f"{name}.txt").read_text().splitlines()
    pairs = [line.split()[:2] for line in lines if not line.startswith("#")]
    x, y = np.array([[int(word, 16) for word in pair] for pair in pairs], np.uint32).T
    return x.copy().view(np.float32), y.copy().view(np.float32)


def around(values, count):
    """Float32 numbers and their neighbours, by bits, as rows."""
    words = np.asarray(values, np.float32).view(np.uint32)
    near = words[:, None] + np.arange(-count, count + 1).astype(np.uint32)
    return near.view(np.float32)


def both_signs(x, y):
    """The pairs four times: with the signs that there are."""
    signs = np.array([[1, 1], [1, -1], [-1, 1], [-1, -1]], np.float32)
    return tuple((signs[:, i, None] * np.ravel(v)).ravel() for i, v in enumerate((x, y)))


def log_uniform(rng, low, high, size):
    return np.exp2(rng.uniform(low, high, size)).astype(np.float32)


# --- random pairs ---------------------------------------------------------------------


def exponents(x, results):
    """Float32 y with x**y near the results."""
    with np.errstate(divide="ignore"):
        y = np.log2(np.asarray(results, np.longdouble)) / np.log2(x.astype(np.longdouble))
    return np.where(np.abs(y) < 3e38, y, 1).astype(np.float32)


def random_pairs(name):
    rng, n = np.random.default_rng(30_000), 5_000
    x = canonical_bits(rng.integers(0, 2**32, n, np.uint32).view(np.float32), 0).view(np.float32)
    pairs = [(x, rng.permutation(x))]
    x = log_uniform(rng, -126, 128, n)
    if name == "pow":
        pairs += [(x, exponents(x, np.exp2(rng.uniform(-127, 128.5, n))))]
        x = 1 + rng.choice([-1, 1], n) * log_uniform(rng, -23, -1, n)
        pairs += [(x, exponents(x, np.exp2(rng.uniform(-127, 128.5, n))))]
        pairs += [(rng.uniform(-20, 20, n), rng.integers(-80, 80, n) / 4)]
    else:
        pairs += [(x, x * log_uniform(rng, -r, 0, n)) for r in (1, 8, 30)]
    x, y = (
        np.concatenate([np.asarray(v, np.float32) for v in part])
        for part in zip(*pairs, strict=True)
    )
    x[::3] *= -1
    y[::5] *= -1
    return x, y


@each_function
def test_random_pairs(name):
    assert misrounded(name, *random_pairs(name)) == []


@each_function
def test_hard_inputs(name):
    assert misrounded(name, *hard_inputs(name)) == []


# --- special values -------------------------------------------------------------------

inf, nan = float("inf"), float("nan")
VALUES = [0, 1, 2, 3, 0.5, 1.5, 1 + 2**-23, 1 - 2**-24, 2.0**-126, 3e38, 2**24 - 1, 2**24, inf]
VALUES = np.array([*VALUES, *(-v for v in VALUES), nan], np.float32)
GRID = tuple(v.ravel() for v in np.meshgrid(VALUES, VALUES))
SPECIALS = {
    "pow": {
        (nan, 0): 1,
        (1, nan): 1,
        (-1, inf): 1,
        (-1, -inf): 1,
        (-2, 0.5): nan,
        (0, -3): inf,
        (0, -inf): inf,
        (0, 0.5): 0,
        (-inf, 3): -inf,
        (-inf, 2): inf,
        (-inf, 0.5): inf,
        (-inf, -3): 0,
        (2, -126): 0,
        (2, -125): 2.0**-125,
        (-2, 3): -8,
        (2, 128): inf,
        (-2, 129): -inf,
        (0.5, inf): 0,
        (0.5, -inf): inf,
    },
    "atan2": {
        (0, 0): 0,
        (0, 1): 0,
        (0, -1): np.pi,
        (1, 0): np.pi / 2,
        (-1, 0): -np.pi / 2,
        (1, 1): np.pi / 4,
        (-1, -1): -3 * np.pi / 4,
        (inf, inf): np.pi / 4,
        (inf, -inf): 3 * np.pi / 4,
        (1, inf): 0,
        (1, -inf): np.pi,
        (-inf, 5): -np.pi / 2,
        (2.0**-126, 2): 0,
        (nan, 1): nan,
    },
    "hypot": {
        (0, 0): 0,
        (3, -4): 5,
        (inf, nan): inf,
        (nan, -inf): inf,
        (nan, 0): nan,
        (2.0**-126, 0): 0,
        (3e38, 3e38): inf,
    },
}


@each_function
def test_special_values(name):
    assert misrounded(name, *GRID) == []
    x, y = np.array(list(SPECIALS[name]), np.float32).T
    want = canonical_bits(list(SPECIALS[name].values()), 2.0**-126)
    assert compiled(name, x, y).tolist() == want.tolist()


def test_any_nan_counts():
    x = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32).view(np.float32)
    for name in EXACT:
        for pair in (x, np.full_like(x, 2)), (np.full_like(x, 2), x):
            assert compiled(name, *pair).tolist() == [0x7FC00000] * 4, name


def test_special_values_are_those_of_jax():
    """Once made canonical, jax.lax has the same powers where they are exact."""
    values = VALUES[np.isin(np.abs(VALUES), [0, 1, 2, 3, 0.5, inf]) | np.isnan(VALUES)]
    x, y = (v.ravel() for v in np.meshgrid(values, values))
    exact = np.isin(np.abs(y), [0, 1, 2, inf]) | ~np.isin(np.abs(x), [2, 3, 0.5])
    stock = canonical_bits(lax.pow(x, y), 2.0**-126)
    assert compiled("pow", x, y)[exact].tolist() == stock[exact].tolist()


# --- exact powers, ties, and their neighbours -------------------------------------------


def ties():
    """(y, x) with x**y an odd number of 25 bits, up to powers of two; see pow.py."""
    for i, p in itertools.product(range(4), range(2, 16)):
        if i == 0 or p % 2:
            for n in range(3, 2**24, 2):
                if n**p >= 2**25 or n ** (2**i) >= 2**24:
                    break
                if n**p > 2**24:
                    yield p / 2**i, n ** (2**i)


def test_ties():
    y, x = np.array(list(ties()), np.float32).T
    assert sorted(set(y.tolist())) == [1.25, 1.5, 1.75, 2, 2.5, 3, 3.5, 4, 5, 6, 7]
    assert len(y) == 930
    x = around(x, 1).ravel()
    y = np.repeat(y, 3)
    scales = [np.float32(2.0) ** (4 * a) for a in (-5, -2, 0, 1, 3)]  # a quarter of them is exact
    x, y = (np.concatenate(part) for part in zip(*((x * s, y) for s in scales), strict=True))
    assert misrounded("pow", x, y) == []
    x[::2] *= -1
    assert misrounded("pow", x, y) == []


def test_nothing_but_ties_is_near_a_tie():
    """Of all significands, none comes within 2**-60 of 25 bits, where pow.py assumes 2**-75."""
    significands = np.arange(2**23, 2**24, dtype=np.float64)
    for y in sorted({y for y, _ in ties()}):
        denominator = y.as_integer_ratio()[1] if isinstance(y, float) else 1
        for scale in range(denominator):
            root = significands * 2.0**scale
            for _ in range(denominator // 2):
                root = np.sqrt(root)
            power = functools.reduce(np.multiply, [root] * round(y * denominator))
            gap = (power.view(np.int64) + 2**27 & 2**28 - 1) - 2**27
            for i in np.flatnonzero(np.abs(gap) < 2**6):  # more than the float64 errors
                x, e = int(significands[i]) << scale, int(np.frexp(power[i])[1]) - 25
                near = round(np.ldexp(power[i], -e))
                left, right = x ** round(y * denominator), near**denominator
                e *= denominator
                left, right = left << max(-e, 0), right << max(e, 0)
                difference = abs(left - right)
                assert difference == 0 or difference << 60 > right


def test_exact_powers_and_their_neighbours():
    """Perfect squares, 4th and 8th powers to fractional exponents; powers of two."""
    x = [np.arange(1, int(2 ** (24 / r)), dtype=np.float64)[-1500:] ** r for r in (2, 4, 8)]
    x = around(np.concatenate(x), 1).ravel()
    for y in (0.125, 0.25, 0.375, 0.5, 0.75, 1.125, 1.25, 1.5, -0.5, -0.25):
        assert misrounded("pow", x, np.full_like(x, y)) == []
    k = np.arange(-126, 128)
    for y in (0.5, 1, -1, 2, 1 / 3, 2.0**-7, 3 * 2.0**-7, -(2.0**-6), 0.75, 100):
        assert misrounded("pow", np.exp2(k), np.full(len(k), y)) == []


def test_powers_near_a_midpoint():
    """y chosen for a result next to a midpoint: of 1, of the limits, or anywhere."""
    rng, n = np.random.default_rng(31_000), 4_000
    midpoints = np.ldexp(2 * rng.integers(2**23, 2**24, n) + 1.0, -24)
    limits = [2.0**128 - 2.0**103, 2.0**128, 2.0**-126, 2.0**-126 + 2.0**-150]
    near_one = [1 + 2.0**-24, 1 - 2.0**-25, 1 + 3 * 2.0**-24, 1 - 3 * 2.0**-25]
    for results in midpoints, np.resize(limits, n), np.resize(near_one, n):
        x = np.concatenate(
            [
                log_uniform(rng, -126, 128, n // 2),
                1 + rng.choice([-1, 1], n // 2) * log_uniform(rng, -23, -1, n // 2),
            ]
        )
        x[x == 1] = 3
        y = around(exponents(x, results), 2)
        assert misrounded("pow", np.repeat(x, 5), y.ravel()) == []


def test_bases_near_one_and_huge_exponents():
    x = around([1], 40).ravel()
    y = np.ldexp(np.linspace(1, 2, 37), np.arange(15, 33)[:, None]).ravel()
    x, y = (v.ravel() for v in np.meshgrid(x, np.concatenate([y, -y])))
    assert misrounded("pow", x, y) == []


def test_angles():
    rng = np.random.default_rng(32_000)
    x = log_uniform(rng, -60, 60, 200)
    # Where the tables change, on the diagonals and next to the axes.
    slopes = np.concatenate(
        [np.arange(33) / 32, [2.0**-24, 2.0**-13, 2.0**-12, 2.0**-11, 2.0**-60]]
    )
    y = around((slopes[:, None] * x).ravel(), 2)
    x = np.broadcast_to(np.tile(x, len(slopes))[:, None], y.shape).ravel()
    y = np.abs(y.ravel())
    assert misrounded("atan2", *both_signs(y[::5], x[::5])) == []
    assert misrounded("atan2", y, x) == []
    assert misrounded("atan2", x, -y) == []
    # Exponents far apart; results around the smallest normal number.
    x, y = log_uniform(rng, -126, 128, 4_000), log_uniform(rng, -126, 128, 4_000)
    assert misrounded("atan2", *both_signs(y, x)) == []
    x = log_uniform(rng, 0, 100, 2_000)
    assert misrounded("atan2", around(x * np.float32(2.0**-126), 1).ravel(), np.repeat(x, 3)) == []


def triples():
    """Legs of Pythagorean triples: half of them a hypotenuse of 25 bits, half fewer."""
    rng = np.random.default_rng(33_000)
    m, n = rng.integers(2, 5792, (2, 200_000))
    m, n = np.maximum(m, n), np.minimum(m, n)
    a, b, c = m * m - n * n, 2 * m * n, m * m + n * n
    fits = (a == a.astype(np.float32)) & (b == b.astype(np.float32)) & (n > 0) & (m > n)
    tie = fits & (c % 2 == 1) & (c > 2**24) & (c < 2**25)
    chosen = np.concatenate([np.flatnonzero(fits & ~tie)[:1500], np.flatnonzero(tie)[:1500]])
    assert len(chosen) == 3000
    return a[chosen].astype(np.float32), b[chosen].astype(np.float32)


def test_triples_and_near_misses():
    a, b = triples()
    scales = np.float32(2.0) ** np.resize([-100, -20, 0, 3, 90], len(a))
    a, b = a * scales, b * scales
    assert misrounded("hypot", np.repeat(a, 3), around(b, 1).ravel()) == []
    assert misrounded("hypot", around(b, 1).ravel(), np.repeat(-a, 3)) == []


def test_a_short_leg():
    """Exponents apart: the short leg decides a tie, or nothing; and the limits."""
    rng = np.random.default_rng(34_000)
    x = log_uniform(rng, -60, 60, 4_000)
    for apart in (11, 12, 13, 24, 40, 60):
        assert misrounded("hypot", x, x * log_uniform(rng, -apart - 1, -apart, len(x))) == []
    largest = around([3.4028235e38, 2.4061596e38, 2.0**127], 8).ravel()
    largest = largest[np.isfinite(largest)]
    smallest = around([2.0**-126], 8).ravel()
    for v in largest, smallest, np.concatenate([largest, smallest]):
        assert misrounded("hypot", *(w.ravel() for w in np.meshgrid(v, v))) == []


# --- controls, contraction ----------------------------------------------------------------


@pytest.fixture
def recompiled():
    jitted.cache_clear()
    yield
    jitted.cache_clear()


@each_function
def test_control_without_the_low_part_hard_inputs_fail(name, monkeypatch, recompiled):
    monkeypatch.setattr(canonical, "round_to_odd", lambda hi, lo: hi)
    assert misrounded(name, *hard_inputs(name))


def test_control_without_snapping_ties_fail(monkeypatch, recompiled):
    monkeypatch.setattr("repjax.primitives.operations.elementary.pow._snap", lambda pair: pair)
    y, x = np.array(list(ties()), np.float32).T
    assert misrounded("pow", x, y)


@each_function
def test_contraction_does_not_matter(name):
    x, y = (np.concatenate(part) for part in zip(hard_inputs(name), GRID, strict=True))
    if name == "pow":
        exponent, base = np.array(list(ties()), np.float32).T
        x, y = np.concatenate([x, base]), np.concatenate([y, exponent])
    x, y = canonical_pairs(x, y)
    want, sites = compiled(name, x, y).tolist(), []
    with jax.enable_x64(True), np.errstate(all="ignore"):
        traced = jax.make_jaxpr(body(name))(x, y)

        def run(choices):
            (result,) = interpret(traced.jaxpr, traced.consts, [x, y], choices)
            return canonical_bits(result, 2.0**-126).tolist()

        assert run(iter(lambda: sites.append(0) or 0, None)) == want
        mixed = np.random.default_rng(0).integers(0, 6, (8, len(sites)))
        # 1 fuses the first product of every sum, 5 the second where there are two.
        for pattern in [0 * mixed[0] + 1, 0 * mixed[0] + 5, *mixed]:
            assert run(iter(pattern)) == want, pattern


# --- as operations of programs ----------------------------------------------------------

STOCK = {"pow": lax.pow, "atan2": lax.atan2}


@each_function
def test_ways_to_call(name):
    x, y = (np.abs(v)[:64] for v in random_pairs(name))
    function = getattr(rlax, name)
    want = compiled(name, *canonical_pairs(x, y)).view(np.float32)
    assert_same_bits(np.asarray(function(x, y)), want, "eager")
    assert_same_bits(np.asarray(jax.jit(function)(x, y)), want, "jit")
    assert_same_bits(np.asarray(jax.vmap(function)(x, y)), want, "vmap")
    rows, row = np.broadcast_arrays(x[:, None], y[:7])
    table = np.asarray(jax.vmap(function, (0, None))(rows, row[0]))
    assert_same_bits(table, np.asarray(function(rows, row)), "vmap of one")
    if name in STOCK:
        stock = repjax.reproducible(STOCK[name])
        assert_same_bits(np.asarray(stock(x, y)), want, "reproducible(stock)")
        assert_same_bits(np.asarray(stock(x[:, None], y[None, :7])), table, "broadcast")
        with repjax.enabled():
            assert_same_bits(np.asarray(jax.jit(STOCK[name])(x, y)), want, "switch")
    with jax.enable_x64(True):
        assert_same_bits(np.asarray(function(x, y)), want, "x64")


def _pow_derivatives(x, y, result, t):
    by_x = rlax.mul(t, rlax.mul(y, rlax.pow(x, rlax.sub(y, np.ones_like(y)))))
    base = np.where(x == 0, np.float32(1), x)
    return by_x, rlax.mul(t, rlax.mul(rlax.log(base), result))


def _atan2_derivatives(y, x, result, t):
    square = rlax.add(rlax.square(y), rlax.square(x))
    return (
        rlax.mul(t, rlax.div(x, square)),
        rlax.mul(t, rlax.div(rlax.neg(y), square)),
    )


def _hypot_derivatives(x, y, result, t):
    return rlax.mul(rlax.div(x, result), t), rlax.mul(rlax.div(y, result), t)


DERIVATIVES = {
    "pow": _pow_derivatives,
    "atan2": _atan2_derivatives,
    "hypot": _hypot_derivatives,
}


@each_function
def test_derivatives_are_the_stated_graphs(name):
    x, y = np.abs(normal(200, 1)), normal(200, 2)
    x[:3], y[:3] = 0, [2, 1, 0.5]
    function, t = getattr(rlax, name), normal(200, 3)
    result, pullback = jax.vjp(function, x, y)
    want = DERIVATIVES[name](x, y, result, t)
    assert_same_bits(pullback(t), want, "vjp")
    _, tangent = jax.jvp(function, (x, y), (t, t))
    assert_same_bits(tangent, rlax.add(*want), "jvp")
    if name in STOCK:
        stock = repjax.reproducible(lambda x, y, t: jax.vjp(STOCK[name], x, y)[1](t))
        assert_same_bits(stock(x, y, t), want, "reproducible(vjp)")


def test_derivative_of_an_integer_power():
    """JAX makes the exponent a float on the way, and 0 where it is 0."""
    x, y, t = normal(200, 1), np.arange(200, dtype=np.int32) % 9 - 4, normal(200, 3)
    x[:9] = 0
    wide = np.where(y == 0, 1, y).astype(np.float32)
    power = rlax.pow(x, rlax.sub(y.astype(np.float32), np.ones(200, np.float32)))
    factor = np.where(y == 0, np.float32(0), rlax.mul(wide, power))
    want = rlax.mul(t, factor)
    assert_same_bits(jax.vjp(lambda x: rlax.pow(x, y), x)[1](t)[0], want)
    stock = repjax.reproducible(lambda x, t: jax.vjp(lambda x: x**y, x)[1](t)[0])
    assert_same_bits(stock(x, t), want)


def test_second_derivatives():
    x, y = np.float32(1.7), np.float32(2.3)
    for name, function in STOCK.items():
        mixed = jax.jit(jax.grad(jax.grad(getattr(rlax, name)), 1))(x, y)
        stock = repjax.reproducible(jax.grad(jax.grad(function), 1))(x, y)
        assert_same_bits(mixed, stock, name)
    assert np.isfinite(jax.jit(jax.grad(jax.grad(rlax.hypot), 1))(x, y))


def test_hypot_takes_float32_arrays_of_one_shape():
    with pytest.raises(TypeError, match="hypot: expected two arrays of one shape and type"):
        rlax.hypot(np.ones(3, np.float32), np.ones(4, np.float32))
    with pytest.raises(TypeError, match=r"received .*int32"):
        rlax.hypot(np.ones(3, np.int32), np.ones(3, np.float32))
