"""Weights of language models in safetensors files, in the names of Hugging Face's.

What ``save_pretrained`` of Hugging Face's GPT2LMHeadModel and LlamaForCausalLM writes is read, and
what :func:`save` writes is read there.  Values are kept: those in float16 and bfloat16 become the
float32 numbers that they are.  The format needs the package ``safetensors``
(``pip install 'repjax[models]'``), which checks headers and executes nothing.
"""

from __future__ import annotations

import json
import os
import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any

import flax.traverse_util
import jax
import jax.numpy as jnp
import numpy as np

from repjax.files import replacing
from repjax.models.language import LanguageModel

_HEAD = "lm_head.weight"
_FORMATS = ("F32", "F16", "BF16")
_INDEX_BYTES = 1 << 26  # of the list of files; that of the largest models has some megabytes
_SHOWN = 5


class WeightsError(ValueError):
    """A file of weights that cannot be read as those of the model."""


def load(path: str | os.PathLike, model: LanguageModel) -> dict[str, Any]:
    """The variables of a model from a safetensors file.

    Args:
      path: a ``.safetensors`` file or, where the weights are in several, the
        ``.safetensors.index.json`` that names them, beside which they lie.
      model: the `GPT` or `Llama` whose weights they are.

    Returns:
      what ``model.init`` returns, with float32 arrays.

    Raises:
      WeightsError: no such file, or one of tensors that are missing, not expected, or of another
        shape or format; those are named.
      ModuleNotFoundError: the package ``safetensors`` is missing.
    """
    tied = _tied(model)
    expected = {name: (key, shape) for key, name, shape in _tensors(model)}
    stored = dict(_read(path))
    if not any(name.startswith(model.prefix) for name in stored):
        # Files of the model without its head, such as the published GPT-2, have no prefix.
        stored = {
            name if name == _HEAD else model.prefix + name: tensor
            for name, tensor in stored.items()
        }
    stored = {name: x for name, x in stored.items() if not name.endswith(model.buffers)}
    if tied is not None and _HEAD in stored:
        head, table = stored.pop(_HEAD), stored.get(tied)
        if table is not None and not (head.dtype == table.dtype and np.array_equal(head, table)):
            raise WeightsError(
                f"{path}: expected {_HEAD} to be {tied}, which the model's head shares, received "
                "another one; give the model a head of its own"
            )
    _check(path, expected, stored)
    params = {}
    for name, (key, _) in expected.items():
        tensor = stored[name].astype(np.float32)
        params[key] = jnp.asarray(tensor.T if _turned(model, key) else tensor)
    return {"params": flax.traverse_util.unflatten_dict(params)}


def save(path: str | os.PathLike, model: LanguageModel, params: Mapping[str, Any]) -> None:
    """Write the variables of a model to a safetensors file, completely or not at all.

    Args:
      path: the file, which is replaced in one step if there is one.
      model: the `GPT` or `Llama` whose variables they are.
      params: its variables, as ``model.init`` gives them.

    Raises:
      WeightsError: variables of another model.
      ModuleNotFoundError: the package ``safetensors`` is missing.
    """
    given = flax.traverse_util.flatten_dict(params["params"])
    tensors, expected = {}, {}
    for key, name, shape in _tensors(model):
        expected[name] = key, shape
        if key in given:
            tensor = np.asarray(given.pop(key))
            tensors[name] = np.ascontiguousarray(tensor.T if _turned(model, key) else tensor)
    _check("save", expected, tensors | {".".join(key): np.asarray(x) for key, x in given.items()})
    # Hugging Face's library reads files that say so only.
    data = _library().numpy.save(tensors, metadata={"format": "pt"})
    with replacing(path) as file:
        file.write(data)


def _tensors(model: LanguageModel) -> Iterator[tuple[tuple[str, ...], str, tuple[int, ...]]]:
    """Of each parameter: its place in the tree, its name in a file, its shape in a file."""
    shapes = jax.eval_shape(model.init, jax.random.key(0), jnp.zeros((1, 1), jnp.int32))
    for key, x in flax.traverse_util.flatten_dict(shapes["params"]).items():
        yield key, _name(model, key), x.shape[::-1] if _turned(model, key) else x.shape


def _name(model: LanguageModel, key: tuple[str, ...]) -> str:
    *modules, leaf = key
    name = ".".join(re.sub(r"^(h|layers)_(\d+)$", r"\1.\2", module) for module in modules)
    leaf = "bias" if leaf == "bias" else "weight"  # kernel, scale, embedding
    return f"{name}.{leaf}" if modules == ["lm_head"] else f"{model.prefix}{name}.{leaf}"


def _turned(model: LanguageModel, key: tuple[str, ...]) -> bool:
    return model.transposed and key[-1] == "kernel"


def _tied(model: LanguageModel) -> str | None:
    """The name of the table that the head shares, if it has none of its own."""
    names = {key[0]: name for key, name, _ in _tensors(model)}
    return None if "lm_head" in names else names.get("wte") or names["embed_tokens"]


def _check(path, expected: Mapping[str, Any], received: Mapping[str, np.ndarray]) -> None:
    def shown(shape) -> str:
        return "nothing" if shape is None else f"shape {tuple(shape)}"

    differing = []
    for name in sorted(expected.keys() | received.keys()):
        want = expected[name][1] if name in expected else None
        have = received[name].shape if name in received else None
        if want != have:
            differing.append(f"{name}: expected {shown(want)}, received {shown(have)}")
    if differing:
        more = f"; and {len(differing) - _SHOWN} more" if len(differing) > _SHOWN else ""
        raise WeightsError(
            f"{path}: expected the tensors of the model, received others "
            f"({'; '.join(differing[:_SHOWN])}{more}); make the model with the sizes of these "
            "weights"
        )


# --- files -----------------------------------------------------------------------------------


def _library() -> Any:
    try:
        import safetensors
        import safetensors.numpy
    except ModuleNotFoundError as error:
        raise ModuleNotFoundError(
            "repjax.models.weights: expected the package safetensors, received none; install it "
            "with pip install 'repjax[models]'"
        ) from error
    return safetensors


def _read(path: str | os.PathLike) -> Iterator[tuple[str, np.ndarray]]:
    path = pathlib.Path(path)
    for file in _listed(path) if path.suffix == ".json" else [path]:
        yield from _tensors_of(file)


def _listed(path: pathlib.Path) -> list[pathlib.Path]:
    """The files that an index names, each once, in order; all lie beside it."""
    try:
        if path.stat().st_size > _INDEX_BYTES:
            raise ValueError(f"more than {_INDEX_BYTES} bytes")
        names = sorted(set(json.loads(path.read_text())["weight_map"].values()))
        if outside := [name for name in names if pathlib.Path(name).name != name]:
            raise ValueError(f"the file {outside[0]!r}, which is not beside it")
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise WeightsError(
            f"{path}: expected an index of safetensors files with a weight_map, received one that "
            f"cannot be read ({error!r}); give the path of a whole one"
        ) from error
    return [path.parent / name for name in names]


def _tensors_of(path: pathlib.Path) -> Iterator[tuple[str, np.ndarray]]:
    library = _library()
    try:
        with library.safe_open(path, framework="np") as file:
            for name in sorted(file.keys()):
                if (stored := file.get_slice(name).get_dtype()) not in _FORMATS:
                    raise WeightsError(
                        f"{path}: expected tensors of {', '.join(_FORMATS)}, received {name} of "
                        f"{stored}; convert it to one of these"
                    )
                yield name, np.asarray(file.get_tensor(name))
    except (library.SafetensorError, OSError) as error:
        raise WeightsError(
            f"{path}: expected a safetensors file, received one that cannot be read ({error}); "
            "give the path of a whole one"
        ) from error
