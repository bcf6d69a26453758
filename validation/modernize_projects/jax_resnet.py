"""jax-resnet: https://github.com/n2cholas/jax-resnet, of June 2022.

Small networks of each of its blocks (ResNet, wide, ResNeXt, ResNet-D, ResNeSt): outputs, gradients and new batch
statistics in float64, from parameters with numbers of our own; and `slice_variables`, `slice_model`'s part of it.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
from modernize_projects.support import drawn_like

COMMIT = "5b00735aa0"

jax.config.update("jax_enable_x64", True)
import jax_resnet  # noqa: E402

small = {"n_classes": 5, "hidden_sizes": (8, 16)}
networks = {
    "resnet": partial(jax_resnet.ResNet18, stage_sizes=[1, 1], **small),
    "bottleneck": partial(jax_resnet.ResNet50, stage_sizes=[1, 1], **small),
    "wide": partial(jax_resnet.WideResNet50, stage_sizes=[1, 1], n_classes=5, hidden_sizes=(8, 16)),
    "resnext": partial(jax_resnet.ResNeXt50, stage_sizes=[1], n_classes=5, hidden_sizes=(32,)),
    "resnet-d": partial(jax_resnet.ResNetD18, stage_sizes=[1, 1], **small),
    "resnest": partial(jax_resnet.ResNeSt50, stage_sizes=[1, 1], **small),
}
images = jnp.asarray(np.random.RandomState(0).normal(size=(2, 32, 32, 3)))


def trained(make):
    """Outputs with running statistics and with those of the batch, the new statistics, and gradients."""
    model = make()
    variables = jax.tree_util.tree_map(lambda x: x.astype(jnp.float64), model.init(jax.random.PRNGKey(0), images))
    params, statistics = drawn_like(variables["params"]), variables["batch_stats"]

    def loss(params):
        logits, new = model.apply({"params": params, "batch_stats": statistics}, images, mutable="batch_stats")
        return (logits**2).mean(), (logits, new)

    (value, (logits, new)), gradients = jax.jit(jax.value_and_grad(loss, has_aux=True))(params)
    tested = jax.jit(model.apply)({"params": params, "batch_stats": statistics}, images)
    leaves = jax.tree_util.tree_leaves
    return {
        "loss": value,
        "logits": logits,
        "tested": tested,
        "statistics": leaves(new),
        "gradients": leaves(gradients),
        "sliced": leaves(jax_resnet.slice_variables(variables, 1, -1)["params"]),
    }


out = {name: trained(make) for name, make in networks.items()}
