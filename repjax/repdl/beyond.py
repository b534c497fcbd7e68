"""Layers that RepDL has not got, in its manner; :mod:`repjax.repdl` has the notation."""

from __future__ import annotations

import functools
import math

import jax
import numpy as np
from jax import lax
from jax import numpy as jnp

from repjax.repdl.define import ANY, arrays, factor, refuse, with_gradient
from repjax.repdl.graphs import softmax_graph

# --- normalisation --------------------------------------------------------------------


def _row_mean(x):
    return jnp.sum(x, 1, keepdims=True) * factor(x.shape, (1,))


def _standardized(x, eps):
    d = x - _row_mean(x)
    std = jnp.sqrt(_row_mean(d * d) + eps)
    return d / std, std


@functools.cache
def _layer_norm(eps: float):
    def forward(x, weight, bias):
        y = _standardized(x, eps)[0] * weight[None]
        return y if bias is None else y + bias[None]

    def gradient(args, g):
        x, weight, bias = args
        u, std = _standardized(x, eps)
        h = g * weight[None]
        of_x = (h - _row_mean(h) - u * _row_mean(h * u)) / std
        return of_x, jnp.sum(g * u, 0), None if bias is None else jnp.sum(g, 0)

    return with_gradient(forward, gradient)


def layer_norm(
    x: jax.Array, weight: jax.Array, bias: jax.Array | None = None, eps: float = 1e-5
) -> jax.Array:
    """u * weight + bias with u = d / std, d = x - m and std = sqrt(v + eps), each step rounded.

    m is the :func:`mean` of x over the last axes, those of the weight, in row-major order, and v
    that of rn(d * d).

    Gradient: with h = rn(g * weight), ((h - mean(h)) - u * mean(h * u)) / std for x, each step
    rounded; for weight the sum over all other axes, row-major, of rn(g * u), for bias that of g.

    Args:
      x: float32[..., features], or with more axes of features.
      weight: float32[features], as many axes as PyTorch's ``normalized_shape`` has.
      bias: like weight, or None.
      eps: a Python float.

    Returns:
      A float32 array of the shape of x.
    """
    expected = "float32 x[..., features], weight[features] and bias[features], features not empty"
    given = x, weight, bias
    x, weight, bias = arrays("layer_norm", expected, given, [ANY[1:], ANY[1:], (*ANY[1:], None)])
    shape = weight.shape
    if x.shape[-len(shape) :] != shape or 0 in shape or (bias is not None and bias.shape != shape):
        refuse("layer_norm", expected, *given)
    rows = jnp.reshape(x, (math.prod(x.shape[: x.ndim - len(shape)]), weight.size))
    flat = (None if v is None else jnp.ravel(v) for v in (weight, bias))
    return jnp.reshape(_layer_norm(float(eps))(rows, *flat), x.shape)


# --- activations ----------------------------------------------------------------------


def _below(x):
    """The share of the normal distribution below x."""
    return (lax.erf(x * math.sqrt(0.5)) + 1) * 0.5


def _gelu_gradient(args, g):
    (x,) = args
    density = jnp.exp(x * x * -0.5) * (1 / math.sqrt(2 * math.pi))
    return (g * (_below(x) + x * density),)


_gelu = with_gradient(lambda x: x * _below(x), _gelu_gradient)

_CUBIC = 0.044715
_SLOPE = math.sqrt(2 / math.pi)


def _gelu_tanh_graph(x):
    return x * 0.5 * (jnp.tanh((x * x * x * _CUBIC + x) * _SLOPE) + 1)


def _gelu_tanh_gradient(args, g):
    (x,) = args
    square = x * x
    t = jnp.tanh((square * x * _CUBIC + x) * _SLOPE)
    inner = (square * (3 * _CUBIC) + 1) * _SLOPE
    return (g * ((t + 1) * 0.5 + x * 0.5 * (1 - t * t) * inner),)


_gelu_tanh = with_gradient(_gelu_tanh_graph, _gelu_tanh_gradient)


def gelu(x: jax.Array, approximate: str = "none") -> jax.Array:
    """x * b with b = (erf(x * sqrt(1/2)) + 1) * 0.5, each step rounded, from left to right.

    Gradient: g * (b + x * (exp(x * x * -0.5) * (1/sqrt(2 pi)))).

    With ``approximate="tanh"`` it is x * 0.5 * (t + 1) with t = tanh((x * x * x * 0.044715 + x) *
    c), c = sqrt(2/pi), and the gradient g * ((t + 1) * 0.5 + x * 0.5 * (1 - t * t) * i), with i =
    (x * x * (3 * 0.044715) + 1) * c.  erf, exp and tanh are correctly rounded; constants are
    computed in float64 and rounded to float32.

    Args:
      x: float32 of any shape.
      approximate: "none" or "tanh", as in PyTorch.
    """
    (x,) = arrays("gelu", "a float32 array", [x], [ANY])
    if approximate not in ("none", "tanh"):
        raise ValueError(
            f'repjax.repdl.gelu: expected approximate "none" or "tanh", received {approximate!r}'
        )
    return _gelu(x) if approximate == "none" else _gelu_tanh(x)


def _sigmoid(x):
    return 1 / (jnp.exp(-x) + 1)


def _silu_gradient(args, g):
    (x,) = args
    s = _sigmoid(x)
    return (g * (s * (x * (1 - s) + 1)),)


_silu = with_gradient(lambda x: x / (jnp.exp(-x) + 1), _silu_gradient)


def silu(x: jax.Array) -> jax.Array:
    """x / (exp(-x) + 1), exp correctly rounded and each step rounded; float32 of any shape.

    Gradient: g * (s * (x * (1 - s) + 1)) with s = 1 / (exp(-x) + 1).
    """
    return _silu(*arrays("silu", "a float32 array", [x], [ANY]))


# --- embedding ------------------------------------------------------------------------


@functools.cache
def _embedding(padding: int | None):
    def forward(indices, weight):
        # One that is none takes NaN, also one below 0.
        inside = jnp.where(indices < 0, weight.shape[0], indices)
        return jnp.take(weight, inside, axis=0, mode="fill", fill_value=np.nan)

    def gradient(args, g):
        indices, weight = args

        def add(table, at):
            index, row = at
            old = lax.dynamic_index_in_dim(table, index, 0, keepdims=False)
            return lax.dynamic_update_index_in_dim(table, old + row, index, 0), None

        wrong = (indices < 0) | (indices >= weight.shape[0])
        if padding is not None:
            wrong |= indices == padding
        # What has no row goes to one more, behind the last.
        rows = jnp.where(wrong, weight.shape[0], indices)
        table = jnp.zeros((weight.shape[0] + 1, weight.shape[1]), weight.dtype)
        return None, lax.scan(add, table, (rows, g))[0][:-1]

    return with_gradient(forward, gradient)


def embedding(indices: jax.Array, weight: jax.Array, padding_idx: int | None = None) -> jax.Array:
    """The rows of ``weight`` at ``indices``, exact.

    Gradient: for each row of weight the sum of its g, the indices in row-major order; what none
    takes is +0, and the row ``padding_idx`` too.

    Args:
      indices: integers of any shape in 0, ..., rows - 1; any other takes a row of NaN.
      weight: float32[rows, features].
      padding_idx: a row that is not trained, or None; from the end below 0, as in PyTorch.

    Returns:
      float32[..., features].
    """
    expected = "integer indices and float32 weight[rows, features], padding_idx a row or None"
    given = indices, weight
    (weight,) = arrays("embedding", expected, [weight], [(2,)])
    indices = jnp.asarray(indices)
    if not jnp.issubdtype(indices.dtype, jnp.integer):
        refuse("embedding", expected, *given)
    if padding_idx is not None:
        if not -weight.shape[0] <= padding_idx < weight.shape[0]:
            refuse("embedding", expected, *given, np.asarray(padding_idx))
        padding_idx = int(padding_idx) % weight.shape[0]
    rows = _embedding(padding_idx)(jnp.ravel(indices), weight)
    return jnp.reshape(rows, (*indices.shape, weight.shape[1]))


# --- attention ------------------------------------------------------------------------


def _chain(a, b, axes):
    """Of each matrix of a batch, the chains over an axis of each."""
    return lax.dot_general(a, b, (((axes[0],), (axes[1],)), ((0,), (0,))))


@functools.cache
def _attention(scale: float):
    def shares(q, k, mask):
        scores = _chain(q, k, (2, 2)) * scale
        return softmax_graph(scores if mask is None else jnp.where(mask, scores, -np.inf))

    def forward(q, k, v, mask):
        return _chain(shares(q, k, mask), v, (2, 1))

    def gradient(args, g):
        q, k, v, mask = args
        p = shares(q, k, mask)
        of_p = _chain(g, v, (2, 2))
        of_scores = p * (of_p - jnp.sum(p * of_p, 2, keepdims=True)) * scale
        return (
            _chain(of_scores, k, (2, 1)),
            _chain(of_scores, q, (1, 1)),
            _chain(p, g, (1, 1)),
            None,
        )

    return with_gradient(forward, gradient)


def attention(
    query: jax.Array,
    key: jax.Array,
    value: jax.Array,
    mask: jax.Array | None = None,
    causal: bool = False,
    scale: float | None = None,
) -> jax.Array:
    """p @ value with p the :func:`softmax` of rn((query @ key.T) * scale) over the keys.

    The products are chains, over the features and over the keys, as PyTorch's description of
    ``scaled_dot_product_attention`` has them; a score that the mask takes out is -inf, and its p is
    +0.  A query without any key has NaN, as in PyTorch.

    Gradient, with the sums and chains over the axes that are named, ascending: value, the chain
    over queries of p and g; d = rn(rn(p * rn(c - t)) * scale), c the chain over features of g and
    value, t the sum over keys of rn(p * c); query, the chain over keys of d and key; key, the
    chain over queries of d and query.

    Args:
      query: float32[..., queries, features].
      key: float32[..., keys, features].
      value: float32[..., keys, features of values].
      mask: bools that broadcast to [..., queries, keys], True where a key takes part, or None.
      causal: whether a query sees the keys up to its own place only, from the first on.
      scale: a Python float, 1/sqrt(features) by default.

    Returns:
      float32[..., queries, features of values].
    """
    expected = (
        "float32 query[..., queries, features], key[..., keys, features] and value[..., keys, any],"
        " neither keys nor features empty, and a mask of bools[..., queries, keys] or None"
    )
    given = (query, key, value) if mask is None else (query, key, value, mask)
    query, key, value = arrays("attention", expected, given[:3], [ANY[2:]] * 3)
    shape = *query.shape[:-1], key.shape[-2]
    mask = None if mask is None else jnp.asarray(mask)
    if (
        key.shape != (*query.shape[:-2], *key.shape[-2:-1], query.shape[-1])
        or value.shape[:-1] != key.shape[:-1]
        or 0 in key.shape[-2:]
        or (mask is not None and (mask.dtype != bool or not _broadcasts(mask.shape, shape)))
    ):
        refuse("attention", expected, *given)
    if causal:
        below = jnp.arange(shape[-2])[:, None] >= jnp.arange(shape[-1])[None]
        mask = below if mask is None else mask & below
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else float(scale)
    batch = math.prod(shape[:-2])
    matrices = [jnp.reshape(x, (batch, *x.shape[-2:])) for x in (query, key, value)]
    if mask is not None:
        mask = jnp.reshape(jnp.broadcast_to(mask, shape), (batch, *shape[-2:]))
    y = _attention(scale)(*matrices, mask)
    return jnp.reshape(y, (*shape[:-1], value.shape[-1]))


def _broadcasts(shape: tuple[int, ...], to: tuple[int, ...]) -> bool:
    return len(shape) <= len(to) and all(
        a in (1, b) for a, b in zip(reversed(shape), reversed(to), strict=False)
    )
