"""The device that is compiled for, and its age."""

from __future__ import annotations

import jax

#: The oldest supported compute capability, that of the A100.
OLDEST = 80


def check_age(capability: int | None) -> None:
    if capability is not None and capability < OLDEST:
        raise RuntimeError(
            f"repjax expected an NVIDIA GPU of compute capability {OLDEST / 10} or newer, received "
            f"{capability / 10}; use a newer one, or the CPU by JAX_PLATFORMS=cpu"
        )


def local_capability() -> int | None:
    """The compute capability of the first GPU of this machine, 80 for 8.0; None without one."""
    try:
        device, *_ = jax.local_devices(backend="cuda")
    except RuntimeError:
        return None
    return int(device.compute_capability.replace(".", ""))


def _device() -> object:
    """The device that is compiled for, or the name of its platform."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    if device is None:
        device = jax.config.jax_default_device
    return device or jax.default_backend()


def device_kind() -> str:
    device = _device()
    if isinstance(device, str):
        device = jax.local_devices()[0]
    return device.device_kind


def expected() -> bool:
    """Whether what is traced now will probably be compiled for a GPU; plans depend on it."""
    device = _device()
    return getattr(device, "platform", device) in ("gpu", "cuda")
