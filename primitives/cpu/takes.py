"""What the C++ kernels can compute; asked when programs are planned."""

from __future__ import annotations

from repjax.primitives.core.tables import PREFIX
from repjax.primitives.cpu import library, loops, rows
from repjax.primitives.cpu.bytecode import ELEMENTARY, OF_TWO, function_of
from repjax.primitives.fusion.kernels import Kernels

_LONG = frozenset(PREFIX + name for name in (*ELEMENTARY, *OF_TWO))

CPU = Kernels(
    "cpu",
    is_elementwise=lambda equation: function_of(equation) is not None,
    is_reduction=rows.is_reduction,
    pays=rows.pays,
    is_long=lambda equation: equation.primitive.name in _LONG,
    reads_raw=True,
    loop=loops.encode,
    large=library.LARGE,
)
