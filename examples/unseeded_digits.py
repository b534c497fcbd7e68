"""Train LeNet-5 on handwritten digits without a seed, for `repjax record` and `repjax replay`.

    repjax record --out first.entropy -- examples/unseeded_digits.py runs/first
    repjax replay first.entropy -- examples/unseeded_digits.py runs/again
    repjax compare runs/first runs/again

The parameters, the order of the images and the noise on them are drawn anew in every run, each from
another source.  docs/guideline.md goes through it.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
from sklearn.datasets import load_digits

from repjax.models import LeNet5
from repjax.verify import Run

BATCH, HELD_OUT = 64, 357

digits = load_digits()
IMAGES = np.kron(digits.images.astype(np.float32) / 8 - 1, np.ones((4, 4), np.float32))[..., None]
LABELS = digits.target.astype(np.int32)

model = LeNet5()
optimizer = optax.adam(0.003)


@jax.jit
def step(params, state, images, labels):
    def loss(params):
        logits = model.apply(params, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    value, gradients = jax.value_and_grad(loss)(params)
    updates, state = optimizer.update(gradients, state, params)
    return optax.apply_updates(params, updates), state, value


def noisy(images, generator):
    """Images, of each of which a row is blank."""
    images = images.copy()
    images[np.arange(len(images)), generator.integers(32, size=len(images))] = -1
    return images


def train(path: str, epochs: int) -> None:
    seed = int.from_bytes(os.urandom(4), "big")
    params = model.init(jax.random.key(seed), jnp.zeros((1, 32, 32, 1)))
    state = optimizer.init(params)
    noise = np.random.default_rng()
    order = np.arange(len(LABELS) - HELD_OUT)
    with Run(path, metadata={"model": "LeNet-5", "data": "scikit-learn's digits"}) as run:
        for epoch in range(epochs):
            np.random.shuffle(order)
            start = random.randrange(len(order))  # images at the end of an epoch are left out
            for n in range(len(order) // BATCH):
                chosen = np.take(order, np.arange(BATCH) + start + n * BATCH, mode="wrap")
                batch = noisy(IMAGES[chosen], noise), LABELS[chosen]
                params, state, loss = step(params, state, *batch)
            run.step(epoch, params=params, batch=batch)
            run.epoch(loss)
        logits = jax.jit(model.apply)(params, IMAGES[-HELD_OUT:])
        run.evaluate(LABELS[-HELD_OUT:], np.argmax(logits, 1), logits)
        run.finish(params)
    correct = (np.argmax(logits, 1) == LABELS[-HELD_OUT:]).sum()
    print(f"{correct} of {HELD_OUT} held-out images are recognised")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Train LeNet-5 without a seed.")
    parser.add_argument("path", help="the run directory")
    parser.add_argument("--epochs", type=int, default=2)
    arguments = parser.parse_args()
    begin = time.perf_counter()
    train(arguments.path, arguments.epochs)
    print(f"{time.perf_counter() - begin:.3f} s", file=sys.stderr)
