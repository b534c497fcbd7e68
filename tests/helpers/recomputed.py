"""Programs, whose equations the independent reference computes once more."""

from __future__ import annotations

import dataclasses
import functools
import json
import subprocess
import sys

import numpy as np

import repjax
from repjax.verify import recomputation, reference, traces, walk


@dataclasses.dataclass
class Recomputed:
    """What came of it.

    Attributes:
      names: of the primitives that have the same bits.
      without: of those that have no reference, and why.
      differ: equations with other bits, as text.
    """

    names: set[str] = dataclasses.field(default_factory=set)
    without: dict[str, str] = dataclasses.field(default_factory=dict)
    differ: list[str] = dataclasses.field(default_factory=list)


def recomputed(function, *args, elements: bool = True, plain: bool = False, **orders) -> Recomputed:
    """Of a function, made reproducible unless ``plain``; of large results, an element as well."""
    function = function if plain else repjax.reproducible(function, **orders)
    found = Recomputed()
    for step in walk.steps(walk.program(function, args)):
        name = reference.short(step.equation.primitive.name)
        try:
            again = recomputation.recompute(step)
        except reference.NoReference as error:
            found.without[name] = str(error)
            continue
        for number, (x, y) in enumerate(zip(step.results, again, strict=True)):
            x = traces.one_nan(recomputation.as_numpy(x))
            if not _same(x, y):
                found.differ.append(f"{traces.describe(step)} gives {x}, the reference {y}")
            elif elements and x.size > 1 and name in reference.PARTS:
                at = tuple(n // 2 for n in x.shape)
                one = recomputation.recompute_element(step, at, number)
                if not _same(np.asarray(x[at]), one):
                    found.differ.append(f"{traces.describe(step)} has {x[at]} at {at}, not {one}")
        found.names.add(name)
    return found


_PRIMITIVES = """
import json, repjax
from repjax.primitives.core.tables import PRIMITIVES
print(json.dumps(sorted(PRIMITIVES)))
"""


@functools.cache
def own_primitives() -> set[str]:
    """Names of repjax's primitives, without those that tests of this process have defined."""
    done = subprocess.run(
        [sys.executable, "-c", _PRIMITIVES], capture_output=True, text=True, check=True
    )
    return set(json.loads(done.stdout))


def _same(x: np.ndarray, y: np.ndarray) -> bool:
    if x.dtype != y.dtype or x.shape != y.shape:
        return False
    return np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes()
