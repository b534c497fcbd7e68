"""Reductions and prefixes in ``sequential`` order, each by one thread; and large sums of columns.

The bodies of the former are loops of XLA, of which every step is a kernel or several.  Of
``pairwise`` trees, those of rows have a kernel (:mod:`.rows`).  XLA makes a few of others, which
read the operand once, and compute it where it is elementwise.  With a large operand the first would
add a thousand terms in each thread, in code without loops that spills registers and takes half a
minute to compile: a kernel of ours in between ends it.
"""

from __future__ import annotations

import math

import numpy as np
from jax import lax

from repjax.primitives.core.sizes import ceil_log2
from repjax.primitives.gpu import triton
from repjax.primitives.operations.reductions import sums

# Operands of more elements are large: XLA has 2**18 threads for them, and up to 512 terms in each
# it spills none.
_LARGE = 1 << 27
# Terms of a thread in XLA's kernel, and in ours.
_TERMS = 64
_COLUMN_TERMS = 16
_THREADS = 128
# Of chains: threads of a program, few so that few chains are on many processors; and terms that are
# on their way while as many are added, for a term from memory takes longer than tens of additions.
_CHAINS = 32
_AHEAD = 64
# Elements behind the axis, from which on neighbouring threads read whole sectors of memory.
_ADJACENT = 32


def _of_threads(threads: int, outputs: int, inner: int, n: int, index):
    """The outputs of a program's threads, which of them there are (None: all), and the positions
    of their first terms, of which each has n, ``inner`` elements apart."""
    at = triton.positions(triton.program_id(0), threads, index)
    inside = None if outputs % threads == 0 else at < index(outputs)
    safe = at if inside is None else lax.min(at, index(outputs - 1))
    return safe, inside, safe + lax.div(safe, index(inner)) * index((n - 1) * inner)


def _chain(combine, x, axis, *, prefixes: bool, interpret: bool):
    """``s = combine(s, x[k])``, k ascending along an axis: the last s, or all of them."""
    n = x.shape[axis]
    before, behind = x.shape[:axis], x.shape[axis + 1 :]
    outputs, inner = math.prod(before + behind), math.prod(behind)
    index = triton.index_type(x.size)
    if combine is sums.add and x.dtype == np.float32:  # with the short guard of GPUs

        def combine(xs, ys):
            return [triton.flush(a + b, interpret) for a, b in zip(xs, ys, strict=True)]

    def chain(x, out):
        safe, inside, first = _of_threads(_CHAINS, outputs, inner, n, index)

        def position(k):
            return first + k * index(inner)

        def loads(k, count):
            return [triton.load(x, position(k + index(j))) for j in range(count)]

        def steps(k, terms, total):
            for j, term in enumerate(terms):
                (total,) = combine([total], [term])
                if prefixes:
                    triton.store(out, position(k + index(j)), total, inside, interpret)
            return total

        def block(i, carry):
            total, terms = carry
            k = lax.convert_element_type(i, index) * index(_AHEAD) + index(1)
            # Before the stores, behind which they would have to wait; the last block's again.
            following = loads(lax.min(k + index(_AHEAD), index(n - _AHEAD)), _AHEAD)
            return steps(k, terms, total), following

        total, one = triton.load(x, first), lax.full((), 1, index)
        if prefixes:
            triton.store(out, first, total, inside, interpret)
        whole, rest = divmod(n - 1, _AHEAD)
        if whole:
            start = total, loads(one, _AHEAD)
            total, _ = lax.fori_loop(np.int32(0), np.int32(whole), block, start)
        k = lax.full((), n - rest, index)
        total = steps(k, loads(k, rest), total)
        if not prefixes:
            triton.store(out, safe, total, inside, interpret)

    shape = x.shape if prefixes else before + behind
    grid = -(-outputs // _CHAINS)
    return triton.call(chain, shape, grid, [x], warps=_CHAINS // 32, interpret=interpret)


def _with_neighbours(x, axis):
    """``x`` and its ``axis``, moved to the front if there are only few elements behind it."""
    if math.prod(x.shape[axis + 1 :]) >= _ADJACENT:
        return x, axis
    return lax.transpose(x, [axis, *(d for d in range(x.ndim) if d != axis)]), 0


def sequential(combine, xs, axis, *, interpret=False):
    """:func:`repjax.primitives.operations.reductions.sums.sequential` of one array by a kernel."""
    (x,) = xs
    if x.size == 0:
        return [lax.full((*x.shape[:axis], *x.shape[axis + 1 :]), 0, x.dtype)]
    return [_chain(combine, *_with_neighbours(x, axis), prefixes=False, interpret=interpret)]


def prefixes(combine, x, axis, *, interpret=False):
    """All results of :func:`sequential` along the axis, in the shape of ``x``."""
    if x.size == 0:
        return x
    moved, first = _with_neighbours(x, axis)
    results = _chain(combine, moved, first, prefixes=True, interpret=interpret)
    if first == axis:
        return results
    return lax.transpose(results, [*range(1, axis + 1), 0, *range(axis + 1, x.ndim)])


def pairwise(combine, xs, axis, *, interpret=False):
    """:func:`repjax.primitives.operations.reductions.sums.pairwise` sums of one array."""
    (x,) = xs
    if x.size > _LARGE and x.dtype == np.float32 and x.shape[axis] > _TERMS:
        left = 1 << max(0, ceil_log2(x.shape[axis]) - _TERMS.bit_length() + 1)
        (x,) = sums.halved(combine, xs, axis, left)
        x = _columns(x, axis, interpret)
    return sums.pairwise(combine, [x], axis)


def _columns(x, axis, interpret: bool):
    """``reductions.sums.halved`` sums of ``_COLUMN_TERMS`` at a time."""
    n = x.shape[axis]
    terms = min(n, _COLUMN_TERMS)
    shape = (*x.shape[:axis], n // terms, *x.shape[axis + 1 :])
    block, outputs = math.prod(shape[axis:]), math.prod(shape)
    index = triton.index_type(x.size)

    def columns(x, out):
        safe, inside, first = _of_threads(_THREADS, outputs, block, terms, index)

        def tree(term, step):
            """The sum of terms that are so many apart."""
            if step == terms:
                return triton.load(x, first + index(term * block))
            return triton.flush(tree(term, 2 * step) + tree(term + step, 2 * step), interpret)

        triton.store(out, safe, tree(0, 1), inside, interpret)

    grid = -(-outputs // _THREADS)
    return triton.call(columns, shape, grid, [x], warps=_THREADS // 32, interpret=interpret)
