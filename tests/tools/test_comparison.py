"""``repjax compare``: the criteria of Chen et al. 2022, the first difference, the variability."""

from __future__ import annotations

import dataclasses
import fractions
import html.parser
import json
import subprocess
import sys

import jax
import numpy as np
import pytest

from repjax.verify import Run, RunError, compare, comparison, icse22, read_run, variability

LABELS = np.arange(40) % 4
PREDICTIONS = np.where(np.arange(40) % 5 == 0, (LABELS + 1) % 4, LABELS)


def write(path, change: str = "", *, epochs: int = 3, steps: int = 4):
    """A run with something changed."""
    weights = {"a": {"w": np.linspace(1, 2, 12, dtype=np.float32)}, "b": np.zeros(3, np.float32)}
    predictions, logits = (
        PREDICTIONS.copy(),
        np.linspace(-1, 1, 80, dtype=np.float32).reshape(40, 2),
    )
    if change == "prediction":
        predictions[7] = (LABELS[7] + 1) % 4
    if change == "classes":  # one more of class 1 is right, and one fewer of class 2
        predictions[5], predictions[2] = LABELS[5], (LABELS[2] + 1) % 4
    rates = [0.5**n for n in range(epochs)]
    if change == "metric":
        rates[1] = np.nextafter(rates[1], 9.0)
    if change == "logits":
        logits[3, 1] = np.nextafter(logits[3, 1], np.float32(9))
    with Run(path) as run:
        for n in range(steps):
            weights = jax.tree.map(lambda x: x * np.float32(0.75), weights)
            if change == "weight" and n == 2:
                weights["a"]["w"][5] = np.nextafter(weights["a"]["w"][5], np.float32(9))
            run.step(n, params=weights, batch=np.arange(n))
        for n in range(epochs):
            loss = np.float32(1) / np.float32(n + 1)
            if change == "loss" and n == 2:
                loss = np.nextafter(loss, np.float32(0))
            run.epoch(np.float64(loss) if change == "type" else loss, rate=rates[n])
        run.evaluate(LABELS, predictions, logits)
        run.finish(weights)
    return read_run(path)


@pytest.fixture
def base(tmp_path):
    return write(tmp_path / "base")


def names(findings) -> list[str]:
    return [x.name for x in findings if not x.same]


def test_the_same(base, tmp_path):
    found = compare(base, write(tmp_path / "same"))
    assert found.verdict == "identical bits" and found.same and not found.place
    assert not found.variability and len(found.criteria) == 6


@pytest.mark.parametrize(
    "change, options, criteria, place",
    [
        ("loss", {}, ["loss of every epoch"], ""),
        ("type", {}, ["loss of every epoch"], ""),
        ("metric", {}, [], ""),
        ("prediction", {}, ["overall accuracy", "accuracy of each class", "every prediction"], ""),
        ("classes", {}, ["accuracy of each class", "every prediction"], ""),
        ("", {"epochs": 4}, ["number of epochs"], ""),
        ("weight", {}, [], "step 2, params: a/w"),
        ("logits", {}, [], ""),
        ("", {"steps": 5}, [], ""),
    ],
    ids=["loss", "type", "metric", "prediction", "classes", "epoch", "weight", "logits", "step"],
)
def test_planted_differences_are_named(change, options, criteria, place, base, tmp_path):
    found = compare(base, write(tmp_path / "other", change, **options))
    assert names(found.criteria) == criteria and found.place == place
    assert not found.same
    assert found.verdict == ("different" if criteria else "identical by the criteria")
    text = comparison.text(found)
    assert f"verdict: {found.verdict}" in text and all(name in text for name in criteria)
    assert place in text


def test_what_differs_is_said(base, tmp_path):
    found = compare(base, write(tmp_path / "other", "classes"))
    by_name = {x.name: x for x in found.criteria}
    assert by_name["overall accuracy"].first == "32/40"
    assert by_name["accuracy of each class"].first == "1: 8/10, 2: 8/10"
    assert by_name["accuracy of each class"].second == "1: 9/10, 2: 7/10"
    assert "2 of 40, the first is instance 2" in by_name["every prediction"].difference
    found = compare(base, write(tmp_path / "third", "weight"))
    (variability,) = found.variability
    assert (variability.name, variability.differ, variability.elements) == ("final a/w", 1, 12)


def test_numbers_that_differ(base, tmp_path):
    """Metrics count, and numbers of two types are shown as such; Vs is of the two numbers."""
    found = compare(base, write(tmp_path / "metric", "metric"))
    assert names(found.bits) == ["metric rate of every epoch"]
    ((name, vs),) = [(x.name, x.vs) for x in found.scalars]
    assert (name, vs) == ("metric rate of epoch 1", -(2.0**-52))
    assert "metric rate of epoch 1: -2.220e-16" in comparison.text(found)
    loss = compare(base, write(tmp_path / "loss", "loss"))
    assert [x.name for x in loss.scalars] == ["loss of epoch 2"]
    (losses,) = loss.variability
    assert (losses.name, losses.differ, losses.ulps, losses.bits) == ("losses", 1, 1, 1)
    assert losses.all_bits == 3 * 32
    of_types = compare(base, write(tmp_path / "type", "type"))
    (criterion,) = [x for x in of_types.criteria if not x.same]
    assert (criterion.first, criterion.second) == ("float32 0x1p+0", "float64 0x1p+0")
    assert [x.vs for x in of_types.scalars] == [0.0] * 3


def test_equal_nans_are_equal_and_zeros_of_two_signs_are_not(tmp_path):
    def regression(name, values):
        with Run(tmp_path / name) as run:
            run.epoch(np.float32(values[0]))
            run.evaluate(np.zeros(2, np.float32), np.array(values, np.float32))
        return read_run(tmp_path / name)

    nan = regression("nan", [np.nan, 1]), regression("nan again", [np.nan, 1])
    assert compare(*nan).same
    zero = compare(regression("+0", [0.0, 1]), regression("-0", [-0.0, 1]))
    assert names(zero.criteria) == ["every prediction", "loss of every epoch"]
    error = compare(regression("1", [1, 2]), regression("2", [2, 1]))  # equal in the mean
    assert names(error.criteria) == ["every prediction", "loss of every epoch"]
    assert "mean absolute error" in [x.name for x in error.criteria]
    assert "was interrupted" in comparison.text(error)


def test_the_mean_absolute_error_is_exact(tmp_path):
    """Of numbers whose float32 and float64 sums lose the small ones."""
    labels, large = np.zeros(4), np.array([2.0**60, 1, 2.0**-30, 3])
    with Run(tmp_path / "a") as run:
        run.evaluate(labels, large)
    with Run(tmp_path / "b") as run:
        run.evaluate(labels, large + np.array([0, 0, 2.0**-50, 0]))
    found = compare(read_run(tmp_path / "a"), read_run(tmp_path / "b"))
    assert "mean absolute error" in names(found.criteria)
    (evaluation,) = read_run(tmp_path / "a").evaluations
    exact = (fractions.Fraction(2) ** 60 + 4 + fractions.Fraction(1, 2**30)) / 4
    assert comparison.mean_absolute_error(evaluation) == exact


def test_without_criteria_bits_decide(tmp_path):
    for name, x in (("a", 1), ("b", 1), ("c", 2)):
        with Run(tmp_path / name) as run:
            run.step(0, params=np.float32(x))
    first, same, other = (read_run(tmp_path / name) for name in "abc")
    assert compare(first, same).verdict == "identical bits"
    assert compare(first, other).verdict == "different"


def test_runs_without_anything_in_common(tmp_path):
    for name in "ab":
        Run(tmp_path / name).close()
    with pytest.raises(RunError, match="expected runs that logged"):
        compare(read_run(tmp_path / "a"), read_run(tmp_path / "b"))


# --- variability ------------------------------------------------------------------------


def test_variability_by_its_definition():
    rng = np.random.default_rng(0)
    a = rng.normal(size=(7, 9)).astype(np.float32)
    b = np.where(rng.random(a.shape) < 0.3, np.nextafter(a, np.float32(9)), a)
    found = variability.measure("it", a, b)
    terms = [
        abs(fractions.Fraction(float(x)) - fractions.Fraction(float(y)))
        / abs(fractions.Fraction(float(x)))
        for x, y in zip(a.ravel(), b.ravel(), strict=True)
    ]
    assert abs(fractions.Fraction(found.vermv) - sum(terms) / 63) < fractions.Fraction(1, 2**80)
    assert found.vc == fractions.Fraction(int((a != b).sum()), 63) and found.undefined == 0


def test_conventions_of_variability():
    a = np.array([0, 0, np.nan, np.nan, 1, -1, np.inf, 2], np.float32)
    b = np.array([-0.0, 1, np.nan, 1, np.inf, 1, np.inf, 2], np.float32)
    found = variability.measure("it", a, b)
    assert (found.elements, found.differ, found.undefined, found.signs) == (8, 5, 4, 2)
    assert found.vermv == 2 / 4  # of -1 and 1, among the equal and the defined ones
    assert variability.vs(2.0, 3.0) == -0.5 and variability.vs(2.0, -2.0) == 0.0
    assert variability.vs(0.0, 0.0) == 0.0 and variability.vs(np.nan, np.nan) == 0.0
    assert variability.vs(0.0, 1.0) is None and variability.vs(1.0, np.inf) is None


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_distances_and_bits(dtype):
    """Counted once more, by the integers that order the numbers."""
    dtype = np.dtype(getattr(jax.numpy, dtype)) if dtype == "bfloat16" else np.dtype(dtype)
    width = dtype.itemsize
    rng = np.random.default_rng(0)
    words = rng.integers(0, 1 << 63, (2, 200), np.uint64) >> np.uint64(63 - 8 * width + 1)
    words |= rng.integers(0, 2, (2, 200), np.uint64) << np.uint64(8 * width - 1)
    a, b = words.astype(f"u{width}").view(dtype)
    b[:50] = a[:50]
    found = variability.measure("it", a, b)
    values = [[float(x) for x in v] for v in (a, b)]
    finite = [i for i in range(200) if np.isfinite(values[0][i]) and np.isfinite(values[1][i])]
    half = 1 << (8 * width - 1)
    ordered = [
        [half - int(w) if int(w) >= half else int(w) for w in v.view(f"u{width}")] for v in (a, b)
    ]
    assert found.ulps == max(abs(ordered[0][i] - ordered[1][i]) for i in finite)
    bits = [[int(w) for w in v.view(f"u{width}")] for v in (a, b)]
    assert found.bits == sum((x ^ y).bit_count() for x, y in zip(*bits, strict=True))
    assert found.all_bits == 200 * 8 * width and found.differ <= 150
    assert variability.measure("zeros", a[:1] * 0, -(a[:1] * 0)).ulps in (0, None)


def test_several_arrays_together():
    rng = np.random.default_rng(0)
    a = [rng.normal(size=n).astype(np.float32) for n in (3, 40)]
    b = [np.where(rng.random(x.shape) < 0.4, np.nextafter(x, np.float32(9)), x) for x in a]
    a[1][5] = 0
    parts = [variability.measure("it", x, y) for x, y in zip(a, b, strict=True)]
    whole = variability.measure("it", np.concatenate(a), np.concatenate(b))
    found = variability.together("it", parts)
    assert abs(found.vermv - whole.vermv) < 2**-70 and whole.undefined == 1
    assert dataclasses.replace(found, vermv=0) == dataclasses.replace(whole, vermv=0)


def test_terms_beyond_float64_are_undefined():
    found = variability.measure("it", np.array([5e-324, 1.0]), np.array([1e300, 1.0]))
    assert (found.undefined, found.vermv) == (1, 0.0) and found.ulps > 2**62
    assert variability.vs(5e-324, 1e300) is None


# --- files of Chen et al. ----------------------------------------------------------------

RESULTS = "overall_acc,0.75\nloss,[1.5, 0.1]\ntime,[3.25, 3.5]\n0,0.5\n1,1.0\n0\n1\n1\n0\n"


def test_result_files_of_the_paper(tmp_path):
    changes = {
        "same": ("3.25", "99.0"),  # training time is no criterion
        "loss of every epoch": ("0.1]", "0.10000000000000002]"),
        "number of epochs": ("0.1]", "0.1, 0.05]"),
        "overall accuracy": ("0.75", "0.5"),
        "accuracy of each class": ("1,1.0", "1,0.5"),
        "every prediction": ("\n1\n0\n", "\n0\n0\n"),
    }
    (tmp_path / "a").write_text(RESULTS)
    for name, change in changes.items():
        (tmp_path / "b").write_text(RESULTS.replace(*change))
        found = compare(icse22.read(tmp_path / "a"), icse22.read(tmp_path / "b"))
        assert names(found.criteria) == ([] if name == "same" else [name])
        assert found.same == (name == "same")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "\x00\udcfd7zXZ",
        RESULTS[:30],
        RESULTS.replace("[1.5", "[x"),
        RESULTS.replace("0.75", "much"),
        "\n0\n",
    ],
)
def test_other_files_are_refused(text, tmp_path):
    (tmp_path / "a").write_bytes(text.encode(errors="surrogateescape"))
    with pytest.raises(RunError, match=r"Chen et al\. 2022"):
        icse22.read(tmp_path / "a")


# --- the command ------------------------------------------------------------------------


def command(*arguments):
    return subprocess.run(
        [sys.executable, "-P", "-m", "repjax", "compare", *map(str, arguments)],
        capture_output=True,
        text=True,
    )


class _Tags(html.parser.HTMLParser):
    """The tags that are open; and what is loaded from elsewhere."""

    def __init__(self):
        super().__init__()
        self.open: list[str] = []
        self.links: list[str] = []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        self.links += [value for name, value in attributes if name in ("src", "href")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_command(base, tmp_path):
    write(tmp_path / "same")
    write(tmp_path / "other", "weight")
    same = command(tmp_path / "base", tmp_path / "same")
    assert same.returncode == 0 and "verdict: identical bits" in same.stdout
    files = tmp_path / "c.json", tmp_path / "c.html"
    result = command(tmp_path / "base", tmp_path / "other", "--json", files[0], "--html", files[1])
    assert result.returncode == 1 and "step 2, params: a/w" in result.stdout
    content = json.loads(files[0].read_text())
    assert content["place"] == "step 2, params: a/w" and content["version"] == 1
    tags = _Tags()
    tags.feed(files[1].read_text())
    assert tags.open == [] and all(x.startswith("#") for x in tags.links)
    assert "a/w" in files[1].read_text()


def test_requests_that_cannot_be_met(base, tmp_path):
    for arguments in (
        (tmp_path / "base", tmp_path / "nothing"),
        (tmp_path / "base", tmp_path / "base", "--format", "icse22"),
        (tmp_path / "base", tmp_path / "base", "--json", tmp_path / "no" / "folder"),
    ):
        result = command(*arguments)
        assert result.returncode == 2 and result.stderr.startswith("repjax compare: ")
        assert len(result.stderr.splitlines()) == 1
    assert command(tmp_path / "base").returncode == 2
    assert "example:" in command("--help").stdout
