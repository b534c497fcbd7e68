"""Compile the kernels for platforms that are not here: musl and macOS, x86-64 and 64-bit ARM.

    pip install ziglang && python release/cross.py [TARGET ...]

By Zig's clang, which brings the headers of these platforms.  It shows that the sources compile and
link there, and no more: what runs them is in .github/workflows/wheels.yml.  A target takes a minute
or two.
"""

from __future__ import annotations

import importlib.util
import pathlib
import subprocess
import sys
import tempfile

KERNELS = pathlib.Path(__file__).parent.parent / "primitives" / "cpu" / "native"
TARGETS = [
    *("x86_64-linux-gnu.2.28", "aarch64-linux-gnu.2.28", "x86_64-linux-musl", "aarch64-linux-musl"),
    *("aarch64-macos", "x86_64-macos"),
]
OPTIONS = ["-std=c++17", "-O3", "-ffp-contract=off", "-g0", "-fPIC", "-shared", "-Wno-psabi"]


def main(targets: list[str]) -> int:
    jaxlib, zig = (importlib.util.find_spec(name) for name in ("jaxlib", "ziglang"))
    if jaxlib is None or zig is None:
        print("expected ziglang and jaxlib to be installed; pip install ziglang", file=sys.stderr)
        return 2
    headers = f"-isystem{pathlib.Path(jaxlib.origin).parent / 'include'}"
    failed = []
    for target in targets or TARGETS:
        with tempfile.TemporaryDirectory() as folder:
            library = pathlib.Path(folder) / "_native.so"
            command = [sys.executable, "-m", "ziglang", "c++", "-target", target, headers, *OPTIONS]
            command += ['-DREPJAX_SOURCES="none"', "-o", library, *sorted(KERNELS.glob("*.cc"))]
            made = subprocess.run([str(word) for word in command], check=False).returncode == 0
            print(f"{target}: " + (f"{library.stat().st_size} bytes" if made else "failed"))
            failed += [] if made else [target]
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
