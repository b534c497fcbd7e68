"""What a commitment costs a training of LeNet-5: the log of all digests, and their Merkle trees.

    python benchmarks/commitment.py [--steps 20] [--rounds 200] [--output FILE]

The training is ``reproducible`` of ``examples/first_difference.py``: LeNet-5 with Adam, batches of
64 images.  It runs alone, with each step logged, and with each step logged in the background, one
after the other in each round.  Figures are times of a step, the least of all rounds, which is what
a quiet machine would show:

* elapsed: what a user waits for.  In the background it counts on a second core being free.
* of its thread: the processor time of the thread that trains, which is what logging in the
  background cannot hide; a machine that is busy with other work changes it least.
* of all threads: the processor time of the process, digests included.

The Merkle trees are made of the log; their time is added to that of both logs.  With --output,
writes OUTPUT.md and OUTPUT.json.
"""

from __future__ import annotations

import argparse
import os
import pathlib
import sys
import tempfile
import time

import jax
from cpu import environment

from repjax.verify import Run, commitments, conformance, read_run
from repjax.verify.progress import counter

ROOT = pathlib.Path(__file__).parents[1]
WAYS = ("alone", "logged", "logged in the background")
CLOCKS = {
    "elapsed": time.perf_counter,
    "of its thread": time.thread_time,
    "of all threads": time.process_time,
}


def now() -> list[float]:
    return [clock() for clock in CLOCKS.values()]


def seconds(training, state, steps: int, folder: str, way: str) -> list[float]:
    """Of a step by each clock, the last state and log included."""
    run = None
    if way != "alone":
        run = Run(pathlib.Path(folder) / "run", background="background" in way)
    start = now()
    for n in range(steps):
        batch = training.batch(n % training.steps)
        state = training.step(state, batch)
        if run:
            run.step(n, state=state, batch=batch)
    jax.block_until_ready(state)
    if run:
        run.close()
    return [(after - before) / steps for before, after in zip(start, now(), strict=True)]


def roots(folder: str) -> float:
    """Seconds that the trees of a step take, once its digests are known."""
    steps = read_run(pathlib.Path(folder) / "run").steps
    start = time.perf_counter()
    commitments.Commitment.of_steps(steps).bytes  # noqa: B018
    return (time.perf_counter() - start) / len(steps)


def measure(steps: int, rounds: int) -> tuple[dict[str, list[float]], float]:
    """The least seconds of a step, of each way by each clock, and of its trees."""
    sys.path.insert(0, str(ROOT / "examples"))
    from first_difference import reproducible as training

    state = training.step(training.state(), training.batch(0))
    found: dict[str, list[list[float]]] = {way: [] for way in WAYS}
    trees = []
    with counter(f"rounds of {rounds}") as progress:
        for i in range(rounds):
            for way in WAYS:
                with tempfile.TemporaryDirectory() as folder:
                    found[way].append(seconds(training, state, steps, folder, way))
                    if way == "logged":
                        trees.append(roots(folder))
            progress(i + 1)
    least = {way: [min(x) for x in zip(*times, strict=True)] for way, times in found.items()}
    return least, min(trees)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=200)
    parser.add_argument("--output", type=pathlib.Path, help="write OUTPUT.md and OUTPUT.json")
    arguments = parser.parse_args()
    least, trees = measure(arguments.steps, arguments.rounds)
    alone = least["alone"]
    about = {**environment(), "steps": arguments.steps, "rounds": arguments.rounds}
    lines = ["# What a commitment costs a step of LeNet-5", ""]
    lines += [f"{key}: {value}  " for key, value in about.items() if value]
    heads = [f"{name}, {unit}" for name in CLOCKS for unit in ("ms", "more, % of a step")]
    lines += ["", "| way | " + " | ".join(heads) + " |", "|---|" + "---:|" * len(heads)]
    for way, times in least.items():
        more = 0 if way == "alone" else trees
        cells = []
        for time_, of_alone in zip(times, alone, strict=True):
            share = (time_ + more - of_alone) / alone[0]
            cells += [f"{1e3 * (time_ + more):.3f}", f"{100 * share:.1f}"]
        lines.append(f"| {way} | " + " | ".join(cells) + " |")
    load = ", ".join(f"{x:.1f}" for x in os.getloadavg())
    lines += [
        "",
        f"Times of logs include {1e3 * trees:.3f} ms for the Merkle trees.  The load of the",
    ]
    lines += [f"machine, averaged over 1, 5 and 15 minutes, was {load}."]
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.output:
        found = {"environment": about, "least seconds": least, "trees": trees}
        conformance.write(arguments.output, found, text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
