"""Products that are only transposed, and operands that are better transposed.

The gradient of a weight is one.  A transposed product of matrices is that of the two in turn, whose
chains have the same steps: ``fma(a, b, s)`` is ``fma(b, a, s)``.  So there is no pass over memory
for the transposition.

A product of a matrix and a vector, or a few, has a chain for each row of the matrix.  The kernel,
which computes many chains side by side, takes columns as they lie in memory, and has to transpose
squares of the matrix where its rows lie there.  In a loop that multiplies with one matrix all the
time, as that of conjugate gradients or of a recurrent network, it is transposed once, before it.
"""

from __future__ import annotations

import collections
from typing import Any

import numpy as np
from jax import lax
from jax.extend.core import ClosedJaxpr, Literal, Var

from repjax.primitives.core.programs import carried, open_jaxpr, renamed
from repjax.primitives.fusion.entries import raw_dot_general_p
from repjax.primitives.fusion.views import variables
from repjax.primitives.operations.arithmetic import canonicalize_p
from repjax.primitives.operations.products import dot_general_p


def without_transposes(jaxpr):
    """The program with products in turn in the place of those that are only transposed."""
    users = collections.Counter(
        v for atoms in (*(e.invars for e in jaxpr.eqns), jaxpr.outvars) for v in variables(atoms)
    )
    transposes = {
        e.invars[0]: e
        for e in jaxpr.eqns
        if e.primitive.name == "transpose"
        and tuple(e.params["permutation"]) == (1, 0)
        and users[e.invars[0]] == 1
    }
    equations, gone = [], set()
    for equation in jaxpr.eqns:
        transpose = transposes.get(equation.outvars[0]) if _is_product(equation) else None
        if transpose is not None:
            gone.add(id(transpose))
            equation = _in_turn(equation).replace(outvars=transpose.outvars)
        if id(equation) not in gone:
            equations.append(equation)
    return jaxpr.replace(eqns=equations) if gone else jaxpr


def _is_product(equation) -> bool:
    """Whether it is a sequential product of two matrices."""
    return (
        equation.primitive in (dot_general_p, raw_dot_general_p)
        and equation.params["contraction"] == "sequential"
        and all(v.aval.dtype == np.float32 for v in (*equation.invars, *equation.outvars))
        and not equation.params["dimension_numbers"][1][0]
    )


def _in_turn(equation):
    contracting, batch = equation.params["dimension_numbers"]
    params = {**equation.params, "dimension_numbers": (contracting[::-1], batch)}
    if "raw" in params:
        params["raw"] = params["raw"][::-1]
    return equation.replace(invars=equation.invars[::-1], params=params)


# --- constants of loops -----------------------------------------------------------------

#: Rows of the other operand of a product for which the kernel packs no columns; iterations of a
#: scan that repay a transposition, and elements of a matrix that does not come from memory anew in
#: each iteration, which takes longer than to transpose it.
_ROWS, _ITERATIONS, _ELEMENTS = 32, 8, 1 << 18


def with_turned_constants(closed):
    """The program with matrices transposed before the loops in which their rows are chains."""
    jaxpr, consts = open_jaxpr(closed)
    equations: list[Any] = []
    for equation in jaxpr.eqns:
        params, name = equation.params, equation.primitive.name
        if name == "scan" and params["length"] >= _ITERATIONS:
            equation = _turned(equation, "jaxpr", 0, carried(params)[0], equations)
        elif name == "while":
            counts = params["cond_nconsts"], params["body_nconsts"]
            equation = _turned(equation, "body_jaxpr", *counts, equations)
        equations.append(equation)
    if all(a is b for a, b in zip(equations, jaxpr.eqns, strict=False)):
        return closed
    return ClosedJaxpr(jaxpr.replace(eqns=equations), consts)


def _turned(loop, name: str, before: int, count: int, equations: list[Any]):
    """A loop with such matrices, of ``count`` constants behind ``before`` others, transposed;
    appends what transposes them to the equations."""
    closed = loop.params[name]
    outer, consts = open_jaxpr(closed)
    jaxpr = _in_place(outer, outer.invars[:count])
    users = collections.defaultdict(list)
    for equation in jaxpr.eqns:
        for v in variables(equation.invars):
            users[v].append(equation)
    turned, invars = {}, list(loop.invars)
    for i, v in enumerate(jaxpr.invars[:count], before):
        is_taken = users[v] and v not in jaxpr.outvars and not isinstance(invars[i], Literal)
        if is_taken and all(_has_chains_of_rows(e, v) for e in users[v]):
            aval = v.aval.update(shape=v.aval.shape[::-1])
            turned[v], moved, result = Var(aval), Var(aval), Var(aval)
            params = {"permutation": (1, 0)}
            transpose = users[v][0].replace(primitive=lax.transpose_p, params=params)
            equations.append(transpose.replace(invars=[invars[i]], outvars=[moved]))
            # By a kernel: XLA would read the operand so, and copy it in each iteration.
            kept = users[v][0].replace(primitive=canonicalize_p, params={})
            equations.append(kept.replace(invars=[moved], outvars=[result]))
            invars[i] = result
    if not turned and jaxpr is outer:
        return loop
    body = jaxpr.replace(
        invars=[turned.get(v, v) for v in jaxpr.invars],
        eqns=[_with_turned_operands(e, turned) for e in jaxpr.eqns],
    )
    if closed is not outer:
        body = ClosedJaxpr(body, consts)
    return loop.replace(invars=invars, params={**loop.params, name: body})


def _in_place(jaxpr, constants):
    """The program with products that take constants as they are where they take them transposed."""
    of = {
        e.outvars[0]: e.invars[0]
        for e in jaxpr.eqns
        if e.primitive.name == "transpose"
        and e.invars[0] in constants
        and tuple(e.params["permutation"]) == (1, 0)
    }
    if not of:
        return jaxpr
    equations = [_with_turned_operands(e, of) if _is_product(e) else e for e in jaxpr.eqns]
    taken = {v for e in equations for v in variables(e.invars)}.union(variables(jaxpr.outvars))
    return jaxpr.replace(eqns=[e for e in equations if not of.keys() & {*e.outvars} - taken])


def _has_chains_of_rows(equation, v) -> bool:
    """Whether it is a product of the matrix ``v``, whose rows are chains, and of a few vectors."""
    if not _is_product(equation) or v.aval.ndim != 2:
        return False
    is_operand = [x is v for x in equation.invars]
    if sum(is_operand) != 1:
        return False
    at = is_operand.index(True)
    ((contracting, other), _) = equation.params["dimension_numbers"]
    if at:
        contracting, other = other, contracting
    x = equation.invars[1 - at].aval
    rows = x.size // max(1, v.aval.shape[1])
    is_small = rows <= _ROWS and v.aval.size <= _ELEMENTS
    return tuple(contracting) == (1,) and len(other) == 1 and is_small


def _with_turned_operands(equation, turned):
    """A product, or an equation that takes none of them, with operands in the place of transposed
    ones."""
    at = [i for i, x in enumerate(equation.invars) if not isinstance(x, Literal) and x in turned]
    if not at:
        return equation
    contracting, batch = equation.params["dimension_numbers"]
    contracting = tuple(
        tuple(1 - axis for axis in axes) if i in at else axes for i, axes in enumerate(contracting)
    )
    params = {**equation.params, "dimension_numbers": (contracting, batch)}
    return equation.replace(invars=renamed(equation.invars, turned), params=params)
