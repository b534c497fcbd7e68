"""repjax.optim: optax's transformations, the same bits in every way to apply them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from jax import lax

import repjax
from helpers.bits import assert_same_bits, normal, same_bits
from repjax.verify.reference.values import add, guard

PARAMS = {"a": {"kernel": normal((7, 5)), "bias": normal(5, 1)}, "scale": np.float32(0.7)}
STEPS = 5


def gradients(step):
    shapes, structure = jax.tree.flatten(PARAMS)
    return structure.unflatten([normal(np.shape(p), 100 * step + i) for i, p in enumerate(shapes)])


def _only_kernels(tree):
    return jax.tree_util.tree_map_with_path(lambda path, _: "kernel" in str(path), tree)


TRANSFORMATIONS = {
    "sgd": lambda: optax.sgd(0.1),
    "momentum": lambda: optax.sgd(0.1, momentum=0.9),
    "nesterov": lambda: optax.sgd(0.1, momentum=0.9, nesterov=True),
    "adam": lambda: optax.adam(1e-2),
    "adam, eps_root": lambda: optax.adam(1e-2, eps_root=1e-6, nesterov=True),
    "adamw": lambda: optax.adamw(1e-2, weight_decay=0.1, mask=_only_kernels),
    "rmsprop": lambda: optax.rmsprop(1e-2),
    "rmsprop, centered": lambda: optax.rmsprop(1e-2, centered=True, momentum=0.5),
    "adagrad": lambda: optax.adagrad(1e-1),
    "lion": lambda: optax.lion(1e-2),
    "lamb": lambda: optax.lamb(1e-2),
    "clipped": lambda: optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-2)),
    "clipped by value": lambda: optax.chain(optax.clip(0.5), optax.sgd(0.1)),
    "weight decay": lambda: optax.chain(optax.add_decayed_weights(0.01), optax.sgd(0.1)),
    "constant schedule": lambda: optax.sgd(optax.constant_schedule(0.1)),
    "linear schedule": lambda: optax.sgd(optax.linear_schedule(0.1, 0.001, 3)),
    "step schedule": lambda: optax.sgd(optax.piecewise_constant_schedule(0.1, {2: 0.3, 4: 0.1})),
    "warm-up": lambda: optax.adam(
        optax.join_schedules(
            [optax.linear_schedule(0.0, 0.1, 2), optax.constant_schedule(0.1)], [2]
        )
    ),
    "accumulated": lambda: optax.MultiSteps(optax.sgd(0.1), 2).gradient_transformation(),
    "by label": lambda: optax.multi_transform(
        {True: optax.adam(1e-2), False: optax.set_to_zero()}, _only_kernels
    ),
}
each = pytest.mark.parametrize("name", TRANSFORMATIONS)


def train(init, step):
    """The parameters and states of STEPS steps."""
    params, state = PARAMS, init(PARAMS)
    history = [state]
    for k in range(STEPS):
        params, state = step(params, state, gradients(k))
        history.append((params, state))
    return history


def step_of(transformation, apply_updates=optax.apply_updates):
    def step(params, state, grads):
        updates, state = transformation.update(grads, state, params)
        return apply_updates(params, updates), state

    return step


@each
def test_explicit_reproducible_and_switched_are_the_same(name):
    stock = TRANSFORMATIONS[name]()
    explicit = repjax.optim.reproducible(stock)
    expected = train(repjax.reproducible(stock.init), repjax.reproducible(step_of(stock)))
    result = train(explicit.init, step_of(explicit, repjax.optim.apply_updates))
    assert_same_bits(result, expected, "explicit")
    with repjax.enabled():
        switched = train(jax.jit(stock.init), jax.jit(step_of(stock)))
    assert_same_bits(switched, expected, "switch")

    plain = train(stock.init, jax.jit(step_of(stock)))
    assert jax.tree.structure(plain) == jax.tree.structure(result)
    for a, b in zip(jax.tree.leaves(result), jax.tree.leaves(plain), strict=True):
        assert (a.dtype, np.shape(a)) == (b.dtype, np.shape(b))
        a, b = np.asarray(a, np.float64), np.asarray(b, np.float64)
        assert (np.abs(a - b) <= 2.0**-18 * np.maximum(1, np.abs(b))).all()


def test_eager_and_scanned_steps():
    stock = optax.adamw(1e-2)
    expected = train(repjax.reproducible(stock.init), repjax.reproducible(step_of(stock)))
    with repjax.enabled():
        eager = train(lambda p: stock.init(jax.tree.map(jnp.asarray, p)), step_of(stock))
    assert_same_bits(eager, expected, "eager")
    grads = jax.tree.map(lambda *gs: np.stack(gs), *map(gradients, range(STEPS)))
    explicit = repjax.optim.reproducible(stock)
    step = step_of(explicit, repjax.optim.apply_updates)

    @jax.jit
    def scanned(params, grads):
        start = params, explicit.init(params)
        return lax.scan(lambda s, g: (step(*s, g), None), start, grads)[0]

    assert_same_bits(scanned(PARAMS, grads), expected[-1], "scan")


def test_momentum_is_the_stated_graph():
    transformation = repjax.optim.reproducible(optax.sgd(0.1, momentum=0.9))
    step = step_of(transformation, repjax.optim.apply_updates)
    params, state = PARAMS, transformation.init(PARAMS)
    expected, trace = PARAMS, jax.tree.map(np.zeros_like, PARAMS)
    for k in range(STEPS):
        params, state = step(params, state, gradients(k))
        trace = jax.tree.map(lambda g, t: add(g, guard(np.float32(0.9) * t)), gradients(k), trace)
        expected = jax.tree.map(lambda p, t: add(p, guard(np.float32(-0.1) * t)), expected, trace)
    assert_same_bits(params, expected)


def test_plain_steps_differ():
    """The data can tell a plain optimizer from a reproducible one."""
    stock = optax.adam(1e-2)
    plain = train(stock.init, jax.jit(step_of(stock)))[-1][0]
    ours = repjax.optim.reproducible(stock)
    ours = train(ours.init, step_of(ours, repjax.optim.apply_updates))[-1][0]
    pairs = zip(jax.tree.leaves(plain), jax.tree.leaves(ours), strict=True)
    assert not all(same_bits(a, b) for a, b in pairs)


def test_extra_arguments_reach_the_transformation():
    stock = optax.GradientTransformationExtraArgs(
        lambda params: optax.EmptyState(),
        lambda updates, state, params=None, *, value, **_: (
            jax.tree.map(lambda u: u * value, updates),
            state,
        ),
    )
    updates, _ = repjax.optim.reproducible(stock).update(
        gradients(0), optax.EmptyState(), PARAMS, value=np.float32(0.3), unused=np.float32(1)
    )
    expected = jax.tree.map(lambda g: guard(g * np.float32(0.3)), gradients(0))
    assert_same_bits(updates, expected)
    plain = repjax.optim.reproducible(optax.sgd(0.5))
    updates, _ = plain.update(gradients(0), plain.init(PARAMS), value=np.float32(0.3))
    assert_same_bits(updates, jax.tree.map(lambda g: g * np.float32(-0.5), gradients(0)))


def test_apply_updates_keeps_types():
    params = {"x": np.float32(1), "h": np.float16([1]), "none": None}
    updates = {"x": np.float32(2), "h": np.float16([0.5]), "none": None}
    assert_same_bits(
        repjax.optim.apply_updates(params, updates),
        {"x": np.float32(3), "h": np.float16([1.5]), "none": None},
    )


def test_operations_without_a_form_are_refused():
    stock = optax.stateless(lambda g, p: jax.tree.map(lambda x: jnp.sqrt(x * 1j).real, g))
    transformation = repjax.optim.reproducible(optax.chain(stock, optax.sgd(0.1)))
    state = transformation.init(PARAMS)
    with pytest.raises(repjax.RefusedError, match="sqrt on complex numbers") as caught:
        transformation.update({"x": normal(4)}, state)
    assert __file__ in str(caught.value)


@pytest.mark.parametrize("wrong", [None, 0.1, optax.sgd, (lambda p: (), lambda g, s, p: (g, s))])
def test_other_types_are_refused(wrong):
    with pytest.raises(
        TypeError, match=r"expected an optax.GradientTransformation, received \w+; "
    ):
        repjax.optim.reproducible(wrong)
