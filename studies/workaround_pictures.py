"""The pictures of studies/workaround.py, of its file of results."""

from __future__ import annotations

import pathlib


def draw(results: pathlib.Path, folder: pathlib.Path) -> None:
    raise NotImplementedError
