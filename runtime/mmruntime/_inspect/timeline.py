"""What a step really does over time: a recorded run, the time of each program alone, and traces to look at."""

from __future__ import annotations

import json
import os
import queue
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from mmruntime import schedules
from mmruntime._execution.run import Runner
from mmruntime._inspect import timeline_page as _timeline_page
from mmruntime._partition.instructions import Instruction, Program, Run
from mmruntime._partition.loop_schedule import Pipeline
from mmruntime._partition.segment import Segment

# Steps that `measure` runs; each program's shortest time counts.
_REPEATS = 3


@dataclass(frozen=True)
class Span:
    """One thing that happened. Times are in seconds from the start of the step.

    Attributes:
        submesh: Where it ran; for a transfer, where it went.
        source: For a transfer, where it came from; else None.
        name: The program's tasks, or what was sent.
        kind: In a microbatch loop "F", "B", "I" or "W", or "FB" or "FI" of a program that does both, as that of the
            last stage; else "".
        microbatch: Which microbatch, None outside of loops.
        issued: When it was issued.
        start: When it could start: issued, its inputs there, and its submesh free.
        end: When its results were there.
        stage: In a microbatch loop, which loop and which of its stages; else None.
    """

    submesh: int
    source: int | None
    name: str
    kind: str
    microbatch: int | None
    issued: float
    start: float
    end: float
    stage: tuple[int, int] | None = None


@dataclass(frozen=True)
class Usage:
    """How a submesh spent the step, in seconds: computing, waiting for a transfer, and idle otherwise."""

    submesh: int
    compute: float
    transfer: float
    idle: float


@dataclass(frozen=True)
class Timeline:
    """A recorded step beside what the schedule's simulation says for the same costs.

    Attributes:
        name: The step's name.
        spans: What happened, by start.
        simulations: The step's microbatch loops, simulated with the median recorded time of each program.
    """

    name: str
    spans: tuple[Span, ...]
    simulations: tuple[schedules.Simulation, ...]

    @property
    def makespan(self) -> float:
        """Seconds from the first issue to the last result."""
        return max((span.end for span in self.spans), default=0.0)

    @property
    def usage(self) -> tuple[Usage, ...]:
        """How each submesh spent the step."""
        rows = []
        for submesh in sorted({span.submesh for span in self.spans}):
            busy = _union([(s.start, s.end) for s in self.spans if s.submesh == submesh and s.source is None])
            moving = _union([(s.start, s.end) for s in self.spans if s.submesh == submesh and s.source is not None])
            compute = sum(end - start for start, end in busy)
            either = sum(end - start for start, end in _union([*busy, *moving]))
            rows.append(Usage(submesh, compute, either - compute, self.makespan - either))
        return tuple(rows)

    def begin(self, loop: int) -> float:
        """When the first program of a microbatch loop started."""
        return min((span.start for span in self.spans if span.stage is not None and span.stage[0] == loop), default=0.0)

    def chrome_trace(self) -> dict[str, Any]:
        """The run and its simulation in Chrome's trace format (chrome://tracing, Perfetto), times in microseconds.

        Process 0 is the recorded run, with a row for computing and one for transfers per submesh; each loop's
        simulation is a process of its own, started when the loop's first program did.
        """
        events: list[dict[str, Any]] = [_named("process_name", f"{self.name} (recorded)", 0, 0)]
        for usage in self.usage:
            events.append(_named("thread_name", f"submesh {usage.submesh}", 0, 2 * usage.submesh))
            events.append(_named("thread_name", f"submesh {usage.submesh} receives", 0, 2 * usage.submesh + 1))
        for span in self.spans:
            row = 2 * span.submesh + (span.source is not None)
            category = "transfer" if span.source is not None else "compute"
            details = {"microbatch": span.microbatch, "issued": span.issued * 1e6}
            events.append(_slice(_label(span.kind, span.microbatch, span.name), category, 0, row, span, details))
        for number, simulation in enumerate(self.simulations, start=1):
            begin = self.begin(number - 1)
            events.append(_named("process_name", f"{simulation.schedule.name} (simulated)", number, 0))
            for submesh in range(simulation.schedule.num_submeshes):
                events.append(_named("thread_name", f"submesh {submesh}", number, submesh))
            for event in simulation.timeline:
                name = _label(event.action.kind, event.action.microbatch, f"stage {event.action.stage}")
                events.append(
                    {
                        "name": name,
                        "cat": "simulated",
                        "ph": "X",
                        "pid": number,
                        "tid": event.submesh,
                        "ts": (begin + event.start) * 1e6,
                        "dur": (event.end - event.start) * 1e6,
                    }
                )
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def svg(self, *, width: int = 1200) -> str:
        """The recorded step as an SVG picture; see `_timeline_page.svg`."""
        return _timeline_page.svg(self, width=width)

    def html(self) -> str:
        """The recorded step beside its simulation, as one HTML page that needs nothing else."""
        return _timeline_page.html(self)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the timeline to a file: `.json` is the Chrome trace, `.svg` and `.html` are pictures, `.txt` is text.

        Raises:
            ValueError: If the name ends in something else.
        """
        forms: dict[str, Callable[[], str]] = {
            ".json": lambda: json.dumps(self.chrome_trace()),
            ".svg": self.svg,
            ".html": self.html,
            ".txt": lambda: f"{self}\n",
        }
        suffix = Path(path).suffix.lower()
        if suffix not in forms:
            raise ValueError(
                f"timeline: cannot tell from {os.fspath(path)!r} what to write. Choose a name that ends in "
                f"{', '.join(forms)}."
            )
        Path(path).write_text(forms[suffix](), encoding="utf-8")

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.makespan * 1e3:.2f} ms", "submesh  compute ms  transfer ms  idle ms"]
        lines += [
            f"{row.submesh:7}  {row.compute * 1e3:10.2f}  {row.transfer * 1e3:11.2f}  {row.idle * 1e3:7.2f}"
            for row in self.usage
        ]
        for simulation in self.simulations:
            lines += ["", f"simulated with these costs: {simulation.makespan * 1e3:.2f} ms"]
            lines.append(schedules.draw(simulation))
        return "\n".join(lines)


@dataclass(frozen=True)
class StageCost:
    """Seconds of one run of a stage's programs, each alone. A fused forward and backward counts as forward."""

    forward: float
    backward_input: float
    backward_weight: float


@dataclass(frozen=True)
class Measurement:
    """What each program of a step takes when nothing else runs.

    Attributes:
        loops: Per microbatch loop, the cost of each stage in pipeline order.
        once: Seconds of all programs outside of loops, per submesh.
        transfers: Seconds of the slowest transfer between each pair of submeshes.
    """

    loops: tuple[tuple[StageCost, ...], ...]
    once: Mapping[int, float]
    transfers: Mapping[tuple[int, int], float]

    def auto(self, loop: int = 0, **options: Any) -> schedules.Auto:
        """A search for the best order of a loop under the measured times, for `microbatch(schedule=...)`.

        A transfer takes as long as the slowest one here. Where a backward pass was measured whole, each half gets half
        of it; so measure a step whose schedule splits it, such as zb-h1, to know better.

        Args:
            loop: Which microbatch loop of the step.
            **options: Further attributes of `mmruntime.schedules.Auto`, such as `memory`.

        Raises:
            ValueError: If the step has no such loop.
        """
        if not 0 <= loop < len(self.loops):
            raise ValueError(f"auto: there is no microbatch loop {loop}; the step has {len(self.loops)}.")
        stages = self.loops[loop]
        whole = [stage.backward_input > 0 and not stage.backward_weight for stage in stages]
        return schedules.Auto(
            forward=[stage.forward for stage in stages],
            backward_input=[
                stage.backward_input / (2 if is_whole else 1) for stage, is_whole in zip(stages, whole, strict=True)
            ],
            backward_weight=[
                stage.backward_input / 2 if is_whole else stage.backward_weight
                for stage, is_whole in zip(stages, whole, strict=True)
            ],
            latency=max(self.transfers.values(), default=0.0),
            **options,
        )


def record(name: str, runner: Runner, program: Program, inputs: Sequence[Any]) -> Timeline:
    """Run a step once more, watched, and say when everything happened.

    Each program's and transfer's first result is read by a tiny program of its own, and a thread per submesh
    waits for those in order, so the step itself goes on as it would.

    Args:
        name: The step's name.
        runner: The compiled step.
        program: Its instructions.
        inputs: Its flat inputs; they are copied first, so donated ones stay usable.
    """
    # The first round compiles the watching programs.
    _watched(runner, program, inputs)
    watch = _watched(runner, program, inputs)
    started = min(watch.issues)
    issues = [at - started for at in watch.issues]
    ends = [at - started for at in watch.ends]
    spans = _spans(program, issues, ends)
    costs = _stage_costs(program, [span.end - span.start for span in spans], statistics.median)
    simulations = tuple(_simulate(pipeline, stages) for pipeline, stages in zip(program.pipelines, costs, strict=True))
    return Timeline(name, tuple(sorted(spans, key=lambda span: span.start)), simulations)


def _watched(runner: Runner, program: Program, inputs: Sequence[Any]) -> _Watch:
    watch = _Watch(len(program.instructions))
    runner.run_watched(_copies(inputs), watch.issued)
    watch.finish()
    return watch


def measure(runner: Runner, program: Program, inputs: Sequence[Any]) -> Measurement:
    """Run every instruction alone, waiting for each, and keep the shortest time of each program."""
    best = [float("inf")] * len(program.instructions)
    for _ in range(_REPEATS):
        clock = [time.perf_counter()]

        def waited(index: int, values: Sequence[Any], clock: list[float] = clock) -> None:
            jax.block_until_ready(list(values))
            now = time.perf_counter()
            best[index] = min(best[index], now - clock[0])
            clock[0] = time.perf_counter()

        runner.run_watched(_copies(inputs), lambda index, values, issued: waited(index, values))
    once: dict[int, float] = defaultdict(float)
    transfers: dict[tuple[int, int], float] = defaultdict(float)
    for item, seconds in zip(program.instructions, best, strict=True):
        if not isinstance(item, Run):
            transfers[item.source, item.target] = max(transfers[item.source, item.target], seconds)
        elif item.microbatch is None:
            once[item.work.submesh] += seconds
    return Measurement(tuple(_stage_costs(program, best, min)), dict(once), dict(transfers))


class _Watch:
    """Collects when instructions were issued and when their results were there."""

    def __init__(self, count: int) -> None:
        self.issues = [0.0] * count
        self.ends = [0.0] * count
        self._queues: dict[Any, queue.SimpleQueue[Any]] = {}
        self._threads: list[threading.Thread] = []

    def issued(self, index: int, values: Sequence[Any], at: float) -> None:
        self.issues[index] = at
        probe = _probe(values)
        if probe is None:
            self.ends[index] = time.perf_counter()
            return
        (device,) = probe.devices()
        if device not in self._queues:
            self._queues[device] = queue.SimpleQueue()
            self._threads.append(threading.Thread(target=self._wait, args=(self._queues[device],), daemon=True))
            self._threads[-1].start()
        self._queues[device].put((index, probe))

    def _wait(self, waiting: queue.SimpleQueue[Any]) -> None:
        while (item := waiting.get()) is not None:
            index, probe = item
            probe.block_until_ready()
            self.ends[index] = time.perf_counter()

    def finish(self) -> None:
        for waiting in self._queues.values():
            waiting.put(None)
        for thread in self._threads:
            thread.join()


_first_element: Callable[[Any], Any] = jax.jit(lambda shard: jnp.ravel(shard)[:1])


def _probe(values: Sequence[Any]) -> Any:
    """An array of our own that is ready when the values are, since they themselves may be donated on."""
    for value in values:
        if not jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
            return _first_element(value.addressable_shards[0].data)
    return None


def _copies(inputs: Sequence[Any]) -> list[Any]:
    return [value.copy() if isinstance(value, jax.Array) else value for value in inputs]


def _spans(program: Program, issues: Sequence[float], ends: Sequence[float]) -> list[Span]:
    ready: dict[int, float] = {}
    free: dict[int, float] = defaultdict(float)
    kinds = _kinds(program)
    spans = []
    for index, item in enumerate(program.instructions):
        waits = max((ready[slot] for slot in item.args if slot in ready), default=0.0)
        start = max(issues[index], waits)
        if isinstance(item, Run):
            where = item.work.submesh
            start = max(start, free[where])
            end = max(start, ends[index])
            free[where] = end
            kind, stage = kinds.get(item.work.segment, ("", None)) if item.work.segment is not None else ("", None)
            spans.append(Span(where, None, _name(item), kind, item.microbatch, issues[index], start, end, stage))
        else:
            end = max(start, ends[index])
            spans.append(Span(item.target, item.source, _name(item), "", item.microbatch, issues[index], start, end))
        ready.update(dict.fromkeys(item.results, end))
    return spans


def _name(item: Instruction) -> str:
    if not isinstance(item, Run):
        return f"{len(item.values)} arrays {item.source} to {item.target}"
    segment = item.work.segment
    return item.work.kind if segment is None else ", ".join(segment.tasks) or "outside of tasks"


def _kinds(program: Program) -> dict[Segment, tuple[str, tuple[int, int]]]:
    """What each program of a loop does, and the loop and stage that it belongs to."""
    kinds: dict[Segment, tuple[str, tuple[int, int]]] = {}
    for loop, pipeline in enumerate(program.pipelines):
        for stages in pipeline.variants:
            for number, stage in enumerate(stages):
                forward = "F" + ((stage.forward.part or "B") if stage.forward.backward else "")
                kinds[stage.forward] = forward, (loop, number)
                kinds.update({each: (each.part or "B", (loop, number)) for each in stage.backward})
                kinds.update(dict.fromkeys(stage.weights, ("W", (loop, number))))
    return kinds


def _stage_costs(
    program: Program, seconds: Sequence[float], typical: Callable[[Sequence[float]], float]
) -> list[tuple[StageCost, ...]]:
    """What each stage of each loop costs: the typical one of its microbatches."""
    runs: dict[Segment, list[float]] = defaultdict(list)
    for item, cost in zip(program.instructions, seconds, strict=True):
        if isinstance(item, Run) and item.work.segment is not None and item.microbatch is not None:
            runs[item.work.segment].append(cost)
    once = {segment: typical(costs) for segment, costs in runs.items()}
    loops = []
    for pipeline in program.pipelines:
        stages = []
        for stage in pipeline.stages:
            backward = sum(once[each] for each in stage.backward)
            weights = sum(once[each] for each in stage.weights)
            stages.append(StageCost(once[stage.forward], backward, weights))
        loops.append(tuple(stages))
    return loops


def _simulate(pipeline: Pipeline, stages: Sequence[StageCost]) -> schedules.Simulation:
    return schedules.simulate(
        pipeline.schedule,
        forward=[stage.forward for stage in stages],
        backward_input=[stage.backward_input for stage in stages],
        backward_weight=[stage.backward_weight for stage in stages],
    )


def _union(intervals: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    merged: list[tuple[float, float]] = []
    for start, end in sorted(intervals):
        if merged and start <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((start, end))
    return merged


def _label(kind: str, microbatch: int | None, name: str) -> str:
    return name if microbatch is None else f"{kind}{microbatch} {name}"


def _named(what: str, name: str, process: int, row: int) -> dict[str, Any]:
    return {"name": what, "ph": "M", "pid": process, "tid": row, "args": {"name": name}}


def _slice(name: str, category: str, process: int, row: int, span: Span, details: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "name": name,
        "cat": category,
        "ph": "X",
        "pid": process,
        "tid": row,
        "ts": span.start * 1e6,
        "dur": (span.end - span.start) * 1e6,
        "args": dict(details),
    }
