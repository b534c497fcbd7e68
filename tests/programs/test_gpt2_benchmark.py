"""The program about GPT-2's shape: its small model has the digests of the results; settings."""

from __future__ import annotations

import copy
import json
import subprocess
import sys

import pytest

from helpers.paths import ROOT

SCRIPT = ROOT / "benchmarks" / "gpt2.py"
sys.path.append(str(SCRIPT.parent))
import gpt2  # noqa: E402  (a script, of a folder that is no package)

ROWS = json.loads((ROOT / "benchmarks" / "results" / "gpt2-small-bits.json").read_text())["cases"]


def test_the_small_model_has_the_digests_of_the_results():
    result = subprocess.run(
        [sys.executable, SCRIPT, "digest", "--shape", "small", "--tokens", str(gpt2.FEW)],
        capture_output=True,
        text=True,
        check=True,
    )
    row = json.loads(result.stdout)
    assert gpt2.equal({**ROWS, "here": row})
    assert "All equal, and the sampler's the trainer's: yes." in gpt2.page_of_bits(
        "small", ROWS, {}
    )


@pytest.mark.parametrize("what", ["drawn", "trained", "sampled", "trainer's"])
def test_a_difference_is_noticed(what):
    """Negative control."""
    rows = copy.deepcopy(ROWS)
    last = rows[list(rows)[-1]]
    if what == "sampled":
        last["sampled"][str(gpt2.FEW)] = "sha256:" + 64 * "0"
    else:
        last[what] = False if what == "trainer's" else "sha256:" + 64 * "0"
    assert gpt2.equal(ROWS) and not gpt2.equal(rows)
    assert "All equal, and the sampler's the trainer's: NO." in gpt2.page_of_bits("small", rows, {})


def test_speed_of_the_small_model(monkeypatch):
    monkeypatch.setattr(gpt2, "BATCHES", (2,))
    rows = gpt2.speed("small")
    assert len(rows) == 4 and all(row["plain"] > 0 and row["repjax"] > 0 for row in rows.values())
    assert "| a token of each of 2 requests, ms |" in gpt2.page_of_speed("small", rows, {})


def test_settings_that_cannot_be():
    result = subprocess.run(
        [sys.executable, SCRIPT, "bits", "SSE5"], capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "expected words of a setting" in result.stderr.splitlines()[-1]
