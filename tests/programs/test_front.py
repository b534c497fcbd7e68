"""The explicit way in: repjax.lax, repjax.numpy and repjax.nn against their stock namesakes."""

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
from helpers.bits import assert_same_bits, normal, same_bits
from repjax import explicit, nn
from repjax.primitives.operations.elementary import table as elementary

A, B, V = normal((4, 4)), normal((4, 4), 1), normal(4, 2)
EXPONENTS = np.int32([[1, -2, 3, 0]] * 4)
IMAGE, KERNEL = normal((2, 3, 6, 5)), normal((4, 3, 2, 2), 1)
WINDOW = {"window_dimensions": (2, 2), "window_strides": (1, 2), "padding": "SAME"}

# --- repjax.lax -------------------------------------------------------------------------

# Arguments for every function; those of one array are called with A.
CALLS = {
    **dict.fromkeys(["add", "sub", "mul", "div", "rem", "max", "min", "dot"], ((A, B), {})),
    "batch_matmul": ((A[None], B[None]), {}),
    "atan2": ((A, A[::-1]), {}),
    "pow": ((A, EXPONENTS), {}),
    "integer_pow": ((A, 3), {}),
    "acosh": ((1 + A * A,), {}),
    "clamp": ((-1.0, A, 1.0), {}),
    "round": ((A, lax.RoundingMethod.TO_NEAREST_EVEN), {}),
    "convert_element_type": ((A, np.int8), {}),
    "bitcast_convert_type": ((A, np.int32), {}),
    "reduce_precision": ((A, 5, 10), {}),
    "top_k": ((A, 2), {}),
    "reduce_sum": ((A,), {"axes": (0,)}),
    "reduce_prod": ((A,), {"axes": (0,)}),
    "reduce_max": ((A,), {"axes": (0, 1)}),
    "reduce_min": ((A,), {"axes": ()}),
    "argmax": ((A, 1, np.int32), {}),
    "argmin": ((A,), {"axis": 0, "index_dtype": np.uint8}),
    "reduce_window": ((A, 0.0, lax.add), WINDOW),
    "dot_general": ((A, B), {"dimension_numbers": (((0,), (1,)), ((), ()))}),
    "conv": ((IMAGE, KERNEL, (1, 2), "SAME"), {}),
    "conv_general_dilated": ((IMAGE, KERNEL, (1, 2), "SAME"), {"rhs_dilation": (2, 1)}),
    "conv_with_general_padding": (
        (IMAGE, KERNEL, (1, 1), [(1, 0), (0, 1)]),
        {"lhs_dilation": (2, 1), "rhs_dilation": None},
    ),
    "conv_transpose": (
        (IMAGE.transpose(0, 2, 3, 1), KERNEL.transpose(2, 3, 1, 0), (2, 2), "SAME"),
        {},
    ),
}


def public(module):
    return {
        name: f
        for name, f in vars(module).items()
        if getattr(f, "__module__", None) == module.__name__
        and name not in OWN
        and not name.startswith("_")
    }


#: Not in jax.lax, or not in all versions of it.
OWN = {"add_n", "fma", *(row.name for row in elementary.TABLE if row.own)}
LAX = sorted(public(repjax.lax))
SUMS = {"reduce_sum", "reduce_prod", "cumsum", "cumprod"}
PRODUCTS = {name for name in LAX if "dot" in name or "conv_" in name}
PRODUCTS |= {"conv", "batch_matmul"}
PRODUCTS -= {"convert_element_type"}
each_function = pytest.mark.parametrize("name", LAX)


def test_the_table_has_every_function_of_the_module():
    assert set(CALLS) <= set(LAX)
    for name in set(LAX) - set(CALLS):  # the others take one array
        _, *rest = inspect.signature(getattr(lax, name)).parameters.values()
        assert all(p.default is not p.empty for p in rest), f"{name} is not in the table"


@each_function
def test_signatures_include_those_of_jax(name):
    ours, stock = (inspect.signature(getattr(m, name)).parameters for m in (repjax.lax, lax))
    for parameter in stock.values():
        assert ours[parameter.name].default == parameter.default, parameter
        assert ours[parameter.name].kind == parameter.kind
    beyond = set(ours) - set(stock)
    keywords = dict.fromkeys(SUMS, "accumulation") | dict.fromkeys(PRODUCTS, "contraction")
    assert beyond == ({keywords[name]} if name in keywords else set())


@each_function
def test_documented(name):
    function = getattr(repjax.lax, name)
    assert f"jax.lax.{name}" in function.__doc__
    assert "docs/numerics.md" in function.__doc__
    assert function.__name__ == name


@pytest.mark.parametrize("name", sorted(OWN))
def test_functions_beyond_jax_are_documented(name):
    function = getattr(repjax.lax, name)
    assert "canonical" in function.__doc__
    assert "Returns:" in function.__doc__


@each_function
def test_results_are_of_the_stock_type_and_near_it(name):
    args, options = CALLS.get(name, ((np.abs(A) * np.float32(0.3),), {}))
    results = (jax.tree.leaves(getattr(m, name)(*args, **options)) for m in (repjax.lax, lax))
    for x, y in zip(*results, strict=True):
        assert (x.dtype, x.shape, x.weak_type) == (y.dtype, y.shape, y.weak_type)
        ours, stock = (np.asarray(a).astype(np.float64) for a in (x, y))
        if name != "bitcast_convert_type":
            assert (np.abs(ours - stock) <= 2.0**-20 * np.maximum(1, np.abs(stock))).all()


@each_function
def test_explicit_is_the_stock_function_made_reproducible(name):
    args, options = CALLS.get(name, ((np.abs(A) * np.float32(0.3),), {}))
    arrays = [i for i, x in enumerate(args) if isinstance(x, np.ndarray)]

    def stock(*xs):
        filled = list(args)
        for i, x in zip(arrays, xs, strict=True):
            filled[i] = x
        return getattr(lax, name)(*filled, **options)

    operands = [args[i] for i in arrays]
    expected = repjax.reproducible(stock)(*operands)
    assert_same_bits(getattr(repjax.lax, name)(*args, **options), expected)


def test_array_likes_and_scalars():
    """Python scalars are weak, as in jax.lax; JAX and NumPy arrays are the same."""
    expected = np.float32([1.5, 3.5])
    for x in (np.float32([1, 3]), jnp.float32([1, 3])):
        assert_same_bits(repjax.lax.add(x, 0.5), expected)
        assert_same_bits(repjax.lax.add(0.5, x), expected)
    assert repjax.lax.add(1.0, 2.0).weak_type


def test_errors_are_those_of_jax():
    for module in (repjax.lax, lax):
        with pytest.raises(TypeError, match="shapes"):
            module.add(A, normal((3, 4)))
        with pytest.raises(TypeError):
            module.add(A, "text")
    with jax.enable_x64(True):
        wide = A.astype(np.float64)
        with pytest.raises(repjax.RefusedError, match="or bfloat16, received float64; convert"):
            repjax.lax.div(wide, wide)
    with pytest.raises(TypeError, match="expected three arrays of one shape and type, float32"):
        repjax.lax.fma(A, B, V)


def test_accumulation_of_sums():
    x = normal(1000)
    sums = {
        a: np.asarray(repjax.lax.reduce_sum(x, (0,), accumulation=a))
        for a in ("pairwise", "sequential")
    }
    assert not same_bits(*sums.values())
    assert_same_bits(repjax.lax.reduce_sum(x, (0,)), sums["pairwise"])
    assert_same_bits(sums["sequential"], np.cumsum(x)[-1])
    with pytest.raises(
        ValueError,
        match=r"expected one of pairwise, .*; received 'kahan'",
    ):
        repjax.lax.reduce_sum(x, (0,), accumulation="kahan")


@pytest.mark.parametrize("name", sorted(PRODUCTS))
def test_contraction_of_products(name):
    args, options = CALLS[name]
    function = getattr(repjax.lax, name)
    result = function(*args, **options, contraction="sequential")
    assert_same_bits(result, function(*args, **options))
    text = "contraction: expected one of sequential, order_independent, exact; received 'pairwise'"
    with pytest.raises(ValueError, match=text):
        function(*args, **options, contraction="pairwise")
    with pytest.raises(
        TypeError, match=f"^{name}: expected .* contraction, received accumulation="
    ):
        function(*args, **options, accumulation="sequential")


# --- repjax.numpy -----------------------------------------------------------------------

NUMPY_CALLS = {
    "sum": ((A,), {"axis": 1, "keepdims": True}),
    "mean": ((A,), {"axis": (0, 1)}),
    "var": ((A,), {"axis": 0, "ddof": 1}),
    "std": ((A,), {"where": A > 0}),
    "max": ((A,), {"axis": 1, "initial": 0.5}),
    "min": ((A,), {}),
    "argmax": ((A,), {"axis": 0}),
    "argmin": ((A,), {}),
    "dot": ((A, V), {}),
    "matmul": ((A, B), {}),
    "einsum": (("ij,kj,j->ki", A, B, V), {}),
    "tensordot": ((A, B), {"axes": 2}),
}


@pytest.mark.parametrize("name", NUMPY_CALLS)
def test_numpy(name):
    args, options = NUMPY_CALLS[name]
    stock = getattr(jnp, name)
    expected = repjax.reproducible(
        lambda *xs: stock(*[a for a in args if isinstance(a, str)], *xs, **options)
    )(*[a for a in args if not isinstance(a, str)])
    assert_same_bits(getattr(repjax.numpy, name)(*args, **options), expected)
    plain = stock(*args, **options)
    assert (plain.dtype, plain.shape) == (expected.dtype, expected.shape)
    assert (np.abs(plain - expected) <= 2.0**-20 * np.maximum(1, np.abs(plain))).all()


# --- repjax.nn: layers --------------------------------------------------------------------

UNIFORM = {"kernel_init": linen.initializers.glorot_uniform()}
BIAS = {"bias_init": linen.initializers.uniform(0.1)}
X, SEQUENCE, PICTURE = normal((5, 6)), normal((2, 7, 6)), normal((2, 6, 5, 4))
LAYERS = {
    "Dense": (("Dense", 3), {}, X),
    "Dense, default initialiser": (("Dense", 3), {"kernel_init": None}, X),
    "Dense without bias": (("Dense", 3), {"use_bias": False}, X),
    "Dense on sequences": (("Dense", 3), {}, SEQUENCE),
    "Dense on a vector": (("Dense", 3), {}, V),
    "DenseGeneral": (("DenseGeneral", (2, 3)), {}, X),
    "DenseGeneral over two axes": (("DenseGeneral", 4), {"axis": (-2, -1)}, SEQUENCE),
    "DenseGeneral with batch": (("DenseGeneral", 4), {"batch_dims": (0,), "axis": -1}, SEQUENCE),
    "Conv, strided": (("Conv", 3, (3, 2)), {"strides": (2, 3)}, PICTURE),
    "Conv, circular": (("Conv", 3, (3, 3)), {"padding": "CIRCULAR"}, PICTURE),
    "Conv, padded": (("Conv", 3, (3, 3)), {"padding": ((2, 0), (1, 3))}, PICTURE),
    "Conv, dilated": (
        ("Conv", 3, (2, 2)),
        {"kernel_dilation": (2, 1), "input_dilation": (1, 2), "padding": ((1, 0), (0, 1))},
        PICTURE,
    ),
    "Conv, grouped": (
        ("Conv", 6, (2, 2)),
        {"feature_group_count": 2, "padding": "VALID"},
        PICTURE,
    ),
    "Conv without bias": (("Conv", 3, (3, 3)), {"use_bias": False}, PICTURE[0]),
    "Conv of one dimension": (("Conv", 3, (3,)), {"padding": "CAUSAL"}, SEQUENCE),
    "ConvTranspose": (("ConvTranspose", 3, (3, 3)), {"strides": (2, 2)}, PICTURE),
    "ConvTranspose, valid": (
        ("ConvTranspose", 3, (2, 2)),
        {"padding": "VALID", "transpose_kernel": False},
        PICTURE,
    ),
}
each_layer = pytest.mark.parametrize("name", LAYERS)


def layer(module, name):
    """A layer, with initialisers that give biases too."""
    (kind, *args), options, x = LAYERS[name]
    options = {**UNIFORM, **BIAS, **options}
    if not options.get("use_bias", True):
        del options["bias_init"]
    if options["kernel_init"] is None:
        del options["kernel_init"]
    return getattr(module, kind)(*args, **options), x


@each_layer
def test_parameter_trees(name):
    """The tree, shapes and types of Flax."""
    ours, stock = (
        jax.eval_shape(model.init, jax.random.key(0), x)
        for model, x in (layer(module, name) for module in (nn, linen))
    )
    assert ours == stock
    assert set(ours["params"]) == {"kernel"} | ({"bias"} if "without bias" not in name else set())


@pytest.mark.parametrize("name", ["Dense", "Dense, default initialiser", "Conv, grouped"])
def test_initialisation(name):
    """The bits of Flax's own made reproducible, and near it."""
    (model, x), (stock, _) = (layer(module, name) for module in (nn, linen))
    key = jax.random.key(3)
    ours = jax.jit(model.init)(key, x)
    assert_same_bits(ours, repjax.reproducible(stock.init)(key, x))
    for a, b in zip(*map(jax.tree.leaves, (ours, jax.jit(stock.init)(key, x))), strict=True):
        assert np.abs(a - b).max() <= 2.0**-22
        assert a.std() > 0


def _value_and_gradients(model):
    def run(variables, x, cotangent):
        value, pullback = jax.vjp(model.apply, variables, x)
        return value, pullback(cotangent)

    return run


@each_layer
def test_layers_are_the_stock_layers_made_reproducible(name):
    """Value and gradients, with the same parameters."""
    (model, x), (stock, _) = (layer(module, name) for module in (nn, linen))
    shapes = jax.eval_shape(stock.init, jax.random.key(0), x)
    variables = jax.tree.map(lambda p: normal(p.shape, 5), shapes)
    cotangent = normal(jax.eval_shape(stock.apply, variables, x).shape, 4)
    result = jax.jit(_value_and_gradients(model))(variables, x, cotangent)
    expected = repjax.reproducible(_value_and_gradients(stock))(variables, x, cotangent)
    assert_same_bits(result, expected)
    plain = jax.jit(_value_and_gradients(stock))(variables, x, cotangent)
    for a, b in zip(*map(jax.tree.leaves, (result, plain)), strict=True):
        assert np.abs(a - b).max() <= 2.0**-18 * max(1, np.abs(b).max())


def test_layers_are_linen_modules():
    for kind in ("Dense", "DenseGeneral", "Conv", "ConvTranspose"):
        ours, stock = getattr(nn, kind), getattr(linen, kind)
        assert issubclass(ours, stock)
        assert ours.__name__ == kind
        assert ours.__module__ == "repjax.nn"
        assert ours.__doc__.startswith("Reproducible")
        assert inspect.signature(ours) == inspect.signature(stock)


def _network(module, pools):
    class Network(linen.Module):
        """Stock structure around the layers of ``module``."""

        @linen.compact
        def __call__(self, x):
            x = pools.relu(module.Conv(4, (3, 3), name="first")(x))
            x = pools.avg_pool(x, (2, 2), (2, 2)).reshape(x.shape[0], -1)
            x = linen.Sequential([module.Dense(7), pools.silu, module.Dense(3)])(x)
            return pools.log_softmax(x)

    return Network()


def test_models_interchange_parameters():
    ours, stock = _network(nn, nn), _network(linen, linen)
    key = jax.random.key(1)
    variables = jax.jit(ours.init)(key, PICTURE)
    assert_same_bits(variables, repjax.reproducible(stock.init)(key, PICTURE), "init")
    cotangent = normal((2, 3), 8)
    result = jax.jit(_value_and_gradients(ours))(variables, PICTURE, cotangent)
    whole = repjax.reproducible(_value_and_gradients(stock))(variables, PICTURE, cotangent)
    assert_same_bits(result, whole)


LIFTED = {
    "remat": linen.remat,
    "vmap": functools.partial(linen.vmap, variable_axes={"params": 0}, split_rngs={"params": True}),
    "jit": linen.jit,
}


@pytest.mark.parametrize("name", LIFTED)
def test_layers_inside_lifted_transformations(name):
    ours, stock = (LIFTED[name](module.Dense)(3) for module in (nn, linen))
    shapes = jax.eval_shape(stock.init, jax.random.key(0), SEQUENCE)
    variables = jax.tree.map(lambda p: normal(p.shape, 5), shapes)
    cotangent = normal((2, 7, 3), 1)
    expected = repjax.reproducible(_value_and_gradients(stock))(variables, SEQUENCE, cotangent)
    result = jax.jit(_value_and_gradients(ours))(variables, SEQUENCE, cotangent)
    assert_same_bits(result, expected, name)
    assert jax.eval_shape(ours.init, jax.random.key(0), SEQUENCE) == shapes


def test_half_precision_layers():
    variables = nn.Dense(3).init(jax.random.key(0), X)
    result = nn.Dense(3, dtype=jnp.bfloat16).apply(variables, X)
    assert result.dtype == jnp.bfloat16
    stock = linen.Dense(3, dtype=jnp.bfloat16)
    assert_same_bits(result, repjax.reproducible(stock.apply)(variables, X))


# --- repjax.nn: functions -----------------------------------------------------------------

LABELS, WEIGHTS = np.array([1, 0, 5, 3, 3]), np.abs(normal((5, 6), 3))
ELEMENTWISE = ["relu", "gelu", "tanh", "sigmoid", "silu", "softplus", "elu", "leaky_relu"]
ELEMENTWISE += ["softmax", "log_softmax", "logsumexp"]
FUNCTIONS = {
    **{name: (name, getattr(jax.nn, name), (X,), {}) for name in ELEMENTWISE},
    "leaky_relu, slope": ("leaky_relu", jax.nn.leaky_relu, (X, 0.3), {}),
    "elu, scale": ("elu", jax.nn.elu, (X,), {"alpha": 0.3}),
    "softmax, axis": ("softmax", jax.nn.softmax, (X,), {"axis": 0}),
    "softmax, mask": ("softmax", jax.nn.softmax, (X,), {"where": X > -1}),
    "log_softmax, axes": ("log_softmax", jax.nn.log_softmax, (X,), {"axis": (0, 1)}),
    "logsumexp, weights": ("logsumexp", jax.nn.logsumexp, (X,), {"axis": 1, "b": WEIGHTS}),
    "logsumexp, sign": (
        "logsumexp",
        jax.nn.logsumexp,
        (X,),
        {"axis": 1, "b": X, "return_sign": True},
    ),
    "one_hot": ("one_hot", jax.nn.one_hot, (LABELS, 6), {}),
    "max_pool": ("max_pool", linen.max_pool, (PICTURE, (2, 3)), {"strides": (2, 1)}),
    "max_pool, same": ("max_pool", linen.max_pool, (PICTURE, (2, 2)), {"padding": "SAME"}),
    "avg_pool": ("avg_pool", linen.avg_pool, (PICTURE, (2, 3)), {"strides": (1, 2)}),
    "avg_pool, padding": (
        "avg_pool",
        linen.avg_pool,
        (PICTURE, (3, 3)),
        {"padding": "SAME", "count_include_pad": False},
    ),
    "cross entropy": (
        "softmax_cross_entropy",
        optax.softmax_cross_entropy,
        (X, WEIGHTS),
        {},
    ),
    "cross entropy of labels": (
        "softmax_cross_entropy_with_integer_labels",
        optax.softmax_cross_entropy_with_integer_labels,
        (X, LABELS),
        {},
    ),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_functions_are_the_stock_functions_made_reproducible(name):
    key, stock, args, options = FUNCTIONS[name]
    function = getattr(nn, key)
    dynamic = {k: v for k, v in options.items() if isinstance(v, np.ndarray)}
    static = {k: v for k, v in options.items() if k not in dynamic}
    n = sum(isinstance(a, np.ndarray) for a in args)

    def whole(*xs, **dynamic):
        return stock(*xs, *args[n:], **static, **dynamic)

    expected = repjax.reproducible(whole)(*args[:n], **dynamic)
    assert_same_bits(function(*args, **options), expected, "eager")
    assert_same_bits(jax.jit(lambda *xs: function(*xs, *args[n:], **options))(*args[:n]), expected)
    plain = stock(*args, **options)
    for a, b in zip(*map(jax.tree.leaves, (expected, plain)), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.abs(a - b).max() <= 2.0**-20 * max(1, np.abs(b).max())


def test_functions_have_the_signatures_of_the_stock_functions():
    for key, stock, *_ in FUNCTIONS.values():
        assert inspect.signature(getattr(nn, key)) == inspect.signature(stock), key


# --- calls outside of what JAX traces -----------------------------------------------------


@pytest.fixture
def found_calls(monkeypatch):
    """The kinds of calls from here on."""
    found = []

    class Calls(explicit._Calls):
        def __init__(self):
            found.append(self)

    monkeypatch.setattr(explicit, "_Calls", Calls)
    explicit._calls.cache_clear()
    yield found
    explicit._calls.cache_clear()


def compiled_calls(found) -> int:
    return sum(calls.compiled is not None for calls in found)


@pytest.mark.parametrize("name", sorted(CALLS))
def test_calls_that_are_compiled(name, found_calls):
    args, kwargs = CALLS[name]
    function = getattr(repjax.lax, name)
    results = [function(*args, **kwargs) for _ in range(4)]
    for result in results[1:]:
        assert_same_bits(result, results[0], name)
        assert jax.tree.map(jax.typeof, result) == jax.tree.map(jax.typeof, results[0])
    assert len(found_calls) == compiled_calls(found_calls) == (name != "reduce_window")


def of_ones(found) -> list[jax.Array]:
    """Results for static arguments that are equal, and of other types."""
    ones = (1, 1.0, np.int8(1), np.float32(1), np.float16(1))
    results = [repjax.lax.abs(one) for one in ones * 4]
    assert compiled_calls(found) == len(found)
    return results


def test_static_arguments_that_are_equal(found_calls, monkeypatch):
    results = of_ones(found_calls)
    assert len(found_calls) == 5
    types = [(x.dtype, x.weak_type) for x in results]
    assert types == types[:5] * 4 and len(set(types)) == 5
    found_calls.clear()
    explicit._calls.cache_clear()
    monkeypatch.setattr(explicit, "_key", lambda x: x)
    assert [(x.dtype, x.weak_type) for x in of_ones(found_calls)] != types


def test_compiled_calls_follow_the_options(found_calls):
    x = normal(10_000)

    def sums():
        return [repjax.lax.reduce_sum(x, (0,)) for _ in range(3)]

    default = sums()
    with repjax.enabled(False, accumulation="sequential"):
        sequential = sums()
    given = [repjax.lax.reduce_sum(x, (0,), accumulation="sequential") for _ in range(3)]
    assert not same_bits(default[0], sequential[0])
    for result in (*sequential, *given):
        assert_same_bits(result, sequential[0])
    assert_same_bits(sums(), default)
    assert compiled_calls(found_calls) == 2


def test_what_is_not_compiled(found_calls):
    """A function that may be another one the next time, and calls that JAX traces."""
    factor = np.float32(2)
    twin = explicit.explicit(lambda x: x * factor)
    results = [twin(A) for _ in range(3)]
    factor = np.float32(3)
    assert not same_bits(twin(A), results[0])
    for _ in range(3):
        jax.vmap(repjax.lax.exp)(A)
        jax.grad(repjax.lax.exp)(A[0, 0])
    assert not found_calls
    with pytest.raises(TypeError, match="reduce_precision"):
        repjax.lax.reduce_precision(A)
    for _ in range(4):
        with pytest.raises(TypeError, match="shapes"):
            repjax.lax.add(A, A[:2])
