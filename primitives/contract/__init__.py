"""Contractions: matrix products and convolutions in a stated order."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax
from jax.interpreters import batching

from repjax.primitives.arithmetic import FORMATS, add, convert_p, mul, require_format
from repjax.primitives.contract import convolution, native, ragged, sequential  # noqa: F401  (registers)
from repjax.primitives.define import define
from repjax.primitives.interpret import RefusedError, is_inexact, rule


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


def _ignoring_result_type(body):
    """The body, which computes in float32 whatever ``preferred_element_type``: that is its type."""

    def contraction(lhs, rhs, *, preferred_element_type, **params):
        del preferred_element_type
        return body(lhs, rhs, **params)

    return contraction


def _define(name, body, on_cpu, stock):
    body, on_cpu = map(_ignoring_result_type, (body, on_cpu))
    return define(name, body, stock, on_cpu=lambda: on_cpu if native.available() else None)


dot_general_p = _define(
    "dot_general", sequential.dot_general_body, native.dot_general, lax.dot_general
)
conv_general_dilated_p = _define(
    "conv_general_dilated",
    convolution.conv_general_dilated_body,
    native.conv_general_dilated,
    lax.conv_general_dilated,
)
_CONVOLUTION_PARAMS = (
    "window_strides",
    "padding",
    "lhs_dilation",
    "rhs_dilation",
    "dimension_numbers",
    "feature_group_count",
    "batch_group_count",
)


def _bind(primitive, keep):
    """The rule; requests of precision and algorithm ask for less than a correctly rounded chain."""

    def contraction(context, operands, params):
        require_format(context, operands)
        wanted = params["preferred_element_type"]
        if wanted is not None and np.dtype(wanted) not in FORMATS:
            raise RefusedError(
                f"{context.equation.primitive.name} expected preferred_element_type float32, "
                f"float16, bfloat16 or None, received {wanted}; convert the result with .astype"
            )
        kept = {k: params[k] for k in keep}
        floats = [
            x if is_inexact(jax.typeof(x)) else convert_p.bind(x, new_dtype=FORMATS[0])
            for x in operands
        ]
        return primitive.bind(*floats, preferred_element_type=wanted, **kept)

    return contraction


rule("dot_general")(_bind(dot_general_p, ("dimension_numbers",)))
rule("conv_general_dilated")(_bind(conv_general_dilated_p, _CONVOLUTION_PARAMS))
