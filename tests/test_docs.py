"""The documentation agrees with the code: its lists of primitives do, and its examples run."""

from __future__ import annotations

import os
import pathlib
import re
import subprocess
import sys

import jax
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


def _python(page) -> str:
    """All Python blocks of a page, on the lines that they have there."""
    inside, lines = False, []
    for line in page.read_text().splitlines():
        fence = line.startswith("```")
        inside = line == "```python" if fence else inside
        lines.append(line if inside and not fence else "")  # same line numbers as the page
    return "\n".join(lines).rstrip()


def _run(program: str, **environment: str) -> str:
    """What a program prints, in a process of its own."""
    result = subprocess.run(
        [sys.executable, "-P", "-"],
        input=program,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_examples_run(page):
    if not (program := _python(page)):
        pytest.skip("no Python on this page")
    _run(program)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="instruction sets are a CPU matter")
def test_the_examples_of_the_readme_print_the_same_bits_on_another_machine():
    """From the draws of their parameters on; plain JAX's draws differ, as the page says."""
    machines = [{"XLA_FLAGS": f"--xla_cpu_max_isa={isa}"} for isa in ("SSE4_2", "AVX2")]
    program = _python(ROOT / "README.md")
    assert program.count("print(repjax.digest(") == 2
    first, second = (_run(program, **machine) for machine in machines)
    assert first == second
    if "fma" in pathlib.Path("/proc/cpuinfo").read_text().split():
        draw = "jax.random.normal(jax.random.key(0), (100, 100))"
        plain = f"import jax, repjax; print(repjax.digest({draw}))"
        first, second = (_run(plain, **machine) for machine in machines)
        assert first != second
