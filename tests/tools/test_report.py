"""``repjax report``: what the page says of runs, and that it is a page that a browser shows."""

from __future__ import annotations

import fractions
import html.parser
import json
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest

from repjax import checkpoint
from repjax.verify import Run, manifest, page, parting, plots, report, runs, training

LABELS = np.arange(60) % 6
#: Metadata as somebody might write it who wants to be read by a browser.
HOSTILE = {
    "<script>alert(1)</script>": '"><img src=http://x.example/y onerror=alert(2)>',
    "n": None,
}


def write(path, part: int | None = None, *, epochs: int = 3, metadata=None, **change):
    """A run of 4 steps an epoch, with checkpoints; from step ``part`` on with another bit."""
    weights = {f"layer {i}": {"kernel": np.linspace(1, 2, 12, dtype="f4")} for i in range(3)}
    weights["count"] = np.int32(0)
    with Run(path, metadata=metadata or {"rate": 0.1}) as run:
        (run.path / training.CHECKPOINTS).mkdir()
        run.step(0, state=weights)
        for n in range(1, 4 * epochs + 1):
            weights = {**weights, "count": np.int32(n)}
            for i in range(3):
                kernel = weights[f"layer {i}"]["kernel"] * np.float32(0.75)
                if part is not None and n >= part + i:
                    kernel[n % 12] = np.nextafter(kernel[n % 12], np.float32(9))
                weights[f"layer {i}"] = {"kernel": kernel}
            run.step(n, state=weights, batch=np.arange(n))
            if n % 4 == 0:
                checkpoint.save(run.path / training.CHECKPOINTS / f"{n}.npz", weights)
                loss = np.float32(1 / n)
                if part is not None and n >= part:
                    loss = np.nextafter(loss, np.float32(9))
                run.epoch(change.get("losses", {}).get(n // 4 - 1, loss), rate=0.5**n)
                predictions = np.where(np.arange(60) < n, LABELS, (LABELS + 1) % 6)
                run.evaluate(LABELS, predictions)
        run.finish(change.get("params", weights))
    return path


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """Two runs that part at step 6."""
    folder = tmp_path_factory.mktemp("pair")
    return write(folder / "a"), write(folder / "b", 6)


def made(*paths) -> str:
    return report.as_html(report.read([str(path) for path in paths]))


class Page(html.parser.HTMLParser):
    """Checks that tags are closed in order, and notes what a reader gets."""

    VOID = ("meta", "br", "img", "input", "link")

    def __init__(self, text: str):
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: list[tuple[str, dict]] = []
        self.text: list[str] = []
        self.rows: list[list[str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_startendtag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if "style" not in self.open:
            self.text.append(data)
        if {"td", "th"} & {*self.open}:
            self.rows[-1][-1] += data

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]

    def row(self, *first: str) -> list[str]:
        (found,) = [row for row in self.rows if row[: len(first)] == [*first]]
        return found


# --- what it says ------------------------------------------------------------------------


def test_two_runs(pair):
    found = Page(made(*pair))
    text = " ".join(found.text)
    assert "2 runs: not all the same" in text
    assert "The first difference is at step 6, state: layer 0/kernel" in text
    assert "3 of 5 leaves differ in some of 13 steps" in text
    assert found.row("state: layer 1/kernel") == ["state: layer 1/kernel", "7", "6 of 13"]
    assert "B differs from A in 2 of 3 epochs, the first is epoch 1." in text
    assert found.row("1", "0.125\n0x1p-3")[2] == "✗ 0.125000015\n0x1.000002p-3"
    assert found.row("0", "0.25\n0x1p-2")[2] == "✓ 0.25\n0x1p-2"
    assert "3 of 3 layers differ in their arrays" in text
    assert "Digests of leaves by step, B and A" in text and "Vermv, the mean of" in text
    for word in ("jax", "repjax_enable", "rate", "Verdict: different"):
        assert word in text


def test_the_layers_by_step(pair):
    """Counted once more, from the checkpoints."""
    _, entry = report.read([str(path) for path in pair])
    assert entry.layers.columns == ["4", "8", "12", "final"] and not entry.layers.other
    for name, row in entry.layers.of.items():
        for column, found in zip(entry.layers.columns, row, strict=True):
            file = runs.PARAMS if column == "final" else f"{training.CHECKPOINTS}/{column}.npz"
            a, b = (checkpoint.load_leaves(path / file)[name, "kernel"] for path in pair)
            words = [x.view(np.int32).astype(np.int64) for x in (a, b)]
            assert found.differ == (words[0] != words[1]).sum() and found.elements == 12
            assert found.bits == sum(bin(x ^ y).count("1") for x, y in zip(*words, strict=True))
            assert (found.ulps or 0) == abs(words[0] - words[1]).max()
            exact = [[fractions.Fraction(float(v)) for v in x] for x in (a, b)]
            mean = sum(abs(x - y) / x for x, y in zip(*exact, strict=True)) / 12
            assert abs(fractions.Fraction(found.vermv) - mean) < fractions.Fraction(1, 2**70)
    assert [row[0].differ for row in entry.layers.of.values()] == [0, 0, 0]
    assert all(row[1].differ for row in entry.layers.of.values())


def test_the_same_runs(pair, tmp_path):
    found = Page(made(pair[0], write(tmp_path / "again")))
    text = " ".join(found.text)
    assert "2 runs: all the same" in text and "✓ identical bits" in text
    assert "All 5 leaves have the same bits in all 13 steps." in text
    assert "✗" not in text and "0 of 3 layers differ" in text
    assert not any("difference from A" in svg["aria-label"] for svg in found.all("svg"))


def test_one_run_and_many(pair, tmp_path):
    one = Page(made(pair[0]))
    assert f"A run: {pair[0]}" in one.text and "Where they part" not in one.text
    assert len(one.all("svg")) == 4  # loss, a metric, overall accuracy, accuracy of each class
    entries = report.read([str(pair[i % 2]) for i in range(5)])
    assert [entry.letter for entry in entries] == ["A", "B", "C", "D", "E"]
    assert [entry.compared.same for entry in entries[1:]] == [False, True, False, True]
    many = Page(report.as_html(entries))
    assert many.row("E")[2] == "✓ identical bits"
    assert report.letter(25) == "Z" and report.letter(26) == "A1"


def test_the_same_runs_give_the_same_file(pair):
    assert made(*pair) == made(*pair)


def test_the_map_of_leaves_is_that_of_the_digests(tmp_path, monkeypatch):
    """Also where a column has several steps, and where one of two runs lacks a leaf."""
    a, b = write(tmp_path / "a", epochs=5), write(tmp_path / "b", 9, epochs=5)
    records = [runs.read(path) for path in (a, b)]
    del records[1].steps[3]["batch"]
    for width in (240, 7):
        monkeypatch.setattr(parting, "MOST_COLUMNS", width)
        found = parting.agreement_of(*records, lambda n: None)
        assert found.steps == 21 and found.columns[0] == 0
        for leaf in found.leaves:
            tree, _, path = leaf.name.partition(": ")
            for k, start in enumerate(found.columns):
                stop = (*found.columns, 21)[k + 1]
                pairs = [
                    [record.steps[n].get(tree, {}).get(path) for record in records]
                    for n in range(start, stop)
                ]
                states = [
                    None
                    if a == b is None
                    else parting.AGREES
                    if a == b
                    else parting.MISSING
                    if None in (a, b)
                    else parting.DIFFERS
                    for a, b in pairs
                ]
                worst = (parting.DIFFERS, parting.MISSING, parting.AGREES, None)
                assert leaf.states[k] == next(s for s in worst if s in states), (leaf.name, k)
        batch = next(leaf for leaf in found.leaves if leaf.name.startswith("batch"))
        assert (batch.first, batch.count) == (3, 1)


def test_losses_that_are_no_numbers(pair, tmp_path):
    losses = {0: np.float32("nan"), 1: np.float32("inf"), 2: np.float32("-inf")}
    odd = write(tmp_path / "odd", losses=losses)
    text = made(odd, pair[0])
    assert all(f">{name}</text>" in text for name in ("NaN", "inf", "-inf"))
    assert ">undefined</text>" in text
    found = Page(made(odd, write(tmp_path / "again", losses=losses)))
    assert "3 epochs. B has A's bits." in " ".join(found.text)
    assert report._relative(*[runs.Number.of("x", np.float32(x)) for x in (0, -0.0)]) != 0


def test_one_epoch_and_none(tmp_path):
    found = Page(made(write(tmp_path / "one", epochs=1), write(tmp_path / "two", 1, epochs=1)))
    assert "1 epoch. B differs from A in 1 of 1 epochs" in " ".join(found.text)
    with Run(tmp_path / "none") as run:
        run.step(0, params=np.ones(3))
    found = Page(made(tmp_path / "none"))
    assert "no, interrupted" in found.row("A") and not found.all("svg")


def test_numbers_instead_of_classes(tmp_path):
    for name, error in (("a", 0.5), ("b", 0.25)):
        with Run(tmp_path / name) as run:
            run.evaluate(np.zeros(4), np.full(4, error))
    found = Page(made(tmp_path / "a", tmp_path / "b"))
    assert found.row("0", "mean absolute error 0.5")[2] == "✗ mean absolute error 0.25"


def test_leaves_of_other_shapes(pair, tmp_path):
    other = write(tmp_path / "b", params={"layer 0": {"kernel": np.ones((3, 4), "f4")}})
    text = " ".join(Page(made(pair[0], other)).text)
    assert "layer 0/kernel (float32[12] against float32[3,4])" in text


def test_settings_side_by_side(pair, tmp_path):
    metadata = {"rate": 0.2, "names": ["x", "y"], "many": [*range(99)], "deep": [[[[[[[[[1]]]]]]]]]}
    other = write(tmp_path / "b", metadata=metadata)
    manifest.write(other / report.MANIFEST, manifest.make(other, seeds={"model": 7}))
    found = Page(made(pair[0], other))
    assert found.row("rate") == ["rate", "✗ different", "0.1", "0.2"]
    assert found.row("names")[2:] == ["none", "x, y"] and found.row("many")[3] == "99 items"
    assert found.row("jax")[1] == "✓ same"
    assert found.row("seeds.model") == ["seeds.model", "7"]
    assert found.row("devices.0.kind")[1] == "cpu" and found.row("metadata.many")[1] == "99 items"
    assert found.row("metadata.deep" + 6 * ".0")[1] == "1 items"
    assert "Key facts of manifest.json" in found.text


def test_result_files_of_the_paper(tmp_path):
    text = "overall_acc,0.75\nloss,[1.5, 0.1]\ntime,[1, 2]\n0,0.5\n1,1.0\n0\n1\n1\n0\n"
    (tmp_path / "a").write_text(text)
    (tmp_path / "b").write_text(text.replace("0.1]", "0.2]"))
    entries = report.read([str(tmp_path / x) for x in "ab"], "icse22")
    found = Page(report.as_html(entries))
    assert found.row("0", "0.75") == ["0", "0.75", "✓ 0.75"] and not report.same(entries)


def test_long_work_says_how_far_it_is(pair, monkeypatch, capsys):
    from repjax.verify import progress

    monkeypatch.setattr(progress, "IN_A_FILE", 0.0)
    made(*pair)
    said = capsys.readouterr().err
    for what in (
        "records of the runs: 21",
        f"steps of {pair[1]}: 13",
        f"checkpoints of {pair[1]}: 3",
    ):
        assert f"{what}\n" in said
    assert "sections of 8: 8\n" in said


# --- a page ------------------------------------------------------------------------------


def test_a_page_needs_nothing_from_elsewhere(pair, tmp_path):
    text = made(write(tmp_path / "<b>", 6, metadata=HOSTILE), pair[0])
    found = Page(text)
    assert not {"script", "img", "iframe", "link", "object", "b>"} & {tag for tag, _ in found.tags}
    for _, attributes in found.tags:
        assert not any(name.startswith("on") for name in attributes)
        for name in ("src", "href", "xlink:href", "action"):
            assert attributes.get(name, "#").startswith("#")
    shown = json.dumps(HOSTILE)  # all addresses in it are what the metadata says
    assert text.count("http") == shown.count("http") and "url(#" in text
    assert re.search(r"url\((?!#)|@import", text) is None
    assert "<script>alert(1)</script>" in found.row("<script>alert(1)</script>", "✗ different")


def test_who_cannot_see_is_told(pair):
    found = Page(made(*pair))
    for svg in found.all("svg"):
        assert svg["role"] == "img" and len(svg["aria-label"]) > 20
    assert len(found.all("figcaption")) == len(found.all("figure")) == len(found.all("svg"))
    assert len(found.all("caption")) == len(found.all("table"))
    assert {x["scope"] for x in found.all("th")} == {"col", "row"}
    identifiers = [x["id"] for _, x in found.tags if "id" in x]
    assert len(identifiers) == len(set(identifiers))
    used = {x["href"][1:] for _, x in found.tags if "href" in x}
    assert used and used <= set(identifiers)


def test_names_of_leaves_and_metrics_are_only_text(tmp_path):
    """In figures, too, where XML has other ends than those of elements."""
    bad = "--><script>alert(1)</script>]]></style><!-- $x$"
    for name in "ab":
        with Run(tmp_path / name) as run:
            for n in range(2):
                run.step(n, **{bad: {bad: np.float32(ord(name) * n)}})
                run.epoch(1.0, **{bad: ord(name)})
            run.finish({bad: np.float32(ord(name))})
    found = Page(made(tmp_path / "a", tmp_path / "b"))
    assert "script" not in {tag for tag, _ in found.tags}
    assert found.row(f"{bad}: {bad}")[1:] == ["1", "1 of 2"]


def test_classes_of_runs_with_other_numbers_of_evaluations(tmp_path):
    """The accuracy of each class is that of the last evaluation that both have."""
    found = Page(made(write(tmp_path / "a"), write(tmp_path / "b", epochs=2)))
    assert "Accuracy of each class, evaluation 1" in found.text
    assert "0 of 6 classes differ." in " ".join(found.text)


@pytest.mark.parametrize(
    "text, shown",
    [("a\x00b", "a\ufffdb"), ("\ud800", "\ufffd"), ("<&\"'", "&lt;&amp;&quot;&#x27;")],
)
def test_any_text_can_be_shown(text, shown):
    assert page.escape(text) == shown
    page.page(text, page.paragraph(text), [page.Section(text, "x")]).encode()
    rows = [(f"{text} $x_1$ 中", [parting.AGREES, parting.DIFFERS])]
    assert "$x_1$ 中" in plots.states("a", text, text, rows, [0, 1])


def test_numbers_of_any_size_can_be_drawn():
    numbers = (1e308, 5e-324, -1e308, 0.0, float("nan"), float("inf"), None)
    for series in ([plots.Series("A", numbers)], [plots.Series("A", [])] * 3):
        assert plots.lines("a", "title", "text", series, "label").endswith("</svg>\n")
        positive = [
            plots.Series("A", [x and abs(x) for x in s.values if x != np.inf]) for s in series
        ]
        assert "same bits" in plots.differences("a", "title", "text", positive, 0)
    for share, row in ((False, [0, 5e-324, 1e308, None, float("nan")]), (True, [0, 0.5, 1])):
        drawing = plots.heat("a", "t", "x", [("r", row)], [*"abcde"[: len(row)]], share=share)
        assert ("undef." in drawing) == (not share)
    drawing = plots.states("a", "t", "x", [("r", [parting.AGREES] * 3)], [3, 1000, 10**7])
    assert "10000000" in drawing and "9000000" not in drawing


BROWSER = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)


@pytest.mark.skipif(not BROWSER, reason="no chromium is installed")
def test_a_browser_shows_it(pair, tmp_path):
    """What the browser makes of the page has all of it, and fits into a narrow window."""
    path = tmp_path / "page.html"
    probe = (
        "<script>document.title = [document.body.scrollWidth <= innerWidth,"
        "document.querySelectorAll('svg path').length > 50,"
        "[...document.querySelectorAll('svg')].every(x => x.getBoundingClientRect().height > 99),"
        "getComputedStyle(document.querySelector('.differ')).color].join()</script>"
    )
    path.write_text(made(*pair).replace("</body>", f"{probe}</body>"))
    options = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path / 'user'}",
    ]
    command = [BROWSER, *options, "--window-size=500,900", "--dump-dom", path.as_uri()]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "<title>true,true,true,rgb(163, 18, 31)</title>" in result.stdout, result.stderr
    picture = tmp_path / "page.png"
    command = [BROWSER, *options, f"--screenshot={picture}", path.as_uri()]
    subprocess.run(command, capture_output=True, timeout=120, check=True)
    assert picture.read_bytes().startswith(b"\x89PNG") and picture.stat().st_size > 10_000


# --- the command -------------------------------------------------------------------------


def command(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-P", "-m", "repjax", "report", *map(str, arguments)],
        capture_output=True,
        text=True,
        **options,
    )


def test_the_command(pair, tmp_path):
    path = tmp_path / "report.html"
    result = command(*pair, "--output", path)
    assert result.returncode == 1 and result.stderr == ""
    assert result.stdout.splitlines() == [
        f"A  {pair[0]}",
        f"B  {pair[1]}: different, first at step 6, state: layer 0/kernel",
    ]
    assert path.read_text() == made(*pair)
    assert command(pair[0], "-o", path).returncode == 0 and "A run" in path.read_text()
    assert "example:" in command("--help").stdout


def edited(path):
    log = path / runs.LOG
    log.write_bytes(log.read_bytes().replace(b"layer", b"slayer", 1))


def another_checkpoint(path):
    folder = path / training.CHECKPOINTS
    (folder / "4.npz").write_bytes((folder / "8.npz").read_bytes())


def cut_checkpoint(path):
    file = path / training.CHECKPOINTS / "8.npz"
    file.write_bytes(file.read_bytes()[:-9])


def bad_manifest(path):
    (path / report.MANIFEST).write_text("{")


def deep_manifest(path):
    (path / report.MANIFEST).write_text('{"a":' * 99_999)


def list_manifest(path):
    (path / report.MANIFEST).write_text("[1]")


@pytest.mark.parametrize(
    "change, message",
    [
        (shutil.rmtree, "expected a run directory"),
        (edited, "expected the seal"),
        (another_checkpoint, "expected the arrays of step 4 of the log, received others"),
        (cut_checkpoint, "cut short or changed"),
        (bad_manifest, "expected a manifest, received no JSON"),
        (deep_manifest, "expected a manifest, received no JSON"),
        (list_manifest, "expected repjax manifest, version 1, received None"),
    ],
)
def test_runs_that_are_none(change, message, pair, tmp_path, capsys):
    path = tmp_path / "b"
    shutil.copytree(pair[1], path)
    change(path)
    refused([pair[0], path, "-o", tmp_path / "report.html"], message, capsys)
    assert not (tmp_path / "report.html").exists()


def refused(arguments, message, capsys):
    from repjax.__main__ import main

    assert main(["report", *map(str, arguments)]) == 2
    error = capsys.readouterr().err
    assert message in error and error.startswith("repjax report: ") and error.count("\n") == 1


def test_requests_that_cannot_be_met(pair, tmp_path, capsys, monkeypatch):
    output = ["-o", tmp_path / "report.html"]
    refused([pair[0], "-o", tmp_path / "no" / "x.html"], "a folder that exists", capsys)
    refused([pair[0], "-o", tmp_path], "expected a file, received a folder", capsys)
    with Run(tmp_path / "other") as run:
        run.epoch(1.0)
    with Run(tmp_path / "steps") as run:
        run.evaluate([0], [0])
    refused([tmp_path / "x", *output], "expected a run directory", capsys)
    refused([tmp_path / "other", *output, "--format", "icse22"], "", capsys)
    monkeypatch.setattr(report, "MOST_RUNS", 1)
    refused([*pair, *output], "expected at most 1 runs, received 2", capsys)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    refused([pair[0], *output], "pip install 'repjax[instruments]'", capsys)
    assert not output[1].exists()
