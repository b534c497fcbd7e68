"""A training of LeNet-5 in plain JAX and the same made reproducible, for `repjax bisect`.

    repjax bisect examples/first_difference.py:plain --settings plain+SSE4_2,plain+AVX2
    repjax bisect examples/first_difference.py:reproducible --settings plain+SSE4_2,plain+AVX2

The first names the step, the equation and the line at which plain JAX gives another bit on another
instruction set, the second says that nothing differs.  docs/instruments.md goes through it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

import repjax
from repjax.models import LeNet5
from repjax.verify import Training

BATCH, STEPS = 64, 10

digits = load_digits()
IMAGES = np.kron(digits.images.astype(np.float32) / 8 - 1, np.ones((4, 4), np.float32))[..., None]
LABELS = digits.target.astype(np.int32)

model = LeNet5()
optimizer = optax.adam(0.003)


def loss(params, images, labels):
    logits = model.apply(params, images)
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def step(state, batch):
    params, optimizer_state = state
    gradients = jax.grad(loss)(params, *batch)
    updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
    return optax.apply_updates(params, updates), optimizer_state


@repjax.reproducible
def first_parameters():
    return model.init(jax.random.key(0), jnp.zeros((1, 32, 32, 1)))


def state():
    params = first_parameters()
    return params, optimizer.init(params)


def batch(n):
    chosen = slice(BATCH * n, BATCH * (n + 1))
    return IMAGES[chosen], LABELS[chosen]


plain = Training(state=state, step=jax.jit(step), batch=batch, steps=STEPS)
reproducible = Training(state=state, step=repjax.reproducible(step), batch=batch, steps=STEPS)
