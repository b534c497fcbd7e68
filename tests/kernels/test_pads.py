"""Sums of arrays that are zero but for parts are the parts side by side: the same bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, normal, same_bits
from repjax import rules
from repjax.primitives import kernels
from repjax.primitives.cpu import library
from repjax.primitives.fusion import pads

needs_kernels = pytest.mark.skipif(
    not library.available(), reason=f"there is no kernel: {library.in_use()[1]}"
)


def in_scan(p, xs):
    def step(h, x):
        return jnp.tanh(p[0] * h + p[1] * x + p[2]), None

    return lax.scan(step, jnp.float32(0), xs)[0]


def overlapping(p, xs):
    def step(h, x):
        return jnp.tanh(p[:2] * h + p[1:] * x), None

    return lax.scan(step, jnp.zeros(2), xs)[0].sum()


def of_numbers(p, xs):
    """The same, element by element."""
    a, b, c = p

    def step(h, x):
        return (jnp.tanh(a * h[0] + b * x), jnp.tanh(b * h[1] + c * x)), None

    first, second = lax.scan(step, (jnp.float32(0), jnp.float32(0)), xs)[0]
    return first + second


def repeated(x):
    """300 elements; the transposition of no slice."""
    return x @ jnp.asarray(normal((6, 300), 4))


def halves(x):
    return (jnp.sin(x[:150]) * x[150:]).sum()


def with_a_gap(x):
    return (jnp.sin(x[:100]) * x[120:220]).sum() + jnp.cos(x).sum()


#: Functions of a number whose gradients are sums of padded cotangents.
FUNCTIONS = {
    "elements": lambda x: x[0] * x[1] + jnp.exp(x[3]),
    "all elements": lambda x: x[0] * x[1] + x[2] * x[3] * x[4] * x[5],
    "one twice": lambda x: x[0] * x[1] + jnp.sin(x[0]) * x[2] + jnp.sin(x).sum(),
    "halves": lambda x: (jnp.sin(x[:3]) * x[3:]).sum(),
    "neighbours": lambda x: jnp.square(x[1:] - x[:-1]).sum(),
    "long parts": lambda x: (x[1:] * jnp.exp(x[:-1])).sum() + jnp.sin(x).sum(),
    "a gap": lambda x: x[:2].sum() * x[4:].prod(),
    "strides": lambda x: (x[::2] * x[1::2]).sum(),
    "many in halves": lambda x: halves(repeated(x)),
    "many with a gap": lambda x: with_a_gap(repeated(x)),
    "many neighbours": lambda x: jnp.square(repeated(x)[1:] - repeated(x)[:-1]).sum(),
    "columns": lambda x: (x.reshape(2, 3)[:, 0] * x.reshape(2, 3)[:, 2]).sum(),
    "two axes": lambda x: x.reshape(2, 3)[0, 1] * x.reshape(2, 3)[1].sum(),
}


def gradient(name):
    return repjax.reproducible(lambda x: jax.grad(FUNCTIONS[name])(x))


def as_sums(name, *inputs):
    """The gradients, with sums as they are."""
    with pytest.MonkeyPatch.context() as patch:
        for module in (kernels, rules):
            patch.setattr(module, "without_sums_of_pads", lambda closed: closed)
        function = gradient(name)
        return [np.asarray(function(x)) for x in inputs]


def inputs():
    tiny = np.float32([1e-38, 1.5e-38, -1e-38, 1e-30, 1e-20, 3])
    return [normal(6, 1), tiny, *(np.float32([0, 1, x, 2, -x, x]) for x in (np.inf, np.nan, -0.0))]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_gradients_have_the_same_bits(name):
    function = gradient(name)
    for x, expected in zip(inputs(), as_sums(name, *inputs()), strict=True):
        assert_same_bits(function(x), expected)
    mapped = repjax.reproducible(jax.vmap(jax.grad(FUNCTIONS[name])))(np.stack(inputs()))
    assert_same_bits(mapped, np.stack(as_sums(name, *inputs())))


def joined(name) -> dict[str, int]:
    """How many equations of each primitive a gradient has more without those sums, or less."""
    found: dict[str, int] = {}

    def noted(closed):
        result = pads.without_sums_of_pads(closed)
        for program, sign in ((result, 1), (closed, -1)):
            for equation in program.jaxpr.eqns:
                key = equation.primitive.name.removeprefix("repjax_")
                found[key] = found.get(key, 0) + sign
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(kernels, "without_sums_of_pads", noted)
        gradient(name).lower(normal(6, 1))
    return {key: n for key, n in found.items() if n}


@needs_kernels
def test_what_is_joined():
    def counts(name, *keys):
        found = joined(name)
        return tuple(found.get(key, 0) for key in keys)

    assert counts("elements", "add_n", "pad", "select_n") == (-1, -3, 3)
    assert counts("all elements", "add_n", "pad", "select_n") == (-1, -6, 6)
    assert counts("one twice", "pad", "concatenate") == (-4, 0)
    assert counts("halves", "add", "pad", "concatenate") == (-1, -2, 0)
    assert counts("long parts", "pad", "gather") == (-2, 2)
    assert counts("many in halves", "add", "pad", "concatenate") == (-1, -2, 1)
    assert counts("many with a gap", "add_n", "add", "pad", "concatenate") == (-1, 1, -2, 1)
    for name in ("two axes", "many neighbours"):
        assert joined(name) == {}


def test_unrolled_loops_are_compiled():
    """Sums of three of which one is a pad, one after the other."""

    def scan(p, xs):
        def step(h, x):
            return h + 1, (jnp.exp(x) @ p, p[0], h)

        return lax.scan(step, jnp.zeros(6), xs, unroll=5)[1]

    def gradient(p, xs):
        return jax.grad(lambda p: sum(jnp.sin(y).sum() for y in scan(p, xs)))(p)

    repjax.reproducible(lambda *args: gradient(*args))(normal((6, 6), 1), normal((24, 6), 2))


@pytest.mark.parametrize(
    "scan, of_its_numbers",
    [(in_scan, in_scan), (overlapping, of_numbers)],
    ids=["parts", "overlap"],
)
def test_loops(scan, of_its_numbers):
    """XLA makes 140 MB of code of three pads in the function of a loop: no expected value."""
    function = repjax.reproducible(jax.grad(lambda p, xs: scan(p, xs)))
    expected = repjax.reproducible(jax.grad(lambda p, xs: of_its_numbers(p, xs)))
    for p in (normal(3, 1), np.float32([1e-38, -1e-20, 1]), np.float32([0, np.inf, -0.0])):
        assert_same_bits(function(p, normal(20, 3)), np.stack(expected(tuple(p), normal(20, 3))))
    assert "stablehlo.pad" not in function.lower(p, normal(20, 3)).as_text()


@needs_kernels
def test_parts_in_another_order_are_caught(monkeypatch):
    (expected,) = as_sums("halves", normal(6, 1))
    layers = pads._layers

    def wrong(*args):
        return [
            {i: part._replace(start=3 - part.start) for i, part in layer.items()}
            for layer in layers(*args)
        ]

    monkeypatch.setattr(pads, "_layers", wrong)
    assert not same_bits(gradient("halves")(normal(6, 1)), expected)
