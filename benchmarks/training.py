"""Training in each order of products: losses and accuracies beside plain JAX.

    python benchmarks/training.py [--quick] [--output benchmarks/results/training]

LeNet-5 on the digits of ``examples/train_digits.py``, and a small transformer that predicts the
next character of this project's licence, with the same seeds in each way.  With --output, writes
OUTPUT.md and OUTPUT.json.
"""

from __future__ import annotations

import argparse
import contextlib
import pathlib
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import flax.linen
import jax
import numpy as np
import optax
from cpu import environment

import repjax
from repjax.models import LeNet5
from repjax.verify import conformance

ROOT = pathlib.Path(__file__).parents[1]
HIGHEST = ", HIGHEST"
WAYS = ("plain", "sequential", "order_independent", "order_independent" + HIGHEST)
SEEDS = 3


def precision(way: str):
    """The context in which programs of this way are traced."""
    if way.endswith(HIGHEST):
        return jax.default_matmul_precision("highest")
    return contextlib.nullcontext()


class Network(NamedTuple):
    """A model, its batches for a seed and the examples held out: inputs and labels."""

    model: flax.linen.Module
    batches: Callable[[int], Iterator[tuple[np.ndarray, np.ndarray]]]
    held_out: tuple[np.ndarray, np.ndarray]


def lenet(epochs: int) -> Network:
    sys.path.insert(0, str(ROOT / "examples"))
    import train_digits

    data = train_digits.load_digits(32)

    def batches(seed):
        rng = np.random.default_rng(seed)
        for _ in range(epochs):
            for chosen in rng.permutation(len(data.train.labels))[:1408].reshape(-1, 64):
                yield data.images(data.train, chosen), data.train.labels[chosen]

    everything = np.arange(len(data.held_out.labels))
    return Network(
        LeNet5(), batches, (data.images(data.held_out, everything), data.held_out.labels)
    )


class Transformer(flax.linen.Module):
    """Blocks of causal attention and a dense network, normalised before."""

    tokens: int
    blocks: int = 2
    features: int = 64

    @flax.linen.compact
    def __call__(self, tokens):
        length = tokens.shape[1]
        mask = flax.linen.make_causal_mask(tokens)
        x = flax.linen.Embed(self.tokens, self.features)(tokens)
        x = x + flax.linen.Embed(length, self.features)(np.arange(length))
        for _ in range(self.blocks):
            h = flax.linen.LayerNorm()(x)
            attention = flax.linen.MultiHeadDotProductAttention(num_heads=4)
            x = x + attention(h, mask=mask, sow_weights=True)
            h = flax.linen.Dense(4 * self.features)(flax.linen.LayerNorm()(x))
            x = x + flax.linen.Dense(self.features)(flax.linen.gelu(h))
        return flax.linen.Dense(self.tokens)(flax.linen.LayerNorm()(x))


def transformer(steps: int, length: int = 64) -> Network:
    text = (ROOT / "LICENSE").read_text()
    characters = sorted(set(text))
    tokens = np.array([characters.index(c) for c in text], np.int32)
    split = len(tokens) * 9 // 10

    def windows(tokens, starts):
        rows = tokens[starts[:, None] + np.arange(length + 1)]
        return rows[:, :-1], rows[:, 1:]

    def batches(seed):
        rng = np.random.default_rng(seed)
        for _ in range(steps):
            yield windows(tokens[:split], rng.integers(0, split - length, 32))

    rest = tokens[split:]
    held_out = windows(rest, np.arange(0, len(rest) - length, length))
    return Network(Transformer(len(characters)), batches, held_out)


def trainer(network: Network, way: str) -> Callable[[int], tuple[Any, list[float], float]]:
    """Of a seed: the parameters, the loss of each step, the accuracy on what was held out."""
    model, optimizer = network.model, optax.adam(3e-3)
    order = way.removesuffix(HIGHEST)

    def program(function):
        if way == "plain":
            return jax.jit(function)
        sums = "order_independent" if order == "order_independent" else "pairwise"
        return repjax.reproducible(function, contraction=order, accumulation=sums)

    initialize, apply = program(model.init), program(model.apply)

    @program
    def step(params, state, x, labels):
        def loss(params):
            logits = model.apply(params, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    def train(seed):
        inputs, labels = network.held_out
        with precision(way):
            params = {"params": initialize(jax.random.key(seed), inputs)["params"]}
            state, losses = optimizer.init(params), []
            for batch in network.batches(seed):
                params, state, loss = step(params, state, *batch)
                losses.append(float(loss))
            correct = np.asarray(apply(params, inputs)).argmax(-1) == labels
        return params, losses, float(correct.mean())

    return train


def networks(quick: bool) -> dict[str, Network]:
    return {
        "LeNet-5, digits": lenet(1 if quick else 10),
        "transformer, characters": transformer(20 if quick else 200),
    }


def report(rows, info) -> str:
    lines = ["# Training", ""]
    lines += [f"{key}: {value}  " for key, value in info.items() if value]
    lines += ["", "The loss at the first step, its mean over the last tenth of the steps, and the"]
    lines += ["accuracy on examples held out, in %.", ""]
    lines += ["| network | seed | way | first loss | last losses | accuracy |"]
    lines += ["|---|---:|---|---:|---:|---:|"]
    for row in rows:
        lines.append(
            f"| {row['network']} | {row['seed']} | {row['way']} | {row['first']:.6f} "
            f"| {row['last']:.6f} | {100 * row['accuracy']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="few steps, one seed")
    parser.add_argument("--output", type=pathlib.Path, help="write OUTPUT.md and OUTPUT.json")
    arguments = parser.parse_args()
    rows = []
    for name, network in networks(arguments.quick).items():
        trainers = {way: trainer(network, way) for way in WAYS}
        for seed in range(1 if arguments.quick else SEEDS):
            for way, train in trainers.items():
                start = time.perf_counter()
                _, losses, accuracy = train(seed)
                last = float(np.mean(losses[-max(1, len(losses) // 10) :]))
                row = {"network": name, "seed": seed, "way": way, "first": losses[0]}
                rows.append(row | {"last": last, "accuracy": accuracy})
                print(rows[-1], f"{time.perf_counter() - start:.1f} s", flush=True)
    info = {**environment(), "products": repjax.info()["cpu products"]}
    print("\n" + report(rows, info))
    if arguments.output:
        conformance.write(arguments.output, {"environment": info, "rows": rows}, report(rows, info))


if __name__ == "__main__":
    main()
