"""First tries of elementary functions (``primitives/cpu/native/first-inl.h``), in NumPy: where they
are in doubt, they have to be, and the proven functions of the kernel are called."""

from __future__ import annotations

import pathlib
import re

import mpmath
import numpy as np
import pytest

from repjax.primitives.cpu import sources
from repjax.primitives.operations.elementary import generate

HEADER = (pathlib.Path(sources.__file__).parent / "native" / "first-inl.h").read_text()
HARD_INPUTS = pathlib.Path(__file__).parent.parent / "data" / "hard_inputs"


def numbers(name: str) -> list[float]:
    """The constants that the header has under a name."""
    body = re.search(rf"{name}(?:\[\d*\])+ = {{(.*?)}};", HEADER, re.DOTALL).group(1)
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


def in_doubt(y):
    """The condition of ``first::rounded``."""
    return (y.view(np.int64) - (0x10000000 - 0x2000) & 0x1FFFC000) == 0


TRIED = {"exp": (tried_exp, mpmath.exp), "log": (tried_log, mpmath.log)}


def hard_inputs(name):
    lines = (HARD_INPUTS / f"{name}.txt").read_text().splitlines()
    bits = [int(line.split()[0], 16) for line in lines if not line.startswith("#")]
    x = np.array(bits, np.uint32).view(np.float32)
    return x[x > {"exp": -87, "log": 0}[name]]  # other results are zeros, or NaN


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
    assert len(x) > 100 and in_doubt(TRIED[name][0](x.astype(np.float64))).all()


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
    x = np.concatenate([x, near_one]).astype(np.float32).astype(np.float64)
    x = x[x != 1]
    assert max(relative_errors(name, x)) < 2.0**-41


def test_constants_are_those_of_their_script():
    made = {p.name: p for p in generate.FUNCTIONS["first"]()}
    for name, there in [("EXP", "kExp"), ("LOG", "kLog")]:
        coefficients, _ = generate.minimax(made[name])
        assert numbers(there) == [c for (c,) in coefficients]
    with mpmath.workprec(generate.PRECISION):
        assert numbers("kInverses") == list(map(float, made["INVERSES"].values()))
        assert numbers("kLogarithms") == list(map(float, made["LOGARITHMS"].values()))
        rows = [float(x) for n in range(9) for x in made[f"ERF_{n}"].values()]
        assert numbers("kErf") == rows
