"""jaxformer: https://github.com/salesforce/jaxformer.

`run/local/master.py` makes the decoder of `models/decoder/inter/model.py` on a mesh of 2 x 2 x 2 (`dp`, `pt`, `mp`):
two layers of width 16, its own shardings, optimizer and schedule. It trains two steps of two accumulated batches, which
is its path through `jax.lax.scan`, and one step of a single batch. Compared are the whole state after each (parameters,
and the optimizer's moments, which are gradients), loss, step, learning rate and norm of the gradients. Then a model
with the project's own `pjit` and constraint that do nothing, `debug_emulate_tpu_on_cpu`, takes a step.

Stood in for: `smart_open`, which opens checkpoints. Replaced in both: `bfloat16` by `float32`, to tell rounding from a
mistake. Needs dm-haiku (0.0.10 in the old environment, 0.0.17 in the new ones) and einops.
"""

import numpy as np
from modernize_projects.support import copied, stand_in

COMMIT = "026b4ed674"
EDITS = (
    ("jaxformer/utils.py", "x.astype(jnp.bfloat16) if", "x.astype(jnp.float32) if"),
    ("jaxformer/models/decoder/inter/model.py", ".astype(jnp.bfloat16)", ".astype(jnp.float32)"),
)

stand_in("smart_open", open=open)
from jaxformer.run.local.master import create_master  # noqa: E402

CONFIG = {
    "model_type": "decoder",
    "debug_emulate_tpu_on_cpu": False,
    "tpu_size_logical": 8,
    "tpu_cores": 2,
    "model_layers": 2,
    "model_dim": 16,
    "model_head_dim": 4,
    "model_heads": 4,
    "model_vocab_size": 32,
    "model_pe_rotary_dims": 2,
    "model_seq_len": 8,
    "opt_params_partitions": 2,
    "opt_warmup_steps": 2,
    "opt_anneal_steps": 10,
    "opt_lr_max": 0.01,
    "opt_lr_end": 0.001,
    "opt_clip_by_global_norm": 1.0,
    "opt_weight_decay": 0.1,
    "opt_gradient_accumulation_steps": 2,
}


def train(config, batches):
    """What each step returns, and the state after it."""
    master = create_master(config)
    numbers = np.random.default_rng(0)
    told = [copied(master.model.state)]
    for count in batches:
        data = numbers.integers(0, config["model_vocab_size"], (count, 4, config["model_seq_len"] + 1))
        step, loss, rate, norm = master.train(data.astype("uint32"))
        result = {"step": step, "loss": loss, "rate": rate, "norm": norm, "state": master.model.state}
        told.append(copied(result))
    return told


out = {"sharded": train(CONFIG, (2, 2, 1)), "emulated": train({**CONFIG, "debug_emulate_tpu_on_cpu": True}, (2,))}
