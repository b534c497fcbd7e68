"""Row groups: each program of the kernel computes all equations for a few rows.

The rows are in registers, filled up to a power of two with elements that nothing is done with.
What an equation computes is its primitive's body, evaluated on a tile.  The order of a
``pairwise`` sum is that of ``operations/reductions/sums.py``: filled up with +0, then
``x[:h] + x[h:]`` until one element is left, each sum made canonical.

A row that does not fit into registers passes by tile after tile, once for each reduction that
waits for another, and what is elementwise is computed in each pass that needs it.
"""

from __future__ import annotations

import collections
import copy
import functools
import math

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from repjax.primitives.core import canonical
from repjax.primitives.core.canonical import HALVES, flush
from repjax.primitives.core.define import in_float32
from repjax.primitives.core.programs import open_jaxpr
from repjax.primitives.core.sizes import power_of_two_from
from repjax.primitives.core.tables import BODIES, PREFIX
from repjax.primitives.fusion.rows import REDUCTIONS, Rows, reduced_by
from repjax.primitives.fusion.views import is_source
from repjax.primitives.gpu import sums as columns
from repjax.primitives.gpu import triton
from repjax.primitives.gpu.products import offset
from repjax.primitives.gpu.takes import GPU, SHORT, name_of
from repjax.primitives.operations.reductions import sort_keys
from repjax.primitives.operations.reductions.extrema import reduce_max_p
from repjax.primitives.operations.reductions.sums import reduce_sum_p

#: Elements of a program, at least, and of each of its threads.
_ELEMENTS = 1 << 9
_OF_A_THREAD = 16
#: The same of a tile of a row that does not fit into registers, where sums wait in them.
_TILE = 1 << 10
_OF_A_THREAD_IN_PASSES = 2
#: How many of these tiles are reduced together before they come into the accumulators.
_TOGETHER = 4


def _extremum(largest: bool):
    def extremum(x, y):
        if not jax.dtypes.issubdtype(x.dtype, np.floating):
            return (lax.max if largest else lax.min)(x, y)
        return sort_keys.values(
            lax.max(sort_keys.of(x, largest), sort_keys.of(y, largest)), largest
        )

    return extremum


def _magnitude(x):
    i = canonical.bits(x)
    return i & lax.full_like(i, canonical.format_of(x).magnitude)


def _abs(x):
    floating = jax.dtypes.issubdtype(x.dtype, np.floating)
    return canonical.from_bits(_magnitude(x), x.dtype) if floating else lax.abs(x)


def _sign(x):
    zero = lax.full_like(x, 0)
    negative = lax.select(lax.lt(x, zero), lax.full_like(x, -1), x)
    return lax.select(lax.gt(x, zero), lax.full_like(x, 1), negative)


def _is_finite(x):
    i = _magnitude(x)
    return lax.lt(i, lax.full_like(i, canonical.format_of(x).infinity))


#: Exact operations that Triton has otherwise, or not; NaN among the operands is the result.
_EXACT = {
    "max": _extremum(True),
    "min": _extremum(False),
    "clamp": lambda low, x, high: _extremum(False)(_extremum(True)(low, x), high),
    "abs": _abs,
    "sign": _sign,
    "is_finite": _is_finite,
}


#: Operations of float32 and their guards, for which GPUs have short ones.
_GUARDED = {
    "add": (lax.add, triton.flush),
    "sub": (lax.sub, triton.flush),
    "mul": (lax.mul, triton.guard),
    "square": (lambda x: lax.mul(x, x), triton.guard),
    "neg": (lambda x: lax.sub(lax.full_like(x, 0), x), triton.flush),
    "canonicalize": (lambda x: x, triton.canonicalize),
}


def _function(equation, interpret: bool):
    """What an elementwise equation computes, on tiles of the shape of its result."""
    avals = [v.aval for v in equation.invars], [v.aval for v in equation.outvars]
    name = name_of(equation)
    instruction = name.removeprefix(PREFIX)
    if avals[1][0].dtype == np.float32 and not interpret:
        if instruction in triton.ROUNDED:
            return lambda *tiles: triton.guard(triton.rounded(instruction, *tiles), interpret)
        if instruction in _GUARDED:
            operation, guard = _GUARDED[instruction]
            return lambda *tiles: guard(operation(*tiles), interpret)
    if name in _EXACT:
        function = _EXACT[name]
    elif equation.primitive in BODIES:
        return functools.partial(BODIES[equation.primitive](*avals), **equation.params)
    else:
        function = functools.partial(equation.primitive.bind, **equation.params)
    is_half = any(aval.dtype in HALVES for side in avals for aval in side)
    return in_float32(function, avals[1], flush) if is_half and name != "select_n" else function


#: Elementwise primitives of whose results none is negative.
_WITHOUT_SIGN = {"abs", *(PREFIX + x for x in ("exp", "exp2", "logistic", "sqrt", "square"))}


def _without_sign(group: Rows) -> set[object]:
    """The results that are sums of elements without a sign, and so need no guard on the way.

    The sum of two canonical numbers that are zero or more is at least the larger one: it is zero,
    which is +0, or normal, or infinite, or a NaN if one of them is.  All of that ``flush`` leaves
    as it is.
    """
    names, found = {}, set()
    for equation, reads in group.steps():
        (result,) = equation.outvars
        names[result] = name_of(equation)
        if equation.primitive is reduce_sum_p and not isinstance(reads[0], Literal):
            maker = names.get(reads[0].root, "")
            found |= {result} if maker in _WITHOUT_SIGN else set()
    return found


def _pairwise(x, ending):
    while x.shape[1] > 1:
        x = ending(triton.halves(x))
    return lax.reshape(x, (x.shape[0],))


def _as_it_is(x):
    return x


def _reduction(equation, x, inside, ending):
    """The reduction of each row of a tile; ``inside`` is where it has elements, or None.

    Each addition of a sum has this ``ending``.
    """
    name, primitive = equation.primitive.name.removeprefix(PREFIX), equation.primitive
    avals = [v.aval for v in equation.invars], [v.aval for v in equation.outvars]
    if name == "reduce_sum":
        identity, function = 0, functools.partial(_pairwise, ending=ending)
        if avals[0][0].dtype in HALVES:
            function = in_float32(function, avals[1], flush)
    else:
        identity = -np.inf if name in ("reduce_max", "argmax") else np.inf
        params = {**equation.params, "axes": (1,)}
        function = functools.partial(BODIES[primitive](*avals), **params)
    if inside is not None:
        x = lax.select(inside, x, lax.full_like(x, identity))
    return function(x)


class _Tile:
    """The rows of one program of the kernel, or a part of their columns.

    A value is a tile, or a vector with one element for each row.
    """

    def __init__(self, group: Rows, shape: tuple[int, int], inputs, index, interpret: bool):
        self.rows, self.n = group.shape
        self.shape, self.inputs, self.index, self.interpret = shape, inputs, index, interpret
        row = triton.positions(triton.program_id(0), shape[0], index)
        #: The number of rows that there are, and which of them are this program's.
        self.row = lax.min(row, index(self.rows - 1))
        self.is_row = None if self.rows % shape[0] == 0 else row < index(self.rows)
        self._see(lax.iota(index, shape[1]), self.n == shape[1])
        self.without_sign = _without_sign(group)
        self.values: dict[object, jax.Array] = {}
        self.sources: dict[object, object] = {}  # their equations

    def _see(self, column, are_there: bool) -> None:
        """Columns, of which ``is_column`` says which there are; None if they all are."""
        self.column = column
        self.is_column = None if are_there else column < self.index(self.n)

    def part(self, block, are_there: bool) -> _Tile:
        """The tile of another block of columns, with what is known of the rows."""
        tile = copy.copy(self)
        tile._see(triton.positions(block, self.shape[1], self.index), are_there)
        tile.values = dict(self.values)
        return tile

    def _down(self, x):
        return lax.broadcast_in_dim(x, self.shape, (0,))

    def across(self, x):
        return None if x is None else lax.broadcast_in_dim(x, self.shape, (1,))

    def read(self, read, full: bool):
        """An operand; a tile if ``full``."""
        if isinstance(read, Literal):
            return lax.full(self.shape if full else self.shape[:1], read.val, read.aval.dtype)
        source = self.sources.get(read.root)
        if source is not None and source.invars:
            return self.read(source.invars[0], full)
        if read.root in self.values:
            x = self.values[read.root]
        else:
            if read not in self.values:
                self.values[read] = self._load(read, source)
            x = self.values[read]
        return self._down(x) if full and x.ndim == 1 else x

    def _load(self, read, source):
        """From memory, or where the array holds positions, from those of its elements."""
        at, inside = offset(self.row, read.rows), None
        if read.columns:
            columns = offset(self.column, read.columns)
            if read.rows:
                at, inside = self._down(at) + self.across(columns), self.across(self.is_column)
            else:
                at, inside = columns, self.is_column
        if source is not None:
            shape, axis = source.params["shape"], source.params["dimension"]
            at = lax.div(at, lax.full_like(at, math.prod(shape[axis + 1 :])))
            x = lax.rem(at, lax.full_like(at, shape[axis])).astype(np.int32)
        else:
            x = triton.load(self.inputs[read.root], at, inside)
        if read.canonical:
            x = triton.canonicalize(x, self.interpret)
        return self.across(x) if read.columns and not read.rows else x

    def compute(self, equation, reads) -> None:
        """Add the equation's result to the values."""
        if is_source(equation):
            self.sources[equation.outvars[0]] = equation
            return
        if equation.primitive.name in REDUCTIONS:
            x = self.read(reads[0], True)
            inside = self.across(self.is_column)
            result = _reduction(equation, x, inside, self.ending(equation))
        else:
            full = equation.outvars[0].aval.size != self.rows
            operands = [self.read(x, full) for x in reads]
            result = _function(equation, self.interpret)(*operands)
        self.values[equation.outvars[0]] = result

    def ending(self, equation):
        """What additions end in; XLA, which interprets kernels, would add in another order."""
        needed = self.interpret or equation.outvars[0] not in self.without_sign
        return functools.partial(triton.flush, interpret=self.interpret) if needed else _as_it_is

    def store(self, variable, ref) -> None:
        x, at, inside = self.values[variable], self.row, self.is_row
        if x.ndim == 2:
            at = self._down(at * self.index(self.n)) + self.across(self.column)
            inside = self.across(self.is_column)
            if self.is_row is not None:
                is_row = self._down(self.is_row)
                inside = is_row if inside is None else inside & is_row
        triton.store(ref, at, x, inside, self.interpret)


class _Accumulator:
    """The reduction of a long row, of which tiles come in :func:`_order`, some at each of ``count``
    steps.

    For an extremum it is that of each column.  For a sum it is a tile for each power of two of
    steps: the sum of so many, that waits for one of as many more.  As digits of a counter, the last
    is complete when all tiles have come.
    """

    def __init__(self, equation, shape, count: int, ending):
        self.ending = ending
        self.equation, self.is_sum = equation, equation.primitive is reduce_sum_p
        self.is_max = equation.primitive is reduce_max_p
        identity = 0 if self.is_sum else -np.inf if self.is_max else np.inf
        self.nothing = lax.full(shape, identity, np.float32)
        self.start = [self.nothing] * (count.bit_length() if self.is_sum else 1)

    def operand(self, tile: _Tile, read):
        """What is added of a tile: elements behind the end of the row do not count."""
        x, inside = tile.read(read, True), tile.across(tile.is_column)
        x = canonical.widen(x) if x.dtype in HALVES else x
        return x if inside is None else lax.select(inside, x, self.nothing)

    def add(self, tiles, xs, step):
        """The accumulator's tiles after the operands of the step of this number."""
        if not self.is_sum:
            return [functools.reduce(_extremum(self.is_max), xs, *tiles)]
        while len(xs) > 1:
            xs = [self.ending(x + y) for x, y in zip(xs[::2], xs[1::2], strict=True)]
        (x,), found, is_carried = xs, [], np.True_
        for level, tile in enumerate(tiles):
            is_full = step & np.int32(1 << level) != 0
            found.append(lax.select(is_carried & ~is_full, x, tile))
            x, is_carried = self.ending(tile + x), is_carried & is_full
        return found

    def result(self, tiles):
        return _reduction(self.equation, tiles[-1], None, self.ending)


def _order(step, count: int):
    """Which of so many tiles is the next: bits reversed, so that halves of the row alternate."""
    last = count.bit_length() - 2
    bits = [(step >> i & 1) << (last - i) for i in range(last + 1)]
    return functools.reduce(lambda x, y: x | y, bits)


def _passes(group: Rows):
    """For each pass over long rows: the steps before it, those of each tile, and its results.

    Before are those of rows, with the reductions of the pass before; of a tile, what reductions
    and results take.
    """
    steps = [step for step in group.steps() if not is_source(step[0])]
    makers = {e.outvars[0]: e for e, _ in steps}
    full = {v for v, e in makers.items() if v.aval.size != group.shape[0]}
    passes: dict[object, int] = {}  # that it takes to know a result of rows, or until a tile's
    before, goals = collections.defaultdict(list), collections.defaultdict(set)
    for equation, reads in steps:
        (result,) = equation.outvars
        i = max((passes.get(x.root, 0) for x in reads if not isinstance(x, Literal)), default=0)
        is_reduction = equation.primitive.name in REDUCTIONS
        passes[result] = i + is_reduction
        if is_reduction or (result in full and result in group.outvars):
            goals[i].add(result)
        elif result not in full:
            before[i].append((equation, reads))
    for i in range(1 + max(passes.values())):
        needed, results = goals[i], [v for v in group.outvars if v in goals[i] & full]
        for equation, reads in reversed(steps):
            if equation.outvars[0] in needed:
                needed |= full & {x.root for x in reads if not isinstance(x, Literal)}
        yield before[i], [step for step in steps if step[0].outvars[0] in needed], results


def _compute(tile: _Tile, group: Rows, store) -> None:
    """All of rows that fit into registers."""
    for equation, reads in group.steps():
        tile.compute(equation, reads)
    store(tile, group.outvars)


def _compute_in_passes(tile: _Tile, group: Rows, store) -> None:
    count = power_of_two_from(tile.n) // tile.shape[1]
    together = min(_TOGETHER, count)
    for equation, reads in group.steps():
        if is_source(equation):
            tile.compute(equation, reads)
    for before, steps, results in _passes(group):
        for equation, reads in before:
            tile.compute(equation, reads)
        reductions = [e for e, _ in steps if e.primitive.name in REDUCTIONS]
        accumulators = [
            _Accumulator(e, tile.shape, count // together, tile.ending(e)) for e in reductions
        ]

        def operands(
            block, are_there=False, steps=steps, results=results, accumulators=accumulators
        ):
            """What the accumulators reduce, from a tile of which the results are stored."""
            part, found = tile.part(block, are_there), iter(accumulators)
            xs = []
            for equation, reads in steps:
                if equation.primitive.name in REDUCTIONS:
                    xs.append(next(found).operand(part, *reads))
                else:
                    part.compute(equation, reads)
            store(part, results)
            return xs

        def nothing(block, accumulators=accumulators):
            return [a.nothing for a in accumulators]

        def add(step, tiles, operands=operands, nothing=nothing, accumulators=accumulators):
            found = []
            for j in range(together):
                # Of the first bits of a block, the step's are the last: so many are what it may be.
                first = _order(j, count)
                last = first + count // together - 1
                block = first + _order(step * np.int32(together), count)
                if (last + 1) * tile.shape[1] <= tile.n:
                    found.append(operands(block, True))
                elif last * tile.shape[1] < tile.n:
                    found.append(operands(block))
                else:
                    is_behind = block >= np.int32(-(-tile.n // tile.shape[1]))
                    found.append(lax.cond(is_behind, nothing, operands, block))
            zipped = zip(accumulators, tiles, zip(*found, strict=True), strict=True)
            return [accumulator.add(own, xs, step) for accumulator, own, xs in zipped]

        tiles = [a.start for a in accumulators]
        tiles = lax.fori_loop(np.int32(0), np.int32(count // together), add, tiles)
        for accumulator, own in zip(accumulators, tiles, strict=True):
            tile.values[accumulator.equation.outvars[0]] = accumulator.result(own)
    store(tile, [v for v in group.outvars if v in tile.values])


def evaluate(*operands, group: Rows, interpret=False):
    """The results of the equations of a row group, by a kernel; 64-bit types are enabled."""
    rows, n = group.shape
    columns, of_a_thread, compute = power_of_two_from(n), _OF_A_THREAD, _compute
    if n > SHORT:
        columns, of_a_thread, compute = _TILE, _OF_A_THREAD_IN_PASSES, _compute_in_passes
    shape = (min(max(1, _ELEMENTS // columns), power_of_two_from(rows)), columns)
    warps = min(max(1, math.prod(shape) // (32 * of_a_thread)), 32)
    results = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in group.outvars]
    index = triton.index_type(*(x.size for x in (*operands, *results)))

    def kernel(*refs):
        inputs = dict(zip(group.invars, refs, strict=False))
        outputs = dict(zip(group.outvars, refs[len(inputs) :], strict=True))

        def store(tile, variables):
            for v in variables:
                tile.store(v, outputs[v])

        compute(_Tile(group, shape, inputs, index, interpret), group, store)

    kernel.__name__ = "rows"
    grid = -(-rows // shape[0])
    return triton.call_all(kernel, results, grid, operands, warps=warps, interpret=interpret)


def pairwise(combine, xs, axis, *, interpret=False):
    """``reductions.sums.pairwise`` sums of one array, by a kernel if they are of rows."""
    (x,) = xs
    sum_of_rows = functools.partial(reduce_sum_p.bind, axes=(axis,), accumulation="pairwise")
    jaxpr, _ = open_jaxpr(jax.make_jaxpr(sum_of_rows)(jax.ShapeDtypeStruct(x.shape, x.dtype)))
    shape = reduced_by(GPU, *jaxpr.eqns)
    if shape is None:
        return columns.pairwise(combine, xs, axis, interpret=interpret)
    group = Rows(tuple(jaxpr.eqns), tuple(jaxpr.invars), tuple(jaxpr.outvars), GPU, shape)
    return evaluate(x, group=group, interpret=interpret)
