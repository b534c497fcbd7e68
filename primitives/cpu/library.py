"""The C++ kernels for CPU: optional, with the bits of the bodies.

``native/`` is compiled when the package is installed with a C++ compiler at hand, and called
through XLA's FFI.  Without it, the bodies are compiled by XLA: the same bits, more slowly;
products, many times.  The environment variable ``REPJAX_NATIVE`` says which is used:
``off``, or one of this machine's instruction sets (``AVX512_AMX``, ``AVX512_VNNI``, ``AVX512``,
``AVX2``, ``NEON``, ``PLAIN``); by default the best one that has fused multiply-adds.

It is only used with the sources that it was compiled from, which are installed with it for that.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import os
import pathlib
import sysconfig
import warnings

import jax
import numpy as np

from repjax.primitives.cpu import sources as native_sources

#: The names of the kernels in XLA and in the library.
_TARGETS = (
    "repjax_cholesky",
    "repjax_elementwise",
    "repjax_householder_product",
    "repjax_lu",
    "repjax_order_independent_product",
    "repjax_orthogonalize",
    "repjax_product",
    "repjax_qr",
    "repjax_reduce_sum",
    "repjax_rows",
    "repjax_scatter_add",
    "repjax_triangular_solve",
)
_SOURCES = pathlib.Path(__file__).parent / "native"
_LIBRARY = pathlib.Path(__file__).parent / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
#: Elements of an array that does not stay in the caches.  XLA computes it in one loop with its
#: neighbours, so that what is between need not be written and read.
LARGE = 1 << 19
# Emulated fused multiply-adds: XLA's code for the bodies is faster.
_SLOW = "PLAIN"


@functools.cache
def _load() -> ctypes.CDLL | str:
    """The kernel, registered with XLA, or why there is none."""
    if not _LIBRARY.exists():
        return "it was not compiled when repjax was installed"
    try:
        library = ctypes.CDLL(str(_LIBRARY))
        reason = _is_stale(library)
        for name in _TARGETS if reason is None else ():
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), "cpu")
    except Exception as error:  # whatever is wrong with it, there are the bodies
        reason = f"it cannot be loaded: {error}"
    if reason is not None:
        warnings.warn(
            f"repjax does without its C++ kernel, {_LIBRARY}: the same bits, but many times "
            f"slower; {reason}",
            stacklevel=2,
        )
        return reason
    for function in (library.repjax_instruction_set, library.repjax_operation):
        function.restype = ctypes.c_char_p
        function.argtypes = [ctypes.c_int64]
    library.repjax_choose.argtypes = [ctypes.c_int64]
    return library


def _is_stale(library: ctypes.CDLL) -> str | None:
    """Why the kernel is not one of the sources beside it, which the package brings along; or None.

    A kernel of other sources may compute other bits, or read its operands in another way.
    """
    expected, received = native_sources.digest(_SOURCES), None
    if hasattr(library, "repjax_sources"):
        library.repjax_sources.restype = ctypes.c_char_p
        received = library.repjax_sources().decode()
    if expected is not None and expected == received:
        return None
    return (
        f"it was compiled from other sources: expected {expected or f'sources in {_SOURCES}'}, "
        f"received {received or 'a kernel without a digest of its sources'}; install repjax again, "
        "or in a source tree run python setup.py build_ext --inplace --force"
    )


def _names(function) -> list[str]:
    """What a function of the library calls 0, 1 and so on."""
    names = map(function, itertools.count())
    return [name.decode() for name in itertools.takewhile(lambda name: name, names)]


def instruction_sets() -> list[str]:
    """Those of this machine that the kernel can use, the best first."""
    library = _load()
    if isinstance(library, str):
        return []
    return _names(library.repjax_instruction_set)


@functools.cache
def operations() -> dict[str, int]:
    """The numbers of the operations of the elementwise kernel."""
    return {name: i for i, name in enumerate(_names(_load().repjax_operation))}


def choose(name: str) -> None:
    """Use another instruction set, from now on and in all threads; no bits change."""
    _load().repjax_choose(instruction_sets().index(name))


@functools.cache
def in_use() -> tuple[str | None, str]:
    """The instruction set that is used, or None and why the kernel is not.

    Raises:
      ValueError: ``REPJAX_NATIVE`` names no instruction set of this machine.
    """
    wanted = os.environ.get("REPJAX_NATIVE", "")
    if wanted == "off":
        return None, "REPJAX_NATIVE is off"
    library, names = _load(), instruction_sets()
    if wanted and wanted not in names:
        reason = f"; {library}" if isinstance(library, str) else ""
        raise ValueError(
            f"REPJAX_NATIVE: expected {' or '.join(('off', *names))}, received {wanted!r}{reason}"
        )
    if isinstance(library, str):
        return None, library
    if not wanted and names[0] == _SLOW:
        return None, "this processor has no fused multiply-add"
    choose(wanted or names[0])
    return wanted or names[0], ""


def available() -> bool:
    return in_use()[0] is not None


def call(name: str, results, operands, **integers):
    """The results of a kernel, of these types; its attributes are lists of integers.

    XLA takes the operands of a loop's last operation for what the loop keeps, also where that is
    not a tuple of values but a call that gives one.  An empty result more, and it is a tuple.
    """
    empty = jax.ShapeDtypeStruct((0,), np.bool_)
    function = jax.ffi.ffi_call(name, [*results, empty])
    return function(*operands, **{k: np.asarray(v, np.int64) for k, v in integers.items()})[:-1]
