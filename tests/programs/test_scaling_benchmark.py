"""The program that measures time against size: what it measures, draws and refuses."""

from __future__ import annotations

import json
import sys

import jax
import pytest

from helpers.paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))
import scaling

linux = pytest.mark.skipif(
    sys.platform != "linux", reason="processes are given processors on Linux"
)


@linux
def test_a_run(tmp_path, capsys):
    pytest.importorskip("matplotlib")
    options = ["--threads", "1", "--minutes", "0.001", "--output", str(tmp_path / "found")]
    options += ["--picture", str(tmp_path / "found.png")]
    assert scaling.main([*options, "--only", "Cholesky", "matrix times vector"]) == 0
    found = json.loads((tmp_path / "found.json").read_text())
    sizes = {name: case.sizes for name, case in scaling.cases().items()}
    for name in ("Cholesky", "matrix times vector"):
        rows = [row for row in found["rows"] if row["case"] == name]
        assert tuple(row["n"] for row in rows) == sizes[name][: len(rows)]
        assert all(row["plain"] > 0 and row["repjax"] > 0 and row["threads"] == 1 for row in rows)
    page = (tmp_path / "found.md").read_text()
    assert page == capsys.readouterr().out.removesuffix("\n")
    assert page.count("\n| Cholesky | 1 |") == len(sizes["Cholesky"])
    assert (tmp_path / "found.png").stat().st_size > 10_000


def test_every_case_is_a_function_of_its_operands():
    for name, case in scaling.cases().items():
        for n in (case.sizes[0], case.sizes[-1]):
            operands = [jax.ShapeDtypeStruct(shape, "float32") for shape in case.shapes(n)]
            assert jax.eval_shape(case.function, *operands).dtype == "float32", name
            assert case.work(n).bytes > 0
        first, last = (case.work(n) for n in (case.sizes[0], case.sizes[-1]))
        assert last.operations > first.operations > 0


def test_the_roof_is_the_larger_time(monkeypatch):
    case = scaling.cases()["product, sequential"]
    known = {"bytes": 1e9, "float32": 1e9, "int8": None}
    assert scaling.roof(case, 64, known) == 2 * 64**3 / 1e9
    assert scaling.roof(case, 64, known | {"bytes": 1e6}) == 12 * 64**2 / 1e6
    assert scaling.roof(case, 64, {}) is None
    integers = scaling.cases()["product, order_independent"]
    assert scaling.roof(integers, 64, known) is None
    for kernel, is_known in {"AVX512_VNNI": True, "AVX512": False}.items():
        info = {"cpu products": f"compiled kernel, {kernel}"}
        monkeypatch.setattr(scaling.repjax, "info", lambda info=info: info)
        assert (scaling.roof(integers, 64, known | {"int8": 1e9}) is not None) == is_known


def test_without_a_compiler(monkeypatch):
    monkeypatch.setenv("PATH", "")
    assert scaling.peaks(1) == {}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--threads", "100000"], "--threads: expected 1 to "),
        (["--threads", "0"], "--threads: expected 1 to "),
        (["--minutes", "0"], "--minutes: expected more than 0"),
        (["--only", "sums"], "--only: expected cases among add, "),
    ],
)
def test_wrong_requests(options, message, capsys):
    with pytest.raises(SystemExit) as stop:
        scaling.main(options)
    assert stop.value.code == 2
    assert message in capsys.readouterr().err
