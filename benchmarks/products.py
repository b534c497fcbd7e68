"""Matrix products and convolutions: time against plain JAX, and error against the exact result.

    python benchmarks/products.py [--quick] [--output benchmarks/results/products]

Of each case plain JAX, repjax ``sequential`` and repjax ``order_independent``, with and without
``precision=HIGHEST``, are run in turns; the figures are the minima.  The errors are those of one
product of 256 x 1024 by 1024 x 256, relative to the sum of the absolute values of its terms, in
units of 2**-24; for comparison also with inputs rounded to 11 bits (TF32) or to bfloat16, and of
the float64 product rounded to float32.  With --output, writes OUTPUT.md, .json and .png, with
time against size, for which matplotlib must be installed.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import time

import jax
import numpy as np
import optax
from cpu import environment, values
from jax import lax
from training import HIGHEST, WAYS, networks, precision, trainer

import repjax
from repjax.primitives.core.interpret import interpret_closed
from repjax.primitives.core.tables import Context
from repjax.verify import conformance

SQUARES = (64, 128, 256, 512, 1024, 2048)


def dots(sizes):
    for n in sizes:
        yield f"dot {n}x{n}x{n}", lax.dot, (values((n, n)), values((n, n), 1))
    for m, k, n in ((256, 784, 1000), (64, 784, 512), (128, 512, 128), (64, 400, 120)):
        x, w, g = values((m, k)), values((k, n), 1), values((m, n), 2)
        yield f"dot {m}x{k}x{n}", lax.dot, (x, w)
        yield "its left gradient", lambda g, w: g @ w.T, (g, w)
        yield "its right gradient", lambda x, g: x.T @ g, (x, g)
    q, k = values((4, 8, 128, 64)), values((4, 8, 128, 64), 1)
    yield "attention scores 4x8x[128x64x128]", lambda q, k: q @ k.swapaxes(2, 3), (q, k)
    p = values((4, 8, 128, 128))
    yield "attention values 4x8x[128x128x64]", lambda p, v: p @ v, (p, k)


def convolutions():
    shapes = {
        "ResNet 32x32x32x3, 3x3x16": ((32, 32, 32, 3), (3, 3, 3, 16), 1),
        "ResNet 32x32x32x16, 3x3x16": ((32, 32, 32, 16), (3, 3, 16, 16), 1),
        "ResNet 32x16x16x32, 3x3x64, stride 2": ((32, 16, 16, 32), (3, 3, 32, 64), 2),
        "ResNet 16x16x16x64, 3x3x64": ((16, 16, 16, 64), (3, 3, 64, 64), 1),
        "1x1 32x16x16x32, 1x1x64, stride 2": ((32, 16, 16, 32), (1, 1, 32, 64), 2),
        "LeNet 64x14x14x6, 5x5x16": ((64, 14, 14, 6), (5, 5, 6, 16), 1),
    }
    for name, (images, kernel, stride) in shapes.items():

        def convolve(x, w, stride=stride):
            return lax.conv_general_dilated(
                x, w, (stride, stride), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
            )

        x, w = values(images), values(kernel, 1)
        g = values(jax.eval_shape(convolve, x, w).shape, 2)
        yield name, convolve, (x, w)
        yield "its input gradient", _gradient(convolve, x), (g, w)
        yield "its kernel gradient", _gradient(lambda w, x, f=convolve: f(x, w), w), (g, x)


def _gradient(function, like):
    """By the first operand, which is like ``like``: of the cotangent and the second operand."""

    def gradient(cotangent, other):
        return jax.linear_transpose(lambda x: function(x, other), like)(cotangent)[0]

    return gradient


def compiled(function, args):
    """The function in each way, without the entry and exit that a whole program has once."""
    yield "plain", jax.jit(function).lower(*args).compile()
    for way in WAYS[1:]:
        with precision(way):
            jaxpr = jax.make_jaxpr(function)(*args)

        def program(*args, way=way, jaxpr=jaxpr):
            return interpret_closed(Context(contraction=way.removesuffix(HIGHEST)), jaxpr, args)

        yield way, jax.jit(program).lower(*args).compile()


def measure(function, args, seconds: float) -> dict[str, float]:
    programs = dict(compiled(function, args))
    best = dict.fromkeys(programs, float("inf"))
    for _ in range(4):  # in turns
        for way, program in programs.items():
            jax.block_until_ready(program(*args))
            deadline = time.perf_counter() + seconds / 12
            while time.perf_counter() < deadline:
                start = time.perf_counter()
                jax.block_until_ready(program(*args))
                best[way] = min(best[way], time.perf_counter() - start)
    return best


# --- accuracy ----------------------------------------------------------------------------


def _trained():
    """Of trained networks: a gradient and probabilities of LeNet-5, attention of a transformer."""
    lenet, transformer = networks(quick=False).values()
    params, *_ = trainer(lenet, "sequential")(0)
    x, labels = next(lenet.batches(1))

    @repjax.reproducible
    def gradient(params):
        def loss(params):
            logits = lenet.model.apply(params, x)
            return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

        return jax.grad(loss)(params)

    probabilities = jax.nn.softmax(lenet.model.apply(params, lenet.held_out[0]))
    of_transformer, *_ = trainer(transformer, "sequential")(0)
    tokens = transformer.held_out[0]
    _, sown = transformer.model.apply(of_transformer, tokens, mutable=["intermediates"])
    last = jax.tree.leaves(sown)[-1]  # [batch, heads, length, length]
    return gradient(params), np.asarray(probabilities), np.asarray(last).reshape(-1, last.shape[-1])


def operands():
    rng = np.random.default_rng(0)
    m, k, n = 256, 1024, 256

    def normal(*shape):
        return rng.standard_normal(shape).astype(np.float32)

    scale = np.exp(3 * rng.standard_normal(k)).astype(np.float32)
    yield "Gaussian", normal(m, k), normal(k, n)
    yield "uniform, positive", rng.random((m, k), np.float32), rng.random((k, n), np.float32)
    heavy = rng.standard_t(2, (m, k)).astype(np.float32)
    yield "heavy-tailed (Student's t, 2)", heavy, rng.standard_t(2, (k, n)).astype(np.float32)
    yield "features scaled by exp(3 z)", normal(m, k) * scale, normal(k, n) / scale[:, None]
    yield "the same, not in the weights", normal(m, k) * scale, normal(k, n)
    gradient, probabilities, attention = _trained()
    leaves = np.concatenate([np.ravel(x) for x in jax.tree.leaves(gradient)])
    yield "gradients of LeNet-5", np.resize(leaves, (m, k)), normal(k, n)
    rows = np.resize(probabilities.T, (10, len(probabilities)))  # of the classes, over examples
    yield "softmax rows of LeNet-5", rows, normal(len(probabilities), n)
    yield "attention of a transformer", attention[:1024], normal(attention.shape[1], n)
    scores = jax.nn.softmax(normal(m, k) * 4)
    yield "softmax of Gaussians of size 4", np.asarray(scores), normal(k, n)


def _of_bits(x, kept: int):
    """Rounded to so many significant bits."""
    bits, dropped = x.view(np.uint32), 24 - kept
    half, one = np.uint32((1 << dropped - 1) - 1), np.uint32(1)
    rounded = bits + half + (bits >> np.uint32(dropped) & one)
    return (rounded >> np.uint32(dropped) << np.uint32(dropped)).view(np.float32)


def _of_rounded_inputs(kept: int):
    return lambda a, b: jax.jit(lax.dot)(_of_bits(a, kept), _of_bits(b, kept))


def _way(way: str):
    dot = repjax.reproducible(lax.dot, contraction=way.removesuffix(HIGHEST))

    def product(a, b):
        with precision(way):
            return dot(a, b)

    return product


def accuracy() -> dict[str, dict[str, list[float]]]:
    """The largest and the mean error of each way, per data set."""
    products = {
        "plain": jax.jit(lax.dot),
        "plain, bfloat16 inputs": _of_rounded_inputs(8),
        "plain, TF32 inputs": _of_rounded_inputs(11),
        "float64, rounded": lambda a, b: (a.astype(float) @ b.astype(float)).astype(np.float32),
        **{way: _way(way) for way in WAYS[1:]},
    }
    rows = {}
    for name, a, b in operands():
        a, b = np.asarray(a), np.asarray(b)
        # In extended precision, whose error is some 2**-40 of a unit here.
        wide = [x.astype(np.longdouble) for x in (a, b)]
        exact, size = wide[0] @ wide[1], abs(wide[0]) @ abs(wide[1])
        for way, product in products.items():
            error = abs(np.asarray(product(a, b)) - exact)[size > 0] / size[size > 0] * 2.0**24
            rows.setdefault(name, {})[way] = [float(error.max()), float(error.mean())]
    return rows


# --- output ------------------------------------------------------------------------------


def report(times, errors, info) -> str:
    lines = ["# Matrix products and convolutions", ""]
    lines += [f"{key}: {value}  " for key, value in info.items() if value]
    lines += ["", "## Time", "", "In milliseconds, and as a ratio to plain JAX.", ""]
    lines += ["| case | plain | " + "".join(f"{way} | ratio | " for way in WAYS[1:]).rstrip()]
    lines += ["|---|---:|" + "---:|---:|" * len(WAYS[1:])]
    for name, row in times.items():
        cells = [f"{row['plain'] * 1e3:.3f}"]
        for way in WAYS[1:]:
            cells += [f"{row[way] * 1e3:.3f}", f"{row[way] / row['plain']:.2f}"]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "## Error", ""]
    lines += [
        "The largest / the mean error of a result, relative to the sum of the absolute values"
    ]
    lines += ["of its terms, in units of 2**-24.", ""]
    ways = list(next(iter(errors.values())))
    lines += ["| data | " + " | ".join(ways) + " |", "|---|" + "---:|" * len(ways)]
    for name, row in errors.items():
        cells = [f"{largest:.3g} / {mean:.2g}" for largest, mean in row.values()]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def plot(times, path) -> None:
    from matplotlib import pyplot

    for way in WAYS:
        ms = [times[f"dot {n}x{n}x{n}"][way] * 1e3 for n in SQUARES]
        pyplot.loglog(SQUARES, ms, "o-", label=way)
    pyplot.xlabel("n, of a product of n x n matrices")
    pyplot.ylabel("time, ms")
    pyplot.legend()
    pyplot.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, short measurements")
    parser.add_argument("--output", type=pathlib.Path, help="write OUTPUT.md, .json and .png")
    arguments = parser.parse_args()
    times, last = {}, ""
    sizes = SQUARES[:3] if arguments.quick else SQUARES
    for name, function, args in (*dots(sizes), *convolutions()):
        if name.startswith("its "):
            name = f"{last}: {name}"
        else:
            last = name
        times[name] = measure(function, args, 0.3 if arguments.quick else 3)
        row = times[name]
        print(name, *(f"{row[w] / row['plain']:.2f}" for w in WAYS[1:]), flush=True)
    errors = accuracy()
    info = {**environment(), "products": repjax.info()["cpu products"]}
    info["load average"] = f"{os.getloadavg()[0]:.1f}"  # on an idle machine that of this program
    print("\n" + report(times, errors, info))
    if arguments.output:
        figures = {"environment": info, "times": times, "errors": errors}
        conformance.write(arguments.output, figures, report(times, errors, info))
        if not arguments.quick:
            plot(times, arguments.output.with_suffix(".png"))


if __name__ == "__main__":
    main()
