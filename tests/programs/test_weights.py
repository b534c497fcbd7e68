"""Weights in safetensors files: Hugging Face's models, and files that are not theirs."""

from __future__ import annotations

import json
import struct
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import repjax
from helpers.bits import assert_same_bits
from helpers.paths import DATA
from repjax.models import GPT, Llama, weights

safetensors = pytest.importorskip("safetensors.numpy", reason="needs the extra models")

FOLDER = DATA / "hugging_face"
LLAMA = Llama(
    vocabulary=13, positions=16, width=16, depth=2, heads=4, key_heads=2, hidden=20, epsilon=1e-6
)
MODELS = {
    "gpt2": GPT(vocabulary=13, positions=16, width=8, depth=2, heads=2),
    "llama": LLAMA,
    "llama_tied": LLAMA.copy(key_heads=4, tied=True),
}
PATHS = {name: FOLDER / f"{name}.safetensors" for name in MODELS}


def _tensors(name):
    return safetensors.load_file(PATHS[name])


def _logits(model, params, tokens):
    return np.asarray(repjax.reproducible(lambda p, t: model.apply(p, t)[0])(params, tokens))


def _error(logits, expected):
    """The largest difference, in units of what float32 sums of this size may differ by."""
    return np.abs(logits - expected).max() / np.abs(expected).max() / 2.0**-23


@pytest.mark.parametrize("name", MODELS)
def test_the_architecture_is_hugging_faces(name):
    with np.load(FOLDER / "logits.npz") as file:
        tokens, expected = file["tokens"], file[name]
    params = weights.load(PATHS[name], MODELS[name])
    assert _error(_logits(MODELS[name], params, tokens), expected) < 16
    # Controls: what another architecture would give is far away.
    others = {
        "gpt2": [MODELS["gpt2"].copy(heads=4)],
        "llama": [LLAMA.copy(theta=9000.0), LLAMA.copy(epsilon=1e-3)],
        "llama_tied": [MODELS["llama_tied"].copy(theta=9000.0)],
    }
    for other in others[name]:
        assert _error(_logits(other, params, tokens), expected) > 1000


@pytest.mark.parametrize("name", MODELS)
def test_a_file_written_again_is_the_same_file(name, tmp_path):
    params = weights.load(PATHS[name], MODELS[name])
    assert jax.tree.structure(params) == jax.tree.structure(
        jax.eval_shape(MODELS[name].init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    )
    weights.save(tmp_path / "again.safetensors", MODELS[name], params)
    assert (tmp_path / "again.safetensors").read_bytes() == PATHS[name].read_bytes()


@pytest.mark.parametrize("dtype", [jnp.float16, jnp.bfloat16])
def test_formats_of_16_bits_are_kept_as_they_are(dtype, tmp_path):
    halves = {name: x.astype(dtype) for name, x in _tensors("llama").items()}
    safetensors.save_file(halves, tmp_path / "x.safetensors")
    params = weights.load(tmp_path / "x.safetensors", LLAMA)["params"]
    expected = halves["model.layers.1.mlp.up_proj.weight"].astype(np.float32).T
    assert_same_bits(np.asarray(params["layers_1"]["mlp"]["up_proj"]["kernel"]), expected)


def test_names_without_a_prefix_and_buffers_of_older_files(tmp_path):
    older = {name.removeprefix("transformer."): x for name, x in _tensors("gpt2").items()}
    older["h.0.attn.bias"] = np.ones((1, 1, 16, 16), np.float32)
    safetensors.save_file(older, tmp_path / "x.safetensors")
    assert_same_bits(
        weights.load(tmp_path / "x.safetensors", MODELS["gpt2"]),
        weights.load(PATHS["gpt2"], MODELS["gpt2"]),
    )


def test_a_head_that_is_shared_may_be_there_and_is_compared(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = _tensors("llama_tied")
    tensors["lm_head.weight"] = tensors["model.embed_tokens.weight"].copy()
    safetensors.save_file(tensors, path)
    weights.load(path, MODELS["llama_tied"])
    tensors["lm_head.weight"][3, 2] += 1
    safetensors.save_file(tensors, path)
    with pytest.raises(weights.WeightsError, match=r"expected lm_head.weight to be model\.embed"):
        weights.load(path, MODELS["llama_tied"])


def test_several_files_with_an_index(tmp_path):
    index = {}
    for i, (name, x) in enumerate(_tensors("llama").items()):
        file = f"part-{i % 2}.safetensors"
        index[name] = file
        old = safetensors.load_file(tmp_path / file) if (tmp_path / file).exists() else {}
        safetensors.save_file(old | {name: x}, tmp_path / file)
    path = tmp_path / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": index}))
    assert_same_bits(weights.load(path, LLAMA), weights.load(PATHS["llama"], LLAMA))
    for text in (
        "",
        "[]",
        '{"weight_map": 3}',
        '{"weight_map": {"a": 3}}',
        '{"weight_map": {"a": "../part-0.safetensors"}}',
        "[" * 100000,
    ):
        path.write_text(text)
        with pytest.raises(weights.WeightsError, match="expected an index of safetensors files"):
            weights.load(path, LLAMA)


def test_tensors_of_another_model_are_named(tmp_path):
    path = tmp_path / "x.safetensors"
    tensors = _tensors("llama")
    del tensors["model.norm.weight"]
    tensors["model.norm.bias"] = np.zeros(16, np.float32)
    tensors["model.layers.0.mlp.up_proj.weight"] = np.zeros((16, 20), np.float32)
    safetensors.save_file(tensors, path)
    with pytest.raises(weights.WeightsError) as caught:
        weights.load(path, LLAMA)
    for part in (
        "model.norm.weight: expected shape (16,), received nothing",
        "model.norm.bias: expected nothing, received shape (16,)",
        "model.layers.0.mlp.up_proj.weight: expected shape (20, 16), received shape (16, 20)",
        "make the model with the sizes of these weights",
    ):
        assert part in str(caught.value)
    with pytest.raises(weights.WeightsError, match=r"and \d+ more"):
        weights.load(PATHS["gpt2"], LLAMA)
    with pytest.raises(weights.WeightsError, match=r"expected nothing, received shape"):
        weights.save(path, MODELS["llama_tied"], weights.load(PATHS["llama"], LLAMA))
    with pytest.raises(weights.WeightsError, match=r"lm_head.weight: expected shape \(13, 16\), r"):
        weights.load(PATHS["llama_tied"], LLAMA.copy(key_heads=4))


def test_another_format_is_refused(tmp_path):
    tensors = _tensors("llama") | {"model.norm.weight": np.ones(16, np.int64)}
    safetensors.save_file(tensors, tmp_path / "x.safetensors")
    with pytest.raises(weights.WeightsError, match=r"received model\.norm\.weight of I64; convert"):
        weights.load(tmp_path / "x.safetensors", LLAMA)


def _broken(data: bytes) -> dict[str, bytes]:
    (length,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8 : 8 + length])

    def of(header) -> bytes:
        text = json.dumps(header).encode()
        return struct.pack("<Q", len(text)) + text + data[8 + length :]

    first = next(name for name in header if name != "__metadata__")
    beyond = {**header, first: header[first] | {"data_offsets": [0, 1 << 40]}}
    return {
        "empty": b"",
        "header cut off": data[: 8 + length // 2],
        "cut off": data[:-1],
        "longer": data + b"\0",
        "no JSON": data[:8] + b"?" + data[9:],
        "a huge header": struct.pack("<Q", 1 << 60) + data[8:],
        "beyond the end": of(beyond),
        "a list": of([1, 2]),
        "a format without a name": of({**header, first: header[first] | {"dtype": "F31"}}),
        "another format of file": b"PK\x03\x04" * 100,
    }


@pytest.mark.parametrize("what", _broken(PATHS["gpt2"].read_bytes()))
def test_files_that_are_broken(what, tmp_path):
    path = tmp_path / "x.safetensors"
    path.write_bytes(_broken(PATHS["gpt2"].read_bytes())[what])
    with pytest.raises(weights.WeightsError, match="expected a safetensors file, received one"):
        weights.load(path, MODELS["gpt2"])


def test_no_file(tmp_path):
    with pytest.raises(weights.WeightsError, match=r"nothing\.safetensors: expected a safetens"):
        weights.load(tmp_path / "nothing.safetensors", LLAMA)


def test_a_write_that_fails_leaves_the_file_that_was_there(tmp_path, monkeypatch):
    path = tmp_path / "x.safetensors"
    params = weights.load(PATHS["llama"], LLAMA)
    weights.save(path, LLAMA, params)
    before = path.read_bytes()

    def full(descriptor):
        raise OSError("no space left on the device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="no space"):
        weights.save(path, LLAMA, jax.tree.map(jnp.zeros_like, params))
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]


def test_without_the_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'repjax\[models\]'"):
        weights.load(PATHS["llama"], LLAMA)
