"""The training steps that benchmarks time, on one device and in tasks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from models import Model, adam

import mmruntime as mm


def loss_plain(model: Model) -> Callable[..., jax.Array]:
    """The loss of a model on one device."""

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        for stage in params:
            x = model.stage(stage, x)
        return model.loss(x, y)

    return loss


def loss_marked(model: Model, submeshes: int) -> Callable[..., jax.Array]:
    """The loss with a task for each stage; neighbours share a submesh where there are fewer submeshes."""

    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        for index, stage in enumerate(params):
            task = mm.Task(mesh_slice={"stage": index * submeshes // len(params)})
            x = mm.task(model.stage, name=f"stage_{index}", task=task)(stage, x)
        return model.loss(x, y)

    return loss


def update(states: Any, grads: Any) -> Any:
    """The next state of each stage."""
    return [adam(state, grad) for state, grad in zip(states, grads, strict=True)]


def make_step(loss: Callable[..., Any], microbatches: int, schedule: str = "1f1b") -> Callable[..., Any]:
    """A training step in microbatches."""

    def step(states: Any, batch: Any) -> Any:
        size = batch[0].shape[0] // microbatches
        params = [state[0] for state in states]
        value, grads = mm.microbatch(jax.value_and_grad(loss), size=size, argnum=1, schedule=schedule, reduce="mean")(
            params, batch
        )
        return update(states, grads), value

    return step


def make_unrolled(model: Model, microbatches: int) -> Callable[..., Any]:
    """The same step with its loop written out, on one device."""

    def step(states: Any, batch: Any) -> Any:
        params = [state[0] for state in states]
        pieces = jax.tree.map(lambda a: a.reshape(microbatches, -1, *a.shape[1:]), batch)
        total = None
        for index in range(microbatches):
            piece = jax.tree.map(lambda a, i=index: a[i], pieces)
            result = jax.value_and_grad(loss_plain(model))(params, piece)
            total = result if total is None else jax.tree.map(jnp.add, total, result)
        value, grads = jax.tree.map(lambda a: a / microbatches, total)
        return update(states, grads), value

    return step
