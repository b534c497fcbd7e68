"""Row programs: each program of the kernel computes all equations for a few rows.

The rows are in registers, filled up to a power of two with elements that nothing is done with.
What an equation computes is its primitive's body, evaluated on a tile.  The order of a
``pairwise`` sum is that of :mod:`repjax.primitives.reduce.sums`: filled up with +0, then
``x[:h] + x[h:]`` until one element is left, each sum made canonical.
"""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from repjax.primitives import canonical
from repjax.primitives.arithmetic import canonicalize_p
from repjax.primitives.canonical import flush
from repjax.primitives.define import BODIES, HALVES, in_float32
from repjax.primitives.gpu import triton
from repjax.primitives.gpu.contractions import offset
from repjax.primitives.interpret import PREFIX, open_jaxpr
from repjax.primitives.reduce import order, sums
from repjax.primitives.reduce.sums import reduce_sum_p
from repjax.primitives.rows import REDUCTIONS, Rows, is_source, name_of, reduced

#: Elements of a program, at least, and of each of its threads.
_ELEMENTS = 1 << 10
_OF_A_THREAD = 8


def _extremum(largest: bool):
    def extremum(x, y):
        if not jax.dtypes.issubdtype(x.dtype, np.floating):
            return (lax.max if largest else lax.min)(x, y)
        return order.values(lax.max(order.keys(x, largest), order.keys(y, largest)), largest)

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


def _function(equation):
    """What an elementwise equation computes, on tiles of the shape of its result."""
    avals = [v.aval for v in equation.invars], [v.aval for v in equation.outvars]
    name = name_of(equation)
    if name in _EXACT:
        function = _EXACT[name]
    elif equation.primitive in BODIES:
        return functools.partial(BODIES[equation.primitive](*avals), **equation.params)
    else:
        function = functools.partial(equation.primitive.bind, **equation.params)
    is_half = any(aval.dtype in HALVES for side in avals for aval in side)
    return in_float32(function, avals[1], flush) if is_half and name != "select_n" else function


def _pairwise(x):
    while x.shape[1] > 1:
        x = flush(triton.halves(x))
    return lax.reshape(x, (x.shape[0],))


def _reduction(equation, x, inside):
    """The reduction of each row of a tile; ``inside`` is where it has elements, or None."""
    name, primitive = equation.primitive.name.removeprefix(PREFIX), equation.primitive
    avals = [v.aval for v in equation.invars], [v.aval for v in equation.outvars]
    if name == "reduce_sum":
        identity, function = 0, _pairwise
        if x.dtype in HALVES:
            function = in_float32(function, avals[1], flush)
    else:
        identity = -np.inf if name in ("reduce_max", "argmax") else np.inf
        params = {**equation.params, "axes": (1,)}
        function = functools.partial(BODIES[primitive](*avals), **params)
    if inside is not None:
        x = lax.select(inside, x, lax.full_like(x, identity))
    return function(x)


class _Tile:
    """The rows of one program of the kernel.

    A value is a tile, or a vector with one element for each row.
    """

    def __init__(self, program: Rows, shape: tuple[int, int], inputs, index):
        rows, n = program.shape
        self.rows, self.shape, self.inputs, self.index = rows, shape, inputs, index
        row = triton.positions(triton.program_id(0), shape[0], index)
        #: Of rows that there are, and of columns; and which of them are this program's.
        self.row, self.column = lax.min(row, index(rows - 1)), lax.iota(index, shape[1])
        self.is_row = None if rows % shape[0] == 0 else row < index(rows)
        self.is_column = None if n == shape[1] else self.column < index(n)
        self.values: dict[object, jax.Array] = {}
        self.sources: dict[object, object] = {}  # their equations

    def _down(self, x):
        return lax.broadcast_in_dim(x, self.shape, (0,))

    def _across(self, x):
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
                at, inside = self._down(at) + self._across(columns), self._across(self.is_column)
            else:
                at, inside = columns, self.is_column
        if source is not None:
            shape, axis = source.params["shape"], source.params["dimension"]
            at = lax.div(at, lax.full_like(at, math.prod(shape[axis + 1 :])))
            x = lax.rem(at, lax.full_like(at, shape[axis])).astype(np.int32)
        else:
            x = triton.load(self.inputs[read.root], at, inside)
        if read.canonical:
            x = BODIES[canonicalize_p]([], [])(x)
        return self._across(x) if read.columns and not read.rows else x

    def compute(self, equation, reads) -> None:
        """Add the equation's result to the values."""
        if is_source(equation):
            self.sources[equation.outvars[0]] = equation
            return
        if equation.primitive.name in REDUCTIONS:
            x = self.read(reads[0], True)
            result = _reduction(equation, x, self._across(self.is_column))
        else:
            full = equation.outvars[0].aval.size != self.rows
            result = _function(equation)(*(self.read(x, full) for x in reads))
        self.values[equation.outvars[0]] = result

    def store(self, variable, ref, n: int, interpret: bool) -> None:
        x, at, inside = self.values[variable], self.row, self.is_row
        if x.ndim == 2:
            at = self._down(at * self.index(n)) + self._across(self.column)
            inside = self._across(self.is_column)
            if self.is_row is not None:
                is_row = self._down(self.is_row)
                inside = is_row if inside is None else inside & is_row
        triton.store(ref, at, x, inside, interpret)


def evaluate(*operands, program: Rows, interpret=False):
    """The results of the equations of a row program, by a kernel; 64-bit types are enabled."""
    rows, n = program.shape
    columns = 1 << (n - 1).bit_length()
    shape = (min(max(1, _ELEMENTS // columns), 1 << (rows - 1).bit_length()), columns)
    warps = min(max(1, math.prod(shape) // (32 * _OF_A_THREAD)), 32)
    results = [jax.ShapeDtypeStruct(v.aval.shape, v.aval.dtype) for v in program.outvars]
    index = triton.index_type(*(x.size for x in (*operands, *results)))

    def kernel(*refs):
        inputs = dict(zip(program.invars, refs, strict=False))
        tile = _Tile(program, shape, inputs, index)
        for equation, reads in program.steps():
            tile.compute(equation, reads)
        for variable, ref in zip(program.outvars, refs[len(inputs) :], strict=True):
            tile.store(variable, ref, n, interpret)

    kernel.__name__ = "rows"
    grid = -(-rows // shape[0])
    return triton.call_all(kernel, results, grid, operands, warps=warps, interpret=interpret)


def pairwise(combine, xs, axis, *, interpret=False):
    """:func:`repjax.primitives.reduce.sums.pairwise` sums of one array, by a kernel if of rows."""
    (x,) = xs
    sum_of_rows = functools.partial(reduce_sum_p.bind, axes=(axis,), accumulation="pairwise")
    jaxpr, _ = open_jaxpr(jax.make_jaxpr(sum_of_rows)(jax.ShapeDtypeStruct(x.shape, x.dtype)))
    shape = reduced(*jaxpr.eqns)
    if shape is None:
        return sums.pairwise(combine, xs, axis)
    program = Rows(tuple(jaxpr.eqns), tuple(jaxpr.invars), tuple(jaxpr.outvars), shape)
    return evaluate(x, program=program, interpret=interpret)
