"""A recorded step as a picture, and beside its simulation as one HTML page."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING

from mmruntime.schedules._page import simulated_lanes
from mmruntime.schedules._svg import COLOURS, RECEIVED, Lane, LaneCell, lanes

if TYPE_CHECKING:
    from mmruntime._inspect.timeline import Span, Timeline, Usage

_PER_SECOND, _UNIT = 1e3, " ms"
# Pixels of the page's pictures: at least, at most, and for each program on the busiest submesh.
_PAGE, _MOST, _EACH = 1340, 20_000, 24
_IDLE = "#dcdcdc"

_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 2rem auto; max-width: 1400px;
  padding: 0 1.5rem; }
h1 { font-size: 1.5rem; margin: 0 0 .5rem; }
h2 { font-size: 1.1rem; margin: 1.8rem 0 .4rem; }
p { margin: .2rem 0 .6rem; }
table { border-collapse: collapse; margin: .6rem 0; }
th, td { padding: .25rem 1rem .25rem 0; border-bottom: 1px solid #ddd; text-align: right;
  font-variant-numeric: tabular-nums; }
th { font-weight: 600; color: #444; border-bottom-color: #888; }
.wide { overflow-x: auto; }
.wide > svg { display: block; }
.bar { width: 22rem; text-align: left; }
.bar svg { display: block; }
.key { display: inline-block; width: .8em; height: .8em; margin-right: .35em; }
""".strip()


def svg(timeline: Timeline, *, width: int = 1200) -> str:
    """The recorded step as an SVG picture.

    A lane for each submesh: programs by colour and letter, idle time hatched, below them the transfers that it
        received,
    and the microbatches that it held activations of as a step line. A program that does two passes has two colours.

    Args:
        timeline: The recorded step.
        width: Width in pixels. Labels are left out where a program is too narrow.
    """
    return lanes(
        _recorded_lanes(timeline),
        timeline.makespan,
        width=width,
        title=f"Recorded timeline of {timeline.name}",
        unit=_UNIT.strip(),
        per_unit=_PER_SECOND,
    )


def html(timeline: Timeline) -> str:
    """The recorded step and the simulation of its loops, on one scale of time, with how each submesh spent it."""
    programs: dict[int, int] = defaultdict(int)
    for span in timeline.spans:
        programs[span.submesh] += span.source is None
    width = min(_MOST, max(_PAGE, 160 + _EACH * max(programs.values(), default=0)))
    parts = []
    merged = {span.stage: span.kind for span in timeline.spans if span.stage is not None and len(span.kind) > 1}
    for loop, simulation in enumerate(timeline.simulations):
        kinds = {stage: kind for (number, stage), kind in merged.items() if number == loop}
        mine = [span for span in timeline.spans if span.stage is not None and span.stage[0] == loop]
        took = max((span.end for span in mine), default=0.0) - timeline.begin(loop)
        picture = lanes(
            simulated_lanes(simulation, timeline.begin(loop), _UNIT, _PER_SECOND, kinds),
            timeline.makespan,
            width=width,
            title=f"Simulated timeline of schedule {simulation.schedule.name}",
            unit=_UNIT.strip(),
            per_unit=_PER_SECOND,
        )
        parts.append(
            f"<h2>Simulated: {escape(simulation.schedule.name)}</h2>\n"
            f"<p>With the median recorded time of each program and no time for transfers the loop takes "
            f"<b>{_ms(simulation.makespan)}</b> ({simulation.bubble_fraction:.1%} idle); recorded it took "
            f"<b>{_ms(took)}</b>.</p>\n"
            f'<div class="wide">{picture}</div>'
        )
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>Timeline of {escape(timeline.name)}</title>
<style>
{_STYLE}
</style>
</head>
<body>
<h1>Timeline of {escape(timeline.name)}</h1>
<p>One step took <b>{_ms(timeline.makespan)}</b>, from the first program issued to the last result.</p>
{_usage_table(timeline)}
<h2>Recorded</h2>
<div class="wide">{svg(timeline, width=width)}</div>
{chr(10).join(parts)}
</body>
</html>
"""


def _recorded_lanes(timeline: Timeline) -> list[Lane]:
    result = []
    for submesh in sorted({span.submesh for span in timeline.spans}):
        mine = [span for span in timeline.spans if span.submesh == submesh]
        stages = sorted({span.stage for span in mine if span.stage is not None})
        odd = set(stages[1::2])
        cells = [
            LaneCell(span.start, span.end, span.kind, _tip(span), span.microbatch, odd=span.stage in odd)
            for span in mine
            if span.source is None
        ]
        received = [(span.start, span.end, _tip(span)) for span in mine if span.source is not None]
        live = _live(mine, timeline)
        peak = max((held for _, held in live), default=0)
        result.append(Lane(f"submesh {submesh}", cells, live, f"peak {peak:g}", received))
    return result


def _live(spans: list[Span], timeline: Timeline) -> list[tuple[float, float]]:
    """The activations that a submesh holds over time, in the unit of `Simulation.live`."""
    held: dict[tuple[tuple[int, int], int], tuple[float, float]] = {}
    for span in spans:
        if span.stage is not None and span.microbatch is not None:
            start, end = held.get((span.stage, span.microbatch), (span.start, span.end))
            held[span.stage, span.microbatch] = min(start, span.start), max(end, span.end)
    changes: dict[float, float] = defaultdict(float)
    for ((loop, _), _), (start, end) in held.items():
        schedule = timeline.simulations[loop].schedule
        changes[start] += schedule.num_submeshes / schedule.num_stages
        changes[end] -= schedule.num_submeshes / schedule.num_stages
    times = sorted(changes)
    return list(zip(times, accumulate(changes[at] for at in times), strict=True))


def _tip(span: Span) -> str:
    words = " and ".join(COLOURS[kind][2] for kind in span.kind)
    microbatch = "" if span.microbatch is None else f", microbatch {span.microbatch}"
    what = f"{span.name}: {words}" if words else span.name
    return f"{what}{microbatch}, {span.start * _PER_SECOND:.6g} to {span.end * _PER_SECOND:.6g}{_UNIT}"


def _usage_table(timeline: Timeline) -> str:
    keys = "".join(
        f'<th><span class="key" style="background:{colour}"></span>{words}</th>'
        for colour, words in (("#444", "compute"), (RECEIVED[0], "transfer"), (_IDLE, "idle"))
    )
    rows = "\n".join(_usage_row(usage, timeline.makespan) for usage in timeline.usage)
    return f'<table>\n<tr><th>submesh</th>{keys}<th class="bar"></th></tr>\n{rows}\n</table>'


def _usage_row(usage: Usage, makespan: float) -> str:
    cells, boxes, left = "", "", 0.0
    for seconds, colour in ((usage.compute, "#444"), (usage.transfer, RECEIVED[0]), (usage.idle, _IDLE)):
        share = 100 * seconds / makespan if makespan else 0.0
        cells += f"<td>{_ms(seconds)} ({share:.0f}%)</td>"
        boxes += f'<rect x="{left:.2f}%" width="{share:.2f}%" height="14" fill="{colour}"/>'
        left += share
    bar = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="14" role="img" aria-label="shares">{boxes}</svg>'
    )
    return f'<tr><td>{usage.submesh}</td>{cells}<td class="bar">{bar}</td></tr>'


def _ms(seconds: float) -> str:
    return f"{seconds * _PER_SECOND:.2f}{_UNIT}"
