"""What a step did over time, as values: a recorded run, the time of each program alone, and traces to look at."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mmruntime import schedules
from mmruntime._inspect import timeline_page as _timeline_page
from mmruntime._inspect.simulate_step import SimulatedStep


@dataclass(frozen=True)
class Span:
    """One program or transfer that ran. Times are in seconds from the start of the step.

    Attributes:
        submesh: The submesh that ran the program or received the transfer.
        source: The submesh that sent a transfer; None for a program.
        name: The program's tasks, or how many arrays were sent.
        kind: In a microbatch loop "F", "B", "I", "W" or "R" (a forward once more), or "FB" or "FI" of a
            program that does both, as that of the last stage; else "".
        microbatch: Number of the microbatch, None outside of loops.
        issued: When it was issued.
        start: When it could start: issued, its inputs ready, and its submesh free.
        end: When its results were ready.
        stage: In a microbatch loop, the number of the loop and of the stage; else None.
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
    """How a submesh spent the step, in seconds: computing, receiving without computing, and idle."""

    submesh: int
    compute: float
    transfer: float
    idle: float


@dataclass(frozen=True)
class Timeline:
    """A recorded step beside the simulation of its schedules with the same costs.

    Attributes:
        name: The step's name.
        spans: The programs and transfers that ran, sorted by start.
        simulations: The step's microbatch loops, simulated with the median recorded time of each program; none in a
            timeline of one process of several.
        process: The process whose programs these are alone; None if they are those of all.
        clock_error: By how many seconds times of different processes may be off against each other.
    """

    name: str
    spans: tuple[Span, ...]
    simulations: tuple[schedules.Simulation, ...]
    process: int | None = None
    clock_error: float = 0.0

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
        """When the first program of a microbatch loop started, in seconds; 0 if it has none."""
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
            name = _label(span.kind, span.microbatch, span.name)
            details = {"microbatch": span.microbatch, "issued": span.issued * 1e6}
            events.append({**_slice(name, category, 0, row, span.start, span.end), "args": details})
        for number, simulation in enumerate(self.simulations, start=1):
            begin = self.begin(number - 1)
            events.append(_named("process_name", f"{simulation.schedule.name} (simulated)", number, 0))
            for submesh in range(simulation.schedule.num_submeshes):
                events.append(_named("thread_name", f"submesh {submesh}", number, submesh))
            for event in simulation.timeline:
                name = _label(event.action.kind, event.action.microbatch, f"stage {event.action.stage}")
                events.append(_slice(name, "simulated", number, event.submesh, begin + event.start, begin + event.end))
        return {"traceEvents": events, "displayTimeUnit": "ms"}

    def svg(self, *, width: int = 1200) -> str:
        """The recorded step as an SVG picture.

        A lane for each submesh: programs by colour and letter, idle time hatched, below them the transfers that it
        received, and the microbatches that it held activations of as a step line.

        Args:
            width: Width in pixels. Labels are left out where a program is too narrow.
        """
        return _timeline_page.svg(self, width=width)

    def html(self) -> str:
        """The recorded step beside its simulation, as one HTML page without external files."""
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

    def of_processes(self) -> list[str]:
        """What there is to say of several processes: a line, or none."""
        if self.process is not None:
            return [f"What process {self.process} ran or received; the first process of the step has it all."]
        return [f"Clocks of processes are lined up to {self.clock_error * 1e3:.2f} ms."] if self.clock_error else []

    def __str__(self) -> str:
        lines = [f"{self.name}: {self.makespan * 1e3:.2f} ms"]
        lines += self.of_processes()
        lines += ["submesh  compute ms  transfer ms  idle ms"]
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
    """Seconds of one run of each program of a stage. A fused forward and backward counts as forward.

    Attributes:
        forward: The forward pass.
        backward_input: The backward pass, or its input half where it is split.
        backward_weight: The weight half of a split backward pass; 0 otherwise.
    """

    forward: float
    backward_input: float
    backward_weight: float


@dataclass(frozen=True)
class Measurement:
    """How long each program of a step takes when nothing else runs.

    Attributes:
        loops: Per microbatch loop, the cost of each stage in pipeline order.
        once: Seconds of all programs outside of loops, per submesh.
        transfers: Seconds of the slowest transfer between each pair of submeshes.
        simulated: The whole step in simulated time, on this machine: CPU devices of one process share its cores, and
            what programs lose to each other is measured as well, unless a submesh has several devices or the step has
            effects. In several processes, calls, transfers and programs take the cores that each process has.
        apart: The same if devices shared nothing, as accelerators do; in one process equal to `simulated` where nothing
            is shared.
    """

    loops: tuple[tuple[StageCost, ...], ...]
    once: Mapping[int, float]
    transfers: Mapping[tuple[int, int], float]
    simulated: SimulatedStep
    apart: SimulatedStep

    def auto(self, loop: int = 0, **options: Any) -> schedules.Auto:
        """A search for the best order of a loop under the measured times, for `microbatch(schedule=...)`.

        Every transfer is taken to last as long as the slowest one here. A backward pass that was measured whole counts
        half for each of its halves; measure a step whose schedule splits it, such as zb-h1, for better figures.

        Args:
            loop: Number of the microbatch loop in the step.
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


def _slice(name: str, category: str, process: int, row: int, start: float, end: float) -> dict[str, Any]:
    times = {"ts": start * 1e6, "dur": (end - start) * 1e6}
    return {"name": name, "cat": category, "ph": "X", "pid": process, "tid": row, **times}
