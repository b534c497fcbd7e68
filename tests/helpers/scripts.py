"""Programs beside the package, which tests load as modules."""

from __future__ import annotations

import importlib.util
import json
import os
import pathlib
import subprocess
import sys
from types import ModuleType
from typing import Any

from helpers.paths import TESTS


def load(path: pathlib.Path) -> ModuleType:
    """The program as a module of its own, whatever else has its name."""
    spec = importlib.util.spec_from_file_location(path.stem, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def on_eight_devices(*arguments: str) -> Any:
    """What Python prints last, as JSON, in tests/ and with eight devices made of the CPU."""
    result = subprocess.run(
        [sys.executable, *arguments],
        cwd=TESTS,
        env={
            **os.environ,
            "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
            "JAX_PLATFORMS": "cpu",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout.splitlines()[-1])
