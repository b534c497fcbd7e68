"""docs/guideline.md and docs/auditing.md: their commands print what they say."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import NamedTuple

import jax
import pytest

from helpers.paths import ROOT

PAGES = {name: ROOT / "docs" / f"{name}.md" for name in ("guideline", "auditing")}


class Step(NamedTuple):
    """A command of the page, its exit status, and what it prints."""

    command: str
    status: int
    output: str


def steps(page: str) -> list[Step]:
    found = []
    for block in re.findall(r"^```console\n(.*?)^```", PAGES[page].read_text(), re.M | re.S):
        for part in re.split(r"^\$ ", block, flags=re.M)[1:]:
            line, _, output = part.partition("\n")
            command, _, status = line.partition("  # exit status ")
            found.append(Step(command, int(status or 0), output))
    return found


def matches(expected: str, output: str) -> bool:
    """Whether an output is as expected, where a line ``...`` stands for any lines, and ``...`` in a
    line for anything in it."""
    pattern = "".join(
        r"(?:.*\n)*?" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n"
        for line in expected.splitlines()
    )
    return re.fullmatch(pattern, output) is not None


def run(command: str, folder) -> subprocess.CompletedProcess[str]:
    python = f"'{sys.executable}'"
    words = {"python": python, "repjax": f"{python} -P -m repjax"}
    command = re.sub(
        r"^((?:\w+=\S+ )*)(python|repjax) ", lambda x: f"{x[1]}{words[x[2]]} ", command
    )
    return subprocess.run(
        command,
        shell=True,
        cwd=folder,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def test_outputs_are_told_apart():
    assert matches("a ... c\n...\nz\n", "a b c\nz\n") and matches("...\nz\n", "x\ny\nz\n")
    assert matches("x ...\nz\n", "x y\nz\n")
    assert not matches("a ... c\n", "a b d\n") and not matches("x ...\nz\n", "x y\ny\nz\n")


def test_the_page_has_the_five_steps_of_the_paper():
    titles = re.findall(r"^## (\d)\.", PAGES["guideline"].read_text(), re.M)
    assert titles == ["1", "2", "3", "4", "5"]
    commands = " ".join(step.command for step in steps("guideline"))
    for name in ("compare", "record", "replay", "run", "diagnose", "bisect", "conformance"):
        assert f"repjax {name} " in commands, name


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="instruction sets are a CPU matter")
@pytest.mark.parametrize("page", PAGES)
def test_the_commands_print_what_the_page_says(page, tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    for step in steps(page):
        result = run(step.command, tmp_path)
        assert result.returncode == step.status, f"{step.command}\n{result.stdout}"
        assert matches(step.output, result.stdout), f"{step.command}\n{result.stdout}"
