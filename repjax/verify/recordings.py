"""Record the entropy that a program draws, and run it again with the same.

After Chen et al. 2022 ("Towards training reproducible deep learning models", sections 3.4 to 3.6):
a training without seeds is recorded while it runs, and its replay draws what was recorded.  Where
a Python process draws is in :mod:`repjax.verify.entropy`, and what libraries draw through the C
library in ``entropy_shim.c``.

**Format 1.**  A recording is a sealed log (:mod:`repjax.verify.logs`).  Its first record has the
command, the digest of its script, the hash seed and the versions; records of the kind ``draws``
have those of one stream, in order, each as source, place and bytes in hexadecimal digits; and the
last one has their number and the program's exit status.

While a program runs, its draws are in the folder ``FILE.parts``, a line each, written by one call.
So a program that fails or is killed leaves all that it drew; where the recorder is killed, too,
``repjax record --finish`` seals what is there.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import platform
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from typing import Any

from repjax import checkpoint
from repjax._version import __version__
from repjax.verify import entropy, logs, scripts
from repjax.verify.entropy import Draw, EntropyError

FORMAT, VERSION = "repjax entropy", 1
#: Draws of one record, so that its line stays short.
_DRAWS_OF_A_RECORD, _BYTES_OF_A_RECORD = 4096, 1 << 22
#: Limits of what is read of a folder of parts.
_MOST_PARTS, _MOST_BYTES_OF_A_PART = 10_000, 1 << 30
_AT_START = pathlib.Path(__file__).parent / "at_start"
_SHIM_SOURCE = pathlib.Path(__file__).parent / "entropy_shim.c"

Streams = dict[tuple[str, str], list[Draw]]  # by process and stream


class RecordingError(ValueError):
    """A recording that cannot be written or read; no file was changed."""


@dataclasses.dataclass(frozen=True)
class Recording:
    """What a program drew.

    Attributes:
      about: ``command``, a list, whose first is a script or "-m"; ``script``, the SHA-256 of it, or
        None; ``whole``, whether the program was recorded or a block of it; ``hash_seed``, or None;
        ``time`` and ``shim``, whether these were recorded; ``versions``.
      status: the exit status of the program, negative for a signal; None for a block, or where the
        recorder was killed.
      streams: the draws, by process and stream.
      seal: of the file, which stands for all of it.
    """

    about: dict[str, Any]
    status: int | None
    streams: Streams
    seal: str = ""

    def __str__(self) -> str:
        drawn = [x for draws in self.streams.values() for x in draws]
        size = sum(x.length for x in drawn)
        counts = {"draw": len(drawn), "byte": size, "stream": len(self.streams)}
        return ", ".join(f"{count} {name}{'s' * (count != 1)}" for name, count in counts.items())


# --- the file ---------------------------------------------------------------------------


def write(path, recording: Recording) -> None:
    """Write a recording to a file, completely or not at all."""
    with checkpoint.replacing(path) as file:
        log = logs.Writer(file)
        log.write({"kind": "entropy", "format": FORMAT, "version": VERSION, **recording.about})
        count = 0
        for (process, stream), draws in sorted(recording.streams.items()):
            count += len(draws)
            for some in _portions(draws):
                log.write({"kind": "draws", "process": process, "stream": stream, "draws": some})
        log.write({"kind": "end", "draws": count, "status": recording.status})


def _portions(draws: list[Draw]) -> Iterator[list[list[str]]]:
    some: list[list[str]] = []
    size = 0
    for draw in draws:
        if len(some) == _DRAWS_OF_A_RECORD or size > _BYTES_OF_A_RECORD:
            yield some
            some, size = [], 0
        assert draw.data is not None
        some.append([draw.source, draw.place, draw.data.hex()])
        size += draw.length
    yield some


def read(path) -> Recording:
    """Read a recording.

    Raises:
      RecordingError: no recording, one of another version, or one that was cut short or changed.
    """
    path = pathlib.Path(path)
    if not path.is_file():
        parts = _parts(path)
        remedy = f"; repjax record --finish --out {path} makes it of {parts}"
        raise RecordingError(
            f"expected a recording, received {path}, which is no file"
            + (remedy if parts.exists() else "")
        )
    try:
        log = logs.read(path, FORMAT, VERSION)
    except logs.LogError as error:
        raise RecordingError(str(error)) from error
    if not log.records or log.size != path.stat().st_size or log.records[-1]["kind"] != "end":
        raise RecordingError(
            f"{path}: expected a whole recording, received another file, or one that was cut "
            "short; restore it from another copy"
        )
    try:
        return _recording(log)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise RecordingError(
            f"{path}: expected the records of a recording, received others ({error!r})"
        ) from error


def _recording(log: logs.Log) -> Recording:
    first, *middle, last = log.records
    streams: Streams = {}
    for record in middle:
        if record["kind"] != "draws":
            raise ValueError(f"a record of the kind {record['kind']!r}")
        drawn = streams.setdefault((str(record["process"]), str(record["stream"])), [])
        for source, place, text in record["draws"]:
            data = bytes.fromhex(text)
            drawn.append(Draw(str(source), str(place), len(data), data))
    if last["draws"] != sum(map(len, streams.values())):
        raise ValueError(f"{last['draws']} draws, of which there are others")
    kinds = {"command": list, "whole": bool, "time": bool, "shim": bool, "versions": dict}
    about = {name: first[name] for name in (*kinds, "script", "hash_seed")}
    for name, kind in kinds.items():
        if not isinstance(about[name], kind):
            raise TypeError(f"{name} is {about[name]!r}")
    if not all(isinstance(x, str) for x in about["command"]):
        raise TypeError(f"the command is {about['command']!r}")
    if about["hash_seed"] is not None and not 0 <= about["hash_seed"] < 1 << 32:
        raise ValueError(f"the hash seed is {about['hash_seed']!r}")
    return Recording(about, last["status"], streams, log.seal)


# --- folders of parts ---------------------------------------------------------------------


def _parts(path: pathlib.Path) -> pathlib.Path:
    return path.with_name(f"{path.name}.parts")


def _prepare(folder: pathlib.Path, about: dict[str, Any], expected: Streams | None) -> None:
    """Put a session's settings into a folder."""
    recorded: dict[str, dict[str, list[Any]]] | None = None
    if expected is not None:
        (folder / entropy.IS_REPLAY).touch()
        recorded = {}
        for (process, stream), draws in expected.items():
            texts = [[x.source, x.place, x.length, (x.data or b"").hex()] for x in draws]
            recorded.setdefault(process, {})[stream] = texts
            if _is_native(stream):
                lines = "".join("\t".join(map(str, (stream, *x))) + "\n" for x in texts)
                with open(folder / f"{entropy.file_name(process)}.expected", "a") as file:
                    file.write(lines)
    settings = {"expected": recorded, "about": about, "time": about["time"], "shim": about["shim"]}
    (folder / entropy.SESSION).write_text(json.dumps(settings))


def _is_native(stream: str) -> bool:
    return stream == "native" or stream.startswith(("native:", "native#"))


def _collect(folder: pathlib.Path) -> Streams:
    """What was drawn according to a folder; of what a replay was refused, without bytes.

    Raises:
      RecordingError: it holds something else, or more than the limits.
    """
    streams: Streams = {}
    paths = sorted([*folder.glob("*.draws"), *folder.glob("*.native")])
    if len(paths) > _MOST_PARTS:
        raise RecordingError(f"{folder}: expected at most {_MOST_PARTS} processes")
    for path in paths:
        if path.stat().st_size > _MOST_BYTES_OF_A_PART:
            raise RecordingError(f"{path}: expected at most {_MOST_BYTES_OF_A_PART} bytes")
        whole, _, _ = path.read_bytes().rpartition(b"\n")  # the last line may be cut short
        try:
            name, *lines = whole.decode().split("\n")
            process = json.loads(name) if name and path.suffix == ".draws" else name
            for line in lines:
                stream, *draw = json.loads(line) if path.suffix == ".draws" else line.split("\t")
                source, place, length, text = draw
                data = None if text in (None, "-") else bytes.fromhex(text)
                found = Draw(source, place, int(length), data)
                streams.setdefault((process, stream), []).append(found)
        except (ValueError, TypeError) as error:
            raise RecordingError(f"{path}: expected draws, received others ({error!r})") from error
    return streams


# --- the C shim -----------------------------------------------------------------------------


def shim() -> tuple[pathlib.Path | None, str]:
    """The compiled C shim, or why there is none."""
    path = pathlib.Path(__file__).parent / "_entropy_shim.so"
    if not path.is_file():
        return None, "it is compiled where repjax is installed on Linux with a C compiler at hand"
    digest = hashlib.sha256(_SHIM_SOURCE.read_bytes()).hexdigest()
    if digest.encode() not in path.read_bytes():
        return None, f"{path} was compiled from other sources; install repjax anew"
    if re.search(r"[\s:]", str(path)):
        return None, f"LD_PRELOAD cannot hold the path {path}, with a space or a colon in it"
    return path, ""


# --- running --------------------------------------------------------------------------------


def _environment(folder: pathlib.Path, about: dict[str, Any]) -> dict[str, str]:
    """Variables of the environment under which a process is recorded or replayed."""
    paths = [str(_AT_START), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    found = {
        entropy.FOLDER: str(folder.resolve()),
        entropy.PROCESS: entropy.MAIN,
        "PYTHONPATH": os.pathsep.join(dict.fromkeys(paths)),
    }
    if about["hash_seed"] is not None:
        found["PYTHONHASHSEED"] = str(about["hash_seed"])
    # In a program that is recorded itself, a shim may be loaded that is not asked for here.
    before = [x for x in os.environ.get("LD_PRELOAD", "").split(":") if x]
    others = [x for x in before if "_entropy_shim" not in x]
    loaded = [str(shim()[0]), *others] if about["shim"] else others
    if loaded != before:
        found["LD_PRELOAD"] = ":".join(loaded)
    return found


def _run(command: list[str], folder: pathlib.Path, about: dict[str, Any]) -> int:
    """Run a command of Python in a session; returns its status, negative for a signal.

    Raises:
      RecordingError: its interpreter has not begun the session.
    """
    environment = {**os.environ, **_environment(folder, about)}
    process = subprocess.Popen([sys.executable, *command], env=environment)
    with _passing_signals(process):
        status = process.wait()
    if not any(folder.glob(f"{entropy.file_name(entropy.MAIN)}-*.draws")):
        raise RecordingError(
            f"expected {sys.executable} to run {_AT_START / 'sitecustomize.py'} first, received "
            "nothing of it; use a Python that reads PYTHONPATH, without the options -E, -I and -S"
        )
    return status


@contextlib.contextmanager
def _passing_signals(process: subprocess.Popen) -> Iterator[None]:
    """This process waits for the other one, and keeps what it drew, when it is told to end.

    An interrupt of a terminal goes to both.
    """
    if threading.current_thread() is not threading.main_thread():
        yield  # which gets no signals
        return
    before = {
        signal.SIGINT: signal.signal(signal.SIGINT, signal.SIG_IGN),
        signal.SIGTERM: signal.signal(signal.SIGTERM, lambda *_: process.terminate()),
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _about(command: list[str], *, whole: bool, time: bool, has_shim: bool) -> dict[str, Any]:
    seed = os.environ.get("PYTHONHASHSEED", "")
    hash_seed = int(seed) if seed.isdecimal() else secrets.randbelow((1 << 32) - 1) + 1
    return {
        "command": command,
        "script": _digest(command),
        "whole": whole,
        "time": time,
        "shim": has_shim,
        "hash_seed": hash_seed if whole or seed.isdecimal() else None,
        "versions": {"python": platform.python_version(), "repjax": __version__},
    }


def _digest(command: list[str]) -> str | None:
    """The SHA-256 of the file that a command runs."""
    if command[:1] == ["-m"]:
        found = scripts.find(command[1])
        file = getattr(found, "origin", None) if found is not None else None
    else:
        file = command[0] if command else None
    if not file or not pathlib.Path(file).is_file():
        return None
    return hashlib.sha256(pathlib.Path(file).read_bytes()).hexdigest()


def record_command(
    command: list[str], path, *, time: bool = False, with_shim: bool | None = None
) -> tuple[int, Recording]:
    """Run a script or ``-m module``, with arguments, in a process of its own, and record it.

    Args:
      command: what stands behind ``python``.
      path: the file, which must not exist.
      time: record the time, too, where a user's own files ask for it.
      with_shim: load the C shim; by default if it was compiled.

    Returns:
      The exit status, negative for a signal, and what was recorded, of which the file is written
      whatever the status is.

    Raises:
      RecordingError, ScriptError: nothing was run, and nothing changed.
    """
    path = pathlib.Path(path)
    scripts.check(command)
    found, reason = shim()
    if with_shim and found is None:
        raise RecordingError(f"--shim: expected the C shim, received none: {reason}")
    folder = _new_folder(path)
    has_shim = found is not None and with_shim is not False
    about = _about(command, whole=True, time=time, has_shim=has_shim)
    _prepare(folder, about, None)
    try:
        status = _run(command, folder, about)
    except (RecordingError, OSError):
        shutil.rmtree(folder)
        raise
    return status, _finish(path, folder, about, status)


def _new_folder(path: pathlib.Path) -> pathlib.Path:
    if path.exists():
        raise RecordingError(f"{path}: expected no file, received one; choose another name")
    folder = _parts(path)
    try:
        folder.mkdir()
    except FileExistsError:
        raise RecordingError(
            f"{folder}: expected no folder, received what a recording left that was killed, or "
            f"goes on; seal it by repjax record --finish --out {path}, or remove it"
        ) from None
    except OSError as error:
        raise RecordingError(
            f"{path}: expected a file in a folder that can be written, received {error}"
        ) from error
    return folder


def _finish(path, folder: pathlib.Path, about: dict[str, Any], status: int | None) -> Recording:
    """Seal what a folder of parts has, and remove it."""
    recording = Recording(about, status, _collect(folder))
    write(path, recording)
    shutil.rmtree(folder)
    return recording


def finish(path) -> Recording:
    """Seal what a recorder left that was killed."""
    path = pathlib.Path(path)
    folder = _parts(path)
    if path.exists() or not folder.is_dir():
        received = f"{path}, which is finished" if path.exists() else "none"
        raise RecordingError(f"expected a recording to finish in {folder}, received {received}")
    try:
        about = json.loads((folder / entropy.SESSION).read_text())["about"]
    except (OSError, ValueError, KeyError) as error:
        raise RecordingError(
            f"{folder}: expected parts of a recording, received others ({error!r})"
        ) from error
    return _finish(path, folder, about, None)


def replay_command(recording: Recording, command: list[str] | None = None) -> int:
    """Run a recorded program again, with what it drew.

    Args:
      recording: of :func:`record_command`.
      command: another one than recorded, such as with the name of another output.

    Returns:
      Its exit status, negative for a signal.

    Raises:
      EntropyError: it did not draw what was recorded, but in another length or order, from another
        source, more or less.
      RecordingError, ScriptError: nothing was run.
    """
    if not recording.about["whole"]:
        raise RecordingError(
            "expected a recording of a whole program, received one of a block; use "
            "repjax.verify.replay in the program"
        )
    command = command or recording.about["command"]
    scripts.check(command)
    if recording.about["shim"] and (reason := shim()[1]):
        raise RecordingError(f"expected the C shim, with which it was recorded: {reason}")
    with tempfile.TemporaryDirectory(prefix="repjax-replay-") as name:
        folder = pathlib.Path(name)
        _prepare(folder, recording.about, recording.streams)
        status = _run(command, folder, recording.about)
        _check(recording, _collect(folder), status)
    return status


def _check(recording: Recording, received: Streams, status: int | None) -> None:
    """Compare what a replay drew with the recording.

    Raises:
      EntropyError: naming the first draw of a stream that differs, and both places.
    """
    for refused in (True, False):  # first what made the program fail, then what it left
        for key in sorted({*recording.streams, *received}):
            drawn, again = recording.streams.get(key, []), received.get(key, [])
            end = [] if refused else [None]
            for n, draw in enumerate([*again, *end]):
                last = again[-1] if again else None
                text = entropy.departure(entropy.shown(*key), drawn, n, draw, last)
                if text is not None:
                    raise EntropyError(text + _statuses(recording.status, status))


def _statuses(recorded: int | None, status: int | None) -> str:
    if recorded == status:
        return ""
    return f" (the recorded program ended with status {recorded}, this one with {status})"


def _differences(recording: Recording, command: list[str]) -> Iterator[str]:
    """What of a command or an environment is not as recorded, and need not matter."""
    about = recording.about
    if command != about["command"]:
        yield f"expected the command {about['command']}, received {command}"
    if _digest(command) != about["script"]:
        yield "expected the script as it was recorded, received another one, or one that was edited"
    here = _about(command, whole=True, time=False, has_shim=False)["versions"]
    for name, version in about["versions"].items():
        if here.get(name) != version:
            yield f"expected {name} {version}, received {here.get(name)}"


# --- in a program ---------------------------------------------------------------------------


@contextlib.contextmanager
def record(path, *, time: bool = False) -> Iterator[None]:
    """Record what a block draws, in this process and in those that it starts.

    The block begins with the states that the generators of ``random`` and ``numpy.random`` have,
    which are recorded, and they have these again after it.  ``repjax record`` sees more: the hash
    seed; functions, such as ``os.urandom``, that something has held since before the block; and
    what is drawn once, when a module is imported or first used, as names of temporary files are.

    Args:
      path: the file, which must not exist.
      time: record the time, too, where a user's own files ask for it.

    Example::

        with repjax.verify.record("first.entropy"):
            first = train()
        with repjax.verify.replay("first.entropy"):
            again = train()

    Raises:
      RecordingError: the file cannot be written.
    """
    path = pathlib.Path(path)
    about = _about(sys.orig_argv[1:], whole=False, time=time, has_shim=False)
    folder = _new_folder(path)
    _prepare(folder, about, None)
    try:
        with _session(folder, about):
            yield
    finally:
        _finish(path, folder, about, None)


@contextlib.contextmanager
def replay(path) -> Iterator[None]:
    """Give a block what :func:`record` recorded.

    Raises:
      RecordingError: the file is no recording of a block.
      EntropyError: in the block, where it draws otherwise; at its end, where draws are left.
    """
    recording = read(path)
    if recording.about["whole"]:
        raise RecordingError(
            f"{path}: expected a recording of a block, received one of a whole program; use repjax "
            f"replay {path}"
        )
    with tempfile.TemporaryDirectory(prefix="repjax-replay-") as name:
        folder = pathlib.Path(name)
        _prepare(folder, recording.about, recording.streams)
        with _session(folder, recording.about):
            yield
        _check(recording, _collect(folder), None)


@contextlib.contextmanager
def _session(folder: pathlib.Path, about: dict[str, Any]) -> Iterator[None]:
    changed = {**_environment(folder, about)}
    before = {name: os.environ.get(name) for name in changed}
    os.environ.update(changed)
    session = entropy.Session(str(folder.resolve()), entropy.MAIN)
    try:
        session.start()
        yield
    finally:
        session.stop()
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


# --- the commands ---------------------------------------------------------------------------


def add_command(commands) -> None:
    parser = commands.add_parser(
        "record",
        help="record the entropy that a script draws",
        description="Run a script, and record what it draws from the operating system, its hash "
        "seed and, with --time, the time.  The exit status is the script's, or 2 where there is "
        "none.",
        epilog="example: repjax record --out first.entropy -- train.py --epochs 1",
    )
    parser.add_argument("--out", metavar="FILE", required=True, help="the recording")
    parser.add_argument("--time", action="store_true", help="the time, too, in a user's own files")
    parser.add_argument(
        "--shim",
        action=argparse.BooleanOptionalAction,
        help="with or without the C shim, for libraries in C; by default where it was compiled",
    )
    parser.add_argument(
        "--finish", action="store_true", help="seal what a recorder left that was killed"
    )
    parser.add_argument("-m", dest="module", action="store_true", help="SCRIPT is a module")
    parser.add_argument("script", metavar="SCRIPT", nargs="?")
    parser.add_argument("arguments", metavar="...", nargs=argparse.REMAINDER)
    parser.set_defaults(run=run_record)
    parser = commands.add_parser(
        "replay",
        help="run a script with the entropy of a recording",
        description="Run a recorded script again, with what it drew.  Another source, length or "
        "order of draws, more or fewer, is an error that names both places.  The exit status is "
        "the script's, or 2 where it departs from the recording, or there is none.",
        epilog="example: repjax replay first.entropy -- train.py --epochs 1",
    )
    parser.add_argument("file", metavar="FILE", help="what repjax record wrote")
    parser.add_argument(
        "command",
        metavar="SCRIPT ...",
        nargs=argparse.REMAINDER,
        help="the script and its arguments, by default those that were recorded",
    )
    parser.set_defaults(run=run_replay)


def _command(words: list[str]) -> list[str]:
    return words[1:] if words[:1] == ["--"] else words


def exit_status(status: int) -> int:
    """As a shell has it."""
    return 128 - status if status < 0 else status


def run_record(arguments: argparse.Namespace) -> int:
    words = _command([arguments.script, *arguments.arguments] if arguments.script else [])
    command = ["-m", *words] if arguments.module else words
    try:
        if arguments.finish:
            recording, status = finish(arguments.out), 0
        else:
            status, recording = record_command(
                command, arguments.out, time=arguments.time, with_shim=arguments.shim
            )
    except (RecordingError, scripts.ScriptError, OSError) as error:
        print(f"repjax record: {error}", file=sys.stderr)
        return 2
    if status:
        print(
            f"repjax record: the script ended with status {status}; recorded is what it drew "
            "before",
            file=sys.stderr,
        )
    print(f"repjax record: {arguments.out}: {recording}", file=sys.stderr)
    return exit_status(status)


def run_replay(arguments: argparse.Namespace) -> int:
    try:
        recording = read(arguments.file)
        command = _command(arguments.command) or recording.about["command"]
        scripts.check(command)
        for text in _differences(recording, command):
            print(f"repjax replay: warning: {text}", file=sys.stderr)
        status = replay_command(recording, command)
    except (EntropyError, RecordingError, scripts.ScriptError, OSError) as error:
        print(f"repjax replay: {error}", file=sys.stderr)
        return 2
    print(f"repjax replay: {recording}: all drawn again", file=sys.stderr)
    return exit_status(status)
