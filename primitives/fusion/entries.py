"""Entries: inputs of a program, which are made canonical where they are used.

Parameters of a model may fill the memory.  A pass that makes them canonical would take as long as
all that a product of a few rows does with them, and as much memory again.  But making values
canonical commutes with moving them, so that of a table only the rows that are taken need it; and
some kernels take operands as they come, *raw*: that of sequential matrix products looks whether
they are canonical as it reads them (``cpu/native/products.cc``); those of order-independent
products, of scatters and of Fourier transforms make them so.

:func:`in_entries` puts this in the place of the pass.  Elementwise operations need nothing of the
kind: they see an input made canonical as a view (:mod:`repjax.primitives.fusion.views`).  Loops,
branches and remat take a raw operand if all that their bodies do with it can.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import numpy as np
from jax.extend.core import Literal, Primitive
from jax.interpreters import batching, mlir

from repjax.primitives.core import canonical
from repjax.primitives.core.define import kernel_for, lower_body
from repjax.primitives.core.programs import carried, open_jaxpr, settled, struct
from repjax.primitives.core.tables import PREFIX
from repjax.primitives.core.values import canonicalize
from repjax.primitives.fusion.loops import as_loop, as_stock, loop_p
from repjax.primitives.fusion.views import is_canonicalize, is_move, variables
from repjax.primitives.operations.fourier import fourier_p
from repjax.primitives.operations.products import dot_general_p
from repjax.primitives.operations.scatter import scatter_add_p, scatter_max_p, scatter_min_p

#: Operations that take elements of their first operand.
_TAKING = frozenset(("gather", "slice", "dynamic_slice"))

#: Operations that write to some places of their first operand, and where else they have elements
#: from.  XLA writes them in the operand's place, if nothing else reads it.
WRITING = {"dynamic_update_slice": 1, PREFIX + "scatter": 2}


class _Raw:
    """An input, or what an operation has moved of one; each form of it is made when it is needed.

    ``base`` and ``order`` are those of a transposed input: where its axes are among those of
    ``base``.
    """

    def __init__(self, make: Callable[[], Any], canonical: Callable[[], Any] | None = None):
        self._make, self._canonical = make, canonical
        self.base, self.order = self, None

    @functools.cached_property
    def raw(self):
        return self._make()

    @functools.cached_property
    def in_place(self):
        return canonicalize_in_place_p.bind(self.raw)

    @functools.cached_property
    def canonical(self):
        return canonicalize(self.raw) if self._canonical is None else self._canonical()

    def moved(self, equation, others) -> _Raw:
        """What an equation moves of it."""

        def move(x):
            (result,) = _bind(equation, [x, *others])
            return result

        if equation.primitive.name in _TAKING:
            return _Raw(lambda: move(self.raw))
        # As it was in the program, where kernels see it as a view.
        result = _Raw(lambda: move(self.raw), lambda: move(self.canonical))
        if equation.primitive.name == "transpose":
            order = self.order or range(len(equation.params["permutation"]))
            result.base = self.base
            result.order = [order[d] for d in equation.params["permutation"]]
        return result


def _bind(equation, operands) -> list[Any]:
    primitive = equation.primitive
    with equation.ctx.manager:
        results = primitive.bind(*operands, **primitive.get_bind_params(equation.params))
    return list(results) if primitive.multiple_results else [results]


# --- what takes raw operands --------------------------------------------------------------


def _is_move(equation) -> bool:
    return is_move(equation) or equation.primitive.name == "gather"


def _may_write(equation) -> bool:
    """Whether it writes to an array in its place, which a kernel can make canonical there."""
    return equation.primitive.name in WRITING and equation.invars[0].aval.dtype == np.float32


def _is_product(equation) -> bool:
    """Whether it is a matrix product that a kernel computes of raw operands."""
    types = [v.aval.dtype for v in (*equation.invars, *equation.outvars)]
    return (
        equation.primitive in (dot_general_p, raw_dot_general_p)
        and equation.params["contraction"] in ("sequential", "order_independent")
        and all(dtype == np.float32 for dtype in types)
    )


def _is_raw_update(equation, position: int) -> bool:
    """Whether the operand is updates that the kernel of a scatter takes raw."""
    is_scatter = equation.primitive in RAW_SCATTERS and "accumulation" not in equation.params
    return is_scatter and position == 2 and equation.invars[2].aval.dtype == np.float32


def _is_part(equation) -> bool:
    """Whether it is the real or the imaginary part of a complex number."""
    return equation.primitive.name in ("real", "imag")


def _bodies(equation) -> Iterator[tuple[str, Any, Sequence[int | None]]]:
    """The programs in an equation: the parameter, the program, and for each of the equation's
    operands which of the program's it is, if it always is that."""
    equation = as_stock(equation)
    name, params, count = equation.primitive.name, equation.params, len(equation.invars)
    if name == "scan":
        first, carry = carried(params)
        is_carry = range(first, first + carry)
        yield "jaxpr", params["jaxpr"], [None if i in is_carry else i for i in range(count)]
    elif name == "while":
        first, second = params["cond_nconsts"], params["body_nconsts"]
        rest = [None] * (count - first - second)
        yield "cond_jaxpr", params["cond_jaxpr"], [*range(first), *[None] * second, *rest]
        yield "body_jaxpr", params["body_jaxpr"], [*[None] * first, *range(second), *rest]
    elif name == "cond":
        for branch in params["branches"]:
            yield "branches", branch, [None, *range(count - 1)]
    elif name in ("remat2", "checkpoint"):
        yield "jaxpr", params["jaxpr"], range(count)


def _takes_raw(equation, position: int) -> bool:
    """Whether an equation takes this operand raw, in the programs in it too."""
    if _is_product(equation) or _is_raw_update(equation, position):
        return True
    if equation.primitive is fourier_p:
        return True
    bodies = [(body, places[position]) for _, body, places in _bodies(equation)]
    inside = [(body, place) for body, place in bodies if place is not None]
    return bool(inside) and all(is_taken_raw(*pair) for pair in inside)


def is_taken_raw(body, place: int) -> bool:
    """Whether all that a program does with an operand can be done with a raw one."""
    jaxpr, _ = open_jaxpr(body)
    raw = {jaxpr.invars[place]}
    for equation in jaxpr.eqns:
        for i, v in enumerate(equation.invars):
            if isinstance(v, Literal) or v not in raw:
                continue
            if i == 0 and _is_move(equation):
                if 2 * equation.outvars[0].aval.size > v.aval.size:  # of fewer, only these
                    raw.add(equation.outvars[0])
            elif not _takes_raw(equation, i):
                return False
    return raw.isdisjoint(v for v in jaxpr.outvars if not isinstance(v, Literal))


# --- programs -----------------------------------------------------------------------------


def in_entries(jaxpr, consts, *operands, are_raw: Sequence[bool] = ()) -> list[Any]:
    """The results of a program of repjax's primitives, its inputs made canonical where they are
    used; some of its operands may be raw."""
    environment = dict(zip(jaxpr.constvars, consts, strict=True))
    environment.update(zip(jaxpr.invars, operands, strict=True))
    entries = {*environment}
    for v, x, is_raw in zip(jaxpr.invars, operands, are_raw, strict=False):
        if is_raw:
            environment[v] = _Raw(lambda x=x: x)

    def see(atom):
        return atom.val if isinstance(atom, Literal) else environment[atom]

    def read(atom):
        value = see(atom)
        return value.canonical if isinstance(value, _Raw) else value

    for equation in jaxpr.eqns:
        seen = list(map(see, equation.invars))
        raw = [isinstance(x, _Raw) for x in seen]
        if is_canonicalize(equation) and entries.issuperset(variables(equation.invars)):
            (x,) = map(read, equation.invars)
            is_raw = x.dtype == np.float32
            results = [_Raw(lambda x=x: x)] if is_raw else _bind(equation, [x])
        elif _is_part(equation) and entries.issuperset(variables(equation.invars)):
            results = _bind(equation, list(map(read, equation.invars)))
            entries.update(equation.outvars)
        elif all(raw) and equation.primitive.name == "complex":
            results = [_of_parts(*seen)]
        elif any(raw) and _is_product(equation):
            results = [_product(seen, **equation.params)]
        elif raw[2:] == [True] and _is_raw_update(equation, 2):
            operands = [*map(read, equation.invars[:2]), seen[2].raw]
            scatter = RAW_SCATTERS[equation.primitive]
            results = [scatter.bind(*operands, raw=(False, False, True), **equation.params)]
        elif any(raw) and raw[0] and _may_write(equation):
            results = _bind(equation, [seen[0].in_place, *map(read, equation.invars[1:])])
        elif any(raw) and raw[0] and _is_move(equation):
            results = [seen[0].moved(equation, list(map(read, equation.invars[1:])))]
        else:
            raw = [is_raw and _takes_raw(equation, i) for i, is_raw in enumerate(raw)]
            taken = [
                x.raw if is_raw else read(v)
                for v, x, is_raw in zip(equation.invars, seen, raw, strict=True)
            ]
            results = _bind(_of_raw(equation, raw) if any(raw) else equation, taken)
        environment.update(zip(equation.outvars, results, strict=True))
    return list(map(read, jaxpr.outvars))


def _of_parts(real: _Raw, imaginary: _Raw) -> _Raw:
    """A complex input, whose parts are made canonical one by one."""
    return _Raw(
        lambda: jax.lax.complex(real.raw, imaginary.raw),
        lambda: jax.lax.complex(real.canonical, imaginary.canonical),
    )


def _of_raw(equation, are_raw: Sequence[bool]):
    """The equation with programs that take raw operands, or as one that does."""
    if equation.primitive is fourier_p:
        return equation.replace(params={**equation.params, "raw": True})
    if equation.primitive is loop_p:
        return as_loop(_of_raw(as_stock(equation), are_raw), equation.params["loop"].kernels)
    changed: dict[str, list[Any]] = {}
    for name, body, places in _bodies(equation):
        flags = [False] * len(open_jaxpr(body)[0].invars)
        for place, is_raw in zip(places, are_raw, strict=True):
            if place is not None:
                flags[place] = is_raw
        changed.setdefault(name, []).append(_body_of_raw(body, flags))
    params = {
        name: tuple(bodies) if isinstance(equation.params[name], (tuple, list)) else bodies[0]
        for name, bodies in changed.items()
    }
    return equation.replace(params={**equation.params, **params})


def _body_of_raw(body, are_raw: Sequence[bool]):
    jaxpr, consts = open_jaxpr(body)
    is_closed = hasattr(body, "consts")

    def program(*operands):
        return in_entries(jaxpr, consts, *operands, are_raw=are_raw)

    result = jax.make_jaxpr(program)(*(struct(v.aval) for v in jaxpr.invars))
    return result if is_closed else open_jaxpr(result)[0]


# --- the primitive ------------------------------------------------------------------------


def _product(operands, *, dimension_numbers, raw=(False, False), **params):
    """A product of operands of which some are raw, or were already."""
    contracting, batch = dimension_numbers
    taken, numbers = [], []
    for x, *axes in zip(operands, contracting, batch, strict=True):
        if isinstance(x, _Raw):
            x, axes = _as_it_lies(x, *axes)
        taken.append(x)
        numbers.append(axes)
    raw = tuple(was_raw or isinstance(x, _Raw) for x, was_raw in zip(operands, raw, strict=True))
    dimension_numbers = tuple(zip(*(map(tuple, axes) for axes in numbers), strict=True))
    return raw_dot_general_p.bind(*taken, raw=raw, dimension_numbers=dimension_numbers, **params)


def _as_it_lies(x: _Raw, contracting, batch):
    """A raw operand and its axes; one that has been transposed as it was before, if its other axes
    are in the same order."""
    if x.order is not None:
        axes = [[x.order[d] for d in dims] for dims in (contracting, batch)]
        others = [a for d, a in enumerate(x.order) if d not in (*contracting, *batch)]
        if others == sorted(others):
            return x.base.raw, axes
    return x.raw, [contracting, batch]


def _equations(*operands, primitive, raw, **params):
    operands = [canonicalize(x) if is_raw else x for x, is_raw in zip(operands, raw, strict=True)]
    return primitive.bind(*operands, **params)


def _lower(ctx, *operands, primitive, equations, platform=None, **params):
    """To the kernel, where there is one, else to the equations."""
    kernel = kernel_for(primitive, platform, ctx) if platform else None
    if kernel is not None:
        return lower_body(ctx, kernel, *operands, multiple_results=False, **params)
    with settled():
        return mlir.lower_fun(equations, multiple_results=False)(ctx, *operands, **params)


def _lower_to_kernel(primitive: Primitive, equations: Callable[..., Any]) -> None:
    lower = functools.partial(_lower, primitive=primitive, equations=equations)
    mlir.register_lowering(primitive, lower)
    mlir.register_lowering(primitive, functools.partial(lower, platform="cpu"), platform="cpu")


def _batch(operands, dimensions, *, equations, **params):
    function = functools.partial(equations, **params)
    return jax.vmap(function, in_axes=tuple(dimensions), out_axes=0)(*operands), 0


_RAW_PREFIX = PREFIX + "raw_"


def name_of(primitive: Primitive) -> str:
    """Its name without the prefix; with raw operands it is the same operation."""
    return primitive.name.removeprefix(_RAW_PREFIX).removeprefix(PREFIX)


def _of_raw_operands(primitive: Primitive) -> Primitive:
    """The primitive of operands of which those that ``raw`` says need not be canonical."""
    result = Primitive(_RAW_PREFIX + name_of(primitive))
    equations = functools.partial(_equations, primitive=primitive)
    result.def_impl(equations)
    result.def_abstract_eval(
        lambda *avals, raw, **params: primitive.abstract_eval(*avals, **params)[0]
    )
    _lower_to_kernel(result, equations)
    batching.primitive_batchers[result] = functools.partial(_batch, equations=equations)
    return result


raw_dot_general_p = _of_raw_operands(dot_general_p)
#: By the scatters of canonical updates.
RAW_SCATTERS = {p: _of_raw_operands(p) for p in (scatter_add_p, scatter_max_p, scatter_min_p)}


def of_each_element(name: str, function: Callable[[Any], Any]) -> Primitive:
    """A primitive that is a function of one array, element by element, of the same type."""
    result = Primitive(PREFIX + name)
    result.def_impl(function)
    result.def_abstract_eval(lambda x: x)
    mlir.register_lowering(result, mlir.lower_fun(function, multiple_results=False))
    batching.defvectorized(result)
    return result


#: Makes an input canonical except for its NaNs.
enter_p = of_each_element("enter", canonical.flush)
#: Makes an input canonical in its own memory, or where XLA copies it to if others need it too.
canonicalize_in_place_p = of_each_element("canonicalize_in_place", canonicalize)
_lower_to_kernel(canonicalize_in_place_p, canonicalize)
