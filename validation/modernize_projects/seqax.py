"""seqax: https://github.com/MatX-inc/seqax.

`main_contained` of `train.py`: a transformer of two layers on a mesh of 4 x 2 is initialised, and trained for four
steps by `shard_map`, on tokens that the project's loader reads and packs. The state after each step is kept; the first
moment of Adam after the first one is the gradient.

Stood in for: data (`zarr`, `transformers`, `torch`, `datasets`), checkpoints and logs (`training_io.py`), services
(`clearml`, `gcsfs`, `hydra`), and `env.py`, which sets flags of XLA for accelerators. Left out: checks of shapes
while tracing, by private parts of JAX that are gone. In float32, as compilers round products in bfloat16 differently.

Needs einops and typeguard 4.1.5 (4 or newer in the new environments). JAX 0.4.26, which the project asks for, compiles
`softmax` wrongly on CPUs (each row of probabilities is all ones), so the old one is 0.4.30: give it as `--old`.
"""

import types

import jax
import numpy as np
from modernize_projects.support import deleted, lasting, stand_in

COMMIT = "42cf9af49c"

tokens = np.random.RandomState(0).randint(0, 64, 4096).astype(np.uint32) * 2
# The last bit marks where a sequence begins.
tokens[::37] += 1
seen, states = {}, {}


class Split(dict):
    """What the loader reads: tokens, where sequences start, and the largest token."""

    def __init__(self):
        super().__init__(encoded_tokens=tokens, seq_starts=np.arange(0, dtype=np.uint64))
        self.attrs = {"max_token_id": 63}


def keep(name, state):
    seen[name], states[name] = lasting(state), state
    return state


for name in ("gcsfs", "clearml", "transformers", "torch.utils.data", "datasets"):
    stand_in(name)
stand_in("env", set_variables=lambda: None)
stand_in("hydra", main=lambda **kwargs: lambda function: function)
stand_in("zarr", open_group=lambda *args, **kwargs: {"train": Split()})
stand_in(
    "training_io",
    get_flops_per_device=lambda: 1.0,
    load_checkpoint_if_it_exists=lambda folder, state, config: (keep("state 0", state), 0),
    log=lambda step, logger, output: keep(f"metrics {step}", output),
    save_checkpoint=lambda folder, step, state, config: keep(f"state {step}", state),
)
jax.numpy.bfloat16 = jax.numpy.float32
from shardlib import shardtypes  # noqa: E402

import train  # noqa: E402

shardtypes.check = lambda *args: None
shardtypes.is_fully_sharded = lambda spec: True
config = types.SimpleNamespace(
    model=train.Hparams(
        d_model=32, n_q_per_kv=2, n_kv=2, d_head=8, layers=2, vocab=64, d_ff=64, rope_max_timescale=256
    ),
    training=train.TrainingHparams(
        adam_b1=0.9,
        adam_b2=0.95,
        adam_eps=1e-8,
        adam_eps_root=0.0,
        weight_decay=0.1,
        warmup_steps=2,
        steps=4,
        steps_for_lr=6,
        cosine_learning_rate_final_fraction=0.1,
        learning_rate=0.01,
        tokens=train.TokenBatchParams(len=16, batch=8),
        seed=0,
    ),
    training_data=train.FlatTokensParams(
        "tokens",
        streams=2,
        read_blocks_per_shuffle_buffer=8,
        sequences_per_read_block=8,
        seed=0,
        sequence_packing=True,
    ),
    paths=train.Paths("nowhere", "model"),
    mesh=train.MeshConfig(d=4, t=2),
    checkpoint_interval=1,
    io=None,
)
train.main_contained(config, None)
out = {**seen, "deleted": {name: deleted(state) for name, state in states.items()}}
