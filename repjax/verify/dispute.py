"""A dispute: two parties say that they ran one training, and a referee finds who did not.

After Verde (Arun et al. 2025, arXiv 2502.19405): the parties have committed to all that their
training computed (:mod:`repjax.verify.commitments`).  By comparing hashes from the root of a Merkle
tree down, the referee finds the first step that differs, in it the first leaf, and in the program
that computes the step the first equation: a number of hashes that grows with the logarithm of what
was computed.  Then it computes this one equation, and no other.

What the referee takes from nobody: the program, which it traces itself, and so each equation and
where its operands come from; the batches; and the results of that equation, which are those of
:mod:`repjax.verify.reference`.  What it takes from the parties: values that both have committed to,
checked against the commitments.  It convicts whoever

* refuses to answer, or answers what contradicts its commitment or what it published before,
* has another number of steps, or other leaves than the training has,
* reads another batch or another constant, or what no equation before gave,
* computes another program, or gives other bits than the reference.

An honest party is never convicted, and whoever differs from it is: up to the first difference both
have what the honest one has.  Where that would not be sure, there is no verdict: a program that the
two parties agree on and the referee does not have, an equation that no reference defines, or one
that plain JAX computes.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import math
import pathlib
import re
import shlex
import sys
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from repjax import config
from repjax.digests import digest_alone, names, show
from repjax.verify import (
    commitments,
    reference,
    runs,
    settings,
    sources,
    traces,
    training,
    variability,
    walk,
)
from repjax.verify.commitments import CommitmentError
from repjax.verify.parties import Party, Remote, elements, from_json, kind
from repjax.verify.parties import program as program_of
from repjax.verify.parties import versions as versions_here
from repjax.verify.progress import counter

NAMES = ("the first", "the second")
#: Results of more elements are compared by one that differs.
MOST_ELEMENTS = 4096
BY_REFERENCE = "the reference computed this equation, without JAX"
BY_REPJAX = "no reference computes this equation; repjax did, on this machine"


class DisputeError(ValueError):
    """A dispute that cannot be held."""


@dataclasses.dataclass(frozen=True)
class Verdict:
    """What a referee found.

    Attributes:
      kind: ``agree``, ``convicted`` or ``undecided``.
      convicted: names of parties.
      place: where they differ, from the step to the equation, as far as it was found.
      why: by party, why it is convicted; under ``""``, why there is no verdict.
      computed: what computed the equation, if it was.
      hashes: how many were exchanged.
      size: bytes of arrays that were exchanged.
    """

    kind: str
    convicted: tuple[str, ...] = ()
    place: str = ""
    why: dict[str, str] = dataclasses.field(default_factory=dict)
    computed: str = ""
    hashes: int = 0
    size: int = 0

    def __str__(self) -> str:
        cost = f"{self.hashes} hashes and {self.size} bytes of arrays were exchanged"
        if self.kind == "agree":
            return f"no difference\n{cost}"
        at = f"the parties part at {self.place}" if self.place else "the parties differ"
        if self.kind == "undecided":
            return f"{at}\nno verdict: {self.why['']}\n{cost}"
        lines = [f"{name} is convicted: it {self.why[name]}" for name in self.convicted]
        return "\n".join([at, *lines, *filter(None, [self.computed]), cost])


class _Caught(Exception):
    """One side did what no honest party does."""

    def __init__(self, side: _Side, reason: str):
        super().__init__(reason)
        self.side, self.reason = side, reason


class _Convicted(Exception):
    def __init__(self, reasons: dict[str, str]):
        super().__init__(reasons)
        self.reasons = reasons


class _Undecided(Exception):
    pass


# --- asking -----------------------------------------------------------------------------


class _Side:
    """A party, what it is called, and what was exchanged with it."""

    def __init__(self, name: str, party: Party, progress: Callable[[int], None]):
        self.name, self.party, self.progress = name, party, progress
        self.hashes = self.size = self.questions = 0

    def ask(self, ask: str, *fields: str, **question: Any) -> list[Any]:
        """The fields of an answer."""
        found = self.party.answer({"ask": ask, **question})
        self.questions += 1
        self.progress(self.questions)
        if not isinstance(found, dict) or "refused" in found:
            reason = found.get("refused") if isinstance(found, dict) else "no object of JSON"
            raise _Caught(self, f"refuses to answer ({reason})")
        if found.keys() != {*fields}:
            raise _Caught(self, f"answers {', '.join(sorted(map(str, found)))}, which is no answer")
        return [found[name] for name in fields]

    def hash(self, x: Any) -> bytes:
        if not isinstance(x, str) or not re.fullmatch("[0-9a-f]{64}", x):
            raise _Caught(self, "answers what is no hash")
        self.hashes += 1
        return bytes.fromhex(x)

    def count(self, x: Any) -> int:
        if type(x) is not int or not 0 < x < 2**48:
            raise _Caught(self, "answers what is no number of entries")
        return x

    def array(self, x: Any, digest: str) -> np.ndarray:
        """An array that has to have this digest."""
        try:
            found = from_json(x)
        except ValueError as error:
            raise _Caught(self, f"answers no array: {error}") from error
        self.size += found.nbytes
        if digest_alone(found) != digest:
            raise _Caught(self, "gives an array that it has not committed to")
        return found

    def arrays(self, ask: str, step: int, index: int, expected) -> list[np.ndarray]:
        """Arrays that have to have these types and digests."""
        (given,) = self.ask(ask, "arrays", step=step, index=index)
        if not isinstance(given, list) or len(given) != len(expected):
            raise _Caught(self, "gives another number of arrays than it has committed to")
        found = [self.array(x, digest) for x, (_, digest) in zip(given, expected, strict=True)]
        for x, (type_, _) in zip(found, expected, strict=True):
            if kind(x) != type_ and not type_.startswith("key<"):
                raise _Caught(self, f"has committed to {kind(x)} as {type_}")
        return found


@dataclasses.dataclass(frozen=True)
class _Tree:
    """A tree that a side has committed to."""

    side: _Side
    name: str
    size: int
    root: bytes
    step: int | None = None

    @property
    def place(self) -> dict[str, Any]:
        return {"tree": self.name} | ({} if self.step is None else {"step": self.step})

    def children(self, level: int, index: int, expected: bytes) -> tuple[bytes, bytes | None]:
        """The hashes below a node."""
        if level > commitments.height(self.size):
            return expected, None
        place = {**self.place, "level": level, "index": index}
        left, right = self.side.ask("children", "left", "right", **place)
        left = self.side.hash(left)
        there = 2 * index + 1 < commitments.width(self.size, level - 1)
        right = self.side.hash(right) if there else None
        if commitments.node_hash(left, right) != expected:
            raise _Caught(self.side, f"answers hashes of {self.name} that contradict each other")
        return left, right

    def entry(self, index: int) -> list[Any]:
        """The fields of an entry."""
        fields, proof = self.side.ask("entry", "entry", "proof", **self.place, index=index)
        if not isinstance(fields, list) or not isinstance(proof, list):
            raise _Caught(self.side, "answers no entry")
        proof = [self.side.hash(x) for x in proof]
        with contextlib.suppress(CommitmentError, TypeError, ValueError, RecursionError):
            data = commitments.entry(*fields)
            if commitments.root(data, index, self.size, proof) == self.root:
                return fields
        raise _Caught(self.side, f"gives a proof for {self.name} that contradicts its commitment")


def _first_difference(a: _Tree, b: _Tree) -> int | None:
    """The index of the first entry that two trees do not share; None if they are the same."""
    if (a.size, a.root) == (b.size, b.root):
        return None
    level = max(commitments.height(a.size), commitments.height(b.size))
    index, nodes = 0, (a.root, b.root)
    if a.root == b.root:  # one says a wrong size
        for tree in (a, b):
            tree.entry(commitments.telling(a.size, b.size))
    while level:
        (left, right), (other_left, other_right) = (
            tree.children(level, index, node) for tree, node in zip((a, b), nodes, strict=True)
        )
        level, index = level - 1, 2 * index
        nodes = left, other_left
        if left == other_left:
            index += 1
            if right is None or other_right is None:
                return min(a.size, b.size)  # one goes on where the other one ends
            nodes = right, other_right
    return index


# --- values of a step -------------------------------------------------------------------


def _layout(state) -> list[tuple[str, Any]]:
    """The paths of the leaves of a tree, and the leaves, None included."""
    flat, _ = jax.tree_util.tree_flatten_with_path(state, is_leaf=lambda x: x is None)
    return sorted(((show(names(path)), x) for path, x in flat), key=lambda pair: pair[0])


class _Values:
    """What the equations of step n have to read: values that both sides have committed to.

    Up to the first difference both have the same entries; so each is asked of one side.
    """

    def __init__(self, referee: Referee, n: int, steps: _Tree):
        found = program_of(referee.training, n)
        self.n, self.steps, self.side, self._referee = n, steps, steps.side, referee
        self.program, self.before, self.after = found.program, found.before, found.after
        self.equations: _Tree | None = None
        self._entries: dict[int, list[Any]] = {}
        self._leaves: dict[str, str] = {}
        self._own = dict(self.program.inputs)  # what the referee knows itself: not the state
        if n:
            self._own |= walk.arguments((None, referee.training.batch(n - 1)))

    def _is_state(self, name: str) -> bool:
        return isinstance(self._own[name], jax.ShapeDtypeStruct)

    def entry(self, index: int) -> list[Any]:
        """An equation that both sides agree on."""
        if index not in self._entries:
            fields = self.equations.entry(index)
            if not _is_equation(fields):
                raise _Caught(self.side, "has committed to what is no equation")
            self._entries[index] = fields
        return self._entries[index]

    def leaf(self, name: str) -> tuple[str, str]:
        """Path and digest of a leaf of the state before."""
        path = name.partition("/")[2] or show(())
        if path not in self._leaves:
            of_step = self.steps.entry(self.n - 1)
            expected = self._referee.leaves(self.n - 1, self.before)
            tree = _leaves_tree(self.side, of_step, self.n - 1, len(expected))
            index = [x[:2] for x in expected].index(("state", path))
            fields = tree.entry(index)
            if fields[:3] != ["leaf", "state", path] or len(fields) != 4:
                raise _Caught(self.side, f"has another leaf in the place of state: {path}")
            self._leaves[path] = fields[3]
        return path, self._leaves[path]

    def array(self, source: sources.Source) -> np.ndarray:
        """The elements of a value."""
        if isinstance(source, sources.Constant):
            return elements(source.value)
        if isinstance(source, sources.Canonical):
            found = self.array(source.source)
            return found if _is_key(source.dtype) else reference.values.canonical(found)
        if isinstance(source, sources.Element):
            return self.array(source.source)[source.index]
        if isinstance(source, sources.Stack):
            return np.stack([self.array(x) for x in source.sources])
        if isinstance(source, sources.Result):
            gives = self.entry(source.index)[4]
            return self.side.arrays("results", self.n, source.index, gives)[source.number]
        if not self._is_state(source.name):
            return elements(self._own[source.name])
        path, digest = self.leaf(source.name)
        (given,) = self.side.ask("leaf", "array", step=self.n - 1, path=path)
        found = self.side.array(given, digest)
        return found if _is_key(source.dtype) else elements(jax.numpy.asarray(found))

    def is_digest(self, source: sources.Source, digest: str) -> bool:
        """Whether a value has a digest."""
        if isinstance(source, sources.Result):
            return self.entry(source.index)[4][source.number][1] == digest
        if isinstance(source, sources.Canonical) and self.is_digest(source.source, digest):
            return True  # if it is not canonical, the reference makes it so
        of_state = isinstance(source, sources.Input) and self._is_state(source.name)
        if of_state and self.leaf(source.name)[1] == digest:
            return True
        return digest_alone(self.array(source)) == digest

    def number(self, source: sources.Source) -> int:
        return int(self.array(source))


def _leaves_tree(side: _Side, fields: list[Any], n: int, expected: int) -> _Tree:
    """The tree of the leaves of step n, from the entry of the step."""
    if len(fields) != 4 or fields[:2] != ["step", n]:
        raise _Caught(side, f"has another step in the place of step {n}")
    if fields[2] != expected or [*map(type, fields)] != [str, int, int, str]:
        raise _Caught(
            side, f"has {fields[2]} leaves in step {n}, where the training has {expected}"
        )
    return _Tree(side, "leaves", expected, side.hash(fields[3]), n)


def _is_equation(fields: list[Any]) -> bool:
    def values(x) -> bool:
        return isinstance(x, list) and all(
            isinstance(pair, list) and len(pair) == 2 and all(isinstance(y, str) for y in pair)
            for pair in x
        )

    return (
        len(fields) == 5
        and fields[0] == "equation"
        and all(isinstance(x, str) for x in fields[:3])
        and all(map(values, fields[3:]))
    )


# --- the referee ------------------------------------------------------------------------


class Referee:
    """A referee.

    Args:
      found: the training that the parties say they ran.
      own: whether an equation without a reference is computed by repjax on this machine.
      progress: called with the number of questions so far.

    Example::

        referee = Referee(training)
        print(referee.decide(RunParty(training, "runs/a"), RunParty(training, "runs/b")))
    """

    def __init__(
        self,
        found: training.Training,
        *,
        own: bool = False,
        progress: Callable[[int], None] = lambda count: None,
    ):
        self.training, self.own, self.progress = found, own, progress

    def decide(
        self, first: Party, second: Party, published: Sequence[str | None] = (None, None)
    ) -> Verdict:
        """Find out where two parties part, and who of them is wrong.

        Args:
          first, second: the parties.
          published: their commitments, ``sha256:`` and 64 digits, where they gave them before.
        """
        pairs = zip(NAMES, (first, second), strict=True)
        sides = [_Side(name, party, self.progress) for name, party in pairs]
        self._place: list[str] = []
        self._computed = ""
        why: dict[str, str] = {}
        try:
            kind = "agree"
            self._decide(sides, published)
        except _Caught as caught:
            kind, why = "convicted", {caught.side.name: caught.reason}
        except _Convicted as convicted:
            kind, why = "convicted", convicted.reasons
        except _Undecided as undecided:
            kind, why = "undecided", {"": str(undecided)}
        return Verdict(
            kind,
            tuple(name for name in NAMES if name in why),
            ", ".join(self._place),
            why,
            self._computed,
            sum(side.hashes for side in sides),
            sum(side.size for side in sides),
        )

    def leaves(self, n: int, state) -> list[tuple[str, str, str | None]]:
        """Tree, path and, as far as it is known, digest of the leaves of step n."""
        none = digest_alone(None)
        found = [("state", path, none if x is None else None) for path, x in _layout(state)]
        if n:
            found += commitments.leaves({"batch": runs.digests(self.training.batch(n - 1))})
        return sorted(found, key=lambda leaf: leaf[:2])

    def _each(self, sides: Sequence[_Side], check: Callable[[_Side], Any]) -> list[Any]:
        """What a check gives for each side; all that fail it are convicted."""
        found, reasons = [], {}
        for side in sides:
            try:
                found.append(check(side))
            except _Caught as caught:
                reasons[caught.side.name] = caught.reason
        if reasons:
            raise _Convicted(reasons)
        return found

    def _decide(self, sides: list[_Side], published) -> None:
        known = dict(zip(NAMES, published, strict=True))
        about = self._each(sides, lambda side: self._steps(side, known[side.name]))
        trees = [tree for tree, _ in about]
        n = _first_difference(*trees)
        if n is None:
            return
        self._place.append(f"step {n}")
        entries = self._each(trees, lambda tree: tree.entry(n))
        try:
            values = _Values(self, n, trees[0])
        except TypeError as error:  # JAX's errors of tracing are some
            text = str(error).partition("\n")[0]
            raise _Undecided(f"the program of step {n} cannot be traced: {text}") from error
        expected = self.leaves(n, values.after)
        pairs = dict(zip(NAMES, entries, strict=True))
        leaves = self._each(
            sides, lambda side: _leaves_tree(side, pairs[side.name], n, len(expected))
        )
        if (i := _first_difference(*leaves)) is None:
            raise AssertionError("steps that differ in nothing")  # their entries are checked
        tree, path, digest = expected[i]
        self._place.append(f"{tree}: {path}")

        def given(of_side: _Tree) -> str:
            fields = of_side.entry(i)
            if fields[:3] != ["leaf", tree, path] or len(fields) != 4:
                raise _Caught(of_side.side, f"has another leaf in the place of {tree}: {path}")
            if digest is not None and fields[3] != digest:
                raise _Caught(of_side.side, f"has another {tree} than the training")
            return fields[3]

        digests = self._each(leaves, given)
        self._equations(sides, [v for _, v in about], values, path, digests)

    def _steps(self, side: _Side, published: str | None) -> tuple[_Tree, Any]:
        size, root, versions = side.ask("about", "steps", "root", "versions")
        size, root = side.count(size), side.hash(root)
        found = f"sha256:{commitments.commitment(size, root).hex()}"
        if published is not None and found != published:
            raise _Caught(side, f"has the commitment {found}, and has published {published}")
        if size != self.training.steps + 1:
            raise _Caught(
                side,
                f"has {size} steps in its log, where the training has {self.training.steps} "
                "and an initial state",
            )
        return _Tree(side, "steps", size, root), versions

    def _equations(self, sides, versions, values: _Values, path: str, digests) -> None:
        """Find the first equation that differs, and who of the two is wrong."""
        here = versions_here()
        for side, there in zip(sides, versions, strict=True):
            if there != here:
                raise _Undecided(
                    f"{side.name} answers with {_shown(there)}, and the referee has "
                    f"{_shown(here)}; programs depend on it, bits do not: let it answer with these"
                )

        def traced(side: _Side) -> _Tree:
            size, root = side.ask("trace", "equations", "root", step=values.n)
            return _Tree(side, "equations", side.count(size), side.hash(root), values.n)

        trees = self._each(sides, traced)
        values.equations = trees[0]
        i = _first_difference(*trees)
        step, results = _walk_to(values, i)
        if i is None:
            self._contradiction(sides, values, path, digests, results)
        entries = [tree.entry(i) if i < tree.size else None for tree in trees]
        self._place.append(_named(step))
        self._reads(sides, values, step, entries)
        gives = [entry[4] for entry in entries]
        raise _Convicted(self._judged(sides, values, step, i, gives))

    def _contradiction(self, sides, values: _Values, path: str, digests, results) -> None:
        """All equations agree: at most one side can have the leaf that they give."""
        source = dict(zip(values.program.results, results, strict=True))[path]
        reasons = {}

        def check(side: _Side, digest: str) -> None:
            if values.is_digest(source, digest):
                return
            (given,) = side.ask("leaf", "array", step=values.n, path=path)
            found = side.array(given, digest)
            # A state may hold numbers of Python or NumPy that JAX has in another type.
            other = elements(jax.numpy.asarray(found))
            if other.dtype == found.dtype or not values.is_digest(source, digest_alone(other)):
                reasons[side.name] = f"has another leaf state: {path} than its equations give"

        for side, digest in zip(sides, digests, strict=True):
            try:
                check(side, digest)
            except _Caught as caught:
                reasons[side.name] = caught.reason
        if not reasons:
            raise _Undecided(f"the leaves state: {path} differ in their types alone")
        raise _Convicted(reasons)

    def _reads(self, sides, values: _Values, step: walk.Step | None, entries) -> None:
        """Convict whoever computes another program, or reads other values."""
        reasons = {
            side.name: reason
            for side, entry in zip(sides, entries, strict=True)
            if (reason := _other_equation(values, step, entry))
        }
        first, second = entries
        if first and second and first[:4] == second[:4] and len(reasons) == 2:
            (reason, _) = reasons.values()
            raise _Undecided(f"both parties have what the referee has not: each {reason}")
        if reasons:
            raise _Convicted(reasons)

    def _judged(self, sides, values: _Values, step: walk.Step, index: int, gives) -> dict[str, str]:
        """Why each side that gives other bits than the reference is wrong."""
        if step.orders is None:
            raise _Undecided(
                "plain JAX computes this equation, whose bits nothing defines; hold the dispute "
                "with --repjax, or make the step by repjax.reproducible"
            )
        operands = [values.array(x) for x in step.operands]
        large = sum(math.prod(x.shape) for x in step.results) > MOST_ELEMENTS
        if large and not any(_is_key(x.dtype) for x in step.results):
            claims, number, where = self._elements(sides, values, index, gives)
            right = _shown_bits(self._compute(step, operands, number, where))
        else:
            claims, number, where = [*map(_shown_digests, gives)], 0, None
            right = _shown_results(step, self._compute(step, operands))
        at = f" at {[*where]}" if where else ""
        reasons = {
            side.name: f"gives {_brief(claim)}{at}, where the reference gives {_brief(right)}"
            for side, claim in zip(sides, claims, strict=True)
            if claim != right
        }
        if len(reasons) == 2 and self._computed == BY_REFERENCE:
            # One of them may be honest and the reference wrong.
            found = self._own(step, operands)
            mine = (
                _shown_results(step, found) if where is None else _shown_bits(found[number][where])
            )
            if mine in claims:
                raise _Undecided(
                    f"the reference gives {_brief(right)}{at}, which neither party does, and "
                    f"repjax on this machine {_brief(mine)}, which one of them does"
                )
        return reasons

    def _elements(self, sides, values: _Values, index: int, gives) -> tuple[list[str], int, Any]:
        """The first element of a result that the two sides do not share: what it is on each, the
        number of the result, and where in it."""
        expected = dict(zip(NAMES, gives, strict=True))

        def results(side: _Side) -> list[np.ndarray]:
            return side.arrays("results", values.n, index, expected[side.name])

        both = self._each(sides, results)
        pairs = enumerate(zip(*both, strict=True))
        number, differ = next((k, d) for k, x in pairs if (d := variability.differing(*x)).any())
        where = tuple(map(int, np.argwhere(differ)[0]))
        return [_shown_bits(x[number][where]) for x in both], number, where

    def _compute(self, step: walk.Step, operands, number: int = 0, where=None) -> Any:
        """What an equation gives, or one element of a result, by the reference, or by repjax."""
        accumulation, contraction = step.orders
        name, params = step.equation.primitive.name, step.equation.params
        given = [_as_keys(x, y.dtype) for x, y in zip(operands, step.operands, strict=True)]
        known: dict[str, Any] = {
            "results": [(str(x.dtype), x.shape) for x in step.results],
            "accumulation": accumulation,
            "contraction": contraction,
        }
        self._computed = BY_REFERENCE
        try:
            if where is not None:
                return reference.element(name, given, params, where, result=number, **known)
            return [*map(_from_keys, reference.compute(name, given, params, **known))]
        except reference.NoReference as error:
            if not self.own:
                raise _Undecided(f"no reference computes this equation: {error}") from error
        self._computed = BY_REPJAX
        found = self._own(step, operands)
        return found if where is None else found[number][where]

    def _own(self, step: walk.Step, operands) -> list[np.ndarray]:
        """What an equation gives by repjax on this machine."""
        accumulation, contraction = step.orders
        given = [_as_jax_keys(x, y.dtype) for x, y in zip(operands, step.operands, strict=True)]
        with config.enabled(accumulation=accumulation, contraction=contraction):
            return [elements(x) for x in walk.bind(step.equation, given)]


def _is_key(dtype) -> bool:
    return jax.dtypes.issubdtype(dtype, jax.dtypes.prng_key)


def _as_keys(x: np.ndarray, dtype) -> np.ndarray:
    """As the reference has them."""
    return reference.keys(x) if _is_key(dtype) else x


def _from_keys(x: np.ndarray) -> np.ndarray:
    return reference.words(x) if x.dtype.kind == "V" and x.dtype.name.startswith("void") else x


def _as_jax_keys(x: np.ndarray, dtype):
    x = jax.numpy.asarray(x)
    return jax.random.wrap_key_data(x, impl=str(dtype)[4:-1]) if _is_key(dtype) else x


def _shown_bits(x: np.ndarray) -> str:
    """All the bits of one element, and its value."""
    if x.dtype.kind == "c":
        return f"{_shown_bits(x.real)} and {_shown_bits(x.imag)} i"
    number = runs.Number.of("an element", x)
    return f"0x{number.bits} ({number})"


def _brief(text: str) -> str:
    """Digests by their first digits."""
    return re.sub("(sha256:[0-9a-f]{16})[0-9a-f]{48}", r"\1...", text)


def _shown_digests(gives: Sequence[Sequence[str]]) -> str:
    """All the types and digests of results."""
    return ", ".join(f"{type_} {digest}" for type_, digest in gives)


def _shown_results(step: walk.Step, found: Sequence[np.ndarray]) -> str:
    kinds = map(kind, step.results)
    return _shown_digests([*zip(kinds, map(digest_alone, found), strict=True)])


def _walk_to(values: _Values, index: int | None) -> tuple[walk.Step | None, Any]:
    """The equation of this index, or None and the program's results, as sources."""
    walked = sources.steps(values.program, values.number)
    for i in range(sys.maxsize):
        try:
            step = next(walked)
        except StopIteration as end:
            return None, end.value
        if i == index:
            return step, None
    raise AssertionError


def _named(step: walk.Step | None) -> str:
    if step is None:
        return "the end of the program"
    return f"equation {step.place}, {step.equation.primitive.name}, at {traces.line(step)}"


def _other_equation(values: _Values, step: walk.Step | None, entry) -> str | None:
    """Why an entry is not the equation that it has to be; None if it is."""
    if entry is None:
        return step and f"computes nothing at {_named(step)}"
    if not _is_equation(entry):
        return "has committed to what is no equation"
    _, place, primitive, reads, gives = entry
    if step is None:
        return f"goes on after the end of the program with equation {place}, {primitive}"
    kinds = [[kind(x) for x in xs] for xs in (step.operands, step.results)]
    if (place, primitive) != (step.place, step.equation.primitive.name) or kinds != [
        [x for x, _ in reads],
        [x for x, _ in gives],
    ]:
        return f"computes another program: equation {place}, {primitive}, in this place"
    for i, (source, (_, digest)) in enumerate(zip(step.operands, reads, strict=True)):
        if not values.is_digest(source, digest):
            return f"reads another value as operand {i}, {_described(source)}"
    return None


def _described(source: sources.Source) -> str:
    if isinstance(source, sources.Constant):
        return "a constant of the program"
    if isinstance(source, sources.Canonical):
        return _described(source.source)
    if isinstance(source, sources.Input):
        return f"the input {source.name}"
    return "than the equations before it give"


def _shown(versions: Any) -> str:
    if not isinstance(versions, dict):
        return "no versions"
    return ", ".join(f"{k} {v}" for k, v in versions.items())


# --- the command ------------------------------------------------------------------------


def add_command(commands) -> None:
    parser = commands.add_parser(
        "dispute",
        help="two runs of one training differ: which one is wrong?",
        description="Two parties say that they ran one training, and have other bits.  Find the "
        "first step and equation at which they differ by comparing hashes, compute that equation, "
        "and say who is wrong.  A and B are runs that repjax log wrote, each of which is answered "
        "for by a process of its own, or commands in quotes that answer for one elsewhere.  Exit "
        "status: 0 nothing differs, 1 someone is convicted, 2 the request cannot be met, or there "
        "is no verdict.",
        epilog="example: repjax dispute runs/a runs/b --training train.py:training, or repjax "
        "dispute runs/a 'ssh server repjax answer runs/b --training train.py:training' --training "
        "train.py:training",
    )
    parser.add_argument("first", metavar="A", help="a run, or a command that answers for one")
    parser.add_argument("second", metavar="B", help="the other one")
    parser.add_argument(
        "--training", metavar="SCRIPT:NAME", required=True, help="what the referee traces"
    )
    parser.add_argument(
        "--settings", metavar="A,B", help="of the two that answer (repjax trace --help)"
    )
    parser.add_argument("--commitments", metavar="A,B", help="that the two have published")
    parser.add_argument(
        "--own",
        action="store_true",
        help="where there is no reference, let repjax compute the equation on this machine",
    )
    parser.add_argument("--seconds", type=float, default=3600, help="that an answer may take")
    settings.add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        settings.enable(arguments)
        own = "+".join(["plain", *_words(arguments)])
        pair = _pair(arguments.settings, "settings") or [own, own]
        published = _pair(arguments.commitments, "commitments") or [None, None]
        found = training.load(arguments.training)
        with contextlib.ExitStack() as stack:
            asked = []
            for place, setting in zip((arguments.first, arguments.second), pair, strict=True):
                words, environment = _command(place, settings.parse(setting), arguments.training)
                party = stack.enter_context(Remote(words, environment, arguments.seconds))
                answer = party.answer({"ask": "about"})
                if "refused" in answer:
                    raise DisputeError(f"{place}: {answer['refused']}")
                asked.append(party)
            progress = stack.enter_context(counter("questions"))
            verdict = Referee(found, own=arguments.own, progress=progress).decide(
                *asked, published=published
            )
    except (OSError, ValueError) as error:
        print(f"repjax dispute: {error}", file=sys.stderr)
        return 2
    print(verdict)
    return {"agree": 0, "convicted": 1, "undecided": 2}[verdict.kind]


def _pair(text: str | None, what: str) -> list[str] | None:
    found = text.split(",") if text else None
    if found and len(found) != 2:
        raise DisputeError(f"expected two {what}, received {len(found)}")
    return found


def _words(arguments) -> list[str]:
    """The referee's own options as words of a setting."""
    orders = ("accumulation", "contraction")
    found = [f"{name}={value}" for name in orders if (value := getattr(arguments, name))]
    return ["repjax", *found] if arguments.repjax else found


def _command(place: str, setting: settings.Setting, text: str):
    """What answers for a party: words, and an environment."""
    if pathlib.Path(place).is_dir():
        return settings.command(setting, ["answer", place, "--training", text])
    words = shlex.split(place)
    if len(words) < 2:
        raise DisputeError(f"expected a run or a command in quotes, received {place}")
    return words, None
