"""PyTorch's generator, initial weights, orders of examples and states, in repjax.repdl."""

from __future__ import annotations

import hashlib
import math

import jax
import numpy as np
import pytest

from helpers.bits import assert_same_bits
from repjax import repdl


class Twister:
    """MT19937 word by word, as its authors describe it."""

    def __init__(self, seed):
        self.words = np.random.RandomState(seed % 2**32)._bit_generator.random_raw

    def uniform(self, shape, low, high):
        """In exact arithmetic and one rounding: fractions of 24 bits."""
        low, high = np.float32(low), np.float32(high)
        width = np.float64(np.float32(high - low))
        words = self.words(math.prod(shape)).astype(np.int64) % 2**24
        values = np.longdouble(words) / 2**24 * width + np.longdouble(low)
        return values.astype(np.float32).reshape(shape)


@pytest.mark.parametrize("seed", [0, 1, 1234, 2**32 - 1, 2**32 + 5, -3])
def test_words(seed):
    generator, words = repdl.Generator(seed), Twister(seed).words
    for count in (1, 0, 622, 1, 3, 5000, 227):
        assert (generator.words(count) == words(count).astype(np.uint32)).all()


def test_uniform():
    ours = repdl.Generator(7).uniform((30, 71), -0.3, 0.7)
    assert_same_bits(ours, Twister(7).uniform((30, 71), -0.3, 0.7))
    assert ours.min() >= np.float32(-0.3)


# What PyTorch 2.13 gives on CPUs: SHA-256 of raw bytes; "LeNet" is in RepDL's README.
PYTORCH = {
    "LeNet": "2a2d133895b1684e55d0f152ead2914b55adc551d9790a4b4585309b79c60362",
    "grouped": "5a0b9d16211a4a043490d9e61cf97a836079dbf8d7dfa0a806f8be528097abc4",
    "permutation": "27c50ed43de48ba7871d58042cb9e562e8d99a25e08a2e6c6c18dfdb900569f5",
    "epochs": "4fc503222e0c7dee65cfaa76b7ea3b29305bc0b3a1ca0053d15e5b935ddf5db0",
}


def sha(*arrays):
    return hashlib.sha256(b"".join(x.tobytes() for x in arrays)).hexdigest()


def lenet(seed):
    """The parameters of the network of RepDL's README, in PyTorch's order."""
    generator, state = repdl.Generator(seed), {}
    layers = {
        "net.0": lambda: repdl.init_conv2d(generator, 1, 6, 5),
        "net.3": lambda: repdl.init_conv2d(generator, 6, 16, 5),
        "net.7": lambda: repdl.init_linear(generator, 400, 120),
        "net.9": lambda: repdl.init_linear(generator, 120, 84),
        "net.11": lambda: repdl.init_linear(generator, 84, 10),
    }
    for name, layer in layers.items():
        state[f"{name}.weight"], state[f"{name}.bias"] = layer()
    return state


def test_the_first_hash_of_repdls_readme():
    state = lenet(0)
    assert repdl.torch_hash(state, state) == PYTORCH["LeNet"]


@pytest.mark.parametrize(
    "other", [lambda: lenet(1), lambda: dict(sorted(lenet(0).items()))], ids=["seed", "order"]
)
def test_other_hashes_are_noticed(other):
    state = other()
    assert repdl.torch_hash(state, state) != PYTORCH["LeNet"]


def test_more_initial_weights():
    """torch.manual_seed(3); Conv2d(6, 8, (3, 2), groups=2, bias=False); Linear(7, 3)."""
    generator = repdl.Generator(3)
    weight, bias = repdl.init_conv2d(generator, 6, 8, (3, 2), groups=2, bias=False)
    assert bias is None
    assert weight.shape == (8, 3, 3, 2)
    assert sha(weight, *repdl.init_linear(generator, 7, 3)) == PYTORCH["grouped"]


def test_orders_of_examples():
    """torch.randperm(10007) after manual_seed(11), and two epochs of a loader of 1000."""
    assert sha(repdl.Generator(11).permutation(10007)) == PYTORCH["permutation"]
    generator = repdl.Generator(5)
    assert sha(*(generator.epoch(1000) for _ in range(2))) == PYTORCH["epochs"]
    assert repdl.Generator(0).permutation(0).shape == (0,)
    assert repdl.Generator(0).permutation(1).tolist() == [0]


def test_states_go_round():
    state = lenet(2) | {"norm.num_batches_tracked": np.array(7)}
    params = repdl.from_state_dict(state)
    assert params["net"]["3"]["weight"].shape == (16, 6, 5, 5)
    params = jax.jit(lambda x: x)(params)  # which sorts the names
    back = repdl.to_state_dict(params, state)
    assert list(back) == list(state)
    assert list(repdl.to_state_dict(params)) != list(state)
    for name, array in state.items():
        assert (back[name].dtype, back[name].tobytes()) == (array.dtype, array.tobytes())
    back["net.0.bias"][0] = 9  # a copy
    lists = {"layers": [{"weight": np.float32([1])}, None, {"weight": np.float32([2])}]}
    assert list(repdl.to_state_dict(lists)) == ["layers.0.weight", "layers.2.weight"]


def test_the_hash_of_arrays():
    x = np.arange(6, dtype=np.float32).reshape(2, 3)
    assert repdl.torch_hash(x) == repdl.torch_hash(jax.numpy.asarray(x)) == sha(x)
    assert repdl.torch_hash(x.T) == sha(np.ascontiguousarray(x.T)) != sha(x)
    assert repdl.torch_hash(np.float32(0)) != repdl.torch_hash(np.float32(-0.0))
    assert repdl.torch_hash(x.astype(">f4")) == sha(x)


x = np.ones(3, np.float32)
WRONG = {
    "Generator": lambda: repdl.Generator(2**64),
    "Generator, a float": lambda: repdl.Generator(0.5),
    "Generator.permutation": lambda: repdl.Generator(0).permutation(2**30),
    "init_linear": lambda: repdl.init_linear(repdl.Generator(0), 0, 3),
    "init_conv2d": lambda: repdl.init_conv2d(repdl.Generator(0), 3, 4, 3, groups=2),
    "init_conv2d, window": lambda: repdl.init_conv2d(repdl.Generator(0), 3, 4, 2.5),
    "torch_hash": lambda: repdl.torch_hash({"a": x}),
    "torch_hash, names": lambda: repdl.torch_hash(x, ["a"]),
    "torch_hash, text": lambda: repdl.torch_hash(object()),
    "from_state_dict, half": lambda: repdl.from_state_dict({"a": x.astype(np.float16)}),
    "from_state_dict, large": lambda: repdl.from_state_dict({"a": np.array(2**40)}),
    "from_state_dict, leaf": lambda: repdl.from_state_dict({"a": x, "a.b": x}),
    "from_state_dict, part": lambda: repdl.from_state_dict({"a.b": x, "a": x}),
    "to_state_dict": lambda: repdl.to_state_dict({"a": x}, ["b"]),
    "to_state_dict, twice": lambda: repdl.to_state_dict({"a": x}, ["a", "a"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_arguments(name):
    pattern = rf"repjax\.repdl\.{name.split(',')[0]}: expected .* received "
    with pytest.raises((TypeError, ValueError), match=pattern):
        WRONG[name]()
