"""``repjax.info``: what runs here."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import pathlib
import platform

import jax
import jaxlib

from repjax._version import __version__
from repjax.config import is_enabled
from repjax.primitives import CONTRACT_VERSION, gpu
from repjax.primitives.core.tables import default_accumulation, default_contraction
from repjax.primitives.cpu import library


def info() -> dict[str, str]:
    """What runs here, for reports: versions, machine, devices, options, and the code of products.

    Only the version of the contract and the options change bits.  The entry
    ``"cpu products"`` is the instruction set of the compiled kernel, or says why XLA's
    code is used, which is many times slower; so does ``"gpu kernels"``.

    Raises:
      ValueError: the environment variable ``REPJAX_NATIVE`` is wrong.
    """
    instruction_set, reason = library.in_use()
    kernel = f"compiled kernel, {instruction_set}" if instruction_set else f"XLA: {reason}"
    return {
        "repjax": __version__,
        "contract": str(CONTRACT_VERSION),
        "python": platform.python_version(),
        "jax": jax.__version__,
        "jaxlib": jaxlib.__version__,
        "flax": importlib.metadata.version("flax"),
        "optax": importlib.metadata.version("optax"),
        "platform": f"{platform.system()}, {platform.machine()}",
        "cpu": f"{processor()}, {os.cpu_count()} cores",
        "devices": ", ".join(sorted({d.device_kind for d in jax.devices()})),
        "repjax_enable": str(is_enabled()),
        "repjax_accumulation": default_accumulation.value,
        "repjax_contraction": default_contraction.value,
        "cpu products": kernel,
        "gpu kernels": gpu.in_use(),
        "XLA_FLAGS": os.environ.get("XLA_FLAGS", "not set"),
    }


def processor() -> str:
    """The name of this machine's processor, as it says it itself."""
    with contextlib.suppress(OSError):
        for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
            name, _, value = line.partition(":")
            if name.strip() == "model name":
                return value.strip()
    return platform.processor() or platform.machine()
