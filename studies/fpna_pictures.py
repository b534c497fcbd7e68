"""The pictures of studies/fpna.py and studies/workaround.py, of their files of results.

What a picture says by a colour it says by a shape or a stroke, too.
"""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator
from typing import Any

import rows

from data import DataError
from repjax.checkpoint import replacing
from repjax.verify import plots

COLOURS = {"plain": "#b04a00", "repjax": "#00664f"}
LOOKS = {
    "float64": {"color": "#7a1f5c", "marker": "s", "linestyle": ":"},
    "plain": {"color": "#b04a00", "marker": "o", "linestyle": "-"},
    "pairwise": {"color": "#d9a441", "marker": "^", "linestyle": "--"},
    "sequential": {"color": "#4a90b8", "marker": "v", "linestyle": "-."},
    "order_independent": {"color": "#00664f", "marker": "D", "linestyle": "-"},
    "exact": {"color": "#003d2f", "marker": "x", "linestyle": "-"},
}


@contextlib.contextmanager
def figure(path: pathlib.Path, width: float, height: float) -> Iterator[Any]:
    """A figure of matplotlib, written as SVG: the same numbers give the same file."""
    try:
        plots.require()
    except plots.PlotError as error:
        raise DataError(str(error)) from error
    import matplotlib
    from matplotlib.figure import Figure

    style = {"svg.hashsalt": "repjax", "svg.fonttype": "none", "font.size": 9}
    style |= {"axes.spines.top": False, "axes.spines.right": False, "legend.frameon": False}
    with matplotlib.rc_context(style):
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn
        with replacing(path) as file:
            drawn.savefig(file, format="svg", metadata={"Date": None, "Creator": None})
    print(path)


def draw(results: pathlib.Path, folder: pathlib.Path) -> None:
    """The pictures of all parts whose results are there."""
    found = {
        "sums": (histograms, "fpna-histograms"),
        "ratios": (ratios, "fpna-ratios"),
        "graph": (models, "fpna-models"),
    }
    there = {name for name in found if (results / f"fpna-{name}.json").is_file()}
    if not there:
        raise DataError(
            f"expected results of studies/fpna.py in {results}, received none; run it with --output"
        )
    for name, (picture, file) in found.items():
        if name in there:
            picture(
                rows.read(results / f"fpna-{name}.json", f"fpna-{name}"), folder / f"{file}.svg"
            )


def histograms(found: dict[str, Any], path: pathlib.Path) -> None:
    """Figures 1 and 2 of the paper, and max |Vs| against n."""
    shown = "float64, blocks", "float64, blocks, one array", "float64, permuted"
    with figure(path, 14, 6.2) as drawn:
        axes = drawn.subplots(2, 4)
        for line, (draws, ways) in zip(axes, found["histograms"].items(), strict=True):
            for place, name in zip(line, shown, strict=False):
                _histogram(place, ways[name])
                place.set_title(
                    f"{draws}\n{name.removeprefix('float64, ')}, KL {ways[name]['divergence']:.3f}"
                )
            _largest(line[3], found["sizes"], found["powers"][draws])
            line[3].set_title(f"{draws}\nmax |Vs|")


def _histogram(axes, summary: dict[str, Any]) -> None:
    counts, deviation = summary["histogram"], summary["deviation"]
    if not counts:
        axes.text(0.5, 0.5, "all 0", transform=axes.transAxes, ha="center")
        return
    width = 8 * deviation / len(counts)
    start = summary["mean"] - 4 * deviation
    places = [start + width * (k + 0.5) for k in range(len(counts))]
    density = [count / summary["count"] / width for count in counts]
    axes.bar(places, density, width, color="#4a90b8", label=f"{summary['count']} sums")
    normal = [
        2.718281828459045 ** (-(((x - summary["mean"]) / deviation) ** 2) / 2)
        / (deviation * 2.5066282746310002)
        for x in places
    ]
    axes.plot(places, normal, color="#b04a00", label="normal")
    axes.axvline(0, color="#00664f", linewidth=2.5, label="exact, order_independent")
    axes.set_xlabel("Vs")
    axes.set_yticks([])
    axes.legend(fontsize=7)


def _largest(axes, sizes: list[int], powers: dict[str, Any]) -> None:
    for way, values in powers.items():
        look, largest = LOOKS[way], values["largest"]
        if any(largest):
            points = [(n, v) for n, v in zip(sizes, largest, strict=True) if v]
            label = way + (f": n^{values['power'][1]:.2f}" if values["power"] else "")
            axes.plot(*zip(*points, strict=True), label=label, markersize=4, **look)
        else:
            axes.plot([], [], label=f"{way}: 0 for every n", **look)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("n")
    axes.legend(fontsize=7)


def ratios(found: dict[str, Any], path: pathlib.Path) -> None:
    """Figures 3 to 5: heat maps of plain JAX's Vc, and Vc and Vermv by ratio."""
    points = found["points"]
    with figure(path, 11, 6.2) as drawn:
        axes = drawn.subplots(2, 2)
        for place, name in zip(axes[0], ("scatter_reduce, sum", "index_add"), strict=True):
            _heat(drawn, place, [p for p in points if p["operation"] == name])
            place.set_title(f"Vc of {name}: plain JAX (repjax: 0 in every field)")
        for place, measure in zip(axes[1], ("vc", "vermv"), strict=True):
            for name, n, marker in (
                ("scatter_reduce, sum", 2000, "o"),
                ("scatter_reduce, mean", 2000, "s"),
                ("index_add", 100, "^"),
            ):
                _curves(
                    place,
                    [p for p in points if (p["operation"], p["n"]) == (name, n)],
                    measure,
                    marker,
                )
            place.set_title(f"V{'c' if measure == 'vc' else 'ermv'} by ratio")
            place.set_xlabel("ratio of output to input")
        axes[1, 1].set_yscale("symlog", linthresh=1e-9)
        axes[1, 0].legend(fontsize=7)


def _heat(drawn, axes, points: list[dict[str, Any]]) -> None:
    sizes, chosen = (sorted({p[key] for p in points}) for key in ("n", "ratio"))
    table = [[0.0] * len(sizes) for _ in chosen]
    for p in points:
        table[chosen.index(p["ratio"])][sizes.index(p["n"])] = p["plain"]["vc"][0]
    image = axes.imshow(table, origin="lower", aspect="auto", cmap="viridis", vmin=0, vmax=1)
    for row, values in enumerate(table):
        for column, value in enumerate(values):
            colour = "black" if value > 0.6 else "white"
            axes.text(
                column, row, f"{value:.2f}", ha="center", va="center", color=colour, fontsize=6
            )
    axes.set_xticks(range(len(sizes)), sizes)
    axes.set_yticks(range(len(chosen)), chosen)
    axes.set_xlabel("n")
    axes.set_ylabel("ratio")
    drawn.colorbar(image, ax=axes)


def _curves(axes, points: list[dict[str, Any]], measure: str, marker: str) -> None:
    for way in ("plain", "repjax"):
        means, deviations = zip(*(p[way][measure] for p in points), strict=True)
        label = f"{points[0]['operation']}, n = {points[0]['n']}: {way}" if points else None
        axes.errorbar(
            [p["ratio"] for p in points],
            means,
            deviations,
            marker=marker,
            markersize=4,
            color=COLOURS[way],
            linestyle="-" if way == "plain" else "--",
            label=label,
        )


def models(found: dict[str, Any], path: pathlib.Path) -> None:
    """How far the weights of the models of Table 7 are apart after each epoch."""
    with figure(path, 11, 3.2) as drawn:
        axes = drawn.subplots(1, 2)
        for place, measure in zip(axes, ("vermv", "vc"), strict=True):
            for way in ("plain", "repjax"):
                means, deviations = zip(*found["weights"][f"{way}, ND"][measure], strict=True)
                epochs = range(1, len(means) + 1)
                low = [max(m - d, 0) for m, d in zip(means, deviations, strict=True)]
                high = [m + d for m, d in zip(means, deviations, strict=True)]
                place.fill_between(epochs, low, high, color=COLOURS[way], alpha=0.2, linewidth=0)
                different = found["weights"][f"{way}, ND"]["different models"]
                stroke = "-" if way == "plain" else "--"
                place.plot(
                    epochs,
                    means,
                    stroke,
                    color=COLOURS[way],
                    label=f"{way}: {different} sets of weights" if different > 1 else f"{way}: one",
                )
            name = "Vermv" if measure == "vermv" else "Vc"
            place.set_title(f"{name} of weights, {found['models']} models, edges in any order")
            place.set_xlabel("epoch")
            place.legend()
