"""How long training steps take on several devices, as a ratio to plain JAX in the same run.

    python benchmarks/devices.py [--devices 2 8] [--output benchmarks/results/NAME]

The devices are parts of the CPU, which all of them compute on, so that what counts are the ratios.
Each has a part of the batch: ``jit`` of arrays that are sharded, and ``shard_map``, where each
computes its part's gradients, whose mean is taken.  The memory is that of one device: arguments,
results and what is kept in between.  Prints Markdown tables and, with --output, writes NAME.md and
NAME.json.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys

import cpu
import flax.linen
import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec as P

import repjax
from repjax.models import LeNet5
from repjax.verify import conformance


class Perceptron(flax.linen.Module):
    """Layers of 4.2 million parameters: so many that copies of their gradients count."""

    layers: int = 4
    features: int = 2048

    @flax.linen.compact
    def __call__(self, x):
        for _ in range(self.layers):
            x = flax.linen.relu(flax.linen.Dense(self.features)(x))
        return x


def networks():
    tokens = np.arange(16 * 64, dtype=np.int32).reshape(16, 64) * 31 % 100
    yield "LeNet-5", LeNet5(layers=flax.linen), cpu.values((64, 32, 32, 1)), np.arange(64) % 10
    yield "transformer", cpu.Transformer(features=128), tokens, tokens
    yield "ResNet", cpu.ResNet(features=32), cpu.values((16, 16, 16, 3)), np.arange(16) % 10
    yield "perceptron, 17 M", Perceptron(), cpu.values((128, 2048)), np.arange(128) * 16


def cases(mesh):
    optimizer = optax.adam(1e-3)
    for name, model, inputs, labels in networks():

        def gradients(variables, inputs, labels, model=model):
            def loss(variables):
                outputs, _ = model.apply(variables, inputs, mutable=["batch_stats"])
                return optax.softmax_cross_entropy_with_integer_labels(outputs, labels).mean()

            return jax.value_and_grad(loss)(variables)

        def step(variables, state, inputs, labels, axis=None, gradients=gradients):
            results = gradients(variables, inputs, labels)
            loss, gradient = jax.lax.pmean(results, axis) if axis else results
            updates, state = optimizer.update(gradient, state, variables)
            return optax.apply_updates(variables, updates), state, loss

        mapped = jax.shard_map(
            lambda *args, step=step: step(*args, axis="batch"),
            mesh=mesh,
            in_specs=(P(), P(), P("batch"), P("batch")),
            out_specs=P(),
            check_vma=False,
        )
        variables = jax.jit(model.init)(jax.random.key(0), inputs)
        whole = jax.device_put((variables, optimizer.init(variables)), jax.NamedSharding(mesh, P()))
        parts = (inputs, labels.astype(np.int32))
        arguments = *whole, *jax.device_put(parts, jax.NamedSharding(mesh, P("batch")))
        for way, function in (("jit", step), ("shard_map", mapped)):
            yield f"{name}, {mesh.size} devices, {way}", function, arguments


def memory(function, arguments) -> int:
    """The bytes of a device that a call needs."""
    needs = function.lower(*arguments).compile().memory_analysis()
    whole = needs.argument_size_in_bytes + needs.output_size_in_bytes + needs.temp_size_in_bytes
    return whole - needs.alias_size_in_bytes


def run() -> None:
    """Measure on the devices that there are; a line of JSON for each case."""
    mesh = jax.make_mesh(
        (jax.device_count(),), ("batch",), axis_types=(jax.sharding.AxisType.Auto,)
    )
    for name, function, arguments in cases(mesh):
        row = cpu.measure(function, arguments, 20)
        row["plain_bytes"] = memory(jax.jit(function), arguments)
        row["repjax_bytes"] = memory(repjax.reproducible(function), arguments)
        print(json.dumps([name, row]), flush=True)


def table(rows, info) -> str:
    lines = ["", "| case | plain, MB of a device | repjax, MB | ratio |", "|---|---:|---:|---:|"]
    for name, row in rows.items():
        plain, ours = row["plain_bytes"], row["repjax_bytes"]
        lines.append(f"| {name} | {plain / 1e6:.1f} | {ours / 1e6:.1f} | {ours / plain:.2f} |")
    return cpu.table(rows, info) + "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--devices", type=int, nargs="+", default=[2, 8], help="how many, in turn")
    parser.add_argument("--run", action="store_true", help="on the devices that there are")
    parser.add_argument("--output", type=pathlib.Path, help="write OUTPUT.md and OUTPUT.json")
    arguments = parser.parse_args()
    if arguments.run:
        return run()
    rows = {}
    for count in arguments.devices:
        flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={count}"
        command = [sys.executable, __file__, "--run"]
        environment = {**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"}
        process = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=True)
        rows |= dict(json.loads(line) for line in process.stdout.splitlines())
    info = cpu.environment()
    print(table(rows, info))
    if arguments.output:
        report = {"environment": info, "cases": rows}
        conformance.write(arguments.output, report, table(rows, info))
    return None


if __name__ == "__main__":
    main()
