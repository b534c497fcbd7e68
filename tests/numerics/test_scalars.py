"""Scalars that are broadcast go through elementwise operations before: with the same bits."""

from __future__ import annotations

import os
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, normal

X = np.abs(normal((6, 8)))
OF_ONE = "exp log log1p expm1 tanh erf erf_inv lgamma digamma sqrt sin logistic floor neg"
FUNCTIONS = {name: getattr(lax, name) for name in OF_ONE.split()}
OF_PAIRS = "add sub mul div rem pow atan2 max nextafter"
OF_TWO = {name: getattr(lax, name) for name in OF_PAIRS.split()}


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_bits_are_those_of_arrays(dtype):
    x = X.astype(dtype)

    def program(x, s, full):
        """Of a scalar, or of an array that repeats it."""
        repeated = [full, jnp.full(x.shape, dtype(0.3))]
        if full is None:
            repeated[0] = jnp.broadcast_to(s, x.shape)
        ones = [f(a) for f in FUNCTIONS.values() for a in repeated]
        twos = [f(*pair) for f in OF_TWO.values() for a in repeated for pair in ((a, x), (x, a))]
        chain = jnp.where(repeated[0] > 0, jnp.exp(-repeated[0]), 1) * x
        return ones, twos, chain, repeated[0].astype("int32"), repeated[0] ** 3

    s = dtype(0.7)
    full = np.full(x.shape, s)
    of_scalars = repjax.reproducible(lambda x, s: program(x, s, None))(x, s)
    assert_same_bits(of_scalars, repjax.reproducible(lambda x, y: program(x, s, y))(x, full))


def test_a_long_body_is_computed_of_the_scalar():
    program = repjax.reproducible(lambda s: lax.atan(jnp.broadcast_to(s, (123, 7))))
    text = program.lower(np.float32(3)).as_text()
    assert "repjax_atan(%arg0: tensor<f32>)" in text
    assert "tensor<123x7xf64>" not in text


#: Where they are in programs: rotary embeddings; a schedule's factors; and in one that is longer.
PROGRAM = """
import jax, jax.numpy as jnp, numpy as np, repjax
from jax import lax

def rotated(x, base):
    n = x.shape[-1]
    frequencies = 1 / base ** (jnp.arange(0, n, 2, dtype=jnp.float32) / n)
    angles = jnp.outer(jnp.arange(x.shape[0], dtype=jnp.float32), frequencies)
    first, second = jnp.split(x, 2, -1)
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    return jnp.concatenate([first * cos - second * sin, first * sin + second * cos], -1)

@repjax.reproducible
def program(x, s):
    def layer(x, w):
        return jnp.tanh(rotated(x, 10000.0) @ w) + rotated(x, s), None

    y, _ = lax.scan(jax.checkpoint(layer), x, jnp.stack([x.T @ x] * 2))
    repeated = jnp.broadcast_to(s, x.shape)
    more = [lax.digamma(repeated), lax.lgamma(repeated), lax.erf_inv(1 / repeated), repeated**x]
    return y, more, [m.astype(jnp.float16) for m in more], lax.tan(repeated.astype(jnp.float16))

jax.block_until_ready(program(np.ones((6, 8), np.float32), np.float32(500)))
"""


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="XLA's CPU compiler is what complains")
def test_the_compiler_does_not_complain():
    """XLA moved broadcasts through whole bodies, an operation at a time, and called that a loop."""
    result = subprocess.run(
        [sys.executable, "-P", "-c", PROGRAM],
        env={**os.environ, "REPJAX_NATIVE": "off"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert "circular simplification" not in result.stderr
