"""Arithmetic, comparisons and conversions: docs/numerics.md, sections 1, 2 and 11."""

from __future__ import annotations

import math
import operator
from fractions import Fraction

import ml_dtypes
import numpy as np

from repjax.verify.reference import values
from repjax.verify.reference.table import (
    NoReference,
    Operation,
    elementwise_part,
    in_float32,
    of,
    part,
)
from repjax.verify.reference.values import FLOAT32, FLOAT64, HALVES, add, flush, guard, multiply

# --- integers ---------------------------------------------------------------------------


def width(dtype) -> int:
    """Bits of an integer type."""
    return ml_dtypes.iinfo(dtype).bits


def wrap(x, dtype) -> np.ndarray:
    """Python integers, or int64, modulo 2**bits, as a type of integers."""
    dtype = np.dtype(dtype)
    if values.is_bool(dtype):
        return np.asarray(x, bool)
    bits, signed = width(dtype), ml_dtypes.iinfo(dtype).min < 0
    half = 1 << (bits - 1) if signed else 0
    exact = np.asarray(x, object)
    reduced = ((exact + half) % (1 << bits)) - half
    wide = np.int64 if signed else np.uint64
    return np.asarray(reduced, object).astype(wide).astype(dtype).reshape(np.shape(x))


def exact(x) -> np.ndarray:
    """Integers of any type as Python's."""
    x = np.asarray(x)
    return x.astype(np.uint64 if x.dtype == np.uint64 else np.int64).astype(object)


def _on_integers(function):
    """The same of an array of a few elements at a time, as Python integers."""

    def compute(operation: Operation):
        return [wrap(function(*map(exact, operation.operands)), operation.dtype)]

    return compute


def _quotient(x, y):
    """Towards zero; the integer with all bits where y is 0."""
    return -1 if y == 0 else abs(x) // abs(y) * (1 if (x < 0) == (y < 0) else -1)


def _remainder(x, y):
    return x if y == 0 else abs(x) % abs(y) * (-1 if x < 0 else 1)


INTEGER = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "neg": operator.neg,
    "square": lambda x: x * x,
    "div": np.frompyfunc(_quotient, 2, 1),
    "rem": np.frompyfunc(_remainder, 2, 1),
}
INTEGER["add_any"] = INTEGER["add"]


def _is_of_integers(operation: Operation) -> bool:
    return not any(values.is_float(d) for d in (*operation.dtypes, operation.operands[0].dtype))


# --- the operations that round ----------------------------------------------------------


def _wide(x):
    return np.asarray(x, np.float64)


FLOAT = {
    "add": add,
    "add_any": add,
    "sub": lambda x, y: add(x, -y),
    "mul": multiply,
    "div": values.divide,
    "neg": lambda x: flush(-x),
    "square": lambda x: multiply(x, x),
    "sqrt": values.root,
    "rem": lambda x, y: flush(np.fmod(x, y)),
}
_ENDINGS = {name: guard for name in FLOAT}
_ENDINGS |= dict.fromkeys(("add", "add_any", "sub", "neg", "rem"), flush)
_IN_FLOAT64 = ("add", "add_any", "sub", "mul", "neg")
BOOLEAN = {"add": operator.or_, "mul": operator.and_, "add_any": operator.or_}


def _enter(name: str):
    def on_floats(operation: Operation):
        return [FLOAT[name](*operation.operands)]

    narrow = in_float32(on_floats, _ENDINGS[name])

    @of(name)
    def compute(operation: Operation):
        if operation.dtype.kind == "b" and name in BOOLEAN:
            return [BOOLEAN[name](*operation.operands)]
        if _is_of_integers(operation):
            return _on_integers(INTEGER[name])(operation)
        if operation.dtype == FLOAT64 and name in _IN_FLOAT64:
            return on_floats(operation)
        return narrow(operation)

    part(name)(elementwise_part)


for _name in FLOAT:
    _enter(_name)


def once(function, ending=guard):
    """A function of float64 that gives float64, rounded to the result's format once."""

    def compute(operation: Operation):
        if FLOAT64 in (operation.dtype, operation.operands[0].dtype):
            raise NoReference(
                f"{operation.name}: expected float32, float16 or bfloat16, received float64"
            )
        wide = function(*map(_wide, operation.operands))
        if operation.dtype == FLOAT32:
            return [ending(wide.astype(np.float32))]
        return [values.narrow(wide, operation.dtype, ending)]

    return compute


@of("rsqrt")
def rsqrt(operation: Operation):
    return once(lambda x: 1 / np.sqrt(x))(operation)


def _rational(function):
    """A function of rational numbers, rounded once; what is not finite by float64."""

    def compute(operation: Operation):
        dtype = operation.dtype
        operands = np.broadcast_arrays(*operation.operands)
        out = np.empty(operands[0].shape, dtype)
        for i in np.ndindex(out.shape):
            xs = [float(x[i]) for x in operands]
            if all(map(math.isfinite, xs)):
                out[i] = values.rounded_to(function(*map(Fraction, xs)), dtype)
            else:
                out[i] = np.float64(function(*map(np.float64, xs))).astype(dtype)
        return [guard(out)]

    return compute


@of("one_minus_square")
def one_minus_square(operation: Operation):
    return _rational(lambda x: 1 - x * x)(operation)


@of("fma")
def fma(operation: Operation):
    return [values.fma_to(*operation.operands, operation.dtype)]


@of("add_n")
def add_n(operation: Operation):
    """The exact sum, rounded once."""
    operands = np.broadcast_arrays(*operation.operands)
    if _is_of_integers(operation):
        return [wrap(sum(map(exact, operands)), operation.dtype)]
    out = np.empty(operands[0].shape, operation.dtype)
    for i in np.ndindex(out.shape):
        out[i] = sum_once([x[i] for x in operands], operation.dtype)
    return [flush(out)]


def sum_once(terms, dtype):
    """The exact sum of a few floats of one format, rounded once; IEEE's where not finite."""
    xs = [float(x) for x in terms]
    if not all(map(math.isfinite, xs)):
        return np.asarray(sum(np.float64(x) for x in xs if not math.isfinite(x))).astype(dtype)
    total = sum(map(Fraction, xs), Fraction(0))
    return values.rounded_to(total, dtype)


# --- powers -----------------------------------------------------------------------------


def chain_of_products(x, exponent: int, multiply=multiply):
    """``x**exponent`` for an exponent from 1 on: a product for each bit, from the lowest up."""
    result, square = None, x
    while exponent:
        if exponent & 1:
            result = square if result is None else multiply(result, square)
        exponent >>= 1
        if exponent:
            square = multiply(square, square)
    return result


def _power_of_floats(operation: Operation):
    (x,), y = operation.operands, operation.params["y"]
    if y == 0:
        return [np.ones_like(x)]
    power = chain_of_products(x, abs(y))
    return [power if y > 0 else values.divide(np.ones_like(x), power)]


@of("integer_pow")
def integer_pow(operation: Operation):
    y = operation.params["y"]
    if _is_of_integers(operation) and y >= 0:
        return _on_integers(lambda x: x**y)(operation)
    return in_float32(_power_of_floats, guard)(operation)


def _guard64(x):
    return np.where(np.abs(x) <= 2.0**-1022, 0.0, x)


def pow_integer(x, y) -> np.ndarray:
    """Binary powering in float64, low bits first, guarded; yet to be rounded."""
    x, y = np.broadcast_arrays(_wide(x), np.asarray(y).astype(np.int64))
    exponent, square = np.abs(y), x.copy()
    result = np.ones_like(square)
    with np.errstate(all="ignore"):
        while exponent.any():
            result = np.where(exponent & 1 == 1, _guard64(result * square), result)
            square, exponent = _guard64(square * square), exponent >> 1
        return np.where(y < 0, _guard64(1 / result), result)


@of("pow_integer")
def power_by_integers(operation: Operation):
    x, y = operation.operands
    wide = pow_integer(x, y)
    if operation.dtype == FLOAT32:
        return [guard(wide.astype(np.float32))]
    return [values.narrow(wide, operation.dtype)]


def power_of_integers(operation: Operation):
    """Of integers, by an integer: modulo 2**bits; a negative power of 0 and 1 only is defined."""
    x, y = map(exact, operation.operands)
    if (np.asarray(y, object) < 0).any():
        raise NoReference("pow: expected exponents of integers that are not negative")
    return [wrap(np.frompyfunc(lambda a, b: pow(a, b, 1 << 64), 2, 1)(x, y), operation.dtype)]


@of("polynomial")
def polynomial(operation: Operation):
    """Horner's rule, each step rounded to the format."""
    x, *coefficients = operation.operands
    dtype = operation.dtype
    if dtype == FLOAT64:
        raise NoReference("polynomial: expected float32, float16 or bfloat16, received float64")

    def step(function, ending, *xs):
        return values.narrow(function(*(np.asarray(v, np.float32) for v in xs)), dtype, ending)

    result = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = step(add, flush, step(multiply, guard, result, x), coefficient)
    return [np.broadcast_to(result, operation.shape).astype(dtype)]


# --- exact operations -------------------------------------------------------------------


def _rounding(method) -> str:
    """The name of a rounding method, which may be its number."""
    return getattr(method, "name", {0: "AWAY_FROM_ZERO", 1: "TO_NEAREST_EVEN"}.get(method))


@np.errstate(all="ignore")
def away_from_zero(x):
    return np.copysign(np.floor(np.abs(x, dtype="d") + 0.5), x)


@of("round", ending=flush)
def round_(operation: Operation):
    (x,) = operation.operands
    to_even = _rounding(operation.params["rounding_method"]) == "TO_NEAREST_EVEN"
    return [flush(np.asarray((np.rint if to_even else away_from_zero)(x), np.float32))]


@of("floor", ending=flush)
def floor(operation: Operation):
    return [flush(np.floor(operation.operands[0]))]


@of("ceil", ending=flush)
def ceil(operation: Operation):
    return [flush(np.ceil(operation.operands[0]))]


@of("nextafter")
def nextafter(operation: Operation):
    x, y = np.broadcast_arrays(*operation.operands)
    if x.dtype == FLOAT64:
        raise NoReference("nextafter: expected float32, float16 or bfloat16, received float64")
    return [flush(np.nextafter(x, y))]


@of("abs")
def abs_(operation: Operation):
    (x,) = operation.operands
    if values.is_float(x.dtype):
        return [np.abs(x)]
    return _on_integers(abs)(operation)


@of("sign")
def sign(operation: Operation):
    (x,) = operation.operands
    if values.is_float(x.dtype):
        wide = np.asarray(x, np.float64)
        return [np.where(np.isnan(wide), wide, (wide > 0) * 1.0 - (wide < 0)).astype(x.dtype)]
    return _on_integers(lambda x: (x > 0) * 1 - (x < 0) * 1)(operation)


@of("is_finite")
def is_finite(operation: Operation):
    return [np.isfinite(_wide(operation.operands[0]))]


def maximum(x, y):
    return np.where(np.isnan(_floats(x)) | (x > y), x, y) if x.dtype.kind != "b" else x | y


def minimum(x, y):
    return np.where(np.isnan(_floats(x)) | (x < y), x, y) if x.dtype.kind != "b" else x & y


def _floats(x):
    """What may be NaN."""
    return x if values.is_float(x.dtype) else np.zeros(x.shape)


@of("max")
def max_(operation: Operation):
    return [maximum(*np.broadcast_arrays(*operation.operands))]


@of("min")
def min_(operation: Operation):
    return [minimum(*np.broadcast_arrays(*operation.operands))]


@of("clamp")
def clamp(operation: Operation):
    low, x, high = np.broadcast_arrays(*operation.operands)
    return [minimum(high, maximum(x, low))]


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    _compare = getattr(operator, _name)

    def _compared(operation: Operation, compare=_compare):
        return [np.asarray(compare(*operation.operands), bool)]

    of(_name)(_compared)
    part(_name)(elementwise_part)


def total_order(x):
    """Integers in the order of the numbers, NaN last."""
    if not values.is_float(x.dtype):
        return exact(x)
    i = x.view(f"i{x.dtype.itemsize}").astype(np.int64)
    return np.where(i < 0, -(i & ((1 << (8 * x.dtype.itemsize - 1)) - 1)), i)


for _name, _compare in {"eq_to": operator.eq, "lt_to": operator.lt, "le_to": operator.le}.items():

    def _ordered(operation: Operation, compare=_compare):
        return [np.asarray(compare(*map(total_order, operation.operands)), bool)]

    of(_name)(_ordered)
    part(_name)(elementwise_part)


def rounded_precision(x, exponent_bits: int, mantissa_bits: int):
    """Rounded as if exponents had no bounds; then infinity or zero beyond those of the format."""
    bias = 2 ** (exponent_bits - 1) - 1
    fraction, exponent = np.frexp(x.astype(np.float64))  # 1/2 <= |fraction| < 1
    with np.errstate(invalid="ignore"):
        y = np.ldexp(np.rint(np.ldexp(fraction, mantissa_bits + 1)), exponent - mantissa_bits - 1)
    if exponent_bits < 8:
        y = np.where(np.abs(y) >= 2.0 ** (bias + 1), np.copysign(np.inf, y), y)
        y = np.where(np.abs(y) < 2.0 ** (1 - bias), 0, y)
    with np.errstate(over="ignore"):
        return flush(y.astype(np.float32))


@of("reduce_precision", ending=flush)
def reduce_precision(operation: Operation):
    bits = (operation.params[k] for k in ("exponent_bits", "mantissa_bits"))
    return [rounded_precision(operation.operands[0], *bits)]


# --- bits of integers -------------------------------------------------------------------


def _shift(function):
    def compute(x, by, operation):
        bits = width(operation.dtype)
        # The number of places is unsigned; those that are too many leave nothing, or signs.
        by = by % (1 << bits)
        return np.frompyfunc(lambda a, b: function(a, min(b, bits), bits), 2, 1)(x, by)

    return lambda operation: [
        wrap(compute(*map(exact, operation.operands), operation), operation.dtype)
    ]


of("shift_left")(_shift(lambda x, by, bits: 0 if by == bits else x << by))
of("shift_right_logical")(_shift(lambda x, by, bits: (x % (1 << bits)) >> by))
of("shift_right_arithmetic")(_shift(lambda x, by, bits: x >> by))
for _name, _function in {"and": operator.and_, "or": operator.or_, "xor": operator.xor}.items():

    def _bitwise(operation: Operation, function=_function):
        if operation.dtype.kind == "b":
            return [np.asarray(function(*operation.operands), bool)]
        return _on_integers(function)(operation)

    of(_name)(_bitwise)


@of("not")
def not_(operation: Operation):
    (x,) = operation.operands
    return [~x] if x.dtype.kind == "b" else _on_integers(lambda x: -x - 1)(operation)


@of("population_count")
def population_count(operation: Operation):
    bits = width(operation.dtype)
    count = np.frompyfunc(lambda x: (x % (1 << bits)).bit_count(), 1, 1)
    return _on_integers(count)(operation)


@of("clz")
def clz(operation: Operation):
    bits = width(operation.dtype)
    count = np.frompyfunc(lambda x: bits - (x % (1 << bits)).bit_length(), 1, 1)
    return _on_integers(count)(operation)


@of("mulhi")
def mulhi(operation: Operation):
    bits = width(operation.dtype)
    return _on_integers(lambda x, y: x * y >> bits)(operation)


part(
    *("shift_left", "shift_right_logical", "shift_right_arithmetic", "and", "or", "xor", "not"),
    *("population_count", "clz", "mulhi", "rsqrt", "one_minus_square", "fma", "add_n"),
    *("integer_pow", "pow_integer", "polynomial", "round", "floor", "ceil", "nextafter", "abs"),
    *("sign", "is_finite", "max", "min", "clamp", "reduce_precision"),
)(elementwise_part)


# --- conversions ------------------------------------------------------------------------


def converted(x: np.ndarray, dtype) -> np.ndarray:
    """A conversion of real numbers."""
    x, dtype = np.asarray(x), np.dtype(dtype)
    if x.dtype == dtype:
        return x
    if values.is_bool(dtype):
        return np.asarray(_wide(x) != 0 if values.is_float(x.dtype) else exact(x) != 0, bool)
    if not values.is_float(dtype):
        return _to_integer(x, dtype)
    if values.is_float(x.dtype):
        if dtype == FLOAT64:
            return _wide(x)
        if x.dtype in HALVES and dtype == FLOAT32:
            return np.asarray(x, np.float32)
        return values.narrow(_wide(x), dtype)
    if x.dtype.kind == "b" or width(x.dtype) <= 32:
        wide = x.astype(np.int64).astype(np.float64)  # exact
        return wide if dtype == FLOAT64 else values.narrow(wide, dtype)
    if dtype in HALVES:
        raise NoReference(
            f"convert_element_type: expected integers of up to 32 bits, received {x.dtype}, which "
            f"is refused for {dtype}"
        )
    return x.astype(dtype)  # rounded to nearest even


def _to_integer(x, dtype):
    """Floats are truncated and saturate; integers wrap around."""
    if not values.is_float(x.dtype):
        return wrap(exact(x.astype(np.int8) if x.dtype.kind == "b" else x), dtype)
    info = ml_dtypes.iinfo(dtype)
    low, high = int(info.min), int(info.max)

    def one(v):
        if math.isnan(v):
            return 0
        return low if v <= low else high if v >= high else int(v)

    wide = np.asarray(np.frompyfunc(one, 1, 1)(_wide(x)), object)
    return wrap(wide.reshape(x.shape), dtype)


@of("convert_element_type")
def convert_element_type(operation: Operation):
    return [converted(operation.operands[0], operation.dtype)]


part("convert_element_type", "canonicalize", "materialize")(elementwise_part)


@of("canonicalize", "materialize")
def as_they_are(operation: Operation):
    """What enters is canonical."""
    return [*operation.operands]


@of("bitcast_convert_type")
def bitcast_convert_type(operation: Operation):
    (x,) = operation.operands
    if {"int2", "int4", "uint2", "uint4"} & {x.dtype.name, operation.dtype.name}:
        raise NoReference("bitcast_convert_type: expected whole bytes, received 2 or 4 bits")
    return [np.ascontiguousarray(x).reshape(-1).view(operation.dtype).reshape(operation.shape)]


@of("iota")
def iota(operation: Operation):
    dimension = operation.params["dimension"]
    shape = operation.shape
    along = [-1 if d == dimension else 1 for d in range(len(shape))]
    positions = np.broadcast_to(np.arange(shape[dimension]).reshape(along), shape)
    if values.is_float(operation.dtype):
        return [converted(positions.astype(np.uint32), operation.dtype)]
    return [wrap(positions, operation.dtype)]
