"""LeNet: parameter trees, shapes, initial bits and errors."""

import flax.linen
import jax
import numpy as np
import pytest

import repjax
from repjax.models import LeNet1, LeNet4, LeNet5
from repjax.models.lenet import uniform_fan_in

PARAMETERS = {
    LeNet1: {
        "c1": {"kernel": (5, 5, 1, 4), "bias": (4,)},
        "c3": {"kernel": (5, 5, 4, 12), "bias": (12,)},
        "output": {"kernel": (192, 10), "bias": (10,)},
    },
    LeNet4: {
        "c1": {"kernel": (5, 5, 1, 4), "bias": (4,)},
        "c3": {"kernel": (5, 5, 4, 16), "bias": (16,)},
        "f5": {"kernel": (400, 120), "bias": (120,)},
        "output": {"kernel": (120, 10), "bias": (10,)},
    },
    LeNet5: {
        "c1": {"kernel": (5, 5, 1, 6), "bias": (6,)},
        "c3": {"kernel": (5, 5, 6, 16), "bias": (16,)},
        "c5": {"kernel": (5, 5, 16, 120), "bias": (120,)},
        "f6": {"kernel": (120, 84), "bias": (84,)},
        "output": {"kernel": (84, 10), "bias": (10,)},
    },
}
COUNTS = {LeNet1: 3_246, LeNet4: 51_050, LeNet5: 61_706}

networks = pytest.mark.parametrize("network", PARAMETERS, ids=lambda network: network.__name__)


def images(network, batch=2, dtype=np.float32):
    return np.zeros((batch, *network.input_shape), dtype)


@networks
@pytest.mark.parametrize("layers", [flax.linen, repjax.nn], ids=["flax.linen", "repjax.nn"])
@pytest.mark.parametrize(("activation", "pool"), [("tanh", "avg"), ("relu", "max")])
def test_parameters_and_shapes(network, layers, activation, pool):
    model = network(layers=layers, activation=activation, pool=pool)
    variables = jax.eval_shape(model.init, jax.random.key(0), images(network))
    assert jax.tree.map(lambda x: x.shape, variables) == {"params": PARAMETERS[network]}
    assert {x.dtype for x in jax.tree.leaves(variables)} == {np.dtype(np.float32)}
    assert sum(x.size for x in jax.tree.leaves(variables)) == COUNTS[network]
    logits = jax.eval_shape(model.apply, variables, images(network, 3))
    assert (logits.shape, logits.dtype) == ((3, 10), np.float32)


@networks
def test_classes(network):
    model = network(classes=26)
    logits, _ = jax.eval_shape(model.init_with_output, jax.random.key(0), images(network))
    assert logits.shape == (2, 26)


@pytest.mark.parametrize("shape", [(5, 5, 6, 16), (400, 120), (1, 3)])
@pytest.mark.parametrize("compile", [lambda f: f, jax.jit, repjax.reproducible])
def test_initial_bits(shape, compile):
    key = jax.random.key(3)
    weights = np.asarray(compile(lambda key: uniform_fan_in(key, shape))(key))
    words = np.asarray(jax.random.bits(key, shape, np.uint32))
    units = (words >> 9).astype(np.float64) / 2**23  # [0, 1)
    expected = (2 * units - 1).astype(np.float32) * np.float32(2.4 / np.prod(shape[:-1]))
    assert weights.dtype == np.float32
    np.testing.assert_array_equal(weights.view(np.uint32), expected.view(np.uint32))


def test_initial_parameters_are_the_papers():
    variables = LeNet1().init(jax.random.key(0), images(LeNet1))
    for name, layer in variables["params"].items():
        kernel, bias = np.asarray(layer["kernel"]), np.asarray(layer["bias"])
        bound = np.float32(2.4 / np.prod(kernel.shape[:-1]))
        assert not bias.any(), name
        assert 0.8 * bound < np.abs(kernel).max() <= bound, name
        assert kernel.min() < 0 < kernel.max(), name


@networks
@pytest.mark.parametrize(
    "wrong",
    [
        np.zeros((2, 30, 30, 1), np.float32),
        np.zeros((2, 32, 32), np.float32),
        np.zeros((2, 32, 32, 3), np.float32),
        np.zeros((2, 32, 32, 1), np.uint8),
        np.zeros((2, 28, 28, 1), np.int32),
    ],
)
def test_wrong_images(network, wrong):
    with pytest.raises(ValueError, match=r"LeNet\d: expected float32 images .* received .*; pad"):
        jax.eval_shape(network().init, jax.random.key(0), wrong)


@pytest.mark.parametrize("field", ["activation", "pool"])
def test_wrong_choice(field):
    with pytest.raises(ValueError, match=f"expected {field} to be one of .* received 'other'"):
        model = LeNet1(**{field: "other"})
        jax.eval_shape(model.init, jax.random.key(0), images(LeNet1))


def test_wrong_dtype():
    with pytest.raises(TypeError, match="expected dtype float32, received float16"):
        uniform_fan_in(jax.random.key(0), (2, 2), np.float16)
