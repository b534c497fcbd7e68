"""Sums and products with a stated order.

``accumulation`` is a static parameter of every sum (``docs/numerics.md``, section 4).
The reduced axes are flattened in row-major order of the operand's logical shape, to
x[0..n); then

* ``pairwise``: x is padded with +0 to the next power of two, and halved by
  ``x[:h] + x[h:]`` until one element is left (Higham 1993, "The accuracy of floating
  point summation": error O(log n) ulp);
* ``sequential``: s = x[0]; s = s + x[k], k ascending;
* ``order_independent``: the elements are rounded to a common grid and added as integers, which
  is exact in any order, and the sum is rounded once;
* ``exact``: the exact sum, rounded once (:mod:`..accumulators`).

Otherwise, each addition is rounded to float32 and made canonical.  The sum over no elements is +0.
Products are the same with multiplication; an element without a partner stays as it is.
"""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.core.define import define
from repjax.primitives.core.partition import Axes
from repjax.primitives.core.sizes import is_power_of_two, power_of_two_from
from repjax.primitives.core.tables import RefusedError, check_accumulation, rule
from repjax.primitives.operations import accumulators, grids
from repjax.primitives.operations.arithmetic import materialize_p, require_format


def collapse(x, axes):
    """``x`` with the reduced axes flattened, row-major, to one; and which axis that is."""
    axes = tuple(sorted(axes))
    n = math.prod(x.shape[d] for d in axes)
    first = axes[0] if axes else 0
    if axes != tuple(range(first, first + len(axes))):
        kept = tuple(d for d in range(x.ndim) if d not in axes)
        x, first = lax.transpose(x, axes + kept), 0
    shape = (*x.shape[:first], n, *x.shape[first + len(axes) :])
    return lax.reshape(x, shape), first


def neighbouring(shape, axes) -> list[tuple[int, ...]]:
    """The axes in groups of neighbours, in their order."""
    groups: list[tuple[int, ...]] = []
    for d in sorted(axes):
        if groups and all(n == 1 for n in shape[groups[-1][-1] + 1 : d]):
            groups[-1] += (d,)
        else:
            groups.append((d,))
    return groups


def one_after_the_other(reduce, x, groups):
    """``reduce(x, axes)`` over some axes, then over others."""
    done: list[int] = []
    for axes in groups:
        x = reduce(x, tuple(d - sum(e < d for e in done) for d in axes))
        done += axes
    return x


def _known_size(x, axis: int) -> int:
    """The size of an axis that the order of a reduction depends on."""
    n = x.shape[axis]
    if not isinstance(n, int):
        raise RefusedError(
            f"reductions expected axes of a known size, on which the order of a sum depends, "
            f"received {n}; leave other sizes open in jax.export, such as that of a batch"
        )
    return n


def pairwise(combine, xs, axis):
    """The ``pairwise`` reduction over one axis: ``combine(low half, high half)`` until one is left.

    ``xs`` is a list of arrays of one shape, and ``combine`` takes two such lists; the axis must
    not be empty.
    """
    return [lax.squeeze(x, (axis,)) for x in halved(combine, xs, axis, 1)]


def halved(combine, xs, axis, until: int):
    """The same until at most so many are left, a power of two."""

    def parts(start, stop):
        return [lax.slice_in_dim(x, start, stop, axis=axis) for x in xs]

    n = _known_size(xs[0], axis)
    while n > until:
        half = power_of_two_from(n) // 2
        combined = combine(parts(0, n - half), parts(half, n))
        # The padding is never made: an element without a partner stays.
        if n < 2 * half:
            pairs = zip(combined, parts(n - half, half), strict=True)
            combined = [lax.concatenate(pair, axis) for pair in pairs]
        xs, n = combined, half
    return xs


def sequential(combine, xs, axis):
    """The ``sequential`` reduction over one axis, which must not be empty; as :func:`pairwise`."""

    def at(k):
        return [lax.dynamic_index_in_dim(x, k, axis, keepdims=False) for x in xs]

    n = xs[0].shape[axis]
    return lax.fori_loop(1, n, lambda k, total: combine(total, at(k)), at(0))


def _order_independent(x, axis, over=()):
    """The ``order_independent`` sum over one axis, which must not be empty.

    The axis may be a part of a longer one that is split over axes of the mesh: then the devices
    exchange their largest exponents, and add their integers.
    """
    t = grids.bits_of_sum(_known_size(x, axis) * (lax.psum(1, over) if over else 1))

    def joined(reduce, collective, values):
        values = reduce(values, (axis,))
        return collective(values, over) if over else values

    field = lax.shift_right_logical(canonical.bits(x) & 0x7FFFFFFF, np.int32(23))
    finite = field < 0xFF
    finite_fields = lax.select(finite, field, lax.full_like(field, 0))
    largest = joined(lax.reduce_max, lax.pmax, finite_fields)
    grid = lax.convert_element_type(largest, np.int64) - (127 + t)
    finite_x = lax.select(finite, x, lax.full_like(x, 0))
    steps = canonical.to_integers(finite_x, -lax.expand_dims(grid, (axis,)))
    total = joined(lax.reduce_sum, lax.psum, lax.convert_element_type(steps, np.int64))
    result = canonical.from_integers(total, grid)

    def anywhere(condition):
        found = lax.reduce_or(condition, (axis,))
        return lax.pmax(lax.convert_element_type(found, np.int32), over) > 0 if over else found

    positive, nan = canonical.bits(x) > 0, canonical.is_nan(x)
    above, below = anywhere(~finite & ~nan & positive), anywhere(~finite & ~nan & ~positive)
    result = lax.select(above, lax.full_like(result, np.inf), result)
    result = lax.select(below, lax.full_like(result, -np.inf), result)
    nan = anywhere(nan) | (above & below)
    return lax.select(nan, lax.full_like(result, np.nan), result)


def order_independent(combine, xs, axis):
    """The ``order_independent`` sum, as :func:`pairwise`; of what is no sum, ``pairwise``."""
    if combine is add:
        return [_order_independent(*xs, axis)]
    return pairwise(combine, xs, axis)


def exact(combine, xs, axis, odd=False):
    """The ``exact`` sum, as :func:`pairwise`; of what is no sum, ``pairwise``."""
    if combine is add:
        return [accumulators.exact_sum(*xs, axis, odd)]
    return pairwise(combine, xs, axis)


ORDERS = {
    "pairwise": pairwise,
    "sequential": sequential,
    "order_independent": order_independent,
    "exact": exact,
}


def add(x, y):
    """The sum of two lists of canonical arrays."""
    return [canonical.flush(lax.add(a, b)) for a, b in zip(x, y, strict=True)]


def multiply(x, y):
    """The product of two lists of canonical arrays."""
    return [canonical.guard(lax.mul(a, b)) for a, b in zip(x, y, strict=True)]


def by_accumulation(kernels, body):
    """One function of the kernels of some orders, and the body, for the others."""

    def function(*args, accumulation, **params):
        return kernels.get(accumulation, body)(*args, accumulation=accumulation, **params)

    return function


def axes_of_reduction(x, *, axes, **_) -> Axes:
    """Those along which a sharded operand may be split: the ones that stay."""
    names = [f"d{i}" for i in range(x.ndim)]
    kept = [name for i, name in enumerate(names) if i not in axes]
    return Axes([names], [kept], [names[i] for i in sorted(axes)])


def axes_of_terms(x, *, axes, **_) -> Axes:
    """The same where a sum has no order: the others may be split, too, into equal parts."""
    of_reduction = axes_of_reduction(x, axes=axes)
    terms = dict.fromkeys(of_reduction.whole, "terms")
    return Axes(of_reduction.operands, of_reduction.results, across=terms)


def reduce_sum_across(x, *, axes, accumulation, over):
    """The ``order_independent`` sum of what devices have, over axes of the mesh."""
    del accumulation
    x, axis = collapse(x, axes)
    return _order_independent(x, axis, over["terms"])


def reduction(combine, identity, orders=ORDERS):
    """The body of a reduction, by ``combine`` in one of the orders."""

    def body(x, *, axes, accumulation, **odd):
        x, axis = collapse(x, axes)
        if x.shape[axis] == 0:
            return lax.full((*x.shape[:axis], *x.shape[axis + 1 :]), identity, x.dtype)
        # Not to be repeated for each element that the result is broadcast to.
        return materialize_p.bind(orders[accumulation](combine, [x], axis, **odd)[0])

    return body


reduce_sum_body, reduce_prod_body = reduction(add, 0), reduction(multiply, 1)
reduce_sum_p = define("reduce_sum", reduce_sum_body, lax.reduce_sum, halves=canonical.flush)
reduce_prod_p = define("reduce_prod", reduce_prod_body, lax.reduce_prod, own_value=True)


def _register(name, primitive):
    @rule(name)
    def reduction(context, operands, params):
        require_format(context, operands)
        (x,), axes = operands, tuple(int(a) for a in params["axes"])
        accumulation = check_accumulation(context.accumulation)
        bind = functools.partial(primitive.bind, accumulation=accumulation)
        groups = neighbouring(jax.typeof(x).shape, axes)
        if accumulation == "pairwise" and len(groups) > 1 and jax.typeof(x).dtype == np.float32:
            # Nothing need be transposed where the tree is first one of the leading axes.
            sizes = [jax.typeof(x).shape[d] for group in groups[1:] for d in group]
            if all(isinstance(n, int) and is_power_of_two(n) for n in sizes):
                return one_after_the_other(lambda x, axes: bind(x, axes=axes), x, groups)
        return bind(x, axes=axes)


_register("reduce_sum", reduce_sum_p)
_register("reduce_prod", reduce_prod_p)
