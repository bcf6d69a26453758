"""dalle-mini: https://github.com/borisdayma/dalle-mini, `tools/train/train.py`.

The script's own `main()` trains a model of two encoder and two decoder layers, with scanned layers and dropout, from
`set_partitions` and the creation of the state to the last evaluation, once with each of its optimizers:

- `adam`, a mesh of 4 x 2 (`dp`, `mp`), two accumulated batches for each step, with the script's "vmap trick"
- `adafactor`, 4 x 2, without the trick
- `distributed_shampoo`, 2 x 4, with statistics and preconditioners sharded over `mp`; of the embeddings alone, as
  the old JAX compiles the whole for five minutes

Compared are all that it logs (losses, rates, the norm of every parameter and of every gradient, step by step) and the
whole state at the end. Shampoo's preconditioners are inverse roots of matrices whose largest eigenvalue is a million
times their smallest, in float32, so they and the momentum made of them differ in their last digits between compilers.
That this is rounding is a result of its own: each is within 1e-5 of the root that float64 finds of its statistics.

Stood in for: `dalle_mini.data` (two batches of random tokens), the tokenizer, `wandb` and `datasets`, the text
normalizer's packages, and the writing of checkpoints. Replaced in both: the cache of compiled programs on disk is not
set up; initial parameters are frozen, which newer Flax does not do; and `jnp.DeviceArray` in annotations, which JAX
removed. Needs transformers (4.30.2 in the old environment, 4.57.6 in the new ones), chex, einops and tqdm.
"""

import json
import sys
from pathlib import Path

import jax
import numpy as np
from modernize_projects.support import locals_of, stand_in

COMMIT = "f0be4de610"
EDITS = (
    ("src/dalle_mini/model/modeling.py", "jnp.DeviceArray", "jnp.ndarray"),
    ("tools/train/train.py", 'cc.initialize_cache("jax_cache")', ""),
    (
        "tools/train/train.py",
        "return model.init_weights(model.key, model.input_shape)\n\n    with mesh",
        "return freeze(model.init_weights(model.key, model.input_shape))\n\n    with mesh",
    ),
)

EXPECTED = (("out['shampoo']['opt_state']", "value", "inverse roots in float32, each right to 1e-5: see `roots`"),)

MODEL = {
    "encoder_vocab_size": 64,
    "image_vocab_size": 31,
    "image_length": 8,
    "max_text_length": 8,
    "encoder_layers": 2,
    "encoder_ffn_dim": 32,
    "encoder_attention_heads": 4,
    "decoder_layers": 2,
    "decoder_ffn_dim": 32,
    "decoder_attention_heads": 4,
    "d_model": 16,
}
TRAINING = {
    "config_name": "model",
    "tokenizer_name": "none",
    "dataset_repo_or_path": "none",
    "seed_dataset": 0,
    "do_train": True,
    "do_eval": True,
    "per_device_train_batch_size": 2,
    "num_train_epochs": 1,
    "learning_rate": 0.01,
    "warmup_steps": 1,
    "logging_steps": 1,
    "log_norm_steps": 1,
    "preconditioning_compute_steps": 1,
    "block_size": 16,
}


class Dataset:
    """Random tokens, two batches of each kind."""

    def __init__(self, **_):
        self.length = None, None

    def preprocess(self, tokenizer, config):
        self.config = config

    def dataloader(self, split, batch_size, epoch=None):
        numbers = np.random.default_rng({"train": 0, "eval": 1}[split])
        for _ in range(2):
            text = (batch_size, self.config.max_text_length)
            image = (batch_size, self.config.image_length)
            yield {
                "input_ids": numbers.integers(0, self.config.encoder_vocab_size, text).astype("int32"),
                "attention_mask": np.ones(text, "int32"),
                "decoder_input_ids": numbers.integers(0, self.config.image_vocab_size, image).astype("int32"),
                "labels": numbers.integers(0, self.config.image_vocab_size, image).astype("int32"),
            }


wandb = stand_in("wandb")
stand_in("datasets", Dataset=Dataset)
for name in ("emoji", "ftfy", "unidecode"):
    stand_in(name)
sys.path[:0] = ["src", "tools/train"]
stand_in("dalle_mini.data", Dataset=Dataset)
import train  # noqa: E402

train.DalleBartTokenizer = stand_in("tokenizer").loaded
train.DalleBart.save_pretrained = lambda *_, **__: None
train.to_bytes = lambda state: b""


def are_roots(statistics, found, exponents):
    """Whether Shampoo's preconditioners are the inverse roots of its statistics, to 1e-5 of their largest value."""

    def is_root(matrix, root, exponent):
        values, vectors = np.linalg.eigh(matrix)
        ridge = 1e-6 * max(values.max(), 1e-6)
        exact = (vectors * (np.maximum(values, 0) + ridge) ** (-1 / exponent)) @ vectors.T
        return np.abs(root - exact).max() <= 1e-5 * np.abs(exact).max()

    matrices = (np.asarray(each, "float64") for each in (statistics, found))
    return all(map(is_root, *matrices, np.maximum(exponents, 1)))


def trained(name, **changed):
    """What `main` logs, and its last state."""
    logged = []
    wandb.log = lambda values: logged.append({key: value for key, value in values.items() if "time" not in key})
    Path("model").mkdir(exist_ok=True)
    Path("model", "config.json").write_text(json.dumps(MODEL))
    options = {**TRAINING, "output_dir": f"{name}-{jax.__version__}", **changed}
    Path(options["output_dir"]).mkdir(exist_ok=True)
    sys.argv = ["train.py", *(f"--{key}={value}" for key, value in options.items())]
    state = locals_of(train.main)["state"]
    leaves = jax.tree_util.tree_leaves(state.opt_state)
    result = {} if "shard_shampoo_across" not in changed else {"roots": are_roots(*map(np.asarray, leaves[1:4]))}
    return result | {
        "logged": logged,
        "params": state.params,
        "opt_state": leaves,
        "step": state.step,
        "samples": state.train_samples,
        "rng": state.dropout_rng,
    }


out = {
    "adam": trained("adam", optim="adam", mp_devices=2, gradient_accumulation_steps=2),
    "adafactor": trained("adafactor", optim="adafactor", mp_devices=2, use_vmap_trick=False),
    "shampoo": trained("shampoo", mp_devices=4, shard_shampoo_across="mp", embeddings_only=True),
}
