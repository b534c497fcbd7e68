"""Bit-identical deep learning in JAX.

* :func:`reproducible` makes one function reproducible, such as a whole training step;
* ``jax.config.update("repjax_enable", True)`` and :func:`enabled` make every program so;
* :mod:`repjax.lax`, :mod:`repjax.numpy`, :mod:`repjax.nn`, :mod:`repjax.nnx` and
  :mod:`repjax.optim` are the explicit way;
* :mod:`repjax.repdl` has the graphs of RepDL, a reproducible library for PyTorch;
* :func:`digest` names the exact bits of a tree of arrays;
* :func:`explain` shows why an element of a result has its bits.
"""

import importlib as _importlib
import pathlib as _pathlib

_here = _pathlib.Path(__file__).parent
if not (_here / "primitives").is_dir():
    # A source tree: `primitives` and `models` stand beside this folder (see pyproject.toml).
    __path__.append(str(_here.parent))

from repjax import lax as lax
from repjax import nn as nn
from repjax import numpy as numpy
from repjax import optim as optim
from repjax import repdl as repdl
from repjax._version import __version__ as __version__
from repjax.config import enabled as enabled
from repjax.config import read_environment as _read_environment
from repjax.digests import digest as digest
from repjax.information import info as info
from repjax.primitives import CONTRACT_VERSION as CONTRACT_VERSION
from repjax.primitives.core.tables import RefusedError as RefusedError
from repjax.reproducible import reproducible as reproducible

_read_environment()


def explain(*args, **kwargs):
    """As :func:`repjax.verify.explanation.explain`, which is imported when it is called."""
    from repjax.verify.explanation import explain

    return explain(*args, **kwargs)


def __getattr__(name: str):
    """``repjax.nnx``, which imports ``flax.nnx``, is imported when it is asked for."""
    if name != "nnx":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return _importlib.import_module("repjax.nnx")
