"""gpt-jax: https://github.com/jenkspt/gpt-jax.

Three training steps of a model of two layers with dropout, then `evaluate`; as in the program, whose loop cannot be
called. Stood in for: data, `wandb`, `tyro` and TensorFlow. Replaced in both: parameters are frozen where they are made,
as Flax did when the program was written, so that its mask fits them; and Adam, which divides by their size gradients
that are zero but for rounding (the biases of keys), so momentum takes its place.
"""

import jax
import numpy as np
import optax
from flax.jax_utils import replicate, unreplicate
from flax.training import checkpoints  # noqa: F401  (it looks for TensorFlow)
from modernize_projects.support import drawn_like, stand_in

COMMIT = "f22a46e81e"
SELECT = ("replace_pmap",)
EDITS = (("train.py", "params = model.init(key)", "params = frozen_dict.freeze(model.init(key))"),)

for package in ("wandb", "tyro", "tensorflow", "dataset"):
    stand_in(package)
from model import GPTConfig  # noqa: E402
from train import TrainConfig, evaluate, init_train_state, param_decay_mask, train_step  # noqa: E402


class Tokens(np.ndarray):
    """What a data set of TensorFlow gives."""

    def _numpy(self):
        return np.asarray(self)


def batch():
    return random.randint(0, 32, (8, 2, 9)).view(Tokens)


random = np.random.RandomState(0)
model = GPTConfig(block_size=8, vocab_size=32, num_layers=2, num_heads=2, num_embeds=8, dtype="float32")
state = init_train_state(jax.random.PRNGKey(0), TrainConfig(model=model, batch_size=2), 1e-2)
params = drawn_like(state.params)
tx = optax.chain(
    optax.clip_by_global_norm(1.0),
    optax.add_decayed_weights(1e-2, mask=param_decay_mask(params)),
    optax.sgd(0.1, momentum=0.9),
)
state = replicate(state.replace(params=params, tx=tx, opt_state=tx.init(params)))
keys = jax.random.split(jax.random.PRNGKey(7), 8)
losses = []
for _ in range(3):
    loss, state = train_step(state, batch()._numpy(), keys)
    losses.append(loss)
out = {
    "losses": losses,
    "shown": losses[-1][0].item(),
    "params": jax.tree_util.tree_leaves(state.params),
    "optimizer": jax.tree_util.tree_leaves(state.opt_state),
    "step": state.step,
    "saved": [np.asarray(leaf) for leaf in jax.tree_util.tree_leaves(unreplicate(state).params)],
    "evaluated": np.asarray(evaluate(state, [batch(), batch()], 2, 8, 2)),
}
