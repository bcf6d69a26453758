"""The imagenet example of Flax 0.6.11: https://github.com/google/flax.

`train_and_evaluate` for three steps and their evaluation: a residual net of one block, with batch statistics that are
averaged over devices, whose narrow layers are set by replaced text. Stood in for: data sets, checkpoints, logs,
`ml_collections` and TensorFlow.
"""

from types import SimpleNamespace

import jax
import numpy as np
from flax.training import checkpoints  # noqa: F401  (it looks for TensorFlow)
from modernize_projects.support import drawn_like, stand_in

COMMIT = "fd567c8578"
PART = "examples/imagenet"
SELECT = ("replace_pmap",)
EDITS = (
    ("train.py", "NUM_CLASSES = 1000", "NUM_CLASSES = 10"),
    ("models.py", "num_filters: int = 64", "num_filters: int = 2"),
)
STEPS, IMAGE = 3, 16
written = []


class Writer:
    """Keeps the numbers that would be logged."""

    def write_scalars(self, step, scalars):
        kept = {name: float(value) for name, value in scalars.items() if name != "steps_per_second"}
        written.append((step, kept))

    def flush(self):
        """There is nothing to flush."""


class Config(dict):
    """The part of a `ConfigDict` that is asked for."""

    __getattr__ = dict.__getitem__


def batches(*_, train, **__):
    random = np.random.RandomState(train)
    while True:
        image = random.normal(size=(8, 2, IMAGE, IMAGE, 3)).astype("float32")
        yield {"image": image, "label": random.randint(0, 10, (8, 2))}


for package in ("absl.logging", "ml_collections", "tensorflow", "input_pipeline"):
    stand_in(package)
stand_in("clu.metric_writers", create_default_writer=lambda **_: Writer())
stand_in("clu.periodic_actions", Profile=lambda **_: lambda _: None)
splits = {name: SimpleNamespace(num_examples=16 * STEPS) for name in ("train", "validation")}
stand_in("tensorflow_datasets", builder=lambda _: SimpleNamespace(info=SimpleNamespace(splits=splits)))
import train  # noqa: E402

train.create_input_iter = batches
train.restore_checkpoint = lambda state, _: state
train.save_checkpoint = lambda *_: None
create_train_state = train.create_train_state


def drawn_state(*arguments):
    state = create_train_state(*arguments)
    params = drawn_like(state.params)
    return state.replace(params=params, opt_state=state.tx.init(params))


train.create_train_state = drawn_state
config = Config(
    batch_size=16,
    half_precision=False,
    dataset="",
    cache=False,
    shuffle_buffer_size=1,
    prefetch=1,
    num_train_steps=STEPS,
    num_epochs=1.0,
    warmup_epochs=0.5,
    steps_per_eval=1,
    learning_rate=0.1,
    momentum=0.9,
    model="_ResNet1",
    log_every_steps=1,
)
state = train.train_and_evaluate(config, "")
out = {
    "written": written,
    "params": jax.tree_util.tree_leaves(state.params),
    "batch_stats": jax.tree_util.tree_leaves(state.batch_stats),
    "optimizer": jax.tree_util.tree_leaves(state.opt_state),
    "step": state.step,
}
