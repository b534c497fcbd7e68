"""The network of the workaround for TensorFlow's non-determinism: 784-1000-1000-10.

Two Sigma, "A workaround for non-determinism in TensorFlow", 2017.  There, a bias that is added has
a gradient by ``reduce_sum``, which had other bits in each run on a GPU.  The workaround is a column
of ones beside the inputs of each layer, and the bias as one more row of its weights, so that all
sums are those of matrix products.  What the article leaves open is chosen here: hidden layers are
followed by relu, weights are uniform in +-1/sqrt(inputs), biases 0.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

SIZES = (784, 1000, 1000, 10)


def init(key, sizes: Sequence[int] = SIZES, ones: bool = False) -> list:
    """The parameters, 1,796,010 in both forms, with the same numbers.

    Args:
      key: a PRNG key.
      sizes: of the inputs, the hidden layers and the outputs.
      ones: for a column of ones or, as default, for biases that are added.

    Returns:
      for each layer a dict of float32 arrays: ``kernel`` (inputs, outputs) and ``bias`` (outputs,);
      with ones ``kernel`` (inputs + 1, outputs) alone, whose last row is the bias.
    """
    layers = []
    for k, (inputs, outputs) in enumerate(itertools.pairwise(sizes)):
        draws = jax.random.uniform(
            jax.random.fold_in(key, k), (inputs, outputs), np.float32, minval=-1.0, maxval=1.0
        )
        kernel = draws * np.float32(1 / math.sqrt(inputs))
        bias = jnp.zeros((outputs,), np.float32)
        layers.append({"kernel": kernel, "bias": bias})
    return [with_ones(layer) for layer in layers] if ones else layers


def with_ones(layer: dict) -> dict:
    """The kernel of a layer with its bias as one more row, the last."""
    return {"kernel": jnp.concatenate([layer["kernel"], layer["bias"][None]])}


def apply(layers: list, x):
    """Outputs (batch, outputs) of float32 inputs (batch, inputs), in the form of the parameters."""
    for k, layer in enumerate(layers):
        x = jax.nn.relu(x) if k else x
        if "bias" in layer:
            x = x @ layer["kernel"] + layer["bias"]
        else:
            x = jnp.concatenate([x, jnp.ones((len(x), 1), x.dtype)], 1) @ layer["kernel"]
    return x


def loss(layers: list, x, labels):
    """The mean of the squared differences of outputs and 1 at the label, 0 elsewhere."""
    outputs = apply(layers, x)
    return jnp.mean((outputs - jax.nn.one_hot(labels, outputs.shape[1])) ** 2)
