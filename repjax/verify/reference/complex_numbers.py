"""complex64 as pairs of float32: docs/numerics.md, section 19."""

from __future__ import annotations

from typing import Any

import numpy as np

from repjax.verify.reference import values
from repjax.verify.reference.arithmetic import chain_of_products, converted
from repjax.verify.reference.elementary import FUNCTIONS, correctly_rounded, of_two
from repjax.verify.reference.scatters import in_order
from repjax.verify.reference.table import (
    COMPLEX,
    PARTS,
    REFERENCES,
    NoReference,
    Operation,
    elementwise_part,
    of,
    of_all,
)
from repjax.verify.reference.values import COMPLEX64, FLOAT32, add, divide, multiply

Pair = tuple[Any, Any]


def join(parts) -> np.ndarray:
    return values.complex_of(*parts)


def split(x) -> Pair:
    """The real and the imaginary part; of a real array, +0."""
    x = np.asarray(x)
    if x.dtype.kind != "c":
        return values.canonical(x), np.zeros_like(x)
    return values.canonical(x.real.copy()), values.canonical(x.imag.copy())


def product(x: Pair, y: Pair) -> Pair:
    (a, b), (c, d) = x, y
    real = add(multiply(a, c), -multiply(b, d))
    return real, add(multiply(a, d), multiply(b, c))


def quotient(x: Pair, y: Pair) -> Pair:
    """Smith's algorithm (1962): by the larger part of the divisor."""
    (a, b), (c, d) = x, y
    by_real = np.abs(c) >= np.abs(d)
    ratio, other = divide(d, c), divide(c, d)
    size, other_size = add(c, multiply(d, ratio)), add(d, multiply(c, other))
    first = divide(add(a, multiply(b, ratio)), size), divide(add(b, -multiply(a, ratio)), size)
    second = (
        divide(add(multiply(a, other), b), other_size),
        divide(add(multiply(b, other), -a), other_size),
    )
    return tuple(np.where(by_real, *pair) for pair in zip(first, second, strict=True))


def _function(name: str):
    return lambda x: correctly_rounded(FUNCTIONS[name], x, FLOAT32)


exp, cos, sin, log = map(_function, ("exp", "cos", "sin", "log"))


def hypot(x, y):
    return of_two("hypot", x, y, FLOAT32)


def sign(x: Pair) -> Pair:
    size = hypot(*x)
    size = np.where(size == 0, np.float32(1), size)
    return divide(x[0], size), divide(x[1], size)


def exponential(x: Pair) -> Pair:
    size = exp(x[0])
    return multiply(size, cos(x[1])), multiply(size, sin(x[1]))


def logarithm(x: Pair) -> Pair:
    return log(hypot(*x)), of_two("atan2", x[1], x[0], FLOAT32)


def power(x: Pair, y: int) -> Pair:
    one = np.ones_like(x[0]), np.zeros_like(x[0])
    if y == 0:
        return one
    found = chain_of_products(x, abs(y), product)
    return found if y > 0 else quotient(one, found)


# --- the operations ---------------------------------------------------------------------


def _check(operation: Operation) -> None:
    if any(d == np.complex128 for d in (*operation.dtypes, *(x.dtype for x in operation.operands))):
        raise NoReference(f"{operation.name}: expected complex64, received complex128")


def _of_pairs(*names: str, function) -> None:
    """Elementwise functions of pairs."""

    def compute(operation: Operation):
        _check(operation)
        return [join(function(*map(split, operation.operands), operation.params))]

    of(*names, table=COMPLEX)(compute)
    for name in names:
        PARTS.setdefault(name, elementwise_part)


_of_pairs("mul", function=lambda x, y, _: product(x, y))
_of_pairs("square", function=lambda x, _: product(x, x))
_of_pairs("div", function=lambda x, y, _: quotient(x, y))
_of_pairs("conj", function=lambda x, _: (x[0], -x[1]))
_of_pairs("sign", function=lambda x, _: sign(x))
_of_pairs("exp", function=lambda x, _: exponential(x))
_of_pairs("log", function=lambda x, _: logarithm(x))
_of_pairs("integer_pow", function=lambda x, params: power(x, params["y"]))


@of("abs", table=COMPLEX)
def _abs(operation: Operation):
    _check(operation)
    return [hypot(*split(operation.operands[0]))]


@of("eq", table=COMPLEX)
def _eq(operation: Operation):
    (a, b), (c, d) = map(split, operation.operands)
    return [(a == c) & (b == d)]


@of("ne", table=COMPLEX)
def _ne(operation: Operation):
    return [~_eq(operation)[0]]


@of("convert_element_type", table=COMPLEX)
def _convert(operation: Operation):
    _check(operation)
    real, imaginary = split(operation.operands[0])
    if operation.dtype != COMPLEX64:
        return [converted(real, operation.dtype)]
    return [join([converted(part, FLOAT32) for part in (real, imaginary)])]


@of("iota", table=COMPLEX)
def _iota(operation: Operation):
    of_reals = operation.with_(results=((FLOAT32, operation.shape),))
    return [join(split(REFERENCES["iota"](of_reals)[0]))]


@of_all("complex")
def _complex(operation: Operation):
    return [join(np.broadcast_arrays(*operation.operands))]


@of_all("real")
def _real(operation: Operation):
    return [operation.operands[0].real]


@of_all("imag")
def _imag(operation: Operation):
    return [operation.operands[0].imag]


PARTS |= dict.fromkeys(("complex", "real", "imag"), elementwise_part)


def _of_parts(operation: Operation, operands) -> np.ndarray:
    """The operation on real operands."""
    results = tuple((FLOAT32 if d.kind == "c" else d, shape) for d, shape in operation.results)
    name = operation.name
    return REFERENCES[name](operation.with_(operands=tuple(operands), results=results))[0]


def _on_parts(operation: Operation):
    """What is linear is done to each part; what is real, such as indices, belongs to both."""
    _check(operation)
    found = []
    for part in range(2):
        xs = [split(x)[part] if x.dtype.kind == "c" else x for x in operation.operands]
        found.append(_of_parts(operation, xs))
    return [join(found)]


of(
    *("add", "add_any", "sub", "neg", "reduce_sum", "cumsum", "reduce_window_sum"),
    *("select_and_scatter_add", "scatter-add", "scatter-sub"),
    table=COMPLEX,
)(_on_parts)


@of("dot_general", "conv_general_dilated", table=COMPLEX)
def _product(operation: Operation):
    """Four products of parts, and two sums."""
    _check(operation)
    (a, b), (c, d) = map(split, operation.operands)

    def real(x, y):
        return _of_parts(operation, (x, y))

    return [join((add(real(a, c), -real(b, d)), add(real(a, d), real(b, c))))]


@of("scatter-mul", table=COMPLEX)
def _scatter_mul(operation: Operation):
    """The elements that are reached times their updates, which are one for each."""
    operand = operation.operands[0]
    out = operand.ravel().copy()
    positions, updates = in_order(operation)
    reached = positions[positions >= 0]
    if len({*reached.tolist()}) < len(reached):
        raise NoReference("scatter-mul: expected one update for each element, of complex numbers")
    out[reached] = join(product(split(out[reached]), split(updates[positions >= 0])))
    return [out.reshape(operand.shape)]
