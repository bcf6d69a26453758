"""minGPT-flax: https://github.com/brentyi/minGPT-flax.

`train_char.main` trains a model of two layers with dropout for an epoch of four steps: the state is put on all devices,
its key is split by a compiled function in each step, and `pmap` decorates a method that donates the state. Stood in
for: `fifteen` (checkpoints and logs, which are recorded, and batches), `dcargs` and the progress bar. Replaced in both:
configurations are frozen, as Python 3.11 wants of defaults, and parameters too, as Flax did when the program was
written; and Adam, which divides by their size gradients that are zero but for rounding (the biases of keys), so
momentum takes its place. Needs jax-dataclasses: 1.5.1 in the old environment, 1.6.3 in the new ones.
"""

import pathlib
import tempfile
from types import SimpleNamespace
from typing import Any

import flax
import jax
import numpy as np
from modernize_projects.support import drawn_like, stand_in

COMMIT = "7927b564e0"
SELECT = ("replace_pmap",)
EDITS = (
    (
        "mingpt/model.py",
        "@dataclasses.dataclass\nclass GPTConfig",
        "@dataclasses.dataclass(frozen=True)\nclass GPTConfig",
    ),
    ("mingpt/trainer.py", "@dataclasses.dataclass\n", "@dataclasses.dataclass(frozen=True)\n"),
    ("mingpt/trainer.py", "params = model.init(", "params = flax.core.freeze(model.init("),
    ("mingpt/trainer.py", "dummy_input, deterministic=True)", "dummy_input, deterministic=True))"),
    ("mingpt/trainer.py", "optax.scale_by_adam(self.adam_b1, self.adam_b2)", "optax.trace(0.9)"),
)
BY_HAND = (
    ("mingpt/attention.py", "jax.random.KeyArray", "jax.Array"),
    ("mingpt/model.py", "jax.random.KeyArray", "jax.Array"),
    ("mingpt/trainer.py", "jax.random.KeyArray", "jax.Array"),
)
BATCH = 16
saved, logged = [], []


@flax.struct.dataclass
class TensorboardLogData:
    """What a step says, one row for each device."""

    scalars: Any
    histograms: Any

    def fix_sharded_scalars(self):
        return self


class Experiment:
    """Keeps what would be written: checkpoints without where they lie, since `x[0]` lies elsewhere today."""

    def __init__(self, data_dir):
        self.write_metadata = self.restore_checkpoint = lambda *_: None

    def save_checkpoint(self, state, step):
        leaves = jax.tree_util.tree_leaves((state.params, state.optimizer_state, state.prng_key))
        saved.append((step, [np.asarray(leaf) for leaf in leaves]))

    def log(self, data, step, **_):
        logged.append((int(step), data.scalars, data.histograms))


def minibatches(shuffle_seed):
    order = np.random.RandomState(shuffle_seed).permutation(len(text) - 9)
    for start in range(0, len(order), BATCH):
        rows = order[start : start + BATCH]
        yield np.asarray([[ord(letter) - 97 for letter in text[row : row + 9]] for row in rows], np.int32)


text = "".join(chr(97 + number) for number in np.random.RandomState(0).randint(0, 26, 4 * BATCH + 9))
stand_in("tqdm.auto", tqdm=lambda batches: batches)
stand_in("fifteen.utils", timestamp=lambda: "now", pdb_safety_net=lambda: None)
stand_in("fifteen.experiments", TensorboardLogData=TensorboardLogData, Experiment=Experiment)
stand_in(
    "fifteen.data",
    DataLoader=lambda **_: SimpleNamespace(minibatches=minibatches),
    sharding_map=lambda batches, devices: (rows.reshape(8, -1, 9) for rows in batches),
    prefetching_map=lambda batches: batches,
)
stand_in("dcargs")
import train_char  # noqa: E402
from mingpt import trainer  # noqa: E402

initialize = trainer.TrainState.initialize


def drawn_state(**config):
    state = initialize(**config)
    with trainer.jdc.copy_and_mutate(state) as state:
        state.params = drawn_like(state.params)
    return state


trainer.TrainState.initialize = staticmethod(drawn_state)
with tempfile.TemporaryDirectory() as folder:
    data = pathlib.Path(folder) / "text"
    data.write_text(text + "\n")
    config = train_char.model.GPTConfig(
        vocab_size=32,
        block_size=8,
        n_head=2,
        resid_pdrop=0.1,
        attn_pdrop=0.1,
        n_layer=2,
        embd_dim=8,
        embd_pdrop=0.1,
        chunk_attention=False,
        q_chunk_size=None,
        kv_chunk_size=None,
    )
    arguments = train_char.TrainArgs(data, max_epochs=1, minibatch_size=BATCH, block_size=8, gpt_config=config)
    train_char.dcargs.parse = lambda _: arguments
    train_char.main()
out = {"saved": saved, "logged": logged}
