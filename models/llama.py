"""Llama as a Flax Linen module.

Sources: H. Touvron et al., "LLaMA: Open and Efficient Foundation Language Models",
arXiv:2302.13971, section 2.2; B. Zhang and R. Sennrich, "Root Mean Square Layer Normalization",
NeurIPS 2019; J. Su et al., "RoFormer: Enhanced Transformer with Rotary Position Embedding",
arXiv:2104.09864; N. Shazeer, "GLU Variants Improve Transformer", arXiv:2002.05202; J. Ainslie et
al., "GQA: Training Generalized Multi-Query Transformer Models from Multi-Head Checkpoints",
EMNLP 2023.

Norms divide by the root mean square, positions rotate queries and keys, several heads of queries
share one of keys and values, and the halves of a perceptron are multiplied (SwiGLU).  Frequencies
are not scaled for longer contexts, as some later models' are.  Modules and parameters have the
names of Hugging Face's Llama, whose files :mod:`repjax.models.weights` reads.
"""

from __future__ import annotations

from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from repjax.models.language import LanguageModel, attend, logits_of, normal, store


def rotate(x: jax.Array, positions: jax.Array, theta: float) -> jax.Array:
    """Rotary positions: features (batch, length, heads, features), turned by their positions.

    Feature i of the first half and feature i of the second are turned as a pair, by the position
    times ``theta ** (-2 i / features)``.  Sines and cosines are correctly rounded.
    """
    half = x.shape[-1] // 2
    exponents = jnp.arange(half, dtype=jnp.float32) / half
    frequencies = 1 / jnp.float32(theta) ** exponents
    angles = positions[:, :, None, None].astype(jnp.float32) * frequencies
    cos, sin = jnp.cos(angles), jnp.sin(angles)
    first, second = jnp.split(x.astype(jnp.float32), 2, axis=-1)
    turned = [first * cos - second * sin, second * cos + first * sin]
    return jnp.concatenate(turned, axis=-1).astype(x.dtype)


def _dense(features: int, dtype: Any, name: str) -> nn.Dense:
    return nn.Dense(features, use_bias=False, dtype=dtype, kernel_init=normal(0.02), name=name)


class Attention(nn.Module):
    """Attention of one block; its input and output are (batch, length, width)."""

    heads: int
    key_heads: int
    theta: float
    dtype: Any

    @nn.compact
    def __call__(self, x, positions, mask, cache):
        *_, width = x.shape
        features = width // self.heads

        def heads(count, name):
            y = _dense(count * features, self.dtype, name)(x)
            return y.reshape(*x.shape[:2], count, features)

        queries = rotate(heads(self.heads, "q_proj"), positions, self.theta)
        keys = rotate(heads(self.key_heads, "k_proj"), positions, self.theta)
        values = heads(self.key_heads, "v_proj")
        if cache is not None:
            cache = store(cache, keys, values, positions)
            keys, values = cache["keys"], cache["values"]
        x = attend(queries, keys, values, mask)
        return _dense(width, self.dtype, "o_proj")(x), cache


class Perceptron(nn.Module):
    """The other half of a block: ``down(silu(gate(x)) * up(x))``."""

    hidden: int
    dtype: Any

    @nn.compact
    def __call__(self, x):
        gate = _dense(self.hidden, self.dtype, "gate_proj")(x)
        up = _dense(self.hidden, self.dtype, "up_proj")(x)
        return _dense(x.shape[-1], self.dtype, "down_proj")(nn.silu(gate) * up)


class Block(nn.Module):
    heads: int
    key_heads: int
    hidden: int
    theta: float
    epsilon: float
    dtype: Any

    def setup(self):
        self.input_layernorm = nn.RMSNorm(epsilon=self.epsilon, dtype=self.dtype)
        self.self_attn = Attention(self.heads, self.key_heads, self.theta, self.dtype)
        self.post_attention_layernorm = nn.RMSNorm(epsilon=self.epsilon, dtype=self.dtype)
        self.mlp = Perceptron(self.hidden, self.dtype)

    def __call__(self, x, positions, mask, cache):
        y, cache = self.self_attn(self.input_layernorm(x), positions, mask, cache)
        x = x + y
        return x + self.mlp(self.post_attention_layernorm(x)), cache


class Head(nn.Module):
    """A table of its own for the logits, transposed as that of a dense layer."""

    vocabulary: int

    @nn.compact
    def __call__(self, x):
        kernel = self.param("kernel", normal(0.02), (x.shape[-1], self.vocabulary))
        return logits_of(x, kernel.T)


class Llama(LanguageModel, kw_only=True):
    """Llama: tokens to logits; `LanguageModel` says how to call it.

    Attributes, beside those of `LanguageModel`:
      hidden: features between the halves of a perceptron.
      key_heads: number of heads of keys and values, which divides `heads`; as many without it.
      theta: the base of the frequencies of rotation.
      epsilon: what is added to a mean square.
      tied: the head shares the table of the embedding.
    """

    hidden: int
    key_heads: int | None = None
    theta: float = 10000.0
    epsilon: float = 1e-6
    tied: bool = False

    #: As in `GPT`.
    prefix: ClassVar[str] = "model."
    transposed: ClassVar[bool] = True
    buffers: ClassVar[tuple[str, ...]] = (".rotary_emb.inv_freq",)

    def _head_shape(self) -> tuple[int, int]:
        _, features = super()._head_shape()
        count = self.heads if self.key_heads is None else self.key_heads
        if count < 1 or self.heads % count or features % 2:
            raise ValueError(
                f"Llama: expected key_heads that divide the {self.heads} heads, and an even number "
                f"of features of a head, received {count} and {features}; change the sizes"
            )
        return count, features

    def setup(self):
        self._check_sizes()
        key_heads, _ = self._head_shape()
        block = nn.remat(Block) if self.remat else Block
        sizes = (self.heads, key_heads, self.hidden, self.theta, self.epsilon, self.dtype)
        self.embed_tokens = nn.Embed(
            self.vocabulary, self.width, dtype=self.dtype, embedding_init=normal(0.02)
        )
        self.layers = [block(*sizes) for _ in range(self.depth)]
        self.norm = nn.RMSNorm(epsilon=self.epsilon, dtype=self.dtype)
        if not self.tied:
            self.lm_head = Head(self.vocabulary)

    def _embed(self, tokens, positions) -> jax.Array:
        return self.embed_tokens(tokens)

    def _blocks(self):
        return self.layers

    def _norm(self, x) -> jax.Array:
        return self.norm(x)

    def _logits(self, x) -> jax.Array:
        return logits_of(x, self.embed_tokens.embedding) if self.tied else self.lm_head(x)
