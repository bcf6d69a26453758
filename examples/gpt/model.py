"""A GPT in Flax linen: learned positions, pre-norm blocks, the head tied to the token embedding."""

from __future__ import annotations

from dataclasses import dataclass

import jax
import jax.numpy as jnp
from flax import linen as nn


@dataclass(frozen=True)
class GPTConfig:
    vocab_size: int
    num_layers: int = 8
    width: int = 64
    num_heads: int = 4
    context: int = 64
    dropout: float = 0.1
    dtype: str = "float32"

    @property
    def head_width(self) -> int:
        if self.width % self.num_heads:
            raise ValueError(f"{self.width=} must be divisible by {self.num_heads=}.")
        return self.width // self.num_heads


def dense(features: int, config: GPTConfig, name: str, use_bias: bool = True) -> nn.Dense:
    return nn.Dense(
        features,
        use_bias=use_bias,
        dtype=config.dtype,
        param_dtype=config.dtype,
        kernel_init=nn.initializers.normal(0.02),
        name=name,
    )


def norm(config: GPTConfig, name: str | None = None) -> nn.LayerNorm:
    return nn.LayerNorm(dtype=config.dtype, param_dtype=config.dtype, name=name)


def widen(x: jax.Array, features: int, config: GPTConfig, name: str, use_bias: bool = True) -> jax.Array:
    """The first dense layer of attention and of the MLP: from `width` to more features."""
    # mm: shard("batch", None, "hidden")
    return dense(features, config, name, use_bias)(x)


class Attention(nn.Module):
    """Causal self-attention; the features of one head lie side by side, query, key, value."""

    config: GPTConfig

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        config = self.config
        batch, length, width = x.shape
        # A bias of the keys cancels in the softmax: its gradient is rounding, which Adam would scale up.
        qkv = widen(x, 3 * width, config, "qkv", use_bias=False)
        qkv = qkv.reshape(batch, length, config.num_heads, 3 * config.head_width)
        query, key, value = jnp.split(qkv, 3, axis=-1)

        scores = jnp.einsum("bqhd,bkhd->bhqk", query, key) / config.head_width**0.5
        visible = jnp.tril(jnp.ones((1, 1, length, length), dtype=bool))
        scores = jnp.where(visible, scores, jnp.finfo(scores.dtype).min)
        weights = nn.softmax(scores, axis=-1)
        weights = nn.Dropout(config.dropout)(weights, deterministic=not train)

        mixed = jnp.einsum("bhqk,bkhd->bqhd", weights, value).reshape(batch, length, width)
        return dense(width, config, "out")(mixed)


class MLP(nn.Module):
    config: GPTConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        width = x.shape[-1]
        return dense(width, self.config, "narrow")(nn.gelu(widen(x, 4 * width, self.config, "wide")))


class Block(nn.Module):
    config: GPTConfig

    @nn.compact
    def __call__(self, x: jax.Array, train: bool) -> jax.Array:
        config = self.config
        dropout = nn.Dropout(config.dropout, deterministic=not train)
        x = x + dropout(Attention(config, name="attention")(norm(config, "norm_1")(x), train))
        return x + dropout(MLP(config, name="mlp")(norm(config, "norm_2")(x)))


class GPT(nn.Module):
    config: GPTConfig

    def setup(self) -> None:
        config = self.config
        init = nn.initializers.normal(0.02)
        self.tokens = nn.Embed(
            config.vocab_size, config.width, dtype=config.dtype, param_dtype=config.dtype, embedding_init=init
        )
        self.positions = self.param("positions", init, (config.context, config.width), config.dtype)
        self.dropout = nn.Dropout(config.dropout)
        self.blocks = [Block(config) for _ in range(config.num_layers)]
        self.norm = norm(config)

    def __call__(self, ids: jax.Array, train: bool = False) -> jax.Array:
        """Logits of the next character, shape `(batch_size, length, vocab_size)`."""
        x = self.tokens(ids) + self.positions[None, : ids.shape[1]]
        x = self.dropout(x, deterministic=not train)
        # mm: stages
        for block in self.blocks:
            x = block(x, train)
        return self.tokens.attend(self.norm(x))
