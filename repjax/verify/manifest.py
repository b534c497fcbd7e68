"""Manifests: what a training was made of, and the commitment to what it computed.

**Format 1.**  A manifest is an object of JSON:

==================  ================================================================================
name                what it holds
==================  ================================================================================
``format``          ``"repjax manifest"``
``version``         1
``created``         when it was made, in UTC
``contract``        the version of the contract (docs/numerics.md)
``versions``        of repjax, jax, jaxlib, flax, optax, numpy and python
``modules``         in the order in which they were imported: the user's modules, with ``module``,
                    ``file`` and ``sha256``, and installed ones by their ``distribution`` and its
                    ``version``, where the first of it was imported
``environment``     variables that JAX, XLA, CUDA, Python or repjax read
``machine``         system, architecture, processor and how many cores
``devices``         of JAX: ``platform``, ``kind`` and ``count``
``options``         of JAX and repjax that change programs
``seeds``           by name
``entropy``         the file that ``repjax record`` wrote, or null
``data``            files that the training reads
``code``            ``commit`` of git, and whether the working tree is ``dirty``, or null
``argv``            the command
``training``        ``script.py:name`` of a ``repjax.verify.Training``, or null
``metadata``        what the run was given
``run``             ``path``, the ``info`` of the process that logged it, and its final ``params``
``commitment``      ``root`` (:mod:`repjax.verify.commitments`); ``trees``, the names of those that
                    were logged; and ``steps``, the number, leaves and root of each
``seal``            the SHA-256 of the object without it, as JSON with sorted keys and no spaces
==================  ================================================================================

A file is its ``file``, ``size`` in bytes and ``sha256``.  Paths are relative to the folder in which
the manifest was made, where they lie in it.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import functools
import hashlib
import importlib.metadata
import json
import os
import pathlib
import platform
import subprocess
import sys
import sysconfig
import tempfile
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import numpy as np

from repjax import checkpoint, config
from repjax._version import __version__
from repjax.information import info, processor
from repjax.verify import bills, commitments, logs, runs, settings, training
from repjax.verify.progress import counter

FORMAT, VERSION = "repjax manifest", 1
MOST_BYTES = 1 << 30
#: Variables of the environment that change what is computed, or on what.
PREFIXES = ("XLA_", "JAX_", "REPJAX_", "CUDA_", "NCCL_", "OMP_", "MKL_", "OPENBLAS_")
VARIABLES = ("PYTHONHASHSEED", "LD_PRELOAD", "NVIDIA_TF32_OVERRIDE", "NVIDIA_VISIBLE_DEVICES", "TZ")
#: Options of JAX that change programs; a version that lacks one is noted by null.
OPTIONS = (
    *("jax_enable_x64", "jax_default_matmul_precision", "jax_default_prng_impl"),
    *("jax_threefry_partitionable", "jax_random_seed_offset", "jax_enable_custom_prng"),
    *("jax_high_dynamic_range_gumbel", "jax_legacy_prng_key", "jax_numpy_dtype_promotion"),
    *("jax_numpy_rank_promotion", "jax_softmax_custom_jvp", "jax_platforms", "jax_disable_jit"),
    *("jax_allow_f16_reductions", "jax_use_direct_linearize", "jax_num_cpu_devices"),
)
VERSIONS = ("repjax", "jax", "jaxlib", "flax", "optax", "python")
_FILE = {"file": str, "sha256": str}
#: What each field is: a type, one of several in a tuple, a list of some, or an object with some
#: names and values at least.
FIELDS: dict[str, Any] = {
    "format": str,
    "version": int,
    "created": str,
    "contract": str,
    "versions": {"repjax": str},
    "modules": [({"module": str, **_FILE}, {"distribution": str, "version": str})],
    "environment": {},
    "machine": {},
    "devices": [{"platform": str, "kind": str, "count": int}],
    "options": {"repjax_enable": bool, "repjax_accumulation": str, "repjax_contraction": str},
    "seeds": {},
    "entropy": (None, _FILE),
    "data": [_FILE],
    "code": (None, {"commit": str, "dirty": bool}),
    "argv": [str],
    "training": (None, str),
    "metadata": object,
    "run": (None, {"path": (None, str), "info": {}, "params": (None, _FILE)}),
    "commitment": (None, {"root": str, "trees": [str], "steps": [[(int, str)]]}),
    "seal": str,
}

Manifest = dict[str, Any]


class ManifestError(ValueError):
    """A manifest that cannot be made or read; no file was changed."""


# --- making one -------------------------------------------------------------------------


def make(
    run=None,
    *,
    training: str | None = None,
    data: Sequence[Any] = (),
    entropy=None,
    seeds: Mapping[str, int] | None = None,
    argv: Sequence[str] | None = None,
) -> Manifest:
    """The manifest of a training, made in the process that trained, or in one like it.

    Args:
      run: the directory of its run.
      training: ``script.py:name`` of a :class:`repjax.verify.Training`, which ``repjax verify``
        repeats.
      data: files that it reads.
      entropy: a file that ``repjax record`` wrote.
      seeds: by name.
      argv: the command; the default is that of this process.

    Raises:
      ManifestError: a file that is none; or a run that was logged with other versions than this
        process has.
      RunError: no run.
    """
    found = {
        "format": FORMAT,
        "version": VERSION,
        "created": _now(),
        "contract": info()["contract"],
        "versions": versions(),
        "modules": modules(),
        "environment": environment(),
        "machine": machine(),
        "devices": devices(),
        "options": options(),
        "seeds": dict(seeds or {}),
        "entropy": None if entropy is None else file(entropy),
        "data": [file(path) for path in data],
        "code": code(pathlib.Path(training.rpartition(":")[0]).parent if training else "."),
        "argv": [*(sys.argv if argv is None else argv)],
        "training": training,
        "metadata": None,
        "run": None,
        "commitment": None,
    }
    if run is not None:
        found |= _of_run(pathlib.Path(run), found["versions"])
    return sealed(found)


def _of_run(path: pathlib.Path, here: dict[str, str]) -> dict[str, Any]:
    record = runs.read(path)
    other = {
        name: record.about.get(name) for name in VERSIONS if record.about.get(name) != here[name]
    }
    if other:
        name, there = next(iter(other.items()))
        raise ManifestError(
            f"{path}: expected a run of this process's versions, {name} {here[name]}, received one "
            f"of {name} {there}; make its manifest with those"
        )
    if not record.steps:
        raise ManifestError(f"{path}: expected a run with steps, received one without")
    whole = commitments.Commitment.of_steps(record.steps)
    params = path / runs.PARAMS
    return {
        "metadata": record.metadata,
        "run": {
            "path": _shown(path),
            "info": record.about,
            "params": file(params) if params.is_file() else None,
        },
        "commitment": {
            "root": str(whole),
            "trees": sorted({name for trees in record.steps.values() for name in trees}),
            "steps": [[x.number, x.leaves, x.root.hex()] for x in whole.steps],
        },
    }


def _now() -> str:
    """The time, or what SOURCE_DATE_EPOCH says, for a manifest that has to be the same again."""
    seconds = os.environ.get("SOURCE_DATE_EPOCH")
    utc = datetime.UTC
    now = (
        datetime.datetime.fromtimestamp(int(seconds), utc)
        if seconds
        else datetime.datetime.now(utc)
    )
    return now.strftime("%Y-%m-%dT%H:%M:%SZ")


def versions() -> dict[str, str]:
    found = info()
    return {name: found[name] for name in VERSIONS} | {"numpy": np.__version__}


def environment() -> dict[str, str]:
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name.startswith(PREFIXES) or name in VARIABLES
    }


def machine() -> dict[str, Any]:
    return {
        "system": platform.system(),
        "architecture": platform.machine(),
        "processor": processor(),
        "cores": os.cpu_count(),
    }


def devices() -> list[dict[str, Any]]:
    kinds = [(x.platform, x.device_kind) for x in jax.devices()]
    return [
        {"platform": platform, "kind": kind, "count": kinds.count((platform, kind))}
        for platform, kind in sorted(set(kinds))
    ]


def options() -> dict[str, Any]:
    found = {name: getattr(jax.config, name, None) for name in OPTIONS}
    about = info()
    orders = {k: about[k] for k in ("repjax_accumulation", "repjax_contraction")}
    simple = (bool, int, str, type(None))
    return {
        **{k: v if isinstance(v, simple) else str(v) for k, v in found.items()},
        "repjax_enable": config.is_enabled(),
        **orders,
    }


def modules() -> list[dict[str, str]]:
    """The modules of this process in the order in which they were imported."""
    installed = importlib.metadata.packages_distributions()
    found: list[dict[str, str]] = []
    seen: set[str] = set()
    for name, module in list(sys.modules.items()):
        top = name.partition(".")[0]
        for distribution in ["repjax"] if top == "repjax" else installed.get(top, []):
            if distribution not in seen:
                seen.add(distribution)
                version = (  # repjax may be a source tree that is not installed
                    __version__ if top == "repjax" else importlib.metadata.version(distribution)
                )
                found.append({"distribution": distribution, "version": version})
        path = getattr(module, "__file__", None)
        if top == "repjax" or top in installed or not path or not _is_of_the_user(path):
            continue
        if path not in seen:
            seen.add(path)
            found.append({"module": name, **_without_size(file(path))})
    return found


def _without_size(x: dict[str, Any]) -> dict[str, Any]:
    return {k: v for k, v in x.items() if k != "size"}


@functools.cache
def _folders() -> tuple[pathlib.Path, ...]:
    """Where Python and what is installed are, and repjax."""
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    found = [sysconfig.get_path(name) for name in names]
    here = pathlib.Path(__file__).resolve().parents[1]
    return (here, *(pathlib.Path(x).resolve() for x in found))


def _is_of_the_user(path: str) -> bool:
    resolved = pathlib.Path(path).resolve()
    return resolved.is_file() and not any(resolved.is_relative_to(x) for x in _folders())


def file(path) -> dict[str, Any]:
    """The path, size and SHA-256 of a file.

    Raises:
      ManifestError: it is none.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ManifestError(f"expected a file, received {path}, which is none")
    with open(path, "rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"file": _shown(path), "size": path.stat().st_size, "sha256": found}


def _shown(path: pathlib.Path) -> str:
    resolved, here = path.resolve(), pathlib.Path.cwd()
    return str(resolved.relative_to(here) if resolved.is_relative_to(here) else resolved)


def code(folder) -> dict[str, Any] | None:
    """The commit of git that a folder is at, and whether it holds other files than that."""

    def git(*arguments: str) -> str:
        command = ["git", "-C", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        return {"commit": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))}
    except (OSError, subprocess.CalledProcessError):
        return None


# --- reading and writing ----------------------------------------------------------------


def _seal(manifest: Mapping[str, Any]) -> str:
    rest = {k: v for k, v in manifest.items() if k != "seal"}
    text = json.dumps(rest, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def sealed(manifest: Mapping[str, Any]) -> Manifest:
    """A manifest with its seal.

    Raises:
      ManifestError: JSON does not hold it without loss.
    """
    try:
        return {**manifest, "seal": _seal(manifest)}
    except (TypeError, ValueError) as error:
        raise ManifestError(f"expected what JSON holds without loss, received {error}") from error


def write(path, content: Mapping[str, Any]) -> None:
    """Write a manifest, or what is exported of one, completely or not at all."""
    text = json.dumps(content, indent=1, allow_nan=False) + "\n"
    with checkpoint.replacing(path) as opened:
        opened.write(text.encode())


def _is(x: Any, kind: Any) -> bool:
    """Whether a value is of a kind of :data:`FIELDS`."""
    match kind:
        case None:
            return x is None
        case tuple():
            return any(_is(x, one) for one in kind)
        case list():
            return isinstance(x, list) and all(_is(y, kind[0]) for y in x)
        case dict():
            return isinstance(x, dict) and all(k in x and _is(x[k], v) for k, v in kind.items())
        case _:
            return isinstance(x, kind)


def read(path) -> Manifest:
    """Read a manifest.

    Raises:
      ManifestError: no manifest, one of another version, or one that was changed.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise ManifestError(f"expected a manifest, received {path}, which is no file")
    if path.stat().st_size > MOST_BYTES:
        raise ManifestError(f"{path}: expected at most {MOST_BYTES} bytes")
    try:
        found = json.loads(path.read_bytes())
        if logs.depth(found) > logs.MOST_DEPTH:
            raise ValueError("nested too deeply")
    except (ValueError, RecursionError) as error:
        raise ManifestError(f"{path}: expected a manifest, received no JSON ({error})") from error
    kind = (found.get("format"), found.get("version")) if isinstance(found, dict) else (None, None)
    if kind != (FORMAT, VERSION):
        raise ManifestError(
            f"{path}: expected {FORMAT}, version {VERSION}, received {kind[0]!r}, version "
            f"{kind[1]!r}; read it with the release that wrote it"
        )
    if found.get("seal") != _seal(found):
        raise ManifestError(
            f"{path}: expected the seal {_seal(found)}, received {found.get('seal')}: it was "
            "changed after it was written; restore it from another copy"
        )
    try:
        if found.keys() != FIELDS.keys():
            raise ValueError(", ".join(sorted(found.keys() ^ FIELDS.keys())))
        if wrong := [name for name, kind in FIELDS.items() if not _is(found[name], kind)]:
            raise ValueError(", ".join(wrong))
        if (commitment := found["commitment"]) is not None:
            whole = commitments.Commitment(
                tuple(commitments.Step(n, k, bytes.fromhex(x)) for n, k, x in commitment["steps"])
            )
            if str(whole) != commitment["root"]:
                raise ValueError("a commitment that is not to its steps")
    except (KeyError, TypeError, ValueError) as error:
        raise ManifestError(
            f"{path}: expected the fields of a manifest, received others ({error})"
        ) from error
    return found


# --- the command ------------------------------------------------------------------------


def add_command(commands) -> None:
    parser = commands.add_parser(
        "manifest",
        help="say what a training was made of, and commit to what it computed",
        description="Write the manifest of a run that repjax log wrote, or of a "
        "repjax.verify.Training, which is run and logged first; or export a manifest as SPDX 3.0 "
        "(AI profile) or CycloneDX (ML-BOM).",
        epilog="example: repjax manifest runs/laptop --data digits.npz --output manifest.json",
    )
    parser.add_argument("source", metavar="RUN", help="a run, SCRIPT:NAME, or a manifest")
    parser.add_argument("--output", metavar="FILE", required=True)
    parser.add_argument("--format", choices=("json", *bills.FORMATS), default="json")
    parser.add_argument("--training", metavar="SCRIPT:NAME", help="of a run, if it does not say it")
    parser.add_argument("--run", dest="log_to", metavar="DIR", help="of SCRIPT:NAME: log it there")
    parser.add_argument("--data", nargs="+", default=[], metavar="FILE", help="that it reads")
    parser.add_argument("--entropy", metavar="FILE", help="that repjax record wrote")
    parser.add_argument("--seed", nargs="+", default=[], metavar="NAME=N", help="seeds, by name")
    settings.add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings.enable(arguments)
        found = _found(arguments)
        if arguments.format != "json":
            found = bills.FORMATS[arguments.format](found)
        write(arguments.output, found)
    except (OSError, ValueError) as error:
        print(f"repjax manifest: {error}", file=sys.stderr)
        return 2
    return 0


def _found(arguments) -> Manifest:
    source = pathlib.Path(arguments.source)
    given: dict[str, Any] = {
        "data": arguments.data,
        "entropy": arguments.entropy,
        "seeds": dict(map(_seed, arguments.seed)),
    }
    if source.is_file():
        if any(given.values()) or arguments.training or arguments.log_to:
            raise ManifestError(f"{source}: expected no other options for a manifest that is there")
        return read(source)
    given["argv"] = ["repjax", *sys.argv[1:]]
    if source.is_dir():
        metadata = runs.read(source).metadata
        text = arguments.training
        if text is None and isinstance(metadata, dict):
            text = metadata.get("training")
        if text is not None:
            training.load(text)  # its modules are those of the manifest
        return make(source, training=text, **given)
    loaded = training.load(arguments.source)
    with contextlib.ExitStack() as stack:
        folder = arguments.log_to
        if folder is None:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory())) / "run"
        progress = stack.enter_context(counter(f"steps of {loaded.steps}"))
        about = {"training": arguments.source}
        training.log(loaded, folder, metadata=about, progress=progress)
        found = make(folder, training=arguments.source, **given)
    if arguments.log_to is None:
        found["run"] |= {"path": None, "params": None}  # which are gone
    return sealed(found)


def _seed(text: str) -> tuple[str, int]:
    name, _, value = text.partition("=")
    if not name or not value.lstrip("-").isdecimal():
        raise ManifestError(f"expected NAME=N, received {text}")
    return name, int(value)
