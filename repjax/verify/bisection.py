"""The first difference: where two traces of one program part.

An equation is where they part if it reads the same bits on both sides and gives others.  All that
differs later may follow from it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import difflib
import pathlib
import sys
import tempfile
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from repjax import checkpoint
from repjax.verify import comparison, runs, scripts, settings, traces, training, variability
from repjax.verify.progress import counter
from repjax.verify.traces import Equation, Trace, TraceError, Value

#: How two traces differ, in the order of what comes first in a program.
KINDS = ("same", "steps", "inputs", "equation", "program", "results", "together")


@dataclasses.dataclass(frozen=True)
class Difference:
    """Where two traces part.

    Attributes:
      kind: ``same``; ``steps``, of runs that agree in those that both have, and whose numbers are
        ``names``; ``inputs``, by their paths in ``names``; ``equation``, which reads the same
        and gives something else on the two sides, ``first`` and ``second``; ``program``, whose
        equations ``first`` and ``second`` stand in the place of each other; ``results``, which are
        other equations' on the two sides; ``together``, where all equations agree alone and the
        compiled programs do not, in the results ``names``.
    """

    kind: str
    names: tuple[str, ...] = ()
    first: tuple[Equation, ...] = ()
    second: tuple[Equation, ...] = ()

    def __str__(self) -> str:
        return _TEXTS[self.kind](self)


def _programs(found: Difference) -> str:
    sides = zip(("first", "second"), (found.first, found.second), strict=True)
    return "the programs differ:" + "".join(
        f"\n  the {side} computes "
        + (", ".join(f"{e.primitive} at {e.line}" for e in equations) or "nothing there")
        for side, equations in sides
    )


def _equations(found: Difference) -> str:
    (a,), (b,) = found.first, found.second
    reads = ", ".join(kind for kind, _ in a.reads)
    gives = ", ".join(kind for (kind, x), (_, y) in zip(a.gives, b.gives, strict=True) if x != y)
    if not a.reads:
        return f"{a}, gives another {gives} if the program is compiled up to it, and not alone"
    if a.reads == b.reads:
        return f"{a}, reads the same {reads} and gives another {gives}"
    which = [str(i) for i, (x, y) in enumerate(zip(a.reads, b.reads, strict=True)) if x != y]
    return f"{a}, has another constant: its operand {', '.join(which)} of {reads}"


_TEXTS = {
    "same": lambda found: "no difference",
    "steps": lambda found: (
        "no difference in the steps that both logged, and the numbers of their steps differ: "
        + " and ".join(found.names)
    ),
    "inputs": lambda found: f"the inputs differ: {', '.join(found.names)}",
    "equation": _equations,
    "program": _programs,
    "results": lambda found: f"the programs return other values as {', '.join(found.names)}",
    "together": lambda found: (
        "no equation differs by itself, and the compiled programs do, in "
        f"{', '.join(found.names)}: trace them with the level together or up-to"
    ),
}


def bisect(first: Trace, second: Trace) -> Difference:
    """Where two traces part.

    Raises:
      TraceError: traces of other levels or programs, or without equations in common.
    """
    if first.level != second.level:
        raise TraceError(
            f"bisect: expected traces of one level, received {first.level} and {second.level}; "
            "trace one of them again"
        )
    if first.inputs.keys() != second.inputs.keys():
        both = ", ".join(sorted(first.inputs.keys() ^ second.inputs.keys()))
        raise TraceError(
            f"bisect: expected two traces of one program, received {first.program} and "
            f"{second.program}, which do not both have the inputs {both}"
        )
    if found := _names(first.inputs, second.inputs):
        return Difference("inputs", found)
    return (
        _first_equation(first, second)
        or _results("results", first.alone, second.alone)
        or _results("together", first.compiled, second.compiled)
        or Difference("same")
    )


def _names(a: dict[str, str], b: dict[str, str]) -> tuple[str, ...]:
    return tuple(k for k in {**a, **b} if a.get(k) != b.get(k))


def _results(kind: str, a: dict[str, str], b: dict[str, str]) -> Difference | None:
    found = _names(a, b)
    return Difference(kind, found) if found else None


def _first_equation(a: Trace, b: Trace) -> Difference | None:
    """The first equation that gives something else, or what stands in the place of others."""
    blocks: dict[Value, Difference] = {}  # by the values that equations without counterpart give
    for first, second in _aligned(a.equations, b.equations):
        found = Difference("equation", (), first, second)
        if len(first) != 1 or len(second) != 1 or _key(first[0]) != _key(second[0]):
            found = dataclasses.replace(found, kind="program")
            blocks.update((x, found) for e in (*first, *second) for x in e.gives)
            continue
        (x,), (y,) = first, second
        if x.gives == y.gives:
            continue
        others = [
            v for pair in zip(x.reads, y.reads, strict=True) if pair[0] != pair[1] for v in pair
        ]
        return next((blocks[v] for v in others if v in blocks), found)
    # What nothing reads that both programs have may still be a result.
    givers = {given: found for (_, given), found in blocks.items()}
    names = _names(a.alone, b.alone)
    results = [side[name] for name in names for side in (a.alone, b.alone) if name in side]
    return next((givers[x] for x in results if x in givers), None)


_Block = tuple[tuple[Equation, ...], tuple[Equation, ...]]


def _aligned(a: Sequence[Equation], b: Sequence[Equation]) -> Iterator[_Block]:
    """Pairs of equations that correspond, and blocks of those that have no counterpart."""
    keys = list(map(_key, a)), list(map(_key, b))
    same = _common(*keys)
    yield from (((x,), (y,)) for x, y in zip(a[:same], b[:same], strict=True))
    if same == len(a) == len(b):
        return
    matcher = difflib.SequenceMatcher(None, keys[0][same:], keys[1][same:], autojunk=False)
    for tag, i, j, k, m in matcher.get_opcodes():
        block = tuple(a[same + i : same + j]), tuple(b[same + k : same + m])
        if tag == "equal":
            yield from (((x,), (y,)) for x, y in zip(*block, strict=True))
        else:
            yield block


def _key(equation: Equation) -> tuple[Any, ...]:
    """What an equation is, in all versions: a place depends on the calls around it."""
    return equation.primitive, equation.line, tuple(kind for kind, _ in equation.gives)


def _common(a: Sequence[Any], b: Sequence[Any]) -> int:
    """The length of what two sequences begin with."""
    return next(
        (i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b))
    )


# --- both sides on one machine ----------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Located:
    """Where a program under two settings parts.

    Attributes:
      step: of a training, the first one that differs, else None.
      difference: in that step, or in the program; None if no step differs.
      elements: which elements differ, of an equation.
    """

    step: comparison.Place | None
    difference: Difference | None
    elements: str = ""

    @property
    def same(self) -> bool:
        return self.step is None and (self.difference is None or self.difference.kind == "same")

    def __str__(self) -> str:
        if self.same:
            return "no difference"
        lines = [f"the first that differs is {self.step}"] if self.step else []
        lines += [f"{'in it, ' if self.step else ''}{self.difference}"] if self.difference else []
        return "\n".join([*lines, *filter(None, [self.elements])])


def locate(program: str, pair: Sequence[settings.Setting], folder, step: int | None = None):
    """Run ``script.py:name`` under two settings, and find where they part.

    A training is logged on both sides, and the first step that differs is traced on both from the
    state and the batch of the first side; a function is traced at once, with the constants of the
    first side.  Where no equation differs by itself, equations are traced compiled together.

    Args:
      program: a function without arguments, or a :class:`repjax.verify.Training`.
      pair: two settings.
      folder: a directory for logs and traces.
      step: of a training, traced without logging others before it; 0 is the initial state.

    Raises:
      ValueError: what the commands of the two sides say, which raised it.
    """
    folder = pathlib.Path(folder)
    place = None
    options = []
    if isinstance(scripts.load(program), training.Training) and step is None:
        logged = [folder / f"run-{side}" for side in "ab"]
        for setting, path in zip(pair, logged, strict=True):
            _command(setting, ["log", program, "--output", str(path)])
        place = comparison.first_step(*map(runs.read, logged))
        if place is None:
            return Located(None, None)
        options = ["--step", str(place.number), "--from", str(logged[0])]
    elif step is not None:
        options = ["--step", str(step)]
    for level in ("equation", "together", "up-to"):
        found = _traced(program, pair, folder, [*options, "--level", level], level)
        if found.kind not in ("same", "together"):
            break
    elements = _elements(program, pair, folder, [*options, "--level", level], found)
    return Located(place, found, elements)


def _command(setting: settings.Setting, arguments: list[str]) -> None:
    done = settings.run(setting, arguments)
    if done.returncode:
        raise ValueError(f"{setting.text}: {done.stderr.strip() or done.returncode}")


def _inputs(folder: pathlib.Path, side: int, level: str) -> list[str]:
    """The first side writes its inputs, and the second one reads them."""
    return [("--save-inputs", "--inputs")[side], str(folder / f"inputs-{level}.npz")]


def _traced(program, pair, folder, options, level) -> Difference:
    found = []
    for side, setting in enumerate(pair):
        path = folder / f"{'ab'[side]}-{level}.trace"
        given = [*options, *_inputs(folder, side, level), "--setting", setting.text]
        _command(setting, ["trace", program, *given, "--output", str(path)])
        found.append(traces.read(path))
    return bisect(*found)


def _elements(program, pair, folder, options, found: Difference) -> str:
    """Which elements of the first result that differs do."""
    if found.kind != "equation":
        return ""
    both = []
    for side, (setting, (equation,)) in enumerate(
        zip(pair, (found.first, found.second), strict=True)
    ):
        path = folder / f"{'ab'[side]}-values.npz"
        inputs = ["--inputs", str(folder / f"inputs-{options[-1]}.npz")]
        given = [*options, *inputs, "--values", equation.place]
        _command(setting, ["trace", program, *given, "--output", str(path)])
        values = checkpoint.load_leaves(path)
        given = {int(number): x for (kind, number), x in values.items() if kind == "gives"}
        both.append([traces.one_nan(given[i]) for i in range(len(equation.gives))])
    pairs = zip(*both, strict=True)
    return next(elements(a, b) for a, b in pairs if variability.differing(a, b).any())


def elements(a: np.ndarray, b: np.ndarray) -> str:
    """How many elements of two arrays of one type differ in bits, and the first that does."""
    if a.dtype.kind == "c":  # its two parts along another axis
        a, b = (np.stack([x.real, x.imag], -1) for x in (a, b))
    places = np.argwhere(variability.differing(a, b))
    at = tuple(map(int, places[0]))
    sides = [runs.Number.of("an element", x[at]) for x in (a, b)]
    shown = " against ".join(f"0x{x.bits} ({x})" for x in sides)
    where = f" at {list(at)}" if at else ""
    return f"{len(places)} of {a.size} elements differ, the first{where}: {shown}"


# --- the command ------------------------------------------------------------------------


def add_command(commands) -> None:
    parser = commands.add_parser(
        "bisect",
        help="where do two runs, traces or settings part?",
        description="Find the first step and leaf of two runs, the first equation of two traces, "
        "or both of a program of a script under two settings, that differ.  Exit status: 0 nothing "
        "differs, 1 the place was found, 2 the request cannot be met.",
        epilog="examples: repjax bisect runs/laptop runs/server; "
        "repjax bisect train.py:training --settings plain+SSE4_2,plain+AVX512",
    )
    parser.add_argument("first", metavar="A", help="a run, a trace, or SCRIPT:NAME")
    parser.add_argument("second", metavar="B", nargs="?", help="another run or trace")
    parser.add_argument(
        "--settings",
        metavar="A,B",
        help="of SCRIPT:NAME: words with + between them, such as plain, repjax, SSE4_2, AVX2, "
        "kernels=off, devices=8, python=PATH, --xla_FLAG=VALUE, NAME=VALUE",
    )
    parser.add_argument("--step", type=int, help="of a training: this one alone")
    parser.add_argument("--output", metavar="DIR", help="keep logs and traces there")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    try:
        if (arguments.settings is None) == (arguments.second is None):
            raise TraceError("expected A and B, or SCRIPT:NAME and --settings")
        found = _of_settings(arguments) if arguments.settings else _of_files(arguments)
    except (OSError, ValueError) as error:
        print(f"repjax bisect: {error}", file=sys.stderr)
        return 2
    print(found)
    if found.step and found.difference is None:
        print(
            "to find the equation, repjax trace SCRIPT:NAME "
            f"--step {found.step.number} --from {arguments.first} --output FILE on both machines, "
            "and repjax bisect of the two files; or repjax bisect SCRIPT:NAME --settings A,B",
            file=sys.stderr,
        )
    return 0 if found.same else 1


def _of_settings(arguments) -> Located:
    pair = [settings.parse(x) for x in arguments.settings.split(",")]
    if len(pair) != 2:
        raise TraceError(f"expected two settings, received {len(pair)}")
    with contextlib.ExitStack() as stack:
        if arguments.output is None:
            folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
        else:
            folder = pathlib.Path(arguments.output)
            folder.mkdir(parents=True, exist_ok=True)
            if any(folder.iterdir()):
                raise TraceError(f"{folder}: expected no files, received a directory with some")
        return locate(arguments.first, pair, folder, arguments.step)


def _of_files(arguments) -> Located:
    paths = [pathlib.Path(x) for x in (arguments.first, arguments.second)]
    if not any(path.is_dir() for path in paths):
        return Located(None, bisect(*map(traces.read, paths)))
    with counter("records of the runs") as progress:
        first, second = (runs.read(path, progress) for path in paths)
    if not first.steps.keys() & second.steps.keys():
        raise TraceError(
            f"bisect: expected runs that logged the same steps, received {len(first.steps)} and "
            f"{len(second.steps)} steps, none of them the same; repjax compare has the rest"
        )
    place = comparison.first_step(first, second)
    if place is None and first.steps.keys() != second.steps.keys():
        counts = (str(len(run.steps)) for run in (first, second))
        return Located(None, Difference("steps", tuple(counts)))
    return Located(place, None)
