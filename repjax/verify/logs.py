"""Sealed logs: lines of JSON that cannot be changed, taken out or moved unnoticed.

**Format.**  A line is the seal, a space, and a record as JSON.  The seal is the SHA-256, in
hexadecimal digits, of the seal of the line before (of the first line: of 64 zeros), a newline, and
the record's bytes.  A record is an object with a ``kind``; the first one has the log's ``format``
and ``version``.

A line is written by one call.  So a process that is killed leaves a log whose last line may be cut
short, and nothing else: readers leave that line out.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import pathlib
from collections.abc import Callable
from typing import Any, BinaryIO

#: Limits of what is read: bytes of a line and of the log, records, and depth of a record.
MOST_BYTES_OF_A_LINE, MOST_BYTES = 1 << 26, 1 << 33
MOST_RECORDS, MOST_DEPTH = 10_000_000, 16
FIRST_SEAL = "0" * 64


class LogError(ValueError):
    """A log that cannot be written or read; no file was changed."""


def as_json(record) -> str:
    """The text of a record.

    Raises:
      LogError: JSON does not hold it without loss.
    """
    try:
        return json.dumps(record, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise LogError(f"expected what JSON holds without loss, received {error}") from error


@dataclasses.dataclass
class Writer:
    """Appends records to a binary file that is open without a buffer."""

    file: BinaryIO
    seal: str = FIRST_SEAL

    def write(self, record: dict[str, Any]) -> None:
        text = as_json(record)
        self.seal = next_seal(self.seal, text.encode())
        self.file.write(f"{self.seal} {text}\n".encode())


@dataclasses.dataclass(frozen=True)
class Log:
    """What was read: records, the seal of the last, and the bytes that whole lines take."""

    records: list[dict[str, Any]]
    seal: str
    size: int


def read(
    path: pathlib.Path, name: str, version: int, progress: Callable[[int], None] | None = None
) -> Log:
    """Read a log of the format ``name`` and the given version.

    ``progress`` is called with the number of records so far.

    Raises:
      LogError: it is another file, of another version, changed, or beyond the limits.
    """
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise LogError(f"{path}: expected at most {MOST_BYTES} bytes, received {size}")
    records: list[dict[str, Any]] = []
    seal, read = FIRST_SEAL, 0
    with open(path, "rb") as file:
        while line := file.readline(MOST_BYTES_OF_A_LINE + 1):
            if not line.endswith(b"\n"):
                if len(line) > MOST_BYTES_OF_A_LINE:
                    raise LogError(
                        f"{path}: expected shorter lines than {MOST_BYTES_OF_A_LINE} bytes"
                    )
                break  # cut short when its process was killed
            if len(records) >= MOST_RECORDS:
                raise LogError(f"{path}: expected at most {MOST_RECORDS} records")
            received, _, text = line[:-1].partition(b" ")
            seal = next_seal(seal, text)
            if received != seal.encode():
                raise LogError(
                    f"{path}: expected the seal {seal} on line {len(records) + 1}, received "
                    f"{received[:64]!r}: the file is no {name}, or was changed after it was "
                    "written; restore it from another copy"
                )
            records.append(_parsed(path, text, len(records) + 1))
            read += len(line)
            if progress:
                progress(len(records))
    if records:
        first = records[0]
        if first.get("format") != name or first.get("version") != version:
            raise LogError(
                f"{path}: expected {name}, version {version}, received {first.get('format')!r}, "
                f"version {first.get('version')!r}; read it with the release that wrote it"
            )
    return Log(records, seal, read)


def next_seal(before: str, text: bytes) -> str:
    return hashlib.sha256(before.encode() + b"\n" + text).hexdigest()


def _parsed(path, text: bytes, number: int) -> dict[str, Any]:
    with contextlib.suppress(ValueError, RecursionError):
        record = json.loads(text)
        if isinstance(record, dict) and "kind" in record and depth(record) <= MOST_DEPTH:
            return record
    raise LogError(f"{path}: expected a record on line {number}, received {text[:40]!r}")


def depth(x) -> int:
    if isinstance(x, dict):
        x = x.values()
    return 1 + max(map(depth, x), default=0) if not isinstance(x, str | int | float | None) else 0
