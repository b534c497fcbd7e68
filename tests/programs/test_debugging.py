"""JAX's options for debugging: they work with repjax, and change no bits."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, normal

X = normal((4, 4))


def _layers(x):
    """Calls, loops, branches, derivatives and more, whose insides are traced by themselves."""

    def layer(x, w):
        return jax.nn.softmax(jnp.tanh(x @ w) * jax.nn.gelu(x)), x.sum()

    def loss(x):
        y, sums = lax.scan(jax.checkpoint(layer), x, jnp.stack([x, x.T]))
        y = lax.fori_loop(0, 3, lambda i, y: y * 0.5 + x, y)
        y = lax.cond(sums[0] > 0, jnp.sin, jnp.cos, y)
        return jnp.mean(jax.nn.relu(y)) + jnp.var(jax.jit(jnp.exp)(y))

    return jax.value_and_grad(loss)(x)


def _mapped(x):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    spec = jax.P("i")
    return jax.shard_map(lambda x: jnp.tanh(x) * 2 + x, mesh=mesh, in_specs=spec, out_specs=spec)(x)


def _explicit(x):
    def loss(x):
        return repjax.lax.reduce_sum(
            repjax.nn.softmax(repjax.lax.dot(x, repjax.nn.relu(x))), (0, 1)
        )

    return jax.grad(loss)(x), jax.vmap(repjax.lax.tanh)(x), jax.jit(repjax.lax.exp)(x)


def _switched(function):
    def switched(x):
        with repjax.enabled():
            return function(x)

    return switched


WAYS = {
    "decorator": repjax.reproducible(_layers),
    "switch": _switched(jax.jit(_layers)),
    "eager": _switched(lambda x: jax.grad(lambda x: jnp.sum(jax.nn.softmax(x @ x)))(x)),
    "map": repjax.reproducible(_mapped),
    "explicit": _explicit,
}
each_way = pytest.mark.parametrize("way", WAYS)
OPTIONS = ("jax_check_tracer_leaks", "jax_debug_nans", "jax_debug_infs")


@pytest.fixture
def option():
    """Sets an option; afterwards they are as before."""
    before = {name: getattr(jax.config, name) for name in OPTIONS}
    yield lambda name: jax.config.update(name, True)
    for name, value in before.items():
        jax.config.update(name, value)


@pytest.mark.parametrize("name", OPTIONS)
@each_way
def test_options_change_nothing(way, name, option):
    expected = WAYS[way](X)
    jax.clear_caches()
    option(name)
    assert_same_bits(WAYS[way](jnp.asarray(X)), expected)


def test_a_leak_is_found(option):
    option("jax_check_tracer_leaks")
    leaked = []
    with pytest.raises(Exception, match="Leaked trace"):
        repjax.reproducible(lambda x: leaked.append(x) or x + 1)(X)


INVALID = {
    "nan": ("jax_debug_nans", lambda x: jnp.log(x) * 2, -1),
    "inf": ("jax_debug_infs", lambda x: 2 / x, 0),
    "in a loop": (
        "jax_debug_nans",
        lambda x: lax.fori_loop(0, 2, lambda i, y: jnp.log(y) - 9, x),
        1,
    ),
    "of a gradient": ("jax_debug_nans", jax.grad(lambda x: jnp.sum(x * jnp.sqrt(x))), 0),
}
CALLS = {
    "plain": jax.jit,
    "decorator": repjax.reproducible,
    "decorator inside jit": lambda f: jax.jit(repjax.reproducible(f)),
    "switch": lambda f: _switched(jax.jit(f)),
    "eager": _switched,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("name", INVALID)
def test_invalid_values_raise(name, call, option):
    flag, function, value = INVALID[name]
    option(flag)
    x = jnp.full((3,), value, np.float32)
    with pytest.raises(FloatingPointError, match=r"encountered in|de-optimized"):
        CALLS[call](function)(x)


def test_invalid_values_of_explicit_functions_raise(option):
    option("jax_debug_nans")
    with pytest.raises(FloatingPointError, match="encountered in repjax_log"):
        repjax.lax.log(jnp.full((3, 1, 7), -1, np.float32))  # what no test before has compiled
