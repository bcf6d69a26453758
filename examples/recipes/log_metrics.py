"""Log the loss and norms without making the devices wait."""

import jax
import jax.numpy as jnp
import optax

import mmruntime as mm
from pipeline import batch_of, first_state, mesh, train_step


def logged_step(state, batch):
    state, loss = train_step(state, batch)
    # A global norm is a sum of scalars, one from each stage.
    return state, {"loss": loss, "norm": optax.tree.norm(state[0]), "finite": jnp.isfinite(loss)}


step = mm.mjit(logged_step, mesh=mesh)
state, waiting = first_state(), None
for number in range(4):
    state, metrics = step(state, batch_of(number))
    # A step returns before it is computed, and `float` waits for it: read the numbers of the step before.
    if waiting is not None:
        print({name: float(value) for name, value in waiting.items()})
    waiting = metrics
print({name: float(value) for name, value in jax.device_get(waiting).items()})
