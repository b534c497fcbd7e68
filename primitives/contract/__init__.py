"""Contractions: matrix products and convolutions, in a stated order or independent of any; and
those of integers."""

from __future__ import annotations

import dataclasses
import functools

import jax
import numpy as np
from jax import lax
from jax.interpreters import batching

from repjax.primitives.arithmetic import FORMATS, add, convert_p, mul, require_format
from repjax.primitives.contract import (
    convolution,
    integers,
    native,
    order_independent,
    problems,
    ragged,  # noqa: F401  (registers)
    scaled,  # noqa: F401  (registers)
    sequential,
)
from repjax.primitives.define import define
from repjax.primitives.interpret import (
    RefusedError,
    as_bytes,
    check_contraction,
    is_inexact,
    rule,
)
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


def integers_in_parts(kernel, axes=problems.axes_of_dot_general):
    """A contraction of integers, which devices that have terms of one result add."""

    def across(*operands, over, preferred_element_type=np.int32, **params):
        # In a type that any exchange between devices knows.
        word = integers.word_of(preferred_element_type)
        part = kernel(*operands, preferred_element_type=word, **params)
        return lax.convert_element_type(lax.psum(part, over["terms"]), preferred_element_type)

    return partitioned(kernel, functools.partial(axes, contraction="integers"), across)


def words_in_parts(kernel):
    """The words of a product of integers, likewise."""

    def axes(*operands, t, **params):
        names = problems.axes_of_dot_general(*operands, contraction="integers", **params)
        return dataclasses.replace(names, results=names.results * order_independent.words_of(t))

    def across(*operands, over, **params):
        return lax.psum(kernel(*operands, **params), over["terms"])

    return partitioned(kernel, axes, across)


def _define(name, stock, bodies, on_cpu, axes):
    def across(*operands, over, **params):
        return bodies["order_independent"](*operands, over=order_independent.Over(**over), **params)

    def in_parts(kernel, order):
        return partitioned(kernel, functools.partial(axes, contraction=order), across)

    kernels = _in_order({order: in_parts(kernel, order) for order, kernel in on_cpu.items()})

    def on_gpu():
        from repjax.primitives.gpu import contractions  # with it Pallas, which takes a while

        words = words_in_parts(contractions.exact_dot)
        exact_dot = functools.partial(order_independent.digit_dot, exact_dot=words)
        return _in_order(
            {
                "sequential": in_parts(getattr(contractions, name), "sequential"),
                "order_independent": functools.partial(
                    bodies["order_independent"], exact_dot=exact_dot
                ),
            }
        )

    def on_gpu_by_ptx():
        from repjax.primitives.gpu import contractions  # with it Pallas, which takes a while

        return _in_order(
            {**bodies, "sequential": in_parts(getattr(contractions, name), "sequential")}
        )

    return define(
        name,
        _in_order(bodies),
        stock,
        on_cpu=lambda: kernels if available() else None,
        on_gpu=on_gpu,
        on_gpu_by_ptx=on_gpu_by_ptx,
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


def _define_of_integers(name, body, stock, kernel, axes):
    # What a user's jax_default_matmul_precision asks for could round the operands.
    stock = functools.partial(stock, precision=lax.Precision.HIGHEST)

    def on_gpu():
        from repjax.primitives.gpu import contractions

        return integers_in_parts(getattr(contractions, kernel), axes)

    return define(name, body, stock, on_cpu=lambda: stock, on_gpu=on_gpu, in_parts=True)


integer_dot_general_p = _define_of_integers(
    "integer_dot_general",
    integers.dot_general_body,
    lax.dot_general,
    "dot_of_integers",
    problems.axes_of_dot_general,
)
integer_conv_general_dilated_p = _define_of_integers(
    "integer_conv_general_dilated",
    integers.conv_general_dilated_body,
    lax.conv_general_dilated,
    "convolution_of_integers",
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


def _bind(primitive, of_integers, keep):
    """The rule.

    Requests of precision and algorithm ask for less than a correctly rounded chain; integers on
    grids may have a fourth digit.
    """

    def contraction(context, operands, params):
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

    return contraction


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


rule("dot_general")(_bind(dot_general_p, integer_dot_general_p, ("dimension_numbers",)))
rule("conv_general_dilated")(
    _bind(conv_general_dilated_p, integer_conv_general_dilated_p, _CONVOLUTION_PARAMS)
)
