"""Products whose every element is the exact sum of the exact products, rounded once.

    result = guard(RN(a[0] * b[0] + ... + a[K - 1] * b[K - 1]))

Nobody can compute them more accurately, and they depend on nothing but their terms: not on the
order, the blocks, padding with zeros, the devices or the machine.

A product of two float32 numbers is exact in float64, and a float64 sum s of K of them, in any order
whatever, is within (K - 1) u / (1 - (K - 1) u) of the sum of their magnitudes, u = 2**-53 (Higham
2002, "Accuracy and stability of numerical algorithms", section 4.2), which is at most |a| |b| by
the Cauchy-Schwarz inequality.  Where both ends of the interval around s round to the same number,
that is the result (Ziv 1991, "Fast evaluation of elementary mathematical functions with correctly
rounded last bit").  The rest, one element in thousands for ordinary data, is computed again, by
digits (:mod:`..accumulators`).

Where all terms of an element are multiples of some 2**e, and |a| |b| is below 2**(53 + e), then
every partial sum is exact, and no test is needed: so it often is with operands of 16 bits.

The float64 sums may be computed in any way.  That is why XLA may divide this body over devices,
and why a library may compute them on GPUs.
"""

from __future__ import annotations

import functools
import math

import numpy as np
from jax import lax
from jax import numpy as jnp

from repjax.primitives.core import canonical
from repjax.primitives.operations import accumulators
from repjax.primitives.operations.accumulators import PRODUCTS
from repjax.primitives.operations.products import convolution, sequential
from repjax.primitives.operations.products.geometry import Geometry
from repjax.primitives.operations.products.order_independent import ALONE, total_over

#: Elements that are computed again together, and how many terms of them: what memory allows.
_TOGETHER = 64
_TERMS = 1 << 21
#: Rounding of norms, bounds and ends of intervals, of at most 2**34 terms: relative 2**-18.
_SLACK = np.float64(1 + 2.0**-16)


def dot_general_body(lhs, rhs, *, dimension_numbers, precision=None, odd=False, over=ALONE):
    """``jax.lax.dot_general``, exact; operands and result as in ``sequential``.

    The result is rounded to odd if ``odd``.  The operands may be parts of larger ones, ``over`` a
    mesh.

    Raises:
      TypeError: an operand is not float32.
    """
    del precision  # there is no finer one
    product = functools.partial(_product, odd=odd, over=over)
    return sequential.by_groups(product, lhs, rhs, dimension_numbers)


def conv_general_dilated_body(lhs, rhs, *, precision=None, odd=False, over=ALONE, **parameters):
    """``jax.lax.conv_general_dilated``, exact; operands and result as in
    :func:`~.convolution.conv_general_dilated_body`.

    ``odd`` and ``over`` are as in :func:`dot_general_body`.

    Raises:
      TypeError: an operand is not float32.
    """
    del precision
    sequential.check_float32("conv_general_dilated", lhs, rhs)
    product = functools.partial(_product, odd=odd, over=over)
    geometry, dtype = Geometry(**parameters), np.dtype(np.float32)
    return convolution.by_patches(product, lhs, rhs, geometry, dtype=dtype)


def error_bound(terms) -> np.float64:
    """The error of a float64 sum of so many products, relative to the sum of their magnitudes.

    With some more for the rounding of the interval's ends, each of which is off by at most u of
    itself.  For a number of terms that ``jax.export`` leaves open, that of the most terms.
    """
    if not isinstance(terms, int):
        terms = accumulators.MOST_TERMS
    return np.float64((terms + 4) * 2.0**-53) * _SLACK


def _product(lhs, rhs, *, odd, over):
    """``out[g, m, n]`` from float32 ``[k, g, m]`` and ``[k, g, n]``."""
    terms = lhs.shape[0] * over.devices()
    accumulators.check_terms("a product", terms)
    shape = (lhs.shape[1], lhs.shape[2], rhs.shape[2])
    if 0 in (*shape, terms):
        return lax.full(shape, 0, np.float32)
    a, b = (canonical.to_float64(x) for x in (lhs, rhs))
    numbers = (((0,), (0,)), ((1,), (1,)))
    # The default precision would be jax_default_matmul_precision.
    s = lax.dot_general(a, b, numbers, precision=lax.Precision.HIGHEST)
    s = total_over(s, over.terms)

    def of_both(of_one, combine):
        """What belongs to an element, from what belongs to its row and to its column."""
        rows, columns = (of_one(x) for x in (a, b))
        rows = lax.broadcast_in_dim(rows, shape, (0, 1))
        return combine(rows, lax.broadcast_in_dim(columns, shape, (0, 2)))

    magnitude = of_both(functools.partial(_norms, over=over), lax.mul) * _SLACK
    step = of_both(functools.partial(_steps, over=over), lax.mul)
    error = magnitude * error_bound(terms)
    error = lax.select(magnitude <= step * np.float64(2.0**52), lax.full_like(error, 0), error)
    rounded = canonical.to_float32_odd if odd else canonical.to_float32
    low, high = rounded(s - error), rounded(s + error)
    # What is not finite is what IEEE arithmetic makes of the terms, in any order.
    finite = lax.abs(s) < lax.full_like(s, np.inf)
    result = lax.select(finite, low, lax.convert_element_type(s, np.float32))
    uncertain = finite & (canonical.bits(low) != canonical.bits(high))
    return _again(lhs, rhs, uncertain, result, odd=odd, over=over)


def _norms(x, over):
    """The Euclidean norms over the terms, ``[g, m]`` from ``[k, g, m]``."""
    return lax.sqrt(total_over(lax.reduce_sum(x * x, (0,)), over.terms))


def _steps(x, over):
    """Powers of two of which the finite terms are multiples, as large as possible."""
    bits = canonical.bits(lax.convert_element_type(x, np.float32))
    mantissa = (bits & 0x7FFFFF) | 0x800000
    zeros = np.int32(31) - lax.clz(mantissa & -mantissa)
    field = lax.shift_right_logical(bits & 0x7FFFFFFF, np.int32(23))
    exponent = lax.select(field == 0, lax.full_like(bits, 128), field - 150 + zeros)
    least = lax.reduce_min(exponent, (0,))
    least = lax.pmin(least, over.terms) if over.terms else least
    return canonical.power_of_two(lax.convert_element_type(least, np.int64))


def _again(lhs, rhs, uncertain, result, *, odd, over):
    """``result``, with the elements that are uncertain computed by digits."""
    flat, shape = lax.reshape(uncertain, [math.prod(uncertain.shape)]), uncertain.shape
    # Devices that have terms of the same elements go through the same ones together.
    flat = total_over(lax.convert_element_type(flat, np.int32), over.terms) > 0
    count = lax.reduce_sum(lax.convert_element_type(flat, np.int64), (0,))
    together = _TOGETHER
    if isinstance(lhs.shape[0], int):
        together = max(1, min(together, _TERMS // lhs.shape[0]))
    a, b = (lax.transpose(x, (1, 2, 0)) for x in (lhs, rhs))

    def computed(positions):
        g, m, n = jnp.unravel_index(positions, shape)
        # Once, and not for each place of the digits.
        product = lax.optimization_barrier(
            canonical.to_float64(a[g, m]) * canonical.to_float64(b[g, n])
        )
        totals = lax.reduce_sum(accumulators.digits(product, PRODUCTS), (2,))
        totals = total_over(totals, over.terms)
        return accumulators.rounded(totals, lax.full(g.shape, 0, np.float64), PRODUCTS, odd)

    def compute(result):
        size = flat.shape[0]
        # Those that are uncertain come first, and then the size, which is no position.
        outside = lax.full((size,), size + together, np.int64)
        place = lax.cumsum(lax.convert_element_type(flat, np.int64)) - 1
        place = lax.select(flat, place, outside)
        all_positions = lax.full((size + together,), size, np.int64)
        all_positions = all_positions.at[place].set(lax.iota(np.int64, size), mode="drop")

        def step(state):
            i, result = state
            at = lax.dynamic_slice_in_dim(all_positions, i, together)
            values = computed(lax.min(at, lax.full_like(at, size - 1)))
            return i + together, result.at[at].set(values, mode="drop")

        start = (lax.full_like(count, 0), lax.reshape(result, [size]))
        _, result = lax.while_loop(lambda state: state[0] < count, step, start)
        return lax.reshape(result, shape)

    return lax.cond(count > 0, compute, lambda result: result, result)
