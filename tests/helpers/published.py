"""Training steps of the networks of the literature, whose bits are goldens.

    python -m helpers.published [NAME ...]            in tests/: print digests, as JSON
    python -m helpers.published --write [NAME ...]    write them to tests/data/published.json

Each is trained from its own initial weights by its own recipe, on small images: what matters is
which operations occur.
"""

from __future__ import annotations

import argparse
import json
from typing import NamedTuple

import flax.linen as nn
import jax
import numpy as np

import repjax
from helpers import golden_files
from helpers.networks import labels, values
from helpers.paths import DATA
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

GOLDENS = DATA / "published.json"


class Case(NamedTuple):
    model: nn.Module
    recipe: recipes.Recipe
    shape: tuple[int, ...]
    batch: int
    steps: int


def _lenet(network) -> Case:
    model = network(kernel_init=nn.initializers.glorot_uniform())
    return Case(model, recipes.LENET, network.input_shape, 6, 3)


CASES = {
    "lenet1": _lenet(LeNet1),
    "lenet4": _lenet(LeNet4),
    "lenet5": _lenet(LeNet5),
    "resnet38": Case(ResNet38(), recipes.RESNET, (8, 8, 3), 4, 2),
    "resnet56": Case(ResNet56(), recipes.RESNET, (8, 8, 3), 4, 2),
    "wrn-28-10": Case(WideResNet28x10(classes=100), recipes.WIDE_RESNET, (8, 8, 3), 2, 1),
    "forecaster": Case(Forecaster(), recipes.FORECASTER, (9,), 5, 3),
}


def digest(name: str, wrap=repjax.reproducible) -> str:
    """The digest of the losses and of the state after the steps of a case.

    The batch is split over all devices, if it can be.
    """
    case = CASES[name]
    program = recipes.program(case.model, case.recipe, steps_per_epoch=1)
    initialize, step = map(wrap, (program.initialize, program.step))
    inputs = values((case.steps, case.batch, *case.shape), 1)
    if case.recipe.loss is recipes.cross_entropy:
        targets = labels((case.steps, case.batch), 10, 2)
    else:
        targets = values((case.steps, case.batch), 2)
    state, losses = initialize(jax.random.key(3), inputs[0, :1]), []
    for batch in zip(*map(_placed, (inputs, targets)), strict=True):
        state, loss = step(state, jax.random.key(4), *batch)
        losses.append(loss)
    return repjax.digest({"state": state, "losses": losses})


def _placed(batches: np.ndarray) -> list[jax.Array]:
    count = jax.device_count()
    while batches.shape[1] % count:
        count -= 1
    auto = (jax.sharding.AxisType.Auto,)
    mesh = jax.make_mesh((count,), ("i",), axis_types=auto, devices=jax.devices()[:count])
    sharding = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec("i"))
    return [jax.device_put(x, sharding) for x in batches]


def golden(name: str) -> str:
    """The digest that a case must have."""
    return golden_files.digests(GOLDENS)[name]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("names", nargs="*", help="networks; all without it")
    parser.add_argument("--write", action="store_true", help=f"write {GOLDENS.name}")
    arguments = parser.parse_args()
    digests = {name: digest(name) for name in arguments.names or CASES}
    if arguments.write:
        before = json.loads(GOLDENS.read_text())["digests"] if GOLDENS.exists() else {}
        after = {"contract": repjax.CONTRACT_VERSION, "digests": {**before, **digests}}
        GOLDENS.write_text(json.dumps(after, indent=2) + "\n")
    print(json.dumps(digests, indent=2))


if __name__ == "__main__":
    main()
