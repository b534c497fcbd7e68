"""Parameters as PyTorch has them: its names, its order, and RepDL's hash of them."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import numpy as np
from jax import numpy as jnp

_INT32 = np.iinfo(np.int32)


def _fail(function: str, expected: str, received: str, remedy: str, error=ValueError):
    raise error(f"repjax.repdl.{function}: expected {expected}, received {received}; {remedy}")


def torch_hash(x: Any, names: Iterable[str] | None = None) -> str:
    """RepDL's hash (``repdl.utils.get_hash``): the SHA-256 of the raw bytes of array after array.

    Bytes are those of the machine that RepDL runs on, which is little-endian here, rows first.
    RepDL keeps -0 and subnormals, which are other bytes than the +0 that repjax has in their place.

    Args:
      x: an array, as RepDL hashes a tensor; or the parameters of a model: a dict by names or by
        parts of names (:func:`from_state_dict`), with ``names``.
      names: the order of ``model.parameters()``, which ``model.named_parameters()`` has with names;
        it cannot be seen in a dict, because JAX sorts those that go through its functions.

    Returns:
      64 hexadecimal digits.
    """
    if isinstance(x, Mapping):
        if names is None:
            _fail("torch_hash", "names with a dict", "none", "give them in PyTorch's order")
        found = list(to_state_dict(x, names).values())
    elif names is not None:
        _fail("torch_hash", "names with a dict only", f"them with {type(x).__name__}", "leave out")
    else:
        found = [np.asarray(x)]
    state = hashlib.sha256()
    for array in found:
        if array.dtype.hasobject:
            _fail("torch_hash", "an array", f"{type(x).__name__}", "give one", TypeError)
        state.update(array.astype(array.dtype.newbyteorder("<"), copy=False).tobytes())
    return state.hexdigest()


def from_state_dict(state: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of PyTorch's ``model.state_dict()`` as nested dicts of JAX arrays.

    ``{"net.0.weight": w}`` becomes ``{"net": {"0": {"weight": w}}}``.  The layouts are PyTorch's,
    which :mod:`repjax.repdl` has, too, and the bits of floats are kept.  Integers, such as batch
    norm's ``num_batches_tracked``, become int32.

    Args:
      state: names and tensors on the CPU, or NumPy arrays, float32 or integers.

    Raises:
      TypeError: a tensor of another type.
      ValueError: an integer that int32 does not hold, or a name that is the beginning of another.
    """
    tree: dict[str, Any] = {}
    for name, tensor in state.items():
        array = np.asarray(tensor)
        if array.dtype.kind in "iu":
            if array.size and not _INT32.min <= array.min() <= array.max() <= _INT32.max:
                _fail("from_state_dict", f"{name} in int32", str(array.max()), "leave it out")
            array = array.astype(np.int32)
        elif array.dtype != np.float32:
            _fail(
                *("from_state_dict", f"{name} to be float32 or integers", str(array.dtype)),
                "convert it with .float()",
                TypeError,
            )
        *path, leaf = name.split(".")
        part = tree
        for key in path:
            part = part.setdefault(key, {})
            if not isinstance(part, dict):
                break
        if not isinstance(part, dict) or leaf in part:
            _fail("from_state_dict", "names of leaves", f"{name} beside one of its parts", "rename")
        part[leaf] = jnp.asarray(array)
    return tree


def to_state_dict(
    params: Mapping[str, Any], names: Iterable[str] | None = None
) -> dict[str, np.ndarray]:
    """Nested dicts of arrays by PyTorch's names: the inverse of :func:`from_state_dict`.

    ``model.load_state_dict({k: torch.from_numpy(v) for k, v in to_state_dict(params).items()})``
    reads it.  Integers become int64, as PyTorch's are.

    Args:
      params: nested dicts of arrays, also such that have dots in their keys; tuples and lists are
        dicts by their places.
      names: the order of the result, all names; without them it is the order of ``params``.

    Raises:
      ValueError: ``names`` are others than those of ``params``.
    """
    found = dict(_flat(params, ()))
    if names is not None:
        names = list(names)
        if sorted(names) != sorted(found):
            other = sorted(set(names) ^ set(found))
            shown = ", ".join(other[:5]) or "the same ones several times"
            _fail("to_state_dict", "the names of the parameters", shown, "give each name once")
        found = {name: found[name] for name in names}
    return found


def _flat(tree: Any, path: tuple[str, ...]):
    if isinstance(tree, Mapping):
        parts: Any = tree.items()
    elif isinstance(tree, tuple | list):
        parts = enumerate(tree)
    elif tree is None:
        return
    else:
        array = np.array(jax.device_get(tree))  # a copy, which PyTorch may write to
        yield ".".join(path), array.astype(np.int64) if array.dtype.kind in "iu" else array
        return
    for key, part in parts:
        yield from _flat(part, (*path, str(key)))
