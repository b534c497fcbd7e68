"""What long work says of itself, on standard error."""

from __future__ import annotations

import contextlib
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterator

#: Seconds between two messages, which on a terminal take each other's place.
ON_A_TERMINAL, IN_A_FILE = 0.2, 10.0
#: Characters of a bar.
WIDTH = 30


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


class Bar:
    """How many of ``total`` are done, as a line at the foot of a terminal; elsewhere nothing.

    Whoever prints a line meanwhile calls :meth:`clear` before.  ``drawn`` says whether there is
    a bar; with ``wanted`` false there is none.
    """

    def __init__(self, total: int, wanted: bool = True):
        self.total, self.drawn = total, wanted and sys.stderr.isatty()

    def show(self, count: int, what: str) -> None:
        """Draw it, with ``what`` is being done."""
        if self.drawn:
            done = WIDTH * count // self.total
            text = f"[{'#' * done}{'.' * (WIDTH - done)}] {count}/{self.total} {what}"
            self.clear()
            columns = shutil.get_terminal_size().columns
            print(text[: columns - 1], end="", file=sys.stderr, flush=True)

    def clear(self) -> None:
        """Leave an empty line."""
        if self.drawn:
            print("\r\033[K", end="", file=sys.stderr, flush=True)

    def __enter__(self) -> Bar:
        return self

    def __exit__(self, *_: object) -> None:
        self.clear()
