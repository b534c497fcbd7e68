"""The pictures of studies/fpna.py, of its files of results."""

from __future__ import annotations

import pathlib


def draw(results: pathlib.Path, folder: pathlib.Path) -> None:
    raise NotImplementedError
