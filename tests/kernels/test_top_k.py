"""The largest elements by the C++ kernel: those of the body, on every instruction set."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import SPECIALS, assert_same_bits, patterns
from helpers.instruction_sets import each_instruction_set
from repjax.primitives.core.values import canonicalize
from repjax.primitives.cpu import library
from repjax.primitives.operations.reductions.extrema import top_k_body

pytestmark = pytest.mark.skipif(
    not library.instruction_sets(), reason="the kernel was not compiled: no C++ compiler here"
)
KERNEL = "custom_call @repjax_top_k"
ROWS = 5


def rows(kind: str, n: int) -> np.ndarray:
    rng = np.random.default_rng(n)
    if kind == "equals and NaNs":
        return rng.choice(np.concatenate([SPECIALS, np.float32([1, 2])]), (ROWS, n))
    if kind == "any bits":
        return patterns(ROWS * n, n).reshape(ROWS, n)
    numbers = rng.standard_normal((ROWS, n)).astype(np.float32)
    return np.sort(numbers) if kind == "ascending" else numbers


def found(x, k, axis=-1):
    """Of the body, operation by operation."""
    values, positions = top_k_body(canonicalize(jnp.asarray(x)), k=k, axis=axis % x.ndim)
    return np.asarray(canonicalize(values)), np.asarray(positions)


def assert_same(got, expected, what):
    assert_same_bits(got[0], expected[0], what)
    np.testing.assert_array_equal(got[1], expected[1], what)


# Up to 64 are inserted one by one, more are sorted; vectors have up to 16 elements.
@pytest.mark.parametrize("kind", ["normal", "ascending", "equals and NaNs", "any bits"])
@pytest.mark.parametrize(
    ("n", "k"), [(1, 1), (15, 2), (16, 16), (17, 3), (300, 64), (300, 65), (300, 300), (5000, 50)]
)
def test_bits(kind, n, k):
    x = rows(kind, n)
    function = repjax.reproducible(lambda x: lax.top_k(x, k))
    assert KERNEL in jax.jit(function).lower(x).as_text()
    expected = found(x, k)
    for name in each_instruction_set():
        assert_same(function(x), expected, name)
    if kind == "normal" and n > 2:  # a control
        assert not np.array_equal(function(-x)[1], expected[1])


def test_other_axes_batches_and_types():
    x = rows("normal", 60).reshape(ROWS, 10, 6)
    for axis in range(3):
        got = repjax.reproducible(lambda x, axis=axis: lax.top_k(x, 4, axis=axis))(x)
        assert_same(got, found(x, 4, axis), f"axis {axis}")
    several = jax.vmap(repjax.reproducible(lambda x: lax.top_k(x, 2)), 1)
    values, positions = found(x, 2)
    assert_same(several(x), (values.swapaxes(0, 1), positions.swapaxes(0, 1)), "vmap")
    half = x.astype(jnp.bfloat16)
    values, positions = repjax.reproducible(lambda x: lax.top_k(x, 3))(half)
    expected = found(half.astype(np.float32), 3)
    assert values.dtype == jnp.bfloat16
    assert_same((np.asarray(values, np.float32), positions), expected, "bfloat16")


def test_devices_have_rows_of_their_own():
    devices = jax.devices()
    mesh = jax.make_mesh((len(devices),), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    x = np.tile(rows("normal", 100), (len(devices), 1))
    split = jax.device_put(x, jax.NamedSharding(mesh, jax.P("i")))
    assert_same(repjax.reproducible(lambda x: lax.top_k(x, 7))(split), found(x, 7), "split")


def test_gradient():
    x = rows("normal", 40)
    gradient = repjax.reproducible(jax.grad(lambda x: (lax.top_k(x, 5)[0] ** 2).sum()))(x)
    values, positions = found(x, 5)
    expected = np.zeros_like(x)
    np.put_along_axis(expected, positions, 2 * values, 1)
    assert_same_bits(gradient, expected)
