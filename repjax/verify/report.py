"""A page about runs: ``repjax report RUN [RUN...] --output report.html``.

The page needs nothing from elsewhere.  The first run is what the others are compared with, by
:func:`repjax.verify.compare`.  The same runs, given by the same names, give the same file.  It has:

* where runs part: the first step and leaf, and a map of all leaves by steps, from their digests;
* losses, metrics and accuracies;
* by how much layers differ over time, where there are arrays: in the checkpoints of ``repjax log``
  and among the final parameters.  A layer is the leaves whose paths differ in the last name only;
* the comparison; settings, versions and metadata side by side; and ``manifest.json``, where a run's
  directory has it.
"""

from __future__ import annotations

import argparse
import dataclasses
import fractions
import json
import math
import pathlib
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from repjax.checkpoint import replacing
from repjax.verify import comparison, manifest, page, parting, plots, runs
from repjax.verify.comparison import Comparison
from repjax.verify.page import Mark, Section
from repjax.verify.parting import Agreement, Layers, Leaf, spread
from repjax.verify.plots import Series
from repjax.verify.progress import counter
from repjax.verify.variability import Variability

MANIFEST = "manifest.json"
MOST_RUNS = 32  # that are read
#: Limits of what is shown; what is left out is counted on the page.
MOST_ROWS, MOST_LEAVES, MOST_METRICS, MOST_CLASSES, MOST_EPOCHS = 40, 200, 24, 40, 30
MOST_FACTS, MOST_CHARACTERS, MOST_ITEMS = 200, 300, 8


class ReportError(ValueError):
    """A report that cannot be made; no file was changed."""


@dataclasses.dataclass(frozen=True)
class Entry:
    """A run, its letter, its manifest if there is one, and what it has against the first run."""

    letter: str
    record: runs.Record
    manifest: manifest.Manifest | None = None
    compared: Comparison | None = None
    agreement: Agreement | None = None
    layers: Layers | None = None


def letter(number: int) -> str:
    """A to Z, then A1 and so on."""
    turn, place = divmod(number, 26)
    return f"{chr(ord('A') + place)}{turn or ''}"


def read(paths: Sequence[str], format: str = "repjax") -> list[Entry]:
    """Read runs, and compare the others with the first.

    Raises:
      ReportError, RunError, TrainingError, CheckpointError, ManifestError: what is no run, was
        edited, or has nothing in common with the first; too many.
      OSError: what cannot be read.
    """
    if len(paths) > MOST_RUNS:
        raise ReportError(f"expected at most {MOST_RUNS} runs, received {len(paths)}")
    reader = comparison.READERS[format]
    entries = []
    with counter("records of the runs") as progress:
        for i, path in enumerate(paths):
            entries.append(Entry(letter(i), reader(path, progress), _manifest(path)))
    first, *others = entries
    return [first, *(_against(first.record, entry) for entry in others)]


def _against(first: runs.Record, entry: Entry) -> Entry:
    with counter(f"steps of {entry.record.name}") as progress:
        agreement = parting.agreement_of(first, entry.record, progress)
    with counter(f"checkpoints of {entry.record.name}") as progress:
        layers = parting.layers_of(first, entry.record, progress)
    compared = comparison.compare(first, entry.record)
    return dataclasses.replace(entry, compared=compared, agreement=agreement, layers=layers)


def _manifest(path: str) -> manifest.Manifest | None:
    file = pathlib.Path(path) / MANIFEST
    return manifest.read(file) if file.exists() else None


# --- the page ----------------------------------------------------------------------------


def same(entries: Sequence[Entry]) -> bool:
    return all(entry.compared.same for entry in entries[1:])


def verdict(entry: Entry) -> str:
    found = entry.compared
    return f"{found.verdict}{f', first at {found.place}' if found.place else ''}"


def as_html(entries: Sequence[Entry]) -> str:
    """The page about runs that were read.

    Raises:
      PlotError: matplotlib is missing.
    """
    plots.require()
    parts = [
        ("Where they part", _parting),
        ("Loss and metrics", _losses),
        ("Accuracy", _accuracies),
        ("Differences by layer", _layer_figures),
        ("Comparison", _comparisons),
        ("Settings and versions", _settings),
        ("Metadata", _metadata),
        ("Manifest", _manifests),
    ]
    sections = []
    with counter(f"sections of {len(parts)}") as progress:
        for i, (title, make) in enumerate(parts):
            sections.append(Section(title, "".join(make(entries))))
            progress(i + 1)
    return page.page(_title(entries), _introduction(entries), sections)


def _title(entries: Sequence[Entry]) -> str:
    if len(entries) == 1:
        return f"A run: {entries[0].record.name}"
    return f"{len(entries)} runs: " + ("all the same" if same(entries) else "not all the same")


def _introduction(entries: Sequence[Entry]) -> str:
    compared = ("against A", "first difference") if len(entries) > 1 else ()
    counted = ("steps", "epochs", "evaluations", "finished")
    rows = []
    for entry in entries:
        run = entry.record
        counts = (len(x) for x in (run.steps, run.epochs, run.evaluations))
        finished = "yes" if run.is_finished else "no, interrupted"
        found = [""] * len(compared)
        if entry.compared:
            found = [Mark(entry.compared.same, entry.compared.verdict), entry.compared.place]
        rows.append((entry.letter, run.name, *found, *map(str, counts), finished))
    return page.table("Runs", ("run", "where", *compared, *counted), rows)


def _name(entry: Entry) -> str:
    return f"{entry.letter} and A"


def _slug(entry: Entry, what: str) -> str:
    return f"{what}-{entry.letter}".lower()


def _heading(entry: Entry) -> str:
    return f"<h3>{page.escape(_name(entry))}</h3>"


def _parting(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries[1:]:
        found = entry.agreement
        yield _heading(entry)
        if not found.leaves:
            yield page.paragraph("They have no digests of common steps.")
            yield page.paragraph(_what_differs(entry.compared))
            continue
        differing = found.differing
        if differing:
            text = (
                f"The first difference is at {entry.compared.place}. {len(differing)} of "
                f"{len(found.leaves)} leaves differ in some of {found.steps} steps."
            )
        else:
            text = f"All {len(found.leaves)} leaves have the same bits in all {found.steps} steps."
        yield page.paragraph(text)
        yield page.paragraph(_what_differs(entry.compared))
        if not differing:
            continue
        yield _map(entry, found, differing, text)
        yield page.table(
            f"Leaves that differ, {_name(entry)}{_only(differing, MOST_LEAVES)}",
            ("leaf", "first step that differs", "steps that differ"),
            (
                (leaf.name, str(leaf.first), f"{leaf.count} of {found.steps}")
                for leaf in differing[:MOST_LEAVES]
            ),
        )


def _what_differs(found: Comparison) -> str:
    differ = [x.name for x in (*found.criteria, *found.bits) if not x.same]
    names = list(dict.fromkeys(re.sub(r"^evaluation \d+: ", "", name) for name in differ))
    if final := [name for name in names if name.startswith("final ")]:
        names = [name for name in names if name not in final]
        names.append(f"{len(final)} of the final parameters")
    if not names:
        return "Nothing that both logged differs."
    more = f" and {len(names) - MOST_ITEMS} more" if len(names) > MOST_ITEMS else ""
    return f"What differs: {', '.join(names[:MOST_ITEMS])}{more}."


def _only(items: Sequence[Any], most: int) -> str:
    return f" (the first {most} of {len(items)})" if len(items) > most else ""


def _map(entry: Entry, found: Agreement, differing: list[Leaf], text: str) -> str:
    rows = [*differing, *(leaf for leaf in found.leaves if leaf.first is None)]
    shown = [(leaf.name, leaf.states) for leaf in rows[:MOST_ROWS]]
    more = f"A row is a leaf{_only(rows, MOST_ROWS)}. "
    if found.steps > len(found.columns):
        more += "A column is several steps, and differs if one of them does. "
    title = f"Digests of leaves by step, {_name(entry)}"
    drawing = plots.states(_slug(entry, "map"), title, text, shown, found.columns)
    return page.figure(drawing, title, more + text, wide=True)


def _series(entries: Sequence[Entry], numbers: Callable[[runs.Record], list]) -> list[Series]:
    return [
        Series(e.letter, [None if x is None else float(x.value) for x in numbers(e.record)])
        for e in entries
    ]


def _losses(entries: Sequence[Entry]) -> Iterator[str]:
    if not any(entry.record.epochs for entry in entries):
        return
    yield '<div class="figures">'
    yield from _numbers(entries, "loss", "Loss", comparison.losses)
    names = comparison.metric_names(*(entry.record for entry in entries))
    for i, name in enumerate(names[:MOST_METRICS]):
        yield from _numbers(
            entries, f"metric-{i}", name, lambda r, n=name: comparison.metrics(r, n)
        )
    yield "</div>"
    if len(names) > MOST_METRICS:
        yield page.paragraph(f"Metrics that are not shown: {', '.join(names[MOST_METRICS:])}.")
    yield _table_of_losses(entries)


def _numbers(entries, slug: str, title: str, numbers) -> Iterator[str]:
    """Figures of a number by epoch, and of its differences from the first run's."""
    texts, equal, relative = [], [], []
    first = numbers(entries[0].record)
    for entry in entries[1:]:
        others = numbers(entry.record)
        found = comparison.of_epochs(title, "epochs", first, others)
        if found.same:
            equal.append(entry.letter)
        else:
            texts.append(f"{entry.letter} differs from A in {found.difference}.")
        relative.append(Series(entry.letter, [*map(_relative, first, others)]))
    count = max(len(numbers(entry.record)) for entry in entries)
    if equal:
        texts.append(f"{', '.join(equal)} ha{'ve' if len(equal) > 1 else 's'} A's bits.")
    text = " ".join([f"{count} epoch{'s' if count > 1 else ''}.", *texts])
    series = _series(entries, numbers)
    yield page.figure(plots.lines(slug, title, text, series, title), title, text)
    if any(x for s in relative for x in s.values):  # NaN counts, too
        title = f"{title}: difference from A"
        text = "|a - b| / |a| by epoch, on a logarithmic axis, with equal bits at the bottom."
        drawing = plots.differences(f"{slug}-from-a", title, text, relative, 1)
        yield page.figure(drawing, title, text)


def _relative(a: runs.Number | None, b: runs.Number | None) -> float | None:
    """|a - b| / |a|: 0 for equal bits, NaN where it is undefined or the values are equal."""
    if a is None or b is None:
        return None
    if a == b:
        return 0.0
    x, y = (float(n.value) for n in (a, b))
    if not (math.isfinite(x) and math.isfinite(y)) or x in (0, y):
        return math.nan
    exact = abs((fractions.Fraction(y) - fractions.Fraction(x)) / fractions.Fraction(x))
    try:
        return float(exact) or math.nan
    except OverflowError:
        return math.nan


def _table_of_losses(entries: Sequence[Entry]) -> str:
    count = max(len(entry.record.epochs) for entry in entries)
    by_run = [comparison.losses(entry.record) for entry in entries]
    parted = {
        next((n for n, (a, b) in enumerate(zip(by_run[0], found, strict=False)) if a != b), 0)
        for found in by_run[1:]
    }
    chosen = sorted({*spread(range(count), MOST_EPOCHS), *parted})

    def cells(n: int) -> Iterator[str | Mark]:
        for i, found in enumerate(by_run):
            if n >= len(found):
                yield "none"
                continue
            value = found[n].value
            shown = f"{value:.9g}\n{found[n]}" if isinstance(value, float) else str(value)
            yield Mark(found[n] == by_run[0][n], shown) if i and n < len(by_run[0]) else shown

    return page.table(
        f"Loss by epoch{f' ({len(chosen)} of {count})' if len(chosen) < count else ''}",
        ("epoch", *(entry.letter for entry in entries)),
        ((str(n), *cells(n)) for n in chosen),
    )


def _accuracies(entries: Sequence[Entry]) -> Iterator[str]:
    """Of classifiers; of regressions the mean absolute errors."""
    count = max(len(entry.record.evaluations) for entry in entries)
    if not count:
        return
    overall = [[_overall(x) for x in entry.record.evaluations] for entry in entries]
    figure, table = _classes(entries)
    if count > 1:
        title, text = "Overall", "On test data, by evaluation; see the table."
        series = [
            Series(e.letter, [None if x is None else float(x[0]) for x in found])
            for e, found in zip(entries, overall, strict=True)
        ]
        drawing = plots.lines("overall", title, text, series, title, places="evaluation")
        figure = page.figure(drawing, title, text) + figure
    yield f'<div class="figures">{figure}</div>'

    def cells(n: int) -> Iterator[str | Mark]:
        for i, found in enumerate(overall):
            shown = found[n] if n < len(found) else None
            text = "none" if shown is None else shown[1]
            against = overall[0][n] if n < len(overall[0]) else None
            yield Mark(shown == against, text) if i and shown and against else text

    yield page.table(
        "Accuracy, or mean absolute error of numbers, by evaluation",
        ("evaluation", *(entry.letter for entry in entries)),
        ((str(n), *cells(n)) for n in spread(range(count), MOST_EPOCHS)),
    )
    yield table


_Value = tuple[float | fractions.Fraction, str]


def _overall(x: runs.Evaluation) -> _Value | None:
    if comparison.is_regression(x):
        found = comparison.mean_absolute_error(x)
        return None if found is None else (found, f"mean absolute error {float(found):.9g}")
    return _share(comparison.accuracies(x).get(None))


def _share(x: tuple[int, int] | str | None) -> _Value | None:
    """A ratio, and its text."""
    if x is None:
        return None
    if isinstance(x, str):
        return float(x), x
    correct, count = x
    value = fractions.Fraction(correct, count or 1)
    return value, f"{correct} of {count} ({100 * float(value):.4g} %)"


def _classes(entries: Sequence[Entry]) -> tuple[str, str]:
    """A figure and a table of the accuracy of each class at the last evaluation of all runs."""
    counts = [len(entry.record.evaluations) for entry in entries]
    last = min(filter(None, counts)) - 1
    evaluations = [e.record.evaluations[last] if e.record.evaluations else None for e in entries]
    by_run = [
        comparison.accuracies(x) if x is not None and not comparison.is_regression(x) else {}
        for x in evaluations
    ]
    classes = sorted({c for found in by_run for c in found} - {None}, key=comparison.by_number)
    differ = [c for c in classes if any(x and x.get(c) != by_run[0].get(c) for x in by_run[1:])]
    if not classes:
        return "", ""
    chosen = [*differ, *(c for c in classes if c not in differ)][:MOST_CLASSES]
    chosen.sort(key=comparison.by_number)
    only = f" ({len(chosen)} of {len(classes)})" if len(chosen) < len(classes) else ""
    title = f"Accuracy of each class, evaluation {last}{only}"
    text = f"{len(differ)} of {len(classes)} classes differ." if len(entries) > 1 else ""
    shares = [{c: _share(found.get(c)) for c in chosen} for found in by_run]
    series = [
        Series(e.letter, [None if of[c] is None else float(of[c][0]) for c in chosen])
        for e, of in zip(entries, shares, strict=True)
    ]
    drawing = plots.dots("classes", title, text, [f"class {c}" for c in chosen], series)

    def cells(c: str) -> Iterator[str | Mark]:
        for i, found in enumerate(shares):
            shown = found[c][1] if found[c] else "none"
            yield Mark(found[c] == shares[0][c], shown) if i else shown

    heads = ("class", *(entry.letter for entry in entries))
    table = page.table(title, heads, ((c, *cells(c)) for c in chosen))
    return page.figure(drawing, title, text), table


def _layer_figures(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries[1:]:
        found = entry.layers
        if found is None:
            continue
        yield _heading(entry)
        differ = {name: row for name, row in found.of.items() if any(x and x.differ for x in row)}
        text = f"{len(differ)} of {len(found.of)} layers differ in their arrays."
        if found.left_out:
            text += f" {found.left_out} checkpoints between those that are shown were not read."
        if found.other:
            text += f" Leaves of other types or shapes: {', '.join(found.other[:MOST_ROWS])}."
        yield page.paragraph(text)
        if not differ:
            continue
        for slug, title, value in (
            ("vermv", "Vermv, the mean of |a - b| / |a|", _vermv),
            ("vc", "Vc, the share of elements that differ", _vc),
        ):
            rows = [(n, [x and value(x) for x in row]) for n, row in differ.items()]
            title = f"{title}, by layer and step, {_name(entry)}"
            what = (
                f"Layers that differ{_only(rows, MOST_ROWS)}; deeper colours are larger, a dot is "
                "for equal bits."
            )
            drawing = plots.heat(
                _slug(entry, slug), title, what, rows[:MOST_ROWS], found.columns, share=value is _vc
            )
            yield page.figure(drawing, title, what, wide=True)
        rows = [dataclasses.replace(row[-1], name=n) for n, row in differ.items() if row[-1]]
        yield page.table(
            f"Layers, {_name(entry)}, {found.columns[-1]}",
            comparison.MEASURES,
            map(comparison.measures, rows[:MOST_LEAVES]),
        )


def _vc(x: Variability) -> float:
    return float(x.vc)


def _vermv(x: Variability) -> float:
    """NaN where elements differ, and in none of them the measure is defined."""
    return math.nan if x.differ and x.differ == x.undefined else x.vermv


def _comparisons(entries: Sequence[Entry]) -> Iterator[str]:
    for entry in entries[1:]:
        yield _heading(entry)
        yield page.paragraph(f"Verdict: {verdict(entry)}.")
        yield from map(page.paragraph, entry.compared.notes)
        for section in comparison.sections(entry.compared):
            yield section.content


# --- facts side by side ------------------------------------------------------------------


def facts(x: Any, name: str = "", depth: int = 0) -> Iterator[tuple[str, str]]:
    """What JSON holds, as names with dots and texts; long lists are counted."""
    simple = not isinstance(x, list) or not any(isinstance(item, dict | list) for item in x)
    if isinstance(x, list) and simple and len(x) <= MOST_ITEMS:
        yield name or "metadata", ", ".join(map(_fact, x))
    elif isinstance(x, list) and (simple or len(x) > MOST_ITEMS or depth >= MOST_ITEMS):
        yield name or "metadata", f"{len(x)} items"
    elif isinstance(x, dict | list) and depth < MOST_ITEMS:
        for key, value in x.items() if isinstance(x, dict) else enumerate(x):
            yield from facts(value, f"{name}.{key}" if name else str(key), depth + 1)
    else:
        yield name or "metadata", _fact(x)


def _fact(x: Any) -> str:
    text = x if isinstance(x, str) else json.dumps(x) if not isinstance(x, dict) else "an object"
    return text if len(text) <= MOST_CHARACTERS else f"{text[:MOST_CHARACTERS]}…"


def _side_by_side(caption: str, entries: Sequence[Entry], of: Callable[[Entry], Any]) -> str:
    """A row for each fact; those that differ first."""
    found = {e.letter: dict(facts(of(e))) for e in entries if of(e) is not None}
    names = list({name: None for known in found.values() for name in known})

    def differs(name: str) -> bool:
        return len({known.get(name) for known in found.values()}) > 1

    names.sort(key=lambda name: not differs(name))
    rows = [
        (
            name,
            *([Mark(not differs(name))] if len(found) > 1 else []),
            *(known.get(name, "none") for known in found.values()),
        )
        for name in names[:MOST_FACTS]
    ]
    heads = ("name", *(["result"] if len(found) > 1 else []), *found)
    return page.table(f"{caption}{_only(names, MOST_FACTS)}", heads, rows)


def _settings(entries: Sequence[Entry]) -> Iterator[str]:
    yield _side_by_side(
        "What ran: versions, devices, options", entries, lambda e: e.record.about or None
    )


def _metadata(entries: Sequence[Entry]) -> Iterator[str]:
    yield _side_by_side("What the run was given", entries, lambda e: e.record.metadata)


def _manifests(entries: Sequence[Entry]) -> Iterator[str]:
    yield _side_by_side(f"Key facts of {MANIFEST}", entries, lambda e: e.manifest)


# --- the command -------------------------------------------------------------------------


def add_command(commands) -> None:
    parser = commands.add_parser(
        "report",
        help="a page about one or more runs",
        description="Write a page, which needs nothing from elsewhere, about runs; the others are "
        "compared with the first.  It needs matplotlib (pip install 'repjax[instruments]').  Exit "
        "status: 0 one run, or all are the same; 1 some differ; 2 the request cannot be met.",
        epilog="example: repjax report runs/laptop runs/server --output report.html",
    )
    parser.add_argument("runs", metavar="RUN", nargs="+", help="a run directory")
    parser.add_argument("-o", "--output", metavar="FILE", required=True, help="the page")
    comparison.add_format(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        _check_output(pathlib.Path(arguments.output))
        plots.require()
        entries = read(arguments.runs, arguments.format)
        content = as_html(entries)
        with replacing(arguments.output) as file:
            file.write(content.encode())
    except (OSError, ValueError) as error:
        print(f"repjax report: {error}", file=sys.stderr)
        return 2
    for entry in entries:
        said = f": {verdict(entry)}" if entry.compared else ""
        print(f"{entry.letter}  {entry.record.name}{said}")
    return 0 if same(entries) else 1


def _check_output(path: pathlib.Path) -> None:
    """Before long work."""
    if not path.absolute().parent.is_dir():
        raise ReportError(f"{path}: expected a file in a folder that exists, received another")
    if path.is_dir():
        raise ReportError(f"{path}: expected a file, received a folder")
