"""vision_transformer: https://github.com/google-research/vision_transformer.

`make_update_fn` of `vit_jax/train.py` with a ViT of two blocks with dropout: three updates that accumulate gradients
over two parts of a batch, with its own schedule and the optimizer of `train_and_evaluate`. Stood in for: data,
checkpoints, logs, TensorFlow, and models that are not used.
"""

import functools

import flax
import jax
import numpy as np
import optax
import vit_jax  # noqa: F401  (before parts of it are stood in for)
from flax.training import checkpoints  # noqa: F401  (it looks for TensorFlow)
from modernize_projects.support import drawn_like, stand_in

COMMIT = "e66b473"
SELECT = ("replace_pmap",)

for package in ("absl.logging", "clu.metric_writers", "clu.periodic_actions", "ml_collections", "tensorflow"):
    stand_in(package)
for module in ("checkpoint", "input_pipeline", "models_lit", "models_mixer", "configs.models"):
    stand_in(f"vit_jax.{module}")
from vit_jax import models, train, utils  # noqa: E402

random = np.random.RandomState(0)
model = models.VisionTransformer(
    num_classes=10,
    patches=type("Patches", (), {"size": (4, 4)}),
    transformer={"num_layers": 2, "mlp_dim": 16, "num_heads": 2},
    hidden_size=8,
)
images = random.normal(size=(3, 8, 4, 8, 8, 3)).astype("float32")
labels = np.eye(10, dtype="float32")[random.randint(0, 10, (3, 8, 4))]
variables = jax.jit(functools.partial(model.init, train=False))(jax.random.PRNGKey(0), images[0, 0])
params = drawn_like(variables["params"])
schedule = utils.create_learning_rate_schedule(10, 0.03, "cosine", 2)
tx = optax.chain(optax.clip_by_global_norm(1.0), optax.sgd(learning_rate=schedule, momentum=0.9))
update = train.make_update_fn(apply_fn=model.apply, accum_steps=2, tx=tx)
params, optimizer = flax.jax_utils.replicate((params, tx.init(params)))
key = flax.jax_utils.replicate(jax.random.PRNGKey(0))
losses = []
for image, label in zip(images, labels):
    params, optimizer, loss, key = update(params, optimizer, {"image": image, "label": label}, key)
    losses.append(loss)
out = {
    "losses": losses,
    "shown": float(flax.jax_utils.unreplicate(losses[-1])),
    "params": jax.tree_util.tree_leaves(params),
    "optimizer": jax.tree_util.tree_leaves(optimizer),
    "key": key,
}
