"""What the iterations of a scan compute by themselves is moved out of it: the same bits."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, normal, same_bits
from repjax import rules
from repjax.primitives.fusion import fission

LENGTH = 24

#: Steps of scans, step(weights)(carry, x).
STEPS = {
    "recurrent": lambda w: lambda h, x: (jnp.tanh(x @ w + h @ w[::-1]),) * 2,
    "readout": lambda w: lambda h, x: (jnp.tanh(h + x), jax.nn.softmax(h @ w)),
    "likelihood": lambda w: lambda h, x: (0.5 * h + x * x, jnp.log1p(h * h) + x / (1 + h * h)),
    "of the elements alone": lambda w: lambda h, x: (h + 1, (jnp.exp(x) @ w, w[0], x, h)),
    "nothing is given": lambda w: lambda h, x: (h * jnp.sin(x), None),
    "sums": lambda w: lambda h, x: (h + jnp.square(x).sum(), (jnp.cos(h).max(), h.sum())),
    "moves": lambda w: lambda h, x: (x[::-1] + h, (h[1:], h.reshape(2, -1).T, 1.0)),
    "integers": lambda w: lambda h, x: (h + x, jnp.argmax(h) + (x > 0).sum()),
    "twice": lambda w: (
        lambda h, x: (lax.scan(lambda g, y: (g + jnp.exp(y), g), h.sum(), x)[0] + h,) * 2
    ),
}
#: And how they are scanned.
SCANS = {"reverse": {"reverse": True}, "unrolled in part": {"unroll": 5}}


def program(step, **options):
    def scan(w, h, xs):
        return lax.scan(STEPS[step](w), h, xs, **options)

    return scan


def gradients(step, **options):
    def loss(*args):
        results = jax.tree.leaves(program(step, **options)(*args))
        return sum((jnp.sin(x).sum() for x in results if x.dtype == np.float32), 0.0)

    return jax.grad(loss, (0, 1, 2))


def operands(dtype=np.float32, specials=()):
    w, h, xs = normal((6, 6), 1), normal(6, 2), normal((LENGTH, 6), 3)
    for i, special in enumerate(specials):
        w[i, 2], h[i], xs[i, 4] = special, special, special
    return [x.astype(dtype) for x in (w, h, xs)]


def in_the_loop(function):
    """It made reproducible, with nothing moved."""

    def run(*args):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(rules, "fission", lambda *args: None)
            return compiled(*args)

    compiled = outside(function)
    return run


def outside(function):
    return repjax.reproducible(lambda *xs: function(*xs))


def check(function, *inputs):
    found, expected = outside(function), in_the_loop(function)
    for args in inputs:
        jax.tree.map(assert_same_bits, found(*args), expected(*args))


SPECIALS = (
    [(x,) for x in (np.nan, -np.inf, -0.0, 1e-40)]
    + [(1e38, -1e38, 1e-38)]
    + [(np.inf, 0.0, -1e-40, np.nan)]
)


@pytest.mark.parametrize("step", STEPS)
def test_programs_have_the_same_bits(step):
    check(program(step), operands(), *(operands(specials=x) for x in SPECIALS))


@pytest.mark.parametrize("scan", SCANS)
@pytest.mark.parametrize("step", STEPS)
def test_gradients_and_batches_have_the_same_bits(step, scan):
    w, h, xs = operands()
    check(gradients(step, **SCANS[scan]), (w, h, xs))
    check(jax.vmap(program(step, **SCANS[scan]), (None, 0, None)), (w, np.stack([h, -h]), xs))


@pytest.mark.parametrize("dtype", [np.float16, jnp.bfloat16], ids=["float16", "bfloat16"])
@pytest.mark.parametrize("step", STEPS)
def test_formats_of_16_bits(step, dtype):
    check(program(step), operands(dtype))


def names(jaxpr) -> set[str]:
    return {e.primitive.name.removeprefix("repjax_") for e in jaxpr.eqns} - {"materialize"}


def left(step, scale=1, length=LENGTH, **options):
    """The primitives that a scan keeps in the loop, or None where nothing is moved."""
    found = []

    def noted(*args):
        parts = fission.fission(*args)
        found.append(parts and names(getattr(parts.body, "jaxpr", parts.body)))
        return parts

    args = [np.zeros(s, np.float32) for s in ((6 * scale,) * 2, 6 * scale, (length, 6 * scale))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(rules, "fission", noted)
        repjax.reproducible(lambda *xs: program(step, **options)(*xs)).lower(*args)
    return found[-1]


def test_what_is_moved():
    assert left("recurrent") == {"dot_general", "add", "tanh", "rev"}  # of the carry
    assert left("readout") == {"add", "tanh"}
    assert left("likelihood") == {"mul", "add"}
    assert left("of the elements alone") == {"add", "slice", "squeeze"}  # w[0], a constant
    assert "sin" not in left("nothing is given")
    assert left("sums") == {"add", "reduce_sum"}  # that of the carry
    assert left("recurrent", length=8) is None
    # Products, but not what is large enough to be computed in each iteration.
    assert left("likelihood", scale=100) is None
    assert left("recurrent", scale=100) == {"dot_general", "add", "tanh", "rev"}
    assert left("recurrent", scale=100, length=1000) is None  # nor what leaves the caches


def test_effects_stay(capfd):
    def scan(xs):
        def step(h, x):
            jax.debug.print("{}", x)
            return h + jnp.exp(x), x

        return lax.scan(step, jnp.float32(0), xs)

    outside(scan)(np.arange(LENGTH, dtype=np.float32))
    jax.effects_barrier()
    assert len(capfd.readouterr().out.split()) == LENGTH


@pytest.mark.parametrize("step, part", [("recurrent", "before"), ("readout", "after")])
def test_another_iteration_is_caught(step, part, monkeypatch):
    """A negative control: what is moved is that of the iteration before."""

    def wrong(*args):
        parts = fission.fission(*args)
        function = getattr(parts, part)

        def rolled(*args):
            return [jnp.roll(x, 1, 0) for x in function(*args)]

        return dataclasses.replace(parts, **{part: rolled})

    args = operands()
    expected = in_the_loop(program(step))(*args)
    monkeypatch.setattr(rules, "fission", wrong)
    assert not same_bits(outside(program(step))(*args)[1], expected[1])
