"""gymnax: https://github.com/RobertTLange/gymnax, of April 2023.

Twelve steps with random actions, and what resets them, of every environment that the project registers, in one compiled
loop each; and a rollout of its `RolloutWrapper`. Stood in for: `gym`, and the digits that one bandit shows. Needs chex.
"""

import warnings

import jax
import jax.numpy as jnp
import numpy as np
from modernize_projects.support import stand_in

COMMIT = "9155a960c8"
EXPECTED = (("out['rollout']", "value", "200 steps of a pendulum in float32: rounding grows to 2e-4 of a small value"),)

# Of numbers written into arrays of truth values, as on old JAX, which only said so in another way.
warnings.filterwarnings("ignore", message="scatter inputs have incompatible types")
stand_in("gym")
import gymnax  # noqa: E402
from gymnax.environments.bsuite import mnist  # noqa: E402
from gymnax.experimental import RolloutWrapper  # noqa: E402

numbers = np.random.RandomState(0)
digits = numbers.rand(50, 28, 28), numbers.randint(0, 10, 50)
mnist.load_mnist = lambda: (digits, digits)


def episode(name):
    """Observations, rewards, ends, discounts and the last state of twelve steps."""
    env, params = gymnax.make(name)
    actions = env.action_space(params)

    def move(state, key):
        key, of_action = jax.random.split(key)
        obs, state, reward, done, info = env.step(key, state, actions.sample(of_action), params)
        return state, (obs, reward, done, info["discount"])

    @jax.jit
    def run(key):
        obs, state = env.reset(key, params)
        return obs, jax.lax.scan(move, state, jax.random.split(key, 12))

    obs, (state, seen) = run(jax.random.PRNGKey(3))
    return {"first": obs, "seen": seen, "state": jax.tree_util.tree_leaves(state)}


def rollout():
    """Two episodes of a policy with weights of our own."""
    weights = jnp.asarray(np.random.RandomState(1).normal(size=(3, 1)))
    policy = lambda params, obs, rng: jnp.tanh(obs @ params)  # noqa: E731
    wrapper = RolloutWrapper(policy, env_name="Pendulum-v1", num_env_steps=10)
    return wrapper.batch_rollout(jax.random.split(jax.random.PRNGKey(0), 2), weights)


out = {name: episode(name) for name in gymnax.registered_envs}
out["rollout"] = rollout()
