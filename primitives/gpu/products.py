"""Matrix products and convolutions, by chains of FMAs or of integers, with the bits of the bodies.

Both are problems (:mod:`repjax.primitives.operations.products.problems`).  One program computes a
tile of outputs, each in an accumulator of its own, while tiles of the operands pass by with k
ascending; padding them with zeros is no step, since ``fma(0, 0, s)`` is s except for the sign of a
zero.

Where a row or a column has only a few outputs (products of vectors, depthwise convolutions), most
of a tile would be empty: there, each thread computes some outputs by itself.
"""

from __future__ import annotations

import dataclasses
import functools
import math

import jax
import numpy as np
from jax import lax

from repjax.primitives import gpu
from repjax.primitives.core.sizes import merged, power_of_two_from, row_major
from repjax.primitives.gpu import ptx, triton
from repjax.primitives.operations.products import digits, integers, order_independent, problems
from repjax.primitives.operations.products.geometry import Geometry
from repjax.primitives.operations.products.orders import (
    BODIES,
    in_order,
    in_parts,
    integers_in_parts,
    words_in_parts,
)
from repjax.primitives.operations.products.sequential import check_float32, free_dimensions

# Programs that keep any GPU busy: tiles are made smaller until there are as many.
_PROGRAMS = 256
_TILES = ((128, 128), (128, 64), (64, 64), (64, 32), (32, 32), (32, 16), (16, 16))
# Of chains of FMAs, tiles of 64 x 64 keep multiprocessors as busy as larger ones, and leave fewer
# idle at the end.  Larger ones pay where neighbours in memory are outputs of the left operand,
# from as many programs on as are computed in eight turns.  Of smaller ones half as many do.
_MANY_PROGRAMS = 1 << 10
_FEW_PROGRAMS = 1 << 7
# Terms at a time, where they are not 32, by the sum of a tile's sides: small tiles take more;
# otherwise the next would not be there in time.
_TERMS = {32: 256, 48: 64, 64: 64, 96: 64}
_TERMS_OF_DIGITS = {32: 128, 48: 64, 64: 64}
# Where there are fewer programs than _PROGRAMS, each waits for its operands: with so many terms or
# more they are brought into the order in which they are needed, if they take no more elements.
_LONG = 1 << 9
_REARRANGED = 1 << 26
# Rows of tiles that are computed next to each other, and so share what is in the cache.
_ROWS = 8
# A row or column of fewer outputs is thin, if there are many outputs in all.
_THIN = 3
_MANY = 1 << 14
_BLOCK = 256
_UNROLLED = 8
# Rows for which a right operand whose terms lie together is transposed: two passes over memory,
# where threads would read shared memory at multiples of a row of terms, and take twice as long.
_TRANSPOSED_FROM = 128
# Sums of fewer products of int8 are in int32, and so is their sum with a carry of 24 bits.
_EXACT_TERMS = (1 << 17) - (1 << 10)
# For products of digits: sums that one pass adds if there are no more, bytes of the sums of a
# thread, and bits of a word of the result.
_AT_ONCE = 5
_SUMS = 640
_WORD = 32
# Bytes of shared memory for them, of GPUs with ``wgmma`` or ``tcgen05``, which have 227 KB, and of
# others, where operands go from there to registers, of which there would be too few.
_SHARED, _SHARED_OF_OTHERS = 192 << 10, 32 << 10


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
    axes = merged(axes)
    total = lax.full_like(index, 0)
    count = math.prod(size for size, _ in axes)
    for position, (size, stride) in reversed([*enumerate(axes)]):
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


def _tile_kernel(
    strides: _Strides, shape: tuple[int, int], terms: int, compute, interpret: bool, size: int = 0
):
    """Each program computes a tile of outputs, from ``terms`` of each at a time.

    ``compute(shape, chain, start)`` yields its results; in the array there are ``size`` elements
    between one and the next.  ``chain(add, sums)`` is ``sums = add(lhs, rhs, sums)`` for all terms,
    where ``lhs(at)`` and ``rhs(at)`` are tiles of the operands, or of what begins there in a stack.
    ``start`` is what chains of floats begin with, or None.
    """
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
        values = None
        if start:
            s = offset(group, strides.start["g"]) + offset(j, strides.start["n"])
            values = triton.load(start[0], s)

        def chain(add, sums):
            def step(part, sums):
                at = triton.positions(part, terms, index)
                p, q, _ = strides.of(at, "k")
                in_lhs, in_rhs = None, None
                if k % terms:
                    there = at < index(k)
                    in_lhs = lax.broadcast_in_dim(there, (shape[0], terms), (1,))
                    in_rhs = lax.broadcast_in_dim(there, (terms, shape[1]), (0,))

                def left(first=0):
                    return triton.load(lhs, across(x + index(first), p), in_lhs)

                def right(first=0):
                    return triton.load(rhs, across(q, y + index(first)), in_rhs)

                return add(left, right, sums)

            return lax.fori_loop(np.int32(0), np.int32(_count(k, terms)), step, sums)

        inside = in_rows if in_columns is None else in_columns
        if in_rows is not None and in_columns is not None:
            inside = in_rows & in_columns
        for number, result in enumerate(compute(shape, chain, values)):
            at = across(o_rows + index(number * size), o_columns)
            triton.store(out, at, result, inside, interpret)

    return tiles


def _chains(interpret: bool):
    """The ``compute`` of :func:`_tile_kernel` for chains of FMAs."""

    def add(lhs, rhs, sums):
        return triton.dot_fma(lhs(), rhs(), sums)

    def compute(shape, chain, start):
        sums = triton.accumulator(shape, interpret)
        if start is not None:
            sums = lax.broadcast_in_dim(start.astype(sums.dtype), shape, (1,))
        yield triton.result(chain(add, sums))

    return compute


def _sums_of_digits(passes, sizes: tuple[int, int], own, words: int):
    """The ``compute`` of :func:`_tile_kernel` for sums of products of digits.

    It gives the words of a sum, the lowest first.

    In each pass over the terms the products of some weights are added, each weight's in a sum of
    its own in the type ``own``, so that a digit is read once for all its products.  ``sizes`` are
    those of an array in the two stacks.
    """
    bits = 8 * np.dtype(own).itemsize

    def compute(shape, chain, start):
        del start
        nothing = lax.full(shape, 0, own)
        total, word = nothing, lax.full(shape, 0, np.int32)
        count, free = words, _WORD  # words that are left, and bits of this one
        for products in passes:

            def add(lhs, rhs, sums, products=products):
                left, right = (
                    functools.cache(lambda i, tile=tile, size=size: tile(i * size))
                    for tile, size in zip((lhs, rhs), sizes, strict=True)
                )
                found = []
                for part, (_, count, i, j) in zip(sums, products, strict=True):
                    for n in range(count):
                        part = triton.dot_integers(left(i + n), right(j + n), part)
                    found.append(part)
                return tuple(found)

            for part in chain(add, (nothing,) * len(products)):
                # Higher weights change no lower digit: it comes into the word, the rest is a carry.
                total, word = _shift(total + part, word, digits.BITS)
                free -= digits.BITS
                if not free:
                    yield word
                    count, free = count - 1, _WORD
        total, word = _shift(total, word, free % _WORD)
        if free < _WORD:
            yield word
            count -= 1
        for _ in range(count):
            yield total.astype(np.int32)
            total = lax.shift_right_arithmetic(total, own(min(_WORD, bits - 1)))

    return compute


def _shift(total, word, bits: int):
    """The lowest bits of ``total`` shifted into a word from above."""
    if not bits:
        return total, word
    word = lax.shift_right_logical(word, np.int32(bits))
    word = word | lax.shift_left(total.astype(np.int32), np.int32(_WORD - bits))
    return lax.shift_right_arithmetic(total, total.dtype.type(bits)), word


def _by_chains(lhs, rhs, shape, problem, *, start=None, into=None, interpret=False):
    """The problem's part of the array of ``shape``, by chains, in a new one or in ``into``.

    ``start``, if it is given, has for each element of g and of n the value that chains begin with.
    """
    if not interpret and gpu.backend() == "ptx":
        return ptx.product(lhs, rhs, shape, problem, start=start, into=into)
    strides = _Strides(problem, triton.index_type(lhs.size, rhs.size, math.prod(shape)))
    g, m, n, _ = problem.sizes
    operands = [lhs, rhs] if start is None else [lhs, rhs, start]
    if min(m, n) < _THIN and g * m * n >= _MANY:
        kernel, grid = _thin_kernel(strides, _BLOCK, interpret), _count(g * m * n, _BLOCK)
        options = {"warps": 4, "into": into, "interpret": interpret}
        return triton.call(kernel, shape, grid, operands, **options)
    tile = _tile_of_chains(strides)
    if _is_rearranged(strides, tile):
        (lhs, rhs), problem = _rearranged(lhs, rhs, problem, strides, interpret)
        operands[:2] = lhs, rhs
        strides = _Strides(problem, strides.index)
    kernel = _tile_kernel(strides, tile, _terms(tile, strides.k), _chains(interpret), interpret)
    warps = {_TILES[0]: 8, _TILES[-1]: 2}.get(tile, 4)
    return _in_tiles(
        kernel, tile, strides, operands, shape, warps=warps, into=into, interpret=interpret
    )


def _in_tiles(kernel, tile, strides, operands, shape, **options):
    """The array of ``shape`` by a :func:`_tile_kernel`."""
    return triton.call(kernel, shape, _programs(strides, tile), operands, **options)


def _terms(tile: tuple[int, int], k: int, table=_TERMS) -> int:
    """Terms at a time."""
    return _fitting(table.get(sum(tile), 32), k)


def _divmod(x, y: int):
    return lax.div(x, np.int32(y)), lax.rem(x, np.int32(y))


def _count(size: int, block: int) -> int:
    """How many blocks cover ``size``."""
    return -(-size // block)


def _fitting(block: int, size: int) -> int:
    """No more than the next power of two; the least that Triton multiplies is 16."""
    return max(16, min(block, power_of_two_from(size)))


def _threads(tile: tuple[int, int]) -> int:
    """How many threads a tile of integers has."""
    return 256 if math.prod(tile) >= math.prod(_TILES[1]) else 128


def _tile(g: int, m: int, n: int, tiles, programs: int) -> tuple[int, int]:
    """Outputs of a tile: no more than there are, and enough tiles for all of a GPU."""

    sizes = [(_fitting(i, m), _fitting(j, n)) for i, j in tiles]
    enough = [s for s in sizes if g * _count(m, s[0]) * _count(n, s[1]) >= programs]
    return enough[0] if enough else sizes[-1]


def _programs(strides: _Strides, tile: tuple[int, int]) -> int:
    """How many tiles there are."""
    return strides.g * _count(strides.m, tile[0]) * _count(strides.n, tile[1])


def _tile_of_chains(strides: _Strides) -> tuple[int, int]:
    """Outputs of a tile of chains of FMAs."""
    outputs = strides.g, strides.m, strides.n
    largest, usual = (_tile(*outputs, _TILES[i : i + 1], 0) for i in (0, 2))
    are_neighbours = merged(strides.lhs["m"]) == [(strides.m, 1)]
    if are_neighbours and _programs(strides, largest) >= _MANY_PROGRAMS:
        return largest
    if _programs(strides, usual) >= _PROGRAMS:
        return usual
    return _tile(*outputs, _TILES[3:], _FEW_PROGRAMS)


def _is_rearranged(strides: _Strides, tile: tuple[int, int]) -> bool:
    """Whether the operands of few programs are to be brought into order."""
    in_order = all(len(merged(x["k"])) < 2 for x in (strides.lhs, strides.rhs))
    elements = strides.g * strides.k * (strides.m + strides.n)
    few = _programs(strides, tile) < _PROGRAMS and strides.k >= _LONG
    return few and not in_order and elements <= _REARRANGED


def _rearranged(lhs, rhs, problem, strides: _Strides, interpret: bool):
    """The operands as arrays [g, k, m] and [g, k, n], and the problem in these."""
    _, m, n, k = problem.sizes
    found = []
    for x, d, first, axes in (
        (lhs, "m", strides.first[0], strides.lhs),
        (rhs, "n", strides.first[1], strides.rhs),
    ):
        axes = [*axes["g"], *axes["k"], *axes[d]]
        found.append(_copy(x, first, axes, strides.index, interpret))

    def of(axes, lhs: int, rhs: int):
        """The axes, row-major in the new arrays, where so much lies between the last elements."""
        steps = row_major([axis.size for axis in axes])
        return tuple(
            dataclasses.replace(axis, lhs=step * lhs, rhs=step * rhs)
            for axis, step in zip(axes, steps, strict=True)
        )

    ordered = problems.Problem(
        g=of(problem.g, k * m, k * n),
        m=of(problem.m, 1, 0),
        n=of(problem.n, 0, 1),
        k=of(problem.k, m, n),
        offsets=(0, 0, problem.offsets[2]),
    )
    return found, ordered


def _copy(x, first, axes, index, interpret: bool):
    """The elements at these axes, a flat array."""
    total = math.prod(size for size, _ in axes)

    def copy(x, out):
        at = triton.positions(triton.program_id(0), _BLOCK, index)
        inside = None if total % _BLOCK == 0 else at < index(total)
        safe = at if inside is None else lax.min(at, index(total - 1))
        triton.store(out, at, triton.load(x, first + offset(safe, axes)), inside, interpret)

    options = {"warps": 4, "dtype": x.dtype, "interpret": interpret}
    return triton.call(copy, (total,), _count(total, _BLOCK), [x], **options)


def dot_general(lhs, rhs, *, dimension_numbers, interpret=False):
    """:func:`~repjax.primitives.operations.products.sequential.dot_general_body` by a kernel."""
    check_float32("dot_general", lhs, rhs)
    shape, problem = problems.dot_general(lhs, rhs, dimension_numbers)
    if 0 in (*shape, *problem.sizes):
        return lax.full(shape, 0, np.float32)
    by_triton = interpret or gpu.backend() != "ptx"
    if by_triton and problem.sizes[1] >= _TRANSPOSED_FROM:
        rhs, dimension_numbers = _with_outputs_last(rhs, dimension_numbers)
        _, problem = problems.dot_general(lhs, rhs, dimension_numbers)
    return _by_chains(lhs, rhs, shape, problem, interpret=interpret)


def _with_outputs_last(rhs, dimension_numbers):
    """A right operand whose last axis is one of outputs, and its dimension numbers.

    The order of the terms stays.
    """
    contracting, batch = dimension_numbers
    free = free_dimensions(rhs, contracting[1], batch[1])
    if not free or rhs.ndim - 1 not in contracting[1]:
        return rhs, dimension_numbers
    moved = lax.transpose(rhs, [*batch[1], *contracting[1], *free])
    axes = range(len(batch[1]) + len(contracting[1]))
    batches, terms = axes[: len(batch[1])], axes[len(batch[1]) :]
    return moved, ((contracting[0], tuple(terms)), (batch[0], tuple(batches)))


def _sum_of_digits(left, right, shape, parts, weights, words: int, interpret: bool):
    """The array of ``shape`` that the problems ``parts`` fill together, of stacks of digits.

    The products of digits are those of weights below ``weights``.  The result is [words, ...], each
    of 32 bits, the lowest first: a number in two's complement, modulo what they hold.
    """
    sizes = tuple(x.size // x.shape[0] for x in (left, right))
    index = triton.index_type(left.size, right.size, words * math.prod(shape))
    products = [*digits.by_weight(left.shape[0], right.shape[0], weights)]
    at_once = len(products) if len(products) <= _AT_ONCE else _WORD // digits.BITS
    has_groups = 90 <= (triton.compute_capability() or 90) < 120
    passes = [products[i : i + at_once] for i in range(0, len(products), at_once)]
    out = None
    for problem in parts:
        g, m, n, k = problem.sizes
        # Matrix units may saturate in int32.
        own = np.int32 if max(count for _, count, *_ in products) * k < _EXACT_TERMS else np.int64
        sums = min(at_once, len(products))
        bytes_of_sums = sums * np.dtype(own).itemsize
        tiles = [t for t in _TILES if math.prod(t) // _threads(t) * bytes_of_sums <= _SUMS]
        tile, stages = _tile(g, m, n, tiles, _PROGRAMS), 3 if sums == 1 else 2
        # As many bytes as of floats; where Triton waits for each of several products, larger ones.
        terms = (2 if sums == 1 else 4) * _terms(tile, k, _TERMS_OF_DIGITS)
        terms = max(32, min(terms, power_of_two_from(k)))
        shared = _SHARED if has_groups else _SHARED_OF_OTHERS
        in_stage = sum(size * x.shape[0] for size, x in zip(tile, (left, right), strict=True))
        while sums > 1 and terms > 32 and stages * in_stage * terms > shared:
            terms //= 2
        strides = _Strides(problem, index)
        compute = _sums_of_digits(passes, sizes, own, words)
        kernel = _tile_kernel(strides, tile, terms, compute, interpret, math.prod(shape))
        options = {"warps": _threads(tile) // 32, "stages": stages, "into": out}
        options |= {"dtype": np.int32, "interpret": interpret}
        out = _in_tiles(kernel, tile, strides, [left, right], (words, *shape), **options)
    return out


def _wide(low, high=None):
    """An int64 of one word, without a sign, or of two."""
    low = lax.convert_element_type(low, np.int64) & np.int64((1 << _WORD) - 1)
    if high is None:
        return low
    return lax.shift_left(lax.convert_element_type(high, np.int64), np.int64(_WORD)) | low


def _stack(x, dtype, order):
    """``digits.stack`` of those that a result of the type ``dtype`` depends on."""
    if x.dtype == np.int8:
        return lax.expand_dims(x, (0,))
    count = digits.count_of(x.dtype, 8 * np.dtype(dtype).itemsize)
    return digits.stack(lax.convert_element_type(x, integers.word_of(dtype)), count, order)


def _of_type(left, right, shape, parts, dtype, interpret):
    """:func:`_sum_of_digits`, modulo 2**bits of the type of the result."""
    most, words = np.dtype(dtype).itemsize, integers.word_of(dtype).itemsize // 4
    sums = _sum_of_digits(left, right, shape, parts, most, words, interpret)
    return lax.convert_element_type(sums[0] if words == 1 else _wide(*sums), dtype)


def _with_terms_last(left, right, dimension_numbers):
    """Stacks whose terms lie together, as integer matrix units take them, and their problem.

    Digits are made in that order; operands of int8 stay as they are.
    """
    contracting, batch = dimension_numbers
    stacks, numbers = [], []
    for i, x in enumerate((left, right)):
        axes = [*range(x.ndim - 1)]
        if x.shape[0] > 1:
            free = free_dimensions(
                jax.ShapeDtypeStruct(x.shape[1:], x.dtype), contracting[i], batch[i]
            )
            axes = [*batch[i], *free, *contracting[i]]
        stacks.append(lax.transpose(x, [0, *(d + 1 for d in axes)]))
        numbers.append([[axes.index(d) for d in dims[i]] for dims in (contracting, batch)])
    structs = (jax.ShapeDtypeStruct(x.shape[1:], x.dtype) for x in stacks)
    return *stacks, *problems.dot_general(*structs, [*zip(*numbers, strict=True)])


def dot_of_integers(
    lhs, rhs, *, dimension_numbers, preferred_element_type=np.int32, interpret=False
):
    """:func:`~repjax.primitives.operations.products.integers.dot_general_body` by a kernel."""
    shape, problem = problems.dot_general(lhs, rhs, dimension_numbers)
    if 0 in (*shape, *problem.sizes):
        return lax.full(shape, 0, preferred_element_type)
    stacks = _stack(lhs, preferred_element_type, 1), _stack(rhs, preferred_element_type, -1)
    *stacks, shape, problem = _with_terms_last(*stacks, dimension_numbers)
    return _of_type(*stacks, shape, [problem], preferred_element_type, interpret)


def exact_dot(lhs, rhs, *, dimension_numbers, t, interpret=False):
    """The words of a ``dot_general`` of int32 arrays of at most 2**t in magnitude.

    That is one int64, or with t > 22 two: high * 2**32 + low.
    """
    count, words = order_independent.digits_of(t), order_independent.words_of(t)
    stacks = digits.stack(lhs, count), digits.stack(rhs, count, -1)
    *stacks, shape, problem = _with_terms_last(*stacks, dimension_numbers)
    low, *high = _sum_of_digits(*stacks, shape, [problem], 2 * count, 1 + words, interpret)
    return [_wide(low, *high)] if words == 1 else [_wide(*high), _wide(low)]


def convolution_of_integers(lhs, rhs, *, preferred_element_type, interpret=False, **parameters):
    """``integers.conv_general_dilated_body`` by kernels."""
    lhs, rhs, shape, parts = _planned(lhs, rhs, Geometry(**parameters))
    if 0 in (*shape, *rhs.shape):
        return lax.full(shape, 0, preferred_element_type)
    stacks = _stack(lhs, preferred_element_type, 1), _stack(rhs, preferred_element_type, -1)
    parts = [problem for problem, _ in parts]
    return _of_type(*stacks, shape, parts, preferred_element_type, interpret)


def conv_general_dilated(lhs, rhs, *, interpret=False, **parameters):
    """``convolution.conv_general_dilated_body`` by a kernel.

    No patches are made, and the steps at the holes of ``lhs_dilation`` are left out:
    ``fma(0, rhs, s)`` is s, and NaN where ``rhs`` is not finite, with which the chain begins then.
    """
    check_float32("conv_general_dilated", lhs, rhs)
    lhs, rhs, shape, parts = _planned(lhs, rhs, Geometry(**parameters))
    out = lax.full(shape, 0, np.float32)
    if 0 in (*shape, *rhs.shape):
        return out
    for i, (problem, phases) in enumerate(parts):
        start = None
        if any(phase.step > 1 for phase in phases):
            start = _start(rhs, phases)
        out = _by_chains(
            lhs, rhs, shape, problem, start=start, into=out if i else None, interpret=interpret
        )
    return out


def _planned(lhs, rhs, geometry: Geometry):
    """The operands as kernels read them, the shape of the result, and the problems that fill it.

    The operands have their features in front of their positions, so that neighbouring outputs or
    terms are neighbours in memory.
    """
    lhs, rhs, geometry = geometry.transposed(lhs, rhs)
    if geometry.has_strided_holes:
        lhs, geometry = geometry.filled(lhs), geometry.of_filled()
    lhs, shape, parts = problems.convolution(lhs, rhs, geometry)
    return lhs, rhs, shape, parts


def _start(rhs, phases):
    """+0 for each output feature, NaN where a tap that meets only holes is not finite."""
    met = lax.full(rhs.shape, True)
    for axis, phase in enumerate(phases, 2):
        tap = lax.broadcasted_iota(np.int32, rhs.shape, axis) - phase.first_tap
        met &= (tap >= 0) & (tap % phase.tap_step == 0) & (phase.taps > 0)
    bad = lax.reduce_or(~met & ~lax.is_finite(rhs), tuple(range(1, rhs.ndim)))
    return lax.select(bad, *(lax.full(bad.shape, x, np.float32) for x in (np.nan, 0)))


_SEQUENTIAL = {"dot_general": dot_general, "conv_general_dilated": conv_general_dilated}
_INTEGERS = {"dot_general": dot_of_integers, "conv_general_dilated": convolution_of_integers}


def kernel(name: str):
    """The kernel of a product, by its order, in parts."""
    digit_dot = functools.partial(order_independent.digit_dot, exact_dot=words_in_parts(exact_dot))
    return in_order(
        {
            "sequential": in_parts(name, _SEQUENTIAL[name], "sequential"),
            "order_independent": functools.partial(
                BODIES[name]["order_independent"], exact_dot=digit_dot
            ),
            "exact": BODIES[name]["exact"],
        }
    )


def kernel_by_ptx(name: str):
    """The same by the second backend, which has chains only."""
    sequential = in_parts(name, _SEQUENTIAL[name], "sequential")
    return in_order({**BODIES[name], "sequential": sequential})


def kernel_of_integers(name: str):
    return integers_in_parts(name, _INTEGERS[name])
