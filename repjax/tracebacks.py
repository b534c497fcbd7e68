"""Errors show the user's lines: frames of repjax are left out of tracebacks, as JAX's are.

``JAX_TRACEBACK_FILTERING=off`` shows all of them.
"""

from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import repjax.primitives
from repjax.primitives.core.jax_internals import traceback_util

P = ParamSpec("P")
R = TypeVar("R")

for _file in (__file__, repjax.primitives.__file__):
    traceback_util.register_exclusion(str(pathlib.Path(_file).parent))


def boundary(function: Callable[P, R]) -> Callable[P, R]:
    """The function, what is raised below which has a traceback of the user's lines."""
    return traceback_util.api_boundary(function)
