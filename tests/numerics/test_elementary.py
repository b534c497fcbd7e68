"""Elementary functions: every bit against an mpmath oracle.

The proofs over all inputs are stated in the functions' docstrings; here are the hard
inputs, the boundaries, a random sample, a known-answer digest, every way of contracting
multiply-adds, and a control that shows that the comparison can fail.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib
from pathlib import Path

import jax
import mpmath
import numpy as np
import pytest

import repjax
from helpers.bits import assert_same_bits
from helpers.contraction import interpret
from helpers.paths import DATA
from repjax.primitives.core import canonical
from repjax.primitives.operations.elementary import generate, table
from repjax.verify import oracle as oracles
from repjax.verify.reference.elementary import FUNCTIONS, correctly_rounded

HARD_INPUTS = DATA / "hard_inputs"
NAN, INF, TINY = 0x7FC00000, 0x7F800000, 0x00800000
SIZE = 2**16
inf, nan = float("inf"), float("nan")


@dataclasses.dataclass(frozen=True)
class Case:
    """The function, and its domain, are the reference's."""

    specials: dict[float, float]  # results stated by the contract
    edges: tuple[float, ...]  # neighbourhoods to test: overflow, underflow, pieces
    digest: str  # SHA-256 of the results for ``digest_inputs()``


CASES = {
    "exp": Case(
        {-inf: 0, inf: inf, 0: 1},
        (88.72283, -87.33654, 0.34657359, -0.34657359, 150, -150),
        "f972ded778bcb62c85c4f14052504868171c7ef917608608dcafd6e9d0ef196e",
    ),
    "expm1": Case(
        {-inf: -1, inf: inf, 0: 0},
        (88.72283, -17.328680, 0.34657359, -0.34657359, 150, -150),
        "e4eb8b8ee3ee8a508a323fb01a116427aa4c595ac9811ed1774a37968fa8ecd9",
    ),
    "log": Case(
        {-inf: nan, -1: nan, -(2.0**-126): nan, 0: -inf, 1: 0, inf: inf},
        (1, 0.70710678, 1.4142135, 2.0**-126),
        "34e2313f0b5a814c0176c35201901c3e9b32889a4b2f8f09cf16fcb0fbe85d42",
    ),
    "log1p": Case(
        {-inf: nan, -2: nan, -1: -inf, 0: 0, inf: inf},
        (-1, -0.29289322, 0.41421356, 2.0**29, 2.0**53, 2.0**54),
        "87f6e416c8d6b3101508a6903973be543e3f0c9691fb1bf454daad17c6916216",
    ),
    "tanh": Case(
        {-inf: -1, inf: 1, 0: 0},
        (9.010913, 20),
        "bc63d58a877469d83500fdb8bf8048c1cd66034d4284ca7a4f9e766025fc5e16",
    ),
    "logistic": Case(
        {-inf: 0, inf: 1, 0: 0.5},
        (-1, 1, -87.33654, 16.635532, 150, -150),
        "54d7b5b094d1c63454e7e29b29e921415c2a13a5cbeec44553389e6365727e27",
    ),
    "erf": Case(
        {-inf: -1, inf: 1, 0: 0},
        (1.5, 3.8325069, 3.9375),
        "4fba5cad9e020fe21a7c04e67e646d608347a600a63434c8bf68a20700daa51a",
    ),
    "erf_inv": Case(
        {-inf: nan, -1: -inf, 0: 0, 1: inf, 2: nan, inf: nan},
        (1, 0.5411961, 0.99662533, 2.0**-126),
        "e9253805145e628cbbd4668ab46e95f898f25f0bc8724de92f24eb230eacf424",
    ),
    "exp2": Case(
        {-inf: 0, inf: inf, 0: 1, 10: 1024, -126: 0, -125: 2.0**-125},
        (128, -126, 0.5, -0.5, 150, -150),
        "008ad7fde3a0e502abb866b3d7fbca4e34ec3b450422d1276192130fa5b07c41",
    ),
    "exp10": Case(
        {-inf: 0, inf: inf, 0: 1, 1: 10, 10: 1e10, -38: 0},
        (38.53184, -37.92978, 0.15051500, -0.15051500, 64, -64),
        "766517218f6ba47348558415b4aad4959c82051c6c35d3d5950d03008c0fa7bf",
    ),
    "log2": Case(
        {-inf: nan, -1: nan, 0: -inf, 1: 0, 0.125: -3, 2.0**127: 127, inf: inf},
        (1, 0.70710678, 1.4142135, 2.0**-126),
        "e8e05c1d2dfb6f8866f3a1f48d6fdaa01cf66f70d585008feb5803f8cfa44f83",
    ),
    "log10": Case(
        {-inf: nan, -1: nan, 0: -inf, 1: 0, 10: 1, 1e10: 10, inf: inf},
        (1, 0.70710678, 1.4142135, 2.0**-126, 10, 1e10),
        "d5a42a6d0183968818776f1cb435ab1e59a512a2b56b4546a9d586f5d60030dd",
    ),
    "cbrt": Case(
        {-inf: -inf, inf: inf, 0: 0, 27: 3, -8: -2, 2.0**-126: 2.0**-42},
        (1, 2, 4, 8, 27, 2.0**-126),
        "3ed5134989c86c1afbcc4e38580836fd59ed876a985831baf4734009c0cd039b",
    ),
    "sin": Case(
        {-inf: nan, inf: nan, 0: 0},
        (0.5, 0.785, 0.7853982, 1.5707964, 3.1415927, 2.0**22, 1e22),
        "5ea51af2bd307b87683718becf385cf92a060bbf1479984d7441de9a97287980",
    ),
    "cos": Case(
        {-inf: nan, inf: nan, 0: 1},
        (0.5, 0.785, 0.7853982, 1.5707964, 3.1415927, 2.0**22, 1e22),
        "fd32cb413dcad8a37221dc9ef2a0968659569f80135a32a8b6dd1a1983d6a06e",
    ),
    "tan": Case(
        {-inf: nan, inf: nan, 0: 0},
        (0.5, 0.785, 0.7853982, 1.5707964, 3.1415927, 2.0**22, 1e22),
        "fef06c327f0c4293360dae7b2733b382f1ae494b1e1afb70ba14ac9cbd7b72c2",
    ),
    "atan": Case(
        {-inf: -1.5707964, inf: 1.5707964, 0: 0, 1: 0.7853982},
        (0.41421356, 1, 2.4142136, 2.0**64),
        "c2fafbfa8642a3af50c6958d066cd2b1b0c48005ef0cb1827089ae53b330532d",
    ),
    "asin": Case(
        {-inf: nan, -2: nan, -1: -1.5707964, 0: 0, 1: 1.5707964, inf: nan},
        (0.5, 1, 2.0**-12),
        "fab521f7ba40750ff4025e0340fa4fd1136ad0b5e98ddd4ed7a35b762c80971a",
    ),
    "acos": Case(
        {-inf: nan, -2: nan, -1: 3.1415927, 0: 1.5707964, 1: 0, inf: nan},
        (0.5, 1, 2.0**-12),
        "7048e0623ec56ac4d3ac7704aa5c2e49541470cb4b6a77fb7b4467f05f119347",
    ),
    "sinh": Case(
        {-inf: -inf, inf: inf, 0: 0},
        (0.34657359, 1.0397208, 89.415985, 150),
        "f0069148798637a266128da0c48c175bb5e5a4c4fc1be8090f18c20a9f24c9da",
    ),
    "cosh": Case(
        {-inf: inf, inf: inf, 0: 1},
        (0.34657359, 1.0397208, 89.415985, 150),
        "4307f6d1ad27938baa2e9b6f9ef5187e61806ed4c406e515264c1e6fcc681a38",
    ),
    "atanh": Case(
        {-inf: nan, -2: nan, -1: -inf, 0: 0, 1: inf, inf: nan},
        (0.16666667, 0.5, 1),
        "d0ad34c96d9912633565a98d8f663d9079e143c80461e9315e422181b7a0ecb4",
    ),
    "asinh": Case(
        {-inf: -inf, inf: inf, 0: 0},
        (0.35355338, 1.0606602, 2.0**26, 2.0**64),
        "f94c9d3e1e7a9f30231374795d9ba8a48df691a175a572613e43351c362163e7",
    ),
    "acosh": Case(
        {-inf: nan, 0: nan, 1: 0, inf: inf},
        (1, 1.0606602, 1.59099, 2.0**26, 2.0**64),
        "c7781fc8df8848b46462733f2dd9dd4e15f76792a9989625f287909e4a61783d",
    ),
    "lgamma": Case(
        {-inf: inf, inf: inf, 0: inf, -1: inf, -(2.0**24): inf, 1: 0, 2: 0},
        (1, 2, 3, 8, 1.4616321, -1, -2, -2.4570248, -2.7476826, -8, -(2.0**22), 4.085003e36),
        "f6b5acaacf4c65375fbfc69cf8cbcbef4f5665c601af643675628700b05bf05a",
    ),
    "digamma": Case(
        {-inf: nan, inf: inf, 0: -inf, -1: nan, -(2.0**24): nan},
        (1, 2, 8, 1.4616321, -1, -0.5040830, -1.5734985, -8, -100.2, -(2.0**22), 2.0**53),
        "83db08264dae8f3c1aa665cc273d1452a69b8a85cee2bca0a1dd7d773b3f1cf7",
    ),
    "erfc": Case(
        {-inf: 2, inf: 0, 0: 1},
        (0.5, 9.194549, 9.25, 3.8325069),
        "71f7ebdee4eb36031e9802d0332d5a140465aecfc0e57464406b7a6385b089ba",
    ),
}
each_function = pytest.mark.parametrize("name", CASES)


def test_every_function_of_one_number_has_a_case_and_an_oracle():
    names = set(table.names(arity=1))
    assert names == set(CASES) == set(FUNCTIONS)
    assert names <= set(oracles.FUNCTIONS)
    folder = Path(table.__file__).parent
    bodies = {path.stem for path in folder.glob("[a-z]*.py") if hasattr(module(path.stem), "body")}
    assert bodies == set(table.names())


def module(name):
    return importlib.import_module(f"repjax.primitives.operations.elementary.{name}")


@functools.cache
def jitted(name):
    return jax.jit(lambda x: module(name).body(x))


def compiled(name, xs):
    """Result bits of the compiled body for input bits, NaNs made one."""
    padded = np.resize(xs, SIZE).view(np.float32)  # one shape: one compilation a function
    with jax.enable_x64(True):
        ys = np.asarray(jitted(name)(padded))[: len(xs)]
    return np.where(np.isnan(ys), np.uint32(NAN), ys.view(np.uint32))


def oracle(name, xs):
    """Correctly rounded, canonical result bits by the reference, which is mpmath's."""
    ys = correctly_rounded(FUNCTIONS[name], xs.view(np.float32), np.float32)
    return np.where(np.isnan(ys), np.uint32(NAN), ys.view(np.uint32))


def canonical_inputs(bits):
    magnitude = bits & 0x7FFFFFFF
    bits = np.where(magnitude < TINY, 0, bits)
    return np.where(magnitude > INF, NAN, bits).astype(np.uint32)


def hard_inputs(name):
    lines = (HARD_INPUTS / f"{name}.txt").read_text().splitlines()
    bits = [int(line.split()[0], 16) for line in lines if not line.startswith("#")]
    return np.array(bits, np.uint32)


def both_signs(bits):
    return canonical_inputs(np.concatenate([bits, bits ^ np.uint32(0x80000000)]))


def edge_inputs(name):
    limits = [0, TINY, 0x7F7FFFFF, INF, NAN, 0x3F800000]
    edges = np.array(CASES[name].edges, np.float32).view(np.uint32)
    near = edges[:, None] + np.arange(-8, 9).astype(np.uint32)
    return both_signs(np.concatenate([np.array(limits, np.uint32), near.ravel()]))


def random_inputs(name):
    rng = np.random.default_rng(20_000)
    if name == "erf_inv":  # 300 microseconds an oracle value, and no point beyond 1
        return both_signs(rng.integers(TINY, 0x3F800000, 2_000, np.uint32))
    anywhere = rng.integers(0, 2**32, 10_000, np.uint32)
    moderate = rng.integers(0x30000000, 0x43000000, 5_000, np.uint32)
    inputs = np.concatenate([canonical_inputs(anywhere), both_signs(moderate)])
    return inputs[::5] if name in ("lgamma", "digamma") else inputs  # slow oracles, too


def digest_inputs():
    """SIZE canonical inputs spread over all bit patterns."""
    return canonical_inputs(np.arange(SIZE, dtype=np.uint32) * np.uint32(0xFFF1))


def misrounded(name, xs):
    got, want = compiled(name, xs), oracle(name, xs)
    return [
        f"{name}({x:#010x}): expected {w:#010x}, received {g:#010x}"
        for x, g, w in zip(xs, got, want, strict=True)
        if g != w
    ]


@each_function
def test_hard_inputs(name):
    assert misrounded(name, both_signs(hard_inputs(name))) == []


@each_function
def test_boundaries(name):
    assert misrounded(name, edge_inputs(name)) == []


@each_function
def test_random_inputs(name):
    assert misrounded(name, random_inputs(name)) == []


@each_function
def test_special_values(name):
    specials = CASES[name].specials
    xs = np.array(list(specials), np.float32).view(np.uint32)
    want = np.array(list(specials.values()), np.float32)
    want = np.where(np.isnan(want), np.uint32(NAN), want.view(np.uint32))
    assert compiled(name, xs).tolist() == want.tolist()


@each_function
def test_any_nan_gives_nan(name):
    xs = np.array([NAN, 0xFFC00000, 0x7F800001, 0xFFFFFFFF], np.uint32)
    assert compiled(name, xs).tolist() == [NAN] * 4


@each_function
def test_digest(name):
    results = compiled(name, digest_inputs()).astype("<u4")
    assert hashlib.sha256(results.tobytes()).hexdigest() == CASES[name].digest


@pytest.mark.parametrize(
    "name", sorted(set(generate.FUNCTIONS) - {"erf_inv", "bessel", "first", "pairs"})
)
def test_coefficients_can_be_regenerated(name):
    source = Path(module(name).__file__).read_text()
    for polynomial in generate.FUNCTIONS[name]():
        assert generate.block(polynomial) in source


@pytest.mark.parametrize(
    ("name", "prefix", "exact"),
    [
        ("exp2", "LOG2", lambda: mpmath.log(2)),
        ("exp10", "UNIT", lambda: mpmath.log10(2)),
        ("exp10", "LOG", lambda: mpmath.log(10)),
        ("log2", "INV", lambda: 1 / mpmath.log(2)),
        ("log10", "UNIT", lambda: mpmath.log10(2)),
        ("log10", "INV", lambda: 1 / mpmath.log(10)),
        ("atan", "PI_2", lambda: mpmath.pi / 2),
        ("lgamma", "CONSTANT", lambda: (mpmath.log(2 * mpmath.pi) - 1) / 2),
        ("trigonometric", "P", lambda: mpmath.ldexp(mpmath.pi / 2, -30)),
    ],
)
def test_constants_in_two_parts(name, prefix, exact):
    high, low = (getattr(module(name), f"{prefix}_{part}") for part in ("HI", "LO"))
    with mpmath.workprec(300):
        assert float(exact() - mpmath.mpf(high)) == low


def test_two_over_pi():
    with mpmath.workprec(400):
        want = int(mpmath.floor(mpmath.ldexp(2 / mpmath.pi, 262)))
    words = module("trigonometric").TWO_OVER_PI
    assert sum(w << 32 * (8 - i) for i, w in enumerate(words)) == want


def test_exp10_is_a_power_of_ten():
    """By another algorithm."""
    xs = np.concatenate([both_signs(hard_inputs("exp10")), random_inputs("exp10")])
    xs = xs.view(np.float32)
    power = repjax.lax.pow(np.full_like(xs, 10), xs)
    assert_same_bits(repjax.lax.exp10(xs), power)


@pytest.mark.parametrize("name", ["exp2", "log", "logistic", "sin", "lgamma", "digamma"])
def test_control_without_rounding_to_odd_hard_inputs_fail(name, monkeypatch):
    monkeypatch.setattr(canonical, "round_to_odd", lambda hi, lo: hi)
    jitted.cache_clear()
    try:
        assert misrounded(name, hard_inputs(name))
    finally:
        jitted.cache_clear()


@each_function
def test_contraction_does_not_matter(name):
    xs = np.resize(both_signs(hard_inputs(name)), 2048)  # one shape for all functions
    want, sites = compiled(name, xs).tolist(), []
    with jax.enable_x64(True), np.errstate(all="ignore"):
        traced = jax.make_jaxpr(module(name).body)(xs.view(np.float32))

        def run(choices):
            (ys,) = interpret(traced.jaxpr, traced.consts, [xs.view(np.float32)], choices)
            return np.where(np.isnan(ys), np.uint32(NAN), ys.view(np.uint32)).tolist()

        assert run(iter(lambda: sites.append(0) or 0, None)) == want
        mixed = np.random.default_rng(0).integers(0, 6, (8, len(sites)))
        # 1 fuses the first product of every sum, 5 the second where there are two.
        for pattern in [0 * mixed[0] + 1, 0 * mixed[0] + 5, *mixed]:
            assert run(iter(pattern)) == want, pattern
