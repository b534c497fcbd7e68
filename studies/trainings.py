"""One training of a network of the literature, logged as a run.

What is random comes from draws of 32 bits, each the seed of a threefry key: first the initial
weights and what a step draws, then the order of each epoch.  With a seed they are a function of it,
without one they are the operating system's (``os.urandom``), which ``repjax.verify.record`` sees.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import numpy as np

import repjax
from data import SERIES, Data, DataError, batches, digits, fashion_mnist, series
from repjax.models import (
    Forecaster,
    LeNet1,
    LeNet4,
    LeNet5,
    ResNet38,
    ResNet56,
    WideResNet28x10,
    recipes,
)
from repjax.verify import Run

#: Numbers of a series that the forecaster reads to forecast the next one.
WINDOW = 24


class Network(NamedTuple):
    """A model with its recipe, and the height and width of its images."""

    model: nn.Module
    recipe: recipes.Recipe
    size: int


def _lenet(model: type[nn.Module]) -> Network:
    network = model(kernel_init=nn.initializers.glorot_uniform())
    return Network(network, recipes.LENET, model.input_shape[0])


def _resnet(model: type[nn.Module], recipe: recipes.Recipe) -> Network:
    # Pixels are between -1, the background, and 1.
    return Network(model(), dataclasses.replace(recipe, fill=-1.0), 32)


NETWORKS: dict[str, Callable[[], Network]] = {
    "lenet1": lambda: _lenet(LeNet1),
    "lenet4": lambda: _lenet(LeNet4),
    "lenet5": lambda: _lenet(LeNet5),
    "resnet38": lambda: _resnet(ResNet38, recipes.RESNET),
    "resnet56": lambda: _resnet(ResNet56, recipes.RESNET),
    "wrn-28-10": lambda: _resnet(WideResNet28x10, recipes.WIDE_RESNET),
    "forecaster": lambda: Network(Forecaster(), recipes.FORECASTER, 0),
}
SETS = ("fashion-mnist", "digits", *SERIES)


class Examples(NamedTuple):
    """Inputs and targets by index; ``inputs(indices)`` is float32."""

    inputs: Callable[[np.ndarray], np.ndarray]
    targets: np.ndarray

    @property
    def count(self) -> int:
        return len(self.targets)


class Task(NamedTuple):
    """What a network learns: to train with, to stop by (or None), to be tested by."""

    train: Examples
    validation: Examples | None
    test: Examples


def task(name: str, network: Network, limit: int | None, tested: int | None, folder=None) -> Task:
    """The examples of a set.

    Args:
      name: one of :data:`SETS`.
      network: whose inputs they are.
      limit: how many training examples, the first ones; all without it.
      tested: how many test examples, in the same way.
      folder: with Fashion-MNIST's files.

    Raises:
      DataError: the set is not there, or not for this network.
    """
    if (name in SERIES) != (network.size == 0):
        raise DataError(
            f"expected a time series ({', '.join(SERIES)}) for the forecaster and images "
            f"(fashion-mnist, digits) for the other networks, received {name}; choose another set"
        )
    found = _windows(series(name)) if name in SERIES else _images(name, network.size, folder)
    train, test = _first(found.train, limit), _first(found.test, tested)
    if network.recipe.batch > train.count:
        raise DataError(
            f"expected at least one batch of {network.recipe.batch} training examples, received "
            f"{train.count}; raise the limit or lower the batch"
        )
    return Task(train, found.validation, test)


def _first(examples: Examples, count: int | None) -> Examples:
    if count is not None and count > examples.count:
        raise DataError(f"expected at most the {examples.count} examples there are, not {count}")
    return Examples(examples.inputs, examples.targets[:count])


def _images(name: str, size: int, folder) -> Task:
    data: Data = fashion_mnist(size, folder) if name == "fashion-mnist" else digits(size)

    def examples(split):
        return Examples(lambda indices: data.images(split, indices), split.labels)

    return Task(examples(data.train), None, examples(data.held_out))


def _windows(numbers: np.ndarray) -> Task:
    """Windows and the numbers after them, in the order of time: 70 % to train, 15 % to validate.

    Numbers are scaled by the mean and the deviation of those to train with, sums that are exact on
    the host and rounded once.
    """
    cut = [len(numbers) * share // 100 for share in (0, 70, 85, 100)]
    known = [float(x) for x in numbers[: cut[1]]]
    mean = math.fsum(known) / len(known)
    deviation = math.sqrt(math.fsum((x - mean) * (x - mean) for x in known) / len(known))
    scaled = ((numbers - mean) / deviation).astype(np.float32)

    def examples(start, stop):
        first = max(start - WINDOW, 0)
        windows = np.lib.stride_tricks.sliding_window_view(scaled[first:stop], WINDOW + 1)
        return Examples(lambda indices: windows[indices, :-1], windows[:, -1])

    return Task(*(examples(*pair) for pair in itertools.pairwise(cut)))


# --- one run ----------------------------------------------------------------------------


class Compiled(NamedTuple):
    """A network's program, compiled by plain JAX or by repjax."""

    network: Network
    initialize: Callable[..., Any]
    step: Callable[..., Any]
    predict: Callable[..., Any]


def compiled(network: Network, reproducible: bool, steps_per_epoch: int) -> Compiled:
    wrap = repjax.reproducible if reproducible else jax.jit
    program = recipes.program(network.model, network.recipe, steps_per_epoch)
    return Compiled(network, *map(wrap, program))


def draws(seed: int | None) -> Callable[[], jax.Array]:
    """A function that gives the next threefry key."""
    drawn = 0

    def draw() -> jax.Array:
        nonlocal drawn
        number = int.from_bytes(os.urandom(4), "little") if seed is None else seed
        key = jax.random.key(number, impl="threefry2x32")
        key = jax.random.fold_in(key, drawn)
        drawn += 1
        return key

    return draw


def _sharded(batch: int):
    """What puts a batch on all devices: in equal parts, where it can be divided so."""
    count = jax.device_count()
    if count == 1 or batch % count:
        return lambda x: x
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((count,), ("batch",), axis_types=auto)
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("batch"))
    return lambda x: jax.device_put(x, sharding)


def outputs(program: Compiled, state, examples: Examples) -> np.ndarray:
    """What the model gives for all examples, in batches of one shape; the last is filled up."""
    batch, count = program.network.recipe.batch, examples.count
    place, parts = _sharded(batch), []
    for start in range(0, count, batch):
        indices = np.minimum(np.arange(start, start + batch), count - 1)
        parts.append(np.asarray(program.predict(state, place(examples.inputs(indices)))))
    return np.concatenate(parts)[:count]


def _error(forecasts: np.ndarray, targets: np.ndarray) -> float:
    """The mean absolute error: the sum is exact on the host, and rounded once."""
    pairs = zip(forecasts.tolist(), targets.tolist(), strict=True)
    return math.fsum(abs(x - y) for x, y in pairs) / len(targets)


def train(
    program: Compiled,
    task: Task,
    run: Run,
    *,
    seed: int | None,
    epochs: int,
    progress: Callable[[], None] = lambda: None,
) -> None:
    """Train, and log every step's parameters and loss, every epoch and what the model predicts.

    With a recipe's patience, the training stops after so many epochs without a better validation
    loss.  ``progress`` is called after every step.
    """
    recipe, draw = program.network.recipe, draws(seed)
    initial_key, step_key = draw(), draw()
    state = program.initialize(initial_key, task.train.inputs(np.arange(1)))
    place = _sharded(recipe.batch)
    n, best, waited = 0, math.inf, 0
    for _ in range(epochs):
        losses = []
        for indices in batches(draw(), 0, task.train.count, recipe.batch):
            inputs, targets = task.train.inputs(indices), task.train.targets[indices]
            state, loss = program.step(state, step_key, place(inputs), place(targets))
            run.step(n, params=state["params"], loss=loss)
            losses.append(loss)
            n += 1
            progress()
        mean = math.fsum(map(float, losses)) / len(losses)
        if task.validation is None:
            result = outputs(program, state, task.test)
            right = result.argmax(axis=-1) == task.test.targets
            run.epoch(mean, correct=int(right.sum()))
            continue
        error = _error(outputs(program, state, task.validation), task.validation.targets)
        run.epoch(mean, validation=error)
        best, waited = (error, 0) if error < best else (best, waited + 1)
        if recipe.patience is not None and waited == recipe.patience:
            break
    if task.validation is not None:
        result = outputs(program, state, task.test)
    if result.ndim == 1:
        run.evaluate(task.test.targets, result)
    else:
        run.evaluate(task.test.targets, result.argmax(axis=-1).astype(np.int32), result)
    run.finish(state["params"])


def on_cpus(count: int) -> None:
    """Keep this process, and the threads that it will start, to the first CPUs."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:count])
    elif count != os.cpu_count():
        raise DataError(f"expected a system that keeps a process to {count} CPUs, use another word")
