"""The example: the same digest in every mode, and a resumed run continues bit for bit."""

from __future__ import annotations

import jax
import pytest

from helpers.paths import ROOT
from helpers.scripts import load

SMALL = ["--limit", "96", "--batch-size", "32", "--model", "lenet1", "--pool", "max"]


@pytest.fixture(scope="module")
def main():
    return load(ROOT / "examples" / "train_digits.py").main


@pytest.fixture
def run(main, capsys):
    """The lines that the example prints with these options."""

    def run(*options):
        assert main([*SMALL, *options]) == 0
        return capsys.readouterr().out.splitlines()

    return run


@pytest.fixture(autouse=True)
def default_order():
    yield
    jax.config.update("repjax_contraction", "sequential")


def results(lines):
    """Losses, accuracies and digests: all but the lines that name the mode and the epochs."""
    return [line for line in lines if not line.startswith(("data", "model", "training"))]


def test_modes_agree(run):
    expected = results(run("--epochs", "1"))
    assert expected[-1].startswith("digest sha256:")
    for mode in ("explicit", "switch"):
        assert results(run("--epochs", "1", "--mode", mode)) == expected


def test_order_independent_products(run):
    lines = results(run("--epochs", "1", "--contraction", "order_independent"))
    assert lines[-1] != results(run("--epochs", "1"))[-1]
    again = run("--epochs", "1", "--contraction", "order_independent", "--mode", "explicit")
    assert results(again) == lines


def test_resume_continues_bit_for_bit(run, tmp_path):
    whole = results(run("--epochs", "2", "--seed", "7"))
    first = tmp_path / "first"
    run("--epochs", "1", "--seed", "7", "--save", str(first))
    rest = results(run("--epochs", "2", "--seed", "7", "--resume", str(first)))
    assert rest == whole[1:]


def test_another_seed_gives_another_digest(run):
    """Negative control: the digest sees the training."""
    assert run("--epochs", "0")[-1] != run("--epochs", "0", "--seed", "1")[-1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--data", "nowhere"], "expected --data to be a folder"),
        (["--limit", "100000"], "expected --limit to be at most"),
        (["--resume", "nowhere"], "nowhere"),
        (["--save", "nowhere/file"], "existing folder"),
    ],
)
def test_errors_are_one_sentence(main, capsys, options, message):
    assert main([*SMALL, "--epochs", "0", *options]) == 2
    captured = capsys.readouterr()
    assert message in captured.err
    assert len(captured.err.splitlines()) == 1
