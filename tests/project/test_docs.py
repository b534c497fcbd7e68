"""The documentation agrees with the code and with the results: lists, tables, links, examples."""

from __future__ import annotations

import dataclasses
import importlib
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile

import jax
import jax.numpy as jnp
import pytest

import links
import repjax
import stock_primitives
from helpers.paths import ROOT
from repjax.primitives.operations.elementary import table as elementary

NUMERICS = ROOT / "docs" / "numerics.md"
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
#: Pages whose examples print digests.
DIGESTS = [
    ROOT / "README.md",
    *(ROOT / "docs" / f"{name}.md" for name in ("nnx", "pytorch", "repdl", "tutorial")),
]
#: Environments in which XLA computes as other machines would.
MACHINES = [{"XLA_FLAGS": f"--xla_cpu_max_isa={isa}"} for isa in ("SSE4_2", "AVX2")]


def test_the_version_is_the_contracts():
    title = NUMERICS.read_text().splitlines()[0]
    assert title == f"# Numerics: the contract, version {repjax.CONTRACT_VERSION}"


def test_every_rule_has_a_section():
    assert stock_primitives.undefined() == set()


@pytest.mark.parametrize("number", stock_primitives.SECTIONS)
def test_a_section_names_the_primitives_that_it_defines(number):
    text = stock_primitives.sections()[number]
    title, names = stock_primitives.SECTIONS[number]
    assert text.startswith(f"{number}. {title}\n")
    assert [n for n in names if not re.search(f"`{re.escape(n)}[`(]", text)] == []


def test_the_list_of_stock_primitives_is_the_codes():
    assert stock_primitives.PAGE.read_text() == stock_primitives.page(), stock_primitives.__doc__


def test_the_tables_of_elementary_functions_are_the_codes():
    assert stock_primitives.NUMERICS.read_text() == stock_primitives.numerics()
    # The contract's derivatives, and the functions that jax.lax has not got in every version.
    text = stock_primitives.sections()[9]
    for row in elementary.TABLE:
        name = row.name if row.rule else f"repjax.lax.{row.name}"
        assert row.derivative is None or f"`{name}`" in text, row.name


def test_the_accuracy_of_each_elementary_function_is_in_the_docs():
    """``benchmarks/accuracy.py`` writes both: what is proven, and plain JAX beside it."""
    _, proven, _, compared, *_ = (ROOT / "docs" / "accuracy.md").read_text().split("<!-- table -->")
    proven, compared = (
        set(re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE)) for table in (proven, compared)
    )
    assert proven == {path.stem.split("-")[0] for path in (ROOT / "docs" / "proofs").glob("*.json")}
    names = set(elementary.names(arity=1))
    assert {name for name in names if hasattr(jax.lax, name) or hasattr(jnp, name)} <= compared


def test_a_function_that_is_not_in_the_docs_is_noticed(monkeypatch):
    (first, *others) = elementary.TABLE
    monkeypatch.setattr(stock_primitives, "TABLE", (dataclasses.replace(first, name="x"), *others))
    assert stock_primitives.NUMERICS.read_text() != stock_primitives.numerics()


@pytest.fixture
def tables(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return importlib.import_module("tables")


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_tables_are_those_of_the_results(page, tables):
    assert page.read_text() == tables.filled(page.read_text()), tables.__doc__


def test_a_table_with_another_figure_is_noticed(tables):
    page = (ROOT / "docs" / "speed.md").read_text()
    figure = re.search(r"\| (\d+\.\d\d) \|", page)
    changed = f"{page[: figure.start(1)]}0.01{page[figure.end(1) :]}"
    assert tables.filled(changed) == page != changed


def test_the_readme_counts_what_is_covered():
    count = re.search(
        r"^(\d+) functions\. ", (ROOT / "docs" / "coverage.md").read_text(), re.MULTILINE
    )
    assert f"[{count[1]} functions of JAX's libraries]" in (ROOT / "README.md").read_text()


def test_the_picture_is_that_of_the_results(monkeypatch):
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    parting = importlib.import_module("parting")
    found = json.loads((ROOT / "benchmarks" / "results" / "parting.json").read_text())
    assert parting.PICTURE.read_text() == parting.draw(found), parting.__doc__
    # What its page and its words say is what was found, and the golden digest of the training.
    plain, ours = found["plain"], found["reproducible"]
    assert not any(ours["differ"]) and len({*plain["digests"].values()}) == 2
    golden = (ROOT / "examples" / "train_digits.golden.txt").read_text().split()[-1]
    assert {*ours["digests"].values()} == {golden}
    page = (ROOT / "docs" / "guarantees.md").read_text()
    said = re.findall(r"^digest (sha256:\w+)$", page, re.MULTILINE)
    assert said == [*plain["digests"].values(), *ours["digests"].values()]
    share = f"{100 * plain['differ'][-1] / found['weights']:.1f} %"
    assert f"{share} of the weights have other bits" in (ROOT / "README.md").read_text()


def test_the_readme_is_one_screen_or_two():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 100


def _anchors(page: pathlib.Path) -> set[str]:
    """Those of the headings of a page, as GitHub makes them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title).lower().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", links.pages(), ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for link in links.links(page):
        if not link.startswith(("http:", "https:", "mailto:")):
            path, _, anchor = link.partition("#")
            target = page.parent / path if path else page
            assert target.exists(), link
            assert not anchor or anchor in _anchors(target), link


def _sources() -> list[pathlib.Path]:
    folders = ("repjax", "primitives", "models", "tests", "benchmarks", "examples", "studies")
    return [path for folder in folders for path in (ROOT / folder).rglob("*.py")] + PAGES


def test_cited_sections_exist():
    numbers = stock_primitives.sections().keys()
    assert sorted(numbers) == list(range(1, len(numbers) + 1))
    for path in _sources():
        for cited in re.findall(r"\bsections? (\d+(?:(?:,| and) \d+)*)", path.read_text()):
            assert {int(n) for n in re.findall(r"\d+", cited)} <= numbers, f"{path}: {cited}"


def _python(page) -> str:
    """All Python blocks of a page, on the lines that they have there."""
    inside, lines = False, []
    for line in page.read_text().splitlines():
        fence = line.startswith("```")
        inside = line == "```python" if fence else inside
        lines.append(line if inside and not fence else "")  # same line numbers as the page
    return "\n".join(lines).rstrip()


def _run(program: str, **environment: str) -> str:
    """What a program prints, in a process and a folder of its own."""
    with tempfile.TemporaryDirectory() as folder:
        result = subprocess.run(
            [sys.executable, "-P", "-"],
            input=program,
            env={**os.environ, **environment},
            cwd=folder,
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


@pytest.mark.parametrize("name", ["pytorch", "tutorial"])
def test_the_tutorial_prints_what_it_says(name):
    page = ROOT / "docs" / f"{name}.md"
    assert f"```text\n{_run(_python(page))}```\n" in page.read_text()


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="the devices are the CPU's")
def test_the_tutorial_with_plain_jax_depends_on_the_number_of_devices():
    plain = _python(ROOT / "docs" / "tutorial.md").replace("@repjax.reproducible", "@jax.jit")
    same = "assert repjax.digest(split) == repjax.digest(params)"
    _run(plain.replace(same, same.replace("==", "!=")))


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="instruction sets are a CPU matter")
@pytest.mark.parametrize("page", DIGESTS, ids=lambda page: page.name)
def test_examples_print_the_same_bits_on_another_machine(page):
    """From the draws of their parameters on."""
    program = _python(page)
    assert program.count("print(repjax.digest(") == 1
    first, second = (_run(program, **machine) for machine in MACHINES)
    assert first == second


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="instruction sets are a CPU matter")
def test_draws_of_plain_jax_differ_on_another_machine():
    if "fma" in pathlib.Path("/proc/cpuinfo").read_text().split():
        draw = "jax.random.normal(jax.random.key(0), (100, 100))"
        plain = f"import jax, repjax; print(repjax.digest({draw}))"
        first, second = (_run(plain, **machine) for machine in MACHINES)
        assert first != second
