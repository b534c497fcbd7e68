"""Products with a matrix for each group of rows, and of blocks with scales, against plain ones."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, normal, patterns

SIZES = np.array([3, 0, 2, 4], np.int32)  # of 11 rows: two belong to no group


def _of_group(g):
    return slice(SIZES[:g].sum(), SIZES[: g + 1].sum())


def _ragged(x, w):
    return lax.ragged_dot(x, w, SIZES)


def test_ragged_dot():
    x, w = (patterns(n, n).reshape(shape) for n, shape in ((55, (11, 5)), (60, (4, 5, 3))))
    w[1] = np.inf  # of an empty group
    dot = repjax.reproducible(jnp.dot)
    want = np.zeros((11, 3), np.float32)
    for g in range(4):
        want[_of_group(g)] = dot(x[_of_group(g)], w[g])
    assert_same_bits(repjax.reproducible(_ragged)(x, w), want)


def test_gradients_of_ragged_dot():
    x, w, cotangent = normal((11, 5)), normal((4, 5, 3), 1), normal((11, 3), 2)
    run = repjax.reproducible(lambda x, w, ct: jax.vjp(_ragged, x, w)[1](ct))
    dot = repjax.reproducible(lambda x, w, ct: jax.vjp(jnp.dot, x, w)[1](ct))
    to_x, to_w = np.zeros_like(x), np.zeros_like(w)
    for g in range(4):
        rows = _of_group(g)
        to_x[rows], to_w[g] = dot(x[rows], w[g], cotangent[rows])
    assert_same_bits(run(x, w, cotangent), (to_x, to_w))


def test_batched_ragged_dot_is_refused():
    with pytest.raises(repjax.RefusedError, match="and neither batch dimensions"):
        repjax.reproducible(jax.vmap(lax.ragged_dot))(
            normal((2, 11, 5)), normal((2, 4, 5, 3)), np.stack([SIZES, SIZES])
        )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_scaled_matmul(dtype):
    """Blocks of 32 terms have a scale."""
    a, b = normal((2, 3, 64)), normal((2, 5, 64), 1)
    a_scales, b_scales = np.exp2(normal((2, 3, 2), 2)), np.exp2(normal((2, 5, 2), 3))

    def scaled(a, b, a_scales, b_scales):
        return jax.nn.scaled_matmul(
            a, b, a_scales, b_scales, preferred_element_type=jnp.dtype(dtype)
        )

    def plain(a, b, a_scales, b_scales):
        a, b, a_scales, b_scales = (x.astype(dtype) for x in (a, b, a_scales, b_scales))
        a, b = a * jnp.repeat(a_scales, 32, -1), b * jnp.repeat(b_scales, 32, -1)
        return jnp.einsum("bmk,bnk->bmn", a, b)

    operands = a, b, a_scales, b_scales
    assert_same_bits(repjax.reproducible(scaled)(*operands), repjax.reproducible(plain)(*operands))
