"""A sample of random programs (tests/fuzz.py), and that what is wrong with one is found."""

from __future__ import annotations

import json

import pytest

import fuzz
from helpers import random_programs


def run(tmp_path, seeds: str, settings: str, *more: str) -> int:
    return fuzz.main(["--seeds", seeds, "--settings", settings, "--output", str(tmp_path), *more])


def test_random_programs_have_one_set_of_bits(tmp_path):
    assert run(tmp_path, "0:24", "native,off") == 0
    rows = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [row["seed"] for row in rows] == [*range(24)]
    assert [row["outcome"] for row in rows].count("same") > 20


def test_a_sum_in_another_order_is_found_and_minimised(tmp_path, capsys):
    assert run(tmp_path, "30:31", "native,fault=sum", "--minimise", "1") == 1
    assert "FOUND" in capsys.readouterr().out
    (script,) = (tmp_path / "finds").glob("*.py")
    found = json.loads(script.with_suffix(".json").read_text())
    whole = random_programs.generate(found["seed"])
    assert len(found["statements"]) < len(whole["statements"])


@pytest.mark.parametrize(
    "arguments",
    [["--settings", "none"], ["--python", "no/python"], ["--seeds", "3:1"], ["--others", "0"]],
)
def test_wrong_arguments(arguments, capsys):
    try:
        status = fuzz.main(["--seeds", "0:1", *arguments])
    except SystemExit as error:  # from the parser
        status = error.code
    assert status == 2
    assert "expected" in capsys.readouterr().err
