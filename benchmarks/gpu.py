"""Check and time a step on GPUs: on one device, and as a pipeline of four stages. One command:

    python benchmarks/gpu.py [--model transformer] [--width 1024] [--batch 64] [--layers 2] [--repeats 20]
                             [--schedule 1f1b] [--transport transfer] [--profile FOLDER] [--cpu]

On several GPUs the pipeline runs in one process, with a submesh for each GPU. On one GPU it runs in two processes that
share it, each with half of the stages. The two take turns on the GPU and send arrays through the host, so read their
wall time as the cost of two processes, not as a gain. The hand-written driver (`hand_written.py`) has all GPUs in one
process.

Each part has processes of its own, as JAX keeps a GPU's memory until its process ends. The figures, and their goals:

- wall time of the step on one device against `jax.jit` of the same function, which take turns: at most 1.01;
- wall time of the pipeline on several GPUs against the hand-written driver: at most 0.95;
- loss after three steps, and the first gradients, against `jax.jit` on one device, with products in float32: 1e-5 of
  the largest value of an array;
- a step that was compiled ahead of time gives the same loss as one that was called, and donated state is gone;
- memory that the device counts at its fullest against what `explain()` says: within 10 %;
- bytes that go between submeshes in a step, the rate of their transfers, and how much of a step's time the GPU is busy,
  by JAX's profiler. `--profile` keeps its traces, for TensorBoard or Perfetto.

Exit status: 0 if all goals are reached, 1 if not, 2 if there is no GPU. `--cpu` runs the same code on CPU devices,
where speed, memory and profile are not judged.
"""

from __future__ import annotations

import argparse
import contextlib
import glob
import json
import os
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

STAGES, MICROBATCHES, PROCESSES = 4, 8, 2


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts, print their figures, and return the exit status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="transformer", help="a model of models.py (default transformer)")
    parser.add_argument("--width", type=int, default=1024, help="width of a layer (default 1024)")
    parser.add_argument("--batch", type=int, default=64, help="examples in a batch (default 64)")
    parser.add_argument("--layers", type=int, default=2, help="layers of each of the four stages (default 2)")
    parser.add_argument("--repeats", type=int, default=20, help="steps that are timed (default 20)")
    parser.add_argument("--schedule", default="1f1b", help="the pipeline's schedule (default 1f1b)")
    parser.add_argument(
        "--transport",
        choices=["sockets", "transfer"],
        default="transfer",
        help="how two processes that share a GPU send arrays; NCCL refuses them (default transfer)",
    )
    parser.add_argument("--profile", help="a folder for the profiler's traces")
    parser.add_argument("--cpu", action="store_true", help="run on CPU devices, to try the code")
    parser.add_argument("--part", choices=sorted(_PARTS), help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--coordinator", help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.part:
        print(json.dumps(_PARTS[options.part](options)), flush=True)
        return 0
    with contextlib.ExitStack() as stack:
        if options.profile is None:
            options.profile = stack.enter_context(tempfile.TemporaryDirectory())
        return _report(options)


def _report(options: argparse.Namespace) -> int:
    found = _run("devices", options)
    print(f"JAX {found['jax']}: {found['count']} x {found['kind']} ({found['platform']})")
    if found["platform"] != "gpu" and not options.cpu:
        print("No GPU: nothing was measured. Install JAX for your GPU (`pip install jax[cuda13]`), or try --cpu.")
        return 2
    judged = not options.cpu
    one = _run("one", options)
    # Printed part by part: on a GPU, compiling one takes minutes.
    figures = _printed(
        Figure("one device, wall / jax.jit", one["ratio"], 1.01 if judged else None),
        Figure("one device, jax.jit / itself", one["noise"]),
        *_numbers("one device", one),
        *_memory("one device", one, judged),
        Figure("one device, share of a step that the GPU is busy", one["busy"]),
    )
    count = _submeshes(found["count"])
    if count > 1:
        pipeline = _run("pipeline", options)
        where, limit = f"{STAGES} stages on {count} devices", 0.95 if judged else None
    else:
        pipeline = _run("pipeline", options, PROCESSES)
        where, limit = f"{STAGES} stages in {PROCESSES} processes", None
    figures += _printed(
        *_numbers(where, pipeline),
        *_memory(where, pipeline, judged),
        Figure(f"{where}, share of a step that the GPU is busy", pipeline["busy"]),
        Figure(f"{where}, MiB between submeshes in a step", pipeline["moved"] / 2**20),
        Figure(f"{where}, GiB/s of a transfer, median", pipeline["rate"]),
    )
    driver = _run("driver", options)
    figures += _printed(
        Figure(f"{where}, wall / hand-written driver", pipeline["wall"] / driver["wall"], limit),
        Figure(f"{where}, issue CPU / hand-written driver", pipeline["issue"] / driver["issue"]),
    )
    print(f"wall ms: one device {one['wall']:.2f}, pipeline {pipeline['wall']:.2f}, hand-written {driver['wall']:.2f}")
    return 0 if all(figure.holds for figure in figures) else 1


def _printed(*figures: Figure) -> list[Figure]:
    for figure in figures:
        print(figure, flush=True)
    return list(figures)


@dataclass(frozen=True)
class Figure:
    """A figure, the most that it may be if that is judged, and None where the platform does not tell it."""

    name: str
    value: float | None
    limit: float | None = None

    @property
    def holds(self) -> bool:
        """Whether it is not judged, or within its goal."""
        return self.limit is None or (self.value is not None and self.value <= self.limit)

    def __str__(self) -> str:
        value = "not told here" if self.value is None else f"{self.value:.3g}"
        goal = "" if self.limit is None else f"  goal {self.limit:g}  {'ok' if self.holds else 'MISSED'}"
        return f"{self.name:74}{value:>14}{goal}"


def _numbers(where: str, part: dict[str, Any]) -> list[Figure]:
    return [
        Figure(f"{where}, loss after three steps, difference", part["loss_error"], 1e-5),
        Figure(f"{where}, first gradients, difference", part["gradient_error"], 1e-5),
        Figure(f"{where}, compiled ahead of time, difference of the loss", part["ahead_error"], 0.0),
        Figure(f"{where}, donated arrays that are still there", part["left"], 0.0),
    ]


def _memory(where: str, part: dict[str, Any], judged: bool) -> list[Figure]:
    counted, planned = part["peak"], part["planned"]
    error = None if counted is None else abs(counted / planned - 1)
    return [
        Figure(f"{where}, MiB on a device by explain()", planned / 2**20),
        Figure(f"{where}, difference of what the device counts", error, 0.1 if judged else None),
    ]


def _run(part: str, options: argparse.Namespace, processes: int = 1) -> dict[str, Any]:
    """The figures of a part, those of process 0 if there are several."""
    environment = dict(os.environ)
    # A process would keep three quarters of a GPU that another one shares, and hide what a step needs.
    environment["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    if options.cpu:
        environment["JAX_PLATFORMS"] = "cpu"
    command = [sys.executable, __file__, "--part", part]
    for name in ("model", "width", "batch", "layers", "repeats", "schedule", "transport", "profile"):
        command += [f"--{name}", str(getattr(options, name))]
    command += ["--cpu"] if options.cpu else []
    if processes > 1:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            command += ["--coordinator", f"127.0.0.1:{probe.getsockname()[1]}"]
    running = [
        subprocess.Popen([*command, "--process", str(number)], env=environment, stdout=subprocess.PIPE, text=True)
        for number in range(processes)
    ]
    try:
        outputs = [process.communicate(timeout=1800)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    if any(process.returncode for process in running):
        raise SystemExit(f"the part {part!r} failed: exit status {[process.returncode for process in running]}")
    found: dict[str, Any] = json.loads(outputs[0].splitlines()[-1])
    return found


def _submeshes(count: int) -> int:
    """Over how many of so many devices the stages are spread, the same number of stages on each."""
    return max(number for number in range(1, STAGES + 1) if number <= count and STAGES % number == 0)


def _devices(options: argparse.Namespace) -> dict[str, Any]:
    import jax

    first = jax.devices()[0]
    return {"jax": jax.__version__, "platform": first.platform, "kind": first.device_kind, "count": jax.device_count()}


def _one(options: argparse.Namespace) -> dict[str, Any]:
    """The step on one device, beside `jax.jit` of the same function."""
    import jax
    from steps import loss_plain, make_step
    from timing import measure

    import mmruntime as mm

    model, states = _model(options)
    plain = make_step(loss_plain(model), MICROBATCHES)
    mesh = mm.MultiMesh(devices=jax.devices()[:1], axis_names=("data",))
    step, found = _checked(lambda: mm.mjit(plain, mesh=mesh, donate_argnums=0), model, states)
    again = make_step(loss_plain(model), MICROBATCHES)
    runs = {
        "ours": _stepper(step, states, model.batch),
        "jax.jit": _stepper(jax.jit(plain, donate_argnums=0), states, model.batch),
        "again": _stepper(jax.jit(again, donate_argnums=0), states, model.batch),
    }
    for run in runs.values():
        run()
    timings = measure(runs, max(options.repeats, 3))
    busy = _busy(runs["ours"], os.path.join(options.profile, "one"))

    def ratio(name: str) -> float:
        pairs = zip(timings[name].walls, timings["jax.jit"].walls, strict=True)
        return statistics.median(ours / theirs for ours, theirs in pairs)

    return found | {"ratio": ratio("ours"), "noise": ratio("again"), "wall": timings["ours"].wall, "busy": busy}


def _pipeline(options: argparse.Namespace) -> dict[str, Any]:
    """The step in stages, on the GPUs of this process or on one that several processes share."""
    import jax

    import mmruntime as mm

    if options.coordinator:
        mm.init(
            cpus=1 if options.cpu else None,
            coordinator_address=options.coordinator,
            num_processes=PROCESSES,
            process_id=options.process,
            local_device_ids=None if options.cpu else [0],
            transport=options.transport,
        )
    from steps import loss_marked, make_step
    from timing import measure

    model, states = _model(options)
    count = _submeshes(jax.device_count())
    mesh = mm.MultiMesh(devices=jax.devices()[:count], axis_names=("stage",))
    staged = make_step(loss_marked(model, count), MICROBATCHES, options.schedule)
    step, found = _checked(lambda: mm.mjit(staged, mesh=mesh, donate_argnums=0), model, states)
    run = _stepper(step, states, model.batch)
    run()
    timing = measure({"ours": run}, options.repeats)["ours"]
    timeline = step.timeline(states, model.batch)
    transfers = step.explain().transfers
    sizes = {(row.source, row.target): row.size for row in transfers if row.runs >= MICROBATCHES}
    rates = [
        sizes[span.source, span.submesh] / (span.end - span.start)
        for span in timeline.spans
        if span.source is not None and (span.source, span.submesh) in sizes and span.end > span.start
    ]
    busy = _busy(run, os.path.join(options.profile, f"pipeline-{options.process}"))
    return found | {
        "wall": timing.wall,
        "issue": timing.cpu,
        "moved": sum(row.size * row.runs for row in transfers),
        "rate": statistics.median(rates) / 2**30 if rates else None,
        "busy": busy,
    }


def _driver(options: argparse.Namespace) -> dict[str, Any]:
    """The hand-written driver on all devices of one process."""
    import jax
    import numpy as np
    from hand_written import HandWritten
    from jax.sharding import Mesh
    from timing import measure

    model, states = _model(options)
    count = _submeshes(jax.device_count())
    meshes = [Mesh(np.array([jax.devices()[stage * count // STAGES]]), ("data",)) for stage in range(STAGES)]
    driver = HandWritten(meshes, model, states, MICROBATCHES)

    def run() -> Any:
        return driver(model.batch), driver.states

    jax.block_until_ready(run())
    timing = measure({"driver": run}, options.repeats)["driver"]
    return {"wall": timing.wall, "issue": timing.cpu}


_PARTS = {"devices": _devices, "one": _one, "pipeline": _pipeline, "driver": _driver}


def _model(options: argparse.Namespace) -> tuple[Any, Any]:
    """The model and the first states of its stages as host arrays, so that only steps take a device's memory."""
    import jax
    import numpy as np
    from models import MODELS, first_state

    with jax.default_device(jax.local_devices(backend="cpu")[0]):
        model = MODELS[options.model](STAGES, options.layers, options.width, options.batch)
        return model, jax.tree.map(np.asarray, [first_state(params) for params in model.params])


def _stepper(step: Any, states: Any, batch: Any) -> Any:
    held = {"states": states}

    def run() -> Any:
        held["states"], value = step(held["states"], batch)
        return held["states"], value

    return run


def _checked(make: Any, model: Any, states: Any) -> tuple[Any, dict[str, Any]]:
    """A step, and what is found of its donation, its memory, and its numbers against `jax.jit` on one device."""
    import jax
    import numpy as np
    from steps import loss_plain, make_step

    step, mine = make(), set(jax.local_devices())
    # Of the results only the number is kept: a second state would count in what the device holds at its fullest.
    ahead = float(step.lower(states, model.batch).compile()(states, model.batch)[1])
    before, value = step(states, model.batch)
    called = float(value)
    held, value = step(before, model.batch)
    # Numbers lie on all devices and are not donated; of arrays of other processes nothing is known here.
    left = sum(
        not leaf.is_deleted() for leaf in jax.tree.leaves(before) if leaf.ndim and leaf.sharding.device_set & mine
    )
    jax.block_until_ready(step(held, model.batch))
    ids = {device.id for device in mine}
    planned = max(row.held.total for row in step.explain().memory if ids.intersection(row.devices))
    counts = [count for device in mine if (count := (device.memory_stats() or {}).get("peak_bytes_in_use")) is not None]
    del held, before
    # Products of a GPU may be of fewer bits, and those of two programs then differ by more than the order of sums.
    with jax.default_matmul_precision("float32"):
        ours, gradients = _three_steps(make(), model, states)
        plain, wanted = _three_steps(jax.jit(make_step(loss_plain(model), MICROBATCHES)), model, states)
    errors = [
        float(np.abs(mine - theirs).max() / max(np.abs(theirs).max(), 1e-30))
        for mine, theirs in zip(gradients, wanted, strict=True)
        if mine is not None
    ]
    return step, {
        "ahead_error": abs(ahead - called),
        "left": left,
        "planned": planned,
        "peak": max(counts, default=None),
        "loss_error": abs(ours - plain) / abs(plain),
        "gradient_error": max(errors),
    }


def _three_steps(step: Any, model: Any, states: Any) -> tuple[float, list[Any]]:
    """The loss of the third step, and the first step's gradients; None for those of other processes."""
    import jax
    import numpy as np

    # Adam's first moment after one step is a tenth of the gradients.
    states, _ = step(states, model.batch)
    moments = [leaf for _, first, _, _ in states for leaf in jax.tree.leaves(first)]
    gradients = [np.asarray(leaf.addressable_data(0)) if leaf.addressable_shards else None for leaf in moments]
    states, _ = step(states, model.batch)
    _, value = step(states, model.batch)
    return float(value), gradients


def _busy(run: Any, folder: str) -> float | None:
    """The share of three steps in which a GPU of this process is busy; None if the profiler tells of no GPU."""
    import jax

    with jax.profiler.trace(folder):
        start = time.perf_counter()
        jax.block_until_ready([run()[1] for _ in range(3)])
        wall = time.perf_counter() - start
    newest = max(glob.glob(os.path.join(folder, "**", "*.xplane.pb"), recursive=True), key=os.path.getmtime)
    planes = [
        plane for plane in jax.profiler.ProfileData.from_file(newest).planes if plane.name.startswith("/device:GPU")
    ]
    busy = [sum(end - begin for begin, end in _joined(plane)) for plane in planes]
    return max(busy) / 1e9 / wall if busy else None


def _joined(plane: Any) -> Iterator[tuple[float, float]]:
    """The spans of nanoseconds in which anything runs on a device, without overlaps."""
    events = [event for line in plane.lines for event in line.events if line.name.startswith("Stream")]
    last = float("-inf")
    for begin, end in sorted((event.start_ns, event.start_ns + event.duration_ns) for event in events):
        if end > last:
            yield max(begin, last), end
            last = end


if __name__ == "__main__":
    sys.exit(main())
