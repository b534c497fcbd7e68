"""Checkpoints keep every bit, and refuse everything else."""

import json
import os
import re
import zipfile

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import pytest
from flax.core import FrozenDict, freeze

from repjax import checkpoint
from repjax.checkpoint import CheckpointError
from repjax.digests import digest


def floats(*words):
    return np.array(words, np.uint32).view(np.float32)


def make_tree():
    special = floats(0, 0x80000000, 1, 0x7F800000, 0x7FC00000, 0x7FA00001, 0xFFFFFFFF)
    return {
        "jax": jnp.asarray(special),
        "numpy": special,
        "double": np.array([0.1, np.pi]),
        "bfloat16": jnp.asarray(np.array([0x3F80, 0x7FC1, 0x8000], np.uint16).view("bfloat16")),
        "float8": np.array([1, 2], ml_dtypes.float8_e5m2),
        "int4": jnp.array([1, -2], "int4"),
        "complex": np.complex64(1 - 2j),
        "fortran": np.asfortranarray(np.arange(6, dtype=np.int16).reshape(2, 3)),
        "swapped": np.arange(3, dtype=">f4"),
        "empty": np.zeros((0, 3), bool),
        "scalars": [None, True, 3, 0.1, (1 + 2j, np.float16(2), np.bool_(True))],
        "keys": jax.random.split(jax.random.key(5)),
        "rbg": jax.random.key(5, impl="rbg"),
        "a/b\\c\n": {"": jnp.float32(1), "..": jnp.bfloat16(2)},
        7: jnp.uint8(3),
    }


METADATA = {"epoch": 3, "rates": [0.1, None, True], "options": {"name": "é"}}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "state.npz"


def flat(tree):
    return jax.tree.leaves(tree, is_leaf=lambda x: x is None)


def mixed_keys_apart(tree):
    """JAX sorts a dict's keys, and cannot compare strings with integers."""
    return {"strings": {k: v for k, v in tree.items() if k != 7}, "integers": {7: tree[7]}}


def test_round_trip(path):
    tree = mixed_keys_apart(make_tree())
    checkpoint.save(path, tree, METADATA)
    loaded, metadata = checkpoint.load(path, tree)
    assert metadata == METADATA == checkpoint.load_metadata(path)
    assert digest(loaded) == digest(tree)
    assert jax.tree.structure(loaded) == jax.tree.structure(tree)
    for before, after in zip(flat(tree), flat(loaded), strict=True):
        assert type(before) is type(after)
        assert getattr(before, "dtype", None) == getattr(after, "dtype", None) or (
            before.dtype.newbyteorder("=") == after.dtype
        )


@pytest.mark.parametrize("tree", [{}, None, 1.5, np.float32(1), jnp.ones(3), [None, ()]])
def test_small_trees(path, tree):
    checkpoint.save(path, tree)
    loaded, metadata = checkpoint.load(path, tree)
    assert metadata is None
    assert digest(loaded) == digest(tree)


def test_shapes_are_enough_to_load(path):
    tree = {"a": jnp.ones((2, 3)), "b": jnp.ones(2, jnp.bfloat16)}
    checkpoint.save(path, tree)
    loaded, _ = checkpoint.load(path, jax.eval_shape(lambda: tree))
    assert digest(loaded) == digest(tree)
    assert all(isinstance(x, jax.Array) for x in loaded.values())
    with pytest.raises(TypeError, match="PRNG key array in `like`"):
        checkpoint.load(path, jax.eval_shape(lambda: jax.random.key(0)))


def test_containers_follow_like(path):
    tree = {"a": {"b": np.ones(2)}}
    checkpoint.save(path, tree)
    loaded, _ = checkpoint.load(path, freeze(tree))
    assert isinstance(loaded, FrozenDict)


def test_x64_is_not_lost_silently(path):
    checkpoint.save(path, np.float64(0.1))
    like = jax.ShapeDtypeStruct((), np.float64)
    with pytest.raises(CheckpointError, match="expected float64, received float32 from JAX"):
        checkpoint.load(path, like)
    with jax.enable_x64(True):
        loaded, _ = checkpoint.load(path, like)
    assert loaded.dtype == np.float64


def test_numpy_reads_it(path):
    checkpoint.save(path, {"layer": {"kernel": np.arange(3.0)}}, METADATA)
    with np.load(path) as archive:
        np.testing.assert_array_equal(archive["tree/layer/kernel"], np.arange(3.0))
        header = json.loads(archive["checkpoint.json"])
    assert header["metadata"] == METADATA
    assert header["digest"] == digest({"layer": {"kernel": np.arange(3.0)}})


def test_same_tree_same_file(path, tmp_path):
    tree = mixed_keys_apart(make_tree())
    checkpoint.save(path, tree, METADATA)
    other = tmp_path / "other.npz"
    checkpoint.save(other, tree, METADATA)
    assert path.read_bytes() == other.read_bytes()


@pytest.fixture
def small(path):
    tree = {"a": np.arange(3, dtype=np.float32)}
    checkpoint.save(path, tree, {"epoch": 1})
    return tree


def refused(path, like, message):
    with pytest.raises(CheckpointError, match=message) as caught:
        checkpoint.load(path, like)
    assert re.search(r"expected .*received .*; ", str(caught.value), re.DOTALL)


def test_every_flipped_byte(path, small):
    data = path.read_bytes()
    for i in range(len(data)):
        changed = bytearray(data)
        changed[i] ^= 1 << (i % 8)
        path.write_bytes(changed)
        refused(path, small, "state.npz")


def test_every_length(path, small):
    data = path.read_bytes()
    for i in range(len(data)):
        path.write_bytes(data[:i])
        refused(path, small, "repjax checkpoint" if i < 45 else "cut short")
    path.write_bytes(data + b"\0")
    refused(path, small, "cut short or changed")


def test_foreign_files(path, small):
    path.write_text("not a checkpoint")
    refused(path, small, "starts with b'not a ch'")
    np.savez(path, a=np.arange(3))
    refused(path, small, "expected a repjax checkpoint")
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("checkpoint.json", "{}")
    refused(path, small, "no SHA-256 at the end")


def test_other_version(path, small, monkeypatch):
    monkeypatch.setattr(checkpoint, "_VERSION", 2)
    checkpoint.save(path, small)
    monkeypatch.undo()
    refused(path, small, "version 1, received repjax checkpoint, version 2")


@pytest.mark.parametrize(
    ("like", "message"),
    [
        ({"b": np.zeros(3, np.float32)}, "a: expected nothing, received float32"),
        ({"a": np.zeros(4, np.float32)}, r"a: expected float32\[4\], received float32\[3\]"),
        ({"a": np.zeros(3, np.int32)}, r"a: expected int32\[3\], received float32\[3\]"),
        ({"a": None}, r"a: expected none\[\], received float32"),
        ({}, "a: expected nothing"),
        ({"a": {"b": np.zeros(3)}}, "a/b: expected float64.*, received nothing"),
        ({str(i): 0 for i in range(9)}, "and 5 more"),
    ],
)
def test_other_tree(path, small, like, message):
    refused(path, like, message)


def test_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError):
        checkpoint.load(tmp_path / "none.npz", {})


@pytest.mark.parametrize(
    "metadata", [{1: 2}, {"a": (1, 2)}, {"a": float("nan")}, {"a": np.float32(1)}, object()]
)
def test_metadata_that_json_would_change(path, small, metadata):
    before = path.read_bytes()
    with pytest.raises(CheckpointError, match="metadata that JSON holds without loss"):
        checkpoint.save(path, small, metadata)
    assert path.read_bytes() == before


@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_a_failed_save_loses_nothing(path, small, monkeypatch, function):
    def fail(*args):
        raise OSError("no space left on device")

    before = path.read_bytes()
    monkeypatch.setattr(os, function, fail)
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(path, {"a": np.zeros(5)})
    monkeypatch.undo()
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_refused_leaf_loses_nothing(path, small):
    before = path.read_bytes()
    with pytest.raises(TypeError, match="received type str at b"):
        checkpoint.save(path, {"b": "text"})
    assert path.read_bytes() == before
    assert os.listdir(path.parent) == [path.name]


def test_a_symbolic_link_stays_one(path, small, tmp_path):
    link = tmp_path / "link.npz"
    try:
        link.symlink_to(path)
    except OSError:
        pytest.skip("no symbolic links here")
    checkpoint.save(link, {"a": np.ones(1)})
    assert link.is_symlink()
    checkpoint.load(path, {"a": np.ones(1)})
