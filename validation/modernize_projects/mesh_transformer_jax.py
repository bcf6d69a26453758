"""mesh-transformer-jax: https://github.com/kingoflolz/mesh-transformer-jax.

What of it does not need `xmap`, which has no replacement: `CausalTransformerV2` of `transformer_shard.py`, three layers
on a mesh of 2 x 4, which `resharding_example.py` puts in context by an assignment. It is initialised, trained for two
steps of two microbatches, with momentum, which is the gradient after the first one, and evaluated. The example makes
the class with `xmap`; here it makes the other.

Stood in for: checkpoints (`ray`, `smart_open`), the tokenizer (`transformers`), and, on new JAX, the module
`jax.experimental.maps`, whose import stays for the class with `xmap`. In float32, as compilers round products in
bfloat16 differently. Needs dm-haiku (0.0.10, and 0.0.17 in the new environments), einops and optax.
"""

import warnings
from unittest import mock

import jax
import numpy as np
import optax
from jax.sharding import PartitionSpec
from modernize_projects.support import deleted, lasting, stand_in

COMMIT = "f8315e3003"
EDITS = (
    ("resharding_example.py", "import CausalTransformer", "import CausalTransformerV2 as CausalTransformer"),
    ("resharding_example.py", '"layers": 28', '"layers": 3'),
    ("resharding_example.py", '"d_model": 4096', '"d_model": 32'),
    ("resharding_example.py", '"n_heads": 16', '"n_heads": 4'),
    ("resharding_example.py", '"n_vocab": 50400', '"n_vocab": 96'),
    ("resharding_example.py", '"pe_rotary_dims": 64', '"pe_rotary_dims": 4, "d_head": 8'),
    ("resharding_example.py", '"seq": 2048', '"seq": 16'),
    ("resharding_example.py", '"cores_per_replica": 1', '"cores_per_replica": 4'),
    (
        "resharding_example.py",
        "np.array([jax.devices()[0]]).reshape((1, 1))",
        "np.array(jax.devices()).reshape((2, 4))",
    ),
    # JAX 0.4.13 has a second field.
    ("resharding_example.py", "('dp', 'mp')))", "('dp', 'mp')), ())"),
    (
        "resharding_example.py",
        "optax.scale(0)",
        "optax.chain(clip_by_global_norm(1, use_psum=False), optax.trace(0.9), additive_weight_decay(0.1), "
        "optax.scale(-0.1))",
    ),
)

# `jax.jit(backend="cpu")`, of a function that writes checkpoints and is not called here.
warnings.filterwarnings("ignore", message="backend and device argument on jit")
stand_in("ray")
stand_in("smart_open", open=open)
# Names that optax has given up; the project inherits from one.
optax.AdditiveWeightDecayState = optax.OptState = optax.EmptyState
jax.numpy.bfloat16 = jax.numpy.float32


def spec(*entries):
    """A spec, whose entries could be lists until they were hashed; today's JAX makes them tuples."""
    return PartitionSpec(*(tuple(entry) if isinstance(entry, list) else entry for entry in entries))


if jax.__version_info__ <= (0, 4, 13):
    jax.experimental.PartitionSpec = spec
if not hasattr(jax.experimental, "maps") and jax.__version_info__ > (0, 4, 30):
    stand_in("jax.experimental.maps")
stand_in("transformers", GPT2TokenizerFast=mock.MagicMock())

from mesh_transformer import util  # noqa: E402

with open("resharding_example.py", encoding="utf-8") as file:
    example = file.read().partition("\nstart = ")[0]
names = {"__name__": "example", **vars(util)}
exec(compile(example, "resharding_example.py", "exec"), names)
network = names["network"]

numbers = np.random.RandomState(0)
out = {"state 0": lasting(network.state)}
states = [network.state]
for step in (1, 2):
    tokens = numbers.randint(0, 96, (2, 4, 17)).astype(np.uint32)
    out[f"loss {step}"] = network.train({"obs": tokens[..., :-1], "target": tokens[..., 1:]})
    out[f"state {step}"] = lasting(network.state)
    states.append(network.state)
out["eval"] = network.eval(
    {"obs": tokens[0, :, :-1], "target": tokens[0, :, 1:], "ctx_length": np.array([16, 9, 3, 12])}
)
out["deleted"] = [deleted(state) for state in states]
