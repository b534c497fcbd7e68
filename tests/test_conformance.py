"""Conformance: this CPU has the golden bits, and a flipped bit is found and reported."""

from __future__ import annotations

import itertools
import json
import os
import pathlib
import shutil
import subprocess
import sys
import types

import jax
import numpy as np
import ptx_emulator
import pytest

from repjax import __main__ as command_line
from repjax.primitives import native
from repjax.verify import conformance, narrow, vectors

GOLDENS = conformance.load()
CASES = {case.name: case for case in conformance.all_cases(GOLDENS["hard_inputs"])}


def command(*arguments: str) -> int:
    return command_line.main(["conformance", *arguments])


def test_every_primitive_has_a_case():
    covered = set().union(*(case.primitives() for case in CASES.values()))
    assert covered >= set(vectors.registered())


def test_every_case_has_a_golden_and_every_golden_a_case():
    assert GOLDENS["digests"].keys() == CASES.keys()


def test_hard_inputs_are_those_of_the_tests(monkeypatch):
    folder = pathlib.Path(__file__).with_name("data") / "hard_inputs"
    monkeypatch.setattr(conformance, "HARD_INPUTS", folder)  # also if the package is installed
    assert GOLDENS["hard_inputs"] == conformance.read_hard_inputs()
    assert conformance.hard_arrays(GOLDENS["hard_inputs"])["pow"].shape[1] == 2


def test_inputs_are_stable():
    """The generator is our own; its first word is that of the published SplitMix64."""
    assert f"{vectors.words(1, 0)[0]:016x}" == "e220a8397b1dcdaf"
    assert vectors.values((1,), 0)[0] == (0xE220A8 - 2**23) / 2**23


#: Without the kernels, the large products take minutes; the command runs them.
HERE = [name for name in CASES if native.available() or "2048" not in name]


@pytest.mark.parametrize("name", HERE)
def test_this_cpu(name):
    row = conformance.check(CASES[name], GOLDENS["digests"][name], jax.devices()[0])
    assert row["same"], row["reason"]


def test_another_instruction_set():
    """Where there is no FMA: the functions, products and sums that a compiler may contract."""
    names = ["exp", "l", "products and sums", "layer norm", "reduce_sum", "dot_general", "random"]
    result = subprocess.run(
        [sys.executable, "-P", "-m", "repjax", "conformance", "--only", *names],
        env={**os.environ, "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr


# --- what is different is found and reported ----------------------------------------------

DEVICE = types.SimpleNamespace(
    platform="gpu",
    device_kind="NVIDIA H200",
    compute_capability="9.0",
    client=types.SimpleNamespace(platform_version="cuda 13000"),
)


@pytest.fixture
def device(monkeypatch):
    """A GPU that is this CPU, but for bits of the cases named in the dict that is returned."""
    flips: dict[str, int] = {}
    compute = conformance.compute
    devices = jax.devices

    def flipped(case, device):
        results = compute(case, devices("cpu")[0])
        if device is not DEVICE or case.name not in flips:
            return results
        found, structure = jax.tree.flatten(results)
        found[0] = found[0].copy()
        found[0].view(np.uint32).ravel()[flips[case.name]] ^= 1
        return jax.tree.unflatten(structure, found)

    def narrowed(function, arguments, device, cpu):
        return narrow.narrow(function, arguments, "cpu" if device is DEVICE else device, cpu)

    monkeypatch.setattr(conformance, "compute", flipped)
    monkeypatch.setattr(conformance, "narrow", narrowed)
    monkeypatch.setattr(conformance, "kernels", lambda case, device: "none")
    monkeypatch.setattr(jax, "devices", lambda *names: devices(*names) if names else [DEVICE])
    return flips


def test_a_flipped_bit_is_reported(device, tmp_path, capsys):
    output = tmp_path / "new" / "h200"
    assert command("--only", "softmax", "sub", "--output", str(output)) == 0
    device["softmax"] = 1234
    assert command("--only", "softmax", "sub", "--output", str(output)) == 1
    assert sorted(path.name for path in output.iterdir()) == ["conformance.json", "conformance.md"]
    report = json.loads((output / "conformance.json").read_text())
    assert report["not_run"] == [] and report["running"] == ""
    assert report["cases"]["sub"]["same"] and not report["cases"]["softmax"]["same"]
    reason = report["cases"]["softmax"]["reason"]
    where = tuple(map(int, np.unravel_index(1234, CASES["softmax"].arguments[0].shape)))
    assert reason.startswith(f"1 elements differ, the first in result the root at {where}: ")
    got, want = (int(reason.split(word)[1].split()[0], 16) for word in ("received ", "expected "))
    assert got ^ want == 1
    assert "1 of 2 cases have the golden bits" in report["total"]
    # Only the results were changed, and not what any operation computes.
    assert "no operation differs" in report["cases"]["softmax"]["narrowed"]["reason"]
    page = (output / "conformance.md").read_text()
    assert "NVIDIA H200" in page and f"**different**: {reason}" in page and "## softmax" in page
    assert reason in capsys.readouterr().out


def test_a_faulty_operation_is_in_the_report(device, monkeypatch, tmp_path, capsys):
    """A product that adds its terms the other way round: the report has all to compute it anew."""

    def reversed_terms(equation, operands):
        if equation.primitive.name == "repjax_dot_general":
            (lhs, rhs), _ = equation.params["dimension_numbers"]
            operands = [jax.lax.rev(x, d) for x, d in zip(operands, (lhs, rhs), strict=True)]
        return bind(equation, operands)

    def all_values(program, inputs, where):
        with pytest.MonkeyPatch.context() as patch:
            if where == "cpu":
                patch.setattr(narrow, "bind", reversed_terms)
            return values(program, inputs, jax.devices("cpu")[0])

    name = "dot_general sequential, long"
    device[name] = 5
    bind, values = narrow.bind, narrow.all_values
    monkeypatch.setattr(narrow, "all_values", all_values)
    assert command("--only", name, "--output", str(tmp_path)) == 1
    found = json.loads((tmp_path / "conformance.json").read_text())["cases"][name]["narrowed"]
    assert found["operation"] == "dot_general"
    row, column = (
        np.array([int(word, 16) for word in operand["bits"].split()], np.uint32).view(np.float32)
        for operand in found["operands"]
    )
    for order, key in ((1, "expected"), (-1, "received")):
        total = np.float32(0)
        for x, y in zip(row[::order], column[::order], strict=True):
            total = ptx_emulator.fma(x, y, total)
        assert f"{total.view(np.uint32):08x}" == found[key]
    lines = capsys.readouterr().out
    assert f"expected {found['expected']}, received {found['received']}" in lines
    assert found["expected"] in (tmp_path / "conformance.md").read_text()


def test_the_order():
    """What tells most comes first."""
    names = [*CASES]
    assert names[0] == "smoke" and names[-2].startswith("training") and len(names) > 100
    starts = ("smoke", "add", "dot_general sequential", "dot_general order", "rows", "reduce_sum")
    starts += ("pooling", "scatter", "linear algebra", "random numbers", "training")
    places = [next(i for i, name in enumerate(names) if name.startswith(s)) for s in starts]
    assert places == sorted(places)


def test_smoke(tmp_path, capsys):
    assert command("--smoke", "--output", str(tmp_path)) == 0
    out = capsys.readouterr().out
    call = "repjax_contract" if native.available() else "none"
    assert "cpu contractions: " in out and f"1/1 smoke: same, it calls {call}" in out
    assert json.loads((tmp_path / "smoke.json").read_text())["cases"]["smoke"]["kernels"] == call


def test_a_run_that_is_cut_off_is_no_success(device, monkeypatch, tmp_path, capsys):
    def clock():
        times = itertools.count(step=20)
        clock = types.SimpleNamespace(monotonic=lambda: next(times), perf_counter=lambda: 0.0)
        monkeypatch.setattr(conformance, "time", clock)

    clock()
    only = "sub", "sqrt", "square"
    assert command("--only", *only, "--output", str(tmp_path), "--minutes", "1") == 2
    out, error = capsys.readouterr()
    assert "unfinished, 3 cases were to run" in out
    assert error.startswith("error: --minutes: expected time for 3 cases, 1 minutes were enough")
    assert error.endswith("run the rest with --only 'sub'\n") and len(error.splitlines()) == 1
    report = json.loads((tmp_path / "conformance.json").read_text())
    assert [*report["cases"]] == ["sqrt", "square"] and report["not_run"] == ["sub"]
    assert "**Not run**: sub" in (tmp_path / "conformance.md").read_text()
    device["sqrt"] = 0
    clock()
    assert command("--only", *only, "--minutes", "1") == 1


def test_a_run_that_is_killed_says_where(monkeypatch, tmp_path):
    compute = conformance.compute

    def killed(case, device):
        if case.name == "square":
            raise KeyboardInterrupt
        return compute(case, device)

    monkeypatch.setattr(conformance, "compute", killed)
    with pytest.raises(KeyboardInterrupt):
        command("--only", "sqrt", "square", "sub", "--output", str(tmp_path))
    report = json.loads((tmp_path / "conformance.json").read_text())
    assert report["cases"]["sqrt"]["same"] and report["running"] == "square"
    assert report["not_run"] == ["square", "sub"] and "unfinished" in report["total"]
    assert "ended while it ran: square" in (tmp_path / "conformance.md").read_text()


def test_a_source_tree_needs_no_installation(tmp_path):
    """Nor the C++ kernel, of which it says that it is not there."""
    root = pathlib.Path(__file__).parent.parent
    for name in ("repjax", "primitives", "models"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(root / name, tmp_path / name, ignore=ignored)
    environment = {**os.environ, "PYTHONPATH": str(tmp_path), "REPJAX_NATIVE": ""}
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "repjax",
            "conformance",
            "--only",
            "sub",
            "dot_general sequential, s",
        ],
        env=environment,
        cwd=tmp_path / "models",
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("warning") == 1 and "2 of 2 cases" in result.stdout
    assert "cpu contractions: XLA: it was not compiled" in result.stdout


def test_without_another_device_the_digest_tells():
    row = conformance.check(CASES["softmax"], GOLDENS["digests"]["sub"], jax.devices()[0])
    assert not row["same"] and "no other device" in row["reason"]


def test_a_case_that_fails_is_a_difference():
    def fail(x):
        raise MemoryError("no room\nat all")

    case = vectors.Case("broken", fail, (np.float32(1),))
    row = conformance.check(case, "", jax.devices()[0])
    assert not row["same"] and row["reason"] == "MemoryError: no room"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (None, "FileNotFoundError"),
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"contract": 1, "digests": {}, "hard_inputs": {}}', "holds no digests"),
        ('{"contract": 0, "digests": {"a": "b"}, "hard_inputs": {"a": "b"}}', "contract 0"),
    ],
)
def test_wrong_goldens_are_refused(monkeypatch, tmp_path, capsys, text, message):
    path = tmp_path / "goldens.json"
    if text is not None:
        path.write_text(text)
    monkeypatch.setattr(conformance.load, "__defaults__", (path,))
    assert command() == 2
    error = capsys.readouterr().err
    assert message in error and "--write" in error and len(error.splitlines()) == 1


@pytest.mark.parametrize(
    ("platform", "kind", "version", "message"),
    [
        ("gpu", "Tesla V100", "7.0", "8.0 (A100) or newer, received Tesla V100 of 7.0"),
        ("gpu", "AMD MI300", "gfx942", "expected a CPU or an NVIDIA GPU, received AMD MI300"),
        ("tpu", "TPU v5", "", "received TPU v5 (tpu)"),
        ("METAL", "Metal", "", "received Metal (METAL)"),
    ],
)
def test_other_devices_are_refused(monkeypatch, capsys, platform, kind, version, message):
    device = types.SimpleNamespace(platform=platform, device_kind=kind, compute_capability=version)
    monkeypatch.setattr(jax, "devices", lambda: [device])
    assert command() == 2
    error = capsys.readouterr().err
    assert message in error and len(error.splitlines()) == 1


def test_wrong_requests_are_refused(device, monkeypatch, capsys):
    assert command("--only", "no such case") == 2
    assert "start of a case's name" in capsys.readouterr().err
    assert command("--write") == 2
    assert "JAX_PLATFORMS=cpu" in capsys.readouterr().err
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices())
    monkeypatch.setattr(conformance, "HARD_INPUTS", conformance.HARD_INPUTS / "nowhere")
    assert command("--write") == 2
    assert "clone of the repository" in capsys.readouterr().err
