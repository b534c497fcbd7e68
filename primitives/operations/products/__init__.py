"""Products: matrix products and convolutions, in a stated order or independent of any; and those
of integers."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax import lax
from jax.interpreters import batching

from repjax.primitives.core.define import define
from repjax.primitives.core.tables import RefusedError, check_contraction, rule
from repjax.primitives.core.values import is_inexact
from repjax.primitives.operations.arithmetic import FORMATS, add, convert_p, mul, require_format
from repjax.primitives.operations.exact import as_bytes
from repjax.primitives.operations.products import (
    geometry,
    integers,
    orders,
    ragged,  # noqa: F401  (registers)
    scaled,  # noqa: F401  (registers)
    sequential,
)


def _fma_jvp(tangents, result, a, b, c):
    del result, c
    terms = [mul(t, x) for t, x in zip(tangents, (b, a), strict=False) if t is not None]
    terms += [t for t in tangents[2:] if t is not None]
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total


fma_p = define(
    "fma",
    sequential.fma_body,
    lambda a, b, c: a * b + c,
    jvp=_fma_jvp,
    half_body=sequential.fma_odd_body,
)
batching.defbroadcasting(fma_p)


dot_general_p = define(
    "dot_general", orders.in_order(orders.BODIES["dot_general"]), lax.dot_general
)
conv_general_dilated_p = define(
    "conv_general_dilated",
    orders.in_order(orders.BODIES["conv_general_dilated"]),
    lax.conv_general_dilated,
)

# What a user's jax_default_matmul_precision asks for could round the operands.
stock_dot_general = functools.partial(lax.dot_general, precision=lax.Precision.HIGHEST)
stock_conv_general_dilated = functools.partial(
    lax.conv_general_dilated, precision=lax.Precision.HIGHEST
)
integer_dot_general_p = define("integer_dot_general", integers.dot_general_body, stock_dot_general)
integer_conv_general_dilated_p = define(
    "integer_conv_general_dilated",
    integers.conv_general_dilated_body,
    stock_conv_general_dilated,
)


def _bind(primitive, of_integers, keep):
    """The rule.

    Requests of precision and algorithm ask for less than a correctly rounded chain; integers on
    grids may have a fourth digit.
    """

    def product(context, operands, params):
        kept = {k: params[k] for k in keep}
        (result,) = context.equation.outvars
        if not any(map(is_inexact, [result.aval, *map(jax.typeof, operands)])):
            return _bind_integers(of_integers, operands, result.aval.dtype, kept)
        require_format(context, operands)
        wanted = params["preferred_element_type"]
        if wanted is not None and np.dtype(wanted) not in FORMATS:
            raise RefusedError(
                f"{context.equation.primitive.name} expected preferred_element_type float32, "
                f"float16, bfloat16 or None, received {wanted}; convert the result with .astype"
            )
        floats = [
            x if is_inexact(jax.typeof(x)) else convert_p.bind(x, new_dtype=FORMATS[0])
            for x in operands
        ]
        order = check_contraction(context.contraction)
        if order == "order_independent" and isinstance(params["precision"], tuple):
            kept["precision"] = params["precision"]
        return primitive.bind(*floats, contraction=order, preferred_element_type=wanted, **kept)

    return product


def _bind_integers(primitive, operands, dtype, kept):
    """The rule for integers, and for booleans, where a sum is whether a term is true.

    Integers of 2 and 4 bits and booleans have 8 bits in it, and sums of them 32.
    """
    is_bool = np.dtype(dtype).kind == "b"
    in_bits = is_bool or jax.dtypes.itemsize_bits(dtype) < 8
    wanted = np.dtype(np.int32 if in_bits else dtype)
    # Convolutions insist on a result with a sign where the operands have one.
    byte = np.int8 if np.issubdtype(wanted, np.signedinteger) else np.uint8

    def with_bytes(x):
        is_bool = jax.typeof(x).dtype.kind == "b"
        return lax.convert_element_type(x, byte) if is_bool else as_bytes(x)

    result = primitive.bind(*map(with_bytes, operands), preferred_element_type=wanted, **kept)
    return result != 0 if is_bool else lax.convert_element_type(result, dtype)


_matrix_product = _bind(dot_general_p, integer_dot_general_p, ("dimension_numbers",))


@rule("dot_general")
def _dot_general(context, operands, params):
    """The rule.

    A number times an array is a chain of one fma(x, y, +0), which has the bits of an elementwise
    product; but that has another derivative.
    """
    result = context.equation.outvars[0].aval
    avals = [*map(jax.typeof, operands), result]
    if (
        all(aval.shape for aval in avals[:2])
        or context.differentiable
        or check_contraction(context.contraction) != "sequential"
        or any(aval.dtype != np.float32 for aval in avals)
    ):
        return _matrix_product(context, operands, params)
    return mul(*(lax.broadcast_in_dim(x, result.shape, range(np.ndim(x))) for x in operands))


rule("conv_general_dilated")(
    _bind(conv_general_dilated_p, integer_conv_general_dilated_p, geometry.PARAMETERS)
)
