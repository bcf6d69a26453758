"""The schedule that a `microbatch` hint names: whether it fits the stages of a `stages` hint, and how it is written."""

from __future__ import annotations

import ast

from mmrewrite.codemod.site import Site
from mmrewrite.directives.collect import Hint
from mmrewrite.directives.schedule_names import IN_TURNS, OF_THE_V
from mmrewrite.directives.sizes import size_in_python
from mmrewrite.directives.vocabulary import Role
from mmrewrite.project.facts import Facts
from mmrewrite.project.reach import holds, reach_of

# The axis whose slices are the stages where `stages` names no other.
STAGE = "stage"


def check_schedule(site: Site) -> None:
    """Report a schedule that the one loop over layers which the step runs cannot have.

    Where other hints place code too, their stages together may fit, and the runtime says whether they do.
    """
    schedule = site.hint.argument("schedule")
    if schedule is None or not isinstance(schedule.value, ast.Constant):
        return
    name = schedule.value.value
    if name not in IN_TURNS | OF_THE_V:
        return
    placing = _placing(site)
    if len(placing) != 1 or not placing[0][1].record.deals_layers:
        return
    ((facts, hint),) = placing
    where = f"`stages` on line {hint.reference.line}" + (f" of {facts.path}" if facts is not site.facts else "")
    if name in OF_THE_V and hint.argument("placement") is None:
        site.error(
            f'`{name}` needs stages in a V, and {where} makes others; write `placement="v"` there, or another schedule '
            'here, such as "1f1b"',
            schedule,
        )
    axis = stage_axis(hint)
    sizes = site.axis_sizes(axis) if axis is not None else []
    in_one_round = hint.argument("chunks") is None and hint.argument("placement") is None
    if name in IN_TURNS and in_one_round and sizes and min(sizes) > 1:
        site.error(
            f"`{name}` takes turns between several stages of a submesh, and {where} makes one on each; write "
            '`chunks=2` there, or "1f1b" here',
            schedule,
        )


def runtime_arguments(site: Site) -> dict[str, str]:
    """The arguments of the hint by name, as source text: `schedule="auto"` and `memory_bytes=` are one argument.

    Reports a bound beside a schedule that is not searched for.
    """
    found = {argument.name or "": argument.text for argument in site.hint.arguments}
    schedule, bound = site.hint.argument("schedule"), site.hint.argument("memory_bytes")
    if schedule is None or bound is None:
        return found
    if not isinstance(schedule.value, ast.Constant) or schedule.value.value != "auto":
        site.error(
            f'`memory_bytes=` bounds the search of schedule="auto", and `schedule={schedule.text}` is not searched '
            'for; write schedule="auto", or leave `memory_bytes=` out',
            bound,
        )
    value = bound.value
    size = value.value if isinstance(value, ast.Constant) else None
    text = size_in_python(size) if isinstance(size, str) else bound.text
    del found["memory_bytes"]
    return found | {"schedule": f"{site.runtime}.schedules.Auto(memory_bytes={text})"}


def stage_axis(hint: Hint) -> str | None:
    """The axis that a `stages` hint deals layers out over, None if it is computed."""
    axis = hint.argument("axis")
    if axis is None:
        return STAGE
    return str(axis.value.value) if isinstance(axis.value, ast.Constant) else None


def _placing(site: Site) -> list[tuple[Facts, Hint]]:
    """The hints that place code which the step of the site reaches."""
    known = [
        (facts, hint)
        for facts in site.project.facts.values()
        for hint in facts.hints.hints
        if hint.record.role is Role.PLACE
    ]
    if len(known) < 2:
        return known
    reached = list(reach_of(site.project).from_node(site.facts, site.facts.names.top_level(site.statement)))
    return [
        (facts, hint)
        for facts, hint in known
        if hint.record.whole_module or any(holds(item, facts, hint.statement) for item in reached)
    ]
