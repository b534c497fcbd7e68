"""Random programs of JAX, as data: what tests/fuzz.py runs.

``generate(seed)`` gives a program as a dict that JSON can hold: inputs (names, types, and how to
make the data), statements (a name and the text of an expression), the outputs, and the
transformations that are applied to all of it.  Since statements are text, one process makes a
program and another runs the very same one, with another version of JAX.

``ROWS`` is the table of operations.  A row is a function of a :class:`Draft` that picks operands
among what the program has computed so far, or makes new inputs, and returns an expression.

Nothing here imports repjax.
"""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import math
import random
import re
import textwrap
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.ad_checkpoint import checkpoint_name
from jax.extend import core

Program = dict[str, Any]

FLOATS = ("float32", "float16", "bfloat16")
INTEGERS = ("int32", "int8", "int16", "uint8", "uint32")
#: No array is larger: eight vectors of the widest kernel and a rest.
LARGEST = 1100
NAME = re.compile(r"\b[vx]\d+\b")

ORDERS = (
    ("pairwise", "sequential"),
    ("order_independent", "order_independent"),
    ("sequential", "sequential"),
)


@dataclasses.dataclass(frozen=True)
class Value:
    """What a statement or an input is: its name and type."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    def __str__(self) -> str:
        return self.name

    @property
    def rank(self) -> int:
        return len(self.shape)

    @property
    def is_float(self) -> bool:
        return self.dtype in FLOATS

    @property
    def is_integer(self) -> bool:
        return self.dtype in INTEGERS


class Retry(Exception):
    """What was drawn cannot be: draw again."""


class Draft:
    """A program in the making, and how to draw from it.

    Attributes:
      reverse: how often the program is differentiated in reverse mode.
      forward: how often in either mode.
    """

    def __init__(self, rng: random.Random, forward: int = 0, reverse: int = 0):
        self.rng = rng
        self.forward, self.reverse = forward, reverse
        self.inputs: list[dict[str, Any]] = []
        self.count = 0  # of inputs, also of those that were not needed after all
        self.statements: list[tuple[str, str]] = []
        self.values: list[Value] = []
        self.float_type = self.choose(FLOATS, (70, 15, 15))
        self.data = self.choose(tuple(DATA), (40, 5, 8, 5, 30, 5, 7))
        self.dims = tuple(self.dim() for _ in range(4))

    # --- numbers ------------------------------------------------------------------------

    def choose(self, options, weights=None):
        options = list(options)
        if not options:
            raise Retry
        return self.rng.choices(options, weights)[0] if weights else self.rng.choice(options)

    def flip(self, chance: float = 0.5) -> bool:
        return self.rng.random() < chance

    def integer(self, low: int, high: int) -> int:
        """Both included."""
        return self.rng.randint(low, high)

    def dim(self) -> int:
        return self.choose((1, 2, 3, 4, 5, 7, 8, 17, 0), (10, 16, 16, 14, 10, 8, 8, 4, 3))

    def shape(self, low: int = 0, high: int = 3) -> tuple[int, ...]:
        """Of few sizes, so that values fit each other, and eager programs are compiled once."""
        if self.flip(0.04) and low <= 1 <= high:
            return (self.choose((64, 257, 1000)),)
        rank = self.choose(range(low, high + 1), [(2, 5, 8, 4, 2)[r] for r in range(low, high + 1)])
        return tuple(self.choose(self.dims) for _ in range(rank))

    def axis(self, x: Value) -> int:
        """An axis, from the front or from behind."""
        if not x.rank:
            raise Retry
        return self.integer(-x.rank, x.rank - 1)

    def axes(self, x: Value, low: int = 0) -> tuple[int, ...]:
        """Some axes in any order."""
        return tuple(self.rng.sample(range(x.rank), self.integer(min(low, x.rank), x.rank)))

    def permutation(self, n: int) -> tuple[int, ...]:
        return tuple(self.rng.sample(range(n), n))

    def number(self) -> str:
        """A literal."""
        return repr(self.choose((0.5, 2.0, 3.0, -1.0, 0.1, 1e-3, -0.0, 1e30, 1e-30, 7.0, 1.0)))

    # --- operands -----------------------------------------------------------------------

    def new(self, shape, dtype: str, kind: str | None = None) -> Value:
        """A new input."""
        if math.prod(shape) > LARGEST or len(self.inputs) >= 8:
            raise Retry
        if kind is None:
            kind = self.data if dtype in FLOATS else self.choose(("ties", "patterns"), (4, 1))
        value = Value(f"x{self.count}", tuple(shape), dtype)
        self.count += 1
        self.inputs.append(
            {
                "name": value.name,
                "shape": list(shape),
                "dtype": dtype,
                "kind": kind,
                "seed": self.rng.getrandbits(32),
            }
        )
        self.values.append(value)
        return value

    def operand(self, accept: Callable[[Value], bool], make: Callable[[], Value]) -> Value:
        """A value that is there, rather a late one, or sometimes a new one."""
        found = [v for v in self.values if accept(v)]
        if found and self.flip(0.85):
            return self.choose(found, [1 + 2 * i for i in range(len(found))])
        return make()

    def floats(self, low: int = 0, high: int = 4) -> Value:
        return self.operand(
            lambda v: v.is_float and low <= v.rank <= high,
            lambda: self.new(self.shape(low, min(high, 3)), self.float_type),
        )

    def integers(self, low: int = 0, high: int = 4) -> Value:
        return self.operand(
            lambda v: v.is_integer and low <= v.rank <= high,
            lambda: self.new(self.shape(low, min(high, 3)), self.choose(INTEGERS, (6, 1, 1, 1, 1))),
        )

    def numbers(self, low: int = 0, high: int = 4) -> Value:
        return self.floats(low, high) if self.flip(0.9) else self.integers(low, high)

    def any(self, low: int = 0, high: int = 4) -> Value:
        return self.operand(
            lambda v: low <= v.rank <= high,
            lambda: self.new(self.shape(low, min(high, 3)), FLOATS[0]),
        )

    def like(self, shape, dtype: str, kind: str | None = None) -> Value:
        """A value of this type."""
        return self.operand(
            lambda v: v.shape == tuple(shape) and v.dtype == dtype,
            lambda: self.new(shape, dtype, kind),
        )

    def beside(self, x: Value) -> Value:
        """A value of x's format whose shape fits x's as NumPy has it."""
        shape = [n if self.flip(0.85) else 1 for n in x.shape]
        if self.flip(0.2):
            shape = shape[self.integer(0, len(shape)) :]
        return self.like(shape, x.dtype)

    def booleans(self, shape) -> str:
        """An expression for booleans of this shape."""
        found = [v for v in self.values if v.shape == tuple(shape) and (v.is_float or v.is_integer)]
        if not found:
            return str(self.like(shape, "bool", "ties"))
        x = self.choose(found)
        return f"({x} {self.choose(('<', '>', '<=', '==', '!='))} {self.like(shape, x.dtype)})"

    def indices(self, shape, size: int) -> str:
        """Positions in an axis: of the program, or constants; some beyond its ends."""
        if self.flip(0.7):
            return str(self.new(shape, "int32", f"index {size}"))
        count = math.prod(shape)
        flat = [
            self.integer(-1, size) if self.flip(0.2) else self.integer(0, max(size - 1, 0))
            for _ in range(count)
        ]
        return f"np.array({flat}, np.int32).reshape({tuple(shape)})"

    def inner(self, names: list[str], depth: int = 2) -> str:
        """An elementwise expression of names of one format, of any of their shapes."""
        if depth == 0 or self.flip(0.2):
            return self.choose(names)
        if self.flip(0.5):
            function = self.choose(
                ("jnp.sin", "jnp.tanh", "jnp.exp", "jnp.abs", "jnp.sqrt", "lax.logistic", "-")
            )
            return f"{function}({self.inner(names, depth - 1)})"
        first, second = (self.inner(names, depth - 1) for _ in range(2))
        operator = self.choose(("+", "-", "*", "*", "/"))
        return f"({first} {operator} {second})"


# --- the table ---------------------------------------------------------------------------

Row = Callable[[Draft], str]
ROWS: dict[str, tuple[float, Row]] = {}


def row(weight: float):
    """Register a row; rows of greater weight are drawn more often."""

    def register(function: Row) -> Row:
        ROWS[function.__name__] = weight, function
        return function

    return register


def _words(text: str) -> list[str]:
    return text.split()


UNARY = _words("""
lax.acos lax.acosh lax.asin lax.asinh lax.atan lax.atanh lax.bessel_i0e lax.bessel_i1e lax.cbrt
lax.ceil lax.cos lax.cosh lax.digamma lax.erf lax.erf_inv lax.erfc lax.exp lax.exp2 lax.expm1
lax.floor lax.lgamma lax.log lax.log1p jnp.log2 lax.logistic lax.neg lax.round lax.rsqrt lax.sin
lax.sinh lax.sqrt lax.square lax.tan lax.tanh lax.sign lax.abs jax.nn.relu jax.nn.gelu jax.nn.silu
jax.nn.softplus jax.nn.elu jax.nn.selu jax.nn.log_sigmoid jax.nn.mish jnp.nan_to_num jnp.sinc
jnp.log10 jnp.rint jnp.trunc jnp.deg2rad lax.reciprocal lax.stop_gradient jnp.frexp({})[0]
jnp.i0 jax.scipy.special.ndtr jax.scipy.special.log_ndtr jax.scipy.special.entr
jax.scipy.special.logit jax.nn.hard_swish jax.nn.relu6 jnp.signbit jnp.isfinite lax.is_finite
lax.optimization_barrier jnp.spacing jnp.modf({})[0]
""")
#: Their code is long, so that they take seconds to compile.
RARE = {"lax.lgamma", "lax.digamma", "lax.erf_inv", "jax.scipy.special.log_ndtr", "jnp.spacing"}


def call(function: str, *operands) -> str:
    text = ", ".join(map(str, operands))
    return function.format(text) if "{}" in function else f"{function}({text})"


@row(14)
def unary(d: Draft) -> str:
    function = d.choose(UNARY, [0.25 if f in RARE else 1 for f in UNARY])
    if function == "jnp.spacing" and d.forward:
        raise Retry
    x = d.floats()
    if "ndtr" in function and x.dtype != "float32":
        raise Retry  # JAX has these for float32 alone
    return call(function, x)


@row(14)
def binary(d: Draft) -> str:
    x = d.floats()
    function = d.choose(
        ("jnp.add", "jnp.subtract", "jnp.multiply", "jnp.divide", "jnp.maximum", "jnp.minimum"),
        (5, 5, 6, 4, 2, 2),
    )
    operands = [x, d.beside(x)]
    d.rng.shuffle(operands)
    return call(function, *operands)


@row(4)
def binary_functions(d: Draft) -> str:
    x = d.floats()
    function = d.choose(
        _words(
            """jnp.power jnp.arctan2 jnp.fmod jnp.remainder jnp.floor_divide jnp.logaddexp jnp.hypot
            jnp.copysign jnp.fmax jnp.logaddexp2 jnp.heaviside jnp.ldexp jax.scipy.special.xlogy
            lax.rem lax.pow lax.atan2 lax.nextafter jnp.float_power"""
        )
    )
    if function == "jnp.ldexp":
        return call(function, x, d.like(x.shape, "int32"))
    if function == "lax.nextafter":
        if d.forward:
            raise Retry
        return call(function, x, d.like(x.shape, x.dtype))
    y = d.like(x.shape, x.dtype) if function.startswith("lax") else d.beside(x)
    return call(function, x, y)


@row(1)
def special(d: Draft) -> str:
    x = d.floats(0, 2)
    y = d.like(x.shape, x.dtype)
    if d.flip(0.1):  # loops of many iterations: seconds
        return f"lax.igamma(lax.stop_gradient({x}), {y})"
    choices = (
        f"lax.polygamma(jnp.full({x.shape}, {d.integer(0, 3)}.0, {x}.dtype), {x})",
        f"lax.zeta(lax.stop_gradient({x}), lax.stop_gradient({y}))",
    )
    return d.choose(choices)


@row(5)
def with_a_literal(d: Draft) -> str:
    x = d.floats()
    operator = d.choose("+-*/")
    text = f"{x} {operator} {d.number()}" if d.flip(0.7) else f"{d.number()} {operator} {x}"
    return f"({text})"


@row(4)
def powers(d: Draft) -> str:
    x = d.floats()
    if d.flip(0.7):
        return f"{x} ** {d.integer(-4, 7)}"
    return f"lax.pow({x}, {d.like(x.shape, 'int32')})"


@row(3)
def products_and_sums(d: Draft) -> str:
    """What compilers like to contract and to reassociate."""
    x = d.floats()
    y, z = d.like(x.shape, x.dtype), d.like(x.shape, x.dtype)
    a, b = d.number(), d.number()
    return d.choose(
        (
            f"{x} * {y} + {z}",
            f"{x} * {y} - {x} * {z}",
            f"({x} + {a}) + {b}",
            f"({x} * {a}) * {b}",
            f"({x} + {y}) - {y}",
            f"{x} / jnp.sqrt({y} * {y} + {z} * {z})",
            f"jnp.log(jnp.exp({x}))",
            f"({x} - {y}) * ({x} + {y})",
            f"1 / (1 / {x})",
        )
    )


@row(3)
def choices(d: Draft) -> str:
    x = d.numbers()
    y = d.like(x.shape, x.dtype)
    which = d.integer(0, 3)
    if which == 0:
        return f"jnp.where({d.booleans(x.shape)}, {x}, {y})"
    if which == 1:
        # JAX has the derivative for bounds of one shape only.
        shape = x.shape if d.forward or d.flip() else ()
        low, high = d.like(shape, x.dtype), d.like(shape, x.dtype)
        return f"lax.clamp({low}, {x}, {high})"
    if which == 2:
        z = d.like(x.shape, x.dtype)
        cases = d.new(x.shape, "int32", "index 3")
        return f"lax.select_n(jnp.clip({cases}, 0, 2), {x}, {y}, {z})"
    return f"jnp.select([{d.booleans(x.shape)}, {d.booleans(x.shape)}], [{x}, {y}], 0)"


@row(2)
def comparisons(d: Draft) -> str:
    x = d.numbers()
    function = d.choose(("eq", "ne", "lt", "le", "gt", "ge"))
    y = d.like(x.shape, x.dtype)
    return d.choose((f"lax.{function}({x}, {y})", f"lax.{function}({x}, {y}).astype(np.int32)"))


@row(4)
def conversions(d: Draft) -> str:
    x = d.any()
    if d.flip(0.15) and x.is_float:
        word = "np.int32" if x.dtype == "float32" else "np.int16"
        if d.flip():
            return f"lax.bitcast_convert_type({x}, {word})"
        return f"lax.bitcast_convert_type(lax.bitcast_convert_type({x}, {word}), {x}.dtype)"
    if d.flip(0.15) and x.is_float:
        return f"lax.reduce_precision({x}, {d.integer(2, 8)}, {d.integer(1, 23)})"
    target = d.choose((*FLOATS, *INTEGERS, "bool"), (4, 3, 3, 2, 1, 1, 1, 1, 1))
    return f"{x}.astype(jnp.dtype({target!r}))"


@row(3)
def integer_arithmetic(d: Draft) -> str:
    x = d.integers()
    y = d.like(x.shape, x.dtype)
    function = d.choose(
        _words(
            """lax.add lax.sub lax.mul lax.bitwise_and lax.bitwise_or lax.bitwise_xor lax.shift_left
            lax.shift_right_logical lax.shift_right_arithmetic lax.max lax.min lax.bitwise_not
            lax.population_count lax.clz lax.neg lax.abs lax.sign lax.div lax.rem jnp.floor_divide
            jnp.mod lax.square lax.integer_pow"""
        )
    )
    if function == "lax.integer_pow":
        return f"lax.integer_pow({x}, {d.integer(0, 4)})"
    short = function.rpartition(".")[2]
    if short in ("abs", "sign") and x.dtype.startswith("u"):
        raise Retry
    if short in ("bitwise_not", "population_count", "clz", "neg", "abs", "sign", "square"):
        return call(function, x)
    return call(function, x, y)


# --- reductions --------------------------------------------------------------------------


@row(10)
def reductions(d: Draft) -> str:
    x = d.numbers(1)
    axes = d.axes(x)
    function = d.choose(("sum", "mean", "prod", "max", "min", "var", "std"), (8, 3, 2, 3, 2, 1, 1))
    if function in ("max", "min") and any(x.shape[a] == 0 for a in axes):
        function = "sum"
    keep = ", keepdims=True" if d.flip(0.3) else ""
    where = f", where={d.booleans(x.shape)}" if function == "sum" and d.flip(0.15) else ""
    return f"jnp.{function}({x}, axis={axes}{keep}{where})"


@row(3)
def normalizations(d: Draft) -> str:
    x = d.floats(1)
    axis = d.axis(x)
    if x.shape[axis] == 0:
        raise Retry
    return d.choose(
        (
            f"jax.nn.softmax({x}, axis={axis})",
            f"jax.nn.log_softmax({x}, axis={axis})",
            f"jax.nn.logsumexp({x}, axis={axis})",
            f"jax.nn.standardize({x}, axis={axis})",
            f"({x} - {x}.mean({axis}, keepdims=True)) * lax.rsqrt({x}.var({axis}, keepdims=True)"
            " + 0.001)",
            f"jnp.linalg.norm({x}, axis={axis})",
        )
    )


@row(2)
def other_reductions(d: Draft) -> str:
    x = d.numbers(1)
    axis = d.integer(0, x.rank - 1)
    y = d.like(x.shape, x.dtype)
    if x.shape[axis] == 0:
        raise Retry
    arg = d.choose(("argmax", "argmin"))
    logical = d.choose(("jnp.any", "jnp.all", "jnp.count_nonzero"))
    zero = f"jnp.zeros((), {x}.dtype)"
    choices = [
        f"jnp.{arg}({x}, axis={axis})",
        f"{logical}({x} > {y}, axis={axis})",
        f"jnp.median({x}, axis={axis})" if x.is_float else f"jnp.ptp({x}, axis={axis})",
        f"lax.reduce({x}, {zero}, lambda a, b: {d.inner(['a', 'b'])}, ({axis},))"
        if x.is_float and not d.forward
        else f"jnp.nanmax({x}, axis={axis})",
    ]
    if x.is_integer:
        function = d.choose(("lax.bitwise_and", "lax.bitwise_or", "lax.bitwise_xor"))
        choices.append(f"lax.reduce({x}, {zero}, {function}, ({axis},))")
    return d.choose(choices)


@row(4)
def cumulative(d: Draft) -> str:
    x = d.numbers(1)
    axis = d.integer(0, x.rank - 1)
    reverse = d.flip()
    function = d.choose(("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp"), (4, 2, 1, 1, 1))
    if function == "cumlogsumexp" and not x.is_float:
        function = "cumsum"
    if d.flip(0.15):
        names = ["a", "b"]
        return f"lax.associative_scan(lambda a, b: {d.inner(names, 1)}, {x}, axis={axis})"
    return f"lax.{function}({x}, axis={axis}, reverse={reverse})"


@row(4)
def windows(d: Draft) -> str:
    x = d.floats(1)
    function, initial = d.choose(
        (("lax.add", "0"), ("lax.max", "-jnp.inf"), ("lax.min", "jnp.inf")), (2, 2, 1)
    )
    sizes = tuple(d.integer(1, min(max(n, 1), 4)) for n in x.shape)
    strides = tuple(d.integer(1, 3) for _ in x.shape)
    padding = [(d.integer(0, 2), d.integer(0, 2)) for _ in x.shape]
    padding = d.choose((padding, "'VALID'", "'SAME'"))
    more = ""
    # JAX differentiates extrema of windows without holes only, and those once in reverse mode.
    if function == "lax.add" or not d.forward:
        dilation = tuple(d.integer(1, 2) for _ in x.shape)
        more = d.choose(("", f", base_dilation={dilation}", f", window_dilation={dilation}"))
    elif d.forward > 1:
        raise Retry
    if not d.forward and d.flip(0.1):
        function, initial = f"lambda a, b: {d.inner(['a', 'b'], 1)}", "0"
    initial = f"jnp.array({initial}, {x}.dtype)" if "lambda" in function else initial
    return (
        f"lax.reduce_window({x}, {initial}, {function}, {sizes}, {strides}, {padding}{more})"
        if "lambda" not in function
        else f"lax.reduce_window({x}, {initial}, {function}, {sizes}, {strides}, {padding})"
    )


@row(3)
def sorts(d: Draft) -> str:
    x = d.numbers(1)
    axis = d.integer(0, x.rank - 1)
    y = d.like(x.shape, d.choose((x.dtype, "int32")))
    if x.shape[axis] == 0:
        raise Retry
    k = d.integer(1, x.shape[axis])
    part = d.integer(0, 1)
    stable = d.flip()
    return d.choose(
        (
            f"jnp.sort({x}, axis={axis}, descending={d.flip()}, stable={stable})",
            f"jnp.argsort({x}, axis={axis}, stable={stable})",
            f"lax.sort(({x}, {y}), dimension={axis}, is_stable={stable}, "
            f"num_keys={d.integer(1, 2)})[{part}]",
            f"lax.top_k({x}, {min(k, x.shape[-1])})[{part}]",
            f"jnp.searchsorted(jnp.sort({x}.ravel()), {y}.ravel().astype({x}.dtype))",
            f"jnp.partition({x}, {k - 1}, axis={axis})",
        )
    )


# --- contractions ------------------------------------------------------------------------


def _precision(d: Draft) -> str:
    more = ""
    if d.flip(0.2):
        more += f", precision=lax.Precision.{d.choose(('HIGHEST', 'HIGH', 'DEFAULT'))}"
    if d.flip(0.15):
        more += ", preferred_element_type=np.float32"
    return more


@row(7)
def dots(d: Draft) -> str:
    """``dot_general`` with any dimension numbers."""
    x = d.floats(1) if d.flip(0.93) else d.integers(1)
    axes = d.permutation(x.rank)
    batch = axes[: d.choose((0, 1, 2), (6, 3, 1))]
    contracted = axes[len(batch) :][: d.choose((0, 1, 2), (1, 7, 2))]
    sizes = [x.shape[a] for a in (*batch, *contracted)]
    sizes += [d.choose(d.dims) for _ in range(d.integer(0, 2))]
    order = d.permutation(len(sizes))  # order[i]: which of the sizes axis i has
    y = d.like([sizes[i] for i in order], x.dtype)
    place = [order.index(i) for i in range(len(batch) + len(contracted))]
    numbers = ((contracted, tuple(place[len(batch) :])), (batch, tuple(place[: len(batch)])))
    more = _precision(d) if x.is_float else ""
    return f"lax.dot_general({x}, {y}, {numbers}{more})"


@row(0.3)
def scaled_products(d: Draft) -> str:
    if d.forward:
        raise Retry  # it has no derivative
    batch, m, k, n = (d.choose((1, 2, 3, 5)) for _ in range(4))
    x, y = d.new((batch, m, 2 * k), "float32"), d.new((batch, n, 2 * k), "float32")
    scales = d.new((batch, m, k), "float32", "tame"), d.new((batch, n, k), "float32", "tame")
    return call("jax.nn.scaled_matmul", x, y, *scales)


@row(2)
def products(d: Draft) -> str:
    x = d.floats(2, 3)
    n = d.choose(d.dims)
    y = d.like((x.shape[-1], n), x.dtype)
    z = d.like(x.shape, x.dtype)
    return d.choose(
        (
            f"{x} @ {y}",
            f"jnp.einsum('...ij,...kj->...ik', {x}, {z})",
            f"jnp.einsum('...ij,...ij->...', {x}, {z})",
            f"jnp.tensordot({x}, {y}, 1)",
            f"jax.nn.relu({x} @ {y})",
        )
    )


@row(5)
def convolutions(d: Draft) -> str:
    """``conv_general_dilated`` with any dimension numbers."""
    rank = d.choose((1, 2, 3), (5, 5, 1))
    groups, batch_groups = d.choose(((1, 1), (2, 1), (1, 2), (3, 1)), (8, 2, 1, 1))
    features = d.integer(1, 3)  # of a group
    outputs = groups * batch_groups * d.integer(1, 3)
    batch = batch_groups * d.integer(1, 2)
    window = [d.integer(1, 3) for _ in range(rank)]
    sizes = [d.integer(2, 6) for _ in range(rank)]

    def placed(kind, shape):
        spec = d.permutation(rank + 2) if d.flip(0.6) else tuple(range(rank + 2))
        result = [0] * (rank + 2)
        for at, n in zip(spec, shape, strict=True):
            result[at] = n
        return spec, d.like(result, kind) if shape[0] is not None else None

    kind = d.float_type if d.flip(0.95) else "int32"
    lhs_spec, x = placed(kind, [batch, groups * features, *sizes])
    rhs_spec, w = placed(kind, [outputs, features, *window])
    out_spec = d.permutation(rank + 2) if d.flip(0.5) else tuple(range(rank + 2))
    strides = tuple(d.integer(1, 3) for _ in range(rank))
    padding = d.choose(
        ("'SAME'", "'VALID'", [(d.integer(-1, 2), d.integer(-1, 2)) for _ in range(rank)]),
        (2, 2, 3),
    )
    more = ""
    if d.flip(0.3) and not isinstance(padding, str):
        more += f", lhs_dilation={tuple(d.integer(1, 3) for _ in range(rank))}"
    if d.flip(0.3):
        more += f", rhs_dilation={tuple(d.integer(1, 2) for _ in range(rank))}"
    if kind != "int32":
        more += _precision(d)
    return (
        f"lax.conv_general_dilated({x}, {w}, {strides}, {padding}, dimension_numbers="
        f"lax.ConvDimensionNumbers({lhs_spec}, {rhs_spec}, {out_spec}), "
        f"feature_group_count={groups}, batch_group_count={batch_groups}{more})"
    )


@row(0.7)
def ragged(d: Draft) -> str:
    x = d.floats(2, 2)
    groups = d.integer(1, 3)
    w = d.like((groups, x.shape[1], d.integer(1, 3)), x.dtype)
    sizes = [d.integer(0, x.shape[0] // groups) for _ in range(groups)]
    return f"lax.ragged_dot({x}, {w}, np.array({sizes}, np.int32))"


# --- gathers and scatters ----------------------------------------------------------------


@row(4)
def takes(d: Draft) -> str:
    x = d.any(1)
    axis = d.axis(x)
    size = x.shape[axis]
    if size == 0:
        raise Retry
    indices = d.indices(d.choose(((), (2,), (3, 2), (0,), (5,))), size)
    mode = d.choose(("clip", "fill", "wrap"))
    i, j = d.indices((3,), x.shape[0] or 1), d.indices((3,), x.shape[-1] or 1)
    choices = [
        f"jnp.take({x}, {indices}, axis={axis}, mode={mode!r})",
        f"{x}[{d.indices((4,), x.shape[0])}]" if x.shape[0] else f"{x}[..., None]",
    ]
    if x.rank > 1 and x.shape[0] and x.shape[-1]:
        choices.append(f"{x}[{i}, ..., {j}]")
        choices.append(f"{x}.at[..., {j}].get(mode='fill', fill_value=0)")
    return d.choose(choices)


@row(3)
def takes_along_an_axis(d: Draft) -> str:
    x = d.any(1)
    axis = d.axis(x)
    if x.shape[axis] == 0:
        raise Retry
    shape = list(x.shape)
    shape[axis] = d.integer(1, 4)
    shape = [1 if n != 0 and d.flip(0.1) else n for n in shape]
    if math.prod(shape) > 64:
        raise Retry
    mode = d.choose((None, "clip", "fill"))
    return (
        f"jnp.take_along_axis({x}, {d.indices(shape, x.shape[axis])}, axis={axis}, mode={mode!r})"
    )


@dataclasses.dataclass(frozen=True)
class _Windows:
    """Which windows of an operand a general gather reads, or a scatter writes."""

    sizes: tuple[int, ...]
    map: tuple[int, ...]
    collapsed: tuple[int, ...]
    offset: tuple[int, ...]
    batch: tuple[int, ...]
    indices: tuple[int, ...]
    result: tuple[int, ...]


def _windows(d: Draft, x: Value) -> _Windows:
    if 0 in x.shape:
        raise Retry
    axes = d.permutation(x.rank)
    batch = tuple(sorted(axes[:1])) if x.rank > 1 and d.flip(0.2) else ()
    mapped = [a for a in axes if a not in batch][: d.integer(1, 2)]
    sizes = [
        1 if a in batch or (a in mapped and d.flip(0.6)) else d.integer(1, x.shape[a])
        for a in range(x.rank)
    ]
    collapsed = [a for a in range(x.rank) if sizes[a] == 1 and a not in batch and d.flip(0.7)]
    free = tuple(d.integer(1, 4) for _ in range(d.integer(0, 2)))
    first = (*(x.shape[a] for a in batch), *free)
    window = [sizes[a] for a in range(x.rank) if a not in batch and a not in collapsed]
    rank = len(first) + len(window)
    offset = sorted(d.rng.sample(range(rank), len(window)))
    sides = iter(window), iter(first)
    result = [next(sides[i not in offset]) for i in range(rank)]
    return _Windows(
        tuple(sizes),
        tuple(mapped),
        tuple(collapsed),
        tuple(offset),
        batch,
        (*first, len(mapped)),
        tuple(result),
    )


@row(3)
def gathers(d: Draft) -> str:
    """``gather`` with any dimension numbers."""
    x = d.any(1)
    w = _windows(d, x)
    batches = tuple(range(len(w.batch)))
    return (
        f"lax.gather({x}, {d.indices(w.indices, max(x.shape))}, lax.GatherDimensionNumbers("
        f"{w.offset}, {w.collapsed}, {w.map}, {w.batch}, {batches}), {w.sizes}, "
        f"mode={d.choose(('clip', 'fill'))!r})"
    )


@row(3)
def scatters(d: Draft) -> str:
    """Scatters with any dimension numbers."""
    x = d.numbers(1)
    w = _windows(d, x)
    function = _scatter(d)
    batches = tuple(range(len(w.batch)))
    return (
        f"lax.{function}({x}, {d.indices(w.indices, max(x.shape))}, {d.like(w.result, x.dtype)}, "
        f"lax.ScatterDimensionNumbers({w.offset}, {w.collapsed}, {w.map}, {w.batch}, {batches}), "
        f"mode={d.choose(('clip', 'drop'))!r})"
    )


def _scatter(d: Draft) -> str:
    """JAX has no derivative of the others."""
    if d.forward:
        return d.choose(("scatter", "scatter_add", "scatter_sub"), (1, 3, 1))
    return d.choose(
        ("scatter", "scatter_add", "scatter_sub", "scatter_mul", "scatter_min", "scatter_max"),
        (2, 4, 1, 2, 1, 1),
    )


@row(4)
def updates(d: Draft) -> str:
    x = d.numbers(1)
    if x.shape[0] == 0:
        raise Retry
    count = d.integer(1, 6)
    y = d.like((count, *x.shape[1:]), x.dtype) if d.flip(0.7) else d.like(x.shape[1:], x.dtype)
    methods = ["set", "add", "subtract"]
    if not d.forward:
        methods += ["multiply", "min", "max"] + (["divide", "power"] if x.is_float else [])
    mode = d.choose(("drop", "clip"))
    text = f"{x}.at[{d.indices((count,), x.shape[0])}].{d.choose(methods)}({y}, mode={mode!r})"
    segments = d.integer(1, 4)
    ids = d.indices((x.shape[0],), segments)
    segment = d.choose(("sum", "max") if not d.forward else ("sum",))
    return d.choose(
        (text, f"jax.ops.segment_{segment}({x}, {ids}, num_segments={segments})"), (4, 1)
    )


@row(4)
def slices(d: Draft) -> str:
    x = d.any(1)
    starts = [d.integer(0, n) for n in x.shape]
    stops = [d.integer(a, n) for a, n in zip(starts, x.shape, strict=True)]
    strides = [d.integer(1, 3) for _ in x.shape]
    axis = d.integer(0, x.rank - 1)
    sizes = tuple(d.integer(min(n, 1), n) for n in x.shape)
    begins = ", ".join(f"{d.new((), 'int32', f'index {n}')}" for n in x.shape[:2])
    begins += ", 0" * (x.rank - min(x.rank, 2))
    z = d.like(sizes, x.dtype)
    halves = x.shape[axis] // 2, x.shape[axis] - x.shape[axis] // 2
    return d.choose(
        (
            f"lax.slice({x}, {starts}, {stops}, {strides})",
            f"lax.dynamic_slice({x}, ({begins},), {sizes})",
            f"lax.dynamic_update_slice({x}, {z}, ({begins},))",
            f"lax.split({x}, {halves}, {axis})[{d.integer(0, 1)}]",
            f"{x}[::-1]" if d.flip() else f"{x}[..., ::2]",
        )
    )


@row(6)
def movements(d: Draft) -> str:
    x = d.any(0, 3)
    n = math.prod(x.shape)
    divisors = [k for k in range(1, n + 1) if n % k == 0] or [1]
    k = d.choose(divisors)
    y = d.like(x.shape, x.dtype)
    fill = "0" if x.dtype == "bool" else d.choose(("0", "1"))
    padding = [(d.integer(-1, 2), d.integer(-1, 2), d.integer(0, 1)) for _ in x.shape]
    sizes = (d.choose((1, 2, 3)), *x.shape)
    mapped = tuple(sorted(d.rng.sample(range(x.rank + 1), x.rank)))
    shape = [d.choose((1, 2, 3))] * (x.rank + 1)
    for a, size in zip(mapped, x.shape, strict=True):
        shape[a] = size
    choices = [
        f"jnp.reshape({x}, {(k, n // k)})",
        f"jnp.transpose({x}, {d.permutation(x.rank)})",
        f"jnp.broadcast_to({x}, {sizes})",
        f"lax.broadcast_in_dim({x}, {tuple(shape)}, {mapped})",
        f"lax.pad({x}, jnp.array({fill}, {x}.dtype), {padding})",
        f"jnp.stack([{x}, {y}], {d.integer(0, x.rank)})",
        f"jnp.squeeze({x})",
        f"jnp.expand_dims({x}, {d.integer(0, x.rank)})",
    ]
    if x.rank:
        a = d.integer(0, x.rank - 1)
        choices += [
            f"jnp.concatenate([{x}, {y}, {x}], {a})",
            f"lax.rev({x}, {d.axes(x)})",
            f"jnp.tile({x}, {tuple(d.integer(1, 2) for _ in x.shape)})",
            f"jnp.repeat({x}, {d.integer(0, 2)}, axis={a})",
            f"jnp.roll({x}, {d.integer(-3, 3)}, axis={a})",
            f"jnp.unstack({x}, axis={a})[0]" if x.shape[a] else f"jnp.flip({x})",
        ]
    if x.rank > 1:
        choices += [
            f"jnp.triu({x}, {d.integer(-1, 1)})",
            f"jnp.diagonal({x})",
            f"jnp.matrix_transpose({x})",
        ]
    return d.choose(choices)


# --- linear algebra, complex numbers, random numbers ----------------------------------------


@row(1.5)
def matrices(d: Draft) -> str:
    n = d.integer(1, 4)
    x, y = d.like((n, n), "float32", "tame"), d.like((n, d.integer(1, 3)), "float32", "tame")
    definite = f"({x} @ {x}.T + jnp.eye({n}))"
    choices = [
        f"lax.linalg.cholesky({definite})",
        f"jnp.linalg.solve({x}, {y})",
        f"jnp.linalg.inv({x})",
        f"jnp.linalg.det({x})",
        f"jnp.linalg.slogdet({x})[1]",
        f"lax.linalg.triangular_solve({x}, {y}, left_side=True, lower={d.flip()}, "
        f"transpose_a={d.flip()}, unit_diagonal={d.flip()})",
        f"jnp.linalg.qr({x})[{d.integer(0, 1)}]",
        f"lax.linalg.lu({x})[0]",
    ]
    if d.forward < 2:
        choices += [
            f"jnp.linalg.eigh({x} + {x}.T)[{d.integer(0, 1)}]",
            f"jnp.linalg.svd({x}, compute_uv=False)",
            f"jnp.linalg.svd({x})[{d.integer(0, 2)}]",
        ]
    if not d.forward:
        choices.append(f"lax.linalg.householder_product(*jnp.linalg.qr({x}, mode='raw'))")
    return d.choose(choices)


@row(2)
def complex_numbers(d: Draft) -> str:
    x = d.operand(
        lambda v: v.dtype == "float32" and 1 <= v.rank <= 3,
        lambda: d.new(d.shape(1, 2), "float32"),
    )
    y = d.like(x.shape, "float32")
    z = f"lax.complex({x}, {y})"
    axis = d.axis(x)
    if 0 in x.shape:
        raise Retry
    return d.choose(
        (
            f"jnp.abs({z})",
            f"jnp.real({z} * jnp.conj({z} + 1))",
            f"jnp.imag({z} / ({z} * {z} + 2))",
            f"jnp.real(jnp.exp({z}))",
            f"jnp.imag(jnp.log({z}))",
            f"jnp.abs(jnp.sum({z}, axis={axis}))",
            f"jnp.real(jnp.cumsum({z}, axis={axis}))",
            f"jnp.real(jnp.einsum('...i,...i->...', {z}, {z}))",
            f"jnp.imag(-{z} ** 3)",
            f"jnp.imag({z}[{d.indices((3,), x.shape[0])}] - 1)",
            f"jnp.real({z}.at[{d.indices((2,), x.shape[0])}].add(1.5))",
            f"jnp.where({z} == jnp.sign({z}), {x}, {y})",
            f"jnp.abs(jnp.fft.fft({z}, axis={axis}))",
            f"jnp.real(jnp.fft.ifft({x}, axis={axis}))",
            f"jnp.imag(jnp.fft.rfft({x}, axis={axis}))",
            f"jnp.fft.irfft({z}, n={d.integer(1, 9)}, axis={axis})",
        )
    )


@row(1.5)
def samples(d: Draft) -> str:
    shape = tuple(d.choose(d.dims) for _ in range(d.integer(0, 2)))
    key = f"jax.random.key({d.integer(0, 9)})"
    if d.flip(0.3):
        key = f"jax.random.split({key}, 3)[1]"
    elif d.flip(0.2):
        key = f"jax.random.fold_in({key}, {d.new((), 'int32', 'index 5')})"
    if d.flip(0.1):
        data = f"jax.random.key_data(jax.random.clone({key}))"
        key = f"jax.random.wrap_key_data({data} + {d.new((), 'uint32', 'index 5')})"
    sampler = d.choose(
        (
            "uniform",
            "normal",
            "exponential",
            "gumbel",
            "bernoulli",
            "bits",
            "randint",
            "laplace",
            "permutation",
            "truncated_normal",
            "cauchy",
        )
    )
    arguments = {
        "bernoulli": f"0.3, {shape}",
        "randint": f"{shape}, -5, 100",
        "permutation": f"{d.any(1)}",
        "truncated_normal": f"-1.0, 2.0, {shape}",
    }.get(sampler, f"{shape}")
    return f"jax.random.{sampler}({key}, {arguments})"


# --- control flow ------------------------------------------------------------------------


@row(5)
def loops(d: Draft) -> str:
    x = d.floats(1, 3)
    inner = x.shape[1:]
    c = d.like(inner, x.dtype)
    names = ["c", "a"]
    carry, out = d.inner(names), d.inner(names)
    reverse = d.flip(0.3)
    part = d.integer(0, 1)
    count = d.integer(0, 3)
    step = d.inner(["c", str(c)])
    choices = [
        f"lax.scan(lambda c, a: ({carry}, {out}), {c}, {x}, reverse={reverse})[{part}]",
        f"lax.fori_loop(0, {count}, lambda i, c: {step}, {c})",
        f"lax.map(lambda a: {d.inner(['a', str(c)])}, {x})",
        f"jax.vmap(lambda a: {d.inner(['a', str(c)])})({x})",
        f"lax.scan(lambda c, a: (c + a * {c}, jnp.sum(c)), {c}, {x}, unroll=2)[{part}]",
    ]
    if not d.reverse:
        choices.append(
            f"lax.while_loop(lambda s: s[0] < {count}, lambda s: (s[0] + 1, "
            f"(lambda c: {step})(s[1])), (0, {c}))[1]"
        )
    return d.choose(choices)


@row(3)
def branches(d: Draft) -> str:
    x = d.floats()
    y = d.like(x.shape, x.dtype)
    names = [str(x), str(y)]
    first, second, third = (d.inner(names) for _ in range(3))
    flag = d.new((), "int32", "index 3")
    zeros = f"jnp.zeros({x.shape}, {x}.dtype)"
    return d.choose(
        (
            f"lax.cond({flag} > 0, lambda: {first} + {zeros}, lambda: {second} + {zeros})",
            f"lax.switch({flag}, [lambda: {first}, lambda: {second}, lambda: {third}])",
            f"jax.checkpoint(lambda a, b: {d.inner(['a', 'b'])})({x}, {y})",
            f"jax.jit(lambda a, b: {d.inner(['a', 'b'])})({x}, {y})",
            f"jax.checkpoint(lambda a: checkpoint_name({d.inner(['a'])}, 'a'))({x})",
            f"lax.platform_dependent({x}, cpu=lambda a: {d.inner(['a'])}, "
            f"default=lambda a: {d.inner(['a'])})",
        )
    )


@row(1)
def custom_derivatives(d: Draft) -> str:
    x = d.floats()
    body, slope = d.inner(["a"]), d.inner(["a"])
    return d.choose(
        (
            f"custom_jvp(lambda a: {body}, lambda a, t: t * ({slope}))({x})",
            f"custom_vjp(lambda a: {body}, lambda a, t: t * ({slope}))({x})"
            if d.forward == d.reverse
            else f"custom_jvp(lambda a: {body}, lambda a, t: t * ({slope}))({x})",
        )
    )


def custom_jvp(function, tangent):
    """A function with a derivative of its own."""
    result = jax.custom_jvp(function)
    result.defjvp(lambda primals, ts: (function(*primals), tangent(*primals, *ts)))
    return result


def custom_vjp(function, cotangent):
    """A function with a derivative of its own, in reverse mode."""
    result = jax.custom_vjp(function)
    result.defvjp(lambda a: (function(a), a), lambda a, t: (cotangent(a, t),))
    return result


# --- data --------------------------------------------------------------------------------

#: float32 numbers at which operations change their behaviour, as bits; also with a minus.
HOSTILE = (
    0x00000000, 0x00000001, 0x007FFFFF, 0x00800000, 0x00800001, 0x33800000, 0x3F000000,
    0x3F800000, 0x3F7FFFFF, 0x3F800001, 0x3FC00000, 0x477FE000, 0x477FF000, 0x38800000,
    0x387FC000, 0x4B800000, 0x4F000000, 0x5F7FFFFF, 0x7F000000, 0x7F7FFFFF, 0x7F800000,
    0x7FC00000, 0x7F800001, 0x7FFFFFFF,
)  # fmt: skip


def _hostile(rng):
    if rng.random() < 0.7:
        return rng.gauss(0, 1)
    bits = rng.choice(HOSTILE) | rng.getrandbits(1) << 31
    return np.uint32(bits).view(np.float32)


#: How elements are drawn, by kind.
DATA: dict[str, Callable[[random.Random], Any]] = {
    "tame": lambda rng: rng.gauss(0, 1),
    "unit": lambda rng: rng.random(),
    "ties": lambda rng: rng.randint(-2, 2),
    "equal": lambda rng: 0.75,
    "hostile": _hostile,
    "patterns": lambda rng: np.uint32(rng.getrandbits(32)).view(np.float32),
    "wide": lambda rng: rng.gauss(0, 1) * 2.0 ** rng.randint(-140, 120),
}


def array(entry: dict[str, Any], variant: int = 0) -> np.ndarray:
    """The data of an input; other variants have other data of the same kind."""
    if "bits" in entry and variant == 0:
        dtype = jnp.dtype(entry["dtype"])
        width = np.dtype(f"u{dtype.itemsize}")
        raw = np.array(entry["bits"], width)
        raw = raw.astype(bool) if dtype.name == "bool" else raw.view(dtype)
        return raw.reshape(entry["shape"])
    rng = random.Random(entry["seed"] + 1_000_003 * variant)
    shape, dtype, kind = tuple(entry["shape"]), jnp.dtype(entry["dtype"]), entry["kind"]
    count = math.prod(shape)
    if kind.startswith("index"):
        size = int(kind.split()[1])
        flat = [
            rng.randint(-size - 1, size + 1) if rng.random() < 0.15 else rng.randrange(max(size, 1))
            for _ in range(count)
        ]
        return np.array(flat, np.int64).astype(dtype).reshape(shape)
    if dtype.name in FLOATS:
        with np.errstate(all="ignore"):
            wide = np.array([np.float32(DATA[kind](rng)) for _ in range(count)], np.float32)
            return wide.astype(dtype).reshape(shape)
    if kind == "patterns":
        flat = [rng.getrandbits(32) for _ in range(count)]
    else:
        flat = [rng.randint(-2, 3) for _ in range(count)]
    result = np.array(flat, np.int64)
    return (result > 0 if dtype.name == "bool" else result.astype(dtype)).reshape(shape)


def arrays(program: Program, variant: int = 0) -> list[np.ndarray]:
    return [array(entry, variant) for entry in program["inputs"]]


# --- transformations ---------------------------------------------------------------------


def is_float(x) -> bool:
    return jnp.issubdtype(x.dtype, jnp.inexact)


def weights(x):
    """Constants of a shape and format, exact in each."""
    flat = (np.arange(x.size) * 37 % 19 - 9) / 8
    return jnp.asarray(flat.reshape(x.shape), x.dtype)


def floating(f, xs):
    """``f`` as a function of its floating-point inputs alone, and these."""
    at = [i for i, x in enumerate(xs) if is_float(x)]

    def of_floats(*ys):
        merged = list(xs)
        for i, y in zip(at, ys, strict=True):
            merged[i] = y
        return [y for y in f(*merged) if is_float(y)]

    return of_floats, [xs[i] for i in at]


def loss(outputs):
    """A number that depends on all outputs."""
    parts = []
    for y in outputs:
        if jnp.iscomplexobj(y):
            y = jnp.real(y) + jnp.imag(y)
        parts.append(jnp.sum((weights(y) * y).astype(jnp.float32)))
    return sum(parts, start=jnp.float32(0))


def grad(f):
    def transformed(*xs):
        g, ys = floating(f, xs)
        value, gradients = jax.value_and_grad(lambda ys: loss(g(*ys)))(ys)
        return [value, *gradients]

    return transformed


def grad_of_grad(f):
    def transformed(*xs):
        g, ys = floating(f, xs)

        def squares(ys):
            gradients = jax.grad(lambda ys: loss(g(*ys)))(ys)
            return sum((jnp.sum(v.astype(jnp.float32) ** 2) for v in gradients), jnp.float32(0))

        value, gradients = jax.value_and_grad(squares)(ys)
        return [value, *gradients]

    return transformed


def vjp(f):
    def transformed(*xs):
        g, ys = floating(f, xs)
        outputs, pullback = jax.vjp(g, *ys)
        return [*outputs, *pullback([weights(y) for y in outputs])]

    return transformed


def jvp(f):
    def transformed(*xs):
        g, ys = floating(f, xs)
        outputs, tangents = jax.jvp(g, ys, [weights(y) for y in ys])
        return [*outputs, *tangents]

    return transformed


def linearize(f):
    def transformed(*xs):
        g, ys = floating(f, xs)
        outputs, tangent = jax.linearize(g, *ys)
        return [*outputs, *tangent(*map(weights, ys))]

    return transformed


def jit(f):
    return jax.jit(f)


def checkpoint(f):
    return jax.checkpoint(f)


def stacked(xs):
    """A batch of two: inputs and the same with their elements reversed."""
    return [jnp.stack([x, jnp.flip(x)]) for x in xs]


def vmap(f):
    def transformed(*xs):
        return jax.vmap(f)(*stacked(xs))

    return transformed


def vmap_of_one(f):
    """Only the first input is batched, along its last axis."""

    def transformed(first, *rest):
        batch = jnp.stack([first, jnp.flip(first)], -1)
        return jax.vmap(lambda x: f(x, *rest), in_axes=-1, out_axes=-1)(batch)

    return transformed


def scan(f):
    def transformed(*xs):
        return lax.scan(lambda c, ys: (c, f(*ys)), 0, stacked(xs))[1]

    return transformed


def scan_of_one(f):
    """All but the first input are constants of the loop."""

    def transformed(first, *rest):
        return lax.scan(lambda c, x: (c, f(x, *rest)), 0, stacked([first])[0])[1]

    return transformed


def cond(f):
    def transformed(*xs):
        def zeros(*xs):
            return [jnp.zeros_like(y) for y in f(*xs)]

        return lax.cond(jnp.sum(xs[0] == xs[0]) >= 0, f, zeros, *xs)

    return transformed


def fori(f):
    def transformed(*xs):
        return lax.fori_loop(
            0, 2, lambda i, ys: [y + z for y, z in zip(ys, f(*xs), strict=True)], f(*xs)
        )

    return transformed


#: By name; inner ones change what is computed, or how, and stand on either side of derivatives.
DERIVATIVES = {
    "grad": (grad, 1, 1),  # with how often it differentiates, and how often in reverse mode
    "vjp": (vjp, 1, 1),
    "jvp": (jvp, 1, 0),
    "linearize": (linearize, 1, 0),
    "grad_of_grad": (grad_of_grad, 2, 2),
}
STRUCTURES = {
    f.__name__: f for f in (jit, checkpoint, vmap, vmap_of_one, scan, scan_of_one, cond, fori)
}
TRANSFORMS = {**STRUCTURES, **{name: f for name, (f, *_) in DERIVATIVES.items()}}


def draw_transforms(rng: random.Random) -> list[str]:
    """Names, the innermost first."""
    names = []
    if rng.random() < 0.35:
        names.append(rng.choice(list(STRUCTURES)))
    if rng.random() < 0.7:
        weights = (5, 4, 2, 1, 2)
        names.append(rng.choices(list(DERIVATIVES), weights)[0])
        if names[-1] == "grad" and rng.random() < 0.1:
            names.append("jvp")
    if names and rng.random() < 0.2:
        names.append(rng.choice(list(STRUCTURES)))
    return names


# --- programs ----------------------------------------------------------------------------


def source(program: Program) -> str:
    """The function ``program`` as Python text."""
    parameters = ", ".join(entry["name"] for entry in program["inputs"])
    lines = [f"    {name} = {text}" for name, text in program["statements"]]
    returned = ", ".join(program["outputs"])
    return "\n".join([f"def program({parameters}):", *lines, f"    return [{returned}]", ""])


NAMESPACE = {
    "jax": jax,
    "jnp": jnp,
    "lax": lax,
    "np": np,
    "checkpoint_name": checkpoint_name,
    "custom_jvp": custom_jvp,
    "custom_vjp": custom_vjp,
}


def build(program: Program) -> Callable[..., list[Any]]:
    """The function of the inputs that the program is, transformations applied."""
    scope = dict(NAMESPACE)
    exec(compile(source(program), f"<program {program['seed']}>", "exec"), scope)
    function = scope["program"]
    for name in program["transforms"]:
        function = TRANSFORMS[name](function)
    return function


def structs(program: Program) -> list[jax.ShapeDtypeStruct]:
    return [jax.ShapeDtypeStruct(x["shape"], jnp.dtype(x["dtype"])) for x in program["inputs"]]


def types(program: Program) -> list[jax.ShapeDtypeStruct]:
    """Those of the results; raises what JAX raises for a program that it does not take."""
    return jax.eval_shape(build(program), *structs(program))


def primitives(program: Program) -> set[str]:
    """The names of those that JAX makes of a program."""
    found, pending = set(), [jax.make_jaxpr(build(program))(*structs(program))]
    while pending:
        x = pending.pop()
        if isinstance(x, (list, tuple)):
            pending += x
        elif isinstance(x, core.ClosedJaxpr):
            pending.append(x.jaxpr)
        elif isinstance(x, core.Jaxpr):
            found.update(equation.primitive.name for equation in x.eqns)
            pending += [value for equation in x.eqns for value in equation.params.values()]
    return found


class Rejected(Exception):
    """JAX does not take what was drawn: a defect of the table."""


def statement(d: Draft) -> str | None:
    """Add a statement; returns the name of the row, or None if nothing could be drawn."""
    name = d.choose(ROWS, [weight for weight, _ in ROWS.values()])
    inputs, values = list(d.inputs), list(d.values)
    try:
        text = ROWS[name][1](d)
    except Retry:
        d.inputs, d.values = inputs, values
        return None
    operands = [v for v in d.values if v.name in NAME.findall(text)]
    # What was drawn for an alternative that was not taken is no input.
    used = {v.name for v in operands}
    d.inputs = [x for x in d.inputs if x in inputs or x["name"] in used]
    d.values = [v for v in d.values if v in values or v.name in used]
    function = eval(
        compile(f"lambda {', '.join(v.name for v in operands)}: {text}", "<statement>", "eval"),
        NAMESPACE,
    )
    given = [jax.ShapeDtypeStruct(v.shape, jnp.dtype(v.dtype)) for v in operands]
    try:
        result = jax.eval_shape(function, *given)
    except Exception as error:
        d.inputs, d.values = inputs, values
        raise Rejected(f"{name}: {text}: {type(error).__name__}: {error}") from error
    if isinstance(result, (list, tuple)) or result.size > LARGEST or len(result.shape) > 4:
        d.inputs, d.values = inputs, values
        return None
    number = len(d.statements)
    d.statements.append((f"v{number}", text))
    d.values.append(Value(f"v{number}", result.shape, result.dtype.name))
    return name


def generate(seed: int, rejected: list[str] | None = None) -> Program:
    """The program of a seed.

    Args:
      seed: any integer.
      rejected: where what JAX does not take is noted; it is drawn again.
    """
    rejected = [] if rejected is None else rejected
    for attempt in range(20):
        rng = random.Random(1000 * seed + attempt)
        program = _generate(seed, rng, rejected)
        if program is None:
            continue
        try:
            types(program)
        except Exception as error:
            line = (str(error).strip().splitlines() or [""])[0]
            rejected.append(f"{program['transforms']}: {type(error).__name__}: {line}")
            continue
        return program
    raise RuntimeError(f"seed {seed}: expected a program that JAX takes, drew none in 20 attempts")


def _generate(seed: int, rng: random.Random, rejected: list[str]) -> Program | None:
    transforms = draw_transforms(rng)
    counts = [DERIVATIVES[name][1:] for name in transforms if name in DERIVATIVES]
    forward, reverse = (sum(c[i] for c in counts) for i in (0, 1))
    d = Draft(rng, forward, reverse)
    wanted = rng.randint(1, 4 if forward > 1 else 6 if forward else 8)
    for _ in range(5 * wanted):
        if len(d.statements) == wanted:
            break
        try:
            statement(d)
        except Rejected as error:
            rejected.append(str(error))
    if not d.statements or not d.inputs:
        return None
    names = [name for name, _ in d.statements]
    used = {n for _, text in d.statements for n in NAME.findall(text)}
    # Of a plain program all that is computed; of a derivative what nothing else uses, and some.
    outputs = [n for n in names if not forward or n not in used or rng.random() < 0.2]
    of_type = {v.name: v for v in d.values}
    inexact = (*FLOATS, "complex64")
    floats = (of_type[n].dtype in inexact for n in outputs)
    if forward and not (any(floats) and any(x["dtype"] in FLOATS for x in d.inputs)):
        return None
    return {
        "seed": seed,
        "inputs": d.inputs,
        "statements": [list(s) for s in d.statements],
        "outputs": outputs,
        "transforms": transforms,
        "order": list(rng.choices(ORDERS, (5, 3, 2))[0]),
    }


# --- for readers -------------------------------------------------------------------------


def literal(entry: dict[str, Any]) -> str:
    """The data of an input as Python text, bit by bit."""
    x = array(entry)
    kind = entry["dtype"]
    if kind == "bool":
        return f"np.array({x.ravel().tolist()}, bool).reshape({x.shape})"
    word = f"np.uint{8 * x.dtype.itemsize}"
    bits = ", ".join(f"{int(b):#x}" for b in x.ravel().view(f"u{x.dtype.itemsize}"))
    return f"np.array([{bits}], {word}).view(jnp.dtype({kind!r})).reshape({x.shape})"


def script(program: Program) -> str:
    """The program as a script that runs by itself, and prints a digest."""
    text = source(program)
    helpers = [f for f in (custom_jvp, custom_vjp) if f.__name__ in text]
    if program["transforms"]:
        helpers += [is_float, weights, floating, loss, stacked]
        helpers += [TRANSFORMS[name] for name in dict.fromkeys(program["transforms"])]
    sources = [textwrap.dedent(inspect.getsource(f)) for f in helpers]
    function = "program"
    for name in program["transforms"]:
        function = f"{name}({function})"
    accumulation, contraction = program["order"]
    data = [f"    {literal(entry)},  # {entry['name']}" for entry in program["inputs"]]
    return "\n".join(
        [
            f'"""Program {program["seed"]}, made by tests/fuzz.py."""\n',
            "import jax",
            "import jax.numpy as jnp",
            "import numpy as np",
            "from jax import lax",
            "from jax.ad_checkpoint import checkpoint_name",
            "",
            "import repjax",
            "",
            *("\n" + text for text in sources),
            "\n" + text,
            "",
            "inputs = [",
            *data,
            "]",
            f"orders = {{'accumulation': {accumulation!r}, 'contraction': {contraction!r}}}",
            f"results = repjax.reproducible({function}, **orders)(*inputs)",
            "for result in results:",
            "    print(repjax.digest(np.asarray(result)), result)",
            "",
        ]
    )


@contextlib.contextmanager
def quiet():
    """Within the block warnings, of overflow and of casts, are not shown."""
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
