"""The documentation agrees with the code: its lists of primitives do, and its examples run."""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

import pytest

import repjax
from repjax.primitives.interpret import COMPLEX, EXACT, EXACT_ON_INTEGERS, RULES, STRUCTURAL

ROOT = pathlib.Path(__file__).parent.parent
NUMERICS = ROOT / "docs" / "numerics.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])

#: What numerics.md says in front of each list of names.
LISTS = {
    "**Made of other programs, which are interpreted:**": STRUCTURAL,
    "**Taken as they stand, whatever the operands:**": EXACT,
    "**Taken as they stand where no operand or result is floating-point:**": EXACT_ON_INTEGERS,
    "**Of complex numbers, beside data movement:**": COMPLEX.keys(),
}


def test_the_version_is_the_contracts():
    title = NUMERICS.read_text().splitlines()[0]
    assert title == f"# Numerics: the contract, version {repjax.CONTRACT_VERSION}"


def test_every_rule_has_a_row_and_every_row_a_rule():
    rows = re.findall(r"^\| `([\w-]+)` \| [\d, ]+ \|$", NUMERICS.read_text(), re.MULTILINE)
    assert rows == sorted(RULES.keys() - STRUCTURAL)


@pytest.mark.parametrize("heading", LISTS)
def test_lists_are_the_codes(heading):
    paragraph = NUMERICS.read_text().split(heading)[1].split("\n\n")[0]
    assert re.findall(r"`([\w-]+)`", paragraph) == sorted(LISTS[heading])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page):
    """All Python blocks of a page, one after the other, in a process of their own."""
    inside, lines = False, []
    for line in page.read_text().splitlines():
        fence = line.startswith("```")
        inside = line == "```python" if fence else inside
        lines.append(line if inside and not fence else "")  # same line numbers as the page
    if not any(lines):
        pytest.skip("no Python on this page")
    result = subprocess.run(
        [sys.executable, "-P", "-"],
        input="\n".join(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, f"{page.name}:\n{result.stderr}"
