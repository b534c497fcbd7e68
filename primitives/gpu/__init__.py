"""Kernels for NVIDIA GPUs: faster lowerings of some primitives, with the bits of their bodies.

They are written in Pallas, and :mod:`.triton` is the only module that knows by which of its
backends.  A kernel fixes all that bits depend on, the order of each output's operations; sizes of
tiles, numbers of threads and stages of the pipeline are chosen by shape and change none.

Where there is no kernel, or Pallas cannot tell which GPU it compiles for, XLA compiles the body.
"""

from __future__ import annotations

#: The oldest supported compute capability, that of the A100.
OLDEST = 80


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
