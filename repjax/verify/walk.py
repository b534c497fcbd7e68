"""Compute a program equation by equation, with calls, loops and branches opened.

Each equation is computed by itself, as JAX computes one outside of ``jax.jit``: as plain JAX does,
or where ``repjax_enable`` is on, and inside of functions that ``repjax.reproducible`` made, as
repjax does.  So what a compiler makes of several equations together does not show; see
:func:`together`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
from jax import lax
from jax.extend.core import Literal

from repjax import config
from repjax.digests import names, show
from repjax.primitives.core.jax_internals import discharge_state
from repjax.primitives.core.programs import bind_equation, carried, open_jaxpr
from repjax.primitives.core.values import canonicalize
from repjax.tracing import as_written, written_program

#: Calls that are equations of the program: where their jaxpr is.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}


@dataclasses.dataclass(frozen=True)
class Program:
    """What a function computes of these arguments.

    Attributes:
      jaxpr: its equations.
      inputs: the values of its arguments, by their paths, and after them the arrays that it holds
        as constants.
      results: the paths of its results.
      function: the function of the inputs.
    """

    jaxpr: Any
    inputs: dict[str, Any]
    results: list[str]


@dataclasses.dataclass(frozen=True)
class Step:
    """An equation that was computed.

    Attributes:
      place: its number in the program, or in an iteration or branch: ``14[3].2`` is equation 2 of
        iteration 3 of the loop that is equation 14.
      equation: of the jaxpr.
      within: the calls, loops and branches that it is in, from the outermost.
      operands, results: arrays.
      orders: those of sums and products, where repjax computes it, else None.
    """

    place: str
    equation: Any
    within: tuple[Any, ...]
    operands: list[Any]
    results: list[Any]
    orders: tuple[str, str] | None


def program(function: Callable[..., Any], args=(), kwargs=None, *, written: bool = True) -> Program:
    """The program of a function of trees of arrays, or of none.

    Args:
      function: a function; ``args`` and ``kwargs`` are its arguments, or what they are like, as
        ``jax.ShapeDtypeStruct``.
      written: whether functions that ``repjax.reproducible`` made are in it as they were written,
        and not as they are compiled.

    Raises:
      TypeError: what is no array among the arguments, or what JAX cannot trace.
    """
    flat, tree = jax.tree_util.tree_flatten_with_path((args, kwargs or {}))
    arrays = [x if _is_shape(x) else jax.numpy.asarray(x) for _, x in flat]

    def of_arrays(*arrays):
        args, kwargs = jax.tree.unflatten(tree, arrays)
        return function(*args, **kwargs)

    with as_written(written):
        closed, out = jax.make_jaxpr(of_arrays, return_shape=True)(*arrays)
    if any("MutableArray" in type(effect).__name__ for effect in closed.effects):
        closed = discharge_state(closed)
    # Constants as arguments: what one machine has made of them can be given to another.
    constants = {f"constant {i}": jax.numpy.asarray(x) for i, x in enumerate(open_jaxpr(closed)[1])}
    jaxpr = open_jaxpr(closed)[0]
    jaxpr = jaxpr.replace(
        constvars=[],
        invars=[*jaxpr.constvars, *jaxpr.invars],
        debug_info=jaxpr.debug_info._replace(arg_names=None),
    )
    results = [show(names(path)) for path, _ in jax.tree_util.tree_flatten_with_path(out)[0]]
    return Program(jaxpr, constants | arguments(args, kwargs), results)


def arguments(args=(), kwargs=None) -> dict[str, Any]:
    """Arguments of a function as arrays, by the names that they have in its program."""
    flat, _ = jax.tree_util.tree_flatten_with_path((args, kwargs or {}))
    return {show(names(path)[1:]): x if _is_shape(x) else jax.numpy.asarray(x) for path, x in flat}


def compiled(found: Program) -> list[Any]:
    """The results of the whole program, compiled together as ``jax.jit`` does."""
    return jax.jit(lambda *xs: jax.core.eval_jaxpr(found.jaxpr, (), *xs))(*found.inputs.values())


@dataclasses.dataclass
class Moves:
    """What is made of arrays without an equation, by the identity of the result, which is kept.

    Attributes:
      entries: of an argument of a reproducible function: the array that was not yet canonical.
      slices: of an array that a loop goes through: the array and the iteration.
      stacks: of what all iterations give: their arrays.
    """

    entries: dict[int, tuple[Any, Any]] = dataclasses.field(default_factory=dict)
    slices: dict[int, tuple[Any, Any, int]] = dataclasses.field(default_factory=dict)
    stacks: dict[int, tuple[Any, list[Any]]] = dataclasses.field(default_factory=dict)


def steps(found: Program, moves: Moves | None = None) -> Iterator[Step]:
    """Compute the program, one equation after the other; the results are the generator's value."""
    walk = Walk(moves=moves)
    return (yield from walk.jaxpr(found.jaxpr, (), [*found.inputs.values()], ""))


def steps_together(found: Program) -> Iterator[Step]:
    """:func:`steps` of one compiled program that returns what each equation gives.

    Calls are opened; loops and branches are one equation each.  Functions that
    ``repjax.reproducible`` made are to be in the program as they are compiled.
    """
    known: list[Step] = []
    compute = _unopened(found, lambda steps, results: (results, _values(steps)), known)
    results, values = jax.jit(compute)(*found.inputs.values())
    for step, (operands, given) in zip(known, values, strict=True):
        yield dataclasses.replace(step, operands=operands, results=given)
    return results


def steps_up_to(found: Program) -> Iterator[Step]:
    """:func:`steps_together`, but of each equation, the program up to it is compiled by itself,
    and returns nothing else; so operands, which that program may not have, are left out."""
    known: list[Step] = []
    everything = _unopened(found, lambda steps, results: results, known)
    jax.eval_shape(everything, *found.inputs.values())
    for i, step in enumerate(known):
        compute = _unopened(found, lambda steps, _, i=i: steps[i].results, [])
        yield dataclasses.replace(
            step, operands=[], results=jax.jit(compute)(*found.inputs.values())
        )
    return compiled(found)


def _unopened(found: Program, choose, known: list[Step]):
    """A function of the inputs that gives what is chosen of all steps and the results."""

    def compute(*inputs):
        walk = Walk(opens=False).jaxpr(found.jaxpr, (), [*inputs], "")
        known.clear()
        while True:
            try:
                known.append(next(walk))
            except StopIteration as end:
                return choose(known, end.value)

    return compute


def _values(steps: list[Step]) -> list[tuple[list[Any], list[Any]]]:
    return [(step.operands, step.results) for step in steps]


def bind(equation, operands) -> list[Any]:
    """The results of one equation."""
    with equation.ctx.manager:
        return [*bind_equation(equation, operands, equation.params)]


class Walk:
    """A walk through a program, and where it is: in which functions of ``repjax.reproducible``.

    What it computes of values stands in methods, from :meth:`compute` on, so that a walk may do
    without the values (:mod:`repjax.verify.sources`).
    """

    def __init__(self, opens: bool = True, moves: Moves | None = None):
        self.opens = opens  # loops and branches
        self.moves = moves  # to fill in
        self.within: tuple[Any, ...] = ()
        self.orders: tuple[str | None, str | None] | None = None

    def _state(self):
        """Where :attr:`orders` are given, the contract's operations; else what the switch says."""
        if self.orders is None:
            return contextlib.nullcontext()
        accumulation, contraction = self.orders
        return config.enabled(accumulation=accumulation, contraction=contraction)

    def jaxpr(self, jaxpr, consts, operands, before: str):
        """Steps of an open jaxpr, whose places begin with ``before``."""
        jaxpr, more = open_jaxpr(jaxpr)
        values = dict(zip(jaxpr.constvars, (*consts, *map(self.constant, more)), strict=True))
        values |= zip(jaxpr.invars, operands, strict=True)
        last = {v: i for i, e in enumerate(jaxpr.eqns) for v in e.invars if _is_variable(v)}
        kept = {v for v in jaxpr.outvars if _is_variable(v)}

        def read(atom):
            return values[atom] if _is_variable(atom) else self.constant(_literal(atom))

        needed = _needed(jaxpr)
        for i, equation in enumerate(jaxpr.eqns):
            if not needed[i]:
                continue
            found = [read(x) for x in equation.invars]
            results = yield from self.equation(equation, found, f"{before}{i}")
            values.update(zip(equation.outvars, results, strict=True))
            for v in {*filter(_is_variable, equation.invars)}:
                if last[v] == i and v not in kept:
                    values.pop(v, None)  # what nothing reads any more
        return [read(x) for x in jaxpr.outvars]

    def equation(self, equation, operands, place: str):
        """Steps of one equation, and of those in it."""
        if (opened := self.opened(equation)) is not None:
            outer, self.within = self.within, (*self.within, equation)
            try:
                return (yield from opened(equation.params, operands, place))
            finally:
                self.within = outer
        with self._state():
            results = self.compute(equation, operands)
            state = config.state()
        orders = (state.accumulation, state.contraction) if state.enabled else None
        yield Step(place, equation, self.within, operands, results, orders)
        return results

    def opened(self, equation):
        """The method that opens an equation, if it has others in it that are opened."""
        name = equation.primitive.name
        if name in _CALLS:
            return functools.partial(self.call, equation.params[_CALLS[name]])
        if not self.opens or not _can_be_opened(equation.params):
            return None
        return {"scan": self.scan, "while": self.loop, "cond": self.branch}.get(name)

    def call(self, jaxpr, params, operands, place: str):
        written = written_program(str(params.get("name", "")))
        # Under jax.vmap a program is another one than it was written as.
        if written is None or not _takes(written.jaxpr, operands):
            return (yield from self.jaxpr(jaxpr, (), operands, f"{place}."))
        outer, self.orders = self.orders, (written.accumulation, written.contraction)
        try:
            operands = [self.entry(x) for x in operands]
            return (yield from self.jaxpr(written.jaxpr, (), operands, f"{place}."))
        finally:
            self.orders = outer

    def branch(self, params, operands, place: str):
        index, *operands = operands
        chosen = params["branches"][self.number(index)]
        return (yield from self.jaxpr(chosen, (), operands, f"{place}."))

    def scan(self, params, operands, place: str):
        consts, count = carried(params)
        constants, carry = operands[:consts], operands[consts : consts + count]
        stacked = []
        order = range(params["length"])
        for i in reversed(order) if params["reverse"] else order:
            slices = [self.element(x, i) for x in operands[consts + count :]]
            given = [*constants, *carry, *slices]
            results = yield from self.jaxpr(params["jaxpr"], (), given, f"{place}[{i}].")
            carry = results[:count]
            stacked.append(results[count:])
        if params["reverse"]:
            stacked.reverse()
        return [*carry, *map(self.stack, zip(*stacked, strict=True))]

    def loop(self, params, operands, place: str):
        first, second = params["cond_nconsts"], params["body_nconsts"]
        of_cond, of_body = operands[:first], operands[first : first + second]
        carry = operands[first + second :]
        i = 0
        while True:
            given = [*of_cond, *carry]
            (go_on,) = yield from self.jaxpr(
                params["cond_jaxpr"], (), given, f"{place}[{i}].condition."
            )
            if not self.number(go_on):
                return carry
            given = [*of_body, *carry]
            carry = yield from self.jaxpr(params["body_jaxpr"], (), given, f"{place}[{i}].")
            i += 1

    # Moving values is exact, so the switch does not concern it.

    def compute(self, equation, operands) -> list[Any]:
        return bind(equation, operands)

    def constant(self, x):
        """An array that the program holds."""
        return x

    def number(self, x) -> int:
        """The scalar by which a branch is chosen, or a loop goes on."""
        return int(x)

    def entry(self, x):
        """An argument of a reproducible function, which makes it canonical."""
        found = canonicalize(x)
        if self.moves is not None and found is not x:
            self.moves.entries[id(found)] = (found, x)
        return found

    def element(self, x, i: int):
        with config.enabled(False):
            found = lax.index_in_dim(x, i, keepdims=False)
        if self.moves is not None:
            self.moves.slices[id(found)] = (found, x, i)
        return found

    def stack(self, xs):
        with config.enabled(False):
            found = jax.numpy.stack(xs)
        if self.moves is not None:
            self.moves.stacks[id(found)] = (found, [*xs])
        return found


def _needed(jaxpr) -> list[bool]:
    """Whether anything depends on each equation: versions of JAX differ in what they leave out."""
    read, needed = set(filter(_is_variable, jaxpr.outvars)), []
    for equation in reversed(jaxpr.eqns):
        needed.append(bool(equation.effects) or not read.isdisjoint(equation.outvars))
        if needed[-1]:
            read.update(filter(_is_variable, equation.invars))
    return needed[::-1]


def _can_be_opened(params) -> bool:
    """Not a scan without iterations, nor a choice between platforms, which is made later."""
    return params.get("length") != 0 and not params.get("branches_platforms")


def _is_shape(x) -> bool:
    return isinstance(x, jax.ShapeDtypeStruct)


def _takes(jaxpr, operands) -> bool:
    """Whether the operands have the types of a program's arguments."""
    return [(v.aval.shape, v.aval.dtype) for v in open_jaxpr(jaxpr)[0].invars] == [
        (x.shape, x.dtype) for x in operands
    ]


def _is_variable(atom) -> bool:
    return not isinstance(atom, Literal)


def _literal(literal):
    return jax.numpy.asarray(literal.val, literal.aval.dtype)
