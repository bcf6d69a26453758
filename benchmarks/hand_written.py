"""The pipeline driver that benchmarks compare with: what a careful person writes on stock JAX.

One `jax.jit` per stage and direction, residuals kept, `device_put` between submeshes, 1F1B order.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, NamedSharding, PartitionSpec
from models import Model, adam

from mmruntime import schedules


class HandWritten:
    """A 1F1B driver without any framework.

    Args:
        meshes: The devices of each stage.
        model: The model in as many stages.
        states: The first state of each stage.
        microbatches: How many microbatches a batch is cut into.
    """

    def __init__(self, meshes: Sequence[Mesh], model: Model, states: Any, microbatches: int) -> None:
        stage_fn, params, stages = model.stage, model.params, len(meshes)
        self.stages, self.microbatches = stages, microbatches
        self.shardings = [NamedSharding(mesh, PartitionSpec()) for mesh in meshes]
        self.states = [jax.device_put(state, s) for state, s in zip(states, self.shardings, strict=True)]
        self.order = self._order()
        # The last stage's backward pass is part of its forward program; zeros and updates per stage, two slicings.
        self.tasks = len(self.order) - microbatches + 2 * stages + 2
        # Nobody reads the cotangent of the batch.
        first = jax.jit(lambda p, x: jax.vjp(lambda p: stage_fn(p, x), p))
        self.forward = [first, *(jax.jit(lambda p, x: jax.vjp(stage_fn, p, x)) for _ in range(1, stages))]

        def last(p: Any, x: Any, y: Any, acc: Any, total: Any) -> Any:
            value, pull = jax.vjp(lambda p, x: model.loss(stage_fn(p, x), y), p, x)
            dp, dx = pull(jnp.ones((), value.dtype))
            return jax.tree.map(jnp.add, acc, dp), dx, total + value

        def back(pull: Any, ct: Any, acc: Any) -> Any:
            dp, *dx = pull(ct)
            return jax.tree.map(jnp.add, acc, dp), *dx

        self.last = jax.jit(last, donate_argnums=(3, 4))
        self.back = [jax.jit(back, donate_argnums=2) for _ in range(stages)]
        self.zeros = [
            jax.jit(lambda p=p: jax.tree.map(jnp.zeros_like, p), out_shardings=s)
            for p, s in zip(params, self.shardings, strict=True)
        ]
        self.split = [
            jax.jit(
                lambda a: [
                    a[k * (a.shape[0] // microbatches) :][: a.shape[0] // microbatches] for k in range(microbatches)
                ]
            )
            for _ in range(stages)
        ]
        self.step = [
            jax.jit(lambda state, g: adam(state, jax.tree.map(lambda a: a / microbatches, g))) for _ in range(stages)
        ]

    def _order(self) -> list[tuple[str, int, int]]:
        schedule = schedules.make("1f1b", self.stages, self.microbatches)
        events = sorted(schedules.simulate(schedule).timeline, key=lambda event: event.start)
        return [(event.action.kind, event.action.stage, event.action.microbatch) for event in events]

    def __call__(self, batch: Any) -> Any:
        first, end = self.shardings[0], self.shardings[-1]
        xs = self.split[0](jax.device_put(batch[0], first))
        ys = self.split[-1](jax.device_put(batch[1], end))
        acc = [zeros() for zeros in self.zeros]
        total = jax.device_put(jnp.zeros(()), end)
        inputs: dict[tuple[int, int], Any] = {(0, k): x for k, x in enumerate(xs)}
        pulls: dict[tuple[int, int], Any] = {}
        cotangents: dict[tuple[int, int], Any] = {}
        for kind, stage, k in self.order:
            if stage == self.stages - 1:
                if kind == "F":
                    acc[stage], dx, total = self.last(
                        self.states[stage][0], inputs.pop((stage, k)), ys[k], acc[stage], total
                    )
                    cotangents[stage - 1, k] = jax.device_put(dx, self.shardings[stage - 1])
            elif kind == "F":
                y, pulls[stage, k] = self.forward[stage](self.states[stage][0], inputs.pop((stage, k)))
                inputs[stage + 1, k] = jax.device_put(y, self.shardings[stage + 1])
            else:
                acc[stage], *dx = self.back[stage](pulls.pop((stage, k)), cotangents.pop((stage, k)), acc[stage])
                if stage:
                    cotangents[stage - 1, k] = jax.device_put(dx[0], self.shardings[stage - 1])
        self.states = [step(state, g) for step, state, g in zip(self.step, self.states, acc, strict=True)]
        return total / self.microbatches
