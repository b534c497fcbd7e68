"""Digests: one SHA-256 for all the bits of a tree of arrays.

**Format 1.**  The digest is the SHA-256 of this byte string; integers are unsigned and
little-endian, strings are UTF-8 with their length in bytes in front (u32)::

    "repjax digest 1\\n"                        16 bytes, no length in front
    for every leaf, in ascending order of its path:
        u32     number of names in the path
        string  each name
        string  dtype
        u32     number of dimensions
        u64     each dimension
        bytes   the elements in row-major order, each one little-endian

* A path's names are the dict keys (strings, or integers in decimal), attribute names and
  sequence positions (decimal) that lead to the leaf.  The kind of container is not part
  of it: a dict and a FrozenDict, a tuple and a list, with the same names agree.
* Paths are compared name by name, names as UTF-8 bytes, a shorter path first.
* dtype is NumPy's or ml_dtypes' name: "float32", "bfloat16", "int8", "bool", ...  An
  element of fewer than 8 bits, such as an int4, takes one byte whose high bits are zero.
  A complex element is its real part, then its imaginary part.
* A Python bool, int, float or complex counts as a "bool", "int64", "float64" or
  "complex128" of shape ().
* A PRNG key array has the dtype that JAX prints, such as "key<fry>"; dimensions and
  elements are those of `jax.random.key_data`, uint32.
* None is a leaf of dtype "none", with no dimensions and no elements.

Nothing is computed on the values: -0 and +0, and NaNs with different payloads, differ.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterable
from typing import Any, NamedTuple

import jax
import numpy as np

_HEADER = b"repjax digest 1\n"
_SCALARS = {bool: np.bool_, int: np.int64, float: np.float64, complex: np.complex128}


class Leaf(NamedTuple):
    """A leaf as it is digested and stored: its path, dtype name, and elements as an array."""

    path: tuple[str, ...]
    dtype: str
    array: np.ndarray | None  # None for a leaf that is None


def digest(tree: Any) -> str:
    """The digest of a tree of arrays, "sha256:" and 64 hexadecimal digits.

    Args:
      tree: any pytree of JAX or NumPy arrays of booleans, integers, floats or complex
        numbers, PRNG key arrays, Python scalars and None.

    Equal digests mean equal names, dtypes, shapes and bits.  The module's documentation
    defines the format byte by byte.

    Raises:
      TypeError: a leaf or a dict key of another type, or an array inside a JAX trace.
      ValueError: two leaves with the same path, such as keys 1 and "1" of one dict.
    """
    return digest_of_leaves(leaves(tree))


def digest_of_leaves(found: Iterable[Leaf]) -> str:
    """:func:`digest` of the tree that has these leaves, in their order."""
    sha = hashlib.sha256(_HEADER)
    for leaf in found:
        _update(sha, leaf)
    return f"sha256:{sha.hexdigest()}"


def digest_alone(array: np.ndarray | None) -> str:
    """:func:`digest` of one array, or of None, without looking for leaves in it first."""
    sha = hashlib.sha256(_HEADER)
    _update(sha, Leaf((), "none" if array is None else array.dtype.name, array))
    return f"sha256:{sha.hexdigest()}"


def _update(sha: Any, leaf: Leaf) -> None:
    sha.update(struct.pack("<I", len(leaf.path)))
    for name in leaf.path:
        sha.update(_string(name))
    sha.update(_string(leaf.dtype))
    shape = () if leaf.array is None else leaf.array.shape
    sha.update(struct.pack(f"<I{len(shape)}Q", len(shape), *shape))
    if leaf.array is not None:
        sha.update(little_endian(leaf.array).data)


def leaves(tree: Any) -> list[Leaf]:
    """The leaves of a tree in the digest's order; errors as in :func:`digest`."""
    flat, _ = jax.tree_util.tree_flatten_with_path(tree, is_leaf=lambda x: x is None)
    found = [Leaf(names(path), *_elements(names(path), x)) for path, x in flat]
    found.sort(key=lambda leaf: [name.encode() for name in leaf.path])
    for before, leaf in itertools.pairwise(found):
        if before.path == leaf.path:
            raise ValueError(
                f"digest: expected every leaf to have its own path, received two at "
                f"{show(leaf.path)}; rename one of the keys"
            )
    return found


def names(path: Iterable[Any]) -> tuple[str, ...]:
    """The names along a key path of `jax.tree_util`."""
    return tuple(_name(entry) for entry in path)


def show(path: tuple[str, ...]) -> str:
    """A path as text for messages."""
    return "/".join(path) if path else "the root"


def little_endian(array: np.ndarray) -> np.ndarray:
    """The elements of an array as a flat, contiguous array of little-endian bytes."""
    dtype = array.dtype
    # Swapping NumPy's own types copies bits; ml_dtypes' types only exist in native order.
    flat = np.ascontiguousarray(array).reshape(-1).astype(dtype.newbyteorder("="), copy=False)
    width = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
    words = flat.view(f"u{width}").astype(f"<u{width}", copy=False)
    if dtype.isbuiltin == 2 and width == 1:  # ml_dtypes: the high bits of an int4 mean nothing
        words = words & np.uint8(2 ** jax.dtypes.itemsize_bits(dtype) - 1)
    return words.view(np.uint8)


def hex_bits(x: Any) -> str:
    """The bits of one float32 and its value, as ``"0x3dcccccd 0x1.99999ap-4"``.

    Args:
      x: a float32 scalar, or a Python float, which is rounded to float32 (nearest even).

    The value is written as C99's ``%a`` does: exact, without trailing zeros.

    Raises:
      TypeError: anything else.
    """
    array = np.float32(x) if type(x) is float else np.asarray(x)
    if array.dtype != np.float32 or array.shape != ():
        raise TypeError(
            f"hex_bits: expected one float32, received {array.dtype} of shape {array.shape}; "
            "convert and index first"
        )
    return f"0x{int(array.view(np.uint32)):08x} {hexadecimal(float(array))}"


def hexadecimal(x: float) -> str:
    """A float as C99's ``%a`` writes it."""
    mantissa, p, exponent = x.hex().partition("p")
    return mantissa.rstrip("0").rstrip(".") + p + exponent if p else mantissa


def _string(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<I", len(data)) + data


def _name(entry: Any) -> str:
    for field in ("key", "idx", "name"):
        if hasattr(entry, field):
            key = getattr(entry, field)
            break
    else:
        key = entry
    if isinstance(key, str):
        return key
    if isinstance(key, int) and not isinstance(key, bool):
        return str(int(key))
    raise TypeError(
        f"digest: expected dict keys that are strings or integers, received {key!r} of type "
        f"{type(key).__name__}; rename the key"
    )


def _elements(path: tuple[str, ...], x: Any) -> tuple[str, np.ndarray | None]:
    """The dtype name and the elements of one leaf."""
    if x is None:
        return "none", None
    if isinstance(x, jax.core.Tracer):
        raise TypeError(
            f"digest: expected concrete arrays, received a traced one at {show(path)}; "
            "take the digest outside jit, grad, vmap and scan"
        )
    if isinstance(x, jax.Array) and jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return str(x.dtype), np.asarray(jax.random.key_data(x))
    if type(x) in _SCALARS:
        if type(x) is int and not -(2**63) <= x < 2**63:
            raise TypeError(
                f"digest: expected integers of 64 bits, received {x} at {show(path)}; "
                "keep larger ones as strings outside the tree or as several integers"
            )
        x = _SCALARS[type(x)](x)
    if isinstance(x, np.ndarray | np.generic | jax.Array):
        array = np.asarray(x)
        number = array.dtype == np.bool_ or jax.dtypes.issubdtype(array.dtype, np.number)
        if number and array.dtype.char not in "gG":  # long double: another format everywhere
            return array.dtype.name, array
    kind = f"dtype {x.dtype}" if hasattr(x, "dtype") else f"type {type(x).__name__}"
    raise TypeError(
        f"digest: expected arrays of booleans, integers, floats or complex numbers, PRNG keys, "
        f"Python scalars or None, received {kind} at {show(path)}; convert or leave it out"
    )
