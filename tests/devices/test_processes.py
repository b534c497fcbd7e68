"""Several processes that train together have the bits of one device."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import jax
import pytest

from helpers import processes
from helpers.paths import TESTS

PROCESSES = 2


def digests(flags: str) -> list[dict[str, str]]:
    """What each process prints."""
    with socket.socket() as probe:
        probe.bind(("localhost", 0))
        port = probe.getsockname()[1]
    running = [
        subprocess.Popen(
            [sys.executable, "-m", "helpers.processes", str(i), str(PROCESSES), str(port)],
            cwd=TESTS,
            env={**os.environ, "XLA_FLAGS": flags, "JAX_PLATFORMS": "cpu"},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for i in range(PROCESSES)
    ]
    outputs = [process.communicate(timeout=600) for process in running]
    for process, (_, errors) in zip(running, outputs, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.splitlines()[-1]) for output, _ in outputs]


@pytest.mark.skipif(sys.platform != "linux", reason="processes exchange values by Gloo, on Linux")
@pytest.mark.skipif(jax.default_backend() != "cpu", reason="devices are made of the CPU")
def test_processes():
    one_device = {name: processes.train(name) for name in processes.ORDERS}
    assert digests("--xla_force_host_platform_device_count=2") == [one_device] * PROCESSES
    assert len({*one_device.values()}) == 2
