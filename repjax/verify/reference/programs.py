"""Operations that hold a program, and reductions by one: docs/numerics.md, sections 4 and 12.

Programs are jaxprs, whose equations are read by attribute and computed one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from repjax.verify.reference import values
from repjax.verify.reference.sums import flatten
from repjax.verify.reference.table import (
    EXCEPTIONS,
    Operation,
    call,
    of_all,
    short,
)
from repjax.verify.reference.windows import elements, parameters_of, taken, window_of

#: Calls: where their jaxpr is.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "closed_call": "call_jaxpr",
    "core_call": "call_jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "checkpoint": "jaxpr",
    "remat2": "jaxpr",
}


def evaluate(jaxpr, consts: Sequence[Any], operands, operation: Operation) -> list[np.ndarray]:
    """The results of a jaxpr, open or closed, in the orders of an operation."""
    consts = [*consts, *(getattr(jaxpr, "consts", None) or ())]
    jaxpr = getattr(jaxpr, "jaxpr", jaxpr)
    pairs = zip(jaxpr.constvars, consts, strict=True)
    known = {id(v): values.canonical(np.asarray(x)) for v, x in pairs}
    known |= {id(v): x for v, x in zip(jaxpr.invars, operands, strict=True)}

    def read(atom):
        if hasattr(atom, "val"):
            return values.canonical(np.asarray(atom.val, np.dtype(atom.aval.dtype.name)))
        return known[id(atom)]

    for equation in jaxpr.eqns:
        types = tuple((np.dtype(v.aval.dtype.name), v.aval.shape) for v in equation.outvars)
        inner = operation.with_(
            name=short(equation.primitive.name),
            operands=tuple(map(read, equation.invars)),
            params=equation.params,
            results=types,
        )
        known |= {id(v): x for v, x in zip(equation.outvars, call(inner), strict=True)}
    return [read(v) for v in jaxpr.outvars]


@of_all(*_CALLS)
def _call(operation: Operation):
    return evaluate(operation.params[_CALLS[operation.name]], (), operation.operands, operation)


# --- reductions by a stated function ----------------------------------------------------


def _combine(operation: Operation, jaxpr, consts):
    """The function of scalars, on two lists of arrays of one shape."""

    def combine(x, y):
        shape = x[0].shape
        out = [np.empty(shape, a.dtype) for a in x]
        for i in np.ndindex(*shape):
            operands = [np.asarray(a[i]) for a in (*x, *y)]
            for a, value in zip(out, evaluate(jaxpr, consts, operands, operation), strict=True):
                a[i] = value
        return out

    return combine


def _halves(combine, xs):
    """As ``sums.halves``, of several arrays."""
    while len(xs[0]) > 1:
        n = len(xs[0])
        half = 1 << ((n - 1).bit_length() - 1)
        combined = combine([x[: n - half] for x in xs], [x[half:] for x in xs])
        xs = [np.concatenate([c, x[n - half : half]]) for c, x in zip(combined, xs, strict=True)]
    return [x[0] for x in xs]


def _reduced(operation: Operation, xs, initial):
    """Along the first axis; the initial value comes last."""
    combine = _combine(operation, operation.params["jaxpr"], operation.params.get("consts", ()))
    shape = xs[0].shape[1:]
    initial = [np.broadcast_to(x, shape) for x in initial]
    if not len(xs[0]) or 0 in shape:
        return [x.copy() for x in initial]
    return combine(initial, [np.asarray(x) for x in _halves(combine, xs)])


def _both(operation: Operation):
    half = len(operation.operands) // 2
    return operation.operands[:half], operation.operands[half:]


@of_all("reduce")
def reduce(operation: Operation):
    xs, initial = _both(operation)
    flat = [flatten(x, operation.params["dimensions"]) for x in xs]
    return _reduced(operation, flat, initial)


@of_all("reduce_window")
def reduce_window(operation: Operation):
    xs, initial = _both(operation)
    at = elements(xs[0].shape, *parameters_of(**window_of(operation.params)))
    if math.prod(at.shape) == 0:
        return [np.full(at.shape[1:], x, x.dtype) for x in initial]
    windows = [taken(x, at, value) for x, value in zip(xs, initial, strict=True)]
    return _reduced(operation, windows, initial)


# --- what has no reference --------------------------------------------------------------

_HOLDS = "it holds programs, which are no single operation"
_DEVICES = "it is of several devices, whose values an equation of one of them does not have"
EXCEPTIONS |= {
    **dict.fromkeys(
        (
            *("scan", "while", "cond", "shard_map", "custom_linear_solve", "custom_lin"),
            *("custom_partitioning", "custom_vmap_call", "call_hi_primitive", "composite"),
            *("eval_jaxpr", "platform_index"),
        ),
        _HOLDS,
    ),
    **dict.fromkeys(
        (
            *("all_gather", "all_gather_invariant", "all_to_all", "axis_index", "pmax", "pmin"),
            *("ppermute", "psum", "psum_invariant", "reduce_scatter"),
        ),
        _DEVICES,
    ),
    "random_gamma": "it is a sampler of JAX in a loop, whose equations are not in the program",
    **dict.fromkeys(("debug_callback", "debug_print"), "it shows values, and gives none"),
}
