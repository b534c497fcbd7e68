"""Flax Linen layers with arguments, for tests that compare two namespaces of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import numpy as np

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
      same: whether plain JAX has the same bits: nothing in it is rounded, or but once.
    """

    make: Callable[[Any], Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any] = dataclasses.field(default_factory=dict)
    rngs: tuple[str, ...] = ()
    mutable: tuple[str, ...] = ()
    methods: dict[str, tuple[Any, ...]] = dataclasses.field(default_factory=dict)
    same: bool = False


def _cell(name: str, *args: Any, state=2, shape: tuple[int, ...] = (5, 4), x=BATCH, **kw) -> Case:
    carry = tuple(normal(shape, 10 + i) for i in range(state))
    return Case(
        lambda nn: getattr(nn, name)(*args, **kw),
        (carry if state > 1 else carry[0], x),
        methods={"initialize_carry": (jax.random.key(4), x.shape)},
    )


CASES = {
    "BatchNorm": Case(
        lambda nn: nn.BatchNorm(), (SEQUENCE, False), mutable=("batch_stats",)
    ),
    "BatchNorm, running": Case(
        lambda nn: nn.BatchNorm(use_running_average=True, axis=1), (SEQUENCE,)
    ),
    "Bidirectional": Case(
        lambda nn: nn.Bidirectional(nn.RNN(nn.GRUCell(3)), nn.RNN(nn.GRUCell(3))), (SEQUENCE,)
    ),
    "Conv": Case(lambda nn: nn.Conv(3, (3, 2), strides=(1, 2)), (PICTURE,)),
    "ConvLSTMCell": _cell(
        "ConvLSTMCell", 3, (2, 2), shape=(2, 4, 5, 3), x=PICTURE
    ),
    "ConvLocal": Case(lambda nn: nn.ConvLocal(3, (2, 2)), (PICTURE,)),
    "ConvTranspose": Case(lambda nn: nn.ConvTranspose(3, (2, 2), strides=(2, 1)), (PICTURE,)),
    "Dense": Case(lambda nn: nn.Dense(7), (BATCH,)),
    "Dense, bfloat16": Case(lambda nn: nn.Dense(7, dtype=jax.numpy.bfloat16), (BATCH,)),
    "DenseGeneral": Case(lambda nn: nn.DenseGeneral((2, 3), axis=(-2, -1)), (SEQUENCE,)),
    "Dropout": Case(
        lambda nn: nn.Dropout(0.3, broadcast_dims=(1,)), (PICTURE, False), rngs=("dropout",)
    ),
    "Dropout, deterministic": Case(
        lambda nn: nn.Dropout(0.3), (BATCH,), {"deterministic": True}, same=True
    ),
    "Einsum": Case(lambda nn: nn.Einsum((6, 3, 2), "...i,ijk->...jk"), (SEQUENCE,)),
    "Embed": Case(
        lambda nn: nn.Embed(7, 6), (TOKENS,), methods={"attend": (SEQUENCE,)}, same=True
    ),
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
        lambda nn: nn.MultiHeadDotProductAttention(2), (SEQUENCE,), {"sow_weights": True},
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
        lambda nn: nn.SpectralNorm(nn.Dense(3), n_steps=2), (BATCH,), {"update_stats": True},
        mutable=("batch_stats",),
    ),
    "WeightNorm": Case(lambda nn: nn.WeightNorm(nn.Dense(3)), (BATCH,)),
}
