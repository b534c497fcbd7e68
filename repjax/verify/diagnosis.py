"""What in a script keeps it from giving the same bits: ``repjax diagnose``.

The script runs as it is, and is watched: which programs JAX compiles and which operations are in
them, in plain JAX or by repjax, what repjax would refuse, and the hazards of Python around them
(:mod:`repjax.verify.hazards`).
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import dataclasses
import json
import os
import pathlib
import sys
import traceback
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import jaxprs_in_params

from repjax import checkpoint, config, rewrite, tracing
from repjax.primitives.core import tables
from repjax.primitives.core.programs import open_jaxpr
from repjax.verify import recordings, scripts
from repjax.verify.definitions import computed_by
from repjax.verify.hazards import Remark, Watch, follows_hashes, is_users

#: What plain JAX does not keep from one run on a GPU to the next.
ON_GPUS = {
    "scatter-add": "adds in the order of a race where indices repeat",
    "scatter_add": "adds in the order of a race where indices repeat",
    "scatter-mul": "multiplies in the order of a race where indices repeat",
    "select_and_scatter_add": "adds in the order of a race where windows overlap",
    "conv_general_dilated": "is computed by an algorithm that is chosen by timing",
    "dot_general": "is computed by an algorithm that is chosen by timing",
}
#: Options whose value is part of a program, and what they are where nothing is set.
_OPTIONS = {
    "jax_default_prng_impl": "threefry2x32",
    "jax_threefry_partitionable": True,
    "jax_default_matmul_precision": None,
    "jax_enable_x64": False,
    "jax_numpy_dtype_promotion": "standard",
}


@dataclasses.dataclass
class Operation:
    """A primitive of the programs: where it is called, and what repjax has for it."""

    by: str
    places: collections.Counter[str] = dataclasses.field(default_factory=collections.Counter)


@dataclasses.dataclass
class Diagnosis:
    """What was seen.

    Attributes:
      programs: how many were compiled, and how many of them compute floats in plain JAX.
      operations: by name, of programs that compute floats.
      remarks: what to look at, in the order of files and lines.
      failure: what the script raised, or the exit status with which it said that it failed.
    """

    programs: int = 0
    plain: int = 0
    operations: dict[str, Operation] = dataclasses.field(default_factory=dict)
    remarks: list[Remark] = dataclasses.field(default_factory=list)
    failure: Exception | int | None = None

    def __str__(self) -> str:
        lines = [f"{self.programs} programs, {self.plain} of them with floats in plain JAX"]
        for name, found in sorted(self.operations.items()):
            places = ", ".join(_short(x) for x, _ in found.places.most_common(2))
            more = f" and {len(found.places) - 2} more" if len(found.places) > 2 else ""
            lines.append(f"  {name:24} {found.by:28} {places}{more}")
        lines += [f"{len(self.remarks)} remarks" if self.remarks else "no remarks"]
        return "\n".join([*lines, *(f"  {x}" for x in self.remarks)])


def _short(place: str) -> str:
    """A place without the folders of its file."""
    return pathlib.PurePath(place).name


def diagnose(arguments: list[str], *, module: bool = False, patch: bool = False) -> Diagnosis:
    """Run a script and say what in it may give other bits.

    Args:
      arguments: the script and its arguments; or, with ``module``, a module and its own.
      patch: run it with ``repjax_enable``.

    Raises:
      ScriptError: there is no script.
    """
    found = Diagnosis()
    folder = pathlib.Path.cwd() if module else pathlib.Path(arguments[0]).resolve().parent
    programs = _Programs(found, folder)
    if patch:
        jax.config.update("repjax_enable", True)
    config.install()
    config.observers.append(programs.see)
    try:
        # Functions that are made reproducible, as they were written.
        with tracing.as_written(True), Watch(folder) as watch:
            found.failure = scripts.run(arguments, module=module) or None
    except scripts.ScriptError:
        raise
    except Exception as error:
        found.failure = error
    finally:
        config.observers.remove(programs.see)
    remarks = [*watch.remarks, *programs.remarks(), *_settings()]
    for file in _users_files(folder, arguments, module):
        with contextlib.suppress(SyntaxError):  # which Python has said
            remarks += follows_hashes(file)
    found.remarks = sorted((_near(x) for x in set(remarks)), key=_in_order)
    return found


def _in_order(remark: Remark) -> tuple[Any, ...]:
    file, _, line = remark.place.partition(":")
    return file, int(line or 0), remark


def _near(remark: Remark) -> Remark:
    """With the file as seen from here."""
    file, colon, rest = remark.place.partition(":")
    if not file:
        return remark
    near = os.path.relpath(file)
    return dataclasses.replace(
        remark, place=(file if near.startswith("..") else near) + colon + rest
    )


def _users_files(folder: pathlib.Path, arguments: list[str], module: bool) -> set[str]:
    files = {getattr(x, "__file__", None) or "" for x in [*sys.modules.values()]}
    files |= set() if module else {str(pathlib.Path(arguments[0]).resolve())}
    return {x for x in files if x.endswith(".py") and is_users(x, folder)}


class _Programs:
    """The programs that JAX compiles."""

    def __init__(self, found: Diagnosis, folder: pathlib.Path):
        self.found, self.folder = found, folder
        self.plain: dict[str, set[str]] = {}  # operations in plain JAX by place
        self.refused: set[Remark] = set()
        self.reproducible = 0

    def see(self, jaxpr) -> None:
        """Note a program before it is compiled."""
        self.found.programs += 1
        enabled = config.is_enabled()
        floats = [x for x in _equations(jaxpr) if _computes_floats(x.equation)]
        stock = [x for x in floats if not x.ours]
        self.reproducible += len(stock) < len(floats) or enabled
        for x in floats:
            name = x.equation.primitive.name.removeprefix(tables.PREFIX)
            operation = self.found.operations.setdefault(name, Operation(computed_by(name)))
            operation.places[x.place(self.folder)] += 1
        if enabled or not stock:
            return
        self.found.plain += 1
        for x in stock:
            self.plain.setdefault(x.place(self.folder), set()).add(x.equation.primitive.name)
        try:
            rewrite.rewrite(jaxpr)
        except tables.RefusedError as error:
            for line in str(error).splitlines()[1:-1]:
                place, _, text = line.strip().partition(": ")
                self.refused.add(Remark(_line(place), "refused", text))

    def remarks(self) -> Iterator[Remark]:
        yield from self.refused
        users = {
            place: names
            for place, names in self.plain.items()
            if is_users(place.partition(":")[0], self.folder)
        }
        if self.plain and not self.reproducible:
            yield Remark(
                "",
                "plain JAX",
                f"{self.found.plain} programs compute floats, none by repjax; try repjax diagnose "
                "--patch, or repjax run",
            )
        for place, names in users.items():
            if self.reproducible:
                yield Remark(
                    place,
                    "plain JAX",
                    f"computes {_listed(names)} outside of repjax; put it into a reproducible "
                    "function, as parameters made by model.init",
                )
            for name in sorted(names & ON_GPUS.keys()):
                yield Remark(place, "on GPUs", f"{name} {ON_GPUS[name]} in plain JAX")


def _listed(names: set[str], most: int = 6) -> str:
    return ", ".join(sorted(names)[:most]) + (" and others" if len(names) > most else "")


def _line(place: str) -> str:
    """``file:line`` of ``file:line:column (function)``."""
    return ":".join(place.partition(" (")[0].split(":")[:2])


class _Found(NamedTuple):
    """An equation, those that it is in, and whether repjax computes it."""

    equation: Any
    outer: tuple[Any, ...]
    ours: bool

    def place(self, folder: pathlib.Path) -> str:
        """The innermost ``file:line`` below the folder: of the equation, of those that it is in, of
        the call that has it compiled; else of any file that is not JAX's."""
        for equation in (self.equation, *reversed(self.outer)):
            calls = equation.source_info.traceback
            for frame in calls.frames if calls else ():
                if is_users(frame.file_name, folder):
                    return f"{frame.file_name}:{frame.line_num}"
        frame = sys._getframe()
        while frame is not None:
            if is_users(frame.f_code.co_filename, folder):
                return f"{frame.f_code.co_filename}:{frame.f_lineno}"
            frame = frame.f_back
        return _line(rewrite.location((*self.outer, self.equation)))


def _equations(jaxpr, outer: tuple[Any, ...] = (), ours: bool = False) -> Iterator[_Found]:
    """All equations, of reproducible functions as they were written; not those that hold others."""
    for equation in open_jaxpr(jaxpr)[0].eqns:
        is_ours = ours or equation.primitive.name.startswith(tables.PREFIX)
        written = tracing.written_program(str(equation.params.get("name", "")))
        if written is not None:
            yield from _equations(written.jaxpr, (*outer, equation), True)
            continue
        if equation.primitive.name not in tables.HOLDING:
            yield _Found(equation, outer, is_ours)
            continue
        for x in jaxprs_in_params(equation.params):
            yield from _equations(x, (*outer, equation), ours)


def _computes_floats(equation) -> bool:
    """Whether it rounds, or makes floats: what only moves them is exact on every platform."""
    name = equation.primitive.name
    types = [v.aval for v in (*equation.invars, *equation.outvars)]
    if not any(jax.dtypes.issubdtype(getattr(x, "dtype", np.bool_), np.inexact) for x in types):
        return False
    return name not in tables.EXACT and name not in _EXACT


#: The same on all platforms: exact, or rounded once by IEEE 754.
_EXACT = {"neg", "abs", "sign", "max", "min", "reduce_max", "reduce_min", "argmax", "argmin"} | {
    *("copy", "copy_p", "device_put", "stop_gradient", "cummax", "cummin", "clamp", "sort"),
    *("random_seed", "random_wrap", "random_unwrap", "random_split", "random_fold_in"),
    *("convert_element_type", "reduce_window_max", "floor", "ceil", "round", "is_finite"),
    "nextafter",
}


def _settings() -> Iterator[Remark]:
    """Options that are not what they are by themselves."""
    for name, usual in _OPTIONS.items():
        value = getattr(jax.config, name, usual)
        if str(value) != str(usual) and value not in (usual, None):
            yield Remark(
                "", "option", f"{name} is {value!r}: set it everywhere, it changes programs"
            )
    if flags := os.environ.get("XLA_FLAGS"):
        yield Remark("", "option", f"XLA_FLAGS is {flags!r}: plain JAX follows it")


# --- the commands -----------------------------------------------------------------------


def add_command(commands) -> None:
    parser = commands.add_parser(
        "diagnose",
        help="what in a script may give other bits?",
        description="Run a script, and say which operations it has, what repjax has for them, and "
        "what around them may give other bits.  Exit status: 0 nothing was found, 1 there are "
        "remarks, 2 the request cannot be met or the script failed.",
        epilog="example: repjax diagnose train.py --epochs 1",
    )
    parser.add_argument("--patch", action="store_true", help="run it with repjax_enable")
    parser.add_argument("--entropy", metavar="FILE", help="record what it draws, for repjax replay")
    parser.add_argument("--json", metavar="FILE", help="write the diagnosis as JSON")
    _add_script(parser)
    parser.set_defaults(run=run_diagnose)
    parser = commands.add_parser(
        "run",
        help="run a script with repjax_enable",
        description="Run a script, unmodified, with repjax_enable.  The exit status is the "
        "script's, or 2 where there is none.",
        epilog="example: repjax run train.py --epochs 1",
    )
    for name in ("accumulation", "contraction"):
        parser.add_argument(f"--{name}", metavar="ORDER", help=f"repjax_{name}")
    _add_script(parser)
    parser.set_defaults(run=run_script)


def _add_script(parser) -> None:
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module")
    parser.add_argument("script", metavar="SCRIPT")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER)


def run_script(arguments: argparse.Namespace) -> int:
    try:
        for name in ("accumulation", "contraction"):
            if value := getattr(arguments, name):
                jax.config.update(f"repjax_{name}", value)
        jax.config.update("repjax_enable", True)
    except (RuntimeError, ValueError) as error:
        print(f"repjax run: {error}", file=sys.stderr)
        return 2
    try:
        return scripts.run([arguments.script, *arguments.arguments], module=arguments.module)
    except scripts.ScriptError as error:
        print(f"repjax run: {error}", file=sys.stderr)
        return 2


def run_diagnose(arguments: argparse.Namespace) -> int:
    given = [arguments.script, *arguments.arguments]
    if arguments.entropy:
        return _record(arguments, given)
    try:
        if arguments.json and not pathlib.Path(arguments.json).absolute().parent.is_dir():
            raise scripts.ScriptError(
                f"--json: expected a file in a folder that is there, received {arguments.json}"
            )
        with contextlib.redirect_stdout(sys.stderr):  # what is the script's
            found = diagnose(given, module=arguments.module, patch=arguments.patch)
    except scripts.ScriptError as error:
        print(f"repjax diagnose: {error}", file=sys.stderr)
        return 2
    print(found)
    if arguments.json:
        with checkpoint.replacing(arguments.json) as file:
            file.write(json.dumps(as_json(found), indent=1).encode() + b"\n")
    if isinstance(found.failure, Exception):
        traceback.print_exception(found.failure)
    if found.failure is not None:
        print("repjax diagnose: the script failed; seen is what it did before", file=sys.stderr)
        return 2
    return 1 if found.remarks else 0


def _record(arguments: argparse.Namespace, given: list[str]) -> int:
    """The same in a process that is recorded from its start."""
    options = [*(["--patch"] if arguments.patch else []), *(["-m"] if arguments.module else [])]
    options += ["--json", arguments.json] if arguments.json else []
    command = ["-m", "repjax", "diagnose", *options, *given]
    try:
        scripts.check(["-m", *given] if arguments.module else given)
        status, _ = recordings.record_command(command, arguments.entropy)
    except (recordings.RecordingError, scripts.ScriptError) as error:
        print(f"repjax diagnose: {error}", file=sys.stderr)
        return 2
    return recordings.exit_status(status)


def as_json(found: Diagnosis) -> dict[str, Any]:
    return {
        "format": "repjax diagnosis",
        "version": 1,
        "programs": found.programs,
        "plain": found.plain,
        "operations": {
            name: {"by": x.by, "places": dict(x.places)} for name, x in found.operations.items()
        },
        "remarks": [dataclasses.asdict(x) for x in found.remarks],
    }
