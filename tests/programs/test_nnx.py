"""Flax NNX: its objects are refused where their updates would be lost, and the remedies work."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.errors import TraceContextError

import repjax
from helpers.bits import assert_same_bits, normal

X, Y = normal((8, 3)), normal((8, 2), seed=1)


class Network(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(3, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(5, 2, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


def _network() -> Network:
    with repjax.enabled():
        return Network(nnx.Rngs(0))


def _apply(x, model):
    return jax.tree.leaves(model)[0]


OBJECTS = {
    "module": lambda: nnx.Linear(3, 2, rngs=nnx.Rngs(0)),
    "optimizer": lambda: nnx.Optimizer(_network(), optax.sgd(0.1), wrt=nnx.Param),
    "metric": lambda: nnx.metrics.Average(),
    "rngs": lambda: nnx.Rngs(0),
    "variable": lambda: nnx.Param(jnp.ones(3)),
    "list": lambda: nnx.List([nnx.Param(jnp.ones(3))]),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects_are_refused_wherever_they_are(name):
    thing = OBJECTS[name]()

    def refused(place):
        text = rf"^repjax.reproducible\(_apply\): expected arrays, received an nnx object, {place} "
        return pytest.raises(TypeError, match=text + rf"of type {type(thing).__name__}, ")

    with refused(r"args\[1\]"):
        repjax.reproducible(_apply)(X, thing)
    with refused(r"kwargs\['model'\]\[0\]\['a'\]"):
        repjax.reproducible(_apply)(X, model=[{"a": thing}])
    with refused(r"args\[1\]"):  # inside another transformation
        jax.jit(repjax.reproducible(_apply))(X, thing)
    if name in ("module", "optimizer", "rngs"):  # others have no hash
        with refused(r"args\[1\]"):
            repjax.reproducible(_apply, static_argnums=1)(X, thing)


def test_the_message_names_the_place_and_a_remedy_for_its_kind():
    with pytest.raises(TypeError) as caught:
        repjax.reproducible(_apply)(X, {"a": (OBJECTS["rngs"](),)})
    assert "an nnx object, args[1]['a'][0] of type Rngs, whose updates" in str(caught.value)
    assert "graph, state = nnx.split(object)" in str(caught.value)
    with pytest.raises(TypeError, match=r"pass variable.get_value\(\)") as caught:
        repjax.reproducible(_apply)(X, OBJECTS["variable"]())
    assert "nnx.split" not in str(caught.value)


@pytest.mark.parametrize("way", [jax.jit, repjax.reproducible])
def test_flax_refuses_to_update_what_is_captured(way):
    """Otherwise such updates, which no argument shows, would have to be looked for."""
    model, rngs, variable = _network(), nnx.Rngs(0), nnx.Param(jnp.ones(3))

    def set_variable(x):
        variable.set_value(x[0])
        return x

    captured = {
        "closure": lambda x: model(x),
        "module": model,
        "method": model.__call__,
        "partial": functools.partial(Network.__call__, model),
        "rngs": lambda x: x + jax.random.normal(rngs.params(), x.shape),
        "variable": set_variable,
    }
    for function in captured.values():
        with pytest.raises(TraceContextError, match="Cannot mutate"):
            way(function)(X)


def _loss(model):
    return ((model(X) - Y) ** 2).mean()


def _train_step(model, optimizer):
    loss, gradients = nnx.value_and_grad(_loss)(model)
    optimizer.update(model, gradients)
    return loss


def _with_optimizer(transformation=None):
    model = _network()
    with repjax.enabled():
        return model, nnx.Optimizer(model, transformation or optax.adam(0.1), wrt=nnx.Param)


def test_the_remedies_train():
    """Split and merged, and by nnx.jit under the switch: the same bits, and nothing is lost."""

    @repjax.reproducible
    def step(graph, state):
        objects = nnx.merge(graph, state)
        loss = _train_step(*objects)
        return nnx.state(objects), loss

    split, switched = _with_optimizer(), _with_optimizer()
    before = jax.tree.map(np.asarray, nnx.to_pure_dict(nnx.state(split, nnx.Param)))
    for _ in range(2):
        graph, state = nnx.split(split)
        state, loss = step(graph, state)
        nnx.update(split, state)
        with repjax.enabled():
            expected = nnx.jit(_train_step)(*switched)
        assert_same_bits(loss, expected)
    kinds = nnx.Param, nnx.BatchStat, nnx.RngCount, nnx.OptState
    for kind in kinds:
        values = [jax.tree.leaves(nnx.to_pure_dict(nnx.state(o, kind))) for o in (split, switched)]
        assert values[0]
        for a, b in zip(*values, strict=True):
            assert_same_bits(a, b)
    after = nnx.to_pure_dict(nnx.state(split, nnx.Param))
    changed = jax.tree.map(lambda a, b: (np.asarray(a) != np.asarray(b)).any(), before, after)
    assert all(jax.tree.leaves(changed))
    assert np.asarray(split[0].norm.mean.get_value()).any()
    assert split[0].dropout.rngs.count.get_value() == 2


def test_the_remedy_for_variables():
    variable = nnx.Variable(jnp.ones(3))
    variable.set_value(repjax.reproducible(lambda value: value * 3)(variable.get_value()))
    assert_same_bits(variable.get_value(), np.full(3, 3, np.float32))


def test_states_pass_and_objects_may_be_made_inside():
    _, state, _ = nnx.split(_network(), nnx.Param, ...)
    doubled = repjax.reproducible(lambda s: jax.tree.map(lambda x: x + x, s))({"params": state})
    kernel = state["hidden"]["kernel"].get_value()
    assert_same_bits(doubled["params"]["hidden"]["kernel"].get_value(), kernel + kernel)
    made = repjax.reproducible(lambda: Network(nnx.Rngs(0)))()
    assert_same_bits(made.hidden.kernel.get_value(), kernel)


def test_explicit_optimizers_of_nnx():
    stock, explicit = _with_optimizer(), _with_optimizer(repjax.optim.reproducible(optax.adam(0.1)))
    for model, optimizer in (stock, explicit):
        with repjax.enabled():
            gradients = nnx.jit(nnx.grad(_loss))(model)
        with repjax.enabled(optimizer is stock[1]):
            optimizer.update(model, gradients)
    states = [jax.tree.leaves(nnx.to_pure_dict(nnx.state(o))) for o in (stock, explicit)]
    for a, b in zip(*states, strict=True):
        assert_same_bits(a, b)


def test_explicit_functions_read_variables_as_those_of_jax():
    """They write nothing.  jax.lax takes no variables, and so does repjax.lax not."""
    variable = nnx.Param(jnp.asarray(X[0]))
    assert_same_bits(repjax.numpy.sum(variable), repjax.numpy.sum(X[0]))
    for lax in (jax.lax, repjax.lax):
        with pytest.raises(ValueError, match="__jax_array__"):
            lax.add(variable, X[0])
