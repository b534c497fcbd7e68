"""Checkpoints: a tree of arrays and its metadata in one file, bit for bit.

A checkpoint is a NumPy ``.npz`` archive, so `numpy.load` and any zip program read it too:

* ``checkpoint.json``, the first member: the format's name and version, the tree's digest,
  the metadata, and for every leaf its path, dtype, shape and member;
* ``tree/NAME/NAME.npy``: one array per leaf.  A type that NumPy lacks, such as bfloat16,
  is stored as unsigned integers with the same bits, a PRNG key as its key data;
* the archive's comment: ``sha256:`` and the SHA-256 of every byte before the comment.

Nothing is pickled, and the same tree and metadata give the same file.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import urllib.parse
import zipfile
from typing import Any

import jax
import numpy as np

from repjax.digests import Leaf, digest, leaves, names, show
from repjax.files import replacing as replacing

_FORMAT = "repjax checkpoint"
_VERSION = 1
_HEADER = "checkpoint.json"
_START = 30 + len(_HEADER)  # a zip member's header is 30 bytes, then its name
_SEAL = b"sha256:" + b"0" * 64
#: What an archive that is none, or a header that is another, raises.
_UNREADABLE = (
    *(KeyError, TypeError, AttributeError, EOFError, RecursionError),
    zipfile.BadZipFile,
)


class CheckpointError(ValueError):
    """A checkpoint that cannot be written or read; no file was changed."""


def save(path: str | os.PathLike[str], tree: Any, metadata: Any = None) -> None:
    """Write a tree and its metadata to one file, completely or not at all.

    Args:
      path: the file.  One that exists is replaced, in one step, once the new one is safely
        on disk; when anything fails, it stays as it was.
      tree: any pytree that :func:`repjax.digest` takes.
      metadata: what JSON holds without loss: dicts with string keys, lists, strings,
        integers, finite floats, booleans and None.

    Raises:
      CheckpointError: metadata that JSON would change.
      TypeError, ValueError: a leaf or a path that `repjax.digest` refuses.
      OSError: the file cannot be written.
    """
    found = leaves(tree)
    header = {
        "format": _FORMAT,
        "version": _VERSION,
        "digest": digest(tree),
        "metadata": metadata,
        "leaves": [
            {
                "path": list(leaf.path),
                "dtype": leaf.dtype,
                "shape": [] if leaf.array is None else list(leaf.array.shape),
                "member": None if leaf.array is None else _member(leaf.path),
            }
            for leaf in found
        ],
    }
    text = _json(header)
    with replacing(path) as file:
        with zipfile.ZipFile(file, "w") as archive:
            _write(archive, _HEADER, lambda f: f.write(text))
            for leaf in found:
                if leaf.array is not None:
                    array = _storable(leaf.array)
                    _write(archive, _member(leaf.path), lambda f, a=array: _write_npy(f, a))
            archive.comment = _SEAL
        seal = _hash(file)
        file.seek(-len(_SEAL), os.SEEK_END)
        file.write(seal)


def load(path: str | os.PathLike[str], like: Any) -> tuple[Any, Any]:
    """Read a checkpoint back: ``(tree, metadata)``, with the bits that were saved.

    Args:
      path: the file.
      like: a tree with the structure, dtypes and shapes to expect, such as a freshly
        initialised one or `jax.eval_shape`'s.  The leaves of the result are of the same
        kind: JAX array, NumPy array, Python scalar, PRNG key, None.

    Raises:
      CheckpointError: not a checkpoint, or of another version, cut short, changed, or of
        another tree than `like`.
      OSError: the file cannot be read.
    """
    wanted, treedef = _wanted(like)
    with _opened(path) as (archive, header):
        stored = {tuple(leaf["path"]): leaf for leaf in header["leaves"]}
        _check_structure(path, stored, wanted)
        values = [_read(archive, stored[p], x) for p, _, _, x in wanted]
    tree = jax.tree_util.tree_unflatten(treedef, values)
    received = digest(tree)
    if received != header["digest"]:
        raise CheckpointError(
            f"{path}: expected the tree {header['digest']}, received {received}; "
            "restore the file from another copy"
        )
    return tree, header["metadata"]


def load_metadata(path: str | os.PathLike[str]) -> Any:
    """The metadata of a checkpoint alone; errors as in :func:`load`."""
    with _opened(path) as (_, header):
        return header["metadata"]


def load_leaves(path: str | os.PathLike[str]) -> dict[tuple[str, ...], np.ndarray]:
    """The arrays of a checkpoint by their paths, as NumPy has them; errors as in :func:`load`.

    A PRNG key array is its key data, and a leaf that is None is left out.
    """
    return {leaf.path: leaf.array for leaf in stored_leaves(path) if leaf.array is not None}


def stored_leaves(path: str | os.PathLike[str]) -> list[Leaf]:
    """The leaves of a checkpoint, in the order of their digest; errors as in :func:`load`."""
    import ml_dtypes  # a dependency of jax: bfloat16 and its like

    with _opened(path) as (archive, header):
        found = []
        for leaf in header["leaves"]:
            array = None
            if leaf["member"] is not None:
                with archive.open(leaf["member"]) as file:
                    array = np.lib.format.read_array(file, allow_pickle=False)
                array = array.astype(array.dtype.newbyteorder("="), copy=False)
                if hasattr(ml_dtypes, leaf["dtype"]):
                    array = array.view(getattr(ml_dtypes, leaf["dtype"]))
            found.append(Leaf(tuple(leaf["path"]), leaf["dtype"], array))
        return found


def is_one(path: str | os.PathLike[str]) -> bool:
    """Whether a file begins as a checkpoint does."""
    with open(path, "rb") as file:
        return _starts(file.read(_START))


# Writing.


def _json(header) -> bytes:
    try:
        text = json.dumps(header, indent=1, sort_keys=True, allow_nan=False)
        if json.loads(text) == header:
            return text.encode()
        reason = "a value that JSON gives back changed (a tuple, a key that is no string, ...)"
    except (TypeError, ValueError) as error:
        reason = str(error)
    raise CheckpointError(
        f"checkpoint: expected metadata that JSON holds without loss, received {reason}; use dicts "
        "with string keys, lists, strings, integers, finite floats, booleans and None"
    )


def _member(path) -> str:
    return "/".join(["tree", *(urllib.parse.quote(name, safe="") for name in path)]) + ".npy"


def _storable(array: np.ndarray) -> np.ndarray:
    if array.dtype.isbuiltin == 2:  # one of ml_dtypes' types, which .npy cannot name
        array = array.view(f"u{array.dtype.itemsize}")
    return np.asarray(array, order="C")


def _write_npy(file, array):
    np.lib.format.write_array(file, array, allow_pickle=False)


def _write(archive, name, write):
    member = zipfile.ZipInfo(name)  # dated 1980-01-01, not now: same tree, same file
    member.create_system = 3
    with archive.open(member, "w", force_zip64=True) as file:
        write(file)


# Reading.


@contextlib.contextmanager
def _opened(path):
    """The archive and the header of a checkpoint, once its seal and version are checked."""
    with open(path, "rb") as file:
        _check_seal(path, file)
        try:
            with zipfile.ZipFile(file) as archive:
                header = json.loads(archive.read(_HEADER))
                _check_version(path, header)
                yield archive, header
        except _UNREADABLE as error:
            raise CheckpointError(
                f"{path}: expected the members and the header of a {_FORMAT}, received a file "
                f"without them ({error!r}); restore it from another copy"
            ) from error


def _hash(file) -> bytes:
    """The seal of an open file: the SHA-256 of all but its last bytes, the seal's own place."""
    left = file.seek(0, os.SEEK_END) - len(_SEAL)
    file.seek(0)
    sha = hashlib.sha256()
    while left > 0:
        chunk = file.read(min(left, 1 << 20))
        if not chunk:
            break
        sha.update(chunk)
        left -= len(chunk)
    return b"sha256:" + sha.hexdigest().encode()


def _starts(start: bytes) -> bool:
    return start[:4] == b"PK\x03\x04" and start.endswith(_HEADER.encode())


def _check_seal(path, file):
    start = file.read(_START)
    if not _starts(start):
        raise CheckpointError(
            f"{path}: expected a {_FORMAT}, received a file that starts with {start[:8]!r}; "
            "give the path of a file that repjax.checkpoint.save wrote"
        )
    expected = _hash(file)
    file.seek(max(0, file.seek(0, os.SEEK_END) - len(_SEAL)))
    received = file.read()
    if received != expected:
        sealed = re.fullmatch(rb"sha256:[0-9a-f]{64}", received)
        shown = received.decode() if sealed else "no SHA-256 at the end"
        raise CheckpointError(
            f"{path}: expected {expected.decode()}, received {shown}: the file was cut short or "
            "changed after it was saved; restore it from another copy"
        )


def _check_version(path, header):
    if header["format"] != _FORMAT or header["version"] != _VERSION:
        raise CheckpointError(
            f"{path}: expected {_FORMAT}, version {_VERSION}, received {header['format']}, version "
            f"{header['version']}; read it with the release of repjax that wrote it"
        )


def _wanted(like):
    """(path, dtype, shape, leaf) for every leaf of `like`, and its tree structure."""
    flat, treedef = jax.tree_util.tree_flatten_with_path(like, is_leaf=lambda x: x is None)
    wanted = []
    for path, x in flat:
        if isinstance(x, jax.ShapeDtypeStruct):
            if _is_key(x):
                raise TypeError(
                    f"checkpoint.load: expected a PRNG key array in `like`, received only its "
                    f"shape at {show(names(path))}; put a key of the same kind there"
                )
            spec = np.dtype(x.dtype).name, x.shape
        else:
            (leaf,) = leaves([x]) if x is not None else leaves(None)
            spec = leaf.dtype, () if leaf.array is None else leaf.array.shape
        wanted.append((names(path), *spec, x))
    return wanted, treedef


def _check_structure(path, stored, wanted):
    expected = {p: f"{dtype}{list(shape)}" for p, dtype, shape, _ in wanted}
    received = {p: f"{leaf['dtype']}{leaf['shape']}" for p, leaf in stored.items()}
    differing = [
        f"{show(p)}: expected {expected.get(p, 'nothing')}, received {received.get(p, 'nothing')}"
        for p in sorted(expected.keys() | received.keys())
        if expected.get(p) != received.get(p)
    ]
    if differing:
        more = f"; and {len(differing) - 5} more" if len(differing) > 5 else ""
        raise CheckpointError(
            f"{path}: expected the tree of `like`, received another one ({'; '.join(differing[:5])}"
            f"{more}); load it with the model and optimizer that it was saved from"
        )


def _is_key(x) -> bool:
    return jax.dtypes.issubdtype(getattr(x, "dtype", None), jax.dtypes.prng_key)


def _read(archive, leaf, like):
    """One leaf, as the same kind of object as `like`, whose dtype and shape it has."""
    if like is None:
        return None
    with archive.open(leaf["member"]) as file:
        array = np.lib.format.read_array(file, allow_pickle=False)
    array = array.astype(array.dtype.newbyteorder("="), copy=False)
    if _is_key(like):
        return jax.random.wrap_key_data(jax.device_put(array), impl=jax.random.key_impl(like))
    if isinstance(like, jax.Array | jax.ShapeDtypeStruct):
        array = array.view(like.dtype)
        value = jax.device_put(array)
        if value.dtype != array.dtype:
            raise CheckpointError(
                f"{leaf['path']}: expected {array.dtype}, received {value.dtype} from JAX; "
                "load it with jax_enable_x64 on, or give NumPy arrays in `like`"
            )
        return value
    if isinstance(like, np.ndarray):
        return array.view(like.dtype.newbyteorder("="))
    return array.view(like.dtype)[()] if isinstance(like, np.generic) else array.item()
