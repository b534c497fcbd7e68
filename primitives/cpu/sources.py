"""Which sources a compiled kernel belongs to: a digest of them.

``setup.py`` compiles it in, and ``native.py`` compares it with that of the sources that lie beside
it, so that a kernel that was moved, or left behind by another version, is not used.  Both run this
file, which imports nothing of the package.
"""

from __future__ import annotations

import hashlib
import pathlib


def digest(folder: pathlib.Path) -> str | None:
    """The SHA-256 digest of the names and contents of the C++ sources in a folder, if any."""
    paths = sorted([*folder.glob("*.cc"), *folder.glob("*.h")], key=lambda path: path.name)
    total = hashlib.sha256()
    for path in paths:
        content = path.read_bytes()
        total.update(f"{path.name}\n{len(content)}\n".encode() + content)
    return total.hexdigest() if paths else None
