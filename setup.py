"""The optional C++ kernels; everything else is in pyproject.toml."""

import importlib.util
import pathlib
import runpy

from setuptools import Extension, setup

# The headers of XLA's FFI.  Without them, or a compiler, repjax is installed without the kernel.
jaxlib = importlib.util.find_spec("jaxlib")
headers = [f"-isystem{pathlib.Path(jaxlib.origin).parent / 'include'}"] if jaxlib else []
options = ["-std=c++17", "-O3", "-ffp-contract=off", "-g0", "-Wno-psabi"]
folder = pathlib.Path("primitives/cpu/native")
digest = runpy.run_path("primitives/cpu/sources.py")["digest"](folder)

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
        )
    ]
)
