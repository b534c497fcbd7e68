"""Sequential products without the C++ library: the bits of their bodies, by a shorter step.

The step of the bodies (``sequential.fma_step``) has an error-free sum and a rounding to odd.  Here
a step rounds ``a*b + s``, whose product float64 holds exactly, to float64, and that sum, t, to the
24 bits of float32, still as a float64 number.  Middles of two float32 numbers are float64 numbers,
so that no rounding to float64 passes one.  Hence the two roundings are one, unless t *is* a middle:
then the exact sum may lie beside it.  A chain that meets a middle becomes NaN, which lasts to its
end, and is computed again by the body: in random data about one in 1.4 million steps.  Since
middles do not matter, t is rounded by adding half of the last place to its bits and taking those
behind away; that a middle was met is seen by what is left behind, which is zero.

**Few bits.**  Where products have at most 24 bits, as those of bfloat16, float16 and small
integers, t is often a middle.  But then float32 holds the products, and a step is its addition.

**Numbers beyond float32's.**  A float64 number neither overflows nor underflows where a float32
number does.  Sums stay finite if the largest operands say so.  Each s is a multiple of the product
of the last places of the smallest operands.  If that is at least 2**-149, the last place of
subnormal numbers, s has no bits that a subnormal number would lose.  Products of at most 24 bits
end in at least 23 zeros more, so that no s is subnormal, which XLA's code would flush in float32.
Else the body computes all.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import math

import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.products import sequential
from repjax.primitives.operations.products.convolution import by_patches
from repjax.primitives.operations.products.geometry import Geometry

#: Steps of a product that is worth it, and of a chain, of which most meet no middle.
_LEAST, _LONGEST = 1 << 18, 1 << 13
#: Steps from one time that sums are in memory to the next, of few chains and of more: to call the
#: loop takes XLA some microseconds, while steps wait for each other.
_FEW, _AT_ONCE = 1 << 16, (8, 4)
#: The bits of a float64 number below float32's last place, and half of that place.
_BELOW, _HALF = 0x1FFFFFFF, 0x10000000
#: Chains that are computed again at a time, and how many in all make that as slow as the body.
_LANES, _MOST = 128, 4096
_INT32 = 1 << 30  # chains that can be counted


def dot_general(lhs, rhs, *, dimension_numbers):
    """``sequential.dot_general_body``."""
    product = functools.partial(_product, of=(lhs, rhs))
    return sequential.by_groups(product, lhs, rhs, dimension_numbers)


def conv_general_dilated(lhs, rhs, **parameters):
    """``convolution.conv_general_dilated_body``."""
    sequential.check_float32("conv_general_dilated", lhs, rhs)
    product = functools.partial(_product, of=(lhs, rhs))
    return by_patches(product, lhs, rhs, Geometry(**parameters), dtype=np.dtype(np.float32))


def _product(lhs, rhs, of):
    """``sequential.chain_of_groups``; its numbers are those of two operands, and zeros.

    What is to be known of them is asked of the operands themselves: these are copies, which XLA
    would make once more for each question.
    """
    terms = lhs.shape[0]
    chains = math.prod(lhs.shape[1:]) * rhs.shape[2]
    if terms * chains < _LEAST or terms > _LONGEST or chains > _INT32:
        return sequential.chain_of_groups(lhs, rhs)
    shorter = functools.partial(chain, way=_way(*of))
    return sequential.chain_of_groups(lhs, rhs, shorter)


class _Way(enum.IntEnum):
    """How chains can be computed."""

    BODY = 0
    IN_FLOAT64 = 1
    IN_FLOAT32 = 2


def _way(lhs, rhs):
    """The way that the numbers in both operands allow."""
    least, greatest, zeros = zip(*map(_seen, (lhs, rhs)), strict=True)
    # The product of numbers of biased exponents e is less than 2**(sum(e) - 252), and their last
    # places are 2**(e - 150).  A sum of _LONGEST products, which are 2**13, is less than 2**127.
    is_finite = (sum(greatest) <= 252 + 127 - 14) & (lax.max(*greatest) < 255)
    place = sum(least) - 300
    few = (sum(zeros) >= 24) | (lax.max(*zeros) == 23)
    way = lax.select(few, np.int32(_Way.IN_FLOAT32), np.int32(_Way.IN_FLOAT64))
    return lax.select(is_finite & (place >= -149), way, np.int32(_Way.BODY))


def _seen(x):
    """The least biased exponent of what is not zero, the greatest, and how many zeros all end in,
    of 24 bits."""
    i, axes = canonical.bits(x), range(x.ndim)
    magnitude = i & 0x7FFFFFFF
    least = lax.reduce_min(
        lax.select(magnitude == 0, lax.full_like(i, 0x7F800000), magnitude), axes
    )
    ones = lax.reduce_or(i, axes) | (1 << 23)
    zeros = lax.population_count(~ones & (ones - 1))
    return least >> 23, lax.reduce_max(magnitude, axes) >> 23, zeros


def chain(lhs, rhs, way):
    """``sequential.fma_chain``."""

    def by_body(lhs, rhs):
        return lax.full(sequential.chain_shape(lhs, rhs), 0, np.float32), True

    def in_float32(lhs, rhs):
        return _steps(float32_step, lhs, rhs), False

    def in_float64(lhs, rhs):
        # Converted beforehand: a loop is bound by what a step does.
        wide = [canonical.to_float64(x) for x in (lhs, rhs)]
        s = canonical.to_float32(_steps(float64_step, *wide))
        return _Marks(s.shape).removed(lhs, rhs, s)

    s, left = lax.switch(way, [by_body, in_float64, in_float32], lhs, rhs)
    s = lax.cond(
        left,
        lambda lhs, rhs, s: sequential.fma_chain(lhs, rhs),
        lambda lhs, rhs, s: s,
        *(lhs, rhs, s),
    )
    return canonical.guard(s)


def _steps(step, lhs, rhs):
    """All steps of the chains: ``step(a, b, s)`` is the next s, and where it is unknown."""
    shape = sequential.chain_shape(lhs, rhs)
    terms = lhs.shape[0]
    together = _AT_ONCE[math.prod(shape) > _FEW]

    def at_once(first, s, count):
        unknown = None
        for k in range(count):
            s, here = step(*(sequential.operand(x, first + k, shape) for x in (lhs, rhs)), s)
            unknown = here if unknown is None else unknown | here
        return lax.select(unknown, lax.full_like(s, np.nan), s)

    def several(i, s):
        return at_once(i * np.int32(together), s, together)

    turns, rest = divmod(terms, together)
    s = lax.fori_loop(np.int32(0), np.int32(turns), several, lax.full(shape, 0, lhs.dtype))
    return at_once(np.int32(terms - rest), s, rest) if rest else s


def float64_step(a, b, s):
    """``fma(a, b, s)``, and where it might be another number; float64."""
    i = canonical.bits(a * b + s)
    i += lax.full_like(i, _HALF)
    unknown = lax.eq(i & lax.full_like(i, _BELOW), lax.full_like(i, 0))
    return canonical.from_bits(i & lax.full_like(i, ~_BELOW), np.float64), unknown


def float32_step(a, b, s):
    """``a*b + s`` of float32, whose product is exact, so that it may be fused or not."""
    s = a * b + s
    return s, lax.full(s.shape, False)


@dataclasses.dataclass(frozen=True)
class _Marks:
    """The chains that are NaN in a result of ``shape``.

    It is ``_LANES`` lanes of as many chains, which are neighbours.
    """

    shape: tuple[int, ...]

    @property
    def count(self) -> int:
        return math.prod(self.shape)

    @property
    def width(self) -> int:
        return -(-self.count // _LANES)

    def in_lanes(self, s):
        s = lax.reshape(s, (self.count,))
        s = lax.pad(s, np.float32(0), [(0, _LANES * self.width - self.count, 0)])
        return lax.reshape(s, (_LANES, self.width))

    def first(self, s, behind=None):
        """The first marked chain of each lane, behind a given one; the width if there is none."""
        at = lax.broadcasted_iota(np.int32, s.shape, 1)
        marked = canonical.is_nan(s)
        if behind is not None:
            marked &= at > lax.expand_dims(behind, [1])
        return lax.reduce_min(lax.select(marked, at, lax.full_like(at, self.width)), (1,))

    def anywhere(self, first):
        return lax.reduce_min(first, (0,)) < self.width

    def removed(self, lhs, rhs, s):
        """``s`` with marked chains computed by the body, and whether some are left: there are many.

        In one pass, the first marked chain of each lane.
        """

        def compute(state):
            passes, s, first = state
            places = lax.iota(np.int32, _LANES) * np.int32(self.width) + first
            places = lax.min(places, lax.full_like(places, self.count - 1))
            chains = sequential.fma_chain(*(self.terms(x, places) for x in (lhs, rhs)))
            at = lax.broadcasted_iota(np.int32, s.shape, 1)
            s = lax.select(
                at == lax.expand_dims(first, [1]), lax.broadcast_in_dim(chains, s.shape, (0,)), s
            )
            return passes + 1, s, self.first(s, first)

        most = np.int32(4 + self.count // _MOST)
        s = self.in_lanes(s)
        _, s, first = lax.while_loop(
            lambda state: (state[0] < most) & self.anywhere(state[2]),
            compute,
            (np.int32(0), s, self.first(s)),
        )
        s = lax.reshape(lax.reshape(s, (s.size,))[: self.count], self.shape)
        return s, self.anywhere(first)

    def terms(self, x, places):
        """The terms ``[K, n]`` in ``x``, an operand, of the n chains at these places."""
        at, stride = lax.full_like(places, 0), self.count
        for size, whole in zip(x.shape[1:], self.shape, strict=True):
            stride //= whole
            if size > 1:
                at = at * np.int32(size) + places // np.int32(stride) % np.int32(whole)
        columns = lax.reshape(x, (x.shape[0], math.prod(x.shape[1:])))
        return columns.at[:, at].get(mode="promise_in_bounds")
