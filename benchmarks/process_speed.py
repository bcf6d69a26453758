"""Compare a step over several processes with the same step in one process, at equal devices, on this machine.

    python benchmarks/process_speed.py [--model adam] [--devices 8] [--processes 1,2,4] [--width 64] [--repeats 60]

The step trains one layer a stage with 1F1B. There are two models:

- `adam`: four stages, eight microbatches, Adam; every loss is read, and the batch is the same in all steps;
- `tied`: two stages, four microbatches, a penalty on the first and the last weight together, so that both stages need
  both, gradients clipped by their norm over all stages, a new batch from the host in every step, and a loss that is
  read every 50 steps.

Wall time is from one result to the next, read by all, or that of all steps by their number where most losses are not
read; issue time is the CPU time of the thread that calls the step, in the process that needs most; CPU time is that of
all threads of all processes, which bounds the wall time from below where cores are few. What the watch over the other
processes costs is given as its share of the wall time; it looks once in a while, so time many steps for it. Each number
of processes is a job of its own, and jobs take turns for several rounds; of each figure the median of a job counts, and
of jobs the smallest. Machines are noisy, so read the ratios.

On CPUs XLA has two kinds of collectives: in the memory of one process, and over sockets (gloo). A program of several
processes has the second kind only, also between devices of one process. So `1g`, one process with gloo, tells what
that costs. With `--devices 4` each stage of `adam` has one device, and there are no collectives; so it is with `tied`
and `--devices 2`.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time
from contextlib import suppress
from typing import Any, NamedTuple


class Model(NamedTuple):
    """What is trained.

    Attributes:
        stages: Stages, each with a layer.
        microbatches: Microbatches of a step.
        rows: Examples of a microbatch for each device of a stage.
        read: Every so many steps the loss is read.
        width: The width of a layer, if none is asked for.
    """

    stages: int
    microbatches: int
    rows: int
    read: int
    width: int


MODELS = {"adam": Model(4, 8, 4, 1, 64), "tied": Model(2, 4, 2, 50, 16)}


def child(options: argparse.Namespace) -> None:
    """One process of a job; the last line of its output are its figures."""
    import mmruntime as mm

    count = options.child[1]
    if options.gloo:
        import jax

        jax.config.update("jax_cpu_collectives_implementation", "gloo")
    if count > 1 or options.gloo:
        mm.init(
            cpus=options.devices // count,
            coordinator_address=options.coordinator,
            num_processes=count,
            process_id=options.child[0],
            transport=options.transport,
        )
    else:
        mm.init(cpus=options.devices)
    import jax
    import jax.numpy as jnp
    import numpy as np

    model = MODELS[options.model]
    replicas = options.devices // model.stages
    mesh = mm.MultiMesh(axis_sizes=(model.stages, replicas), axis_names=("stage", "data"))
    width, rng = options.width or model.width, np.random.default_rng(0)

    def layer(w: Any, x: Any) -> Any:
        x = mm.with_sharding_constraint(x, jax.sharding.PartitionSpec("batch", None))
        return jnp.tanh(x @ w)

    def apply(params: Any, x: Any) -> Any:
        for stage, w in enumerate(params):
            task = mm.Task(name=f"layer_{stage}", mesh_slice={"stage": stage}, logical_axes=[("batch", "data")])
            x = mm.task(layer, task=task)(w, x)
        return x

    def gradients(loss: Any, params: Any, batch: Any) -> Any:
        accumulated = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=model.microbatches, schedule="1f1b")
        return accumulated(params, batch)

    def adam_loss(params: Any, batch: Any) -> Any:
        return jnp.mean((apply(params, batch["x"]) - batch["y"]) ** 2)

    def adam(state: Any, batch: Any) -> Any:
        value, grads = gradients(adam_loss, state["params"], batch)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, state["first"], grads)
        second = jax.tree.map(lambda v, g: 0.99 * v + 0.01 * g * g, state["second"], grads)
        params = jax.tree.map(lambda p, m, v: p - 1e-3 * m / (jnp.sqrt(v) + 1e-6), state["params"], first, second)
        return {"params": params, "first": first, "second": second}, value

    def tied_loss(params: Any, batch: Any) -> Any:
        errors = jnp.sum((apply(params, batch["x"]) - batch["y"]) ** 2)
        return errors + 0.01 * jnp.sum(params[0] * params[-1])

    def tied(state: Any, batch: Any) -> Any:
        value, grads = gradients(tied_loss, state["params"], batch)
        norm = jnp.sqrt(sum(jnp.vdot(g, g) for g in grads))
        scale = jnp.minimum(1.0, 1.0 / norm)
        params = jax.tree.map(lambda p, g: p - 0.01 * scale * g, state["params"], grads)
        return {"params": params}, value

    params = [rng.normal(size=(width, width)).astype(np.float32) / np.float32(width**0.5) for _ in range(model.stages)]
    state: Any = {"params": params}
    if options.model == "adam":
        state |= {"first": [w * 0 for w in params], "second": [w * 0 for w in params]}
    size = model.rows * model.microbatches * replicas
    batches = [
        {name: rng.normal(size=(size, width)).astype(np.float32) for name in "xy"}
        for _ in range(1 if model.read == 1 else 10)
    ]
    train = {"adam": adam, "tied": tied}[options.model]
    step = mm.mjit(train, mesh=mesh, donate_argnums=0)
    for batch in (batches * 5)[:10]:
        state, value = step(state, batch)
        float(value)
    if options.realtime:
        before_all_others(os.SCHED_RR, 1)
    walls, issues, used, watched, began = [], [], time.process_time(), watch_time(), time.perf_counter()
    start = began
    for number in range(options.repeats):
        cpu = time.thread_time()
        state, value = step(state, batches[number % len(batches)])
        issues.append(time.thread_time() - cpu)
        if number % model.read == model.read - 1 or number == options.repeats - 1:
            float(value)
            now = time.perf_counter()
            walls.append((now - start) / ((number % model.read) + 1))
            start = now
    share = (watch_time() - watched) / (time.perf_counter() - began)
    if options.realtime:
        before_all_others(os.SCHED_OTHER, 0)
    figures = {
        "wall": statistics.median(walls),
        "issue": statistics.median(issues),
        "cpu": (time.process_time() - used) / options.repeats,
        "watch": share,
        "loss": float(value),
    }
    print(json.dumps(figures), flush=True)


def watch_time() -> float:
    """The CPU time of the threads that watch over other processes."""
    clocks = [
        time.pthread_getcpuclockid(each.ident)
        for each in threading.enumerate()
        if each.name.startswith("mmruntime") and each.ident is not None
    ]
    return sum(map(time.clock_gettime, clocks))


def before_all_others(policy: int, priority: int) -> None:
    """Have all threads of this process scheduled so."""
    for thread in os.listdir("/proc/self/task"):
        with suppress(ProcessLookupError):
            os.sched_setscheduler(int(thread), policy, os.sched_param(priority))


def job(kind: str, options: argparse.Namespace) -> list[dict[str, float]]:
    """The figures of each process of a job: of so many processes, with "g" of gloo in one."""
    count = int(kind.rstrip("g"))
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{probe.getsockname()[1]}"
    command = [sys.executable, __file__, *(f"--{name}={getattr(options, name)}" for name in _PASSED)]
    command += ["--gloo"] if kind.endswith("g") else []
    command += ["--realtime"] if options.realtime else []
    running = [
        subprocess.Popen(
            [*command, "--coordinator", address, "--child", str(rank), str(count)],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        for rank in range(count)
    ]
    try:
        outputs = [process.communicate(timeout=600)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    if any(process.returncode for process in running):
        raise SystemExit(f"A job of {count} processes failed: {[process.returncode for process in running]}")
    return [json.loads(output.splitlines()[-1]) for output in outputs]


_PASSED = ("model", "devices", "width", "repeats", "transport")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--model", choices=MODELS, default="adam", help="what is trained (default adam)")
    parser.add_argument(
        "--devices", type=int, default=8, help="CPU devices of a job, a multiple of the stages (default 8)"
    )
    parser.add_argument(
        "--processes", default="1,1g,2,4", help="numbers of processes; 1g is one with gloo (default 1,1g,2,4)"
    )
    parser.add_argument("--width", type=int, default=0, help="width of a layer (default 64, tied 16)")
    parser.add_argument("--repeats", type=int, default=60, help="steps that are timed (default 60)")
    parser.add_argument("--rounds", type=int, default=3, help="jobs of each kind (default 3)")
    parser.add_argument("--transport", default="auto", help="what carries arrays between processes")
    parser.add_argument(
        "--realtime", action="store_true", help="time the steps before all other programs (Linux, as root)"
    )
    parser.add_argument("--gloo", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    parser.add_argument("--child", type=int, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options)
        return
    kinds = options.processes.split(",")
    best: dict[str, dict[str, float]] = {}
    for _ in range(options.rounds):
        for kind in kinds:
            found = job(kind, options)
            figures = {
                "wall": max(each["wall"] for each in found),
                "issue": max(each["issue"] for each in found),
                "cpu": sum(each["cpu"] for each in found),
                "watch": max(each["watch"] for each in found),
                "loss": found[0]["loss"],
            }
            before = best.setdefault(kind, figures)
            best[kind] = {name: min(before[name], value) for name, value in figures.items()}
    print(f"{options.model}, {os.cpu_count()} cores, {options.devices} devices, transport {options.transport}")
    print("processes   wall ms   ratio   issue ms   ratio   CPU ms   ratio   watch %   loss")
    base = best[kinds[0]]
    for kind, figures in best.items():
        columns = [
            f"{figures[name] * 1e3:{width}.2f}   {figures[name] / base[name]:5.2f}"
            for name, width in (("wall", 7), ("issue", 8), ("cpu", 6))
        ]
        print(f"{kind:>9}   {'   '.join(columns)}   {100 * figures['watch']:7.2f}   {figures['loss']:.9g}")


if __name__ == "__main__":
    main()
