"""Matrix products of blocks with scales: ``jax.nn.scaled_matmul``."""

from __future__ import annotations

from jax import lax
from jax import numpy as jnp

from repjax.primitives.core.interpret import program


@program("scaled_matmul")
def _scaled_matmul(a, b, a_scales, b_scales, *, preferred_element_type):
    """``dot_general`` of ``a[batch, m, k]`` and ``b[batch, n, k]`` over k.

    Before, elements are converted to the type of the result, and each is multiplied by the scale of
    its block along k.
    """

    def scaled(x, scales):
        x, scales = x.astype(preferred_element_type), scales.astype(preferred_element_type)
        blocks = jnp.reshape(x, (*scales.shape, -1))
        return jnp.reshape(blocks * scales[..., None], x.shape)

    return lax.dot_general(
        scaled(a, a_scales),
        scaled(b, b_scales),
        (((2,), (2,)), ((0,), (0,))),
        precision=lax.Precision.DEFAULT,  # it has none of its own
        preferred_element_type=preferred_element_type,
    )
