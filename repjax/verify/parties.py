"""A party to a dispute: it answers for the training that it has committed to.

Questions and answers are objects of JSON, so that a party may be on another machine.  A question
has ``ask``, and an answer what the table says, or ``refused``, a reason.  Hashes are hexadecimal
digits, and arrays have ``dtype``, ``shape`` and ``data``: their elements, in row-major order and
little-endian, in base 64.  PRNG keys are their key data.

================================  ==================================================================
question                          answer
================================  ==================================================================
``about``                         ``steps``, how many; ``root``, of their tree; ``versions``
``children``                      ``left`` and ``right``, the hashes below a node; ``right`` may be
                                  null
``entry``                         ``entry``, the fields of one; ``proof``, the hashes to the root
``trace``                         ``equations``, how many; ``root``, of their tree
``leaf``                          ``array``, one leaf of the state after a step
``results``                       ``arrays``, what an equation gives
================================  ==================================================================

``children`` and ``entry`` name a ``tree``: ``steps``, ``leaves`` of a ``step``, or the
``equations`` that compute a ``step``; then ``level`` and ``index`` of a node, or the ``index`` of
an entry.  The trees are those of :mod:`repjax.verify.commitments`.  An entry of an equation is
``["equation",PLACE,PRIMITIVE,READS,GIVES]``, whose reads and gives are pairs of type and digest.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import dataclasses
import itertools
import json
import math
import os
import re
import selectors
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Any, Protocol

import jax
import ml_dtypes
import numpy as np

from repjax.digests import digest_alone, leaves, little_endian, show
from repjax.information import info
from repjax.verify import commitments, runs, settings, training, walk
from repjax.verify.progress import is_progress
from repjax.verify.traces import one_nan

QUESTIONS = ("about", "children", "entry", "trace", "leaf", "results")
#: What programs are made by: parties and referee have to have the same versions of these.
VERSIONS = ("repjax", "contract", "jax", "flax", "optax")
#: Limits of what is read from a party.
MOST_BYTES, MOST_DIMENSIONS = 1 << 30, 32
KEPT = 64  # elements of results that are kept, and not computed again

Question = dict[str, Any]
Answer = dict[str, Any]


class PartyError(ValueError):
    """A party that cannot be asked, or a question that has no answer."""


class Party(Protocol):
    """Whoever answers."""

    def answer(self, question: Question) -> Answer: ...


def versions() -> dict[str, str]:
    found = info()
    return {name: found[name] for name in VERSIONS}


# --- values -----------------------------------------------------------------------------


def elements(x) -> np.ndarray:
    """An array as it is digested: a PRNG key as its key data, and every NaN the same."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return np.asarray(jax.random.key_data(x))
    return np.asarray(one_nan(x))


def value(x) -> list[str]:
    """Type and digest."""
    return [kind(x), digest_alone(elements(x))]


def kind(x) -> str:
    """The type of an array, or of what has its shape and dtype."""
    return f"{x.dtype.name}[{','.join(map(str, x.shape))}]"


def as_json(x: np.ndarray) -> dict[str, Any]:
    data = base64.b64encode(little_endian(x)).decode()
    return {"dtype": x.dtype.name, "shape": [*x.shape], "data": data}


def from_json(x) -> np.ndarray:
    """Raises ValueError for anything but an array."""
    try:
        name, shape, data = x["dtype"], [*x["shape"]], base64.b64decode(x["data"], validate=True)
        if not re.fullmatch("[a-z][a-z0-9_]*", name) or len(shape) > MOST_DIMENSIONS:
            raise ValueError(name)
        if any(type(n) is not int or n < 0 for n in shape):
            raise ValueError(shape)
        dtype = np.dtype(getattr(ml_dtypes, name, name))
        if dtype.kind == "O" or math.prod(shape) * dtype.itemsize != len(data):
            raise ValueError(len(data))
        width = dtype.itemsize // 2 if dtype.kind == "c" else dtype.itemsize
        words = np.frombuffer(data, f"<u{width}").astype(f"u{width}")
        return words.view(dtype).reshape(shape)
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        raise ValueError(f"expected an array, received something else ({error!r})") from error


# --- programs ---------------------------------------------------------------------------


def _shape(x) -> jax.ShapeDtypeStruct:
    x = jax.numpy.asarray(x)
    return jax.ShapeDtypeStruct(x.shape, x.dtype, weak_type=x.aval.weak_type)


def _initial(found: training.Training):
    """The shapes of the initial state."""
    try:
        return jax.eval_shape(found.state)
    except TypeError:  # a state that cannot be traced
        return jax.tree.map(_shape, found.state())


@dataclasses.dataclass(frozen=True)
class Program:
    """What gives the state after n steps.

    It depends on the training alone, and not on any state; so all parties have the same one.

    Attributes:
      program: its inputs are shapes, the arrays that it holds aside.
      before, after: the shapes of the state; before step 0 there is none.
    """

    program: walk.Program
    before: Any
    after: Any


def program(found: training.Training, n: int) -> Program:
    """The program that gives the state after n steps."""
    state = _initial(found)
    if n == 0:
        return Program(walk.program(found.state), None, state)
    batch = jax.tree.map(_shape, found.batch(n - 1))
    for _ in range(min(n - 1, 2)):  # until the types, which may be weak at first, stay as they are
        state = jax.eval_shape(found.step, state, batch)
    after = jax.eval_shape(found.step, state, batch)
    return Program(walk.program(found.step, (state, batch)), state, after)


# --- a party that has a run -------------------------------------------------------------


@dataclasses.dataclass
class _Traced:
    """A step, equation by equation: entries, their tree, and results of few elements."""

    step: int
    entries: list[bytes] = dataclasses.field(default_factory=list)
    results: dict[int, list[np.ndarray]] = dataclasses.field(default_factory=dict)
    tree: commitments.Tree | None = None


class RunParty:
    """A party that has logged a training by ``repjax log`` (:func:`repjax.verify.training.log`).

    Args:
      found: the training.
      path: the directory of the run, whose states are repeated from its checkpoints.

    Raises:
      RunError, PartyError: there is no such run.
    """

    def __init__(self, found: training.Training, path):
        self.training, self.path = found, path
        self.steps = self.logged()
        if not self.steps or any("state" not in trees for trees in self.steps.values()):
            raise PartyError(f"{path}: expected the log of a training, as repjax log writes it")
        self._traced: _Traced | None = None
        self._known: dict[int, commitments.Tree] = {}
        self._commitment: commitments.Commitment | None = None

    def logged(self) -> dict[int, dict[str, runs.Tree]]:
        """Digests of leaves by step and tree."""
        return runs.read(self.path).steps

    @property
    def commitment(self) -> commitments.Commitment:
        if self._commitment is None:
            self._commitment = commitments.Commitment.of_steps(self.steps)
        return self._commitment

    def answer(self, question: Question) -> Answer:
        """The answer, or a reason for none."""
        ask = question.get("ask")
        if ask not in QUESTIONS:
            return {"refused": f"expected a question ({', '.join(QUESTIONS)}), received {ask!r}"}
        try:
            return getattr(self, f"_{ask}")(**{k: v for k, v in question.items() if k != "ask"})
        except (ValueError, TypeError, LookupError, StopIteration, OSError) as error:
            return {"refused": str(error) or "there is none"}

    def _about(self) -> Answer:
        tree = self.commitment.tree
        return {"steps": tree.size, "root": tree.root.hex(), "versions": versions()}

    def _tree(self, tree: str, step: int | None) -> commitments.Tree:
        if tree == "steps":
            return self.commitment.tree
        if tree == "equations":
            return self.traced(step).tree
        if step not in self._known:
            self._known[step] = commitments.step_tree(self.steps[self._number_of(step)])
        return self._known[step]

    def _number_of(self, place: int) -> int:
        return self.commitment.steps[place].number

    def _children(self, tree: str, level: int, index: int, step: int | None = None) -> Answer:
        left, right = self._tree(tree, step).children(level, index)
        return {"left": left.hex(), "right": right and right.hex()}

    def _entry(self, tree: str, index: int, step: int | None = None) -> Answer:
        if tree == "steps":
            data = self.commitment.steps[index].entry
        elif tree == "leaves":
            known = commitments.leaves(self.steps[self._number_of(step)])
            data = commitments.entry("leaf", *known[index])
        else:
            data = self.traced(step).entries[index]
        proof = self._tree(tree, step).proof(index)
        return {"entry": json.loads(data), "proof": [x.hex() for x in proof]}

    def _trace(self, step: int) -> Answer:
        tree = self.traced(step).tree
        return {"equations": tree.size, "root": tree.root.hex()}

    def _leaf(self, step: int, path: str) -> Answer:
        for leaf in leaves(self.state(step)):
            if show(leaf.path) == path and leaf.array is not None:
                return {"array": as_json(leaf.array)}
        raise PartyError(f"expected the path of an array, received {path}")

    def _results(self, step: int, index: int) -> Answer:
        known = self.traced(step).results.get(index)
        if known is None:
            found = next(itertools.islice(self.computed(step), index, None))
            known = [elements(x) for x in found.results]
        return {"arrays": [as_json(x) for x in known]}

    def state(self, n: int):
        """The state after n steps."""
        return training.state_after(self.training, self.path, n)

    def computed(self, n: int) -> Iterator[walk.Step]:
        """Compute what gives the state after n steps, equation by equation."""
        found = program(self.training, n).program
        inputs = found.inputs
        if n:
            inputs |= walk.arguments((self.state(n - 1), self.training.batch(n - 1)))
        return walk.steps(dataclasses.replace(found, inputs=inputs))

    def traced(self, n: int) -> _Traced:
        if self._traced is None or self._traced.step != n:
            found = _Traced(n)
            for i, step in enumerate(self.computed(n)):
                found.entries.append(describe(step))
                if all(x.size <= KEPT for x in step.results):
                    found.results[i] = [elements(x) for x in step.results]
            found.tree = commitments.Tree(found.entries)
            self._traced = found
        return self._traced


def describe(step: walk.Step) -> bytes:
    """The entry of an equation."""
    reads, gives = ([value(x) for x in xs] for xs in (step.operands, step.results))
    return commitments.entry("equation", step.place, step.equation.primitive.name, reads, gives)


# --- a party in another process ---------------------------------------------------------


class Remote:
    """A party that is asked through a process's standard input and output, a line each.

    Args:
      command: starts it, such as ``repjax answer RUN --training SCRIPT:NAME``, here or by ssh.
      environment: of the process.
      seconds: that an answer may take.
    """

    def __init__(self, command, environment=None, seconds: float = 3600):
        self.command, self.seconds = command, seconds
        self._process = subprocess.Popen(
            command,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._read = bytearray()
        self._errors = bytearray()

    def __enter__(self) -> Remote:
        return self

    def __exit__(self, *_) -> None:
        self._process.kill()
        self._process.communicate()

    def answer(self, question: Question) -> Answer:
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
            found = json.loads(self._line())
        except (OSError, ValueError, RecursionError) as error:
            return {"refused": self._last_words() or str(error)}
        return found if isinstance(found, dict) else {"refused": "no object of JSON"}

    def _last_words(self) -> str:
        """The last line that the process wrote to its standard error, its progress aside."""
        lines = self._errors.decode(errors="replace").strip().splitlines()
        return next((line for line in reversed(lines) if not is_progress(f"{line}\n")), "")

    def _line(self) -> bytes:
        end = time.monotonic() + self.seconds
        streams = {self._process.stdout: self._read, self._process.stderr: self._errors}
        with selectors.DefaultSelector() as selector:
            for stream in streams:
                selector.register(stream, selectors.EVENT_READ)
            while b"\n" not in self._read:
                ready = selector.select(max(0, end - time.monotonic()))
                if not ready:
                    raise ValueError(f"no answer in {self.seconds} seconds")
                for key, _ in ready:
                    data = os.read(key.fd, 1 << 16)
                    if not data:
                        selector.unregister(key.fileobj)
                    streams[key.fileobj] += data
                if len(self._read) > MOST_BYTES:
                    raise ValueError(f"an answer of more than {MOST_BYTES} bytes")
                if not selector.get_map():
                    raise ValueError("its process ended")
        line, _, rest = bytes(self._read).partition(b"\n")
        self._read[:] = rest
        return line


# --- the command ------------------------------------------------------------------------


def add_command(commands) -> None:
    parser = commands.add_parser(
        "answer",
        help="answer for a run in a dispute",
        description="Answer the questions of repjax dispute for a run that repjax log wrote, from "
        "standard input, a line each, on standard output.",
        epilog="example: repjax dispute runs/laptop "
        "'ssh server repjax answer runs/server --training train.py:training' "
        "--training train.py:training",
    )
    parser.add_argument("run_of", metavar="RUN", help="a directory that repjax log wrote")
    parser.add_argument("--training", metavar="SCRIPT:NAME", required=True)
    settings.add_options(parser)
    parser.set_defaults(run=run)


def _question(line: str) -> Question:
    with contextlib.suppress(ValueError, RecursionError):
        if isinstance(found := json.loads(line), dict):
            return found
    raise PartyError(f"expected a question, an object of JSON, received {line[:40]!r}")


def run(arguments: argparse.Namespace) -> int:
    # What the script prints is no answer.
    channel = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    try:
        settings.enable(arguments)
        party = RunParty(training.load(arguments.training), arguments.run_of)
        for line in sys.stdin:
            print(json.dumps(party.answer(_question(line))), file=channel, flush=True)
    except (OSError, ValueError) as error:
        print(f"repjax answer: {error}", file=sys.stderr)
        return 2
    return 0
