"""neural-tangents: https://github.com/google/neural-tangents, of September 2022.

Kernels of networks by its `stax`, dense, convolutional, with attention and with normalization, in batches as well, and
what its `predict` says of training with them, in float64. Its empirical kernels stand on JAX's internals and are not
run. Written by hand in what was rewritten: what the report names for these, so that their module imports. Stood in for:
TensorFlow and `jax2tf`.
"""

import jax
import jax.numpy as jnp
import numpy as np
from modernize_projects.support import stand_in

COMMIT = "c2e8d0749a"
BY_HAND = (
    (
        "neural_tangents/_src/empirical.py",
        "from jax.util import safe_map as map, safe_zip as zip",
        "from jax.api_util import safe_map as map",
    ),
    (
        "neural_tangents/_src/empirical.py",
        "from jax import linear_util as lu",
        "from jax.extend import linear_util as lu",
    ),
    ("neural_tangents/_src/utils/rules.py", "STRUCTURE_RULES[jax.ad.zeros_like_p] = _eye_s", ""),
    ("neural_tangents/_src/utils/rules.py", "JACOBIAN_RULES[jax.ad.zeros_like_p] = _zeros_like_j", ""),
    ("neural_tangents/_src/batching.py", "from jax.interpreters.pxla import ShardedDeviceArray", ""),
)

jax.config.update("jax_enable_x64", True)
for package in ("tensorflow", "tf2jax", "jax.experimental.jax2tf"):
    stand_in(package)
import neural_tangents as nt  # noqa: E402
from neural_tangents import stax  # noqa: E402

numbers = np.random.RandomState(0)
flat, more = numbers.normal(size=(4, 5)), numbers.normal(size=(2, 5))
image, other = numbers.normal(size=(2, 6, 6, 2)), numbers.normal(size=(2, 6, 6, 2))
targets = numbers.normal(size=(4, 2))

FLAT = {
    "relu": stax.serial(stax.Dense(8, 1.5, 0.1), stax.Relu(), stax.Dense(1)),
    "erf": stax.serial(stax.Dense(8), stax.Erf(), stax.Dense(8), stax.Gelu(), stax.Dense(1)),
    "sums": stax.serial(
        stax.FanOut(2),
        stax.parallel(stax.serial(stax.Dense(8), stax.Sin(), stax.Dense(8)), stax.Dense(8)),
        stax.FanInSum(),
        stax.Dense(1),
    ),
    "dropout": stax.serial(stax.Dense(8), stax.Abs(), stax.Dropout(0.8), stax.Dense(1)),
}
IMAGES = {
    "convolved": stax.serial(stax.Conv(4, (3, 3), padding="SAME"), stax.Relu(), stax.Flatten(), stax.Dense(1)),
    "pooled": stax.serial(stax.Conv(4, (3, 3)), stax.Relu(), stax.AvgPool((2, 2)), stax.GlobalAvgPool(), stax.Dense(1)),
    "normal": stax.serial(stax.Conv(4, (2, 2)), stax.LayerNorm(), stax.Relu(), stax.GlobalAvgPool(), stax.Dense(1)),
    "attention": stax.serial(
        stax.GlobalSelfAttention(n_chan_out=4, n_chan_key=4, n_chan_val=4, n_heads=2),
        stax.GlobalAvgPool(),
        stax.Dense(1),
    ),
}


def kernels(network, first, second):
    """Kernels of two batches, of one with itself, and with derivatives by an input."""
    _, _, kernel = network
    found = {name: kernel(first, second, name) for name in ("nngp", "ntk")}
    found["whole"] = jax.jit(lambda x: tuple(kernel(x, None, ("nngp", "ntk"))))(first)
    found["gradient"] = jax.grad(lambda x: jnp.sum(kernel(x, second, "ntk") ** 2))(first)
    return found


def predicted():
    """What training to some time would give."""
    _, _, kernel = FLAT["relu"]
    trained, across = kernel(flat, None, "ntk"), kernel(more, flat, "ntk")
    by_time = nt.predict.gradient_descent_mse(trained, targets)
    ensemble = nt.predict.gradient_descent_mse_ensemble(kernel, flat, targets)
    return {
        "at": by_time(2.0, jnp.zeros((4, 2)), jnp.zeros((2, 2)), across),
        "ensemble": tuple(ensemble(1.0, more, "ntk", compute_cov=True)),
        "prior": ensemble(None, more, "nngp"),
    }


init, apply, _ = FLAT["erf"]
shape, params = init(jax.random.PRNGKey(0), flat.shape)
params = jax.tree_util.tree_map(lambda x: jnp.asarray(numbers.normal(size=x.shape)), params)
out = {
    "flat": {name: kernels(network, flat, more) for name, network in FLAT.items()},
    "images": {name: kernels(network, image, other) for name, network in IMAGES.items()},
    "batched": nt.batch(FLAT["relu"][2], batch_size=2, device_count=0)(flat, more, "ntk"),
    "predicted": predicted(),
    "shape": list(shape),
    "applied": apply(params, flat),
}
