"""How long repjax takes, as a ratio to plain JAX in the same run.

    python benchmarks/cpu.py [--quick] [--only PREFIX ...] [--output benchmarks/results/NAME]

Plain JAX and repjax run the same compiled function alternately; each figure is the minimum
over the repetitions, which is what a quiet machine would show.  Prints a Markdown table and,
with --output, writes NAME.md and NAME.json.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import platform
import time
from typing import Any

import flax
import flax.linen
import jax
import jaxlib
import numpy as np
import optax
from jax import lax

import repjax
from repjax.models import LeNet5
from repjax.verify import conformance


def values(shape, seed=0):
    return jax.random.normal(jax.random.key(seed), shape)


def elementwise_cases(sizes):
    functions = {
        "add": lambda x: x + 1.5 * jax.numpy.roll(x, 1),
        "div": lambda x: 1.5 / x,
        "sqrt": lambda x: lax.sqrt(lax.abs(x)),
        "exp": lax.exp,
        "expm1": lax.expm1,
        "log": lambda x: lax.log(lax.abs(x)),
        "log1p": lambda x: lax.log1p(lax.abs(x)),
        "tanh": lax.tanh,
        "logistic": lax.logistic,
        "rsqrt": lambda x: lax.rsqrt(lax.abs(x)),
        "erf": lax.erf,
        "sin": lax.sin,
        "pow": lambda x: lax.pow(lax.abs(x), 1.5 * x),
        "atan2": lambda x: lax.atan2(x, 1.5 * x + 1),
        "lgamma": lax.lgamma,
    }
    for n in sizes:
        for name, function in functions.items():
            yield f"elementwise {name} [{n}]", function, (values((n,)),)


def reduction_cases(sizes):
    for n in sizes:
        x = values((n // 1024, 1024))
        yield f"reduce_sum rows [{n // 1024}x1024]", lambda x: x.sum(1), (x,)
        yield f"reduce_sum columns [{n // 1024}x1024]", lambda x: x.sum(0), (x,)
        yield f"reduce_sum all [{n // 1024}x1024]", lambda x: x.sum(), (x,)
        yield f"reduce_max rows [{n // 1024}x1024]", lambda x: x.max(1), (x,)
        yield f"variance of columns [{n // 1024}x1024]", lambda x: x.var(0), (x,)
        yield f"softmax rows [{n // 1024}x1024]", jax.nn.softmax, (x,)
        yield f"layer norm rows [{n // 1024}x1024]", jax.nn.standardize, (x,)
        for name, function in {"softmax": jax.nn.softmax, "layer norm": jax.nn.standardize}.items():

            def gradient(x, cotangent, function=function):
                return jax.vjp(function, x)[1](cotangent)

            yield f"{name} gradient [{n // 1024}x1024]", gradient, (x, values(x.shape, 1))


def contraction_cases(quick):
    sizes = [(64, 400, 120), (64, 784, 512), (256, 784, 1000)]
    for m, k, n in sizes if quick else [*sizes, (1024, 1024, 1024)]:
        yield f"dot {m}x{k}x{n}", lax.dot, (values((m, k)), values((k, n), 1))
    yield (
        "batched dot 32x[64x64x64]",
        lambda a, b: lax.batch_matmul(a, b),
        (values((32, 64, 64)), values((32, 64, 64), 1)),
    )
    images, kernel = values((64, 14, 14, 6)), values((5, 5, 6, 16), 1)

    def convolution(images, kernel):
        return lax.conv_general_dilated(
            images, kernel, (1, 1), "VALID", dimension_numbers=("NHWC", "HWIO", "NHWC")
        )

    def gradient(argument):
        return lambda x, k, g: jax.vjp(convolution, x, k)[1](g)[argument]

    cotangent = values((64, 10, 10, 16), 2)
    yield "convolution 64x14x14x6, 5x5x16", convolution, (images, kernel)
    yield "its input gradient", gradient(0), (images, kernel, cotangent)
    yield "its kernel gradient", gradient(1), (images, kernel, cotangent)


def factorization_cases(n=256):
    a = values((n, n))
    positive = a @ a.T + n * np.eye(n, dtype=np.float32)
    yield f"Cholesky [{n}x{n}]", jax.numpy.linalg.cholesky, (positive,)
    yield f"LU [{n}x{n}]", lax.linalg.lu, (a,)
    yield f"QR [{n}x{n}]", jax.numpy.linalg.qr, (a,)
    yield f"eigh [{n}x{n}]", jax.numpy.linalg.eigh, (positive,)
    yield f"SVD [{n}x{n}]", jax.numpy.linalg.svd, (a,)
    yield f"solve [{n}x{n}]", jax.numpy.linalg.solve, (a, values((n, 16), 1))
    yield f"dot [{n * n}]", jax.numpy.vdot, (values((n * n,), 2), values((n * n,), 3))


def fourier_cases():
    """Transforms of many signals: of a power of two, of speech, of images, of a prime length."""
    for shape in ((256, 1024), (1000, 400), (16, 1009)):
        yield f"rfft [{shape[0]}x{shape[1]}]", jax.numpy.fft.rfft, (values(shape),)
    z = values((64, 64, 64)) + 1j * values((64, 64, 64), 1)
    yield "fft2 [64x64x64]", jax.numpy.fft.fft2, (z,)
    yield "complex x * x + x [64x64x64]", lambda x: x * x + x, (z,)


def training_cases():
    images, labels = values((64, 32, 32, 1)), np.arange(64, dtype=np.int32) % 10
    model = LeNet5(layers=flax.linen)
    for name, optimizer in (("sgd", optax.sgd(0.1, momentum=0.9)), ("adam", optax.adam(1e-3))):

        def step(params, state, images, labels, optimizer=optimizer):
            def mean_loss(params):
                logits = model.apply(params, images)
                return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

            value, gradient = jax.value_and_grad(mean_loss)(params)
            updates, state = optimizer.update(gradient, state, params)
            return optax.apply_updates(params, updates), state, value

        params = jax.jit(model.init)(jax.random.key(0), images[:1])
        state = optimizer.init(params)
        yield f"LeNet-5 training step, batch 64, {name}", step, (params, state, images, labels)
    yield "LeNet-5 inference, batch 64", model.apply, (params, images)


class Transformer(flax.linen.Module):
    """Blocks of attention and a dense network, normalised before."""

    blocks: int = 4
    features: int = 64
    vocabulary: int = 100
    dtype: Any = None  # what is computed in; parameters are float32

    @flax.linen.compact
    def __call__(self, tokens):
        def dense(features, x):
            return flax.linen.Dense(features, dtype=self.dtype)(x)

        def normalized(x):
            return flax.linen.LayerNorm(dtype=self.dtype)(x)

        x = flax.linen.Embed(self.vocabulary, self.features, dtype=self.dtype)(tokens)
        for _ in range(self.blocks):
            h = normalized(x)
            attention = flax.linen.MultiHeadDotProductAttention(num_heads=4, dtype=self.dtype)
            x = x + attention(h, h)
            h = dense(4 * self.features, normalized(x))
            x = x + dense(self.features, flax.linen.gelu(h))
        return dense(self.vocabulary, normalized(x))


class ResNet(flax.linen.Module):
    """Blocks of two convolutions with batch normalisation, ended by a global mean."""

    blocks: int = 4
    features: int = 16

    @flax.linen.compact
    def __call__(self, images):
        def normalized(x):
            return flax.linen.BatchNorm(use_running_average=False)(x)

        x = flax.linen.Conv(self.features, (3, 3))(images)
        for _ in range(self.blocks):
            h = flax.linen.relu(normalized(flax.linen.Conv(self.features, (3, 3))(x)))
            x = flax.linen.relu(x + normalized(flax.linen.Conv(self.features, (3, 3))(h)))
        return flax.linen.Dense(10)(x.mean((1, 2)))


def small_networks():
    """Of which much is overhead."""
    tokens = np.arange(64, dtype=np.int32).reshape(4, 16) % 100
    return {"transformer": (Transformer(), tokens), "ResNet": (ResNet(), values((8, 16, 16, 3)))}


def larger_networks():
    """Such as are trained on CPUs."""
    tokens = np.arange(1024, dtype=np.int32).reshape(8, 128) % 100
    return {
        "larger transformer": (Transformer(features=256), tokens),
        "larger ResNet": (ResNet(features=64), values((16, 32, 32, 3))),
    }


def network_cases(inputs=None):
    """Deep programs, whose first call shows what tracing and compiling cost.

    ``inputs`` are other models and batches than small ones, by name.
    """
    for name, (model, batch) in (inputs or small_networks()).items():
        optimizer = optax.adam(1e-3)

        def step(variables, state, batch, model=model, optimizer=optimizer):
            def mean_loss(params):
                rest = {k: v for k, v in variables.items() if k != "params"}
                outputs, _ = model.apply({"params": params, **rest}, batch, mutable=list(rest))
                return jax.nn.log_softmax(outputs)[..., 0].mean()

            value, gradient = jax.value_and_grad(mean_loss)(variables["params"])
            updates, state = optimizer.update(gradient, state, variables["params"])
            return optax.apply_updates(variables["params"], updates), state, value

        variables = jax.jit(model.init)(jax.random.key(0), batch)
        state = optimizer.init(variables["params"])
        yield f"{name} training step, {model.blocks} blocks", step, (variables, state, batch)


def vocabulary_cases(words=8192, features=256, count=512):
    """What is as large as a vocabulary in the training of a language model."""
    logits, labels = values((count, words)), np.arange(count, dtype=np.int32) * 31 % words

    def cross_entropy(x, labels):
        return optax.softmax_cross_entropy_with_integer_labels(x, labels).mean()

    def lookup(table, tokens, cotangent):
        return jax.vjp(lambda table: table[tokens], table)[1](cotangent)

    shape = f"{count} of {words}"
    yield f"cross-entropy, {shape}", cross_entropy, (logits, labels)
    yield f"cross-entropy, {shape}, gradient", jax.grad(cross_entropy), (logits, labels)
    arguments = values((words, features), 1), labels, values((count, features), 2)
    yield f"embeddings, {shape}x{features}, gradient", lookup, arguments


def language_cases(dtype=None):
    """The training of a language model of many words."""
    model, optimizer = Transformer(features=128, vocabulary=8192, dtype=dtype), optax.adam(1e-3)
    tokens = np.arange(4 * 129, dtype=np.int32).reshape(4, 129) * 31 % model.vocabulary

    def step(params, state, tokens):
        def loss(params):
            logits = model.apply(params, tokens[:, :-1])
            losses = optax.softmax_cross_entropy_with_integer_labels(logits, tokens[:, 1:])
            return losses.mean()

        value, gradient = jax.value_and_grad(loss)(params)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    params = jax.jit(model.init)(jax.random.key(0), tokens)
    arguments = params, optimizer.init(params), tokens
    yield f"language model training step, {model.vocabulary} words", step, arguments


def dispatch_cases():
    tree = {str(i): values((4,), i) for i in range(50)}
    yield (
        "dispatch of 50 arrays of 4 elements",
        lambda tree: jax.tree.map(lambda x: -x, tree),
        (tree,),
    )


def seconds(function, args) -> float:
    start = time.perf_counter()
    jax.block_until_ready(function(*args))
    return time.perf_counter() - start


def measure(function, args, repetitions: int) -> dict[str, float]:
    """Compile and run times in seconds, and the ratio of the run times."""
    contestants = {"plain": jax.jit(function), "repjax": repjax.reproducible(function)}
    first = {name: seconds(f, args) for name, f in contestants.items()}
    # Short functions are run many times within one measurement of the same length.
    best = dict.fromkeys(contestants, float("inf"))
    deadline = time.perf_counter() + 3
    for repetition in range(repetitions):
        for name, f in contestants.items():
            best[name] = min(best[name], seconds(f, args))
        if repetition >= 4 and time.perf_counter() > deadline:
            break
    return {
        "plain_s": best["plain"],
        "repjax_s": best["repjax"],
        "ratio": best["repjax"] / best["plain"],
        "plain_first_s": first["plain"],
        "repjax_first_s": first["repjax"],
    }


def environment() -> dict[str, str]:
    model = platform.processor() or platform.machine()
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    if cpuinfo.exists():
        names = [s for s in cpuinfo.read_text().splitlines() if s.startswith("model name")]
        model = names[0].split(":")[1].strip() if names else model
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "device": str(jax.devices()[0].device_kind),
        "cpu": f"{model}, {cpus} cores",
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "flax": flax.__version__,
        "repjax": repjax.__version__,
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", ""),
    }


def table(rows: dict[str, dict[str, float]], info: dict[str, str]) -> str:
    lines = [f"{key}: {value}  " for key, value in info.items() if value]
    lines += ["", "| case | plain, ms | repjax, ms | ratio | first call: plain, s | repjax, s |"]
    lines += ["|---|---:|---:|---:|---:|---:|"]
    for name, row in rows.items():
        lines.append(
            f"| {name} | {row['plain_s'] * 1e3:.3f} | {row['repjax_s'] * 1e3:.3f} "
            f"| {row['ratio']:.2f} | {row['plain_first_s']:.2f} | {row['repjax_first_s']:.2f} |"
        )
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    parser.add_argument("--quick", action="store_true", help="small sizes, few repetitions")
    parser.add_argument("--only", nargs="+", default=[""], help="cases whose names start so")
    parser.add_argument("--output", type=pathlib.Path, help="write OUTPUT.md and OUTPUT.json")
    arguments = parser.parse_args()

    sizes = [2**16] if arguments.quick else [2**16, 2**24]
    cases = [
        *elementwise_cases(sizes),
        *reduction_cases(sizes),
        *contraction_cases(arguments.quick),
        *factorization_cases(),
        *fourier_cases(),
        *training_cases(),
        *network_cases(),
        *([] if arguments.quick else network_cases(larger_networks())),
        *vocabulary_cases(),
        *([] if arguments.quick else language_cases()),
        *dispatch_cases(),
    ]
    rows = {}
    for name, function, args in cases:
        if name.startswith(tuple(arguments.only)):
            rows[name] = measure(function, args, 5 if arguments.quick else 50)
            print(f"{name}: {rows[name]['ratio']:.2f}", flush=True)
    info = {**environment(), "products": repjax.info()["cpu products"]}
    info["load average"] = f"{os.getloadavg()[0]:.1f}"  # on an idle machine that of this program
    print("\n" + table(rows, info))
    if arguments.output:
        conformance.write(arguments.output, {"environment": info, "cases": rows}, table(rows, info))


if __name__ == "__main__":
    main()
