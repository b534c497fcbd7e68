"""Linear algebra: matrices that have factors, the kernel against the body."""

from __future__ import annotations

import numpy as np
import pytest

import repjax
from helpers.bits import assert_same_bits, normal
from helpers.instruction_sets import each_instruction_set
from helpers.kernels import body_of
from repjax.primitives.cpu import library


def positive_definite(shape, seed=0):
    a = normal(shape, seed).astype(np.float64)
    return (a @ np.swapaxes(a, -1, -2) + np.eye(shape[-1])).astype(np.float32)


def kernel_of(function, *operands):
    """The program of the kernel, for operands of these types."""
    lowered = repjax.reproducible(lambda *xs: function(*xs)).lower(*operands)
    assert "custom_call @repjax_" in lowered.as_text()
    return lowered.compile()


with_a_kernel = pytest.mark.skipif(
    not library.available(), reason=f"there is no kernel: {library.in_use()[1]}"
)


def check_kernel(function, operands):
    """The kernel of each instruction set against the body."""
    kernel, body = (compiled(function, operands[0]) for compiled in (kernel_of, body_of))
    for i, x in enumerate(operands):
        expected = body(x)
        for instruction_set in each_instruction_set():
            assert_same_bits(kernel(x), expected, f"operand {i}, {instruction_set}")
