"""Two trainings that part, and two that do not: the picture in README.md.

    python benchmarks/parting.py [--output benchmarks/results/parting]

The training of ``examples/train_digits.py`` as it is, LeNet-5 on scikit-learn's digits, runs in
plain JAX and with repjax, each compiled for SSE4.2 and for AVX-512.  After each step it is counted
how many weights have other bits with the one than with the other.  With --output, writes
OUTPUT.json, and of that docs/parting.svg, whose colours follow those of the reader's system.
"""

from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import sys
import tempfile
from typing import Any

import jax
import numpy as np
from cpu import environment

import repjax
from repjax.verify.prove import write_json, write_text

ROOT = pathlib.Path(__file__).parents[1]
PICTURE = ROOT / "docs" / "parting.svg"
ISAS = {"SSE4_2": "SSE4.2", "AVX512": "AVX-512"}
MODES = {"plain": "plain JAX", "reproducible": "repjax"}


def train(mode: str, path: str) -> None:
    """One training: writes all weights after every step, as bits, and prints their digest."""
    sys.path.insert(0, str(ROOT / "examples"))
    import optax
    import train_digits as example

    options = example.parse(["--mode", mode])
    data, way = example.load_digits(32), example.make_mode(mode)
    model = example.MODELS[options.model](
        classes=data.classes,
        activation=options.activation,
        pool=options.pool,
        layers=way.layers,
    )
    optimizer = way.optimizer(optax.adam(options.learning_rate))
    trainer = example.Trainer(model, optimizer, way)
    initial, order = jax.random.split(jax.random.key(options.seed, impl="threefry2x32"))
    state = trainer.initialize(initial)
    steps = [_bits(state)]
    for epoch in range(options.epochs):
        count = len(data.train.labels)
        for batch in example.batches(order, epoch, count, options.batch_size):
            images = data.images(data.train, batch)
            state, _ = trainer.step(state, images, data.train.labels[batch])
            steps.append(_bits(state))
    np.save(path, np.stack(steps))
    print(repjax.digest(state["params"]))


def _bits(state) -> np.ndarray:
    leaves = jax.tree.leaves(state["params"])
    return np.concatenate([np.asarray(leaf).view(np.uint32).ravel() for leaf in leaves])


def measure() -> dict[str, Any]:
    """Of each mode: in how many weights the two differ after each step, and both digests."""
    found: dict[str, Any] = {"environment": environment()}
    for mode in MODES:
        digests, weights = {}, []
        for isa in ISAS:
            with tempfile.TemporaryDirectory() as folder:
                path = str(pathlib.Path(folder) / "weights.npy")
                result = subprocess.run(
                    [sys.executable, __file__, "--train", mode, path],
                    env={**os.environ, "XLA_FLAGS": f"--xla_cpu_max_isa={isa}"},
                    stdout=subprocess.PIPE,
                    text=True,
                    check=True,
                )
                digests[isa] = result.stdout.strip()
                weights.append(np.load(path))
        first, second = weights
        found["weights"] = first.shape[1]
        found[mode] = {"digests": digests, "differ": (first != second).sum(1).tolist()}
    return found


# --- the picture ------------------------------------------------------------------------

#: The place of the axes, in a picture of WIDTH by HEIGHT.
WIDTH, HEIGHT = 640, 330
LEFT, RIGHT, TOP, BOTTOM = 66, 366, 58, 260
_STYLE = """
  svg { --page: #ffffff; --ink: #1f2328; --soft: #59636e; --line: #d1d9e0; }
  svg { --plain: #bc4c00; --repjax: #00796b; }
  @media (prefers-color-scheme: dark) {
    svg { --page: #151b23; --ink: #f0f6fc; --soft: #9198a1; --line: #3d444d; }
    svg { --plain: #f0883e; --repjax: #4db6ac; }
  }
  text { font: 15px system-ui, -apple-system, "Segoe UI", sans-serif; fill: var(--soft); }
  .title { font-size: 18px; font-weight: 600; fill: var(--ink); }
  .digest { font: 14px ui-monospace, Menlo, Consolas, monospace; fill: var(--ink); }
  .plain { font-weight: 600; fill: var(--plain); }
  .repjax { font-weight: 600; fill: var(--repjax); }
  path { fill: none; stroke-width: 3; stroke-linejoin: round; }
"""


def draw(found: dict[str, Any]) -> str:
    """The picture as SVG."""
    count, steps = found["weights"], len(found["plain"]["differ"]) - 1
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img">',
        "<title>Two trainings in plain JAX part, and two with repjax do not</title>",
        f"<style>{_STYLE}</style>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="8" style="fill: var(--page)"/>',
        _text(LEFT - 50, 32, "Weights with other bits on another instruction set", "title"),
    ]
    for share in (0, 50, 100):
        y = _y(share / 100)
        line = f'x1="{LEFT}" x2="{RIGHT}" y1="{y}" y2="{y}" style="stroke: var(--line)"'
        parts += [f"<line {line}/>", _text(LEFT - 8, y + 5, f"{share} %", anchor="end")]
    for step in (0, steps // 2, steps):
        parts.append(_text(_x(step / steps), BOTTOM + 24, str(step), anchor="middle"))
    parts.append(_text((LEFT + RIGHT) / 2, BOTTOM + 46, "training step", anchor="middle"))
    for mode, name in MODES.items():
        kind = "plain" if mode == "plain" else "repjax"
        differ, digests = found[mode]["differ"], found[mode]["digests"]
        points = " ".join(f"{_x(n / steps)},{_y(d / count)}" for n, d in enumerate(differ))
        parts.append(f'<path d="M {points}" style="stroke: var(--{kind})"/>')
        share = f"{100 * differ[-1] / count:.1f} %" if differ[-1] else "none"
        y = max(_y(differ[-1] / count) + 2, TOP + 6) - (44 if not differ[-1] else 0)
        parts.append(_text(RIGHT + 16, y, f"{name}: {share} of {count:,}", kind))
        for row, (isa, digest) in enumerate(digests.items(), 1):
            short = digest.removeprefix("sha256:")[:12]
            parts.append(_text(RIGHT + 16, y + 22 * row, ISAS[isa]))
            parts.append(_text(RIGHT + 84, y + 22 * row, f"{short}...", "digest"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def _x(part: float) -> float:
    return round(LEFT + (RIGHT - LEFT) * part, 1)


def _y(part: float) -> float:
    return round(BOTTOM - (BOTTOM - TOP) * part, 1)


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    kind = f' class="{kind}"' if kind else ""
    return f'<text x="{x:g}" y="{y:g}" text-anchor="{anchor}"{kind}>{text}</text>'


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=pathlib.Path, help="write OUTPUT.json and the picture")
    parser.add_argument("--train", nargs=2, metavar=("MODE", "FILE"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.train:
        train(*arguments.train)
        return 0
    if "avx512f" not in pathlib.Path("/proc/cpuinfo").read_text().split():
        print("expected a processor with AVX-512; run it on another machine", file=sys.stderr)
        return 2
    found = measure()
    for mode, name in MODES.items():
        last = found[mode]["differ"][-1]
        print(
            f"{name}: {last} of {found['weights']} weights differ", *found[mode]["digests"].values()
        )
    if arguments.output:
        write_json(arguments.output.with_suffix(".json"), found)
        write_text(PICTURE, draw(json.loads(arguments.output.with_suffix(".json").read_text())))
    return 0


if __name__ == "__main__":
    sys.exit(main())
