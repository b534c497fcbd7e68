"""Arithmetic: each operation is its correctly rounded value, then canonical.

All of it is float32.  ``+ - *`` round once in float32.  Division, square root and
their relatives go through float64 and are rounded once more, which is innocuous
(Figueroa 1995, "When is double rounding innocuous?": 53 >= 2*24 + 2); a 64-bit guard
between the two roundings keeps the compiler from narrowing the float64 operation to an
approximate float32 instruction.

A function with a trailing underscore-free name (``add``, ``mul``, ...) binds the
primitive and takes canonical arrays; users call the ones in ``repjax.lax``.
"""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax.interpreters import ad, batching

from repjax.primitives import canonical
from repjax.primitives.define import define
from repjax.primitives.interpret import (
    Context,
    RefusedError,
    bind_exact,
    is_inexact,
    program,
    rule,
)


def require_float32(context: Context, operands, name: str | None = None) -> None:
    """Refuse float formats that have no contract yet."""
    for x in operands:
        dtype = jax.typeof(x).dtype
        if jax.dtypes.issubdtype(dtype, np.floating) and dtype != np.float32:
            name = name or context.equation.primitive.name
            raise RefusedError(
                f"{name} expected float32, received {dtype}; contract version 1 covers "
                "float32: convert with .astype('float32') before it"
            )


# --- entry and exit -------------------------------------------------------------------

canonicalize_p = define("canonicalize", canonical.canonicalize, lambda x: x)
# Linear as far as autodiff is concerned, and its transpose makes the cotangent canonical:
# where a value is used several times JAX itself adds the cotangents, unguarded.
ad.deflinear2(canonicalize_p, lambda cotangent, _: [canonicalize_p.bind(cotangent)])
batching.defvectorized(canonicalize_p)


def canonicalize(x):
    """The canonical value of ``x``; anything but a floating-point array passes."""
    aval = jax.typeof(x)
    if not is_inexact(aval) or np.dtype(aval.dtype) not in canonical.FORMATS:
        return x
    return canonicalize_p.bind(x)


# --- correctly rounded operations -----------------------------------------------------


def _add(x, y):
    return canonical.flush(lax.add(x, y))


def _sub(x, y):
    return canonical.flush(lax.sub(x, y))


def _mul(x, y):
    return canonical.guard(lax.mul(x, y))


def _through_float64(operation):
    """A correctly rounded operation: in float64, guarded, rounded to float32, guarded."""

    def body(*operands):
        wide = operation(*map(canonical.to_float64, operands))
        return canonical.to_float32(canonical.guard(wide))

    return body


_div = _through_float64(lax.div)
_sqrt = _through_float64(lax.sqrt)
# Guarded in between: 1 / sqrt(x) is otherwise rewritten to an approximate rsqrt.
_rsqrt = _through_float64(lambda x: lax.div(lax.full_like(x, 1), canonical.guard(lax.sqrt(x))))


def _neg(x):
    # A sign change that cannot make a negative zero.
    return canonical.flush(lax.neg(x))


def _one_minus_square(x):
    """1 - x**2 with one rounding: x**2 is exact in float64, and two_sum keeps the rest."""
    wide = canonical.to_float64(x)
    high, low = canonical.two_sum(lax.full_like(wide, 1), -canonical.guard(wide * wide))
    return canonical.to_float32(canonical.round_to_odd(high, low))


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
    return power if y > 0 else _div(lax.full_like(x, 1), power)


def _broadcast(*xs):
    """Arrays of one shape: scalars may stand among the operands of elementwise primitives."""
    shape = lax.broadcast_shapes(*(x.shape for x in xs))
    return [lax.broadcast_in_dim(x, shape, range(len(shape) - x.ndim, len(shape))) for x in xs]


def _pow_integer(x, y):
    """x**y, y integer: binary powering in float64 (64 steps), rounded once."""
    x, y = _broadcast(canonical.to_float64(x), lax.convert_element_type(y, np.int64))
    exponent = lax.abs(y)

    def step(i, state):
        result, square = state
        bit = lax.shift_right_logical(exponent, lax.full_like(exponent, i)) & 1
        product = canonical.guard(result * square)
        return lax.select(bit == 1, product, result), canonical.guard(square * square)

    power, _ = lax.fori_loop(0, 64, step, (lax.full_like(x, 1), x))
    inverse = canonical.guard(lax.div(lax.full_like(x, 1), power))
    return canonical.to_float32(lax.select(y < 0, inverse, power))


def _rem(x, y):
    """x - n y, n = x / y rounded towards zero: exact, with the sign of x.

    On the integers of x = mx 2**ex and y = my 2**ey: where ex >= ey the result is
    (mx 2**(ex - ey) mod my) 2**ey, and the power is taken modulo my by squaring.
    """
    x, y = _broadcast(x, y)
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


add_p = define("add", _add, lax.add)
sub_p = define("sub", _sub, lax.sub)
mul_p = define("mul", _mul, lax.mul)
div_p = define("div", _div, lax.div)
neg_p = define("neg", _neg, lax.neg)
sqrt_p = define("sqrt", _sqrt, lax.sqrt)
rsqrt_p = define("rsqrt", _rsqrt, lax.rsqrt)
square_p = define("square", lambda x: _mul(x, x), lax.square)
integer_pow_p = define("integer_pow", _integer_pow, lax.integer_pow)
pow_p = define("pow_integer", _pow_integer, lax.pow)
rem_p = define("rem", _rem, lax.rem)
reduce_precision_p = define("reduce_precision", _reduce_precision, lax.reduce_precision)

add, sub, mul, div, neg = add_p.bind, sub_p.bind, mul_p.bind, div_p.bind, neg_p.bind


def _one_minus_square_jvp(tangents, result, x):
    del result
    return mul(tangents[0], mul(np.float32(-2), x))


one_minus_square_p = define(
    "one_minus_square",
    _one_minus_square,
    lambda x: lax.sub(lax.full_like(x, 1), lax.square(x)),
    jvp=_one_minus_square_jvp,
)
# Elementwise: batching by the stock function would round twice.
batching.defvectorized(one_minus_square_p)

# --- rules ----------------------------------------------------------------------------


def plain_rule(stock_name: str, primitive, keep: tuple[str, ...] = ()) -> None:
    """Register the rule of a float32 primitive that takes what its stock form takes.

    Params of the stock primitive other than ``keep`` (accuracy, sharding) ask for less
    than correct rounding gives, and are dropped.
    """

    @rule(stock_name)
    def plain(context, operands, params):
        require_float32(context, operands)
        return primitive.bind(*operands, **{k: params[k] for k in keep})


for _name, _primitive in {
    "add": add_p,
    "add_any": add_p,
    "sub": sub_p,
    "mul": mul_p,
    "div": div_p,
    "neg": neg_p,
    "sqrt": sqrt_p,
    "rsqrt": rsqrt_p,
    "rem": rem_p,
    "square": square_p,
    "one_minus_square": one_minus_square_p,
}.items():
    plain_rule(_name, _primitive)
plain_rule("integer_pow", integer_pow_p, keep=("y",))
plain_rule("reduce_precision", reduce_precision_p, keep=("exponent_bits", "mantissa_bits"))


@program("polynomial")
def _polynomial(x, *coefficients, unroll=None):
    """Horner's rule, a product and a sum for each coefficient."""
    del unroll
    result = coefficients[-1]
    for coefficient in reversed(coefficients[:-1]):
        result = jax.numpy.add(jax.numpy.multiply(result, x), coefficient)
    return result


@rule("pow")
def _pow_rule(context, operands, params):
    require_float32(context, operands)
    if is_inexact(jax.typeof(operands[1])):
        raise RefusedError(
            "pow with a float exponent has no reproducible form yet; an integer exponent has"
        )
    return pow_p.bind(*operands)


# Exact, but for results that are not canonical.
_flushed = {
    name: define(name, lambda *xs, _op=op, **params: canonical.flush(_op(*xs, **params)), op)
    for name, op in {
        "floor": lax.floor,
        "ceil": lax.ceil,
        "round": lax.round,
        "nextafter": lax.nextafter,
    }.items()
}
for _name in ("floor", "ceil", "nextafter"):
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
    wide = lax.convert_element_type(x, np.float64)  # exact up to 32 bits
    if sticky:
        i = canonical.bits(wide)
        lost = lax.convert_element_type((i & 0x1FFFFFFF) != 0, np.int64)
        wide = canonical.from_bits((i & ~0x1FFFFFFF) | (lost << 29), np.float64)
    elif x.dtype.itemsize > 4:
        return canonical.guard(lax.convert_element_type(x, np.float32))
    return canonical.to_float32(wide)


def _float_to_integer(x, dtype):
    """Truncation towards zero; out of range saturates, NaN gives 0."""
    if dtype == np.bool_:
        return lax.ne(x, lax.full_like(x, 0))
    x = canonical.to_float64(x)
    info = np.iinfo(dtype)
    above = lax.ge(x, lax.full_like(x, float(info.max) + 1))
    below = lax.le(x, lax.full_like(x, float(info.min) - (1 if info.bits < 64 else 0)))
    inside = lax.bitwise_not(above | below | canonical.is_nan(x))
    result = lax.convert_element_type(lax.select(inside, x, lax.full_like(x, 0)), dtype)
    result = lax.select(above, lax.full_like(result, info.max), result)
    return lax.select(below, lax.full_like(result, info.min), result)


def _widen(x):
    """float16 or bfloat16 to float32: exact, on the bits (not every CPU code has the former)."""
    f = canonical.format_of(x)
    i = lax.convert_element_type(canonical.bits(x), np.int32)
    magnitude = i & f.magnitude
    shift = 23 - f.mantissa_bits
    rebias = (127 - f.bias) << 23
    wide = lax.select(
        magnitude >= f.infinity,
        (magnitude << shift) | 0x7F800000,
        (magnitude << shift) + rebias,
    )
    wide = lax.select(magnitude == 0, lax.full_like(i, 0), wide)
    return canonical.from_bits(wide | (i & np.int32(-0x80000000)), np.float32)


def _narrow(x, dtype):
    """float32 to float16 or bfloat16: rounded to nearest even on the bits, then canonical."""
    f = canonical.FORMATS[np.dtype(dtype)]
    i = canonical.bits(x)
    magnitude = i & 0x7FFFFFFF
    shift = 23 - f.mantissa_bits
    rebias = (127 - f.bias) << 23
    odd = lax.shift_right_logical(magnitude, np.int32(shift)) & 1
    rounded = lax.shift_right_logical(
        magnitude - rebias + ((1 << (shift - 1)) - 1) + odd, np.int32(shift)
    )
    rounded = lax.min(rounded, np.int32(f.infinity))
    rounded = lax.select(magnitude > 0x7F800000, lax.full_like(i, f.nan), rounded)
    # Not after rounding alone: what is too small for the format wraps around above.
    tiny = (magnitude <= rebias) | (rounded <= f.tiny)
    sign = lax.shift_right_logical(i, np.int32(31)) << (16 - 1)
    narrow = lax.select(tiny, lax.full_like(i, 0), rounded | sign)
    return canonical.from_bits(lax.convert_element_type(narrow, np.int16), dtype)


def _convert(x, *, new_dtype):
    from_float, to_float = (jax.dtypes.issubdtype(d, np.floating) for d in (x.dtype, new_dtype))
    if from_float and x.dtype != np.float32:
        x = _widen(x)
    if not from_float:
        x = _integer_to_float32(x, sticky=new_dtype != np.float32)
    if not to_float:
        return _float_to_integer(x, new_dtype)
    return x if new_dtype == np.float32 else _narrow(x, new_dtype)


convert_p = define("convert_element_type", _convert, lax.convert_element_type)
_CONVERTIBLE = (np.dtype(np.float32), np.dtype(np.float16), np.dtype(jax.numpy.bfloat16))


@rule("convert_element_type")
def _convert_rule(context, operands, params):
    (x,) = operands
    old, new = jax.typeof(x).dtype, np.dtype(params["new_dtype"])
    for dtype in (old, new):
        if jax.dtypes.issubdtype(dtype, np.floating) and dtype not in _CONVERTIBLE:
            raise RefusedError(
                f"conversion from {old} to {new} has no reproducible form; float32, float16, "
                "bfloat16 and the integers have"
            )
    if old == new:
        return bind_exact(context, operands, params)  # a change of weak type only
    if old.itemsize > 4 and not is_inexact(jax.typeof(x)) and new.itemsize < 4:
        raise RefusedError(f"conversion from {old} to {new} has no reproducible form; go by int32")
    return convert_p.bind(x, new_dtype=new)


@rule("bitcast_convert_type", "eq_to", "lt_to", "le_to")
def _bits_rule(context, operands, params):
    # What looks at the bits must see one NaN (a total order has negative ones too), and bits
    # that become floats must be canonical.
    return canonicalize(bind_exact(context, [canonicalize(x) for x in operands], params))
