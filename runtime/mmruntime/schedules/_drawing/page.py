"""A simulated step as an SVG picture and as one self-contained HTML page."""

from collections.abc import Mapping
from html import escape

from mmruntime.schedules._drawing.document import document, scrolling
from mmruntime.schedules._drawing.svg import COLOURS, DARK_STYLE, Lane, LaneCell, lanes
from mmruntime.schedules._simulate import Simulation


def svg(
    simulation: Simulation, *, width: int = 1200, merged: Mapping[int, str] | None = None, style: str = DARK_STYLE
) -> str:
    """The step as an SVG picture.

    A lane for each submesh: actions by colour and letter, idle time hatched, and below them the live activations as a
    step line. Cells of every other stage of a submesh have a dark foot. A tooltip shows the times of a cell.

    Args:
        simulation: The step to draw.
        width: Width in pixels. Labels are left out where a cell is too narrow.
        merged: For stages whose forward shares a program with other kinds of action: all of its kinds, such as "FB".
        style: Its style sheet; none for a page that has the rules itself.
    """
    _check("svg", simulation)
    title = f"Timeline of schedule {simulation.schedule.name}"
    rows = simulated_lanes(simulation, merged=merged)
    return lanes(rows, simulation.makespan, width=width, title=title, style=style)


def _check(function: str, simulation: object) -> None:
    if not isinstance(simulation, Simulation):
        raise TypeError(f"{function}: expected a Simulation, as simulate(schedule) returns it; got {simulation!r}.")


def simulated_lanes(
    simulation: Simulation,
    begin: float = 0.0,
    unit: str = "",
    per_unit: float = 1.0,
    merged: Mapping[int, str] | None = None,
) -> list[Lane]:
    """A lane for each submesh of a simulated step.

    Args:
        simulation: The step.
        begin: Its start on the time axis.
        unit: Unit of times in tooltips.
        per_unit: Factor from the simulation's times to that unit.
        merged: For stages whose forward shares a program with other kinds of action: all of its kinds, such as "FB".
    """
    merged = merged or {}
    schedule = simulation.schedule
    odd = schedule.odd_stages
    share = schedule.num_submeshes / schedule.num_stages
    result = []
    for submesh, row in enumerate(schedule.rows):
        cells = []
        held, live = 0.0, {0.0: 0.0}
        for action, start, end in zip(row, simulation.starts[submesh], simulation.ends[submesh], strict=True):
            words = COLOURS[action.kind][2]
            times = f"{(begin + start) * per_unit:.6g} to {(begin + end) * per_unit:.6g}{unit}"
            text = f"{action}: {words}, stage {action.stage}, microbatch {action.microbatch}, {times}"
            kinds = merged.get(action.stage, action.kind) if action.kind == "F" else action.kind
            if start < end or action.stage not in merged:
                cells.append(
                    LaneCell(begin + start, begin + end, kinds, text, action.microbatch, odd=action.stage in odd)
                )
            if action.kind == ("R" if (action.stage, action.microbatch) in schedule.recomputed else "F"):
                held += share
                live[begin + start] = held
            elif action.kind in "BW":
                held -= share
                live[begin + end] = held
        peak = f"peak {simulation.live[submesh]:g}"
        result.append(Lane(f"submesh {submesh}", cells, tuple(live.items()), peak))
    return result


def html(simulation: Simulation) -> str:
    """The step as one self-contained HTML page: the picture, its numbers, and the schedule as CSV."""
    _check("html", simulation)
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
    # Wide enough for labels in most cells.
    width = min(20_000, max(1200, 160 + 30 * actions // max(1, schedule.num_submeshes)))
    step = "with" if simulation.barrier else "without"
    body = f"""<p>{schedule.num_submeshes} submeshes, {schedule.num_stages} stages, {schedule.num_microbatches}
microbatches, {actions} actions. One step behind a barrier takes <b>{simulation.makespan:.6g}</b>, a step in the long
run without one <b>{simulation.steady:.6g}</b>. Idle ({step} a barrier): <b>{simulation.bubble_fraction:.1%}</b>.</p>
{scrolling(svg(simulation, width=width, style=""), "Timeline")}
<table>
<tr>{"".join(f'<th scope="col">{head}</th>' for head in heads)}</tr>
{chr(10).join(rows)}
</table>
<details><summary>The order as CSV</summary>
<pre>{escape(schedule.to_csv())}</pre></details>"""
    return document(f"Schedule {schedule.name}", body)
