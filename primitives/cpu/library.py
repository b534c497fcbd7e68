"""The C++ kernels for CPU: optional, with the bits of the bodies.

``native/`` is compiled when the package is installed with a C++ compiler at hand, and called
through XLA's FFI.  Without it, the bodies are compiled by XLA: the same bits, more slowly;
products, many times.  The environment variable ``REPJAX_NATIVE`` says which is used:
``off``, or one of this machine's instruction sets (``AVX512_AMX``, ``AVX512_VNNI``, ``AVX512``,
``AVX2``, ``NEON``, ``PLAIN``); by default the best one that has fused multiply-adds.

It is only used with the sources that it was compiled from, which are installed with it for that:
their digest is compiled in.  In a source tree in which nothing was compiled, as where Python is
started in a checkout, the kernel of an installed repjax is used, if it is of these sources.
"""

from __future__ import annotations

import ctypes
import functools
import importlib.metadata
import itertools
import os
import pathlib
import re
import warnings
from collections.abc import Iterator

import jax
import numpy as np

from repjax.primitives.cpu import sources as native_sources

#: The names of the kernels in XLA and in the library.
_TARGETS = (
    "repjax_canonicalize",
    "repjax_cholesky",
    "repjax_elementwise",
    "repjax_exact_cumsum",
    "repjax_exact_product",
    "repjax_exact_sum",
    "repjax_fourier",
    "repjax_householder_product",
    "repjax_loop",
    "repjax_lu",
    "repjax_order_independent_product",
    "repjax_order_independent_sum",
    "repjax_orthogonalize",
    "repjax_tridiagonalize",
    "repjax_reflect_rows",
    "repjax_multiply_doubles",
    "repjax_merge",
    "repjax_product",
    "repjax_qr",
    "repjax_random_bits",
    "repjax_random_keys",
    "repjax_reduce_sum",
    "repjax_rows",
    "repjax_scatter_add",
    "repjax_scatter_extremum",
    "repjax_top_k",
    "repjax_triangular_solve",
)
_SOURCES = pathlib.Path(__file__).parent / "native"
_LIBRARY = pathlib.Path(__file__).parent / "_native.so"
#: Where this is a source tree and not an installed package, the tree.
_TREE = _SOURCES.parents[2] if (_SOURCES.parents[2] / "setup.py").is_file() else None
_INSTALLED = "repjax/primitives/cpu/_native.so"
#: Elements of an array that does not stay in the caches.  XLA computes it in one loop with its
#: neighbours, so that what is between need not be written and read.
LARGE = 1 << 19
# Emulated fused multiply-adds: XLA's code for the bodies is faster.
_SLOW = "PLAIN"


@functools.cache
def _load() -> ctypes.CDLL | str:
    """The kernel, registered with XLA, or why there is none."""
    path = _find()
    if isinstance(path, str):
        return path
    try:
        library = ctypes.CDLL(str(path))
        for name in _TARGETS:
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), "cpu")
    except Exception as error:  # whatever is wrong with it, there are the bodies
        return f"{path} cannot be loaded: {error}; install repjax again"
    for function in (library.repjax_instruction_set, library.repjax_operation):
        function.restype = ctypes.c_char_p
        function.argtypes = [ctypes.c_int64]
    library.repjax_choose.argtypes = [ctypes.c_int64]
    return library


def _find() -> pathlib.Path | str:
    """The file of the kernel of the sources beside this module, or why there is none.

    A kernel of other sources may compute other bits, or read its operands in another way: it is
    not even loaded.
    """
    expected = native_sources.digest(_SOURCES)
    found = [path for path in (_LIBRARY, *_installed()) if path.is_file()]
    for path in found:
        if expected is not None and expected.encode() in path.read_bytes():
            return path
    if found:
        received = re.search(rb"(?<!\w)[0-9a-f]{64}(?!\w)", found[0].read_bytes())
        return (
            f"{found[0]} was compiled from other sources: expected "
            f"{expected or f'sources in {_SOURCES}'}, received "
            f"{received[0].decode() if received else 'a kernel without a digest of its sources'}; "
            "install repjax again, or in a source tree run python setup.py build_ext --inplace "
            "--force"
        )
    if _TREE is not None:
        return (
            f"{_TREE} is a source tree, where it was not compiled, and no repjax that is installed "
            "has one; run python setup.py build_ext --inplace in the tree, or install repjax and "
            "start Python elsewhere"
        )
    return (
        "it was not compiled when repjax was installed; install a wheel that has it, or a C++ "
        "compiler (g++ or clang++) and then repjax again, with REPJAX_REQUIRE_NATIVE=1 to see why "
        "it fails"
    )


def _installed() -> Iterator[pathlib.Path]:
    """In a source tree, where the installed ones may have a kernel."""
    if _TREE is not None:
        for distribution in importlib.metadata.distributions(name="repjax"):
            yield pathlib.Path(str(distribution.locate_file(_INSTALLED)))


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


def xla_has_masks() -> bool:
    """Whether XLA, as far as is known here, compiles for AVX-512, whose selects go by masks."""
    most = re.findall(r"--xla_cpu_max_isa=(\w+)", os.environ.get("XLA_FLAGS", ""))
    is_allowed = not most or most[-1].upper().startswith(("AVX512", "AMX"))
    return is_allowed and available() and any("AVX512" in name for name in instruction_sets())


def serves() -> bool:
    """:func:`available`, asked by what is compiled for CPUs: warns, once, where it is not."""
    if available():
        return True
    if os.environ.get("REPJAX_NATIVE") != "off":
        _warn(in_use()[1])
    return False


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"repjax computes without its C++ kernel: the same bits, but many times slower; {reason} "
        "(REPJAX_NATIVE=off silences this warning)",
        stacklevel=3,
    )


def call(name: str, results, operands, *, in_place: dict[int, int] | None = None, **integers):
    """The results of a kernel, of these types; its attributes are lists of integers.

    ``in_place`` has the numbers of operands in whose place the kernel makes results, and of these.

    XLA takes the operands of a loop's last operation for what the loop keeps, also where that is
    not a tuple of values but a call that gives one.  An empty result more, and it is a tuple.
    """
    empty = jax.ShapeDtypeStruct((0,), np.bool_)
    function = jax.ffi.ffi_call(name, [*results, empty], input_output_aliases=in_place)
    return function(*operands, **{k: np.asarray(v, np.int64) for k, v in integers.items()})[:-1]
