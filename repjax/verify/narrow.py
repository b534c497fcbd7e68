"""Where a device and a CPU part: the first operation, its first element that differs, its operands.

A program's equations run on both, compiled together, with the results of all of them.  The first
one in the program's order that differs had the same operands on both.  In a loop it is one of the
first iteration that differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from repjax.digests import digest
from repjax.primitives.core.programs import bind_equation, carried, open_jaxpr
from repjax.primitives.fusion.entries import name_of
from repjax.primitives.fusion.exits import ended_p
from repjax.primitives.fusion.rows import Rows

#: Elements of an operand that are reported, at most; of more, the digest.
MOST = 1 << 14
#: Other elements that differ, at most.
OTHERS = 8
#: Calls that are equations of the program: where their jaxpr is.
_CALLS = {
    "jit": "jaxpr",
    "pjit": "jaxpr",
    "custom_jvp_call": "call_jaxpr",
    "custom_vjp_call": "call_jaxpr",
    "closed_call": "call_jaxpr",
    "remat2": "jaxpr",
    "checkpoint": "jaxpr",
}


class Step(NamedTuple):
    """An equation; its operands are numbers of values, or constants in a list of one."""

    equation: Any
    operands: list[int | list[Any]]
    results: list[int]


class Program(NamedTuple):
    """Equations one after the other, without calls; ``inputs`` are the first values."""

    inputs: int
    steps: list[Step]
    results: list[int | list[Any]]


def flatten(jaxpr) -> Program:
    """A closed jaxpr, or an open one without constants, as a :class:`Program`."""
    steps: list[Step] = []
    inputs = len(open_jaxpr(jaxpr)[0].invars)
    count = inputs

    def walk(jaxpr, operands):
        nonlocal count
        jaxpr, consts = open_jaxpr(jaxpr)
        places = dict(zip(jaxpr.constvars, ([c] for c in consts), strict=True))
        places |= zip(jaxpr.invars, operands, strict=True)

        def place(x):
            return [x.val] if isinstance(x, Literal) else places[x]

        for equation in jaxpr.eqns:
            read, outvars = [place(x) for x in equation.invars], equation.outvars
            inner = equation.params.get(_CALLS.get(equation.primitive.name, ""))
            if inner is not None:
                results = walk(inner, read)
            else:
                results = [*range(count, count + len(equation.outvars))]
                count += len(results)
                if equation.primitive is ended_p:  # all NaNs are one here, too
                    (equation,) = equation.params["end"].eqns
                steps.append(Step(equation, read, results))
            places.update(zip(outvars, results, strict=True))
        return [place(x) for x in jaxpr.outvars]

    return Program(inputs, steps, walk(jaxpr, [*range(inputs)]))


def bind(equation, operands) -> list[Any]:
    """The results of one equation."""
    with equation.ctx.manager:
        return bind_equation(equation, operands, equation.params)


def all_values(program: Program, inputs: Sequence[Any], device) -> list[np.ndarray]:
    """The inputs and the results of all steps, computed on a device; of keys, their integers."""

    @jax.jit
    def compute(*inputs):
        values = [*inputs]
        for step in program.steps:
            operands = [values[x] if isinstance(x, int) else x[0] for x in step.operands]
            values += bind(step.equation, operands)
        return [_plain(x) for x in values]

    with jax.default_device(device):
        return [np.asarray(x) for x in compute(*inputs)]


def _plain(x):
    is_key = jax.dtypes.issubdtype(jax.typeof(x).dtype, jax.dtypes.prng_key)
    return jax.random.key_data(x) if is_key else x


def words(x: np.ndarray) -> np.ndarray:
    """The bits; every NaN is one, as it is where a program ends."""
    x = np.asarray(x)
    if x.dtype.kind == "c":
        x = np.stack([x.real, x.imag], -1)
    found = np.ascontiguousarray(x).view(f"u{x.dtype.itemsize}").reshape(x.shape)
    if jax.dtypes.issubdtype(x.dtype, np.floating):
        found = np.where(np.isnan(x), np.array(np.nan, x.dtype).view(found.dtype), found)
    return found


def hexadecimal(values: Iterable[Any], dtype) -> str:
    digits = 2 * np.dtype(dtype).itemsize
    return " ".join(f"{int(x):0{digits}x}" for x in values)


def narrow(function: Callable[..., Any], arguments, device, cpu) -> dict[str, Any]:
    """What is known of the first operation that a device computes otherwise than a CPU.

    Args:
      function: as the device compiles it.
      arguments: NumPy arrays, or trees of them.

    Returns:
      For JSON; without ``operation`` where none differs by itself.
    """
    with jax.default_device(device):
        jaxpr = jax.make_jaxpr(function)(*arguments)
    found = _first(flatten(jaxpr), [np.asarray(x) for x in jax.tree.leaves(arguments)], device, cpu)
    return found or {
        "reason": "no operation differs where the results of all are kept: look at what XLA makes "
        "of the whole program"
    }


def _first(program: Program, inputs, device, cpu) -> dict[str, Any] | None:
    received, expected = (all_values(program, inputs, d) for d in (device, cpu))
    for number, step in enumerate(program.steps):
        for i, place in enumerate(step.results):
            if not np.array_equal(words(received[place]), words(expected[place])):
                operands = [
                    expected[x] if isinstance(x, int) else np.asarray(x[0]) for x in step.operands
                ]
                is_scan = step.equation.primitive.name == "scan"
                if is_scan and (found := _first_of_scan(step.equation, operands, device, cpu)):
                    return found
                results = received[place], expected[place]
                return _describe(step.equation, number, i, operands, *results)
    return None


def _first_of_scan(equation, operands, device, cpu) -> dict[str, Any] | None:
    """In the first iteration that differs."""
    params = equation.params
    consts, carry = carried(params)
    program = flatten(params["jaxpr"])
    constants, state = operands[:consts], operands[consts : consts + carry]
    order = range(params["length"])
    for i in reversed(order) if params["reverse"] else order:
        inputs = [*constants, *state, *(x[i] for x in operands[consts + carry :])]
        if found := _first(program, inputs, device, cpu):
            return {"iteration": i, **found}
        values = all_values(program, inputs, cpu)
        state = [values[x] if isinstance(x, int) else x[0] for x in program.results[:carry]]
    return None


def _describe(equation, number, result, operands, received, expected) -> dict[str, Any]:
    got, want = words(received), words(expected)
    places = np.argwhere(got != want)
    at = tuple(map(int, places[0][: expected.ndim]))  # of a complex number, the last is its part
    kind = got.dtype

    def element(place):
        place = tuple(map(int, place))
        both = hexadecimal([want[place]], kind), hexadecimal([got[place]], kind)
        return {"at": list(place), "expected": both[0], "received": both[1]}

    shown = {name: str(value)[:2000] for name, value in equation.params.items()}
    return {
        "operation": name_of(equation.primitive),
        "number": number,
        "parameters": shown,
        "result": {"number": result, "type": _type(expected)},
        "differ": len(places),
        **element(places[0]),
        "others": [element(place) for place in places[1 : 1 + OTHERS]],
        "operands": [
            _operand(x, where)
            for x, where in zip(
                operands, _what_matters(equation, operands, expected, at), strict=True
            )
        ],
    }


def _type(x: np.ndarray) -> str:
    return f"{x.dtype.name}[{','.join(map(str, x.shape))}]"


def _operand(x: np.ndarray, where) -> dict[str, Any]:
    """The elements at ``where``: an index, flat positions in their order, or None for all."""
    described = {"type": _type(x)}
    if isinstance(where, np.ndarray):
        chosen = words(x).reshape(-1)[where]
        steps = np.unique(np.diff(where))
        if len(steps) == 1 and len(where) > 2:
            described["positions"] = f"{where[0]} to {where[-1]} in steps of {steps[0]}"
        elif len(where) <= MOST:
            described["positions"] = " ".join(map(str, where))
    else:
        chosen = words(x).reshape(-1) if where is None else words(x)[where].reshape(-1)
        described["at"] = "all" if where is None else list(where)
    if len(chosen) > MOST:
        return described | {"digest": digest(x)}
    return described | {"bits": hexadecimal(chosen, chosen.dtype)}


# --- which elements of the operands an element is made of ---------------------------------


def _what_matters(equation, operands, result, at) -> list[Any]:
    """For each operand, as :func:`_operand` takes it."""
    name, params = name_of(equation.primitive), equation.params
    flat = [np.arange(x.size).reshape(x.shape) for x in operands]
    if name == "dot_general":
        return _rows_and_columns(flat, params["dimension_numbers"], at)
    if name == "conv_general_dilated":
        return _windows(operands, params, result.shape, at)
    if isinstance(params.get("group"), Rows):
        rows, n = params["group"].shape
        return [_row(x, rows, n, result, at) for x in flat]
    if "axes" in params and len(operands) == 1:
        (x,), axes = flat, params["axes"]
        kept = iter(at)
        index = [slice(None) if d in axes else next(kept, slice(None)) for d in range(x.ndim)]
        return [x[tuple(index)].reshape(-1)]
    if {"axis", "reverse"} <= params.keys() and len(operands) == 1:  # prefixes
        return [flat[0][(*at[: params["axis"]], slice(None), *at[params["axis"] + 1 :])]]
    if all(x.shape in ((), result.shape) for x in operands):
        return [at if x.shape else () for x in operands]
    return [None] * len(operands)


def _rows_and_columns(flat, numbers, at) -> list[np.ndarray]:
    """For a product: the terms in the order of the axes that are summed over."""
    contracting, batch = numbers
    free = [
        [d for d in range(x.ndim) if d not in (*contracting[i], *batch[i])]
        for i, x in enumerate(flat)
    ]
    split = len(batch[0]), len(batch[0]) + len(free[0])
    parts = at[: split[0]], (at[split[0] : split[1]], at[split[1] :])
    found = []
    for i, x in enumerate(flat):
        moved = x.transpose([*batch[i], *free[i], *contracting[i]])
        found.append(moved[(*parts[0], *parts[1][i])].reshape(-1))
    return found


def _windows(operands, params, shape, at) -> list[np.ndarray]:
    """For a convolution: what has a factor in the element, by plain JAX's derivatives."""
    known = (
        "window_strides padding lhs_dilation rhs_dilation dimension_numbers "
        "feature_group_count batch_group_count"
    )
    kept = {name: params[name] for name in known.split()}
    cotangent = np.zeros(shape, np.float32)
    cotangent[at] = 1
    ones = [np.ones(x.shape, np.float32) for x in operands]
    with jax.default_device(jax.devices("cpu")[0]):
        _, pullback = jax.vjp(lambda x, w: lax.conv_general_dilated(x, w, **kept), *ones)
        return [np.flatnonzero(np.asarray(x)) for x in pullback(cotangent)]


def _row(flat, rows: int, n: int, result, at) -> Any:
    """For a row program: the row of an operand that the element is of; all of what is shared."""
    position = int(np.ravel_multi_index(at, result.shape)) if at else 0
    row = position // max(1, result.size // rows)
    if flat.size == rows * n:
        return flat.reshape(rows, n)[row]
    return flat.reshape(-1)[row : row + 1] if flat.size == rows else None
