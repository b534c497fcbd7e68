"""The global switch: repjax_enable, repjax_accumulation and repjax.enabled()."""

from __future__ import annotations

import subprocess
import sys
import threading

import gmpy2
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax._src.interpreters import pxla

import repjax
from helpers.bits import assert_same_bits, canonical, normal, patterns, same_bits
from repjax import config
from repjax.primitives.cpu import library
from repjax.verify.reference.values import guard

X = normal(5000)


@pytest.fixture(autouse=True)
def _restored():
    yield
    jax.config.update("repjax_enable", False)
    jax.config.update("repjax_accumulation", "pairwise")


def switch(value):
    jax.config.update("repjax_enable", value)


def function(x):
    """Something of which no backend computes the contract's bits by chance."""
    return jnp.tanh(x) * jnp.exp(x) + jnp.log1p(x * x) + x.sum()


OURS = np.asarray(repjax.reproducible(function)(X))

# --- on and off ---------------------------------------------------------------------------

PROGRAMS = {
    "jit": jax.jit(function),
    "eager": lambda x: function(jnp.asarray(x)),
    "nested jit": jax.jit(lambda x: jax.jit(function)(x)),
    "scan": jax.jit(lambda x: lax.scan(lambda c, _: (c, function(x)), 0, None, 1)[1][0]),
    "vmap": jax.vmap(jax.jit(function), in_axes=0, out_axes=0),
    "ahead of time": lambda x: jax.jit(function).lower(x).compile()(x),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_toggling_never_serves_a_stale_program(name):
    program = PROGRAMS[name]
    run = (lambda: program(X[None])[0]) if name == "vmap" else lambda: program(X)
    results = []
    for value in (False, True, False, True, True, False):
        switch(value)
        results.append((value, np.asarray(run())))
    stock = results[0][1]
    assert not same_bits(stock, OURS)
    for value, result in results:
        assert_same_bits(result, OURS if value else stock, f"repjax_enable {value}")


def test_toggling_by_block():
    program = jax.jit(function)
    stock = np.asarray(program(X))
    for _ in range(2):
        with repjax.enabled():
            assert_same_bits(program(X), OURS)
        assert_same_bits(program(X), stock)


def test_on_first_and_off_later():
    @jax.jit
    def program(x):
        return jnp.tanh(x) + 1

    ours = repjax.reproducible(lambda x: jnp.tanh(x) + 1)(X)
    with repjax.enabled():
        assert_same_bits(program(X), ours)
    assert not same_bits(program(X), ours)


def test_blocks_nest_and_overrule_the_option():
    program = jax.jit(function)
    stock = np.asarray(program(X))
    switch(True)
    assert_same_bits(program(X), OURS)
    with repjax.enabled(False):
        assert jax.config.repjax_enable is False
        assert_same_bits(program(X), stock)
        with repjax.enabled():
            assert_same_bits(program(X), OURS)
            with repjax.enabled(False):
                assert_same_bits(program(X), stock)
            assert jax.config.repjax_enable is True
        assert_same_bits(program(X), stock)
    assert jax.config.repjax_enable is True
    assert_same_bits(program(X), OURS)


def test_an_exception_leaves_the_block():
    with pytest.raises(KeyError), repjax.enabled():
        raise KeyError
    assert jax.config.repjax_enable is False


def test_a_block_as_a_decorator():
    @repjax.enabled()
    def run():
        return jax.jit(function)(X)

    for _ in range(2):
        assert_same_bits(run(), OURS)
        assert jax.config.repjax_enable is False


def test_what_was_compiled_ahead_of_time_stays_as_it_was():
    off = jax.jit(function).lower(X).compile()
    with repjax.enabled():
        on = jax.jit(function).lower(X).compile()
        with pytest.warns(UserWarning, match="compiled while it was off"):
            stock = np.asarray(off(X))
        assert_same_bits(on(X), OURS)
        assert_same_bits(off(X), stock)  # and warns once only
    assert_same_bits(on(X), OURS)
    assert_same_bits(off(X), stock)
    assert not same_bits(stock, OURS)


@pytest.mark.parametrize("has_kernel", [True, False])
def test_no_warning_of_programs_that_are_reproducible_anyway(has_kernel, monkeypatch):
    if not has_kernel:
        monkeypatch.setattr(library, "available", lambda: False)
    integers = jax.jit(lambda i: i * 3 + 1).lower(np.arange(4)).compile()
    ours = repjax.reproducible(function).lower(X).compile()
    with repjax.enabled():
        integers(np.arange(4))
        assert_same_bits(ours(X), OURS)
        inside = jax.jit(lambda x: x[::-1] * x).lower(X).compile()
        assert_same_bits(inside(X), repjax.reproducible(lambda x: x[::-1] * x)(X))


# --- inside traces ------------------------------------------------------------------------


def _block(x):
    with repjax.enabled():
        return jnp.tanh(x).sum()


def _with(**options):
    def function(x):
        with repjax.enabled(**options):
            return jnp.tanh(x).sum()

    return function


def _update(name, value):
    def function(x):
        jax.config.update(name, value)
        return jnp.tanh(x).sum()

    return function


#: Ways to change the state, and for each the state in which it changes nothing.
CHANGES = {
    "on": (_block, {}),
    "off": (_with(value=False), None),
    "option on": (_update("repjax_enable", True), {}),
    "option off": (_update("repjax_enable", False), None),
    "accumulation": (_with(accumulation="sequential"), {"accumulation": "sequential"}),
    "contraction": (_with(contraction="order_independent"), {"contraction": "order_independent"}),
    "option accumulation": (
        _update("repjax_accumulation", "sequential"),
        {"accumulation": "sequential"},
    ),
    "option contraction": (
        _update("repjax_contraction", "order_independent"),
        {"contraction": "order_independent"},
    ),
}
TRACES = {
    "jit": lambda f: jax.jit(f)(X),
    "nested jit": lambda f: jax.jit(lambda x: jax.jit(f)(x))(X),
    "grad": lambda f: jax.grad(f)(X),
    "linearize": lambda f: jax.linearize(f, X)[0],
    "vmap": lambda f: jax.vmap(f)(X[None]),
    "scan": lambda f: lax.scan(lambda c, _: (f(X), None), 0.0, None, 1)[0],
    "remat": lambda f: jax.grad(jax.checkpoint(f))(X),
    "eval_shape": lambda f: jax.eval_shape(f, X),
    "make_jaxpr": lambda f: jax.make_jaxpr(f)(X),
    "ahead of time": lambda f: jax.jit(f).lower(X),
}


def _in_state(state):
    return repjax.enabled(False) if state is None else repjax.enabled(**state)


@pytest.fixture
def _contraction_restored():
    yield
    jax.config.update("repjax_contraction", "sequential")


@pytest.mark.usefixtures("_contraction_restored")
@pytest.mark.parametrize("trace", TRACES)
@pytest.mark.parametrize("change", CHANGES)
def test_the_state_does_not_change_inside_a_trace(change, trace):
    function, same = CHANGES[change]
    others = [None, {}] if same else [{}] if same is None else [None]
    for state in others:
        with _in_state(state):
            before = config.state()
            with pytest.raises(RuntimeError, match="outside of functions that JAX is tracing"):
                TRACES[trace](function)
            assert config.state() == before
    with _in_state(same):  # what is there already
        TRACES[trace](function)


def test_a_reproducible_function_is_on_inside():
    expected = repjax.reproducible(lambda x: jnp.tanh(x).sum())(X)
    assert_same_bits(repjax.reproducible(_block)(X), expected)
    with pytest.raises(
        RuntimeError, match=r"repjax.enabled: expected .* received State\(enabled=F"
    ):
        repjax.reproducible(_with(value=False))(X)
    assert_same_bits(jax.jit(repjax.reproducible(_block))(X), expected)
    gradient = repjax.reproducible(jax.grad(lambda x: jnp.tanh(x).sum()))
    assert_same_bits(repjax.reproducible(jax.grad(_block))(X), gradient(X))


def test_the_first_enabling_inside_a_trace():
    """Before the canaries, which would blame the version of JAX."""
    code = """
import jax, repjax
def f(x):
    with repjax.enabled():
        return jax.numpy.tanh(x)
assert repjax.reproducible(f)(1.0) == repjax.lax.tanh(1.0)
jax.jit(f)(1.0)
"""
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert "RuntimeError: repjax.enabled: expected to be set outside of" in result.stderr


TRACED = [None, {}, {"accumulation": "sequential"}]


@pytest.mark.parametrize("later", range(3))
@pytest.mark.parametrize("first", range(3))
def test_a_traced_program_is_lowered_in_its_state(first, later):
    with _in_state(TRACED[first]):
        traced = jax.jit(function).trace(X)
        expected = jax.jit(function)(X)
    with _in_state(TRACED[later]):
        if first == later:
            assert_same_bits(traced.lower().compile()(X), expected)
            return
        for use in (traced.lower, lambda: traced(X), lambda: jax.jit(lambda x: traced(x))(X)):
            with pytest.raises(RuntimeError, match="lowered and called as it was traced, with"):
                use()


def test_orders_are_nothing_to_a_program_traced_while_off():
    with repjax.enabled(False, accumulation="sequential"):
        traced = jax.jit(function).trace(X)
    traced.lower()


# --- threads --------------------------------------------------------------------------------


def _in_thread(f):
    results = []
    thread = threading.Thread(target=lambda: results.append(f()))
    thread.start()
    thread.join()
    return results[0]


def test_a_block_is_of_its_thread_and_the_option_of_all():
    program = jax.jit(function)
    stock = np.asarray(program(X))
    with repjax.enabled():
        assert _in_thread(lambda: jax.config.repjax_enable) is False
        assert_same_bits(_in_thread(lambda: np.asarray(program(X))), stock, "beside a block")
        assert_same_bits(program(X), OURS)
    switch(True)
    assert _in_thread(lambda: jax.config.repjax_enable) is True
    assert_same_bits(_in_thread(lambda: np.asarray(program(X))), OURS, "below the option")
    with repjax.enabled(False):
        assert_same_bits(_in_thread(lambda: np.asarray(program(X))), OURS, "beside a block off")


def test_threads_with_different_switches_at_once():
    program = jax.jit(function)
    stock = np.asarray(program(X))
    barrier = threading.Barrier(4, timeout=60)
    wrong = []

    def work(value):
        with repjax.enabled(value):
            for _ in range(5):
                barrier.wait()
                if not same_bits(program(X), OURS if value else stock):
                    wrong.append(value)

    threads = [threading.Thread(target=work, args=(i % 2 == 0,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


# --- options ----------------------------------------------------------------------------------


def test_options_can_be_read():
    assert jax.config.repjax_enable is False
    assert jax.config.repjax_accumulation == "pairwise"
    assert jax.config.read("repjax_enable") is False
    switch(True)
    jax.config.update("repjax_accumulation", "sequential")
    assert jax.config.repjax_enable is True
    assert jax.config.read("repjax_enable") is True
    assert jax.config.repjax_accumulation == "sequential"


@pytest.mark.parametrize("wrong", [1, 0, "yes", None, np.True_])
def test_wrong_switch_values(wrong):
    with pytest.raises(TypeError, match=r"repjax_enable: expected True or False, received"):
        switch(wrong)
    with (
        pytest.raises(TypeError, match=r"enabled: expected True or False, received"),
        repjax.enabled(wrong),
    ):
        pass
    assert jax.config.repjax_enable is False


@pytest.mark.parametrize("wrong", ["kahan", "", 3])
def test_wrong_accumulations(wrong):
    text = r"accumulation: expected one of pairwise, sequential, .*; received .*numerics.md"
    with pytest.raises(ValueError, match=text):
        jax.config.update("repjax_accumulation", wrong)
    with pytest.raises(ValueError, match=text), repjax.enabled(accumulation=wrong):
        pass
    assert jax.config.repjax_accumulation == "pairwise"


def _sequential(x):
    total = np.float32(0)
    for v in x:
        total += v
    return total


def test_the_option_changes_the_order_of_sums_and_back():
    sequential = _sequential(X)
    explicit = jax.jit(lambda x: repjax.lax.reduce_sum(x, (0,)))
    reproducible = repjax.reproducible(jnp.sum)
    switch(True)
    program = jax.jit(jnp.sum)
    runs = {"switch": program, "explicit": explicit, "reproducible": reproducible}
    pairwise = np.asarray(program(X))
    assert not same_bits(pairwise, sequential)
    for accumulation, expected in [("sequential", sequential), ("pairwise", pairwise)] * 2:
        jax.config.update("repjax_accumulation", accumulation)
        for name, run in runs.items():
            assert_same_bits(run(X), expected, f"{name}, {accumulation}")
    with repjax.enabled(accumulation="sequential"):
        assert jax.config.repjax_accumulation == "sequential"
        for name, run in runs.items():
            assert_same_bits(run(X), sequential, name)
        with repjax.enabled():
            assert_same_bits(program(X), sequential, "inherited")
    assert_same_bits(program(X), pairwise)


def test_a_stated_accumulation_overrules_the_option():
    sequential = _sequential(X)
    with repjax.enabled(accumulation="sequential"):
        for sum_ in (
            repjax.reproducible(jnp.sum, accumulation="pairwise"),
            lambda x: repjax.lax.reduce_sum(x, (0,), accumulation="pairwise"),
        ):
            assert not same_bits(sum_(X), sequential)
    assert_same_bits(repjax.reproducible(jnp.sum, accumulation="sequential")(X), sequential)
    assert_same_bits(repjax.lax.reduce_sum(X, (0,), accumulation="sequential"), sequential)


def test_gradients_follow_the_option():
    """A sum that only the transposition brings in."""
    x = X.reshape(-1, 2)
    run = repjax.reproducible(jax.grad(lambda b: (b + x).mean() + (b * x).sum()))
    b = normal(2, 1)
    results = []
    for accumulation in ("pairwise", "sequential"):
        with repjax.enabled(accumulation=accumulation):
            results.append(np.asarray(run(b)))
            explicit = jax.grad(lambda b: repjax.numpy.sum(repjax.lax.mul(x, b[None])))
            results.append(np.asarray(explicit(b)))
    assert not same_bits(results[0], results[2])
    assert not same_bits(results[1], results[3])


# --- the hook ---------------------------------------------------------------------------------


def _bypass(*args):
    return config._stock_discharge(*args)


@pytest.mark.parametrize("enable", [lambda: switch(True), lambda: repjax.enabled().__enter__()])
def test_a_dead_hook_is_noticed(enable, monkeypatch):
    """As if a version of JAX lowered programs by another function."""
    monkeypatch.setattr(pxla, "_discharge_refs_jaxpr", config._stock_discharge)
    monkeypatch.setattr(config, "_discharge", _bypass)
    with pytest.raises(RuntimeError, match=r"expected jax .* use @repjax.reproducible"):
        enable()
    assert pxla._discharge_refs_jaxpr is config._stock_discharge
    assert jax.config.repjax_enable is False


def test_a_hook_that_reaches_only_some_programs_is_noticed(monkeypatch):
    hooks = iter([config._discharge])

    def first_only(jaxpr, *args):
        is_canary = config._canary_p.name in str(jaxpr)  # not the making of its operand
        hook = next(hooks, config._stock_discharge) if is_canary else config._stock_discharge
        return hook(jaxpr, *args)

    monkeypatch.setattr(pxla, "_discharge_refs_jaxpr", config._stock_discharge)
    monkeypatch.setattr(config, "_discharge", first_only)
    with pytest.raises(RuntimeError, match=r"received an unchecked one \(jit\)"):
        switch(True)


def test_a_hook_removed_later_is_put_back(monkeypatch):
    switch(True)
    switch(False)
    monkeypatch.setattr(pxla, "_discharge_refs_jaxpr", config._stock_discharge)
    switch(True)
    assert_same_bits(jax.jit(lambda x: function(x))(X), OURS)


# --- what it reaches --------------------------------------------------------------------------

EAGER = {
    "tanh": jnp.tanh,
    "sum": jnp.sum,
    "operators": lambda x: x * x + x / 3,
    "matmul": lambda x: x.reshape(50, 100) @ x.reshape(100, 50),
    "softmax": lambda x: jax.nn.softmax(x),
    "gradient": jax.grad(lambda x: jnp.tanh(x).sum()),
    "index": lambda x: x[:3].at[1].add(x[3:9].mean()),
    "numpy operand": lambda x: np.float32(0.3) * jnp.asarray(x),
}


@pytest.mark.parametrize("name", EAGER)
def test_eager_operations_are_rewritten(name):
    x = jnp.asarray(X)
    with repjax.enabled():
        eager = EAGER[name](x)
    assert_same_bits(eager, repjax.reproducible(EAGER[name])(x))


def test_eager_results_are_canonical():
    x = jnp.asarray(patterns(2000))
    with repjax.enabled():
        assert_same_bits(x[::-1], canonical(x)[::-1])
        assert_same_bits(jnp.where(x > 0, x, x), canonical(x))


def _rounded(function, x):
    with gmpy2.context(precision=24):
        return np.array([float(function(gmpy2.mpfr(v))) for v in x.tolist()])


def _tanh_derivatives(x):
    y = _rounded(gmpy2.tanh, x)
    first = _rounded(lambda y: gmpy2.fma(-y, y, gmpy2.mpfr(1)), y).astype(np.float32)
    return first, guard((-2 * y).astype(np.float32) * first)


# JAX's own derivatives of tanh and expm1 are other graphs in other versions.
DERIVATIVES = {
    "tanh": (jnp.tanh, lambda x: _tanh_derivatives(x)[0]),
    "tanh, twice": (jax.grad(jnp.tanh), lambda x: _tanh_derivatives(x)[1]),
    "expm1": (jnp.expm1, lambda x: _rounded(gmpy2.exp, x)),
    "elu": (jax.nn.elu, lambda x: np.where(x > 0, 1, _rounded(gmpy2.exp, x))),
}


@pytest.mark.parametrize("name", DERIVATIVES)
def test_derivatives_are_the_stated_graphs(name):
    f, oracle = DERIVATIVES[name]
    x = np.linspace(-12, 12, 4001, dtype=np.float32)
    expected = oracle(x).astype(np.float32)
    derivative = jax.vmap(jax.grad(f))
    assert_same_bits(repjax.reproducible(derivative)(x), expected, "reproducible")
    with repjax.enabled():
        assert_same_bits(jax.jit(derivative)(x), expected, "jit")
        assert_same_bits(derivative(jnp.asarray(x)), expected, "eager")
    explicit = jax.vmap(jax.grad(repjax.explicit.explicit(f)))
    assert_same_bits(explicit(x), expected, "explicit")


STOCK = """
import hashlib, jax, jax.numpy as jnp, numpy as np
x = np.linspace(-8, 8, 4001, dtype=np.float32)
f = lambda x: jnp.tanh(x) * jnp.expm1(x / 9)
y = np.asarray(jax.jit(jax.vmap(jax.grad(f)))(x)), np.asarray(jnp.sum(jnp.exp(x)))
print(hashlib.sha256(b"".join(a.tobytes() for a in y)).hexdigest(), jax.make_jaxpr(jax.grad(f))(1.))
"""


def test_off_is_stock_jax():
    """Off again, bits and derivatives are those of a process that never imported repjax."""
    other = subprocess.run(
        [sys.executable, "-P", "-c", STOCK], capture_output=True, text=True, check=True
    ).stdout
    switch(True)
    jax.jit(jax.vmap(jax.grad(jnp.tanh)))(X)
    switch(False)
    own = []
    exec(STOCK, {"print": lambda *xs: own.append(" ".join(map(str, xs)))})
    assert own[0].split() == other.split()
