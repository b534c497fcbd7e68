"""The benchmark for GPUs refuses a machine without one; a smoke run on CPU writes a report."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

from helpers.paths import ROOT

SCRIPT = ROOT / "benchmarks" / "gpu.py"
sys.path.append(str(SCRIPT.parent))
import gpu  # noqa: E402  (a script, of a folder that is no package)


def command(*arguments: str) -> subprocess.CompletedProcess:
    program = [sys.executable, str(SCRIPT), *arguments]
    return subprocess.run(program, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("arguments", [[], ["--platform", "cpu"]])
def test_a_machine_without_a_gpu_is_refused(arguments):
    result = command(*arguments)
    lines = [line for line in result.stderr.splitlines() if line.startswith("gpu.py: ")]
    assert result.returncode == 2 and len(lines) == 1
    assert "--platform cpu" in lines[0] and "--quick" in lines[0]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "expected the start of a case's name, received ['nothing']"),
        (["--minutes", "nan"], "argument --minutes: invalid minutes value: 'nan'"),
        (["--only", "product: 64", "--output", str(SCRIPT)], "expected a folder to write to"),
    ],
)
def test_wrong_requests_are_refused(arguments, message):
    """Before anything is measured, and by another status than that of other bits."""
    result = command("--platform", "cpu", "--quick", *arguments)
    assert result.returncode == 2 and message in result.stderr
    assert "Traceback" not in result.stderr and "smoke: " not in result.stdout


@pytest.mark.parametrize(
    ("only", "families"),
    [
        (["product: 64"], ["product"]),
        (["attention: scores", "conv"], ["convolution and attention"]),
        (["s"], ["sum", "scatter-add"]),
        (["training: LeNet"], ["training"]),
        (["training: GPT-2 small"], ["training: GPT-2", "training"]),
        ([""], [*gpu.FAMILIES]),
    ],
)
def test_other_families_are_not_made(only, families):
    assert [*gpu.chosen(only)] == families


def test_arguments_are_on_the_device():
    """Labels of the host would be copied by every call, which would be measured."""
    seen = []
    case = next(gpu.other_cases(quick=True))
    assert any(isinstance(x, np.ndarray) for x in case.arguments)
    program = types.SimpleNamespace(programs=lambda: [("way", lambda: lambda *xs: seen.append(xs))])
    case = types.SimpleNamespace(
        bytes=case.bytes, flops=0, arguments=case.arguments, programs=program.programs
    )
    gpu.measure_ways(case, 0.0, math.inf)
    assert seen and all(isinstance(x, jax.Array) for xs in seen for x in xs)


def test_kernels_of_a_trace():
    """Those of the GPU's streams: not what the host did, nor what a stream's name stands for."""

    def name(what, pid, tid, text):
        where = {"pid": pid} | ({} if tid is None else {"tid": tid})
        return {"ph": "M", "name": what, "args": {"name": text}, **where}

    def event(pid, tid, text, microseconds):
        return {"ph": "X", "pid": pid, "tid": tid, "name": text, "dur": microseconds}

    names = [name("process_name", 1, None, "/device:GPU:0"), name("thread_name", 1, 5, "Stream #5")]
    names += [name("process_name", 2, None, "/host:CPU"), name("thread_name", 2, 5, "Stream")]
    names += [name("thread_name", 1, 6, "XLA Modules")]
    events = [event(1, 5, "tiles", 3), event(1, 5, "tiles", 5), event(1, 5, "rows", 2)]
    events += [event(2, 5, "host", 100), event(1, 6, "step", 10)]
    found = gpu._kernels(names + events, calls=2)
    assert [(x["name"], x["launches"]) for x in found] == [("tiles", 1), ("rows", 0.5)]
    assert [x["seconds"] for x in found] == [4e-6, 1e-6]
    assert "| tiles | 1 | 0.004 | 80% |" in gpu._of_kernels(found)


def test_a_report_without_ceilings(monkeypatch, tmp_path):
    """If they fail, as of too little memory, the cases run all the same, and the status says it."""

    def fail(quick, seconds):
        raise MemoryError("no room\nat all")

    monkeypatch.setattr(gpu, "ceilings", fail)
    monkeypatch.setattr(gpu, "smoke", lambda device: True)
    arguments = ["--platform", "cpu", "--quick", "--only", "product: 64", "--output", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", ["gpu.py", *arguments])
    assert gpu.main() == 1
    page = (tmp_path / "speed.md").read_text()
    assert "Measured ceilings: none, MemoryError: no room." in page and "| 64x64x64 |" in page


def test_smoke_run(tmp_path):
    output = tmp_path / "results" / "cpu"
    only = ["product", "elementwise: exp ", "sum: rows", "rows: softmax", "convolution: ResNet"]
    result = command("--platform", "cpu", "--quick", "--output", str(output), "--only", *only)
    assert result.returncode == 0, result.stderr
    assert sorted(path.name for path in output.iterdir()) == ["speed.json", "speed.md"]
    report = json.loads((output / "speed.json").read_text())
    assert report["same"] and report["left"] == [] and "smoke: same, it calls" in result.stdout
    # What tells most comes first.
    families = [name.split(":")[0] for name in report["cases"]]
    assert [*dict.fromkeys(families)] == ["product", "rows", "sum", "elementwise", "convolution"]
    assert report["finished"] and report["ceilings"]["bytes/s"] > 0
    for name, row in report["cases"].items():
        assert row["bytes"] > 0
        for way, figures in row["ways"].items():
            assert figures.get("seconds", 0) > 0, (name, way, figures)
    ways = report["cases"]["product: 128x128x128"]["ways"]
    assert list(ways) == ["plain, HIGHEST", "plain, TF32", "sequential", "order_independent"]
    assert report["cases"]["product: 128x128x128"]["flops"] == 2 * 128**3
    ways = report["cases"]["rows: softmax [16x64]"]["ways"]
    assert list(ways) == ["plain, HIGHEST", "repjax", "repjax, rows by XLA"]
    # 3x3x3 terms for each of 32x32x32x16 results.
    flops = {row["flops"] for name, row in report["cases"].items() if name.startswith("conv")}
    assert 2 * 32 * 32 * 32 * 16 * 27 in flops
    page = (output / "speed.md").read_text()
    assert "## product" in page and "Finished." in page


def test_an_interrupted_run_keeps_its_results_and_is_no_success(tmp_path):
    arguments = ["--platform", "cpu", "--quick", "--output", str(tmp_path)]
    result = command(*arguments, "--only", "product", "rows", "--minutes", "0")
    assert result.returncode == 2, result.stderr
    report = json.loads((tmp_path / "speed.json").read_text())
    assert not report["finished"] and not report["cases"]
    assert report["running"] == "product: 64x64x64" and report["left"][:2] == ["product", "rows"]
    page = (tmp_path / "speed.md").read_text()
    assert "**Unfinished**: ended before or in product: 64x64x64; left of product, rows" in page
