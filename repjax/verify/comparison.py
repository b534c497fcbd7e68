"""Are two runs the same: ``repjax compare A B``.

**Criteria** are those of Chen et al. 2022 ("Towards training reproducible deep learning models",
section 3.3): the overall accuracy, the accuracy of each class and every prediction, or for
regression the mean absolute error and every prediction; the loss of every epoch, and their number.
Training time is none of them.  Counts are integers and ratios fractions, so they are exact; floats
are compared by their bits, so that equal NaNs are equal, and 0 and -0 are not.

**Bits.**  Beyond the criteria, digests of all trees that both runs logged are compared by step and
by leaf, and the final parameters and logits by element.

**Variability** has the measures of the study of floating-point non-associativity (section II
there), computed in float64 and summed exactly::

    Vs    1 - |b / a| of two numbers
    Vermv the mean over elements of |a - b| / |a|
    Vc    the share of elements that differ

Conventions, where the study leaves them open: Vc compares bits, so that a zero of the other sign
counts and equal NaNs do not.  Vs does not see signs; changes of sign are counted beside it.  Where
a and b have equal bits, a term is 0.  Elsewhere, where a is 0, or a or b is no finite number, a
term is undefined: such elements are counted, and left out of Vermv's mean; Vs is None.

The verdict is the strongest that holds: *identical bits*, *identical by the criteria*, *different*.
"""

from __future__ import annotations

import argparse
import dataclasses
import fractions
import html
import json
import math
import sys
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from repjax.checkpoint import replacing
from repjax.verify import icse22, runs
from repjax.verify.digest import digest, little_endian

FORMAT, VERSION = "repjax comparison", 1
#: How many of what differs are named.
SHOWN = 5


@dataclasses.dataclass(frozen=True)
class Finding:
    """What one comparison gave: whether the two are the same, and how they differ, in words."""

    name: str
    same: bool
    first: str
    second: str
    difference: str = ""


@dataclasses.dataclass(frozen=True)
class Variability:
    """Of the elements of two arrays, ``a`` and ``b``.

    Attributes:
      name: what they are.
      elements: how many there are.
      differ: how many differ in bits, so that Vc is their share.
      vermv: the mean over the elements for which it is defined.
      undefined: how many these are not.
      signs: how many differ in sign.
    """

    name: str
    elements: int
    differ: int
    vermv: float
    undefined: int
    signs: int

    @property
    def vc(self) -> fractions.Fraction:
        return fractions.Fraction(self.differ, self.elements or 1)


@dataclasses.dataclass(frozen=True)
class Comparison:
    """Of two runs.

    Attributes:
      first, second: their names.
      criteria: those of Chen et al. that both runs have numbers for.
      bits: what is compared beyond them.
      place: where the first difference of digests is, ``step 3, params: layer/kernel``, or empty.
      variability: of arrays that differ, and of losses.
      notes: what a reader should know, such as that a run was interrupted.
    """

    first: str
    second: str
    criteria: tuple[Finding, ...]
    bits: tuple[Finding, ...]
    place: str
    variability: tuple[Variability, ...]
    notes: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        if not all(x.same for x in self.criteria):
            return "different"
        if not all(x.same for x in self.bits):
            return "identical by the criteria"
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
    bits = (*steps, *_arrays(first, second))
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
    return Comparison(first.name, second.name, criteria, bits, place, variabilities, notes)


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
    losses = [[epoch.loss for epoch in run.epochs] for run in (first, second)]
    shared = min(map(len, losses))
    differ = [i for i in range(shared) if losses[0][i] != losses[1][i]]
    at = differ[0] if differ else 0
    shown = [str(of_run[at]) if differ else f"{shared} losses" for of_run in losses]
    difference = f"{len(differ)} of {shared} epochs, the first is epoch {at}" if differ else ""
    yield Finding("loss of every epoch", not differ, *shown, difference)
    count = [str(len(of_run)) for of_run in losses]
    yield Finding("number of epochs", count[0] == count[1], *count)


def _evaluation(a: runs.Evaluation, b: runs.Evaluation) -> Iterator[Finding]:
    if a.labels is not None and b.labels is not None:
        same = bits(a.labels) == bits(b.labels)
        yield Finding("labels of the test data", same, *(digest(x.labels)[:17] for x in (a, b)))
    is_regression = any(x.predictions.dtype.kind not in "biu" for x in (a, b))
    yield from _errors(a, b) if is_regression else _accuracies(a, b)
    if a.predictions.shape != b.predictions.shape or a.predictions.dtype != b.predictions.dtype:
        shown = (f"{x.predictions.dtype}{list(x.predictions.shape)}" for x in (a, b))
        yield Finding("every prediction", False, *shown, "types or numbers differ")
        return
    differ = np.flatnonzero(differing(a.predictions, b.predictions))
    at = differ[0] if len(differ) else 0
    shown = [str(x.predictions[at]) if len(differ) else f"{x.predictions.size}" for x in (a, b)]
    difference = f"{len(differ)} of {a.predictions.size}, the first is instance {at}"
    yield Finding("every prediction", not len(differ), *shown, difference if len(differ) else "")


def _accuracies(a: runs.Evaluation, b: runs.Evaluation) -> Iterator[Finding]:
    found = [_accuracy(x) for x in (a, b)]
    for name, wanted in (("overall accuracy", [None]), ("accuracy of each class", None)):
        classes = wanted or sorted({*found[0], *found[1]} - {None}, key=_by_number)
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


def _by_number(name: str) -> tuple[float, str]:
    try:
        return float(name), name
    except ValueError:
        return math.inf, name


def _ratio(x: tuple[int, int] | str | None) -> str:
    if x is None:
        return "none"
    return x if isinstance(x, str) else f"{x[0]}/{x[1]}"


def _accuracy(x: runs.Evaluation) -> dict[str | None, tuple[int, int] | str]:
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
    shown = [_mean_absolute_error(x) for x in (a, b)]
    # Where numbers are missing, the predictions say whether they are the same.
    if None not in shown:
        texts = [
            f"{float(x):.9g} ({x})" if x.denominator < 10**12 else repr(float(x)) for x in shown
        ]
        yield Finding("mean absolute error", shown[0] == shown[1], *texts)


def _mean_absolute_error(x: runs.Evaluation) -> fractions.Fraction | None:
    """Exactly; None with numbers that are not finite, or without labels."""
    if x.labels is None or not x.labels.size:
        return None
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


def differing(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Which elements of two arrays of one type differ in bits."""
    if a.size == 0:
        return np.zeros(a.shape, bool)
    words = [little_endian(x).reshape(a.size, -1) for x in (a, b)]
    return (words[0] != words[1]).any(1).reshape(a.shape)


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


def vs(a: float, b: float) -> float | None:
    """1 - |b / a|, None where that is undefined."""
    if np.float64(a).view(np.uint64) == np.float64(b).view(np.uint64):
        return 0.0
    if a == 0 or not (math.isfinite(a) and math.isfinite(b)):
        return None
    return float(1 - abs(fractions.Fraction(b) / fractions.Fraction(a)))


def variability(name: str, a: np.ndarray, b: np.ndarray) -> Variability:
    """Of two arrays of one shape and type of floats."""
    differ = differing(a, b)
    x, y = (np.asarray(v, np.float64)[differ] for v in (a, b))
    defined = np.isfinite(x) & np.isfinite(y) & (x != 0)
    with np.errstate(all="ignore"):
        terms = np.abs(x[defined] - y[defined]) / np.abs(x[defined])
    count = a.size - int((~defined).sum())
    return Variability(
        name,
        a.size,
        int(differ.sum()),
        math.fsum(terms) / count if count else 0.0,
        int((~defined).sum()),
        int((np.signbit(x) != np.signbit(y)).sum()),
    )


def _variabilities(first: runs.Record, second: runs.Record) -> Iterator[Variability]:
    for name, a, b in _pairs(first, second):
        is_float = a.dtype == b.dtype and a.dtype.kind in "fV"
        if is_float and a.shape == b.shape and bits(a) != bits(b):
            yield variability(name, a, b)
    losses = [[epoch.loss for epoch in run.epochs] for run in (first, second)]
    shared = min(map(len, losses))
    if any(losses[0][i] != losses[1][i] for i in range(shared)):
        arrays = (np.array([x.value for x in of_run[:shared]], np.float64) for of_run in losses)
        yield variability("losses", *arrays)


# --- showing it -------------------------------------------------------------------------


def text(found: Comparison) -> str:
    """A comparison for a terminal."""
    lines = [f"A  {found.first}", f"B  {found.second}", *found.notes, ""]
    for title, findings in (
        ("criteria of Chen et al. (2022)", found.criteria),
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
            lines.append(
                f"  {x.name}: {x.vermv:.3e}, {float(x.vc):.6g} ({x.differ} of {x.elements}{rest})"
            )
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


def as_json(found: Comparison) -> dict[str, Any]:
    """A comparison as JSON holds it; Vc is a pair of counts."""
    return {
        "format": FORMAT,
        "version": VERSION,
        "verdict": found.verdict,
        "same": found.same,
        **dataclasses.asdict(found),
    }


_PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>repjax compare</title><style>
body {{ font: 15px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 72rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; width: 100%; }}
th, td {{ border-bottom: 1px solid #ccc; padding: .3rem .6rem; text-align: left; }}
td {{ font-variant-numeric: tabular-nums; overflow-wrap: anywhere; }}
.same {{ color: #14622d; }} .different {{ color: #a3121f; font-weight: 600; }}
</style></head><body>
<h1>{verdict}</h1>
<p>A: {first}<br>B: {second}</p>{notes}
{tables}
</body></html>
"""


def as_html(found: Comparison) -> str:
    """A comparison as one page, which needs nothing from elsewhere."""
    tables = []
    for title, findings in (
        ("Criteria of Chen et al. (2022)", found.criteria),
        ("Bits", found.bits),
    ):
        rows = [
            (
                ("same", "same") if x.same else ("different", "different"),
                (x.name, x.first, x.second, x.difference),
            )
            for x in findings
        ]
        tables.append(_table(title, ("", "what", "A", "B", "difference"), rows))
    rows = [
        (None, (x.name, f"{x.vermv:.6e}", f"{float(x.vc):.6g}", str(x.elements), str(x.undefined)))
        for x in found.variability
    ]
    tables.append(_table("Variability", ("what", "Vermv", "Vc", "elements", "undefined"), rows))
    place = [f"The first difference is at {found.place}."] if found.place else []
    notes = "".join(f"<p>{html.escape(note)}</p>" for note in (*found.notes, *place))
    return _PAGE.format(
        verdict=html.escape(found.verdict.capitalize()),
        first=html.escape(found.first),
        second=html.escape(found.second),
        notes=notes,
        tables="\n".join(tables),
    )


def _table(title: str, heads, rows) -> str:
    if not rows:
        return ""
    lines = []
    for mark, cells in rows:
        marked = f'<td class="{mark[0]}">{mark[1]}</td>' if mark else ""
        lines.append(f"<tr>{marked}{''.join(f'<td>{html.escape(c)}</td>' for c in cells)}</tr>")
    heads = "".join(f"<th>{html.escape(h)}</th>" for h in heads)
    return f"<h2>{title}</h2>\n<table><tr>{heads}</tr>\n" + "\n".join(lines) + "\n</table>"


# --- the command ------------------------------------------------------------------------

_READERS = {"repjax": runs.read, "icse22": icse22.read}


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
    parser.add_argument(
        "--format",
        choices=sorted(_READERS),
        default="repjax",
        help="icse22: result files of that paper's experiments",
    )
    parser.add_argument("--json", metavar="FILE", help="write the comparison as JSON")
    parser.add_argument("--html", metavar="FILE", help="write it as a page")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    read = _READERS[arguments.format]
    try:
        found = compare(read(arguments.first), read(arguments.second))
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
