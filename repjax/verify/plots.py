"""Figures of reports, as SVG that stands in a page: drawn by matplotlib, an optional library.

A figure is the same text for the same numbers and version of matplotlib.  Its text is text, and its
colours are the page's (:mod:`repjax.verify.page`).  What a figure says by a colour it says by a
shape, a stroke or a word, too.
"""

from __future__ import annotations

import bisect
import contextlib
import io
import itertools
import math
import re
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from repjax.verify import page
from repjax.verify.parting import AGREES, DIFFERS, MISSING

#: Sizes in units of about a pixel.
WIDTH, HEIGHT, WIDE, ROW = 440, 250, 960, 17
#: Lines and points of runs, so that they differ without colours.
_DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (7, 2, 1.5, 2)))
_MARKERS = "os^Dv<>p"
#: With more points than these a line has no markers.
_MOST_MARKERS = 40
#: Colours that stand for variables of the page.
_COLOURS = {name: f"#0000{i + 1:02x}" for i, name in enumerate(page.COLOURS)} | {
    f"series-{i}": f"#0001{i:02x}" for i in range(len(page.SERIES))
}


class PlotError(ValueError):
    """Figures cannot be drawn here."""


class Series(NamedTuple):
    """Numbers by their place; None where there is none, NaN and infinities where they are that."""

    name: str
    values: Sequence[float | None]


def require() -> None:
    """Whether matplotlib is there, before long work.

    Raises:
      PlotError: it is not.
    """
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise PlotError(
            f"expected matplotlib, which draws the figures, received {error}; "
            "pip install 'repjax[instruments]'"
        ) from error


@contextlib.contextmanager
def _figure(width: float, height: float) -> Iterator[tuple[Any, Any]]:
    """A figure of this size with one pair of axes, in our style and nobody else's."""
    import matplotlib
    from matplotlib.figure import Figure

    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": "repjax",
        "text.parse_math": False,
        "font.size": 11,
        "axes.edgecolor": _COLOURS["muted"],
        "axes.labelcolor": _COLOURS["muted"],
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.formatter.useoffset": False,
        "xtick.color": _COLOURS["muted"],
        "ytick.color": _COLOURS["muted"],
        "text.color": _COLOURS["ink"],
        "grid.color": _COLOURS["rule"],
        "grid.linewidth": 0.7,
        "legend.frameon": False,
        "hatch.linewidth": 0.8,
    }
    with matplotlib.rc_context(), warnings.catch_warnings():
        # A glyph that matplotlib's font lacks is no loss: the reader's fonts draw the text.
        warnings.filterwarnings("ignore", message=".*[Gg]lyph")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(style)
        figure = Figure(figsize=(width / 72, height / 72), layout="constrained")
        axes = figure.add_subplot()
        for patch in (figure.patch, axes.patch):
            patch.set_visible(False)
        axes.set_axisbelow(True)
        yield figure, axes


def _svg(figure, name: str, title: str, text: str) -> str:
    """The figure as an element of a page; ``name`` keeps its identifiers from those of others."""
    buffer = io.StringIO()
    nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
    figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    drawing = buffer.getvalue()
    drawing = drawing[drawing.index("<svg") :]
    drawing = re.sub(r"<metadata>.*?</metadata>\s*", "", drawing, flags=re.DOTALL)
    view = re.search(r'viewBox="[^"]*"', drawing)[0]
    label = page.escape(f"{title}. {text}")
    head = f'<svg {view} role="img" aria-label="{label}">'
    drawing = re.sub(r"<svg[^>]*>", lambda _: head, drawing, count=1)
    drawing = re.sub(r'\b(id="|href="#|url\(#)', rf"\g<1>{name}-", drawing)
    drawing = re.sub(r"font: (\d+)px [^;\"]*", r"font-size: \1px", drawing)
    for colour, code in _COLOURS.items():
        drawing = drawing.replace(code, f"var(--{colour})")
    return drawing.replace("xlink:href", "href")


def _text(text: str) -> str:
    return page.plain(text).replace("\n", " ")


def shortened(name: str, most: int = 44) -> str:
    """A name without its middle, if it is long."""
    if len(name) <= most:
        return name
    return f"{name[: most // 3]}…{name[-(most - most // 3 - 1) :]}"


def _style(number: int) -> dict[str, Any]:
    """How a run is drawn: the first by a broad line that later ones do not hide."""
    return {
        "color": _COLOURS[f"series-{number % len(page.SERIES)}"],
        "linestyle": _DASHES[(number + number // len(page.SERIES)) % len(_DASHES)],
        "linewidth": 3.4 if number == 0 else 1.6,
        "marker": _MARKERS[number % len(_MARKERS)],
        "markersize": 6.5 if number == 0 else 4,
        "markeredgewidth": 0,
    }


def _legend(figure, axes, count: int) -> None:
    if count > 1:
        figure.legend(
            *axes.get_legend_handles_labels(), loc="outside upper left", ncols=6, handlelength=2.6
        )


def _integers(axis) -> None:
    from matplotlib.ticker import MaxNLocator

    axis.set_major_locator(MaxNLocator(integer=True, nbins=8))


def _is_number(x: float | None) -> bool:
    """Whether it has a place on an axis; beyond are NaN, infinities and what is nearly one."""
    return x is not None and abs(x) < 1e300


def lines(
    name: str,
    title: str,
    text: str,
    series: Sequence[Series],
    label: str,
    *,
    places: str = "epoch",
) -> str:
    """Numbers by epoch, or by other places.

    The axis is logarithmic where they are positive and far apart.
    What is no finite number, or has no place, has a cross and its name at the upper edge.
    """
    finite = [x for s in series for x in s.values if _is_number(x)]
    logarithmic = bool(finite) and min(finite) > 1e-300 and max(finite) > 50 * min(finite)
    with _figure(WIDTH, HEIGHT) as (figure, axes):
        for i, s in enumerate(series):
            at = [k for k, x in enumerate(s.values) if x is not None]
            values = [x if _is_number(x) else math.nan for x in s.values if x is not None]
            style = _style(i)
            if len(s.values) > _MOST_MARKERS:
                style["marker"] = None
            axes.plot(at, values, label=_text(s.name), zorder=2 + i / 100, **style)
            _others(axes, s, style["color"])
        if logarithmic:
            axes.set_yscale("log")
            axes.yaxis.set_major_formatter(lambda x, _: f"{x:g}")
            axes.yaxis.set_minor_formatter(lambda *_: "")
        axes.set_xlabel(places)
        axes.set_ylabel(_text(shortened(label, 30)) + (" (logarithmic)" if logarithmic else ""))
        axes.grid(axis="y")
        _integers(axes.xaxis)
        if not finite:
            axes.set_yticks([])
        _legend(figure, axes, len(series))
        return _svg(figure, name, title, text)


def _others(axes, series: Series, colour: str) -> None:
    """Crosses for NaN and infinities, named where they begin."""
    found = [(k, x) for k, x in enumerate(series.values) if x is not None and not _is_number(x)]
    at = axes.get_xaxis_transform()
    places = [k for k, _ in found]
    if places:
        axes.plot(places, [0.97] * len(places), "x", color=colour, transform=at, clip_on=False)
    before = None
    for k, x in found:
        kind = "NaN" if math.isnan(x) else f"{x:.0e}"
        if before != (k - 1, kind):
            axes.text(k, 0.93, kind, transform=at, va="top", ha="center", fontsize=10)
        before = k, kind


EQUAL, UNDEFINED = "same bits", "undefined"


def differences(name: str, title: str, text: str, series: Sequence[Series], first: int) -> str:
    """Relative differences by epoch: 0 stands for equal bits, NaN for an undefined difference.

    ``first`` is the number of the first series, whose line it has in :func:`lines`.
    """
    powers = [math.log10(x) for s in series for x in s.values if x and _is_number(x)]
    low, high = (min(powers), max(powers)) if powers else (-1.0, 0.0)
    undefined = any(x is not None and math.isnan(x) for s in series for x in s.values)
    bottom, highest = math.floor(low) - 1, math.ceil(high)
    top = highest + 1 if undefined else highest
    with _figure(WIDTH, HEIGHT) as (figure, axes):
        for i, s in enumerate(series, first):
            places = [k for k, x in enumerate(s.values) if x is not None]
            values = [
                top if math.isnan(x) else math.log10(x) if x else bottom
                for x in s.values
                if x is not None
            ]
            style = _style(i)
            if len(s.values) > _MOST_MARKERS:
                style["marker"] = None
            axes.plot(places, values, label=_text(s.name), **style)
        names = {bottom: EQUAL}
        names |= {k: f"1e{k}" for k in range(bottom + 1, highest + 1, _pace(highest - bottom))}
        names |= {top: UNDEFINED} if undefined else {}
        axes.set_yticks([*names], names.values())
        axes.set_ylim(bottom - 0.3, top + 0.3)
        axes.set_xlabel("epoch")
        axes.grid(axis="y")
        _integers(axes.xaxis)
        _legend(figure, axes, 2)
        return _svg(figure, name, title, text)


def _pace(count: int) -> int:
    return max(1, math.ceil(count / 7))


def dots(name: str, title: str, text: str, rows: Sequence[str], series: Sequence[Series]) -> str:
    """A share between 0 and 1 for each row and series."""
    apart = 0.6 / len(series)  # so that no run hides another
    with _figure(WIDTH, 90 + ROW * len(rows)) as (figure, axes):
        for i, s in enumerate(series):
            shift = apart * (i - (len(series) - 1) / 2)
            places = [k + shift for k, x in enumerate(s.values) if x is not None]
            style = _style(i) | {"linestyle": "none", "markeredgewidth": 1.2}
            style |= {"markerfacecolor": "none"} if i else {}
            values = [x for x in s.values if x is not None]
            axes.plot(values, places, label=_text(s.name), zorder=2 + i / 100, **style)
        axes.set_yticks(range(len(rows)), [_text(shortened(r, 24)) for r in rows])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.set_xlim(-0.02, 1.02)
        axes.set_xlabel("accuracy")
        axes.grid(axis="both")
        _legend(figure, axes, len(series))
        return _svg(figure, name, title, text)


def states(
    name: str,
    title: str,
    text: str,
    rows: Sequence[tuple[str, Sequence[str]]],
    steps: Sequence[int],
) -> str:
    """A map: for each row its name and state by column; ``steps`` are the first of the columns.

    A thin line where digests agree, a bar where they differ, a dotted line where one is missing.
    """
    with _figure(WIDE, 84 + ROW * len(rows)) as (figure, axes):
        for k, (_, found) in enumerate(rows):
            at = 0
            for state, run in itertools.groupby(found):
                width = len([*run])
                if state is None:
                    pass
                elif state == DIFFERS:
                    axes.broken_barh(
                        [(at, width)], (k - 0.36, 0.72), facecolor=_COLOURS["differ"], linewidth=0
                    )
                else:
                    dotted = {"linestyle": (0, (1, 3))} if state == MISSING else {}
                    colour = _COLOURS["muted" if state == MISSING else "same"]
                    axes.plot(
                        [at, at + width], [k, k], color=colour, solid_capstyle="butt", **dotted
                    )
                at += width
        axes.set_yticks(range(len(rows)), [_text(shortened(row)) for row, _ in rows])
        axes.tick_params(axis="y", length=0, labelcolor=_COLOURS["ink"])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        _columns(axes, len(steps), _round_numbers(steps))
        _legend_of_states(figure, {state for _, found in rows for state in found})
        return _svg(figure, name, title, text)


def _columns(axes, count: int, names: dict[int, str]) -> None:
    """Columns of width 1, some with names."""
    axes.set_xlim(0, count)
    axes.set_xticks([k + 0.5 for k in names], names.values())
    axes.set_xlabel("step")
    for side in ("left", "bottom"):
        axes.spines[side].set_visible(False)


def _round_numbers(steps: Sequence[int]) -> dict[int, str]:
    """By column, at most 13 round numbers of steps; where steps are missing, the column's own."""
    paces = (digit * 10**power for power in itertools.count() for digit in (1, 2, 5))
    pace = next(p for p in paces if (steps[-1] - steps[0]) // p <= 12)
    numbers = range(-(-steps[0] // pace) * pace, steps[-1] + 1, pace)
    found = {}
    for n in numbers:
        k = bisect.bisect_right(steps, n) - 1
        is_near = n - steps[k] <= steps[k] - steps[k - 1] if k else n == steps[k]
        found[k] = str(n if is_near else steps[k])
    return found


def _legend_of_states(figure, shown: set[str | None]) -> None:
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles = {
        AGREES: Line2D([], [], color=_COLOURS["same"]),
        DIFFERS: Patch(facecolor=_COLOURS["differ"], linewidth=0),
        MISSING: Line2D([], [], color=_COLOURS["muted"], linestyle=(0, (1, 3))),
    }
    handles = {state: handle for state, handle in handles.items() if state in shown}
    figure.legend(handles.values(), handles, loc="outside upper left", ncols=3)


def heat(
    name: str,
    title: str,
    text: str,
    rows: Sequence[tuple[str, Sequence[float | None]]],
    columns: Sequence[str],
    *,
    share: bool = False,
) -> str:
    """Magnitudes by row and column, deeper for larger ones: by powers of ten if no shares.

    0, for equal bits, is an empty cell with a dot, None one with nothing, and NaN a hatched one.
    Where there is room, a cell says its number.
    """
    powers = [math.log10(x) for _, row in rows for x in row if x and _is_number(x)]
    high = max(powers, default=0.0)
    low = min([*powers, high - 3])
    named = len(columns) <= 18

    def depth(x: float) -> float:
        return 0.1 + 0.8 * (x if share else (math.log10(x) - low) / (high - low))

    def text_of(x: float) -> str:
        return f"{x:.2g}" if share else f"{x:.0e}"

    with _figure(WIDE, 84 + (ROW + 3) * len(rows)) as (figure, axes):
        for k, (_, found) in enumerate(rows):
            for j, x in enumerate(found):
                _cell(axes, j, k, x, depth, text_of if named else None)
        axes.set_yticks(range(len(rows)), [_text(shortened(row)) for row, _ in rows])
        axes.tick_params(axis="y", length=0, labelcolor=_COLOURS["ink"])
        axes.set_ylim(len(rows) - 0.4, -0.6)
        every = max(1, math.ceil(len(columns) / 18))
        _columns(axes, len(columns), dict([*enumerate(columns)][::every]))
        return _svg(figure, name, title, text)


def _cell(axes, j: int, k: int, x: float | None, depth, text_of) -> None:
    from matplotlib.patches import Rectangle

    if x is None:
        return
    if x == 0:
        axes.plot([j + 0.5], [k], ".", markersize=3, color=_COLOURS["muted"])
        return
    number = _is_number(x)
    deep = depth(x) if number else 0
    box = Rectangle((j + 0.03, k - 0.46), 0.94, 0.92, linewidth=0, facecolor=_COLOURS["series-0"])
    box.set_alpha(deep)
    if not number:
        box.set(alpha=None, facecolor="none", edgecolor=_COLOURS["muted"], hatch="////")
    axes.add_patch(box)
    if text_of:
        colour = _COLOURS["paper" if deep > 0.65 else "ink"]
        shown = text_of(x) if number else "undef."
        axes.text(j + 0.5, k, shown, ha="center", va="center_baseline", fontsize=9, color=colour)
