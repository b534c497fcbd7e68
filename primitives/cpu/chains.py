"""Sequential products without the C++ library: the bits of their bodies, by a shorter step.

The step of the bodies (``sequential.fma_step``) has an error-free sum and a rounding to odd.  Here
a step only rounds ``a*b + s``, whose product float64 holds exactly, to float64 and from there to
float32: t, then s.  Middles of two float32 numbers are float64 numbers, so that no rounding to
float64 passes one.  Hence the two roundings are one, unless t *is* a middle: then the exact sum may
lie beside it.  A chain that meets a middle becomes NaN, which lasts to its end, and is computed
again by the body: in random data about one in 1.4 million steps.

**Few bits.**  Where products have at most 24 bits, as those of bfloat16, float16 and small
integers, t is often a middle, but a sum of two numbers of 24 bits may be rounded to 53 bits first
(Figueroa 1995, "When is double rounding innocuous?": 53 >= 2 * 24 + 2).  Nothing is marked then.

**Subnormal numbers.**  XLA's code flushes them, and the chain keeps them.  Each s is a multiple of
the product of the last places of the smallest operands, and if that is at least 2**-126, it is no
subnormal number.  Else the body computes all.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.operations.products import sequential
from repjax.primitives.operations.products.convolution import by_patches
from repjax.primitives.operations.products.geometry import Geometry

#: Steps of a product that is worth it, and of a chain, of which most meet no middle.
_LEAST, _LONGEST = 1 << 22, 1 << 13
#: The bits of a float64 number below float32's last place; of a middle; and what none of them is.
_BELOW, _MIDDLE, _NEVER = 0x1FFFFFFF, 0x10000000, -1
#: Chains that are computed again at a time, and how many in all make that as slow as the body.
_LANES, _MOST = 128, 4096
#: The part of the steps after which it is seen whether many chains are marked.
_HEAD = 8
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
    shorter = functools.partial(chain, of=_Operands.seen(*of))
    return sequential.chain_of_groups(lhs, rhs, shorter)


@dataclasses.dataclass(frozen=True)
class _Operands:
    """What is known of the numbers in both.

    Attributes:
      normal: whether all sums of products are normal numbers or zero.
      middle: what :func:`short_step` is to mark.
    """

    normal: jax.Array
    middle: jax.Array

    @classmethod
    def seen(cls, lhs, rhs):
        exponents, zeros = zip(*map(_smallest, (lhs, rhs)), strict=True)
        # 2**(e - 23) is the last place of a number of exponent e.
        normal = sum(exponents) - 2 * (127 + 23) >= -126
        few = (sum(zeros) >= 24) | (lax.max(*zeros) == 23)
        return cls(normal, lax.select(few, np.int64(_NEVER), np.int64(_MIDDLE)))


def _smallest(x):
    """The least biased exponent of what is not zero, and how many zeros all end in, of 24 bits."""
    i, axes = canonical.bits(x), range(x.ndim)
    magnitude = i & 0x7FFFFFFF
    least = lax.reduce_min(
        lax.select(magnitude == 0, lax.full_like(i, 0x7F800000), magnitude), axes
    )
    ones = lax.reduce_or(i, axes) | (1 << 23)
    return least >> 23, lax.population_count(~ones & (ones - 1))


def chain(lhs, rhs, of: _Operands):
    """``sequential.fma_chain``."""
    shape = sequential.chain_shape(lhs, rhs)
    terms = lhs.shape[0]
    # Converted beforehand: a loop is bound by what a step does.
    wide = lhs, rhs = [canonical.to_float64(x) for x in (lhs, rhs)]
    marks = _Marks(shape)

    def steps(first, last, s):
        def step(k, s):
            return short_step(*(sequential.operand(x, k, shape) for x in wide), s, of.middle)

        return lax.fori_loop(np.int32(first), last, step, s)

    head = terms // _HEAD
    s = steps(0, lax.select(of.normal, np.int32(head), np.int32(0)), lax.full(shape, 0, np.float32))
    few = of.normal & ~marks.everywhere(marks.first(marks.in_lanes(s)))
    s = steps(head, lax.select(few, np.int32(terms), np.int32(head)), s)
    s, left = lax.cond(few, marks.removed, lambda lhs, rhs, s: (s, True), lhs, rhs, s)
    s = lax.cond(
        left,
        lambda lhs, rhs, s: sequential.fma_chain(lhs, rhs),
        lambda lhs, rhs, s: s,
        *(lhs, rhs, s),
    )
    return canonical.guard(s)


def short_step(a, b, s, middle):
    """``fma(a, b, s)``, or NaN where it might be another number; a and b are float64, s float32.

    ``middle`` is what the bits below float32's last place are compared with.
    """
    t = a * b + canonical.to_float64(s)
    i = canonical.bits(t)
    marked = lax.eq(i & lax.full_like(i, _BELOW), lax.broadcast(middle, i.shape))
    # On the bits, so that XLA, which may leave out a rounding between two conversions, sees none.
    rounded = canonical.bits(lax.convert_element_type(t, np.float32))
    nan = lax.full_like(rounded, canonical.format_of(s).nan)
    return canonical.from_bits(lax.select(marked, nan, rounded), np.float32)


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

    def everywhere(self, first):
        return lax.reduce_max(first, (0,)) < self.width

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
