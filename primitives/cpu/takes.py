"""What the C++ kernels can compute; asked when programs are planned."""

from __future__ import annotations

from repjax.primitives.cpu import library, loops, rows, short, speculation
from repjax.primitives.cpu.bytecode import function_of
from repjax.primitives.fusion.kernels import Kernels

CPU = Kernels(
    "cpu",
    is_elementwise=lambda equation: function_of(equation) is not None,
    is_reduction=rows.is_reduction,
    pays=rows.pays,
    is_long=short.is_long,
    reads_raw=True,
    loop=loops.encode,
    is_short=short.is_short,
    as_short=speculation.without_guards,
    draws=True,
    large=library.LARGE,
)
