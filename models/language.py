"""What the language models share: attention over a cache, the head, log-probabilities.

One sequence has one set of bits, however it is computed: alone or in a batch, in one pass or in
chunks, with a cache of any size, beside padding and other documents.  In repjax's default orders
this needs one thing of a program: what a token must not see has to take part in sums as exact
zeros, and what it sees has to lie side by side in order.

* A weight of attention that is masked is ``exp`` of a number far below zero, which is +0.  A chain
  of fused multiply-adds passes over such terms without a trace (``docs/numerics.md``, section 5).
* The sum of a softmax is a tree that adds terms whose places agree modulo a power of two (section
  4).  Zeros behind the terms change nothing, and zeros in front of them rotate the places, which
  addition, being commutative, does not notice.

``docs/language_models.md`` has the promise and what it needs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np

#: In the place of a masked score.  It is finite, because rows in which all is masked, those of
#: padding, would be NaN with -inf, and zeros times NaN are NaN.
_MASKED = -1e30

Cache = list[dict[str, jax.Array]]


def normal(deviation: float):
    """An initializer: normal numbers with this standard deviation, rounded once more.

    Flax's ``initializers.normal`` multiplies in another place from JAX 0.12 on, and so has other
    bits; this one has the same ones in every version.
    """

    def initialize(key, shape, dtype=jnp.float32):
        return jax.random.normal(key, shape, dtype) * jnp.asarray(deviation, dtype)

    return initialize


class LanguageModel(nn.Module, kw_only=True):
    """What GPT and Llama share: sizes, checks, masks, and the way through the blocks.

    Attributes:
      vocabulary: number of tokens.
      positions: the longest sequence.
      width: features of a token.
      depth: number of blocks.
      heads: number of heads of attention, which divides the width.
      dtype: the format that is computed in, float32, bfloat16 or float16.  Parameters, softmaxes,
        norms and logits are float32.
      remat: compute a block again for its gradient, which saves memory and changes no bits.
    """

    vocabulary: int
    positions: int
    width: int
    depth: int
    heads: int
    dtype: Any = jnp.float32
    remat: bool = False

    def _check_sizes(self) -> None:
        name = type(self).__name__
        for field in ("vocabulary", "positions", "width", "depth", "heads"):
            if not isinstance(value := getattr(self, field), int) or value < 1:
                raise ValueError(
                    f"{name}: expected {field} to be a positive integer, received {value!r}; "
                    "give the sizes of the model"
                )
        if self.dtype not in (jnp.float32, jnp.bfloat16, jnp.float16):
            raise ValueError(
                f"{name}: expected dtype float32, bfloat16 or float16, received {self.dtype!r}; "
                "parameters are float32 in each"
            )

    def _head_shape(self) -> tuple[int, int]:
        """Number of heads of keys and values, and features of a head."""
        if self.width % self.heads:
            raise ValueError(
                f"{type(self).__name__}: expected heads that divide the width {self.width}, "
                f"received {self.heads}; choose a divisor"
            )
        return self.heads, self.width // self.heads

    def make_cache(self, batch: int, size: int) -> Cache:
        """An empty cache of keys and values: for each block (batch, size, heads, features).

        The token at position p is kept at place p, so ``size`` is the longest sequence that the
        cache holds.
        """
        self._check_sizes()
        if not 1 <= size <= self.positions or batch < 1:
            raise ValueError(
                f"{type(self).__name__}.make_cache: expected a batch of at least 1 and a size from "
                f"1 to the model's {self.positions} positions, received batch {batch} and size "
                f"{size}; make a model with more positions, or a smaller cache"
            )
        heads, features = self._head_shape()
        shape = (batch, size, heads, features)
        return [
            {"keys": jnp.zeros(shape, self.dtype), "values": jnp.zeros(shape, self.dtype)}
            for _ in range(self.depth)
        ]

    def __call__(
        self,
        tokens: jax.Array,
        positions: jax.Array | None = None,
        cache: Cache | None = None,
        at: jax.Array | None = None,
    ) -> tuple[jax.Array, Cache | None]:
        """The logits of the token after each one, and the cache with these tokens in it.

        Args:
          tokens: integers (batch, length) from 0 to ``vocabulary - 1``; others give NaN, as a
            GPT's positions beyond the model's do.
          positions: int32 (batch, length); 0, 1, ... in each row without it.  A row may hold
            several documents one after the other, each beginning with position 0: tokens see their
            own document.  Tokens at position -1 are padding: no token sees them, no cache keeps
            them, and their logits mean nothing.
          cache: from :meth:`make_cache` or an earlier call; without one the tokens see each other
            only.  With one, a row is one document, whose earlier positions are in the cache.
            Positions from the cache's size on are not kept.
          at: integers (batch, n): of which tokens of each row the logits are wanted; of all
            without it.

        Returns:
          float32 (batch, length or n, vocabulary), and the cache, None without one.
        """
        positions = self._check(tokens, positions, cache)
        mask = visible(positions) if cache is None else kept(positions, cache)
        x = self._embed(tokens, positions)
        layers = []
        for block, layer in zip(self._blocks(), cache or [None] * self.depth, strict=True):
            x, layer = block(x, positions, mask, layer)
            layers.append(layer)
        x = self._norm(x)
        if at is not None:
            x = jnp.take_along_axis(x, at[..., None], axis=1)
        return self._logits(x), None if cache is None else layers

    def _check(self, tokens, positions, cache) -> jax.Array:
        name = type(self).__name__
        if tokens.ndim != 2 or not jnp.issubdtype(tokens.dtype, jnp.integer) or 0 in tokens.shape:
            raise ValueError(
                f"{name}: expected integer tokens of shape (batch, length), at least one of them, "
                f"received {tokens.dtype} of shape {tokens.shape}; give each row a token"
            )
        if cache is None and tokens.shape[1] > self.positions and positions is None:
            raise ValueError(
                f"{name}: expected at most {self.positions} tokens, the model's positions, "
                f"received {tokens.shape[1]}; shorten the rows or make a model with more positions"
            )
        if positions is None:
            positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        if positions.shape != tokens.shape or not jnp.issubdtype(positions.dtype, jnp.integer):
            raise ValueError(
                f"{name}: expected integer positions of the tokens' shape {tokens.shape}, received "
                f"{positions.dtype} of shape {positions.shape}; give each token one, -1 to padding"
            )
        if cache is not None:
            heads, features = self._head_shape()
            shapes = [layer["keys"].shape for layer in cache]
            expected = (tokens.shape[0], "size", heads, features)
            if len(cache) != self.depth or any(
                (shape[0], *shape[2:]) != (tokens.shape[0], heads, features) for shape in shapes
            ):
                raise ValueError(
                    f"{name}: expected a cache of {self.depth} blocks of shape {expected}, "
                    f"received {len(cache)} of {sorted(set(shapes))}; make it by make_cache of "
                    "this model"
                )
        return positions.astype(jnp.int32)


def visible(positions: jax.Array) -> jax.Array:
    """Which tokens a token sees in a pass without a cache: bool (batch, length, length).

    Those of its own document up to itself.  Documents of a row are told apart by where they
    start, which is a token's place less its position.
    """
    place = jnp.arange(positions.shape[1])
    start = place - positions
    own = start[:, :, None] == start[:, None, :]
    return own & (place[:, None] >= place) & (positions >= 0)[:, None, :]


def kept(positions: jax.Array, cache: Cache) -> jax.Array:
    """Which places of a cache a token sees: bool (batch, length, size)."""
    return jnp.arange(cache[0]["keys"].shape[1]) <= positions[:, :, None]


def store(layer: dict[str, jax.Array], keys, values, positions) -> dict[str, jax.Array]:
    """A block's cache with keys and values (batch, length, heads, features) at their positions."""
    size = layer["keys"].shape[1]
    rows = jnp.arange(positions.shape[0])[:, None]
    places = jnp.where(positions < 0, size, positions)  # beyond the end, where they are dropped

    def put(old, new):
        return old.at[rows, places].set(new.astype(old.dtype), mode="drop")

    return {"keys": put(layer["keys"], keys), "values": put(layer["values"], values)}


def attend(queries, keys, values, mask) -> jax.Array:
    """Attention in groups: several heads of queries share one of keys and values.

    Args:
      queries: (batch, length, heads, features).
      keys, values: (batch, size, key heads, features); the heads are a multiple of these.
      mask: bool (batch, length, size), True where a token is seen.

    Returns:
      (batch, length, heads * features) in the format of the queries; scores and their softmax
      are float32.
    """
    batch, length, heads, features = queries.shape
    groups = keys.shape[2]
    queries = queries.reshape(batch, length, groups, heads // groups, features)
    scores = jnp.einsum("btgqf,bsgf->bgqts", queries, keys, preferred_element_type=jnp.float32)
    # math.sqrt is correctly rounded on every machine, and a power is not.
    scores = scores * (1 / math.sqrt(features))
    weights = jax.nn.softmax(jnp.where(mask[:, None, None], scores, _MASKED))
    result = jnp.einsum("bgqts,bsgf->btgqf", weights.astype(values.dtype), values)
    return result.reshape(batch, length, heads * features)


def logits_of(x: jax.Array, table: jax.Array) -> jax.Array:
    """float32 products of tokens (batch, length, width) with a table (vocabulary, width)."""
    return jnp.einsum("btf,vf->btv", x, table.astype(x.dtype), preferred_element_type=jnp.float32)


def chosen(logits: jax.Array, tokens: jax.Array) -> jax.Array:
    """The log-probabilities of tokens (...) under logits (..., vocabulary): float32 (...)."""
    return jnp.take_along_axis(jax.nn.log_softmax(logits), tokens[..., None], axis=-1)[..., 0]


def log_probs(
    model: LanguageModel, params: Any, tokens: jax.Array, positions: jax.Array | None = None
) -> jax.Array:
    """What a trainer needs: the log-probability of each token given those before it.

    Use it inside of what ``repjax.reproducible`` makes reproducible, inside ``jax.value_and_grad``
    too.  The bits are those that :mod:`repjax.models.generate` reports of the same tokens.

    Args:
      model: a `GPT` or `Llama`.
      params: its variables, as ``model.init`` gives them.
      tokens: integers (batch, length), length at least 2.
      positions: as the model takes them.

    Returns:
      float32 (batch, length - 1): element i is about token i + 1.  It is 0 where that token is
      padding or begins a document.
    """
    if tokens.ndim != 2 or tokens.shape[1] < 2:
        raise ValueError(
            f"log_probs: expected tokens of shape (batch, length) with a length of at least 2, "
            f"received {tokens.shape}; the first token of a row has no log-probability"
        )
    if not isinstance(tokens, jax.core.Tracer):
        check_tokens("log_probs", model, tokens)
    logits, _ = model.apply(params, tokens, positions)
    result = chosen(logits[:, :-1], tokens[:, 1:])
    return result if positions is None else jnp.where(positions[:, 1:] > 0, result, 0.0)


def check_tokens(what: str, model: LanguageModel, tokens: Sequence[int] | np.ndarray) -> None:
    """Raise for a token that the model does not have."""
    tokens = np.asarray(tokens)
    wrong = tokens[(tokens < 0) | (tokens >= model.vocabulary)]
    if wrong.size:
        raise ValueError(
            f"{what}: expected tokens from 0 to {model.vocabulary - 1}, received {wrong[0]}; "
            "use the tokenizer that belongs to the model"
        )
