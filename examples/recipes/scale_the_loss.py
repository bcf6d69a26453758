"""Loss scaling for half precision: the `DynamicScale` of Flax, around gradients of microbatches."""

import functools

import jax
import jax.numpy as jnp
import optax
from flax.training.dynamic_scale import DynamicScale

import mmruntime as mm
from pipeline import OPTIMIZER, batch_of, first_state, loss_fn, mesh


def scaled_loss(params, scale, batch):
    return loss_fn(params, batch) * scale


def checked(dynamic_scale, scaled):
    """What `dynamic_scale.value_and_grad` gives, from gradients of the scaled loss: those of a linear function."""
    scaled = jax.tree.map(lambda grad: grad.astype(jnp.float32), scaled)

    def linear(at):
        pairs = zip(jax.tree.leaves(at), jax.tree.leaves(scaled), strict=True)
        return sum(jnp.vdot(each, grad / dynamic_scale.scale) for each, grad in pairs)

    dynamic_scale, is_finite, _, grads = dynamic_scale.value_and_grad(linear)(jax.tree.map(jnp.zeros_like, scaled))
    return dynamic_scale, is_finite, grads


@functools.partial(mm.mjit, mesh=mesh)
def train_step(state, dynamic_scale, batch):
    params, opt_state = state
    gradient = mm.microbatch(jax.value_and_grad(scaled_loss), size=4, argnum=2, schedule="1f1b", reduce="exact")
    loss, scaled = gradient(params, dynamic_scale.scale, batch)
    loss = loss / dynamic_scale.scale
    dynamic_scale, is_finite, grads = checked(dynamic_scale, scaled)
    updates, new_opt_state = OPTIMIZER.update(grads, opt_state, params)
    new_state = optax.apply_updates(params, updates), new_opt_state
    # Gradients that are not finite change nothing but the scale.
    return jax.tree.map(functools.partial(jnp.where, is_finite), new_state, state), dynamic_scale, loss


state, dynamic_scale = first_state(), DynamicScale(growth_interval=2, scale=2.0**16)
for number in range(6):
    state, dynamic_scale, loss = train_step(state, dynamic_scale, batch_of(number))
    print(f"loss {loss:.4f}, scale 2 ** {int(jnp.log2(dynamic_scale.scale))}")
