"""Time against size for each kind of kernel, beside plain JAX and what the processor can do.

    python benchmarks/scaling.py [--threads 1 2] [--minutes 4] [--output benchmarks/results/scaling]
        [--picture docs/scaling.png]

Each number of threads has a process of its own, on as many processors.  The sizes of a case grow
until a call takes a second.  Plain JAX and repjax are called in turns; a figure is the smallest
time.  The *roof* of a case is the least time in which the processor could move its operands and
results to and from memory and do its operations: the larger of bytes / (bytes a second) and
operations / (operations a second), which peaks.c measures, compiled with ``cc``.  What lies in a
cache may be faster.  The operations of ``order_independent`` products are those of the kernel for
VNNI, on integers; with another kernel they have no roof.

With --output, writes OUTPUT.md and .json; with --picture draws time against size, a picture a case,
for which matplotlib must be installed.  Exit status: 0; 2 if a request cannot be met.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
from cpu import environment, values
from jax import lax

import repjax
from repjax.verify import conformance
from repjax.verify.progress import Bar

PEAKS = pathlib.Path(__file__).with_name("peaks.c")
LONGEST = 1.0  # seconds of a call
#: Of a product of two numbers by VNNI: three products of 16-bit words (docs/kernels.md), each of
#: which takes the time of two of bytes.
DIGITS = 6

Row = dict[str, Any]


class Work(NamedTuple):
    """What a call has to do: bytes of operands and results, operations of a kind of ``peaks.c``."""

    bytes: float
    operations: float = 0
    kind: str = "float32"


class Case(NamedTuple):
    """A function of arrays, for each size.

    Attributes:
      sizes: the sizes n, ascending.
      shapes: of n, the shapes of the operands.
      function: in stock JAX.
      work: of n.
      options: of ``repjax.reproducible``.
    """

    sizes: tuple[int, ...]
    shapes: Callable[[int], list[tuple[int, ...]]]
    function: Callable[..., jax.Array]
    work: Callable[[int], Work]
    options: dict[str, str]


def cases() -> dict[str, Case]:
    """By name.  n is the number of elements, or of rows and columns of square matrices."""
    elements = tuple(4**k for k in range(5, 13))
    squares = tuple(2**k for k in range(4, 12))

    def of_elements(function, copies=2, **options):
        return Case(
            elements, lambda n: [(n,)], function, lambda n: Work(4 * copies * n, n), options
        )

    def of_rows(function):
        return of_elements(function)._replace(shapes=lambda n: [(n // 256, 256)])

    def of_squares(function, operations, **options):
        return Case(squares, lambda n: [(n, n)] * 2, function, operations, options)

    def product(n, factor=1, kind="float32"):
        return Work(12 * n * n, factor * 2 * n**3, kind)

    return {
        "add": Case(elements, lambda n: [(n,)] * 2, lax.add, lambda n: Work(12 * n, n), {}),
        "exp": of_elements(lax.exp),
        "sum, pairwise": of_elements(lambda x: x.sum(), copies=1),
        "sum, sequential": of_elements(lambda x: x.sum(), copies=1, accumulation="sequential"),
        "sum, order_independent": of_elements(
            lambda x: x.sum(), copies=1, accumulation="order_independent"
        ),
        "sum, exact": of_elements(lambda x: x.sum(), copies=1, accumulation="exact"),
        "softmax of rows of 256": of_rows(jax.nn.softmax),
        "layer norm of rows of 256": of_rows(jax.nn.standardize),
        "segment_sum of rows of 16": Case(
            elements, lambda n: [(n // 16, 16)], _segment_sum, lambda n: Work(8 * n, n), {}
        ),
        "matrix times vector": Case(
            squares,
            lambda n: [(n, n), (n,)],
            lax.dot,
            lambda n: Work(4 * n * n, 2 * n * n),
            {},
        ),
        "product, sequential": of_squares(lax.dot, product),
        "product, order_independent": of_squares(
            lax.dot,
            functools.partial(product, factor=DIGITS, kind="int8"),
            contraction="order_independent",
        ),
        "product, exact": of_squares(lax.dot, product, contraction="exact"),
        "convolution 3x3 of n x n x 32": Case(
            squares[:6],
            lambda n: [(1, n, n, 32), (3, 3, 32, 32)],
            _convolution,
            lambda n: Work(8 * 32 * n * n, 2 * 9 * 32 * 32 * n * n),
            {},
        ),
        "Cholesky": Case(
            squares[:6],
            lambda n: [(n, n)],
            lambda x: jax.numpy.linalg.cholesky(x @ x.T + len(x) * jax.numpy.eye(len(x))),
            lambda n: Work(8 * n * n, 2 * n**3 + n**3 / 3),
            {},
        ),
    }


def _segment_sum(x):
    segments = max(1, len(x) // 8)
    return jax.ops.segment_sum(x, jax.numpy.arange(len(x)) * 7919 % segments, segments)


def _convolution(images, kernel):
    return lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC")
    )


# --- measuring ----------------------------------------------------------------------------


def measure(name: str, case: Case, seconds: float) -> list[Row]:
    """A row for each size, until a call takes too long."""
    rows = []
    for n in case.sizes:
        operands = [values(shape, seed) for seed, shape in enumerate(case.shapes(n))]
        plain = jax.jit(lambda *xs: case.function(*xs))
        calls = {"plain": plain, "repjax": repjax.reproducible(case.function, **case.options)}
        best = dict.fromkeys(calls, float("inf"))
        for call in calls.values():
            jax.block_until_ready(call(*operands))
        end = time.perf_counter() + seconds / len(case.sizes)
        turns = 0
        while turns < 3 or time.perf_counter() < end:
            for way, call in calls.items():
                begun = time.perf_counter()
                for _ in range(1000):
                    start = time.perf_counter()
                    jax.block_until_ready(call(*operands))
                    now = time.perf_counter()
                    best[way] = min(best[way], now - start)
                    if now - begun > 0.01:
                        break
            turns += 1
        rows.append({"case": name, "n": n, **best})
        if max(best.values()) > LONGEST:
            break
    return rows


def of_threads(number: int, names: list[str], minutes: float) -> list[Row]:
    """The rows of all cases, in a process on so many processors."""
    options = ["--minutes", str(minutes), "--only", *names]
    command = [sys.executable, __file__, "--child", str(number), *options]
    result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(result.stdout)


def child(number: int, names: list[str], minutes: float) -> list[Row]:
    found = {name: case for name, case in cases().items() if name in names}
    rows = []
    with Bar(len(found)) as bar:
        for place, (name, case) in enumerate(found.items()):
            bar.show(place, f"{number} threads: {name}")
            rows += measure(name, case, 60 * minutes / len(found))
            jax.clear_caches()
    return [{"threads": number, **row} for row in rows]


def peaks(threads: int) -> dict[str, float | None]:
    """What so many processes do in a second, together, by kind; empty without a compiler."""
    with tempfile.TemporaryDirectory() as folder:
        program = pathlib.Path(folder) / "peaks"
        options = ["-O3", "-march=native", "-ffp-contract=fast"]
        try:
            subprocess.run(["cc", *options, PEAKS, "-o", program], check=True, capture_output=True)
        except (OSError, subprocess.CalledProcessError):
            return {}
        runs = [
            subprocess.Popen(program, stdout=subprocess.PIPE, text=True) for _ in range(threads)
        ]
        found = [json.loads(run.communicate()[0]) for run in runs]
    return {kind: sum(x[kind] for x in found) if found[0][kind] else None for kind in found[0]}


def roof(case: Case, n: int, found: dict[str, float | None]) -> float | None:
    """Seconds, or None where a peak that it needs is unknown."""
    work = case.work(n)
    is_known = work.kind != "int8" or repjax.info()["cpu products"].endswith("AVX512_VNNI")
    if not is_known or not found.get("bytes") or not found.get(work.kind):
        return None
    return max(work.bytes / found["bytes"], work.operations / found[work.kind])


# --- output -------------------------------------------------------------------------------


def page(rows: list[Row], found: dict[str, Any], info: dict[str, str]) -> str:
    lines = ["# Time against size", ""]
    lines += [f"{key}: {value}  " for key, value in info.items() if value]
    lines += ["", "What the processor does in a second, by `peaks.c`:", ""]
    lines += ["| threads | GB | float32, Gflop | int8, Gop |", "| ---: | ---: | ---: | ---: |"]
    for threads, values_of in found.items():
        cells = (values_of.get(kind) for kind in ("bytes", "float32", "int8"))
        texts = (f"{x / 1e9:.0f}" if x else "unknown" for x in cells)
        lines.append(f"| {threads} | {' | '.join(texts)} |")
    lines += ["", "Milliseconds.", ""]
    lines += ["| case | threads | n | roof | plain | repjax | ratio |"]
    lines += ["| --- | ---: | ---: | ---: | ---: | ---: | ---: |"]
    for row in rows:
        least = "" if row["roof"] is None else f"{row['roof'] * 1e3:.4f}"
        times = f"{row['plain'] * 1e3:.4f} | {row['repjax'] * 1e3:.4f}"
        ratio = f"{row['repjax'] / row['plain']:.2f}"
        lines.append(
            f"| {row['case']} | {row['threads']} | {row['n']} | {least} | {times} | {ratio} |"
        )
    return "\n".join(lines) + "\n"


def plot(rows: list[Row], path: pathlib.Path) -> None:
    """A picture a case: time against size, on logarithmic axes, for each number of threads."""
    import matplotlib
    from matplotlib.figure import Figure
    from matplotlib.ticker import NullFormatter

    names = list(dict.fromkeys(row["case"] for row in rows))
    with matplotlib.rc_context({"font.size": 8}):
        columns = min(3, len(names))
        lines = -(-len(names) // columns)
        figure = Figure(figsize=(3.4 * columns, 2.6 * lines), layout="constrained")
        pictures = figure.subplots(lines, columns, squeeze=False).flat
        colours = {"plain": "#b04a00", "repjax": "#00664f", "roof": "#777777"}
        for name, picture in zip(names, pictures, strict=False):
            for threads in sorted({row["threads"] for row in rows}):
                found = [r for r in rows if r["case"] == name and r["threads"] == threads]
                for way, colour in colours.items():
                    points = [(r["n"], r[way]) for r in found if r[way]]
                    style = {"color": colour, "linestyle": ":" if way == "roof" else "-"}
                    style |= {
                        "linewidth": 0.8 + 0.5 * (threads > 1),
                        "marker": "" if way == "roof" else ".",
                    }
                    label = f"{way}, {threads}"
                    if points:
                        picture.loglog(*zip(*points, strict=True), label=label, **style)
            picture.set_title(name)
            picture.xaxis.set_minor_formatter(NullFormatter())
            picture.yaxis.set_minor_formatter(NullFormatter())
        for picture in list(pictures):
            picture.set_visible(False)
        handles = figure.axes[0].get_legend_handles_labels()
        figure.legend(
            *handles, loc="outside lower center", ncols=6, title="seconds against n; threads"
        )
        figure.savefig(path, dpi=110)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0])
    every = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    parser.add_argument(
        "--threads", type=int, nargs="+", metavar="N", help="1, 2, 4 ... without it"
    )
    parser.add_argument("--minutes", type=float, default=4.0, help="for all, 4 without it")
    parser.add_argument("--only", nargs="+", metavar="CASE", help="cases by their names")
    parser.add_argument("--output", type=pathlib.Path, help="write OUTPUT.md and .json")
    parser.add_argument("--picture", type=pathlib.Path, help="draw time against size, as PNG")
    parser.add_argument("--child", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args(argv)
    names = arguments.only or list(cases())
    if unknown := sorted(set(names) - set(cases())):
        parser.error(f"--only: expected cases among {', '.join(cases())}; received {unknown}")
    if arguments.child:
        print(json.dumps(child(arguments.child, names, arguments.minutes)))
        return 0
    threads = arguments.threads or [n for n in (1, 2, 4, 8, 16, 32, 64) if n <= every]
    if wrong := [n for n in threads if not 1 <= n <= every]:
        parser.error(f"--threads: expected 1 to {every}, the processors here, received {wrong}")
    if not arguments.minutes > 0:
        parser.error(f"--minutes: expected more than 0, received {arguments.minutes}")
    if every > 1 and not hasattr(os, "sched_setaffinity"):
        parser.error("expected a platform on which a process can be given some processors: Linux")
    rows, found = [], {}
    before = os.sched_getaffinity(0)
    for number in threads:
        os.sched_setaffinity(0, sorted(before)[:number])
        found[number] = peaks(number)
        rows += of_threads(number, names, arguments.minutes / len(threads))
        os.sched_setaffinity(0, before)
    for row in rows:
        row["roof"] = roof(cases()[row["case"]], row["n"], found[row["threads"]])
    info = {**environment(), "products": repjax.info()["cpu products"]}
    text = page(rows, found, info)
    print(text)
    if arguments.output:
        figures = {"environment": info, "peaks": found, "rows": rows}
        conformance.write(arguments.output, figures, text)
    if arguments.picture:
        plot(rows, arguments.picture)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
