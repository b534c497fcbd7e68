"""Products with one accumulator per output and one fused multiply-add per term.

    s = fma(lhs[i, k], rhs[k, j], s)        k ascending, from +0

is the plainest order there is, and what a loop of hardware FMA instructions
computes; RepDL uses the same one (Xie et al. 2025, "RepDL: Bit-level Reproducible
Deep Learning Training and Inference").  The intermediate sums are IEEE binary32
with gradual underflow; only the final one is made canonical.

No backend of XLA offers a binary32 FMA, and its CPU code always runs with
subnormals flushed.  So the accumulator is a float64 that always holds a binary32
value, and one step computes ``a*b`` exactly, adds it with its rounding error,
rounds that sum to odd and then to binary32 (Boldo and Melquiond 2008).  No product
is inexact, so it changes nothing whether the compiler fuses it with an addition.
"""

from __future__ import annotations

import math

import numpy as np
from jax import lax

from repjax.primitives.core import canonical

_EXPONENT = 0x7FF0000000000000
_EXPONENT_OF_TINY = (1023 - 126) << 52
# 1.5 * 2**52 ulps: added to a binary32 value of exponent E as float64, it leaves no
# bits below the binary32 ulp, 2**(E - 23), so E + 52 - 23 and half of the mantissa.
_TO_MAGIC = (29 << 52) | (1 << 51)
# From half an ulp above the largest finite binary32 number, rounding gives infinity.
_OVERFLOW = float.fromhex("0x1.ffffffp+127")


def fma_step(a, b, s):
    """``fma(a, b, s)`` in binary32 with gradual underflow, as a float64.

    ``a``, ``b`` and ``s`` are float64 arrays of one shape; ``a`` and ``b`` hold canonical
    float32 values, ``s`` any binary32 value.  Infinities and NaNs are those of IEEE 754.
    The sign of a zero is not defined.
    """
    t, error = canonical.two_sum(a * b, s)
    odd = canonical.round_to_odd(t, error)
    # Adding and subtracting `magic` rounds to the binary32 grid: that of t's exponent, or
    # the subnormal one.  For infinities and NaNs the exponent wraps to a finite `magic`.
    # Where t is a power of two that `odd` lies below, both grids round to that power.
    i = canonical.bits(t)
    exponent = lax.max(i & lax.full_like(i, _EXPONENT), lax.full_like(i, _EXPONENT_OF_TINY))
    magic = canonical.from_bits(exponent + lax.full_like(i, _TO_MAGIC), np.float64)
    rounded = (odd + magic) - magic
    overflow = lax.ge(lax.abs(odd), lax.full_like(odd, _OVERFLOW))
    return lax.select(overflow, t * lax.full_like(t, np.inf), rounded)


def fma_body(a, b, c):
    """The correctly rounded ``a*b + c``, canonical; three float32 arrays of one shape.

    Source: Boldo and Melquiond 2008, "Emulation of FMA and correctly rounded sums:
    proved algorithms using rounding to odd".
    """
    return canonical.to_float32(fma_step(*(canonical.to_float64(x) for x in (a, b, c))))


def fma_odd_body(a, b, c):
    """:func:`fma_body`, but rounded to odd, where the result is yet to be narrowed."""
    a, b, c = (canonical.to_float64(x) for x in (a, b, c))
    return canonical.to_float32_odd(canonical.round_to_odd(*canonical.two_sum(a * b, c)))


def fma_chain(lhs, rhs):
    """``s = fma(lhs[k], rhs[k], s)`` from +0, k ascending; canonical float32.

    ``lhs`` and ``rhs`` are canonical float32 arrays ``[K, ...]`` of equal rank; of every
    pair of sizes behind K one may be 1, and is broadcast.  The last dimension is the
    one to vectorise over, so it should be the largest.
    """
    shape = chain_shape(lhs, rhs)
    zeros = lax.full(shape, 0, np.float64)

    # One step an iteration: unrolled steps lengthen the path of dependent instructions,
    # and measured slower on CPUs for all but a few shapes.
    def step(k, s):
        return fma_step(*(canonical.to_float64(operand(x, k, shape)) for x in (lhs, rhs)), s)

    return canonical.to_float32(lax.fori_loop(np.int32(0), np.int32(lhs.shape[0]), step, zeros))


def chain_shape(lhs, rhs) -> tuple[int, ...]:
    """The shape of the result of :func:`fma_chain`."""
    return tuple(n if m == 1 else m for m, n in zip(lhs.shape[1:], rhs.shape[1:], strict=True))


def operand(x, k, shape):
    """``x[k]``, broadcast to the shape of a chain; k >= 0, which XLA would not know."""
    x = lax.dynamic_index_in_dim(x, k, keepdims=False, allow_negative_indices=False)
    kept = [d for d, size in enumerate(x.shape) if size == shape[d]]
    x = lax.reshape(x, [shape[d] for d in kept])
    return lax.broadcast_in_dim(x, shape, kept)


def chain_of_groups(lhs, rhs, chain=fma_chain):
    """``out[g, m, n]`` = the FMA chain over k of ``lhs[k, g, m] * rhs[k, g, n]``.

    Float32 ``[K, G, M]`` and ``[K, G, N]`` to ``[G, M, N]``.  The largest of the three is
    made the last dimension of the chain; this moves data and changes no bits.
    """
    sizes = {0: lhs.shape[1], 1: lhs.shape[2], 2: rhs.shape[2]}
    if 0 in (*sizes.values(), lhs.shape[0]):
        return lax.full(tuple(sizes.values()), 0, np.float32)
    # Sizes that jax.export leaves open are taken for large.
    order = sorted(sizes, key=lambda d: sizes[d] if isinstance(sizes[d], int) else math.inf)
    behind_k = [0, *(d + 1 for d in order)]
    out = chain(
        lax.transpose(lax.expand_dims(lhs, [3]), behind_k),
        lax.transpose(lax.expand_dims(rhs, [2]), behind_k),
    )
    return lax.transpose(out, [order.index(d) for d in range(3)])


def check_float32(operation: str, *operands) -> None:
    """Raise TypeError unless every operand is a float32 array."""
    for x in operands:
        if x.dtype != np.float32:
            raise TypeError(
                f"{operation} expected float32 operands, got {x.dtype}; "
                "convert them to float32 first"
            )


def free_dimensions(x, contracting, batch) -> list[int]:
    """The dimensions of an operand of ``dot_general`` that are neither."""
    return [d for d in range(x.ndim) if d not in (*contracting, *batch)]


def dot_general_body(lhs, rhs, *, dimension_numbers):
    """``jax.lax.dot_general`` as sequential FMA chains.

    Args:
      lhs, rhs: canonical float32 arrays.
      dimension_numbers: ``((lhs_contracting, rhs_contracting), (lhs_batch, rhs_batch))``.

    Returns:
      Canonical float32, ``[batch..., lhs free..., rhs free...]``.  Each element is
      ``s = fma(lhs, rhs, s)`` over the positions that are summed over, row-major in the order
      of ``lhs_contracting``, from +0; +0 where there are none.

    Raises:
      TypeError: an operand is not float32.
    """
    return by_groups(chain_of_groups, lhs, rhs, dimension_numbers)


def by_groups(product, lhs, rhs, dimension_numbers):
    """A ``dot_general`` by ``product(lhs[k, g, m], rhs[k, g, n])``, ``[g, m, n]``."""
    check_float32("dot_general", lhs, rhs)
    contracting, batch = dimension_numbers

    def flatten(x, contracting, batch):
        """As [K, batch, free], and the batch and the free shape."""
        free = free_dimensions(x, contracting, batch)
        shapes = [[x.shape[d] for d in dims] for dims in (contracting, batch, free)]
        x = lax.transpose(x, [*contracting, *batch, *free])
        return lax.reshape(x, [math.prod(shape) for shape in shapes]), shapes[1:]

    lhs, (batch_shape, lhs_free) = flatten(lhs, contracting[0], batch[0])
    rhs, (_, rhs_free) = flatten(rhs, contracting[1], batch[1])
    return lax.reshape(product(lhs, rhs), [*batch_shape, *lhs_free, *rhs_free])
