"""GPT-2 as a Flax Linen module.

Source: A. Radford, J. Wu, R. Child, D. Luan, D. Amodei and I. Sutskever, "Language Models are
Unsupervised Multitask Learners", OpenAI, 2019, section 2.3; the residual projections start smaller
by 1 / sqrt(2 depth), as there.  Learned positions, norms before each half of a block, gelu in its
form with tanh, a head that shares the table of the embedding.

Dropout is left out: a sampler has none, and a trainer with it would have other log-probabilities.
Modules and parameters have the names of Hugging Face's GPT-2, whose files
:mod:`repjax.models.weights` reads.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import flax.linen as nn
import jax
import jax.numpy as jnp

from repjax.models.language import LanguageModel, attend, logits_of, normal, store


class Attention(nn.Module):
    """Attention of one block; its input and output are (batch, length, width)."""

    heads: int
    depth: int
    dtype: Any

    @nn.compact
    def __call__(self, x, positions, mask, cache):
        batch, length, width = x.shape
        x = nn.Dense(3 * width, dtype=self.dtype, kernel_init=normal(0.02), name="c_attn")(x)
        shape = (batch, length, self.heads, width // self.heads)
        queries, keys, values = (part.reshape(shape) for part in jnp.split(x, 3, axis=-1))
        if cache is not None:
            cache = store(cache, keys, values, positions)
            keys, values = cache["keys"], cache["values"]
        x = attend(queries, keys, values, mask)
        return _residual(width, self, "c_proj")(x), cache


class Perceptron(nn.Module):
    """The other half of a block: four times the width, gelu, and back."""

    depth: int
    dtype: Any

    @nn.compact
    def __call__(self, x):
        width = x.shape[-1]
        x = nn.Dense(4 * width, dtype=self.dtype, kernel_init=normal(0.02), name="c_fc")(x)
        return _residual(width, self, "c_proj")(nn.gelu(x, approximate=True))


def _residual(width: int, module: Any, name: str) -> nn.Dense:
    start = normal(0.02 / math.sqrt(2 * module.depth))
    return nn.Dense(width, dtype=module.dtype, kernel_init=start, name=name)


class Block(nn.Module):
    heads: int
    depth: int
    dtype: Any

    def setup(self):
        self.ln_1 = _norm(self.dtype)
        self.attn = Attention(self.heads, self.depth, self.dtype)
        self.ln_2 = _norm(self.dtype)
        self.mlp = Perceptron(self.depth, self.dtype)

    def __call__(self, x, positions, mask, cache):
        y, cache = self.attn(self.ln_1(x), positions, mask, cache)
        x = x + y
        return x + self.mlp(self.ln_2(x)), cache


def _norm(dtype: Any) -> nn.LayerNorm:
    return nn.LayerNorm(epsilon=1e-5, dtype=dtype, use_fast_variance=False)


class GPT(LanguageModel, kw_only=True):
    """GPT-2: tokens to logits; `LanguageModel` has its attributes and says how to call it.

    GPT-2 small, with 124 million parameters, is
    ``GPT(vocabulary=50257, positions=1024, width=768, depth=12, heads=12)``.
    """

    #: What Hugging Face's names begin with, except the head's; whether its products are
    #: transposed; tensors of its files that are no parameters.
    prefix: ClassVar[str] = "transformer."
    transposed: ClassVar[bool] = False
    buffers: ClassVar[tuple[str, ...]] = (".attn.bias", ".attn.masked_bias")

    def setup(self):
        self._check_sizes()
        self._head_shape()
        block = nn.remat(Block) if self.remat else Block
        self.wte = nn.Embed(
            self.vocabulary, self.width, dtype=self.dtype, embedding_init=normal(0.02)
        )
        self.wpe = nn.Embed(
            self.positions, self.width, dtype=self.dtype, embedding_init=normal(0.01)
        )
        self.h = [block(self.heads, self.depth, self.dtype) for _ in range(self.depth)]
        self.ln_f = _norm(self.dtype)

    def _embed(self, tokens, positions) -> jax.Array:
        return self.wte(tokens) + self.wpe(jnp.maximum(positions, 0))

    def _blocks(self):
        return self.h

    def _norm(self, x) -> jax.Array:
        return self.ln_f(x)

    def _logits(self, x) -> jax.Array:
        return logits_of(x, self.wte.embedding)
