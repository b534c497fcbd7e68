"""The structure of the code: imports go one way, and a wheel holds every package."""

from __future__ import annotations

import ast
import pathlib
import shutil
import subprocess
import sys
import zipfile

import conftest
import pytest

from repjax.primitives import native_sources

ROOT = pathlib.Path(__file__).parent.parent

#: Each layer may import those before it, and itself.
LAYERS = [
    "repjax.primitives",
    "repjax.environment",
    "repjax.rules",
    "repjax.sharding",
    "repjax.rewrite",
    "repjax.cotangents",
    "repjax.config",
    "repjax.tracing",
    "repjax.reproducible",
    "repjax.explicit",
    "repjax.lax",
    "repjax.numpy",
    "repjax.nn",
    "repjax.optim",
    "repjax.repdl",
    "repjax.models",
]
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


def test_primitives_know_nothing_of_flax_and_optax():
    for path in _files("repjax.primitives"):
        assert not {n.split(".")[0] for n in _imports(path)} & {"flax", "optax"}, path


def test_every_module_is_in_a_layer():
    modules = {p.stem for p in (ROOT / "repjax").iterdir() if not p.name.startswith(("_", "."))}
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
    assert "repjax/verify/conformance.json" in names
    # The kernel's sources, and the kernel made of them: other ones it would not be used with.
    folder = "repjax/primitives/native/"
    sources = {path.name for path in (ROOT / "primitives" / "native").glob("*.*")}
    assert {n.removeprefix(folder) for n in names if n.startswith(folder)} == sources
    for kernel in (name for name in names if name.startswith("repjax/primitives/_native")):
        digest = native_sources.digest(ROOT / "primitives" / "native")
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


def test_the_table_of_what_runs_where_names_tests():
    tests = pathlib.Path(__file__).parent
    for file in (*conftest.OF_ONE_VERSION, *conftest.NOT_IN_THE_MIDDLE):
        assert (tests / f"test_{file}.py").exists(), file
    for name in conftest.SLOW:
        file, _, function = name.partition("[")[0].partition("::")
        assert f"def {function}(" in (tests / f"test_{file}.py").read_text(), name
