"""The optional C++ kernels and the optional C shim; everything else is in pyproject.toml."""

import hashlib
import importlib.util
import pathlib
import runpy
import sys

from setuptools import Extension, setup

# The headers of XLA's FFI.  Without them, or a compiler, repjax is installed without the kernel.
jaxlib = importlib.util.find_spec("jaxlib")
headers = [f"-isystem{pathlib.Path(jaxlib.origin).parent / 'include'}"] if jaxlib else []
options = ["-std=c++17", "-O3", "-ffp-contract=off", "-g0", "-Wno-psabi"]
folder = pathlib.Path("primitives/cpu/native")
digest = runpy.run_path("primitives/cpu/sources.py")["digest"](folder)

# A library for LD_PRELOAD, which `repjax record` does without where there is none.
shim = pathlib.Path("repjax/verify/entropy_shim.c")
shims = [
    Extension(
        "repjax.verify._entropy_shim",
        [str(shim)],
        define_macros=[("REPJAX_SOURCES", f'"{hashlib.sha256(shim.read_bytes()).hexdigest()}"')],
        extra_compile_args=["-std=c11", "-O2", "-g0"],
        optional=True,
    )
]

setup(
    ext_modules=[
        Extension(
            "repjax.primitives.cpu._native",
            sorted(str(path) for path in folder.glob("*.cc")),
            depends=[str(path) for path in folder.glob("*.h")],
            define_macros=[("REPJAX_SOURCES", f'"{digest}"')],
            extra_compile_args=[*headers, *options],
            extra_link_args=["-static-libstdc++", "-static-libgcc"],
            optional=True,
        ),
        *(shims if sys.platform == "linux" else []),
    ]
)
