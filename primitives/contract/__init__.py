"""Contractions: matrix products and convolutions, in a stated order or independent of any."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax import lax
from jax.interpreters import batching

from repjax.primitives.arithmetic import FORMATS, add, convert_p, mul, require_format
from repjax.primitives.contract import (
    convolution,
    native,
    order_independent,
    problems,
    ragged,  # noqa: F401  (registers)
    scaled,  # noqa: F401  (registers)
    sequential,
)
from repjax.primitives.define import define
from repjax.primitives.interpret import RefusedError, check_contraction, is_inexact, rule
from repjax.primitives.native import available
from repjax.primitives.partition import partitioned


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


def _in_order(bodies):
    """One body of several, by the parameter ``contraction``; all of them compute in float32."""

    def contraction_body(lhs, rhs, *, contraction, preferred_element_type, **params):
        del preferred_element_type  # the result is rounded to it afterwards
        return bodies[contraction](lhs, rhs, **params)

    return contraction_body


def integers_in_parts(dot_of_integers):
    """A ``dot_general`` of integers, which devices that have terms of one result add."""

    def across(*operands, over, **params):
        return lax.psum(dot_of_integers(*operands, **params), over["terms"])

    axes = functools.partial(problems.axes_of_dot_general, contraction="integers")
    return partitioned(dot_of_integers, axes, across)


def _define(name, stock, bodies, on_cpu, axes):
    def across(*operands, over, **params):
        return bodies["order_independent"](*operands, over=order_independent.Over(**over), **params)

    def in_parts(kernel, order):
        return partitioned(kernel, functools.partial(axes, contraction=order), across)

    kernels = _in_order({order: in_parts(kernel, order) for order, kernel in on_cpu.items()})

    def on_gpu():
        from repjax.primitives.gpu import contractions  # with it Pallas, which takes a while

        dot = integers_in_parts(contractions.dot_of_integers)
        exact_dot = functools.partial(order_independent.digit_dot, dot_of_integers=dot)
        return _in_order(
            {
                "sequential": in_parts(getattr(contractions, name), "sequential"),
                "order_independent": functools.partial(
                    bodies["order_independent"], exact_dot=exact_dot
                ),
            }
        )

    return define(
        name,
        _in_order(bodies),
        stock,
        on_cpu=lambda: kernels if available() else None,
        on_gpu=on_gpu,
        in_parts=True,
    )


dot_general_p = _define(
    "dot_general",
    lax.dot_general,
    {
        "sequential": sequential.dot_general_body,
        "order_independent": order_independent.dot_general_body,
    },
    {
        "sequential": native.dot_general,
        "order_independent": native.order_independent_dot_general,
    },
    problems.axes_of_dot_general,
)
conv_general_dilated_p = _define(
    "conv_general_dilated",
    lax.conv_general_dilated,
    {
        "sequential": convolution.conv_general_dilated_body,
        "order_independent": order_independent.conv_general_dilated_body,
    },
    {
        "sequential": native.conv_general_dilated,
        "order_independent": native.order_independent_convolution,
    },
    problems.axes_of_convolution,
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
    """The rule.

    Requests of precision and algorithm ask for less than a correctly rounded chain; integers on
    grids may have a fourth digit.
    """

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
        order = check_contraction(context.contraction)
        if order == "order_independent" and isinstance(params["precision"], tuple):
            kept["precision"] = params["precision"]
        return primitive.bind(*floats, contraction=order, preferred_element_type=wanted, **kept)

    return contraction


rule("dot_general")(_bind(dot_general_p, ("dimension_numbers",)))
rule("conv_general_dilated")(_bind(conv_general_dilated_p, _CONVOLUTION_PARAMS))
