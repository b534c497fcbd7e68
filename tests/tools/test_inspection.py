"""``repjax info`` and ``repjax digest``: what they print is what the functions give."""

from __future__ import annotations

import json
import zipfile

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import repjax
from repjax import checkpoint
from repjax.__main__ import main

TREE = {
    "layer": {
        "kernel": np.arange(6, dtype=np.float32).reshape(2, 3),
        "bias": jnp.ones(3, "bfloat16"),
    },
    "key": jax.random.key(3),
    "none": None,
    "steps": np.int64(3),
}


def printed(capsys, *arguments: str) -> list[str]:
    assert main([*map(str, arguments)]) == 0
    return capsys.readouterr().out.splitlines()


def test_info(capsys):
    lines = dict(line.split(maxsplit=1) for line in printed(capsys, "info") if " " in line)
    assert lines["repjax"] == repjax.__version__ and lines["jax"] == jax.__version__
    assert json.loads("".join(printed(capsys, "info", "--json"))) == repjax.info()
    assert {"platform", "cpu", "cpu products", "gpu kernels", "XLA_FLAGS"} < repjax.info().keys()


def test_version(capsys):
    with pytest.raises(SystemExit) as end:
        main(["--version"])
    assert end.value.code == 0
    expected = f"repjax {repjax.__version__}, contract {repjax.CONTRACT_VERSION}\n"
    assert capsys.readouterr().out == expected


def test_digests_of_files(capsys, tmp_path):
    arrays = {"a/b": np.float32([1, 2]), "c": np.int8([3])}
    checkpoint.save(tmp_path / "tree.npz", TREE)
    np.savez(tmp_path / "arrays.npz", **arrays)
    np.save(tmp_path / "array.npy", arrays["c"])
    files = {"tree.npz": TREE, "arrays.npz": arrays, "array.npy": arrays["c"]}
    lines = printed(capsys, "digest", *(tmp_path / name for name in files))
    assert lines == [f"{repjax.digest(tree)}  {tmp_path / name}" for name, tree in files.items()]


def test_leaves(capsys, tmp_path):
    checkpoint.save(tmp_path / "tree.npz", TREE)
    *lines, total = printed(capsys, "digest", "--leaves", tmp_path / "tree.npz")
    assert total == f"{repjax.digest(TREE)}  {tmp_path / 'tree.npz'}"
    assert [line.partition("  ")[2] for line in lines] == [
        "key key<fry>[2]",
        "layer/bias bfloat16[3]",
        "layer/kernel float32[2,3]",
        "none none",
        "steps int64[]",
    ]
    assert lines[2].startswith(repjax.digest(TREE["layer"]["kernel"]))


def _changed(path):
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _objects(path):
    np.savez(path, x=np.array([{}], object))


def _truncated(path):
    np.savez(path, x=np.ones(100))
    path.write_bytes(path.read_bytes()[:300])


def _archive(path):
    with zipfile.ZipFile(path, "w") as file:
        file.writestr("readme.txt", "nothing")


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.unlink(), "No such file"),
        (lambda path: path.write_bytes(b""), "received a file that starts with b''"),
        (lambda path: path.write_text("weights"), "expected a checkpoint, an .npz or an .npy"),
        (_changed, "the file was cut short or changed after it was saved"),
        (_objects, "expected arrays of numbers, received ValueError: Object arrays cannot"),
        (_truncated, "expected arrays of numbers, received BadZipFile"),
        (_archive, "expected arrays of numbers, received"),
    ],
)
def test_files_that_are_none(capsys, tmp_path, spoil, message):
    """The others are digested all the same."""
    path, good = tmp_path / "tree.npz", tmp_path / "good.npz"
    checkpoint.save(path, TREE)
    checkpoint.save(good, TREE)
    spoil(path)
    assert main(["digest", str(path), str(good)]) == 2
    said = capsys.readouterr()
    assert said.err.startswith("repjax digest: ") and said.err.count("\n") == 1
    assert message in said.err
    assert said.out == f"{repjax.digest(TREE)}  {good}\n"
