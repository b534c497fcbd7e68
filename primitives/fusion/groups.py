"""Fused groups: elementwise operations as calls of one kernel.

XLA makes a loop of each group and has LLVM compile it, which is most of what the first call of
a deep program costs.  A kernel that is compiled already interprets a group block by block, so
that what is between its operations stays in the cache (as numexpr does for NumPy).

:func:`in_groups` finds the groups of a program that has been rewritten and binds them as one
primitive, ``repjax_groups``: all of a level together.  Where there is no kernel (other platforms,
several devices, which XLA would have to split it over), the primitive is its equations again: the
same bits.

A pairwise sum, or an extremum, of what a group makes is a primitive of its own,
``repjax_group_sum``, whose kernel computes the terms as it adds them, so that they are never in
memory.

A group may neither wait for what another needs of it nor the other way round.  So each
elementwise equation has a *level*: how many equations that are not elementwise, or of another
size, there are at most on the way to it.  A group is a connected set of equations of one level
and size.  In

    y = exp(x); z = y / sum(y); w = z + 1

``exp`` is elementwise and of level 0.  The sum is no elementwise equation: what reads it is of
level 1.  The division and the addition are of level 1 and of one size, and the addition reads the
division: they are one group.  So the program is a group, a sum and a group; or a sum of a group,
if nothing but the sum needs ``y``.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, JaxprEqn, Literal, Primitive
from jax.interpreters import batching, mlir

from repjax.primitives.core.define import (
    does_without_kernels,
    is_for_one_device,
    is_for_several_devices,
)
from repjax.primitives.core.jax_internals import prim_requires_devices_during_lowering
from repjax.primitives.core.partition import Axes, partitioned
from repjax.primitives.core.programs import open_jaxpr, renamed, settled, struct_of
from repjax.primitives.core.sizes import row_major
from repjax.primitives.core.tables import KERNELS, PREFIX
from repjax.primitives.fusion.complex_parts import without_copies, without_joins
from repjax.primitives.fusion.draws import as_draw
from repjax.primitives.fusion.entries import enter_p
from repjax.primitives.fusion.exits import leave_p, with_exits
from repjax.primitives.fusion.kernels import Kernels
from repjax.primitives.fusion.loops import Loop, loop_of
from repjax.primitives.fusion.names import Names
from repjax.primitives.fusion.row_moves import RowMove, Rows, row_move, with_slices
from repjax.primitives.fusion.turns import without_transposes
from repjax.primitives.fusion.views import (
    Joined,
    View,
    are_together,
    is_canonicalize,
    long_axes,
    order_of_terms,
    run,
    seen,
    variables,
    views_of,
)

# --- groups -----------------------------------------------------------------------------


def _operation(equation) -> tuple[Any, ...]:
    return equation.primitive, tuple(sorted(equation.params.items())), equation.ctx


class _SameAsOthers:
    """Equal to what computes the same, whatever its variables are called.

    JAX lowers equations of equal parameters once, and so what the layers of a network have in
    common, which Pallas takes a tenth of a second for each time.
    """

    def __eq__(self, other) -> bool:
        return self is other or (type(self) is type(other) and self._key == other._key)

    def __hash__(self) -> int:
        return hash(self._key)

    @functools.cached_property
    def _key(self) -> Any:
        try:
            hash(self._structure)
        except TypeError:  # a parameter that tells nothing, such as a list
            return id(self)
        return self._structure

    _structure: Any  # All that it consists of, with numbers for its variables.


@dataclasses.dataclass(frozen=True, eq=False)
class Group(_SameAsOthers):
    """Equations, with the variables that they take and that are needed of them, as in a jaxpr.

    ``moved`` are those that its moves within rows make, of which all arrays have ``rows``; other
    moves are views.  ``in_place`` are pairs of what is taken and what is needed, which may be
    where that was.
    """

    eqns: tuple[Any, ...]
    invars: tuple[Any, ...]
    outvars: tuple[Any, ...]
    kernels: Kernels
    _: dataclasses.KW_ONLY
    moved: frozenset[Any] = frozenset()
    rows: int | None = None
    in_place: tuple[tuple[Any, Any], ...] = ()

    @functools.cached_property
    def size(self) -> int:
        """The elements that are computed, of the longest rows."""
        moves = (e for e in self.eqns if self.moved.intersection(e.outvars))
        of_moves = (v for e in moves for v in (*e.invars, *e.outvars))
        return max(v.aval.size for v in (*self.outvars, *of_moves))

    def evaluate(self, *operands) -> list[Any]:
        """The outputs, equation by equation."""
        environment = dict(zip(self.invars, operands, strict=True))
        for equation in self.eqns:
            run(equation, environment)
        return [environment[v] for v in self.outvars]

    @functools.cached_property
    def _structure(self) -> tuple[Any, ...]:
        numbers: dict[Any, int] = {}

        def known(x):
            if isinstance(x, Literal):
                return x.aval, np.asarray(x.val).tobytes()
            return x.aval, numbers.setdefault(x, len(numbers))

        def all_known(xs):
            return tuple(map(known, xs))

        eqns = [(*_operation(e), all_known(e.invars), all_known(e.outvars)) for e in self.eqns]
        moves = tuple(i for i, e in enumerate(self.eqns) if self.moved.intersection(e.outvars))
        variables = all_known(self.invars), all_known(self.outvars)
        in_place = tuple(map(all_known, self.in_place))
        return *variables, tuple(eqns), moves, self.rows, in_place, self.kernels

    @functools.cached_property
    def names(self) -> Names:
        """The names of the axes of its arrays, for devices that have parts of them."""
        return Names(self.eqns, self.invars)

    @property
    def has_parts(self) -> bool:
        """Whether there is a rule by which devices compute parts of it."""
        moves = any(e.primitive.name in _MOVES for e in self.eqns)
        return bool(self.invars) and not moves and self.names.are_distinct

    def part(self, operands) -> Group:
        """The same of operands that are parts."""
        parts = {
            names[0]: (n, x.shape[d])
            for v, x in zip(self.invars, operands, strict=True)
            for d, (names, n) in enumerate(zip(self.names.of[v], v.aval.shape, strict=True))
        }
        counts = {name: n // m for name, (n, m) in parts.items() if n != m}
        if not counts:
            return self

        def shape(variable):
            return tuple(
                math.prod(self.names.sizes[name] // counts.get(name, 1) for name in names)
                for names in self.names.of[variable]
            )

        def of_part(equation):
            sizes = {k: shape(equation.outvars[0]) for k in _SHAPES if k in equation.params}
            return equation.replace(params={**equation.params, **sizes})

        of_parts = dataclasses.replace(self, eqns=tuple(map(of_part, self.eqns)))
        jaxpr, _ = open_jaxpr(jax.make_jaxpr(of_parts.evaluate)(*map(struct_of, operands)))
        ours = {"eqns": jaxpr.eqns, "invars": jaxpr.invars, "outvars": jaxpr.outvars}
        ours = {k: tuple(v) for k, v in ours.items()}
        return dataclasses.replace(self, **ours, in_place=())


def joins_parts(equation) -> bool:
    """Whether it makes complex numbers of their parts, which kernels of groups write by turns."""
    return equation.primitive.name == "complex" and all(
        not isinstance(v, Literal) and v.aval.dtype == np.float32 for v in equation.invars
    )


#: What makes moved views, or moves within rows; of these what has several parts.
_MOVES = frozenset(("slice", "concatenate", "pad"))
_JOINS = _MOVES - {"slice"}
#: Parameters that are the shape of an equation's result.
_SHAPES = ("shape", "new_sizes")


def axes_of_groups(*_, groups: Sequence[Group]) -> Axes:
    """The axes along which groups may be split, each by itself."""
    operands, results, whole, sizes = [], [], [], {}
    for i, group in enumerate(groups):
        names = group.names

        def named(v, names=names, i=i):
            return [" ".join(f"{name}_{i}" for name in axis) for axis in names.of[v]]

        operands += map(named, group.invars)
        results += map(named, group.outvars)
        used = dict.fromkeys(
            name for v in (*group.invars, *group.outvars) for axis in names.of[v] for name in axis
        )
        whole += (f"{name}_{i}" for name in used if name in names.whole)
        sizes |= {f"{name}_{i}": names.sizes[name] for name in used}
    return Axes(operands, results, whole, sizes=sizes)


@dataclasses.dataclass(frozen=True, eq=False)
class Sum(_SameAsOthers):
    """The equation of a sum or extremum, and the group of its terms, which is its operand."""

    group: Group
    equation: Any

    @functools.cached_property
    def _structure(self) -> tuple[Any, ...]:
        return self.group, *_operation(self.equation)

    @property
    def eqns(self) -> tuple[Any, ...]:
        return (*self.group.eqns, self.equation)


#: The reductions whose terms the kernel may compute, and what it calls them.
_REDUCTIONS = {PREFIX + f"reduce_{name}": name for name in ("sum", "max", "min")}


def accumulation_of(equation) -> str | None:
    """The kernel's name for a reduction of an array, or None."""
    name = _REDUCTIONS.get(equation.primitive.name)
    if name is None:
        return None
    (x,), axes = equation.invars, equation.params["axes"]
    if isinstance(x, Literal) or x.aval.dtype != np.float32 or x.aval.size == 0 or not axes:
        return None
    accumulation = equation.params.get("accumulation", name)
    known = ("pairwise", "sequential", "order_independent", "exact", "max", "min")
    return accumulation if accumulation in known else None


class _Plan:
    """The groups of a jaxpr, and the order in which they and the other equations are run.

    In reading order: views, elementwise equations and levels (:meth:`_classify`, :meth:`_sink`);
    the sums whose terms are computed as they are added (:meth:`_sums`); what is needed besides
    (:meth:`_live`) and which equations are together (:meth:`_members`); and the steps
    (:meth:`steps`).  In the example of the module, for a large ``x`` of one row,

        level 0    y = exp(x)       a group
                   s = sum(y)       no group; for its terms to be computed as they are added, y is
                                    needed by others too, and exp takes too long to do it twice
        level 1    z = y / s        a view of s is broadcast to the size of y; a group with
                   w = z + 1
    """

    def __init__(self, jaxpr, kernels: Kernels, carry: tuple[int, int] = (0, 0)):
        self.jaxpr, self.kernels = jaxpr, kernels
        self.carried = self._carried(*carry)
        self.entries = {*jaxpr.invars, *jaxpr.constvars}
        self.results = set(variables(jaxpr.outvars))
        self.size_of_results = sum(v.aval.size for v in self.results)
        self.made_by = {v: e for e in jaxpr.eqns for v in e.outvars}
        self.views: dict[Any, View | Joined] = {}
        self.levels: dict[int, int] = {}  # of equations, by their ids
        self.elementwise: set[int] = set()  # with the moves within rows
        self.moves: dict[int, RowMove] = {}
        self.rows = Rows()
        for equation in jaxpr.eqns:
            self._classify(equation)
        self._sink()
        self.position = {id(e): i for i, e in enumerate(jaxpr.eqns)}
        self.sums = self._sums()

    def _carried(self, first: int, count: int) -> list[tuple[Any, Any]]:
        """What a loop carries, and what is made anew to take its place, and only that."""
        returned = collections.Counter(variables(self.jaxpr.outvars))
        pairs = zip(self.jaxpr.invars[first : first + count], self.jaxpr.outvars, strict=False)
        return [
            (v, result)
            for v, result in pairs
            if not isinstance(result, Literal)
            and (returned[result], returned[v]) == (1, 0)
            and v.aval == result.aval
        ]

    def _in_place(self, group: Group) -> tuple[tuple[Any, Any], ...]:
        """What the group takes of what a loop carries, and makes for the next iteration."""
        taken, made = set(group.invars), set(group.outvars)
        return tuple(
            (v, result)
            for v, result in self.carried
            if v in taken and result in made and v.aval.size == group.size
        )

    def _roots_of(self, variable) -> list[Any]:
        return [*self.views[variable].roots()] if variable in self.views else [variable]

    def _roots(self, equation) -> list[Any]:
        return [r for v in variables(equation.invars) for r in self._roots_of(v)]

    def _moved(self, equation) -> set[Any]:
        """The roots of which it takes elements from other places than it writes its result to."""
        views = (self.views.get(v) for v in variables(equation.invars))
        return {r for view in views if view is not None and view.is_moved for r in view.roots()}

    def _fits(self, root, equation) -> bool:
        """Whether both may be computed element by element, in one group."""
        if root in self._moved(equation):
            return False
        like = equation.outvars
        if id(equation) in self.moves:
            like = [v for v in variables(equation.invars) if root in self._roots_of(v)]
        return all(v.aval.size == root.aval.size for v in like)

    def _distance(self, root, equation) -> int:
        """By how much the level of an equation is at least above that of the root's equation."""
        if id(self.made_by[root]) not in self.elementwise:
            return 1
        return int(id(equation) in self.elementwise and not self._fits(root, equation))

    def _classify(self, equation) -> None:
        views = views_of(equation, self.views, self.entries)
        may_move = self._may_move(equation, bool(views))
        if not may_move and views:
            self.views.update(views)
            return
        if may_move or (self._is_elementwise(equation) and self._connects(equation)):
            self.elementwise.add(id(equation))
        makers = [(r, self.made_by[r]) for r in self._roots(equation) if r in self.made_by]
        levels = [self.levels[id(maker)] + self._distance(r, equation) for r, maker in makers]
        self.levels[id(equation)] = max(levels, default=0)

    def _is_elementwise(self, equation) -> bool:
        return self.kernels.is_elementwise(equation) or joins_parts(equation)

    def _may_move(self, equation, is_view: bool) -> bool:
        """Whether an equation is a move within rows; views are, of what no group computes."""
        move = row_move(equation)
        if move is None:
            return False
        self.moves[id(equation)] = move
        if (self._computed(equation) or not is_view) and self._connects(equation):
            return True
        del self.moves[id(equation)]
        return False

    def _computed(self, equation) -> list[int]:
        """The elementwise equations, by their ids, with which it may be in one group."""
        makers = ((r, id(self.made_by.get(r))) for r in self._roots(equation))
        return [i for r, i in makers if i in self.elementwise and self._fits(r, equation)]

    def _connects(self, equation) -> bool:
        move = self.moves.get(id(equation))
        read = variables(equation.invars) if move else []
        sizes = [v.aval.size for v in (*read, *equation.outvars) if v.aval.size > 1]
        return self.rows.connect(id(equation), self._computed(equation), sizes, move)

    def _sink(self) -> None:
        """Move equations to where they are used, if what they take is not kept longer for it.

        These are equations of one operand, whose result would be kept instead, and those that
        follow from inputs of the program, which are there until its end.
        """
        entering = self._entering()
        limits: dict[Any, int] = {}
        for equation in reversed(self.jaxpr.eqns):
            level = self.levels.get(id(equation))
            if level is None:  # a view
                continue
            roots = self._roots(equation)
            is_move = id(equation) in self.moves
            one = id(equation) in self.elementwise and len(_large(roots)) <= 1 and not is_move
            if one or id(equation) in entering:
                level = self.levels[id(equation)] = limits.get(equation.outvars[0], level)
            for root in roots:
                if root in self.made_by:
                    limit = level - self._distance(root, equation)
                    limits[root] = min(limits.get(root, limit), limit)

    def _entering(self) -> set[int]:
        """The elementwise equations that follow from inputs of the program and from numbers."""
        found: set[int] = set()
        for equation in self.jaxpr.eqns:
            if id(equation) in self.elementwise and all(
                r in self.entries or (id(self.made_by[r]) in found and self._fits(r, equation))
                for r in _large(self._roots(equation))
            ):
                found.add(id(equation))
        return found

    def _members(self) -> dict[int, list[Any]]:
        """For each elementwise equation, by its id, the elementwise equations of its group."""
        groups: dict[int, list[Any]] = {}
        live = self._live()
        for equation in self.jaxpr.eqns:
            if id(equation) not in live:
                continue
            mine = groups[id(equation)] = [equation]
            for root in self._roots(equation):
                maker = id(self.made_by.get(root))
                other = groups.get(maker, mine)
                same_level = self.levels.get(maker) == self.levels[id(equation)]
                if other is not mine and same_level and self._fits(root, equation):
                    mine = _joined(groups, mine, other)
        self._join_readers(groups)
        return groups

    def _join_readers(self, groups: dict[int, list[Any]]) -> None:
        """Join the groups that read what one of them may write its result in the place of."""
        readers: dict[Any, list[Any]] = {v: [] for v, _ in self.carried}
        for equation in self.jaxpr.eqns if readers else ():
            if id(equation) in groups:
                for root in readers.keys() & self._roots(equation):
                    readers[root].append(equation)
        for v, result in self.carried:
            maker = id(self.made_by.get(result))
            for equation in readers[v] if maker in groups else ():
                mine, other = groups[maker], groups[id(equation)]
                same_level = self.levels[maker] == self.levels[id(equation)]
                if other is mine or not same_level or not self._fits(v, equation):
                    continue
                if not any(id(e) in self.moves for e in (*mine, *other)):
                    _joined(groups, mine, other)

    def _entries_of(self, variable) -> list[Any]:
        """The variables made canonical that a variable is a view of."""
        if variable not in self.views:
            return []
        maker = self.made_by[variable]
        if is_canonicalize(maker):
            return [variable]
        return [entry for v in variables(maker.invars) for entry in self._entries_of(v)]

    def _sums(self) -> dict[int, Sum]:
        """The sums whose terms are computed as they are added, by the ids of their equations."""
        users = self._counts_of_users()
        groups = ((e, self._group_of_terms(e, users)) for e in self.jaxpr.eqns)
        return {id(e): Sum(group, e) for e, group in groups if group is not None}

    def _counts_of_users(self) -> collections.Counter[Any]:
        """How many equations, and results of the program, need each root."""
        users = collections.Counter(
            r for e in self.jaxpr.eqns if id(e) in self.levels for r in set(self._roots(e))
        )
        users.update(r for v in variables(self.jaxpr.outvars) for r in self._roots_of(v))
        return users

    def _group_of_terms(self, equation, users) -> Group | None:
        """The group that gives the terms of a sum or extremum, if it is to be computed with it."""
        accumulation = accumulation_of(equation)
        if accumulation is None:
            return None
        (operand,) = equation.invars
        view = seen(operand, self.views)
        members = []
        if not view.is_moved:
            in_order = view.steps == row_major(operand.aval.shape)
            if not in_order or view.root.aval.size != operand.aval.size:
                return None
            members = self._terms(view.root)
        moved = set().union(*map(self._moved, members))
        if any(e.outvars[0] in moved or id(e) in self.moves for e in members):
            return None
        is_in_order = order_of_terms(operand.aval.shape, equation.params["axes"]) is None
        if accumulation == "sequential" and (members or view.is_moved or not is_in_order):
            return None  # the kernel takes inputs as they are, which need not be canonical
        if not is_in_order and not self._may_be_moved(members, operand):
            return None
        # What others need too is computed again, if it is little and not in the cache.
        is_large = operand.aval.size > self.kernels.large
        is_shared = any(users[e.outvars[0]] > 1 for e in members)
        if is_shared and (not is_large or _cost(self.kernels, members) >= _MANY):
            return None
        if not (members or view.canonical or view.is_moved):
            return None
        group = self._group(members, [operand])
        return group if not is_large or self._are_read_along(group) else None

    def _may_be_moved(self, members, operand) -> bool:
        """Whether the axes of the terms may be taken in another order: all are theirs, whole."""
        seen_there = [operand, *(v for e in members for v in variables(e.invars))]
        shapes = {e.outvars[0].aval.shape for e in members}
        return shapes <= {operand.aval.shape} and not any(
            isinstance(seen(v, self.views), Joined) for v in seen_there
        )

    def _terms(self, root) -> list[Any]:
        """The elementwise equations, of arrays of one size, that the root follows from."""
        members, new = {}, [root]
        while new:
            maker = self.made_by.get(new.pop())
            if id(maker) in self.elementwise and id(maker) not in members:
                members[id(maker)] = maker
                new += (r for r in self._roots(maker) if self._fits(r, maker))
        return list(members.values())

    def _are_read_along(self, group: Group) -> bool:
        """Whether large operands are in memory, in the order in which the group takes them.

        XLA can fuse what makes them with the first additions instead.
        """
        size = group.outvars[0].aval.size
        for v in variables(u for e in group.eqns for u in e.invars):
            view = seen(v, self.views)
            long = long_axes(v.aval.shape, view.steps) if isinstance(view, View) else ()
            if long and not are_together(view, long[-1][1]):
                return False
        return not _loops(self.made_by.get(v) for v in group.invars if v.aval.size == size)

    def _live(self) -> set[int]:
        """The elementwise equations that something but the terms of sums needs, by their ids."""
        needed = {r for v in variables(self.jaxpr.outvars) for r in self._roots_of(v)}
        live = set()
        for equation in reversed(self.jaxpr.eqns):
            if id(equation) in self.sums:
                needed.update(self.sums[id(equation)].group.invars)
            elif id(equation) not in self.elementwise:
                needed.update(self._roots(equation) if id(equation) in self.levels else ())
            elif equation.outvars[0] in needed:
                live.add(id(equation))
                needed.update(self._roots(equation))
        return live

    def _group(self, members, outputs) -> Group:
        equations = {id(e): e for e in members}
        inputs: dict[Any, None] = {}
        seen_through = [*outputs, *(v for member in members for v in variables(member.invars))]
        for v in seen_through:
            maker = self.made_by.get(v)
            if v in self.views and id(maker) not in equations:
                equations[id(maker)] = maker
                seen_through += variables(maker.invars)
            elif id(maker) not in equations:
                inputs[v] = None
        ordered = tuple(sorted(equations.values(), key=lambda e: self.position[id(e)]))
        moved = frozenset(e.outvars[0] for e in ordered if id(e) in self.moves)
        rows = self.rows.of(id(members[0])) if moved else None
        of_group = tuple(inputs), tuple(outputs)
        return Group(ordered, *of_group, self.kernels, moved=moved, rows=rows)

    def steps(self) -> list[Any]:
        """What to do, in an order in which it can be done.

        The groups of a level for the kernel in a tuple; those that are left to XLA; equations of
        no group.  Views are not among them: whoever needs one makes it.
        """
        found: list[tuple[int, int, Any]] = []
        for_kernel: dict[int, list[Group]] = collections.defaultdict(list)
        entries: dict[Any, Group] = {}
        for level, group, neighbours in self._groups():
            group = dataclasses.replace(group, in_place=self._in_place(group))
            if not self._updates(group) and _pays(self.kernels, group, neighbours):
                for_kernel[level].append(group)
            else:
                group = _entering(self._with_entries_apart(group, entries))
                found.append((level, 0, group))
        for_kernel[0] += entries.values()
        found += ((level, 0, _together(groups)) for level, groups in for_kernel.items() if groups)
        found += ((level, 1, step) for level, step in self._others())
        return [step for _, _, step in sorted(found, key=lambda x: x[:2])]

    def _with_entries_apart(self, group: Group, entries: dict[Any, Group]) -> Group:
        """Without the small inputs that it makes canonical; ``entries`` gets groups that do.

        A loop of XLA would do so each time that it reads an element.
        """
        often = group.size // _OFTEN
        for e in group.eqns:
            (result,) = e.outvars if is_canonicalize(e) else (None,)
            is_small = result is not None and 1 < result.aval.size < often
            if is_small and result not in group.outvars and e.invars[0] in self.entries:
                entries[result] = Group((e,), tuple(e.invars), (result,), self.kernels)
        apart = entries.keys() - set(group.outvars)
        eqns = tuple(e for e in group.eqns if e.outvars[0] not in apart)
        made = {v for e in eqns for v in e.outvars}
        read = (v for e in eqns for v in variables(e.invars) if v not in made)
        return dataclasses.replace(group, eqns=eqns, invars=tuple(dict.fromkeys(read)))

    def _updates(self, group: Group) -> bool:
        """Whether it makes large results of the program of inputs, as an optimizer does.

        Where those are donated, XLA's loops write the results in their place, which a call cannot:
        copies cost more than the kernel gains, but of elementary functions, or if all results of
        the program stay in the caches.  A single operation, as eager code has it, is no update.
        """
        size = group.size
        anew = set(group.outvars).difference(result for _, result in group.in_place)
        operations = [e for e in group.eqns if id(e) in self.elementwise]
        operations = [e for e in operations if e.primitive is not leave_p]
        operations = [e for e in operations if not is_canonicalize(e)]
        return (
            size > _SMALL
            and len(operations) > 1
            and self.size_of_results > self.kernels.large
            and anew
            and self.results.issuperset(group.outvars)
            and any(v in self.entries and v.aval.size == size for v in group.invars)
            and not any(e.primitive.name in _MOVES for e in group.eqns)
            and all(v.aval.dtype == np.float32 for v in group.outvars)
            and not any(map(self.kernels.is_long, group.eqns))
        )

    def _groups(self) -> Iterator[tuple[int, Group, list[Any]]]:
        """The groups, each with its level and the equations of no group before and after it.

        Among the latter None is an input or a result of the program.
        """
        members_of = self._members()
        users, entering = self._users(members_of)
        for entry, neighbours in entering.items():
            yield 0, self._group([], [entry]), neighbours
        for members in {id(members): members for members in members_of.values()}.values():
            made = [e.outvars[0] for e in members]
            outputs = [v for v in made if any(u is not members for u in users.get(v, ()))]
            if outputs:
                group = self._group(members, outputs)
                neighbours = [u for v in outputs for u in users[v] if not isinstance(u, list)]
                neighbours += [self.made_by.get(v) for v in group.invars]
                others = [e for e in neighbours if id(e) not in self.elementwise]
                yield self.levels[id(members[0])], group, others

    def _users(self, members_of) -> tuple[dict[Any, list[Any]], dict[Any, list[Any]]]:
        """Who needs each root; and each variable that is made canonical, but not in a group.

        A user is an equation of no group, the list of the members of one, or None for the results
        of the program.
        """
        users: dict[Any, list[Any]] = {}
        entering: dict[Any, list[Any]] = {}

        def note(atoms, user):
            for v in variables(atoms):
                for root in self._roots_of(v):
                    users.setdefault(root, []).append(user)
                for entry in () if isinstance(user, list) else self._entries_of(v):
                    entering.setdefault(entry, []).append(user)

        for equation in self.jaxpr.eqns:
            if id(equation) in self.sums:
                for v in self.sums[id(equation)].group.invars:
                    users.setdefault(v, []).append(equation)
            elif id(equation) in members_of:
                note(equation.invars, members_of[id(equation)])
            elif id(equation) in self.levels and id(equation) not in self.elementwise:
                note(equation.invars, equation)
        note(self.jaxpr.outvars, None)
        return users, entering

    def _others(self) -> Iterator[tuple[int, Any]]:
        """The equations of no group, as the sums or loops that they are, with their levels."""
        lowest = 0
        for equation in self.jaxpr.eqns:
            if id(equation) in self.levels and id(equation) not in self.elementwise:
                level = self.levels[id(equation)]
                if equation.effects:  # in their order
                    level = lowest = max(level, lowest)
                found = self.sums.get(id(equation)) or loop_of(equation, self.kernels)
                yield level, found or as_draw(equation, self.kernels)


def _joined(groups: dict[int, list[Any]], first, second) -> list[Any]:
    """Two groups' members as one's, by the ids of all of which they are in ``groups``."""
    small, large = sorted((first, second), key=len)
    large += small
    groups.update((id(e), large) for e in small)
    return large


def _large(variables) -> set[Any]:
    """Those of more than one element."""
    return {v for v in variables if v.aval.size > 1}


#: Elements of an array over which a pass costs less than compiling a loop; operations that are
#: worth a pass over a larger one.
_SMALL, _MANY = 1 << 15, 8
#: Elements of an array of 32 MiB, for which the C library asks the system each time.  The kernel
#: asks for huge pages, which are there sooner.
_MAPPED = 1 << 23
#: As often as XLA may make an element canonical where it reads it.
_OFTEN = 8
#: Additions that take as long as an elementary function.
_LONG = 32
#: Calls, which XLA fuses with nothing; and pad, whose loops are many times slower when it does.
_CALLS = frozenset(
    (
        *(
            PREFIX + name
            for name in (
                *("dot_general", "raw_dot_general", "conv_general_dilated", "fourier", "ended"),
                *("rows", "reduce_sum", "reduce_max", "reduce_min", "top_k"),
            )
        ),
        "pad",
    )
)


def _loops(equations) -> list[Any]:
    """Those that XLA makes loops of, which it fuses with others; None is no equation."""
    return [e for e in equations if e is not None and e.primitive.name not in _CALLS]


#: Rounded operations, whose NaNs need not be canonical.
_ROUNDED = frozenset(
    PREFIX + name for name in ("add", "sub", "mul", "div", "neg", "sqrt", "square", "integer_pow")
)


def _ends_in_zero(equation) -> bool:
    """Whether it makes 0 of a subnormal operand too: squares and products with at most 1."""
    name, params = equation.primitive.name.removeprefix(PREFIX), equation.params
    if name == "integer_pow":
        return params["y"] > 1
    if name != "mul":
        return name == "square"
    literals = [x.val for x in equation.invars if isinstance(x, Literal)]
    return equation.invars[0] is equation.invars[1] or any(abs(x) <= 1 for x in literals)


def _entering(group: Group) -> Group:
    """The same for XLA, its inputs made canonical only as far as is needed for what it computes."""
    read: dict[Any, Any] = {}
    equations = []
    for equation in group.eqns:
        invars = renamed(equation.invars, read)
        equation = equation.replace(invars=invars)
        (result,) = equation.outvars
        is_entry = is_canonicalize(equation) and result.aval.dtype == np.float32
        if is_entry and result not in group.outvars:
            users = [e for e in group.eqns if result in variables(e.invars)]
            if all(map(_ends_in_zero, users)):
                read[result] = invars[0]
                continue
            if all(e.primitive.name in _ROUNDED for e in users):
                equation = equation.replace(primitive=enter_p, params={})
        equations.append(equation)
    return dataclasses.replace(group, eqns=tuple(equations))


def _cost(kernels: Kernels, equations) -> int:
    """What an element of these equations costs, in additions."""
    return sum(_LONG if kernels.is_long(e) else 1 for e in equations if kernels.is_elementwise(e))


def _pays(kernels: Kernels, group: Group, neighbours) -> bool:
    """Whether to compute a group by the kernel.

    ``neighbours`` are the equations of no group before and after it (None: inputs and results of
    the program).  XLA fuses a few operations with the loops of neighbours, and its loops overlap
    arithmetic with the memory, which the kernel does not.
    """
    size = group.size
    cost = _cost(kernels, group.eqns)
    if group.moved:  # in XLA's loops these are branches, for each element
        return cost > 0 and size <= 4 * kernels.large
    if any(e.primitive.name in _JOINS for e in group.eqns):  # and these
        return True
    if size <= _SMALL or (size <= 16 * kernels.large and cost >= _LONG):
        return True
    if size <= kernels.large and cost >= _MANY:
        return True
    is_made_soon = size <= 4 * kernels.large or size >= _MAPPED or bool(group.in_place)
    return is_made_soon and not _loops(neighbours)


def _together(groups: Sequence[Group]) -> tuple[Group, ...]:
    """Groups for one call, in which what one of them writes in its place no other one reads."""
    users = collections.Counter(v for group in groups for v in group.invars)
    return tuple(
        dataclasses.replace(g, in_place=tuple(p for p in g.in_place if users[p[0]] == 1))
        for g in groups
    )


def run_plan(make_plan, compute, jaxpr, operands) -> list[Any]:
    """The results of a closed jaxpr by the steps of its plan, ``make_plan(jaxpr)``.

    A step is an equation, or something whose results ``compute(step, see)`` gives by variable;
    ``see(variable)`` is a value.  Views are no steps: they are made by whoever needs one.
    """
    inner, consts = open_jaxpr(jaxpr)
    plan = make_plan(inner)
    environment = dict(zip(inner.constvars, consts, strict=True))
    environment.update(zip(inner.invars, operands, strict=True))

    def see(variable):
        if variable not in environment:
            view = plan.made_by[variable]
            for v in variables(view.invars):
                see(v)
            run(view, environment)
        return environment[variable]

    for step in plan.steps():
        if not isinstance(step, JaxprEqn):
            environment.update(compute(step, see))
            continue
        for v in variables(step.invars):
            see(v)
        run(step, environment)
    return [v.val if isinstance(v, Literal) else see(v) for v in inner.outvars]


def _compute(step: Group | Sum | Loop | tuple[Group, ...], see):
    """A group equation by equation, a sum, a loop, or the groups that are for the kernel."""
    if isinstance(step, Group):
        return zip(step.outvars, step.evaluate(*map(see, step.invars)), strict=True)
    if isinstance(step, Sum):
        result = group_sum_p.bind(*map(see, step.group.invars), sum=step)
        return [(step.equation.outvars[0], result)]
    if isinstance(step, Loop):
        return zip(step.equation.outvars, step.bind(see), strict=True)
    results = groups_p.bind(*(see(v) for c in step for v in c.invars), groups=step)
    return zip((v for c in step for v in c.outvars), results, strict=True)


def in_groups(
    function: Callable[..., Sequence[Any]],
    kernels: Kernels,
    *operands,
    carry: tuple[int, int] = (0, 0),
) -> list[Any]:
    """The results of a function of repjax's primitives, with its groups as one primitive.

    ``carry`` are how many operands there are before those that a loop carries, and how many of
    these: its first results take their places.
    """
    jaxpr, consts = open_jaxpr(jax.make_jaxpr(function)(*map(struct_of, operands)))
    jaxpr = without_transposes(with_slices(without_joins(jaxpr)))
    jaxpr = ClosedJaxpr(without_copies(with_exits(jaxpr, kernels)), consts)
    make_plan = functools.partial(_Plan, kernels=kernels, carry=carry)
    return run_plan(make_plan, _compute, jaxpr, operands)


# --- the primitive ----------------------------------------------------------------------


def _equations(*operands, groups: tuple[Group, ...]) -> list[Any]:
    """The same, equation by equation."""
    operands = iter(operands)
    return [
        result
        for group in groups
        for result in group.evaluate(*itertools.islice(operands, len(group.invars)))
    ]


def _of_parts(*operands, groups: tuple[Group, ...]) -> list[Any]:
    """The same of operands that are parts."""
    rest = iter(operands)
    parts = tuple(c.part([*itertools.islice(rest, len(c.invars))]) for c in groups)
    return groups_p.bind(*operands, groups=parts)


_in_parts = partitioned(_of_parts, axes_of_groups)


def _terms_and_sum(*operands, sum: Sum):
    """A sum of the terms that a group gives, equation by equation."""
    (terms,) = sum.group.evaluate(*operands)
    return sum.equation.primitive.bind(terms, **sum.equation.params)


def _sum_in_parts(*operands, sum: Sum):
    """The same; devices that have parts of the operands compute parts of the terms."""
    (terms,) = _in_parts(*operands, groups=(sum.group,))
    return sum.equation.primitive.bind(terms, **sum.equation.params)


def _lower(ctx, *operands, primitive, in_parts, equations, platform=None, **params):
    """To the kernel where there is one, else to the equations."""
    groups = params["groups"] if "groups" in params else [params["sum"].group]
    function, kernel = equations, None
    if platform is not None and not does_without_kernels(ctx):
        kernel = KERNELS[platform](primitive)
    if kernel is not None and is_for_one_device(ctx):
        function = kernel.make()
    elif kernel is not None and is_for_several_devices(ctx) and all(g.has_parts for g in groups):
        function = in_parts
    function = functools.partial(function, **params)
    with settled():
        return mlir.lower_fun(function, primitive.multiple_results)(ctx, *operands)


def _batch_groups(operands, dimensions, *, groups):
    function = functools.partial(_equations, groups=groups)
    batched = jax.vmap(function, in_axes=tuple(dimensions), out_axes=0)
    results = in_groups(batched, groups[0].kernels, *operands)
    return results, [0] * len(results)


def _batch_sum(operands, dimensions, *, sum: Sum):
    def function(*operands):
        return [_terms_and_sum(*operands, sum=sum)]

    batched = jax.vmap(function, in_axes=tuple(dimensions), out_axes=0)
    (result,) = in_groups(batched, sum.group.kernels, *operands)
    return result, 0


groups_p = Primitive(PREFIX + "groups")
groups_p.multiple_results = True
groups_p.def_impl(_equations)
groups_p.def_abstract_eval(lambda *_, groups: [v.aval for g in groups for v in g.outvars])
batching.primitive_batchers[groups_p] = _batch_groups

group_sum_p = Primitive(PREFIX + "group_sum")
group_sum_p.def_impl(_terms_and_sum)
group_sum_p.def_abstract_eval(lambda *_, sum: sum.equation.outvars[0].aval)
batching.primitive_batchers[group_sum_p] = _batch_sum

for _options in (
    {"primitive": groups_p, "in_parts": _in_parts, "equations": _equations},
    {"primitive": group_sum_p, "in_parts": _sum_in_parts, "equations": _terms_and_sum},
):
    _rule = functools.partial(_lower, **_options)
    mlir.register_lowering(_options["primitive"], _rule)
    _rule = functools.partial(_rule, platform="cpu")
    mlir.register_lowering(_options["primitive"], _rule, platform="cpu")

prim_requires_devices_during_lowering.update((groups_p, group_sum_p))
