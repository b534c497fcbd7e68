"""The public face has types: mypy and pyright agree about a user's program, what is wrong included.

Where they are not installed (the extra ``dev``), what needs them is skipped.
"""

from __future__ import annotations

import ast
import importlib.util
import inspect
import json
import os
import pathlib
import shutil
import subprocess
import sys

import jax
import pytest

import repjax
from helpers.paths import ROOT, TESTS
from repjax.reproducible import JitOptions

PROGRAM = TESTS / "typed" / "program.py"
#: What users import; the modules of Flax's names are typed by Flax.
FACE = ("checkpoint", "lax", "numpy", "optim", "repdl")
#: They spell it as it is typed.
STUBS = {"lax": repjax.lax, "numpy": repjax.numpy}


@pytest.fixture(scope="module")
def package(tmp_path_factory) -> pathlib.Path:
    """A folder with the package as it is installed: its parts lie in one folder."""
    folder = tmp_path_factory.mktemp("types")
    (folder / "repjax").mkdir()
    parts = [*(ROOT / "repjax").iterdir(), ROOT / "primitives", ROOT / "models"]
    for part in parts:
        (folder / "repjax" / part.name).symlink_to(part)
    return folder


def _check(tool: str, folder: pathlib.Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    if importlib.util.find_spec(tool) is None:
        pytest.skip(f"{tool} is not installed")
    environment = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "MYPYPATH")}
    environment |= {("MYPYPATH" if tool == "mypy" else "PYTHONPATH"): str(folder)}
    environment["PYRIGHT_PYTHON_IGNORE_WARNINGS"] = "1"
    return subprocess.run(
        [sys.executable, "-P", "-m", tool, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )


def _mypy(package: pathlib.Path, program: pathlib.Path) -> subprocess.CompletedProcess[str]:
    options = ["--strict", "--follow-imports=silent", f"--cache-dir={package / 'cache'}"]
    return _check("mypy", package, *options, str(program))


def _pyright(package: pathlib.Path, program: pathlib.Path) -> subprocess.CompletedProcess[str]:
    shutil.copy(program, package / "program.py")
    settings = {
        "extraPaths": ["."],
        "enableTypeIgnoreComments": True,
        "reportUnnecessaryTypeIgnoreComment": "error",
        "include": ["program.py"],
    }
    (package / "pyrightconfig.json").write_text(json.dumps(settings))
    return _check("pyright", package, "--pythonpath", sys.executable)


@pytest.mark.parametrize("check", [_mypy, _pyright])
def test_a_users_program(package, check):
    result = check(package, PROGRAM)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("check", [_mypy, _pyright])
def test_a_wrong_program_is_noticed(package, tmp_path, check):
    """Negative control: one whose mistakes are not marked, and one with a mark too many."""
    text = PROGRAM.read_text()
    lines = [i for i, line in enumerate(text.splitlines(), 1) if "# type: ignore" in line]
    assert len(lines) > 12
    wrong = tmp_path / "wrong.py"
    wrong.write_text("\n".join(line.partition("  # type")[0] for line in text.splitlines()) + "\n")
    found = check(package, wrong).stdout
    assert [i for i in lines if f".py:{i}:" not in found] == []
    wrong.write_text(text.replace("assert_type(scale(x), Array)", "scale(x)  # type: ignore"))
    assert check(package, wrong).returncode == 1


def test_all_that_users_import_has_types(package):
    result = _check(
        "pyright", package, "--verifytypes", "repjax", "--ignoreexternal", "--outputjson"
    )
    symbols = json.loads(result.stdout)["typeCompleteness"]["symbols"]
    known = {s["name"]: s["isTypeKnown"] for s in symbols if s["isExported"]}
    functions = [f"repjax.{name}" for name in repjax.__all__ if f"repjax.{name}" in known]
    functions += [f"repjax.verify.{name}" for name in repjax.verify.__all__]
    inside = tuple(f"repjax.{module}." for module in FACE)
    face = {*functions, *(name for name in known if name.startswith(inside))}
    assert {"repjax.reproducible", "repjax.lax.dot", "repjax.checkpoint.save"} <= face
    assert sorted(name for name in face if not known[name]) == []
    assert not all(known.values())  # which it would say of a package that it does not see


@pytest.mark.parametrize("name", STUBS)
def test_stubs_have_the_names_and_arguments_of_their_modules(name):
    tree = ast.parse((ROOT / "repjax" / f"{name}.pyi").read_text())
    functions = {x.name: x.args for x in tree.body if isinstance(x, ast.FunctionDef)}
    imported = {
        alias.asname
        for x in tree.body
        if isinstance(x, ast.ImportFrom) and x.module == f"jax.{name}"
        for alias in x.names
        if alias.asname
    }
    assert functions.keys() | imported == {*STUBS[name].__all__}
    for function, arguments in functions.items():
        signature = inspect.signature(getattr(STUBS[name], function))
        stated = {
            *((x.arg, inspect.Parameter.POSITIONAL_OR_KEYWORD) for x in arguments.args),
            *((x.arg, inspect.Parameter.KEYWORD_ONLY) for x in arguments.kwonlyargs),
            *((x.arg, inspect.Parameter.VAR_POSITIONAL) for x in filter(None, [arguments.vararg])),
        }
        assert {(x.name, x.kind) for x in signature.parameters.values()} == stated, function


def test_the_options_are_those_of_jit():
    parameters = inspect.signature(jax.jit).parameters.values()
    options = {x.name for x in parameters if x.kind is inspect.Parameter.KEYWORD_ONLY}
    assert {*JitOptions.__annotations__} == options


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"static_argnum": 0}, "received 'static_argnum'; use static_argnums"),
        ({"acumulation": "pairwise"}, "received 'acumulation'; use accumulation"),
        ({"fast": True}, "received 'fast'; use one of in_shardings, "),
    ],
)
def test_a_misspelt_option_is_an_error_at_once(options, message):
    for arguments in ((), (lambda x: x,)):
        with pytest.raises(TypeError, match="expected accumulation, contraction") as error:
            repjax.reproducible(*arguments, **options)
        assert message in str(error.value)
