"""What the kernels for row groups can compute; asked when programs are planned, without Pallas."""

from __future__ import annotations

import numpy as np

from repjax.primitives.core.canonical import HALVES
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.fusion.kernels import Kernels
from repjax.primitives.fusion.rows import LONG, named
from repjax.primitives.fusion.views import DTYPES

#: Elements of the longest rows that fit into registers.
SHORT = 1 << 14
#: Elements of the longest rows that a kernel reads in several passes, and how many of these rows
#: keep a GPU busy.
LONGEST = 1 << 18
MANY = 16

_FLOATING = frozenset((np.dtype(np.float32), *HALVES))
_ORDERED = _FLOATING | {np.dtype(np.int32)}

#: Elementwise primitives, whose bodies a kernel evaluates.
ELEMENTWISE = LONG | named("add sub mul div neg square integer_pow canonicalize floor ceil")
#: Exact operations on values of any type, and on integers and truth values only.
EXACT = named("eq ne lt le gt ge select_n max min clamp abs sign is_finite", "")
EXACT_ON_INTEGERS = named("add sub mul and or xor not convert_element_type", "")


def name_of(equation) -> str:
    """The primitive's name; ``exact_`` are comparisons of float16, which repjax has in float32."""
    return equation.primitive.name.removeprefix(PREFIX + "exact_")


def is_elementwise(equation) -> bool:
    avals = [v.aval for v in (*equation.invars, *equation.outvars)]
    if len(equation.outvars) != 1 or equation.effects or not equation.invars:
        return False
    if not all(getattr(aval, "dtype", None) in DTYPES for aval in avals) or avals[-1].size == 0:
        return False
    name, dtypes = name_of(equation), [aval.dtype for aval in avals]
    if name == "select_n":
        return len(dtypes) == 4 and dtypes[0] == np.bool_
    if name in EXACT and name not in ("eq", "ne"):
        return {*dtypes[:-1]} <= _ORDERED
    if name in ELEMENTWISE or name in EXACT:
        return True
    return name in EXACT_ON_INTEGERS and not {*dtypes} & _FLOATING


def _fits(equation, rows: int, n: int) -> bool:
    """Whether the kernel takes a reduction of so many rows, and of so many elements of each."""
    if equation.params.get("accumulation") == "order_independent":
        return False
    return n <= SHORT or (n <= LONGEST and rows >= MANY and "index_dtype" not in equation.params)


GPU = Kernels("cuda", is_elementwise, _fits)
