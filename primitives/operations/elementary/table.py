"""The table of the elementary functions: one row for each.

What else names the functions reads it: the primitives and their rules (this package),
``repjax.lax``, the C++ kernel (:mod:`repjax.primitives.cpu.bytecode`, ``write_elementary``), row
groups on GPUs (:mod:`repjax.primitives.fusion.rows`), the conformance cases
(``repjax/verify/vectors.py``), the tests of every function, and the tables of ``docs/numerics.md``,
section 3, and ``docs/primitives.md``, which ``python tests/stock_primitives.py`` writes.

Bodies, oracle, hard inputs and test cases are not made from it: they are what is compared.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import numpy as np
from jax import lax

from repjax.primitives.core.tables import PRIMITIVES
from repjax.primitives.operations.arithmetic import (
    add,
    div,
    mul,
    neg,
    one_minus_square_p,
    rsqrt_p,
    square_p,
    sub,
)

Derivative = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class Own:
    """What ``repjax.lax`` has where ``jax.lax`` has no such function, or not in every version.

    Attributes:
      stock: a function of the same shapes, of operations that ``jax.lax`` has.
      summary: the first words of the docstring.
      note: its second paragraph.
      returns: what it says of results, besides shape and type.
    """

    stock: Callable[..., Any]
    summary: str
    note: str
    returns: str


@dataclasses.dataclass(frozen=True)
class Row:
    """A correctly rounded function; its body is in the module of its name.

    Attributes:
      name: of the function, its module and its primitive; that of ``jax.lax``, unless ``own``.
      formula, specials: what it is, and special values, as ``docs/numerics.md`` has them.
      arity: its operands.
      derivative: ``jvp(tangents, result, *operands)``, where the contract states a graph of its
        own; else JAX's graph of the stock function.
      own: where ``jax.lax`` has no such function, or not in every version.
      rule: the rule of the stock primitive: ``plain``, or ``written`` where this package writes it
        out; None where no version of JAX has such a primitive.
      code_size: what it adds to the code of a loop (``tables.CODE_SIZE``); None if it begins one.
      on_scalars: whether a scalar goes through it before it is broadcast (``tables.ELEMENTWISE``).
      in_rows: whether kernels of row groups on GPUs evaluate the body.
      in_cpp: whether it is an operation of the C++ kernel, in the order of the rows.
    """

    name: str
    formula: str
    specials: str
    arity: int = 1
    derivative: Derivative | None = None
    own: Own | None = None
    rule: str | None = "plain"
    code_size: int | None = 16
    on_scalars: bool = True
    in_rows: bool = True
    in_cpp: bool = False


# --- derivatives ------------------------------------------------------------------------


def _scalar(value, x):
    return np.asarray(value, x.dtype)


def _exp(x):
    return PRIMITIVES["exp"].bind(x)


def _erf_derivative(sign: int) -> Derivative:
    factor = sign * 2 / np.sqrt(np.pi)

    def jvp(tangents, result, x):
        return mul(_scalar(factor, x), mul(tangents[0], _exp(neg(square_p.bind(x)))))

    return jvp


def _acosh_factor(x):
    one = _scalar(1, x)
    return mul(rsqrt_p.bind(sub(x, one)), rsqrt_p.bind(add(x, one)))


def _log_derivative(base: int) -> Derivative:
    def jvp(tangents, result, x):
        return div(tangents[0], mul(x, _scalar(np.log(base), x)))

    return jvp


def _hypot_derivative(tangents, result, x, y):
    terms = [
        mul(div(leg, result), t) for leg, t in zip((x, y), tangents, strict=True) if t is not None
    ]
    return functools.reduce(add, terms)


# --- functions that jax.lax lacks -------------------------------------------------------


def _logarithm(base: int) -> Own:
    return Own(
        lambda x: lax.div(lax.log(x), lax.full_like(x, np.log(base))),
        f"The logarithm to base {base}",
        f"``jax.numpy.log{base}`` may be a quotient of two natural logarithms, and then has other "
        "bits.",
        "-inf for 0, NaN below 0",
    )


_EXP10 = Own(
    lambda x: lax.exp(lax.mul(x, lax.full_like(x, np.log(10)))),
    "``10**x``",
    "``10.0**x`` is ``pow``, which takes longer.",
    "+0 for -inf. The derivative is y * c * t for the result y, tangents t and c = log(10)",
)
_HYPOT = Own(
    lambda x, y: lax.sqrt(lax.add(lax.square(x), lax.square(y))),
    "``sqrt(x**2 + y**2)``",
    "``jax.numpy.hypot`` is a graph of several operations, each of which rounds, and has other "
    "bits.",
    "inf if x or y is infinite, even if the other is NaN. The derivative is x / h * t + y / h * s "
    "for tangents t and s; it is NaN for x = y = 0",
)


# --- the table --------------------------------------------------------------------------

#: Functions of the C++ kernel first: the kernel numbers them in this order, and certificates in
#: docs/proofs name programs with these numbers, so a new one of them comes behind the others.
TABLE = (
    Row("exp", "e**x", "exp(-inf) = +0", in_cpp=True),
    Row("exp2", "2**x", "exp2(-inf) = +0", in_cpp=True),
    Row(
        "expm1",
        "e**x - 1",
        "expm1(-inf) = -1",
        derivative=lambda t, y, x: mul(t[0], _exp(x)),
        in_cpp=True,
    ),
    Row("log", "natural logarithm", "log(0) = -inf, NaN below 0", in_cpp=True),
    Row("log1p", "log(1 + x)", "log1p(-1) = -inf, NaN below -1", in_cpp=True),
    Row(  # a primitive of JAX from 0.11 on
        "log2",
        "logarithm to base 2",
        "log2(0) = -inf, NaN below 0",
        derivative=_log_derivative(2),
        own=_logarithm(2),
        code_size=None,
        in_cpp=True,
    ),
    Row(
        "log10",
        "logarithm to base 10",
        "log10(0) = -inf, NaN below 0",
        derivative=_log_derivative(10),
        own=_logarithm(10),
        rule=None,
        code_size=None,
        on_scalars=False,
        in_cpp=True,
    ),
    Row(
        "tanh",
        "hyperbolic tangent",
        "tanh(±inf) = ±1",
        derivative=lambda t, y, x: mul(t[0], one_minus_square_p.bind(y)),
        in_cpp=True,
    ),
    Row("logistic", "1 / (1 + e**-x)", "logistic(-inf) = +0, logistic(+inf) = 1", in_cpp=True),
    Row("erf", "error function", "erf(±inf) = ±1", derivative=_erf_derivative(1), in_cpp=True),
    Row(
        "erfc",
        "1 - erf(x)",
        "erfc(+inf) = +0, erfc(-inf) = 2",
        derivative=_erf_derivative(-1),
        in_cpp=True,
    ),
    Row("erf_inv", "inverse error function", "erf_inv(±1) = ±inf, NaN beyond", in_cpp=True),
    Row("sinh", "hyperbolic sine", "sinh(±inf) = ±inf", in_cpp=True),
    Row("cosh", "hyperbolic cosine", "cosh(±inf) = +inf", in_cpp=True),
    # These two take long to compile in a kernel of row groups.
    Row(
        "lgamma",
        "log of abs(Gamma(x))",
        "+inf at ±inf, 0 and the negative integers",
        code_size=256,
        in_rows=False,
        in_cpp=True,
    ),
    Row(
        "digamma",
        "derivative of `lgamma`",
        "digamma(0) = -inf, NaN at the negative integers and -inf",
        code_size=256,
        in_rows=False,
        in_cpp=True,
    ),
    Row("sin", "sine", "NaN at ±inf", in_cpp=True),
    Row("cos", "cosine", "NaN at ±inf", in_cpp=True),
    Row("tan", "tangent", "NaN at ±inf", in_cpp=True),
    Row(
        "exp10",
        "10**x",
        "exp10(-inf) = +0",
        derivative=lambda t, y, x: mul(t[0], mul(y, _scalar(np.log(10), x))),
        own=_EXP10,
        rule=None,
    ),
    Row("cbrt", "cube root", "cbrt(-x) = -cbrt(x)"),
    Row(
        "asin",
        "inverse sine",
        "NaN outside [-1, 1]",
        derivative=lambda t, y, x: mul(t[0], rsqrt_p.bind(one_minus_square_p.bind(x))),
    ),
    Row(
        "acos",
        "inverse cosine",
        "NaN outside [-1, 1]",
        derivative=lambda t, y, x: mul(t[0], neg(rsqrt_p.bind(one_minus_square_p.bind(x)))),
    ),
    Row("atan", "inverse tangent", "atan(±inf) = ±pi/2 rounded"),
    Row(
        "asinh",
        "inverse hyperbolic sine",
        "asinh(±inf) = ±inf",
        derivative=lambda t, y, x: mul(t[0], rsqrt_p.bind(add(square_p.bind(x), _scalar(1, x)))),
    ),
    Row(
        "acosh",
        "inverse hyperbolic cosine",
        "NaN below 1",
        derivative=lambda t, y, x: mul(t[0], _acosh_factor(x)),
    ),
    Row(
        "atanh",
        "inverse hyperbolic tangent",
        "atanh(±1) = ±inf, NaN beyond",
        derivative=lambda t, y, x: div(t[0], one_minus_square_p.bind(x)),
    ),
    Row(
        "pow",
        "x**y, y float32",
        "those of C99 with +0 as the only zero, below",
        arity=2,
        rule="written",
        code_size=None,
        on_scalars=False,
        in_cpp=True,
    ),
    Row("atan2", "`atan2(y, x)`: the angle of the point (x, y)", "those of C99 likewise, below", 2),
    Row(
        "hypot",
        "sqrt(x**2 + y**2)",
        "+inf if one is ±inf, even if the other is NaN",
        arity=2,
        derivative=_hypot_derivative,
        own=_HYPOT,
        rule=None,
        code_size=None,
        on_scalars=False,
        in_cpp=True,
    ),
)


def names(**attributes: Any) -> tuple[str, ...]:
    """The functions whose rows have these attributes, in the order of the table."""
    return tuple(
        row.name
        for row in TABLE
        if all(getattr(row, name) == value for name, value in attributes.items())
    )
