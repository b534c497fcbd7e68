"""The headers of XLA's FFI, for a build where jaxlib cannot be installed.

    python release/headers.py build/headers
    REPJAX_XLA_HEADERS=build/headers python -m pip wheel --no-deps --no-build-isolation .

They are those of the version in pyproject.toml, out of a wheel of jaxlib for another platform: they
are the same on all.  There is no jaxlib for musl and for macOS on x86-64.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys
import tempfile
import zipfile

ROOT = pathlib.Path(__file__).parent.parent
PREFIX = "jaxlib/include/"
#: A platform for which each version has a wheel.
WHEEL = ("--platform", "manylinux_2_27_x86_64", "--python-version", "3.11")


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        print(f"expected a folder, received {arguments}; see release/headers.py", file=sys.stderr)
        return 2
    (version,) = re.findall(r'"(jaxlib==[\d.]+)"', (ROOT / "pyproject.toml").read_text())
    with tempfile.TemporaryDirectory() as folder:
        download = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", "-d", folder]
        subprocess.run([*download, "--only-binary=:all:", *WHEEL, version], check=True)
        (wheel,) = pathlib.Path(folder).glob("jaxlib-*.whl")
        with zipfile.ZipFile(wheel) as file:
            names = [name for name in file.namelist() if name.startswith(f"{PREFIX}xla/ffi/")]
            for name in names:
                path = pathlib.Path(arguments[0]) / name.removeprefix(PREFIX)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(file.read(name))
    print(f"{version}: {len(names)} headers in {arguments[0]}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
