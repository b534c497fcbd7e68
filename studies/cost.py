"""What repjax costs in the training of the literature's networks, beside what the papers report.

    python studies/cost.py --output studies/results/cost.json

Each network takes steps of its recipe (``models/recipes.py``), in plain JAX and in repjax by turns,
in one process; the time of a step is the least of all turns, so that both had the machine at its
quietest.  The batches are in the results: those of the larger networks are smaller than their
recipe's.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import sys
import time
from typing import Any

import jax
import numpy as np
import optax

import repjax
from repjax.checkpoint import replacing
from repjax.models import GraphSAGE, recipes
from repjax.verify.progress import counter

FORMAT, VERSION = "repjax study of cost", 1
#: The batch of each network, and how many turns are measured at most.
CASES = {
    "lenet1": (128, 20),
    "lenet4": (128, 20),
    "lenet5": (128, 20),
    "forecaster": (32, 20),
    "graphsage": (140, 20),
    "resnet38": (32, 5),
    "resnet56": (32, 5),
    "wrn-28-10": (4, 3),
}
#: Seconds of measuring after which a network has no further turn.
ENOUGH = 20.0
QUICK = ("lenet1", "forecaster")


def published(name: str, batch: int) -> tuple[recipes.Program, tuple[Any, ...]]:
    """The program of a network of ``studies/trainings.py``, and inputs and targets of a step."""
    import trainings

    network = trainings.NETWORKS[name]()
    recipe = dataclasses.replace(network.recipe, batch=batch)
    rng = np.random.default_rng(0)
    if network.size:
        channels = 1 if name.startswith("lenet") else 3
        shape: tuple[int, ...] = (network.size, network.size, channels)
        targets = np.arange(batch, dtype=np.int32) % 10
    else:
        shape, targets = (trainings.WINDOW,), rng.normal(size=batch).astype(np.float32)
    inputs = rng.uniform(-1, 1, (batch, *shape)).astype(np.float32)
    return recipes.program(network.model, recipe, 1), (inputs, targets)


def graphsage(batch: int) -> tuple[recipes.Program, tuple[Any, ...]]:
    """GraphSAGE with Adam on a random graph of Cora's size: papers, links, words of a paper."""
    rng = np.random.default_rng(0)
    features = (rng.random((2708, 1433)) < 0.0127).astype(np.float32)
    links = rng.integers(0, 2708, (5278, 2)).astype(np.int32)
    edges = np.concatenate([links, links[:, ::-1]]).T.copy()
    labels, model, optimizer = np.arange(batch, dtype=np.int32) % 7, GraphSAGE(), optax.adam(0.01)

    def initialize(key, inputs):
        params = model.init(key, inputs, edges)
        return {"params": params, "optimizer": optimizer.init(params)}

    def step(state, key, inputs, targets):
        def loss(params):
            logits = model.apply(params, inputs, edges, True, rngs={"dropout": key})
            return recipes.cross_entropy(logits[:batch], targets)

        value, gradients = jax.value_and_grad(loss)(state["params"])
        updates, rest = optimizer.update(gradients, state["optimizer"], state["params"])
        return {"params": optax.apply_updates(state["params"], updates), "optimizer": rest}, value

    return recipes.Program(initialize, step, model.apply), (features, labels)


def measure(name: str, batch: int, turns: int) -> dict[str, Any]:
    """The seconds of a step in each way, and of the first call, which compiles."""
    made = graphsage(batch) if name == "graphsage" else published(name, batch)
    program, (inputs, targets) = made
    key = jax.random.key(0)
    states, first, best, steps = {}, {}, {}, {}
    for way, wrap in (("plain", jax.jit), ("repjax", repjax.reproducible)):
        initialize, steps[way] = wrap(program.initialize), wrap(program.step)
        start = time.perf_counter()
        states[way] = jax.block_until_ready(initialize(key, inputs))
        jax.block_until_ready(steps[way](states[way], key, inputs, targets))
        first[way] = time.perf_counter() - start
    begun, taken = time.perf_counter(), 0
    while taken < turns and (taken < 2 or time.perf_counter() - begun < ENOUGH):
        for way, step in steps.items():
            start = time.perf_counter()
            states[way], _ = jax.block_until_ready(step(states[way], key, inputs, targets))
            best[way] = min(best.get(way, np.inf), time.perf_counter() - start)
        taken += 1
    sizes = [x.size for x in jax.tree.leaves(states["plain"]["params"])]
    return {
        "parameters": int(sum(sizes)),
        "batch": batch,
        "turns": taken,
        "step": best,
        "first call": first,
        "ratio": best["repjax"] / best["plain"],
    }


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(
        description="Measure a training step of each network in plain JAX and in repjax.",
        epilog="example: python studies/cost.py --networks lenet5 --output /tmp/cost.json",
    )
    add = parser.add_argument
    add("--networks", nargs="+", choices=CASES, default=[*CASES], help="all without it")
    add("--output", type=pathlib.Path, metavar="FILE.json", help="write the results")
    add("--note", default="", help="what a reader of the results should know")
    add("--quick", action="store_true", help=f"{' and '.join(QUICK)}, two turns")
    options = parser.parse_args(argv)
    if options.output and not options.output.absolute().parent.is_dir():
        received = f"received {options.output}; create its folder"
        print(f"cost.py: expected a folder for --output, {received}", file=sys.stderr)
        return 2
    names = QUICK if options.quick else options.networks
    load, rows = os.getloadavg()[0], {}
    with counter("networks") as progress:
        for done, name in enumerate(names, 1):
            batch, turns = CASES[name]
            rows[name] = measure(name, batch, 2 if options.quick else turns)
            times = ", ".join(f"{way} {s * 1e3:.2f} ms" for way, s in rows[name]["step"].items())
            print(f"{name}: {times}, ratio {rows[name]['ratio']:.2f}", flush=True)
            progress(done)
    about = {
        "format": FORMAT,
        "version": VERSION,
        "date": time.strftime("%Y-%m-%d"),
        "note": options.note,
        "load before": round(load, 1),
        "cores": os.cpu_count(),
        **{name: repjax.info()[name] for name in ("jax", "cpu products")},
    }
    if options.output:
        with replacing(options.output) as file:
            file.write(json.dumps({**about, "networks": rows}, indent=1).encode() + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
