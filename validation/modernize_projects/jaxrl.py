"""jaxrl: https://github.com/ikostrikov/jaxrl, of October 2022.

Three updates of DDPG and of behavioural cloning on random batches, from parameters with numbers of our own, the actions
that they choose, and SAC's `target_update`. `optax.sgd` takes the place of Adam, which divides by the size of gradients
that are zero but for rounding. Stood in for: environments (`gym`, `dm_control`, `d4rl`), and TensorFlow Probability,
whose last release does not import with JAX 0.10, so that the agents with random policies do not run.
"""

import jax
import numpy as np
import optax
from modernize_projects.support import drawn_like, stand_in

COMMIT = "4a9abaff1c"
BY_HAND = (
    ("jaxrl/networks/autoregressive_policy.py", "jax.util.cache()", "functools.lru_cache()"),
    ("jaxrl/networks/autoregressive_policy.py", "import jax\n", "import functools\n\nimport jax\n"),
)

for package in ("gym", "d4rl", "dm_control", "dm_env", "imageio", "dmcgym", "gdown", "tensorflow_probability"):
    stand_in(package)
optax.adam = lambda learning_rate, **_: optax.sgd(learning_rate * 10)
from jaxrl import agents, datasets  # noqa: E402
from jaxrl.agents.sac.critic import target_update  # noqa: E402
from jaxrl.networks.common import Model  # noqa: E402

numbers = np.random.RandomState(0)
observations, actions = numbers.normal(size=(4, 3)).astype("f"), np.tanh(numbers.normal(size=(4, 2))).astype("f")


def batch():
    """Steps of nothing in particular."""
    return datasets.Batch(
        observations=numbers.normal(size=(4, 3)).astype("f"),
        actions=np.tanh(numbers.normal(size=(4, 2))).astype("f"),
        rewards=numbers.normal(size=4).astype("f"),
        masks=np.ones(4, "f"),
        next_observations=numbers.normal(size=(4, 3)).astype("f"),
    )


def learned(name, **given):
    """What three updates tell, the actions sampled, and all parameters."""
    np.random.seed(0)
    learner = getattr(agents, name)(0, observations[:1], actions[:1], hidden_dims=(8, 8), **given)
    models = {key: value for key, value in vars(learner).items() if isinstance(value, Model)}
    for key, model in models.items():
        setattr(learner, key, model.replace(params=drawn_like(model.params)))
    told = [learner.update(batch()) for _ in range(3)]
    return {
        "told": told,
        "sampled": np.asarray(learner.sample_actions(observations)),
        "target": [
            jax.tree_util.tree_leaves(target_update(models[key], models[key], 0.1).params)
            for key in models
            if key == "critic"
        ],
        "params": {key: jax.tree_util.tree_leaves(getattr(learner, key).params) for key in models},
    }


out = {
    "ddpg": learned("DDPGLearner"),
    "bc": learned("BCLearner", num_steps=10),
}
