"""Train for a few steps and write down what happened: losses, parameters, and where every array is.

    python examples/gpt/record.py --record run.npz --steps 10

`compare.py` runs this file twice: once here with `--microbatched`, and once from the folder that `mmrewrite build`
wrote, where `train` is the rewritten module. It uses nothing of `mmruntime` itself.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax.training.train_state import TrainState

import train
from data import load_corpus, windows

MICROBATCH_SIZE = 4  # as in the `microbatch` hint of train.py


@jax.jit  # mm: ignore[compile_for_mesh]
def microbatched_step(
    state: TrainState, batch: dict[str, jax.Array], key: jax.Array
) -> tuple[TrainState, dict[str, jax.Array]]:
    """What `train.train_step` means with its batch cut up, for one device: the mean over all microbatches.

    The dropout key of a microbatch is the key of the step with the microbatch's index folded in.
    """
    key = jax.random.fold_in(key, state.step)

    def loss_fn(params: Any, inputs: jax.Array, targets: jax.Array, key: jax.Array) -> tuple[jax.Array, jax.Array]:
        logits = state.apply_fn({"params": params}, inputs, train=True, rngs={"dropout": key})
        losses = optax.softmax_cross_entropy_with_integer_labels(logits, targets)
        return losses.mean(), jnp.mean(logits.argmax(-1) == targets, dtype=losses.dtype)

    def add_microbatch(total: Any, microbatch: tuple[jax.Array, jax.Array, jax.Array]) -> tuple[Any, None]:
        index, inputs, targets = microbatch
        result = jax.value_and_grad(loss_fn, has_aux=True)(
            state.params, inputs, targets, jax.random.fold_in(key, index)
        )
        return jax.tree.map(jnp.add, total, result), None

    batch_size, context = batch["inputs"].shape
    count = batch_size // MICROBATCH_SIZE
    inputs, targets = (batch[name].reshape(count, MICROBATCH_SIZE, context) for name in ("inputs", "targets"))
    zero = jnp.zeros((), jax.tree.leaves(state.params)[0].dtype)
    total, _ = jax.lax.scan(
        add_microbatch,
        ((zero, zero), jax.tree.map(jnp.zeros_like, state.params)),
        (jnp.arange(count), inputs, targets),
    )
    (loss, accuracy), grads = jax.tree.map(lambda x: x / count, total)
    return state.apply_gradients(grads=grads), {"loss": loss, "accuracy": accuracy}


def arrays_by_path(tree: Any) -> dict[str, jax.Array]:
    return {
        jax.tree_util.keystr(path, simple=True, separator="/"): leaf
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree)
    }


def placement(array: jax.Array) -> dict[str, Any]:
    """The devices that hold an array, and how much of it each of them holds."""
    shard = array.sharding.shard_shape(array.shape)
    return {
        "devices": sorted(device.id for device in array.devices()),
        "shape": list(array.shape),
        "shard": list(shard),
        "bytes_per_device": int(np.prod(shard, dtype=np.int64)) * array.dtype.itemsize,
    }


def record(config: train.TrainConfig, path: Path, microbatched: bool) -> None:
    """Train, and write an `.npz` file: metrics by step, final arrays by path, and a JSON text with the rest."""
    corpus = load_corpus(config.text)
    state = train.create_state(config, corpus.vocab_size)
    step = microbatched_step if microbatched else train.train_step
    key = jax.random.key(config.seed + 1)
    batches = windows(corpus.train, config.batch_size, config.context, config.seed)

    history, seconds = [], []
    for number in range(config.steps):
        print(f"step {number + 1} of {config.steps}", file=sys.stderr, flush=True)
        start = time.perf_counter()
        state, metrics = step(state, next(batches), key)
        history.append(jax.device_get(metrics))
        seconds.append(time.perf_counter() - start)

    arrays = {
        f"{kind}/{name}": array
        for kind, tree in (("params", state.params), ("opt_state", state.opt_state))
        for name, array in arrays_by_path(tree).items()
    }
    notes = {
        "devices": jax.device_count(),
        "seconds": seconds,
        "explain": str(step.explain()) if hasattr(step, "explain") else "",
        "placement": {name: placement(array) for name, array in arrays.items()},
    }
    np.savez(
        path,
        notes=json.dumps(notes),
        loss=np.array([metrics["loss"] for metrics in history]),
        accuracy=np.array([metrics["accuracy"] for metrics in history]),
        **{name: np.asarray(array) for name, array in arrays.items()},
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("--record", type=Path, required=True, help="file to write")
    parser.add_argument("--microbatched", action="store_true", help="the microbatched step of this file, on one device")
    options, rest = parser.parse_known_args()
    record(train.parse_arguments(rest), options.record, options.microbatched)


if __name__ == "__main__":
    main()
