"""Run the tests with other versions of Python and JAX, each in a fresh environment.

    python tests/versions.py 3.11:0.10.2 3.12:0.11.2 3.12:newest [pytest options]

Each version is PYTHON:JAX; the newest JAX is the newest that pyproject.toml lets in.  The Pythons
must be installed (on the path, or by pyenv); JAX and the rest come from the package index.  Exits
with 1 if any of them fails.
"""

from __future__ import annotations

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).parent.parent
VERSION = re.compile(r"(\d+\.\d+):(newest|[\d.]+)")


def interpreter(version: str) -> str:
    """A Python of this version that runs."""
    candidates = [f"python{version}"]
    if shutil.which("pyenv"):
        prefix = subprocess.run(["pyenv", "prefix", version], capture_output=True, text=True)
        candidates.append(f"{prefix.stdout.strip()}/bin/python{version}")
    for candidate in candidates:
        path = shutil.which(candidate)
        if path and subprocess.run([path, "-c", ""], capture_output=True).returncode == 0:
            return path
    raise SystemExit(
        f"versions.py: expected Python {version} to be installed, found none among "
        f"{candidates}; install it, or leave this version out"
    )


def test(python: str, jax: str, options: list[str]) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        environment = pathlib.Path(folder) / "environment"
        subprocess.run([interpreter(python), "-m", "venv", environment], check=True)
        run = str(environment / "bin" / "python")
        pins = ["jax", "jaxlib"] if jax == "newest" else [f"jax=={jax}", f"jaxlib=={jax}"]
        subprocess.run([run, "-m", "pip", "install", "-q", *pins, f"{ROOT}[test]"], check=True)
        installed = subprocess.run(
            [run, "-c", "import jax; print(jax.__version__)"], capture_output=True, text=True
        )
        print(f"--- Python {python}, jax {installed.stdout.strip()}", flush=True)
        # -P: what is tested is the installed package, not the folder beside the tests.  Tests
        # that start Python with -c, -m or - say it again, but those that start it in this folder.
        tests = [run, "-P", "-m", "pytest", "-q", "-p", "no:cacheprovider", *options]
        return subprocess.run(tests, cwd=ROOT, check=False).returncode == 0


def main() -> None:
    versions = [a for a in sys.argv[1:] if VERSION.fullmatch(a)]
    options = [a for a in sys.argv[1:] if not VERSION.fullmatch(a)]
    if not versions:
        raise SystemExit(f"{__doc__}\nversions.py: expected at least one PYTHON:JAX")
    failed = [v for v in versions if not test(*v.split(":"), options)]
    if failed:
        raise SystemExit(f"versions.py: failed on {', '.join(failed)}")


if __name__ == "__main__":
    main()
