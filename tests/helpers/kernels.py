"""What programs give without the C++ kernels."""

from __future__ import annotations

import pytest

import repjax
from repjax.primitives.cpu import library


def without_kernel(function, *args):
    """The results of the equations, each compiled by XLA."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(library, "available", lambda: False)
        lowered = repjax.reproducible(lambda *xs: function(*xs)).lower(*args)
        assert "custom_call @repjax" not in lowered.as_text()
        return lowered.compile()(*args)
