"""How two runs part: which leaves differ in which steps, and by how much layers do over time.

Logs hold digests of all steps, so the first is a map of yes and no.  The second is said by arrays:
those of the checkpoints of ``repjax log``, and the final parameters.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from repjax.verify import runs, training, variability
from repjax.verify.variability import Variability

#: The most columns of a map, and the most checkpoints that are read.
MOST_COLUMNS, MOST_CHECKPOINTS = 240, 32
#: What a leaf is in some steps.
AGREES, DIFFERS, MISSING = "agrees", "differs", "in one of the two alone"


# --- leaves by steps ---------------------------------------------------------------------


@dataclasses.dataclass
class Leaf:
    """How the digests of a leaf compare: by column; the first step that differs, and how many."""

    name: str
    states: list[str | None]
    first: int | None = None
    count: int = 0


@dataclasses.dataclass(frozen=True)
class Agreement:
    """Of two runs: the number of steps that both logged, the first step of each column, leaves."""

    steps: int
    columns: list[int]
    leaves: list[Leaf]

    @property
    def differing(self) -> list[Leaf]:
        """Those that ever differ, in the order in which they begin to."""
        found = [leaf for leaf in self.leaves if leaf.first is not None]
        return sorted(found, key=lambda leaf: leaf.first)


def agreement_of(
    first: runs.Record, second: runs.Record, progress: Callable[[int], None]
) -> Agreement:
    """A column of several steps differs if one of them does."""
    common = sorted(first.steps.keys() & second.steps.keys())
    width = min(MOST_COLUMNS, len(common))
    columns = [common[-(-k * len(common) // width)] for k in range(width)]
    leaves: dict[tuple[str, str], Leaf] = {}
    for i, n in enumerate(common):
        column = i * width // len(common)
        trees = first.steps[n], second.steps[n]
        for tree in sorted(trees[0].keys() | trees[1].keys()):
            a, b = (found.get(tree, {}) for found in trees)
            for path in a.keys() | b.keys():
                leaf = leaves.get((tree, path))
                if leaf is None:
                    leaf = leaves[tree, path] = Leaf(f"{tree}: {path}", [None] * width)
                _note(leaf, column, n, a.get(path), b.get(path))
        progress(i + 1)
    return Agreement(len(common), columns, [leaves[key] for key in sorted(leaves)])


def _note(leaf: Leaf, column: int, n: int, a: str | None, b: str | None) -> None:
    state = AGREES if a == b else MISSING if a is None or b is None else DIFFERS
    if state != AGREES:
        leaf.count += 1
        leaf.first = n if leaf.first is None else leaf.first
    if leaf.states[column] != DIFFERS and (state != AGREES or leaf.states[column] is None):
        leaf.states[column] = state


# --- layers over time --------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Layers:
    """By how much layers differ.

    Attributes:
      columns: steps of checkpoints, and ``final``.
      of: the measures by layer and by column, None where a layer is not in both runs.
      left_out: how many checkpoints were not read.
      other: leaves of other shapes or types.
    """

    columns: list[str]
    of: dict[str, list[Variability | None]]
    left_out: int
    other: list[str]


def layers_of(
    first: runs.Record, second: runs.Record, progress: Callable[[int], None]
) -> Layers | None:
    """Of checkpoints of the same steps and of the final parameters; None without any."""
    steps = sorted(training.checkpoints(first.name).keys() & training.checkpoints(second.name))
    chosen = spread(steps, MOST_CHECKPOINTS)
    found, other = [], {}
    for i, n in enumerate(chosen):
        arrays = (training.arrays_after(run, n) for run in (first, second))
        found.append(_layers(*arrays, other))
        progress(i + 1)
    columns = [str(n) for n in chosen]
    if first.params is not None and second.params is not None:
        found.append(_layers(first.params, second.params, other))
        columns.append("final")
    names = {name: None for column in found for name in column}
    of = {name: [column.get(name) for column in found] for name in names}
    return Layers(columns, of, len(steps) - len(chosen), [*other]) if of or other else None


def _layers(
    a: dict[str, np.ndarray], b: dict[str, np.ndarray], other: dict[str, None]
) -> dict[str, Variability]:
    """The measures of each layer; names of leaves that cannot be measured go to ``other``."""
    layers: dict[str, list[Variability]] = {}
    for path in (p for p in a if p in b):
        x, y = a[path], b[path]
        if x.dtype != y.dtype or x.shape != y.shape:
            kinds = (f"{v.dtype}[{','.join(map(str, v.shape))}]" for v in (x, y))
            other[f"{path} ({' against '.join(kinds)})"] = None
        elif variability.is_float(x):
            layer = path.rpartition("/")[0] or path
            layers.setdefault(layer, []).append(variability.measure(path, x, y))
    return {name: variability.together(name, found) for name, found in layers.items()}


def spread(items: Sequence[Any], most: int) -> list[Any]:
    """At most so many of them, the first and the last among them."""
    if len(items) <= most:
        return [*items]
    return [items[i * (len(items) - 1) // (most - 1)] for i in range(most)]
