"""The rewritten example, trained in the processes of a job; see test_gpt.py."""

import importlib
import sys
from pathlib import Path

import jax
import numpy as np

SIZES = ["--num-layers=4", "--width=32", "--context=16", "--batch-size=16"]


def trained(out: str, text: str, *folders: str) -> None:
    """Train the programs in some folders for three steps each, and write every shard of this process and the losses.

    A device stands for its number among all, as a process numbers its own from a multiple of 2,048 on.
    """
    numbers = {device: number for number, device in enumerate(jax.devices())}
    for folder in folders:
        found: dict[str, np.ndarray] = {}
        sys.path.insert(0, folder)
        train = importlib.import_module("train")
        data = importlib.import_module("data")
        config = train.parse_arguments([*SIZES, f"--text={text}"])
        with jax.numpy_rank_promotion("allow"), jax.numpy_dtype_promotion("standard"):
            corpus = data.load_corpus(config.text)
            state = train.create_state(config, corpus.vocab_size)
            batches = data.windows(corpus.train, config.batch_size, config.context, config.seed)
            for step in range(3):
                state, metrics = train.train_step(state, next(batches), jax.random.key(1))
                found[f"loss {step}"] = np.asarray(float(metrics["loss"]))
        for path, array in jax.tree_util.tree_leaves_with_path((state.params, state.opt_state, state.step)):
            for shard in array.addressable_shards:
                found[f"{jax.tree_util.keystr(path)} on {numbers[shard.device]}"] = np.asarray(shard.data)
        np.savez(Path(out, f"{Path(folder).name}-{jax.process_index()}.npz"), **found)
        sys.path.remove(folder)
        for name in ("train", "data", "model"):
            del sys.modules[name]
