"""Arithmetic: every result is the correctly rounded value, then canonical.

The oracle is MPFR (gmpy2) in IEEE binary32, or NumPy where an operation is exact.
"""

from __future__ import annotations

import operator

import jax.numpy as jnp
import numpy as np
import pytest

import repjax
from helpers.arithmetic import CASES, assert_correctly_rounded, pairs
from helpers.bits import assert_same_bits, canonical
from helpers.expressions import EXPRESSIONS, Rounded, expression_operands
from repjax.verify.reference.values import TINY

# --- the table, in every way to run an operation ---------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_correctly_rounded(name):
    assert_correctly_rounded(name, CASES[name])


def test_the_operands_reach_every_kind_of_result():
    """The table's operands give ties, underflow, results at 2**-126 and overflow."""
    a, b = map(canonical, pairs())
    with np.errstate(all="ignore"):
        results = {"mul": a * b, "div": a / b, "add": a + b}
        wide = {"mul": a.astype("d") * b, "div": a / b.astype("d"), "add": a.astype("d") + b}
        for name, x in results.items():
            finite = np.isfinite(a) & np.isfinite(b) & (b != 0)
            assert (np.isinf(x) & finite).sum() > 50, name
            assert ((np.abs(x) < TINY) & (x != 0)).sum() > 100, name
            assert (np.abs(x) == TINY).sum() > 10, name
            tied = (wide[name].view(np.int64) & 0x1FFFFFFF) == 0x10000000
            assert name == "div" or (finite & tied).sum() > 100, name


# --- literals, broadcast scalars, expressions -------------------------------------------


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_each_operation_rounds_on_its_own(name):
    function, operands = EXPRESSIONS[name], expression_operands()
    expected = canonical(function(*map(Rounded, operands)).x)
    assert_same_bits(repjax.reproducible(function)(*operands), expected, "jit")
    with repjax.enabled():
        assert_same_bits(function(*map(jnp.asarray, operands)), expected, "eager")


CONSTANTS = [0.1, 1 / 3, 3.0, -1.0, 0.5, 2.0, 1e-30, 1e30, 16777216.0, 0.0, 1.0]


def _random_program(rng, length=14):
    """Straight-line code: an operation and two operands, earlier values or constants."""
    steps = []
    for i in range(2, 2 + length):
        pick = [
            float(rng.choice(CONSTANTS))
            if rng.random() < 0.25
            else int(rng.integers(max(0, i - 5), i))
            for _ in range(2)
        ]
        if not any(isinstance(p, int) for p in pick):
            pick[0] = i - 1
        steps.append((rng.choice(["add", "sub", "mul", "mul", "truediv"]), *pick))
    return steps


def _evaluate(steps, x, y):
    values = [x, y]
    for name, *pick in steps:
        a, b = (values[p] if isinstance(p, int) else p for p in pick)
        values.append(getattr(operator, name)(a, b))
    return values[2:]


@pytest.mark.parametrize("seed", range(8))
def test_random_programs_are_what_numpy_computes_step_by_step(seed):
    rng = np.random.default_rng(seed)
    programs = [_random_program(rng) for _ in range(2)]
    x, y = (v[rng.integers(0, v.size, 500)] for v in expression_operands()[:2])
    actual = repjax.reproducible(lambda x, y: [_evaluate(p, x, y) for p in programs])(x, y)
    expected = [[canonical(v.x) for v in _evaluate(p, Rounded(x), Rounded(y))] for p in programs]
    assert_same_bits(actual, expected, f"programs {programs}")
