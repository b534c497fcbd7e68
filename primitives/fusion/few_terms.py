"""Sums of few terms: the distances of points in a plane or in space.

The kernel of row groups takes a row at a time, which of two or three elements takes longer than the
elements do.  Such sums are additions: of the first, second, ... elements of all rows, which the
operations that make the terms are applied to one by one.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, Var

from repjax.primitives.core.programs import open_jaxpr, without_unused
from repjax.primitives.core.sizes import power_of_two_from
from repjax.primitives.fusion.kernels import Kernels
from repjax.primitives.fusion.views import variables
from repjax.primitives.operations.arithmetic import add_p
from repjax.primitives.operations.reductions.extrema import reduce_max_p, reduce_min_p
from repjax.primitives.operations.reductions.sums import reduce_sum_p

_OF_TWO = {reduce_sum_p: add_p, reduce_max_p: lax.max_p, reduce_min_p: lax.min_p}
#: Terms of a sum, at most; and sums, at least.
_TERMS, _SUMS = 8, 256


def without_sums_of_few(closed, kernels: Kernels):
    """The program with additions in the place of sums over a short last axis."""
    jaxpr, consts = open_jaxpr(closed)
    if not any(map(_is_of_few, jaxpr.eqns)):
        return closed
    program = _Program(jaxpr, kernels)
    for equation in jaxpr.eqns:
        program.add(equation)
    return without_unused(ClosedJaxpr(jaxpr.replace(eqns=program.equations), consts))


def _is_of_few(equation) -> bool:
    """Whether it is a ``pairwise`` sum of few elements that lie together."""
    if equation.primitive not in _OF_TWO or isinstance(equation.invars[0], Literal):
        return False
    (x,), params = equation.invars, equation.params
    last = x.aval.ndim - 1
    return (
        params.get("accumulation", "pairwise") == "pairwise"
        and tuple(params["axes"]) == (last,)
        and x.aval.dtype == np.float32
        and 1 < x.aval.shape[last] <= _TERMS
        and x.aval.size >= _SUMS * x.aval.shape[last]
    )


class _Program:
    """A program whose sums are to be additions."""

    def __init__(self, jaxpr, kernels: Kernels):
        self.kernels = kernels
        self.made_by = {v: e for e in jaxpr.eqns for v in e.outvars}
        atoms = (v for e in jaxpr.eqns for v in e.invars)
        self.users = collections.Counter(variables((*atoms, *jaxpr.outvars)))
        self.equations: list[Any] = []
        self.parts: dict[Any, Any] = {}  # of arrays, by the place in their last axis

    def add(self, equation) -> None:
        if not _is_of_few(equation):
            self.equations.append(equation)
            return
        (x,), (result,) = equation.invars, equation.outvars
        terms = [self._part(equation, x, i) for i in range(x.aval.shape[-1])]
        half = power_of_two_from(len(terms)) // 2
        of_two = _OF_TWO[equation.primitive]
        while half:
            pairs = list(zip(terms, terms[half:], strict=False))
            sums = [self._made(equation, pair, result.aval, of_two) for pair in pairs]
            terms, half = [*sums, *terms[len(sums) : half]], half // 2
        self.equations[-1] = self.equations[-1].replace(outvars=[result])

    def _made(self, equation, operands, aval, primitive, **params) -> Var:
        """What a primitive makes, in the context of an equation."""
        result = Var(aval)
        made = equation.replace(primitive=primitive, invars=list(operands), params=params)
        self.equations.append(made.replace(outvars=[result]))
        return result

    def _part(self, sum, x, i: int):
        """The elements at place ``i`` of the last axis, which the equation of a sum needs."""
        if isinstance(x, Literal) or x.aval.shape == ():
            return x
        i = min(i, x.aval.shape[-1] - 1)  # one may stand for all
        if (x, i) not in self.parts:
            maker, aval = self.made_by.get(x), x.aval.update(shape=x.aval.shape[:-1])
            if maker is not None and self.users[x] == 1 and self.kernels.is_elementwise(maker):
                operands = [self._part(sum, v, i) for v in maker.invars]
                part = self._made(maker, operands, aval, maker.primitive, **maker.params)
            else:
                part = self._sliced(sum, x, i, aval)
            self.parts[x, i] = part
        return self.parts[x, i]

    def _sliced(self, equation, x, i: int, aval) -> Var:
        before = aval.shape
        start, limit = (*[0] * len(before), i), (*before, i + 1)
        bounds = {"start_indices": start, "limit_indices": limit, "strides": None}
        sliced = self._made(equation, [x], x.aval.update(shape=(*before, 1)), lax.slice_p, **bounds)
        return self._made(equation, [sliced], aval, lax.squeeze_p, dimensions=(len(before),))
