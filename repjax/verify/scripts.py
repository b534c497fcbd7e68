"""A user's script: run as Python would, or loaded for one object, ``script.py:name``."""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import pathlib
import runpy
import sys
from typing import Any


class ScriptError(ValueError):
    """No object of this name can be loaded."""


def load(text: str) -> Any:
    """The object that ``script.py:name``, or ``package.module:name``, stands for.

    A script is run as a module of its own, so what it guards by ``__name__ == "__main__"`` is not,
    with its folder at the front of ``sys.path``, as Python does.

    Raises:
      ScriptError: no such file, module or name.  What the script itself raises is passed on.
    """
    place, colon, name = text.rpartition(":")
    if not colon or not name.isidentifier():
        raise ScriptError(f"expected script.py:name, received {text!r}")
    module = _script(pathlib.Path(place)) if place.endswith(".py") else _module(place)
    if not hasattr(module, name):
        names = ", ".join(n for n in vars(module) if not n.startswith("_")) or "none"
        raise ScriptError(f"{place}: expected the name {name}, received a script with {names}")
    return getattr(module, name)


def _script(path: pathlib.Path) -> Any:
    if not path.is_file():
        raise ScriptError(f"expected a script, received {path}, which is no file")
    if (folder := str(path.resolve().parent)) not in sys.path:
        sys.path.insert(0, folder)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # for pickle and dataclasses, as an import would
    spec.loader.exec_module(module)
    return module


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name and name.startswith(error.name):
            raise ScriptError(f"expected a module, received {name!r}: {error}") from error
        raise


def run(arguments: list[str], *, module: bool = False) -> int:
    """Run a script, or a module, with its arguments, as ``python`` does, in this process.

    Returns:
      Its exit status.  What it raises is passed on, ``SystemExit`` aside.

    Raises:
      ScriptError: there is none.
    """
    name, *_ = arguments
    check(["-m", name] if module else [name])
    before = sys.argv, sys.path[:]
    folder = "" if module else str(pathlib.Path(name).resolve().parent)
    sys.argv, sys.path[:] = [*arguments], [folder, *sys.path]
    try:
        if module:
            runpy.run_module(name, run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(name, run_name="__main__")
    except SystemExit as end:
        if isinstance(end.code, str):
            print(end.code, file=sys.stderr)
            return 1
        return int(end.code or 0)
    finally:
        sys.argv, sys.path[:] = before
    return 0


def check(command: list[str]) -> None:
    """Whether there is what stands behind ``python``: a script, or ``-m`` and a module.

    Raises:
      ScriptError: there is none.
    """
    name, *rest = command or [""]
    if name == "-m":
        if not rest or find(rest[0]) is None:
            received = f"{rest[0]!r}, which is not there" if rest else "none"
            raise ScriptError(f"expected a module, received {received}")
    elif not name or not pathlib.Path(name).is_file():
        received = f"{name}, which is no file" if name else "none"
        raise ScriptError(f"expected a script, received {received}")


def find(name: str) -> importlib.machinery.ModuleSpec | None:
    """The module of a name, if there is one where ``python -m`` looks."""
    here = os.getcwd()
    added = here not in sys.path
    if added:
        sys.path.append(here)
    try:
        return importlib.util.find_spec(name)
    except (ModuleNotFoundError, ValueError):
        return None
    finally:
        if added:
            sys.path.remove(here)
