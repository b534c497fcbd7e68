"""The example of language models: modes agree, a resumed run goes on bit for bit, wrong options."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import jax
import numpy as np
import pytest

from helpers.paths import ROOT
from helpers.scripts import load

PATH = ROOT / "examples" / "language_model.py"
SMALL = [
    *("--steps", "4", "--every", "2", "--warmup", "1", "--length", "16", "--batch-size", "2"),
    *("--width", "16", "--depth", "1", "--tokens", "6"),
]


@pytest.fixture(scope="module")
def example():
    return load(PATH)


@pytest.fixture
def run(example, capsys):
    """The lines that the example prints with these options."""

    def run(*options):
        assert example.main([*SMALL, *map(str, options)]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_modes_agree(run):
    lines = run()
    assert lines[-1].startswith("digest sha256:")
    assert "sampler and trainer: 0 of 18 log-probabilities differ" in lines
    assert run("--mode", "switch", "--remat") == lines


def test_a_resumed_run_goes_on_bit_for_bit(run, example, tmp_path, capsys):
    path = tmp_path / "model.npz"
    whole = run("--seed", 7)
    run("--seed", 7, "--until", 2, "--save", path)
    rest = run("--seed", 7, "--resume", path, "--save", path)
    assert [line for line in whole if not line.startswith("step 2/")] == rest
    for options, message in (
        (["--seed", "8"], "expected the options that"),
        (["--seed", "7", "--until", "2"], "expected --until of at least 4"),
    ):
        assert example.main([*SMALL, *options, "--resume", str(path)]) == 2
        assert message in capsys.readouterr().err


def test_what_a_step_sees_is_a_function_of_seed_and_step(example):
    options = example.parse(SMALL)
    text = example.Text(np.arange(200, dtype=np.uint8), np.zeros(0, np.uint8))
    key = jax.random.key(3)
    first = example.batch(text, key, 5, options)
    assert first.shape == (2, 2, 17) and first.dtype == np.int32
    assert (first == example.batch(text, key, 5, options)).all()
    assert (first != example.batch(text, key, 6, options)).any()
    assert (np.diff(first) == 1).all() and first.max() < 200


def test_one_bit_of_the_sampler_is_noticed(example):
    """Negative control."""
    options = example.parse(SMALL)
    trainer = example.Trainer(options)
    params = trainer.initialize(jax.random.key(0))["params"]
    written = example.write(trainer, params, options)
    assert example.differing(trainer, params, written, options) == (0, 18)
    prompt, completion = written[1]
    changed = completion.log_probs.copy()
    changed.view(np.uint32)[2] ^= 1
    written[1] = prompt, dataclasses.replace(completion, log_probs=changed)
    assert example.differing(trainer, params, written, options) == (1, 18)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "nowhere"], "expected --data to be a file of text"),
        (["--data", __file__, "--length", "2000"], "expected more than"),
        (["--warmup", "4"], "expected --warmup below --steps"),
        (["--until", "5"], "expected --until of at most --steps"),
        (["--length", "8"], "expected --length of more than 8"),
        (["--heads", "3"], "expected --heads that divide --width"),
        (["--heads", "16"], "expected an even number of features"),
        (["--resume", "nowhere"], "nowhere"),
        (["--resume", __file__], "expected a repjax checkpoint"),
        (["--save", "nowhere/file"], "existing folder"),
    ],
)
def test_errors_are_one_sentence(example, capsys, options, message):
    assert example.main([*SMALL, *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="instruction sets are a CPU matter")
def test_the_golden_output_on_another_machine():
    result = subprocess.run(
        [sys.executable, "-P", str(PATH)],
        env={**os.environ, "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == (ROOT / "examples" / "language_model.golden.txt").read_text()
