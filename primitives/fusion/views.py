"""Views: arrays that are others in the same memory, and equations that are run one by one."""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator
from typing import Any

import jax
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
class Number:
    """A literal, or several numbers that stand in a program, as something that can be a key."""

    data: bytes
    dtype: np.dtype
    shape: tuple[int, ...] = ()

    @classmethod
    def of(cls, literal: Literal) -> Number:
        return cls(np.asarray(literal.val, literal.aval.dtype).tobytes(), literal.aval.dtype)

    @property
    def aval(self) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(self.shape, self.dtype)

    @property
    def value(self) -> np.ndarray:
        return np.frombuffer(self.data, self.dtype).reshape(self.shape)


@dataclasses.dataclass(frozen=True)
class View:
    """An array as another one, its root, in the same memory: the steps of its axes.

    The root is a number where all elements are one that stands in the program.  An input of the
    program is seen as it came or made canonical: that costs less than a pass.  A slice is *moved*:
    its first element is not the root's, or it has not all of them.  Of a complex root, whose parts
    are by turns, it is the real or the imaginary part: steps and ``first`` count float32 numbers.
    """

    root: Any
    steps: tuple[int, ...]
    canonical: bool = False
    first: int = 0
    is_moved: bool = False

    def roots(self) -> Iterator[Any]:
        if not isinstance(self.root, Number):
            yield self.root

    def made_canonical(self) -> View:
        return dataclasses.replace(self, canonical=True)

    def broadcast(self, own, shape) -> View:
        """As an operand of this shape; its own is ``own``.

        An axis of one element and an array without axes are broadcast.
        """
        pairs = zip(self.steps, own, shape, strict=False)
        steps = tuple(step if n == m else 0 for step, n, m in pairs) or (0,) * len(shape)
        return dataclasses.replace(self, steps=steps)


@dataclasses.dataclass(frozen=True)
class Joined:
    """An array as parts one behind the other along an axis, with their sizes along it."""

    parts: tuple[View | Joined, ...]
    sizes: tuple[int, ...]
    axis: int
    is_moved = True

    def __iter__(self) -> Iterator[tuple[View | Joined, int]]:
        return zip(self.parts, self.sizes, strict=True)

    @property
    def canonical(self) -> bool:
        """Whether some part is to be made canonical; the others are."""
        return any(part.canonical for part in self.parts)

    def roots(self) -> Iterator[Any]:
        return itertools.chain.from_iterable(part.roots() for part in self.parts)

    def made_canonical(self) -> Joined:
        return dataclasses.replace(self, parts=tuple(p.made_canonical() for p in self.parts))

    def shapes(self, shape) -> list[tuple[int, ...]]:
        """Those of the parts of an array of this shape."""
        return [(*shape[: self.axis], n, *shape[self.axis + 1 :]) for n in self.sizes]

    def broadcast(self, own, shape) -> Joined:
        """As :meth:`View.broadcast`."""
        shapes = zip(self.parts, self.shapes(own), self.shapes(shape), strict=True)
        return dataclasses.replace(self, parts=tuple(p.broadcast(o, s) for p, o, s in shapes))


def seen(variable, views) -> Any:
    """A variable as one of the views, or as itself."""
    return views.get(variable) or View(variable, row_major(variable.aval.shape))


def long_axes(shape, steps):
    """Without the axes of one element."""
    return [(n, step) for n, step in zip(shape, steps, strict=True) if n != 1]


def order_of_terms(shape, axes) -> tuple[int, ...] | None:
    """The axes of an array as kernels reduce some of them: those that stay, then the terms of each
    result, and last those that stay and are behind all of these.

    None if that is their own order, but for axes of one element.
    """
    kept = [d for d in range(len(shape)) if d not in axes]
    outer = [d for d in kept if d < max(axes)]
    order = *outer, *sorted(axes), *kept[len(outer) :]
    long = [d for d in order if shape[d] != 1]
    return order if long != sorted(long) else None


def merged_axes(axes) -> list[tuple[int, int]]:
    """Sizes and steps of the fewest axes that are the same; none where there is one element."""
    joined = merged(axes)
    return joined if any(step for _, step in joined) else []


def broadcast_axes(view: View, own, shape) -> list[tuple[int, int]]:
    """The merged axes of a view where it is an operand of this shape (:meth:`View.broadcast`)."""
    return merged_axes(zip(shape, view.broadcast(own, shape).steps, strict=True))


def are_together(view: View, step: int) -> bool:
    """Whether elements of a view that are a step apart are neighbours, or the same one."""
    is_part = not isinstance(view.root, Number) and view.root.aval.dtype == np.complex64
    return step in (0, 2 if is_part else 1)


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


#: Elements that lie together, on average, so that a kernel reads them at little cost; and of how
#: many it does not matter.
_LONG_RUN, _FEW = 64, 1 << 12
#: Parts of a view: rolls of rolls have twice as many each time.
_MOST_PARTS = 16


def views_of(equation, views, entries) -> dict[Any, View | Joined]:
    """The results of an equation as views, moved ones included; none if it is no move.

    What has its elements in the variables ``entries`` may be seen canonical where it is used.
    Moved elements are left to XLA where few of them lie together, or there are too many parts.
    """
    found = _views_of(equation, views, entries)
    for v, view in found.items():
        if _count_parts(view) > _MOST_PARTS:
            return {}
        is_large = view.is_moved and v.aval.size > _FEW
        if is_large and _count_runs(view, v.aval.shape) * _LONG_RUN > v.aval.size:
            return {}
    return found


def _count_parts(view: View | Joined) -> int:
    return sum(map(_count_parts, view.parts)) if isinstance(view, Joined) else 1


def _count_runs(view: View | Joined, shape) -> int:
    """The runs in which the elements of a view of this shape lie together, or are the same one."""
    size = math.prod(shape)
    if isinstance(view, View):
        axes = merged_axes(zip(shape, view.steps, strict=True)) or [(size, 1)]
        return size // axes[-1][0] if are_together(view, axes[-1][1]) else size
    rows = math.prod(shape[: view.axis])
    parts = zip(view.parts, view.shapes(shape), strict=True)
    return sum(max(rows, _count_runs(*part)) for part in parts)


def _views_of(equation, views, entries) -> dict[Any, View | Joined]:
    atoms, results = equation.invars, equation.outvars
    if equation.primitive.name in PARTS:
        return _part(equation)
    avals = [x.aval for x in (*atoms, *results)]
    if not atoms or any(getattr(aval, "dtype", None) not in DTYPES for aval in avals):
        return {}
    if any(aval.size == 0 for aval in avals):
        return {}
    name, x = equation.primitive.name, atoms[0]
    if name == "concatenate":
        axis = equation.params["dimension"]
        parts = tuple(_seen(atom, views) for atom in atoms)
        return {results[0]: Joined(parts, tuple(v.aval.shape[axis] for v in atoms), axis)}
    if isinstance(x, Literal):
        is_filled = name == "broadcast_in_dim" and len(atoms) == 1
        steps = (0,) * results[0].aval.ndim
        return {results[0]: dataclasses.replace(_seen(x, views), steps=steps)} if is_filled else {}
    view = seen(x, views)
    if name == "pad":
        padded = _padded(view, _seen(atoms[1], views), x.aval.shape, equation.params)
        return {} if padded is None else {results[0]: padded}
    if is_canonicalize(equation):
        roots = set(view.roots())
        return {results[0]: view.made_canonical()} if roots and roots <= entries else {}
    if name == "slice":
        begins, ends = equation.params["start_indices"], equation.params["limit_indices"]
        strides = equation.params["strides"] or (1,) * x.aval.ndim
        part = _slice(view, begins, ends, strides)
        return {} if part is None else {results[0]: part}
    if isinstance(view, Joined):
        return {}
    moved = view_of(equation, views, False)
    return {} if moved is None else {results[0]: moved}


#: What takes a part of complex numbers, and where in them it is.
PARTS = {"real": 0, "imag": 1}


def _part(equation) -> dict[Any, View]:
    """The real or the imaginary part of a variable."""
    (x,), (result,) = equation.invars, equation.outvars
    if isinstance(x, Literal) or x.aval.dtype != np.complex64 or x.aval.size == 0:
        return {}
    steps = tuple(2 * step for step in row_major(x.aval.shape))
    return {result: View(x, steps, first=PARTS[equation.primitive.name], is_moved=True)}


def _seen(atom, views) -> View | Joined:
    """A variable or a literal as a view."""
    if not isinstance(atom, Literal):
        return seen(atom, views)
    return View(Number.of(atom), ())


def _slice(view: View | Joined, begins, ends, strides) -> View | Joined | None:
    """The slice of the first axes between these bounds; None if the steps are between parts."""
    if isinstance(view, View):
        pairs = zip(begins, view.steps, strict=False)
        first = view.first + sum(begin * step for begin, step in pairs)
        steps = (n * step for n, step in itertools.zip_longest(strides, view.steps, fillvalue=1))
        return dataclasses.replace(view, steps=tuple(steps), first=first, is_moved=True)
    found, axis = [], view.axis
    if axis >= len(begins):
        found = [(_slice(part, begins, ends, strides), n) for part, n in view]
    elif strides and strides[axis] != 1:
        return None
    else:
        end = 0
        for part, n in view:
            start, end = end, end + n
            begin, stop = max(start, begins[axis]), min(end, ends[axis])
            if begin < stop:
                ours = (
                    [*x[:axis], i - start, *x[axis + 1 :]]
                    for x, i in ((begins, begin), (ends, stop))
                )
                found.append((_slice(part, *ours, strides), stop - begin))
    if any(part is None for part, _ in found):
        return None
    return found[0][0] if len(found) == 1 else Joined(*zip(*found, strict=True), axis)


def _padded(view: View | Joined, value: View, shape, params) -> View | Joined | None:
    """A view between equal elements, of a number that is seen; None if it is more than that."""
    config = params["padding_config"]
    if any(low < 0 or high < 0 or between for low, high, between in config):
        return None
    value = value.broadcast((), shape)
    for axis, (low, high, _) in reversed([*enumerate(config)]):  # rows first: the longest runs
        parts = (value, low), (view, shape[axis]), (value, high)
        parts = [(part, n) for part, n in parts if n]
        if len(parts) > 1:
            view = Joined(*zip(*parts, strict=True), axis)
    return view


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
    if len(axes := merged_axes(zip(old, steps, strict=True))) == 1:
        return tuple(axes[0][1] * step for step in row_major(new))
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
