"""Cumulative sums, products, extrema and logsumexps along one axis.

``accumulation`` is a static parameter of sums and products (``docs/numerics.md``, section 4).
For x[0..n), in the order of the axis or, with ``reverse``, against it, result k is

* ``pairwise``: of x[0..k], cut from the left into blocks, one for each power of two in the
  binary form of k + 1, the largest first.  A block is combined by adding neighbours until one
  element is left, and the blocks from left to right.  This is the parallel prefix of Ladner
  and Fischer 1980 ("Parallel prefix computation") that ``jax.lax.associative_scan`` computes;
* ``sequential``: s = x[0]; s = s + x[j], j ascending to k;
* ``exact``: the exact sum of x[0..k], rounded once (:mod:`..accumulators`).

Otherwise each sum and each product is rounded to float32 and made canonical.  No result depends
on the elements behind it, on the length of the axis, or on other axes.  Extrema are exact: NaN
from the first NaN on.
"""

from __future__ import annotations

import functools

import jax
from jax import lax

from repjax.primitives.core import canonical
from repjax.primitives.core.define import define
from repjax.primitives.core.interpret import program
from repjax.primitives.core.partition import Axes
from repjax.primitives.core.tables import check_accumulation, rule
from repjax.primitives.operations import accumulators
from repjax.primitives.operations.arithmetic import plain_rule, require_format
from repjax.primitives.operations.reductions import sort_keys
from repjax.primitives.operations.reductions.sums import add, multiply


def prefixes(combine, x, axis):
    """All results of the ``pairwise`` order; ``combine`` takes two lists of one array."""
    n = x.shape[axis]
    if n < 2:
        return x

    def part(x, start, stop, stride=1):
        return lax.slice_in_dim(x, start, stop, stride, axis)

    (neighbours,) = combine([part(x, 0, n - 1, 2)], [part(x, 1, n, 2)])
    odd = prefixes(combine, neighbours, axis)
    (even,) = combine([part(odd, 0, (n - 1) // 2)], [part(x, 2, n, 2)])
    even = lax.concatenate([part(x, 0, 1), even], axis)
    odd_or_any = odd if n % 2 == 0 else lax.concatenate([odd, part(x, 0, 1)], axis)
    pairs = [lax.expand_dims(y, [axis + 1]) for y in (even, odd_or_any)]
    shape = (*x.shape[:axis], n + n % 2, *x.shape[axis + 1 :])
    return part(lax.reshape(lax.concatenate(pairs, axis + 1), shape), 0, n)


def _sequential(combine, x, axis):
    rows = lax.transpose(x, [axis, *(d for d in range(x.ndim) if d != axis)])
    if x.shape[axis] == 0:
        return x

    def step(total, row):
        (total,) = combine([total], [row])
        return total, total

    first = lax.index_in_dim(rows, 0, keepdims=False)
    _, rest = lax.scan(step, first, lax.slice_in_dim(rows, 1, None))
    rows = lax.concatenate([lax.expand_dims(first, [0]), rest], 0)
    return lax.transpose(rows, [*range(1, axis + 1), 0, *range(axis + 1, x.ndim)])


def _exact(combine, x, axis, odd=False):
    """Each result is the exact sum, rounded once; of what is no sum, the ``pairwise`` prefixes."""
    if combine is not add:
        return prefixes(combine, x, axis)
    accumulators.check_terms("cumsum", x.shape[axis])

    def totals(terms, axis):
        return prefixes(lambda x, y: [x[0] + y[0]], terms, axis)

    x = canonical.to_float64(x)
    of_digits = totals(accumulators.digits(x, accumulators.SUMS), axis + 1)
    special = totals(accumulators.not_finite(x), axis)
    return accumulators.rounded(of_digits, special, accumulators.SUMS, odd)


# Prefixes depend on the order of the elements in any case, except exact ones.
ORDERS = {
    "pairwise": prefixes,
    "sequential": _sequential,
    "order_independent": prefixes,
    "exact": _exact,
}


def _in_direction(function, x, axis, reverse):
    """``function(x)``, computed against the order of the axis if ``reverse``."""
    return lax.rev(function(lax.rev(x, [axis])), [axis]) if reverse else function(x)


def cumulative(combine, orders=ORDERS):
    def body(x, *, axis, reverse, accumulation, **odd):
        function = functools.partial(orders[accumulation], combine, axis=axis, **odd)
        return _in_direction(function, x, axis, reverse)

    return body


def _extremum(largest: bool):
    def body(x, *, axis, reverse):
        found = lax.cummax(sort_keys.of(x, largest), axis, reverse)
        return sort_keys.values(found, largest)

    return body


def axes_of_prefixes(x, *, axis, **_) -> Axes:
    """Those along which sharded prefixes may be split: all but their own."""
    names = [f"d{i}" for i in range(x.ndim)]
    return Axes([names], [names], [names[axis]])


cumsum_body, cumprod_body = cumulative(add), cumulative(multiply)
cumsum_p = define("cumsum", cumsum_body, lax.cumsum, halves=canonical.flush)
cumprod_p = define("cumprod", cumprod_body, lax.cumprod, own_value=True)
cummax_p = define("cummax", _extremum(True), lax.cummax, halves=canonical.flush)
cummin_p = define("cummin", _extremum(False), lax.cummin, halves=canonical.flush)
plain_rule("cummax", cummax_p, keep=("axis", "reverse"))
plain_rule("cummin", cummin_p, keep=("axis", "reverse"))


def _register(name, primitive):
    @rule(name)
    def rule_of_prefixes(context, operands, params):
        require_format(context, operands)
        return primitive.bind(
            *operands,
            axis=int(params["axis"]),
            reverse=params["reverse"],
            accumulation=check_accumulation(context.accumulation),
        )


_register("cumsum", cumsum_p)
_register("cumprod", cumprod_p)


@program("cumlogsumexp")
def _cumlogsumexp(x, *, axis, reverse):
    """The ``pairwise`` order of ``jax.numpy.logaddexp``, whatever ``accumulation`` is."""

    def combine(x, y):
        return [jax.numpy.logaddexp(a, b) for a, b in zip(x, y, strict=True)]

    return _in_direction(lambda x: prefixes(combine, x, axis), x, axis, reverse)
