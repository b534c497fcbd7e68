"""Flax Linen layers and functions made reproducible.

Drop-ins: the same names, fields and parameter trees as in ``flax.linen``, so that a
checkpoint of one loads into the other and ``from repjax import nn`` may replace
``from flax import linen as nn`` in a model built of what is here.  Initialisation is
reproducible too.  Classes subclass Linen's.
"""

from __future__ import annotations

from typing import Any

import jax
import optax
from flax import linen as _linen
from flax.core import lift as _lift
from flax.linen import Module as Module
from flax.linen import Sequential as Sequential
from flax.linen import compact as compact
from flax.linen import initializers as initializers
from flax.linen import nowrap as nowrap
from flax.linen.transforms import decorator_lift_transform as _decorator_lift_transform

from repjax.explicit import explicit as _explicit


def _reproducible_scope(fn):
    """A lifted transform: run ``fn`` of a Flax scope through :func:`explicit`."""

    def inner(scope_fn, repack_fn, variables, rngs, *args, **kwargs):
        def pure(variables, rngs, args, kwargs):
            scope = scope_fn(variables, rngs)
            result = fn(scope, *args, **kwargs)
            return result, repack_fn(scope)

        return _explicit(pure)(variables, rngs, args, kwargs)

    return _lift.pack(inner, (True,), (True,), (True,), name="repjax", enable_kwargs=True)


def _layer(stock: type[Module]) -> type[Any]:
    """A subclass of a Linen module whose ``__call__`` is reproducible."""
    return type(
        stock.__name__,
        (stock,),
        {
            "__module__": __name__,
            "__doc__": f"Reproducible ``flax.linen.{stock.__name__}``: same fields, same "
            f"parameters.\n\n{stock.__doc__}",
            "__call__": _decorator_lift_transform(
                _reproducible_scope, stock.__call__, multi_scope=False
            ),
        },
    )


Dense = _layer(_linen.Dense)
DenseGeneral = _layer(_linen.DenseGeneral)
Conv = _layer(_linen.Conv)
ConvTranspose = _layer(_linen.ConvTranspose)

relu = _explicit(jax.nn.relu)
gelu = _explicit(jax.nn.gelu)
tanh = _explicit(jax.nn.tanh)
sigmoid = _explicit(jax.nn.sigmoid)
silu = _explicit(jax.nn.silu)
softplus = _explicit(jax.nn.softplus)
elu = _explicit(jax.nn.elu)
leaky_relu = _explicit(jax.nn.leaky_relu)
softmax = _explicit(jax.nn.softmax)
log_softmax = _explicit(jax.nn.log_softmax)
logsumexp = _explicit(jax.nn.logsumexp)
one_hot = _explicit(jax.nn.one_hot)
max_pool = _explicit(_linen.max_pool)
avg_pool = _explicit(_linen.avg_pool)
softmax_cross_entropy = _explicit(optax.softmax_cross_entropy)
softmax_cross_entropy_with_integer_labels = _explicit(
    optax.softmax_cross_entropy_with_integer_labels
)
