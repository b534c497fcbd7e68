"""The program that measures repjax beside PyTorch: what its calls compute, and what it refuses."""

from __future__ import annotations

import json
import sys

import jax
import numpy as np
import pytest

from helpers.paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import pytorch
import tables


def results(calls: pytorch.Calls) -> dict[str, list[np.ndarray]]:
    return {way: [*map(np.asarray, jax.tree.leaves(call()))] for way, call in calls.items()}


def _check(name: str, monkeypatch, error: float) -> None:
    """Whether all ways in JAX compute the same, but for roundings; PyTorch's are not made."""
    monkeypatch.setattr(pytorch, "HAS_TORCH", False)
    found = results(pytorch.cases(quick=True)[name]())
    of_repdl = found.pop(pytorch.IN_JAX, None)  # in other layouts, from other parameters
    assert {"plain JAX", "repjax", "order_independent"} <= set(found)
    for arrays in found.values():
        for x, expected in zip(arrays, found["plain JAX"], strict=True):
            assert x.shape == expected.shape and x.dtype == expected.dtype
            assert np.abs(x - expected).max() <= error * max(1, np.abs(expected).max())
    assert of_repdl is None or all(np.isfinite(x).all() for x in of_repdl)


_STEPS = [name for name in pytorch.cases(quick=True) if "step" in name or "Adam" in name]


@pytest.mark.parametrize("name", [n for n in pytorch.cases(quick=True) if n not in _STEPS])
def test_an_operation(name, monkeypatch):
    _check(name, monkeypatch, 1e-4)


@pytest.mark.thorough
@pytest.mark.parametrize("name", _STEPS)
def test_a_training_step(name, monkeypatch):
    _check(name, monkeypatch, 3e-3)


def test_the_names_are_those_of_all_sizes():
    assert len(pytorch.cases()) == len(pytorch.cases(quick=True))
    assert set(pytorch.cases()).intersection(pytorch.cases(quick=True)) < set(_STEPS)


def test_a_page_is_read_as_it_was_written(tmp_path, monkeypatch):
    rows = [{"case": "a", "PyTorch": 1e-3, "repjax": 2e-3}, {"case": "b", "repjax": 5e-4}]
    (tmp_path / "found.md").write_text(pytorch.page(rows, {"cpu": "some, 2 cores"}))
    monkeypatch.setattr(tables, "RESULTS", tmp_path)
    found = [
        {"case": "a", "PyTorch": "1.000", "repjax": "2.000"},
        {"case": "b", "PyTorch": "", "repjax": "0.500"},
    ]
    assert tables.read("found") == [found]
    assert tables.heading("found") == {"cpu": "some, 2 cores"}


def test_without_pytorch(monkeypatch, capsys):
    monkeypatch.setattr(pytorch, "HAS_TORCH", False)
    assert pytorch.main([]) == 2
    expected = "pytorch.py: expected PyTorch, received none; `pip install torch`\n"
    assert capsys.readouterr().err == expected


def test_an_unknown_case(monkeypatch, capsys):
    monkeypatch.setattr(pytorch, "HAS_TORCH", True)
    assert pytorch.main(["--only", "no such case"]) == 2
    error = capsys.readouterr().err
    assert "expected a part of a case's name" in error and "\nproduct 1024\n" in error


def test_a_run(tmp_path):
    pytest.importorskip("torch")
    output = ["--output", str(tmp_path / "found")]
    assert pytorch.main(["--quick", "--only", "^product 16$", *output]) == 0
    (row,) = json.loads((tmp_path / "found.json").read_text())["rows"]
    assert row.pop("case") == "product 16"
    assert {"PyTorch", "plain JAX", "repjax"} <= set(row) and min(row.values()) > 0
