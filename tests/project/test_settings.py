"""The goldens hold under every setting: instruction set, threads, devices, eager or jit.

One machine stands for many: each case runs tests/goldens.py in a process of its own.  That
the cases differ at all is shown with plain JAX, whose bits follow the instruction set.
"""

from __future__ import annotations

import json
import os
import pathlib
import subprocess
import sys

import jax
import pytest

import repjax
from helpers.audited import audited
from helpers.paths import TESTS
from helpers.programs import PROGRAMS, SAME_AS, golden
from repjax.primitives.cpu import library

SCRIPT = TESTS / "goldens.py"

#: instruction set, CPUs, devices.
SETTINGS = [("SSE4_2", 1, 1), ("AVX", 2, 8), ("AVX2", 1, 1), ("AVX512", 2, 8)]
#: The kernel of contractions for each: what such a machine would have.
KERNELS = {"SSE4_2": "off", "AVX": "PLAIN"}

#: What says most in a minute; the rest is slow.
SOME = ["elementary", "contractions", "reductions", "train_one_step"]


def _environment(isa: str, devices: int) -> dict[str, str]:
    flags = f"--xla_cpu_max_isa={isa} --xla_force_host_platform_device_count={devices}"
    kernel = KERNELS.get(isa, isa)
    if kernel not in library.instruction_sets():
        kernel = "off"
    return {
        **os.environ,
        "XLA_FLAGS": flags,
        "JAX_PLATFORMS": "cpu",
        "REPJAX_NATIVE": kernel,
    }


def _run(arguments: list[str], isa: str, devices: int = 1) -> str:
    result = subprocess.run(
        [sys.executable, *arguments],
        env=_environment(isa, devices),
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return result.stdout


def _digests(names: list[str], isa: str, cpus: int, devices: int) -> dict[str, str]:
    # Tests that run at the same time on one CPU each are not to share it.
    first = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    arguments = [str(SCRIPT), *names, f"--cpus={cpus}", f"--first-cpu={first}"]
    return json.loads(_run(arguments, isa, devices))


@pytest.mark.parametrize("name", PROGRAMS)
def test_this_process(name):
    with audited() as findings:
        digest = repjax.digest(PROGRAMS[name]())
    assert digest == golden(name)
    assert not findings


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="instruction sets are a CPU matter")
@pytest.mark.parametrize(("isa", "cpus", "devices"), SETTINGS)
def test_setting(isa, cpus, devices):
    # Other ways to the same bits have the same operations: once is enough, and eager is done above.
    others = set(SAME_AS) if isa != "AVX512" else {"train_one_step_eager"}
    names = [name for name in PROGRAMS if name not in others]
    assert _digests(names, isa, cpus, devices) == {name: golden(name) for name in names}


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="instruction sets are a CPU matter")
@pytest.mark.parametrize(("isa", "cpus", "devices"), SETTINGS)
def test_some_in_each_setting(isa, cpus, devices):
    assert _digests(SOME, isa, cpus, devices) == {name: golden(name) for name in SOME}


PLAIN = """
import jax, numpy as np, repjax
x, y, z = (np.asarray(jax.random.normal(jax.random.key(k), (4096,))) for k in range(3))
x, y, z = ((v.view("uint32") & 0xffffff00).view("float32") for v in (x, y, z))
print(repjax.digest(jax.jit(lambda x, y, z: x * y + z)(x, y, z)))
"""


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="instruction sets are a CPU matter")
def test_the_settings_are_different_machines():
    """Negative control: plain JAX's multiply-add is fused at AVX2 and not at AVX."""
    if "fma" not in pathlib.Path("/proc/cpuinfo").read_text().split():
        pytest.skip("this CPU has no FMA instructions, so the settings do not differ in them")
    with_fma, without = (_run(["-P", "-c", PLAIN], isa) for isa in ("AVX2", "AVX"))
    assert with_fma != without
