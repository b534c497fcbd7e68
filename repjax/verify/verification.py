"""Verifying a manifest: its files are there, and the training gives what it commits to."""

from __future__ import annotations

import argparse
import dataclasses
import pathlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

import jax

from repjax.verify import commitments, runs, training
from repjax.verify import manifest as manifests
from repjax.verify.manifest import Manifest, ManifestError
from repjax.verify.progress import counter
from repjax.verify.training import Training, TrainingError

#: Trees of a step that a training is repeated with.
TREES = {"state", "batch"}
SHOWN = 4  # leaves of a step that are named


@dataclasses.dataclass(frozen=True)
class Verification:
    """What was found.

    Attributes:
      notes: what is other than when the manifest was made, and has no part in the bits.
      files: data and code that are not those of the manifest.
      step: the first one that differs, or None.
      leaves: in it, ``TREE: PATH`` of those that differ, as far as a run names them.
      steps: how many were compared.
    """

    notes: list[str]
    files: list[str]
    step: int | None
    leaves: list[str]
    steps: int

    @property
    def same(self) -> bool:
        return not self.files and self.step is None

    def __str__(self) -> str:
        lines = [*(f"note: {note}" for note in self.notes), *self.files]
        if self.step is None:
            return "\n".join([*lines, f"{self.steps} steps are those of the manifest"])
        leaves = ", ".join(self.leaves[:SHOWN]) or "give --run RUN to name the leaves"
        if len(self.leaves) > SHOWN:
            leaves += f" and {len(self.leaves) - SHOWN} more"
        return "\n".join([*lines, f"the first that differs is step {self.step}: {leaves}"])


def files(manifest: Manifest) -> list[str]:
    """What is other about the files of a manifest.

    Raises:
      ManifestError: one is not there.
    """
    found = []
    modules = [x for x in manifest["modules"] if "module" in x]
    entropy = [manifest["entropy"]] if manifest["entropy"] else []
    for kind, known in (("data", manifest["data"]), ("code", modules), ("entropy", entropy)):
        for expected in known:
            received = manifests.file(expected["file"])["sha256"]
            if received != expected["sha256"]:
                found.append(
                    f"{kind} differs: {expected['file']} has the SHA-256 {received[:16]}..., the "
                    f"manifest {expected['sha256'][:16]}..."
                )
    return found


def notes(manifest: Manifest) -> list[str]:
    """What else is other here."""
    here = {
        "versions": manifests.versions(),
        "options": manifests.options(),
        "environment": manifests.environment(),
        "machine": manifests.machine(),
    }
    found = []
    for part, values in here.items():
        there = manifest[part]
        for name in sorted({*values, *there}):
            if values.get(name) != there.get(name):
                found.append(f"{name} is {values.get(name)}, in the manifest {there.get(name)}")
    return found


def verify(
    manifest: Manifest,
    found: Training,
    *,
    run=None,
    first: int = 0,
    last: int | None = None,
    progress: Callable[[int], None] = lambda count: None,
) -> Verification:
    """Repeat a training, and compare each step with a manifest.

    Args:
      manifest: with a commitment.
      found: the training.
      run: the directory of its run, to name leaves, and for its checkpoints.
      first: repeats what comes after this step, from the checkpoints of the run.
      last: the last step to compare; the default is the last one of all.
      progress: called with the number of steps so far.

    Raises:
      ManifestError: no commitment, one of other trees, steps that it has not, or a run that it is
        not of.
      RunError, TrainingError: the run cannot be read, or does not lead to its own steps.
    """
    known = _known(manifest)
    end = max(known) if last is None else last
    if not 0 <= first <= end <= max(known):
        raise ManifestError(f"expected steps from 0 to {max(known)}, received {first} to {end}")
    if found.steps < end:
        raise TrainingError(f"expected a training of {end} steps, received one of {found.steps}")
    record = None if run is None else _of(manifest, run)
    if first and record is None:
        raise ManifestError(f"step {first}: expected --run RUN, the run of the manifest")
    state = training.state_after(found, run, first) if first else found.state()
    trees: dict[str, Any] = {"state": runs.digests(state)}
    said = [notes(manifest), files(manifest)]
    for n in range(first, end + 1):
        if n > first:
            batch = found.batch(n - 1)
            state = found.step(state, batch)
            trees = {"state": runs.digests(state), "batch": runs.digests(batch)}
        # A state that a checkpoint gave was compared with the run, and has no batch with it.
        if (n > first or n == 0) and n in known and commitments.step(n, trees) != known[n]:
            return Verification(*said, n, _leaves(record, n, trees), n - first)
        progress(n - first)
    return Verification(*said, None, [], end - first)


def against(manifest: Manifest, other, run=None) -> Verification:
    """Compare a second run with a manifest, step by step; errors as in :func:`verify`."""
    known = _known(manifest, None)
    record = None if run is None else _of(manifest, run)
    steps = runs.read(other).steps
    said: list[list[str]] = [[], files(manifest)]  # this process is not the one that ran it
    for i, n in enumerate(sorted(known.keys() | steps.keys())):
        if n not in steps or n not in known:
            return Verification(*said, n, ["it is not in both"], i)
        if commitments.step(n, steps[n]) != known[n]:
            return Verification(*said, n, _leaves(record, n, steps[n]), i)
    return Verification(*said, None, [], len(known))


def _known(manifest: Manifest, trees: set[str] | None = TREES) -> dict[int, commitments.Step]:
    commitment = manifest["commitment"]
    if commitment is None:
        raise ManifestError("expected a manifest with a commitment, received one without")
    if trees is not None and not {*commitment["trees"]} <= trees:
        raise ManifestError(
            f"expected the trees {' and '.join(sorted(trees))}, as repjax log has them, received "
            f"{', '.join(commitment['trees'])}; run the training again, and give its run as "
            "--against RUN"
        )
    return {n: commitments.Step(n, k, bytes.fromhex(x)) for n, k, x in commitment["steps"]}


def _of(manifest: Manifest, run) -> runs.Record:
    """The run of a manifest."""
    record = runs.read(run)
    root = str(commitments.Commitment.of_steps(record.steps)) if record.steps else "no steps"
    if root != manifest["commitment"]["root"]:
        raise ManifestError(
            f"{run}: expected the run of the commitment {manifest['commitment']['root']}, received "
            f"one of {root}"
        )
    return record


def _leaves(
    record: runs.Record | None, n: int, trees: Mapping[str, Mapping[str, str]]
) -> list[str]:
    """The leaves of step n that are not those of the run."""
    if record is None:
        return []
    sides = [
        {(name, path): digest for name, path, digest in commitments.leaves(x)}
        for x in (record.steps[n], trees)
    ]
    both = sorted({*sides[0], *sides[1]})
    return [f"{x[0]}: {x[1]}" for x in both if sides[0].get(x) != sides[1].get(x)]


# --- the command ------------------------------------------------------------------------


def add_command(commands) -> None:
    parser = commands.add_parser(
        "verify",
        help="does a training give what a manifest commits to?",
        description="Compare data and code with those of a manifest, run its training again, or "
        "from a checkpoint of its run, and compare each step.  Exit status: 0 all is the same, 1 "
        "data, code or a step differs, 2 the request cannot be met.  Versions, machine and options "
        "that differ are noted.",
        epilog="example: repjax verify manifest.json --steps 500:600",
    )
    parser.add_argument("manifest", metavar="MANIFEST")
    parser.add_argument("--training", metavar="SCRIPT:NAME", help="instead of the manifest's")
    parser.add_argument("--run", dest="run_of", metavar="RUN", help="that the manifest is of")
    parser.add_argument("--from-step", type=int, metavar="N", help="from a checkpoint of the run")
    parser.add_argument("--steps", metavar="A:B", help="from A, from a checkpoint, to B")
    parser.add_argument("--against", metavar="RUN", help="a second run; nothing is run again")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        found = _found(arguments)
    except (OSError, ValueError) as error:
        print(f"repjax verify: {error}", file=sys.stderr)
        return 2
    print(found)
    return 0 if found.same else 1


def _found(arguments) -> Verification:
    found = manifests.read(arguments.manifest)
    where = arguments.run_of
    known = found["run"] and found["run"]["path"]
    if where is None and known and pathlib.Path(known).is_dir():
        where = known
    if arguments.against:
        return against(found, arguments.against, where)
    first, last = _steps(arguments)
    text = arguments.training or found["training"]
    if text is None:
        raise ManifestError(
            f"{arguments.manifest}: expected a manifest with a training, received one without; "
            "give --training SCRIPT:NAME, or a second run as --against RUN"
        )
    _enable(found)
    loaded = training.load(text)
    with counter(f"steps of {loaded.steps}") as progress:
        return verify(found, loaded, run=where, first=first, last=last, progress=progress)


def _steps(arguments) -> tuple[int, int | None]:
    if arguments.steps is None:
        return arguments.from_step or 0, None
    first, colon, last = arguments.steps.partition(":")
    if arguments.from_step is not None or not (first.isdecimal() and colon and last.isdecimal()):
        raise ManifestError(f"expected --steps A:B or --from-step N, received {arguments.steps}")
    return int(first), int(last)


def _enable(found: Manifest) -> None:
    """The switch and the orders as they were when the run was logged, or the manifest made."""
    there = found["options"] | (found["run"]["info"] if found["run"] else {})
    for name in ("repjax_accumulation", "repjax_contraction"):
        jax.config.update(name, there[name])
    if str(there["repjax_enable"]) == "True":
        jax.config.update("repjax_enable", True)
