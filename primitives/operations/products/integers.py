"""Products of integers in two's complement arithmetic: modulo 2**bits of the result.

Such sums are exact in any order.  On CPUs XLA computes them; on GPUs, where it has no convolutions
of integers and its products depend on what an autotuner chooses, they are products of digits, by
the kernels for int8.  Without kernels, these are products of float64 numbers.
"""

from __future__ import annotations

import functools

import numpy as np
from jax import lax

from repjax.primitives.operations.products import convolution, digits, order_independent
from repjax.primitives.operations.products.geometry import Geometry

#: Bits of digits, of which 2**23 products have an exact sum in float64.
_BITS = 16


def word_of(dtype) -> np.dtype:
    """The type to add in, of sums of a type: of 32 or of 64 bits, and with a sign."""
    return np.dtype(np.int64 if np.dtype(dtype).itemsize == 8 else np.int32)


def split(x, wanted, bits: int = digits.BITS):
    """The digits of an operand that a result of the type ``wanted`` depends on."""
    count = digits.count_of(x.dtype, 8 * np.dtype(wanted).itemsize, bits)
    return digits.split(lax.convert_element_type(x, word_of(wanted)), count, bits)


def dot_general_body(lhs, rhs, *, dimension_numbers, preferred_element_type):
    """``jax.lax.dot_general`` of integers of 8 bits or more.

    Args:
      lhs, rhs: signed or not, of the same type or of two.
      dimension_numbers: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``.
      preferred_element_type: the type of the result.
    """
    is_open = not all(isinstance(lhs.shape[d], int) for d in dimension_numbers[0][0])
    bits = digits.BITS if is_open else _BITS  # of these, any number has an exact sum
    word = word_of(preferred_element_type)
    left, right = (
        [lax.convert_element_type(digit, np.float64) for digit in split(x, word, bits)]
        for x in (lhs, rhs)
    )
    total = None
    for weight, count, i, j in digits.by_weight(len(left), len(right), 8 * word.itemsize // bits):
        for a, b in zip(left[i : i + count], right[::-1][j : j + count], strict=True):
            (part,) = order_independent.dot_in_float64(a, b, dimension_numbers, bits - 1)
            part = lax.convert_element_type(part, word)
            part = lax.shift_left(part, word.type(bits * weight))
            total = part if total is None else total + part
    return lax.convert_element_type(total, preferred_element_type)


def conv_general_dilated_body(lhs, rhs, *, preferred_element_type, **parameters):
    """``jax.lax.conv_general_dilated`` of integers; its ``parameters`` are those of
    :class:`~.geometry.Geometry`.
    """
    numbers = (((0,), (0,)), ((1,), (1,)))
    wanted = {"preferred_element_type": preferred_element_type}
    product = functools.partial(dot_general_body, dimension_numbers=numbers, **wanted)
    dtype = np.dtype(preferred_element_type)
    return convolution.by_patches(product, lhs, rhs, Geometry(**parameters), dtype=dtype)
