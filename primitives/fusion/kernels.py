"""What the kernels of a platform can compute: the platforms say it, planners ask."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any


@dataclasses.dataclass(frozen=True, eq=False)
class Kernels:
    """What the kernels of a platform can be groups of.

    Attributes:
      platform: the one that they are kernels of, ``cpu`` or ``cuda``.
      is_elementwise: whether they compute an equation element by element.
      is_reduction: whether they take a reduction of so many rows, and of so many elements of each.
      pays: of the equations of a row group, and of what gives the makers of one, whether a kernel
        is faster than XLA.
      is_long: whether an elementwise equation takes as long as many additions.
      reads_raw: whether products take operands that are not canonical.
      loop: what the kernel for loops knows a loop by, or None if it cannot compute the loop.
      is_short: whether XLA computes a loop, which the kernel knows by that, faster without kernels.
      as_short: the equation of a short loop as XLA computes it fastest, with the same bits.
      draws: whether they draw random bits.
      large: elements of an array that does not stay in the caches; None where the platform has
        kernels for row groups only.
    """

    platform: str
    is_elementwise: Callable[[Any], bool]
    is_reduction: Callable[[Any, int, int], bool]
    pays: Callable[[list[Any], Callable[[Any], list[Any]]], bool] = lambda equations, makers: True
    is_long: Callable[[Any], bool] = lambda equation: False
    reads_raw: bool = False
    loop: Callable[[Any], Any] = lambda equation: None
    is_short: Callable[[Any, Any], bool] = lambda equation, code: False
    as_short: Callable[[Any], Any] = lambda equation: equation
    draws: bool = False
    large: int | None = None
