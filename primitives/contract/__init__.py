"""Contractions: matrix products and convolutions in a stated order."""

from __future__ import annotations

import jax
import numpy as np
from jax import lax

from repjax.primitives.arithmetic import add, elementwise_rule, mul, require_float32  # noqa: F401
from repjax.primitives.contract import sequential
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
dot_general_p = define("dot_general", sequential.dot_general_body, lax.dot_general)


def _check_result_type(context, params):
    """Precision and algorithm requests ask for less than a correctly rounded FMA chain."""
    wanted = params["preferred_element_type"]
    if wanted is not None and np.dtype(wanted) != np.float32:
        name = context.equation.primitive.name
        raise RefusedError(
            f"{name} expected preferred_element_type float32 or None, received {wanted}; "
            "convert the result with .astype instead"
        )


@rule("dot_general")
def _dot_general_rule(context, operands, params):
    for x in operands:
        if jax.typeof(x).dtype != np.float32:
            raise RefusedError(
                f"dot_general expected float32 operands, received {jax.typeof(x).dtype}; "
                "convert with .astype('float32') before it"
            )
    _check_result_type(context, params)
    return dot_general_p.bind(*operands, dimension_numbers=params["dimension_numbers"])
