"""Builds: one without kernels fails where that was asked for, and goes on elsewhere.

That a wheel holds what it should is in test_structure.py.
"""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from helpers.paths import ROOT


def _build(folder, **environment: str) -> subprocess.CompletedProcess[str]:
    """Compile the libraries into a folder, by compilers that fail unless others are given."""
    compilers = {"CC": "false", "CXX": "false", "LDSHARED": "false"}
    return subprocess.run(
        [sys.executable, "setup.py", "build_ext", "--build-lib", folder, "--build-temp", folder],
        cwd=ROOT,
        env={**os.environ, **compilers, **environment},
        capture_output=True,
        text=True,
        check=False,
    )


def test_without_a_compiler(tmp_path):
    result = _build(tmp_path)
    assert result.returncode == 0, result.stderr
    assert not list(tmp_path.rglob("*.so"))
    assert 'building extension "repjax.primitives.cpu._native" failed' in result.stderr


def test_without_a_compiler_where_a_kernel_is_required(tmp_path):
    result = _build(tmp_path, REPJAX_REQUIRE_NATIVE="1")
    assert result.returncode == 1
    assert "error: Command '['false'," in result.stderr


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (
            {"REPJAX_REQUIRE_NATIVE": "yes"},
            "REPJAX_REQUIRE_NATIVE: expected 0 or 1, received 'yes'",
        ),
        (
            {"REPJAX_REQUIRE_NATIVE": "1", "REPJAX_XLA_HEADERS": "nowhere"},
            "expected the headers of XLA's FFI in jaxlib, received nowhere; install jaxlib, or",
        ),
    ],
)
def test_wrong_variables(tmp_path, environment, message):
    result = _build(tmp_path, **environment)
    assert result.returncode == 1
    assert message in result.stderr and "Traceback" not in result.stderr
