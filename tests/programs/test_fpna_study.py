"""studies/fpna.py: what is defined without an order is 0, and what has one is not."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys

import numpy as np
import pytest

from helpers.paths import ROOT
from repjax.verify import variability

STUDIES = ROOT / "studies"


@pytest.fixture
def fpna(monkeypatch):
    monkeypatch.syspath_prepend(STUDIES)
    import fpna

    return fpna


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(STUDIES / "fpna.py"), *map(str, arguments)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )


# --- sums -----------------------------------------------------------------------------


@pytest.mark.parametrize("draw", ["uniform(0, 10)", "normal(0, 1)"])
def test_permuted_sums(fpna, draw):
    found = fpna.permuted(draw, 3, 5000, 6)
    different = {way: len(set(values) - {0.0}) for way, values in found.items()}
    assert different["order_independent"] == different["exact"] == 0
    assert min(different[way] for way in ("float64", "sequential")) > 1
    assert max(abs(v) for v in found["float64"]) < 1e-10 < max(abs(v) for v in found["sequential"])


def test_vs_is_the_measure(fpna):
    a, b = np.float64(3.0), np.nextafter(np.float64(3.0), 4)
    for first, second in ((a, b), (b, a), (-a, b), (np.float32(7), np.float32(7.5))):
        exact = variability.vs(float(first), float(second))
        assert math.isclose(float(fpna.vs(first, second)), exact, rel_tol=1e-15)
    assert fpna.vs(a, a) == 0


@pytest.mark.parametrize("n", [1, 2, 3, 7, 64, 100])
def test_trees_and_blocks_add_every_number_once(fpna, n):
    x = 2.0 ** np.arange(n)[None] if n < 50 else np.arange(n, dtype=np.float64)[None]
    assert fpna.tree(x)[0] == x.sum() == fpna.one_after_the_other(x)[0]


def test_blocks_differ_by_little(fpna):
    values = fpna.blocks("uniform(0, 10)", 0, 64 * 50, 200)
    assert 0 < max(map(abs, values)) < 1e-13
    assert values == fpna.blocks("uniform(0, 10)", 0, 64 * 50, 200)


def test_divergence(fpna):
    """Small for normal numbers, large for two points, none for one."""
    from statistics import NormalDist

    normal = np.array([NormalDist().inv_cdf((k + 0.5) / 10_000) for k in range(10_000)])
    assert 0 <= fpna.divergence(normal) < 1e-3
    assert fpna.divergence(np.tile([-1.0, 1.0], 500)) > 1
    assert fpna.divergence(np.zeros(10)) == 0


def test_power(fpna):
    sizes = [10, 100, 1000]
    beta, alpha = fpna.power(sizes, [3e-8 * n**0.5 for n in sizes])
    assert math.isclose(alpha, 0.5, rel_tol=1e-12)
    assert math.isclose(beta, 3e-8, rel_tol=1e-12)
    assert fpna.power(sizes, [0, 0, 0]) is None


# --- operations -----------------------------------------------------------------------

SETTINGS = {
    "ConvTranspose1d": (16, 3, 2, 1),
    "cumsum": (512, 16),
    "index_put, accumulating": (300, 0.1, 2),
    "scatter_reduce, mean": (300, 0.1, 2),
    "scatter_reduce, amax": (300, 0.1, 2),
    "index_copy": (300, 0.1, 2),
    "scatter, repeated": (300, 0.1, 2),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_operations(fpna, name):
    found = fpna.operation(name, SETTINGS[name], 2)
    defined = fpna.OPERATIONS[name][-1]
    assert set(found) == set(fpna.WAYS)
    assert (found["exact"]["vc"] == 0) == (defined == "terms")
    if name in ("scatter_reduce, amax", "index_copy"):
        assert {way["vc"] for way in found.values()} == {0}
    else:  # the control
        assert found["plain"]["vc"] > 0
        assert found["plain"]["vermv"] > 0


def test_every_operation_of_the_table_is_there(fpna):
    table = "ConvTranspose1d ConvTranspose2d ConvTranspose3d cumsum index_add index_copy index_put"
    for name in (*table.split(), "scatter", "scatter_reduce"):
        assert any(operation.partition(",")[0] == name for operation in fpna.OPERATIONS)


def test_ratios(fpna):
    found = fpna.ratio(("index_add", 40, 0.1), 3)
    assert set(found["repjax"]["vc"]) == set(found["repjax"]["vermv"]) == {0.0}
    assert min(found["plain"]["vc"]) > 0


# --- a graph --------------------------------------------------------------------------


@pytest.fixture
def graph_file(tmp_path):
    """A graph of 150 papers in Cora's format."""
    rng = np.random.RandomState(0)
    words = rng.randint(0, 2, (150, 50))
    words[:, 0] = 1
    np.savez(
        tmp_path / "cora.npz",
        features_packed=np.packbits(words.astype(np.uint8), axis=1),
        features=np.int32(50),
        labels=rng.randint(0, 7, 150).astype(np.int8),
        edges=rng.randint(0, 150, (900, 2)).astype(np.int32),
        test=np.arange(140, 150, dtype=np.int32),
    )
    return tmp_path


def test_the_four_conditions(fpna, graph_file):
    found = fpna.graph(True, None, graph_file)
    for condition, measures in found["conditions"].items():
        zero = {tuple(pair) for pair in measures.values()} == {(0.0, 0.0)}
        assert zero == (condition.startswith("repjax") or condition == "plain, D D"), condition
    different = {name: w["different models"] for name, w in found["weights"].items()}
    assert different == {"plain, D": 1, "plain, ND": 2, "repjax, D": 1, "repjax, ND": 1}


# --- the command ----------------------------------------------------------------------


def test_the_command_and_a_restart(fpna, tmp_path, monkeypatch):
    """The second run takes the rows of the first."""
    monkeypatch.setitem(fpna.OPERATIONS, "cumsum", fpna.OPERATIONS["cumsum"])
    for name in set(fpna.OPERATIONS) - {"cumsum", "index_copy"}:
        monkeypatch.delitem(fpna.OPERATIONS, name)
    output = ["--part", "operations", "--quick", "--output", str(tmp_path)]
    once, calls = fpna.operation, []

    def stopping(*args):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return once(*args)

    monkeypatch.setattr(fpna, "operation", stopping)
    with pytest.raises(KeyboardInterrupt):
        fpna.main(output)
    assert fpna.main(output) == 0
    assert [name for name, *_ in calls] == ["cumsum", "index_copy", "index_copy"]
    found = json.loads((tmp_path / "fpna-operations.json").read_text())
    assert set(found["operations"]) == {"cumsum", "index_copy"}
    assert [path.name for path in tmp_path.iterdir()] == ["fpna-operations.json"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--part", "graph", "--quick"], "expected --data"),
        (["--part", "graph", "--quick", "--data", "nowhere"], "expected cora.npz"),
        (["--pictures", "."], "expected --output"),
        (["--pictures", ".", "--output", "TMP"], "expected results of studies/fpna.py"),
        (["--part", "ratios", "--quick", "--output", "TMP"], "expected the results of rows"),
    ],
)
def test_wrong_inputs(fpna, tmp_path, arguments, message, capsys):
    state = tmp_path / "fpna-ratios.state.json"
    state.write_text('{"format": 1')
    assert fpna.main([str(tmp_path) if word == "TMP" else word for word in arguments]) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert message in said.err
    assert state.read_text() == '{"format": 1'


def test_help_has_an_example():
    result = run("--help")
    assert result.returncode == 0
    assert "python studies/fpna.py --quick" in result.stdout


def test_pictures_of_the_results(fpna, tmp_path):
    """Those in docs are drawn of the results in studies/results."""
    pytest.importorskip("matplotlib")
    assert fpna.main(["--pictures", str(tmp_path), "--output", str(STUDIES / "results")]) == 0
    drawn = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert drawn.keys() == {"fpna-histograms.svg", "fpna-models.svg", "fpna-ratios.svg"}
    for name, text in drawn.items():
        assert b"<svg" in text
        assert (ROOT / "docs" / "studies" / name).is_file()
