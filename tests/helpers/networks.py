"""Small networks of Flax, as anyone writes them: nothing here knows of repjax.

Each is a :class:`Network`: initial state, one training step, and a batch.  The sizes are small
and odd, so that sums have remainders; what matters is which operations occur.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import linen as nn
from flax import nnx


@dataclasses.dataclass(frozen=True)
class Network:
    """``step(state, batch, key) -> (state, loss)`` and what it starts with."""

    state: Any
    step: Callable[..., Any]
    batch: Any


def values(shape, seed: int) -> np.ndarray:
    """float32 in [-1, 1), multiples of 2**-23: exact everywhere."""
    integers = np.random.default_rng(seed).integers(-(2**23), 2**23, shape)
    return integers.astype(np.float32) * np.float32(2.0**-23)


def labels(shape, classes: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, classes, shape).astype(np.int32)


def fill(tree):
    """The float leaves of a tree of types as exact numbers; those called ``var`` positive."""

    def leaf(path, x):
        number = values(x.shape, len(jax.tree_util.keystr(path)) + 31 * sum(x.shape))
        return np.abs(number) if "var" in jax.tree_util.keystr(path) else number

    return jax.tree_util.tree_map_with_path(leaf, tree)


def linen(model, loss, batch, optimizer) -> Network:
    """A Linen network: ``loss(outputs, batch)``; ``batch["x"]`` are the model's arguments."""
    variables = fill(jax.eval_shape(model.init, jax.random.key(0), *batch["x"]))

    def step(state, batch, key):
        variables, optimizer_state = state
        rest = {name: v for name, v in variables.items() if name != "params"}

        def mean_loss(params):
            outputs, updated = model.apply(
                {"params": params, **rest}, *batch["x"], rngs={"dropout": key}, mutable=list(rest)
            )
            return loss(outputs, batch).mean(), updated

        params = variables["params"]
        (value, updated), gradients = jax.value_and_grad(mean_loss, has_aux=True)(params)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        params = optax.apply_updates(params, updates)
        return ({"params": params, **updated}, optimizer_state), value

    return Network((variables, optimizer.init(variables["params"])), step, batch)


def nnx_network(make, loss, batch, optimizer) -> Network:
    """An NNX network in its functional form; ``make(rngs)`` makes the module."""
    graph, params, rest = nnx.split(make(nnx.Rngs(0)), nnx.Param, ...)
    params = fill(params)

    def step(state, batch, key):
        params, rest, optimizer_state = state

        def mean_loss(params):
            module = nnx.merge(graph, params, rest, copy=True)
            value = loss(module(*batch["x"]), batch).mean()
            return value, nnx.state(module, nnx.Not(nnx.Param))

        (value, rest), gradients = jax.value_and_grad(mean_loss, has_aux=True)(params)
        updates, optimizer_state = optimizer.update(gradients, optimizer_state, params)
        return (optax.apply_updates(params, updates), rest, optimizer_state), value

    return Network((params, rest, optimizer.init(params)), step, batch)


def one_hot_cross_entropy(logits, batch):
    targets = jax.nn.one_hot(batch["labels"], logits.shape[-1], dtype=logits.dtype)
    return optax.softmax_cross_entropy(logits, targets)


def cross_entropy(logits, batch):
    return optax.softmax_cross_entropy_with_integer_labels(logits, batch["labels"])


# --- without Flax -------------------------------------------------------------------------


def block(x, w):
    """Of a transformer, heads of four features: layer norm, attention and a gated layer.

    ``x`` has axes of a batch, a sequence and features.  All layers have the same weights.
    """
    h = jax.nn.standardize(x) @ w
    heads = h.reshape(*h.shape[:2], -1, 4)
    x = x + jax.nn.dot_product_attention(heads, heads, heads, is_causal=True).reshape(x.shape)
    gate = jax.nn.softmax(jax.nn.gelu(x.reshape(-1, x.shape[-1]) @ w))
    return gate.reshape(x.shape) * jax.nn.silu(x)


def block_gradients(x, w):
    return jax.value_and_grad(lambda w: (block(x, w) ** 2).mean())(w)


# --- networks of Linen --------------------------------------------------------------------


class MLP(nn.Module):
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, x):
        for width, activation in ((13, nn.relu), (11, nn.silu), (7, nn.tanh)):
            x = activation(nn.Dense(width, dtype=self.dtype)(x))
        return nn.Dense(5, dtype=self.dtype)(x)


def mlp(dtype=np.float32) -> Network:
    batch = {"x": (values((6, 9), 0),), "labels": labels(6, 5, 1)}
    return linen(MLP(dtype), cross_entropy, batch, optax.adam(1e-2))


class ResidualBlock(nn.Module):
    features: int
    stride: int = 1

    @nn.compact
    def __call__(self, x):
        stride = (self.stride, self.stride)
        y = nn.Conv(self.features, (3, 3), stride, use_bias=False)(x)
        y = nn.relu(nn.BatchNorm(use_running_average=False)(y))
        y = nn.Conv(self.features, (3, 3), use_bias=False)(y)
        y = nn.BatchNorm(use_running_average=False, scale_init=nn.initializers.zeros)(y)
        if x.shape != y.shape:
            x = nn.Conv(self.features, (1, 1), stride, use_bias=False)(x)
            x = nn.BatchNorm(use_running_average=False)(x)
        return nn.relu(x + y)


class ResNet(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Conv(3, (3, 3))(x)
        x = nn.max_pool(x, (3, 3), (2, 2), "SAME")
        for features, stride in ((3, 1), (5, 2)):
            x = ResidualBlock(features, stride)(x)
        return nn.Dense(4)(x.mean((1, 2)))


def resnet() -> Network:
    batch = {"x": (values((3, 9, 9, 2), 2),), "labels": labels(3, 4, 3)}
    optimizer = optax.chain(optax.add_decayed_weights(1e-4), optax.sgd(0.1, momentum=0.9))
    return linen(ResNet(), one_hot_cross_entropy, batch, optimizer)


class Transformer(nn.Module):
    """A causal language model of one block."""

    vocabulary: int = 11
    width: int = 8
    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, tokens):
        embed = nn.Embed(self.vocabulary, self.width, dtype=self.dtype)
        position = nn.Embed(tokens.shape[1], self.width, dtype=self.dtype)
        x = embed(tokens) + position(jnp.arange(tokens.shape[1]))
        attention = nn.MultiHeadDotProductAttention(
            num_heads=2,
            dtype=self.dtype,
            dropout_rate=0.1,
            deterministic=not self.has_rng("dropout"),
        )
        x = x + attention(nn.LayerNorm(dtype=self.dtype)(x), mask=nn.make_causal_mask(tokens))
        y = nn.gelu(nn.Dense(2 * self.width, dtype=self.dtype)(nn.LayerNorm(dtype=self.dtype)(x)))
        x = x + nn.Dense(self.width, dtype=self.dtype)(y)
        return embed.attend(nn.LayerNorm(dtype=self.dtype)(x))


def transformer(dtype=np.float32) -> Network:
    tokens = labels((2, 6), 11, 4)
    batch = {"x": (tokens,), "labels": np.roll(tokens, -1, 1)}
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(0.1, momentum=0.9))
    return linen(Transformer(dtype=dtype), cross_entropy, batch, optimizer)


class Recurrent(nn.Module):
    """Two recurrent layers over [batch, time, features], with a padded end."""

    cell: Callable[..., nn.RNNCellBase]
    classes: int

    @nn.compact
    def __call__(self, x, lengths):
        x = nn.RNN(self.cell(features=5))(x, seq_lengths=lengths)
        x = nn.RNN(self.cell(features=4), reverse=True, keep_order=True)(x, seq_lengths=lengths)
        return nn.Dense(self.classes)(x)


def _recurrent(cell, classes, loss, batch) -> Network:
    batch["x"] = (values((3, 7, 2), 5), np.int32([7, 5, 3]))
    return linen(Recurrent(cell, classes), loss, batch, optax.rmsprop(1e-2))


def squared_error(outputs, batch):
    return optax.squared_error(outputs[..., 0], batch["targets"])


def lstm() -> Network:
    return _recurrent(nn.OptimizedLSTMCell, 1, squared_error, {"targets": values((3, 7), 6)})


def ctc(logits, batch):
    return optax.ctc_loss(logits, batch["paddings"], batch["labels"], batch["label_paddings"])


def gru_ctc() -> Network:
    batch = {
        "labels": 1 + labels((3, 2), 3, 7),
        "paddings": (np.arange(7) >= np.int32([7, 5, 3])[:, None]).astype(np.float32),
        "label_paddings": np.float32([[0, 0], [0, 1], [0, 0]]),
    }
    return _recurrent(nn.GRUCell, 4, ctc, batch)


class GraphSAGE(nn.Module):
    """Hamilton, Ying and Leskovec 2017, with three ways to aggregate the neighbours."""

    dtype: Any = jnp.float32

    @nn.compact
    def __call__(self, nodes, senders, receivers):
        count = len(nodes)
        nodes = nodes.astype(self.dtype)
        for width in (7, 3):
            messages = nodes[senders]
            total = jax.ops.segment_sum(messages, receivers, count)
            degree = jax.ops.segment_sum(jnp.ones(len(receivers), self.dtype), receivers, count)
            largest = jax.ops.segment_max(messages, receivers, count)
            largest = jnp.where(jnp.isfinite(largest), largest, 0)
            mean = total / jnp.maximum(degree, 1)[:, None]
            nodes = nn.Dense(width, dtype=self.dtype)(
                jnp.concatenate([nodes, mean, total, largest], -1)
            )
            nodes = nn.elu(nodes) / (1e-6 + jnp.linalg.norm(nodes, axis=-1, keepdims=True))
        return nodes


def binary_cross_entropy(logits, batch):
    return optax.sigmoid_binary_cross_entropy(logits, batch["targets"])


def graphsage(dtype=np.float32) -> Network:
    edges = labels((2, 30), 9, 8)
    batch = {
        "x": (values((9, 4), 9), *edges),
        "targets": labels((9, 3), 2, 10).astype(np.float32),
    }
    return linen(GraphSAGE(dtype), binary_cross_entropy, batch, optax.adagrad(0.1))


class Embedding(nn.Module):
    """Matrix factorisation: users and items, with a scale."""

    @nn.compact
    def __call__(self, users, items):
        x, y = nn.Embed(6, 3)(users), nn.Embed(8, 3)(items)
        scale = self.param("scale", nn.initializers.constant(0.5), ())
        return scale * (x * y).sum(-1) + nn.Embed(6, 1)(users)[:, 0]


def huber(outputs, batch):
    return optax.huber_loss(outputs, batch["targets"], delta=0.5)


def embedding() -> Network:
    batch = {"x": (labels(20, 6, 11), labels(20, 8, 12)), "targets": values(20, 13)}
    return linen(Embedding(), huber, batch, optax.lamb(1e-2))


class Autoencoder(nn.Module):
    """Convolution and its transpose, with normalisations and a divergence."""

    @nn.compact
    def __call__(self, x):
        y = nn.Conv(4, (3, 3), (2, 2), feature_group_count=2)(x)
        y = nn.softplus(nn.GroupNorm(2)(y))
        y = nn.avg_pool(y, (2, 2))
        y = nn.leaky_relu(nn.RMSNorm()(y))
        y = nn.ConvTranspose(2, (3, 3), (2, 2))(y)
        return nn.log_softmax(y.reshape(len(y), -1))


def divergence(outputs, batch):
    return optax.kl_divergence(outputs, batch["targets"])


def autoencoder() -> Network:
    targets = np.abs(values((2, 200), 14))
    batch = {"x": (values((2, 12, 12, 2), 15),), "targets": targets / targets.sum(1, keepdims=True)}
    return linen(Autoencoder(), divergence, batch, optax.lion(1e-2))


# --- networks of NNX ----------------------------------------------------------------------


class NnxMLP(nnx.Module):
    def __init__(self, rngs):
        self.hidden = nnx.Linear(9, 13, rngs=rngs)
        self.dropout = nnx.Dropout(0.3, rngs=rngs)
        self.output = nnx.Linear(13, 5, rngs=rngs)

    def __call__(self, x):
        return self.output(self.dropout(nnx.gelu(self.hidden(x))))


def nnx_mlp() -> Network:
    batch = {"x": (values((6, 9), 0),), "labels": labels(6, 5, 1)}
    return nnx_network(NnxMLP, cross_entropy, batch, optax.adam(1e-2))


class NnxConvolution(nnx.Module):
    def __init__(self, rngs):
        self.conv = nnx.Conv(2, 3, (3, 3), rngs=rngs)
        self.norm = nnx.BatchNorm(3, rngs=rngs)
        self.output = nnx.Linear(3, 4, rngs=rngs)

    def __call__(self, x):
        x = nnx.relu(self.norm(self.conv(x)))
        return self.output(nnx.max_pool(x, (2, 2), (2, 2)).mean((1, 2)))


def nnx_convolution() -> Network:
    batch = {"x": (values((3, 6, 6, 2), 2),), "labels": labels(3, 4, 3)}
    return nnx_network(NnxConvolution, cross_entropy, batch, optax.sgd(0.1, momentum=0.9))


class SpectralConvolution(nn.Module):
    """Products of the lowest frequencies along the sequence (as of Fourier neural operators)."""

    modes: int = 3

    @nn.compact
    def __call__(self, x):
        n, features = x.shape[1:]
        parts = [
            self.param(name, nn.initializers.normal(), (self.modes, features, features))
            for name in ("real", "imaginary")
        ]
        y = jnp.fft.rfft(x, axis=1)[:, : self.modes]
        y = jnp.einsum("bki,kio->bko", y, jax.lax.complex(*parts))
        return jnp.fft.irfft(y, n, axis=1)


class Fourier(nn.Module):
    @nn.compact
    def __call__(self, x):
        x = nn.Dense(6)(x)
        x = nn.LayerNorm()(x + jnp.fft.fft2(x).real)  # the mixing of FNet
        x = nn.gelu(SpectralConvolution()(x) + nn.Dense(6)(x))
        return nn.Dense(3)(x.mean(1))


def fourier() -> Network:
    batch = {"x": (values((4, 10, 2), 5),), "labels": labels(4, 3, 6)}
    return linen(Fourier(), cross_entropy, batch, optax.adam(1e-2))


class NnxAttention(nnx.Module):
    def __init__(self, rngs):
        self.embed = nnx.Embed(11, 8, rngs=rngs)
        self.norm = nnx.LayerNorm(8, rngs=rngs)
        self.attention = nnx.MultiHeadAttention(2, 8, decode=False, rngs=rngs)

    def __call__(self, tokens):
        x = self.embed(tokens)
        x = x + self.attention(self.norm(x), mask=nnx.make_causal_mask(tokens))
        return self.embed.attend(x)


def nnx_attention() -> Network:
    tokens = labels((2, 6), 11, 4)
    batch = {"x": (tokens,), "labels": np.roll(tokens, -1, 1)}
    return nnx_network(
        NnxAttention, cross_entropy, batch, optax.sgd(0.1, nesterov=True, momentum=0.9)
    )


NETWORKS = {
    "mlp": mlp,
    "mlp, bfloat16": lambda: mlp(jnp.bfloat16),
    "resnet": resnet,
    "transformer": transformer,
    "graphsage, bfloat16": lambda: graphsage(jnp.bfloat16),
    "lstm": lstm,
    "gru, ctc": gru_ctc,
    "graphsage": graphsage,
    "embedding": embedding,
    "autoencoder": autoencoder,
    "fourier": fourier,
    "nnx mlp": nnx_mlp,
    "nnx convolution": nnx_convolution,
    "nnx attention": nnx_attention,
}


def train(wrap, network: Network, steps: int = 2):
    """The losses and the last state of a few steps; ``wrap`` is how a function is compiled."""
    state, losses = network.state, []
    step = wrap(network.step)
    for key in jax.random.split(jax.random.key(20), steps):
        state, loss = step(state, network.batch, key)
        losses.append(loss)
    return state, losses
