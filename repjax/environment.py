"""What the process must leave alone: flags and variables that change arithmetic, the rounding mode.

And the versions of JAX that the tests have run with.

The bits of a program are fixed by what XLA is asked to compute.  With a few of its flags it
computes something else (``docs/numerics.md`` lists those that were tried), and so does every
processor whose rounding mode is not to nearest.  Both are refused: where repjax is enabled or a
reproducible function is traced, and for whatever way in where a program with operations of repjax
is compiled, which is where options of a single program are seen.
"""

from __future__ import annotations

import functools
import os
import pathlib
import re
import warnings
from collections.abc import Mapping
from typing import Any

import jax

from repjax._version import __version__
from repjax.primitives.core import short_loops
from repjax.primitives.core.jax_internals import compiler
from repjax.primitives.core.tables import PREFIX

#: Boolean flags that must stay off, and what they do.
HARMFUL = {
    "xla_cpu_enable_fast_math": "lets XLA reassociate and contract what repjax has in order",
    "xla_gpu_ftz": "flushes the subnormal sums inside of matrix products",
}
#: Has cuBLAS make products of float64 from integers, of as many bits as another variable says.
EMULATION = "CUBLAS_EMULATE_DOUBLE_PRECISION"
_OFF = ("false", "0")
#: The oldest version of JAX that the tests run with, and the first that they have not run with;
#: pyproject.toml asks for these.
TESTED = ("0.10.2", "0.13")
#: XLA reads it once; so a program that removes it later changes nothing.
_AT_IMPORT = os.environ.get("XLA_FLAGS", "")


@functools.cache
def _parse(flags: str) -> dict[str, str]:
    """The value of ``XLA_FLAGS`` by name; of several for one name the last one counts."""
    path = pathlib.Path(flags.strip() or "-")
    if not flags.strip().startswith("-") and path.is_file():
        flags = path.read_text()
    pairs = (word.lstrip("-").partition("=") for word in flags.split())
    return {name: value if equals else "true" for name, equals, value in pairs}


def _check_flags(name: str, flags: Mapping[str, Any]) -> None:
    for flag, effect in HARMFUL.items():
        if (value := str(flags.get(flag, "false"))).lower() not in _OFF:
            raise RuntimeError(
                f"{name}: expected {flag}=false, received {value!r}, which {effect}; leave it out"
            )


def _rounds_to_nearest(one: float = 1.0, small: float = 2.0**-60) -> bool:
    return one + small == one and one - small == one


def check(compiler_options: Mapping[str, Any] | None = None) -> None:
    """Raise unless this process, and this thread, compute as IEEE 754 says by default.

    Args:
      compiler_options: those of one program, as ``jax.jit`` takes them.

    Raises:
      RuntimeError: a harmful flag, or another rounding mode.
    """
    for flags in {_AT_IMPORT, os.environ.get("XLA_FLAGS", "")}:
        _check_flags("XLA_FLAGS", _parse(flags))
    _check_flags("compiler_options", compiler_options or {})
    if not _rounds_to_nearest():
        raise RuntimeError(
            "repjax: expected the processor to round to nearest, received another rounding mode on "
            "this thread; call C's fesetround(FE_TONEAREST), or find the library that changed it"
        )


def check_gpu() -> None:
    """Raise unless products of float64 have the accuracy that ``exact`` products count on.

    Raises:
      RuntimeError: cuBLAS is to emulate them.
    """
    if (value := os.environ.get(EMULATION, "0")) not in ("", "0"):
        raise RuntimeError(
            f"expected {EMULATION}=0, received {value!r}, which makes float64 products on GPUs "
            "less accurate than exact products need; leave it out"
        )


def check_version(version: str = jax.__version__) -> None:
    """Warn of a version of JAX that the tests have not run with."""
    oldest, beyond = map(_numbers, TESTED)
    if not oldest <= _numbers(version) < beyond:
        warnings.warn(
            f"repjax {__version__} was tested with jax {TESTED[0]} and newer, below {TESTED[1]}; "
            f"received jax {version}, whose programs may differ: see whether repjax conformance "
            f'finds the contract\'s bits, or pip install "jax>={TESTED[0]},<{TESTED[1]}"',
            stacklevel=3,
        )


def _numbers(version: str) -> list[int]:
    """Those at the start of a version: ``[0, 12, 0]`` of ``0.12.0.dev1``."""
    found = re.match(r"\d+(\.\d+)*", version)
    return [int(n) for n in found[0].split(".")] if found else []


_stock_compile = compiler.compile_or_get_cached


@functools.wraps(_stock_compile)
def _compile(backend, computation, devices, compile_options, *args, **kwargs):
    try:
        check(dict(compile_options.env_option_overrides))
        if backend.platform != "cpu":
            check_gpu()
    except RuntimeError:
        if PREFIX in computation.operation.get_asm(enable_debug_info=True):
            raise
    if backend.platform == "cpu":
        compile_options = short_loops.with_options(computation, compile_options)
    return _stock_compile(backend, computation, devices, compile_options, *args, **kwargs)


compiler.compile_or_get_cached = _compile
