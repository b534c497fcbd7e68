"""What programs give without the C++ kernels."""

from __future__ import annotations

import pytest

import repjax
from repjax.primitives.cpu import library


def body_of(function, *operands):
    """The program of the equations, each compiled by XLA, for operands of these types."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda: False)
        lowered = repjax.reproducible(lambda *xs: function(*xs)).lower(*operands)
    assert "custom_call @repjax" not in lowered.as_text()
    return lowered.compile()


def without_kernel(function, *args):
    """What it gives."""
    return body_of(function, *args)(*args)
