"""A training as tools see it: logged step by step, and repeated from any of its steps.

Step n of a log holds the state after n steps, and the batch that the last one read; step 0 is the
initial state.  Checkpoints beside the log hold the state after every so many steps, so that the
state after any step costs a few steps more.
"""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from repjax import checkpoint
from repjax.digests import digest, show
from repjax.primitives.core.tables import RefusedError
from repjax.verify import runs, scripts, settings
from repjax.verify.progress import counter

CHECKPOINTS = "checkpoints"


class TrainingError(ValueError):
    """A training that is none, or that does not give what its log holds."""


@dataclasses.dataclass(frozen=True)
class Training:
    """A training.

    Attributes:
      state: a function of nothing that gives the initial state, a tree of arrays.
      step: ``step(state, batch)`` gives the next state.
      batch: ``batch(n)`` gives what step n reads, a tree of arrays; n counts from 0.
      steps: how many there are.

    Example::

        training = repjax.verify.Training(
            state=lambda: (params, optimizer.init(params)),
            step=repjax.reproducible(train_step),
            batch=lambda n: (images[32 * n :][:32], labels[32 * n :][:32]),
            steps=100,
        )
    """

    state: Callable[[], Any]
    step: Callable[[Any, Any], Any]
    batch: Callable[[int], Any]
    steps: int


def log(
    training: Training,
    path,
    *,
    every: int | None = None,
    metadata: Any = None,
    progress: Callable[[int], None] | None = None,
) -> Any:
    """Run a training and log it as a run directory (:mod:`repjax.verify.runs`).

    Args:
      training: what to run.
      path: the directory.
      every: steps between two checkpoints; the default is the square root of all, so that writing
        them and repeating steps cost about the same.
      metadata: for the log.
      progress: called with the number of steps so far.

    Returns:
      The final state.

    Raises:
      RunError: the directory cannot be written.
      TrainingError: ``every`` is no number of steps.
    """
    every = max(1, round(training.steps**0.5)) if every is None else every
    if every < 1:
        raise TrainingError(f"expected at least one step between checkpoints, received {every}")
    with runs.Run(path, metadata=metadata) as run:
        (run.path / CHECKPOINTS).mkdir()
        state = training.state()
        run.step(0, state=state)
        for n in range(training.steps):
            if n % every == 0:
                checkpoint.save(_checkpoint(run.path, n), state)
            batch = training.batch(n)
            state = training.step(state, batch)
            run.step(n + 1, state=state, batch=batch)
            if progress:
                progress(n + 1)
        run.finish(state)
    return state


def _checkpoint(path: pathlib.Path, n: int) -> pathlib.Path:
    return path / CHECKPOINTS / f"{n}.npz"


def checkpoints(path) -> dict[int, pathlib.Path]:
    """The files of a logged training that hold states, by the number of steps before them."""
    found = (pathlib.Path(path) / CHECKPOINTS).glob("*.npz")
    return {int(x.stem): x for x in sorted(found) if x.stem.isdecimal()}


def arrays_after(record: runs.Record, n: int) -> dict[str, np.ndarray]:
    """The arrays of the checkpoint after n steps, by their paths, as the log has them.

    Raises:
      TrainingError: the file holds others.
      CheckpointError: it is none, cut short or changed.
      OSError: it cannot be read.
    """
    path = _checkpoint(pathlib.Path(record.name), n)
    found = {show(p): x for p, x in checkpoint.load_leaves(path).items()}
    expected = record.steps.get(n, {}).get("state", {})
    if {p: digest(x) for p, x in found.items()} != runs.stored(expected):
        raise TrainingError(
            f"{path}: expected the arrays of step {n} of the log, received others; restore it from "
            "another copy"
        )
    return found


def state_after(
    training: Training, path, n: int, progress: Callable[[int], None] | None = None
) -> Any:
    """The state of a logged training after n steps, repeated from the last checkpoint before.

    ``progress`` is called with the number of the step that was repeated.

    Raises:
      TrainingError: the log has no such step, or the training does not give what it holds.
      CheckpointError: a checkpoint that was changed, or of another training.
    """
    record = runs.read(path)
    if n not in record.steps:
        raise TrainingError(f"{path}: expected a log with step {n}, received one without")
    known = checkpoints(path)
    state = training.state()
    first = max((k for k in known if k <= n), default=0)
    if known:
        state, _ = checkpoint.load(_checkpoint(pathlib.Path(path), first), state)
    for k in range(first, n + 1):
        if runs.digests(state) != record.steps[k]["state"]:
            raise TrainingError(
                f"{path}: expected the state of step {k} of the log, received another one; repeat "
                "it with the setting that the log was written with"
            )
        if k < n:
            state = training.step(state, training.batch(k))
            if progress:
                progress(k + 1)
    return state


def load(text: str) -> Training:
    """The training that ``script.py:name`` stands for.

    Raises:
      ScriptError, TrainingError: there is none.
    """
    found = scripts.load(text)
    if not isinstance(found, Training):
        raise TrainingError(
            f"{text}: expected a repjax.verify.Training, received {type(found).__name__}"
        )
    return found


def add_command(commands) -> None:
    parser = commands.add_parser(
        "log",
        help="run a training, and log each step",
        description="Run a repjax.verify.Training of a script, and log each step.",
        epilog="example: repjax log train.py:training --output runs/laptop",
    )
    parser.add_argument("training", metavar="SCRIPT:NAME", help="such as train.py:training")
    parser.add_argument("--output", metavar="RUN", required=True, help="a directory to write")
    parser.add_argument("--every", type=int, metavar="N", help="steps between two checkpoints")
    settings.add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings.enable(arguments)
        training = load(arguments.training)
        with counter(f"steps of {training.steps}") as progress:
            log(
                training,
                arguments.output,
                every=arguments.every,
                metadata={"training": arguments.training},
                progress=progress,
            )
    except (OSError, ValueError, RefusedError) as error:
        print(f"repjax log: {error}", file=sys.stderr)
        return 2
    return 0
