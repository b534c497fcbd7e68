"""Contractions whose terms may be added in any order: integers on common grids.

Every row of the left operand and every column of the right one is put on a grid of t bits
below its largest element; the products of integers are added exactly, in whatever order, and
the exact sum is rounded once.  So the bits do not depend on how a sum is split over blocks,
threads or devices, and matrix units may compute it.

For A[m, k] and B[k, n], all exponents being those of binary32, E(x) with
``2**E <= |x| < 2**(E + 1)``, and terms with a zero left out:

    s[k] = max over n of E(B[k, n])                          balances scaled features
    e[m] = max over k of E(A[m, k]) + s[k],   f[n] = max over k of E(B[k, n]) - s[k]
    t = min(22, (62 - ceil(log2 K)) // 2)
    alpha = RNE(A * 2**(s + t - 1 - e)),      beta = RNE(B * 2**(t - 1 - s - f))
    C[m, n] = guard(RN(sum over k of alpha * beta  *  2**(e + f + 2 - 2 t)))

|alpha| and |beta| are at most 2**t, so the sum fits into 62 bits.  Each term has an error of
at most 2**-t of the largest product of its row and column, so the error is relative to the
largest terms, not to each (as in Ozaki et al. 2012, "Error-free transformations of matrix
multiplication by using fast routines of matrix multiplication and its applications", of which
this is the first slice).

The integers are held by float64, in which their products and sums below 2**53 are exact
whatever the order; longer sums are made of several.
"""

from __future__ import annotations

import math

import jax
import numpy as np
from jax import lax

from repjax.primitives import canonical
from repjax.primitives.contract.sequential import check_float32
from repjax.primitives.reduce.window import pad_dilated

_BITS = 22
_EXACT = 53
#: Below every sum of two exponents: that of a zero.
_NONE = np.int32(-(1 << 12))


def _grid_bits(terms: int) -> int:
    return min(_BITS, (62 - (terms - 1).bit_length()) // 2)


def _exponents(x):
    """E(x) of finite numbers, _NONE of zeros; int32."""
    field = lax.shift_right_logical(canonical.bits(x) & 0x7FFFFFFF, np.int32(23))
    return lax.select(field == 0, lax.full_like(field, _NONE), field - 127)


def _largest(exponents, axes, keep: bool = True):
    """The largest exponent over some axes, 0 if there are only zeros."""
    most = lax.reduce_max(exponents, axes)
    most = lax.select(most < _NONE // 2, lax.full_like(most, 0), most)
    return lax.expand_dims(most, axes) if keep else most


def _round(x, exponent):
    """RNE(x * 2**exponent) as float64; ``exponent`` is int32 and broadcasts."""
    exponent = lax.broadcast_in_dim(exponent, x.shape, range(x.ndim))
    scale = canonical.power_of_two(lax.convert_element_type(exponent, np.int64))
    return lax.round(canonical.to_float64(x) * scale, lax.RoundingMethod.TO_NEAREST_EVEN)


def _finite(x):
    """Where x is neither infinite nor a NaN; and x with zeros elsewhere."""
    finite = (canonical.bits(x) & 0x7FFFFFFF) < 0x7F800000
    return finite, lax.select(finite, x, lax.full_like(x, 0))


def _with_infinities(contract, lhs, rhs, finite, result):
    """``result``, but what a sum in IEEE arithmetic gives where there are infinities or NaNs.

    Of the finite operands only their signs matter.
    """

    def replace(lhs, rhs, result):
        def signs(x):
            ones = lax.select(
                x == 0, x, lax.select(x > 0, lax.full_like(x, 1), lax.full_like(x, -1))
            )
            return canonical.to_float64(lax.select(_finite(x)[0], ones, x))

        total = contract(signs(lhs), signs(rhs))
        small = lax.abs(total) < np.inf
        return lax.select(small, result, lax.convert_element_type(total, np.float32))

    return lax.cond(finite, lambda _lhs, _rhs, result: result, replace, lhs, rhs, result)


def _all(*conditions):
    results = [lax.reduce_and(c, range(c.ndim)) for c in conditions]
    return lax.bitwise_and(*results)


def dot_general_body(lhs, rhs, *, dimension_numbers):
    """``jax.lax.dot_general``, order-independent; operands and result as in ``sequential``.

    Raises:
      TypeError: an operand is not float32.
    """
    check_float32("dot_general", lhs, rhs)
    contracting, batch = dimension_numbers
    free = [
        [d for d in range(x.ndim) if d not in (*contracting[i], *batch[i])]
        for i, x in enumerate((lhs, rhs))
    ]
    batch_shape = [lhs.shape[d] for d in batch[0]]
    shapes = [[x.shape[d] for d in free[i]] for i, x in enumerate((lhs, rhs))]
    shape = [*batch_shape, *shapes[0], *shapes[1]]
    g, m, n = math.prod(batch_shape), math.prod(shapes[0]), math.prod(shapes[1])
    k = math.prod(lhs.shape[d] for d in contracting[0])
    if 0 in (g, m, n, k):
        return lax.full(shape, 0, np.float32)
    lhs = lax.reshape(lax.transpose(lhs, [*batch[0], *free[0], *contracting[0]]), [g, m, k])
    rhs = lax.reshape(lax.transpose(rhs, [*batch[1], *free[1], *contracting[1]]), [g, n, k])
    return lax.reshape(_products(lhs, rhs), shape)


def _products(lhs, rhs):
    """``out[g, m, n]`` = the order-independent sum of ``lhs[g, m, k] * rhs[g, n, k]``."""
    k = lhs.shape[2]
    t = _grid_bits(k)
    left_finite, a = _finite(lhs)
    right_finite, b = _finite(rhs)
    in_a, in_b = _exponents(a), _exponents(b)
    s = _largest(in_b, (1,))
    # A term with a zero has no exponent.
    in_s = lax.reduce_max(in_b, (1,))
    unused = lax.broadcast_in_dim(lax.expand_dims(in_s, (1,)), a.shape, range(3)) < _NONE // 2
    in_a = lax.select(unused, lax.full_like(in_a, _NONE), in_a)
    e = _largest(in_a + s, (2,))
    f = _largest(in_b - s, (2,))
    alpha = lax.select(unused, lax.full_like(a, 0), a)
    alpha = _round(alpha, s + (t - 1) - e)
    beta = _round(b, (t - 1) - s - f)

    # So many terms have an exact sum in float64.
    block = 1 << max(0, _EXACT - 2 * t)
    exponent = lax.add(
        lax.broadcast_in_dim(e, (*e.shape[:2], f.shape[1]), range(3)),
        lax.broadcast_in_dim(lax.squeeze(f, (2,)), (*e.shape[:2], f.shape[1]), (0, 2)),
    )
    exponent = lax.convert_element_type(exponent, np.int64) + (2 - 2 * t)
    if k <= block:
        total = _dot(alpha, beta)
        result = canonical.to_float32(
            canonical.guard(canonical.guard(total) * canonical.power_of_two(exponent))
        )
    else:
        total = lax.convert_element_type(_dot(alpha[:, :, :block], beta[:, :, :block]), np.int64)
        for start in range(block, k, block):
            part = _dot(alpha[:, :, start : start + block], beta[:, :, start : start + block])
            total = total + lax.convert_element_type(part, np.int64)
        result = canonical.from_integers(total, exponent)
    return _with_infinities(_dot, lhs, rhs, _all(left_finite, right_finite), result)


def _dot(lhs, rhs):
    """Float64 ``out[g, m, n]``, the sums over k of ``lhs[g, m, k] * rhs[g, n, k]``."""
    return lax.dot_general(lhs, rhs, (((2,), (2,)), ((0,), (0,))))


def conv_general_dilated_body(
    lhs,
    rhs,
    *,
    window_strides,
    padding,
    lhs_dilation,
    rhs_dilation,
    dimension_numbers,
    feature_group_count,
    batch_group_count,
):
    """``jax.lax.conv_general_dilated``, order-independent; operands and result as in
    :func:`~repjax.primitives.contract.convolution.conv_general_dilated_body`.

    The exponents are those of coarser rows and columns, so that a convolution of integers is
    left: s of an input feature, e of an element of the batch, f of an output feature.

    Raises:
      TypeError: an operand is not float32.
    """
    check_float32("conv_general_dilated", lhs, rhs)
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    lhs, rhs = lax.transpose(lhs, lhs_spec), lax.transpose(rhs, rhs_spec)
    lhs = pad_dilated(lhs, 0, [(0, 0)] * 2 + list(padding), [1, 1, *lhs_dilation])
    rank = lhs.ndim - 2
    groups = feature_group_count * batch_group_count  # one of the two is 1
    batch, features = lhs.shape[0] // batch_group_count, rhs.shape[1]
    outs = rhs.shape[0] // groups

    def convolve(lhs, rhs):
        """Of ``[groups, batch, features, ...]`` and ``[groups, outs, features, ...]``."""
        lhs = lax.reshape(lax.transpose(lhs, [1, 0, *range(2, rank + 3)]), folded)
        rhs = lax.reshape(rhs, [groups * outs, *rhs.shape[2:]])
        return lax.conv_general_dilated(
            lhs,
            rhs,
            window_strides,
            [(0, 0)] * rank,
            rhs_dilation=rhs_dilation,
            feature_group_count=groups,
        )

    folded = [batch, groups * features, *lhs.shape[2:]]
    lhs = lax.reshape(
        lhs, [batch_group_count, batch, feature_group_count, features, *lhs.shape[2:]]
    )
    lhs = lax.reshape(
        lax.transpose(lhs, [0, 2, 1, *range(3, rank + 4)]), [groups, batch, *lhs.shape[3:]]
    )
    rhs = lax.reshape(rhs, [groups, outs, *rhs.shape[1:]])
    shape = jax.eval_shape(convolve, lhs, rhs).shape
    terms = features * math.prod(rhs.shape[3:])
    if 0 in (*shape, terms):
        result = lax.full(shape, 0, np.float32)
    else:
        result = _convolution(convolve, lhs, rhs, terms)
    return lax.transpose(result, [out_spec.index(d) for d in range(rank + 2)])


def _convolution(convolve, lhs, rhs, terms):
    """``convolve`` of its operands, order-independently; ``[batch, groups * outs, ...]``."""
    t = _grid_bits(terms)
    left_finite, a = _finite(lhs)
    right_finite, b = _finite(rhs)
    in_a, in_b = _exponents(a), _exponents(b)
    window = tuple(range(3, lhs.ndim))
    in_s = lax.expand_dims(lax.reduce_max(in_b, (1, *window)), (1, *window))
    unused = lax.broadcast_in_dim(in_s < _NONE // 2, a.shape, range(a.ndim))
    s = lax.select(in_s < _NONE // 2, lax.full_like(in_s, 0), in_s)
    in_a = lax.select(unused, lax.full_like(in_a, _NONE), in_a)
    e = _largest(in_a + s, (2, *window))
    f = _largest(in_b - s, (2, *window))
    alpha = _round(lax.select(unused, lax.full_like(a, 0), a), s + (t - 1) - e)
    beta = _round(b, (t - 1) - s - f)

    # beta as digits, so that the sums of the products of alpha with each are exact.
    digit = min(t, _EXACT - t - (terms - 1).bit_length())
    total, shift = None, 0
    while shift < t:
        rest = lax.round(beta * np.float64(2.0**-digit), lax.RoundingMethod.TO_NEAREST_EVEN)
        last = shift + digit >= t
        part = convolve(alpha, beta if last else beta - rest * np.float64(2.0**digit))
        part = lax.convert_element_type(part, np.int64) << shift
        total = part if total is None else total + part
        beta, shift = rest, shift + digit

    def broadcast(exponent, at):
        exponent = lax.convert_element_type(lax.squeeze(exponent, (2, *window)), np.int64)
        return lax.broadcast_in_dim(exponent, [lhs.shape[1], *rhs.shape[:2]], at)

    exponent = broadcast(e, (1, 0)) + broadcast(f, (1, 2)) + (2 - 2 * t)
    exponent = lax.reshape(exponent, [lhs.shape[1], rhs.shape[0] * rhs.shape[1]])
    result = canonical.from_integers(total, lax.broadcast_in_dim(exponent, total.shape, (0, 1)))
    return _with_infinities(convolve, lhs, rhs, _all(left_finite, right_finite), result)
