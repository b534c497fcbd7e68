"""Gradients that an Accumulator adds, in microbatches over devices: for test_accumulator.py.

    python -m helpers.accumulation NAME FILE [MICROBATCHES DEVICES SEED]

in tests/: adds the gradients of a network's examples in the order of a seed, with a checkpoint in
FILE after each microbatch, from where FILE says, and prints the digest of the gradient.
"""

from __future__ import annotations

import functools
import pathlib
import sys

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

import repjax
from helpers.networks import MLP, Transformer, fill
from repjax import checkpoint
from repjax.exact import Accumulator
from repjax.models import LeNet5

EXAMPLES = 64
MICROBATCHES = (1, 2, 4, 8, 64)
DEVICES = (1, 2, 8)


def _data(shape, classes: int):
    rng = np.random.default_rng(len(shape))
    images = rng.standard_normal((EXAMPLES, *shape)).astype(np.float32)
    return images, rng.integers(0, classes, EXAMPLES).astype(np.int32)


def _tokens():
    rng = np.random.default_rng(5)
    return (rng.integers(0, 11, (EXAMPLES, 6)).astype(np.int32),) * 2


#: A model, and the examples of its arguments and its labels.
NETWORKS = {
    "mlp": (MLP, lambda: _data((12,), 5)),
    "lenet": (LeNet5, lambda: _data((32, 32, 1), 10)),
    "transformer": (Transformer, _tokens),
}


@functools.cache
def parameters(name: str):
    make, data = NETWORKS[name]
    inputs = data()[0][:1]
    return fill(jax.eval_shape(make().init, jax.random.key(0), inputs))


@functools.cache
def gradients(name: str):
    """Of each example, in the order ``exact``."""
    make, _ = NETWORKS[name]
    model = make()

    def loss(variables, x, label):
        logits = model.apply(variables, x[None])[0]
        return -jnp.take_along_axis(jax.nn.log_softmax(logits), label[..., None], -1).mean()

    of_each = jax.vmap(jax.grad(loss), (None, 0, 0))
    return repjax.reproducible(of_each, accumulation="exact", contraction="exact")


def parts(microbatches: int, seed: int) -> list[np.ndarray]:
    """The examples of each microbatch, in the order in which they arrive."""
    rng = np.random.default_rng(seed)
    examples = rng.permutation(EXAMPLES) if seed else np.arange(EXAMPLES)
    return list(rng.permutation(examples.reshape(microbatches, -1)))


def added(name: str, total: Accumulator, examples, devices) -> Accumulator:
    """The sum with the gradients of these examples, which are divided over the devices."""
    operands = [x[examples] for x in NETWORKS[name][1]()]
    if len(devices) > 1 and len(examples) % len(devices) == 0:
        mesh = Mesh(np.array(devices), ("i",), axis_types=(AxisType.Auto,))
        operands = [jax.device_put(x, NamedSharding(mesh, P("i"))) for x in operands]
        total = jax.device_put(total, NamedSharding(mesh, P()))
    else:
        operands = [jax.device_put(x, devices[0]) for x in operands]
        total = jax.device_put(total, devices[0])
    # One program at a time: XLA has a thread for each device, and two programs that exchange values
    # may each wait with some of the threads for the others.
    return jax.block_until_ready(total.add_each(gradients(name)(parameters(name), *operands)))


def gradient(name: str, microbatches: int, count: int, seed: int):
    """The gradient; where a microbatch has too few examples, each device has a sum of its own."""
    devices = jax.devices()[:count]
    empty = Accumulator.like(parameters(name))
    alone = EXAMPLES // microbatches % count != 0
    totals = [empty] * (count if alone else 1)
    for i, examples in enumerate(parts(microbatches, seed)):
        own = [devices[i % count]] if alone else devices
        totals[i % len(totals)] = added(name, totals[i % len(totals)], examples, own)
    totals = [jax.device_put(x, devices[0]) for x in totals]
    return functools.reduce(Accumulator.merge, totals[::-1]).round()


def resumed(name: str, file: pathlib.Path, microbatches: int, count: int, seed: int):
    """The gradient by one microbatch after the other, from a checkpoint if there is one."""
    total, first = Accumulator.like(parameters(name)), 0
    if file.exists():
        total, first = checkpoint.load(file, total)
    for i, examples in list(enumerate(parts(microbatches, seed)))[first:]:
        total = added(name, total, examples, jax.devices()[:count])
        checkpoint.save(file, total, i + 1)
    return total.round()


def main(name: str, file: str, *numbers: str) -> None:
    print(repjax.digest(resumed(name, pathlib.Path(file), *map(int, numbers))))


if __name__ == "__main__":
    main(*sys.argv[1:])
