"""Four functions whose bits `repjax explain` explains; docs/instruments.md shows what it prints.

repjax explain examples/explain.py:exponential
repjax explain examples/explain.py:plain
repjax explain examples/explain.py:gradient --index 1,0
repjax explain examples/explain.py:softmax --index 2,1
repjax explain examples/explain.py:adam --output w --index 0 --depth 4
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax

import repjax

X = (np.arange(12, dtype=np.float32).reshape(4, 3) - 5) / np.float32(7)
W = np.float32([[0.3, -0.1], [0.2, 0.7], [-0.4, 0.5]])


def plain():
    return jnp.exp(np.float32(0.3))


exponential = repjax.reproducible(plain)


@repjax.reproducible
def gradient():
    def loss(w):
        return jnp.mean((X @ w - 1) ** 2)

    return jax.grad(loss)(W)


@repjax.reproducible
def softmax():
    scores = X @ W
    return jax.nn.softmax(scores)


@repjax.reproducible
def adam():
    optimizer = optax.adam(0.01)
    params = {"w": jnp.asarray(W[0])}
    updates, _ = optimizer.update({"w": jnp.asarray(W[1])}, optimizer.init(params))
    return optax.apply_updates(params, updates)
