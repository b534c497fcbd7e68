"""The study of Chen et al., its data, its pictures and its cost, and where they fail."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
import types

import numpy as np
import pytest

from helpers.paths import ROOT
from repjax.verify import read_run, runs

STUDIES = ROOT / "studies"


@pytest.fixture
def studies(monkeypatch):
    """The programs as modules, which import each other by their names."""
    monkeypatch.syspath_prepend(str(STUDIES))
    before = set(sys.modules)
    import chen
    import cost
    import pictures
    import trainings

    import data

    yield types.SimpleNamespace(
        chen=chen, cost=cost, data=data, pictures=pictures, training=trainings
    )
    for name in {"chen", "cost", "data", "pictures", "trainings"} - before:
        sys.modules.pop(name, None)


# --- data ---------------------------------------------------------------------------------


def arrays(**changes):
    """A small graph in the form of cora.npz."""
    rng = np.random.default_rng(0)
    words = rng.integers(0, 2, (150, 11)).astype(np.uint8)
    found = {
        "features_packed": np.packbits(words, axis=1),
        "features": np.int32(11),
        "labels": (np.arange(150) % 7).astype(np.int8),
        "edges": np.array([[0, 3], [5, 149]], np.int32),
        "test": np.arange(140, 150, dtype=np.int32),
    }
    return found | changes, words


def test_cora(studies, tmp_path):
    found, words = arrays()
    np.savez(tmp_path / "cora.npz", **found)
    for path in (tmp_path, tmp_path / "cora.npz"):
        graph = studies.data.cora(path)
        assert graph.features.dtype == np.float32 and (graph.features == words).all()
        assert graph.edges.tolist() == [[0, 5, 3, 149], [3, 149, 0, 5]]
        assert (graph.classes, len(graph.train), graph.test.tolist()[0]) == (7, 140, 140)


@pytest.mark.parametrize(
    "change",
    [
        {"labels": np.zeros(150, np.int32)},
        {"edges": np.array([[0, 150]], np.int32)},
        {"edges": np.array([[0, -1]], np.int32)},
        {"test": np.zeros((2, 2), np.int32)},
        {"features": np.int32(99)},
        {"labels": np.full(150, -1, np.int8)},
        {"features_packed": np.array([[{}]], object)},
    ],
)
def test_another_graph_is_refused(studies, tmp_path, change):
    np.savez(tmp_path / "cora.npz", **arrays(**change)[0])
    with pytest.raises(studies.data.DataError, match=r"expected .* received .*; give cora\.npz"):
        studies.data.cora(tmp_path)


def test_files_that_are_none_are_refused(studies, tmp_path):
    def refused(function, *arguments):
        with pytest.raises(studies.data.DataError, match=r"expected .* received .*; .*"):
            function(*arguments)

    refused(studies.data.cora, tmp_path)
    np.savez(tmp_path / "whole.npz", **arrays()[0])
    whole = (tmp_path / "whole.npz").read_bytes()
    for content in (b"", b"text", whole[:-30], whole[: len(whole) // 2]):
        (tmp_path / "cora.npz").write_bytes(content)
        refused(studies.data.cora, tmp_path)
    refused(studies.data.fashion_mnist, 28, tmp_path / "nowhere")
    refused(studies.data.mnist_test, tmp_path)
    for name, magic, zeros in (("images-idx3", 3, 12), ("labels-idx1", 1, 4)):
        content = bytes([0, 0, 8, magic]) + bytes(zeros)
        (tmp_path / f"t10k-{name}-ubyte.gz").write_bytes(gzip.compress(content))
    refused(studies.data.mnist_test, tmp_path)
    refused(studies.data.series, "nothing")


def test_a_forecast_reads_what_was_before_it_alone(studies):
    numbers = np.sin(np.arange(200.0))
    found = studies.training._windows(numbers)
    scale = numbers[:140].mean(), numbers[:140].std()
    for examples, start, stop in zip(found, (24, 140, 170), (140, 170, 200), strict=True):
        assert examples.count == stop - start
        windows = examples.inputs(np.arange(examples.count))
        for n in (0, examples.count - 1):
            expected = (numbers[start + n - 24 : start + n + 1] - scale[0]) / scale[1]
            got = np.append(windows[n], examples.targets[n])
            assert np.abs(got - expected).max() < 1e-6


# --- the study ----------------------------------------------------------------------------


def study(*arguments):
    return subprocess.run(
        [sys.executable, str(STUDIES / "chen.py"), "--quick", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


def test_a_study(tmp_path):
    output = tmp_path / "chen-quick.json"
    setups = ("seeds", "seeds, repjax", "record, repjax")
    done = study("--setups", *setups, "--work", tmp_path / "work", "--output", output)
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    setups = json.loads(output.read_text())["setups"]
    for name in ("seeds, repjax", "record, repjax"):
        summary = setups[name]["summary"]
        assert summary["identical bits"] == summary["pairs"] == 2
        assert summary["losses"] == summary["predictions"]["largest"] == 0
        assert {x["first step that differs"] for x in setups[name]["pairs"]} == {None}
    # The control: plain JAX differs between the platforms.
    assert setups["seeds"]["summary"]["identical bits"] == 0
    assert None not in {x["first step that differs"] for x in setups["seeds"]["pairs"]}
    for setup in setups.values():
        for pair in setup["pairs"]:
            first, second = pair["platforms"]
            assert first.startswith("SSE4_2+jax ") and second.startswith("AVX2+cpus=1+jax ")


def test_an_interrupted_study_goes_on_with_the_same_bits(tmp_path):
    output, folder = tmp_path / "chen-quick.json", tmp_path / "work"
    options = ["--setups", "seeds, repjax", "--work", folder, "--output", output]
    assert study(*options).returncode == 0
    result = json.loads(output.read_text())["setups"]

    # A run that was cut off begins anew, and has to repeat what it had logged.
    path = folder / "runs" / "seeds-repjax-1-b" / runs.LOG
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:3], lines[3][:20]]))
    again = study(*options)
    assert again.returncode == 0, again.stderr
    assert path.read_bytes().splitlines(keepends=True) == lines
    assert json.loads(output.read_text())["setups"] == result

    # Other bits in its log are found.
    other = folder / "runs" / "seeds-repjax-0-b"
    path.write_bytes(b"".join((other / runs.LOG).read_bytes().splitlines(keepends=True)[:3]))
    refused = study(*options)
    assert refused.returncode == 2
    (said,) = [x for x in refused.stderr.splitlines() if x.startswith("chen.py: ")]
    assert "seeds-repjax-1-b: " in said and "expected to repeat step 0" in said
    assert "Traceback" not in refused.stderr

    # Another study in the same folder is refused, and nothing is lost.
    refused = study(*options, "--pairs", 1)
    assert refused.returncode == 2 and "received those of another one" in refused.stderr
    assert read_run(other).is_finished


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--platforms", "AVX2"], "at least two platforms"),
        (["--platforms", "AVX2", "AVX2"], "at least two platforms"),
        (["--platforms", "AVX2", "AVX3"], "expected words of a setting"),
        (["--platforms", "AVX2", "cpus=none"], "expected cpus=N"),
        (["--python", "/nowhere/python"], "which is no file"),
        (["--set", "mnist"], "expected --set of"),
        (["--pairs", "9"], "at most 8 pairs"),
        (["--output", "/nowhere/x.json"], "expected a folder for --output"),
        (["--network", "lenet5", "--set", "co2"], "choose another set"),
        (["--network", "forecaster", "--set", "digits"], "choose another set"),
        (["--data", "/nowhere"], "install Debian's package"),
    ],
)
def test_wrong_options(studies, capsys, arguments, message):
    assert studies.chen.main(arguments) == 2
    captured = capsys.readouterr().err
    assert captured.startswith("chen.py: ") and captured.count("\n") == 1 and message in captured


def test_a_folder_of_something_else(studies, capsys, tmp_path):
    arguments = ["--quick", "--work", str(tmp_path)]
    (tmp_path / "file").write_text("mine")
    assert studies.chen.main(arguments) == 2
    assert "expected an empty folder" in capsys.readouterr().err
    (tmp_path / studies.chen.STUDY).write_text('{"format": "another"')
    assert studies.chen.main(arguments) == 2
    assert "received those of another one" in capsys.readouterr().err
    assert (tmp_path / "file").read_text() == "mine"


def test_the_plan(studies):
    """8 pairs, the paper's seeds, two platforms in each, all platforms in use."""
    chen = studies.chen
    options = chen.parse(
        ["--set", "digits", "--platforms", "AVX512", "AVX2", "SSE4_2", "AVX+devices=2"]
    )
    plans = chen.plans(chen.check(options))
    assert len(plans) == 5 * 16 and len({plan.name for plan in plans}) == len(plans)
    pairs = [plans[n : n + 2] for n in range(0, len(plans), 2)]
    assert all(a.pair == b.pair and a.platform != b.platform for a, b in pairs)
    assert {x.platform for pair in pairs for x in pair} == set(options.platforms)
    seeds = [a.seed for a, b in pairs if a.setup == "seeds, repjax" and a.seed == b.seed]
    assert seeds == [0, 1, 2, 5, 10, 42, 123, 1234]


# --- pictures and cost --------------------------------------------------------------------


def test_pictures_are_the_same_for_the_same_results(studies, tmp_path):
    pytest.importorskip("matplotlib")
    drawn = []
    for name in ("a", "b"):
        assert studies.pictures.main(["--output", str(tmp_path / name)]) == 0
        drawn.append({x.name: x.read_bytes() for x in (tmp_path / name).iterdir()})
    assert drawn[0] == drawn[1]
    assert {x.name for x in (ROOT / "docs" / "studies").glob("*.svg")} == set(drawn[0])


def test_pictures_of_something_else(studies, capsys, tmp_path):
    for content in (None, "{}", "[]", "text"):
        if content:
            (tmp_path / "chen-x.json").write_text(content)
        assert studies.pictures.main(["--results", str(tmp_path), "--output", str(tmp_path)]) == 2
        captured = capsys.readouterr().err
        assert captured.startswith("pictures.py: ") and captured.count("\n") == 1
    assert not list(tmp_path.glob("*.svg"))


def test_a_cost_that_has_no_place(studies, capsys):
    assert studies.cost.main(["--networks", "lenet1", "--output", "/nowhere/x.json"]) == 2
    assert "expected a folder" in capsys.readouterr().err


def test_cost(studies, tmp_path):
    output = tmp_path / "cost.json"
    assert studies.cost.main(["--quick", "--output", str(output)]) == 0
    found = json.loads(output.read_text())["networks"]
    assert found.keys() == {"lenet1", "forecaster"}
    assert found["lenet1"]["parameters"] == 3246
    for row in found.values():
        assert row["ratio"] == row["step"]["repjax"] / row["step"]["plain"]
