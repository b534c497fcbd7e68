"""Arithmetic: each operation is its correctly rounded value, then canonical.

``+ - *`` round once in float32.  Division, square root and
their relatives go through float64 and are rounded once more, which is innocuous
(Figueroa 1995, "When is double rounding innocuous?": 53 >= 2*24 + 2); a 64-bit guard
between the two roundings keeps the compiler from narrowing the float64 operation to an
approximate float32 instruction.

A function with a trailing underscore-free name (``add``, ``mul``, ...) binds the
primitive and takes canonical arrays; users call the ones in ``repjax.lax``.
"""

from __future__ import annotations

from functools import partial

import jax
import numpy as np
from jax import lax
from jax.interpreters import ad, batching, mlir

from repjax.primitives.core import canonical
from repjax.primitives.core.canonical import HALVES
from repjax.primitives.core.define import define
from repjax.primitives.core.interpret import program
from repjax.primitives.core.tables import CODE_SIZE, TURN_X64_OFF, Context, RefusedError, rule
from repjax.primitives.core.values import canonicalize, is_inexact
from repjax.primitives.operations.exact import bind_exact

FORMATS = (np.dtype(np.float32), *HALVES)


def require_format(context: Context, operands, formats=FORMATS) -> None:
    """Refuse float formats that have no contract yet."""
    for x in operands:
        dtype = jax.typeof(x).dtype
        if jax.dtypes.issubdtype(dtype, np.floating) and dtype not in formats:
            name = context.equation.primitive.name
            option = f", {TURN_X64_OFF}" if dtype == np.float64 else ""
            raise RefusedError(
                f"{name} expected float32, float16 or bfloat16, received {dtype}; convert with "
                f".astype('float32') before it{option}"
            )


# --- entry and exit -------------------------------------------------------------------

canonicalize_p = define("canonicalize", canonical.canonicalize, lambda x: x, halves=None)
# Linear as far as autodiff is concerned, and its transpose makes the cotangent canonical:
# where a value is used several times JAX itself adds the cotangents, unguarded.
ad.deflinear2(canonicalize_p, lambda cotangent, _: [canonicalize_p.bind(cotangent)])
batching.defvectorized(canonicalize_p)


# --- materialization ------------------------------------------------------------------

materialize_p = define("materialize", lambda x: x, lambda x: x, halves=None)


def _fence(x):
    """``x``, exactly, by a division that XLA does not repeat and so computes in a loop of its own.

    It divides by 1, which LLVM sees, and leaves out, and XLA's fusion does not; of formats of 16
    bits it divides the integers that their bits are.  Barriers are removed before fusion in jax
    0.10.
    """
    if x.dtype in canonical.HALVES:
        integers = lax.convert_element_type(canonical.bits(x), np.float32)
        same = lax.convert_element_type(_fence(integers), np.int16)
        return canonical.from_bits(same, x.dtype)
    return lax.div(x, canonical.unseen(lax.full_like(x, 1), canonical.bits(x)))


# On GPUs a division may be approximate, and fusion limits the size of code by itself.
mlir.register_lowering(
    materialize_p, mlir.lower_fun(_fence, multiple_results=False), platform="cpu", inline=False
)


# --- correctly rounded operations -----------------------------------------------------


def _add(x, y):
    return canonical.flush(lax.add(x, y))


def _sub(x, y):
    return canonical.flush(lax.sub(x, y))


def _mul(x, y):
    return canonical.guard(lax.mul(x, y))


def _through_float64(operation):
    """A correctly rounded operation: in float64, guarded, rounded to float32, guarded."""

    def body(*operands, rounded=canonical.to_float32, narrowed=canonical.guard):
        wide = operation(*map(canonical.to_float64, operands))
        return rounded(narrowed(wide))

    return body


div_body = _through_float64(lax.div)
sqrt_body = _through_float64(lax.sqrt)
# Guarded in between: 1 / sqrt(x) is otherwise rewritten to an approximate rsqrt.
_rsqrt = _through_float64(lambda x: lax.div(lax.full_like(x, 1), canonical.guard(lax.sqrt(x))))


def _neg(x):
    # A sign change that cannot make a negative zero.
    return canonical.flush(lax.neg(x))


def _one_minus_square(x, rounded=canonical.to_float32):
    """1 - x**2 with one rounding: x**2 is exact in float64, and two_sum keeps the rest."""
    wide = canonical.to_float64(x)
    high, low = canonical.two_sum(lax.full_like(wide, 1), -canonical.guard(wide * wide))
    return rounded(canonical.round_to_odd(high, low))


def multiplication_chain(multiply, x, exponent: int):
    """x**exponent for exponent >= 1 by binary powering from the low bit up.

    The order of the products is part of the contract: with the running square
    ``x**(2**i)``, each set bit multiplies the result by it, low bits first.
    """
    result = None
    while True:
        if exponent & 1:
            result = x if result is None else multiply(result, x)
        exponent >>= 1
        if not exponent:
            return result
        x = multiply(x, x)


def _integer_pow(x, *, y: int):
    if y == 0:
        return lax.full_like(x, 1)
    power = multiplication_chain(_mul, x, abs(y))
    return power if y > 0 else div_body(lax.full_like(x, 1), power)


def _pow_integer(x, y, rounded=canonical.to_float32):
    """x**y, y integer: binary powering in float64 (64 steps), rounded once."""
    y = lax.convert_element_type(y, np.int64)
    x, y = canonical.broadcast(canonical.to_float64(x), y)
    exponent = lax.abs(y)

    def step(i, state):
        result, square = state
        bit = lax.shift_right_logical(exponent, lax.full_like(exponent, i)) & 1
        product = canonical.guard(result * square)
        return lax.select(bit == 1, product, result), canonical.guard(square * square)

    power, _ = lax.fori_loop(0, 64, step, (lax.full_like(x, 1), x))
    inverse = canonical.guard(lax.div(lax.full_like(x, 1), power))
    return rounded(lax.select(y < 0, inverse, power))


def _rem(x, y):
    """x - n y, n = x / y rounded towards zero: exact, with the sign of x.

    On the integers of x = mx 2**ex and y = my 2**ey: where ex >= ey the result is
    (mx 2**(ex - ey) mod my) 2**ey, and the power is taken modulo my by squaring.
    """
    x, y = canonical.broadcast(x, y)
    i, j = (lax.convert_element_type(canonical.bits(a) & 0x7FFFFFFF, np.int64) for a in (x, y))
    mx, my = ((a & 0x7FFFFF) | 0x800000 for a in (i, j))
    ex, ey = (lax.shift_right_logical(a, np.int64(23)) for a in (i, j))
    distance = lax.max(ex - ey, np.int64(0))
    power = lax.full_like(mx, 1)
    for bit in reversed(range(8)):
        doubled = lax.shift_right_logical(distance, np.int64(bit)) & 1
        power = lax.rem(lax.shift_left(lax.rem(power * power, my), doubled), my)
    scale = canonical.from_bits((ey - 150 + 1023) << 52, np.float64)
    wide = canonical.to_float64(lax.rem(mx * power, my)) * scale
    result = canonical.flush(lax.convert_element_type(wide, np.float32))
    result = lax.select(i < j, x, lax.select(lax.lt(x, lax.full_like(x, 0)), -result, result))
    nan = (i >= 0x7F800000) | (j > 0x7F800000) | (j == 0)
    return canonical.flush(lax.select(nan, lax.full_like(x, np.nan), result))


def _reduce_precision(x, *, exponent_bits: int, mantissa_bits: int):
    """Rounded to nearest even to a format with fewer bits, on the integers of float32."""
    i = canonical.bits(x)
    magnitude = i & 0x7FFFFFFF
    if (shift := 23 - mantissa_bits) > 0:
        odd = lax.shift_right_logical(magnitude, np.int32(shift)) & 1
        magnitude = (magnitude + (((1 << (shift - 1)) - 1) + odd)) & np.int32(-(1 << shift))
    if exponent_bits < 8:
        bias = (1 << (exponent_bits - 1)) - 1
        exponent = lax.shift_right_logical(magnitude, np.int32(23))
        magnitude = lax.select(exponent > 127 + bias, lax.full_like(i, 0x7F800000), magnitude)
        magnitude = lax.select(exponent <= 127 - bias, lax.full_like(i, 0), magnitude)
    rounded = canonical.from_bits(magnitude | (i & np.int32(-0x80000000)), np.float32)
    return canonical.flush(lax.select(canonical.is_nan(x), x, rounded))


def rounded_to_odd(body):
    """The body for formats that its result is rounded to once more."""
    return partial(body, rounded=canonical.to_float32_odd)


# Twice rounded quotients, roots and products are once rounded (Figueroa again: 24 >= 2*11 + 2);
# the other functions are not.
add_p = define("add", _add, lax.add, halves=canonical.flush)
sub_p = define("sub", _sub, lax.sub, halves=canonical.flush)
mul_p = define("mul", _mul, lax.mul)
div_p = define("div", div_body, lax.div)
neg_p = define("neg", _neg, lax.neg, halves=canonical.flush)
sqrt_p = define("sqrt", sqrt_body, lax.sqrt)
rsqrt_p = define("rsqrt", _rsqrt, lax.rsqrt, half_body=rounded_to_odd(_rsqrt))
square_p = define("square", lambda x: _mul(x, x), lax.square)
integer_pow_p = define("integer_pow", _integer_pow, lax.integer_pow)
pow_integer_p = define("pow_integer", _pow_integer, lax.pow, half_body=rounded_to_odd(_pow_integer))
rem_p = define("rem", _rem, lax.rem, halves=canonical.flush)
reduce_precision_p = define(
    "reduce_precision", _reduce_precision, lax.reduce_precision, halves=canonical.flush
)

add, sub, mul, div, neg = add_p.bind, sub_p.bind, mul_p.bind, div_p.bind, neg_p.bind


def _one_minus_square_jvp(tangents, result, x):
    del result
    return mul(tangents[0], mul(np.asarray(-2, x.dtype), x))


one_minus_square_p = define(
    "one_minus_square",
    _one_minus_square,
    lambda x: lax.sub(lax.full_like(x, 1), lax.square(x)),
    jvp=_one_minus_square_jvp,
    half_body=rounded_to_odd(_one_minus_square),
)
# Elementwise: batching by the stock function would round twice.
batching.defvectorized(one_minus_square_p)

# --- rules ----------------------------------------------------------------------------


def plain_rule(stock_name: str, primitive, keep: tuple[str, ...] = (), formats=FORMATS) -> None:
    """Register the rule of a primitive that takes what its stock form takes, in these formats.

    Params of the stock primitive other than ``keep`` (accuracy, sharding) ask for less
    than correct rounding gives, and are dropped.
    """

    @rule(stock_name)
    def plain(context, operands, params):
        require_format(context, operands, formats)
        return primitive.bind(*operands, **{k: params[k] for k in keep})


# Those whose bodies are of any format, float64 too: JAX's draws in it are made of them.
_OF_ANY_FORMAT = {"add": add_p, "add_any": add_p, "sub": sub_p, "mul": mul_p, "neg": neg_p}
_OF_FORMATS = {
    "sqrt": sqrt_p,
    "rsqrt": rsqrt_p,
    "rem": rem_p,
    "square": square_p,
    "one_minus_square": one_minus_square_p,
}
for _name, _primitive in {**_OF_ANY_FORMAT, **_OF_FORMATS}.items():
    _formats = (*FORMATS, np.dtype(np.float64)) if _name in _OF_ANY_FORMAT else FORMATS
    plain_rule(_name, _primitive, formats=_formats)
    CODE_SIZE[_name] = 1
CODE_SIZE |= {"integer_pow": 2, "convert_element_type": 1, "floor": 1, "ceil": 1, "round": 1}
CODE_SIZE |= {"div": 1, "iota": 0}


def _integer_quotient(x, y):
    """x / y of integers, rounded towards zero; -1, which has all bits, where y is 0.

    That is what XLA gives for ``x / y``; from 0.11 on it gives 1 for ``x / x`` even where x is 0.
    """
    if isinstance(y, np.ndarray | np.generic) and np.all(y):
        return lax.div(x, y)
    x, y = canonical.broadcast(x, y)
    is_zero = y == 0
    minus_one = lax.full_like(x, np.invert(np.zeros((), x.dtype)))
    return lax.select(is_zero, minus_one, lax.div(x, lax.select(is_zero, lax.full_like(y, 1), y)))


@rule("div")
def _quotient(context, operands, params):
    del params  # they ask for less than correct rounding
    if any(map(is_inexact, map(jax.typeof, operands))):
        require_format(context, operands)
        return div_p.bind(*operands)
    return _integer_quotient(*operands)


@rule("integer_pow")
def _power(context, operands, params):
    require_format(context, operands)
    return operands[0] if params["y"] == 1 else integer_pow_p.bind(*operands, y=params["y"])


plain_rule("reduce_precision", reduce_precision_p, keep=("exponent_bits", "mantissa_bits"))


@program("polynomial")
def _polynomial(x, *coefficients, unroll=None):
    """Horner's rule, a product and a sum for each coefficient."""
    del unroll
    result = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = jax.numpy.add(jax.numpy.multiply(result, x), coefficient)
    return result


def _nextafter(x, y):
    """The neighbour of x towards y in their own format; it may be subnormal, and so +0."""
    f = canonical.format_of(x)
    x, y = canonical.broadcast(x, y)

    def flip(i):  # between sign and magnitude and two's complement, where order is order
        return lax.select(i < 0, i ^ f.magnitude, i)

    i, j = flip(canonical.bits(x)), flip(canonical.bits(y))
    up, down = (lax.convert_element_type(c, i.dtype) for c in (i < j, i > j))
    next = canonical.flush(canonical.from_bits(flip(i + up - down), x.dtype))
    return lax.select(canonical.is_nan(x), x, lax.select(canonical.is_nan(y), y, next))


nextafter_p = define("nextafter", _nextafter, lax.nextafter, halves=None)
plain_rule("nextafter", nextafter_p)

# Exact, except for results that are not canonical.
_flushed = {
    name: define(
        name,
        lambda *xs, _op=op, **params: canonical.flush(_op(*xs, **params)),
        op,
        halves=canonical.flush,
    )
    for name, op in {
        "floor": lax.floor,
        "ceil": lax.ceil,
        "round": lax.round,
    }.items()
}
for _name in ("floor", "ceil"):
    plain_rule(_name, _flushed[_name])
plain_rule("round", _flushed["round"], keep=("rounding_method",))


@rule("sort")
def _sort_rule(context, operands, params):
    # Exact, but which of two equal keys comes first is only defined for a stable sort.
    return bind_exact(context, operands, {**params, "is_stable": True})


# --- conversions ----------------------------------------------------------------------


def _integer_to_float32(x, sticky: bool):
    """Rounded to nearest even or, where another rounding follows, to odd."""
    if x.dtype == np.bool_:
        # On the bits: a converted mask times x would become a select, and lose NaN and -0.
        i = lax.convert_element_type(x, np.int32) * np.int32(0x3F800000)
        return canonical.from_bits(i, np.float32)
    if sticky:
        return canonical.to_float32_odd(lax.convert_element_type(x, np.float64))
    if x.dtype.itemsize > 4:
        return canonical.guard(lax.convert_element_type(x, np.float32))
    return canonical.to_float32(lax.convert_element_type(x, np.float64))


def _float_to_integer(x, dtype):
    """Truncation towards zero; out of range saturates, NaN gives 0."""
    if dtype == np.bool_:
        return lax.ne(x, lax.full_like(x, 0))
    x = canonical.to_float64(x)
    info = jax.numpy.iinfo(dtype)  # which knows those of 2 and 4 bits
    above = lax.ge(x, lax.full_like(x, float(info.max) + 1))
    below = lax.le(x, lax.full_like(x, float(info.min) - (1 if info.bits < 64 else 0)))
    inside = lax.bitwise_not(above | below | canonical.is_nan(x))
    result = lax.convert_element_type(lax.select(inside, x, lax.full_like(x, 0)), dtype)
    result = lax.select(above, lax.full_like(result, info.max), result)
    return lax.select(below, lax.full_like(result, info.min), result)


def _convert(x, *, new_dtype):
    from_float, to_float = (jax.dtypes.issubdtype(d, np.floating) for d in (x.dtype, new_dtype))
    if x.dtype == np.float64 and to_float:
        if new_dtype == np.float32:
            return canonical.to_float32(x)
        return canonical.narrow(canonical.to_float32_odd(x), new_dtype)
    if from_float and x.dtype in HALVES:
        x = canonical.widen(x)
    if new_dtype == np.float64:
        return _to_float64(x)
    if not from_float:
        x = _integer_to_float32(x, sticky=new_dtype != np.float32)
    if not to_float:
        return _float_to_integer(x, new_dtype)
    return x if new_dtype == np.float32 else canonical.narrow(x, new_dtype)


def _to_float64(x):
    """Exact, except for integers of 64 bits, which are rounded to nearest even."""
    return canonical.to_float64(lax.convert_element_type(x, np.int32) if x.dtype == np.bool_ else x)


convert_p = define("convert_element_type", _convert, lax.convert_element_type, halves=None)


@rule("convert_element_type")
def _convert_rule(context, operands, params):
    (x,) = operands
    old, new = jax.typeof(x).dtype, np.dtype(params["new_dtype"])
    for dtype in (old, new):
        if jax.dtypes.issubdtype(dtype, np.floating) and dtype not in canonical.FORMATS:
            raise RefusedError(
                f"convert_element_type expected float64, float32, float16, bfloat16 or integers, "
                f"received a conversion from {old} to {new}; do it outside repjax"
            )
    if old == new:
        return bind_exact(context, operands, params)  # a change of weak type only
    if old.itemsize > 4 and not is_inexact(jax.typeof(x)) and new.itemsize < 4:
        raise RefusedError(f"conversion from {old} to {new} has no reproducible form; go by int32")
    return convert_p.bind(x, new_dtype=new)


@rule("iota")
def _iota_rule(context, operands, params):
    if params["dtype"] not in HALVES:
        return bind_exact(context, operands, params)  # in float32 they are rounded once too
    return convert_p.bind(
        bind_exact(context, operands, {**params, "dtype": np.dtype(np.uint32)}),
        new_dtype=params["dtype"],
    )


@rule("bitcast_convert_type", "eq_to", "lt_to", "le_to")
def _bits_rule(context, operands, params):
    # What looks at the bits must see one NaN (a total order has negative ones too), and bits
    # that become floats must be canonical.
    return canonicalize(bind_exact(context, [canonicalize(x) for x in operands], params))
