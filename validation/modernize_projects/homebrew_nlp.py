"""HomebrewNLP-Jax: https://github.com/HomebrewNLP/HomebrewNLP-Jax, of July 2022.

Parameters by its `get_parameters` on eight devices, loss, accuracy and gradients by `compute` of a reversible model of
two layers under `pmap`, and parameters read back by `read_ckpt`, whose text was rewritten. Stood in for: `wandb`,
TensorFlow, and the storage that checkpoints are written to. In float32. Needs pyyaml.
"""

import json
import multiprocessing.pool  # noqa: F401  (the project has it from elsewhere)
import warnings
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from modernize_projects.support import drawn_like, lasting, stand_in

COMMIT = "3de26448e2"
SELECT = ("replace_pmap",)
# What is private in JAX, and gone in 0.4.13.
EDITS = (
    ("src/main.py", "import jax._src.util as util", "import math as util"),
    ("src/backend.py", "import jax._src.util as util", "import math as util"),
)

# As the report advises.
BY_HAND = (("src/model.py", "initialize_cache(", "set_cache_dir("),)

# Of what runs on the CPU alone, which JAX would have said in another way.
warnings.filterwarnings("ignore", message="backend and device argument on jit is deprecated")
for package in ("wandb", "tensorflow", "google.cloud", "google.cloud.storage"):
    stand_in(package)
stand_in("smart_open", open=open)
import yaml  # noqa: E402

sizes = {
    "dims": {
        "batch": 8, "features": 16, "pointwise_features": 16, "inner_bottleneck_features": 8, "sequence": 16,
        "outer_bottleneck_kernel": 3, "inner_bottleneck_kernel": 3, "pointwise_kernel": 3, "depth": 2,
    },
    "data": {"vocab_size": 64},
    "model": {"computation_dtype": "float32", "qrnn_frequency": 2},
    "training": {"checkpoint_load_path": "saved"},
}  # fmt: skip
Path("small.yaml").write_text(yaml.dump(sizes))
import os  # noqa: E402

os.environ["CONFIG"] = "small.yaml"
from src import main, model  # noqa: E402
from src.context import WhileTrainContext  # noqa: E402
from src.utils import checkpoint  # noqa: E402

ctx = WhileTrainContext().ctx
ctx.is_initializing = True
numbers = np.random.RandomState(0)
tokens = numbers.randint(0, 64, (2, 8, 16))
main.get_parameters(ctx, jnp.asarray(tokens[0]))
params = drawn_like(ctx.parameters)
compute = jax.pmap(
    lambda params, tokens: jax.value_and_grad(model.compute, 0, True)(params, tokens),
    "model_parallel",
    in_axes=(0, None),
)
(loss, accuracy), gradients = compute(params, jnp.asarray(tokens))

names = sorted(params)
Path("saved").mkdir(exist_ok=True)
Path("saved/structure.json").write_text(json.dumps(dict.fromkeys(names, 0)))
for shard in range(8):
    for piece, some in enumerate(np.array_split(np.arange(len(names)), checkpoint.pieces)):
        values = {str(index): np.asarray(params[names[index]][shard]) for index in some}
        with open(f"saved/{shard}_{piece}.npz", "wb") as file:
            np.savez(file, **values)
ctx.parameters = dict.fromkeys(names)
checkpoint.read_ckpt(ctx)
out = {
    "initial": lasting(params),
    "loss": loss,
    "accuracy": accuracy,
    "gradients": lasting(gradients),
    "read": ctx.parameters,
}
