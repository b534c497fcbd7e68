"""Kernels for NVIDIA GPUs: faster lowerings of some primitives, with the bits of their bodies.

They are written in Pallas, and :mod:`.triton` is the only module that knows by which of its
backends.  A kernel fixes all that bits depend on, the order of each output's operations; sizes of
tiles, numbers of threads and stages of the pipeline are chosen by shape and change none.

Where there is no kernel, or Pallas cannot tell which GPU it compiles for, XLA compiles the body.

The environment variable ``REPJAX_GPU_BACKEND`` says which kernels are used: ``triton``, by default;
``ptx``, for products and convolutions PTX of our own (:mod:`.ptx`), for which no Pallas is needed;
``off``, none.  No bits depend on it.
"""

from __future__ import annotations

import functools
import os
import warnings

import jax

from repjax.primitives.gpu.devices import check_age, device_kind, expected, local_capability

#: Whether there are kernels for rows; for benchmarks, which compare.
ROWS = True

#: The values of ``REPJAX_GPU_BACKEND``.
BACKENDS = ("triton", "ptx", "off")
_VARIABLE = "REPJAX_GPU_BACKEND"
_OFF = f"{_VARIABLE} is off"


def available() -> bool:
    """Whether there are kernels in Pallas for the GPU that is compiled for; else as ``backend``."""
    return backend() == "triton"


def backend() -> str | None:
    """The kernels for the GPU that is compiled for: ``triton``, ``ptx``, or None without any.

    Raises:
      RuntimeError: the GPU is too old, or this version of JAX has no Pallas Triton.
      ValueError: ``REPJAX_GPU_BACKEND`` is none of :data:`BACKENDS`.
    """
    found, reason = _find()
    if found is None and reason != _OFF:
        _warn(reason)
    return found


def check() -> None:
    """Raise what :func:`backend` raises, and do not warn."""
    _find()


def in_use() -> str:
    """What computes on the GPU that JAX would compile for, in words, or why nothing does."""
    if not expected():
        return "none: JAX does not compile for an NVIDIA GPU"
    try:
        found, reason = _find()
    except (RuntimeError, ValueError) as error:
        return f"none: {error}"
    texts = {
        "triton": "Pallas Triton",
        "ptx": "PTX for products and convolutions, otherwise XLA",
    }
    return texts.get(found, f"XLA: {reason}")


def _find() -> tuple[str | None, str]:
    """The backend, or None and why there is none."""
    wanted = os.environ.get(_VARIABLE, BACKENDS[0])
    if wanted not in BACKENDS:
        raise ValueError(f"{_VARIABLE}: expected {' or '.join(BACKENDS)}, received {wanted!r}")
    if wanted != "triton":
        check_age(local_capability())
        return ("ptx", "") if wanted == "ptx" else (None, _OFF)
    from repjax.primitives.gpu import triton

    if triton.MISSING:
        raise RuntimeError(
            f"repjax expected Pallas' Triton backend for its kernels for GPUs, received jax "
            f"{jax.__version__} without it ({triton.MISSING}); use an older jax, or set "
            f"{_VARIABLE}=ptx, with which products and convolutions have kernels and the rest is "
            "XLA's code: the same bits, but slower"
        )
    capability = triton.compute_capability()
    check_age(capability)
    if capability is None:
        kind = device_kind()
        return None, f"Pallas of jax {jax.__version__} does not know the device kind {kind!r}"
    return "triton", ""


@functools.cache
def _warn(reason: str) -> None:
    """Once for each kind of device."""
    warnings.warn(
        f"repjax compiles for a GPU without its kernels: the same bits, but many times slower; "
        f"{reason}: use a newer jax, or set {_VARIABLE}=ptx, with which products and convolutions "
        "have kernels, or where the GPU is not there name it (jax.sharding.use_abstract_mesh)",
        stacklevel=3,
    )
