"""Contractions: matrix products and convolutions in a stated order."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax.interpreters import batching

from repjax.primitives.arithmetic import add, convert_p, mul
from repjax.primitives.contract import convolution, ragged, sequential  # noqa: F401  (registers)
from repjax.primitives.define import define
from repjax.primitives.interpret import RefusedError, rule


def _fma_jvp(tangents, result, a, b, c):
    del result, c
    terms = [mul(t, x) for t, x in zip(tangents, (b, a), strict=False) if t is not None]
    terms += [t for t in tangents[2:] if t is not None]
    total = terms[0]
    for term in terms[1:]:
        total = add(total, term)
    return total


fma_p = define("fma", sequential.fma_body, lambda a, b, c: a * b + c, jvp=_fma_jvp)
batching.defbroadcasting(fma_p)
dot_general_p = define("dot_general", sequential.dot_general_body, lax.dot_general)


conv_general_dilated_p = define(
    "conv_general_dilated", convolution.conv_general_dilated_body, lax.conv_general_dilated
)
_FLOAT32 = np.dtype(np.float32)
_CONVOLUTION_PARAMS = (
    "window_strides",
    "padding",
    "lhs_dilation",
    "rhs_dilation",
    "dimension_numbers",
    "feature_group_count",
    "batch_group_count",
)


def _check_result_type(context, params):
    """Precision and algorithm requests ask for less than a correctly rounded FMA chain."""
    wanted = params["preferred_element_type"]
    if wanted is not None and np.dtype(wanted) != np.float32:
        name = context.equation.primitive.name
        raise RefusedError(
            f"{name} expected preferred_element_type float32 or None, received {wanted}; "
            "convert the result with .astype instead"
        )


def _float32_operands(context, operands):
    """The operands, booleans and integers beside a float32 converted to it."""
    converted = []
    for x in operands:
        dtype = jax.typeof(x).dtype
        if jax.dtypes.issubdtype(dtype, np.floating) and dtype != np.float32:
            raise RefusedError(
                f"{context.equation.primitive.name} expected float32 operands, received "
                f"{dtype}; convert with .astype('float32') before it"
            )
        converted.append(x if dtype == np.float32 else convert_p.bind(x, new_dtype=_FLOAT32))
    return converted


@rule("dot_general")
def _dot_general_rule(context, operands, params):
    operands = _float32_operands(context, operands)
    _check_result_type(context, params)
    return dot_general_p.bind(*operands, dimension_numbers=params["dimension_numbers"])


@rule("conv_general_dilated")
def _convolution_rule(context, operands, params):
    operands = _float32_operands(context, operands)
    _check_result_type(context, params)
    return conv_general_dilated_p.bind(*operands, **{k: params[k] for k in _CONVOLUTION_PARAMS})
