"""Where things lie."""

from __future__ import annotations

import pathlib

TESTS = pathlib.Path(__file__).parents[1]
ROOT = TESTS.parent
#: Golden digests and hard inputs.
DATA = TESTS / "data"
