"""Are two runs the same: ``repjax compare A B``.

**Criteria** are those of Chen et al. 2022 ("Towards training reproducible deep learning models",
section 3.3): the overall accuracy, the accuracy of each class and every prediction, or for
regression the mean absolute error and every prediction; the loss of every epoch, and their number.
Training time is none of them.  Counts are integers and ratios fractions, so they are exact; floats
are compared by their bits, so that equal NaNs are equal, and 0 and -0 are not.

**Bits.**  Beyond the criteria, digests of all trees that both runs logged are compared by step and
by leaf, and the final parameters and logits by element.

**Variability** is measured for what differs (:mod:`repjax.verify.variability`).

The verdict is the strongest that holds: *identical bits*, *identical by the criteria*, *different*.
Without anything that the criteria are about, it is the first or the last.
"""

from __future__ import annotations

import argparse
import dataclasses
import fractions
import itertools
import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from repjax.checkpoint import replacing
from repjax.digests import digest, little_endian
from repjax.verify import icse22, page, runs
from repjax.verify.progress import counter
from repjax.verify.variability import Scalar, Variability, differing, is_float, measure, vs

FORMAT, VERSION = "repjax comparison", 1
#: How many of what differs are named.
SHOWN = 5
#: With more findings than these, those without a difference are counted only.
MOST_ON_A_PAGE = 24
#: How many rows a table on a page has.
MOST_ROWS = 100


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one comparison gave: whether the two are the same, and how they differ, in words."""

    name: str
    same: bool
    first: str
    second: str
    difference: str = ""


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Of two runs.

    Attributes:
      first, second: their names.
      criteria: those of Chen et al. that both runs have numbers for.
      bits: what is compared beyond them.
      place: where the first difference of digests is, ``step 3, params: layer/kernel``, or empty.
      variability: of arrays that differ, and of losses.
      scalars: of losses, metrics and mean absolute errors that differ.
      notes: what a reader should know, such as that a run was interrupted.
    """

    first: str
    second: str
    criteria: tuple[Finding, ...]
    bits: tuple[Finding, ...]
    place: str
    variability: tuple[Variability, ...]
    notes: tuple[str, ...] = ()
    scalars: tuple[Scalar, ...] = ()

    @property
    def verdict(self) -> str:
        if not all(x.same for x in self.criteria):
            return "different"
        if not all(x.same for x in self.bits):
            return "identical by the criteria" if self.criteria else "different"
        return "identical bits" if self.bits else "identical by the criteria"

    @property
    def same(self) -> bool:
        return all(x.same for x in (*self.criteria, *self.bits))


def compare(first: runs.Record, second: runs.Record) -> Comparison:
    """Compare two runs.

    Raises:
      RunError: they have nothing in common that could be compared.
    """
    criteria = tuple(_criteria(first, second))
    steps, place = _steps(first, second)
    bits = (*steps, *_metrics(first, second), *_arrays(first, second))
    if not criteria and not bits:
        raise runs.RunError(
            f"compare: expected runs that logged the same kinds of things, received {first.name} "
            f"with {_contents(first)} and {second.name} with {_contents(second)}"
        )
    notes = tuple(
        f"{letter} was interrupted: what it logged until then is compared"
        for letter, run in (("A", first), ("B", second))
        if not run.is_finished
    )
    variabilities = tuple(_variabilities(first, second))
    scalars = tuple(_scalars(first, second))
    return Comparison(first.name, second.name, criteria, bits, place, variabilities, notes, scalars)


def _contents(run: runs.Record) -> str:
    counts = {
        "steps": len(run.steps),
        "epochs": len(run.epochs),
        "evaluations": len(run.evaluations),
    }
    return ", ".join(f"{count} {name}" for name, count in counts.items())


# --- the criteria -----------------------------------------------------------------------


def _criteria(first: runs.Record, second: runs.Record) -> Iterator[Finding]:
    if first.evaluations or second.evaluations:
        count = [str(len(run.evaluations)) for run in (first, second)]
        if count[0] != count[1]:
            yield Finding("number of evaluations", False, *count)
    pairs = list(zip(first.evaluations, second.evaluations, strict=False))
    for i, (a, b) in enumerate(pairs):
        prefix = f"evaluation {i}: " if len(pairs) > 1 else ""
        for finding in _evaluation(a, b):
            yield dataclasses.replace(finding, name=prefix + finding.name)
    if not (first.epochs or second.epochs):
        return
    yield of_epochs("loss of every epoch", "losses", *map(losses, (first, second)))
    count = [str(len(run.epochs)) for run in (first, second)]
    yield Finding("number of epochs", count[0] == count[1], *count)


def losses(run: runs.Record) -> list[runs.Number]:
    """By epoch."""
    return [epoch.loss for epoch in run.epochs]


def of_epochs(
    name: str, plural: str, a: Sequence[runs.Number | None], b: Sequence[runs.Number | None]
) -> Finding:
    """Of a number by epoch; None where an epoch has none."""
    shared = min(len(a), len(b))
    differ = [i for i in range(shared) if a[i] != b[i]]
    if not differ:
        return Finding(name, True, *(f"{shared} {plural}",) * 2)
    pair = [of_run[differ[0]] for of_run in (a, b)]
    shown = [str(x) for x in pair]
    if shown[0] == shown[1]:  # of two types
        shown = [f"{x.dtype} {x}" for x in pair]
    difference = f"{len(differ)} of {shared} epochs, the first is epoch {differ[0]}"
    return Finding(name, False, *shown, difference)


def _evaluation(a: runs.Evaluation, b: runs.Evaluation) -> Iterator[Finding]:
    if a.labels is not None and b.labels is not None:
        same = bits(a.labels) == bits(b.labels)
        yield Finding("labels of the test data", same, *(digest(x.labels)[:17] for x in (a, b)))
    yield from _errors(a, b) if is_regression(a, b) else _accuracies(a, b)
    if a.predictions.shape != b.predictions.shape or a.predictions.dtype != b.predictions.dtype:
        shown = (f"{x.predictions.dtype}{list(x.predictions.shape)}" for x in (a, b))
        yield Finding("every prediction", False, *shown, "types or numbers differ")
        return
    differ = np.flatnonzero(differing(a.predictions, b.predictions))
    at = differ[0] if len(differ) else 0
    shown = [str(x.predictions[at]) if len(differ) else f"{x.predictions.size}" for x in (a, b)]
    difference = f"{len(differ)} of {a.predictions.size}, the first is instance {at}"
    yield Finding("every prediction", not len(differ), *shown, difference if len(differ) else "")


def is_regression(*evaluations: runs.Evaluation) -> bool:
    return any(x.predictions.dtype.kind not in "biu" for x in evaluations)


def _accuracies(a: runs.Evaluation, b: runs.Evaluation) -> Iterator[Finding]:
    found = [accuracies(x) for x in (a, b)]
    for name, wanted in (("overall accuracy", [None]), ("accuracy of each class", None)):
        classes = wanted or sorted({*found[0], *found[1]} - {None}, key=by_number)
        differ = [c for c in classes if found[0].get(c) != found[1].get(c)]
        shown = [
            ", ".join(
                (f"{c}: " if c is not None else "") + _ratio(of_run.get(c))
                for c in (differ or classes)[:SHOWN]
            )
            for of_run in found
        ]
        several = f"{len(differ)} of {len(classes)} classes" if differ and wanted is None else ""
        yield Finding(name, not differ, *shown, several)


def by_number(name: str) -> tuple[float, str]:
    """A key to sort the names of classes."""
    try:
        return float(name), name
    except ValueError:
        return math.inf, name


def _ratio(x: tuple[int, int] | str | None) -> str:
    if x is None:
        return "none"
    return x if isinstance(x, str) else f"{x[0]}/{x[1]}"


def accuracies(x: runs.Evaluation) -> dict[str | None, tuple[int, int] | str]:
    """The correct instances and all, of each class, and under None overall."""
    if x.labels is None:
        return x.accuracies
    correct = x.labels == x.predictions
    found = {
        str(c): (int((correct & (x.labels == c)).sum()), int((x.labels == c).sum()))
        for c in np.unique(x.labels)
    }
    return {None: (int(correct.sum()), correct.size), **found}


def _errors(a: runs.Evaluation, b: runs.Evaluation) -> Iterator[Finding]:
    shown = [mean_absolute_error(x) for x in (a, b)]
    # Where numbers are missing, the predictions say whether they are the same.
    if None not in shown:
        texts = [
            f"{float(x):.9g} ({x})" if x.denominator < 10**12 else repr(float(x)) for x in shown
        ]
        yield Finding("mean absolute error", shown[0] == shown[1], *texts)


def mean_absolute_error(x: runs.Evaluation) -> fractions.Fraction | None:
    """Exactly; None with numbers that are not finite, or without labels."""
    if x.labels is None or not x.labels.size:
        return None
    with np.errstate(all="ignore"):  # signalling NaNs
        pairs = [np.asarray(y, np.float64) for y in (x.labels, x.predictions)]
    if not all(np.isfinite(y).all() for y in pairs):
        return None
    total = sum(
        (
            abs(fractions.Fraction(p) - fractions.Fraction(q))
            for p, q in zip(*map(list, pairs), strict=True)
        ),
        fractions.Fraction(0),
    )
    return total / len(pairs[0])


# --- bits -------------------------------------------------------------------------------


def bits(x: np.ndarray) -> tuple[str, tuple[int, ...], bytes]:
    return x.dtype.name, x.shape, little_endian(x).tobytes()


@dataclasses.dataclass(frozen=True)
class Place:
    """The first step of two runs with differing digests, of the leaves of a tree of this name."""

    number: int
    tree: str
    leaves: tuple[str, ...]

    def __str__(self) -> str:
        more = ", ..." if len(self.leaves) > SHOWN else ""
        return f"step {self.number}, {self.tree}: {', '.join(self.leaves[:SHOWN])}{more}"


def first_step(first: runs.Record, second: runs.Record) -> Place | None:
    """Where the digests of two runs part; None where those of common steps are equal."""
    for n in sorted(first.steps.keys() & second.steps.keys()):
        left, right = first.steps[n], second.steps[n]
        for name in sorted(left.keys() | right.keys()):
            a, b = left.get(name, {}), right.get(name, {})
            if leaves := sorted(path for path in {*a, *b} if a.get(path) != b.get(path)):
                return Place(n, name, tuple(leaves))
    return None


def _steps(first: runs.Record, second: runs.Record) -> tuple[list[Finding], str]:
    """Findings of the digests of steps, and the place of the first difference."""
    if not (first.steps or second.steps):
        return [], ""
    found = []
    count = [str(len(run.steps)) for run in (first, second)]
    same = first.steps.keys() == second.steps.keys()
    found.append(Finding("steps that were logged", same, *count))
    if place := first_step(first, second):
        trees = (run.steps[place.number].get(place.tree) for run in (first, second))
        shown = [runs.tree_digest(x)[:17] if x is not None else "none" for x in trees]
        found.append(Finding("digests of steps", False, *shown, f"the first at {place}"))
        return found, f"step {place.number}, {place.tree}: {place.leaves[0]}"
    shared = len(first.steps.keys() & second.steps.keys())
    found.append(Finding("digests of steps", True, *(f"{shared} steps",) * 2))
    return found, ""


def metrics(run: runs.Record, name: str) -> list[runs.Number | None]:
    """A metric by epoch; None where an epoch has none."""
    return [epoch.metrics.get(name) for epoch in run.epochs]


def _metrics(first: runs.Record, second: runs.Record) -> Iterator[Finding]:
    for name in metric_names(first, second):
        both = (metrics(run, name) for run in (first, second))
        yield of_epochs(f"metric {name} of every epoch", "values", *both)


def metric_names(*records: runs.Record) -> list[str]:
    return sorted({name for run in records for epoch in run.epochs for name in epoch.metrics})


def _pairs(first: runs.Record, second: runs.Record) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Arrays that both runs have: parameters and logits."""
    params = [run.params or {} for run in (first, second)]
    for name in sorted(params[0].keys() & params[1].keys()):
        yield f"final {name}", params[0][name], params[1][name]
    for i, (a, b) in enumerate(zip(first.evaluations, second.evaluations, strict=False)):
        if a.logits is not None and b.logits is not None:
            yield f"logits of evaluation {i}", a.logits, b.logits


def _arrays(first: runs.Record, second: runs.Record) -> Iterator[Finding]:
    if first.params is not None and second.params is not None:
        names = [set(run.params) for run in (first, second)]
        if names[0] != names[1]:
            only = ", ".join(sorted(names[0] ^ names[1])[:SHOWN])
            yield Finding("names of parameters", False, *(str(len(n)) for n in names), only)
    for name, a, b in _pairs(first, second):
        yield Finding(name, bits(a) == bits(b), digest(a)[:17], digest(b)[:17])


# --- variability ------------------------------------------------------------------------


def _variabilities(first: runs.Record, second: runs.Record) -> Iterator[Variability]:
    for name, a, b in _pairs(first, second):
        if is_float(a) and a.dtype == b.dtype and a.shape == b.shape and bits(a) != bits(b):
            yield measure(name, a, b)
    both = [losses(run) for run in (first, second)]
    shared = min(map(len, both))
    if any(both[0][i] != both[1][i] for i in range(shared)):
        a, b = (np.array([x.array for x in of_run[:shared]]) for of_run in both)
        if a.dtype != b.dtype or not is_float(a):
            a, b = (np.array([x.value for x in of_run[:shared]], np.float64) for of_run in both)
        yield measure("losses", a, b)


def _scalars(first: runs.Record, second: runs.Record) -> Iterator[Scalar]:
    by_name = {"loss": [losses(run) for run in (first, second)]}
    for name in metric_names(first, second):
        by_name[f"metric {name}"] = [metrics(run, name) for run in (first, second)]
    for name, numbers in by_name.items():
        for i, (a, b) in enumerate(zip(*numbers, strict=False)):
            if a != b and a is not None and b is not None:
                yield Scalar(f"{name} of epoch {i}", vs(a.value, b.value))
    for i, pair in enumerate(zip(first.evaluations, second.evaluations, strict=False)):
        a, b = map(mean_absolute_error, pair) if is_regression(*pair) else (None, None)
        if a != b and a is not None and b is not None:
            yield Scalar(f"mean absolute error of evaluation {i}", vs(float(a), float(b)))


# --- showing it -------------------------------------------------------------------------


def text(found: Comparison) -> str:
    """A comparison for a terminal."""
    lines = [f"A  {found.first}", f"B  {found.second}", *found.notes, ""]
    for title, findings in (
        ("criteria of Chen et al. (2022)", _on_a_page(found.criteria)),
        ("bits", _shortened(found.bits)),
    ):
        if findings:
            lines.append(f"{title}:")
            for x in findings:
                mark = "same     " if x.same else "DIFFERENT"
                values = x.first if x.same else f"{x.first} | {x.second}"
                difference = f"  ({x.difference})" if x.difference else ""
                lines.append(f"  {mark}  {x.name}: {values}{difference}")
            lines.append("")
    if found.variability:
        lines.append("variability (Vermv, Vc):")
        for x in found.variability:
            rest = f", {x.undefined} undefined" if x.undefined else ""
            rest += f", {x.signs} of another sign" if x.signs else ""
            rest += f"; up to {x.ulps} ULPs" if x.ulps is not None else ""
            lines.append(
                f"  {x.name}: {x.vermv:.3e}, {float(x.vc):.6g} ({x.differ} of {x.elements}{rest})"
            )
        lines.append("")
    if found.scalars:
        lines.append("variability of numbers (Vs):")
        lines += [f"  {x.name}: {_vs(x)}" for x in found.scalars[:SHOWN]]
        if len(found.scalars) > SHOWN:
            lines.append(f"  and {len(found.scalars) - SHOWN} more{_largest(found.scalars)}")
        lines.append("")
    place = f"; the first difference is at {found.place}" if found.place else ""
    return "\n".join([*lines, f"verdict: {found.verdict}{place}"])


def _shortened(findings: Sequence[Finding]) -> list[Finding]:
    """Those that differ, and how many are the same."""
    differ = [x for x in findings if not x.same]
    same = len(findings) - len(differ)
    if not same:
        return differ
    return [*differ, Finding(f"{same} of {len(findings)} comparisons", True, "equal bits", "")]


def _on_a_page(findings: Sequence[Finding]) -> Sequence[Finding]:
    return findings if len(findings) <= MOST_ON_A_PAGE else _shortened(findings)


def as_json(found: Comparison) -> dict[str, Any]:
    """A comparison as JSON holds it: Vc and the share of bits are pairs of counts."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "verdict": found.verdict,
        "same": found.same,
        **dataclasses.asdict(found),
    }


def as_html(found: Comparison) -> str:
    """A comparison as one page, which needs nothing from elsewhere."""
    introduction = page.paragraph(f"A: {found.first}") + page.paragraph(f"B: {found.second}")
    place = [f"The first difference is at {found.place}."] if found.place else []
    introduction += "".join(map(page.paragraph, (*found.notes, *place)))
    return page.page(found.verdict.capitalize(), introduction, sections(found))


def sections(found: Comparison) -> list[page.Section]:
    """What a page says of a comparison."""
    heads = ("what", "result", "A", "B", "difference")
    tables = []
    for title, caption, findings in (
        ("Criteria", "The criteria of Chen et al. (2022), section 3.3", found.criteria),
        ("Bits", "Everything else that both logged, by its bits", _shortened(found.bits)),
    ):
        shown = _on_a_page(findings)
        rows = ((x.name, page.Mark(x.same), x.first, x.second, x.difference) for x in shown)
        table = page.table(caption, heads, itertools.islice(rows, MOST_ROWS))
        if len(shown) > MOST_ROWS:
            table += page.paragraph(f"And {len(shown) - MOST_ROWS} more; --json has all.")
        tables.append(page.Section(title, table))
    variability = page.table(
        "Vermv is the mean of |a - b| / |a|, Vc the share of elements that differ; ULPs are the "
        "largest distance of two elements, in numbers of their type",
        MEASURES,
        map(measures, found.variability[:MOST_ROWS]),
    )
    if len(found.variability) > MOST_ROWS:
        variability += page.paragraph(f"And {len(found.variability) - MOST_ROWS} more arrays.")
    shown = found.scalars[:MOST_ROWS]
    more = len(found.scalars) - len(shown)
    variability += page.table(
        "Vs is 1 - |b / a|", ("number", "Vs"), ((x.name, _vs(x)) for x in shown)
    )
    if more:
        variability += page.paragraph(f"And {more} more{_largest(found.scalars)}.")
    return [*tables, page.Section("Variability", variability)]


#: The columns of :func:`measures`.
MEASURES = (
    "what",
    "Vermv",
    "Vc",
    "elements",
    "undefined",
    "other sign",
    "ULPs",
    "bits that differ",
)


def measures(x: Variability) -> tuple[str, ...]:
    """A row of a table: the name, and what was measured."""
    counts = (x.elements, x.undefined, x.signs)
    return (
        x.name,
        f"{x.vermv:.3e}",
        f"{float(x.vc):.6g}",
        *map(str, counts),
        "none" if x.ulps is None else str(x.ulps),
        f"{100 * float(x.share_of_bits):.3g} %",
    )


def _vs(x: Scalar) -> str:
    return "undefined" if x.vs is None else f"{x.vs:.3e}"


def _largest(scalars: Sequence[Scalar]) -> str:
    defined = [x for x in scalars if x.vs is not None]
    if not defined:
        return ""
    found = max(defined, key=lambda x: abs(x.vs))
    return f"; the largest is {_vs(found)}, {found.name}"


# --- the command ------------------------------------------------------------------------

READERS = {"repjax": runs.read, "icse22": lambda path, _: icse22.read(path)}


def add_command(commands) -> None:
    parser = commands.add_parser(
        "compare",
        help="are two runs the same?",
        description="Compare two runs by the criteria of Chen et al. (2022) and by their bits. "
        "Exit status: 0 the same, 1 different, 2 the request cannot be met.",
        epilog="example: repjax compare runs/laptop runs/server --html report.html",
    )
    parser.add_argument("first", metavar="A", help="a run directory (repjax.verify.Run)")
    parser.add_argument("second", metavar="B", help="another one")
    add_format(parser)
    parser.add_argument("--json", metavar="FILE", help="write the comparison as JSON")
    parser.add_argument("--html", metavar="FILE", help="write it as a page")
    parser.set_defaults(run=run)


def add_format(parser) -> None:
    parser.add_argument(
        "--format",
        choices=sorted(READERS),
        default="repjax",
        help="icse22: result files of that paper's experiments",
    )


def run(arguments: argparse.Namespace) -> int:
    read = READERS[arguments.format]
    try:
        with counter("records of the runs") as progress:
            found = compare(*(read(x, progress) for x in (arguments.first, arguments.second)))
        if arguments.json:
            _write(arguments.json, json.dumps(as_json(found), indent=1) + "\n")
        if arguments.html:
            _write(arguments.html, as_html(found))
    except (OSError, ValueError) as error:
        print(f"repjax compare: {error}", file=sys.stderr)
        return 2
    print(text(found))
    return 0 if found.same else 1


def _write(path: str, content: str) -> None:
    """Completely or not at all."""
    with replacing(path) as file:
        file.write(content.encode())
