"""Files of golden digests."""

from __future__ import annotations

import json
import pathlib

import repjax


def digests(path: pathlib.Path) -> dict[str, str]:
    """The digests in a file, by name; ValueError if they are those of another contract."""
    found = json.loads(path.read_text())
    if found["contract"] != repjax.CONTRACT_VERSION:
        raise ValueError(
            f"{path.name}: expected goldens of contract {repjax.CONTRACT_VERSION}, received "
            f"contract {found['contract']}; write them anew and say so under Bits changed"
        )
    return found["digests"]
