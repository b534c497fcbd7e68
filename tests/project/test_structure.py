"""The structure of the code: imports go one way, and a wheel holds every package."""

from __future__ import annotations

import ast
import pathlib
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import conftest
from helpers.paths import ROOT, TESTS
from repjax.primitives.cpu import sources as native_sources

#: Each layer may import those before it, and itself.
LAYERS = [
    "repjax._version",
    "repjax.files",
    "repjax.primitives",
    "repjax.exact",
    "repjax.environment",
    "repjax.tracebacks",
    "repjax.rules",
    "repjax.sharding",
    "repjax.rewrite",
    "repjax.cotangents",
    "repjax.segments",
    "repjax.config",
    "repjax.digests",
    "repjax.information",
    "repjax.tracing",
    "repjax.objects",
    "repjax.reproducible",
    "repjax.explicit",
    "repjax.lax",
    "repjax.numpy",
    "repjax.nn",
    "repjax.optim",
    "repjax.nnx",
    "repjax.repdl",
    "repjax.models",
]
#: The floors of repjax.primitives, from the ground: a module may import those of lower floors and
#: of its own part of a floor.
FLOORS = [["core"], ["operations"], ["fusion"], ["cpu", "gpu"], ["kernels"]]
#: May read any layer; no layer imports them.
TOOLS = ["repjax.verify", "repjax.checkpoint"]


def _files(package: str) -> list[pathlib.Path]:
    folder = {"repjax.primitives": "primitives", "repjax.models": "models"}.get(
        package, package.replace(".", "/")
    )
    path = ROOT / folder
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def _imports(path: pathlib.Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def _is_in(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_go_one_way(layer):
    forbidden = [*LAYERS[LAYERS.index(layer) + 1 :], *TOOLS]
    for path in _files(layer):
        for name in _imports(path):
            assert not any(_is_in(name, package) for package in forbidden), f"{path}: {name}"
            assert not _is_in(name, "repjax") or any(_is_in(name, p) for p in LAYERS), name


def _modules() -> dict[str, pathlib.Path]:
    """The files of all modules, by name."""
    found = {}
    for folder, package in (
        ("repjax", "repjax"),
        ("primitives", "repjax.primitives"),
        ("models", "repjax.models"),
    ):
        for path in (ROOT / folder).rglob("*.py"):
            parts = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *(p for p in parts if p != "__init__")))] = path
    return found


def _graph() -> dict[str, set[str]]:
    """Of each module, those that it imports, also where that is inside a function."""
    modules = _modules()

    def named(name: str) -> str:  # a module, or something in one
        return name if name in modules else name.rpartition(".")[0]

    return {
        module: {named(name) for name in _imports(path)} & modules.keys() - {module}
        for module, path in modules.items()
    }


def _circle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that are left when those that import none that is left are taken away, again and
    again: none without a circle."""
    left = set(graph)
    while gone := {module for module in left if not graph[module] & left}:
        left -= gone
    return sorted(left)


def test_no_imports_in_a_circle():
    assert _circle(_graph()) == []


def test_a_circle_is_found():
    graph = _graph()
    graph["repjax.primitives.core.tables"].add("repjax.primitives.kernels")
    assert "repjax.primitives.core.tables" in _circle(graph)


def _floor(module: str) -> tuple[int, str] | None:
    """The floor, and the part of it, of a module of repjax.primitives."""
    name = module.removeprefix("repjax.primitives").lstrip(".").partition(".")[0]
    for number, parts in enumerate(FLOORS):
        if name in parts:
            return number, name
    return None


def test_the_floors_of_primitives():
    graph = {m: names for m, names in _graph().items() if m.startswith("repjax.primitives")}
    assert all(_floor(m) for m in graph if m != "repjax.primitives"), "a module of no floor"
    for module, imported in graph.items():
        if module == "repjax.primitives":
            continue
        floor, part = _floor(module)
        for name in imported:
            other, other_part = _floor(name)
            assert other < floor or other_part == part, f"{module} imports {name}"


def _private(path: pathlib.Path) -> set[str]:
    """The private names of JAX that a file imports."""
    return {name for name in _imports(path) if name.startswith("jax._src")}


def test_private_names_of_jax_stand_in_one_module_and_in_the_docs():
    """Names only: what becomes of each when it moves is for a person to say."""
    internals = "repjax.primitives.core.jax_internals"
    for module, path in _modules().items():
        assert module == internals or not _private(path), module
    docs = (ROOT / "docs" / "architecture.md").read_text()
    table = docs.partition("## What we touch in JAX")[2].partition("\n## ")[0]
    names = _private(_modules()[internals])
    assert names
    for name in names:
        assert re.search(rf"\b{name.rpartition('.')[2]}\b", table), f"{name} is not in the table"


def test_primitives_know_nothing_of_flax_and_optax():
    for path in _files("repjax.primitives"):
        assert not {n.split(".")[0] for n in _imports(path)} & {"flax", "optax"}, path


def test_every_module_is_in_a_layer():
    found = (ROOT / "repjax").iterdir()
    modules = {p.stem for p in found if not p.name.startswith(("_", ".", "py.typed"))}
    assert {f"repjax.{m}" for m in modules} <= {*LAYERS, *TOOLS}


def test_wheel_holds_every_package(tmp_path):
    # A copy, because setuptools leaves a build folder whose old files would be held too.
    copy = tmp_path / "tree"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(".*", "build", "*.egg-info"))
    wheel_command = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation"]
    subprocess.run(
        [*wheel_command, "-w", str(tmp_path), str(copy)], check=True, capture_output=True
    )
    (wheel,) = tmp_path.glob("repjax-*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert wheel.name.split("-")[2:4] == ["py3", "none"]
    (about,) = (name for name in names if name.endswith(".dist-info/METADATA"))
    page = zipfile.ZipFile(wheel).read(about).decode()
    # A page of PyPI has no files beside it.
    links = re.findall(r"\]\(([^)\s]+)\)", page)
    assert "https://github.com/repjax/repjax/raw/main/docs/parting.svg" in links
    assert [link for link in links if not link.startswith("https://")] == []
    assert {"repjax/verify/conformance.json", "repjax/py.typed", "repjax/lax.pyi"} <= {*names}
    # The kernel's sources, and the kernel made of them: other ones it would not be used with.
    folder = "repjax/primitives/cpu/native/"
    sources = {path.name for path in (ROOT / "primitives" / "cpu" / "native").glob("*.*")}
    assert {n.removeprefix(folder) for n in names if n.startswith(folder)} == sources
    for kernel in (name for name in names if name.startswith("repjax/primitives/cpu/_native")):
        digest = native_sources.digest(ROOT / "primitives" / "cpu" / "native")
        assert digest.encode() in zipfile.ZipFile(wheel).read(kernel)
    held = {name for name in names if name.endswith(".py")}
    here = {
        prefix + str(path.relative_to(ROOT / folder))
        for folder, prefix in (
            ("repjax", "repjax/"),
            ("primitives", "repjax/primitives/"),
            ("models", "repjax/models/"),
        )
        for path in (ROOT / folder).rglob("*.py")
    }
    assert held == here


def _tests() -> dict[str, pathlib.Path]:
    """The files of tests by name: no two folders have the same."""
    paths = sorted(TESTS.rglob("test_*.py"))
    found = {path.stem.removeprefix("test_"): path for path in paths}
    assert len(found) == len(paths)
    return found


def test_the_table_of_what_runs_where_names_tests():
    files = _tests()
    for name in set().union(*conftest.MARKS.values()):
        file, _, function = name.partition("[")[0].partition("::")
        assert f"def {function}" in files[file].read_text(), name


def test_no_test_imports_another():
    """What they share lies in tests/helpers."""
    names = {path.stem for path in _tests().values()}
    for path in TESTS.rglob("*.py"):
        assert not {part for name in _imports(path) for part in name.split(".")} & names, path
