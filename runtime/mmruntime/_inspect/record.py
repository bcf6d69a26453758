"""Record a step while it runs."""

from __future__ import annotations

import queue
import statistics
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp

from mmruntime import _compat, schedules
from mmruntime._execution.run import StepRunner
from mmruntime._inspect.costs import stage_costs
from mmruntime._inspect.process_times import Times, gather, joined
from mmruntime._inspect.timeline import Span, StageCost, Timeline
from mmruntime._inspect.waited_run import copies
from mmruntime._partition.pipeline.instructions import Instruction, Program, RunInstruction
from mmruntime._partition.pipeline.issue_order import Pipeline
from mmruntime._partition.programs.segment import Segment


def record(name: str, runner: StepRunner, program: Program, inputs: Sequence[Any]) -> Timeline:
    """Run a step twice and record when each program and transfer of the second run was issued and finished.

    JAX does not report when a program finished, and waiting for results in the issuing thread would serialise the step.
    So a tiny program reads one element of each instruction's first result, and a thread per device waits for these in
    order, while the step goes on as it would.

    Over several processes, the first of them has the rows of all; another one has those of its own submeshes.

    Args:
        name: The step's name.
        runner: The compiled step.
        program: Its instructions.
        inputs: Its flat inputs; they are copied first, so donated ones stay usable.
    """
    # The first run compiles the tiny programs.
    _watched(runner, inputs)
    watch = _watched(runner, inputs)
    times: Times = {index: (at, watch.ends[index]) for index, at in watch.issues.items()}
    group, error, partial = runner.group, 0.0, False
    if group is not None:
        found, offset = gather(times, group, f"timeline {group.calls}", everybody=False)
        error, partial = offset.error, found is None
        times = times if found is None else joined(found)
    started = min((at for at, _ in times.values()), default=0.0)
    spans = _spans(program, {index: (at - started, end - started) for index, (at, end) in times.items()})
    simulations: tuple[schedules.Simulation, ...] = ()
    if not partial:
        seconds = [0.0] * len(program.instructions)
        for index, span in spans.items():
            seconds[index] = span.end - span.start
        costs = stage_costs(program, seconds, statistics.median)
        simulations = tuple(
            _simulate(pipeline, stages) for pipeline, stages in zip(program.pipelines, costs, strict=True)
        )
    rows = tuple(sorted(spans.values(), key=lambda span: span.start))
    return Timeline(name, rows, simulations, None if not partial else jax.process_index(), error)


def _watched(runner: StepRunner, inputs: Sequence[Any]) -> _Watch:
    watch = _Watch()
    try:
        runner.run_watched(copies(inputs), watch.issued)
    finally:
        watch.no_more()
    watch.finish()
    return watch


class _Watch:
    """Collects when instructions were issued and when their results were ready."""

    def __init__(self) -> None:
        self.issues: dict[int, float] = {}
        self.ends: dict[int, float] = {}
        self._queues: dict[Any, queue.SimpleQueue[Any]] = {}
        self._threads: list[threading.Thread] = []
        self._failure: Exception | None = None

    def issued(self, index: int, _: Sequence[Any], values: Sequence[Any], at: float) -> None:
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
            try:
                probe.block_until_ready()
            except Exception as error:
                # A failure of XLA may be of any class.
                self._failure = error
            self.ends[index] = time.perf_counter()

    def no_more(self) -> None:
        """Let the threads end, once they have seen all that was issued."""
        for waiting in self._queues.values():
            waiting.put(None)

    def finish(self) -> None:
        """Wait for the ends of all, and raise what one of them has failed with."""
        for thread in self._threads:
            thread.join()
        if self._failure is not None:
            raise self._failure


_first_element: Callable[[Any], Any] = jax.jit(lambda shard: jnp.ravel(shard)[:1])


def _probe(values: Sequence[Any]) -> Any:
    """An array that is ready when the values are; they themselves may be donated to a later program by then."""
    for value in values:
        # Of what a transfer sends to another process, nothing is here.
        if value is not None and value.addressable_shards and not _compat.is_key(value.dtype):
            return _first_element(value.addressable_shards[0].data)
    return None


def _spans(program: Program, times: Times) -> dict[int, Span]:
    ready: dict[int, float] = {}
    free: dict[int, float] = defaultdict(float)
    kinds = _kinds(program)
    spans: dict[int, Span] = {}
    for index, item in enumerate(program.instructions):
        if index not in times:
            continue
        issued, ended = times[index]
        waits = max((ready[slot] for slot in item.args if slot in ready), default=0.0)
        start = max(issued, waits)
        if isinstance(item, RunInstruction):
            where = item.spec.submesh
            start = max(start, free[where])
            end = max(start, ended)
            free[where] = end
            kind, stage = kinds.get(item.spec.segment, ("", None)) if item.spec.segment is not None else ("", None)
            if item.spec.kind == "again":
                kind = "R"
            spans[index] = Span(where, None, _name(item), kind, item.microbatch, issued, start, end, stage)
        else:
            end = max(start, ended)
            spans[index] = Span(item.target, item.source, _name(item), "", item.microbatch, issued, start, end)
        ready.update(dict.fromkeys(item.results, end))
    return spans


def _name(item: Instruction) -> str:
    if not isinstance(item, RunInstruction):
        return f"{len(item.values)} arrays {item.source} to {item.target}"
    segment = item.spec.segment
    return item.spec.kind if segment is None else ", ".join(segment.tasks) or "outside of tasks"


def _kinds(program: Program) -> dict[Segment, tuple[str, tuple[int, int]]]:
    """The passes that each program of a loop does (as `Span.kind`), its loop and its stage."""
    kinds: dict[Segment, tuple[str, tuple[int, int]]] = {}
    for loop, pipeline in enumerate(program.pipelines):
        for stages in pipeline.variants:
            for number, stage in enumerate(stages):
                forward = "F" + ((stage.forward.part or "B") if stage.forward.backward else "")
                kinds[stage.forward] = forward, (loop, number)
                kinds.update({each: (each.part or "B", (loop, number)) for each in stage.backward})
                kinds.update(dict.fromkeys(stage.weights, ("W", (loop, number))))
    return kinds


def _simulate(pipeline: Pipeline, stages: Sequence[StageCost]) -> schedules.Simulation:
    return schedules.simulate(
        pipeline.schedule,
        forward=[stage.forward for stage in stages],
        backward_input=[stage.backward_input for stage in stages],
        backward_weight=[stage.backward_weight for stage in stages],
    )
