"""Views: arrays that are others in the same memory, and equations that are run one by one."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from jax.extend.core import Literal

from repjax.primitives.core.canonical import HALVES
from repjax.primitives.core.sizes import merged, row_major
from repjax.primitives.core.tables import PREFIX

#: The types of elements that kernels know.
DTYPES = frozenset(map(np.dtype, (np.float32, *HALVES, np.int32, np.uint32, np.bool_)))
_CANONICALIZE = PREFIX + "canonicalize"
#: The same elements, in memory as they are.
_ALIASES = frozenset(
    f"{PREFIX}materialize reshape squeeze expand_dims copy copy_p name stop_gradient".split()
)


@dataclasses.dataclass(frozen=True)
class View:
    """An array as another one, its root, in the same memory: the steps of its axes.

    An input of the program is seen as it came or made canonical: that costs less than a pass.
    """

    root: Any
    steps: tuple[int, ...]
    canonical: bool = False


def seen(variable, views) -> View:
    """A variable as one of the views, or as itself."""
    return views.get(variable) or View(variable, row_major(variable.aval.shape))


def long_axes(shape, steps):
    """Without the axes of one element."""
    return [(n, step) for n, step in zip(shape, steps, strict=True) if n != 1]


def merged_axes(axes) -> list[tuple[int, int]]:
    """Sizes and steps of the fewest axes that are the same; none where there is one element."""
    joined = merged(axes)
    return joined if any(step for _, step in joined) else []


def broadcast_axes(view: View, own, shape) -> list[tuple[int, int]]:
    """The merged axes of an array of the shape ``own`` where it is an operand of this shape.

    An axis of one element and an array without axes are broadcast.
    """
    pairs = zip(view.steps, own, shape, strict=False)
    steps = [step if n == m else 0 for step, n, m in pairs] or (0,) * len(shape)
    return merged_axes(zip(shape, steps, strict=True))


def view_of(equation, views, may_enter: bool) -> View | None:
    """The result of an equation as a view, if it is one.

    ``may_enter``: whether the operand is one that is seen canonical where it is used.
    """
    if len(equation.invars) != 1 or len(equation.outvars) != 1:
        return None
    (x,) = equation.invars
    if isinstance(x, Literal) or getattr(x.aval, "dtype", None) not in DTYPES or x.aval.size == 0:
        return None
    view = seen(x, views)
    if is_canonicalize(equation) and may_enter:
        return dataclasses.replace(view, canonical=True)
    steps = _moved(equation, view.steps)
    return None if steps is None else dataclasses.replace(view, steps=steps)


#: Operations that take elements of their first operand in some order, all of them or fewer.
_MOVES = frozenset(
    (
        *("slice", "dynamic_slice", "reshape", "squeeze", "expand_dims", "transpose", "rev"),
        *("copy", "copy_p"),
    )
)


def is_move(equation) -> bool:
    return equation.primitive.name in _MOVES


def is_canonicalize(equation) -> bool:
    return equation.primitive.name == _CANONICALIZE


def _moved(equation, steps) -> tuple[int, ...] | None:
    """The steps of the result of an equation that only moves data, or None if it does more."""
    name, (result,) = equation.primitive.name, equation.outvars
    if name == "broadcast_in_dim" and len(equation.invars) == 1:
        shape = equation.invars[0].aval.shape
        found = [0] * result.aval.ndim
        for n, step, d in zip(shape, steps, equation.params["broadcast_dimensions"], strict=True):
            found[d] = step if n == result.aval.shape[d] else 0
        return tuple(found)
    is_cast = name == "convert_element_type" and (
        equation.invars[0].aval.dtype == result.aval.dtype
    )
    if name not in _ALIASES and not is_cast:
        return None
    if equation.params.get("dimensions") is not None and name == "reshape":
        return None
    old, new = equation.invars[0].aval.shape, result.aval.shape
    if old == new:
        return steps
    if not any(steps):
        return (0,) * len(new)
    if long_axes(old, steps) == long_axes(old, row_major(old)):
        return row_major(new)
    long = iter(long_axes(old, steps))
    if [n for n in old if n != 1] == [n for n in new if n != 1]:
        return tuple(next(long)[1] if n != 1 else 0 for n in new)
    return None


def is_source(equation) -> bool:
    """Whether an equation, or None, makes positions or constants, which kernels need not read."""
    name = equation.primitive.name if equation is not None else ""
    if name == "iota":
        return equation.outvars[0].aval.dtype == np.int32
    return name == "broadcast_in_dim" and isinstance(equation.invars[0], Literal)


def variables(atoms) -> list[Any]:
    return [v for v in atoms if not isinstance(v, Literal)]


def run(equation, environment) -> None:
    primitive = equation.primitive
    operands = [v.val if isinstance(v, Literal) else environment[v] for v in equation.invars]
    with equation.ctx.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    results = results if primitive.multiple_results else [results]
    environment.update(zip(equation.outvars, results, strict=True))
