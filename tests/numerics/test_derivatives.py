"""Derivatives: right against float64, and the same bits however they are computed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
import scipy.special
from flax import linen
from jax import lax

import repjax
import repjax.lax as rlax
import repjax.numpy as rnp
from helpers.bits import assert_same_bits, canonical, normal
from repjax import nn
from repjax.primitives.operations.arithmetic import one_minus_square_p

# --- the table --------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Case:
    """A function three times: repjax's, JAX's, and in NumPy float64; and its operands."""

    twin: Callable[..., Any]
    stock: Callable[..., Any] | None
    numpy: Callable[..., Any]
    operands: Callable[[int], tuple[np.ndarray, ...]]  # by seed
    bound: float = 2.0**-20  # error of a derivative, relative to its largest element or 1


def spaced(*shapes):
    """Distinct numbers around 0, none closer to another or to 0 than 0.04: away from kinks."""

    def operands(seed):
        rng = np.random.default_rng(seed)
        sizes = [int(np.prod(shape)) for shape in shapes]
        grid = (np.arange(sum(sizes)) - sum(sizes) / 2 + 0.5) * 0.11
        grid = rng.permutation(grid + rng.uniform(-0.03, 0.03, grid.shape)).astype(np.float32)
        parts = np.split(grid, np.cumsum(sizes)[:-1])
        return tuple(p.reshape(s) for p, s in zip(parts, shapes, strict=True))

    return operands


def positive(*shapes):
    return lambda seed: tuple(np.abs(x) + np.float32(0.2) for x in spaced(*shapes)(seed))


def bounded(seed):
    """A lower bound, x, an upper bound."""
    a, x, b = spaced((3, 4), (3, 4), (3, 4))(seed)
    return np.minimum(a, b), x, np.maximum(a, b)


def stated(name, numpy, operands, twin=None, **options):
    """A case of a function of ``jax.lax`` that both modules call by this name."""

    def call(module):
        return lambda *xs: getattr(module, name)(*xs, **options)

    return Case(twin or call(rlax), call(lax), numpy, operands)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def np_softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def np_logsumexp(x, axis=-1):
    return np.log(np.exp(x).sum(axis))


def np_windows(x, window, strides):
    """[batch, height, width, channels, *window] of an NHWC array."""
    views = np.lib.stride_tricks.sliding_window_view(x, window, (1, 2))
    return views[:, :: strides[0], :: strides[1]]


def np_conv(x, w):
    """NHWC, HWIO, strides (2, 1), padding 1 in front of the rows and behind the columns."""
    x = np.pad(x, [(0, 0), (1, 0), (0, 1), (0, 0)])
    return np.einsum("bhwcij,ijco->bhwo", np_windows(x, w.shape[:2], (2, 1)), w)


CONV = {
    "window_strides": (2, 1),
    "padding": ((1, 0), (0, 1)),
    "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
}
DOT = {"dimension_numbers": (((2,), (1,)), ((0,), (0,)))}
ROWS = np.array([3, 0, 3, 3, 1])
LABELS = np.array([2, 0, 3])

ONE, TWO, THREE = spaced((3, 4)), spaced((3, 4), (3, 4)), spaced((3, 4), (3, 4), (3, 4))
CASES = {
    "add": stated("add", np.add, TWO),
    "sub": stated("sub", np.subtract, TWO),
    "mul": stated("mul", np.multiply, TWO),
    "div": stated("div", np.divide, positive((3, 4), (3, 4))),
    "fma": Case(rlax.fma, None, lambda a, b, c: a * b + c, THREE),
    "neg": stated("neg", np.negative, ONE),
    "sqrt": stated("sqrt", np.sqrt, positive((3, 4))),
    "rsqrt": stated("rsqrt", lambda x: 1 / np.sqrt(x), positive((3, 4))),
    "reciprocal": stated("reciprocal", lambda x: 1 / x, positive((3, 4))),
    "square": stated("square", np.square, ONE),
    "integer_pow 3": stated("integer_pow", lambda x: x**3, ONE, y=3),
    "integer_pow -2": stated("integer_pow", lambda x: x**-2.0, positive((3, 4)), y=-2),
    "one_minus_square": Case(one_minus_square_p.bind, None, lambda x: 1 - x * x, ONE),
    "max": stated("max", np.maximum, TWO),
    "min": stated("min", np.minimum, TWO),
    "clamp": stated("clamp", lambda a, x, b: np.clip(x, a, b), bounded),
    "abs": stated("abs", np.abs, ONE),
    "sign": stated("sign", np.sign, ONE),
    "floor": stated("floor", np.floor, lambda seed: (ONE(seed)[0] * np.float32(0.3),)),
    "ceil": stated("ceil", np.ceil, lambda seed: (ONE(seed)[0] * np.float32(0.3),)),
    "round": stated("round", np.rint, lambda seed: (ONE(seed)[0] * np.float32(0.3),)),
    "exp": stated("exp", np.exp, ONE),
    "expm1": stated("expm1", np.expm1, ONE),
    "log": stated("log", np.log, positive((3, 4))),
    "log1p": stated("log1p", np.log1p, positive((3, 4))),
    "tanh": stated("tanh", np.tanh, ONE),
    "logistic": stated("logistic", sigmoid, ONE),
    "sum": stated("reduce_sum", lambda x: x.sum((0, 2)), spaced((3, 2, 5)), axes=(0, 2)),
    "sequential sum": Case(
        lambda x: rlax.reduce_sum(x, (1,), accumulation="sequential"),
        None,
        lambda x: x.sum(1),
        spaced((3, 7)),
    ),
    "reduce_max": stated("reduce_max", lambda x: x.max(1), ONE, axes=(1,)),
    "reduce_min": stated("reduce_min", lambda x: x.min(0), ONE, axes=(0,)),
    "dot_general": stated("dot_general", lambda a, b: a @ b, spaced((2, 3, 4), (2, 4, 2)), **DOT),
    "matmul": Case(rnp.matmul, jnp.matmul, np.matmul, spaced((3, 5), (5, 2))),
    "conv": stated("conv_general_dilated", np_conv, spaced((2, 5, 4, 2), (3, 2, 2, 3)), **CONV),
    "mean": Case(rnp.mean, jnp.mean, np.mean, spaced((13,))),
    "var": Case(rnp.var, jnp.var, np.var, spaced((13,))),
    "std": Case(rnp.std, jnp.std, np.std, spaced((13,))),
    "take": Case(
        take := repjax.explicit.explicit(lambda x: x[ROWS]),
        lambda x: x[ROWS],
        lambda x: x[ROWS],
        spaced((4, 3)),
    ),
    "relu": Case(nn.relu, jax.nn.relu, lambda x: np.maximum(x, 0), ONE),
    "leaky_relu": Case(
        nn.leaky_relu, jax.nn.leaky_relu, lambda x: np.where(x > 0, x, 0.01 * x), ONE
    ),
    "elu": Case(nn.elu, jax.nn.elu, lambda x: np.where(x > 0, x, np.expm1(x)), ONE),
    "sigmoid": Case(nn.sigmoid, jax.nn.sigmoid, sigmoid, ONE),
    "silu": Case(nn.silu, jax.nn.silu, lambda x: x * sigmoid(x), ONE),
    "softplus": Case(nn.softplus, jax.nn.softplus, lambda x: np.log1p(np.exp(x)), ONE),
    "logsumexp": Case(
        lambda x: nn.logsumexp(x, axis=1),
        lambda x: jax.nn.logsumexp(x, axis=1),
        np_logsumexp,
        ONE,
    ),
    "softmax": Case(nn.softmax, jax.nn.softmax, np_softmax, ONE),
    "log_softmax": Case(
        nn.log_softmax, jax.nn.log_softmax, lambda x: x - np_logsumexp(x)[:, None], ONE
    ),
    "cross entropy": Case(
        nn.softmax_cross_entropy,
        optax.softmax_cross_entropy,
        lambda x, p: (p * (np_logsumexp(x)[:, None] - x)).sum(1),
        positive((3, 4), (3, 4)),
    ),
    "cross entropy of labels": Case(
        lambda x: nn.softmax_cross_entropy_with_integer_labels(x, LABELS),
        lambda x: optax.softmax_cross_entropy_with_integer_labels(x, LABELS),
        lambda x: np_logsumexp(x) - x[np.arange(3), LABELS],
        ONE,
    ),
    "avg_pool": Case(
        lambda x: nn.avg_pool(x, (2, 3), (1, 2)),
        lambda x: linen.avg_pool(x, (2, 3), (1, 2)),
        lambda x: np_windows(x, (2, 3), (1, 2)).mean((-1, -2)),
        spaced((2, 4, 5, 2)),
    ),
    "max_pool": Case(
        lambda x: nn.max_pool(x, (2, 2), (1, 2)),
        lambda x: linen.max_pool(x, (2, 2), (1, 2)),
        lambda x: np_windows(x, (2, 2), (1, 2)).max((-1, -2)),
        spaced((2, 4, 5, 2)),
    ),
}
each_case = pytest.mark.parametrize("name", CASES)


def elementary(module, stack):
    """Many functions of one array at once, away from the ends of their domains."""

    def function(x):
        e = module
        inside = x * 0.4
        of_x = [f(x) for f in (e.exp2, e.cbrt, e.sin, e.cos, e.sinh, e.cosh, e.atan, e.asinh)]
        of_inside = [f(inside) for f in (e.tan, e.asin, e.acos, e.atanh, e.erf_inv)]
        return stack([*of_x, *of_inside, e.acosh(x * x + 2), e.erf(x), e.erfc(x)])

    return function


class Float64:
    """NumPy's and SciPy's functions by the names of jax.lax."""

    exp2, cbrt, sin, cos, tan = np.exp2, np.cbrt, np.sin, np.cos, np.tan
    sinh, cosh, asin, acos, atan = np.sinh, np.cosh, np.arcsin, np.arccos, np.arctan
    asinh, acosh, atanh = np.arcsinh, np.arccosh, np.arctanh
    erf, erfc, erf_inv = scipy.special.erf, scipy.special.erfc, scipy.special.erfinv


CASES["elementary functions"] = Case(
    repjax.explicit.explicit(elementary(lax, jnp.stack)),
    elementary(lax, jnp.stack),
    elementary(Float64, np.stack),
    ONE,
)
BEYOND = "elementary functions that jax.lax has not got"
CASES[BEYOND] = Case(
    repjax.explicit.explicit(
        lambda x: jnp.stack([rlax.exp10(x), rlax.log2(x * x + 2), rlax.log10(x * x + 2)])
    ),
    None,
    lambda x: np.stack([scipy.special.exp10(x), np.log2(x * x + 2), np.log10(x * x + 2)]),
    ONE,
)
#: Of these, as the contract states them: of x, the result and a tangent.
STATED = {
    "exp10": lambda x, y, t: rlax.mul(t, rlax.mul(y, np.float32(np.log(10)))),
    "log2": lambda x, y, t: rlax.div(t, rlax.mul(x, np.float32(np.log(2)))),
    "log10": lambda x, y, t: rlax.div(t, rlax.mul(x, np.float32(np.log(10)))),
}


@pytest.mark.parametrize("name", STATED)
def test_derivatives_are_the_stated_graphs(name):
    function, x, t = getattr(rlax, name), np.abs(normal((200,), 1)), normal((200,), 2)
    result, tangent = jax.jvp(function, (x,), (t,))
    want = STATED[name](x, result, t)
    assert_same_bits(tangent, want)
    assert_same_bits(jax.vjp(function, x)[1](t)[0], want)


@functools.cache
def operands(name, seed):
    """Operands of a case, tangents for them, and a cotangent of its result."""
    case = CASES[name]
    xs = case.operands(seed)
    result = case.numpy(*(x.astype(np.float64) for x in xs))
    tangents = tuple(normal(x.shape, seed + i) for i, x in enumerate(xs))
    return xs, tangents, normal(np.shape(result), seed + 100)


def derivatives(function):
    """The value, JVP and VJP of a function, as a function."""

    def run(xs, tangents, cotangent):
        value, tangent = jax.jvp(function, xs, tangents)
        return value, tangent, jax.vjp(function, *xs)[1](cotangent)

    return run


@functools.cache
def results(name, seed):
    """Value, JVP and VJP of the explicit function."""
    return _compiled(name)(*operands(name, seed))


@functools.cache
def _compiled(name):
    return jax.jit(derivatives(CASES[name].twin))


# --- against float64 --------------------------------------------------------------------


def difference(function, xs, direction):
    """The directional derivative by central differences of order 4, in float64."""
    h = 1e-3

    def at(k):
        moved = (x + k * h * t for x, t in zip(xs, direction, strict=True))
        return np.asarray(function(*moved), np.float64)

    return (8 * (at(1) - at(-1)) - (at(2) - at(-2))) / (12 * h)


def gradient(function, xs, cotangent):
    """The VJP, one element of one operand at a time."""
    results = []
    for i, x in enumerate(xs):
        grad = np.zeros_like(x)
        for at in np.ndindex(x.shape):
            direction = [np.zeros_like(y) for y in xs]
            direction[i][at] = 1
            grad[at] = np.sum(difference(function, xs, direction) * cotangent)
        results.append(grad)
    return tuple(results)


def assert_near(actual, expected, bound):
    actual, expected = np.asarray(actual, np.float64), np.asarray(expected, np.float64)
    error = np.abs(actual - expected).max() / max(1, np.abs(expected).max())
    assert error <= bound, f"expected {expected}, received {actual}: error {error:.3g}"


def wide(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


@each_case
def test_first_derivatives(name):
    """Against finite differences of a NumPy formula, and against JAX's own derivatives."""
    case = CASES[name]
    given = operands(name, 0)
    actual = results(name, 0)
    xs, tangents, cotangent = wide(given)
    expected = (
        case.numpy(*xs),
        difference(case.numpy, xs, tangents),
        gradient(case.numpy, xs, cotangent),
    )
    jax.tree.map(lambda a, b: assert_near(a, b, case.bound), actual, expected)
    if case.stock is not None:
        stock = jax.jit(derivatives(case.stock))(*given)
        jax.tree.map(lambda a, b: assert_near(a, b, 16 * case.bound), actual, stock)


FIRST_ONLY = {"abs", "sign", "floor", "ceil", "round", "add", "sub", "neg", "min", "std"}
FIRST_ONLY |= {"sequential sum", "mean", "matmul", "take", "sqrt", "sigmoid", "leaky_relu"}
SECOND = [name for name in CASES if name not in FIRST_ONLY]


@pytest.mark.parametrize("name", SECOND)
def test_second_derivatives(name):
    """Hessians, against those that JAX computes in float64."""
    case = CASES[name]
    xs, _, cotangent = operands(name, 0)

    def scalar(function):
        return lambda *xs: (function(*xs) * cotangent).sum()

    def product(function):  # Hessian times a vector: one column of the Hessian would not do
        def run(xs, tangents):
            gradients = jax.grad(scalar(function), argnums=tuple(range(len(xs))))
            return jax.jvp(gradients, xs, tangents)[1]

        return run

    in_jax = {
        "fma": lambda a, b, c: a * b + c,
        BEYOND: lambda x: jnp.stack([10.0**x, jnp.log2(x * x + 2), jnp.log10(x * x + 2)]),
    }
    stock = case.stock or in_jax.get(name, lambda x: 1 - x * x)
    tangents = tuple(normal(x.shape, 7 + i) for i, x in enumerate(xs))
    run = jax.jit(product(case.twin))
    actual = run(xs, tangents)
    with jax.enable_x64(True):
        expected = jax.jit(product(stock))(*wide((xs, tangents)))
        assert all(x.dtype == np.float64 for x in expected)
    jax.tree.map(lambda a, b: assert_near(a, b, 2**-17), actual, tuple(expected))


def test_hessian():
    x = spaced((4,))(0)[0]

    def f(x, module):
        return module.tanh(module.exp(x[:2]) * x[2:])[0] / module.log(x[0] ** 2 + 2)

    actual = jax.jit(jax.hessian(lambda x: f(x, rlax)))(x)
    with jax.enable_x64(True):
        expected = jax.hessian(lambda x: f(x, lax))(x.astype(np.float64))
    assert_near(actual, expected, 2**-18)


# --- the same bits however computed -----------------------------------------------------------


EAGER = {"mul", "div", "fma", "max", "sum", "dot_general", "conv", "take", "logsumexp", "max_pool"}


@each_case
def test_ways_to_differentiate(name):
    """jit, eager, in a batch, of a batch, and of the stock function made reproducible."""
    case = CASES[name]
    rows = [operands(name, seed) for seed in (0, 1)]
    batch = jax.tree.map(lambda *xs: np.stack(xs), *rows)
    expected = [results(name, seed) for seed in (0, 1)]
    if name in EAGER:
        assert_same_bits(derivatives(case.twin)(*rows[0]), expected[0], "eager")
    stacked = jax.tree.map(lambda *xs: np.stack(xs), *expected)

    @jax.jit
    def batched(*batch):
        return jax.vmap(derivatives(case.twin))(*batch), derivatives(jax.vmap(case.twin))(*batch)

    of_rows, of_batch = batched(*batch)
    assert_same_bits(of_rows, stacked, "vmap of derivatives")
    assert_same_bits(of_batch, stacked, "derivatives of vmap")
    if case.stock is not None:
        stock = repjax.reproducible(derivatives(case.stock))
        assert_same_bits(stock(*rows[0]), expected[0], "reproducible(stock)")


def test_derivatives_are_canonical():
    """A product of derivatives underflows to +0, not to a subnormal number or -0."""
    x, ct = np.float32([1e-30, -1e-30, 0.0]), np.float32([-1e-30, 1e-25, -1.0])
    for f in (lambda x: rlax.mul(x, x), rlax.square):
        assert_same_bits(jax.vjp(f, x)[1](ct)[0], np.zeros(3, np.float32))


SUBSETS = ["mul", "div", "sub", "fma", "max", "clamp", "dot_general", "conv"]


@pytest.mark.parametrize("name", SUBSETS)
def test_derivatives_by_some_operands(name):
    """A zero tangent changes nothing for the others, forwards and backwards."""
    case = CASES[name]
    xs, tangents, cotangent = operands(name, 0)
    n = len(xs)

    def partial(active):
        def function(*some):
            merged = list(xs)
            for i, x in zip(active, some, strict=True):
                merged[i] = x
            return case.twin(*merged)

        return derivatives(function)

    full = derivatives(case.twin)(xs, tangents, cotangent)
    for subset in range(1, 2**n - 1):
        active = [i for i in range(n) if subset >> i & 1]
        some, directions = (tuple(t[i] for i in active) for t in (xs, tangents))
        value, tangent, gradients = partial(active)(some, directions, cotangent)
        assert_same_bits(value, full[0])
        assert_same_bits(gradients, tuple(full[2][i] for i in active), f"{active}")
        zeros = [tangents[i] if i in active else np.zeros_like(x) for i, x in enumerate(xs)]
        if name != "div":  # -0/y**2 is not computed alike, and exact only for the others
            assert_same_bits(tangent, jax.jvp(case.twin, xs, tuple(zeros))[1], f"{active}")


LINEAR = {
    "neg": (rlax.neg, (3, 4)),
    "sum": (lambda x: rlax.reduce_sum(x, (0,)), (5, 3)),
    "mul": (lambda x: rlax.mul(x, normal((3, 4), 5)), (3, 4)),
    "div": (lambda x: rlax.div(x, normal((3, 4), 5)), (3, 4)),
    "add": (lambda x: rlax.add(x, x), (3, 4)),
    "dot": (lambda x: rlax.dot(x, normal((4, 5), 5)), (3, 4)),
    "dot, other": (lambda x: rlax.dot(normal((5, 3), 5), x), (3, 4)),
    "conv": (
        lambda x: rlax.conv_general_dilated(x, normal((3, 2, 2, 3), 5), **CONV),
        (2, 5, 4, 2),
    ),
    "conv kernel": (
        lambda w: rlax.conv_general_dilated(normal((2, 5, 4, 2), 5), w, **CONV),
        (3, 2, 2, 3),
    ),
    "take": (take, (4, 3)),
}


@pytest.mark.parametrize("name", LINEAR)
def test_linear_transpose(name):
    function, shape = LINEAR[name]
    x = normal(shape)
    value, pullback = jax.vjp(function, x)
    cotangent = normal(value.shape, 9)
    (transposed,) = jax.linear_transpose(function, x)(cotangent)
    assert_same_bits(transposed, pullback(cotangent)[0])


# --- custom derivatives -----------------------------------------------------------------


def test_custom_jvp_is_kept():
    """relu'(0) is 0 by decree; max(x, 0) would give 1/2."""
    zero = np.float32(0)
    assert_same_bits(jax.grad(nn.relu)(zero), zero)
    assert_same_bits(repjax.reproducible(jax.grad(jax.nn.relu))(zero), zero)
    assert_same_bits(jax.grad(rlax.max)(zero, zero), np.float32(0.5))


def test_custom_jvp_of_the_user():
    @jax.custom_jvp
    def f(x):
        return jnp.exp(x)

    f.defjvp(lambda xs, ts: (f(*xs), 3 * ts[0] / xs[0]))
    x = normal(50)
    expected = repjax.reproducible(jax.vmap(jax.grad(f)))(x)
    assert_same_bits(jax.vmap(jax.grad(repjax.explicit.explicit(f)))(x), expected)
    assert_same_bits(expected, canonical(np.float32(1) / x * np.float32(3)))


@pytest.mark.parametrize("way", [lambda f: f, jax.jit, jax.vmap], ids=["eager", "jit", "vmap"])
def test_custom_vjp(way):
    """Kept by reproducible, which comes after autodiff, and by explicit functions."""

    @jax.custom_vjp
    def f(x):
        return x * x

    f.defvjp(lambda x: (x * x, x), lambda x, ct: (ct * 7 * x,))
    x = normal(50)
    run = repjax.reproducible(way(lambda x, ct: jax.vjp(f, x)[1](ct)[0]))
    assert_same_bits(run(x, x), canonical((x * np.float32(7)) * x))
    twin = repjax.explicit.explicit(f)
    assert_same_bits(way(lambda x, ct: jax.vjp(twin, x)[1](ct)[0])(x, x), run(x, x))


@jax.custom_vjp
def _scaled(x, n, y):
    return {"value": jnp.tanh(x) * y, "count": n + 1}


def _scaled_backward(residuals, cotangents):
    x, n, y = residuals
    slope = jax.vjp(jnp.tanh, x)[1](cotangents["value"] * 3)[0]  # the contract's derivative
    return slope * y, None, (cotangents["value"] * jnp.exp(x) * n).sum(0)


_scaled.defvjp(lambda x, n, y: (_scaled(x, n, y), (x, n, y)), _scaled_backward)


def test_custom_vjp_with_integers_in_a_loop():
    """Residuals and results that have no cotangents; both rules inside a scan that is reversed."""
    x, y, ct = normal((5, 4)), normal(4, 1), normal((5, 4), 2)

    def loop(x, y):
        def step(x, n):
            result = _scaled(x, n, y)
            return result["value"], result["count"]

        return lax.scan(step, x, np.arange(3, dtype=np.int32))

    def with_gradients(f):
        def run(x, y, ct):
            value, pullback, count = jax.vjp(f, x, y, has_aux=True)
            return value, count, pullback(ct)

        return run

    expected = repjax.reproducible(with_gradients(loop))(x, y, ct)
    for way in (lambda f: f, jax.jit):
        result = way(with_gradients(repjax.explicit.explicit(loop)))(x, y, ct)
        assert_same_bits(result, expected)
    plain = jax.jit(with_gradients(loop))(x, y, ct)
    assert repjax.digest(plain) != repjax.digest(expected)


def test_several_results_of_a_loop_that_are_one_value():
    """Their cotangents are added at once, as in repjax.reproducible."""
    x, w, ct = normal((3, 7)), normal((7, 7), 1) * np.float32(0.3), normal((3, 5, 3, 7), 2)

    def loop(x, w):
        def step(h, _):
            h = jnp.tanh(h @ w)
            return h, (h, h, h)

        return jnp.stack(lax.scan(step, x, None, length=5)[1])

    def gradients(f):
        return lambda x, w, ct: jax.vjp(f, x, w)[1](ct)

    expected = repjax.reproducible(gradients(loop))(x, w, ct)
    assert_same_bits(jax.jit(gradients(repjax.explicit.explicit(loop)))(x, w, ct), expected)


def test_derivative_of_lgamma_is_digamma_whose_own_is_polygamma():
    x, t = normal(100), normal(100, 1)
    trigamma = repjax.reproducible(lambda x: lax.polygamma(jnp.ones_like(x), x))(x)
    for ours, stock, derivative in (
        (rlax.lgamma, lax.lgamma, rlax.digamma(x)),
        (rlax.digamma, lax.digamma, trigamma),
    ):
        by_hand = np.asarray(rlax.mul(t, derivative))
        for function in (ours, repjax.explicit.explicit(stock)):
            assert_same_bits(jax.jvp(function, (x,), (t,))[1], by_hand)
        inside = repjax.reproducible(lambda x, t, stock=stock: jax.jvp(stock, (x,), (t,))[1])
        assert_same_bits(inside(x, t), by_hand)


REPEATED = {
    "operator": lambda b: normal((300, 5)) * b,
    "broadcast": lambda b: jnp.broadcast_to(b, (300, 5)),
    "gather": lambda b: b[np.arange(1500).reshape(300, 5) % 7 % 5],
}


@pytest.mark.parametrize("name", REPEATED)
def test_cotangents_of_repeated_operands_are_added_up_in_the_stated_order(name):
    f, b, cotangent = REPEATED[name], normal(5, 1), normal((300, 5), 2)
    explicit = jax.vjp(repjax.explicit.explicit(f), b)[1](cotangent)
    whole = repjax.reproducible(lambda b, ct: jax.vjp(f, b)[1](ct))(b, cotangent)
    assert_same_bits(explicit, whole, name)


# --- whole programs ---------------------------------------------------------------------


def _params(seed=0):
    return {
        "kernel": normal((1, 3, 1, 2), seed),
        "hidden": normal((12, 16), seed + 1) * np.float32(0.3),
        "out": normal((16, 3), seed + 2) * np.float32(0.3),
        "bias": normal(3, seed + 3),
    }


def _loss(p, x, labels, block=lambda f: f):
    """A network with every kind of operation; ``block`` may wrap its parts."""

    @block
    def features(p, x):
        x = lax.conv_general_dilated(x, p["kernel"], **{**CONV, "window_strides": (1, 1)})
        x = jax.nn.silu(x)
        return linen.max_pool(x, (1, 2), (1, 2)).reshape(x.shape[0], -1)

    @block
    def head(p, x):
        x = jnp.tanh(x @ p["hidden"])
        x = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-5)
        return x @ p["out"] + p["bias"]

    logits = head(p, features(p, x))
    return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()


def _batch(seed=0):
    return normal((8, 5, 4, 1), seed + 50), np.random.default_rng(seed).integers(0, 3, 8)


GRADIENT = jax.value_and_grad(_loss)


@functools.cache
def _reference():
    return repjax.reproducible(GRADIENT)(_params(), *_batch())


def test_rematerialisation_and_nested_jit_change_no_bit():
    loss = functools.partial(_loss, block=lambda f: jax.checkpoint(jax.jit(f)))
    run = repjax.reproducible(jax.value_and_grad(loss))
    assert_same_bits(run(_params(), *_batch()), _reference())


def test_the_switch_gives_the_same_bits():
    with repjax.enabled():
        assert_same_bits(jax.jit(GRADIENT)(_params(), *_batch()), _reference())


def test_explicit_functions_give_the_same_bits():
    run = jax.jit(jax.value_and_grad(repjax.explicit.explicit(_loss)))
    assert_same_bits(run(_params(), *_batch()), _reference())


def _step(state, batch):
    params, velocity = state
    loss, grads = GRADIENT(params, *batch)
    velocity = jax.tree.map(lambda v, g: 0.9 * v + g, velocity, grads)
    params = jax.tree.map(lambda p, v: p - 0.1 * v, params, velocity)
    return (params, velocity), loss


def test_scan_of_a_step_is_a_loop():
    start = (_params(), jax.tree.map(np.zeros_like, _params()))
    batches = [_batch(seed) for seed in range(4)]
    step = repjax.reproducible(_step)
    state, losses = start, []
    for batch in batches:
        state, loss = step(state, batch)
        losses.append(loss)
    stacked = jax.tree.map(lambda *xs: np.stack(xs), *batches)
    scanned = repjax.reproducible(lambda s, b: lax.scan(_step, s, b))(start, stacked)
    assert_same_bits(scanned, (state, np.stack(losses)), "scan inside")
    scanned = jax.jit(lambda s, b: lax.scan(step, s, b))(start, stacked)
    assert_same_bits(scanned, (state, np.stack(losses)), "scan outside")


def test_gradient_through_scan():
    """That of the unrolled loop, with one cotangent of what the body takes after the other."""
    w, xs = normal((4, 4)) * np.float32(0.5), normal((6, 3, 4), 1)

    def cell(h, x, w):
        return jnp.tanh(h @ w + x)

    def scanned(w, xs):
        return lax.scan(lambda h, x: (cell(h, x, w), None), jnp.zeros((3, 4)), xs)[0].sum()

    def unrolled(ws, xs):
        h = jnp.zeros((3, 4))
        for w, x in zip(ws, xs, strict=True):
            h = cell(h, x, w)
        return h.sum()

    of_w, of_xs = repjax.reproducible(jax.grad(scanned, (0, 1)))(w, xs)
    of_ws, expected = repjax.reproducible(jax.grad(unrolled, (0, 1)))([w] * 6, xs)
    assert_same_bits(of_xs, expected)
    assert_same_bits(of_w, functools.reduce(rlax.add, of_ws[::-1]))
    at_once = repjax.reproducible(jax.grad(lambda w, xs: unrolled([w] * 6, xs)))(w, xs)
    assert_same_bits(at_once, rlax.add_n(*of_ws))


SQUARE = np.array([[4.3, 1.7, 0.4], [1.7, 3.1, -0.9], [0.4, -0.9, 2.2]], np.float32)
TANGENT = np.arange(9, dtype=np.float32).reshape(3, 3) / 7


def _cholesky(x):
    return lax.linalg.cholesky(x, symmetrize_input=False)


def _powers(x):
    return sum((y**3).sum() for y in jnp.linalg.eigh(x))


@pytest.mark.parametrize(
    "function, golden",
    [
        (
            lambda x: jax.jvp(lambda x: jnp.linalg.eigh(x + x.T)[1], (x,), (TANGENT,))[1],
            "sha256:f0ed986e377edf40d32c5480f38a427cbe012e9e1b48e0ee297f6e1ba63e5b3e",
        ),
        (
            lambda x: jax.jvp(_cholesky, (x,), (TANGENT,))[1],
            "sha256:0349a3dd9263c08b1f045bed5efefec134638cf3e73c3bf5d54e37cd855aa961",
        ),
        (
            jax.grad(lambda x: (_cholesky(x) ** 3).sum()),
            "sha256:aa616e0918696f2d7b86584e4cc89e96595f196ec87765cc5f4e19c87fa92f83",
        ),
        (
            jax.grad(_powers),
            "sha256:3e4f5ef0bc4e9d770340d9b2e171ed01a3668540dd545ea80b44befc1f710fed",
        ),
    ],
    ids=["vectors", "tangent of no symmetry", "lower triangle", "eigh"],
)
def test_derivatives_of_factorizations_are_those_of_all_versions(function, golden):
    """JAX 0.10 has other graphs for them."""
    assert repjax.digest(repjax.reproducible(function)(SQUARE)) == golden
    with repjax.enabled():
        assert repjax.digest(jax.jit(function)(SQUARE)) == golden
