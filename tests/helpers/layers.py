"""Flax Linen layers with arguments, for tests that compare two namespaces of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import linen

from helpers.bits import normal

BATCH, SEQUENCE, PICTURE = normal((5, 6)), normal((2, 5, 6), 1), normal((2, 4, 5, 4), 2)
TOKENS = np.int32([[3, 0, 6], [1, 1, 2]])
MASK = np.tril(np.ones((2, 1, 5, 5), bool))


@dataclasses.dataclass(frozen=True)
class Case:
    """A layer and how it is called.

    Attributes:
      make: gives the layer of a namespace (``flax.linen`` or ``repjax.nn``).
      args: arrays and static arguments.
      kwargs: static ones.
      rngs: names of the keys beside ``params``.
      mutable: collections that a call changes.
      methods: other public methods that compute, by name, with their arguments.
    """

    make: Callable[[Any], Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    rngs: tuple[str, ...] = ()
    mutable: tuple[str, ...] = ()
    methods: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)


def _cell(name: str, *args: Any, state=2, shape: tuple[int, ...] = (5, 4), x=BATCH, **kw) -> Case:
    carry = tuple(normal(shape, 10 + i) for i in range(state))
    return Case(
        lambda nn: getattr(nn, name)(*args, **kw),
        (carry if state > 1 else carry[0], x),
        methods={"initialize_carry": (jax.random.key(4), x.shape)},
    )


CASES = {
    "BatchNorm": Case(lambda nn: nn.BatchNorm(), (SEQUENCE, False), mutable=("batch_stats",)),
    "BatchNorm, running": Case(
        lambda nn: nn.BatchNorm(use_running_average=True, axis=1), (SEQUENCE,)
    ),
    "Bidirectional": Case(
        lambda nn: nn.Bidirectional(nn.RNN(nn.GRUCell(3)), nn.RNN(nn.GRUCell(3))), (SEQUENCE,)
    ),
    "Conv": Case(lambda nn: nn.Conv(3, (3, 2), strides=(1, 2)), (PICTURE,)),
    "ConvLSTMCell": _cell("ConvLSTMCell", 3, (2, 2), shape=(2, 4, 5, 3), x=PICTURE),
    "ConvLocal": Case(lambda nn: nn.ConvLocal(3, (2, 2)), (PICTURE,)),
    "ConvTranspose": Case(lambda nn: nn.ConvTranspose(3, (2, 2), strides=(2, 1)), (PICTURE,)),
    "Dense": Case(lambda nn: nn.Dense(7), (BATCH,)),
    "Dense, bfloat16": Case(lambda nn: nn.Dense(7, dtype=jax.numpy.bfloat16), (BATCH,)),
    "DenseGeneral": Case(lambda nn: nn.DenseGeneral((2, 3), axis=(-2, -1)), (SEQUENCE,)),
    "Dropout": Case(
        lambda nn: nn.Dropout(0.3, broadcast_dims=(1,)), (PICTURE, False), rngs=("dropout",)
    ),
    "Dropout, deterministic": Case(lambda nn: nn.Dropout(0.3), (BATCH,), {"deterministic": True}),
    "Einsum": Case(lambda nn: nn.Einsum((6, 3, 2), "...i,ijk->...jk"), (SEQUENCE,)),
    "Embed": Case(lambda nn: nn.Embed(7, 6), (TOKENS,), methods={"attend": (SEQUENCE,)}),
    "GRUCell": _cell("GRUCell", 4, state=1),
    "GroupNorm": Case(lambda nn: nn.GroupNorm(2), (PICTURE,)),
    "InstanceNorm": Case(lambda nn: nn.InstanceNorm(), (PICTURE,)),
    "LSTMCell": _cell("LSTMCell", 4),
    "LayerNorm": Case(lambda nn: nn.LayerNorm(), (SEQUENCE,)),
    "LayerNorm, two passes": Case(
        lambda nn: nn.LayerNorm(use_fast_variance=False, reduction_axes=(1, 2)), (SEQUENCE,)
    ),
    "MGUCell": _cell("MGUCell", 4, state=1),
    "MultiHeadAttention": Case(
        lambda nn: nn.MultiHeadAttention(2, qkv_features=4, dropout_rate=0.2, normalize_qk=True),
        (SEQUENCE, SEQUENCE[:, ::-1]),
        {"mask": MASK, "deterministic": False},
        rngs=("dropout",),
    ),
    "MultiHeadDotProductAttention": Case(
        lambda nn: nn.MultiHeadDotProductAttention(2),
        (SEQUENCE,),
        {"sow_weights": True},
        mutable=("intermediates",),
    ),
    "OptimizedLSTMCell": _cell("OptimizedLSTMCell", 4),
    "PReLU": Case(lambda nn: nn.PReLU(), (BATCH,)),
    "RMSNorm": Case(lambda nn: nn.RMSNorm(), (SEQUENCE,)),
    "RNN": Case(
        lambda nn: nn.RNN(nn.OptimizedLSTMCell(4), return_carry=True, reverse=True),
        (SEQUENCE,),
        {"seq_lengths": np.int32([2, 4])},
    ),
    "SelfAttention, decoding": Case(
        lambda nn: nn.SelfAttention(2, decode=True), (SEQUENCE[:, :1],), mutable=("cache",)
    ),
    "SelfAttention": Case(lambda nn: nn.SelfAttention(2), (SEQUENCE,), {"mask": MASK}),
    "Sequential": Case(
        lambda nn: nn.Sequential([nn.Dense(4), lambda x: x * 0.3 + x, nn.Dense(2)]), (BATCH,)
    ),
    "SimpleCell": _cell("SimpleCell", 4, state=1, residual=True),
    "SpectralNorm": Case(
        lambda nn: nn.SpectralNorm(nn.Dense(3), n_steps=2),
        (BATCH,),
        {"update_stats": True},
        mutable=("batch_stats",),
    ),
    "WeightNorm": Case(lambda nn: nn.WeightNorm(nn.Dense(3)), (BATCH,)),
}


# --- lifted transforms ------------------------------------------------------------------------


def _module(call: Callable[[Any, Any, jax.Array], Any]) -> Callable[[Any], Any]:
    """A module of a namespace whose ``__call__`` is ``call(namespace, module, x)``."""

    def make(nn):
        class Lifted(nn.Module):
            @nn.compact
            def __call__(self, x):
                return call(nn, self, x)

        return Lifted()

    return make


def _scan(nn, module, x):
    cell = nn.scan(
        nn.LSTMCell,
        variable_broadcast="params",
        split_rngs={"params": False},
        in_axes=1,
        out_axes=1,
    )(3)
    return cell(cell.initialize_carry(jax.random.key(0), x[:, 0].shape), x)[1]


def _layers_in_scan(nn, module, x):
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x, _):
            x = nn.Dropout(0.3, deterministic=False)(nn.LayerNorm()(nn.Dense(6)(x)))
            x = nn.Dropout(0.3, deterministic=False)(x)
            return nn.BatchNorm(use_running_average=False)(x), None

    return nn.scan(
        nn.remat(Block),
        variable_axes={"params": 0, "batch_stats": 0},
        split_rngs={"params": True, "dropout": True},
        length=2,
    )()(x, None)[0]


def _vmap(nn, module, x):
    return nn.vmap(
        nn.BatchNorm,
        variable_axes={"params": 0, "batch_stats": 0},
        split_rngs={"params": True},
    )(use_running_average=False)(x)


def _jit(nn, module, x):
    x = nn.jit(nn.Dropout)(0.3, deterministic=False)(nn.jit(nn.Dense)(6)(x))
    return nn.jit(nn.MultiHeadDotProductAttention)(2)(x)


def _setup_outside(nn, module, x):
    """Reading an attribute runs ``setup`` outside of methods, and so does ``nn.jit``."""
    embed = nn.Embed(6, 6)
    table = embed.embedding
    return embed.attend(x), table, nn.jit(nn.Embed)(6, 6)(x.argmax(-1))


def _branches(nn, module, x):
    dense = nn.Dense(6)
    if module.is_initializing():
        return dense(x)
    y = nn.cond(x.sum() > 0, lambda m, x: dense(x), lambda m, x: nn.silu(x), module, x)
    return nn.switch(1, [lambda m, x: x, lambda m, x: dense(x)], module, y)


def _while(nn, module, x):
    dense = nn.Dense(6)
    if module.is_initializing():
        return dense(x)

    def body(module, carry):
        return nn.tanh(dense(carry[0])), carry[1] + 1

    carry = (x, 0)
    return nn.while_loop(lambda m, c: c[1] < 3, body, module, carry, broadcast_variables="params")[
        0
    ]


def _vjp(nn, module, x):
    y, pullback = nn.vjp(lambda m, x: m(x), nn.Dense(6), x)
    return pullback(y)[1]


def _jvp(nn, module, x):
    dense = nn.Dense(6)
    if module.is_initializing():
        return dense(x)
    ones = jax.numpy.ones_like
    tangents = {"params": jax.tree.map(ones, dense.variables["params"])}
    return nn.jvp(lambda m, x: nn.tanh(m(x)), dense, (x,), (ones(x),), variable_tangents=tangents)


def _custom_vjp(nn, module, x):
    def backward(pullback, ct):
        params, x = pullback(ct)
        return jax.tree.map(jax.numpy.sign, params), x

    return nn.custom_vjp(
        lambda m, x: m(x),
        forward_fn=lambda m, x: nn.vjp(lambda m, x: m(x), m, x),
        backward_fn=backward,
    )(nn.Dense(6), x)


def _map_variables(nn, module, x):
    def mapped(params):
        return jax.tree.map(nn.tanh, params)

    dense = nn.map_variables(nn.Dense, "params", mapped, init=module.is_initializing())
    return dense(6)(x)


def _remat_scan(nn, module, x):
    class Block(nn.Module):
        @nn.compact
        def __call__(self, x):
            return nn.gelu(nn.Dense(6)(x))

    return nn.remat_scan(Block, (2, 2))()(x)


#: Modules by the transform that they use, and whether the transform has reverse-mode derivatives.
LIFTED = {
    "scan": (_module(_scan), True),
    "layers in scan and remat": (_module(_layers_in_scan), True),
    "vmap": (_module(_vmap), True),
    "jit": (_module(_jit), True),
    "setup outside of methods": (_module(_setup_outside), True),
    "cond and switch": (_module(_branches), True),
    "while_loop": (_module(_while), False),
    "vjp": (_module(_vjp), True),
    "jvp": (_module(_jvp), True),
    "custom_vjp": (_module(_custom_vjp), True),
    "map_variables": (_module(_map_variables), True),
    "remat_scan": (_module(_remat_scan), True),
}

# --- a model of a user's own ------------------------------------------------------------------


class Encoder(linen.Module):
    """Parameters and arithmetic of its own, a module that it is given, a list of modules."""

    inner: linen.Module

    def setup(self):
        self.w = self.param("w", linen.initializers.normal(), (6, 6))
        self.more = [linen.Dense(6), linen.Dense(6)]

    def __call__(self, x):
        x = self.inner(x @ self.w) * 0.3 + x
        for dense in self.more:
            x = dense(jax.numpy.tanh(x))
        return x


class Model(linen.Module):
    """A module that shares one with its encoder, and has several methods."""

    rate: float = 0.4

    def setup(self):
        self.inner = linen.Dense(6)
        self.encoder = Encoder(self.inner)
        self.norm = linen.BatchNorm()
        self.dropout = linen.Dropout(self.rate)

    def __call__(self, x, train=False):
        x = self.norm(self.encoder(x), use_running_average=not train)
        self.sow("intermediates", "scaled", x * 0.7)
        x = self.dropout(x, deterministic=not train)
        return {"mean": self.inner(x).mean(0), "name": type(self).__name__, "count": x.shape[0]}

    def encode(self, x):
        return self.encoder(x) * 1.7 + x

    def _logits(self, x):
        return jax.nn.log_softmax(self.encoder(x))
