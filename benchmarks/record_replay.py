"""Recording and replaying an unseeded training: are the two the same, and what does it cost?

    python benchmarks/record_replay.py --output benchmarks/results/record_replay.json

Trains LeNet-5 without a seed (examples/unseeded_digits.py) as it is, recorded and replayed, in
turn, as often as Chen et al. 2022 did (16 times).  Each recorded run is compared with its replay by
all criteria of `repjax compare`, and plain runs with each other.  Three times are measured: of the
training, as the script says it; of the whole process, from its start to its end, the recorder's
work included; and the processor's for it, which depends least on what else runs.  They are compared
by the Wilcoxon signed-rank test, of runs of one turn, and by Cliff's delta.

Needs the extras `examples` and `prove`.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable

import repjax
from repjax.checkpoint import replacing
from repjax.verify import compare, read_run, recordings
from repjax.verify.progress import counter

SCRIPT = pathlib.Path(__file__).parents[1] / "examples" / "unseeded_digits.py"
KINDS = ("plain", "recorded", "replayed")
TIMES = ("training", "process", "processor")
#: The size of the paper's files (table 3 there), in bytes.
PAPERS_SIZE = 13_000


def timed(function: Callable[[], int]) -> dict[str, float]:
    """What a run took, in seconds, by :data:`TIMES`."""
    with tempfile.TemporaryFile() as said:
        stderr = os.dup(2)
        os.dup2(said.fileno(), 2)
        begin, used = time.perf_counter(), _processor()
        try:
            status = function()
            whole, used = time.perf_counter() - begin, _processor() - used
        finally:
            os.dup2(stderr, 2)
            os.close(stderr)
        said.seek(0)
        text = said.read().decode()
    if status:
        raise SystemExit(f"expected a training, received status {status}:\n{text}")
    return {"training": float(text.split()[-2]), "process": whole, "processor": used}


def _processor() -> float:
    """The processor's time of all children that have ended, in seconds."""
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def measure(turns: int, epochs: int, show: Callable[[int], None]) -> dict[str, list]:
    """Runs, sizes and verdicts, by kind."""
    found: dict[str, list] = {kind: [] for kind in (*KINDS, "sizes", "pairs", "plain pairs")}
    for turn in range(turns):
        commands = {
            kind: [str(SCRIPT), f"runs/{kind}-{turn}", "--epochs", str(epochs)] for kind in KINDS
        }
        file = f"{turn}.entropy"
        functions = {
            "plain": lambda c=commands: subprocess.call([sys.executable, *c["plain"]]),
            "recorded": lambda c=commands, f=file: recordings.record_command(c["recorded"], f)[0],
            "replayed": lambda c=commands, f=file: recordings.replay_command(
                recordings.read(f), c["replayed"]
            ),
        }
        # The plain run stands before, between or after the others.
        order = ["recorded", "replayed"]
        order.insert(turn % 3, "plain")
        for kind in order:
            found[kind].append(timed(functions[kind]))
        found["sizes"].append(os.path.getsize(file))
        runs = {kind: read_run(f"runs/{kind}-{turn}") for kind in KINDS}
        found["pairs"].append(compare(runs["recorded"], runs["replayed"]).verdict)
        if turn:
            before = read_run(f"runs/plain-{turn - 1}")
            found["plain pairs"].append(compare(before, runs["plain"]).verdict)
        show(turn + 1)
    return found


def cliffs_delta(first: list[float], second: list[float]) -> float:
    """How much more often a number of the first is greater than one of the second than less."""
    more = sum((a > b) - (a < b) for a in first for b in second)
    return more / (len(first) * len(second))


def comparisons(found: dict[str, list]) -> list[dict[str, object]]:
    from scipy.stats import wilcoxon

    rows = []
    for what in TIMES:
        times = {kind: [x[what] for x in found[kind]] for kind in KINDS}
        for first, second in (("plain", "recorded"), ("plain", "replayed"), KINDS[1:]):
            rows.append(
                {
                    "time": what,
                    "first": first,
                    "second": second,
                    "ratio of medians": statistics.median(times[second])
                    / statistics.median(times[first]),
                    "p": float(wilcoxon(times[first], times[second]).pvalue),
                    "delta": cliffs_delta(times[second], times[first]),
                }
            )
    return rows


def table(result: dict) -> str:
    """The results, as a page."""
    runs, rows = result["runs"], result["comparisons"]
    pairs, plain = runs["pairs"], runs["plain pairs"]
    lines = [
        "# Recording and replaying an unseeded LeNet-5",
        "",
        "Written by `python benchmarks/record_replay.py`, which says what was measured.",
        "",
        *(f"{name}: {value}  " for name, value in result["about"].items()),
        "",
        "| | |",
        "|---|---:|",
        f"| pairs of a recorded run and its replay | {len(pairs)} |",
        f"| identical bits, so by all criteria | {pairs.count('identical bits')} |",
        f"| pairs of plain runs | {len(plain)} |",
        f"| different by the criteria | {plain.count('different')} |",
        f"| largest file, in bytes (the paper's: {PAPERS_SIZE}) | {max(runs['sizes'])} |",
        "",
        f"| seconds, median (least to most) | {' | '.join(TIMES)} |",
        "|---|---:|---:|---:|",
    ]
    for kind in KINDS:
        cells = []
        for what in TIMES:
            times = sorted(x[what] for x in runs[kind])
            cells.append(f"{statistics.median(times):.2f} ({times[0]:.2f} to {times[-1]:.2f})")
        lines.append(f"| {kind} | {' | '.join(cells)} |")
    lines += [
        "",
        "| time | runs | ratio of medians | Wilcoxon, p | Cliff's delta |",
        "|---|---|---:|---:|---:|",
    ]
    for row in rows:
        lines.append(
            f"| {row['time']} | {row['second']} against {row['first']} | "
            f"{row['ratio of medians']:.3f} | {row['p']:.3f} | {row['delta']:+.2f} |"
        )
    return "\n".join([*lines, ""])


def main() -> None:
    parser = argparse.ArgumentParser(
        description="Compare recorded, replayed and plain runs of an unseeded training.",
        epilog="example: python benchmarks/record_replay.py --turns 2 --output /tmp/times.json",
    )
    parser.add_argument("--turns", type=int, default=16, help="runs of each kind (16)")
    parser.add_argument("--epochs", type=int, default=2, help="of each run (2)")
    parser.add_argument("--output", type=pathlib.Path, required=True, metavar="FILE.json")
    arguments = parser.parse_args()
    output = arguments.output.resolve()
    with tempfile.TemporaryDirectory() as folder, counter("turns") as show:
        os.chdir(folder)
        runs = measure(arguments.turns, arguments.epochs, show)
        os.chdir(output.parent)
    about = {
        "date": time.strftime("%Y-%m-%d"),
        "versions": f"Python {platform.python_version()}, jax {repjax.info()['jax']}",
        "cores": os.cpu_count(),
        "load at the end": round(os.getloadavg()[0], 1),
        "epochs": arguments.epochs,
        "C shim": "loaded" if recordings.shim()[0] else "none",
    }
    result = {"about": about, "runs": runs, "comparisons": comparisons(runs)}
    with replacing(output) as file:
        file.write(json.dumps(result, indent=1).encode() + b"\n")
    with replacing(output.with_suffix(".md")) as file:
        file.write(table(result).encode())
    print(table(result))


if __name__ == "__main__":
    main()
