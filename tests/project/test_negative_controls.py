"""Every hazard the tests guard against is one they can see."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.arithmetic import CASES, assert_correctly_rounded
from helpers.bits import assert_same_bits, bits, canonical, normal, same_bits
from helpers.expressions import EXPRESSIONS, Rounded, expression_operands
from repjax.primitives.core import canonical as guards
from repjax.primitives.core.define import define
from repjax.verify.reference.sums import reduced

# --- the comparison -----------------------------------------------------------------------

PAIRS = {
    "sign of zero": (np.float32(0), np.float32(-0.0)),
    "subnormal number": (np.float32(0), np.uint32(1).view(np.float32)),
    "last bit": (np.float32(1), np.nextafter(np.float32(1), np.float32(2))),
    "payload of NaN": (np.float32(np.nan), np.uint32(0x7FC00001).view(np.float32)),
    "sign of NaN": (np.float32(np.nan), np.uint32(0xFFC00000).view(np.float32)),
    "type": (np.float32(1), np.float16(1)),
    "shape": (np.float32([1]), np.float32([[1]])),
    "structure": ([np.float32(1)], [np.float32(1), np.float32(1)]),
}


@pytest.mark.parametrize("name", PAIRS)
def test_the_comparison_sees(name):
    a, b = PAIRS[name]
    assert_same_bits(a, a)
    assert_same_bits(b, b)
    with pytest.raises(AssertionError):
        assert_same_bits(a, b)


def test_the_comparison_names_the_first_difference():
    a = normal((3, 4))
    b = a.copy()
    b.view(np.uint32)[1, 2] ^= 1
    b[2, 0] = -b[2, 0]
    with pytest.raises(AssertionError) as caught:
        assert_same_bits({"x": b, "y": a}, {"x": a, "y": a}, "weights")
    message = str(caught.value)
    assert "weights['x']: 2 of 12 elements differ, the first at (1, 2)" in message
    assert f"expected {bits(a)[1, 2]:#010x}" in message
    assert f"received {bits(b)[1, 2]:#010x}" in message


@pytest.mark.parametrize("name", ["sign of zero", "subnormal number", "last bit"])
def test_the_digest_sees(name):
    assert len({repjax.digest({"w": x}) for x in PAIRS[name]}) == 2


def test_a_flipped_bit_of_a_parameter_changes_the_digest():
    params = {"dense": {"kernel": normal((20, 30)), "bias": normal(30)}}
    before = repjax.digest(params)
    for at in ((0, 0), (7, 11), (19, 29)):
        for bit in (0, 22, 31):
            changed = jax.tree.map(np.copy, params)
            changed["dense"]["kernel"].view(np.uint32)[at] ^= np.uint32(1 << bit)
            assert repjax.digest(changed) != before
    assert repjax.digest(params) == before


# --- hazards of the compiler ------------------------------------------------------------

CONTRACTION = """
import jax, numpy as np, repjax
rng = np.random.default_rng(0)
x, y, z = rng.standard_normal((3, 10000)).astype(np.float32)
f = lambda x, y, z: x * y + z
expected = x * y + z
for run in jax.jit(f), repjax.reproducible(f):
    print(int((np.asarray(run(x, y, z)).view(np.int32) != expected.view(np.int32)).sum()))
"""


def _has_fma():
    try:
        return "fma" in Path("/proc/cpuinfo").read_text().split()
    except OSError:
        return False


@pytest.mark.skipif(not _has_fma(), reason="needs a processor with FMA instructions (Linux)")
def test_an_unguarded_multiply_add_is_contracted():
    environment = {**os.environ, "XLA_FLAGS": "--xla_cpu_max_isa=AVX2", "JAX_PLATFORMS": "cpu"}
    output = subprocess.run(
        [sys.executable, "-P", "-c", CONTRACTION],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    plain, guarded = map(int, output.split())
    assert plain > 1000
    assert guarded == 0


REWRITTEN = {
    "sums of constants": lambda x, y: x + np.float32(0.8),
    "products of constants": lambda x, y: x * np.float32(0.07),
    "x / constant": lambda x, y: x * np.float32(1 / 3),
    "quotients": lambda x, y: x / np.float32(21),
    "back again": lambda x, y: y,
    "magic number": lambda x, y: x,
    "x / x": lambda x, y: np.ones_like(x),
    "zero times": lambda x, y: y,
    "x * constant + y": lambda x, y: (np.float64(np.float32(0.1)) * x + y).astype(np.float32),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_rewritten_expressions_are_seen(name):
    """What a compiler likes to make of the expressions of helpers/expressions.py has other bits."""
    operands = expression_operands()
    right = EXPRESSIONS[name](*map(Rounded, operands)).x
    with np.errstate(all="ignore"):
        rewritten = REWRITTEN[name](*map(canonical, operands[:2]))
    assert not same_bits(canonical(right), canonical(rewritten))


# --- mistakes in bodies -----------------------------------------------------------------

MISTAKES = {
    "add": lambda x, y: lax.add(lax.sub(x, y), lax.add(y, y)),
    "sub": lambda x, y: guards.guard(lax.sub(x, y)),  # flushes 2**-126
    "mul": lax.mul,  # keeps 2**-126
    "div": lambda x, y: guards.guard(lax.mul(x, guards.guard(lax.div(lax.full_like(y, 1), y)))),
    "fma": lambda x, y, z: guards.flush(lax.add(guards.guard(lax.mul(x, y)), z)),
    "rsqrt": lambda x: guards.guard(lax.div(lax.full_like(x, 1), guards.guard(lax.sqrt(x)))),
    "one_minus_square": lambda x: lax.sub(lax.full_like(x, 1), guards.guard(lax.mul(x, x))),
    "integer_pow 3": lambda x: lax.mul(guards.guard(lax.mul(x, x)), x),
    "max": lambda x, y: lax.select(lax.gt(x, y), x, y),  # loses NaN
    "round TO_NEAREST_EVEN": lambda x: guards.flush(lax.floor(lax.add(x, lax.full_like(x, 0.5)))),
    "float32 to int8": lambda x: lax.convert_element_type(
        lax.convert_element_type(x, np.int32), np.int8
    ),
    "float32 to bfloat16": lambda x: guards.guard(
        lax.bitcast_convert_type(  # truncates
            lax.convert_element_type(guards.bits(x) >> 16, np.int16), jnp.bfloat16
        )
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_in_bodies_fail_the_arithmetic_test(name):
    case = CASES[name]
    wrong = define(f"{name} with a mistake", MISTAKES[name], case.stock, halves=None)
    mistaken = dataclasses.replace(case, stock=wrong.bind, twin=None)
    with pytest.raises(AssertionError, match=f"{name}, jit: .* elements differ"):
        assert_correctly_rounded(name, mistaken)


def _neighbours(x):
    """A tree of sums, but of neighbours instead of halves."""
    while len(x) > 1:
        x = guards.flush(lax.add(x[0::2], x[1::2]))
    return x[0]


SUMS = {
    "another tree": (_neighbours, normal((1024, 20))),
    "the backend's order": (lambda x: lax.reduce_sum(x, (0,)), normal((1024, 20))),
    "guarded like products": (
        lambda x: guards.guard(lax.add(x[0], x[1])),
        np.float32([[2.0**-125], [-(2.0**-126)]]),
    ),
}


@pytest.mark.parametrize("name", SUMS)
def test_mistakes_in_sums_are_seen(name):
    body, x = SUMS[name]
    wrong = define("sum with a mistake", body, lambda x: lax.reduce_sum(x, (0,)))
    right = reduced(canonical(x), [0], "pairwise")
    assert_same_bits(repjax.reproducible(jnp.sum)(x[:, 0]), right[0])
    with pytest.raises(AssertionError, match="elements differ"):
        assert_same_bits(repjax.reproducible(wrong.bind)(x), right)


@pytest.mark.parametrize("accumulation", ["pairwise", "sequential"])
def test_a_swapped_order_changes_a_sum(accumulation):
    x = normal((100, 50))
    swapped = x.copy()
    swapped[[3, 96]] = swapped[[96, 3]]
    total = repjax.reproducible(lambda x: x.sum(0), accumulation=accumulation)
    assert not same_bits(total(x), total(swapped))
