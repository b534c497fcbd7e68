"""Chains of elementwise operations as calls of one C++ kernel, for CPU.

XLA makes a loop of each chain and has LLVM compile it, which is most of what the first call of
a deep program costs.  The kernel is compiled already: it interprets a chain block by block, so
that what is between its operations stays in the cache (as numexpr does for NumPy).

:func:`evaluate` finds the chains of a program that has been rewritten and binds them as one
primitive, ``repjax_chains``: all of a level together.  Where there is no kernel (other platforms,
several devices, which XLA would have to split it over), the primitive is its equations again: the
same bits.

A pairwise sum, or an extremum, of what a chain makes is a primitive of its own,
``repjax_chain_sum``, whose kernel computes the terms as it adds them, so that they are never in
memory.

A chain may neither wait for what another needs of it nor the other way round.  So each
elementwise equation has a *level*: how many equations that are not elementwise, or of another
size, there are at most on the way to it.  A chain is a connected set of equations of one level
and size.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax._src.dispatch import prim_requires_devices_during_lowering
from jax.extend.core import JaxprEqn, Literal, Primitive
from jax.interpreters import batching, mlir

from repjax.primitives import native
from repjax.primitives.arithmetic import canonicalize_p
from repjax.primitives.define import is_for_one_device, is_for_several_devices
from repjax.primitives.interpret import PREFIX, open_jaxpr, settled, struct_of
from repjax.primitives.partition import Axes, Names, partitioned
from repjax.primitives.programs import ELEMENTARY, STORAGE, Program, function_of
from repjax.primitives.reduce.sums import call_kernel

#: The same elements, in memory as they are.
_ALIASES = frozenset(
    f"{PREFIX}materialize reshape squeeze expand_dims copy copy_p name stop_gradient".split()
)


# --- views ------------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class View:
    """An array as another one, its root, in the same memory: the steps of its axes.

    An input of the program is seen as it came or made canonical: that costs less than a pass.
    """

    root: Any
    steps: tuple[int, ...]
    canonical: bool = False


def row_major(shape) -> tuple[int, ...]:
    return tuple(math.prod(shape[d + 1 :]) for d in range(len(shape)))


def seen(variable, views) -> View:
    """A variable as one of the views, or as itself."""
    return views.get(variable) or View(variable, row_major(variable.aval.shape))


def _long(shape, steps):
    """Without the axes of one element."""
    return [(n, step) for n, step in zip(shape, steps, strict=True) if n != 1]


def merged_axes(shape, steps) -> list[list[int]]:
    """Sizes and steps of the fewest axes that are the same; none where there is one element."""
    joined: list[list[int]] = []
    for n, step in _long(shape, steps):
        if joined and joined[-1][1] == n * step:
            joined[-1] = [joined[-1][0] * n, step]
        else:
            joined.append([n, step])
    return [] if all(step == 0 for _, step in joined) else joined


def view_of(equation, views, may_enter: bool) -> View | None:
    """The result of an equation as a view, if it is one.

    ``may_enter``: whether the operand is one that is seen canonical where it is used.
    """
    if len(equation.invars) != 1 or len(equation.outvars) != 1:
        return None
    (x,) = equation.invars
    if isinstance(x, Literal) or getattr(x.aval, "dtype", None) not in STORAGE or x.aval.size == 0:
        return None
    view = seen(x, views)
    if equation.primitive is canonicalize_p and may_enter:
        return dataclasses.replace(view, canonical=True)
    steps = _moved(equation, view.steps)
    return None if steps is None else dataclasses.replace(view, steps=steps)


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
    if _long(old, steps) == _long(old, row_major(old)):
        return row_major(new)
    long = iter(_long(old, steps))
    if [n for n in old if n != 1] == [n for n in new if n != 1]:
        return tuple(next(long)[1] if n != 1 else 0 for n in new)
    return None


# --- chains -----------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True, eq=False)
class Chain:
    """Equations, with the variables that they take and that are needed of them, as in a jaxpr."""

    eqns: tuple[Any, ...]
    invars: tuple[Any, ...]
    outvars: tuple[Any, ...]

    def evaluate(self, *operands) -> list[Any]:
        """The outputs, equation by equation."""
        environment = dict(zip(self.invars, operands, strict=True))
        for equation in self.eqns:
            run(equation, environment)
        return [environment[v] for v in self.outvars]

    @functools.cached_property
    def names(self) -> Names:
        """Of the axes of its arrays, for devices that have parts of them."""
        return Names(self.eqns, self.invars)

    @property
    def has_parts(self) -> bool:
        """Whether there is a rule by which devices compute parts of it."""
        return bool(self.invars) and self.names.are_distinct

    def part(self, operands) -> Chain:
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
        return dataclasses.replace(self, **{k: tuple(v) for k, v in ours.items()})


#: Parameters that are the shape of an equation's result.
_SHAPES = ("shape", "new_sizes")


def axes_of_chains(*_, chains: Sequence[Chain]) -> Axes:
    """The axes along which chains may be split, each by itself."""
    operands, results, whole, sizes = [], [], [], {}
    for i, chain in enumerate(chains):
        names = chain.names

        def named(v, names=names, i=i):
            return [" ".join(f"{name}_{i}" for name in axis) for axis in names.of[v]]

        operands += map(named, chain.invars)
        results += map(named, chain.outvars)
        used = dict.fromkeys(
            name for v in (*chain.invars, *chain.outvars) for axis in names.of[v] for name in axis
        )
        whole += (f"{name}_{i}" for name in used if name in names.whole)
        sizes |= {f"{name}_{i}": names.sizes[name] for name in used}
    return Axes(operands, results, whole, sizes=sizes)


@dataclasses.dataclass(frozen=True, eq=False)
class Sum:
    """The equation of a sum or extremum, and the chain of its terms, which is its operand."""

    chain: Chain
    equation: Any

    @property
    def eqns(self) -> tuple[Any, ...]:
        return (*self.chain.eqns, self.equation)


def variables(atoms) -> list[Any]:
    return [v for v in atoms if not isinstance(v, Literal)]


def run(equation, environment) -> None:
    primitive = equation.primitive
    operands = [v.val if isinstance(v, Literal) else environment[v] for v in equation.invars]
    with equation.ctx.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    results = results if primitive.multiple_results else [results]
    environment.update(zip(equation.outvars, results, strict=True))


#: Of reductions whose terms the kernel may compute, what it calls them.
_REDUCTIONS = {PREFIX + f"reduce_{name}": name for name in ("sum", "max", "min")}


def _accumulation(equation) -> str | None:
    """The kernel's name for a pairwise reduction over neighbouring axes of an array, or None."""
    name = _REDUCTIONS.get(equation.primitive.name)
    if name is None:
        return None
    (x,), axes = equation.invars, equation.params["axes"]
    if isinstance(x, Literal) or x.aval.dtype != np.float32 or x.aval.size == 0 or not axes:
        return None
    accumulation = equation.params.get("accumulation", name)
    together = max(axes) - min(axes) + 1 == len(axes)
    return accumulation if together and accumulation in ("pairwise", "max", "min") else None


class _Plan:
    """The chains of a jaxpr, and the order in which they and the other equations are run."""

    def __init__(self, jaxpr):
        self.jaxpr = jaxpr
        self.entries = {*jaxpr.invars, *jaxpr.constvars}
        self.made_by = {v: e for e in jaxpr.eqns for v in e.outvars}
        self.views: dict[Any, View] = {}
        self.levels: dict[int, int] = {}  # of equations, by their ids
        self.elementwise: set[int] = set()
        for equation in jaxpr.eqns:
            self._classify(equation)
        self._sink()
        self.position = {id(e): i for i, e in enumerate(jaxpr.eqns)}
        self.sums = self._sums()

    def _root(self, variable):
        return self.views[variable].root if variable in self.views else variable

    def _roots(self, equation) -> list[Any]:
        return [self._root(v) for v in variables(equation.invars)]

    @staticmethod
    def _fits(root, equation) -> bool:
        return root.aval.size == equation.outvars[0].aval.size

    def _distance(self, root, equation) -> int:
        """By how much the level of an equation is at least above that of the root's equation."""
        if id(self.made_by[root]) not in self.elementwise:
            return 1
        return int(id(equation) in self.elementwise and not self._fits(root, equation))

    def _classify(self, equation) -> None:
        enters = self.entries.issuperset(variables(equation.invars))
        view = view_of(equation, self.views, enters)
        if view is not None:
            self.views[equation.outvars[0]] = view
            return
        if function_of(equation) is not None:
            self.elementwise.add(id(equation))
        makers = [(r, self.made_by[r]) for r in self._roots(equation) if r in self.made_by]
        levels = [self.levels[id(maker)] + self._distance(r, equation) for r, maker in makers]
        self.levels[id(equation)] = max(levels, default=0)

    def _sink(self) -> None:
        """Move equations of one operand to where they are used, rather than keep their results."""
        limits: dict[Any, int] = {}
        for equation in reversed(self.jaxpr.eqns):
            level = self.levels.get(id(equation))
            if level is None:  # a view
                continue
            roots = self._roots(equation)
            if id(equation) in self.elementwise and len({r for r in roots if r.aval.size > 1}) <= 1:
                level = self.levels[id(equation)] = limits.get(equation.outvars[0], level)
            for root in roots:
                if root in self.made_by:
                    limit = level - self._distance(root, equation)
                    limits[root] = min(limits.get(root, limit), limit)

    def _members(self) -> dict[int, list[Any]]:
        """Of each elementwise equation, by its id, the elementwise equations of its chain."""
        chains: dict[int, list[Any]] = {}
        live = self._live()
        for equation in self.jaxpr.eqns:
            if id(equation) not in live:
                continue
            mine = chains[id(equation)] = [equation]
            for root in self._roots(equation):
                maker = id(self.made_by.get(root))
                other = chains.get(maker, mine)
                same_level = self.levels.get(maker) == self.levels[id(equation)]
                if other is not mine and same_level and self._fits(root, equation):
                    small, mine = sorted((mine, other), key=len)
                    mine += small
                    chains.update((id(e), mine) for e in small)
        return chains

    def _entry(self, variable):
        """The variable made canonical that a variable is a view of, or None."""
        while variable in self.views:
            maker = self.made_by[variable]
            if maker.primitive is canonicalize_p:
                return variable
            (variable,) = maker.invars
        return None

    def _sums(self) -> dict[int, Sum]:
        """The sums whose terms are computed as they are added, by the ids of their equations."""
        users = collections.Counter(
            r for e in self.jaxpr.eqns if id(e) in self.levels for r in set(self._roots(e))
        )
        users.update(self._root(v) for v in variables(self.jaxpr.outvars))
        found = {}
        for equation in self.jaxpr.eqns:
            if _accumulation(equation) is None:
                continue
            (operand,) = equation.invars
            view = seen(operand, self.views)
            if (
                view.steps != row_major(operand.aval.shape)
                or view.root.aval.size != operand.aval.size
            ):
                continue
            members = self._terms(view.root)
            # What others need too is computed again, if it is little and not in the cache.
            is_large = operand.aval.size > native.LARGE
            is_shared = any(users[e.outvars[0]] > 1 for e in members)
            if is_shared and (not is_large or _cost(members) >= _MANY):
                continue
            if not (members or view.canonical):
                continue
            chain = self._chain(members, [operand])
            if not is_large or self._are_read_along(chain):
                found[id(equation)] = Sum(chain, equation)
        return found

    def _terms(self, root) -> list[Any]:
        """The elementwise equations, of arrays of one size, that the root follows from."""
        members, new = {}, [root]
        while new:
            maker = self.made_by.get(new.pop())
            if id(maker) in self.elementwise and id(maker) not in members:
                members[id(maker)] = maker
                new += (r for r in self._roots(maker) if self._fits(r, maker))
        return list(members.values())

    def _are_read_along(self, chain: Chain) -> bool:
        """Whether large operands are in memory, in the order in which the chain takes them.

        XLA can fuse what makes them with the first additions instead.
        """
        size = chain.outvars[0].aval.size
        for v in variables(u for e in chain.eqns for u in e.invars):
            long = _long(v.aval.shape, seen(v, self.views).steps)
            if long and long[-1][1] not in (0, 1):
                return False
        return not _loops(self.made_by.get(v) for v in chain.invars if v.aval.size == size)

    def _live(self) -> set[int]:
        """The elementwise equations that something but the terms of sums needs, by their ids."""
        needed = {self._root(v) for v in variables(self.jaxpr.outvars)}
        live = set()
        for equation in reversed(self.jaxpr.eqns):
            if id(equation) in self.sums:
                needed.update(self.sums[id(equation)].chain.invars)
            elif id(equation) not in self.elementwise:
                needed.update(self._roots(equation) if id(equation) in self.levels else ())
            elif equation.outvars[0] in needed:
                live.add(id(equation))
                needed.update(self._roots(equation))
        return live

    def _chain(self, members, outputs) -> Chain:
        equations = {id(e): e for e in members}
        inputs: dict[Any, None] = {}
        for v in (*outputs, *(v for member in members for v in variables(member.invars))):
            while v in self.views:
                maker = self.made_by[v]
                equations[id(maker)] = maker
                (v,) = maker.invars
            if id(self.made_by.get(v)) not in equations:
                inputs[v] = None
        ordered = tuple(sorted(equations.values(), key=lambda e: self.position[id(e)]))
        return Chain(ordered, tuple(inputs), tuple(outputs))

    def steps(self) -> list[Any]:
        """What to do, in an order in which it can be done.

        The chains of a level for the kernel in a tuple; those that are left to XLA; equations of
        no chain.  Views are not among them: whoever needs one makes it.
        """
        members_of = self._members()
        users: dict[Any, list[Any]] = {}  # an equation of no chain, the members of one, or None
        entering: dict[Any, list[Any]] = {}  # of what is made canonical, but not in chains

        def note(atoms, user):
            for v in variables(atoms):
                users.setdefault(self._root(v), []).append(user)
                if not isinstance(user, list) and (entry := self._entry(v)) is not None:
                    entering.setdefault(entry, []).append(user)

        for equation in self.jaxpr.eqns:
            if id(equation) in self.sums:
                for v in self.sums[id(equation)].chain.invars:
                    users.setdefault(v, []).append(equation)
            elif id(equation) in members_of:
                note(equation.invars, members_of[id(equation)])
            elif id(equation) in self.levels and id(equation) not in self.elementwise:
                note(equation.invars, equation)
        note(self.jaxpr.outvars, None)

        found: list[tuple[int, int, Any]] = []
        for_kernel: dict[int, list[Chain]] = {}

        def add(level, chain, neighbours):
            if _pays(chain, neighbours):
                for_kernel.setdefault(level, []).append(chain)
            else:
                found.append((level, 0, chain))

        for entry, neighbours in entering.items():
            add(0, Chain((self.made_by[entry],), (self._root(entry),), (entry,)), neighbours)
        for members in {id(members): members for members in members_of.values()}.values():
            made = [e.outvars[0] for e in members]
            outputs = [v for v in made if any(u is not members for u in users.get(v, ()))]
            if outputs:
                chain = self._chain(members, outputs)
                neighbours = [u for v in outputs for u in users[v] if not isinstance(u, list)]
                neighbours += [self.made_by.get(v) for v in chain.invars]
                others = [e for e in neighbours if id(e) not in self.elementwise]
                add(self.levels[id(members[0])], chain, others)
        found += ((level, 0, tuple(chains)) for level, chains in for_kernel.items())
        lowest = 0
        for equation in self.jaxpr.eqns:
            if id(equation) in self.levels and id(equation) not in self.elementwise:
                level = self.levels[id(equation)]
                if equation.effects:  # in their order
                    level = lowest = max(level, lowest)
                found.append((level, 1, self.sums.get(id(equation), equation)))
        return [step for _, _, step in sorted(found, key=lambda x: x[:2])]


#: Elements of an array over which a pass costs less than compiling a loop; operations that are
#: worth a pass over a larger one.
_SMALL, _MANY = 1 << 15, 8
#: Additions that take as long as an elementary function.
_LONG, _ELEMENTARY = 32, frozenset(PREFIX + name for name in ELEMENTARY)
#: Calls, which XLA fuses with nothing.
_CALLS = frozenset(
    PREFIX + name
    for name in (
        *("dot_general", "conv_general_dilated", "reduce_sum", "reduce_max", "reduce_min"),
        "rows",
    )
)


def _loops(equations) -> list[Any]:
    """Those that XLA makes loops of, which it fuses with others; None is no equation."""
    return [e for e in equations if e is not None and e.primitive.name not in _CALLS]


def _cost(equations) -> int:
    """Of an element, in additions."""
    names = [e.primitive.name for e in equations if function_of(e) is not None]
    return sum(_LONG if name in _ELEMENTARY else 1 for name in names)


def _pays(chain: Chain, neighbours) -> bool:
    """Whether to compute a chain by the kernel.

    ``neighbours`` are the equations of no chain before and after it (None: inputs and results of
    the program).  XLA fuses a few operations with the loops of neighbours, and its loops overlap
    arithmetic with the memory, which the kernel does not.
    """
    size = chain.outvars[0].aval.size
    cost = _cost(chain.eqns)
    if size <= _SMALL or (size <= 16 * native.LARGE and cost >= _LONG):
        return True
    if size <= native.LARGE and cost >= _MANY:
        return True
    return size <= 4 * native.LARGE and not _loops(neighbours)


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


def _compute(step: Chain | Sum | tuple[Chain, ...], see):
    """A chain equation by equation, a sum, or the chains that are for the kernel."""
    if isinstance(step, Chain):
        return zip(step.outvars, step.evaluate(*map(see, step.invars)), strict=True)
    if isinstance(step, Sum):
        result = chain_sum_p.bind(*map(see, step.chain.invars), sum=step)
        return [(step.equation.outvars[0], result)]
    results = chains_p.bind(*(see(v) for c in step for v in c.invars), chains=step)
    return zip((v for c in step for v in c.outvars), results, strict=True)


def evaluate(jaxpr, operands) -> list[Any]:
    """The results of a closed jaxpr of repjax's primitives, with its chains as one primitive."""
    return run_plan(_Plan, _compute, jaxpr, operands)


def in_chains(function: Callable[..., Sequence[Any]], *operands) -> list[Any]:
    """The results of a function of repjax's primitives, with its chains as one primitive."""
    if not native.available():
        return list(function(*operands))
    return evaluate(jax.make_jaxpr(function)(*map(struct_of, operands)), operands)


# --- the primitive ----------------------------------------------------------------------


def _encode(chain: Chain) -> tuple[list[Any], list[int]]:
    """The variables that the kernel takes, and its program."""
    program = Program()
    values: dict[Any, int] = {}  # of what the chain makes
    views: dict[Any, View] = {}

    def read(atom, shape) -> int:
        if isinstance(atom, Literal):
            return program.literal(atom)
        view = seen(atom, views)
        if view.root in values:
            return values[view.root]
        # An axis of one element and an array without axes are broadcast.
        pairs = zip(view.steps, atom.aval.shape, shape, strict=False)
        steps = [step if n == m else 0 for step, n, m in pairs] or (0,) * len(shape)
        return program.read(
            view.root, merged_axes(shape, steps), atom.aval.dtype, canonical=view.canonical
        )

    for equation in chain.eqns:
        (result,) = equation.outvars
        enters = equation.invars[0] in chain.invars and result not in chain.outvars
        if (view := view_of(equation, views, enters)) is not None:
            views[result] = view
        else:
            operands = [read(v, result.aval.shape) for v in equation.invars]
            values[result] = program.compute(equation, *operands)

    results = [(read(v, v.aval.shape), v.aval.dtype) for v in chain.outvars]
    encoded = program.encode(chain.outvars[0].aval.size, results)
    return [variable for variable, _ in program.inputs], encoded


def _kernel(*operands, chains: tuple[Chain, ...]):
    taken, programs = [], [len(chains)]
    operands = iter(operands)
    for chain in chains:
        by_variable = dict(zip(chain.invars, operands, strict=False))
        roots, program = _encode(chain)
        taken += (by_variable[v] for v in roots)
        programs += program
    results = [
        jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for chain in chains for v in chain.outvars
    ]
    return native.call("repjax_elementwise", results, taken, programs=programs)


def _equations(*operands, chains: tuple[Chain, ...]) -> list[Any]:
    """The same, equation by equation."""
    operands = iter(operands)
    return [
        result
        for chain in chains
        for result in chain.evaluate(*itertools.islice(operands, len(chain.invars)))
    ]


def _of_parts(*operands, chains: tuple[Chain, ...]) -> list[Any]:
    """The same of operands that are parts."""
    rest = iter(operands)
    parts = tuple(c.part([*itertools.islice(rest, len(c.invars))]) for c in chains)
    return chains_p.bind(*operands, chains=parts)


_in_parts = partitioned(_of_parts, axes_of_chains)


def _terms_and_sum(*operands, sum: Sum):
    """A sum of the terms that a chain gives, equation by equation."""
    (terms,) = sum.chain.evaluate(*operands)
    return sum.equation.primitive.bind(terms, **sum.equation.params)


def _sum_in_parts(*operands, sum: Sum):
    """The same; devices that have parts of the operands compute parts of the terms."""
    (terms,) = _in_parts(*operands, chains=(sum.chain,))
    return sum.equation.primitive.bind(terms, **sum.equation.params)


def _sum_kernel(*operands, sum: Sum):
    by_variable = dict(zip(sum.chain.invars, operands, strict=True))
    roots, program = _encode(sum.chain)
    taken = (by_variable[v] for v in roots)
    shape, axes = sum.chain.outvars[0].aval.shape, sum.equation.params["axes"]
    accumulation = _accumulation(sum.equation)
    return call_kernel(*taken, shape=shape, axes=axes, accumulation=accumulation, program=program)


def _by_kernel(kernel, in_parts, equations, multiple_results: bool):
    """The lowering to the kernel where there is one, else to the equations."""

    def lower(ctx, *operands, **params):
        function = equations
        on_cpu = {*(ctx.platforms or ctx.module_context.platforms)} == {"cpu"}
        if on_cpu and native.available():
            chains = params["chains"] if "chains" in params else [params["sum"].chain]
            if is_for_one_device(ctx):
                function = kernel
            elif is_for_several_devices(ctx) and all(chain.has_parts for chain in chains):
                function = in_parts
        function = functools.partial(function, **params)
        with settled():
            return mlir.lower_fun(function, multiple_results)(ctx, *operands)

    return lower


def _batch_chains(operands, dimensions, **params):
    function = functools.partial(_equations, **params)
    results = in_chains(jax.vmap(function, in_axes=tuple(dimensions), out_axes=0), *operands)
    return results, [0] * len(results)


def _batch_sum(operands, dimensions, **params):
    def function(*operands):
        return [_terms_and_sum(*operands, **params)]

    (result,) = in_chains(jax.vmap(function, in_axes=tuple(dimensions), out_axes=0), *operands)
    return result, 0


chains_p = Primitive(PREFIX + "chains")
chains_p.multiple_results = True
chains_p.def_impl(_equations)
chains_p.def_abstract_eval(lambda *_, chains: [v.aval for c in chains for v in c.outvars])
mlir.register_lowering(chains_p, _by_kernel(_kernel, _in_parts, _equations, True))
batching.primitive_batchers[chains_p] = _batch_chains

chain_sum_p = Primitive(PREFIX + "chain_sum")
chain_sum_p.def_impl(_terms_and_sum)
chain_sum_p.def_abstract_eval(lambda *_, sum: sum.equation.outvars[0].aval)
mlir.register_lowering(chain_sum_p, _by_kernel(_sum_kernel, _sum_in_parts, _terms_and_sum, False))
batching.primitive_batchers[chain_sum_p] = _batch_sum

prim_requires_devices_during_lowering.update((chains_p, chain_sum_p))
