"""Programs beside the package, which tests load as modules."""

from __future__ import annotations

import importlib.util
import pathlib
from types import ModuleType


def load(path: pathlib.Path) -> ModuleType:
    """The program as a module of its own, whatever else has its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
