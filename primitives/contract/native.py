"""The C++ kernel for contractions on CPU: optional, with the bits of the bodies.

``native/contract.cc`` is compiled when the package is installed with a C++ compiler at
hand, and called through XLA's FFI.  Without it, the bodies are compiled by XLA: the same
bits, many times slower.  The environment variable ``REPJAX_NATIVE`` says which is used:
``off``, or one of this machine's instruction sets (``AVX512``, ``AVX2``, ``NEON``,
``PLAIN``); by default the best one that has fused multiply-adds.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import itertools
import os
import pathlib
import sysconfig

import jax
import numpy as np
from jax import lax

from repjax.primitives.contract import order_independent, problems
from repjax.primitives.contract.sequential import check_float32

#: The operands' type, the result's and the name of the FFI call.
_TARGETS = {
    np.dtype(np.float32): (np.float32, "repjax_contract"),
    np.dtype(np.float64): (np.int64, "repjax_contract_integers"),
}
_LIBRARY = pathlib.Path(__file__).parent / f"_native{sysconfig.get_config_var('EXT_SUFFIX')}"
# Emulated fused multiply-adds: XLA's code for the bodies is faster.
_SLOW = "PLAIN"


@functools.cache
def _load() -> ctypes.CDLL | str:
    """The kernel, registered with XLA, or why there is none."""
    if not _LIBRARY.exists():
        return "it was not compiled when repjax was installed"
    try:
        library = ctypes.CDLL(str(_LIBRARY))
        for _, name in _TARGETS.values():
            jax.ffi.register_ffi_target(name, jax.ffi.pycapsule(getattr(library, name)), "cpu")
    except Exception as error:  # whatever is wrong with it, there are the bodies
        return f"it cannot be loaded: {error}"
    library.repjax_instruction_set.restype = ctypes.c_char_p
    library.repjax_instruction_set.argtypes = library.repjax_choose.argtypes = [ctypes.c_int64]
    return library


def instruction_sets() -> list[str]:
    """Those of this machine that the kernel can use, the best first."""
    library = _load()
    if isinstance(library, str):
        return []
    names = map(library.repjax_instruction_set, itertools.count())
    return [name.decode() for name in itertools.takewhile(lambda name: name, names)]


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


def _encode(problem: problems.Problem) -> list[int]:
    """For the kernel: the offsets, and of each axis the dimension, the size and the strides."""
    dimensions = enumerate((problem.g, problem.m, problem.n, problem.k))
    axes = [(i, *dataclasses.astuple(axis)) for i, dims in dimensions for axis in dims]
    return [*problem.offsets, len(axes), *itertools.chain(*axes)]


def _call(lhs, rhs, shape, *parts):
    """The array of ``shape`` that the problems ``parts`` fill, by the kernel.

    For operands of float32, chains of fused multiply-adds in float32; for integers in float64,
    exact sums in int64.
    """
    dtype, target = _TARGETS[lhs.dtype]
    if 0 in shape:
        return lax.full(shape, 0, dtype)
    call = jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shape, dtype))
    return call(lhs, rhs, problems=np.asarray([*itertools.chain(*map(_encode, parts))], np.int64))


def dot_general(lhs, rhs, *, dimension_numbers):
    """:func:`~repjax.primitives.contract.sequential.dot_general_body` by the kernel."""
    check_float32("dot_general", lhs, rhs)
    return _dot_general(lhs, rhs, dimension_numbers)


def order_independent_dot_general(lhs, rhs, *, dimension_numbers):
    """``order_independent.dot_general_body`` with its sums by the kernel."""
    return order_independent.dot_general_body(
        lhs, rhs, dimension_numbers=dimension_numbers, exact_dot=_dot_general
    )


def order_independent_convolution(lhs, rhs, **parameters):
    """``order_independent.conv_general_dilated_body`` with its sums by the kernel."""

    def exact_convolution(lhs, rhs, strides, padding, lhs_dilation, rhs_dilation, groups):
        axes = tuple(range(lhs.ndim))
        if problems.has_strided_holes(strides, lhs_dilation):
            lhs, padding, lhs_dilation = problems.fill_holes(lhs, axes, padding, lhs_dilation)
        return _convolution(
            lhs,
            rhs,
            strides,
            padding,
            lhs_dilation,
            rhs_dilation=rhs_dilation,
            dimension_numbers=(axes, axes, axes),
            feature_group_count=groups,
            batch_group_count=1,
        )

    return order_independent.conv_general_dilated_body(
        lhs, rhs, **parameters, exact_convolution=exact_convolution
    )


def _dot_general(lhs, rhs, dimension_numbers):
    return _call(lhs, rhs, *problems.dot_general(lhs, rhs, dimension_numbers))


def conv_general_dilated(
    lhs,
    rhs,
    *,
    window_strides,
    padding,
    lhs_dilation,
    rhs_dilation,
    dimension_numbers,
    feature_group_count,
    batch_group_count,
):
    """:func:`~repjax.primitives.contract.convolution.conv_general_dilated_body` by the kernel.

    The patches are not made: their elements are those of the padded ``lhs``, by its strides.
    Nor are the holes of ``lhs_dilation``, which gradients of strided convolutions have: where
    ``rhs`` is finite, a step ``fma(0, rhs, s)`` is none.
    """
    check_float32("conv_general_dilated", lhs, rhs)
    parameters = {
        "rhs_dilation": rhs_dilation,
        "dimension_numbers": dimension_numbers,
        "feature_group_count": feature_group_count,
        "batch_group_count": batch_group_count,
    }

    def with_holes(lhs, rhs):
        lhs, *filled = problems.fill_holes(lhs, dimension_numbers[0], padding, lhs_dilation)
        return _convolution(lhs, rhs, window_strides, *filled, **parameters)

    def without_holes(lhs, rhs):
        return _convolution(lhs, rhs, window_strides, padding, lhs_dilation, **parameters)

    if all(dilation == 1 for dilation in lhs_dilation):
        return without_holes(lhs, rhs)
    if problems.has_strided_holes(window_strides, lhs_dilation):
        return with_holes(lhs, rhs)
    return lax.cond(jax.numpy.isfinite(rhs).all(), without_holes, with_holes, lhs, rhs)


def _convolution(lhs, rhs, *geometry, **parameters):
    lhs, shape, parts = problems.convolution(lhs, rhs, *geometry, **parameters)
    return _call(lhs, rhs, shape, *(problem for problem, _ in parts))
