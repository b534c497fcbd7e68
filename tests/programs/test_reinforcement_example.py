"""The example of reinforcement: no divergence in any mode but plain JAX, wrong options."""

from __future__ import annotations

import os
import re
import subprocess
import sys

import jax
import numpy as np
import pytest

from helpers.paths import ROOT
from helpers.scripts import load

PATH = ROOT / "examples" / "reinforcement.py"
KEY = jax.random.key(5)


@pytest.fixture(scope="module")
def example():
    return load(PATH)


@pytest.fixture
def run(example, capsys):
    """The lines that the example prints with these options."""

    def run(*options):
        assert example.main(["--quick", *options]) == 0
        return capsys.readouterr().out.splitlines()

    return run


def test_sampler_and_trainer_agree_in_every_step(run):
    lines = run()
    steps = [line for line in lines if line.startswith("step ")]
    assert len(steps) == 4
    assert all(line.endswith("KL 0.0, ratio 1.0 to 1.0") for line in steps)
    (agreement,) = (line for line in lines if line.startswith("sampler and trainer: "))
    count = int(re.fullmatch(r".*: 0 of (\d+) log-.* in 0 of 4 steps", agreement)[1])
    assert count >= 4 * 8 * 2  # two tokens of each answer at least
    assert lines[-1].startswith("digest sha256:")
    assert run("--mode", "switch") == lines


def test_plain_jax_diverges(run):
    """Negative control.  Among so few tokens none may differ in some of the steps."""
    lines = run("--mode", "plain")
    (agreement,) = (line for line in lines if line.startswith("sampler and trainer: "))
    assert re.fullmatch(r".*: [1-9]\d* of .* in [1-4] of 4 steps", agreement)


def test_one_bit_is_noticed(example):
    """Negative control: a log-probability that is the next number diverges."""
    trainer = example.Trainer(example.parse(["--quick"]))
    state = trainer.initialize(KEY)
    batch = trainer.sample(state["params"], KEY)
    _, (values, ratio) = trainer.update(state, batch)
    same = example.report(batch, np.asarray(values), np.asarray(ratio))
    assert (same.divergence, same.smallest, same.largest, same.differing) == (0, 1, 1, 0)
    sampled = batch.sampled.copy()
    sampled.view(np.uint32)[tuple(np.argwhere(batch.answered)[3])] ^= 1
    _, (values, ratio) = trainer.update(state, batch._replace(sampled=sampled))
    other = example.report(batch._replace(sampled=sampled), np.asarray(values), np.asarray(ratio))
    assert other.divergence > 0 and other.differing == 1
    assert (other.smallest, other.largest) != (1, 1)


def test_rewards_can_be_verified(example):
    rewards = [
        example.reward(np.int64([3, 0, 3]), np.int32(answer))
        for answer in ([0, 3, 3], [3, 0, 3], [0, 0, 0], [example.ANSWER] * 3)
    ]
    assert rewards == [np.float32(n) / np.float32(3) for n in (3, 1, 1, 0)]
    assert all(type(x) is np.float32 for x in rewards)
    questions = example.prompts(KEY, 200, 4)
    assert {len(x) for x in questions} == {2, 3, 4}
    assert {int(digit) for x in questions for digit in x} == set(range(example.DIGITS))


def test_a_group_without_differences_teaches_nothing(example):
    result = np.asarray(example.advantages(np.float32([[0.5, 0.5], [0, 1]])))
    assert (result[0] == 0).all() and result[1, 0] == -result[1, 1] and abs(result[1, 1] - 1) < 1e-3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--width", "12"], "expected --width to be a multiple of 8"),
        (["--size", "1"], "expected at least 2, received '1'"),
        (["--longest", "1"], "expected an integer from 2 to 512"),
        (["--learning-rate", "0"], "expected a positive number"),
        (["--mode", "other"], "invalid choice"),
    ],
)
def test_errors(example, capsys, options, message):
    try:
        status = example.main(["--quick", *options])
    except SystemExit as error:  # of argparse
        status = error.code
    assert status == 2
    assert message in capsys.readouterr().err


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="instruction sets are a CPU matter")
def test_the_golden_output_on_another_machine():
    result = subprocess.run(
        [sys.executable, "-P", str(PATH)],
        env={**os.environ, "XLA_FLAGS": "--xla_cpu_max_isa=SSE4_2"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stdout == (ROOT / "examples" / "reinforcement.golden.txt").read_text()
