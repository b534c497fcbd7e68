"""What loops compute from their constants alone is computed once, before them: the same bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, normal
from repjax import rules
from repjax.primitives.fusion import invariants


def in_while(step, x, n=3):
    return lax.while_loop(lambda s: s[0] < n, lambda s: (s[0] + 1, step(s[1])), (0, x))[1]


def in_scan(step, x, n=3, **options):
    return lax.scan(lambda x, _: (step(x), x[0]), x, None, length=n, **options)


LOOPS = {
    "while": in_while,
    "scan": in_scan,
    "reverse": lambda step, x: in_scan(step, x, reverse=True),
    "no iteration": lambda step, x: (in_while(step, x, 0), in_scan(step, x, 0)),
    "unrolled in part": lambda step, x: in_scan(step, x, 5, unroll=2),
    "nested": lambda step, x: in_while(lambda x: in_scan(lambda x: step(x) + 1, x)[0], x),
}
STEPS = {
    "function": lambda c: lambda x: x * jnp.tanh(c) + jnp.exp(jnp.tanh(c)),
    "sum": lambda c: lambda x: x - c.sum() * x / (1 + jnp.abs(c).max()),
    "product": lambda c: lambda x: x + c @ c.reshape(-1, 4)[: c.size].sum(1).repeat(4),
    "moved": lambda c: lambda x: (x + c[::-1].reshape(4, -1).T.reshape(-1)) * c,
    "larger": lambda c: lambda x: (x[:, None] * jnp.tanh(c)[None]).sum(1) + jnp.outer(c, c)[0],
    "numbers": lambda c: lambda x: jnp.sin(jnp.arange(x.size, dtype=jnp.float32)) * x + c[0],
    "what is carried": lambda c: lambda x: jnp.tanh(x * jnp.log1p(c * c)) * c,
}


def without_moving(function, *args):
    """What it gives where nothing is moved."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(invariants, "_sizes", lambda jaxpr, count: {})
        return repjax.reproducible(lambda *xs: function(*xs))(*args)


@pytest.mark.parametrize("loop", LOOPS)
@pytest.mark.parametrize("step", STEPS)
def test_programs_have_the_same_bits(loop, step):
    def program(x, c):
        return LOOPS[loop](STEPS[step](c), x)

    def gradients(x, c):
        return jax.grad(lambda x, c: jnp.square(jax.tree.leaves(program(x, c))[0]).sum(), (0, 1))(
            x, c
        )

    for special in (None, np.nan, -np.inf, -0.0, 1e-40):
        x, c = normal(40, 1), normal(40, 2)
        c[7 : 7 + (special is not None)] = special
        results = repjax.reproducible(lambda *xs: program(*xs))(x, c)
        jax.tree.map(assert_same_bits, results, without_moving(program, x, c))
    if loop not in ("while", "no iteration", "nested"):  # which have no gradients
        results = repjax.reproducible(lambda *xs: gradients(*xs))(x, c)
        jax.tree.map(assert_same_bits, results, without_moving(gradients, x, c))
        mapped = jax.vmap(program, (0, None))
        xs = np.stack([x, c])
        results = repjax.reproducible(lambda *xs: mapped(*xs))(xs, c)
        jax.tree.map(assert_same_bits, results, without_moving(mapped, xs, c))


def moved(function, *args, monkeypatch) -> list[list[str]]:
    """The primitives that are moved out of each loop."""
    found = []

    def noted(closed, constants):
        results, body = invariants.without_invariants(closed, constants)
        jaxpr = jax.make_jaxpr(lambda *xs: invariants.without_invariants(closed, xs)[0])(*constants)
        found.append([e.primitive.name.removeprefix("repjax_") for e in jaxpr.eqns])
        return results, body

    monkeypatch.setattr(rules, "without_invariants", noted)
    repjax.reproducible(lambda *xs: function(*xs)).lower(*args)
    return found


def test_what_is_moved(monkeypatch):
    x = normal(40, 1)

    def names(step, loop=in_while):
        (found,) = moved(lambda x, c: loop(step(c), x), x, x, monkeypatch=monkeypatch)
        return found

    assert names(STEPS["function"]).count("tanh") == 2
    assert names(STEPS["function"], in_scan)[-1] == "exp"
    assert "reduce_sum" in names(STEPS["sum"])
    assert names(STEPS["moved"]) == []  # only in each iteration, where it is used
    assert names(STEPS["larger"]) == ["tanh"]  # and not what has more elements
    assert "sin" not in names(STEPS["numbers"])
    assert "log1p" in names(STEPS["what is carried"])
    assert names(lambda c: lambda x: x * c) == []


def test_loops_in_loops(monkeypatch):
    """What is moved out of the inner one may leave the outer one, too."""

    def program(x, c):
        return in_while(lambda x: in_while(lambda x: x * jnp.tanh(c), x), x)

    inner, outer = moved(program, normal(9, 1), normal(9, 2), monkeypatch=monkeypatch)
    assert inner == outer == ["tanh"]


def test_effects_stay(capfd):
    def program(x, c):
        def step(x):
            jax.debug.print("{}", c[0])
            return x + 1

        return in_while(step, x)

    repjax.reproducible(lambda *xs: program(*xs))(normal(3, 1), np.ones(3, np.float32))
    jax.effects_barrier()
    assert capfd.readouterr().out.split() == ["1.0"] * 3


def test_a_wrong_order_is_caught(monkeypatch):
    """A negative control: what is carried is no constant."""
    original = invariants._sizes
    monkeypatch.setattr(invariants, "_sizes", lambda jaxpr, count: original(jaxpr, count + 2))

    def program(x, c):
        return in_while(lambda x: jnp.tanh(x) * c, x)

    args = normal(40, 1), normal(40, 2)
    with pytest.raises((AssertionError, KeyError)):
        wrong = repjax.reproducible(lambda *xs: program(*xs))(*args)
        assert_same_bits(wrong, without_moving(program, *args))
