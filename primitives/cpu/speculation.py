"""Short loops whose guards are looked at once in an iteration, not after every operation.

What comes next waits for a guard, which takes longer than the operation, and in loops of few
numbers there is nothing else to do meanwhile.  Yet guards change next to no result: only what is
-0 or subnormal, or the smallest normal number.  So operations on few elements are computed without
guards here, and beside them, where nothing waits, whether a guard would have changed any.  Then,
and only then, all that depends on them is computed again with guards: a branch, which processors
predict.  The bits are the same.  Likewise sums of several terms, and products of matrices, are
computed in float64, and again by their bodies where that might not be the right rounding.

**What guards are for else.**  XLA is not to simplify through a result: so it passes through
operations on its bits that XLA does not see through, though LLVM does.  And LLVM is not to fuse a
product with a sum (:meth:`_Operations._sum`); what else needs a product gets it with its guard.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import platform
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np
from jax import lax
from jax.extend.core import Literal

from repjax.primitives.core import canonical
from repjax.primitives.core.define import guards_for
from repjax.primitives.core.programs import open_jaxpr, struct
from repjax.primitives.cpu.short import is_long
from repjax.primitives.fusion.entries import enter_p, raw_dot_general_p
from repjax.primitives.fusion.exits import ended_p, leave_p
from repjax.primitives.fusion.groups import group_sum_p, groups_p
from repjax.primitives.fusion.loops import loop_p
from repjax.primitives.fusion.rows import rows_p
from repjax.primitives.fusion.views import run, variables
from repjax.primitives.operations import arithmetic
from repjax.primitives.operations.add_n import MOST_PARTS, add_n_p
from repjax.primitives.operations.products import dot_general_p, problems, sequential

#: Elements of what is computed without guards: those of one vector.
_ELEMENTS = 16
#: Fused multiply-adds of a product.
_STEPS = 32
#: Some number that results seldom are.
_SOME = np.float32(float.fromhex("0x1.3c6ef4p+91"))
#: Elements of what may be an operand or a result of the branch, which copies them.
_COPIED = 128
#: Elements of results of the branch for each guard that is left out.
_RESULTS = 2

_X86 = ("x86_64", "amd64")
_LOOPS = ("scan", "while", "cond")
_BODIES = {"scan": "jaxpr", "while": "body_jaxpr"}
_FUSED = (groups_p, group_sum_p, rows_p, raw_dot_general_p, ended_p)


def without_guards(loop):
    """The equation of a scan or a while with such a body, on processors of x86.

    For some of ARM LLVM fuses a product with a sum also if something else needs it.
    """
    if platform.machine().lower() not in _X86:
        return loop
    name = _BODIES[loop.primitive.name]
    return loop.replace(params={**loop.params, name: _speculated(loop.params[name])})


# --- operations -------------------------------------------------------------------------


def _unseen(x):
    """``x``, of which XLA does not see what it is, and LLVM does."""
    i = canonical.bits(x)
    return canonical.unseen(x, lax.shift_left(i, lax.full_like(i, 1)))


def _positive(x):
    """``x``, and +0 where it is -0: it plus a zero that XLA does not see."""
    i, one = canonical.bits(x), lax.full_like(x, 1, np.int32)
    zero = lax.shift_right_logical((one ^ i) ^ i, one)
    return _unseen(x + canonical.from_bits(zero, x.dtype))


class _Operations:
    """Operations on canonical numbers without guards, which note what guards would have changed.

    They note it as codes, unsigned integers, which are at most a limit where the result is not the
    right one.
    """

    def __init__(self):
        self._codes: dict[tuple[int, tuple[int, ...]], list[jax.Array]] = {}
        #: By identity, products with their guards, and what they are without.
        self._products: dict[int, tuple[jax.Array, jax.Array]] = {}

    def apply(self, form, *operands, **params):
        """The result of an operation, as a function of repjax, which audits know by its name."""
        found = [self._products.get(id(x)) for x in operands]
        is_product, limits = False, []

        def repjax_without_guards(operands, products):
            nonlocal is_product, limits
            inside = _Operations()
            for x, pair in zip(operands, products, strict=True):
                if pair is not None:
                    inside._products[id(x)] = x, pair[1]
            result = form(inside, *operands, **params)
            is_product = id(result) in inside._products
            limits = [limit for limit, _ in inside._codes]
            return result, inside._without_guard(result), list(inside._codes.values())

        result, product, codes = jax.jit(repjax_without_guards)(operands, found)
        if is_product:
            self._products[id(result)] = result, product
        for limit, xs in zip(limits, codes, strict=True):
            for x in xs:
                self._note(limit, x)
        return result

    # What is noted.

    def _note(self, limit: int, code) -> None:
        self._codes.setdefault((limit, code.shape), []).append(code)

    def has_noted(self) -> bool:
        return bool(self._codes)

    def is_any_wrong(self):
        """Whether any result is not the right one."""
        wrong = []
        for limit in sorted({limit for limit, _ in self._codes}):
            least = [_minimum(xs) for (n, _), xs in self._codes.items() if n == limit]
            wrong.append(_minimum([y for x in least for y in _numbers(x)]) <= np.uint32(limit))
        return functools.reduce(lax.bitwise_or, wrong)

    def _note_tiny(self, x, *, also_zero: bool = True):
        """``x``, noted where it is subnormal, the smallest normal number or, if so told, -0."""
        # Less by one, +0 is the largest integer; with the sign behind, -0 is the smallest.
        i = lax.bitcast_convert_type(x, np.uint32)
        magnitude = lax.shift_left(i, lax.full_like(i, 1))
        sign = i >> lax.full_like(i, 31) if also_zero else np.uint32(0)
        self._note(0x01000000, (magnitude | sign) - np.uint32(1))
        return x

    # Products and sums.

    def _is_product(self, x) -> bool:
        return id(x) in self._products

    def _without_guard(self, x):
        """A product as it is: -0 for +0 matters to no sum and to no product."""
        return self._products.get(id(x), (x, x))[1]

    def _sum(self, operation, x, y):
        """A sum or a difference, with which LLVM fuses no product.

        It would not fuse one that something else needs, too.  So the result is chosen by a
        comparison of it with some number, at which the result is noted as tiny.
        """
        result = _unseen(operation(*map(self._without_guard, (x, y))))
        same = [self._without_guard(v) == _SOME for v in (x, y) if self._is_product(v)]
        if same:
            tiny = lax.full_like(result, np.finfo(np.float32).tiny)
            result = lax.select(functools.reduce(lax.bitwise_or, same), tiny, result)
        return self._note_tiny(result)

    # The operations.

    def enter(self, x):
        return self.canonicalize(x, of_nan=False)

    def leave(self, x):
        return self.canonicalize(x, of_tiny=False)

    def canonicalize(self, x, of_tiny: bool = True, of_nan: bool = True):
        if of_tiny:
            self._note_tiny(x)
        if of_nan:  # and of infinities
            i = lax.bitcast_convert_type(x, np.uint32)
            self._note(0x01000000, ~lax.shift_left(i, lax.full_like(i, 1)))
        return _unseen(x)

    def add(self, x, y):
        return self._sum(lax.add, x, y)

    def sub(self, x, y):
        return self._sum(lax.sub, x, y)

    def mul(self, x, y):
        product = _unseen(self._without_guard(x) * self._without_guard(y))
        result = canonical.guard(product)
        self._products[id(result)] = result, self._note_tiny(product, also_zero=False)
        return result

    def neg(self, x):
        return _positive(-x)

    def div(self, x, y):
        i, j = map(canonical.bits, (x, y))  # by both, of which one may be a number
        y = canonical.unseen(y, i ^ lax.shift_left(j, lax.full_like(j, 1)))
        return canonical.guard(lax.div(x, y))  # LLVM makes a product of one by a power of two

    def sqrt(self, x):
        return _unseen(lax.sqrt(x))

    def square(self, x):
        return self.mul(x, x)

    def integer_pow(self, x, *, y: int):
        if y == 0:
            return lax.full_like(x, 1)
        power = arithmetic.multiplication_chain(self.mul, x, abs(y))
        return power if y > 0 else self.div(lax.full_like(x, 1), power)

    def add_n(self, *terms):
        """The sum in float64, which is the right one if all within its error round to it."""
        total, *rest = map(canonical.to_float64, terms)
        errors = []
        for x in rest:
            total, error = canonical.two_sum(total, x)
            errors.append(lax.abs(error))
        # Half of it, and what float64 rounds the bounds by, is slack.
        error = functools.reduce(lax.add, errors)
        slack = error * np.float64(2) + lax.abs(total) * np.float64(2.0**-51)
        error = lax.select(error == 0, error, slack)
        low, high = (
            lax.bitcast_convert_type(lax.convert_element_type(x, np.float32), np.uint32)
            for x in (total - error, total + error)
        )
        self._note(0, lax.select(low == high, lax.full_like(low, 1), lax.full_like(low, 0)))
        return self._note_tiny(_positive(lax.convert_element_type(total, np.float32)))

    def dot_general(self, lhs, rhs, *, dimension_numbers, **_):
        product = functools.partial(sequential.chain_of_groups, chain=self._chain)
        return sequential.by_groups(product, lhs, rhs, dimension_numbers)

    def _chain(self, lhs, rhs):
        """``sequential.fma_chain``, whose steps are one sum in float64, rounded to float32.

        The two roundings are one (``chains.py`` says why) unless the sum is the middle of two
        numbers of float32, and not exact, or is no normal number of float32, nor 0.
        """
        shape = sequential.chain_shape(lhs, rhs)
        lhs, rhs = map(canonical.to_float64, (lhs, rhs))
        s = lax.full(shape, 0, np.float64)
        for k in range(lhs.shape[0]):
            a, b = (_term(x, k, shape) for x in (lhs, rhs))
            t, error = canonical.two_sum(a * b, s)
            i = lax.bitcast_convert_type(t, np.uint64)
            high = lax.shift_right_logical(i, lax.full_like(i, 32))
            high = lax.convert_element_type(high, np.uint32)
            exponent = lax.shift_left(high, lax.full_like(high, 1))
            # What is less than 2**-125, and not 0; at least 2**127; and a middle that is not exact.
            self._note(((1023 - 125) << 21) - 1, exponent - np.uint32(1))
            self._note(~((1023 + 127) << 21) & 0xFFFFFFFF, ~exponent)
            low = lax.convert_element_type(i, np.uint32) + np.uint32(0x10000000)
            low = lax.shift_left(low, lax.full_like(low, 3))
            self._note(0, lax.select(error == 0, ~lax.full_like(low, 0), low))
            s = canonical.to_float64(_unseen(lax.convert_element_type(t, np.float32)))
        return _positive(lax.convert_element_type(s, np.float32))


def _term(x, k: int, shape):
    """``x[k]``, of the shape of a chain."""
    x = lax.index_in_dim(x, k, keepdims=False)
    return lax.broadcast_in_dim(x, shape, range(len(shape)))


def _minimum(xs: Sequence[jax.Array]):
    """By pairs, so that they wait for each other as little as may be."""
    while len(xs) > 1:
        xs = [*map(lax.min, xs[::2], xs[1::2]), *xs[len(xs) & ~1 :]]
    return xs[0]


def _numbers(x) -> list[jax.Array]:
    """Numbers of which the least is the least of an array."""
    if x.size > canonical.FEW:
        return [lax.reduce_min(x, range(x.ndim))]
    return [x.reshape(-1)[k] for k in range(x.size)]


_WITHOUT_GUARDS: dict[Any, Callable[..., Any]] = {
    enter_p: _Operations.enter,
    leave_p: _Operations.leave,
    arithmetic.canonicalize_p: _Operations.canonicalize,
    arithmetic.add_p: _Operations.add,
    arithmetic.sub_p: _Operations.sub,
    arithmetic.mul_p: _Operations.mul,
    arithmetic.neg_p: _Operations.neg,
    arithmetic.div_p: _Operations.div,
    arithmetic.sqrt_p: _Operations.sqrt,
    arithmetic.square_p: _Operations.square,
    arithmetic.integer_pow_p: _Operations.integer_pow,
    add_n_p: _Operations.add_n,
    dot_general_p: _Operations.dot_general,
}


def _has_form(equation) -> bool:
    (result, *_) = (v.aval for v in equation.outvars)
    return (
        equation.primitive in _WITHOUT_GUARDS
        and result.dtype == np.float32
        and result.size <= _ELEMENTS
        and _is_of_few(equation)
    )


def _is_of_few(equation) -> bool:
    """Whether there are few terms, all of which are written into the program."""
    if equation.primitive is add_n_p:
        return len(equation.invars) <= MOST_PARTS
    if equation.primitive is dot_general_p:
        return equation.params["contraction"] == "sequential" and 0 < _steps(equation) <= _STEPS
    return True


def _steps(product) -> int:
    """The fused multiply-adds of the equation of a product."""
    shapes = (v.aval for v in product.invars)
    _, problem = problems.dot_general(*shapes, product.params["dimension_numbers"])
    return math.prod(problem.sizes)


def _roundings(equation) -> int:
    """The guards that an equation has, and that it is without in another form."""
    if not _has_form(equation):
        return 0
    return _steps(equation) if equation.primitive is dot_general_p else 1


# --- programs ---------------------------------------------------------------------------


def _opened(closed):
    """The program with what is fused as the equations that it is."""

    def program(*operands):
        jaxpr, consts = open_jaxpr(closed)
        environment = _environment(jaxpr, consts, operands)
        for equation in jaxpr.eqns:
            if equation.primitive in _FUSED:
                operands = [_value(v, environment) for v in equation.invars]
                results = equation.primitive.impl(*operands, **equation.params)
                results = results if equation.primitive.multiple_results else [results]
                environment.update(zip(equation.outvars, results, strict=True))
            else:
                run(equation, environment)
        return [_value(v, environment) for v in jaxpr.outvars]

    return jax.make_jaxpr(program)(*(struct(v.aval) for v in open_jaxpr(closed)[0].invars))


def _environment(jaxpr, consts, operands) -> dict[Any, Any]:
    return dict(zip((*jaxpr.constvars, *jaxpr.invars), (*consts, *operands), strict=True))


def _value(atom, environment):
    if isinstance(atom, Literal):
        return np.asarray(atom.val, atom.aval.dtype)
    return environment[atom]


def _speculated(closed):
    """The program without guards, but for what is computed again where these change something."""
    jaxpr, consts = open_jaxpr(_opened(closed))
    turns = _turns(jaxpr.eqns)

    def program(*operands):
        environment = _environment(jaxpr, consts, operands)
        needed = [_used_by(equations) for _, equations in turns]
        for i, (is_small, equations) in enumerate(turns):
            if is_small:
                after = {*variables(jaxpr.outvars)}.union(*needed[i + 1 :])
                _speculate(equations, after, environment)
            else:
                for equation in equations:
                    run(_with_loop(equation), environment)
        return [_value(v, environment) for v in jaxpr.outvars]

    return jax.make_jaxpr(program)(*(struct(v.aval) for v in jaxpr.invars))


def _with_loop(equation):
    """The equation, if it is a loop, without guards."""
    if equation.primitive is not loop_p:
        return equation
    loop = equation.params["loop"]
    loop = dataclasses.replace(loop, equation=without_guards(loop.equation))
    return equation.replace(params={"loop": loop})


def _turns(equations) -> list[tuple[bool, list[Any]]]:
    """Equations in an order that they can be computed in: by turns those that :func:`_is_small`
    says are to be computed together, as many as possible, and others."""
    turns, is_small = [], False
    while equations:
        taken, left, missing = [], [], set()
        for equation in equations:
            if _is_small(equation) == is_small and missing.isdisjoint(variables(equation.invars)):
                taken.append(equation)
            else:
                left.append(equation)
                missing.update(equation.outvars)
        turns.append((is_small, taken))
        equations, is_small = left, not is_small
    return turns


def _is_small(equation) -> bool:
    """Whether it may be computed twice, in a branch of few values."""
    sizes = (v.aval.size for v in (*equation.invars, *equation.outvars))
    return (
        equation.primitive is not loop_p
        and equation.primitive.name not in _LOOPS
        and max(sizes, default=0) <= _COPIED
    )


def _used_by(equations) -> list[Any]:
    return list(dict.fromkeys(v for equation in equations for v in variables(equation.invars)))


def _doubtful(equations) -> list[Any]:
    """Those that have a form without guards, and what needs their results."""
    doubtful, made = [], set()
    for equation in equations:
        if _has_form(equation) or not made.isdisjoint(variables(equation.invars)):
            doubtful.append(equation)
            made.update(equation.outvars)
    return doubtful


def _speculate(equations, after: set[Any], environment) -> None:
    """Compute equations without guards, and again with them if these change something.

    ``after`` are the variables that are needed.
    """
    again = _doubtful(equations)
    made = [v for equation in again for v in equation.outvars]
    known = [v for v in _used_by(again) if v not in set(made)]
    results = [v for v in made if v in after]
    if sum(v.aval.size for v in results) > _RESULTS * sum(map(_roundings, again)):
        again = []  # the branch would copy more than there is to gain
    operations, guessed = _Operations(), {id(equation) for equation in again}
    for equation in equations:
        if id(equation) in guessed and _has_form(equation):
            form = _WITHOUT_GUARDS[equation.primitive]
            operands = [_value(v, environment) for v in equation.invars]
            (result,) = equation.outvars
            with guards_for("cpu"):
                environment[result] = operations.apply(form, *operands, **equation.params)
            continue
        run(equation, environment)
        if again and is_long(equation):  # of which XLA would make a copy for what is noted
            (result,) = equation.outvars
            environment[result] = arithmetic.materialize_p.bind(environment[result])
    if not operations.has_noted():
        return

    def with_guards(known_values, _):
        inside = dict(zip(known, known_values, strict=True))
        for equation in again:
            run(equation, inside)
        return [inside[v] for v in results]

    values = [[environment[v] for v in vs] for vs in (known, results)]
    chosen = lax.cond(operations.is_any_wrong(), with_guards, lambda _, results: results, *values)
    environment.update(zip(results, chosen, strict=True))
