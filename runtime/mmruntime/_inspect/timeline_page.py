"""A recorded step as a picture, and beside its simulation as one HTML page."""

from __future__ import annotations

from collections import defaultdict
from html import escape
from itertools import accumulate
from typing import TYPE_CHECKING

from mmruntime.schedules._drawing.document import document, scrolling
from mmruntime.schedules._drawing.page import simulated_lanes
from mmruntime.schedules._drawing.svg import COLOURS, DARK_STYLE, RECEIVED, Lane, LaneCell, lanes

if TYPE_CHECKING:
    from mmruntime._inspect.timeline import Span, Timeline, Usage

_PER_SECOND, _UNIT = 1e3, " ms"
# Pixels of the page's pictures: at least, at most, and for each program on the busiest submesh.
_PAGE, _MOST, _EACH = 1340, 20_000, 24

# Compute, transfer and idle: in light and dark, each told apart from its neighbours and from the ground.
_STYLE = f"""
.bar {{ width: 22rem; text-align: left; }}
.bar svg {{ display: block; }}
.key {{ display: inline-block; width: .8em; height: .8em; margin-right: .35em; }}
.compute {{ background: #555; fill: #555; }}
.transfer {{ background: {RECEIVED[0]}; fill: {RECEIVED[0]}; }}
.idle {{ background: #dcdcdc; fill: #dcdcdc; }}
@media screen and (prefers-color-scheme: dark) {{
  .compute {{ background: #b1bac4; fill: #b1bac4; }} .idle {{ background: #30363d; fill: #30363d; }}
}}
@media (max-width: 700px) {{ .bar {{ display: none; }} th, td {{ padding-right: .5rem; font-size: .85rem; }} }}
""".strip()


def svg(timeline: Timeline, *, width: int = 1200) -> str:
    """The recorded step as an SVG picture.

    A lane for each submesh: programs by colour and letter, idle time hatched, below them the transfers that it
    received, and the microbatches that it held activations of as a step line. A program that does two passes has two
    colours.

    Args:
        timeline: The recorded step.
        width: Width in pixels. Labels are left out where a program is too narrow.
    """
    return _recorded(timeline, timeline.makespan, width, DARK_STYLE)


def _recorded(timeline: Timeline, span: float, width: int, style: str) -> str:
    return lanes(
        _recorded_lanes(timeline),
        span,
        width=width,
        title=f"Recorded timeline of {timeline.name}",
        unit=_UNIT.strip(),
        per_unit=_PER_SECOND,
        style=style,
    )


def html(timeline: Timeline) -> str:
    """The recorded step and the simulation of its loops, on one scale of time, with how each submesh spent it."""
    programs: dict[int, int] = defaultdict(int)
    for span in timeline.spans:
        programs[span.submesh] += span.source is None
    width = min(_MOST, max(_PAGE, 160 + _EACH * max(programs.values(), default=0)))
    # One scale for all, on which the longest has room: a simulated loop may end after the recorded step did.
    ends = [timeline.begin(loop) + each.makespan for loop, each in enumerate(timeline.simulations)]
    whole = max([timeline.makespan, *ends])
    parts = []
    merged = {span.stage: span.kind for span in timeline.spans if span.stage is not None and len(span.kind) > 1}
    for loop, simulation in enumerate(timeline.simulations):
        kinds = {stage: kind for (number, stage), kind in merged.items() if number == loop}
        mine = [span for span in timeline.spans if span.stage is not None and span.stage[0] == loop]
        took = max((span.end for span in mine), default=0.0) - timeline.begin(loop)
        picture = lanes(
            simulated_lanes(simulation, timeline.begin(loop), _UNIT, _PER_SECOND, kinds),
            whole,
            width=width,
            title=f"Simulated timeline of schedule {simulation.schedule.name}",
            unit=_UNIT.strip(),
            per_unit=_PER_SECOND,
            style="",
        )
        parts.append(
            f"<h2>Simulated: {escape(simulation.schedule.name)}</h2>\n"
            f"<p>With the median recorded time of each program and no time for transfers the loop takes "
            f"<b>{_ms(simulation.makespan)}</b> ({simulation.bubble_fraction:.1%} idle); recorded it took "
            f"<b>{_ms(took)}</b>.</p>\n"
            f"{scrolling(picture, 'Simulated timeline')}"
        )
    said = "".join(f"<p>{escape(line)}</p>\n" for line in timeline.of_processes())
    body = f"""<p>One step took <b>{_ms(timeline.makespan)}</b>, from the first program issued to the last result.</p>
{said}{_usage_table(timeline)}
<h2>Recorded</h2>
{scrolling(_recorded(timeline, whole, width, ""), "Recorded timeline")}
{chr(10).join(parts)}"""
    return document(f"Timeline of {timeline.name}", body, _STYLE)


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
        # One process of several does not know what others hold meanwhile, and its timeline has no simulations.
        live = _live(mine, timeline) if timeline.process is None else []
        peak = f"peak {max((held for _, held in live), default=0):g}" if timeline.process is None else ""
        result.append(Lane(f"submesh {submesh}", cells, live, peak, received))
    return result


def _live(spans: list[Span], timeline: Timeline) -> list[tuple[float, float]]:
    """The activations that a submesh holds over time, in the unit of `Simulation.live`."""
    held: dict[tuple[tuple[int, int], int], tuple[float, float]] = {}
    for span in spans:
        if span.stage is not None and span.microbatch is not None:
            start, end = held.get((span.stage, span.microbatch), (span.start, span.end))
            held[span.stage, span.microbatch] = min(start, span.start), max(end, span.end)
    changes: dict[float, float] = defaultdict(float)
    # On a busy machine a program may be seen to end when its arguments are seen to come.
    instants: dict[float, float] = defaultdict(float)
    for ((loop, _), _), (start, end) in held.items():
        schedule = timeline.simulations[loop].schedule
        share = schedule.num_submeshes / schedule.num_stages
        changes[start] += share
        changes[end] -= share
        instants[start] += share if start == end else 0.0
    times = sorted(changes)
    found: list[tuple[float, float]] = []
    for at, live in zip(times, accumulate(changes[at] for at in times), strict=True):
        found += [(at, live + instants[at])] if instants[at] else []
        found.append((at, live))
    return found


def _tip(span: Span) -> str:
    words = " and ".join(COLOURS[kind][2] for kind in span.kind)
    microbatch = "" if span.microbatch is None else f", microbatch {span.microbatch}"
    what = f"{span.name}: {words}" if words else span.name
    return f"{what}{microbatch}, {span.start * _PER_SECOND:.6g} to {span.end * _PER_SECOND:.6g}{_UNIT}"


def _usage_table(timeline: Timeline) -> str:
    keys = "".join(
        f'<th scope="col"><span class="key {words}"></span>{words}</th>' for words in ("compute", "transfer", "idle")
    )
    rows = "\n".join(_usage_row(usage, timeline.makespan) for usage in timeline.usage)
    return f'<table>\n<tr><th scope="col">submesh</th>{keys}<td class="bar"></td></tr>\n{rows}\n</table>'


def _usage_row(usage: Usage, makespan: float) -> str:
    cells, boxes, left = "", "", 0.0
    for seconds, kind in ((usage.compute, "compute"), (usage.transfer, "transfer"), (usage.idle, "idle")):
        share = 100 * seconds / makespan if makespan else 0.0
        cells += f"<td>{_ms(seconds)} ({share:.0f}%)</td>"
        boxes += f'<rect class="{kind}" x="{left:.2f}%" width="{share:.2f}%" height="14"/>'
        left += share
    bar = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="100%" height="14" role="img" aria-label="shares">{boxes}</svg>'
    )
    return f'<tr><td>{usage.submesh}</td>{cells}<td class="bar">{bar}</td></tr>'


def _ms(seconds: float) -> str:
    return f"{seconds * _PER_SECOND:.2f}{_UNIT}"
