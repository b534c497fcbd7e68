"""What commands are given as ``script.py:name``: an object of a user's script."""

from __future__ import annotations

import importlib
import importlib.util
import pathlib
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
