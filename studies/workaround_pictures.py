"""The picture of studies/workaround.py: where two runs part."""

from __future__ import annotations

import pathlib
from typing import Any

import rows
from fpna_pictures import COLOURS, figure

#: Ways of the study, as the picture calls them.
NAMES = {"plain": "plain", "sequential": "repjax"}


def draw(results: pathlib.Path, folder: pathlib.Path) -> None:
    """``workaround.svg``: by how much losses differ, and the correct images of each epoch."""
    found = rows.read(results / "workaround.json", "workaround")
    with figure(folder / "workaround.svg", 11, 3.4) as drawn:
        axes = drawn.subplots(1, 3)
        trainings = {(t["way"], t["form"], t["platform"]): t for t in found["trainings"]}
        platforms = sorted({platform for _, _, platform in trainings})
        _apart(axes[0], trainings, [("bias", platforms[0]), ("bias", platforms[1])])
        axes[0].set_title("two platforms, bias added")
        _apart(axes[1], trainings, [("ones", platforms[0]), ("ones", platforms[1])])
        axes[1].set_title("two platforms, a column of ones")
        _correct(axes[2], trainings)


def _apart(axes, trainings: dict[tuple[str, str, str], Any], runs) -> None:
    for way, name in NAMES.items():
        first, second = ([float.fromhex(x) for x in trainings[way, *run]["losses"]] for run in runs)
        apart = [abs(a - b) / a for a, b in zip(first, second, strict=True)]
        parted = next((k for k, x in enumerate(apart, 1) if x), None)
        label = f"{name}: part in step {parted}" if parted else f"{name}: never part"
        stroke = "-" if way == "plain" else "--"
        width = 0.8 if parted else 2.5
        axes.plot(
            range(1, len(apart) + 1),
            apart,
            stroke,
            color=COLOURS[name],
            linewidth=width,
            label=label,
        )
    axes.set_yscale("symlog", linthresh=1e-8)
    axes.set_ylim(bottom=-3e-9)
    axes.set_xlabel("step")
    axes.set_ylabel("difference of the losses, relative")
    axes.legend()


def _correct(axes, trainings: dict[tuple[str, str, str], Any]) -> None:
    for way, name in NAMES.items():
        runs = [t for (w, _, _), t in trainings.items() if w == way]
        for number, run in enumerate(runs):
            correct = [line["correct"] for line in run["epochs"]]
            different = len({tuple(line["correct"] for line in t["epochs"]) for t in runs})
            curves = "one curve" if different == 1 else f"{different} curves"
            label = f"{name}: {len(runs)} runs, {curves}" if not number else None
            stroke = "-" if way == "plain" else "--"
            axes.plot(range(1, len(correct) + 1), correct, stroke, color=COLOURS[name], label=label)
    axes.set_title("correct images of 10,000")
    axes.set_xlabel("epoch")
    axes.legend()
