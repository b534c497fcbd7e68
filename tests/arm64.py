"""Run the golden programs on 64-bit ARM, emulated, with the kernels that its wheel has (NEON).

    python tests/arm64.py [NAME ...]      of tests/goldens.py; train_one_step without any

On an x86-64 Debian or Ubuntu with what NEEDED names.  A wheel for ARM is made here by a cross
compiler and installed beside JAX's wheels for ARM in a folder, for a Python for ARM that is taken
out of Debian's packages and run by QEMU.  All of it stays in the folder (ARM64_FOLDER, or
~/.cache/repjax-arm64; about 1 GB), so that only the first run takes minutes.  Emulated, programs
take 10 to 50 times as long.

Exit status: 0 if all bits are the goldens', 1 if not, 2 if something is missing.
"""

from __future__ import annotations

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
#: Programs, and the packages of Debian's that have them.
NEEDED = {
    "qemu-aarch64-static": "qemu-user-static",
    "debootstrap": "debootstrap",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
}
#: The release of Debian that has Python 3.11, and what is run on it.
DEBIAN = "bookworm"
JAX = ["jax==0.10.2", "jaxlib==0.10.2", "flax>=0.12", "optax>=0.2.8"]
_PLATFORMS = ("2_28", "2_27", "2_26", "2_24", "2_17")
#: What the process says of itself before anything else.
PROGRAM = """
import json, platform, sys
import repjax
from helpers.programs import PROGRAMS
found = {"machine": platform.machine(), "kernel": repjax.info()["cpu products"]}
print(json.dumps(found | {name: repjax.digest(PROGRAMS[name]()) for name in sys.argv[1:]}))
"""


def _run(*command: object, **options: object) -> None:
    words = [str(word) for word in command]
    result = subprocess.run(words, capture_output=True, text=True, check=False, **options)
    if result.returncode != 0:
        raise SystemExit(f"arm64.py: {' '.join(words)}\n{result.stdout}{result.stderr}")


def _make_system(folder: pathlib.Path) -> None:
    """Debian's packages for ARM with a Python in ``root``, and JAX for it in ``site``."""
    root = folder / "root"
    options = ["--arch=arm64", "--foreign", "--variant=minbase", "--include=python3"]
    _run("debootstrap", *options, DEBIAN, root)
    for package in root.glob("var/cache/apt/archives/*.deb"):
        _run("dpkg", "-x", package, root)
    _install(folder / "site", *JAX)


def _install(site: pathlib.Path, *packages: object) -> None:
    platforms = [f"--platform=manylinux_{glibc}_aarch64" for glibc in _PLATFORMS]
    options = ["--only-binary=:all:", "--python-version=3.11", "--implementation=cp", *platforms]
    options += ["--platform=manylinux2014_aarch64", "--platform=linux_aarch64", "--upgrade"]
    _run(sys.executable, "-m", "pip", "install", "-q", "--target", site, *options, *packages)


def _make_wheel(folder: pathlib.Path) -> pathlib.Path:
    """The wheel for ARM, made of a copy, because a build leaves files in its folder."""
    tree, wheels = folder / "tree", folder / "wheels"
    shutil.copytree(ROOT, tree, ignore=shutil.ignore_patterns(".*", "*.so", "build", "*.egg-info"))
    prefix = "aarch64-linux-gnu-"
    compilers = {"CC": f"{prefix}gcc", "CXX": f"{prefix}g++", "LDSHARED": f"{prefix}g++ -shared"}
    compilers |= {"LDCXXSHARED": compilers["LDSHARED"], "REPJAX_REQUIRE_NATIVE": "1"}
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-build-isolation"]
    platform = "--config-settings=--build-option=--plat-name=linux_aarch64"
    _run(*command, platform, "-w", wheels, tree, env={**os.environ, **compilers})
    (wheel,) = wheels.glob("repjax-*-py3-none-linux_aarch64.whl")
    return wheel


def run(names: list[str], folder: pathlib.Path) -> dict[str, str]:
    """The digests of golden programs on ARM, with ``machine`` and ``kernel``."""
    ready = folder / "ready"
    wanted = " ".join([DEBIAN, *JAX])
    if not ready.exists() or ready.read_text() != wanted:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        _make_system(folder)
        ready.write_text(wanted)
    with tempfile.TemporaryDirectory() as made:
        own = pathlib.Path(made) / "own"
        _install(own, "--no-deps", _make_wheel(pathlib.Path(made)))
        paths = [own, folder / "site", ROOT / "tests"]
        emulated = ["qemu-aarch64-static", "-cpu", "max", "-L", folder / "root"]
        command = [*emulated, folder / "root/usr/bin/python3.11", "-P", "-c", PROGRAM, *names]
        result = subprocess.run(
            [str(word) for word in command],
            env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
            cwd=made,
            stdout=subprocess.PIPE,
            text=True,
            check=True,
        )
    return json.loads(result.stdout)


def main(names: list[str]) -> int:
    if missing := [package for name, package in NEEDED.items() if shutil.which(name) is None]:
        print(
            f"arm64.py: expected {', '.join(NEEDED)}, received a machine without some of them; "
            f"apt-get install {' '.join(missing)}",
            file=sys.stderr,
        )
        return 2
    goldens = json.loads((ROOT / "tests" / "data" / "goldens.json").read_text())["digests"]
    names = names or ["train_one_step"]
    if unknown := [name for name in names if name not in goldens]:
        print(
            f"arm64.py: expected names of {', '.join(goldens)}; received {', '.join(unknown)}",
            file=sys.stderr,
        )
        return 2
    default = pathlib.Path.home() / ".cache" / "repjax-arm64"
    found = run(names, pathlib.Path(os.environ.get("ARM64_FOLDER", default)).resolve())
    print(f"{found['machine']}, {found['kernel']}")
    expected = {"machine": "aarch64", "kernel": "compiled kernel, NEON"}
    expected |= {name: goldens[name] for name in names}
    for name, value in found.items():
        same = value == expected[name]
        print(f"{name}: {value}" + ("" if same else f", expected {expected[name]}"))
    return 0 if found == expected else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
