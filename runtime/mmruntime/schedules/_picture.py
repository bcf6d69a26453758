"""A simulated step as an SVG picture and as one self-contained HTML page."""

import math
from html import escape

from ._simulate import Simulation

# Okabe and Ito's palette, which people with the common kinds of colour blindness can tell apart, and a text colour
# that can be read on each. The letter in the cell says the same.
_COLOURS = {
    "F": ("#56b4e9", "#000", "forward"),
    "B": ("#e69f00", "#000", "whole backward"),
    "I": ("#009e73", "#000", "backward, input half"),
    "W": ("#cc79a7", "#000", "backward, weight half"),
}
_LEFT, _TOP, _ROW, _LIVE, _GAP = 96, 34, 26, 22, 12


def svg(simulation: Simulation, *, width: int = 1200) -> str:
    """The step as an SVG picture.

    A row for each submesh: actions by colour and letter, idle time hatched, and below it the live activations as a
    step line. Cells of every other stage of a submesh have a dark foot. Hovering over a cell shows its times.

    Args:
        simulation: What to draw.
        width: Width in pixels. Labels are left out where a cell is too narrow.
    """
    schedule = simulation.schedule
    span = simulation.makespan or 1.0
    right = 64
    scale = (width - _LEFT - right) / span
    pitch = _ROW + _LIVE + _GAP
    bottom = _TOP + pitch * schedule.num_submeshes
    height = bottom + 24
    odd = schedule.odd_stages
    # Characters of the longest label: labels are left out for all cells of a width or for none.
    longest = 1 + len(str(schedule.num_microbatches - 1))
    highest = max(1e-9, *simulation.live)
    unit = schedule.num_submeshes / schedule.num_stages
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        'font-family="system-ui, sans-serif" font-size="12" role="img" '
        f'aria-label="Timeline of schedule {escape(schedule.name)}">',
        '<defs><pattern id="idle" width="6" height="6" patternUnits="userSpaceOnUse" patternTransform="rotate(45)">'
        '<rect width="6" height="6" fill="#f4f4f4"/><line x1="0" y1="0" x2="0" y2="6" stroke="#c8c8c8" '
        'stroke-width="1.5"/></pattern></defs>',
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    kinds = {action.kind for row in schedule.rows for action in row}
    legend = _LEFT
    for kind, (fill, ink, words) in _COLOURS.items():
        if kind in kinds:
            parts.append(_box(legend, 8, 16, 16, fill) + _text(legend + 8, 20, kind, ink, anchor="middle"))
            parts.append(_text(legend + 22, 20, words))
            legend += 40 + 7 * len(words)
    parts.append(_box(legend, 8, 16, 16, "url(#idle)") + _text(legend + 22, 20, "idle"))
    if odd:
        parts.append(_box(legend + 68, 20, 16, 4, "#000", opacity=0.55))
        parts.append(_text(legend + 90, 20, "every other stage of a submesh"))
    for submesh, row in enumerate(schedule.rows):
        top = _TOP + pitch * submesh
        floor = top + _ROW + _LIVE
        parts.append(_text(_LEFT - 8, top + 18, f"submesh {submesh}", anchor="end"))
        parts.append(_text(_LEFT - 8, floor - 4, "live", "#555", anchor="end"))
        parts.append(_box(_LEFT, top, span * scale, _ROW, "url(#idle)"))
        held, steps = 0.0, {0.0: 0.0}
        for action, start, end in zip(row, simulation.starts[submesh], simulation.ends[submesh], strict=True):
            fill, ink, words = _COLOURS[action.kind]
            left, size = _LEFT + start * scale, (end - start) * scale
            tip = f"{action}: {words}, stage {action.stage}, microbatch {action.microbatch}, {start:.6g} to {end:.6g}"
            foot = _box(left, top + _ROW - 4, size, 4, "#000", opacity=0.55) if action.stage in odd else ""
            label = f"{action.kind}{action.microbatch}" if size >= 7 * longest + 2 else ""
            if not label and size >= 7 * longest - 5:
                label = str(action.microbatch)
            parts.append(
                f"<g><title>{tip}</title>{_box(left, top, size, _ROW, fill, stroke='#fff')}{foot}"
                + (_text(left + size / 2, top + 16, label, ink, anchor="middle", size=11) if label else "")
                + "</g>"
            )
            if action.kind == "F":
                held += unit
                steps[start] = held
            elif action.kind in "BW":
                held -= unit
                steps[end] = held
        line = "".join(
            f"H{_LEFT + at * scale:.2f}V{floor - (_LIVE - 4) * live / highest:.2f}" for at, live in steps.items()
        )
        parts.append(
            f'<path d="M{_LEFT} {floor}{line}H{_LEFT + span * scale:.2f}V{floor}Z" fill="#d9d9d9" stroke="#555"/>'
        )
        parts.append(_text(_LEFT + span * scale + 6, floor - 4, f"peak {simulation.live[submesh]:g}", "#555"))
    for tick in _ticks(simulation.makespan):
        place = _LEFT + tick * scale
        parts.append(f'<line x1="{place:.2f}" y1="{bottom - 6}" x2="{place:.2f}" y2="{bottom}" stroke="#555"/>')
        parts.append(_text(place, bottom + 14, f"{tick:g}", "#555", anchor="middle"))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def html(simulation: Simulation) -> str:
    """The step as one HTML page that needs nothing else: the picture, its numbers, and the schedule as CSV."""
    schedule = simulation.schedule
    has_bytes = simulation.peak_bytes is not None
    rows = []
    for submesh in range(schedule.num_submeshes):
        stages = map(str, schedule.stages_of(submesh))
        cells = [
            str(submesh),
            ", ".join(stages),
            f"{simulation.busy[submesh]:.6g}",
            f"{simulation.bubbles[submesh]:.6g}",
            f"{simulation.live[submesh]:g}",
        ]
        if simulation.peak_bytes is not None:
            cells.append(f"{simulation.peak_bytes[submesh]:,.0f}")
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    heads = ["submesh", "stages", "busy", "idle", "peak live", *(["peak bytes"] if has_bytes else [])]
    actions = sum(map(len, schedule.rows))
    # Cells are at least so wide that most have a label.
    width = min(20_000, max(1200, 160 + 30 * actions // max(1, schedule.num_submeshes)))
    step = "with" if simulation.barrier else "without"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<title>Schedule {escape(schedule.name)}</title>
<style>
body {{ font: 15px/1.5 system-ui, sans-serif; color: #222; background: #fff; margin: 2rem; }}
h1 {{ font-size: 1.4rem; margin: 0 0 .5rem; }}
table {{ border-collapse: collapse; margin: 1rem 0; }}
th, td {{ padding: .2rem .8rem; border-bottom: 1px solid #ddd; text-align: right; font-variant-numeric: tabular-nums; }}
.wide {{ overflow-x: auto; border: 1px solid #ddd; }}
pre {{ overflow-x: auto; background: #f4f4f4; padding: .8rem; }}
</style>
</head>
<body>
<h1>Schedule {escape(schedule.name)}</h1>
<p>{schedule.num_submeshes} submeshes, {schedule.num_stages} stages, {schedule.num_microbatches} microbatches,
{actions} actions. One step behind a barrier takes <b>{simulation.makespan:.6g}</b>, a step in the long run without
one <b>{simulation.steady:.6g}</b>. Idle ({step} a barrier): <b>{simulation.bubble_fraction:.1%}</b>.</p>
<div class="wide">
{svg(simulation, width=width)}</div>
<table>
<tr>{"".join(f"<th>{head}</th>" for head in heads)}</tr>
{chr(10).join(rows)}
</table>
<details><summary>The order as CSV</summary>
<pre>{escape(schedule.to_csv())}</pre></details>
</body>
</html>
"""


def _ticks(span: float) -> list[float]:
    """Round times from 0 to `span`, about ten of them."""
    if not span:
        return [0.0]
    rough = span / 10
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [index * step for index in range(math.floor(span / step * (1 + 1e-9)) + 1)]


def _box(
    left: float, top: float, width: float, height: float, fill: str, *, stroke: str = "", opacity: float = 1
) -> str:
    return (
        f'<rect x="{left:.2f}" y="{top}" width="{width:.2f}" height="{height}" fill="{fill}"'
        + (f' stroke="{stroke}" stroke-width="0.5"' if stroke else "")
        + (f' fill-opacity="{opacity}"' if opacity < 1 else "")
        + "/>"
    )


def _text(left: float, base: float, words: str, ink: str = "#222", *, anchor: str = "start", size: int = 12) -> str:
    return (
        f'<text x="{left:.2f}" y="{base}" fill="{ink}" text-anchor="{anchor}" font-size="{size}">{escape(words)}</text>'
    )
