"""The optional C++ kernels and the optional C shim; everything else is in pyproject.toml.

The kernels are a library that is loaded with ctypes and calls nothing of Python's, so that one
wheel of a platform serves every Python 3: its tag is ``py3-none``, and the libraries' names have
none.  Two variables of the environment matter: ``REPJAX_REQUIRE_NATIVE=1`` makes a build without
kernels fail, and ``REPJAX_XLA_HEADERS`` is a folder with the headers of XLA's FFI, for platforms
that have no jaxlib (release/headers.py).
"""

import hashlib
import importlib.util
import os
import pathlib
import re
import runpy
import sys
import sysconfig

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

IS_LINUX = sys.platform == "linux"


def is_required() -> bool:
    """Whether a build without kernels is to fail."""
    value = os.environ.get("REPJAX_REQUIRE_NATIVE", "")
    if value not in ("", "0", "1"):
        raise SystemExit(f"REPJAX_REQUIRE_NATIVE: expected 0 or 1, received {value!r}")
    return value == "1"


def headers() -> pathlib.Path | None:
    """The folder with the headers of XLA's FFI, which jaxlib has; those of the oldest version that
    is supported serve all newer ones."""
    jaxlib = importlib.util.find_spec("jaxlib")
    folder = os.environ.get("REPJAX_XLA_HEADERS") or (
        jaxlib and pathlib.Path(jaxlib.origin).parent / "include"
    )
    if folder and (pathlib.Path(folder) / "xla" / "ffi" / "api" / "ffi.h").is_file():
        return pathlib.Path(folder)
    if is_required():
        raise SystemExit(
            "REPJAX_REQUIRE_NATIVE=1: expected the headers of XLA's FFI in jaxlib, received "
            f"{folder or 'no jaxlib'}; install jaxlib, or name their folder in REPJAX_XLA_HEADERS "
            "(python release/headers.py)"
        )
    return None


def first_page() -> str:
    """README.md with links and pictures that lead somewhere from a page of PyPI, too."""
    project = "https://github.com/repjax/repjax"
    here = r"\]\((?!\w+:|#)([^)\s]+)\)"
    text = pathlib.Path("README.md").read_text(encoding="utf-8")
    text = re.sub(rf"(!\[[^\]]*){here}", rf"\1]({project}/raw/main/\2)", text)
    return re.sub(here, rf"]({project}/blob/main/\1)", text)


class BuildLibraries(build_ext):
    """Libraries whose names do not say for which Python they are."""

    def get_ext_filename(self, fullname):
        name = super().get_ext_filename(fullname)
        return name.removesuffix(sysconfig.get_config_var("EXT_SUFFIX")) + ".so"


class AnyPython(bdist_wheel):
    """A wheel for every Python 3 of a platform."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


folder = pathlib.Path("primitives/cpu/native")
digest = runpy.run_path("primitives/cpu/sources.py")["digest"](folder)
found = headers()
kernels = Extension(
    "repjax.primitives.cpu._native",
    sorted(str(path) for path in folder.glob("*.cc")),
    depends=[str(path) for path in folder.glob("*.h")],
    define_macros=[("REPJAX_SOURCES", f'"{digest}"')],
    extra_compile_args=[
        *([f"-isystem{found}"] if found else []),
        *("-std=c++17", "-O3", "-ffp-contract=off", "-g0", "-Wno-psabi", "-Wno-unused-function"),
    ],
    extra_link_args=["-static-libstdc++", "-static-libgcc"] if IS_LINUX else [],
    optional=not is_required(),
)

# A library for LD_PRELOAD, which `repjax record` does without where there is none.
source = pathlib.Path("repjax/verify/entropy_shim.c")
shim = Extension(
    "repjax.verify._entropy_shim",
    [str(source)],
    define_macros=[("REPJAX_SOURCES", f'"{hashlib.sha256(source.read_bytes()).hexdigest()}"')],
    extra_compile_args=["-std=c11", "-O2", "-g0"],
    optional=True,
)

setup(
    long_description=first_page(),
    long_description_content_type="text/markdown",
    ext_modules=[kernels, *([shim] if IS_LINUX else [])],
    cmdclass={"build_ext": BuildLibraries, "bdist_wheel": AnyPython},
)
