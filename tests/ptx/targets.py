"""The GPUs that programs are compiled for, which need not be there."""

from __future__ import annotations

import functools

from jax.experimental import topologies

#: Of the vendor's data sheets and its table of compute capabilities: name, threads and bytes of
#: shared memory of a multiprocessor, shared memory of a block, multiprocessors, float32 units in
#: each, bytes/s of memory, bytes of L2 cache, GHz, bytes of memory.
TARGETS = {
    "sm_80": ("NVIDIA A100", 2048, 167936, 166912, 108, 64, 2039e9, 40 << 20, 1.41, 80 << 30),
    "sm_89": ("NVIDIA L4", 1536, 102400, 101376, 58, 128, 300e9, 48 << 20, 2.04, 24 << 30),
    "sm_90": ("NVIDIA H200", 2048, 233472, 232448, 132, 128, 4800e9, 50 << 20, 1.98, 141 << 30),
    "sm_100": ("NVIDIA B200", 2048, 233472, 232448, 148, 128, 8000e9, 126 << 20, 1.96, 180 << 30),
}


def describe(target: str) -> str:
    """A GpuTargetConfigProto in text form: what XLA wants to know of a device."""
    name, threads, shared, per_block, cores, units, bandwidth, cache, clock, memory = TARGETS[
        target
    ]
    major, minor = divmod(int(target.removeprefix("sm_")), 10)
    own = "feature_extension: ACCELERATED_FEATURES" if major >= 9 else ""
    return f"""
        gpu_device_info {{
          cuda_compute_capability {{ major: {major} minor: {minor} {own} }}
          threads_per_core_limit: {threads} shared_memory_per_core: {shared}
          shared_memory_per_block_optin: {per_block} core_count: {cores} fpus_per_core: {units}
          memory_bandwidth: {bandwidth:.0f} l2_cache_size: {cache} clock_rate_ghz: {clock}
          device_memory_size: {memory} shared_memory_per_block: 49152
          threads_per_block_limit: 1024 threads_per_warp: 32
          block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
          registers_per_core_limit: 65536 registers_per_block_limit: 65536
        }}
        platform_name: "CUDA" device_description_str: "{name}"
        dnn_version_info {{ major: 9 minor: 10 }}
    """


@functools.cache
def mesh_of(target: str, devices: int = 1):
    topology = topologies.get_topology_desc(
        "", platform="cuda", target_config=describe(target), topology=f"1x1x{devices}"
    )
    return topologies.make_mesh(topo=topology, mesh_shape=(devices,), axis_names=("x",))
