"""The program that compares ratios with plain JAX: what it measures, finds worse and refuses."""

from __future__ import annotations

import dataclasses
import json
import os
import pathlib
import re
import subprocess
import sys
import time

import pytest

from helpers.paths import ROOT

SCRIPT = ROOT / "benchmarks" / "speed.py"
sys.path.append(str(SCRIPT.parent))
import speed  # noqa: E402  (a script, of a folder that is no package)
import speed_cases  # noqa: E402
import tables  # noqa: E402

RESULTS = ROOT / "benchmarks" / "results"


def command(*arguments: object) -> subprocess.CompletedProcess:
    program = [sys.executable, str(SCRIPT), *map(str, arguments)]
    return subprocess.run(program, capture_output=True, text=True, check=False)


def report(ratios: dict[str, float], **others) -> speed.Report:
    def row(name, ratio):
        times = {"base_s": 1e-3, "ours_s": ratio * 1e-3, "base_first_s": 0.1, "ours_first_s": 0.2}
        group = name.partition(": ")[0]
        return {
            "group": group,
            "base": "plain JAX",
            "bar": None,
            **times,
            "ratio": ratio,
            "turns": 3,
        }

    rows = {name: row(name, ratio) for name, ratio in ratios.items()}
    return speed.Report({"cpu": "one"}, rows, **others)


def write(path, found: speed.Report):
    path.write_text(json.dumps(speed.sealed(found)))
    return path


@pytest.fixture
def run(monkeypatch, capsys):
    """The program in this process: its status, and what it printed."""

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["speed.py", *map(str, arguments)])
        try:
            status = speed.main()
        except SystemExit as stop:
            status = stop.code
        return status, *capsys.readouterr()

    return run


def test_it_measures_here_and_in_another_process(tmp_path):
    """What it writes is read again, and is as fast as itself."""
    patterns = ["in cache: elementwise (add|sqrt)", "without kernels: dot"]
    output = tmp_path / "now"
    result = command("--minutes", 0, "--only", *patterns, "--output", output)
    assert result.returncode == 0, result.stderr
    found = speed.read(output.with_suffix(".json"))
    names = ["in cache: elementwise add [65536]", "in cache: elementwise sqrt [65536]"]
    assert [*found.cases] == [*names, "without kernels: dot 256x256x256"]
    assert not found.failed and not found.not_run and found.environment["jax"]
    for row in found.cases.values():
        assert row["turns"] >= speed.LEAST_TURNS and row["ratio"] == row["ours_s"] / row["base_s"]
    text = output.with_suffix(".md").read_text()
    assert text == speed.page(found) and text in result.stdout
    again = command("--results", f"{output}.json", "--compare", f"{output}.json")
    assert again.returncode == 0 and "0 cases are worse by more than 1.25 times" in again.stdout


@pytest.mark.skipif(not pathlib.Path("/proc/stat").exists(), reason="times of processes of Linux")
def test_other_processes_are_busy_meanwhile_and_the_results_say_so(monkeypatch):
    started, popen = [], subprocess.Popen
    monkeypatch.setattr(subprocess, "Popen", lambda *x: started.append(popen(*x)) or started[-1])

    def measured(*arguments):
        assert [process.poll() for process in started] == [None, None]
        seconds = []
        while sum(seconds) < 0.2:  # by now they have had the time of a processor
            time.sleep(0.2)
            ticks = [(pathlib.Path(f"/proc/{x.pid}/stat").read_text()).split()[13] for x in started]
            seconds = [int(x) / os.sysconf("SC_CLK_TCK") for x in ticks]

    monkeypatch.setattr(speed, "_run", measured)
    found = speed.run([], 0, [], speed.Report({}), busy=2)
    assert re.fullmatch(r"2 busy processes, \d+\.\d\d cores", found.environment["other work"])
    assert all(process.poll() is not None for process in started)


def test_alone_it_starts_none(monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", None)
    monkeypatch.setattr(speed, "_run", lambda *arguments: None)
    found = speed.run([], 0, [], speed.Report({}))
    assert re.fullmatch(r"\d+\.\d\d cores|unknown", found.environment["other work"])


@pytest.mark.parametrize("wrong", ["-1", "1.5", "many", "100000"])
def test_a_wrong_number_of_busy_processes_is_refused(run, wrong):
    status, _, err = run("--busy", wrong)
    assert status == 2 and f"invalid number of processes value: '{wrong}'" in err


BEFORE = {"a: one": 1.0, "a: two": 0.5, "b: three": 2.0}


@pytest.mark.parametrize(
    ("now", "status", "said"),
    [
        (BEFORE, 0, []),
        ({**BEFORE, "a: two": 0.62}, 0, []),
        ({**BEFORE, "a: two": 0.63}, 1, ["worse: a: two: 0.50 before, 0.63 now, 1.26 times"]),
        ({**BEFORE, "b: three": 1.0}, 0, ["better: b: three: 2.00 before, 1.00 now, 0.50 times"]),
        ({**BEFORE, "c: four": 9.0}, 0, ["new: c: four"]),
        ({"a: one": 1.0, "a: two": 0.5}, 0, ["missing: b: three"]),
    ],
)
def test_what_got_worse_is_noticed(tmp_path, run, now, status, said):
    then, now = write(tmp_path / "then", report(BEFORE)), write(tmp_path / "now", report(now))
    received, out, _ = run("--results", now, "--compare", then)
    words = ("worse: ", "better: ", "new: ", "missing: ")
    assert received == status
    assert [line for line in out.splitlines() if line.startswith(words)] == said
    assert f"{int(status)} cases are worse" in out


def test_tolerance_and_patterns(tmp_path, run):
    then = write(tmp_path / "then", report(BEFORE))
    now = write(tmp_path / "now", report({"a: one": 1.4}))
    status, out, _ = run("--results", now, "--compare", then, "--tolerance", 1.5, "--only", "a: t")
    assert status == 0 and "missing: a: two" in out and "b: three" not in out


def test_another_machine_is_named(tmp_path, run):
    other = dataclasses.replace(report(BEFORE), environment={"cpu": "another"})
    then, now = write(tmp_path / "then", other), write(tmp_path / "now", report(BEFORE))
    assert "cpu: another before, one now" in run("--results", now, "--compare", then)[1]


def test_a_case_that_fails_is_no_success(tmp_path, run):
    found = write(tmp_path / "now", report(BEFORE, failed={"c: four": "ValueError: so it is"}))
    status, out, err = run("--results", found)
    assert status == 1 and "failed: c: four: ValueError: so it is" in err
    assert "Failed:\n\n- c: four: ValueError: so it is" in out


def test_others_are_measured_where_a_case_fails_or_a_library_is_missing():
    def fails():
        raise ValueError("so it is")

    group = speed_cases.Group("g", (), "another way")
    cases = {
        "g: without": speed_cases.Case("without", fails, needs=("no_library_of_this_name",)),
        "g: fails": speed_cases.Case("fails", fails),
        "g: other": speed_cases.Case("other", lambda: (lambda: 1, lambda: 2), 1.5),
    }
    without, failed, (kind, name, row) = speed.here(group, cases, 0.0)
    assert without == ("not_run", "g: without", "no_library_of_this_name not installed")
    assert failed == ("failed", "g: fails", "ValueError: so it is")
    assert (kind, name) == ("cases", "g: other")
    assert (row["group"], row["base"], row["bar"]) == ("g", "another way", 1.5)


def test_an_interrupted_run_keeps_what_it_has(tmp_path, run, monkeypatch):
    def ends():
        raise KeyboardInterrupt

    first = speed_cases.Case("first", lambda: (lambda: 1, lambda: 2))
    cases = (first, speed_cases.Case("second", ends), speed_cases.Case("third", ends))
    monkeypatch.setattr(speed_cases, "groups", lambda full: [speed_cases.Group("g", cases)])
    status, out, _ = run("--minutes", 0, "--output", tmp_path / "now")
    found = speed.read(tmp_path / "now.json")
    assert status == 1 and [*found.cases] == ["g: first"] and not found.failed
    assert found.not_run == dict.fromkeys(["g: second", "g: third"], speed.INTERRUPTED)
    assert "Not run:\n\n- g: second: interrupted before it" in out
    assert run("--results", tmp_path / "now.json")[0] == 0


def test_a_process_that_ends_early_is_noticed():
    group = speed_cases.Group("no such group", (), environment={"REPJAX_NATIVE": "off"})
    (result,) = speed.elsewhere(group, {"no such group: case": None}, 0.0, [])
    assert result == ("failed", "no such group: case", "its process ended with status 2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda text: text[:-20], "received one that is no JSON or is cut short"),
        (lambda text: "", "received one that is no JSON or is cut short"),
        (lambda text: "[" * 100_000, "received one that is no JSON or is cut short"),
        (lambda text: text.replace("0.5,", "NaN,"), "received one that is no JSON or is cut short"),
        (lambda text: "[1]", "received another file"),
        (lambda text: '{"format": "repjax trace"}', "received another file"),
        (lambda text: text.replace('"version": 1', '"version": 2'), "expected version 1"),
        (lambda text: text.replace('"ratio": 0.5', '"ratio": 0.9'), "a file that was changed"),
        (lambda text: " " * (speed.MOST_BYTES + 1), "expected at most"),
        (None, "received No such file or directory"),
    ],
    ids=["cut", "empty", "deep", "nan", "list", "trace", "version", "changed", "large", "missing"],
)
@pytest.mark.parametrize("option", ["--compare", "--results"])
def test_wrong_files_are_refused(tmp_path, run, option, change, message):
    """In one sentence, before anything is measured."""
    path = write(tmp_path / "file", report(BEFORE))
    if change is None:
        path.unlink()
    else:
        text = path.read_text()
        path.write_text(change(text))
        assert path.read_text() != text
    status, out, err = run("--only", "in cache: elementwise add", option, path)
    assert status == 2 and out == ""
    assert err.startswith(f"speed.py: {path}: ") and message in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "--only: expected a case's name, received ['nothing']"),
        (["--only", "("], "argument --only: invalid regular expression value: '('"),
        (["--minutes", "nan"], "argument --minutes: invalid minutes value: 'nan'"),
        (["--tolerance", "0.9"], "argument --tolerance: invalid tolerance value: '0.9'"),
        (["--output", SCRIPT / "x"], "--output: expected a folder to write to"),
    ],
)
def test_wrong_requests_are_refused(run, arguments, message):
    status, out, err = run(*arguments)
    assert status == 2 and message in err.splitlines()[-1] and out == ""


def test_the_baseline_has_every_case():
    """Whoever adds one measures it."""
    groups = speed_cases.groups()
    names = [name for _, cases in speed.chosen(groups, [""]) for name in cases]
    assert len(names) == sum(len(group.cases) for group in groups)
    found = speed.read(RESULTS / "speed.json")
    assert {*found.cases} == {*names}
    assert not found.failed and not found.not_run
    assert speed.page(found) == (RESULTS / "speed.md").read_text()


def test_means_and_bars():
    rows = [
        {"case": case, "compared with": base, "ratio": ratio, "bar": bar}
        for case, base, ratio, bar in (
            ("a: one training step", "plain JAX", "0.50", ""),
            ("a: two", "plain JAX", "2.00", "1.50"),
            ("b: eigh", "plain JAX", "3.00", "4.00"),
            ("b: three", "plain JAX", "2.50", ""),
            ("c: four", "pairwise", "9.00", "2.00"),
        )
    ]
    assert tables.groups_of(rows).splitlines()[2:] == [
        "| a | 2 | 1.00 | one training step: 0.50 | two: 2.00 | 1 |",
        "| b | 2 | 2.74 | three: 2.50 | eigh: 3.00 | 1 |",
        "| c, beside pairwise | 1 | 9.00 | four: 9.00 | four: 9.00 | 1 |",
        "| **all training steps** | 1 | 0.50 (bar 1.00) |  |  | 0 |",
        "| **all beside plain JAX** | 4 | 1.65 (bar 1.20, **misses it**) |  |  | 2 |",
        "| **above 2.00 times, except eigenvalues** | 1 |  |  | three: 2.50 |  |",
    ]
    assert tables.over_bars(rows).splitlines()[2:] == [
        "| c: four | pairwise | 9.00 | 2.00 |",
        "| a: two | plain JAX | 2.00 | 1.50 |",
        "| b: three | plain JAX | 2.50 | 2.00 |",
    ]
