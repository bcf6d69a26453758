"""How planning a pipeline grows with its number of instructions, and what 16,384 devices mean for one process.

    python benchmarks/plan_size.py [--stages 64] [--microbatches 64,128,256,512]

A step of one layer for each stage is traced, placed, cut into programs and scheduled with 1F1B as a step is that runs;
nothing is compiled. Time and memory are fitted to the number of instructions by least squares on logarithms: with an
exponent of 1 they are linear. Then the stages get 256 devices each, which are stand-ins that say to which process of
eight they belong, and a process's share of the instructions and of the messages is counted. At last transfers are
planned between submeshes of up to 2,048 devices each.
"""

from __future__ import annotations

import argparse
import math
import time
import tracemalloc
from dataclasses import dataclass
from typing import Any

DEVICES_PER_STAGE, DEVICES_PER_PROCESS = 256, 8
WIDTH = 16


@dataclass(frozen=True)
class Device:
    """A device as plans of transfers see it."""

    id: int
    process_index: int


@dataclass(frozen=True)
class Layout:
    """A layout that cuts the first dimension into so many rows; neighbours hold copies where there are fewer."""

    devices: tuple[Device, ...]
    rows: int

    def shard_shape(self, shape: tuple[int, ...]) -> tuple[int, ...]:
        return (shape[0] // self.rows, *shape[1:])

    def devices_indices_map(self, shape: tuple[int, ...]) -> dict[Device, tuple[slice, ...]]:
        size, copies = self.shard_shape(shape)[0], len(self.devices) // self.rows
        rest = (slice(None),) * (len(shape) - 1)
        return {
            device: (slice(at // copies * size, (at // copies + 1) * size), *rest)
            for at, device in enumerate(self.devices)
        }


def planned(stages: int, count: int) -> tuple[Any, float, float]:
    """The program of a step, the CPU seconds that its passes took, and the megabytes that building it took at most."""
    import jax
    import jax.numpy as jnp

    import mmruntime as mm
    from mmruntime._core.multimesh import MultiMesh
    from mmruntime._partition.programs.segment import segment
    from mmruntime._step import plan

    def loss(params: Any, x: Any) -> Any:
        for index, w in enumerate(params):
            x = mm.task(lambda w, x: jnp.tanh(x @ w), task=mm.stage(index, stages))(w, x)
        return (x**2).mean()

    def train(params: Any, x: Any) -> Any:
        value, grads = mm.microbatch(jax.value_and_grad(loss), argnum=1, count=count, schedule="1f1b")(params, x)
        return [w - 0.1 * g for w, g in zip(params, grads, strict=True)], value

    mesh = MultiMesh(axis_sizes=(stages,), axis_names=("stage",))
    params = [jax.ShapeDtypeStruct((WIDTH, WIDTH), jnp.float32)] * stages
    step = mm.mjit(train, mesh=mesh)
    call = step._split((params, jax.ShapeDtypeStruct((count, WIDTH), jnp.float32)), {})
    names = [f"argument {number}" for number in range(len(call.leaves))]
    start = time.process_time()
    traced, _ = plan._trace(step._fun, call, mesh, names)
    traced, _, placement = plan._place_parts(traced, mesh, {}, names)
    segments = segment(traced, placement)
    before_loops = time.process_time()
    tracemalloc.start()
    segments, loop_schedules = plan.schedule_loops(traced, placement, segments)
    program = plan.build(traced, placement, segments, loop_schedules)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # Again, as measuring memory slows down what it measures.
    start += time.process_time() - before_loops
    segments, loop_schedules = plan.schedule_loops(traced, placement, segment(traced, placement))
    plan.build(traced, placement, segments, loop_schedules)
    return program, time.process_time() - start, peak / 1e6


def exponent(sizes: list[int], figures: list[float]) -> float:
    """The slope of the logarithms: with figure = constant * size ** exponent."""
    xs, ys = [math.log(size) for size in sizes], [math.log(figure) for figure in figures]
    x, y = sum(xs) / len(xs), sum(ys) / len(ys)
    return sum((a - x) * (b - y) for a, b in zip(xs, ys, strict=True)) / sum((a - x) ** 2 for a in xs)


def share(program: Any, stages: int) -> None:
    """What one process has of a program on many devices, and what starting costs it."""
    import jax
    import numpy as np

    from mmruntime._execution.shares import Share, shares
    from mmruntime._execution.transfers.parcels import num_bytes, plan_crossing
    from mmruntime._partition.pipeline.instructions import TransferInstruction
    from mmruntime._processes.tree import children_of

    total = stages * DEVICES_PER_STAGE
    devices = [Device(number, number // DEVICES_PER_PROCESS) for number in range(total)]
    layouts = [
        Layout(tuple(devices[at : at + DEVICES_PER_STAGE]), DEVICES_PER_STAGE)
        for at in range(0, total, DEVICES_PER_STAGE)
    ]
    owners = {
        where: tuple(sorted({device.process_index for device in each.devices})) for where, each in enumerate(layouts)
    }
    me = owners[stages // 2][0]
    start = time.perf_counter()
    mine = shares(program.instructions, owners, me)
    aval = jax.ShapeDtypeStruct((DEVICES_PER_STAGE, WIDTH), np.float32)
    plans: dict[tuple[int, int], Any] = {}
    messages = sent = 0
    for index, kind in mine:
        item = program.instructions[index]
        if kind is Share.CROSS and isinstance(item, TransferInstruction):
            ends = item.source, item.target
            if ends not in plans:
                plans[ends] = plan_crossing([layouts[ends[0]]], [layouts[ends[1]]], [aval]).messages
            own = [message for message in plans[ends] if me in (message.source, message.target)]
            messages += len(own)
            sent += sum(num_bytes(parcel) for each in own if each.source == me for parcel in each.parcels)
    seconds = time.perf_counter() - start
    count = total // DEVICES_PER_PROCESS
    print(
        f"{total} devices in {count} processes: a process takes part in {len(mine)} of {len(program.instructions)} "
        f"instructions, sends and receives {messages} messages a step, sends {sent} bytes; planned in {seconds:.2f} s"
    )
    # The calls of a process outside of steps, as they are in the code: it leaves an address for the watch if it has
    # children, reads its parent's, leaves that of its transfers, and reads those of its peers; it compares its plan
    # once, with a barrier, and meets once more after compiling.
    peers = {
        end
        for found in plans.values()
        for each in found
        for end in (each.source, each.target)
        if me in (each.source, each.target)
    } - {me}
    most = max(len(children_of(process, count)) for process in (0, 1, me))
    print(
        f"start-up: {2 + 1 + len(peers)} texts left or read and 3 comparisons and meetings by this process, whatever "
        f"their number; {len(peers)} connections for data; at most {most} children and a parent in the watch"
    )


def transfers() -> None:
    """How the plan of one transfer grows with the devices of the submeshes at its ends."""
    import jax
    import numpy as np

    from mmruntime._execution.transfers.parcels import plan_crossing
    from mmruntime._execution.transfers.pieces import pieces_of

    kinds = {"one for one": (1, 1), "four for one": (4, 1), "one for four": (1, 4), "a copy for each": (0, 0)}
    sizes = [256, 512, 1024, 2048]
    for what, (source_share, target_share) in kinds.items():
        times = []
        for size in sizes:
            devices = [Device(number, number // DEVICES_PER_PROCESS) for number in range(2 * size)]
            ends = [
                Layout(tuple(devices[start : start + size]), rows=size // share if share else 1)
                for start, share in ((0, source_share), (size, target_share))
            ]
            aval = jax.ShapeDtypeStruct((size, WIDTH), np.float32)
            tries = []
            for _ in range(3):
                pieces_of.cache_clear()
                start = time.process_time()
                plan_crossing([ends[0]], [ends[1]], [aval])
                tries.append(time.process_time() - start)
            times.append(min(tries))
        shown = ", ".join(f"{size}: {seconds * 1e3:.0f} ms" for size, seconds in zip(sizes, times, strict=True))
        print(f"transfer, {what}: {shown}; time ~ devices ** {exponent(sizes, times):.2f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--stages", type=int, default=64)
    parser.add_argument("--microbatches", default="64,128,256,512")
    options = parser.parse_args()
    import mmruntime as mm

    mm.init(cpus=options.stages)
    sizes, times, memories = [], [], []
    print("microbatches   instructions   CPU seconds   MB of building")
    for count in map(int, options.microbatches.split(",")):
        program, seconds, memory = planned(options.stages, count)
        sizes.append(len(program.instructions))
        times.append(seconds)
        memories.append(memory)
        print(f"{count:12d}   {sizes[-1]:12d}   {seconds:11.2f}   {memory:14.1f}", flush=True)
    print(
        f"time ~ instructions ** {exponent(sizes, times):.2f}, memory ~ instructions ** {exponent(sizes, memories):.2f}"
    )
    share(program, options.stages)
    transfers()


if __name__ == "__main__":
    main()
