"""The arrays of HLO as they lie in memory."""

from __future__ import annotations

import re

import numpy as np

from ptx.program import Instruction

_HLO_TYPES = {"pred": "bool", "bf16": "bfloat16", "c64": "complex64", "c128": "complex128"} | {
    f"{letter}{bits}": f"{kind}{bits}"
    for bits in (8, 16, 32, 64)
    for letter, kind in (("s", "int"), ("u", "uint"), ("f", "float"))
}


def physical(value: np.ndarray, order) -> np.ndarray:
    """The elements as they lie in memory."""
    return np.ascontiguousarray(value.transpose(order)).reshape(-1)


def constant(x: Instruction) -> np.ndarray:
    """Numbers, ``true`` and ``false``, or 1 and 0 for those in arrays; complex ones in brackets."""
    dtype, shape, _ = layout(x.shapes[0])
    text = re.match(r"(?:[^()]|\([^()]*\))*", x.text)[0]
    words = re.findall(r"true|false|-?(?:inf|nan|[\d.]+(?:e[+-]?\d+)?)", text)
    if dtype.kind == "c":
        parts = np.array([float(word) for word in words]).reshape(-1, 2)
        return parts.astype(f"f{dtype.itemsize // 2}").view(dtype).reshape(shape)
    convert = {"b": ("true", "1").__contains__, "i": int, "u": int}.get(dtype.kind, float)
    return np.array([convert(word) for word in words]).astype(dtype).reshape(shape)


def layout(shape):
    """(dtype, dimensions, dimensions in physical order) of one array."""
    kind, dims, minor_to_major = shape
    if kind not in _HLO_TYPES:
        raise NotImplementedError(f"HLO type {kind}")
    dims = tuple(int(d) for d in dims.split(",") if d)
    order = [int(d) for d in minor_to_major.split(",") if d][::-1] or list(range(len(dims)))
    return np.dtype(_HLO_TYPES[kind]), dims, order
