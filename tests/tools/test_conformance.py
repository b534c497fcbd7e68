"""Conformance: this CPU has the golden bits, and a flipped bit is found and reported."""

from __future__ import annotations

import io
import itertools
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import types

import jax
import numpy as np
import pytest

import repjax
from helpers.paths import DATA, ROOT
from ptx.arithmetic import fma
from repjax import CONTRACT_VERSION
from repjax import __main__ as command_line
from repjax.primitives.cpu import library
from repjax.primitives.gpu import triton
from repjax.verify import conformance, narrow, vectors

GOLDENS = conformance.load()
#: Before tests make others.
PRIMITIVES = set(vectors.registered())
CASES = {case.name: case for case in conformance.all_cases(GOLDENS["hard_inputs"])}


def command(*arguments: str) -> int:
    return command_line.main(["conformance", *arguments])


def test_every_primitive_has_a_case():
    covered = set().union(*(case.primitives() for case in CASES.values()))
    assert covered >= PRIMITIVES


def test_every_case_has_a_golden_and_every_golden_a_case():
    assert GOLDENS["digests"].keys() == CASES.keys()


def test_hard_inputs_are_those_of_the_tests(monkeypatch):
    folder = DATA / "hard_inputs"
    monkeypatch.setattr(conformance, "HARD_INPUTS", folder)  # also if the package is installed
    assert GOLDENS["hard_inputs"] == conformance.read_hard_inputs()
    assert conformance.hard_arrays(GOLDENS["hard_inputs"])["pow"].shape[1] == 2


def test_inputs_are_stable():
    """The generator is our own; its first word is that of the published SplitMix64."""
    assert f"{vectors.words(1, 0)[0]:016x}" == "e220a8397b1dcdaf"
    assert vectors.values((1,), 0)[0] == (0xE220A8 - 2**23) / 2**23


#: Without the kernels, the large products take minutes; the command runs them.
HERE = [name for name in CASES if library.available() or "2048" not in name]


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
        if equation.primitive.name == "repjax_raw_dot_general":
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
            total = fma(x, y, total)
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
    call = "repjax_product" if library.available() else "none"
    assert "cpu products: " in out and f"1/1 smoke: same, it calls {call}" in out
    assert json.loads((tmp_path / "smoke.json").read_text())["cases"]["smoke"]["kernels"] == call


def test_every_quick_case_is_a_case():
    assert {*conformance.QUICK} <= CASES.keys()


def test_quick(tmp_path, capsys):
    assert command("--quick", "--output", str(tmp_path)) == 0
    out = capsys.readouterr().out
    count = len(conformance.QUICK)
    assert f"{count} of {count} cases have the golden bits" in out
    assert f"all {len(CASES)} cases: repjax conformance" in out
    assert re.search(r"^cpu: .*", out, re.M)[0] in (ROOT / "README.md").read_text()
    report = json.loads((tmp_path / "quick.json").read_text())
    assert report["cases"].keys() == {*conformance.QUICK} and count > 30


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize("flipped", [None, "div"])
def test_quick_on_a_terminal(device, monkeypatch, capsys, flipped):
    """A bar, which a line about what differs does not run into."""
    monkeypatch.setattr(conformance, "QUICK", ("add", "div", "sqrt"))
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    if flipped:
        device[flipped] = 7
    assert command("--quick") == (1 if flipped else 0)
    out = capsys.readouterr().out
    assert out.count("DIFFERENT") == bool(flipped) and ": same" not in out
    assert f"{2 if flipped else 3} of 3 cases have the golden bits" in out
    drawn = terminal.getvalue()
    assert "[....................] 0/3 sqrt".replace("[", f"[{'.' * 10}") in drawn
    assert f"[{'#' * 20}{'.' * 10}] 2/3 " in drawn and drawn.endswith("\r\033[K")


@pytest.mark.parametrize("other", [("--smoke",), ("--only", "add"), ("--write",)])
def test_quick_is_a_part_by_itself(capsys, other):
    try:
        status = command("--quick", *other)
    except SystemExit as end:
        status = end.code
    assert status == 2 and other[0] in capsys.readouterr().err


def clock() -> types.SimpleNamespace:
    """Of which a third of a minute passes from case to case."""
    times = itertools.count(step=20)
    return types.SimpleNamespace(monotonic=lambda: next(times), perf_counter=lambda: 0.0)


def test_a_run_that_is_cut_off_is_no_success(device, monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(conformance, "time", clock())
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
    monkeypatch.setattr(conformance, "time", clock())
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


def test_the_rest_joins_an_earlier_report(device, monkeypatch, tmp_path, capsys):
    """With what the first run left, the report is whole, unless it is of something else."""

    def cases():
        report = json.loads((tmp_path / "conformance.json").read_text())
        return [*report["cases"]], report["not_run"], report["total"]

    output = "--output", str(tmp_path)
    names = "square", "sqrt", "sub"
    device["square"] = 0
    monkeypatch.setattr(conformance, "time", clock())
    assert command("--only", *names, *output, "--minutes", "1") == 1
    assert cases()[:2] == (["sqrt", "square"], ["sub"])
    assert command("--only", "sub", *output) == 0
    assert cases()[:2] == (["sqrt", "square", "sub"], [])
    assert cases()[2].startswith("2 of 3 cases") and "unfinished" not in cases()[2]
    del device["square"]
    assert command("--only", "square", *output) == 0
    assert cases()[0] == ["sqrt", "sub", "square"] and cases()[2].startswith("3 of 3 cases")
    assert command("--only", "sub", *output, "--minutes", "0") == 2
    assert cases()[:2] == (["sqrt", "square"], ["sub"])
    assert command("--only", "square", *output) == 0
    assert cases()[1] == ["sub"] and "unfinished, 3 cases" in cases()[2]
    monkeypatch.setattr(conformance, "source", lambda: "another")
    assert command("--only", "sub", *output) == 0
    assert cases()[:2] == (["sub"], [])


def test_the_source_is_known(tmp_path, monkeypatch):
    """The digest is one of names and contents, wherever the tree stands."""
    found = conformance.source()
    for package in (repjax, repjax.primitives, repjax.models):
        root = pathlib.Path(package.__file__).parent
        target = tmp_path.joinpath(*package.__name__.split("."))  # as it is installed
        shutil.copytree(root, target, ignore=shutil.ignore_patterns("*.so"), dirs_exist_ok=True)
        monkeypatch.setattr(package, "__file__", str(target / "__init__.py"))
    assert conformance.source() == found
    with (tmp_path / "repjax" / "primitives" / "kernels.py").open("a") as file:
        file.write("#")
    assert conformance.source() != found


def test_where_it_differs_comes_after_that_it_does(device, monkeypatch, tmp_path):
    """A run that ends while it looks for the operation has what was computed."""

    def killed(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(conformance, "narrow", killed)
    device["sqrt"] = 0
    with pytest.raises(KeyboardInterrupt):
        command("--only", "sqrt", "--output", str(tmp_path))
    report = json.loads((tmp_path / "conformance.json").read_text())
    row = report["cases"]["sqrt"]
    assert not row["same"] and row["reason"] == "the digest differs"
    assert row["received"] != row["expected"] == GOLDENS["digests"]["sqrt"]
    assert report["running"] == "sqrt, to find where it differs" and report["not_run"] == []


def test_a_device_that_has_stopped_is_left_alone(device, monkeypatch, tmp_path, capsys):
    """After an illegal access nothing runs in the process any more: the others are not to fail."""
    compute = conformance.compute

    def failing(case, device):
        if case.name == "sqrt":
            raise RuntimeError("CUDA_ERROR_ILLEGAL_ADDRESS")
        return compute(case, device)

    monkeypatch.setattr(conformance, "compute", failing)
    for is_alive in (True, False):
        monkeypatch.setattr(conformance, "works", lambda device, answer=is_alive: answer)
        assert command("--only", "sqrt", "square", "sub", "--output", str(tmp_path)) == 1
        error = capsys.readouterr().err
        report = json.loads((tmp_path / "conformance.json").read_text())
        assert report["not_run"] == ([] if is_alive else ["square", "sub"])
        if not is_alive:
            assert "CUDA_ERROR_ILLEGAL_ADDRESS; run the rest with --only 'square' 'sub'" in error
    monkeypatch.undo()
    assert conformance.works(jax.devices()[0]) and not conformance.works(DEVICE)


def test_a_cpu_that_fails_too(device, monkeypatch):
    compute = conformance.compute

    def failing(case, where):
        if where is not DEVICE:
            raise MemoryError("no room")
        return compute(case, where)

    monkeypatch.setattr(conformance, "compute", failing)
    device["sqrt"] = 0
    row = conformance.check(CASES["sqrt"], GOLDENS["digests"]["sqrt"], DEVICE)
    assert row["reason"] == "the digest differs, and this machine's CPU fails: MemoryError: no room"


def test_a_source_tree_needs_no_installation(tmp_path):
    """Nor the C++ kernel, of which it says that it is not there."""
    for name in ("repjax", "primitives", "models"):
        ignored = shutil.ignore_patterns("*.so", "__pycache__")
        shutil.copytree(ROOT / name, tmp_path / name, ignore=ignored)
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
    assert "cpu products: XLA: it was not compiled" in result.stdout


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


def test_goldens_of_some_cases_are_written(monkeypatch, tmp_path):
    """The others stay, and new ones come last."""
    path = tmp_path / "conformance.json"
    names = ["new", "add", "add of 3", "mul"]
    cases = [types.SimpleNamespace(name=name, primitives=set) for name in names]
    monkeypatch.setattr(conformance, "all_cases", lambda hard_inputs: cases)
    monkeypatch.setattr(vectors, "registered", dict)
    monkeypatch.setattr(conformance, "GOLDENS", path)
    monkeypatch.setattr(conformance, "HARD_INPUTS", tmp_path)
    monkeypatch.setattr(conformance.load, "__defaults__", (path,))
    monkeypatch.setattr(conformance, "compute", lambda case, device: case.name)
    monkeypatch.setattr(conformance, "digest", lambda results: results)
    goldens = {name: "old" for name in ("no longer", "mul", "add of 3", "add")}
    path.write_text(
        json.dumps({"contract": CONTRACT_VERSION, "digests": goldens, "hard_inputs": {"a": "0"}})
    )
    assert command("--write", "--only", "add") == 0
    found = json.loads(path.read_text())["digests"]
    assert [*found.items()] == [
        *(("mul", "old"), ("add of 3", "add of 3"), ("add", "add"), ("new", "new"))
    ]


def test_wrong_requests_are_refused(device, monkeypatch, capsys):
    assert command("--only", "no such case") == 2
    assert "start of a case's name" in capsys.readouterr().err
    assert command("--write") == 2
    assert "JAX_PLATFORMS=cpu" in capsys.readouterr().err
    monkeypatch.setattr(jax, "devices", lambda: jax.local_devices())
    monkeypatch.setattr(conformance, "HARD_INPUTS", conformance.HARD_INPUTS / "nowhere")
    assert command("--write") == 2
    assert "clone of the repository" in capsys.readouterr().err


@pytest.mark.parametrize("minutes", ["nan", "-1", "ten"])
def test_wrong_minutes_are_refused(minutes, capsys):
    with pytest.raises(SystemExit, match="2"):
        command("--minutes", minutes)
    assert f"invalid minutes value: '{minutes}'" in capsys.readouterr().err


def test_a_folder_that_is_none_is_refused(tmp_path, capsys):
    """Before anything runs, and not by the status of other bits."""
    (tmp_path / "file").write_text("")
    assert command("--only", "sub", "--output", str(tmp_path / "file")) == 2
    out, error = capsys.readouterr()
    assert error.startswith("error: --output: expected a folder") and "1/1" not in out


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("REPJAX_NATIVE", "MMX", "expected off or .* received 'MMX'"),
        ("JAX_PLATFORMS", "abacus", "Unable to initialize backend 'abacus'"),
        ("JAX_PLATFORMS", "cuda", "backend 'cuda'|received none for JAX_PLATFORMS=cuda"),
        ("XLA_FLAGS", "--xla_gpu_ftz=true", "expected xla_gpu_ftz=false"),
    ],
)
def test_a_wrong_environment_is_refused(variable, value, message):
    """In one sentence, and not by the status of other bits."""
    command = [sys.executable, "-P", "-m", "repjax", "conformance", "--only", "sub"]
    environment = {**os.environ, variable: value}
    result = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert result.returncode == 2 and "Traceback" not in result.stderr, result.stderr
    assert re.search(f"^error: .*({message})", result.stderr, re.M), result.stderr


def test_a_gpu_whose_kernels_cannot_be_had_is_refused(device, monkeypatch, capsys):
    """Once, and not by each case."""
    monkeypatch.setenv("REPJAX_GPU_BACKEND", "cuda")
    assert command("--only", "sub") == 2
    assert "REPJAX_GPU_BACKEND: expected triton or ptx or off" in capsys.readouterr().err
    monkeypatch.delenv("REPJAX_GPU_BACKEND")
    monkeypatch.setattr(triton, "MISSING", "No module named 'triton'")
    assert command("--only", "sub") == 2
    assert "expected Pallas' Triton backend" in capsys.readouterr().err
