"""SVG: the one timeline of a plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mmrewrite.cli.reports import NotShown

if TYPE_CHECKING:
    from mmrewrite.plan.plan import Planned


def _plan(planned: Planned) -> str:
    """The timeline alone.

    Raises:
        NotShown: If there is not exactly one.
    """
    timelines = [timeline for section in planned.sections for timeline in section.timelines]
    drawable = [timeline for timeline in timelines if timeline.simulation is not None]
    if len(drawable) > 1:
        raise NotShown(
            f"SVG shows one timeline, and there are {len(drawable)} timelines; name the files of one of them"
        )
    if not drawable:
        reasons = "; ".join(note for timeline in timelines for note in timeline.notes)
        why = f": {reasons}" if reasons else ""
        raise NotShown(f"SVG shows one timeline, and there is no timeline to draw{why}")
    (timeline,) = drawable
    return timeline.as_svg(timeline.readable_width)


RENDERERS = {"plan": _plan}
