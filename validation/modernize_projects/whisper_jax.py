"""whisper-jax: https://github.com/sanchit-gandhi/whisper-jax.

`PjitPartitioner` of `partitioner.py`, used as `pipeline.py` uses it, on a small model of ours that is made of the
project's `layers.py` (embedding, attention, MLP), whose logical axes give the specs of the parameters: parameters are
sharded, the model is run, also compiled ahead, differentiated, and trained for one step; then all of it with
`partition`'s fallback for CPUs.

The package's `__init__`, which imports `transformers`, is left out, and so is `move_params_to_devices`, which asks for
a flag that JAX removed. `cached_property` is that of the standard library. Taken out: one annotation,
`jax.core.NamedShape`.
"""

import functools
import sys
import types

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
from flax.core import freeze
from jax.sharding import PartitionSpec as P
from modernize_projects.support import deleted, stand_in

COMMIT = "f983178a80"
EDITS = (("whisper_jax/layers.py", "jax.core.NamedShape", "Any"),)
EXPECTED = (
    ("out['use_cpu_pjit=True']['deleted']", "False", "donated to a plain `jax.jit`, for which old JAX did not on CPUs"),
)

stand_in("cached_property", cached_property=functools.cached_property)
package = sys.modules["whisper_jax"] = types.ModuleType("whisper_jax")
package.__path__ = ["whisper_jax"]
from whisper_jax import layers  # noqa: E402
from whisper_jax.partitioner import PjitPartitioner, standard_logical_axis_rules  # noqa: E402
from whisper_jax.train_state import InferenceState  # noqa: E402


class Model(nn.Module):
    def setup(self):
        self.embed = layers.Embed(64, 16, one_hot=False)
        self.norm = layers.LayerNorm()
        self.attention = layers.MultiHeadDotProductAttention(num_heads=8, head_dim=2)
        self.mlp = layers.MlpBlock(intermediate_dim=32)

    def __call__(self, tokens):
        x = self.embed(tokens)
        y = self.norm(x)
        x = x + self.attention(y, y, deterministic=True)
        return self.embed.attend(x + self.mlp(x, deterministic=True))


model = Model()
tokens = np.arange(8 * 4, dtype=np.int32).reshape(8, 4) * 7 % 64


def initialize():
    return model.init(jax.random.PRNGKey(0), tokens)


def loss(params, tokens):
    logits = model.apply({"params": params}, tokens)
    return -jnp.take_along_axis(jax.nn.log_softmax(logits), (tokens[..., None] * 3 + 1) % 64, -1).mean()


def step(params, tokens, rate):
    value, gradient = jax.value_and_grad(loss)(params, tokens)
    return jax.tree_util.tree_map(lambda p, g: p - rate * g, params, gradient), value


shapes = jax.eval_shape(initialize)
params = freeze(jax.jit(initialize)()["params"])
rules = (*standard_logical_axis_rules(activation_partitioning_dims=1, parameter_partitioning_dims=1), ("kv", None))
out = {}
for use_cpu_pjit in (False, True):
    partitioner = PjitPartitioner(num_partitions=8, logical_axis_rules=rules, use_cpu_pjit=use_cpu_pjit)
    state = InferenceState(
        step=jnp.array(0), params=freeze(shapes["params"]), params_axes=freeze(shapes["params_axes"])
    )
    specs = partitioner.get_mesh_axes(state).params
    shard = partitioner.partition(lambda tree: jax.tree_util.tree_map(lambda x: x * 1, tree), (specs,), specs)
    sharded = shard(params)
    apply = partitioner.partition(
        lambda params, tokens: model.apply({"params": params}, tokens),
        in_axis_resources=(specs, P("data")),
        out_axis_resources=P("data"),
    )
    differentiate = partitioner.partition(jax.grad(loss), in_axis_resources=(specs, None), out_axis_resources=specs)
    train = partitioner.partition(
        step,
        in_axis_resources=(specs, P("data")),
        out_axis_resources=(specs, None),
        static_argnums=(2,),
        donate_argnums=(0,),
    )
    made = out[f"use_cpu_pjit={use_cpu_pjit}"] = {
        "specs": [list(spec) for spec in jax.tree_util.tree_leaves(specs, is_leaf=lambda x: isinstance(x, P))],
        "sharded": dict(sharded),
        "logits": apply(sharded, tokens),
        "compiled": partitioner.compile(apply, sharded, tokens)(sharded, tokens),
        "gradient": dict(differentiate(sharded, tokens)),
    }
    given = shard(params)
    made["step"] = train(given, tokens, 0.5)
    made["deleted"] = deleted(given)
