"""vmoe: https://github.com/google-research/vmoe.

The tests of `moe_test.py`, `rules_test.py` and `trainer_test.py` that place anything, and what arrays each had; then
two steps of `train_and_evaluate`, entered by `app.py`, which puts the mesh in context: a vision transformer of two
layers, the second a mixture of experts, with dropout, mixup, momentum, evaluation after each step, and once more with
microsteps. The momentum after the first step is the gradient.

Stood in for: data (`tensorflow`, `tensorflow_datasets`), metrics and periodic actions (`clu`), checkpoints. Needs
chex, ml_collections, cachetools, toolz, flax, optax and `vit_jax` of https://github.com/google-research/vision_transformer
in every environment. The project asks for `jax.pure_callback(vmap_method=)`, so 0.6.2 is the old one.
"""

import contextlib
import types
import warnings
from unittest import mock

import jax
import numpy as np
import vit_jax  # noqa: F401 -- the package itself is the real one
from modernize_projects.support import arrays_of_tests, deleted, lasting, stand_in

COMMIT = "942a78bc81"
JAX = "mid"
EDITS = (
    # One name for a module and its function is reported, as to be told apart.
    (
        "vmoe/initialization/rules.py",
        "from jax.experimental import shard_map\n",
        "from jax.experimental.shard_map import shard_map\n",
    ),
    ("vmoe/initialization/rules.py", "shard_map = shard_map.shard_map\n", ""),
)

# `jax.jit(backend="cpu")`, of a function of the few-shot evaluation that is not called here.
warnings.filterwarnings("ignore", message="backend and device argument on jit")


class PeriodicCallback:
    def __init__(self, callback_fn, **kwargs):
        self._callback = callback_fn

    def __call__(self, step, t=None, **kwargs):
        self._callback(step=step, t=t, **kwargs)


for name in (
    "tensorflow",
    "tensorflow.compat.v1",
    "tensorflow.compat.v2",
    "tensorflow.io",
    "tensorflow_datasets.public_api",
    "clu.data.dataset_iterator",
    "clu.parameter_overview",
):
    stand_in(name)
stand_in("clu.platform", ArtifactType=mock.MagicMock())
stand_in("clu.metric_writers", ensure_flushes=contextlib.nullcontext)
stand_in("clu.periodic_actions", PeriodicCallback=PeriodicCallback)
stand_in("vit_jax.checkpoint")

import ml_collections  # noqa: E402
from vmoe import app, moe_test  # noqa: E402
from vmoe.initialization import rules_test  # noqa: E402
from vmoe.train import trainer, trainer_test  # noqa: E402

out = {
    "moe": arrays_of_tests(moe_test, "SparseMoeSpmdLayerTest", "SparseMoeSpmdWithAxesLayerTest"),
    "rules": arrays_of_tests(rules_test, "ZoomTest", "VitZoomTest"),
    "trainer": arrays_of_tests(
        trainer_test,
        "CreateOrReuseTrainStateTest",
        "MakeCreateTrainStateFnTest",
        "MixupTest",
        "RestoreOrCreateTrainStateTest",
        "TrainStepTest",
        "WrapTrainStepWithAdversarialAttackTest",
        "WrapTrainStepWithMixupTest",
    ),
}


class Batches:
    """The same two batches of 16 images of 8 x 8 and their labels, each time they are asked for."""

    def __init__(self, *, are_marked):
        numbers = np.random.RandomState(0)
        self._batch = {
            "image": numbers.normal(size=(16, 8, 8, 3)).astype(np.float32),
            "labels": np.eye(8, dtype=np.float32)[numbers.randint(0, 8, 16)],
        }
        if are_marked:
            self._batch[trainer.input_pipeline.VALID_KEY] = np.arange(16) < 13
        self.element_spec = {
            name: jax.ShapeDtypeStruct(value.shape, value.dtype) for name, value in self._batch.items()
        }
        self.reset()

    def reset(self):
        self._left = 2

    def __iter__(self):
        return self

    def __next__(self):
        if not self._left:
            raise StopIteration
        self._left -= 1
        return {name: value.copy() for name, value in self._batch.items()}


class Record:
    """Takes the place of checkpoints, metrics and progress, and keeps what they are given."""

    def __init__(self):
        self.seen, self._states = {}, {}

    def latest_step(self):
        return None

    def wait_until_finished(self):
        pass

    def save(self, step, items, force=False):
        state = self._states[step] = items["state"]
        self.seen[f"state {step}"] = {
            "step": int(state.step),
            "params": lasting(state.params),
            "opt_state": lasting(state.opt_state),
            "rngs": lasting(state.rngs),
        }

    def write_scalars(self, step, metrics):
        for name, value in metrics.items():
            if name.endswith(("prec@1", "loss")):
                self.seen[f"{name} {step}"] = value

    def timed(self, name, **kwargs):
        @contextlib.contextmanager
        def timed():
            yield

        return timed()

    def __call__(self, step, scalar_metrics):
        self.seen[f"metrics {step}"] = {
            name: value for name, value in scalar_metrics.items() if name.startswith("train/")
        }

    def finish(self):
        self.seen["deleted"] = {step: deleted(state) for step, state in self._states.items()}
        return self.seen


ROUTER = {
    "num_selected_experts": 2,
    "noise_std": 1.0,
    "importance_loss_weight": 0.01,
    "load_loss_weight": 0.01,
    "dispatcher": {
        "name": "einsum",
        "capacity_factor": 1.5,
        "batch_priority": False,
        "partition_spec": (("expert", "replica"),),
    },
}
MODEL = {
    "name": "VisionTransformerMoe",
    "num_classes": 8,
    "patch_size": (4, 4),
    "hidden_size": 16,
    "classifier": "gap",
    "head_kernel_zero_init": False,
    "encoder": {
        "num_layers": 2,
        "mlp_dim": 16,
        "num_heads": 2,
        "dropout_rate": 0.1,
        "attention_dropout_rate": 0.0,
        "moe": {"layers": (1,), "num_experts": 4, "group_size": 8, "split_rngs": False, "router": ROUTER},
    },
}
CONFIG = {
    "dataset": {"train": {"batch_size": 16}, "eval": {"batch_size": 16}},
    "train_steps": 2,
    "num_expert_partitions": 4,
    "params_axis_resources": [("Moe/Mlp/.*", ("expert",))],
    "extra_rng_keys": ("dropout", "gating", "mixup"),
    "model": MODEL,
    "optimizer": {"name": "sgd", "learning_rate": 0.1, "momentum": 0.9, "gradient_clip": {"global_norm": 1.0}},
    "loss": {"name": "softmax_xent"},
    "summarize_arrays": [("params_grads/.*", "norm")],
}


def train(**changes):
    """What `train_and_evaluate` makes and reports."""
    record = Record()

    def main(config, workdir, mesh, writer):
        jax.config.update("jax_log_compiles", False)
        trainer.train_and_evaluate(config, workdir, mesh, record)

    stand_ins = {
        (trainer, "create_checkpoint_manager"): lambda **kwargs: record,
        (trainer, "create_profile_hook"): lambda **kwargs: lambda step: None,
        (trainer, "create_progress_hook"): lambda **kwargs: record,
        (trainer.multihost_utils, "sync_devices"): lambda name: None,
        (trainer.input_pipeline, "get_data_num_examples"): lambda config: 32,
        (trainer.input_pipeline, "get_datasets"): lambda config: {
            "train": Batches(are_marked=False),
            "eval": Batches(are_marked=True),
        },
    }
    config = ml_collections.ConfigDict({**CONFIG, **changes})
    app.FLAGS = types.SimpleNamespace(config=config, workdir="nowhere", jax_xla_backend=None)
    with contextlib.ExitStack() as stack:
        for (module, name), value in stand_ins.items():
            stack.enter_context(mock.patch.object(module, name, value))
        app._main([], main=main)
    return record.finish()


out["train"] = train(mixup={"concentration": 0.5})
out["microsteps"] = train(microsteps=2, mixup={})
