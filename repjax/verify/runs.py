"""Run directories: what a training did, step by step, as digests and exact numbers.

A run is a directory with a log and, beside it, arrays::

    log.jsonl              the records, one a line
    evaluation-0.npz       labels, predictions and logits of the first evaluation, and so on
    params.npz             the final parameters

**Format 1.**  The log is a sealed log (:mod:`repjax.verify.logs`).  Its first record says what the
directory is; further kinds of records are ``step``, ``epoch``, ``evaluation`` and ``finish``.  The
arrays are checkpoints (:mod:`repjax.checkpoint`), whose digests stand in the log.

A line is written after the arrays that it names.  A run that is resumed writes over a line that was
cut short.  ``finish`` waits until all of it is on the disk.

**Numbers** are stored as their bits: ``{"dtype": "float32", "bits": "3dcccccd"}``.  The digest of a
tree is the SHA-256 of one line ``path digest`` for each leaf, in the order of their paths, and that
of a leaf is :func:`repjax.digest` of the leaf alone.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import hashlib
import os
import pathlib
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from repjax import checkpoint
from repjax.digests import digest, digest_alone, hexadecimal, leaves, show
from repjax.information import info
from repjax.verify import logs

FORMAT, VERSION = "repjax run", 1
LOG, PARAMS = "log.jsonl", "params.npz"
MOST_WAITING = 2  # steps that a run in the background has yet to write


#: Options of JAX and variables of the environment that may change bits.
_OPTIONS = (
    "jax_enable_x64",
    "jax_default_matmul_precision",
    "jax_default_prng_impl",
    "jax_threefry_partitionable",
    "jax_numpy_dtype_promotion",
)
_VARIABLES = ("XLA_FLAGS", "REPJAX_NATIVE", "PYTHONHASHSEED")


class RunError(ValueError):
    """A run that cannot be written or read; no file was changed."""


@dataclasses.dataclass(frozen=True)
class Number:
    """One number as its bits."""

    dtype: str
    bits: str

    @classmethod
    def of(cls, name: str, x) -> Number:
        """The bits of a scalar: a Python number, a NumPy one, or an array of one element."""
        found = leaves([x])
        if len(found) != 1 or found[0].array is None or found[0].array.size != 1:
            raise TypeError(f"Run: expected {name} to be one number, received {type(x).__name__}")
        array = found[0].array.reshape(())
        unsigned = np.dtype(f"u{array.dtype.itemsize}")
        if array.dtype.kind == "c":
            raise TypeError(f"Run: expected {name} to be a real number, received {array.dtype}")
        return cls(found[0].dtype, f"{int(array.view(unsigned)):0{2 * unsigned.itemsize}x}")

    @property
    def array(self) -> np.ndarray:
        """Of shape () and its type."""
        dtype = _dtype(self.dtype)
        return np.asarray(int(self.bits, 16), f"u{dtype.itemsize}").view(dtype)

    @property
    def value(self) -> float | int | bool:
        array = self.array
        with np.errstate(all="ignore"):  # signalling NaNs
            return array.astype(np.float64).item() if array.dtype.isbuiltin == 2 else array.item()

    def __str__(self) -> str:
        value = self.value
        return hexadecimal(value) if isinstance(value, float) else str(value)


def _dtype(name: str) -> np.dtype:
    import ml_dtypes  # a dependency of jax: bfloat16 and its like

    return np.dtype(getattr(ml_dtypes, name, name))


Tree = dict[str, str]  # digests of leaves by path


def tree_digest(tree: Tree) -> str:
    """The digest of a tree whose leaves have these digests."""
    lines = "".join(f"{path} {tree[path]}\n" for path in sorted(tree))
    return f"sha256:{hashlib.sha256(lines.encode()).hexdigest()}"


def digests(tree) -> Tree:
    return {show(leaf.path): digest_alone(leaf.array) for leaf in leaves(tree)}


def stored(tree: Tree) -> Tree:
    """The digests of leaves that a file has arrays of: all except those that are None."""
    return {path: x for path, x in tree.items() if x != digest(None)}


def _settings() -> dict[str, str]:
    """What runs here, for the first record: all of it as text."""
    found = info() | {name: getattr(jax.config, name) for name in _OPTIONS}
    found |= {name: os.environ.get(name, "not set") for name in _VARIABLES}
    return {name: str(x) for name, x in found.items()}


# --- writing ----------------------------------------------------------------------------


class Run:
    """A run directory that is being written.

    Args:
      path: the directory, which must not exist, or be empty.
      resume: goes on with a run that was interrupted.  What is logged again, up to where the run
        was interrupted, has to be what it was.
      metadata: what JSON holds without loss, such as the hyperparameters.
      background: takes the digests of steps in a thread while the training goes on, up to two steps
        behind.  What they find wrong is raised by the next call.  Steps that are logged must not
        donate their arrays to the next one, and a process that is killed loses those two steps.

    Use it as a context manager, or call :meth:`close`::

        with repjax.verify.Run("runs/first") as run:
            for n, batch in enumerate(batches):
                state = train_step(state, batch)
                run.step(n, params=state.params, batch=batch)
            run.epoch(loss, accuracy=accuracy)
            run.evaluate(labels, predictions)
            run.finish(state.params)

    Raises:
      RunError: the directory holds something else, is a run and ``resume`` is not given, or is
        finished; a step does not follow the last one; or, when resumed, other bits than before.
      TypeError: a leaf that :func:`repjax.digest` refuses, or a loss that is no number.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        resume: bool = False,
        metadata: Any = None,
        background: bool = False,
    ):
        self.path: pathlib.Path = pathlib.Path(path)
        self._thread = concurrent.futures.ThreadPoolExecutor(1) if background else None
        self._waiting: collections.deque[concurrent.futures.Future] = collections.deque()
        self._failed = False
        self._again: list[dict[str, Any]] = []  # records that a resumed run has to repeat
        self._steps = -1
        self._epochs = self._evaluations = 0
        self._finished = False
        log = self.path / LOG
        if log.exists():
            if not resume:
                raise RunError(
                    f"{self.path}: expected no run, received one; choose another directory, or "
                    "give resume=True to go on with it"
                )
            found = _read(log)
            if found.records and found.records[-1]["kind"] == "finish":
                raise RunError(
                    f"{self.path}: expected a run to go on with, received a finished one"
                )
            self._file = open(log, "r+b", buffering=0)  # noqa: SIM115
            self._file.truncate(found.size)
            self._file.seek(found.size)
            self._log = logs.Writer(self._file, found.seal)
            self._again = found.records[1:]
            return
        self.path.mkdir(parents=True, exist_ok=True)
        if any(self.path.iterdir()):
            raise RunError(f"{self.path}: expected no files, received a directory with some")
        about = {"format": FORMAT, "version": VERSION, "metadata": metadata}
        first = {"kind": "run", **about, "info": _settings()}
        try:
            logs.as_json(first)  # or nothing is begun
        except logs.LogError as error:
            raise RunError(f"Run: metadata: {error}") from error
        self._file = open(log, "xb", buffering=0)  # noqa: SIM115
        self._log = logs.Writer(self._file)
        self._log.write(first)

    def __enter__(self) -> Run:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        try:
            self.close()
        except RunError:
            if kind is None:  # else what was wrong first is raised
                raise

    def close(self) -> None:
        """Close the log.  Without :meth:`finish` the run counts as interrupted."""
        try:
            self._wait()
        finally:
            if self._thread:
                self._thread.shutdown()
            self._file.close()

    def step(self, n: int, **trees: Any) -> None:
        """Log the digests of trees after step n: ``params``, ``batch``, ``key`` and so on."""
        if type(n) is not int or n <= self._steps:
            raise RunError(f"Run.step: expected a step after {self._steps}, received {n!r}")
        if self._thread is None:
            self._write_step(n, trees)
        else:
            self._wait(MOST_WAITING - 1)
            held = jax.tree.map(lambda x: x.copy() if isinstance(x, np.ndarray) else x, trees)
            self._waiting.append(self._thread.submit(self._write_later, n, held))
        self._steps = n

    def _write_step(self, n: int, trees: dict[str, Any]) -> None:
        found = {name: digests(tree) for name, tree in trees.items()}
        self._write({"kind": "step", "step": n, "trees": found})

    def _write_later(self, n: int, trees: dict[str, Any]) -> None:
        if self._failed:
            raise RunError(f"{self.path}: expected the steps before step {n}, one was not written")
        try:
            self._write_step(n, trees)
        except BaseException:
            self._failed = True  # and no step without those before it
            raise

    def _wait(self, most: int = 0) -> None:
        """Until at most so many steps have yet to be written."""
        while len(self._waiting) > most:
            self._waiting.popleft().result()

    def epoch(self, loss: Any, **metrics: Any) -> None:
        """Log the loss of the next epoch, and other numbers."""
        numbers = {name: dataclasses.asdict(Number.of(name, x)) for name, x in metrics.items()}
        loss = dataclasses.asdict(Number.of("the loss", loss))
        self._add({"kind": "epoch", "epoch": self._epochs, "loss": loss, "metrics": numbers})
        self._epochs += 1

    def evaluate(self, labels: Any, predictions: Any, logits: Any = None) -> None:
        """Keep what a model predicts on test data, for classes as integers, else as floats."""
        arrays = {"labels": np.asarray(labels), "predictions": np.asarray(predictions)}
        if arrays["labels"].shape != arrays["predictions"].shape or arrays["labels"].ndim != 1:
            shapes = [x.shape for x in arrays.values()]
            raise RunError(
                "Run.evaluate: expected labels and predictions of one shape (n,), received "
                f"{shapes}"
            )
        if logits is not None:
            arrays["logits"] = np.asarray(logits)
            if arrays["logits"].shape[:1] != arrays["labels"].shape:
                raise RunError(
                    f"Run.evaluate: expected logits of shape ({len(arrays['labels'])}, ...), "
                    f"received {arrays['logits'].shape}"
                )
        self._keep("evaluation", f"evaluation-{self._evaluations}.npz", arrays)
        self._evaluations += 1

    def finish(self, params: Any) -> None:
        """Keep the final parameters, and wait until all of the run is on the disk."""
        self._keep("finish", PARAMS, params)
        os.fsync(self._file.fileno())
        self._finished = True
        self.close()

    def _keep(self, kind: str, name: str, tree) -> None:
        self._wait()
        found = digests(tree)
        record = {"kind": kind, "file": name, "digest": tree_digest(found), "leaves": found}
        if not self._again:
            checkpoint.save(self.path / name, tree)
        self._add(record)

    def _add(self, record: dict[str, Any]) -> None:
        self._wait()
        self._write(record)

    def _write(self, record: dict[str, Any]) -> None:
        if not self._again:
            self._log.write(record)
            return
        expected = self._again.pop(0)
        if record != expected:
            self._again.insert(0, expected)
            raise RunError(
                f"{self.path}: expected to repeat {_name(expected)} of the run that was "
                f"interrupted, received {_name(record)} {_difference(expected, record)}"
            )


def _name(record) -> str:
    number = record.get("step", record.get("epoch", record.get("file", "")))
    return f"{record['kind']} {number}".strip()


def _difference(expected, received) -> str:
    if _name(expected) != _name(received):
        return "in its place; resume from the checkpoint of the last logged step, or an earlier one"
    return "with other bits; compare the two settings, or log the second run elsewhere"


# --- reading ----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Epoch:
    loss: Number
    metrics: dict[str, Number]


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """Arrays by name; None are those of a format that does not have them.

    ``accuracies`` are those that the source states, if it has no labels: overall (under None) and
    of classes, as texts of numbers.
    """

    labels: np.ndarray | None
    predictions: np.ndarray
    logits: np.ndarray | None = None
    accuracies: dict[str | None, str] = dataclasses.field(default_factory=dict)


@dataclasses.dataclass(frozen=True)
class Record:
    """A run that was read.

    Attributes:
      name: where it comes from.
      about: the versions and settings of the process that wrote it.
      metadata: what its writer was given.
      steps: by their numbers, trees of digests by name.
      epochs, evaluations: in their order.
      params: the final parameters by path, or None.
      is_finished: whether it came to its end.
    """

    name: str
    about: dict[str, str] = dataclasses.field(default_factory=dict)
    metadata: Any = None
    steps: dict[int, dict[str, Tree]] = dataclasses.field(default_factory=dict)
    epochs: list[Epoch] = dataclasses.field(default_factory=list)
    evaluations: list[Evaluation] = dataclasses.field(default_factory=list)
    params: dict[str, np.ndarray] | None = None
    is_finished: bool = False


def read(path: str | os.PathLike[str], progress: Callable[[int], None] | None = None) -> Record:
    """Read a run directory.

    Args:
      path: the directory.
      progress: called with the number of records so far.

    Raises:
      RunError: no run, one of another version, or a log or an array that was changed.
    """
    path = pathlib.Path(path)
    log = path / LOG
    if not log.is_file():
        raise RunError(f"{path}: expected a run directory, received nothing with a {LOG} in it")
    records = _read(log, progress).records
    if not records:
        raise RunError(f"{path}: expected a run, received a log without a whole line")
    try:
        return _record(path, records)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, RunError | checkpoint.CheckpointError):
            raise
        raise RunError(
            f"{log}: expected the records of a run, received others ({error!r})"
        ) from error


def _record(path: pathlib.Path, records) -> Record:
    first = records[0]
    about = first["info"], first["metadata"]
    found = Record(str(path), *about, is_finished=records[-1]["kind"] == "finish")
    params = None
    for record in records[1:]:
        kind = record["kind"]
        if kind == "step":
            found.steps[record["step"]] = record["trees"]
        elif kind == "epoch":
            metrics = {name: Number(**x) for name, x in record["metrics"].items()}
            found.epochs.append(Epoch(Number(**record["loss"]), metrics))
        elif kind == "evaluation":
            arrays = _arrays(path, record)
            found.evaluations.append(
                Evaluation(arrays["labels"], arrays["predictions"], arrays.get("logits"))
            )
        elif kind == "finish":
            params = _arrays(path, record)
        else:
            raise RunError(f"{path}: expected records of version {VERSION}, received {kind!r}")
    return dataclasses.replace(found, params=params)


def _arrays(path: pathlib.Path, record) -> dict[str, np.ndarray]:
    name = record["file"]
    if pathlib.PurePath(name).name != name:
        raise RunError(f"{path}: expected files beside the log, received {name!r}")
    try:
        found = {show(p): x for p, x in checkpoint.load_leaves(path / name).items()}
    except OSError as error:
        raise RunError(f"{path}: expected the file {name} of the log, received {error}") from error
    if {p: digest(x) for p, x in found.items()} != stored(record["leaves"]):
        raise RunError(f"{path / name}: expected the arrays of the log, received others")
    return found


def _read(log: pathlib.Path, progress: Callable[[int], None] | None = None) -> logs.Log:
    try:
        return logs.read(log, FORMAT, VERSION, progress)
    except logs.LogError as error:
        raise RunError(str(error)) from error
