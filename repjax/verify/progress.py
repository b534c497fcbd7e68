"""What long work says of itself, on standard error."""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator

#: Seconds between two messages, which on a terminal take each other's place.
ON_A_TERMINAL, IN_A_FILE = 0.2, 10.0


def is_progress(line: str) -> bool:
    """Whether :func:`counter` wrote this line into a file."""
    return re.fullmatch(r"[a-z][a-z0-9 ]*: \d+\n", line) is not None


@contextlib.contextmanager
def counter(what: str) -> Iterator[Callable[[int], None]]:
    """A function to call with how much is done; ``what`` is done is shown with it."""
    terminal = sys.stderr.isatty()
    pause = ON_A_TERMINAL if terminal else IN_A_FILE
    last = time.monotonic()
    shown = False

    def show(count: int) -> None:
        nonlocal last, shown
        if time.monotonic() - last >= pause:
            last, shown = time.monotonic(), True
            start, end = ("\r", "") if terminal else ("", "\n")
            print(f"{start}{what}: {count}", end=end, file=sys.stderr, flush=True)

    try:
        yield show
    finally:
        if shown and terminal:
            print(file=sys.stderr)
