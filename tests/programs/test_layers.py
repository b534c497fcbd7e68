"""repjax.nn: the layers and functions of flax.linen, lifted transforms of them, and convert."""

from __future__ import annotations

import functools
import inspect
import types

import flax
import flax.linen as linen
import jax
import jax.numpy as jnp
import numpy as np
import pytest

import linen_names
import repjax
from helpers.bits import assert_same_bits, normal, same_bits
from helpers.layers import (
    BATCH,
    CASES,
    LIFTED,
    MASK,
    PICTURE,
    SEQUENCE,
    TOKENS,
    Case,
    Encoder,
    Model,
)
from repjax import models, nn
from repjax.nn import names

KEYS = {name: jax.random.key(i) for i, name in enumerate(("params", "dropout"))}
ROWS = names.rows()
#: Their numbers have 8 bits, which repjax refuses.
OF_FLOAT8 = {name for name in ROWS if "Fp8" in name}
pytestmark = pytest.mark.filterwarnings("ignore:SelfAttention will be deprecated")

# --- what there is ------------------------------------------------------------------------


@pytest.mark.parametrize("name", names.public(linen))
def test_every_name_of_flax_has_a_row(name):
    assert ROWS[name], f"Flax adds {name}: give it a row in repjax/nn/names.py"
    ours, stock = getattr(nn, name), getattr(linen, name)
    assert name in nn.__all__
    assert (ours is stock) == (ROWS[name] == "unchanged")


def test_rows_name_what_there_is():
    """Rows of names that Flax has no longer are noticed too."""
    top, inner = (
        {n for n in names.FUNCTIONS | names.INITIALIZERS if ("." in n) == k} for k in (0, 1)
    )
    unchanged = {name for group in names.UNCHANGED.values() for name in group}
    assert top | names.SOWING | names.FACTORIES | names.NAMESPACES | unchanged <= set(ROWS)
    for namespace, name in (full.split(".") for full in inner):
        assert hasattr(getattr(linen, namespace), name), name


def test_the_table_of_the_docs_is_the_codes():
    assert linen_names.PAGE.read_text() == linen_names.page(), linen_names.__doc__


def test_a_name_that_flax_adds_is_refused(monkeypatch):
    monkeypatch.setattr(linen, "sharper_relu", lambda x: x, raising=False)
    assert names.rows()["sharper_relu"] is None
    with pytest.raises(AttributeError, match=r"that repjax knows, received sharper_relu, which"):
        nn.sharper_relu  # noqa: B018
    with pytest.raises(AttributeError, match=r"has no attribute 'nothing'"):
        nn.nothing  # noqa: B018


@pytest.mark.parametrize("name", sorted(names.NAMESPACES))
def test_namespaces_hold_the_same_objects(name):
    ours, stock = getattr(nn, name), getattr(linen, name)
    assert set(names.public(ours)) <= set(names.public(stock))
    for inner in names.public(ours):
        assert not isinstance(getattr(ours, inner), types.ModuleType)
        if getattr(linen, inner, None) is getattr(stock, inner):
            assert getattr(ours, inner) is getattr(nn, inner), inner


@pytest.mark.parametrize("name", [name for name, row in ROWS.items() if row == "layer"])
def test_layers_are_flax_modules(name):
    ours, stock = getattr(nn, name), getattr(linen, name)
    assert issubclass(ours, stock)
    assert (ours.__name__, ours.__module__) == (stock.__name__, "repjax.nn")
    assert inspect.signature(ours) == inspect.signature(stock)
    assert inspect.signature(ours.__call__) == inspect.signature(stock.__call__)
    assert ours.__doc__.startswith("Reproducible")


PUBLIC = [nn, repjax.lax, repjax.numpy, repjax.optim, repjax.repdl, models]


@pytest.mark.parametrize("module", PUBLIC, ids=lambda module: module.__name__)
def test_only_what_is_meant_is_public(module):
    """No module or helper that an implementation imports."""
    parts = {
        name
        for name, value in vars(module).items()
        if isinstance(value, types.ModuleType) and value.__name__ == f"{module.__name__}.{name}"
    }
    assert {name for name in vars(module) if not name.startswith("_")} - parts <= set(
        module.__all__
    )
    for name in module.__all__:
        assert not isinstance(getattr(module, name), types.ModuleType) or name in ROWS
    assert len(module.__all__) == len(set(module.__all__))
    assert not hasattr(module, "jax") and not hasattr(module, "functools")


# --- layers ---------------------------------------------------------------------------------


def _arrays(case: Case):
    """The arguments of a case that are arrays, and a function of them that gives all."""
    is_static = [isinstance(x, bool) for x in case.args]
    arrays = [x for x, static in zip(case.args, is_static, strict=True) if not static]

    def filled(arrays):
        given = iter(arrays)
        pairs = zip(case.args, is_static, strict=True)
        return [x if static else next(given) for x, static in pairs]

    return arrays, filled


def _initialise(model, case: Case):
    arrays, filled = _arrays(case)
    keys = {"params": KEYS["params"], **{name: KEYS[name] for name in case.rngs}}

    def run(keys, *arrays):
        return model.init(keys, *filled(arrays), **case.kwargs)

    return run, (keys, *arrays)


def _step(model, case: Case):
    """A function of variables, keys and arrays: results, new variables, gradients."""
    _, filled = _arrays(case)

    def run(variables, keys, *arrays):
        floats = [x for x in arrays if all(x.dtype == np.float32 for x in jax.tree.leaves(x))]
        others = {name: v for name, v in variables.items() if name != "params"}

        def apply(params, floats):
            return model.apply(
                {"params": params, **others},
                *filled(floats or arrays),
                rngs=keys,
                mutable=list(case.mutable),
                **case.kwargs,
            )

        results, pullback, state = jax.vjp(
            apply, variables.get("params", {}), list(floats), has_aux=True
        )
        cotangents = jax.tree.map(lambda y: jnp.asarray(normal(y.shape, 7), y.dtype), results)
        return results, state, pullback(cotangents)

    return run


def _variables(model, case: Case):
    """Variables of the right shapes, positive, so that they may be variances."""
    run, given = _initialise(model, case)
    shapes = jax.eval_shape(run, *given)
    return jax.tree.map(
        lambda s: (
            np.abs(normal(s.shape, len(s.shape))) + np.float32(0.1)
            if s.dtype == np.float32
            else np.zeros(s.shape, s.dtype)
        ),
        shapes,
    )


@pytest.mark.parametrize("name", CASES)
def test_parameters(name):
    """One tree, drawn with the bits of the stock layer inside repjax.reproducible."""
    case = CASES[name]
    (ours, given), (stock, _) = (_initialise(case.make(module), case) for module in (nn, linen))
    assert_same_bits(jax.jit(ours)(*given), repjax.reproducible(stock)(*given))


@pytest.mark.parametrize("name", CASES)
def test_layers_are_the_stock_layers_made_reproducible(name):
    """Results, new variables and gradients, under plain jax.jit, and other methods."""
    case = CASES[name]
    ours, stock = case.make(nn), case.make(linen)
    assert isinstance(ours, type(stock)) and isinstance(ours, getattr(nn, name.split(",")[0]))
    arrays, _ = _arrays(case)
    variables, keys = _variables(stock, case), {key: KEYS[key] for key in case.rngs}
    expected = repjax.reproducible(_step(stock, case))(variables, keys, *arrays)
    assert_same_bits(jax.jit(_step(ours, case))(variables, keys, *arrays), expected)
    for method, args in case.methods.items():
        call, given = _method(method, args)
        expected = repjax.reproducible(functools.partial(call, stock))(variables, *given)
        result = jax.jit(functools.partial(call, ours))(variables, *given)
        assert_same_bits(result, expected, method)


def _method(name: str, args):
    """A function of a model, its variables and arrays that calls a method, and the arrays."""
    static = [x for x in args if not hasattr(x, "dtype")]

    def call(model, variables, *arrays):
        return model.apply(variables, *arrays, *static, method=name)

    return call, [x for x in args if hasattr(x, "dtype")]


def test_every_layer_has_a_case():
    with_case = {name.split(",")[0] for name in CASES}
    assert with_case == {name for name, row in ROWS.items() if row == "layer"} - OF_FLOAT8


def test_stock_layers_in_plain_jax_have_other_bits():
    """The cases can tell plain JAX from repjax."""
    for name in ("BatchNorm", "Conv", "Dense", "GRUCell", "LayerNorm", "SelfAttention"):
        case = CASES[name]
        stock = case.make(linen)
        arrays, _ = _arrays(case)
        variables = _variables(stock, case)
        results = [
            way(_step(stock, case))(variables, {}, *arrays)
            for way in (jax.jit, repjax.reproducible)
        ]
        pairs = zip(*map(jax.tree.leaves, results), strict=True)
        assert not all(same_bits(a, b) for a, b in pairs), name


@pytest.mark.parametrize("name", ["Embed", "LSTMCell", "SelfAttention", "BatchNorm"])
def test_eager_calls_have_the_same_bits(name):
    case = CASES[name]
    arrays, filled = _arrays(case)
    variables = _variables(case.make(linen), case)
    model, stock = case.make(nn), case.make(linen)

    def apply(model):
        return lambda v, *xs: model.apply(v, *filled(xs), mutable=list(case.mutable), **case.kwargs)

    expected = repjax.reproducible(apply(stock))(variables, *arrays)
    assert_same_bits(apply(model)(variables, *arrays), expected)
    with repjax.enabled():
        assert_same_bits(apply(model)(variables, *arrays), expected)
    assert_same_bits(repjax.reproducible(apply(model))(variables, *arrays), expected)


def test_batched_layers():
    variables = {"params": {"scale": normal(6), "bias": normal(6, 1)}}

    def gradients(module):
        def of_one(x):
            value, pullback = jax.vjp(module.LayerNorm().apply, variables, x)
            return value, pullback(x)

        return jax.vmap(of_one)

    assert_same_bits(jax.jit(gradients(nn))(BATCH), repjax.reproducible(gradients(linen))(BATCH))


@pytest.mark.parametrize("name", sorted(OF_FLOAT8))
def test_layers_of_float8_are_refused(name):
    kind = getattr(nn, name)
    model, args = (
        (kind(), ("ij,jk->ik", BATCH, BATCH.T))
        if name == "Fp8Einsum"
        else (nn.Dense(4, dot_general_cls=kind), (BATCH,))
    )
    with pytest.raises(repjax.RefusedError, match=r"fp8_ops.py:\d+.*float8"):
        jax.eval_shape(lambda key: model.init(key, *args), KEYS["params"])


# --- functions ------------------------------------------------------------------------------

CALLS = {
    "avg_pool": ((PICTURE, (2, 3)), {"strides": (2, 1), "count_include_pad": False}),
    "combine_masks": ((MASK, None, MASK[:, :, ::-1]), {}),
    "glu": ((BATCH,), {"axis": 1}),
    "make_attention_mask": ((TOKENS > 1, TOKENS > 0), {"dtype": jnp.float32}),
    "make_causal_mask": ((TOKENS,), {}),
    "max_pool": ((PICTURE, (2, 2)), {"padding": "SAME"}),
    "pooling.min_pool": ((PICTURE, (2, 2)), {}),
    "one_hot": ((TOKENS, 8), {}),
    "pool": ((PICTURE, 0.0, jax.lax.add, (2, 2), (1, 2), "VALID"), {}),
    "standardize": ((BATCH,), {"epsilon": 1e-3}),
    "dot_product_attention": ((SEQUENCE[None],) * 3, {"deterministic": True}),
    "dot_product_attention_weights": (
        (SEQUENCE[:, :, None], SEQUENCE[:, ::-1, None]),
        {"dropout_rng": jax.random.key(3), "dropout_rate": 0.4, "deterministic": False},
    ),
}


def _named(module, name):
    return functools.reduce(getattr, name.split("."), module)


@pytest.mark.parametrize("name", sorted(names.FUNCTIONS | names.SOWING))
def test_functions_are_the_stock_functions_made_reproducible(name):
    args, kwargs = CALLS.get(name, ((BATCH,), {}))
    arrays = [x for x in args if isinstance(x, np.ndarray)]

    def call(function):
        def run(*arrays):
            given = iter(arrays)
            filled = [next(given) if isinstance(x, np.ndarray) else x for x in args]
            result = function(*filled, **kwargs)
            return result if result.dtype == np.float32 else result.astype(np.float32)

        def with_gradients(*arrays):
            if arrays[0].dtype != np.float32:
                return run(*arrays)
            result, pullback = jax.vjp(run, *arrays)
            return result, pullback(normal(result.shape, 5))

        return with_gradients

    ours, stock = _named(nn, name), _named(linen, name)
    assert ours is not stock and ours.__name__ == stock.__name__
    expected = repjax.reproducible(call(stock))(*arrays)
    assert_same_bits(jax.jit(call(ours))(*arrays), expected)


def test_attention_writes_its_weights_to_a_module():
    class Attends(nn.Module):
        namespace: types.ModuleType

        @nn.compact
        def __call__(self, x):
            kwargs = {"module": self, "deterministic": True}
            return self.namespace.dot_product_attention(x, x, x, **kwargs)

    x = SEQUENCE[:, :, None]
    ours, stock = (
        lambda x, m=m: m.apply({}, x, mutable="intermediates") for m in map(Attends, (nn, linen))
    )
    result = jax.jit(ours)(x)
    assert result[1]["intermediates"]["attention_weights"]
    assert_same_bits(result, repjax.reproducible(stock)(x))


INITIALIZERS = {
    "constant": (0.3,),
    "delta_orthogonal": (),
    "variance_scaling": (0.7, "fan_avg", "normal"),
}


def test_initializers_are_reproducible():
    """``self.param("w", nn.initializers.normal(), ...)`` is how modules use them."""
    factories = [
        n for n in names.public(nn.initializers) if n not in ("Initializer", "ones", "zeros")
    ]

    def draw(module):
        def run(key):
            made = {
                name: getattr(module.initializers, name)(*INITIALIZERS.get(name, ()))
                for name in factories
            }
            made |= {name: getattr(module.initializers, name) for name in ("ones", "zeros")}
            made["linear"] = module.linear.default_kernel_init
            return {name: f(key, (3, 4, 4), jnp.float32) for name, f in made.items()}

        return run

    assert len(factories) >= 19
    key = jax.random.key(2)
    ours = jax.jit(draw(nn))(key)
    assert_same_bits(ours, repjax.reproducible(draw(linen))(key))
    plain = jax.jit(draw(linen))(key)
    assert not all(map(same_bits, jax.tree.leaves(ours), jax.tree.leaves(plain)))


# --- lifted transforms ------------------------------------------------------------------------


@pytest.mark.parametrize("name", LIFTED)
def test_lifted_transforms(name):
    """Over our layers, and over Flax's inside a converted module."""
    make, has_gradients = LIFTED[name]
    ours, converted, stock = make(nn), nn.convert(make(linen)), make(linen)
    variables = repjax.reproducible(stock.init)(KEYS, SEQUENCE)
    assert_same_bits(jax.jit(ours.init)(KEYS, SEQUENCE), variables)

    def step(model):
        def run(variables, x, key):
            others = {n: v for n, v in variables.items() if n != "params"}

            def apply(params, x):
                return model.apply(
                    {"params": params, **others}, x, rngs={"dropout": key}, mutable=list(others)
                )

            if not has_gradients:
                return apply(variables["params"], x)
            results, pullback, state = jax.vjp(apply, variables["params"], x, has_aux=True)
            cotangents = jax.tree.map(lambda y: jnp.asarray(normal(y.shape, 3)), results)
            return results, state, pullback(cotangents)

        return run

    given = variables, SEQUENCE, KEYS["dropout"]
    expected = repjax.reproducible(step(stock))(*given)
    assert_same_bits(jax.jit(step(ours))(*given), expected, name)
    assert_same_bits(jax.jit(step(converted))(*given), expected, f"convert, {name}")


# --- convert ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def variables():
    return repjax.reproducible(Model().init)(KEYS, BATCH)


def test_convert_keeps_the_parameters(variables):
    converted = nn.convert(Model())
    assert_same_bits(converted.init(KEYS, BATCH), variables)
    assert_same_bits(converted.init_with_output(KEYS, BATCH)[1], variables)
    assert isinstance(converted, Model) and type(converted).__name__ == "Model"
    assert nn.convert(Model) is type(converted) is nn.convert(type(converted))
    assert nn.convert(converted) is converted
    partial = nn.convert(functools.partial(Model, rate=0.25))()
    assert partial.rate == 0.25 and isinstance(partial, nn.convert(Model))
    plain = jax.jit(Model().init)(KEYS, BATCH)
    assert repjax.digest(plain) != repjax.digest(variables)


def test_convert_covers_the_arithmetic_between_layers(variables):
    def step(model):
        def run(variables, x, key):
            def apply(params):
                result, state = model.apply(
                    {**variables, "params": params},
                    x,
                    train=True,
                    rngs={"dropout": key},
                    mutable=["batch_stats", "intermediates"],
                )
                return result["mean"], state

            mean, pullback, state = jax.vjp(apply, variables["params"], has_aux=True)
            return mean, state, pullback(mean)

        return run

    given = variables, BATCH, KEYS["dropout"]
    expected = repjax.reproducible(step(Model()))(*given)
    assert_same_bits(jax.jit(step(nn.convert(Model())))(*given), expected)
    assert repjax.digest(jax.jit(step(Model()))(*given)) != repjax.digest(expected)


def test_results_that_are_no_arrays(variables):
    """As of a stock module: static values are what they are."""
    result = nn.convert(Model()).apply(variables, BATCH)
    assert result["name"] == "Model" and result["count"] == 5 and type(result["count"]) is int


def _own(module, x):
    return module.encode(x) * 0.3 + module.encoder(x)


METHODS = {
    "name": ("encode", "encode"),
    "function of the class": (Model.encode, "encode"),
    "bound method": (Model().encode, "encode"),
    "private": ("_logits", "_logits"),
    "submodule": ("encoder", lambda module, x: module.encoder(x)),
    "any function": (_own, _own),
}


@pytest.mark.parametrize("name", METHODS)
def test_methods_of_converted_modules(name, variables):
    method, stock_method = METHODS[name]
    expected = repjax.reproducible(lambda v, x: Model().apply(v, x, method=stock_method))(
        variables, BATCH
    )
    assert_same_bits(nn.convert(Model()).apply(variables, BATCH, method=method), expected)
    plain = jax.jit(lambda v, x: Model().apply(v, x, method=stock_method))(variables, BATCH)
    assert not same_bits(plain, expected)


def test_wrong_methods(variables):
    converted = nn.convert(Model())
    with pytest.raises(flax.errors.ApplyModuleInvalidMethodError):
        converted.apply(variables, BATCH, method=3)
    with pytest.raises(AttributeError, match='no attribute "decode"'):
        converted.apply(variables, BATCH, method="decode")


def test_bound_modules(variables):
    """And modules that are taken out of them."""
    bound = nn.convert(Model()).bind(variables)

    def stock(method):
        return repjax.reproducible(lambda v, x: Model().apply(v, x, method=method))(
            variables, BATCH
        )

    assert_same_bits(bound(BATCH)["mean"], stock(lambda m, x: m(x)["mean"]))
    assert_same_bits(bound.encode(BATCH), stock("encode"))
    for _ in range(2):
        assert_same_bits(bound.encoder(BATCH), stock(lambda m, x: m.encoder(x)))
        assert_same_bits(bound.encoder.more[1](BATCH), stock(lambda m, x: m.encoder.more[1](x)))
    assert bound.encoder is bound.encoder
    assert_same_bits(nn.convert(Model().bind(variables)).encode(BATCH), stock("encode"))
    last, inner = bound.encoder.more[1].unbind()
    assert_same_bits(last.apply(inner, BATCH), stock(lambda m, x: m.encoder.more[1](x)))


def test_converted_modules_inside_others():
    class Compact(linen.Module):
        wrap: object

        @linen.compact
        def __call__(self, x):
            return self.wrap(Model(name="model"))(x)["mean"]

    class Setup(linen.Module):
        wrap: object

        def setup(self):
            self.model = self.wrap(Model())

        def __call__(self, x):
            return self.model(x)["mean"]

    for outer in (Compact, Setup):
        ours, stock = outer(nn.convert), outer(lambda module: module)
        variables = repjax.reproducible(stock.init)(KEYS, BATCH)
        assert_same_bits(jax.jit(ours.init)(KEYS, BATCH), variables, outer.__name__)
        expected = repjax.reproducible(stock.apply)(variables, BATCH)
        assert_same_bits(jax.jit(ours.apply)(variables, BATCH), expected, outer.__name__)


class Scopes(linen.Module):
    """Two compact methods."""

    @linen.compact_name_scope
    def up(self, x):
        return linen.Dense(6)(jnp.tanh(x) * 0.3 + x)

    @linen.compact_name_scope
    def down(self, x):
        return linen.Dense(6)(x)

    def __call__(self, x):
        return self.down(self.up(x)) * 0.3


class Applies(linen.Module):
    """A module with a module as an argument."""

    @linen.compact
    def __call__(self, module, x):
        return module(x) * 0.3 + x


class Argument(linen.Module):
    wrap: object

    @linen.compact
    def __call__(self, x):
        return self.wrap(Applies())(linen.Dense(6), x)


class Cell(linen.RNNCellBase):
    """A cell of a user's own."""

    @linen.compact
    def __call__(self, carry, x):
        carry = jnp.tanh(linen.Dense(3)(jnp.concatenate([carry, x], -1))) * 0.3
        return carry, carry

    @linen.nowrap
    def initialize_carry(self, rng, shape):
        return jax.random.normal(rng, (*shape[:-1], 3))

    @property
    def num_feature_axes(self):
        return 1


STRUCTURES = {
    "compact_name_scope": (lambda wrap: wrap(Scopes()), BATCH),
    "module as an argument": (Argument, BATCH),
    "class in nn.jit": (lambda wrap: linen.jit(wrap(Encoder))(linen.Dense(6)), BATCH),
    "class made by nn.remat": (lambda wrap: wrap(linen.remat(Encoder))(linen.Dense(6)), BATCH),
    "cell": (lambda wrap: linen.RNN(wrap(Cell())), SEQUENCE),
}


@pytest.mark.parametrize("name", STRUCTURES)
def test_modules_of_every_structure(name):
    make, x = STRUCTURES[name]
    ours, stock = make(nn.convert), make(lambda module: module)

    variables = repjax.reproducible(stock.init)(KEYS, x)
    assert_same_bits(ours.init(KEYS, x), variables)
    assert_same_bits(ours.apply(variables, x), repjax.reproducible(stock.apply)(variables, x))


def test_what_is_captured():
    """Intermediate results have the tree of Flax's, and the bits of repjax."""
    models = [
        module.Sequential([module.Dense(3), module.tanh, module.Dense(2)]) for module in (nn, linen)
    ]
    variables = models[0].init(KEYS["params"], BATCH)
    ours, stock = (lambda v, x, m=m: m.apply(v, x, capture_intermediates=True)[1] for m in models)
    assert_same_bits(ours(variables, BATCH), repjax.reproducible(stock)(variables, BATCH))


def test_a_module_with_refused_operations_names_them():
    class Refused(linen.Module):
        def __call__(self, x):
            x = jax.lax.approx_max_k(x, 2)[0]
            return jax.lax.erf_inv(x.astype(jnp.float8_e5m2))

    lines, first = inspect.getsourcelines(Refused.__call__)
    with pytest.raises(repjax.RefusedError) as raised:
        nn.convert(Refused()).apply({}, BATCH)
    text = str(raised.value)
    for number in range(first + 1, first + len(lines)):
        assert f"{__file__}:{number}" in text, text
    assert "approx_top_k has no reproducible form" in text and "float8" in text


@pytest.mark.parametrize(
    "given", [3, int, jnp.tanh, {"a": linen.Dense(2)}], ids=["number", "type", "function", "tree"]
)
def test_what_is_no_module(given):
    with pytest.raises(TypeError, match=r"^repjax\.nn\.convert: expected a flax.linen Module.*; "):
        nn.convert(given)
