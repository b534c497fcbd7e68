"""The instruction sets of this machine, for each of which the C++ kernels have code."""

from __future__ import annotations

from repjax.primitives.cpu import library


def each_instruction_set():
    """The kernel uses each of this machine's while its name is yielded."""
    in_use, _ = library.in_use()
    try:
        for name in library.instruction_sets():
            library.choose(name)
            yield name
    finally:
        if in_use:
            library.choose(in_use)
