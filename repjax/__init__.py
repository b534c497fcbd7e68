"""Bit-identical deep learning in JAX.

* :func:`reproducible` makes one function reproducible, such as a whole training step;
* ``jax.config.update("repjax_enable", True)`` and :func:`enabled` make every program so;
* :mod:`repjax.lax`, :mod:`repjax.numpy`, :mod:`repjax.nn`, :mod:`repjax.nnx` and
  :mod:`repjax.optim` are the explicit way;
* :mod:`repjax.repdl` has the graphs of RepDL, a reproducible library for PyTorch;
* :mod:`repjax.models` has language models, and :mod:`repjax.checkpoint` files of parameters;
* :mod:`repjax.exact` adds gradients of microbatches and devices exactly;
* :func:`digest` names the exact bits of a tree of arrays;
* :func:`explain` shows why an element of a result has its bits, and :mod:`repjax.verify` has the
  other instruments;
* :func:`info` says what runs here.

Modules are imported when they are asked for: ``import repjax`` imports neither Flax nor optax.
"""

import importlib as _importlib
import pathlib as _pathlib
from typing import TYPE_CHECKING

_here = _pathlib.Path(__file__).parent
if not (_here / "primitives").is_dir():
    # A source tree: `primitives` and `models` stand beside this folder (see pyproject.toml).
    __path__.append(str(_here.parent))

from repjax import environment as _environment
from repjax._version import __version__ as __version__
from repjax.config import enabled as enabled
from repjax.config import read_environment as _read_environment
from repjax.digests import digest as digest
from repjax.information import info as info
from repjax.primitives import CONTRACT_VERSION as CONTRACT_VERSION
from repjax.primitives.core.tables import RefusedError as RefusedError
from repjax.reproducible import reproducible as reproducible

if TYPE_CHECKING:
    from repjax import checkpoint as checkpoint
    from repjax import exact as exact
    from repjax import lax as lax
    from repjax import models as models
    from repjax import nn as nn
    from repjax import nnx as nnx
    from repjax import numpy as numpy
    from repjax import optim as optim
    from repjax import repdl as repdl
    from repjax import verify as verify
    from repjax.verify.explanation import explain as explain

_environment.check_version()
_read_environment()

_MODULES = (
    "checkpoint",
    "exact",
    "lax",
    "models",
    "nn",
    "nnx",
    "numpy",
    "optim",
    "repdl",
    "verify",
)
__all__ = [
    *("CONTRACT_VERSION", "RefusedError", "__version__", "digest", "enabled", "explain", "info"),
    *("reproducible", *_MODULES),
]


if not TYPE_CHECKING:  # for which a misspelt name is to be an error

    def __getattr__(name: str):
        """What takes a while to import, when it is asked for."""
        if name in _MODULES:
            return _importlib.import_module(f"repjax.{name}")
        if name == "explain":
            return _importlib.import_module("repjax.verify.explanation").explain
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
