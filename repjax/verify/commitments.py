"""Commitments: one hash for a whole training, from which any leaf of any step can be opened.

Whoever has published a commitment can later show what one leaf of one step was by O(log) hashes,
and can show nothing else in its place.

**Format 1.**  A tree over entries is the Merkle tree of RFC 6962 (section 2.1)::

    hash of an entry    SHA-256 of a byte 0 and the entry
    hash of a node      SHA-256 of a byte 1, the hash on the left and the hash on the right

whose left part is the largest power of two smaller than the number of entries.  In other words, the
hashes of a level are joined two by two, and one that is left alone goes up as it is.  The bytes 0
and 1 keep a node from being passed off as an entry.

Entries are arrays of JSON without spaces, in ASCII:

* ``["leaf",TREE,PATH,DIGEST]``: a leaf of a step; its tree, such as ``params``, ``state``,
  ``batch`` or ``key``, its path and its digest as the run logged it (:mod:`repjax.verify.runs`).
  The tree of a step has them in ascending order of tree and path.
* ``["step",NUMBER,LEAVES,ROOT]``: a step; its number, how many leaves it has, and the root of
  their tree in hexadecimal digits.  The tree over the steps has them in the order of the log.

The commitment is the hash of the entry ``["training",1,STEPS,ROOT]``: the version of this format,
how many steps there are, and the root of their tree.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

VERSION = 1

_encode = json.JSONEncoder(separators=(",", ":"), allow_nan=False).encode

StepTrees = Mapping[str, Mapping[str, str]]  # digests of leaves by tree and path


class CommitmentError(ValueError):
    """A proof that does not show what it claims, or nothing to commit to."""


def entry(*fields: Any) -> bytes:
    """The bytes of an entry."""
    return _encode(fields).encode()


def entry_hash(data: bytes) -> bytes:
    return hashlib.sha256(b"\x00" + data).digest()


def node_hash(left: bytes, right: bytes | None) -> bytes:
    """The hash of a node; of a left part alone, that part's."""
    return left if right is None else hashlib.sha256(b"\x01" + left + right).digest()


def width(size: int, level: int) -> int:
    """How many nodes a level has, of a tree over ``size`` entries; level 0 has the entries."""
    return -(-size >> level)


def height(size: int) -> int:
    """The level of the root."""
    return max(size - 1, 0).bit_length()


def telling(size: int, other: int) -> int:
    """The index of an entry that tells trees of two sizes apart: in one of them it lies where the
    other one has a node.

    So whoever says a wrong size of a tree cannot open this entry: no bytes have the hash of a node.
    """
    index = 0
    while size > 1 and other > 1:
        left, other_left = (1 << (height(n) - 1) for n in (size, other))
        if left == other_left:
            index, size, other = index + left, size - left, other - left
        else:
            size, other = left, other_left
    return index


class Tree:
    """A Merkle tree over entries.

    Attributes:
      size: how many entries.
      root: 32 bytes.

    Raises:
      CommitmentError: no entries.
    """

    def __init__(self, entries: Iterable[bytes]):
        level = [*map(entry_hash, entries)]
        if not level:
            raise CommitmentError("commitments: expected at least one entry, received none")
        self._levels = [level]
        while len(level) > 1:
            pairs = zip(level[::2], [*level[1::2], None], strict=False)
            level = [node_hash(left, right) for left, right in pairs]
            self._levels.append(level)
        self.size, self.root = len(self._levels[0]), level[0]

    def node(self, level: int, index: int) -> bytes:
        """The hash of a node."""
        return self._levels[level][index]

    def children(self, level: int, index: int) -> tuple[bytes, bytes | None]:
        """The hashes below a node, from left to right; None where there is none on the right."""
        below = self._levels[level - 1]
        right = 2 * index + 1
        return below[right - 1], below[right] if right < len(below) else None

    def proof(self, index: int) -> list[bytes]:
        """The hashes that lead from an entry to the root."""
        found = []
        for level in self._levels[:-1]:
            if index ^ 1 < len(level):
                found.append(level[index ^ 1])
            index >>= 1
        return found


def root(data: bytes, index: int, size: int, proof: Sequence[bytes]) -> bytes:
    """The root of the tree of ``size`` entries whose entry ``index`` the proof leads from.

    Raises:
      CommitmentError: a proof of another length, or an index beyond the size.
    """
    if not 0 <= index < size:
        raise CommitmentError(f"expected an entry from 0 to {size - 1}, received {index}")
    found, left = entry_hash(data), [*proof]
    for level in range(height(size)):
        if index ^ 1 < width(size, level):
            if not left:
                raise CommitmentError("expected a longer proof, received one that ends early")
            other = left.pop(0)
            found = node_hash(other, found) if index & 1 else node_hash(found, other)
        index >>= 1
    if left:
        raise CommitmentError("expected a shorter proof, received one with hashes left over")
    return found


# --- a training -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Step:
    """What stands for a step: its number, how many leaves it has, and the root of their tree."""

    number: int
    leaves: int
    root: bytes

    @property
    def entry(self) -> bytes:
        return entry("step", self.number, self.leaves, self.root.hex())


def leaves(trees: StepTrees) -> list[tuple[str, str, str]]:
    """Tree, path and digest of each leaf of a step, in the order of its tree."""
    return [
        (name, path, trees[name][path]) for name in sorted(trees) for path in sorted(trees[name])
    ]


def step_tree(trees: StepTrees) -> Tree:
    """The tree of a step, from the digests of its leaves."""
    return Tree(entry("leaf", *leaf) for leaf in leaves(trees))


def step(number: int, trees: StepTrees) -> Step:
    """What stands for a step, from the digests of its leaves."""
    found = step_tree(trees)
    return Step(number, found.size, found.root)


def commitment(count: int, steps_root: bytes) -> bytes:
    """The 32 bytes that stand for a training with so many steps and this root of their tree."""
    return entry_hash(entry("training", VERSION, count, steps_root.hex()))


@dataclasses.dataclass(frozen=True)
class Commitment:
    """A commitment to the steps of a training; :meth:`of_steps` makes one."""

    steps: tuple[Step, ...]

    @classmethod
    def of_steps(cls, steps: Mapping[int, StepTrees]) -> Commitment:
        """The commitment to what a run's log holds, such as :attr:`runs.Record.steps`.

        Raises:
          CommitmentError: no steps, or one without leaves.
        """
        return cls(tuple(step(number, steps[number]) for number in sorted(steps)))

    @functools.cached_property
    def tree(self) -> Tree:
        return Tree(x.entry for x in self.steps)

    @property
    def bytes(self) -> bytes:
        return commitment(self.tree.size, self.tree.root)

    def __str__(self) -> str:
        return f"sha256:{self.bytes.hex()}"


@dataclasses.dataclass(frozen=True)
class Opening:
    """What one leaf of one step was, and the hashes that show it.

    Attributes:
      number: of the step.
      leaf: its tree, path and digest.
      place, count: of the step among those of the log, and how many there are.
      leaf_place, leaf_count: of the leaf among those of the step, and how many there are.
      leaf_proof, step_proof: hashes from the leaf to the step, and from there to the root.
    """

    number: int
    leaf: tuple[str, str, str]
    place: int
    count: int
    leaf_place: int
    leaf_count: int
    leaf_proof: tuple[bytes, ...]
    step_proof: tuple[bytes, ...]

    @property
    def hashes(self) -> int:
        """How many hashes the proof takes."""
        return len(self.leaf_proof) + len(self.step_proof)

    def check(self, expected: str) -> None:
        """Check that a commitment, ``sha256:`` and 64 digits, is to this leaf.

        Raises:
          CommitmentError: it is to something else.
        """
        leaves_root = root(
            entry("leaf", *self.leaf), self.leaf_place, self.leaf_count, self.leaf_proof
        )
        of_step = Step(self.number, self.leaf_count, leaves_root)
        steps_root = root(of_step.entry, self.place, self.count, self.step_proof)
        found = f"sha256:{commitment(self.count, steps_root).hex()}"
        if found != expected:
            raise CommitmentError(
                f"step {self.number}, {self.leaf[0]}: {self.leaf[1]}: expected a proof for the "
                f"commitment {expected}, received one for {found}"
            )


def open_leaf(steps: Mapping[int, StepTrees], number: int, tree: str, path: str) -> Opening:
    """The opening of a leaf of a step, from what a run's log holds.

    Raises:
      CommitmentError: there is no such leaf.
    """
    if path not in steps.get(number, {}).get(tree, {}):
        raise CommitmentError(f"expected a leaf of the log, received step {number}, {tree}: {path}")
    whole = Commitment.of_steps(steps)
    place = [x.number for x in whole.steps].index(number)
    known = leaves(steps[number])
    leaf = tree, path, steps[number][tree][path]
    leaf_place = known.index(leaf)
    return Opening(
        number,
        leaf,
        place,
        len(whole.steps),
        leaf_place,
        len(known),
        tuple(step_tree(steps[number]).proof(leaf_place)),
        tuple(whole.tree.proof(place)),
    )
