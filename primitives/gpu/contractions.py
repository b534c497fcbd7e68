"""Sequential-FMA matrix products and convolutions: the bits of the bodies of ``contract``.

Both are :class:`~repjax.primitives.contract.problems.Problem` s.  One program computes a tile of
outputs, each in an accumulator of its own, while tiles of the operands pass by with k ascending;
padding them with zeros is no step, since ``fma(0, 0, s)`` is s but for the sign of a zero.

Where a row or a column has only a few outputs (products of vectors, depthwise convolutions), most
of a tile would be empty: there, each thread computes some outputs by itself.
"""

from __future__ import annotations

import math

import numpy as np
from jax import lax

from repjax.primitives.contract import problems
from repjax.primitives.contract.sequential import check_float32
from repjax.primitives.gpu import triton

# Programs that keep any GPU busy: tiles are made smaller until there are as many.
_PROGRAMS = 256
_TILES = ((128, 128), (128, 64), (64, 64), (64, 32), (32, 32), (32, 16), (16, 16))
# Rows of tiles that are computed next to each other, and so share what is in the cache.
_ROWS = 8
# A row or column of fewer outputs is thin, if there are many outputs in all.
_THIN = 3
_MANY = 1 << 14
_UNROLLED = 8


def _divided(index, size: int, count: int):
    """Quotient and remainder of an index below ``count``, or of one that is not used."""
    # By multiplication where LLVM would use 16 bits, which takes GPUs twice as long; by division
    # where Triton should see what follows each other in memory.
    shift = (size * count).bit_length()
    factor = -(-(1 << shift) // size)
    if size % 4 and index.dtype == np.int32 and 2 * count * factor < 1 << 31:
        quotient = lax.shift_right_logical(
            index * lax.full_like(index, factor), lax.full_like(index, shift)
        )
        return quotient, index - quotient * lax.full_like(index, size)
    sizes = lax.full_like(index, size)
    return lax.div(index, sizes), lax.rem(index, sizes)


def _offset(index, axes):
    """The offset in an array of the flat ``index`` of some axes, pairs of a size and a stride.

    The index may lie behind the last one.
    """
    merged: list[tuple[int, int]] = []
    for size, stride in axes:
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            size *= merged.pop()[0]
        merged.append((size, stride))
    total = lax.full_like(index, 0)
    count = math.prod(size for size, _ in merged)
    for position, (size, stride) in reversed([*enumerate(merged)]):
        digit = index
        if position:
            index, digit = _divided(index, size, count)
            count //= size
        if stride:
            total = total + (digit if stride == 1 else digit * lax.full_like(digit, stride))
    return total


def _contract(lhs, rhs, shape, problem, *, start=None, into=None, interpret=False):
    """The problem's part of the array of ``shape``, in a new one or in ``into``.

    ``start``, if it is given, has for each element of g and of n the value that chains begin with.
    """
    g, m, n, k = problem.sizes
    # Pallas takes offsets of 32 bits up to the same limit.
    wide = max(lhs.size, rhs.size, math.prod(shape)) > 1 << 30
    index = np.int64 if wide else np.int32

    # Of each dimension, the axes in each array.
    in_lhs, in_rhs, in_out = (
        {d: [(a.size, getattr(a, array)) for a in getattr(problem, d)] for d in "gmnk"}
        for array in ("lhs", "rhs", "out")
    )
    in_start = {"g": [(g, n)], "m": [(m, 0)], "n": [(n, 1)]}
    first = [index(offset) for offset in problem.offsets]

    def thin(*refs):
        lhs, rhs, *start, out = refs
        at = triton.program_id(0).astype(index) * index(block) + lax.iota(index, block)
        inside = None if total % block == 0 else at < total
        safe = at if inside is None else lax.select(inside, at, lax.full_like(at, 0))

        def offset(axes):
            return _offset(safe, [*axes["g"], *axes["m"], *axes["n"]])

        x, y, o = (offset(a) + f for a, f in zip((in_lhs, in_rhs, in_out), first, strict=True))
        sums = triton.accumulator((block,), interpret)
        if start:
            sums = triton.load(start[0].at[offset(in_start)]).astype(sums.dtype)

        def step(term, sums):
            a = triton.load(lhs.at[x + _offset(term, in_lhs["k"])])
            b = triton.load(rhs.at[y + _offset(term, in_rhs["k"])])
            return triton.fma(a, b, sums)

        def steps(i, sums):
            for j in range(_UNROLLED):
                sums = step(lax.convert_element_type(i, index) * index(_UNROLLED) + index(j), sums)
            return sums

        sums = lax.fori_loop(np.int32(0), np.int32(k // _UNROLLED), steps, sums)
        for term in range(k - k % _UNROLLED, k):
            sums = step(lax.full((), term, index), sums)
        triton.store(out, o, triton.result(sums), inside, interpret)

    def tiles(*refs):
        lhs, rhs, *start, out = refs
        # Which tile: those of _ROWS rows column by column.
        group, tile = (f(triton.program_id(0), np.int32(of_m * of_n)) for f in (lax.div, lax.rem))
        band, tile = (f(tile, np.int32(_ROWS * of_n)) for f in (lax.div, lax.rem))
        rows = lax.min(np.int32(of_m) - band * np.int32(_ROWS), np.int32(_ROWS))
        row, column = band * np.int32(_ROWS) + lax.rem(tile, rows), lax.div(tile, rows)

        def positions(tile, block, size):
            """Those of the outputs, which of them there are, and some that there are."""
            at = tile.astype(index) * index(block) + lax.iota(index, block)
            if size % block == 0:
                return at, None
            return lax.rem(at, index(size)), at < index(size)

        i, row_inside = positions(row, block_m, m)
        j, column_inside = positions(column, block_n, n)
        group = group.astype(index)
        x, y, o = (
            _offset(group, a["g"]) + f for a, f in zip((in_lhs, in_rhs, in_out), first, strict=True)
        )
        x, y = _offset(i, in_lhs["m"]) + x, _offset(j, in_rhs["n"]) + y
        shape = (block_m, block_n)
        sums = triton.accumulator(shape, interpret)
        if start:
            s = _offset(j, in_start["n"]) + _offset(group, in_start["g"])
            sums = triton.load(start[0].at[s]).astype(sums.dtype)
            sums = lax.broadcast_in_dim(sums, shape, (1,))

        def across(rows, columns):
            """Sums of offsets."""
            shape = (rows.shape[0], columns.shape[0])
            return lax.broadcast_in_dim(rows, shape, (0,)) + lax.broadcast_in_dim(
                columns, shape, (1,)
            )

        def step(part, sums):
            at = lax.convert_element_type(part, index) * index(terms) + lax.iota(index, terms)
            p, q = _offset(at, in_lhs["k"]), _offset(at, in_rhs["k"])
            masks = [{}, {}]
            if k % terms:
                there = at < index(k)
                masks = [
                    {
                        "mask": lax.broadcast_in_dim(there, tile, (d,)),
                        "other": np.float32(0),
                    }
                    for tile, d in (((block_m, terms), 1), ((terms, block_n), 0))
                ]
            a = triton.load(lhs.at[across(x, p)], **masks[0])
            b = triton.load(rhs.at[across(q, y)], **masks[1])
            return triton.dot_fma(a, b, sums)

        sums = lax.fori_loop(np.int32(0), np.int32(-(-k // terms)), step, sums)
        mask = None
        for inside, d in ((row_inside, 0), (column_inside, 1)):
            if inside is not None:
                inside = lax.broadcast_in_dim(inside, shape, (d,))
                mask = inside if mask is None else mask & inside
        o = across(_offset(i, in_out["m"]) + o, _offset(j, in_out["n"]))
        triton.store(out, o, triton.result(sums), mask, interpret)

    total = g * m * n
    operands = [lhs, rhs] if start is None else [lhs, rhs, start]
    if min(m, n) < _THIN and total >= _MANY:
        block, warps, kernel = 256, 4, thin
        grid = -(-total // block)
    else:
        block_m, block_n = _tile(g, m, n)
        of_m, of_n = -(-m // block_m), -(-n // block_n)
        # Small tiles take more terms at a time, which takes longer than to fetch the next.
        terms = _fitting(max(32, (1 << 12) // (block_m + block_n)), k)
        warps, kernel, grid = 8 if block_m * block_n > 1 << 13 else 4, tiles, g * of_m * of_n
    return triton.call(kernel, shape, grid, operands, warps=warps, into=into, interpret=interpret)


def _fitting(block: int, size: int) -> int:
    """No more than the next power of two; the least that Triton multiplies is 16."""
    return max(16, min(block, 1 << (size - 1).bit_length()))


def _tile(g: int, m: int, n: int) -> tuple[int, int]:
    """Outputs of a tile: no more than there are, and enough tiles for all of a GPU."""

    sizes = [(_fitting(i, m), _fitting(j, n)) for i, j in _TILES]
    enough = [s for s in sizes if g * -(-m // s[0]) * -(-n // s[1]) >= _PROGRAMS]
    return enough[0] if enough else sizes[-1]


def dot_general(lhs, rhs, *, dimension_numbers, interpret=False):
    """:func:`~repjax.primitives.contract.sequential.dot_general_body` by a kernel."""
    check_float32("dot_general", lhs, rhs)
    shape, problem = problems.dot_general(lhs, rhs, dimension_numbers)
    if 0 in (*shape, *problem.sizes):
        return lax.full(shape, 0, np.float32)
    return _contract(lhs, rhs, shape, problem, interpret=interpret)


def conv_general_dilated(
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
    interpret=False,
):
    """:func:`~repjax.primitives.contract.convolution.conv_general_dilated_body` by a kernel.

    The operands have their features in front of their positions, so that neighbouring outputs or
    terms are neighbours in memory.  No patches are made, and the steps at the holes of
    ``lhs_dilation`` are left out: ``fma(0, rhs, s)`` is s, and NaN where ``rhs`` is not finite,
    with which the chain begins then.
    """
    check_float32("conv_general_dilated", lhs, rhs)
    lhs_spec, rhs_spec, out_spec = dimension_numbers
    lhs, rhs = lax.transpose(lhs, lhs_spec), lax.transpose(rhs, rhs_spec)
    spec = tuple(range(lhs.ndim))
    if problems.has_strided_holes(window_strides, lhs_dilation):
        lhs, padding, lhs_dilation = problems.fill_holes(lhs, spec, padding, lhs_dilation)
    lhs, shape, parts = problems.convolution(
        lhs,
        rhs,
        window_strides,
        padding,
        lhs_dilation,
        rhs_dilation=rhs_dilation,
        dimension_numbers=(spec, spec, out_spec),
        feature_group_count=feature_group_count,
        batch_group_count=batch_group_count,
    )
    out = lax.full(shape, 0, np.float32)
    if 0 in (*shape, *rhs.shape):
        return out
    for i, (problem, phases) in enumerate(parts):
        start = None
        if any(d > 1 for d in lhs_dilation):
            start = _start(rhs, phases)
        out = _contract(
            lhs, rhs, shape, problem, start=start, into=out if i else None, interpret=interpret
        )
    return out


def _start(rhs, phases):
    """+0 for each output feature, NaN where a tap that meets only holes is not finite."""
    hole = np.ones(rhs.shape[2:], bool)
    met = [p.first_tap + p.tap_step * np.arange(p.taps) for p in phases]
    hole[np.ix_(*met)] = False
    hole = lax.broadcast_in_dim(hole, rhs.shape, range(2, rhs.ndim))
    bad = lax.reduce_or(hole & ~lax.is_finite(rhs), tuple(range(1, rhs.ndim)))
    return lax.select(bad, *(lax.full(bad.shape, x, np.float32) for x in (np.nan, 0)))
