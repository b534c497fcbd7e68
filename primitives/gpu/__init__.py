"""Kernels for NVIDIA GPUs: faster lowerings of some primitives, with the bits of their bodies.

They are written in Pallas, and :mod:`.triton` is the only module that knows by which of its
backends.  A kernel fixes all that bits depend on, the order of each output's operations; sizes of
tiles, numbers of threads and stages of the pipeline are chosen by shape and change none.

Where there is no kernel, or Pallas cannot tell which GPU it compiles for, XLA compiles the body.
"""

from __future__ import annotations

import jax

#: The oldest supported compute capability, that of the A100.
OLDEST = 80

#: Whether there are kernels for rows; for benchmarks, which compare.
ROWS = True


def available() -> bool:
    """Whether there are kernels for the GPU that is compiled for.

    Raises:
      RuntimeError: it is too old.
    """
    from repjax.primitives.gpu import triton

    capability = triton.compute_capability()
    if capability is not None and capability < OLDEST:
        raise RuntimeError(
            f"repjax expected an NVIDIA GPU of compute capability {OLDEST / 10} or newer, received "
            f"{capability / 10}; use a newer one, or the CPU by JAX_PLATFORMS=cpu"
        )
    return capability is not None


def expected() -> bool:
    """Whether what is traced now will probably be compiled for a GPU; plans depend on it."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        device = jax.config.jax_default_device
    return getattr(device, "platform", device or jax.default_backend()) in ("gpu", "cuda")
