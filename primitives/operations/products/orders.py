"""The bodies of products by their order, and how devices that have parts of the operands compute.

Kernels have the same form: a function for each order, of which :func:`in_order` makes one.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
from jax import lax

from repjax.primitives.core.canonical import canonicalize
from repjax.primitives.core.partition import partitioned
from repjax.primitives.operations.products import (
    convolution,
    exact,
    integers,
    order_independent,
    problems,
    sequential,
)

#: By primitive and order; all of them compute in float32.
BODIES = {
    "dot_general": {
        "sequential": sequential.dot_general_body,
        "order_independent": order_independent.dot_general_body,
        "exact": exact.dot_general_body,
    },
    "conv_general_dilated": {
        "sequential": convolution.conv_general_dilated_body,
        "order_independent": order_independent.conv_general_dilated_body,
        "exact": exact.conv_general_dilated_body,
    },
}
#: By primitive, along which axes it may be split.
_AXES = {
    "dot_general": problems.axes_of_dot_general,
    "conv_general_dilated": problems.axes_of_convolution,
}


def in_order(functions):
    """One function of several, by the parameter ``contraction``."""

    def product(lhs, rhs, *, contraction, preferred_element_type, **params):
        del preferred_element_type  # the result is rounded to it afterwards
        return functions[contraction](lhs, rhs, **params)

    return product


def in_parts(name: str, kernel, order: str):
    """A kernel of the primitive in one order; where the order allows, devices that have terms of
    one result, or columns that share exponents, exchange what they have
    (:class:`order_independent.Over`)."""

    def across(*operands, over, raw=(False, False), **params):
        operands = [canonicalize(x) if r else x for x, r in zip(operands, raw, strict=True)]
        return BODIES[name][order](*operands, over=order_independent.Over(**over), **params)

    return partitioned(kernel, functools.partial(_AXES[name], contraction=order), across)


def integers_in_parts(name: str, kernel):
    """A product of integers, which devices that have terms of one result add."""

    def across(*operands, over, preferred_element_type=np.int32, **params):
        # In a type that any exchange between devices knows.
        word = integers.word_of(preferred_element_type)
        part = kernel(*operands, preferred_element_type=word, **params)
        return lax.convert_element_type(lax.psum(part, over["terms"]), preferred_element_type)

    return partitioned(kernel, functools.partial(_AXES[name], contraction="integers"), across)


def words_in_parts(kernel):
    """The words of a product of integers, likewise."""

    def axes(*operands, t, **params):
        names = problems.axes_of_dot_general(*operands, contraction="integers", **params)
        return dataclasses.replace(names, results=names.results * order_independent.words_of(t))

    def across(*operands, over, **params):
        return lax.psum(kernel(*operands, **params), over["terms"])

    return partitioned(kernel, axes, across)
