"""Reductions: sums in their stated order, extrema in any, and the functions made of them."""

from __future__ import annotations

import functools
import itertools
import math

import gmpy2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import repjax
import repjax.lax as rlax
from helpers.bits import SPECIALS, assert_same_bits, canonical, normal, patterns, same_bits
from repjax.verify.reference.sums import flatten, reduced
from repjax.verify.reference.values import add, guard


def _sum(accumulation):
    return lambda x, axes: canonical(reduced(canonical(x), axes, accumulation))


SUMS = {order: _sum(order) for order in ("pairwise", "sequential")}
each_accumulation = pytest.mark.parametrize("accumulation", SUMS)

# Of four axes: some sums over axes that are apart are sums over one after the other.
SHAPES = [(), (13,), (4, 7), (3, 1, 6), (2, 3, 4, 5), (0,), (3, 0), (0, 3, 2)]
LENGTHS = [1, 2, 3, 5, 7, 8, 17, 1000]


def all_axes(rank):
    return [c for n in range(rank + 1) for c in itertools.combinations(range(rank), n)]


def tiny(shape, seed=0):
    """Numbers whose sums are often subnormal."""
    rng = np.random.default_rng(seed)
    x = np.ldexp(rng.integers(2**23, 2**24, shape), -126 - 23 + rng.integers(0, 2, shape))
    return (x * rng.choice([-1, 1], shape)).astype(np.float32)


def any_bits(shape, seed=0):
    return patterns(math.prod(shape), seed).reshape(shape)


def infinite(shape, seed=0):
    """Normal numbers, with infinities and NaNs here and there."""
    rng = np.random.default_rng(seed)
    special = rng.choice(np.float32([np.inf, -np.inf, np.nan, 3e38]), shape)
    return np.where(rng.random(shape) < 0.05, special, normal(shape, seed)).astype(np.float32)


def integers(shape, seed=0):
    """Many ties."""
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(np.float32)


DATA = [normal, tiny, any_bits, infinite, integers]
each_data = pytest.mark.parametrize("data", DATA, ids=lambda f: f.__name__)

# --- sums ------------------------------------------------------------------------------


@functools.cache
def _every_sum(rank, accumulation):
    @jax.jit
    def sums(x):
        return {
            str(axes): rlax.reduce_sum(x, axes, accumulation=accumulation)
            for axes in all_axes(rank)
        }

    return sums


@each_accumulation
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sum_over_every_choice_of_axes(shape, accumulation):
    for data in DATA:
        x = data(shape)
        expected = {str(axes): SUMS[accumulation](x, axes) for axes in all_axes(x.ndim)}
        assert_same_bits(_every_sum(x.ndim, accumulation)(x), expected, data.__name__)


@each_accumulation
@pytest.mark.parametrize("n", LENGTHS)
def test_sum_of_n(n, accumulation):
    @functools.partial(repjax.reproducible, accumulation=accumulation)
    def sums(x):
        return jnp.sum(x, axis=0)

    for data in DATA:
        x = data((n, 50))
        assert_same_bits(sums(x), SUMS[accumulation](x, [0]), data.__name__)


def test_the_orders_differ():
    """The data can tell the two orders, and each after a permutation, from one another."""
    x = normal((1000, 50))
    permuted = x[np.random.default_rng(0).permutation(1000)]
    results = [order(y, [0]) for order in SUMS.values() for y in (x, permuted)]
    for a, b in itertools.combinations(results, 2):
        assert not same_bits(a, b)


@each_accumulation
def test_layout_does_not_matter(accumulation):
    """The order is that of the logical shape, however the operand came to be."""
    x = normal((6, 5, 7))

    @functools.partial(repjax.reproducible, accumulation=accumulation)
    def sums(x):
        moved = jnp.moveaxis(x, 2, 0)
        return moved.sum((0, 2)), moved.sum((1, 2)), x[::-1].sum((0, 1)), (x * 2).sum()

    expected = [
        SUMS[accumulation](y, axes)
        for y, axes in (
            (np.moveaxis(x, 2, 0), (0, 2)),
            (np.moveaxis(x, 2, 0), (1, 2)),
            (x[::-1], (0, 1)),
            (x * 2, (0, 1, 2)),
        )
    ]
    assert_same_bits(sums(x), tuple(expected))


@each_accumulation
def test_ways_to_run_a_sum(accumulation):
    x = any_bits((9, 33), 3)
    expected = SUMS[accumulation](x, [1])
    with repjax.enabled(accumulation=accumulation):
        assert_same_bits(jnp.asarray(x).sum(1), expected, "eager")
        assert_same_bits(jax.jit(lambda x: x.sum(1))(x), expected, "jit")
        assert_same_bits(jax.vmap(jnp.sum)(x), expected, "vmap")
        assert_same_bits(jax.vmap(jnp.sum, in_axes=1)(x.T), expected, "vmap over columns")
        assert_same_bits(lax.map(jnp.sum, x), expected, "map")
        rows = np.stack([jnp.sum(row) for row in x])
        assert_same_bits(rows, expected, "rows one by one")
        assert_same_bits(jnp.sum(x[2:5], axis=1), expected[2:5], "a smaller batch")


def test_integer_and_boolean_sums_are_plain():
    x = np.arange(-7, 20, dtype=np.int32)
    run = repjax.reproducible(lambda x: (x.sum(), (x > 3).sum(), x.prod(), jnp.cumsum(x)))
    expected = (x.sum(dtype=np.int32), np.int32(16), np.int32(0), np.cumsum(x, dtype=np.int32))
    assert_same_bits(run(x), expected)


# --- extrema ---------------------------------------------------------------------------


def _extremum(which, empty):
    def oracle(x, axes):
        flat = flatten(canonical(x), axes)
        flat = np.concatenate([np.full((1, *flat.shape[1:]), empty, np.float32), flat])
        return canonical(which(flat, axis=0))

    return oracle


# NumPy propagates NaN, and names the first of equals and the first NaN, as JAX does.
EXTREMA = {"reduce_max": _extremum(np.max, -np.inf), "reduce_min": _extremum(np.min, np.inf)}
POSITIONS = {"argmax": np.argmax, "argmin": np.argmin}


@pytest.mark.parametrize("name", EXTREMA)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_extrema(shape, name):
    oracle, twin = EXTREMA[name], getattr(rlax, name)
    run = jax.jit(lambda x: {str(axes): twin(x, axes) for axes in all_axes(x.ndim)})
    for data in DATA:
        x = data(shape)
        expected = {str(axes): oracle(x, axes) for axes in all_axes(x.ndim)}
        assert_same_bits(run(x), expected, data.__name__)


@pytest.mark.parametrize("name", POSITIONS)
@pytest.mark.parametrize("shape", [s for s in SHAPES if s and 0 not in s], ids=str)
def test_positions(shape, name):
    oracle, twin = POSITIONS[name], getattr(rlax, name)
    run = jax.jit(lambda x: [twin(x, axis, np.int32) for axis in range(x.ndim)])
    for data in DATA:
        x = data(shape)
        expected = [oracle(canonical(x), axis).astype(np.int32) for axis in range(x.ndim)]
        assert_same_bits(run(x), expected, data.__name__)


@pytest.mark.parametrize("name", POSITIONS)
def test_positions_among_pairs_of_special_values(name):
    x = np.stack([s.ravel() for s in np.meshgrid(SPECIALS, SPECIALS)])
    expected = POSITIONS[name](canonical(x), 0).astype(np.int32)
    with repjax.enabled():
        assert_same_bits(getattr(jnp, name)(x, axis=0), expected)


def test_sort_is_total_and_puts_nan_last():
    x = np.concatenate([patterns(1000, 4), SPECIALS])
    run = repjax.reproducible(lambda x: (jnp.sort(x), jnp.argsort(x)))
    order = np.argsort(canonical(x), stable=True)
    assert_same_bits(run(x), (canonical(x)[order], order.astype(np.int32)))


# --- functions made of sums ------------------------------------------------------------


def rounded(function):
    def apply(x):
        with gmpy2.context(gmpy2.ieee(32)):
            y = [float(function(gmpy2.mpfr(v))) for v in np.asarray(x).ravel().tolist()]
        return guard(np.array(y, np.float32)).reshape(np.shape(x))

    return apply


def quiet(function):
    """With ``canonical`` operand and result, and without NumPy's warnings."""

    @functools.wraps(function)
    def oracle(x, total):
        with np.errstate(all="ignore"):
            return canonical(function(canonical(x), total))

    return oracle


@quiet
def mean(x, total):
    return guard(total(x, [1]) / np.float32(x.shape[1]))


@quiet
def var(x, total):
    centered = add(x, -mean(x, total)[:, None])
    return mean(guard(centered * centered), total)


@quiet
def std(x, total):
    return rounded(gmpy2.sqrt)(var(x, total))


@quiet
def softmax(x, total):
    e = rounded(gmpy2.exp)(add(x, -x.max(1, keepdims=True)))
    return guard(e / total(e, [1])[:, None])


@quiet
def log_softmax(x, total):
    shifted = add(x, -x.max(1, keepdims=True))
    log_sum = rounded(gmpy2.log)(total(rounded(gmpy2.exp)(shifted), [1]))
    return add(shifted, -log_sum[:, None])


@quiet
def logsumexp(x, total):
    top = x.max(1)
    top = np.where(np.isfinite(top), top, np.float32(0))
    e = rounded(gmpy2.exp)(add(x, -top[:, None]))
    return add(rounded(gmpy2.log)(total(e, [1])), top)


COMPOSITIONS = {
    "mean": (lambda x: jnp.mean(x, 1), mean),
    "var": (lambda x: jnp.var(x, 1), var),
    "std": (lambda x: jnp.std(x, 1), std),
    "softmax": (jax.nn.softmax, softmax),
    "log_softmax": (jax.nn.log_softmax, log_softmax),
    "logsumexp": (lambda x: jax.nn.logsumexp(x, 1), logsumexp),
}


@each_accumulation
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_compositions_are_the_stated_graphs(name, accumulation):
    function, oracle = COMPOSITIONS[name]
    run = repjax.reproducible(function, accumulation=accumulation)
    for x in (normal((40, 13)) * np.float32(5), infinite((40, 13), 1), any_bits((40, 13), 2)):
        assert_same_bits(run(x), oracle(x, SUMS[accumulation]))


@pytest.mark.parametrize("name", COMPOSITIONS)
def test_a_row_does_not_depend_on_its_batch(name):
    function, _ = COMPOSITIONS[name]
    run = repjax.reproducible(function)
    x = infinite((11, 29), 5)
    whole = np.asarray(run(x))
    for rows in (slice(0, 1), slice(3, 8), slice(10, 11)):
        assert_same_bits(run(x[rows]), whole[rows])
    mapped = repjax.reproducible(jax.vmap(lambda row: function(row[None])[0]))
    assert_same_bits(mapped(x), whole, "vmap")


# --- top_k --------------------------------------------------------------------------------


def top_k(x, k):
    """NaNs first, then the largest, each in the order of ``x``."""
    values, positions = [], []
    for row in canonical(x):
        order = sorted(range(len(row)), key=lambda i: (not np.isnan(row[i]), -row[i], i))[:k]
        order = [i for i in order if np.isnan(row[i])] + [i for i in order if not np.isnan(row[i])]
        values.append(row[order])
        positions.append(order)
    return [np.stack(values), np.array(positions, np.int32)]


# One by one, all of few elements, and by sorting.
@pytest.mark.parametrize("k", [1, 9, 40])
def test_top_k(k):
    x = np.concatenate([np.round(normal((20, 40))), patterns(800).reshape(20, 40)])
    x[3, [5, 7]], x[4, :3], x[5], x[6] = np.nan, np.inf, -np.inf, np.nan
    expected = top_k(x, k)
    assert_same_bits(repjax.reproducible(lambda x: lax.top_k(x, k))(x), expected)
    along = repjax.reproducible(lambda x: [jnp.moveaxis(y, 0, 1) for y in lax.top_k(x, k, axis=0)])
    assert_same_bits(along(x.T), expected, "axis 0")
    assert_same_bits(repjax.reproducible(jax.vmap(lambda x: lax.top_k(x, k)))(x), expected)
    with repjax.enabled():
        assert_same_bits(lax.top_k(jnp.asarray(x), k), expected, "eager")
    assert_same_bits(repjax.lax.top_k(x, k), expected, "explicit")
    if k > 1:  # ties have an order
        assert not same_bits(top_k(x[:, ::-1], k)[1], 39 - expected[1])


def test_gradient_of_top_k():
    x, cotangent = np.float32([2, 5, 5, 1]), np.float32([10, 20])
    for function in lax.top_k, repjax.lax.top_k:
        gradient = jax.grad(lambda x, f=function: (f(x, 2)[0] * cotangent).sum())
        assert_same_bits(repjax.reproducible(gradient)(x), np.float32([0, 10, 20, 0]))


@pytest.mark.parametrize("dtype", [np.float32, jnp.bfloat16, np.int8, np.bool_])
@pytest.mark.parametrize(
    ("size", "index"), [(2**31 + 1, np.int32), (129, np.int8), (257, np.uint8)]
)
def test_positions_that_their_type_does_not_hold_are_refused(dtype, size, index):
    """XLA wraps them around.  Nothing so large is in memory: types are enough."""
    for name, function in (("argmax", lax.argmax), ("argmin", lax.argmin)):
        program = repjax.reproducible(lambda x, function=function: function(x, 0, index))
        with pytest.raises(repjax.RefusedError, match=f"{name} expected an index_dtype for"):
            jax.eval_shape(program, jax.ShapeDtypeStruct((size,), dtype))
        fitting = jax.ShapeDtypeStruct((size - 1, 2), dtype)
        assert jax.eval_shape(program, fitting).shape == (2,)
