"""Compare a rewritten step with plain `jax.jit` and with a hand-written pipeline driver, in one run.

    python benchmarks/runtime_speed.py [--model transformer] [--width 16] [--batch 64] [--layers 2] [--repeats 20]

The models are in `models.py`: a perceptron of few large products, which flatters, and a transformer of many small
arrays. Both are trained by Adam.

The hand-written driver is what a careful person writes on stock JAX: one jit per stage and direction, residuals
kept, `device_put` between submeshes, 1F1B order. It is the floor for Python dispatch. Building is from the call of
`jit` or `mjit` to the first result: trace, compile and one step. The unrolled step runs on one device, its loop over
microbatches written out; its compilation is the first, which also pays for what JAX sets up once.

Steps are measured in turn, so that whatever else the machine does falls on all of them alike. Figures are minima over
the repeats; machines are noisy, so read the ratios. CPU time is that of the issuing thread.

The step of one program is `mm.mjit` and `jax.jit` of the same function on one device: both get the same host arrays as
their batch, and as their parameters what they returned before. Short steps take turns a thousand times. Beside the
ratio of the minima stands the median of the ratios of neighbouring steps, which other programs that come and go do not
move; below stands what `jax.jit` of the same function, compiled once more, is to itself, which is noise.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8 --xla_cpu_multi_thread_eigen=false"
)

import jax
import jax.numpy as jnp
from jax.sharding import NamedSharding, PartitionSpec
from models import MODELS, Model, adam, first_state

import mmruntime as mm
from mmruntime import schedules

STAGES, MICROBATCHES = 4, 8


def loss_plain(model: Model) -> Callable[..., jax.Array]:
    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        for stage in params:
            x = model.stage(stage, x)
        return model.loss(x, y)

    return loss


def loss_marked(model: Model) -> Callable[..., jax.Array]:
    def loss(params: Any, batch: Any) -> jax.Array:
        x, y = batch
        for index, stage in enumerate(params):
            x = mm.task(model.stage, name=f"stage_{index}", task=mm.Task(mesh_slice={"stage": index}))(stage, x)
        return model.loss(x, y)

    return loss


def update(states: Any, grads: Any) -> Any:
    return [adam(state, grad) for state, grad in zip(states, grads, strict=True)]


def make_step(loss: Callable[..., Any]) -> Callable[..., Any]:
    def step(states: Any, batch: Any) -> Any:
        size = batch[0].shape[0] // MICROBATCHES
        params = [state[0] for state in states]
        value, grads = mm.microbatch(jax.value_and_grad(loss), size=size, argnum=1, schedule="1f1b", reduce="mean")(
            params, batch
        )
        return update(states, grads), value

    return step


def make_unrolled(model: Model) -> Callable[..., Any]:
    def step(states: Any, batch: Any) -> Any:
        params = [state[0] for state in states]
        pieces = jax.tree.map(lambda a: a.reshape(MICROBATCHES, -1, *a.shape[1:]), batch)
        total = None
        for index in range(MICROBATCHES):
            piece = jax.tree.map(lambda a, i=index: a[i], pieces)
            result = jax.value_and_grad(loss_plain(model))(params, piece)
            total = result if total is None else jax.tree.map(jnp.add, total, result)
        value, grads = jax.tree.map(lambda a: a / MICROBATCHES, total)
        return update(states, grads), value

    return step


class HandWritten:
    """A 1F1B driver without any framework."""

    def __init__(self, mesh: mm.MultiMesh, model: Model, states: Any) -> None:
        stage_fn, params = model.stage, model.params
        self.shardings = [NamedSharding(mesh.slice(stage=s), PartitionSpec()) for s in range(STAGES)]
        self.states = [jax.device_put(state, s) for state, s in zip(states, self.shardings, strict=True)]
        self.order = self._order()
        # The last stage's backward pass is part of its forward program; zeros and updates per stage, two slicings.
        self.tasks = len(self.order) - MICROBATCHES + 2 * STAGES + 2
        # Nobody reads the cotangent of the batch.
        first = jax.jit(lambda p, x: jax.vjp(lambda p: stage_fn(p, x), p))
        self.forward = [first, *(jax.jit(lambda p, x: jax.vjp(stage_fn, p, x)) for _ in range(1, STAGES))]

        def last(p: Any, x: Any, y: Any, acc: Any, total: Any) -> Any:
            value, pull = jax.vjp(lambda p, x: model.loss(stage_fn(p, x), y), p, x)
            dp, dx = pull(jnp.ones((), value.dtype))
            return jax.tree.map(jnp.add, acc, dp), dx, total + value

        def back(pull: Any, ct: Any, acc: Any) -> Any:
            dp, *dx = pull(ct)
            return jax.tree.map(jnp.add, acc, dp), *dx

        self.last = jax.jit(last, donate_argnums=(3, 4))
        self.back = [jax.jit(back, donate_argnums=2) for _ in range(STAGES)]
        self.zeros = [
            jax.jit(lambda p=p: jax.tree.map(jnp.zeros_like, p), out_shardings=s)
            for p, s in zip(params, self.shardings, strict=True)
        ]
        self.split = [
            jax.jit(
                lambda a: [
                    a[k * (a.shape[0] // MICROBATCHES) :][: a.shape[0] // MICROBATCHES] for k in range(MICROBATCHES)
                ]
            )
            for _ in range(STAGES)
        ]
        self.step = [
            jax.jit(lambda state, g: adam(state, jax.tree.map(lambda a: a / MICROBATCHES, g))) for _ in range(STAGES)
        ]

    def _order(self) -> list[tuple[str, int, int]]:
        schedule = schedules.make("1f1b", STAGES, MICROBATCHES)
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
            if stage == STAGES - 1:
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
        return total / MICROBATCHES


@dataclass(frozen=True)
class Timing:
    """What each call of a step took, in ms.

    Attributes:
        walls: Until its results were there.
        cpus: CPU time of the issuing thread, until the call returned.
    """

    walls: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)

    @property
    def wall(self) -> float:
        """The best wall time."""
        return min(self.walls)

    @property
    def cpu(self) -> float:
        """The best CPU time."""
        return min(self.cpus)


def measure(runs: Mapping[str, Callable[[], Any]], repeats: int) -> dict[str, Timing]:
    """Call all steps in turn, another one first each time."""
    timings = {name: Timing() for name in runs}
    names = list(runs)
    gc.collect()
    gc.disable()
    for repeat in range(repeats):
        for turn in range(len(names)):
            name = names[(repeat + turn) % len(names)]
            wall, cpu = time.perf_counter(), time.thread_time()
            result = runs[name]()
            timings[name].cpus.append((time.thread_time() - cpu) * 1e3)
            jax.block_until_ready(result)
            timings[name].walls.append((time.perf_counter() - wall) * 1e3)
    gc.enable()
    return timings


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", choices=sorted(MODELS), default="transformer")
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--layers", type=int, default=2, help="layers per stage")
    parser.add_argument("--repeats", type=int, default=20)
    args = parser.parse_args()
    model = MODELS[args.model](STAGES, args.layers, args.width, args.batch)
    states = [first_state(params) for params in model.params]
    batch = model.batch
    mesh = mm.MultiMesh(axis_sizes=(STAGES, 2), axis_names=("stage", "data"))
    built: dict[str, float] = {}
    runs: dict[str, Callable[[], Any]] = {}
    tasks: dict[str, int] = {}

    def add(name: str, build: Callable[[], Callable[[], Any]]) -> None:
        started = time.perf_counter()
        runs[name] = build()
        jax.block_until_ready(runs[name]())
        built[name] = time.perf_counter() - started

    def stepper(step: Any) -> Callable[[], Any]:
        state = {"states": states}

        def run() -> Any:
            state["states"], value = step(state["states"], batch)
            return state["states"], value

        return run

    add("jax.jit, unrolled", lambda: stepper(jax.jit(make_unrolled(model))))
    hand = HandWritten(mesh, model, states)
    add("hand-written 1F1B", lambda: lambda: (hand(batch), hand.states))
    tasks["hand-written 1F1B"] = hand.tasks
    pipelined = mm.mjit(make_step(loss_marked(model)), mesh=mesh)
    add("mm.mjit 1F1B", lambda: stepper(pipelined))
    tasks["mm.mjit 1F1B"] = pipelined.explain().runs_per_step
    single = mm.MultiMesh(axis_sizes=(1,), axis_names=("data",))
    add("mm.mjit, one device", lambda: stepper(mm.mjit(make_step(loss_plain(model)), mesh=single)))
    add("jax.jit, scan", lambda: stepper(jax.jit(make_step(loss_plain(model)))))

    found = measure(runs, args.repeats)
    pair = ("mm.mjit, one device", "jax.jit, scan")
    again = stepper(jax.jit(make_step(loss_plain(model))))
    again()
    rounds = max(args.repeats, min(1000, int(2000 / found[pair[1]].wall)))
    one = measure({**{name: runs[name] for name in pair}, "jax.jit, scan again": again}, rounds)

    print(
        f"{args.model}, {model.flops / 1e9:.3g} GFLOP per step; {STAGES} stages x 2 devices, {args.layers} layers "
        f"each, {MICROBATCHES} microbatches; JAX {jax.__version__}"
    )
    print(f"{'':22}{'build s':>9}{'wall ms':>9}{'issue CPU ms':>14}{'programs':>10}{'CPU us each':>13}")
    for name, timing in found.items():
        each = f"{tasks[name]:10d}{timing.cpu / tasks[name] * 1e3:13.0f}" if name in tasks else ""
        print(f"{name:22}{built[name]:9.2f}{timing.wall:9.2f}{timing.cpu:14.2f}{each}")
    ours, hand_written = found["mm.mjit 1F1B"], found["hand-written 1F1B"]
    issue = ours.cpu / hand_written.cpu
    programs = tasks["mm.mjit 1F1B"] / tasks["hand-written 1F1B"]
    print(f"CPU per program, mm.mjit 1F1B / hand-written 1F1B: {issue / programs:.2f}")
    print(f"issue CPU per step, mm.mjit 1F1B / hand-written 1F1B: {issue:.2f}")
    print(f"wall, mm.mjit 1F1B / hand-written 1F1B: {ours.wall / hand_written.wall:.2f}")
    print(f"build, mm.mjit 1F1B / jax.jit, unrolled: {built['mm.mjit 1F1B'] / built['jax.jit, unrolled']:.2f}")
    plain = one[pair[1]]
    for name, timing in one.items():
        if timing is not plain:
            neighbours = statistics.median(x / y for x, y in zip(timing.walls, plain.walls, strict=True))
            print(
                f"{rounds} rounds, {name} / {pair[1]}: wall {timing.wall / plain.wall:.3f}, of neighbours "
                f"{neighbours:.3f}; issue CPU {timing.cpu * 1e3:.0f} / {plain.cpu * 1e3:.0f} us"
            )


if __name__ == "__main__":
    main()
