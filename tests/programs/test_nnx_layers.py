"""``repjax.nnx``: twins of Flax NNX's layers, functions, optimizers and metrics."""

from __future__ import annotations

import functools
import importlib
import inspect
import types

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from flax import nnx as stock
from flax.errors import TraceContextError

import repjax
from helpers.bits import assert_same_bits, normal, same_bits
from repjax import nnx

X = normal((2, 6, 4))
IMAGES = normal((2, 5, 5, 4))
TOKENS = np.arange(12).reshape(2, 6) % 7
CARRY = normal((2, 3), seed=2), normal((2, 3), seed=3)


def _cell(name):
    return lambda m, rngs: getattr(m, name)(4, 3, rngs=rngs)


def _layer(name, *args, **kwargs):
    return lambda m, rngs: getattr(m, name)(*args, **kwargs, rngs=rngs)


#: Of each layer, how it is made with a module of layers, and what it is called with.
LAYERS = {
    "BatchNorm": (_layer("BatchNorm", 4), (X,)),
    "Bidirectional": (
        lambda m, rngs: m.Bidirectional(
            m.RNN(m.SimpleCell(4, 3, rngs=rngs)), m.RNN(m.GRUCell(4, 3, rngs=rngs)), rngs=rngs
        ),
        (X,),
    ),
    "Conv": (_layer("Conv", 4, 6, (3, 3), strides=2, feature_group_count=2), (IMAGES,)),
    "ConvTranspose": (_layer("ConvTranspose", 4, 3, (3, 3), strides=2), (IMAGES,)),
    "Dropout": (_layer("Dropout", 0.3), (X,)),
    "Einsum": (_layer("Einsum", "bti,io->bto", (4, 3), (3,)), (X,)),
    "Embed": (_layer("Embed", 7, 5), (TOKENS,)),
    "GRUCell": (_cell("GRUCell"), (CARRY[0], X[:, 0])),
    "GroupNorm": (_layer("GroupNorm", 4, num_groups=2), (X,)),
    "InstanceNorm": (_layer("InstanceNorm", 4), (X,)),
    "LSTMCell": (_cell("LSTMCell"), (CARRY, X[:, 0])),
    "LayerNorm": (_layer("LayerNorm", 4), (X,)),
    "Linear": (_layer("Linear", 4, 5), (X,)),
    "LinearGeneral": (_layer("LinearGeneral", (6, 4), (2, 5), axis=(1, 2)), (X,)),
    "LoRA": (
        lambda m, rngs: m.LoRA(4, 2, 3, base_module=m.Linear(4, 3, rngs=rngs), rngs=rngs),
        (X,),
    ),
    "LoRALinear": (_layer("LoRALinear", 4, 3, lora_rank=2), (X,)),
    "MultiHeadAttention": (
        _layer("MultiHeadAttention", 2, 4, dropout_rate=0.2, deterministic=False, decode=False),
        (X,),
    ),
    "OptimizedLSTMCell": (_cell("OptimizedLSTMCell"), (CARRY, X[:, 0])),
    "PReLU": (lambda m, rngs: m.PReLU(), (X,)),
    "RoPE": (
        lambda m, rngs: m.RoPE(embedding_size=4, max_seq_len=6),
        (X, np.arange(6.0, dtype=np.float32)),
    ),
    "RMSNorm": (_layer("RMSNorm", 4), (X,)),
    "RNN": (lambda m, rngs: m.RNN(m.LSTMCell(4, 3, rngs=rngs), time_major=False), (X,)),
    "SimpleCell": (_cell("SimpleCell"), (CARRY[0], X[:, 0])),
    "SpectralNorm": (
        lambda m, rngs: m.SpectralNorm(m.Linear(4, 3, rngs=rngs), rngs=rngs),
        (X,),
    ),
    "WeightNorm": (lambda m, rngs: m.WeightNorm(m.Linear(4, 3, rngs=rngs), rngs=rngs), (X,)),
}


WITH_STATE = ("BatchNorm", "Dropout", "SpectralNorm", "WeightNorm")


def _arrays(tree):
    """The values of the variables of objects, as a tree."""
    return jax.tree.map(
        lambda x: jax.random.key_data(x) if jnp.issubdtype(x.dtype, jax.dtypes.prng_key) else x,
        stock.to_pure_dict(stock.state(tree)),
    )


def _loss(layer, *args):
    """Its cotangents have one rounding; its value, which is plain JAX's, is not looked at."""
    result = layer(*args)
    return sum((x * x).sum() for x in jax.tree.leaves(result)), result


def _whole(module, make, times):
    """Make a layer, call and differentiate it, twice where it has a state."""

    def program(*args):
        layer = make(module, stock.Rngs(0))
        results = [stock.grad(_loss, has_aux=True)(layer, *args) for _ in range(times)]
        return layer, results

    return program


@pytest.mark.parametrize("name", LAYERS)
def test_layers(name):
    """Their state, results and gradients are those of Flax's in one reproducible program."""
    make, args = LAYERS[name]
    if name not in dir(stock):
        pytest.skip(f"this version of Flax has no {name}")
    times = 2 if name in WITH_STATE else 1
    twin, results = stock.jit(_whole(nnx, make, times))(*args)
    reference, expected = repjax.reproducible(_whole(stock, make, times))(*args)
    assert_same_bits(_arrays(twin), _arrays(reference))
    for a, b in zip(*map(jax.tree.leaves, (results, expected)), strict=True):
        assert_same_bits(a, b)
    kind, of_flax = type(twin), getattr(stock, name)
    assert issubclass(kind, of_flax)
    assert (kind.__name__, kind.__module__) == (name, "repjax.nnx")
    assert inspect.signature(kind) == inspect.signature(of_flax)
    assert {k for k in vars(twin) if k[0] != "_"} == {k for k in vars(reference) if k[0] != "_"}


def test_another_call_of_a_layer_has_other_bits():
    """A control: plain JAX does not pass the test above."""
    make, args = LAYERS["MultiHeadAttention"]
    plain = stock.jit(_whole(stock, make, 1))(*args)
    expected = repjax.reproducible(_whole(stock, make, 1))(*args)
    leaves = (jax.tree.leaves((_arrays(layer), results)) for layer, results in (plain, expected))
    assert not all(map(same_bits, *leaves))


# --- what there is -------------------------------------------------------------------------------

#: What computes nothing, or only calls what it is given.
PASSED = """
A All Any BatchStat Cache Carry Data Dict DiffState Everything FlatState GraphDef GraphState
Initializer Intermediate List LoRAParam M MergeContext Metric Module NodeStates Not Nothing Object
OfType OptArray OptState OptVariable PARTITION_NAME Param PathContains Perturbation PureState Pytree
RNNCellBase RngCount RngKey RngState RngStream Rngs Sequential SplitContext State StateAxes
StateSharding Static TrainState UpdateContext Variable VariableMetadata WithTag
abstract_with_sharding as_abstract as_pure bridge cached_partial call capture check_pytree checkify
clone compat cond current_update_context custom_vjp data dataclass deprecations display eval_shape
extract filter_state filterlib find_duplicates flatten fori_loop fork_rngs from_flat_state from_tree
get_abstract_model get_named_sharding get_partition_spec grad graph graphdef graphlib has_data
helpers identity is_data iter_children iter_graph iter_module_children iter_modules jit jit_partial
jvp logical_axis_rules make_jaxpr map map_state merge merge_context merge_state module object pmap
pop prefix proxy_caller pure pytreelib recursive_map register_data_type register_variable_name remat
replace_by_pure_dict reprlib reseed restore_int_paths restore_rngs rnglib scan set_graph_mode
set_graph_updates set_metadata shard_map split split_context split_rngs split_state spmd state
statelib static summary switch tabulate to_flat_state to_pure_dict to_tree tracers
transform_metadata transforms traversals unflatten unpack update update_context use_eager_sharding
using_eager_sharding value_and_grad var_defaults variable_name_from_type variable_type_from_name
variablelib variables vars_as view view_info visualization vjp vmap while_loop with_attributes
with_metadata with_partitioning with_rngs with_vars wrappers
""".split()  # noqa: SIM905
HIDDEN = ["nn", "optimizer", "training"]
NAMESPACES = ["initializers", "metrics"]
TWINS = {*nnx.LAYERS, *nnx.FUNCTIONS, *nnx.STATEFUL, "MultiMetric"}


def _public(module):
    return {name for name in vars(module) if not name.startswith("_")}


def test_every_name_of_flax_is_known():
    """A name that a version of Flax adds is to be given a twin, or to be passed on."""
    assert _public(stock) - TWINS - {*PASSED, *HIDDEN, *NAMESPACES} == set()
    assert set(nnx.__all__) == _public(stock) - set(HIDDEN) == set(dir(nnx))
    for name in nnx.__all__:
        assert (getattr(nnx, name) is getattr(stock, name)) == (name in PASSED), name
    for name in HIDDEN:
        with pytest.raises(AttributeError, match=f"repjax.nnx has no module {name}, "):
            getattr(nnx, name)
    everything = {}
    exec("from repjax.nnx import *", everything)
    assert everything.keys() - {"__builtins__"} == set(nnx.__all__)


@pytest.mark.parametrize("name", NAMESPACES)
def test_every_name_of_a_namespace_is_known(name):
    module, of_flax = getattr(nnx, name), getattr(stock, name)
    assert _public(module) == _public(of_flax)
    assert importlib.import_module(f"repjax.nnx.{name}") is module
    passed = {"DtypeLikeInexact", "Initializer", "Metric", "MetricState", "Pytree", "Statistics"}
    passed |= {"Variable"}
    for item in _public(module):
        here, there = getattr(module, item), getattr(of_flax, item)
        own = getattr(there, "__module__", "").startswith(of_flax.__name__) or item in (
            *nnx.METRICS,
            *(f for f in dir(jax.nn.initializers) if f not in passed),
        )
        assert (here is not there) == (own and item not in passed), item


def test_every_method_is_known():
    """Those that compute something are in the table; others set attributes or make zeros."""
    others = {"init_cache", "merge_fn", "set_view"}
    for name, methods in nnx.LAYERS.items():
        if name not in dir(stock):
            continue
        found = {k for k, v in vars(getattr(stock, name)).items() if callable(v) and k[0] != "_"}
        assert found - others <= set(methods), name
        for method in methods:
            assert method in vars(getattr(nnx, name))


# --- functions -----------------------------------------------------------------------------------

QUERY = normal((2, 6, 2, 4), seed=6)
FUNCTIONS = {
    **dict.fromkeys(nnx.FUNCTIONS, lambda f: f(X)),
    "avg_pool": lambda f: f(IMAGES, (2, 2), (2, 2)),
    "combine_masks": lambda f: f(X > 0, None, X > -1),
    "dot_product_attention": lambda f: f(QUERY, QUERY, QUERY, X[:, None, :, :1] > 0),
    "dot_product_attention_with_rope": lambda f: f(QUERY, QUERY, QUERY, rope=stock.RoPE()),
    "make_attention_mask": lambda f: f(X[..., 0] > 0, X[..., 1] > 0),
    "make_causal_mask": lambda f: f(TOKENS),
    "max_pool": lambda f: f(IMAGES, (2, 2), (2, 2)),
    "min_pool": lambda f: f(IMAGES, (2, 2), (2, 2)),
    "one_hot": lambda f: f(TOKENS, 7),
    "pool": lambda f: f(IMAGES, 0.0, jax.lax.add, (2, 2), (1, 1), "VALID"),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions(name):
    if name not in dir(stock):
        pytest.skip(f"this version of Flax has no {name}")
    call, (ours, theirs) = FUNCTIONS[name], (getattr(m, name) for m in (nnx, stock))
    assert_same_bits(jax.jit(lambda: call(ours))(), repjax.reproducible(lambda: call(theirs))())
    assert inspect.signature(ours) == inspect.signature(theirs)


#: Their other names are left out.
INITIALIZERS = {
    f: name
    for name, f in vars(stock.initializers).items()
    if isinstance(f, types.FunctionType) and hasattr(jax.nn.initializers, name)
}


@pytest.mark.parametrize("name", sorted(INITIALIZERS.values()))
def test_initializers(name):
    arguments = {"constant": (2.5,), "variance_scaling": (1.0, "fan_in", "uniform")}
    shape = (3, 3, 4, 5) if name == "delta_orthogonal" else (4, 5)

    def draw(module):
        make = getattr(module, name)
        init = make if name in ("zeros", "ones") else make(*arguments.get(name, ()))
        return init(jax.random.key(7), shape, jnp.float32)

    ours = jax.jit(lambda: draw(nnx.initializers))()
    assert_same_bits(ours, repjax.reproducible(lambda: draw(stock.initializers))())


# --- as users use them ---------------------------------------------------------------------------


class Network(stock.Module):
    """A module of one's own, made of the layers of a module."""

    def __init__(self, m, rngs):
        self.m = m
        self.embed = m.Embed(7, 4, rngs=rngs)
        self.norm = m.BatchNorm(4, rngs=rngs)
        self.hidden = m.Sequential(m.Linear(4, 5, rngs=rngs), m.gelu, m.Dropout(0.5, rngs=rngs))
        self.out = m.Linear(5, 4, rngs=rngs)

    def __call__(self, tokens):
        return self.embed.attend(self.out(self.hidden(self.norm(self.embed(tokens)))))


def _network(m):
    return Network(m, stock.Rngs(0))


def _logits(model, tokens):
    return repjax.nn.softmax_cross_entropy_with_integer_labels(model(tokens), tokens)


def _objective(model, tokens):
    losses = _logits(model, tokens)
    return repjax.numpy.mean(losses), losses


def _training_step(model, optimizer, metrics, tokens):
    gradients, losses = stock.grad(_objective, has_aux=True)(model, tokens)
    optimizer.update(model, gradients)
    metrics.update(values=losses)
    return losses, metrics.compute()


def test_training_outside_of_reproducible():
    transformation = repjax.optim.reproducible(optax.adam(0.1))
    model = stock.jit(functools.partial(_network, nnx))()
    reference = repjax.reproducible(lambda: _network(stock))()
    steps = stock.jit(_training_step), repjax.reproducible(_training_step)
    objects = [
        (x, m.Optimizer(x, transformation, wrt=stock.Param), m.metrics.Welford("values"))
        for x, m in ((model, nnx), (reference, stock))
    ]
    for _ in range(2):
        results = [step(*given, TOKENS) for step, given in zip(steps, objects, strict=True)]
        for a, b in zip(*map(jax.tree.leaves, results), strict=True):
            assert_same_bits(a, b)
        assert_same_bits(*map(_arrays, objects))


def test_states_are_interchangeable():
    twin, other = nnx.Linear(4, 3, rngs=stock.Rngs(0)), stock.Linear(4, 3, rngs=stock.Rngs(1))
    stock.update(twin, stock.state(other))
    assert_same_bits(_arrays(twin), _arrays(other))
    graph, state = stock.split(twin)
    assert isinstance(stock.merge(graph, state), nnx.Linear)


def test_eager_calls_write_what_has_changed():
    norm = nnx.BatchNorm(4, rngs=stock.Rngs(0))
    scale, mean = norm.scale.get_value(), norm.mean.get_value()
    result = norm(X)
    assert norm.scale.get_value() is scale
    assert norm.mean.get_value() is not mean
    reference = stock.BatchNorm(4, rngs=stock.Rngs(0))
    assert_same_bits(result, repjax.reproducible(lambda f, x: f(x))(reference, X))
    assert_same_bits(_arrays(norm), _arrays(reference))
    norm.eval()
    assert_same_bits(norm(X), repjax.reproducible(lambda f, x: f(x, True))(reference, X))


def test_captured_layers():
    """They are read where they are not changed, and else refused and left as they are."""
    linear, norm = nnx.Linear(4, 3, rngs=stock.Rngs(0)), nnx.BatchNorm(4, rngs=stock.Rngs(0))
    expected = repjax.reproducible(lambda f, x: f(x))(linear, X)
    for way in (jax.jit, jax.vmap):
        assert_same_bits(way(lambda x: linear(x))(X), expected)
    gradient = jax.grad(lambda x: linear(x).sum())(X)
    assert_same_bits(gradient, repjax.reproducible(jax.grad(lambda x: linear(x).sum()))(X))
    before = _arrays(norm)
    with pytest.raises((TraceContextError, ValueError), match="trace level"):
        jax.jit(lambda x: norm(x))(X)
    assert_same_bits(_arrays(norm), before)


def test_layers_in_transformations():
    def through(m):
        @stock.vmap(in_axes=0, out_axes=0)
        def make(key):
            return m.Linear(4, 4, rngs=stock.Rngs(key))

        @stock.scan(in_axes=(0, stock.Carry), out_axes=stock.Carry)
        def forward(layer, x):
            return stock.remat(lambda layer, x: m.tanh(layer(x)))(layer, x)

        def run():
            layers = make(jax.random.split(jax.random.key(3), 3))
            return stock.grad(lambda layers: forward(layers, X).sum())(layers)

        return run

    results = stock.jit(through(nnx))(), repjax.reproducible(through(stock))()
    assert_same_bits(*map(stock.to_pure_dict, results))


def test_a_subclass_of_a_layer():
    class Scaled(nnx.Linear):
        def __init__(self, *args, scale, **kwargs):
            super().__init__(*args, **kwargs)
            self.scale = stock.Param(jnp.full(3, scale))

        def __call__(self, x):
            return super().__call__(x) * self.scale

    layer = Scaled(4, 3, scale=2.0, rngs=stock.Rngs(0))
    linear = repjax.reproducible(lambda: stock.Linear(4, 3, rngs=stock.Rngs(0)))()
    assert_same_bits(layer.kernel.get_value(), linear.kernel.get_value())
    assert_same_bits(layer(X), repjax.reproducible(lambda f, x: 2 * f(x))(linear, X))


def test_methods_of_cells_and_attention():
    rngs = stock.Rngs(0)
    cell, draw = nnx.LSTMCell(4, 3, rngs=rngs), stock.initializers.normal()
    ours = cell.initialize_carry((2, 4), stock.Rngs(5), draw)
    carry = repjax.reproducible(
        lambda c: stock.LSTMCell.initialize_carry(c, (2, 4), stock.Rngs(5), draw)
    )
    assert_same_bits(ours, carry(cell))

    attention = nnx.MultiHeadAttention(2, 4, decode=True, rngs=rngs)
    attention.init_cache((2, 6, 4))
    whole = nnx.MultiHeadAttention(2, 4, decode=False, rngs=rngs)
    stock.update(whole, stock.state(attention, stock.Param))
    step = stock.jit(lambda f, x: f(x))
    decoded = jnp.concatenate([step(attention, X[:, i : i + 1]) for i in range(6)], axis=1)
    assert attention.cache_index.get_value() == 6
    assert_same_bits(decoded, whole(X, mask=nnx.make_causal_mask(TOKENS)))


def test_references_are_refused():
    with stock.var_defaults(ref=True):
        rngs = stock.Rngs(0)
        with pytest.raises(
            TypeError, match=r"Linear.__init__: expected variables that hold arrays, "
        ):
            nnx.Linear(4, 3, rngs=rngs)
        linear = stock.Linear(4, 3, rngs=rngs)
        result = repjax.reproducible(lambda f, x: f(x))(linear, X)
    plain = stock.Linear(4, 3, rngs=stock.Rngs(0))
    assert_same_bits(result, repjax.reproducible(lambda f, x: f(x))(plain, X))
