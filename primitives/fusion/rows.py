"""Row groups: softmax, layer norm and their like as one kernel each.

XLA makes several kernels of them, which read the array again and again; and on GPUs, of a
``pairwise`` sum of rows a loop in which each thread reads a row by itself.  A kernel that keeps
rows in registers, or on CPU in the cache, reads each operand and writes each result once.

:func:`in_rows` finds the row groups of a program that has been rewritten and binds each as the
primitive ``repjax_rows``.  Where there is no kernel (another platform than the one that it was
found for, several devices), the primitive is its equations again: the same bits.

A row group is a connected set of equations on arrays of one number of rows, of ``n`` elements
each, at least one of which reduces rows to one element.  The others are elementwise: on arrays of
all elements, or of one for each row.  What they take from outside may be broadcast in any way.
It may not wait for what needs its results: equations are joined in the order of the program, and
only where no path between them leads through others.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import heapq
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.extend.core import Literal, Primitive
from jax.interpreters import batching, mlir

from repjax.primitives.core.canonical import HALVES
from repjax.primitives.core.define import (
    does_without_kernels,
    is_for_one_device,
    is_for_several_devices,
    lower_body,
)
from repjax.primitives.core.jax_internals import prim_requires_devices_during_lowering
from repjax.primitives.core.partition import Axes, partitioned
from repjax.primitives.core.programs import settled, struct_of
from repjax.primitives.core.tables import KERNELS, PREFIX
from repjax.primitives.fusion.groups import Group, axes_of_groups, in_groups, run_plan
from repjax.primitives.fusion.kernels import Kernels
from repjax.primitives.fusion.views import (
    View,
    broadcast_axes,
    is_source,
    merged_axes,
    seen,
    variables,
    view_of,
)
from repjax.primitives.operations.elementary import table as elementary

#: Operations of a row group, at most: compiling takes longer with each.
LARGEST = 256
#: Short operations that are repeated rather than their result read, at most.
REPEATED = 8

_FLOATING = frozenset((np.dtype(np.float32), *HALVES))


def named(names: str, prefix: str = PREFIX) -> frozenset[str]:
    """The names of primitives of repjax, or of others."""
    return frozenset(prefix + name for name in names.split())


#: Elementwise primitives whose results are rather read than computed again.
LONG = named("add_n convert_element_type nextafter one_minus_square rem rsqrt sqrt")
LONG |= named(" ".join(elementary.names(in_rows=True)))
#: What XLA computes of the few elements that it takes.
_TAKING = named("gather slice dynamic_slice", "")
#: Reductions that a row group may have; sums in ``pairwise`` order and ``order_independent``.
REDUCTIONS = named("reduce_sum reduce_max reduce_min argmax argmin")


def _reduced(equation) -> tuple[int, int] | None:
    """Rows, and the elements of each, if the equation reduces its operand's last axes."""
    name, params = equation.primitive.name, equation.params
    if name not in REDUCTIONS or isinstance(equation.invars[0], Literal):
        return None
    if params.get("accumulation", "pairwise") not in ("pairwise", "order_independent"):
        return None
    if params.get("index_dtype", np.int32) != np.int32:
        return None
    aval = equation.invars[0].aval
    axes = [d for d in range(aval.ndim) if d in params["axes"] and aval.shape[d] != 1]
    kept = [d for d in range(aval.ndim) if d not in params["axes"] and aval.shape[d] != 1]
    n = math.prod(aval.shape[d] for d in axes)
    behind = axes and kept and kept[-1] > axes[0]
    if aval.dtype not in _FLOATING or aval.size == 0 or behind or n == 1:
        return None
    return aval.size // n, n


def reduced_by(kernels: Kernels, equation) -> tuple[int, int] | None:
    """Rows, and the elements of each, if the equation is a reduction that the kernels take."""
    shape = _reduced(equation)
    return shape if shape and kernels.is_reduction(equation, *shape) else None


def _is_nothing(equation) -> bool:
    """Whether it reduces axes of one element, and so only moves data."""
    if equation.primitive.name not in REDUCTIONS or "index_dtype" in equation.params:
        return False
    (x,), (result,) = equation.invars, equation.outvars
    is_sum_of_terms = equation.params.get("accumulation") not in ("order_independent", "exact")
    is_array = not isinstance(x, Literal) and x.aval.dtype in _FLOATING
    return is_array and is_sum_of_terms and x.aval.size == result.aval.size != 0


def _is_long(equation) -> bool:
    """Whether reading its result is faster than to compute it."""
    widens = equation.primitive.name == PREFIX + "convert_element_type" and (
        equation.invars[0].aval.dtype in HALVES and equation.outvars[0].aval.dtype == np.float32
    )
    return equation.primitive.name in LONG and not widens


class Read(NamedTuple):
    """How an equation sees an array, its root: sizes and steps of axes of rows, and of columns.

    Without axes, all rows have the same, or all columns.
    """

    root: Any
    rows: tuple[tuple[int, int], ...]
    columns: tuple[tuple[int, int], ...]
    canonical: bool = False


def _split(axes, n: int):
    """Axes of rows and of columns, the last ``n`` elements; None where they cannot be told."""
    rows: list[tuple[int, int]] = []
    columns: list[tuple[int, int]] = []
    for size, step in reversed(axes):
        inner = math.gcd(size, n)
        if inner not in (size, n):
            return None
        if inner > 1:
            columns.insert(0, (inner, step))
        if size > inner:
            rows.insert(0, (size // inner, step * inner))
        n //= inner
    return tuple(tuple(part) if any(step for _, step in part) else () for part in (rows, columns))


class _Views:
    """Variables that are others, their roots, in the same memory."""

    def __init__(self):
        self.views: dict[Any, View] = {}

    def note(self, equation, may_enter: bool) -> bool:
        """Whether the equation's result is one; ``may_enter`` as in :func:`view_of`."""
        view = view_of(equation, self.views, may_enter)
        if view is None and _is_nothing(equation):
            (x,), axes = equation.invars, equation.params["axes"]
            view = self.of(x)
            steps = tuple(step for d, step in enumerate(view.steps) if d not in axes)
            view = dataclasses.replace(view, steps=steps)
        if view is not None:
            self.views[equation.outvars[0]] = view
        return view is not None

    def of(self, variable) -> View:
        return seen(variable, self.views)

    def root(self, variable):
        return self.of(variable).root

    def reads(self, equation, rows: int, n: int) -> list[Literal | Read] | None:
        """How the equation sees its operands.

        None where it is not one of row groups of this shape.
        """
        shape, size = equation.outvars[0].aval.shape, equation.outvars[0].aval.size
        is_reduction = equation.primitive.name in REDUCTIONS
        if is_reduction:
            shape = equation.invars[0].aval.shape
        if size not in (rows, rows * n) or (is_reduction and _reduced(equation) != (rows, n)):
            return None
        found: list[Literal | Read] = []
        for atom in equation.invars:
            if isinstance(atom, Literal):
                found.append(atom)
                continue
            view = self.of(atom)
            axes = broadcast_axes(view, atom.aval.shape, shape)
            parts = _split(axes, n if is_reduction or size != rows else 1)
            if parts is None:
                return None
            found.append(Read(view.root, *parts, view.canonical))
        return found


@dataclasses.dataclass(frozen=True, eq=False)
class Rows(Group):
    """A row group: ``shape`` is the number of rows, and of the elements of each."""

    shape: tuple[int, int]

    @functools.cached_property
    def _structure(self) -> tuple[Any, ...]:
        return (*super()._structure, self.shape)

    def part(self, operands) -> Rows:
        part = super().part(operands)
        return dataclasses.replace(part, shape=next(filter(None, map(_reduced, part.eqns))))

    @property
    def has_kernel(self) -> bool:
        """Whether the kernel takes rows of this shape."""
        rows, n = self.shape
        return all(self.kernels.is_reduction(e, rows, n) for e in self.eqns if _reduced(e))

    def steps(self) -> list[tuple[Any, list[Literal | Read]]]:
        """The equations that compute something, and how they see their operands."""
        views, found = _Views(), []
        for equation in self.eqns:
            (result,) = equation.outvars
            enters = bool(equation.invars) and equation.invars[0] in self.invars
            if is_source(equation):
                found.append((equation, []))
            elif result in self.outvars or not views.note(equation, enters):
                reads = views.reads(equation, *self.shape)
                assert reads is not None, equation
                found.append((equation, reads))
        return found


# --- finding them -----------------------------------------------------------------------


class _Joined:
    """Equations that are joined, as a set of the bits of all groups that it was made of.

    ``below`` are those of the groups that wait for it, itself among them.
    """

    def __init__(self, bits: int):
        self.bits = self.below = bits
        self.members: list[Any] = []


class _Cone(NamedTuple):
    """The arrays in memory, and the results of a group, that it takes to repeat one of them."""

    arrays: frozenset[Any] = frozenset()
    results: frozenset[Any] = frozenset()


class _Plan:
    """The row groups of a jaxpr, and an order in which they and the other equations are run.

    In reading order: which equations may be of row groups, and of which shape (:meth:`_shape`);
    which are joined (:meth:`_join`); which of these groups are worth it (:meth:`_units`); what is
    needed of them (:meth:`_outside`), and what of that others compute again (:meth:`_repeat`); and
    the steps (:meth:`steps`).  In

        m = reduce_max(x, axis 1); e = exp(x - m); s = reduce_sum(e, axis 1); y = e / s; z = w @ y

    for ``x`` of 64 rows and 10 columns the two reductions are of the shape (64, 10), and so is
    what they are connected with: the subtraction, ``exp`` and the division.  Each reads the one
    before element by element, or one element for each row, so that all five are joined to one
    group, whose result is ``y``.  If ``s`` were ``reduce_sum(sort(e))``, it would be no part of the
    group of ``m``, since it would wait for ``sort``, and ``sort`` for the group; and the division,
    which waits for ``s``, would be of the group of ``s``, and read ``e``.
    """

    def __init__(self, jaxpr, kernels: Kernels):
        self.jaxpr, self.kernels = jaxpr, kernels
        self.made_by = {v: e for e in jaxpr.eqns for v in e.outvars}
        self.views = _Views()
        #: By the ids of equations: positions, shapes, groups.
        self.position = {id(e): i for i, e in enumerate(jaxpr.eqns)}
        self.shapes: dict[int, tuple[int, int]] = {}
        self.groups: dict[int, _Joined] = {}
        self.repeated: set[Any] = set()
        entries = {*jaxpr.invars, *jaxpr.constvars}
        #: Views are run by whoever needs one.
        self.equations = [
            e
            for e in jaxpr.eqns
            if not self.views.note(e, bool(e.invars) and entries.issuperset(variables(e.invars)))
        ]
        having = [e for e in self.equations if e.effects]
        self.effects = {id(e): [before] for before, e in itertools.pairwise(having)}
        self._shape()
        self._join()

    def _makers(self, equation) -> list[Any]:
        """The equations that it waits for; one with effects waits for the one before, too."""
        roots = (self.views.root(v) for v in variables(equation.invars))
        before = self.effects.get(id(equation), [])
        return [self.made_by[r] for r in roots if r in self.made_by] + before

    def _continued(self, equation, shape) -> list[Any] | None:
        """The makers whose results the equation reads element by element, as they make them.

        None where it is not one of row groups of this shape.
        """
        reads = self.views.reads(equation, *shape)
        if reads is None:
            return None
        rows, n = shape
        found, others = [], []
        for read in reads:
            maker = None if isinstance(read, Literal) else self.made_by.get(read.root)
            if maker is None:
                continue
            full = maker.outvars[0].aval.size == rows * n
            if equation.primitive.name in REDUCTIONS or equation.outvars[0].aval.size != rows:
                own = _split(merged_axes(zip(shape, (n, 1) if full else (1, 0), strict=True)), n)
            else:
                own = None if full else _split(merged_axes([(rows, 1)]), 1)
            (found if (read.rows, read.columns) == own else others).append(maker)
        return [e for e in found if e not in others]

    def _shape(self) -> None:
        """The shapes of reductions, and of what they are connected with: the first that comes."""
        kernels = self.kernels
        shapes = {id(e): reduced_by(kernels, e) for e in self.equations}
        candidates = {id(e) for e in self.equations if shapes[id(e)] or kernels.is_elementwise(e)}
        users = collections.defaultdict(list)
        for equation in self.equations:
            for maker in self._makers(equation):
                users[id(maker)].append(equation)
        for reduction in self.equations:
            shape = shapes[id(reduction)]
            queue = [reduction] if shape else []
            while queue:
                equation = queue.pop()
                if id(equation) not in candidates or id(equation) in self.shapes:
                    continue
                makers = self._continued(equation, shape)
                if makers is not None:
                    self.shapes[id(equation)] = shape
                    queue += makers
                    queue += users[id(equation)]

    def _join(self) -> None:
        """Put equations into groups, in the order of the program."""
        groups: list[_Joined] = []
        above: dict[int, int] = {}  # the bits of the groups that an equation waits for

        def bits(equation) -> int:
            group = self.groups.get(id(equation))
            return group.bits if group else above[id(equation)]

        for i, equation in enumerate(self.equations):
            makers = self._makers(equation)
            above[id(equation)] = functools.reduce(int.__or__, map(bits, makers), 0)
            if id(equation) not in self.shapes:
                continue
            mine = self._joinable(equation, makers, bits)
            joined = _Joined(1 << i)
            joined.members = [e for g in mine for e in g.members] + [equation]
            for group in mine:
                joined.bits |= group.bits
                joined.below |= group.below
                groups.remove(group)
            self.groups.update((id(e), joined) for e in joined.members)
            groups.append(joined)
            for group in groups:
                if group.below & (joined.bits | above[id(equation)]):
                    group.below |= joined.below

    def _joinable(self, equation, makers, bits) -> list[_Joined]:
        """The groups of what the equation continues that it joins, the largest first.

        ``bits`` gives those of the groups that an equation is of, or waits for.
        """
        shape = self.shapes[id(equation)]
        same = [e for e in self._continued(equation, shape) if self.shapes.get(id(e)) == shape]
        candidates = {id(g): g for g in (self.groups[id(e)] for e in same)}.values()
        mine: list[_Joined] = []
        for group in sorted(candidates, key=lambda g: len(g.members), reverse=True):
            # What the equation and those before it wait for may not wait for this one.
            both = [*mine, group]
            inside = {id(e) for e in same if self.groups[id(e)] in both}
            waited_for = [bits(e) for e in makers if id(e) not in inside]
            waited_for += [g.bits for g in mine]
            is_free = not any(group.below & b for b in waited_for)
            is_free &= not any(g.below & group.bits for g in mine)
            if is_free and sum(len(g.members) for g in both) < LARGEST:
                mine = both
        return mine

    def _units(self) -> None:
        """Which equations are one unit: of each equation its members or itself."""
        self.units = {id(equation): equation for equation in self.equations}
        for group in {id(g): g for g in self.groups.values()}.values():
            members = sorted(group.members, key=lambda e: self.position[id(e)])
            reduces = any(e.primitive.name in REDUCTIONS for e in members)
            if reduces and self.kernels.pays(members, self._makers):
                self.units.update((id(e), members) for e in members)

    def _outside(self) -> dict[Any, list[Any]]:
        """For each variable that is needed outside of its unit, the equations that need it."""
        results = variables(self.jaxpr.outvars)
        needed: dict[Any, list[Any]] = {self.views.root(v): [None] for v in results}
        for equation in self.equations:
            for v in variables(equation.invars):
                root = self.views.root(v)
                maker = self.made_by.get(root)
                if maker and self.units[id(maker)] is not self.units[id(equation)]:
                    needed.setdefault(root, []).append(equation)
        return needed

    def _repeat(self, needed) -> None:
        """Find what groups compute again rather than read.

        XLA would not store either what takes a few operations on an array that is in memory
        anyway, such as ``x - mean`` for a derivative.  ``needed`` is updated.
        """
        for members in {id(u): u for u in self.units.values() if isinstance(u, list)}.values():
            mine = {v: e for e in members for v in e.outvars}
            cones = self._cones(members, mine, needed)
            for v, equation in reversed(mine.items()):
                if v in needed and v in cones[v].results:
                    self.repeated.add(v)
                    users = needed.pop(v)
                    for read in self.views.reads(equation, *self.shapes[id(equation)]):
                        if not isinstance(read, Literal) and read.root in mine:
                            needed.setdefault(read.root, []).extend(users)

    def _cones(self, members, mine, needed) -> dict[Any, _Cone]:
        """For each result of a group what it takes to repeat it.

        For ``c = x - mean`` that is the array ``x`` and ``c``, for ``d = c * c`` also ``d``;
        what has one element for each row, as ``mean``, is read and counts for nothing.  A result
        that may not be repeated is an array in memory for what follows from it.
        """
        shape = self.shapes[id(members[0])]
        cones: dict[Any, _Cone] = {}
        for equation in members:
            (v,) = equation.outvars
            if v.aval.size == shape[0]:
                cones[v] = _Cone()
                continue
            arrays, results = frozenset(), frozenset([v])
            for read in self.views.reads(equation, *shape):
                if isinstance(read, Literal) or is_source(self.made_by.get(read.root)):
                    continue
                if read.root in mine:
                    arrays |= cones[read.root].arrays
                    results |= cones[read.root].results
                elif read.rows and read.columns:
                    arrays |= {read.root}
            repeated = (
                not _is_long(equation)
                and len(arrays) <= 1
                and len(results) <= REPEATED
                and all(self._may_repeat(equation, user, shape) for user in needed.get(v, []))
            )
            cones[v] = _Cone(arrays, results) if repeated else _Cone(frozenset([v]))
        return cones

    def _may_repeat(self, equation, user, shape) -> bool:
        """Whether the user, another group or XLA of few elements, can as well compute it."""
        if user is None or not isinstance(self.units[id(user)], list):
            return user is not None and user.primitive.name in _TAKING
        return self.shapes[id(user)] == shape and equation in self._continued(user, shape)

    def _group(self, members, outputs) -> Rows:
        equations = {id(e): e for e in members}
        inputs: dict[Any, None] = {}

        def add(variable):
            maker = self.made_by.get(variable)
            if id(maker) in equations:
                return
            is_view = variable in self.views.views
            if is_view or is_source(maker) or variable in self.repeated:
                equations[id(maker)] = maker
                for v in variables(maker.invars):
                    add(v)
            else:
                inputs[variable] = None

        for member in members:
            for v in variables(member.invars):
                add(v)
        ordered = tuple(sorted(equations.values(), key=lambda e: self.position[id(e)]))
        shape = self.shapes[id(members[0])]
        return Rows(ordered, tuple(inputs), tuple(outputs), self.kernels, shape)

    def steps(self) -> list[Any]:
        """The row groups and the other equations, in an order in which they can be run."""
        self._units()
        needed = self._outside()
        self._repeat(needed)
        return [
            self._group(unit, [v for e in unit for v in e.outvars if v in needed])
            if isinstance(unit, list)
            else unit
            for unit in self._in_order()
        ]

    def _in_order(self) -> list[Any]:
        """The units, each behind those that it waits for, else in the order of the program."""
        users: dict[int, list[Any]] = collections.defaultdict(list)
        waits: dict[int, int] = collections.Counter()
        for equation in self.equations:
            unit = self.units[id(equation)]
            for maker in self._makers(equation):
                if self.units[id(maker)] is not unit:
                    users[id(self.units[id(maker)])].append(unit)
                    waits[id(unit)] += 1

        distinct = {id(unit): unit for unit in self.units.values()}.values()
        first = {id(u): self.position[id(u[0] if isinstance(u, list) else u)] for u in distinct}
        ready = [(first[id(u)], id(u), u) for u in distinct if not waits[id(u)]]
        heapq.heapify(ready)
        found: list[Any] = []
        while ready:
            _, _, unit = heapq.heappop(ready)
            found.append(unit)
            for user in users[id(unit)]:
                waits[id(user)] -= 1
                if not waits[id(user)]:
                    heapq.heappush(ready, (first[id(user)], id(user), user))
        assert len(found) == len(distinct), "row groups wait for each other"
        return found


def in_rows(function: Callable[..., Sequence[Any]], kernels: Kernels, *operands) -> list[Any]:
    """The results of a function of repjax's primitives, with its row groups as primitives."""

    def compute(step: Rows, see):
        results = rows_p.bind(*map(see, step.invars), group=step)
        return zip(step.outvars, results, strict=True)

    jaxpr = jax.make_jaxpr(function)(*map(struct_of, operands))
    return run_plan(functools.partial(_Plan, kernels=kernels), compute, jaxpr, operands)


def fuse(
    function: Callable[..., Sequence[Any]],
    kernels: Kernels,
    *operands,
    carry: tuple[int, int] = (0, 0),
) -> list[Any]:
    """The results of a function of repjax's primitives, with what there are kernels for in them.

    ``carry`` as for :func:`~repjax.primitives.fusion.groups.in_groups`.
    """
    if kernels.large is None:
        return in_rows(function, kernels, *operands)
    rest = functools.partial(in_rows, function, kernels)
    return in_groups(rest, kernels, *operands, carry=carry)


# --- the primitive ----------------------------------------------------------------------


def _equations(*operands, group: Rows) -> list[Any]:
    return group.evaluate(*operands)


rows_p = Primitive(PREFIX + "rows")
rows_p.multiple_results = True
rows_p.def_impl(_equations)
rows_p.def_abstract_eval(lambda *_, group: [v.aval for v in group.outvars])
prim_requires_devices_during_lowering.add(rows_p)


def _of_parts(*operands, group: Rows) -> list[Any]:
    """The same of operands that are parts."""
    return rows_p.bind(*operands, group=group.part(operands))


def _axes_of_group(*_, group: Rows) -> Axes:
    return axes_of_groups(groups=[group])


_in_parts = partitioned(_of_parts, _axes_of_group)


def _lower(ctx, *operands, group: Rows, platform=None):
    """To the kernel of the platform that it was found for, if it has one, else to the equations."""
    kernel = None
    if platform == group.kernels.platform and not does_without_kernels(ctx):
        kernel = KERNELS[platform](rows_p)
    if kernel and is_for_one_device(ctx) and group.has_kernel:
        return lower_body(ctx, kernel.make(), *operands, multiple_results=True, group=group)
    in_parts = kernel and is_for_several_devices(ctx) and group.has_parts
    function = _in_parts if in_parts else _equations
    with settled():
        return mlir.lower_fun(function, multiple_results=True)(ctx, *operands, group=group)


def _batch(operands, dimensions, group: Rows):
    function = functools.partial(_equations, group=group)
    batched = jax.vmap(function, in_axes=tuple(dimensions), out_axes=0)
    results = fuse(batched, group.kernels, *operands)
    return results, [0] * len(results)


mlir.register_lowering(rows_p, _lower)
for _platform in ("cpu", "cuda"):
    _rule = functools.partial(_lower, platform=_platform)
    mlir.register_lowering(rows_p, _rule, platform=_platform)
batching.primitive_batchers[rows_p] = _batch
