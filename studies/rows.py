"""Results of studies: rows that survive an interruption, and JSON files."""

from __future__ import annotations

import json
import pathlib
from collections.abc import Callable, Sequence
from typing import Any

from data import DataError
from repjax import checkpoint
from repjax.verify.progress import counter

#: A file of results is small; a larger one is none.
MOST_BYTES = 1 << 24


FORMAT, VERSION = "repjax study", 1


def require_folder(path: pathlib.Path | None) -> None:
    """Whether results can be written there, before long work; or DataError."""
    if path is not None and not path.is_dir():
        raise DataError(f"expected a folder for the results, received {path}, which is none")


def write(path: pathlib.Path, study: str, found: dict[str, Any]) -> None:
    """A JSON file of a study's results, completely or not at all."""
    whole = {"format": FORMAT, "version": VERSION, "study": study, **found}
    with checkpoint.replacing(path) as file:
        file.write((json.dumps(whole, indent=1) + "\n").encode())


def read(path: pathlib.Path, study: str) -> dict[str, Any]:
    """What :func:`write` wrote for this study.

    Raises:
      DataError: the file is missing, too large, or something else.
    """
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DataError(f"expected at most {MOST_BYTES} bytes, received {path}; remove it")
        found = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(
            f"expected the results of {study} in {path}, received no such file ({error}); run the "
            "study with --output"
        ) from None
    given = isinstance(found, dict) and [found.get(k) for k in ("format", "version", "study")]
    if given != [FORMAT, VERSION, study]:
        raise DataError(
            f"expected {FORMAT} {VERSION} of {study} in {path}, received another file; run the "
            "study with --output"
        )
    return found


def rows(
    kept: pathlib.Path | None,
    of: dict[str, Any],
    items: Sequence[Any],
    row: Callable[[Any], Any],
    every: int = 1,
) -> list[Any]:
    """``[row(item) for item in items]``, of which every so many are kept in a file.

    Args:
      kept: the file, or None.  If it is there, the rows in it are not computed again.
      of: what the rows are of; a file of something else is refused.
      row: a function of the item alone, whose result JSON holds without loss.
    """
    of = json.loads(json.dumps({**of, "items": len(items)}))
    found: list[Any] = []
    if kept and kept.is_file():
        state = read(kept, "rows")
        if state.get("of") != of or not isinstance(state.get("rows"), list):
            raise DataError(f"expected {kept} to be of {of}, received another; remove it")
        found = state["rows"]
    with counter(of.get("what", "rows")) as progress:
        for item in items[len(found) :]:
            found.append(json.loads(json.dumps(row(item))))
            progress(len(found))
            if kept and len(found) % every == 0:
                write(kept, "rows", {"of": of, "rows": found})
    return found
