"""Run directories: what they hold, and that neither kill -9 nor an edit goes unnoticed."""

from __future__ import annotations

import json
import pathlib
import random
import subprocess
import sys

import jax
import numpy as np
import pytest

from helpers.bits import assert_same_bits
from repjax import checkpoint
from repjax.verify import Run, RunError, logs, read_run, runs

PARAMS = {
    "layer": {"kernel": np.arange(6, dtype=np.float32).reshape(2, 3), "bias": np.float32(-0.0)}
}


def write(path, steps: int = 3, *, resume: bool = False) -> runs.Record:
    """A small run, whose steps depend on nothing else."""
    with Run(path, resume=resume, metadata={"rate": 0.5, "names": ["a", "b"]}) as run:
        for n in range(steps):
            run.step(n, params={"w": np.full(4, n, np.float32)}, key=jax.random.key(n))
            run.epoch(np.float32(1) / np.float32(n + 3), accuracy=n / 7, count=n)
        run.evaluate(np.array([0, 1, 1]), np.array([0, 1, 0]), logits=np.ones((3, 2), np.float32))
        run.finish(PARAMS)
    return read_run(path)


def test_what_a_run_holds(tmp_path):
    found = write(tmp_path / "run")
    assert found.is_finished and found.metadata == {"rate": 0.5, "names": ["a", "b"]}
    assert found.about["jax"] == jax.__version__
    assert list(found.steps) == [0, 1, 2] and set(found.steps[1]) == {"params", "key"}
    assert found.steps[0]["params"] != found.steps[1]["params"]
    assert [x.loss.value for x in found.epochs] == [
        float(np.float32(1) / np.float32(n + 3)) for n in range(3)
    ]
    assert found.epochs[2].metrics["accuracy"].value == 2 / 7
    assert found.epochs[2].metrics["count"] == runs.Number("int64", "0000000000000002")
    (evaluation,) = found.evaluations
    assert_same_bits(evaluation.predictions, np.array([0, 1, 0]))
    assert_same_bits(found.params["layer/kernel"], PARAMS["layer"]["kernel"])
    assert np.signbit(found.params["layer/bias"])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "int8", "bool"])
def test_numbers_are_their_bits(dtype):
    dtype = np.dtype(getattr(jax.numpy, dtype)) if dtype == "bfloat16" else np.dtype(dtype)
    for value in (0, 1, -0.0) if dtype.kind != "b" else (False, True):
        x = np.asarray(value, dtype)
        number = runs.Number.of("it", x)
        assert number.dtype == dtype.name and int(number.bits, 16) == int.from_bytes(
            x.tobytes(), sys.byteorder
        )
        assert number.value == x
    nan = runs.Number.of("it", np.float32(np.nan))
    assert nan == runs.Number.of("it", np.float32(np.nan)) and nan.bits == "7fc00000"


@pytest.mark.parametrize("bad", ["text", [1.0, 2.0], 1j, {}], ids=str)
def test_a_loss_is_a_number(bad, tmp_path):
    with Run(tmp_path / "run") as run, pytest.raises(TypeError):
        run.epoch(bad)


def test_leaves_that_are_none_and_keys(tmp_path):
    """As optimizers and states have them."""
    tree = {"a": None, "key": jax.random.key(3), "w": np.ones(2, np.float32)}
    with Run(tmp_path / "run") as run:
        run.step(0, state=tree)
        run.finish(tree)
    found = read_run(tmp_path / "run")
    assert set(found.params) == {"key", "w"} and set(found.steps[0]["state"]) == {"a", "key", "w"}
    checkpoint.save(tmp_path / "run" / runs.PARAMS, {"a": None, "key": tree["key"]})
    with pytest.raises(RunError, match="the arrays of the log"):
        read_run(tmp_path / "run")


def test_settings_are_in_the_log(tmp_path, monkeypatch):
    monkeypatch.setenv("XLA_FLAGS", "--xla_x=1")
    about = write(tmp_path / "run").about
    assert about["XLA_FLAGS"] == "--xla_x=1" and about["jax_enable_x64"] == "False"


# --- interrupted runs --------------------------------------------------------------------


def test_a_log_cut_short_anywhere_is_read_and_resumed(tmp_path):
    whole = write(tmp_path / "whole")
    text = (tmp_path / "whole" / runs.LOG).read_bytes()
    lines = text.splitlines(keepends=True)
    chosen = [*random.Random(0).sample(range(1, len(text)), 40), len(lines[0]), len(text) - 1]
    for i, size in enumerate(chosen):
        path = tmp_path / str(i)
        path.mkdir()
        (path / runs.LOG).write_bytes(text[:size])
        count = text[:size].count(b"\n")
        for name in ("evaluation-0.npz", runs.PARAMS) if count >= len(lines) - 2 else ():
            (path / name).write_bytes((tmp_path / "whole" / name).read_bytes())
        if count == 0:
            with pytest.raises(RunError, match="without a whole line"):
                read_run(path)
            continue
        found = read_run(path)
        assert not found.is_finished
        assert list(found.steps) == list(whole.steps)[: len(found.steps)]
        resumed = write(path, resume=True)
        assert resumed.steps == whole.steps and resumed.epochs == whole.epochs
        assert (path / runs.LOG).read_bytes() == text


#: Forks a process a thousand times that logs until it is killed, and reads what it left.
KILLED = """
import os, pathlib, random, shutil, signal, sys, time, warnings
warnings.simplefilter("ignore")  # of os.fork: nothing of JAX's runs here
import numpy as np
from repjax.verify import Run, read_run, runs

path, chance = pathlib.Path(sys.argv[1]), random.Random(0)
x, kept, cut = np.arange(3), 0, 0
for i in range(1000):
    shutil.rmtree(path, ignore_errors=True)
    run = Run(path)
    log = path / runs.LOG
    first = log.stat().st_size
    child = os.fork()
    if child == 0:
        for n in range(10**9):
            run.step(n, params={"w": x + n})
            if n % 8 == 0:
                run.evaluate(x, x + n)
    while log.stat().st_size == first:
        time.sleep(0.0005)
    time.sleep(chance.random() * 0.004)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    run.close()
    found = read_run(path)
    assert list(found.steps) == list(range(len(found.steps))) and not found.is_finished
    kept += len(found.steps) > 0
    cut += not log.read_bytes().endswith(b"\\n")
    with Run(path, resume=True) as run:
        for n, trees in found.steps.items():
            run.step(n, params={"w": x + n})
            if n % 8 == 0 and n // 8 < len(found.evaluations):
                run.evaluate(x, x + n)
print(kept, cut)
"""


def test_a_process_killed_a_thousand_times_loses_no_whole_line(tmp_path):
    command = [sys.executable, "-P", "-c", KILLED, str(tmp_path / "run")]
    result = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert result.returncode == 0, result.stderr
    kept, _ = map(int, result.stdout.split())
    assert kept > 900


def test_a_resumed_run_has_to_repeat_what_it_did(tmp_path):
    run = Run(tmp_path / "run")
    run.step(0, params=np.float32(1))
    run.step(1, params=np.float32(2))
    run.close()
    log = (tmp_path / "run" / runs.LOG).read_bytes()
    with Run(tmp_path / "run", resume=True) as run:
        run.step(0, params=np.float32(1))
        with pytest.raises(RunError, match=r"repeat step 1 .* with other bits"):
            run.step(1, params=np.float32(3))
        with pytest.raises(RunError, match="received epoch 0 in its place"):
            run.epoch(1.0)
        run.step(1, params=np.float32(2))
        assert (tmp_path / "run" / runs.LOG).read_bytes() == log
        run.step(2, params=np.float32(3))
    assert list(read_run(tmp_path / "run").steps) == [0, 1, 2]


# --- what is refused ---------------------------------------------------------------------


def test_requests_that_cannot_be_met(tmp_path):
    write(tmp_path / "run")
    with pytest.raises(RunError, match="resume=True"):
        Run(tmp_path / "run")
    with pytest.raises(RunError, match="a finished one"):
        Run(tmp_path / "run", resume=True)
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("")
    with pytest.raises(RunError, match="a directory with some"):
        Run(tmp_path / "other")
    with Run(tmp_path / "new") as run:
        run.step(3)
        for n in (3, 2, 3.5, True):
            with pytest.raises(RunError, match="a step after 3"):
                run.step(n)
        with pytest.raises(RunError, match="of one shape"):
            run.evaluate([1, 2], [1])
        with pytest.raises(RunError, match="logits of shape"):
            run.evaluate([1, 2], [1, 2], np.ones((3, 4)))
    with pytest.raises(RunError, match="JSON"):
        Run(tmp_path / "third", metadata={"rate": float("nan")})
    for path in (tmp_path, tmp_path / "nowhere", tmp_path / "other" / "file"):
        with pytest.raises(RunError, match="expected a run directory"):
            read_run(path)


def test_every_edit_of_a_log_is_noticed(tmp_path):
    """But of the last newline: what follows the others may always be a line cut short."""
    write(tmp_path / "run", steps=1)
    log = tmp_path / "run" / runs.LOG
    text = log.read_bytes()
    for i in range(0, len(text) - 1, 7):
        log.write_bytes(text[:i] + bytes([text[i] ^ 1]) + text[i + 1 :])
        with pytest.raises(RunError):
            read_run(tmp_path / "run")
    lines = text.splitlines(keepends=True)
    for others in (lines[1:], lines[:1] + lines[2:], [*lines[:2], *lines[1:]], lines[::-1]):
        log.write_bytes(b"".join(others))
        with pytest.raises(RunError, match="seal"):
            read_run(tmp_path / "run")


def test_other_arrays_are_noticed(tmp_path):
    write(tmp_path / "run")
    write(tmp_path / "other", steps=2)
    path = tmp_path / "run" / runs.PARAMS
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)
    with pytest.raises(ValueError, match="cut short or changed"):
        read_run(tmp_path / "run")
    path.write_bytes((tmp_path / "run" / "evaluation-0.npz").read_bytes())
    with pytest.raises(RunError, match="the arrays of the log"):
        read_run(tmp_path / "run")
    path.unlink()
    with pytest.raises(RunError, match=r"the file params\.npz of the log"):
        read_run(tmp_path / "run")


def _sealed(records) -> bytes:
    """A log of any records, with true seals."""
    lines, seal = [], logs.FIRST_SEAL
    for record in records:
        text = record if isinstance(record, bytes) else json.dumps(record).encode()
        seal = logs.next_seal(seal, text)
        lines.append(f"{seal} ".encode() + text + b"\n")
    return b"".join(lines)


FIRST = {"kind": "run", "format": "repjax run", "version": 1, "metadata": None, "info": {}}


@pytest.mark.parametrize(
    "records, message",
    [
        ([{**FIRST, "version": 2}], "version 2"),
        ([{**FIRST, "format": "a diary"}], "a diary"),
        ([FIRST, {"kind": "something"}], "something"),
        ([FIRST, {"kind": "epoch"}], "the records of a run"),
        ([FIRST, {"kind": "finish", "file": "../params.npz", "leaves": {}}], "beside the log"),
        ([FIRST, b"[" * 100_000], "a record on line 2"),
        ([FIRST, json.dumps({"kind": [[[[[[[[[[[[[[[[[[]]]]]]]]]]]]]]]]]]}).encode()], "line 2"),
        ([FIRST, b"no json"], "a record on line 2"),
    ],
    ids=["version", "format", "kind", "fields", "path", "nested", "deep", "text"],
)
def test_foreign_logs(records, message, tmp_path):
    (tmp_path / runs.LOG).write_bytes(_sealed(records))
    with pytest.raises(RunError, match=message):
        read_run(tmp_path)


def test_limits(tmp_path, monkeypatch):
    write(tmp_path / "run")
    for name, limit in (("MOST_BYTES", 100), ("MOST_BYTES_OF_A_LINE", 100), ("MOST_RECORDS", 2)):
        with monkeypatch.context() as patch:
            patch.setattr(logs, name, limit)
            with pytest.raises(RunError, match="expected"):
                read_run(tmp_path / "run")


def test_nothing_is_written_beside_the_run(tmp_path):
    write(tmp_path / "run")
    assert {p.name for p in pathlib.Path(tmp_path / "run").iterdir()} == {
        runs.LOG,
        runs.PARAMS,
        "evaluation-0.npz",
    }
