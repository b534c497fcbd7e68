"""What loops of few elements take, by XLA alone and by kernels, beside the estimates.

    python benchmarks/short_loops.py [--only REGEX ...] [--output benchmarks/results/short_loops]

``primitives/cpu/short.py`` chooses between the two by what it estimates that an iteration takes;
the nanoseconds of its operations, and those of the kernel's steps in ``primitives/cpu/steps.py``,
were fitted to this table, where the kernel for loops takes the loop; else its steps are kernels
that XLA calls.  An estimate need not be right, only its choice: a case where the way
that is chosen takes more than a quarter longer than the other is marked.  With --output, writes
OUTPUT.md.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import time
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from cpu import environment
from jax import lax

import repjax
from repjax.primitives.cpu import short
from repjax.primitives.cpu.takes import CPU
from repjax.verify.prove import write_text

STEPS, TURNS, CALLS = 2000, 5, 4
#: A choice that takes so much longer than the other way is wrong.
_MUCH = 1.25


def _repeated(function, times: int):
    def body(x, *others):
        for _ in range(times):
            x = function(x, *others)
        return x

    return body


def _cases() -> dict[str, tuple[Any, tuple]]:
    """A body for each name, and its operands, of which the first is what it goes on from."""
    rng = np.random.default_rng(0)

    def numbers(*shape):
        return jnp.asarray(rng.standard_normal(shape) * 0.1, jnp.float32)

    of_elements = {
        "1 multiplication": _repeated(lambda x: x * 0.99, 1),
        "8 multiplications": _repeated(lambda x: x * 0.99, 8),
        "4 divisions": _repeated(lambda x: 1 / (x + 2), 4),
        "4 square roots": _repeated(lambda x: jnp.sqrt(jnp.abs(x)), 4),
        "4 reciprocal square roots": _repeated(lambda x: lax.rsqrt(jnp.abs(x) + 1), 4),
        "exp": lambda x: jnp.exp(-x),
        "2 exps": lambda x: jnp.exp(-jnp.exp(-x)),
        "log": lambda x: jnp.log(x * x + 2),
        "sin": lambda x: jnp.sin(x + 1),
        "tanh": lambda x: jnp.tanh(x + 1),
        "pow": lambda x: jnp.power(jnp.abs(x) + 1, 0.7),
        "less its sum": lambda x: x - x.sum() * 0.1,
        "less its maximum": lambda x: x * 0.9 - x.max(),
        "softmax": lambda x: jax.nn.softmax(x),
        "rolled": lambda x: jnp.roll(x, 1) * 0.99,
        "one written": lambda x: x.at[0].set(x[-1] * 0.99),
        "cumulative sum": lambda x: jnp.cumsum(x) * 0.1,
        "sorted": lambda x: jnp.sort(-x),
    }
    cases = {
        f"{name}, {n}": (body, (numbers(n),))
        for name, body in of_elements.items()
        for n in (1, 8, 64)
    }
    for n in (4, 8, 20):
        cases[f"matrix times vector, {n}"] = lambda x, a: a @ x, (numbers(n), numbers(n, n))
        cases[f"product, 3 operations, {n}"] = (
            lambda x, a: 1 - jnp.square(a @ x) * 0.5,
            (numbers(n), numbers(n, n)),
        )
    cases["element of a table, 1"] = (
        lambda x, table: table[jnp.int32(x * 10) % 100] * 0.5,
        (jnp.float32(0.5), numbers(100)),
    )
    cases["normal number, 1"] = (
        lambda x, key: x + jax.random.normal(jax.random.fold_in(key, jnp.int32(x))),
        (jnp.float32(0.5), jax.random.key(0)),
    )
    return cases


class Estimate(NamedTuple):
    """The nanoseconds of an iteration by XLA, and by the kernel, if it has one; the choice."""

    by_xla: float
    by_kernel: float | None
    is_short: bool


def _compiled(body, operands, by_xla: bool):
    """The loop, compiled, and what is estimated of it."""
    estimates = []

    def is_short(loop, code):
        by_kernel = code.nanoseconds if code else None
        choice = short.is_short(loop, code)
        estimates.append(Estimate(short.nanoseconds(loop), by_kernel, choice))
        return by_xla

    def run(x, *others):
        return lax.fori_loop(0, STEPS, lambda _, x: body(x, *others), x)

    chosen = CPU.is_short
    object.__setattr__(CPU, "is_short", is_short)  # frozen, as nothing else may change it
    try:
        lowered = jax.jit(repjax.reproducible(run)).lower(*operands)
    finally:
        object.__setattr__(CPU, "is_short", chosen)
    return lowered.compile(), estimates[-1]


def measure(body, operands) -> tuple[tuple[float, float], Estimate]:
    """The nanoseconds by XLA alone and by kernels, which take turns, and what was estimated."""
    ways = [_compiled(body, operands, by_xla) for by_xla in (True, False)]
    best = [float("inf")] * len(ways)
    for _ in range(TURNS):
        for i, (run, _) in enumerate(ways):
            for _ in range(CALLS):
                start = time.perf_counter()
                jax.block_until_ready(run(*operands))
                best[i] = min(best[i], (time.perf_counter() - start) / STEPS * 1e9)
    return (best[0], best[1]), ways[0][1]


def row(name: str, measured: tuple[float, float], estimate: Estimate) -> str:
    by_xla, by_kernels = measured
    chosen, other = measured if estimate.is_short else measured[::-1]
    choice = "XLA" if estimate.is_short else "kernels"
    if chosen > _MUCH * other:
        choice = f"**{choice}: {chosen / other:.1f} times the other's time**"
    of_kernel = "no kernel" if estimate.by_kernel is None else f"{estimate.by_kernel:.0f}"
    cells = [
        name,
        f"{by_xla:.0f}",
        f"{estimate.by_xla:.0f}",
        f"{by_kernels:.0f}",
        of_kernel,
        choice,
    ]
    return "| " + " | ".join(cells) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", nargs="*", default=[], metavar="REGEX", help="cases to measure")
    parser.add_argument("--output", help="path of the results, without .md")
    options = parser.parse_args()
    lines = [f"{key}: {value}  " for key, value in environment().items() if value]
    lines += ["", "Nanoseconds of an iteration.", ""]
    lines += ["| case | XLA | estimated | kernels | estimated | choice |"]
    lines += ["|---|---:|---:|---:|---:|---|"]
    print("\n".join(lines), flush=True)
    for name, (body, operands) in _cases().items():
        if options.only and not any(re.search(pattern, name) for pattern in options.only):
            continue
        lines.append(row(name, *measure(body, operands)))
        print(lines[-1], flush=True)
    if options.output:
        write_text(pathlib.Path(f"{options.output}.md"), "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
