"""Traces: the digests of what each equation of a program reads and gives.

A trace is a sealed log (:mod:`repjax.verify.logs`).

**Format 1.**  The first record, of the kind ``trace``, has ``level``, ``program`` (its name),
``setting`` (:mod:`repjax.verify.settings`), ``info`` of the process, and ``inputs``, digests by
path.  But at the level ``leaf``, a record of the kind ``equation`` follows for each one that was
computed, in that order: ``place`` (:class:`repjax.verify.walk.Step`), ``primitive``, ``line`` of
the source, ``parameters`` as text, ``reads`` and ``gives``, pairs of type and digest, and
``orders`` of sums and products, where repjax computed it.  The last one, of the kind ``end``, has
``results``, digests by path: ``alone`` as the equations gave them, and ``compiled`` as ``jax.jit``
of the whole program does.

Digests are those of :func:`repjax.digest` of one array in which all NaNs have the same bits: which
NaN an operation gives is no difference.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import inspect
import os
import pathlib
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import jax
import numpy as np
from jax.extend import source_info_util
from jax.extend.core import jaxprs_in_params

from repjax import checkpoint
from repjax.digests import digest
from repjax.information import info
from repjax.primitives.core.tables import RefusedError
from repjax.verify import logs, scripts, settings, training, walk
from repjax.verify.progress import counter

FORMAT, VERSION = "repjax trace", 1
LEVELS = ("leaf", "equation", "together", "up-to")
_COMPUTE = {
    "equation": walk.steps,
    "together": walk.steps_together,
    "up-to": walk.steps_up_to,
}
MOST_CHARACTERS = 400  # of the parameters of an equation

Value = tuple[str, str]  # type and digest


class TraceError(ValueError):
    """A trace that cannot be made or read; no file was changed."""


@dataclasses.dataclass(frozen=True)
class Equation:
    """An equation as it was computed; the module describes the fields."""

    place: str
    primitive: str
    line: str
    parameters: str
    reads: tuple[Value, ...]
    gives: tuple[Value, ...]
    orders: tuple[str, str] | None = None

    def __str__(self) -> str:
        return f"equation {self.place}, {self.primitive}, at {self.line}"


@dataclasses.dataclass(frozen=True)
class Trace:
    """What a program computed; the module describes the fields."""

    program: str
    level: str
    setting: str
    info: dict[str, str]
    inputs: dict[str, str]
    equations: list[Equation]
    alone: dict[str, str]
    compiled: dict[str, str]


def one_nan(x) -> Any:
    """The array, every NaN of it the same, as NumPy; keys as they are."""
    if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key):
        return x
    x = np.asarray(x)
    if not jax.dtypes.issubdtype(x.dtype, np.inexact):
        return x
    if x.dtype.kind == "c":
        part = x.real.dtype
        return one_nan(np.array(x, order="C")[..., None].view(part)).view(x.dtype)[..., 0]
    return np.where(np.isnan(x), np.array(np.nan, x.dtype), x)


def _digest(x) -> str:
    return digest(one_nan(x))


def _value(x) -> Value:
    return f"{x.dtype.name}[{','.join(map(str, x.shape))}]", _digest(x)


#: Of an equation of which JAX has not kept the user's line.
UNKNOWN = "an unknown line"


def line(step: walk.Step) -> str:
    """:func:`source`, the file without its folders: another machine has others."""
    file, colon, rest = source(step).partition(":")
    return f"{pathlib.PurePath(file).name}{colon}{rest}"


def source(step: walk.Step) -> str:
    """The user's file, line, column and function.

    Where JAX knows none of the equation, those of what it is in, or of what is in it.
    """
    inside = [e for jaxpr in jaxprs_in_params(step.equation.params) for e in jaxpr.eqns]
    for equation in (step.equation, *reversed(step.within), *inside):
        place = source_info_util.summarize(equation.source_info)
        if place and "unknown" not in place:
            return place
    return UNKNOWN


def _parameters(equation) -> str:
    shown = ", ".join(f"{k}={v}" for k, v in sorted(equation.params.items()) if v is not None)
    shown = re.sub(r"( at )?0x[0-9a-f]{6,}|id=\d+", "", shown)  # where objects are in memory
    return " ".join(shown.split())[:MOST_CHARACTERS]


def describe(step: walk.Step) -> Equation:
    """The record of a step."""
    return Equation(
        step.place,
        step.equation.primitive.name,
        line(step),
        _parameters(step.equation),
        tuple(map(_value, step.operands)),
        tuple(map(_value, step.results)),
        step.orders,
    )


def trace(
    function: Callable[..., Any],
    *args: Any,
    level: str = "equation",
    path: str | os.PathLike[str] | None = None,
    name: str | None = None,
    setting: str = "",
    progress: Callable[[int], None] | None = None,
    **kwargs: Any,
) -> Trace:
    """Compute a function, and note the digests of what each of its equations reads and gives.

    Args:
      function: a function of trees of arrays, or of none.  Functions of ``repjax.reproducible``
        in it, or the switch, are computed by repjax; all else as plain JAX does.
      *args, **kwargs: its arguments.
      level: ``"equation"``; ``"together"``, to compile equations as one program that returns what
        each gives, loops and branches being one equation each, which shows what the compiler makes
        of several together; ``"up-to"``, to compile for each equation the program up to it, which
        shows what it makes of those before; or ``"leaf"`` for the arguments and results alone.
      path: a file to write, which must not exist.
      name, setting: for the record.
      progress: called with the number of equations so far.

    Raises:
      TraceError: the level, or the file.
      RefusedError: an operation that has no reproducible form.
    """
    if level not in LEVELS:
        raise TraceError(f"trace: expected the level {', '.join(LEVELS)}, received {level!r}")
    program = walk.program(function, args, kwargs, written=level == "equation")
    name = name or getattr(function, "__name__", "a function")
    return trace_program(
        program, level=level, path=path, name=name, setting=setting, progress=progress
    )


def trace_program(
    program: walk.Program, *, level: str, path, name: str, setting: str, progress
) -> Trace:
    """:func:`trace` of a program."""
    if path is not None and pathlib.Path(path).exists():
        raise TraceError(f"{path}: expected no file, received one; choose another name")
    inputs = {place: _digest(x) for place, x in program.inputs.items()}
    about = {k: str(v) for k, v in info().items()}
    found = Trace(name, level, setting, about, inputs, [], {}, {})
    with _writer(path) as write:
        kinds = {"format": FORMAT, "version": VERSION, "level": level, "program": name}
        write({"kind": "trace", **kinds, "setting": setting, "info": about, "inputs": inputs})
        if level != "leaf":
            results = _each(_COMPUTE[level](program), found.equations, write, progress)
            found.alone.update(zip(program.results, map(_digest, results), strict=True))
        found.compiled.update(
            zip(program.results, map(_digest, walk.compiled(program)), strict=True)
        )
        write({"kind": "end", "results": {"alone": found.alone, "compiled": found.compiled}})
    return found


def _each(computed, equations: list[Equation], write, progress) -> list[Any]:
    """Describe all steps; the results of the program."""
    while True:
        try:
            step = next(computed)
        except StopIteration as end:
            return end.value
        equations.append(equation := describe(step))
        write({"kind": "equation", **dataclasses.asdict(equation)})
        if progress:
            progress(len(equations))


@contextlib.contextmanager
def _writer(path) -> Iterator[Callable[[dict[str, Any]], None]]:
    """A function that writes a record; the file takes its name when all is written."""
    if path is None:
        yield lambda record: None
        return
    with checkpoint.replacing(path) as file:
        yield logs.Writer(file).write


def read(path: str | os.PathLike[str]) -> Trace:
    """Read a trace.

    Raises:
      TraceError: no trace, one of another version, one that was changed, or cut short.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        raise TraceError(f"expected a trace, received {path}, which is no file")
    try:
        records = logs.read(path, FORMAT, VERSION).records
        if not records or records[-1]["kind"] != "end":
            raise TraceError(f"{path}: expected a whole trace, received one that was cut short")
        first, *equations, end = records
        if any(x["kind"] != "equation" for x in equations):
            raise KeyError("kind")
        return Trace(
            *(first[k] for k in ("program", "level", "setting", "info", "inputs")),
            [_equation(x) for x in equations],
            end["results"]["alone"],
            end["results"]["compiled"],
        )
    except logs.LogError as error:
        raise TraceError(str(error)) from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        if isinstance(error, TraceError):
            raise
        raise TraceError(
            f"{path}: expected the records of a trace, received others ({error!r})"
        ) from error


def _equation(record) -> Equation:
    fields = {k: v for k, v in record.items() if k != "kind"}
    for name in ("reads", "gives"):
        fields[name] = tuple((str(kind), str(bits)) for kind, bits in fields[name])
    fields["orders"] = tuple(fields["orders"]) if fields["orders"] else None
    return Equation(**fields)


# --- the command ------------------------------------------------------------------------


def add_command(commands) -> None:
    parser = commands.add_parser(
        "trace",
        help="note what each equation of a program reads and gives",
        description="Compute a function without arguments of a script, or a step of a "
        "repjax.verify.Training, equation by equation, and write the digests of what each reads "
        "and gives.  Compare two traces by repjax bisect.",
        epilog="examples: repjax trace train.py:main --output laptop.trace; "
        "repjax trace --settings plain+SSE4_2,plain+AVX512 train.py:main",
    )
    parser.add_argument("program", metavar="SCRIPT:NAME", help="such as train.py:main")
    parser.add_argument("--output", metavar="FILE", help="the trace; with --settings a folder")
    parser.add_argument(
        "--settings",
        metavar="A,B",
        help="compute both sides on this machine, and say where they part: the same as repjax "
        "bisect SCRIPT:NAME --settings A,B, whose --help has the words",
    )
    parser.add_argument("--level", choices=LEVELS, help="the default is equation")
    parser.add_argument(
        "--step",
        type=int,
        help="of a training; 0: its initial state; the default is 1, or with --settings the first "
        "that differs",
    )
    parser.add_argument("--from", dest="run_of", metavar="RUN", help="a log with the state before")
    parser.add_argument("--inputs", metavar="FILE", help="start from these instead of one's own")
    parser.add_argument("--save-inputs", metavar="FILE", help="write one's own")
    parser.add_argument("--values", metavar="PLACE", help="of this equation; --output has them")
    parser.add_argument("--setting", default="", help="a name, for the record")
    settings.add_options(parser)
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    if arguments.settings:
        return _bisect(arguments)
    arguments.level = arguments.level or "equation"
    try:
        if arguments.values and not arguments.output:
            raise TraceError("--values: expected --output FILE, which is to have them")
        settings.enable(arguments)
        program = program_of(arguments)
        if arguments.inputs:
            inputs, _ = checkpoint.load(arguments.inputs, program.inputs)
            program = dataclasses.replace(program, inputs=inputs)
        if arguments.save_inputs:
            checkpoint.save(arguments.save_inputs, program.inputs)
        if arguments.values:
            checkpoint.save(arguments.output, values(program, arguments.values, arguments.level))
        else:
            with counter("equations") as progress:
                found = trace_program(
                    program,
                    level=arguments.level,
                    path=arguments.output,
                    name=arguments.program,
                    setting=arguments.setting,
                    progress=progress,
                )
            print(f"{len(found.equations)} equations", file=sys.stderr)
    except (OSError, ValueError, RefusedError) as error:
        print(f"repjax trace: {error}", file=sys.stderr)
        return 2
    return 0


def _bisect(arguments) -> int:
    """Both sides: what repjax bisect does, in a process of its own."""
    of_one_side = {"run_of": "--from"} | {
        name: f"--{name.replace('_', '-')}"
        for name in (
            *("level", "inputs", "save_inputs", "values", "setting"),
            *("repjax", "accumulation", "contraction"),
        )
    }
    if given := [option for name, option in of_one_side.items() if getattr(arguments, name)]:
        print(
            "repjax trace: expected --settings with --step and --output alone, received "
            f"{given[0]}, too; the words of a setting say what holds for one side",
            file=sys.stderr,
        )
        return 2
    options = [arguments.program, "--settings", arguments.settings]
    for name in ("step", "output"):
        if (value := getattr(arguments, name)) is not None:
            options += [f"--{name}", str(value)]
    return subprocess.run([sys.executable, "-m", "repjax", "bisect", *options]).returncode


def program_of(arguments) -> walk.Program:
    """What the arguments of a command name: a function, or a step of a training.

    Raises:
      TraceError, TrainingError, ScriptError: it is none, or there is no such step.
    """
    found = scripts.load(arguments.program)
    written = arguments.level == "equation"
    if not isinstance(found, training.Training):
        if not callable(found):
            raise TraceError(
                f"{arguments.program}: expected a function without arguments or a "
                f"repjax.verify.Training, received {type(found).__name__}"
            )
        _check_arguments(arguments.program, found)
        return walk.program(found, written=written)
    n = 1 if arguments.step is None else arguments.step
    if not 0 <= n <= found.steps:
        raise TraceError(f"expected a step from 0 to {found.steps}, received {n}")
    if n == 0:
        return walk.program(found.state, written=written)
    if arguments.inputs or not arguments.run_of:
        if n > 1 and not arguments.inputs:
            raise TraceError(f"step {n}: expected --from RUN, a log that repjax log wrote")
        state = found.state()
    else:
        with counter(f"repeated steps up to {n - 1}") as progress:
            state = training.state_after(found, arguments.run_of, n - 1, progress)
    return walk.program(found.step, (state, found.batch(n - 1)), written=written)


def _check_arguments(name: str, function: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(function)
    except ValueError:  # a function that says nothing of its arguments
        return
    try:
        signature.bind()
    except TypeError as error:
        raise TraceError(
            f"{name}: expected a function without arguments, received {signature}; call it in a "
            "function of none, or make a repjax.verify.Training of it"
        ) from error


def values(program: walk.Program, place: str, level: str = "equation") -> dict[str, Any]:
    """What one equation reads and gives: arrays named ``reads`` and ``gives`` and their numbers.

    Raises:
      TraceError: there is no such equation.
    """
    for step in _COMPUTE[level](program):
        if step.place == place:
            return {
                "reads": dict(enumerate(step.operands)),
                "gives": dict(enumerate(step.results)),
            }
    raise TraceError(f"expected the place of an equation, received {place!r}")
