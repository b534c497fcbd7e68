"""repjax beside PyTorch, plain JAX and RepDL: times of the same work, taken in turns.

    python benchmarks/pytorch.py [--quick] [--only PATTERN] [--output benchmarks/results/pytorch]

PyTorch computes with ``torch.use_deterministic_algorithms(True)``, which promises the same bits on
the same machine only, and as many threads as there are cores.  If RepDL is installed
(https://github.com/microsoft/RepDL), its times stand beside; ``repjax.repdl`` has its bits.
Inputs have the same shapes everywhere, and a case the same layers, losses and optimizer.

Every way of a case is called in turns in one process; the figures are the smallest times.  Prints
a table and, with --output, writes OUTPUT.md and OUTPUT.json.

Exit status: 0; 2 if PyTorch is missing, or no case has such a name.
"""

from __future__ import annotations

import argparse
import functools
import importlib.metadata
import importlib.util
import itertools
import pathlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import speed_programs
import tables
from cpu import Transformer, environment, values
from jax import lax
from speed import OtherWork, seconds, smallest

import repjax
from repjax import repdl
from repjax.models import LeNet5
from repjax.verify import conformance

HAS_TORCH, HAS_REPDL = (importlib.util.find_spec(name) is not None for name in ("torch", "repdl"))
if HAS_TORCH:
    import torch
    from torch import nn
    from torch.nn import functional
if HAS_REPDL:
    import repdl as original  # by Microsoft

#: The ways to compute, in the order of the table; those of JAX with the orders of their sums and
#: products, plain JAX without.
ORDERS = {
    "plain JAX": None,
    "repjax": {},
    "order_independent": {
        "accumulation": "order_independent",
        "contraction": "order_independent",
    },
    "sequential": {"accumulation": "sequential", "contraction": "sequential"},
}
TORCH, REPDL, IN_JAX = "PyTorch", "RepDL", "repjax.repdl"
WAYS = (TORCH, "plain JAX", "repjax", "order_independent", "sequential", REPDL, IN_JAX)
LONGEST = 8.0  # seconds of a case

Calls = dict[str, Callable[[], Any]]  # by the way


# --- the ways -------------------------------------------------------------------------------


def in_jax(function: Callable, *arguments: Any, ways: tuple[str, ...] = tuple(ORDERS)[:3]) -> Calls:
    """In plain JAX and orders of repjax."""

    def compiled(way: str) -> Callable:
        orders = ORDERS[way]
        return jax.jit(function) if orders is None else repjax.reproducible(function, **orders)

    return {way: functools.partial(compiled(way), *arguments) for way in ways}


def of_arrays(
    shapes: list[tuple[int, ...]],
    in_torch: Callable,
    function: Callable,
    in_repdl: str | None = None,
    **options: Any,
) -> Calls:
    """A function of arrays of these shapes, whose numbers are not negative.

    ``in_repdl`` is the name that it has in ``repdl.ops``, if any; ``options`` are of in_jax.
    """
    arrays = [jnp.abs(values(shape, seed)) for seed, shape in enumerate(shapes)]
    calls = in_jax(function, *arrays, **options)
    if not HAS_TORCH:
        return calls
    tensors = [torch.tensor(np.asarray(x)) for x in arrays]
    calls[TORCH] = functools.partial(in_torch, *tensors)
    if in_repdl and HAS_REPDL:
        calls[REPDL] = functools.partial(getattr(original.ops, in_repdl), *tensors)
    return calls


def trained_in_torch(network: Any, adam: Any, loss: Any, batch: Any, labels: Any) -> Callable:
    """A step of Adam, in place."""
    optimizer = adam(network.parameters(), lr=1e-3)

    def step():
        with torch.enable_grad():
            optimizer.zero_grad()
            value = loss(network(batch), labels)
            value.backward()
        optimizer.step()
        return value

    return step


def steps_in_torch(
    make: Callable[[], Any], batch: Any, labels: np.ndarray, in_repdl: bool = True
) -> Calls:
    """A step of PyTorch and, unless it lacks a layer, of RepDL, of a network from ``make``."""
    if not HAS_TORCH:
        return {}
    torch.manual_seed(0)
    data = torch.tensor(np.asarray(batch)), torch.tensor(np.asarray(labels), dtype=torch.long)
    calls = {TORCH: trained_in_torch(make(), torch.optim.Adam, nn.CrossEntropyLoss(), *data)}
    if in_repdl and HAS_REPDL:
        network, loss = original.from_torch_module(make()), original.nn.CrossEntropyLoss()
        calls[REPDL] = trained_in_torch(network, original.optim.Adam, loss, *data)
    return calls


def step_of_repdl(apply: Callable, params: Any, batch: Any, labels: Any) -> Calls:
    """A step of ``repjax.repdl``: ``apply(params, batch)`` are the logits."""

    def loss(params, batch, labels):
        return repdl.cross_entropy(apply(params, batch), labels)

    optimizer = repdl.adam(1e-3)
    return of_repdl(speed_programs.training(loss, params, batch, labels, optimizer=optimizer))


def of_repdl(program: speed_programs.Program) -> Calls:
    """A program of ``repjax.repdl``."""
    function, arguments = program
    return {IN_JAX: functools.partial(repjax.reproducible(function), *arguments)}


def dense(params: Any, x: Any) -> Any:
    """Dense layers of ``repjax.repdl`` with ReLU between them."""
    *hidden, last = params
    for layer in hidden:
        x = repdl.relu(repdl.linear(x, *layer))
    return repdl.linear(x, *last)


# --- the cases ------------------------------------------------------------------------------


def product(n: int) -> Calls:
    return of_arrays([(n, n)] * 2, lambda a, b: a @ b, lax.dot, "mm")


def turned_product(n: int) -> Calls:
    return of_arrays([(n, n)] * 2, lambda x, w: functional.linear(x, w), lambda x, w: x @ w.T)


def total(size: int) -> Calls:
    return of_arrays([(size,)], lambda x: x.sum(), jnp.sum, "sum1d", ways=tuple(ORDERS))


def gelu(x: Any) -> Any:
    """By tanh, as it is by default in JAX and Flax."""
    return functional.gelu(x, approximate="tanh")


def elementwise(name: str, size: int) -> Calls:
    def in_torch(x):
        return gelu(x) if name == "gelu" else getattr(torch, name)(x)

    return of_arrays([(size,)], in_torch, jax.nn.gelu if name == "gelu" else getattr(jnp, name))


def softmax(rows: int) -> Calls:
    def in_torch(x):
        return functional.softmax(x, 1)

    return of_arrays([(rows, 1024)], in_torch, jax.nn.softmax, "softmax")


def layer_norm(rows: int) -> Calls:
    def in_torch(x):
        return functional.layer_norm(x, (1024,))

    return of_arrays([(rows, 1024)], in_torch, functools.partial(jax.nn.standardize, epsilon=1e-5))


def attention(length: int) -> Calls:
    def in_torch(q, k, v):
        return functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    def function(q, k, v):  # JAX has the heads behind the positions
        return jax.nn.dot_product_attention(q, k, v, is_causal=True)

    calls = in_jax(function, *(values((4, length, 8, 64), seed) for seed in range(3)))
    if HAS_TORCH:
        tensors = [torch.tensor(np.asarray(values((4, 8, length, 64), s))) for s in range(3)]
        calls[TORCH] = functools.partial(in_torch, *tensors)
    return calls


def convolution(size: int) -> Calls:
    """Of 16 images with 64 features and 3 x 3 positions, each library in its own layout."""
    numbers = ("NHWC", "HWIO", "NHWC")

    def function(x, w):
        return lax.conv_general_dilated(x, w, (1, 1), "SAME", dimension_numbers=numbers)

    calls = in_jax(function, values((16, size, size, 64)), values((3, 3, 64, 64), 1))
    if HAS_TORCH:
        x, w = values((16, 64, size, size)), values((64, 64, 3, 3), 1)
        tensors = [torch.tensor(np.asarray(x)) for x in (x, w)]
        calls[TORCH] = functools.partial(functional.conv2d, *tensors, padding=1)
    return calls


_SIZES = (784, 1000, 1000, 10)  # of the perceptron


def _perceptron_in_torch() -> Any:
    layers = []
    for inputs, outputs in itertools.pairwise(_SIZES):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def perceptron() -> Calls:
    step, arguments = speed_programs.perceptron()
    *_, batch, labels = arguments
    generator = repdl.Generator(0)
    params = [repdl.init_linear(generator, *sizes) for sizes in itertools.pairwise(_SIZES)]
    calls = in_jax(step, *arguments) | step_of_repdl(dense, params, batch, labels)
    return calls | steps_in_torch(_perceptron_in_torch, batch, labels)


def adam() -> Calls:
    """Adam alone, on the parameters of that perceptron."""
    update, arguments = speed_programs.adam()
    calls = in_jax(update, *arguments) | of_repdl(speed_programs.adam(repdl.adam(1e-3)))

    def in_torch(make):
        network = _perceptron_in_torch()
        for parameter in network.parameters():
            parameter.grad = 1e-3 * parameter.detach()
        return make(network.parameters(), lr=1e-3).step

    if HAS_TORCH:
        calls[TORCH] = in_torch(torch.optim.Adam)
    if HAS_TORCH and HAS_REPDL:
        calls[REPDL] = in_torch(original.optim.Adam)
    return calls


def lenet() -> Calls:
    labels = speed_programs.labels_of(64)
    model = LeNet5(activation="relu", pool="max")
    step, arguments = speed_programs.classified(model, values((64, 32, 32, 1)), labels)
    images = values((64, 1, 32, 32))
    generator = repdl.Generator(0)
    params = {
        "conv": [repdl.init_conv2d(generator, *size, (5, 5)) for size in ((1, 6), (6, 16))],
        "linear": [
            repdl.init_linear(generator, *size) for size in ((400, 120), (120, 84), (84, 10))
        ],
    }

    def apply(params, x):
        for layer in params["conv"]:
            x = repdl.relu(repdl.conv2d(x, *layer))
            x = repdl.max_pool2d(x, 2)
        return dense(params["linear"], x.reshape(len(x), -1))

    def make():
        return nn.Sequential(
            *(nn.Conv2d(1, 6, 5), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
            *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
        )

    calls = in_jax(step, *arguments) | step_of_repdl(apply, params, images, labels)
    return calls | steps_in_torch(make, images, labels)


def transformer(length: int) -> Calls:
    """4 blocks of 256 features and 4 heads, 8 texts of ``length`` tokens out of 100."""
    tokens = np.arange(8 * length, dtype=np.int32).reshape(8, length) * 31 % 100
    step, arguments = speed_programs.classified(Transformer(features=256), tokens, tokens)

    def make():
        class Network(nn.Module):
            def __init__(self):
                super().__init__()
                self.embed = nn.Embedding(100, 256)
                self.blocks = nn.ModuleList(
                    nn.TransformerEncoderLayer(
                        256, 4, 1024, 0.0, gelu, batch_first=True, norm_first=True
                    )
                    for _ in range(4)
                )
                self.norm, self.out = nn.LayerNorm(256), nn.Linear(256, 100)

            def forward(self, tokens):
                x = self.embed(tokens)
                for block in self.blocks:
                    x = block(x)
                return self.out(self.norm(x)).transpose(1, 2)  # classes first for the loss

        return Network()

    return in_jax(step, *arguments) | steps_in_torch(make, tokens, tokens, in_repdl=False)


def cases(quick: bool = False) -> dict[str, Callable[[], Calls]]:
    """What makes the calls of each case, by its name; ``quick``: smaller ones."""
    few, n, rows = (32 if quick else 1), *((64, 16) if quick else (1024, 4096))
    size = (1 << 20) // few
    named: dict[str, Callable[[], Calls]] = {}
    for size_of_product in (n // 4, n // 2, n):
        named[f"product {size_of_product}"] = functools.partial(product, size_of_product)
    named[f"x @ w.T, {n}"] = functools.partial(turned_product, n)
    named[f"sum of {4 * size:,}"] = functools.partial(total, 4 * size)
    for name in ("exp", "log", "tanh", "gelu"):
        named[f"{name} of {size:,}"] = functools.partial(elementwise, name, size)
    named[f"softmax {rows} x 1024"] = functools.partial(softmax, rows)
    named[f"layer norm {rows} x 1024"] = functools.partial(layer_norm, rows)
    length = 16 if quick else 256
    named[f"causal attention 4 x {length} x 8 x 64"] = functools.partial(attention, length)
    edge = 8 if quick else 32
    named[f"convolution 16 x {edge} x {edge} x 64, 3 x 3"] = functools.partial(convolution, edge)
    named["LeNet-5 training step, batch 64, Adam"] = lenet
    named["784-1000-1000-10 training step, batch 256, Adam"] = perceptron
    named["Adam alone, 784-1000-1000-10"] = adam
    length //= 2
    named[f"transformer training step, 4 x 256, 8 x {length} tokens"] = functools.partial(
        transformer, length
    )
    return named


# --- measuring ------------------------------------------------------------------------------


def measure(calls: Calls, longest: float) -> dict[str, float]:
    """The smallest times, in seconds, of calls in turns."""
    for call in calls.values():
        seconds(call)  # compiles
    best, _ = smallest([*calls.values()], time.perf_counter() + longest)
    return dict(zip(calls, best, strict=True))


def rows_of(chosen: dict[str, Callable[[], Calls]], longest: float) -> Iterator[dict[str, Any]]:
    for name, make in chosen.items():
        yield {"case": name, **measure(make(), longest)}
        jax.clear_caches()


def page(rows: list[dict[str, Any]], info: dict[str, str]) -> str:
    """The table, as :mod:`tables` reads it."""
    lines = ["# Beside PyTorch", ""]
    lines += [f"{key}: {value}  " for key, value in info.items() if value]
    ways = [way for way in WAYS if any(way in row for row in rows)]
    shown = [
        [row["case"], *(f"{row[way] * 1e3:.3f}" if way in row else "" for way in ways)]
        for row in rows
    ]
    lines += ["", "Milliseconds.", "", tables.table(["case", *ways], shown)]
    return "\n".join(lines) + "\n"


def information() -> dict[str, str]:
    info = {**environment(), "products": repjax.info()["cpu products"]}
    info["torch"] = f"{torch.__version__}, {torch.get_num_threads()} threads"
    if HAS_REPDL:
        info["RepDL"] = importlib.metadata.version("repdl")
    return info


def main(options: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, short turns")
    parser.add_argument("--only", nargs="+", default=[""], metavar="PATTERN", help="cases whose "
        "names have one of these regular expressions")  # fmt: skip
    parser.add_argument("--output", type=pathlib.Path, help="write OUTPUT.md and OUTPUT.json")
    arguments = parser.parse_args(options)
    if not HAS_TORCH:
        print("pytorch.py: expected PyTorch, received none; `pip install torch`", file=sys.stderr)
        return 2
    chosen = {
        name: make
        for name, make in cases(arguments.quick).items()
        if any(re.search(pattern, name) for pattern in arguments.only)
    }
    if not chosen:
        names = "\n".join(["expected a part of a case's name; there are", *cases(arguments.quick)])
        print(f"pytorch.py: {names}", file=sys.stderr)
        return 2
    torch.use_deterministic_algorithms(True)
    torch.set_grad_enabled(False)
    rows, watch = [], OtherWork()
    for row in rows_of(chosen, 0.0 if arguments.quick else LONGEST):
        rows.append(row)
        print(row["case"], {k: f"{v * 1e3:.3f}" for k, v in row.items() if k != "case"}, flush=True)
    info = {**information(), "other work": watch.cores()}
    print("\n" + page(rows, info))
    if arguments.output:
        conformance.write(arguments.output, {"environment": info, "rows": rows}, page(rows, info))
    return 0


if __name__ == "__main__":
    sys.exit(main())
