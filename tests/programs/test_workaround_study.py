"""studies/workaround.py: sums, both forms of the network, restarts and pictures."""

from __future__ import annotations

import gzip
import json
import os
import struct
import subprocess
import sys

import numpy as np
import pytest

from helpers.paths import ROOT

STUDIES = ROOT / "studies"


@pytest.fixture
def workaround(monkeypatch):
    monkeypatch.syspath_prepend(STUDIES)
    import workaround

    return workaround


def run(*arguments):
    return subprocess.run(
        [sys.executable, str(STUDIES / "workaround.py"), *map(str, arguments)],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """2,000 and 50 images of noise in MNIST's format."""
    folder, rng = tmp_path_factory.mktemp("images"), np.random.RandomState(0)
    for name, count in (("train", 2000), ("t10k", 50)):
        arrays = rng.randint(0, 256, (count, 28, 28)), np.arange(count) % 10
        for stem, array in zip(("images-idx3", "labels-idx1"), arrays, strict=True):
            head = struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape)
            data = gzip.compress(head + array.astype(np.uint8).tobytes())
            (folder / f"{name}-{stem}-ubyte.gz").write_bytes(data)
    return folder


def test_sums(workaround):
    found = workaround.sums(4)
    assert {s["same order"]["different"] for s in found.values()} == {1}
    others = {name: s["other orders"]["different"] for name, s in found.items()}
    for name in workaround.SUMS:
        assert others[f"{name}, order_independent"] == others[f"{name}, exact"] == 1
        assert others[f"{name}, sequential"] == 4  # the control: ones do not help with orders
    assert found["reduce_sum, exact"] == found["product with ones, exact"]
    assert found["reduce_sum, sequential"] == found["product with ones, sequential"]


def test_both_forms_are_one_training_and_it_goes_on(workaround, folder, tmp_path, monkeypatch):
    def train(form, steps=1):
        kept = tmp_path / form
        kept.mkdir(exist_ok=True)
        return workaround.train(form, "sequential", 2, steps, str(kept), str(folder))

    bias, ones = train("bias"), train("ones")
    assert bias == ones
    assert len(set(bias["losses"])) == 2
    states = [workaround.weights(tmp_path / form / "1.npz") for form in ("bias", "ones")]
    assert states[0].tobytes() == states[1].tobytes()
    assert states[0].size == 1_796_010
    (tmp_path / "bias" / "1.npz").unlink()
    seen = []
    monkeypatch.setattr(workaround, "inputs", _counted(workaround.inputs, seen))
    assert train("bias") == bias
    assert [len(chosen) for chosen in seen] == [1000, 50]  # one step, and the test images


def _counted(function, seen):
    def counted(split, chosen):
        seen.append(chosen)
        return function(split, chosen)

    return counted


def test_platforms(workaround, monkeypatch):
    """Sums of a worker with another number of devices, in repjax the same."""
    here = {name: float.fromhex(bits) for name, bits in workaround.sums_here().items()}
    there = {name: float.fromhex(bits) for name, bits in workaround.on("devices=8", "sums").items()}
    assert here.keys() == there.keys()
    assert {name for name in here if here[name] != there[name]} <= {
        "reduce_sum, plain",
        "product with ones, plain",
    }


def test_a_worker_that_fails_is_one_sentence(workaround):
    with pytest.raises(workaround.DataError, match=r"expected a run on devices=2, .* an error: "):
        workaround.on("devices=2", "train", "bias")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--data", "nowhere", "--quick"], "expected Fashion-MNIST in nowhere"),
        (["--output", "nowhere", "--quick"], "nowhere"),
        (["--pictures", "."], "expected --output"),
        (["--pictures", ".", "--output", "."], "expected the results of workaround"),
    ],
)
def test_wrong_inputs(workaround, arguments, message, capsys):
    assert workaround.main(arguments) == 2
    said = capsys.readouterr()
    assert (said.out, said.err.count("\n")) == ("", 1)
    assert message in said.err


def test_help_and_a_wrong_number(workaround, capsys):
    assert "python studies/workaround.py --quick" in run("--help").stdout
    with pytest.raises(SystemExit, match="2"):
        workaround.main(["--epochs", "0"])
    assert "expected an integer >= 1, received 0" in capsys.readouterr().err


def test_the_picture_of_the_results(workaround, tmp_path):
    pytest.importorskip("matplotlib")
    assert workaround.main(["--pictures", str(tmp_path), "--output", str(STUDIES / "results")]) == 0
    assert b"<svg" in (tmp_path / "workaround.svg").read_bytes()
    assert (ROOT / "docs" / "studies" / "workaround.svg").is_file()


def test_the_whole_study(folder, tmp_path):
    result = run("--quick", "--data", folder, "--output", tmp_path)
    assert result.returncode == 0, result.stderr
    found = json.loads((tmp_path / "workaround.json").read_text())
    pairs = {(p["between"], p["way"], p["of"]): p["different losses"] for p in found["pairs"]}
    assert {n for (_, way, _), n in pairs.items() if way == "sequential"} == {0}
    assert max(pairs.values()) > 0
    assert [path.name for path in tmp_path.iterdir()] == ["workaround.json"]
