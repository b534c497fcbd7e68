"""complex64: each operation as operations on real and imaginary parts, pairs of float32.

What is linear is done to each part.  The others are programs of real operations, which are
interpreted like any; ``docs/numerics.md``, section 19, states their graphs.  What only moves data
is taken as it stands.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax

from repjax.primitives.core.interpret import interpret_function
from repjax.primitives.core.tables import COMPLEX, RULES, Context, RefusedError
from repjax.primitives.core.values import is_complex
from repjax.primitives.operations.arithmetic import multiplication_chain
from repjax.primitives.operations.elementary import hypot_p
from repjax.primitives.operations.exact import take_as_they_stand
from repjax.primitives.operations.scatter import windows_are_apart

#: Data movement: parts are made, taken apart and put together again.
take_as_they_stand("complex", "real", "imag")


def parts(x) -> tuple[Any, Any]:
    """The real and the imaginary part; of a real array, +0."""
    return (lax.real(x), lax.imag(x)) if is_complex(jax.typeof(x)) else (x, lax.full_like(x, 0))


def _on_parts(context: Context, operands, params):
    rule = RULES[context.equation.primitive.name]
    pairs = [parts(x) if is_complex(jax.typeof(x)) else (x, x) for x in operands]
    real, imaginary = (rule(context, xs, params) for xs in zip(*pairs, strict=True))
    return lax.complex(real, imaginary)


_LINEAR = (
    "add add_any sub neg reduce_sum cumsum reduce_window_sum select_and_scatter_add scatter "
    "scatter-add scatter-sub"
)
COMPLEX.update(dict.fromkeys(_LINEAR.split(), _on_parts))


def complex_program(*names: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Register the decorated function as what the stock primitives ``names`` compute.

    It is ``function(*operands, **params)``, of operations that are covered.
    """

    def register(function):
        def rule(context: Context, operands, params):
            program = functools.partial(function, **params)
            (result,) = interpret_function(context, lambda *xs: [program(*xs)], operands)
            return result

        COMPLEX.update(dict.fromkeys(names, rule))
        return function

    return register


# --- arithmetic -------------------------------------------------------------------------


def multiply(x: tuple[Any, Any], y: tuple[Any, Any]) -> tuple[Any, Any]:
    """The product of pairs: four products and two sums, each rounded.

    None is an imaginary part of zeros.
    """
    (a, b), (c, d) = x, y
    return (a * c, a * d) if b is None else (a * c - b * d, a * d + b * c)


@complex_program("mul")
def _mul(x, y, **_):
    return lax.complex(*multiply(parts(x), parts(y)))


@complex_program("square")
def _square(x, **_):
    return _mul(x, x)


@complex_program("div")
def _div(x, y, **_):
    """Smith's algorithm: by the larger part of the divisor (Smith 1962, CACM 5(8), 435)."""
    (a, b), (c, d) = parts(x), parts(y)
    real_is_larger = lax.abs(c) >= lax.abs(d)
    large, small = jnp.where(real_is_larger, c, d), jnp.where(real_is_larger, d, c)
    ratio = small / large
    denominator = large + small * ratio
    # By the imaginary part the quotient is (b - i a) / (d - i c).
    first, second = jnp.where(real_is_larger, a, b), jnp.where(real_is_larger, b, -a)
    sign = jnp.where(real_is_larger, ratio, -ratio)
    return lax.complex((first + second * sign) / denominator, (second - first * sign) / denominator)


@complex_program("integer_pow")
def _integer_pow(x, *, y, **_):
    if y == 0:
        return lax.full_like(x, 1)
    power = multiplication_chain(_mul, x, abs(y))
    return power if y > 0 else _div(lax.full_like(x, 1), power)


@complex_program("scatter-mul")
def _scatter_mul(operand, indices, updates, *, dimension_numbers, unique_indices, **params):
    """The elements that are reached times their updates, which are one for each."""
    if not windows_are_apart(indices, unique_indices):
        raise RefusedError(
            "scatter-mul on complex numbers expected one window or unique_indices=True, received "
            "several windows; gather, multiply and assign: x.at[i].set(x[i] * y)"
        )
    options = {k: params[k] for k in ("indices_are_sorted", "mode")}
    scatter = functools.partial(
        lax.scatter, dimension_numbers=dimension_numbers, unique_indices=unique_indices, **options
    )
    factors = scatter(lax.full_like(operand, 1), indices, updates)
    ones = lax.full(updates.shape, 1, np.int32)
    reached = scatter(lax.full(operand.shape, 0, np.int32), indices, ones) == 1
    return lax.select(reached, _mul(operand, factors), operand)


@complex_program("conj")
def _conj(x, **_):
    real, imaginary = parts(x)
    return lax.complex(real, -imaginary)


@complex_program("abs")
def _abs(x, **_):
    return hypot_p.bind(*parts(x))


@complex_program("sign")
def _sign(x, **_):
    real, imaginary = parts(x)
    size = hypot_p.bind(real, imaginary)
    is_zero = lax.eq(size, lax.full_like(size, 0))
    size = lax.select(is_zero, lax.full_like(size, 1), size)
    return lax.complex(real / size, imaginary / size)


@complex_program("exp")
def _exp(x, **_):
    real, imaginary = parts(x)
    size = lax.exp(real)
    return lax.complex(size * lax.cos(imaginary), size * lax.sin(imaginary))


@complex_program("log")
def _log(x, **_):
    real, imaginary = parts(x)
    return lax.complex(lax.log(hypot_p.bind(real, imaginary)), lax.atan2(imaginary, real))


@complex_program("eq")
def _eq(x, y):
    (a, b), (c, d) = parts(x), parts(y)
    return lax.bitwise_and(lax.eq(a, c), lax.eq(b, d))


@complex_program("ne")
def _ne(x, y):
    return lax.bitwise_not(_eq(x, y))


@complex_program("convert_element_type")
def _convert_element_type(x, *, new_dtype, **_):
    if np.dtype(new_dtype) != np.complex64:
        return lax.convert_element_type(parts(x)[0], new_dtype)
    real, imaginary = parts(x)
    return lax.complex(*(lax.convert_element_type(y, np.float32) for y in (real, imaginary)))


@complex_program("iota")
def _iota(*, shape, dimension, **_):
    real = lax.broadcasted_iota(np.float32, shape, dimension)
    return lax.complex(real, lax.full_like(real, 0))


# --- products ---------------------------------------------------------------------------


def _product(multiply, x, y):
    """Four products of real arrays, and two sums."""
    (a, b), (c, d) = parts(x), parts(y)
    real = multiply(a, c) - multiply(b, d)
    return lax.complex(real, multiply(a, d) + multiply(b, c))


@complex_program("dot_general")
def _dot_general(x, y, *, dimension_numbers, precision, **_):
    multiply = functools.partial(
        lax.dot_general, dimension_numbers=dimension_numbers, precision=precision
    )
    return _product(multiply, x, y)


@complex_program("conv_general_dilated")
def _conv_general_dilated(x, y, *, preferred_element_type, **params):
    del preferred_element_type
    return _product(functools.partial(lax.conv_general_dilated, **params), x, y)
