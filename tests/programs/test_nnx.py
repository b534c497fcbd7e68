"""Flax NNX: ``repjax.reproducible`` of functions of its objects does what ``nnx.jit`` does."""

from __future__ import annotations

import functools
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx
from flax.errors import TraceContextError

import repjax
from helpers.bits import assert_same_bits, normal, same_bits

X, Y = normal((8, 3)), normal((8, 2), seed=1)


class Network(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(3, 5, rngs=rngs)
        self.norm = nnx.BatchNorm(5, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)
        self.out = nnx.Linear(5, 2, rngs=rngs)

    def __call__(self, x):
        return self.out(self.dropout(nnx.relu(self.norm(self.hidden(x)))))


_network = repjax.reproducible(lambda: Network(nnx.Rngs(0)))


def _values(objects):
    """The values of the variables of objects, as a tree."""
    return jax.tree.map(
        lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x,
        nnx.to_pure_dict(nnx.state(objects)),
    )


def _compared(function, make, **options):
    """What it returns and makes of the objects, by repjax.reproducible and by nnx.jit."""
    ours, theirs = make(), make()
    result = repjax.reproducible(function, **options)(*ours)
    with repjax.enabled(
        accumulation=options.pop("accumulation", None), contraction=options.pop("contraction", None)
    ):
        expected = nnx.jit(function, **options)(*theirs)
    assert nnx.graphdef((*ours, result)) == nnx.graphdef((*theirs, expected))
    assert_same_bits(_values((*ours, result)), _values((*theirs, expected)))
    return ours, result


# --- training ----------------------------------------------------------------------------------


def _loss(model):
    prediction = model(X)
    return ((prediction - Y) ** 2).mean(), prediction


def _train_step(model, optimizer, metrics, rngs):
    (loss, prediction), gradients = nnx.value_and_grad(_loss, has_aux=True)(model)
    optimizer.update(model, gradients)
    metrics.update(loss=loss, values=prediction)
    return loss, jax.random.normal(rngs.noise(), (3,))


def _with_optimizer(transformation=None):
    model = _network()
    return model, nnx.Optimizer(model, transformation or optax.adam(0.1), wrt=nnx.Param)


def _training():
    metrics = nnx.MultiMetric(
        loss=nnx.metrics.Average("loss"), prediction=nnx.metrics.Welford("values")
    )
    return *_with_optimizer(), metrics, nnx.Rngs(params=0, noise=1)


def test_training():
    """Parameters, statistics, counts and moments after each step, and what metrics compute."""
    ours, theirs, plain = _training(), _training(), _training()
    step, compute = (repjax.reproducible(f) for f in (_train_step, nnx.MultiMetric.compute))
    theirs_step, theirs_compute = nnx.jit(_train_step), nnx.jit(nnx.MultiMetric.compute)
    before = _values(ours[0])
    for _ in range(3):
        result, metrics = step(*ours), compute(ours[2])
        with repjax.enabled():
            expected, of_theirs = theirs_step(*theirs), theirs_compute(theirs[2])
        theirs_step(*plain)
        assert_same_bits((result, _values(ours)), (expected, _values(theirs)))
        for a, b in zip(*map(jax.tree.leaves, (metrics, of_theirs)), strict=True):
            assert_same_bits(a, b)
    changed = jax.tree.map(
        lambda a, b: (np.asarray(a) != np.asarray(b)).any(), before, _values(ours[0])
    )
    changed["dropout"]["rngs"].pop("key")
    assert all(jax.tree.leaves(changed))
    assert ours[0].dropout.rngs.count.get_value() == ours[3].noise.count.get_value() == 3
    states = map(jax.tree.leaves, (_values(ours), _values(plain)))
    assert not all(map(same_bits, *states)), "plain JAX has the same bits: the test shows nothing"


def test_a_model_with_its_optimizer():
    def step(optimizer):
        optimizer.update(nnx.grad(lambda model: _loss(model)[0])(optimizer.model))

    transformation = optax.sgd(0.1, momentum=0.9)
    _compared(step, lambda: (nnx.ModelAndOptimizer(_network(), transformation),))


def test_it_is_compiled_once():
    traced = 0

    @repjax.reproducible
    def step(model, x):
        nonlocal traced
        traced += 1
        return model(x)

    model = _network()
    for _ in range(3):
        step(model, X)
    assert traced == 1
    step(model, X[:4])
    assert traced == 2


# --- what happens to objects -----------------------------------------------------------------


class Node(nnx.Module):
    """Something that holds what a test wants it to hold."""

    def __init__(self, **attributes):
        for name, value in attributes.items():
            setattr(self, name, value)


class Opaque(Node, pytree=False):
    """A module that is no tree."""


def _variable(seed=0):
    return nnx.Param(jnp.asarray(normal((3,), seed=seed)))


def _scale(variable, factor=3):
    variable.set_value(jnp.sin(variable.get_value()) * factor)


def _in_place(node):
    _scale(node.a)
    node.b[...] = node.b[...].at[1].multiply(node.a[0])


def _structure(node):
    _scale(node.a)
    node.c = nnx.BatchStat(node.a.get_value().sum())
    node.inner = Node(d=node.a, e=nnx.List([_variable(5)]))
    node.number = 7
    del node.b


def _swap(one, other):
    one.a, other.a = other.a, one.a
    _scale(one.a)


def _tie(one, other):
    one.a = other.a
    _scale(other.a)


def _returned(one, other):
    one.b = _variable(7)
    _scale(other.a)
    return {"new": Node(a=one.a, b=_variable(8)), "inner": one.b}, other


def _nested(tree):
    _scale(tree["a"][0])
    return tree["b"].a.get_value() - tree["a"][0].get_value()


def _two():
    return Node(a=_variable(), b=_variable(1)), Node(a=_variable(2))


def _tied():
    node = Node(a=_variable())
    return node, Node(a=node.a, node=node)


def _cycle(kind=Node):
    node = kind(a=_variable(), b=_variable(1))
    node.me = node
    return node


OBJECTS = {
    "values": (_in_place, lambda: _two()[:1]),
    "structure": (_structure, lambda: _two()[:1]),
    "attributes change places": (_swap, _two),
    "references made inside": (_tie, _two),
    "references between arguments": (_swap, _tied),
    "results": (_returned, _two),
    "results of tied ones": (_returned, _tied),
    "inside trees": (_nested, lambda: ({"a": (_variable(),), "b": Node(a=_variable(3))},)),
    "a cycle": (_structure, lambda: (_cycle(),)),
    "no tree": (_structure, lambda: (_cycle(Opaque),)),
    "variables": (_scale, lambda: (_variable(),)),
    "a random stream": (lambda s: jax.random.normal(s(), (4,)), lambda: (nnx.Rngs(0).params,)),
    "a dictionary of modules": (
        lambda d: _scale(d["x"].a),
        lambda: (nnx.Dict(x=Node(a=_variable())),),
    ),
}


@pytest.mark.parametrize("name", OBJECTS)
def test_objects(name):
    _compared(*OBJECTS[name])


def test_references_stay_what_they_are():
    one, other = _two()
    results, same = repjax.reproducible(_returned)(one, other)
    assert same is other
    assert results["new"].a is one.a
    assert results["inner"] is one.b
    node = _cycle()
    repjax.reproducible(_structure)(node)
    assert node.me is node
    assert node.inner.d is node.a


def test_modules_made_inside():
    """With references that they share, which JAX's own trees would lose."""

    def make(key):
        node, tied = _tied()
        node.layer = nnx.Linear(3, 5, rngs=nnx.Rngs(key))
        return node, tied, _cycle()

    _, (node, tied, cycle) = _compared(make, lambda: (jax.random.key(4),))
    assert tied.a is node.a
    assert tied.node is node
    assert cycle.me is cycle
    assert repjax.reproducible(lambda: _cycle(Opaque))().b.shape == (3,)


def test_states_are_values():
    _, state, _ = nnx.split(_network(), nnx.Param, ...)
    before = _values(state)

    @repjax.reproducible
    def doubled(tree):
        state = jax.tree.map(lambda x: x + x, tree["params"])
        tree["params"]["hidden"]["kernel"].set_value(jnp.zeros(3))
        return state

    result = doubled({"params": state})
    assert_same_bits(_values(result), jax.tree.map(lambda x: x + x, before))
    assert_same_bits(_values(state), before)


def test_what_raises_leaves_objects_as_they_are():
    node = _cycle()
    before = _values(node)

    @repjax.reproducible(static_argnums=1)
    def fails(node, refused):
        _structure(node)
        if refused:
            return jax.pure_callback(np.sin, node.a.get_value(), node.a.get_value())
        raise KeyError("here")

    with pytest.raises(KeyError, match="here") as caught:
        fails(node, False)
    assert caught.value.__context__ is None
    with pytest.raises(repjax.RefusedError, match="pure_callback"):
        fails(node, True)
    assert node.me is node
    assert_same_bits(_values(node), before)


# --- transformations -------------------------------------------------------------------------

STACK = normal((4, 3, 3), seed=9)


class Layer(nnx.Module):
    def __init__(self, rngs):
        self.linear = nnx.Linear(3, 3, rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.dropout = nnx.Dropout(0.5, rngs=rngs)

    def __call__(self, x):
        return jnp.tanh(self.dropout(self.norm(self.linear(x))))


@nnx.split_rngs(splits=3)
@nnx.vmap(in_axes=(0,), out_axes=0)
def _layers(rngs):
    return Layer(rngs)


_stack = repjax.reproducible(lambda: (_layers(nnx.Rngs(0)),))
_layer = repjax.reproducible(lambda: (Layer(nnx.Rngs(0)),))


def _through(layers, wrap=lambda f: f):
    @nnx.scan(in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    def forward(layer, x):
        return wrap(Layer.__call__)(layer, x)

    return forward(layers, X)


def _ensemble(layers):
    @nnx.vmap(in_axes=(0, None), out_axes=0)
    def forward(layer, x):
        return layer(x)

    return forward(layers, X)


def _gradient(of):
    return lambda *objects: nnx.grad(lambda *objects: of(*objects).sum())(*objects)


def _branch(layer):
    def other(layer):
        _scale(layer.linear.bias, 2)
        return X[:, :1].sum()

    return nnx.cond(X.sum() > 100, lambda layer: layer(X).sum(), other, layer)


def _loop(layer):
    def body(carry):
        i, layer = carry
        _scale(layer.linear.bias, i)
        return i + 1, layer

    return nnx.while_loop(lambda carry: carry[0] < 4, body, (1, layer))[0]


TRANSFORMATIONS = {
    "scan": (_through, _stack),
    "gradient of scan": (_gradient(_through), _stack),
    "gradient of scan with remat": (_gradient(lambda x: _through(x, nnx.remat)), _stack),
    "gradient of vmap": (_gradient(_ensemble), _stack),
    "gradient of remat": (_gradient(lambda x: nnx.remat(Layer.__call__)(x, X)), _layer),
    "cond": (_branch, _layer),
    "switch": (
        lambda x: nnx.switch(1, [lambda x: None, lambda x: _scale(x.linear.bias, 2)], x),
        _layer,
    ),
    "while_loop": (_loop, _layer),
    "fori_loop": (
        lambda x: nnx.fori_loop(0, 3, lambda i, x: _scale(x.linear.bias, i) or x, x),
        _layer,
    ),
    "jit": (lambda x: nnx.jit(Layer.__call__)(x, X), _layer),
    "reproducible": (lambda x: repjax.reproducible(Layer.__call__)(x, X), _layer),
    "filters": (
        lambda x: nnx.grad(
            lambda x: x(X).sum(), argnums=nnx.DiffState(0, nnx.PathContains("norm"))
        )(x),
        _layer,
    ),
}


@pytest.mark.parametrize("name", TRANSFORMATIONS)
def test_transformations_inside(name):
    _compared(*TRANSFORMATIONS[name])


def test_inside_other_transformations():
    call = repjax.reproducible(Layer.__call__)
    (expected,), (layer,), (jitted,) = _layer(), _layer(), _layer()
    result = call(expected, X)
    assert_same_bits(nnx.jit(lambda layer, x: call(layer, x))(layer, X), result)
    assert_same_bits(_values(layer), _values(expected))
    # As by nnx.jit, what JAX's own transformations hand on are copies.
    before = _values(jitted)
    assert_same_bits(jax.jit(call)(jitted, X), result)
    assert_same_bits(_values(jitted), before)

    (layers,), (others,) = _stack(), _stack()
    ours, theirs = (nnx.vmap(f, in_axes=(0, None)) for f in (call, Layer.__call__))
    assert_same_bits(ours(layers, X), repjax.reproducible(theirs)(others, X))
    assert_same_bits(_values(layers), _values(others))


def test_inside_scan():
    (layers,), (others,) = _stack(), _stack()
    call = repjax.reproducible(Layer.__call__)
    through = nnx.scan(call, in_axes=(0, nnx.Carry), out_axes=nnx.Carry)
    assert_same_bits(through(layers, X), repjax.reproducible(_through)(others))
    assert_same_bits(_values(layers), _values(others))


@pytest.mark.parametrize("mode", [nnx.set_graph_mode, nnx.set_graph_updates])
def test_other_modes_of_flax(mode):
    """Modules as trees; graphs whose structure does not change."""

    def step(layer):
        return layer(X), nnx.grad(lambda linear: jnp.sin(linear(X)).sum())(layer.linear)

    with mode(False):
        _compared(step, _layer)


def test_derivatives_of_it_are_refused():
    (layer,) = _layer()
    with pytest.raises(TypeError, match="expected to be the outermost transformation"):
        nnx.grad(lambda layer: repjax.reproducible(Layer.__call__)(layer, X).sum())(layer)
    assert layer.linear.kernel.shape == (3, 3)


def test_objects_from_outside_of_what_is_traced_are_left_alone():
    (layer,) = _layer()
    before = _values(layer)
    with pytest.raises((TraceContextError, ValueError), match="trace level"):
        jax.jit(lambda x: repjax.reproducible(Layer.__call__)(layer, x))(X)
    assert_same_bits(_values(layer), before)


# --- options -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "options", [{"accumulation": "order_independent"}, {"contraction": "order_independent"}]
)
def test_orders(options):
    def step(layer):
        return nnx.grad(lambda layer: (layer(normal((64, 64), seed=4)) ** 2).mean())(layer)

    make = repjax.reproducible(lambda: (nnx.Linear(64, 64, rngs=nnx.Rngs(0)),))
    _, other = _compared(step, make, **options)
    _, default = _compared(step, make)
    leaves = (jax.tree.leaves(_values(x)) for x in (other, default))
    assert not all(map(same_bits, *leaves))


def test_static_arguments():
    def scale(node, kind, *, factor):
        _scale(node.a, {"one": 1, "two": 2}[kind] * factor)
        return kind == "one"

    results = []
    for way in (repjax.reproducible, nnx.jit):
        node = Node(a=_variable())
        with repjax.enabled(way is nnx.jit):
            given = way(scale, static_argnums=1, static_argnames="factor")(node, "two", factor=5)
        results.append((given, _values(node)))
    assert_same_bits(*results)


@pytest.mark.parametrize("options", [{"static_argnums": 1}, {"static_argnames": ("rngs",)}])
def test_static_objects_are_refused(options):
    function = repjax.reproducible(lambda x, rngs: x + rngs(), **options)
    text = r"^repjax.reproducible\(<lambda>\): expected an nnx object not to be a static argument, "
    with pytest.raises(TypeError, match=text + r"received args\[1\] of type Rngs, "):
        function(X, nnx.Rngs(0))
    if "static_argnames" in options:
        with pytest.raises(TypeError, match=text + r"received kwargs\['rngs'\] of type Rngs, "):
            function(X, rngs=nnx.Rngs(0))


def test_donated_arguments():
    node, kept = Node(a=_variable()), Node(a=_variable())
    arrays = [x.a.get_value() for x in (node, kept)]

    def scale(node, other):
        _scale(node.a)
        _scale(other.a)

    repjax.reproducible(scale, donate_argnums=0)(node, kept)
    assert [x.is_deleted() for x in arrays] == [True, False]
    assert_same_bits(_values(node), _values(kept))


def test_methods():
    class Counter(nnx.Module):
        def __init__(self):
            self.count = nnx.Variable(jnp.zeros(()))

        @repjax.reproducible(static_argnames="by")
        def add(self, x, by=1):
            """Add."""
            self.count[...] += by
            return x * self.count

    counter = Counter()
    counter.add(X)
    assert_same_bits(counter.add(X, by=2), X * np.float32(3))
    assert counter.count.get_value() == 3
    assert Counter.add.__doc__ == "Add."


def test_stages():
    """Lowered and compiled ahead of time, it updates objects, too."""
    step = repjax.reproducible(_train_step)
    ours, theirs = _training(), _training()
    step(*theirs)
    assert step.trace(*ours).jaxpr.eqns
    lowered = step.lower(*ours)
    assert "repjax" in lowered.as_text(debug_info=True)
    shapes = step.eval_shape(*ours)
    assert [x.shape for x in shapes] == [(), (3,)]
    assert ours[0].dropout.rngs.count.get_value() == 0
    lowered.compile()(*ours)
    assert_same_bits(_values(ours), _values(theirs))
    step.clear_cache()
    step(*ours)
    assert nnx.eval_shape(lambda: _network()).hidden.kernel.shape == (3, 5)


def test_cached_partial():
    ours, theirs = _training(), _training()
    step = nnx.cached_partial(repjax.reproducible(_train_step), *ours)
    for _ in range(2):
        assert_same_bits(step(), repjax.reproducible(_train_step)(*theirs))
    assert_same_bits(_values(ours), _values(theirs))


# --- variables of other kinds ------------------------------------------------------------------


def test_variables_that_hold_references():
    def step(node):
        _scale(node.a)
        node.b = nnx.Param(node.a.get_value() + 1)
        return node.a

    with nnx.var_defaults(ref=True):
        node = Node(a=_variable())
        reference = node.a.get_raw_value()
        result = repjax.reproducible(step)(node)
        assert node.b.get_raw_value()[...].shape == (3,)
    expected = Node(a=_variable())
    repjax.reproducible(step)(expected)
    assert result is node.a
    assert node.a.get_raw_value() is reference
    assert_same_bits(reference[...], expected.a.get_value())
    assert_same_bits(node.b.get_raw_value()[...], expected.b.get_value())


def test_variables_that_cannot_be_split():
    with nnx.var_defaults(hijax=True):
        linear = nnx.Linear(2, 3, rngs=nnx.Rngs(0))
    for thing in (linear, {"a": linear.kernel}):
        with pytest.raises(
            TypeError, match=r"received a Param that was made with hijax=True; make"
        ):
            repjax.reproducible(lambda thing: None)(thing)


# --- functions of arrays -----------------------------------------------------------------------


def test_functions_of_arrays_do_without_nnx():
    program = """
import sys
import jax, numpy as np
import repjax
f = repjax.reproducible(lambda tree: {"b": tree["a"] * 2})
f({"a": np.ones(3)}), jax.vmap(f)({"a": np.ones((2, 3))}), f.lower({"a": np.ones(3)})
assert "flax.nnx" not in sys.modules
from repjax import nnx
assert nnx is repjax.nnx is sys.modules["repjax.nnx"]
"""
    subprocess.run([sys.executable, "-P", "-W", "error", "-c", program], check=True)


def test_what_wraps_it_is_not_taken_for_it():
    """JAX looks at a function's attributes."""
    ours = repjax.reproducible(jnp.sin)
    ours(X), ours.lower(X)
    twice = functools.wraps(ours)(lambda x: 2 * ours(x))
    assert_same_bits(repjax.reproducible(twice)(X), 2 * ours(X))
    assert_same_bits(jax.jit(twice)(X), 2 * ours(X))
    assert jax.make_jaxpr(twice)(X).jaxpr.eqns[-1].primitive.name == "mul"
    scale, variable = repjax.reproducible(_scale), _variable()
    scale(variable)
    before = variable.get_value()
    repjax.reproducible(scale, donate_argnums=0)(variable)
    assert before.is_deleted()


def test_functions_of_arrays_and_of_objects_at_once():
    """Each is compiled for itself, whichever came first."""

    @repjax.reproducible
    def sine(x):
        return jnp.sin(x if isinstance(x, jax.Array) else x.get_value())

    expected = repjax.reproducible(jnp.sin)(X)
    for x in (X, nnx.Param(X), {"a": X}["a"], nnx.Param(X), X):
        assert_same_bits(sine(x), expected)


def test_trees_that_hold_themselves_are_refused_as_by_jax():
    tree = []
    tree.append(tree)
    with pytest.raises(RecursionError):
        repjax.reproducible(lambda tree: None)({"a": tree})


def test_names_and_types_of_arguments_stand_in_errors():
    with pytest.raises(TypeError, match=r"of type <class 'str'> and was passed .* at path second"):
        repjax.reproducible(lambda first, second: first)(X, "text")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'second'"):
        repjax.reproducible(lambda first, second: first)(nnx.Rngs(0))


# --- what captures objects ---------------------------------------------------------------------


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


def test_captured_objects_are_read():
    (layer,) = _layer()
    linear = layer.linear
    result = repjax.reproducible(lambda x: linear(x))(X)
    assert_same_bits(result, repjax.reproducible(nnx.Linear.__call__)(linear, X))


# --- explicit functions ------------------------------------------------------------------------


def test_explicit_optimizers_of_nnx():
    stock, explicit = _with_optimizer(), _with_optimizer(repjax.optim.reproducible(optax.adam(0.1)))
    for model, optimizer in (stock, explicit):
        with repjax.enabled():
            gradients = nnx.jit(nnx.grad(lambda model: _loss(model)[0]))(model)
        with repjax.enabled(optimizer is stock[1]):
            optimizer.update(model, gradients)
    assert_same_bits(_values(stock), _values(explicit))


def test_explicit_functions_read_variables_as_those_of_jax():
    """They write nothing.  jax.lax takes no variables, and so does repjax.lax not."""
    variable = nnx.Param(jnp.asarray(X[0]))
    assert_same_bits(repjax.numpy.sum(variable), repjax.numpy.sum(X[0]))
    for lax in (jax.lax, repjax.lax):
        with pytest.raises(ValueError, match="__jax_array__"):
            lax.add(variable, X[0])
