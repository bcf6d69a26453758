"""score_sde: https://github.com/yang-song/score_sde, of August 2021.

Small DDPM and NCSN++, initialised by `init_model`: two training steps under `pmap` and `scan` with the loss of the
variance-preserving or the exploding SDE and an update by `optimization_manager`, which clips; and samples by predictor
and corrector on eight devices. Replaced in both: `flax.optim`, with a class of ours that goes down the gradient.
Needs ml_collections and scipy.
"""

import functools

import flax
import jax
import jax.numpy as jnp
import ml_collections
import numpy as np
from modernize_projects.support import drawn_like, lasting, stand_in

COMMIT = "0acb9e0ea3"
SELECT = ("replace_pmap",)
EDITS = (("models/utils.py", "flax.optim.Optimizer", "Any"),)
EXPECTED = (("out['ddpm']['sample']", "value", "rounding, four times through the network: 2e-5 of the value"),)

for package in ("tensorflow", "tensorflow_datasets", "tensorflow_gan"):
    stand_in(package)
import losses  # noqa: E402
import sampling  # noqa: E402
import sde_lib  # noqa: E402
from models import ddpm, ncsnpp, utils  # noqa: E402, F401


@flax.struct.dataclass
class Descent:
    """Flax's optimizers as the project uses them."""

    target: object

    def apply_gradient(self, gradient, learning_rate):
        """Parameters a step further down."""
        return self.replace(target=jax.tree_util.tree_map(lambda x, y: x - learning_rate * y, self.target, gradient))


def settings(name):
    """What the configurations of the project say, small."""
    given = {
        "training": {"reduce_mean": True, "continuous": True, "likelihood_weighting": False},
        "sampling": {"n_steps_each": 1, "noise_removal": True, "probability_flow": False, "snr": 0.16},
        "data": {"image_size": 8, "num_channels": 3, "centered": True},
        "model": {
            "name": name, "sigma_min": 0.01, "sigma_max": 5.0, "num_scales": 4, "beta_min": 0.1, "beta_max": 20.0,
            "dropout": 0.0, "embedding_type": "positional", "normalization": "GroupNorm", "nonlinearity": "swish",
            "nf": 32, "ch_mult": (1, 1), "num_res_blocks": 1, "attn_resolutions": (4,), "resamp_with_conv": True,
            "conditional": True, "fir": False, "fir_kernel": [1, 3, 3, 1], "skip_rescale": True, "ema_rate": 0.9,
            "resblock_type": "biggan", "progressive": "none", "progressive_input": "none", "init_scale": 0.5,
            "progressive_combine": "sum", "fourier_scale": 16, "conv_size": 3, "scale_by_sigma": name == "ncsnpp",
        },
        "optim": {"warmup": 2, "grad_clip": 1.0, "lr": 0.01},
    }  # fmt: skip
    return ml_collections.ConfigDict(given)


def trained(name, sde, predictor, corrector, method):
    """A step of the loss over two devices' batches, and a sample."""
    config = settings(name)
    config.sampling.update({"predictor": predictor, "corrector": corrector, "method": method})
    model, states, params = utils.init_model(jax.random.PRNGKey(0), config)
    params = drawn_like(params)
    state = utils.State(
        step=jnp.asarray(1), optimizer=Descent(params), lr=0.01, model_state=states, ema_rate=0.9, params_ema=params,
        rng=jax.random.PRNGKey(1),
    )  # fmt: skip
    step = losses.get_step_fn(sde, model, True, losses.optimization_manager(config), True, True, False)
    images = np.random.RandomState(0).uniform(-1, 1, size=(2, 2, 1, 8, 8, 3)).astype("f")
    several = jax.pmap(functools.partial(jax.lax.scan, step), axis_name="batch", devices=jax.devices()[:2])
    repeated = jax.tree_util.tree_map(lambda x: jnp.stack([x] * 2), state)
    (_, new), loss = several((jax.random.split(jax.random.PRNGKey(2), 2), repeated), {"image": images})
    result = {"loss": loss, "params": lasting(new.optimizer.target), "average": lasting(new.params_ema)}
    if method is not None:
        sample = sampling.get_sampling_fn(config, sde, model, (1, 8, 8, 3), lambda x: x, 1e-3)
        everywhere = jax.tree_util.tree_map(lambda x: jnp.stack([x] * 8), state)
        result["sample"] = sample(jax.random.split(jax.random.PRNGKey(3), 8), everywhere)
    return result


out = {
    "ddpm": trained("ddpm", sde_lib.VPSDE(0.1, 20.0, 4), "euler_maruyama", "none", "pc"),
    "ncsnpp": trained("ncsnpp", sde_lib.VESDE(0.01, 5.0, 4), "reverse_diffusion", "langevin", None),
}
