"""GPT-2 small's shape, 124 million parameters: its bits in many settings, and what it costs.

    python benchmarks/gpt2.py bits python=PYTHON [--output benchmarks/results/gpt2-bits]
    python benchmarks/gpt2.py bits --steps 100 --tokens 0 [--way plain] [--rows DIGESTS ...]
    python benchmarks/gpt2.py speed [--output benchmarks/results/gpt2-speed]
    python benchmarks/gpt2.py digest --shape small

*bits*: parameters are drawn, one training step of AdamW is taken, and the model samples 32 tokens,
each time in a process of its own: with XLA's instructions for SSE4.2, AVX2 and AVX-512, without the
C++ kernels, where fewer tokens have to do, and in the settings that are given besides, which are
those of ``repjax trace``.  Exit status: 0 if all digests are equal, 1 if not.  *digest* is what
such a process computes, and prints one line of JSON; with --rows, such lines of other machines are
compared, too.  With --steps more steps are taken, all on the same tokens; --way plain is plain JAX,
whose digests should differ.

*speed*: the step and the sampler, beside plain JAX in turns in the same process; the figures are
minima.  A sampler's throughput is that of full slots, whose prompts have been read.  Peak memory is
what a process that takes two steps has had resident, compiling included.

``--shape small`` is the same program with a small model.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import pathlib
import platform
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from cpu import environment

import repjax
from repjax.models import GPT, generate, log_probs
from repjax.verify import conformance, hex_bits, settings

WAYS: dict[str, Callable] = {"plain": jax.jit, "repjax": repjax.reproducible}
SETTINGS = ("SSE4_2", "AVX2", "AVX512", "kernels=off")
BATCHES = (1, 8, 64)
TOKENS, FEW = 32, 2
PROMPT, BURST = 16, 8
REPETITIONS = 4


@dataclasses.dataclass(frozen=True)
class Shape:
    """A model, the batch of its training step, rows of so many tokens, and what it can sample.

    Without the C++ kernels, a large one samples few tokens in the time.
    """

    model: GPT
    rows: int
    length: int
    without_kernels: int

    def tokens(self, rows: int, length: int, seed: int = 0) -> np.ndarray:
        """int32 (rows, length): threefry's bits."""
        bits = np.asarray(jax.random.bits(jax.random.key(seed), (rows, length), np.uint32))
        return (bits % np.uint32(self.model.vocabulary)).astype(np.int32)

    def trainer(self) -> tuple[Callable, Callable]:
        """How to start, and a training step, as functions of trees of arrays."""
        optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(3e-4))

        def start(key):
            params = self.model.init(key, jnp.zeros((1, 1), jnp.int32))
            return params, optimizer.init(params)

        def step(params, state, tokens):
            def loss(params):
                return -jnp.mean(log_probs(self.model, params, tokens))

            value, gradients = jax.value_and_grad(loss)(params)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value

        return start, step


SHAPES = {
    "gpt2": Shape(
        GPT(vocabulary=50257, positions=1024, width=768, depth=12, heads=12), 2, 128, FEW
    ),
    "small": Shape(GPT(vocabulary=211, positions=64, width=32, depth=2, heads=4), 2, 32, TOKENS),
}


# --- bits --------------------------------------------------------------------------------


def digests(shape: Shape, steps: int, count: int, way: str) -> dict[str, Any]:
    """What training steps and ``count`` sampled tokens are; the sampler is not plain JAX's.

    Of the tokens there are digests of the first ones, so that short runs compare with long ones.
    """
    begun = time.perf_counter()
    start, step = shape.trainer()
    params, state = WAYS[way](start)(jax.random.key(0))
    drawn = repjax.digest(params)
    tokens = shape.tokens(shape.rows, shape.length)
    program = WAYS[way](step, donate_argnums=(0, 1))
    for _ in range(steps):
        params, state, loss = program(params, state, tokens)
    trained = repjax.digest((params, state, loss))
    device = jax.devices()[0]
    row = {
        "machine": device.device_kind if device.platform != "cpu" else platform.machine(),
        "jax": jax.__version__,
        "kernels": repjax.info()["cpu products" if device.platform == "cpu" else "gpu kernels"],
        "drawn": drawn,
        "trained": trained,
        "loss": hex_bits(loss),
        "sampled": {},
        "trainer's": True,
    }
    if count:
        row |= samples(shape, params, count)
    return row | {"seconds": round(time.perf_counter() - begun)}


def samples(shape: Shape, params: Any, count: int) -> dict[str, Any]:
    """Digests of sampled tokens, and whether their log-probabilities are the trainer's."""
    prompt = shape.tokens(1, PROMPT, seed=1)[0]
    request = generate.Request(prompt, jax.random.key(2), count, temperature=0.8, top_p=0.95)
    (done,) = generate.complete(
        shape.model, params, [request], slots=1, chunk=PROMPT, burst=min(count, BURST)
    )
    row = np.concatenate([prompt, done.tokens])[None]
    values = repjax.reproducible(lambda p, t: log_probs(shape.model, p, t))(params, row)
    values = np.asarray(values)[0, PROMPT - 1 :]
    sampled = {n: repjax.digest((done.tokens[:n], done.log_probs[:n])) for n in {FEW, count}}
    return {
        "sampled": {str(n): sampled[n] for n in sorted(sampled)},
        "trainer's": bool((values.view(np.uint32) == done.log_probs.view(np.uint32)).all()),
    }


def bits(arguments: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """By setting, what :func:`digests` returns in a process of its own, and the rows given."""
    rows = {}
    for path in arguments.rows:
        for row in map(json.loads, path.read_text().splitlines()):
            rows[f"as it is, jax {row['jax']}, {row['machine']}"] = row
    for setting in arguments.settings:
        without = setting.environment.get("REPJAX_NATIVE") == "off"
        few = SHAPES[arguments.shape].without_kernels
        count = min(few, arguments.tokens) if without else arguments.tokens
        command = [setting.python, __file__, "digest", "--shape", arguments.shape]
        command += ["--way", arguments.way, "--steps", str(arguments.steps), "--tokens", str(count)]
        variables = {**os.environ, "JAX_PLATFORMS": "cpu", **setting.environment}
        print(f"{setting.text} ...", file=sys.stderr, flush=True)
        line = subprocess.run(command, env=variables, stdout=subprocess.PIPE, check=True).stdout
        row = json.loads(line)
        rows[f"{name_of(setting.text)}, jax {row['jax']}, {row['machine']}"] = row
        print(f"{setting.text}: {line.decode().strip()}", file=sys.stderr, flush=True)
    return rows


def name_of(setting: str) -> str:
    """A setting without the path of its Python, whose versions are in the row."""
    words = [word for word in setting.split("+") if not word.startswith("python=")]
    return "+".join(words) or "as it is"


def equal(rows: dict[str, dict[str, Any]]) -> bool:
    """Whether all settings have the same bits, and each sampler those of its trainer."""
    return (
        all(row["trainer's"] for row in rows.values())
        and all(len({row[what] for row in rows.values()}) == 1 for what in ("drawn", "trained"))
        and all(
            len({row["sampled"].get(n, "") for row in rows.values()} - {""}) == 1
            for n in {n for row in rows.values() for n in row["sampled"]}
        )
    )


def page_of_bits(shape: str, rows: dict[str, dict[str, Any]], info: dict[str, str]) -> str:
    lines = ["# Bits of GPT-2 small's shape", "", *heading(shape, info)]
    lines += ["The first twelve digits of digests: parameters as drawn, parameters and optimizer"]
    lines += [
        "state after training, with the last loss, and tokens with their log-probabilities.",
        "",
    ]
    lines += ["| setting | machine | jax | kernels | drawn | trained | tokens | sampled | s |"]
    lines += ["|---|---|---|---|---|---|---:|---|---:|"]
    short = lambda digest: f"`{digest.removeprefix('sha256:')[:12]}`"  # noqa: E731
    for name, row in rows.items():
        for count, sampled in row["sampled"].items() or [("", "")]:
            cells = [name.split(", ")[0], row["machine"], row["jax"], row["kernels"]]
            cells += [*map(short, (row["drawn"], row["trained"]))]
            cells += [count, sampled and short(sampled)]
            cells += [str(row["seconds"])]
            lines.append(f"| {' | '.join(cells)} |")
    lines += ["", f"All equal, and the sampler's the trainer's: {'yes' if equal(rows) else 'NO'}."]
    return "\n".join(lines) + "\n"


# --- speed -------------------------------------------------------------------------------


def step_times(shape: Shape) -> dict[str, dict[str, float]]:
    """Of each way the seconds of its first step and of its fastest one."""
    start, step = shape.trainer()
    initial = repjax.reproducible(start)(jax.random.key(0))
    tokens = shape.tokens(shape.rows, shape.length)
    programs = {way: jit(step, donate_argnums=(0, 1)) for way, jit in WAYS.items()}
    trees = {way: jax.tree.map(jnp.copy, initial) for way in WAYS}
    times: dict[str, list[float]] = {way: [] for way in WAYS}
    for _ in range(1 + REPETITIONS):  # in turns
        for way, program in programs.items():
            begun = time.perf_counter()
            *trees[way], loss = program(*trees[way], tokens)
            jax.block_until_ready((trees[way], loss))
            times[way].append(time.perf_counter() - begun)
    return {way: {"first": first, "best": min(rest)} for way, (first, *rest) in times.items()}


def sampler_times(shape: Shape, batch: int) -> dict[str, float]:
    """Of each way the seconds of a burst of tokens in full slots."""
    start, _ = shape.trainer()
    params, _ = repjax.reproducible(start)(jax.random.key(0))
    wanted = 1 + BURST * (1 + REPETITIONS)
    samplers = {}
    for way, jit in WAYS.items():
        sampler = generate.Sampler(
            shape.model,
            params,
            slots=batch,
            size=PROMPT + wanted,
            chunk=PROMPT,
            burst=BURST,
            jit=jit,
        )
        for slot, prompt in enumerate(shape.tokens(batch, PROMPT, seed=1)):
            sampler.submit(generate.Request(prompt, jax.random.key(slot), wanted))
        # A step would read one prompt and draw for those before it.
        sampler._admit()
        for slot in range(batch):
            sampler._read(slot, {})
        sampler.step()  # compiles
        samplers[way] = sampler
    best = dict.fromkeys(WAYS, float("inf"))
    for _ in range(REPETITIONS):  # in turns
        for way, sampler in samplers.items():
            begun = time.perf_counter()
            sampler.step()
            best[way] = min(best[way], time.perf_counter() - begun)
    if any(sampler.busy for sampler in samplers.values()):
        raise AssertionError("expected slots that are full up to the last burst")
    return best


def peak_memory(shape: Shape, way: str) -> int:
    """The bytes that this process has had resident after two steps."""
    start, step = shape.trainer()
    shapes = jax.eval_shape(start, jax.random.key(0))
    tree = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
    program = WAYS[way](step, donate_argnums=(0, 1))
    for _ in range(2):
        *tree, _ = program(*tree, shape.tokens(shape.rows, shape.length))
    jax.block_until_ready(tree)
    kilobytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kilobytes * (1 if sys.platform == "darwin" else 1024)


def memory_of_processes(shape: str) -> dict[str, int]:
    """By way, what :func:`peak_memory` returns in a process of its own."""
    command = [sys.executable, __file__, "memory", "--shape", shape, "--way"]
    run = lambda way: subprocess.run([*command, way], stdout=subprocess.PIPE, check=True)  # noqa: E731
    return {way: int(run(way).stdout) for way in WAYS}


def speed(name: str) -> dict[str, dict[str, float]]:
    """Rows of figures, smaller is better."""
    shape, rows = SHAPES[name], {}

    def add(case: str, plain: float, reproducible: float) -> None:
        rows[case] = {"plain": plain, "repjax": reproducible, "ratio": reproducible / plain}
        print(f"{case}: {reproducible / plain:.2f}", file=sys.stderr, flush=True)

    memory = memory_of_processes(name)
    add("peak memory of a training, GB", *(memory[way] / 1e9 for way in WAYS))
    times = step_times(shape)
    add(
        f"training step, {shape.rows} x {shape.length} tokens, s", *(times[w]["best"] for w in WAYS)
    )
    add("its first call, s", *(times[w]["first"] for w in WAYS))
    for batch in BATCHES:
        burst = sampler_times(shape, batch)
        add(f"a token of each of {batch} requests, ms", *(1e3 * burst[w] / BURST for w in WAYS))
    return rows


def page_of_speed(shape: str, rows: dict[str, dict[str, float]], info: dict[str, str]) -> str:
    lines = ["# GPT-2 small's shape beside plain JAX", "", *heading(shape, info)]
    lines += ["| case | plain | repjax | ratio |", "|---|---:|---:|---:|"]
    for name, row in rows.items():
        lines.append(f"| {name} | {row['plain']:.3f} | {row['repjax']:.3f} | {row['ratio']:.2f} |")
    return "\n".join(lines) + "\n"


# --- the command line --------------------------------------------------------------------


def heading(shape: str, info: dict[str, str]) -> list[str]:
    return [*(f"{key}: {value}  " for key, value in {"shape": shape, **info}.items() if value), ""]


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__.partition("\n\n")[0],
        epilog="example: python benchmarks/gpt2.py bits AVX2+kernels=AVX2 python=/usr/bin/python3",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    for name, text in (
        ("bits", "compare digests of settings"),
        ("speed", "measure beside plain JAX"),
        ("digest", "what a process of bits computes"),
        ("memory", "what a process of speed measures"),
    ):
        command = commands.add_parser(name, help=text)
        command.add_argument("--shape", choices=SHAPES, default="gpt2", help="of the model (gpt2)")
        if name in ("bits", "speed"):
            command.add_argument("--output", type=pathlib.Path, help="write OUTPUT.md and .json")
        if name == "bits":
            command.add_argument("settings", nargs="*", help="settings beside the usual ones")
            command.add_argument(
                "--rows", type=pathlib.Path, nargs="+", default=[], help="what *digest* has printed"
            )
        if name in ("bits", "digest"):
            command.add_argument("--steps", type=int, default=1, help="how many to train (1)")
            command.add_argument("--tokens", type=int, default=TOKENS, help="how many to sample")
        if name != "speed":
            command.add_argument("--way", choices=WAYS, default="repjax")
    arguments = parser.parse_args()
    if arguments.command == "bits":
        try:
            arguments.settings = [settings.parse(x) for x in (*SETTINGS, *arguments.settings)]
        except settings.SettingError as error:
            parser.error(str(error))
    return arguments


def main() -> int:
    arguments = parse()
    shape, status = SHAPES[arguments.shape], 0
    if arguments.command == "digest":
        print(json.dumps(digests(shape, arguments.steps, arguments.tokens, arguments.way)))
        return 0
    if arguments.command == "memory":
        print(peak_memory(shape, arguments.way))
        return 0
    info = {**environment(), "kernels": repjax.info()["cpu products"]}
    if arguments.command == "bits":
        rows: dict[str, Any] = bits(arguments)
        page, status = page_of_bits(arguments.shape, rows, info), 0 if equal(rows) else 1
    else:
        rows = speed(arguments.shape)
        # On an idle machine the load is that of this program.
        info["load average"] = f"{os.getloadavg()[0]:.1f}"
        page = page_of_speed(arguments.shape, rows, info)
    print(page)
    if arguments.output:
        conformance.write(arguments.output, {"environment": info, "cases": rows}, page)
    return status


if __name__ == "__main__":
    raise SystemExit(main())
