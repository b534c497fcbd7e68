"""The order ``exact``: time against plain JAX, and error beside the other orders.

    python benchmarks/exact.py [--quick] [--output benchmarks/results/exact]

Products, sums and training steps in plain JAX, in repjax's default orders and in the order
``exact``, in turns; the figures are the minima.  The errors are those of one product of 256 x 1024
by 1024 x 256, in units in the last place of the exact result, and the share of elements that are
not the nearest number.  With --output, writes OUTPUT.md and OUTPUT.json.
"""

from __future__ import annotations

import argparse
import math
import pathlib
import time

import jax
import numpy as np
import optax
from cpu import environment, values
from training import HIGHEST, networks, precision

import repjax
from repjax.primitives.core.interpret import interpret_closed
from repjax.primitives.core.tables import Context
from repjax.verify import conformance

#: Of the ways, the orders of sums and of products; plain JAX has none.
WAYS = {
    "plain": None,
    "default": ("pairwise", "sequential"),
    "exact": ("exact", "exact"),
}


def products(sizes):
    for n in sizes:
        yield f"product {n}x{n}x{n}", lambda a, b: a @ b, (values((n, n)), values((n, n), 1))
    n = sizes[0]
    bfloat16 = [values((n, n), seed).astype("bfloat16").astype("float32") for seed in range(2)]
    yield f"product {n}x{n}x{n}, numbers of bfloat16", lambda a, b: a @ b, bfloat16
    centred = values((n, n))
    centred = centred - centred.mean(1, keepdims=True)
    nearly_constant = 1 + values((n, n), 1) * 2.0**-20
    yield f"product {n}x{n}x{n} that cancels", lambda a, b: a @ b, (centred, nearly_constant)


def sums():
    x = values((1 << 22,))
    yield "sum of 4 M", lambda x: x.sum()[None], (x,)
    y = x.reshape(4096, 1024)
    yield "sums of rows 4096x1024", lambda x: x.sum(1), (y,)
    yield "sums of columns 4096x1024", lambda x: x.sum(0), (y,)
    yield "cumulative sums of 4 M", lambda x: x.cumsum(), (x,)
    yield "cumulative sums of rows 4096x1024", lambda x: x.cumsum(1), (y,)
    yield "cumulative sums of columns 4096x1024", lambda x: x.cumsum(0), (y,)


def steps(quick: bool):
    """Training steps: parameters, state, and a batch."""
    for name, network in networks(quick).items():
        optimizer = optax.adam(3e-3)
        x, labels = next(network.batches(0))
        params = {"params": network.model.init(jax.random.key(0), x)["params"]}

        def step(params, state, x, labels, network=network, optimizer=optimizer):
            def loss(params):
                logits = network.model.apply(params, x)
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

            value, gradient = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, value

        yield f"step of {name}", step, (params, optimizer.init(params), x, labels)


def compiled(function, args, orders):
    """The function in one way; of a product or a sum without the entry and exit of a program."""
    if orders is None:
        return jax.jit(function).lower(*args).compile()
    accumulation, contraction = orders
    options = {"accumulation": accumulation, "contraction": contraction}
    if len(args) > 2 or len(args) == 1:  # a step, or a sum, which the entry is a part of
        return repjax.reproducible(function, **options)
    jaxpr = jax.make_jaxpr(function)(*args)

    def program(*args):
        return interpret_closed(Context(**options), jaxpr, args)

    return jax.jit(program).lower(*args).compile()


def measure(function, args, seconds: float) -> dict[str, float]:
    programs = {way: compiled(function, args, orders) for way, orders in WAYS.items()}
    best = dict.fromkeys(programs, float("inf"))
    for program in programs.values():
        jax.block_until_ready(program(*args))
    deadline = time.perf_counter() + seconds
    while time.perf_counter() < deadline:
        for way, program in programs.items():  # in turns, each after a call that fills the caches
            for _ in range(2):
                start = time.perf_counter()
                jax.block_until_ready(program(*args))
                taken = time.perf_counter() - start
            best[way] = min(best[way], taken)
    return best


# --- accuracy ---------------------------------------------------------------------------


def operands() -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Of 256 x 1024 by 1024 x 256."""
    rng = np.random.default_rng(0)
    shapes = (256, 1024), (1024, 256)

    def normal():
        return [rng.standard_normal(shape) for shape in shapes]

    a, b = normal()
    tails = [x * np.exp2(8 * y) for x, y in zip(normal(), normal(), strict=True)]
    weights = np.exp(4 * rng.standard_normal(shapes[0]))
    found = {
        "Gaussian": normal(),
        "uniform from 0 to 1": [rng.random(shape) for shape in shapes],
        "heavy tails": tails,
        "ReLU activations": (np.maximum(a, 0), b),
        "softmax rows": (weights / weights.sum(1, keepdims=True), b),
        "mean zero, nearly constant": (a - a.mean(1, keepdims=True), 1 + b * 2.0**-20),
    }
    return {name: tuple(x.astype(np.float32) for x in pair) for name, pair in found.items()}


def errors(a, b) -> dict[str, tuple[float, float]]:
    """Of each order the largest error in units in the last place, and the share of wrong ones."""
    columns = b.T.astype(np.float64)
    right = np.array([[math.fsum(row * c) for c in columns] for row in a.astype(np.float64)])
    _, exponent = np.frexp(right)
    ulps = np.ldexp(1.0, np.maximum(exponent, -125) - 24)
    found = {}
    orders = ["plain", "sequential", "order_independent", "order_independent" + HIGHEST, "exact"]
    for order in orders:
        if order == "plain":
            product = jax.jit(lambda a, b: jax.numpy.matmul(a, b, precision="highest"))
        else:
            with precision(order):
                name = order.removesuffix(HIGHEST)
                product = repjax.reproducible(lambda a, b: a @ b, contraction=name)
                product(a, b)
        with precision(order):
            result = np.asarray(product(a, b))
        error = np.abs(result.astype(np.float64) - right) / ulps
        wrong = result != right.astype(np.float32)
        found[order] = float(error.max()), float(wrong.mean())
    return found


def report(times, accuracy, info) -> str:
    lines = ["# Exact products and sums", ""]
    lines += [f"{key}: {value}  " for key, value in info.items() if value]
    lines += [
        "",
        "| case | plain, ms | default orders, ms | exact, ms | default / plain | exact / plain |",
    ]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for name, best in times.items():
        plain, default, exact = (best[way] for way in WAYS)
        lines.append(
            f"| {name} | {plain * 1e3:.3f} | {default * 1e3:.3f} | {exact * 1e3:.3f} "
            f"| {default / plain:.2f} | {exact / plain:.2f} |"
        )
    lines += [
        "",
        "The largest error, in units in the last place of the exact result, and the share of",
    ]
    lines += ["elements that are not the nearest number, of a product of 256x1024 by 1024x256.", ""]
    if accuracy:
        orders = list(next(iter(accuracy.values())))
        lines += [f"| data | {' | '.join(orders)} |", "|---|" + "---:|" * len(orders)]
        for name, row in accuracy.items():
            shown = (f"{ulps:.3g}, {100 * share:.3g} %" for ulps, share in row.values())
            lines.append(f"| {name} | {' | '.join(shown)} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, little time")
    parser.add_argument("--output", type=pathlib.Path, help="write OUTPUT.md and OUTPUT.json")
    arguments = parser.parse_args()
    sizes, seconds = ((64,), 0.1) if arguments.quick else ((512, 1024, 2048), 3)
    times = {}
    for cases in (products(sizes), sums(), steps(arguments.quick)):
        for name, function, args in cases:
            times[name] = measure(function, args, seconds)
            print(name, times[name], flush=True)
    accuracy = {}
    for name, pair in operands().items():
        accuracy[name] = errors(*(x[:8] if arguments.quick else x for x in pair[:1]), pair[1])
        print(name, accuracy[name], flush=True)
    info = {**environment(), "products": repjax.info()["cpu products"]}
    text = report(times, accuracy, info)
    print("\n" + text)
    if arguments.output:
        data = {"environment": info, "times": times, "accuracy": accuracy}
        conformance.write(arguments.output, data, text)


if __name__ == "__main__":
    main()
