"""Products, cumulative operations and stated reductions, against their definitions in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, canonical, normal, patterns, same_bits
from repjax.explicit import explicit
from repjax.verify.reference.sums import blocks, halves, logaddexp, one_by_one
from repjax.verify.reference.values import add, multiply

# --- the definitions, of the reference ----------------------------------------------------

PREFIXES = {"pairwise": blocks, "sequential": one_by_one}
REDUCTIONS = {"pairwise": halves, "sequential": lambda combine, x: one_by_one(combine, x)[-1]}
each_order = pytest.mark.parametrize("order", PREFIXES)

COMBINE = {
    "cumsum": add,
    "cumprod": multiply,
    "cummax": np.maximum,
    "cummin": np.minimum,
    "cumlogsumexp": logaddexp,
}


def expected(name, order, x, axis, reverse):
    x = np.moveaxis(canonical(x), axis, 0)
    x = x[::-1] if reverse else x
    out = (blocks if name == "cumlogsumexp" else PREFIXES[order])(COMBINE[name], x)
    return canonical(np.moveaxis(out[::-1] if reverse else out, 0, axis))


def any_bits(shape, seed=0):
    return patterns(int(np.prod(shape)), seed).reshape(shape)


def near_one(shape, seed=0):
    """Products of many of these neither overflow nor underflow."""
    return np.exp2(normal(shape, seed)).astype(np.float32) * np.float32(1.1)


def data(name, shape, seed=0):
    return (near_one if name == "cumprod" else normal)(shape, seed)


# --- cumulative operations ------------------------------------------------------------------


@each_order
@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_prefixes(name, order):
    for shape, axis, reverse in [((23, 3), 0, False), ((2, 64), 1, True), ((33,), 0, True)]:
        run = repjax.reproducible(
            lambda x, a=axis, r=reverse: getattr(lax, name)(x, axis=a, reverse=r),
            accumulation=order,
        )
        for x in data(name, shape), any_bits(shape):
            assert_same_bits(run(x), expected(name, order, x, axis, reverse), str(shape))


@pytest.mark.parametrize("name", ["cummax", "cummin", "cumlogsumexp"])
def test_prefixes_without_an_order(name):
    """Extrema need none, and logsumexps always have the pairwise one."""
    x = np.concatenate([normal((20, 5)), any_bits((21, 5))])
    x[3, 0], x[:2, 1] = np.nan, -np.inf
    results = {
        order: repjax.reproducible(getattr(lax, name), accumulation=order)(x) for order in PREFIXES
    }
    for order, result in results.items():
        assert_same_bits(result, expected(name, "pairwise", x, 0, False), order)
    run = repjax.reproducible(lambda x: getattr(lax, name)(x, axis=1, reverse=True))
    assert_same_bits(run(x), expected(name, "pairwise", x, 1, True), "reverse")


@pytest.mark.parametrize("name", ["cumsum", "cumprod"])
def test_the_data_can_tell_the_orders(name):
    x = data(name, (64,))
    ways = [expected(name, order, x, 0, reverse) for order in PREFIXES for reverse in (0, 1)]
    ways.append(getattr(np, name)(x, dtype=np.float32))
    digests = {repjax.digest(way) for way in ways}
    assert len(digests) == 4  # NumPy's order is the sequential one


def test_results_do_not_depend_on_what_is_behind():
    x = normal(70)
    whole = np.asarray(repjax.reproducible(jnp.cumsum)(x))
    for n in (1, 2, 31, 33):
        assert_same_bits(repjax.reproducible(jnp.cumsum)(x[:n]), whole[:n])


@pytest.mark.parametrize("name", COMBINE)
def test_empty_axes(name):
    run = repjax.reproducible(lambda x: getattr(lax, name)(x, axis=1))
    for shape in (3, 0), (0, 3), (2, 1):
        assert_same_bits(run(normal(shape)), normal(shape))


@pytest.mark.parametrize("name", COMBINE)
def test_every_way_to_run_it(name):
    x = data(name, (3, 11))
    want = expected(name, "pairwise", x, 1, False)
    function = getattr(lax, name)
    assert_same_bits(repjax.reproducible(jax.vmap(function))(x), want, "vmap")
    assert_same_bits(jax.vmap(explicit(function))(x), want, "explicit")
    with repjax.enabled():
        assert_same_bits(np.stack([function(jnp.asarray(row)) for row in x]), want, "eager")


@pytest.mark.parametrize(
    ("name", "order"), [*((name, "pairwise") for name in COMBINE), ("cumprod", "sequential")]
)
def test_derivatives_keep_the_value(name, order):
    x = data(name, (11,))
    function = getattr(lax, name)
    run = repjax.reproducible(
        lambda x, ct: (lambda y, f: (y, f(ct)[0]))(*jax.vjp(function, x)), accumulation=order
    )
    value, gradient = run(x, normal(11, 1))
    assert_same_bits(value, expected(name, order, x, 0, False))
    close = jax.vjp(function, x)[1](normal(11, 1))[0]
    assert float(np.abs(gradient - close).max()) < 2e-5 * float(np.abs(close).max())


def test_gradient_of_a_cumulative_sum():
    x, cotangent = normal(37), normal(37, 1)
    run = repjax.reproducible(lambda x, ct: jax.vjp(jnp.cumsum, x)[1](ct)[0])
    assert_same_bits(run(x, cotangent), expected("cumsum", "pairwise", cotangent, 0, True))


def test_explicit_gradient_of_a_cumulative_product():
    x, cotangent = near_one(9), normal(9, 1)
    inside = repjax.reproducible(lambda x, ct: jax.vjp(lax.cumprod, x)[1](ct)[0])
    outside = jax.vjp(explicit(lax.cumprod), x)[1](cotangent)[0]
    assert_same_bits(outside, inside(x, cotangent))


# --- products -----------------------------------------------------------------------------


@each_order
def test_products(order):
    run = repjax.reproducible(lambda x: lax.reduce_prod(x, (0,)), accumulation=order)
    tiny = np.full((5, 2), 2.0**-126, np.float32)
    for x in near_one((37, 5)), any_bits((37, 5)), tiny, tiny[:1], near_one((0, 3)):
        product = REDUCTIONS[order](multiply, canonical(x)) if len(x) else np.ones(3, np.float32)
        assert_same_bits(run(x), canonical(product))


def test_products_over_several_axes():
    x = near_one((5, 4, 3))
    flat = np.moveaxis(x, 1, -1).reshape(15, 4)
    run = repjax.reproducible(lambda x: jnp.prod(x, axis=(2, 0)))
    assert_same_bits(run(x), halves(multiply, flat))


@each_order
def test_gradient_of_a_product_keeps_the_value(order):
    x = near_one(11)
    run = repjax.reproducible(jax.value_and_grad(jnp.prod), accumulation=order)
    value, gradient = run(x)
    assert_same_bits(value, np.float32(REDUCTIONS[order](multiply, x)))
    exact = np.prod(x.astype(np.float64)) / x
    assert float(np.abs(gradient / exact - 1).max()) < 1e-5
    same = jax.value_and_grad(lambda x: explicit(jnp.prod, accumulation=order)(x))(x)
    assert_same_bits(same, (value, gradient))


# --- reductions by a stated function ----------------------------------------------------------


def test_reduce_by_any_function():
    x = normal((37, 5))
    run = repjax.reproducible(
        lambda x: lax.reduce(x, np.float32(1.5), lambda a, b: a * b + (a + b), (0,))
    )

    def combine(a, b):
        return add(multiply(a, b), add(a, b))

    want = combine(np.float32(1.5), halves(combine, x))
    assert_same_bits(run(x), want)
    assert not same_bits(want, combine(np.float32(1.5), one_by_one(combine, x)[-1]))


def test_reduce_of_several_operands():
    """The largest element and its position, the first among equals."""
    x = np.round(normal((37, 5)) * 2)
    index = np.broadcast_to(np.arange(37, dtype=np.int32)[:, None], x.shape)

    def larger(a, b):
        first = (a[0] > b[0]) | ((a[0] == b[0]) & (a[1] < b[1]))
        return tuple(jnp.where(first, u, v) for u, v in zip(a, b, strict=True))

    run = repjax.reproducible(
        lambda x, i: lax.reduce((x, i), (np.float32(-np.inf), np.int32(99)), larger, (0,))
    )
    assert_same_bits(run(x, index), (x.max(0), x.argmax(0).astype(np.int32)))


def test_reduce_of_nothing_is_the_initial_value():
    run = repjax.reproducible(lambda x: lax.reduce(x, np.float32(1.5), lax.add, (0,)))
    assert_same_bits(run(normal((0, 3))), np.full(3, 1.5, np.float32))


def test_derivative_of_reduce():
    x, tangent = normal((2, 3)), normal((2, 3), 1)

    def f(x):
        return lax.reduce(x, np.float32(2), lambda a, b: a * b, (0, 1))

    value, slope = repjax.reproducible(lambda x, t: jax.jvp(f, (x,), (t,)))(x, tangent)
    wide, dx = x.astype(np.float64), tangent.astype(np.float64)
    assert abs(float(value) - 2 * wide.prod()) < 1e-5
    assert abs(float(slope) - 2 * (wide.prod() / wide * dx).sum()) < 1e-5


def test_windows_by_any_function():
    x = near_one((5, 9))
    window = {"window_dimensions": (2, 3), "window_strides": (1, 2), "padding": ((0, 0), (-1, 2))}
    run = repjax.reproducible(
        lambda x: lax.reduce_window(x, np.float32(1.25), lax.mul, **window, window_dilation=(2, 1))
    )
    padded = np.pad(x, ((0, 0), (0, 2)), constant_values=1.25)[:, 1:]
    want = np.zeros((3, 4), np.float32)
    for i, j in np.ndindex(*want.shape):
        elements = padded[i : i + 3 : 2, 2 * j : 2 * j + 3].ravel()
        want[i, j] = multiply(np.float32(1.25), halves(multiply, elements))
    assert_same_bits(run(x), want)


def _on_the_host(a, b):
    return jax.pure_callback(np.add, a, a, b, vmap_method="expand_dims")


def test_stated_functions_are_checked_too():
    with pytest.raises(repjax.RefusedError, match="pure_callback"):
        repjax.reproducible(lambda x: lax.reduce(x, np.float32(0), _on_the_host, (0,)))(normal(3))
