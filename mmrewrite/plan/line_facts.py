"""What the plan knows about one line of a source: its mesh, step, tasks with their submeshes, and schedules."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from mmrewrite.plan.sections import PlanSection, PlanTable, PlanTimeline
from mmrewrite.plan.sites import SourceLine
from mmrewrite.plan.stages import UNREACHED

_SUBMESHES = "Submeshes"


def line_facts(sections: Iterable[PlanSection], place: SourceLine) -> Iterator[str]:
    """Items of a list in Markdown about a line, as far as the source shows them; none if the plan has nothing there."""
    for section in sections:
        is_mesh = section.title.startswith(f"{place}:")
        known = [] if not is_mesh else [f"- {section.title.removeprefix(f'{place}:').strip()}"]
        for table in section.tables:
            known += [_sentence(table, row, section) for row in table.rows if row[0] == str(place)]
        for timeline in section.timelines:
            if timeline.title.startswith(f"{place}:"):
                known += _schedule(timeline)
        if known and section.title == UNREACHED:
            known.append("- No step of these files reaches this line, so its mesh is unknown.")
        elif known and not is_mesh:
            known.append(f"- **Runs on** {section.title}")
        if known:
            known += [f"- Note: {note}" for note in section.notes]
        yield from known


def _sentence(table: PlanTable, row: tuple[str, ...], section: PlanSection) -> str:
    if len(table.head) == 2:
        return f"- {table.title}: `{row[1]}`"
    cells = [f"{head}: {cell}" for head, cell in zip(table.head[1:], row[1:], strict=True) if cell != "-"]
    submesh = next(
        (
            f"submesh {found[0]}, devices {found[2]}"
            for other in section.tables
            if other.title == _SUBMESHES
            for found in other.rows
            if found[1] == row[-1]
        ),
        None,
    )
    return "\n".join([f"- **{table.title}**", *(f"  - {cell}" for cell in ([*cells, submesh] if submesh else cells))])


def _schedule(timeline: PlanTimeline) -> Iterator[str]:
    if timeline.simulation is not None:
        schedule = timeline.simulation.schedule
        yield (
            f"- **Schedule {schedule.name}**: {schedule.num_stages} stages on {schedule.num_submeshes} submeshes, "
            f"{schedule.num_microbatches} microbatches"
        )
        yield from (f"  - {label}: {text}" for label, text in timeline.figures)
    yield from (f"- Note: {note}" for note in timeline.notes)
