"""Programs that benchmarks/speed.py measures: networks in training, loops, and other libraries.

Each function makes one program: a function and its arguments, or, where objects are updated in
place, two calls without arguments, plain JAX's and repjax's.  Other libraries are imported by the
functions that need them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
from cpu import values
from flax import nnx
from jax import lax

import repjax

Program = tuple[Callable[..., Any], tuple[Any, ...]]
Calls = tuple[Callable[[], Any], Callable[[], Any]]


ADAM = optax.adam(1e-3)


def training(
    loss: Callable, params: Any, *batch: Any, optimizer: optax.GradientTransformation = ADAM
) -> Program:
    """A step of the optimizer on ``loss(params, *batch)``."""

    def step(params, state, *batch):
        value, gradient = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state, value

    return step, (params, optimizer.init(params), *batch)


def _initial(model: nn.Module, *inputs: Any) -> Any:
    return jax.jit(model.init)(jax.random.key(0), *inputs)


def classified(model: nn.Module, inputs: Any, labels: np.ndarray) -> Program:
    def loss(params, inputs, labels):
        logits = model.apply(params, inputs)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    return training(loss, _initial(model, inputs), inputs, labels)


def labels_of(count: int, classes: int = 10) -> np.ndarray:
    return np.arange(count, dtype=np.int32) * 7 % classes


# --- networks -----------------------------------------------------------------------------


class Dense(nn.Module):
    """Dense layers with ReLU between them."""

    features: tuple[int, ...]

    @nn.compact
    def __call__(self, x):
        for features in self.features[:-1]:
            x = nn.relu(nn.Dense(features)(x))
        return nn.Dense(self.features[-1])(x)


def perceptron() -> Program:
    return classified(Dense((1000, 1000, 10)), values((256, 784)), labels_of(256))


def adam(optimizer: optax.GradientTransformation = ADAM) -> Program:
    """Adam alone, on the parameters of that perceptron."""
    _, (params, *_) = perceptron()

    def update(gradient, state, params):
        updates, state = optimizer.update(gradient, state, params)
        return optax.apply_updates(params, updates), state

    return update, (jax.tree.map(lambda x: 1e-3 * x, params), optimizer.init(params), params)


class UNet(nn.Module):
    """Convolutions down to a quarter of the size and up again, with skip connections."""

    features: int = 16

    @nn.compact
    def __call__(self, x):
        skips = []
        for level in range(2):
            x = nn.silu(nn.GroupNorm(8)(nn.Conv(self.features << level, (3, 3))(x)))
            skips.append(x)
            x = nn.avg_pool(x, (2, 2), (2, 2))
        x = nn.silu(nn.Conv(self.features << 2, (3, 3))(x))
        for skip in reversed(skips):
            x = jax.image.resize(x, (*skip.shape[:-1], x.shape[-1]), "nearest")
            x = jnp.concatenate([nn.Conv(skip.shape[-1], (3, 3))(x), skip], -1)
            x = nn.silu(nn.GroupNorm(8)(nn.Conv(skip.shape[-1], (3, 3))(x)))
        return nn.Conv(1, (1, 1))(x)


def unet() -> Program:
    """That learns to take noise away."""
    model, images = UNet(), values((8, 32, 32, 1))

    def loss(params, images, noise):
        return jnp.mean((model.apply(params, images + noise) - noise) ** 2)

    return training(loss, _initial(model, images), images, values(images.shape, 1))


def vae() -> Program:
    """A variational autoencoder of two dense networks, which draws in each step."""
    encoder, decoder = Dense((400, 40)), Dense((400, 784))
    images = jax.random.uniform(jax.random.key(1), (128, 784))
    params = _initial(encoder, images), _initial(decoder, images[:, :20])

    def loss(params, images, key):
        mean, log_variance = jnp.split(encoder.apply(params[0], images), 2, -1)
        drawn = mean + jnp.exp(0.5 * log_variance) * jax.random.normal(key, mean.shape)
        logits = decoder.apply(params[1], drawn)
        seen = optax.sigmoid_binary_cross_entropy(logits, images).sum(-1)
        divergence = 0.5 * (jnp.exp(log_variance) + mean**2 - 1 - log_variance).sum(-1)
        return jnp.mean(seen + divergence)

    return training(loss, params, images, jax.random.key(2))


def dqn() -> Program:
    """Q-learning with a second network for the targets and Huber's loss."""
    model, before, after = Dense((120, 84, 4)), values((128, 8)), values((128, 8), 1)
    actions, rewards, ended = labels_of(128, 4), values((128,), 2), labels_of(128, 2)
    params = _initial(model, before)

    def loss(params, target, before, actions, rewards, after, ended):
        best = model.apply(target, after).max(-1)
        wanted = lax.stop_gradient(rewards + 0.99 * (1 - ended) * best)
        taken = jnp.take_along_axis(model.apply(params, before), actions[:, None], 1)[:, 0]
        return optax.huber_loss(taken, wanted).mean()

    return training(loss, params, params, before, actions, rewards, after, ended)


# --- loops --------------------------------------------------------------------------------


def _scaled(rows: int, columns: int) -> jax.Array:
    """A matrix that neither blows a vector up nor makes it vanish."""
    return values((rows, columns), 1) / np.float32(np.sqrt(rows))


def fori_loop(size: int, count: int = 20) -> Program:
    """A vector times a square matrix, again and again."""

    def program(x, w):
        return lax.fori_loop(0, count, lambda _, x: jnp.tanh(x @ w), x)

    return program, (values((size,)), _scaled(size, size))


def scan(rows: int, columns: int, count: int = 20) -> Program:
    """A matrix times a vector of each step."""

    def program(w, xs):
        def step(total, x):
            y = x @ w
            return total + y, y[0]

        return lax.scan(step, jnp.zeros(columns), xs)

    return program, (_scaled(rows, columns), values((count, rows)))


def recurrence(steps: int, features: int = 128, batch: int = 16) -> Program:
    """A recurrent network's states, as a plain scan: xs @ w + h @ u."""

    def program(w, u, xs):
        def step(h, x):
            h = jnp.tanh(x @ w + h @ u)
            return h, h

        return lax.scan(step, jnp.zeros((batch, features)), xs)[1]

    w, u = _scaled(features, features), _scaled(features, features)
    return program, (w, u, values((steps, batch, features)))


def recurrence_gradient(steps: int) -> Program:
    program, arguments = recurrence(steps)

    def loss(w, u, xs):
        return jnp.mean(program(w, u, xs) ** 2)

    return jax.grad(loss, argnums=(0, 1)), arguments


class Recurrent(nn.Module):
    """A cell of Flax's over time, and classes of the last state."""

    cell: str

    @nn.compact
    def __call__(self, x):
        return nn.Dense(10)(nn.RNN(getattr(nn, self.cell)(64))(x)[:, -1])


def recurrent(cell: str) -> Program:
    return classified(Recurrent(cell), values((32, 50, 32)), labels_of(32))


# --- explicit functions: the stock function, and the explicit one -------------------------


def chain(size: int) -> tuple[Callable, Callable, tuple[Any, ...]]:
    """Elementwise functions; what operators do would be JAX's own under a plain ``jax.jit``."""
    import repjax.lax

    def of(lax_):
        def program(x, y):
            inner = lax_.exp(lax_.mul(lax_.mul(x, x), np.float32(-0.5)))
            top = lax_.tanh(lax_.add(inner, lax_.mul(x, y)))
            return lax_.div(top, lax_.add(lax_.abs(y), np.float32(1)))

        return program

    return of(lax), of(repjax.lax), (values((size,)), values((size,), 1))


def rows(name: str) -> tuple[Callable, Callable, tuple[Any, ...]]:
    """A function of rows of 1,024."""
    import repjax.nn

    def of(layers):
        if name == "softmax":
            return layers.softmax
        return lambda x: layers.LayerNorm(use_bias=False, use_scale=False).apply({}, x)

    return of(nn), of(repjax.nn), (values((1024, 1024)),)


def layers(name: str) -> tuple[Callable, Callable, tuple[Any, ...]]:
    """Networks of repjax.nn, and of Flax's layers: inference, or loss and gradients."""
    import repjax.nn
    import repjax.numpy
    from repjax.models import LeNet5

    images = values((64, 32, 32, 1))
    stock, explicit = LeNet5(layers=nn), LeNet5(layers=repjax.nn)
    params = _initial(stock, images[:1])
    if name == "inference":
        return stock.apply, explicit.apply, (params, images)

    def gradient(model, np_):
        def loss(params, images):
            return np_.mean(model.apply(params, images))

        return jax.value_and_grad(loss)

    return gradient(stock, jnp), gradient(explicit, repjax.numpy), (params, images)


# --- other libraries ----------------------------------------------------------------------


def nuts() -> Program:
    """BlackJAX's No-U-Turn sampler of a logistic regression: ten draws."""
    import blackjax

    x = values((200, 10))
    y = (x.sum(1) > 0).astype(np.float32)

    def program(key, position, x, y):
        def log_density(w):
            seen = -optax.sigmoid_binary_cross_entropy(x @ w, y).sum()
            return seen - 0.5 * jnp.sum(w * w)

        sampler = blackjax.nuts(log_density, 0.1, jnp.ones(10), max_num_doublings=5)

        def step(state, key):
            state, _ = sampler.step(key, state)
            return state, state.position

        return lax.scan(step, sampler.init(position), jax.random.split(key, 10))[1]

    return program, (jax.random.key(0), jnp.zeros(10), x, y)


def graph_sage() -> Program:
    """Two of jraph's convolutions that take the mean of neighbours, in training."""
    import jraph

    nodes, edges, features, classes = 2000, 20_000, 64, 10
    senders, receivers = np.random.default_rng(0).integers(0, nodes, (2, edges)).astype(np.int32)
    ends = {"senders": senders, "receivers": receivers}
    layers = [nn.Dense(features), nn.Dense(classes)]
    x, labels = values((nodes, features)), labels_of(nodes, classes)

    def loss(params, x, senders, receivers, labels):
        for layer, own in zip(layers, params, strict=True):

            def update(x, layer=layer, own=own):
                return layer.apply(own, x)

            convolution = jraph.GraphConvolution(
                update,
                aggregate_nodes_fn=jraph.segment_mean,
                add_self_edges=True,
                symmetric_normalization=False,
            )
            graph = jraph.GraphsTuple(
                nodes=x,
                edges=None,
                senders=senders,
                receivers=receivers,
                n_node=np.array([nodes]),
                n_edge=np.array([edges]),
                globals=None,
            )
            x = convolution(graph).nodes
            x = nn.relu(x) if layer is not layers[-1] else x
        return optax.softmax_cross_entropy_with_integer_labels(x, labels).mean()

    params = [_initial(layer, x) for layer in layers]
    return training(loss, params, x, *ends.values(), labels)


class Block(nnx.Module):
    """One of a transformer, in NNX: attention and a dense network, normalised before."""

    def __init__(self, features: int, rngs: nnx.Rngs):
        self.before, self.between = (nnx.LayerNorm(features, rngs=rngs) for _ in range(2))
        self.attention = nnx.MultiHeadAttention(4, features, decode=False, rngs=rngs)
        self.wide = nnx.Linear(features, 4 * features, rngs=rngs)
        self.narrow = nnx.Linear(4 * features, features, rngs=rngs)

    def __call__(self, x):
        x = x + self.attention(self.before(x))
        return x + self.narrow(nnx.gelu(self.wide(self.between(x))))


class Transformer(nnx.Module):
    def __init__(self, features: int, vocabulary: int, rngs: nnx.Rngs):
        self.embedding = nnx.Embed(vocabulary, features, rngs=rngs)
        self.blocks = nnx.Sequential(*(Block(features, rngs) for _ in range(4)))
        self.norm = nnx.LayerNorm(features, rngs=rngs)
        self.head = nnx.Linear(features, vocabulary, rngs=rngs)

    def __call__(self, tokens):
        return self.head(self.norm(self.blocks(self.embedding(tokens))))


def nnx_transformer() -> Calls:
    tokens = np.arange(8 * 65, dtype=np.int32).reshape(8, 65) * 31 % 100

    def step(model, optimizer, tokens):
        def loss(model):
            losses = optax.softmax_cross_entropy_with_integer_labels(
                model(tokens[:, :-1]), tokens[:, 1:]
            )
            return losses.mean()

        value, gradients = nnx.value_and_grad(loss)(model)
        optimizer.update(model, gradients)
        return value

    def call(jit):
        model = Transformer(64, 100, nnx.Rngs(0))
        optimizer = nnx.Optimizer(model, optax.adam(1e-3), wrt=nnx.Param)
        return functools.partial(jit(step), model, optimizer, tokens)

    return call(nnx.jit), call(repjax.reproducible)
