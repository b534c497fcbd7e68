"""Products whose terms may be added in any order: integers on common grids.

Every row of the left operand and every column of the right one is put on a grid of t bits
below its largest element; the products of integers are added exactly, in whatever order, and
the exact sum is rounded once.  So the bits do not depend on how a sum is split over blocks,
threads or devices, and matrix units may compute it.

For A[m, k] and B[k, n], all exponents being those of binary32, E(x) with
``2**E <= |x| < 2**(E + 1)``, and terms with a zero left out:

    s[k] = max over n of E(B[k, n])                          balances scaled features
    e[m] = max over k of E(A[m, k]) + s[k],   f[n] = max over k of E(B[k, n]) - s[k]
    t = min(22, (62 - ceil(log2 K)) // 2);    min(30, (94 - ceil(log2 K)) // 2) with HIGHEST
    alpha = RNE(A * 2**(s + t - 1 - e)),      beta = RNE(B * 2**(t - 1 - s - f))
    C[m, n] = guard(RN(sum over k of alpha * beta  *  2**(e + f + 2 - 2 t)))

|alpha| and |beta| are at most 2**t, so the sum fits into 62 bits, and with ``precision=HIGHEST``
into 94.  Each term has an error of at most 2**-t of the largest product of its row and column, so
the error is relative to the largest terms, not to each (as in Ozaki et al. 2012, "Error-free
transformations of matrix multiplication by using fast routines of matrix multiplication and its
applications", of which this is the first slice).

The integers are held by float64, in which their products and sums below 2**53 are exact
whatever the order; longer sums are made of several, and with HIGHEST beta is split in two.  On GPUs
integers are split into three or four digits of 8 bits, whose products are added in int32.  A sum is
one word, an int64, or two: high * 2**32 + low.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from repjax.primitives.core import canonical
from repjax.primitives.operations import grids
from repjax.primitives.operations.products import digits
from repjax.primitives.operations.products.convolution import gather_patches, pieces
from repjax.primitives.operations.products.geometry import Geometry
from repjax.primitives.operations.products.sequential import check_float32, free_dimensions

_EXACT = 53
_LOW = 15  # bits of the lower part of an integer on the finer grid
_WORD = 32  # bits of the lower word of a sum
#: Below every sum of two exponents: that of a zero.
_NONE = np.int32(-(1 << 12))


@dataclasses.dataclass(frozen=True)
class Over:
    """The axes of the mesh that the terms and the columns are split over, if they are.

    Inside a map over the mesh the devices then exchange their largest exponents, and add their
    sums, which are integers.
    """

    terms: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()

    def devices(self) -> int:
        """Which have terms of one result."""
        return lax.axis_size(self.terms) if self.terms else 1


ALONE = Over()

#: For float64 numbers; the default precision would be ``jax_default_matmul_precision``.
_dot = functools.partial(lax.dot_general, precision=lax.Precision.HIGHEST)


def _maximum(x, over):
    return lax.pmax(x, over) if over else x


def total_over(x, over):
    return lax.psum(x, over) if over else x


def _exponents(x):
    """E(x) of finite numbers, _NONE of zeros; int32."""
    field = lax.shift_right_logical(canonical.bits(x) & 0x7FFFFFFF, np.int32(23))
    return lax.select(field == 0, lax.full_like(field, _NONE), field - 127)


def _or_zero(exponents):
    """0 for the exponents of what has only zeros."""
    return lax.select(exponents < _NONE // 2, lax.full_like(exponents, 0), exponents)


def _largest(exponents, axes, over):
    """The largest exponent over some axes, which are kept; 0 if there are only zeros."""
    return lax.expand_dims(_or_zero(_maximum(lax.reduce_max(exponents, axes), over)), axes)


def _round(x, exponent):
    """``canonical.to_integers`` with an int32 exponent, which broadcasts."""
    exponent = lax.broadcast_in_dim(exponent, x.shape, range(x.ndim))
    return canonical.to_integers(x, lax.convert_element_type(exponent, np.int64))


def _finite(x):
    """Where x is neither infinite nor a NaN; and x with zeros elsewhere."""
    finite = (canonical.bits(x) & 0x7FFFFFFF) < 0x7F800000
    return finite, lax.select(finite, x, lax.full_like(x, 0))


def _with_infinities(product, lhs, rhs, finite, result):
    """``result``, or ``product(lhs, rhs)`` where there are infinities or NaNs and that is one."""

    def replace(lhs, rhs, result):
        total = product(lhs, rhs)
        return lax.select(total == 0, result, total)

    return lax.cond(finite, lambda _lhs, _rhs, result: result, replace, lhs, rhs, result)


def _infinities(lhs, rhs, dimension_numbers, *, exact_dot, over):
    """The sums of the terms that are infinite or NaN, by IEEE arithmetic; 0 where there are none.

    Two sums are counted, of the signs of these terms, 0 for a NaN, and of their sizes, 1 or more:
    a sum is infinite if all have its sign.  A factor that is infinite or a NaN enters twice, as
    itself and as what the other one is multiplied by, so that a term has twice the sign if both
    factors are infinite, and its size then is 2, too.
    """

    def counted(x):
        bits = canonical.bits(x)
        magnitude = bits & 0x7FFFFFFF
        zero, infinite, nan = magnitude == 0, magnitude == 0x7F800000, magnitude > 0x7F800000
        sign = jnp.where(nan, 0, lax.sign(bits))
        own_sign = jnp.where(infinite, sign, 0)
        size = jnp.where(zero, 2, 1)  # infinity times zero is a NaN: of size 2, and no sign
        own_size = jnp.where(nan, 2, jnp.where(infinite, 1, 0))
        return own_sign, sign, own_size, size

    def stacked(*arrays):
        """[2 sums, 2 terms of each, ...]"""
        return lax.reshape(canonical.to_float64(jnp.stack(arrays)), (2, 2, *arrays[0].shape))

    own_sign, sign, own_size, size = counted(rhs)
    contracting, batch = (
        tuple((axis, *(d + 2 for d in dims)) for dims in of_both)
        for axis, of_both in ((1, dimension_numbers[0]), (0, dimension_numbers[1]))
    )
    operands = stacked(*counted(lhs)), stacked(sign, own_sign, size, own_size)
    (counts,) = exact_dot(*operands, (contracting, batch), 1)
    signs, sizes = total_over(counts, over.terms)
    total = lax.full(signs.shape, np.nan, np.float32)
    for condition, value in ((signs == sizes, np.inf), (signs == -sizes, -np.inf), (sizes == 0, 0)):
        total = lax.select(condition, lax.full_like(total, value), total)
    return total


def _all(over, *conditions):
    """Whether they are true everywhere, on all devices that have terms of one result."""
    results = [lax.reduce_and(c, range(c.ndim)) for c in conditions]
    every = lax.bitwise_and(*results)
    return lax.pmin(every.astype(np.int32), over.terms) > 0 if over.terms else every


def dot_general_body(lhs, rhs, *, dimension_numbers, precision=None, exact_dot=None, over=ALONE):
    """``jax.lax.dot_general``, order-independent; operands and result as in ``sequential``.

    ``exact_dot(lhs, rhs, dimension_numbers, t)`` may give the sums, as words, of integers that
    float64 holds.  The operands may be parts of larger ones, ``over`` a mesh.

    Raises:
      TypeError: an operand is not float32.
    """
    check_float32("dot_general", lhs, rhs)
    contracting, batch = dimension_numbers
    free = [free_dimensions(x, contracting[i], batch[i]) for i, x in enumerate((lhs, rhs))]
    shape = [lhs.shape[d] for d in (*batch[0], *free[0])] + [rhs.shape[d] for d in free[1]]
    terms = math.prod(lhs.shape[d] for d in contracting[0])
    if 0 in (*shape, terms):
        return lax.full(shape, 0, np.float32)
    t = grids.bits_of_product(terms * over.devices(), precision)
    left_finite, a = _finite(lhs)
    right_finite, b = _finite(rhs)
    in_a, in_b = _exponents(a), _exponents(b)

    # Exponents have the axes of the batch, and then those of the terms or the free ones.
    def largest(exponents, i, dims, over):
        kept = [d for d in range(exponents.ndim) if d not in dims]
        order = [kept.index(d) for d in (*batch[i], *contracting[i], *free[i]) if d in kept]
        return _maximum(lax.transpose(lax.reduce_max(exponents, dims), order), over)

    s = largest(in_b, 1, free[1], over.columns)
    unused = s < _NONE // 2
    s = _or_zero(s)
    left, right = ([*batch[i], *contracting[i]] for i in range(2))
    s_lhs, s_rhs = (canonical.broadcast_axes(s, x.shape, d) for x, d in ((a, left), (b, right)))
    unused = canonical.broadcast_axes(unused, a.shape, left)
    in_a = lax.select(unused, lax.full_like(in_a, _NONE), in_a)
    e = _or_zero(largest(in_a + s_lhs, 0, contracting[0], over.terms))
    f = _or_zero(largest(in_b - s_rhs, 1, contracting[1], over.terms))
    e_lhs = canonical.broadcast_axes(e, a.shape, [*batch[0], *free[0]])
    f_rhs = canonical.broadcast_axes(f, b.shape, [*batch[1], *free[1]])
    alpha = lax.select(unused, lax.full_like(a, 0), a)
    alpha = _round(alpha, s_lhs + (t - 1) - e_lhs)
    beta = _round(b, (t - 1) - s_rhs - f_rhs)

    rank = len(batch[0])
    behind = [*range(rank), *range(rank + len(free[0]), len(shape))]
    exponent = lax.broadcast_in_dim(e, shape, range(rank + len(free[0])))
    exponent = exponent + lax.broadcast_in_dim(f, shape, behind) + (2 - 2 * t)
    exact_dot = exact_dot or dot_in_float64
    words = exact_dot(alpha, beta, dimension_numbers, t)
    total = _odd_sums(total_over(words, over.terms))
    result = canonical.scale_to_float32(total, lax.convert_element_type(exponent, np.int64))

    def infinities(lhs, rhs):
        return _infinities(lhs, rhs, dimension_numbers, exact_dot=exact_dot, over=over)

    return _with_infinities(infinities, lhs, rhs, _all(over, left_finite, right_finite), result)


def _add_all(arrays):
    return functools.reduce(lax.add, arrays)


def _words(parts, t: int):
    """The words of a sum of x * 2**shift, for pairs of an int64 array and a shift."""
    if words_of(t) == 1:
        return (_add_all(lax.shift_left(x, np.int64(shift)) for x, shift in parts),)
    high, low = [], []
    for x, shift in parts:
        if shift >= _WORD:
            high.append(lax.shift_left(x, np.int64(shift - _WORD)))
            continue
        rest = np.int64(_WORD - shift)
        high.append(lax.shift_right_arithmetic(x, rest))
        low.append(lax.shift_left(x & np.int64((1 << rest) - 1), np.int64(shift)))
    return _add_all(high), _add_all(low)


def _odd_sums(words):
    """Sums as float64, rounded to odd."""
    if len(words) == 1:
        return canonical.odd_integers(*words)
    high, low = words
    high = high + lax.shift_right_arithmetic(low, np.int64(_WORD))
    low = low & np.int64((1 << _WORD) - 1)
    # All that matters of the lower word of a large sum is whether it is zero.
    large = lax.abs(high) >= np.int64(1 << (62 - _WORD))
    sticky = lax.convert_element_type(low != 0, np.int64)
    total = lax.select(large, (high + high) | sticky, lax.shift_left(high, np.int64(_WORD)) + low)
    exponent = lax.select(large, lax.full_like(high, _WORD - 1), lax.full_like(high, 0))
    return canonical.guard(canonical.odd_integers(total) * canonical.power_of_two(exponent))


def _in_blocks(dot, block, lhs, rhs, dimension_numbers):
    """The words of ``dot(lhs, rhs, numbers)`` by sums of at most ``block`` terms."""
    contracting, batch = dimension_numbers
    terms = math.prod(lhs.shape[d] for d in contracting[0])

    def flatten(x, i):
        """With one axis of terms, the last; and the axes of the batch in front."""
        free = free_dimensions(x, contracting[i], batch[i])
        x = lax.transpose(x, [*batch[i], *free, *contracting[i]])
        return lax.reshape(x, [*x.shape[: len(batch[i]) + len(free)], terms])

    operands = flatten(lhs, 0), flatten(rhs, 1)
    in_front = tuple(range(len(batch[0])))
    numbers = ([[x.ndim - 1] for x in operands], (in_front, in_front))
    if terms <= block:
        return dot(*operands, numbers)

    def part(start, size):
        return dot(
            *(lax.dynamic_slice_in_dim(x, start, size, x.ndim - 1) for x in operands), numbers
        )

    first = terms % block or block

    def step(i, total):
        return tuple(map(lax.add, total, part(first + i * block, block)))

    return lax.fori_loop(0, terms // block - (first == block), step, part(0, first))


def dot_in_float64(lhs, rhs, dimension_numbers, t):
    """The ``dot_general`` of integers of at most 2**t in magnitude, in float64; its words.

    With t = 7 or less a number of terms that ``jax.export`` leaves open is small enough, too.
    """
    highest = t > grids.PRODUCTS.bits

    def dot(lhs, rhs, numbers):
        parts = [(rhs, 0)]
        if highest:
            high = lax.round(rhs * np.float64(2.0**-_LOW), lax.RoundingMethod.TO_NEAREST_EVEN)
            parts = [(high, _LOW), (rhs - high * np.float64(1 << _LOW), 0)]
        sums = [(_dot(lhs, part, numbers), shift) for part, shift in parts]
        return _words([(lax.convert_element_type(x, np.int64), shift) for x, shift in sums], t)

    # So many products have an exact sum in float64.
    block = 1 << (_EXACT - (2 * grids.FINE_PRODUCTS.bits - _LOW if highest else 2 * t))
    terms = math.prod(lhs.shape[d] for d in dimension_numbers[0][0])
    if not isinstance(terms, int) or terms <= block:
        return dot(lhs, rhs, dimension_numbers)
    return _in_blocks(dot, block, lhs, rhs, dimension_numbers)


#: So many terms have sums of less than 2**31, of up to four products of digits.
_DIGIT_BLOCK = 1 << 14


def digits_of(t: int) -> int:
    """How many digits an integer of at most 2**t in magnitude has."""
    return -(-(t + 2) // digits.BITS)


def words_of(t: int) -> int:
    """How many words a sum of products of such integers has."""
    return 1 if t <= grids.PRODUCTS.bits else 2


def digit_dot(lhs, rhs, dimension_numbers, t, *, exact_dot):
    """:func:`dot_in_float64` by ``exact_dot``, the same of int32 arrays.

    With t = 22 there are three digits, with t = 30 four.
    """

    def dot(lhs, rhs, numbers):
        return tuple(exact_dot(lhs, rhs, dimension_numbers=numbers, t=t))

    lhs, rhs = (lax.convert_element_type(x, np.int32) for x in (lhs, rhs))
    block = _DIGIT_BLOCK if digits_of(t) > 1 else 1 << (30 - 2 * t)
    if math.prod(lhs.shape[d] for d in dimension_numbers[0][0]) <= block:
        return dot(lhs, rhs, dimension_numbers)
    return _in_blocks(dot, block, lhs, rhs, dimension_numbers)


def conv_general_dilated_body(
    lhs, rhs, *, precision=None, exact_dot=None, over=ALONE, **parameters
):
    """``jax.lax.conv_general_dilated``, order-independent; operands and result as in
    :func:`~.convolution.conv_general_dilated_body`.

    ``exact_dot`` and ``over`` are as in :func:`dot_general_body`.

    The exponents are those of coarser rows and columns, so that a convolution of integers is
    left: s of an input feature, e of an element of the batch, f of an output feature.

    Raises:
      TypeError: an operand is not float32.
    """
    check_float32("conv_general_dilated", lhs, rhs)
    lhs, rhs, geometry = Geometry(**parameters).transposed(lhs, rhs)
    if geometry.crops:  # what is cropped has no exponent
        lhs, geometry = geometry.filled(lhs), geometry.of_filled()
    rank, groups = geometry.rank, geometry.groups
    batch, features = lhs.shape[0] // geometry.batch_group_count, rhs.shape[1]
    outs = rhs.shape[0] // groups
    terms = geometry.terms(rhs)

    def filled(lhs):
        return geometry.filled(lhs, range(3, lhs.ndim))

    def convolve(lhs, rhs, dot_general):
        """From ``[groups, batch, features, ...]`` and ``[groups, outs, features, ...]``.

        By matrix products: a library's convolution may be one of transforms, which is not exact.
        """
        lhs, kernel = filled(lhs), lax.reshape(rhs, [groups, outs, terms])

        def products(lhs):
            patches = gather_patches(lhs, rhs.shape[2:], geometry)
            return dot_general(kernel, patches, (((2,), (0,)), ((0,), (1,))))

        n = pieces(batch, 2 * terms * groups * math.prod(positions))
        lhs = lax.reshape(lhs, [groups, n, batch // n, *lhs.shape[2:]])
        lhs = lax.transpose(lhs, [1, 0, *range(2, lhs.ndim)])
        out = lax.map(products, lhs) if n > 1 else lax.expand_dims(products(lhs[0]), (0,))
        out = lax.reshape(out, [n, groups * outs, batch // n, *positions])
        return lax.reshape(lax.transpose(out, [0, 2, 1, *range(3, rank + 3)]), shape)

    counts = geometry.batch_group_count, batch, geometry.feature_group_count, features
    lhs = lax.transpose(lax.reshape(lhs, [*counts, *lhs.shape[2:]]), [0, 2, 1, *range(3, rank + 4)])
    lhs = lax.reshape(lhs, [groups, batch, *lhs.shape[3:]])
    rhs = lax.reshape(rhs, [groups, outs, *rhs.shape[1:]])
    positions = geometry.positions(jax.eval_shape(filled, lhs).shape[3:], rhs.shape[3:])
    shape = [batch, groups * outs, *positions]
    if 0 in (*shape, terms):
        result = lax.full(shape, 0, np.float32)
    else:
        t = grids.bits_of_product(terms * over.devices(), precision)
        result = _convolution(convolve, exact_dot or dot_in_float64, lhs, rhs, t, over)
    return geometry.as_specified(result)


def _convolution(convolve, exact_dot, lhs, rhs, t, over):
    """The result from the operands by groups; ``[batch, groups * outs, ...]``."""
    left_finite, a = _finite(lhs)
    right_finite, b = _finite(rhs)
    in_a, in_b = _exponents(a), _exponents(b)
    window = tuple(range(3, lhs.ndim))
    in_s = _maximum(lax.expand_dims(lax.reduce_max(in_b, (1, *window)), (1, *window)), over.columns)
    unused = lax.broadcast_in_dim(in_s < _NONE // 2, a.shape, range(a.ndim))
    s = _or_zero(in_s)
    in_a = lax.select(unused, lax.full_like(in_a, _NONE), in_a)
    e = _largest(in_a + s, (2, *window), over.terms)
    f = _largest(in_b - s, (2, *window), over.terms)
    alpha = _round(lax.select(unused, lax.full_like(a, 0), a), s + (t - 1) - e)
    beta = _round(b, (t - 1) - s - f)

    total = convolve(
        alpha, beta, lambda *args: _odd_sums(total_over(exact_dot(*args, t), over.terms))
    )

    def broadcast(exponent, at):
        exponent = lax.convert_element_type(lax.squeeze(exponent, (2, *window)), np.int64)
        return canonical.broadcast_axes(exponent, [lhs.shape[1], *rhs.shape[:2]], at)

    exponent = broadcast(e, (1, 0)) + broadcast(f, (1, 2)) + (2 - 2 * t)
    exponent = lax.reshape(exponent, [lhs.shape[1], rhs.shape[0] * rhs.shape[1]])
    result = canonical.scale_to_float32(total, lax.broadcast_in_dim(exponent, total.shape, (0, 1)))
    finite = _all(over, left_finite, right_finite)
    infinities = functools.partial(_infinities, exact_dot=exact_dot, over=over)
    infinities = functools.partial(convolve, dot_general=infinities)
    return _with_infinities(infinities, lhs, rhs, finite, result)
