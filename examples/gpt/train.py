"""Train a character-level GPT.

    python examples/gpt/train.py --steps 100

On its own this runs on one device: the comments that begin with `mm:` mean nothing to Python. They tell `mmrewrite`
where the program should run.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

from data import DEFAULT_TEXT, Corpus, load_corpus, windows
from model import GPT, GPTConfig

Model = Callable[..., jax.Array]

# mm: mesh(stage=4, model=2); axes(hidden="model", batch=None)


@dataclass(frozen=True)
class TrainConfig:
    steps: int = 200
    batch_size: int = 32
    num_layers: int = 8
    width: int = 64
    num_heads: int = 4
    context: int = 64
    dropout: float = 0.1
    dtype: str = "float32"
    optimizer: str = "adamw"
    learning_rate: float = 1e-3
    weight_decay: float = 0.01
    clip_norm: float = 1.0
    seed: int = 0
    log_every: int = 20
    sample: int = 200
    text: str = str(DEFAULT_TEXT)


def make_optimizer(config: TrainConfig) -> optax.GradientTransformation:
    if config.optimizer == "adamw":
        # Adam divides by the size of the gradient: with its usual eps, 1e-8, float32 rounding of tiny gradients counts.
        update = optax.adamw(config.learning_rate, eps=1e-6, weight_decay=config.weight_decay)
    elif config.optimizer == "sgd":
        update = optax.sgd(config.learning_rate)
    else:
        raise ValueError(f"Unknown optimizer {config.optimizer!r}. Known optimizers: adamw, sgd.")
    return optax.chain(optax.clip_by_global_norm(config.clip_norm), update)


def create_state(config: TrainConfig, vocab_size: int) -> TrainState:
    if config.dtype == "float64":
        jax.config.update("jax_enable_x64", True)
    model = GPT(
        GPTConfig(
            vocab_size=vocab_size,
            num_layers=config.num_layers,
            width=config.width,
            num_heads=config.num_heads,
            context=config.context,
            dropout=config.dropout,
            dtype=config.dtype,
        )
    )
    ids = jnp.zeros((1, config.context), jnp.int32)
    params = jax.jit(model.init)(jax.random.key(config.seed), ids)["params"]
    return TrainState.create(apply_fn=model.apply, params=params, tx=make_optimizer(config))


@jax.jit  # mm: mjit
def train_step(
    state: TrainState, batch: dict[str, jax.Array], key: jax.Array
) -> tuple[TrainState, dict[str, jax.Array]]:
    def loss_fn(params, batch, dropout_key):
        logits = state.apply_fn({"params": params}, batch["inputs"], train=True, rngs={"dropout": dropout_key})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"])
        correct = logits.argmax(-1) == batch["targets"]
        loss = losses.mean()
        return loss, {"accuracy": correct.astype(losses.dtype).mean()}

    dropout_key = jax.random.fold_in(key, state.step)
    # mm: microbatch(size=4, argnum=1, rng=2, schedule="1f1b")
    (loss, metrics), grads = jax.value_and_grad(loss_fn, has_aux=True)(state.params, batch, dropout_key)
    return state.apply_gradients(grads=grads), {"loss": loss, **metrics}


def example_arguments() -> tuple[TrainState, dict[str, jax.Array], jax.Array]:
    """Arguments for `mmrewrite plan` and `verify`: `--entry train:train_step --args train:example_arguments`.

    Without dropout, as each microbatch draws masks of its own, and `verify` compares with the whole batch.
    """
    config = TrainConfig(dropout=0.0)
    corpus = load_corpus(config.text)
    batch = next(windows(corpus.train, config.batch_size, config.context, config.seed))
    return create_state(config, corpus.vocab_size), batch, jax.random.key(config.seed + 1)


def evaluate(model: Model, params: Any, corpus: Corpus, config: TrainConfig) -> float:
    """Mean loss over one batch of held-out text."""
    batch = next(windows(corpus.valid, 4 * config.batch_size, config.context, config.seed))
    logits = jax.jit(model)({"params": params}, batch["inputs"])
    return float(optax.softmax_cross_entropy_with_integer_labels(logits, batch["targets"]).mean())


def sample(model: Model, params: Any, corpus: Corpus, config: TrainConfig) -> str:
    """Continue the start of the held-out text, one character at a time."""
    apply = jax.jit(model)
    rng = np.random.default_rng(config.seed)
    ids = corpus.valid[: config.context].copy()
    for _ in range(config.sample):
        logits = np.asarray(apply({"params": params}, ids[None, -config.context :])[0, -1], np.float64)
        chances = np.exp(logits - logits.max())
        ids = np.append(ids, rng.choice(len(chances), p=chances / chances.sum()))
    return corpus.decode(ids)


def train(config: TrainConfig) -> TrainState:
    corpus = load_corpus(config.text)
    state = create_state(config, corpus.vocab_size)
    count = sum(leaf.size for leaf in jax.tree.leaves(state.params))
    print(f"{len(corpus.train):,} characters, {corpus.vocab_size} distinct; {count:,} parameters")

    key = jax.random.key(config.seed + 1)
    batches = windows(corpus.train, config.batch_size, config.context, config.seed)
    start = time.perf_counter()
    for step in range(1, config.steps + 1):
        state, metrics = train_step(state, next(batches), key)
        if step % config.log_every == 0 or step in (1, config.steps):
            loss, accuracy = float(metrics["loss"]), float(metrics["accuracy"])
            print(f"step {step:5d}  loss {loss:.4f}  accuracy {accuracy:.3f}  {time.perf_counter() - start:6.1f} s")
    params = jax.device_get(state.params)  # mm: gather(state.params)
    print(f"held-out loss {evaluate(state.apply_fn, params, corpus, config):.4f}")
    if config.sample:
        print(sample(state.apply_fn, params, corpus, config))
    return state


def parse_arguments(arguments: Sequence[str] | None = None) -> TrainConfig:
    parser = argparse.ArgumentParser(description="Train a character-level GPT.")
    for field in fields(TrainConfig):
        flag = "--" + field.name.replace("_", "-")
        parser.add_argument(flag, type=type(field.default), default=field.default, help=f"default {field.default}")
    return TrainConfig(**vars(parser.parse_args(arguments)))


if __name__ == "__main__":
    train(parse_arguments())
