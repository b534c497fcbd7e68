"""Fused groups, and sums of their elements, by the C++ kernels."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.extend.core import Literal

from repjax.primitives.cpu import library
from repjax.primitives.cpu.bytecode import Bytecode, Joint, Place
from repjax.primitives.cpu.sums import call_kernel
from repjax.primitives.fusion.groups import Group, Sum, accumulation_of, joins_parts
from repjax.primitives.fusion.row_moves import row_move
from repjax.primitives.fusion.views import (
    Joined,
    Number,
    View,
    merged_axes,
    order_of_terms,
    seen,
    views_of,
)


def encode(group: Group, order: Sequence[int] | None = None) -> tuple[list[Any], list[int]]:
    """The variables that the kernel takes, and its bytecode.

    With an ``order``, the axes of all that the group computes are taken in this one.
    """
    code, results = _written(group, order)
    encoded = code.encode(group.size, results)
    return code.sources(), encoded


def _written(group: Group, order: Sequence[int] | None = None) -> tuple[Bytecode, list[Any]]:
    """The bytecode of a group, and its results in it."""
    code = Bytecode(group.rows)
    values: dict[Any, int] = {}  # of what the group makes
    parts: dict[Any, list[int]] = {}  # of complex numbers that it makes
    views: dict[Any, View | Joined] = {}

    def in_order(view, shape):
        if order is None:
            return view, shape
        steps, sizes = (tuple(of[d] for d in order) for of in (view.steps, shape))
        return dataclasses.replace(view, steps=steps), sizes

    def read(atom, shape) -> int:
        if isinstance(atom, Literal):
            return code.number(atom.val, atom.aval.dtype)
        code.set_size(math.prod(shape))
        view = seen(atom, views)
        if isinstance(view, View) and isinstance(view.root, Number):
            return code.number(view.root.value, view.root.dtype)
        made = [values[root] for root in view.roots() if root in values]
        if made:
            assert not view.is_moved, "what is computed by elements is not read from other places"
            return made[0]
        place = placed(*in_order(view.broadcast(atom.aval.shape, shape), shape))
        if isinstance(place, Place) and place.first:
            place = Joint((place,), (math.prod(shape),))
        return code.read(place, atom.aval.dtype, canonical=view.canonical)

    for equation in group.eqns:
        result = equation.outvars[0]
        entries = () if result in group.outvars else group.invars
        if result in group.moved:
            operands = [read(v, v.aval.shape) for v in equation.invars]
            code.set_size(result.aval.size)
            values[result] = code.move(row_move(equation), operands)
        elif found := views_of(equation, views, set(entries)):
            views.update(found)
        else:
            operands = [read(v, result.aval.shape) for v in equation.invars]
            code.set_size(result.aval.size)
            if joins_parts(equation):
                parts[result] = operands
            else:
                values[result] = code.compute(equation, *operands)

    return code, [(parts.get(v) or [read(v, v.aval.shape)], v.aval.dtype) for v in group.outvars]


def placed(view: View | Joined, shape) -> Place | Joint:
    """Where the elements of a view of this shape are."""
    if isinstance(view, View):
        return Place.along(view.root, merged_axes(zip(shape, view.steps, strict=True)), view.first)
    inner = math.prod(shape[view.axis + 1 :])
    parts = zip(view.parts, view.shapes(shape), strict=True)
    return Joint(tuple(placed(*part) for part in parts), tuple(n * inner for n in view.sizes))


#: Elements that XLA computes faster than a call of the kernel takes, and operations on them that
#: are soon compiled.
_FEW, _SHORT = 64, 16


def _is_for_xla(group: Group) -> bool:
    """Whether it computes few elements and no numbers: counters, indices, conditions."""
    avals = [v.aval for e in group.eqns for v in (*e.invars, *e.outvars)]
    return group.size <= _FEW and not any(jnp.issubdtype(aval.dtype, jnp.inexact) for aval in avals)


def _are_for_xla(groups: Sequence[Group]) -> bool:
    """Whether all compute few elements, by few operations and no elementary functions."""
    equations = [e for group in groups for e in group.eqns]
    return (
        all(group.size <= _FEW for group in groups)
        and len(equations) <= _SHORT
        and not any(map(groups[0].kernels.is_long, equations))
    )


def _operand(source, by_variable):
    """What is read: a variable's value, or a number."""
    return source.value if isinstance(source, Number) else by_variable[source]


def _in_place(group: Group, code: Bytecode) -> Iterator[tuple[int, int, int]]:
    """Of the results that may be where operands are: the numbers of the operand among what the
    kernel takes of the group, of its input, and of the result among the group's.

    The kernel reads such an operand element by element, and has each before it writes there.
    """
    places, sources = list(code.inputs), code.sources()
    for v, result in group.in_place:
        whole = Place(v, ((group.size, 1),))
        if sources.count(v) == 1 and whole in places:
            yield sources.index(v), places.index(whole), group.outvars.index(result)


def evaluate(*operands, groups: tuple[Group, ...]) -> list[Any]:
    results: dict[Any, Any] = {}
    of_kernel, taken, encoded = [], [], []
    aliases, in_place = {}, []
    for_xla = _are_for_xla(groups)
    operands = iter(operands)
    for group in groups:
        by_variable = {v: next(operands) for v in group.invars}
        if for_xla or _is_for_xla(group):
            made = group.evaluate(*by_variable.values())
            results.update(zip(group.outvars, made, strict=True))
            continue
        code, values = _written(group)
        made = sum(len(of.outvars) for of in of_kernel)
        for operand, place, result in _in_place(group, code):
            aliases[len(taken) + operand] = made + result
            in_place += [len(of_kernel), place, result]
        encoded += code.encode(group.size, values)
        taken += (_operand(v, by_variable) for v in code.sources())
        of_kernel.append(group)
    outputs = [v for group in of_kernel for v in group.outvars]
    if outputs:
        structs = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in outputs]
        encoded = [len(of_kernel), *encoded, *in_place]
        # The certificates in docs/proofs are of programs with these names.
        name = "repjax_elementwise"
        made = library.call(name, structs, taken, in_place=aliases, programs=encoded)
        results.update(zip(outputs, made, strict=True))
    return [results[v] for group in groups for v in group.outvars]


def canonicalize_in_place(x):
    result = jax.ShapeDtypeStruct(x.shape, x.dtype)
    return jax.ffi.ffi_call("repjax_canonicalize", result, input_output_aliases={0: 0})(x)


def evaluate_sum(*operands, sum: Sum):
    by_variable = dict(zip(sum.group.invars, operands, strict=True))
    shape, axes = sum.group.outvars[0].aval.shape, sum.equation.params["axes"]
    roots, code = encode(sum.group, order_of_terms(shape, axes))
    taken = (_operand(v, by_variable) for v in roots)
    accumulation = accumulation_of(sum.equation)
    return call_kernel(*taken, shape=shape, axes=axes, accumulation=accumulation, bytecode=code)
