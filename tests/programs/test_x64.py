"""Programs in float32 where jax_enable_x64 is on: they have the bits that they have without it."""

from __future__ import annotations

import functools
import inspect

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import linen
from jax import lax

import repjax
from helpers import samplers
from helpers.bits import assert_same_bits, normal, same_bits
from repjax.explicit import explicit

X, Y = normal((6, 4)), normal((6, 3), seed=1)
KEY = jax.random.key(3)


def _with_and_without(function, *args, way=repjax.reproducible):
    """The results of a function, traced anew each time, with the option and without it."""
    without = way(lambda *args: function(*args))(*args)
    with jax.enable_x64(True):
        return way(lambda *args: function(*args))(*args), without


def _assert_same(function, *args, way=repjax.reproducible):
    pairs = zip(*map(jax.tree.leaves, _with_and_without(function, *args, way=way)), strict=True)
    for a, b in pairs:
        assert a.dtype == b.dtype
        assert_same_bits(a, b)


# --- whole programs ---------------------------------------------------------------------


class Network(linen.Module):
    @linen.compact
    def __call__(self, x):
        x = linen.gelu(linen.LayerNorm()(linen.Dense(5)(x)))
        x = linen.BatchNorm(use_running_average=False)(x)
        return linen.Dense(3)(x)


def _training(make):
    """Two steps from initial parameters on: the loss, the parameters and the optimizer's state."""

    def run(key, x, y):
        optimizer = make()
        variables = Network().init(key, x)
        state = optimizer.init(variables["params"])

        def loss(params, stats):
            model = {"params": params, "batch_stats": stats}
            logits, updated = Network().apply(model, x, mutable=["batch_stats"])
            losses = optax.softmax_cross_entropy(logits, jax.nn.softmax(y))
            return losses.mean() + 0.1 * logits.var(), updated["batch_stats"]

        def step(carry, _):
            params, stats, state = carry
            (value, stats), gradients = jax.value_and_grad(loss, has_aux=True)(params, stats)
            updates, state = optimizer.update(gradients, state, params, value=value)
            return (optax.apply_updates(params, updates), stats, state), value

        start = variables["params"], variables["batch_stats"], state
        return lax.scan(step, start, None, 2)

    return run


OPTIMIZERS = {
    "adam": lambda: optax.adam(1e-2),
    "adam, cosine": lambda: optax.adam(optax.cosine_decay_schedule(0.1, 10, 0.1)),
    "adamw": lambda: optax.adamw(optax.linear_schedule(0.1, 0.01, 7)),
    "lamb": lambda: optax.lamb(0.1),
    "nadam": lambda: optax.nadam(0.1),
    "radam": lambda: optax.radam(0.1),
    "adafactor": lambda: optax.adafactor(0.1),
    "sgd": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9)),
}


def _extra(make):
    return lambda: optax.with_extra_args_support(make())


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_training(name):
    _assert_same(_training(_extra(OPTIMIZERS[name])), KEY, X, Y)


def test_training_in_other_ways():
    run = _training(_extra(OPTIMIZERS["adam"]))
    with repjax.enabled():
        _assert_same(run, KEY, X, Y, way=jax.jit)
    keys = jax.random.split(KEY, 2)
    _assert_same(jax.vmap(run, (0, None, None)), keys, X, Y)


def test_plain_jax_trains_otherwise():
    """Negative control: there the powers of Adam are those of float64."""
    optimizer = optax.adam(1e-2)

    def run(g):
        state = optimizer.init(g)
        for _ in range(3):
            updates, state = optimizer.update(g, state)
        return updates

    assert not same_bits(*_with_and_without(run, X, way=jax.jit))
    _assert_same(run, X)


# --- draws ------------------------------------------------------------------------------

_INTEGERS = dict.fromkeys(("randint", "geometric", "poisson", "rademacher"), np.int32)
_TYPES = {**_INTEGERS, "bits": np.uint32}


class _Narrow:
    """``jax.random`` with formats of 32 bits where none is stated, whatever the option."""

    def __getattr__(self, name):
        function = getattr(jax.random, name)
        if "dtype" not in inspect.signature(function).parameters:
            return function

        def draw(*args, **kwargs):
            stated = any(isinstance(x, type) for x in args)
            default = {} if stated else {"dtype": _TYPES.get(name, np.float32)}
            return function(*args, **{**default, **kwargs})

        return draw


DRAWN = {
    **{f"random.{name}": draw for name, draw in samplers.SAMPLERS.items()},
    **{
        f"initializers.{name}": samplers.initializer(name)
        for name in dict.fromkeys((*samplers.initializer_names(), *samplers.INITIALIZERS))
    },
}
#: With the option, JAX compares these with numbers of 64 random bits: in `bernoulli` of a Python
#: number, and so in what it makes of it.
OTHER_DRAWS = {
    f"random.{name}"
    for name in ("ball", "bernoulli", "double_sided_maxwell", "generalized_normal", "rademacher")
}
OTHER_TYPES = {"random.categorical", "random.permutation"}


@pytest.mark.parametrize("name", DRAWN)
def test_draws(name, monkeypatch):
    monkeypatch.setattr(samplers, "random", _Narrow())
    if name == "random.geometric":
        with pytest.raises(repjax.RefusedError, match=r"log expected float32.*received float64"):
            _with_and_without(DRAWN[name], KEY)
        return
    with_option, without = _with_and_without(DRAWN[name], KEY)
    if name in OTHER_TYPES:
        with_option = with_option.astype(without.dtype)
    assert with_option.dtype == without.dtype
    assert same_bits(with_option, without) == (name not in OTHER_DRAWS)


# --- rules ------------------------------------------------------------------------------


@jax.custom_jvp
def _custom(x, a):
    return x * a


_custom.defjvp(lambda primals, tangents: (_custom(*primals), tangents[0] * primals[1] * 0.3))


def _while(x):
    def body(state):
        x, rate, count = state
        return x * rate, rate * 0.9, count + 1

    return lax.while_loop(lambda state: state[1] > 0.5, body, (x, 1.0, 0))[0]


def _powers(count, rate=0.9):
    """Of the type float64, not weakly: what optimizers compute."""
    return rate**count


def _on_devices(function):
    mesh = jax.make_mesh((1,), ("i",), axis_types=(jax.sharding.AxisType.Auto,))
    specs = (jax.P("i"), jax.P())
    return jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=jax.P("i"))


PROGRAMS = {
    "scan": lambda x, n: lax.scan(lambda c, x: (c * 0.7, x * c), 1.0, x)[1],
    "scan, powers": lambda x, n: lax.scan(lambda c, x: (c * 0.7 - c, x * c), 1.0, x)[1],
    "scan, carried power": lambda x, n: lax.scan(
        lambda c, x: (c * c, x * c.astype(np.float32)), _powers(n), x
    )[1],
    "while": lambda x, n: _while(x),
    "cond": lambda x, n: x * lax.cond(n > 2, lambda r: r * 0.3, lambda r: 0.1, 1 / (1 + 0.1 * n)),
    "remat": lambda x, n: jax.checkpoint(lambda x, r: jnp.sin(x * r))(x, 0.1 * n),
    "custom": lambda x, n: jax.grad(lambda x: _custom(x, 0.1 * n).sum())(x),
    "integers": lambda x, n: x * (0.5 - 2.0 * n * _powers(n) / (1 - _powers(n))).astype(x.dtype),
    "bounds": lambda x, n: jnp.clip(x, -0.1 * n, 0.7),
    "median": lambda x, n: jnp.stack([jnp.median(x), jnp.quantile(x, 0.3)]),
    "elementary": lambda x, n: x * jnp.exp(-0.1 * n) + jnp.cos(0.3 * n) * jnp.sqrt(0.7 * n),
    "reduction": lambda x, n: x * (0.1 * jnp.arange(7)).sum().astype(x.dtype),
    "product": lambda x, n: x * ((0.1 * jnp.arange(7)) @ (0.3 * jnp.arange(7))).astype(x.dtype),
    "half": lambda x, n: x.astype(np.float16) * (0.1 * n),
    "rounded": lambda x, n: jnp.floor(3.7 * n) + (2.9 * n).astype(np.int32) * x,
    "shard_map": lambda x, n: _on_devices(lambda x, r: x * r)(x, 0.1 * n),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_numbers_of_python_are_float32(name):
    _assert_same(PROGRAMS[name], X, np.int32(3))
    with repjax.enabled():
        _assert_same(PROGRAMS[name], X, np.int32(3), way=jax.jit)


def test_arguments_and_results_keep_their_types():
    def f(x, rate, n):
        return rate, 0.1 * n, x * rate, 0.3, np.float64(0.3) + jnp.zeros(2)

    with jax.enable_x64(True):
        results, stock = repjax.reproducible(f)(X, 0.1, 3), jax.jit(f)(X, 0.1, 3)
        kinds = [[(y.dtype, y.weak_type) for y in part] for part in (results, stock)]
    assert kinds[0] == kinds[1]
    narrow = np.float32(0.1)
    assert_same_bits(results[0], np.float64(narrow))
    assert_same_bits(results[1], np.float64(narrow * np.float32(3)))
    assert_same_bits(results[2], X * narrow)
    assert_same_bits(results[3], np.float64(np.float32(0.3)))
    assert_same_bits(results[4], np.full(2, 0.3))  # strongly typed, and so it stays what it is


def test_eager():
    def run():
        rate = 0.1 * jnp.asarray(3, np.int32)
        return (X * rate).astype(np.float32) + 0.7

    with repjax.enabled():
        expected = run()
        with jax.enable_x64(True):
            assert_same_bits(run(), expected)


def test_explicit_functions_and_their_derivatives():
    def f(x, rate):
        return jnp.sum(jnp.sin(x * rate) * 0.3)

    expected = jax.grad(explicit(f), (0, 1))(X, jnp.asarray(0.7))
    with jax.enable_x64(True):
        rate = jnp.asarray(0.7)
        assert rate.dtype == np.float64 and rate.weak_type
        results = jax.grad(explicit(f), (0, 1))(X, rate)
    assert_same_bits(results[0], expected[0])
    assert results[1].dtype == np.float64
    assert_same_bits(results[1].astype(np.float32), expected[1])


WIDE = np.float64([0.1, -3.0])
REFUSED = {
    "result": (lambda n: _powers(n), "expected no result of type float64 that is computed from"),
    "mixed": (lambda n: 0.1 * n * WIDE, "mul expected operands of one type, received float64 and"),
    "carry": (
        lambda n: lax.scan(lambda c, _: (_powers(n), None), jnp.float64(1), None, 2)[0],
        "scan expected values that are float64 in all of its iterations",
    ),
    "unrolled": (
        lambda n: lax.scan(lambda c, _: (_powers(n), None), jnp.float64(1), None, 2, unroll=2)[0],
        "scan expected values that are float64 in all of its iterations",
    ),
    "branches": (
        lambda n: lax.cond(n > 1, lambda: _powers(n), lambda: jnp.float64(2)),
        "cond expected values that are float64 in all",
    ),
    "function": (lambda n: jnp.exp(WIDE), r"exp expected float32, float16 or bfloat16, received"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_name_the_option(name):
    function, text = REFUSED[name]
    with jax.enable_x64(True), pytest.raises(repjax.RefusedError, match=text) as caught:
        repjax.reproducible(function)(np.int32(2))
    assert "or turn jax_enable_x64 off" in str(caught.value)
    assert "operation(s)" in str(caught.value) and "test_x64.py" in str(caught.value)


# --- float64 itself ---------------------------------------------------------------------

DOUBLES = np.float64(
    [0, 1, -3.5, 1e300, -1e300, 1e-300, 2.0**-1022, 2.0**-1000, 0.1, 1 / 3, np.inf, -np.inf, np.nan]
)


def _canonical(x, guard=False):
    x = np.asarray(x)
    tiny = np.finfo(x.dtype).tiny
    x = np.where(np.abs(x) <= tiny if guard else np.abs(x) < tiny, x.dtype.type(0), x)
    return np.where(np.isnan(x), x.dtype.type(np.nan), x)


def test_sums_differences_and_products():
    a, b = (v.ravel() for v in np.meshgrid(DOUBLES, DOUBLES))
    with jax.enable_x64(True), np.errstate(all="ignore"):
        assert_same_bits(repjax.reproducible(lambda a, b: a + b)(a, b), _canonical(a + b))
        assert_same_bits(repjax.reproducible(lambda a, b: a - b)(a, b), _canonical(a - b))
        assert_same_bits(repjax.reproducible(lambda a, b: a * b)(a, b), _canonical(a * b, True))
        assert_same_bits(repjax.reproducible(lambda a: -a)(a), _canonical(-a))
        fused = repjax.reproducible(lambda a, b: a * b + b)(a, b)
        assert_same_bits(fused, _canonical(_canonical(a * b, True) + b))


def test_conversions():
    convert = functools.partial(lambda dtype, x: x.astype(dtype))
    x = np.concatenate([DOUBLES, np.random.default_rng(0).normal(size=200) * 100])
    x = np.concatenate([x, 1 + 2.0**-24 + 2.0 ** -np.arange(25, 52)])  # ties, and just above them
    with jax.enable_x64(True), np.errstate(all="ignore"):
        for dtype in np.float32, np.float16:
            result = repjax.reproducible(functools.partial(convert, dtype))(x)
            assert_same_bits(result, _canonical(x.astype(dtype), True))
        finite = x[np.abs(x) < 2**31]
        truncated = repjax.reproducible(functools.partial(convert, np.int32))(finite)
        assert_same_bits(truncated, np.trunc(finite).astype(np.int32))
        for y in X, X.astype(np.float16), np.arange(-3, 9), np.int64([2**60 + 1, -(2**55) - 1]):
            widened = repjax.reproducible(functools.partial(convert, np.float64))(y)
            assert_same_bits(widened, y.astype(np.float64))
