"""Matrix products and convolutions, by chains of FMAs or of integers: the bits of the bodies of
``contract``.

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
from jax import numpy as jnp

from repjax.primitives import gpu
from repjax.primitives.contract import digits, integers, problems
from repjax.primitives.contract.sequential import check_float32
from repjax.primitives.gpu import ptx, triton

# Programs that keep any GPU busy: tiles are made smaller until there are as many.
_PROGRAMS = 256
_TILES = ((128, 128), (128, 64), (64, 64), (64, 32), (32, 32), (32, 16), (16, 16))
# Rows of tiles that are computed next to each other, and so share what is in the cache.
_ROWS = 8
# A row or column of fewer outputs is thin, if there are many outputs in all.
_THIN = 3
_MANY = 1 << 14
_BLOCK = 256
_UNROLLED = 8
# So many products of int8 may have a sum that int32 does not hold.
_EXACT_TERMS = 1 << 17


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


def offset(index, axes):
    """The offset in an array of the flat ``index`` of some axes, pairs of a size and a stride.

    The index may lie behind the last one.
    """
    merged = problems.merged(axes)
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


class _Strides:
    """A problem as the kernels see it: of each dimension, the axes in each array."""

    def __init__(self, problem: problems.Problem, index):
        self.g, self.m, self.n, self.k = problem.sizes
        self.index = index
        self.lhs, self.rhs, self.out = (
            {d: [(a.size, getattr(a, array)) for a in getattr(problem, d)] for d in "gmnk"}
            for array in ("lhs", "rhs", "out")
        )
        self.start = {"g": [(self.g, self.n)], "m": [(self.m, 0)], "n": [(self.n, 1)]}
        self.first = [self.index(offset) for offset in problem.offsets]

    def of(self, index, dimensions: str):
        """The offsets in lhs, rhs and out of an index of some dimensions."""
        return [
            offset(index, [axis for d in dimensions for axis in array[d]])
            for array in (self.lhs, self.rhs, self.out)
        ]


def _thin_kernel(strides: _Strides, block: int, interpret: bool):
    """Each thread computes some outputs of a ``block``."""
    index, total, k = strides.index, strides.g * strides.m * strides.n, strides.k

    def thin(*refs):
        lhs, rhs, *start, out = refs
        at = triton.positions(triton.program_id(0), block, index)
        inside = None if total % block == 0 else at < index(total)
        at = at if inside is None else lax.min(at, index(total - 1))
        x, y, o = (a + f for a, f in zip(strides.of(at, "gmn"), strides.first, strict=True))
        sums = triton.accumulator((block,), interpret)
        if start:
            s = offset(at, [*strides.start["g"], *strides.start["m"], *strides.start["n"]])
            sums = triton.load(start[0], s).astype(sums.dtype)

        def step(term, sums):
            p, q, _ = strides.of(term, "k")
            return triton.fma(triton.load(lhs, x + p), triton.load(rhs, y + q), sums)

        def steps(i, sums):
            term = lax.convert_element_type(i, index) * index(_UNROLLED)
            for j in range(_UNROLLED):
                sums = step(term + index(j), sums)
            return sums

        sums = lax.fori_loop(np.int32(0), np.int32(k // _UNROLLED), steps, sums)
        for term in range(k - k % _UNROLLED, k):
            sums = step(lax.full((), term, index), sums)
        triton.store(out, o, triton.result(sums), inside, interpret)

    return thin


def _tile_kernel(strides: _Strides, shape: tuple[int, int], terms: int, dtype, interpret: bool):
    """Each program computes a tile of outputs of a type, from ``terms`` of each at a time."""
    of_floats = dtype == np.float32
    index, m, n, k = strides.index, strides.m, strides.n, strides.k
    of_m, of_n = _count(m, shape[0]), _count(n, shape[1])

    def along(tile, d, size):
        """Positions along a side of the tile, of outputs that there are; and which are its own."""
        at = triton.positions(tile, shape[d], index)
        if size % shape[d] == 0:
            return at, None
        return lax.rem(at, index(size)), lax.broadcast_in_dim(at < index(size), shape, (d,))

    def across(rows, columns):
        """Sums of two sides."""
        shape = (rows.shape[0], columns.shape[0])
        rows = lax.broadcast_in_dim(rows, shape, (0,))
        return rows + lax.broadcast_in_dim(columns, shape, (1,))

    def tiles(*refs):
        lhs, rhs, *start, out = refs
        # Those of _ROWS rows of tiles column by column.
        group, tile = _divmod(triton.program_id(0), of_m * of_n)
        band, tile = _divmod(tile, _ROWS * of_n)
        rows = lax.min(np.int32(of_m) - band * np.int32(_ROWS), np.int32(_ROWS))
        i, in_rows = along(band * np.int32(_ROWS) + lax.rem(tile, rows), 0, m)
        j, in_columns = along(lax.div(tile, rows), 1, n)
        group = group.astype(index)

        x, y, o = (a + f for a, f in zip(strides.of(group, "g"), strides.first, strict=True))
        x, o_rows = x + offset(i, strides.lhs["m"]), o + offset(i, strides.out["m"])
        y, o_columns = y + offset(j, strides.rhs["n"]), offset(j, strides.out["n"])
        sums = triton.accumulator(shape, interpret) if of_floats else lax.full(shape, 0, dtype)
        if start:
            s = offset(group, strides.start["g"]) + offset(j, strides.start["n"])
            values = triton.load(start[0], s).astype(sums.dtype)
            sums = lax.broadcast_in_dim(values, shape, (1,))

        def step(part, sums):
            at = triton.positions(part, terms, index)
            p, q, _ = strides.of(at, "k")
            in_lhs, in_rhs = None, None
            if k % terms:
                there = at < index(k)
                in_lhs = lax.broadcast_in_dim(there, (shape[0], terms), (1,))
                in_rhs = lax.broadcast_in_dim(there, (terms, shape[1]), (0,))
            a = triton.load(lhs, across(x, p), in_lhs)
            b = triton.load(rhs, across(q, y), in_rhs)
            return triton.dot_fma(a, b, sums) if of_floats else triton.dot_integers(a, b, sums)

        sums = lax.fori_loop(np.int32(0), np.int32(_count(k, terms)), step, sums)
        sums = triton.result(sums) if of_floats else sums
        inside = in_rows if in_columns is None else in_columns
        if in_rows is not None and in_columns is not None:
            inside = in_rows & in_columns
        triton.store(out, across(o_rows, o_columns), sums, inside, interpret)

    return tiles


def _contract(
    lhs, rhs, shape, problem, *, start=None, into=None, dtype=np.float32, interpret=False
):
    """The problem's part of the array of ``shape``, in a new one or in ``into``.

    That is of float32, by chains, or of the integer type ``dtype``, by sums of products of int8.
    ``start``, if it is given, has for each element of g and of n the value that chains begin with.
    """
    if dtype == np.float32 and not interpret and gpu.backend() == "ptx":
        return ptx.contract(lhs, rhs, shape, problem, start=start, into=into)
    index = triton.index_type(lhs.size, rhs.size, math.prod(shape))
    strides = _Strides(problem, index)
    g, m, n, k = problem.sizes
    operands = [lhs, rhs] if start is None else [lhs, rhs, start]
    warps = 4
    of_floats = dtype == np.float32
    if min(m, n) < _THIN and g * m * n >= _MANY and of_floats:
        kernel, grid = _thin_kernel(strides, _BLOCK, interpret), _count(g * m * n, _BLOCK)
    else:
        tile = _tile(g, m, n)
        # Small tiles take more terms at a time: otherwise the next would not be there in time.
        terms = _fitting({32: 128, 48: 64, 64: 64}.get(sum(tile), 32), k)
        if not of_floats:  # of a quarter of the size
            terms = max(2 * terms, 32)
        kernel = _tile_kernel(strides, tile, terms, dtype, interpret)
        grid = g * _count(m, tile[0]) * _count(n, tile[1])
        warps = 8 if tile == _TILES[0] else warps
    return triton.call(
        kernel, shape, grid, operands, warps=warps, into=into, dtype=dtype, interpret=interpret
    )


def _divmod(x, y: int):
    return lax.div(x, np.int32(y)), lax.rem(x, np.int32(y))


def _count(size: int, block: int) -> int:
    """Of blocks that cover ``size``."""
    return -(-size // block)


def _fitting(block: int, size: int) -> int:
    """No more than the next power of two; the least that Triton multiplies is 16."""
    return max(16, min(block, 1 << (size - 1).bit_length()))


def _tile(g: int, m: int, n: int) -> tuple[int, int]:
    """Outputs of a tile: no more than there are, and enough tiles for all of a GPU."""

    sizes = [(_fitting(i, m), _fitting(j, n)) for i, j in _TILES]
    enough = [s for s in sizes if g * _count(m, s[0]) * _count(n, s[1]) >= _PROGRAMS]
    return enough[0] if enough else sizes[-1]


def dot_general(lhs, rhs, *, dimension_numbers, interpret=False):
    """:func:`~repjax.primitives.contract.sequential.dot_general_body` by a kernel."""
    check_float32("dot_general", lhs, rhs)
    shape, problem = problems.dot_general(lhs, rhs, dimension_numbers)
    if 0 in (*shape, *problem.sizes):
        return lax.full(shape, 0, np.float32)
    return _contract(lhs, rhs, shape, problem, interpret=interpret)


def _sum_of_digits(lhs, rhs, shape, parts, dtype, interpret):
    """The array of ``shape`` and of an integer type that the problems ``parts`` fill together.

    Modulo 2**bits of the type, so that of the products of digits the highest ones do not matter.
    """
    word = integers.word_of(dtype)

    def stack(x, order):
        of_x = [x] if x.dtype == np.int8 else integers.split(x, dtype)
        return jnp.stack([lax.convert_element_type(digit, np.int8) for digit in of_x[::order]])

    left, right = stack(lhs, 1), stack(rhs, -1)
    total, most = None, np.dtype(dtype).itemsize
    terms = max(problem.sizes[3] for problem in parts)
    for weight, count, *firsts in digits.by_weight(len(left), len(right), most):
        # Matrix units may saturate in int32.
        own = np.int32 if count * terms < _EXACT_TERMS else np.int64
        part = None
        for problem in parts:
            stacked = problem.of_stacks(count, firsts, (lhs.size, rhs.size))
            part = _contract(left, right, shape, stacked, into=part, dtype=own, interpret=interpret)
        part = lax.convert_element_type(part, word)
        part = lax.shift_left(part, word.type(digits.BITS * weight))
        total = part if total is None else total + part
    return lax.convert_element_type(total, dtype)


def dot_of_integers(
    lhs, rhs, *, dimension_numbers, preferred_element_type=np.int32, interpret=False
):
    """:func:`~repjax.primitives.contract.integers.dot_general_body` by kernels."""
    shape, problem = problems.dot_general(lhs, rhs, dimension_numbers)
    if 0 in (*shape, *problem.sizes):
        return lax.full(shape, 0, preferred_element_type)
    return _sum_of_digits(lhs, rhs, shape, [problem], preferred_element_type, interpret)


def convolution_of_integers(lhs, rhs, *, preferred_element_type, interpret=False, **parameters):
    """:func:`~repjax.primitives.contract.integers.conv_general_dilated_body` by kernels."""
    lhs, rhs, shape, parts = _planned(lhs, rhs, **parameters)
    if 0 in (*shape, *rhs.shape):
        return lax.full(shape, 0, preferred_element_type)
    parts = [problem for problem, _ in parts]
    return _sum_of_digits(lhs, rhs, shape, parts, preferred_element_type, interpret)


def conv_general_dilated(lhs, rhs, *, interpret=False, **parameters):
    """:func:`~repjax.primitives.contract.convolution.conv_general_dilated_body` by a kernel.

    No patches are made, and the steps at the holes of ``lhs_dilation`` are left out:
    ``fma(0, rhs, s)`` is s, and NaN where ``rhs`` is not finite, with which the chain begins then.
    """
    check_float32("conv_general_dilated", lhs, rhs)
    lhs, rhs, shape, parts = _planned(lhs, rhs, **parameters)
    out = lax.full(shape, 0, np.float32)
    if 0 in (*shape, *rhs.shape):
        return out
    for i, (problem, phases) in enumerate(parts):
        start = None
        if any(phase.step > 1 for phase in phases):
            start = _start(rhs, phases)
        out = _contract(
            lhs, rhs, shape, problem, start=start, into=out if i else None, interpret=interpret
        )
    return out


def _planned(
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
    """The operands as kernels read them, the shape of the result, and the problems that fill it.

    The operands have their features in front of their positions, so that neighbouring outputs or
    terms are neighbours in memory.
    """
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
    return lhs, rhs, shape, parts


def _start(rhs, phases):
    """+0 for each output feature, NaN where a tap that meets only holes is not finite."""
    met = lax.full(rhs.shape, True)
    for axis, phase in enumerate(phases, 2):
        tap = lax.broadcasted_iota(np.int32, rhs.shape, axis) - phase.first_tap
        met &= (tap >= 0) & (tap % phase.tap_step == 0) & (phase.taps > 0)
    bad = lax.reduce_or(~met & ~lax.is_finite(rhs), tuple(range(1, rhs.ndim)))
    return lax.select(bad, *(lax.full(bad.shape, x, np.float32) for x in (np.nan, 0)))
