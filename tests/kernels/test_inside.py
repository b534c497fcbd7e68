"""Branches and scans take inputs as they came, and make their results canonical: no pass is around
them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, patterns, same_bits
from helpers.instruction_sets import each_instruction_set
from repjax.primitives import kernels
from repjax.primitives.core.canonical import HALVES
from repjax.primitives.cpu import library
from repjax.verify.reference.values import canonical

pytestmark = pytest.mark.skipif(
    not library.available(), reason=f"there is no kernel: {library.in_use()[1]}"
)

SHAPE = 40, 50


def twice(x, n):
    return lax.cond(n > 0, lambda x: x * 2, lambda x: x - 1, x)


def as_it_is(x, n):
    """Inputs that a branch returns, and results that are inputs, moved, or returned twice."""
    y = lax.cond(n > 0, lambda x: x, lambda x: -x, x)
    z = lax.cond(n > 1, lambda y: y[::-1], lambda y: jnp.tanh(y), y)
    return y, y, z.T, x


def several(x, n):
    """Of which some are only returned, some only used, and some both."""
    a, b, c = lax.switch(
        n,
        [
            lambda x, y: (x + y, jnp.exp(x), n),
            lambda x, y: (x, y @ jnp.ones((50, 50)), n + 1),
            lambda x, y: (jnp.where(x > 0, jnp.nan, y), x, 7),
        ],
        *(x, x * x),
    )
    return a, (b + a).sum(0), c, lax.cond(b[0, 0] > 0, jnp.sin, jnp.cos, a)


def nested(x, n):
    def inner(x):
        return lax.cond(x[0, 0] > 0, lambda x: x * x, lambda x: x / 3, x)

    return lax.cond(n > 0, inner, lambda x: x + 1, x), x * 3


def in_loops(x, n):
    def step(carry, row):
        carry = lax.cond(row[0] > 0, lambda c: c + row, lambda c: c * row, carry)
        return carry, carry.sum()

    last, sums = lax.scan(step, x[0], x)
    return last, sums, lax.fori_loop(0, 3, lambda i, y: lax.cond(i > n, jnp.sin, lambda y: y, y), x)


def scanned(x, n):
    """Elements that a step takes and gives, one of them also what it carries, one not computed."""

    def step(c, rows):
        a, b = rows
        c = 0.9 * c + 0.1 * a
        return c, (c, a, jnp.tanh(b) @ jnp.ones(50), b * n)

    last, ys = lax.scan(step, x[0], (x, x[::-1]), reverse=True)
    return last, ys, lax.scan(step, ys[0][3], (ys[3], x))[1][0]


def mapped(x, n):
    return lax.map(lambda row: (row, jnp.sum(jnp.exp(row)), row[n] - row), x)


def gradients(x, n):
    return jax.value_and_grad(lambda x: twice(jnp.sin(x), n).sum() + several(x, n)[1].sum())(x)


def each(x, n):
    return jax.vmap(lambda row: twice(row, row[0]))(x), jax.vmap(twice, (0, None))(x, n)


PROGRAMS = [twice, as_it_is, several, nested, in_loops, scanned, mapped, gradients, each]


def leaves(program, *args, **options):
    return jax.tree.leaves(repjax.reproducible(lambda *xs: program(*xs), **options)(*args))


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda f: f.__name__)
def test_programs(program, monkeypatch):
    x = patterns(2000, 3, np.float32).reshape(SHAPE)
    x[::3] = np.random.default_rng(0).standard_normal((14, 50))
    for n in np.int32([0, 1, 2]):
        expected = leaves(program, x, n)
        with repjax.enabled():
            jax.tree.map(assert_same_bits, jax.tree.leaves(program(jnp.asarray(x), n)), expected)
        jax.tree.map(assert_same_bits, leaves(program, canonical(x), n), expected)
        for _ in each_instruction_set():
            jax.tree.map(assert_same_bits, leaves(program, x, n), expected)
        with monkeypatch.context() as patch:
            patch.setattr(library, "available", lambda: False)
            jax.tree.map(assert_same_bits, leaves(program, x, n), expected)


@pytest.mark.parametrize("dtype", [*HALVES, np.complex64], ids=lambda dtype: np.dtype(dtype).name)
def test_other_types(dtype):
    x = np.random.default_rng(1).standard_normal(SHAPE).astype(dtype)
    for n in np.int32([0, 1]):
        for program in (twice, moving_average, as_it_is):
            if dtype == np.complex64 and program is not twice:
                continue  # there is no tanh, and what is carried is real
            expected = leaves(program, x, n)
            with repjax.enabled():
                results = jax.tree.leaves(program(jnp.asarray(x), n))
            jax.tree.map(assert_same_bits, *(_bits(x) for x in (results, expected)))


def _bits(arrays):
    return [np.ascontiguousarray(x).view(np.uint8) for x in arrays]


def passes(program, *args) -> list[str]:
    """The equations of arrays outside of branches and scans."""
    function = repjax.reproducible(lambda *xs: program(*xs))
    jaxpr = jax.make_jaxpr(function)(*args).jaxpr
    while len(jaxpr.eqns) == 1 and jaxpr.eqns[0].primitive.name in ("jit", "custom_jvp_call"):
        params = jaxpr.eqns[0].params
        inner = params.get("jaxpr", params.get("call_jaxpr"))
        jaxpr = getattr(inner, "jaxpr", inner)
    large = (e for e in jaxpr.eqns if any(v.aval.size > 1 for v in e.outvars))
    expected = ("cond", "scan", "repjax_loop", "slice", "broadcast_in_dim")
    return [e.primitive.name for e in large if e.primitive.name not in expected]


def moving_average(x, n):
    return lax.scan(lambda c, row: (0.9 * c + 0.1 * row,) * 2, jnp.zeros(50), x)[1]


@pytest.mark.parametrize("program", [twice, moving_average])
def test_no_pass_around_what_is_inside(program, monkeypatch):
    args = patterns(2000, 3, np.float32).reshape(SHAPE), np.int32(1)
    assert passes(program, *args) == []
    results = leaves(program, *args)
    monkeypatch.setattr(kernels, "plan_inside", lambda closed, plan: closed)
    assert passes(program, *args)
    jax.tree.map(assert_same_bits, leaves(program, *args), results)


def test_control_inputs_and_results_are_not_canonical(monkeypatch):
    """What goes in and comes out is not by itself: without, the bits are others."""
    from repjax.primitives.fusion import inside

    x = np.float32([1e-39, -0.0, 2]) * np.ones((3, 1), np.float32)
    expected = leaves(as_it_is, x, np.int32(1))
    monkeypatch.setattr(inside, "canonicalize", lambda x: x)
    results = leaves(as_it_is, x, np.int32(1))
    assert not all(map(same_bits, results, expected))


def test_effects_in_branches(capfd):
    def f(x, n):
        def shows(x):
            jax.debug.print("first {}", x[0], ordered=True)
            jax.debug.print("then {}", x[1], ordered=True)
            return x * 2

        return lax.cond(n > 0, shows, lambda x: x, x)

    jax.block_until_ready(repjax.reproducible(f)(np.float32([1, 2]), np.int32(1)))
    jax.effects_barrier()
    assert capfd.readouterr().out == "first 1.0\nthen 2.0\n"
