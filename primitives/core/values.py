"""Values as the interpreter has them: their types, canonical numbers, hidden constants."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.core.tables import PRIMITIVES


def is_inexact(aval) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, np.inexact)


def is_complex(aval) -> bool:
    dtype = getattr(aval, "dtype", None)
    return dtype is not None and jax.dtypes.issubdtype(dtype, np.complexfloating)


def is_threefry(dtype) -> bool:
    """Whether it is that of keys of Threefry, of two words each."""
    return str(dtype) == "key<fry>"


def canonicalize(x):
    """The canonical value of ``x``; anything but a floating-point or complex64 array passes."""
    aval = jax.typeof(x)
    if getattr(aval, "dtype", None) == np.complex64:
        return lax.complex(canonicalize(lax.real(x)), canonicalize(lax.imag(x)))
    if not is_inexact(aval) or np.dtype(aval.dtype) not in canonical.FORMATS:
        return x
    return PRIMITIVES["canonicalize"].bind(x)


def constant(x):
    """A captured array: its canonical value, hidden from XLA's compile-time evaluation."""
    return hidden(canonicalize(x))


def hidden(x):
    """``x``, with which XLA does not compute when it compiles, even if it is constant.

    XLA transposes a constant by another layout of the same memory, and takes its bits in the order
    of the memory: ``bitcast_convert``, with which every guard begins, then gives wrong numbers.
    The barrier is there until XLA has chosen all layouts.
    """
    aval = jax.typeof(x)
    is_array = getattr(aval, "ndim", 0) and isinstance(aval.dtype, np.dtype)
    return lax.optimization_barrier(x) if is_array else x


def canonical_number(value, dtype):
    """A number in a format, rounded to nearest, and canonical; on the host."""
    with np.errstate(all="ignore"):
        value = np.asarray(value, dtype)
    if np.issubdtype(value.dtype, np.complexfloating):
        result = _canonical(value.real).astype(value.dtype)
        result.imag = _canonical(value.imag)
        return result
    return _canonical(value)


def _canonical(value: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        if np.isnan(value):
            return np.full_like(value, np.nan)
        subnormal = np.abs(value) < jax.numpy.finfo(value.dtype).tiny
        return np.zeros_like(value) if subnormal else value
