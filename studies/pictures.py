"""The pictures of docs/studies.md, drawn of the results of the studies.

    python studies/pictures.py

Those of ``studies/fpna.py`` and ``studies/workaround.py`` are drawn by modules of their own.  A
picture of ``studies/chen.py`` shows one study: above, the losses and the accuracies (or the
validation errors) of all runs of two setups by epoch; below, by how much the losses of a pair's two
runs differ, and at which step the bits of a pair's parameters first differ.  Where nothing differs,
a line is at 0 and a pair has no point.  Studies of one epoch have no picture.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

import fpna_pictures
import workaround_pictures

from data import DataError
from repjax.checkpoint import replacing
from repjax.verify import plots

ROOT = pathlib.Path(__file__).parents[1]
RESULTS, PICTURES = ROOT / "studies" / "results", ROOT / "docs" / "studies"
#: The setups, in the order of the legend, with colours that differ in lightness, too.
COLOURS = {
    "original": "#b04a00",
    "repjax": "#d9a441",
    "seeds": "#7a1f5c",
    "seeds, repjax": "#00664f",
    "record, repjax": "#4a90b8",
}


def draw(result: dict[str, Any], path: pathlib.Path) -> None:
    import matplotlib
    from matplotlib.figure import Figure

    style = {"svg.hashsalt": "repjax", "svg.fonttype": "none", "font.size": 9}
    style |= {"axes.spines.top": False, "axes.spines.right": False}
    with matplotlib.rc_context(style):
        figure = Figure(figsize=(9.5, 6.4), layout="constrained")
        (losses, metrics), (differences, places) = figure.subplots(2, 2)
        setups = {name: result["setups"][name] for name in COLOURS if name in result["setups"]}
        _bands(losses, setups, "loss", "mean loss of the training batches")
        if "correct" in result["setups"]["seeds"]["curves"][0]:
            _bands(metrics, setups, "correct", "test examples that are classified right")
        else:
            _bands(metrics, setups, "validation", "mean absolute error on validation data")
        _differences(differences, setups)
        _places(places, setups)
        figure.savefig(path, format="svg", metadata={"Date": None, "Creator": None})


def read(path: pathlib.Path) -> dict[str, Any]:
    """The results of a study, or a ValueError."""
    try:
        result = json.loads(path.read_text())
        if (result["format"], result["version"]) == ("repjax study of Chen et al.", 1):
            return result
    except (ValueError, KeyError, TypeError):
        pass
    raise ValueError(f"expected results of studies/chen.py, received another file, {path}; move it")


def _curves(setup: dict[str, Any], name: str = "loss") -> list[list[float]]:
    def number(x):
        return float.fromhex(x) if isinstance(x, str) else x

    return [[number(x) for x in curve[name]] for curve in setup["curves"]]


def _bands(axes, setups, name: str, title: str) -> None:
    """The band of all runs in plain JAX and with recordings, and the runs themselves."""
    shown = [x for x in ("original", "record, repjax") if x in setups]
    for setup in shown or ["seeds", "seeds, repjax"]:
        curves, colour = _curves(setups[setup], name), COLOURS[setup]
        length = min(map(len, curves))
        columns = [[curve[n] for curve in curves] for n in range(length)]
        low, high = ([f(column) for column in columns] for f in (min, max))
        axes.fill_between(range(1, length + 1), low, high, color=colour, alpha=0.2, linewidth=0)
        for number, curve in enumerate(curves):
            label = f"{setup}: {len(curves)} runs" if not number else None
            epochs = range(1, len(curve) + 1)
            axes.plot(epochs, curve, color=colour, linewidth=0.7, label=label)
    axes.set_title(title)
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)


def _differences(axes, setups) -> None:
    for name, setup in setups.items():
        curves = _curves(setup)
        pairs = [zip(*pair, strict=False) for pair in zip(curves[::2], curves[1::2], strict=True)]
        every = [[abs(a - b) / abs(a) for a, b in pair] for pair in pairs]
        width = 0.8 if any(map(any, every)) else 2.5
        for number, apart in enumerate(every):
            label = name if not number else None
            epochs = range(1, len(apart) + 1)
            axes.plot(epochs, apart, label=label, linewidth=width, color=COLOURS[name])
    axes.set_yscale("symlog", linthresh=1e-9)
    axes.set_ylim(bottom=-3e-10)
    axes.set_title("relative difference of the losses of a pair")
    axes.set_xlabel("epoch")
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend(frameon=False)


def _places(axes, setups) -> None:
    names = list(setups)
    for row, name in enumerate(names):
        found = [pair["first step that differs"] for pair in setups[name]["pairs"]]
        parted = [step for step in found if step is not None]
        # Pairs that part at the same step stand above each other.
        heights = [row + 0.06 * parted[:n].count(step) for n, step in enumerate(parted)]
        axes.plot([step + 1 for step in parted], heights, "o", color=COLOURS[name], markersize=4)
        if not parted:
            axes.text(1, row, "none", color=COLOURS[name], va="center")
    steps = max(pair["steps"] for setup in setups.values() for pair in setup["pairs"])
    axes.set_xscale("log")
    axes.set_xlim(0.8, steps)
    axes.set_ylim(-0.5, len(names) - 0.3)
    axes.set_yticks(range(len(names)), names)
    axes.set_title("first step whose parameters differ in a pair")
    axes.set_xlabel(f"step, of {steps}")


def main(argv=None) -> int:
    parser = argparse.ArgumentParser(
        description="Draw the pictures of docs/studies.md.",
        epilog="example: python studies/pictures.py --results studies/results --output /tmp",
    )
    parser.add_argument("--results", type=pathlib.Path, default=RESULTS, help="a folder")
    parser.add_argument("--output", type=pathlib.Path, default=PICTURES, help="another folder")
    options = parser.parse_args(argv)
    try:
        plots.require()
        found = sorted(options.results.glob("chen-*.json"))
        if not found:
            raise ValueError(
                f"expected results of studies/chen.py in {options.results}, received none; run it "
                "with --output there"
            )
        options.output.mkdir(parents=True, exist_ok=True)
        for path in found:
            picture = options.output / f"{path.stem}.svg"
            result = read(path)
            if result["study"]["epochs"] == 1:
                continue  # there is no curve
            with replacing(picture) as file:
                draw(result, file)
            print(picture)
        for part, name in (
            (fpna_pictures, "fpna-*.json"),
            (workaround_pictures, "workaround.json"),
        ):
            if any(options.results.glob(name)):
                part.draw(options.results, options.output)
    except (DataError, OSError, ValueError, KeyError, AttributeError) as error:
        print(f"pictures.py: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
