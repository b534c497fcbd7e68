"""Products and convolutions: shapes, data that tell orders and roundings apart, and their runs."""

from __future__ import annotations

import functools

import jax
import numpy as np
from jax import lax

from helpers.instruction_sets import each_instruction_set
from repjax.primitives.cpu import products as kernel
from repjax.primitives.operations.products import convolution, sequential
from repjax.verify import reference

#: The algorithms: dot_general and conv_general_dilated, compiled by XLA or by the C++ kernel.
BODIES = sequential.dot_general_body, convolution.conv_general_dilated_body


KERNEL = kernel.dot_general, kernel.conv_general_dilated


def implementations():
    """Both of the bodies, then of the kernel with each of this machine's instruction sets."""
    yield BODIES
    for _ in each_instruction_set():
        yield KERNEL


def normal(rng, shape):
    return rng.standard_normal(shape).astype(np.float32)


def integers(rng, shape):
    """Small enough that every order gives the same exact result."""
    return rng.integers(-4, 5, shape).astype(np.float32)


def exponents(rng, shape, low, high):
    x = np.ldexp(rng.integers(1 << 23, 1 << 24, shape), rng.integers(low, high, shape) - 23)
    return (x * rng.choice([-1, 1], shape)).astype(np.float32)


def underflowing(rng, shape):
    """Products around the smallest normal number: the sums are often subnormal."""
    return exponents(rng, shape, -65, -60)


def overflowing(rng, shape):
    return exponents(rng, shape, 61, 65)


def ties(rng, shape):
    """Sums that cancel, and that lie on or very near to the middle of two numbers."""
    x = rng.choice([1, 1 + 2.0**-12, 1 + 2.0**-23, 1 - 2.0**-23], shape)
    small = rng.random(shape) < 0.5
    x = np.where(small, np.ldexp(x, -rng.integers(11, 14, shape)), x)
    return (x * rng.choice([-1, 1], shape)).astype(np.float32)


def any_bits(rng, shape):
    """Every exponent, and some zeros, infinities and NaNs."""
    x = exponents(rng, shape, -126, 128)
    special = rng.choice(np.float32([0, np.inf, -np.inf, np.nan, 2.0**-126, 1]), shape)
    return np.where(rng.random(shape) < 0.03, special, x).astype(np.float32)


DATA = {f.__name__: f for f in (normal, integers, underflowing, overflowing, ties, any_bits)}


@functools.cache
def compiled(body, parameters):
    def traced(*operands):
        with jax.enable_x64(True):
            return body(*operands, **dict(parameters))

    return jax.jit(traced)


def run(body, *operands, **parameters):
    out = compiled(body, tuple(parameters.items()))(*operands)
    assert out.dtype == np.float32
    return np.asarray(out)


def assert_same_bits(actual, expected):
    np.testing.assert_array_equal(reference.values.bits(actual), reference.values.bits(expected))


DOTS = {
    "matrix": ((5, 7), (7, 4), (((1,), (0,)), ((), ()))),
    "transposed": ((7, 5), (4, 7), (((0,), (1,)), ((), ()))),
    "wide": ((3, 40), (40, 33), (((1,), (0,)), ((), ()))),
    "tall": ((33, 40), (40, 3), (((1,), (0,)), ((), ()))),
    "vectors": ((50,), (50,), (((0,), (0,)), ((), ()))),
    "matrix vector": ((6, 9), (9,), (((1,), (0,)), ((), ()))),
    "outer product": ((3,), (4, 2), (((), ()), ((), ()))),
    "scalars": ((), (), (((), ()), ((), ()))),
    "batch": ((3, 5, 7), (3, 7, 4), (((2,), (1,)), ((0,), (0,)))),
    "batch behind": ((5, 7, 3), (7, 3, 4), (((1,), (0,)), ((2,), (1,)))),
    "square": ((3, 3), (3, 3), (((0,), (1,)), ((1,), (0,)))),
    "cube": ((3,), (3, 3, 3), (((), ()), ((0,), (2,)))),
    "two batches": ((2, 5, 3, 7), (7, 3, 2), (((3,), (0,)), ((0, 2), (2, 1)))),
    "large batch": ((60, 2, 3), (60, 3, 2), (((2,), (1,)), ((0,), (0,)))),
    "only batch": ((4, 3), (3, 4), (((), ()), ((0, 1), (1, 0)))),
    "two contracted": ((3, 4, 5), (5, 4, 2), (((1, 2), (1, 0)), ((), ()))),
    "their order": ((3, 4, 5), (5, 4, 2), (((2, 1), (0, 1)), ((), ()))),
    "everything": ((2, 3, 4, 5, 6), (4, 7, 3, 6, 2), (((3 - 1, 4), (0, 3)), ((1,), (2,)))),
    "no terms": ((3, 0), (0, 4), (((1,), (0,)), ((), ()))),
    "no rows": ((0, 3), (3, 4), (((1,), (0,)), ((), ()))),
    "no batch": ((0, 2, 3), (0, 3, 4), (((2,), (1,)), ((0,), (0,)))),
}


MATRIX = (((1,), (0,)), ((), ()))


NHWC = ("NHWC", "HWIO", "NHWC")


CONVOLUTIONS = {
    "1d": ((2, 3, 9), (4, 3, 3), {}),
    "2d": ((2, 3, 8, 7), (4, 3, 3, 2), {}),
    "3d": ((1, 2, 4, 5, 4), (2, 2, 2, 3, 2), {"padding": "SAME"}),
    "no spatial dimension": ((4, 3), (5, 3), {}),
    "strides": ((2, 3, 9, 8), (4, 3, 3, 2), {"window_strides": (2, 3)}),
    "same": ((2, 3, 8, 7), (4, 3, 3, 4), {"padding": "SAME"}),
    "same, strided": ((2, 3, 8, 7), (4, 3, 3, 4), {"padding": "SAME", "window_strides": (2, 2)}),
    "padding": ((1, 2, 6, 6), (3, 2, 3, 3), {"padding": ((2, 0), (1, 3))}),
    "negative padding": ((1, 2, 8, 8), (3, 2, 3, 3), {"padding": ((-1, 2), (0, -2))}),
    "rhs dilation": ((2, 3, 9, 8), (2, 3, 3, 2), {"rhs_dilation": (2, 3)}),
    "lhs dilation": ((2, 3, 4, 5), (2, 3, 3, 3), {"lhs_dilation": (2, 3)}),
    "all of these": (
        (2, 2, 7, 6),
        (3, 2, 3, 2),
        {
            "window_strides": (2, 1),
            "padding": ((3, -1), (0, 2)),
            "lhs_dilation": (2, 3),
            "rhs_dilation": (2, 3),
        },
    ),
    "channels last": ((2, 6, 7, 3), (3, 2, 3, 4), {"dimension_numbers": NHWC, "padding": "SAME"}),
    "odd layout": ((6, 3, 7, 2), (2, 4, 3, 3), {"dimension_numbers": ("WCHN", "HOIW", "HNCW")}),
    "1x1": ((2, 5, 3, 3), (4, 5, 1, 1), {"window_strides": (2, 2)}),
    "feature groups": ((2, 6, 5, 4), (4, 3, 2, 2), {"feature_group_count": 2}),
    "depthwise": (
        (2, 5, 4, 3),
        (3, 2, 1, 6),
        {"feature_group_count": 3, "dimension_numbers": NHWC, "padding": "SAME"},
    ),
    "batch groups": ((6, 2, 5, 4), (9, 2, 2, 3), {"batch_group_count": 3}),
    "whole image": ((2, 3, 5, 5), (4, 3, 5, 5), {}),
    "no output": ((2, 3, 2, 2), (4, 3, 3, 3), {}),
    "no features": ((2, 0, 4, 4), (3, 0, 2, 2), {}),
    "no batch": ((0, 2, 4, 4), (3, 2, 2, 2), {}),
}


def stock(lhs, rhs, parameters):
    n = lhs.ndim - 2
    filled = {"window_strides": (1,) * n, "padding": ((0, 0),) * n, **parameters}
    return lax.conv_general_dilated(lhs, rhs, precision="highest", **filled)


def equations(function, *operands):
    """The convolutions of a function's jaxpr: operand shapes, parameters."""
    found = []

    def walk(jaxpr):
        for e in jaxpr.eqns:
            if e.primitive is lax.conv_general_dilated_p:
                shapes = [v.aval.shape for v in e.invars]
                found.append((*shapes, {k: e.params[k] for k in reference.products.GEOMETRY}))
            for inner in e.params.values():
                if hasattr(inner, "jaxpr"):
                    walk(inner.jaxpr)

    walk(jax.make_jaxpr(function)(*operands).jaxpr)
    return found


def with_gradients(*shapes, **parameters):
    """The equation of a convolution and those of its two gradients."""
    lhs, rhs = (np.zeros(shape, np.float32) for shape in shapes)

    def gradients(lhs, rhs, cotangent):
        return jax.vjp(lambda lhs, rhs: stock(lhs, rhs, parameters), lhs, rhs)[1](cotangent)

    forward = equations(lambda lhs, rhs: stock(lhs, rhs, parameters), lhs, rhs)
    cotangent = jax.eval_shape(lambda lhs, rhs: stock(lhs, rhs, parameters), lhs, rhs)
    if 0 in (*lhs.shape, *cotangent.shape):
        return forward
    found = equations(gradients, lhs, rhs, np.zeros(cotangent.shape, np.float32))
    assert len(found) == 3
    return found
