"""Has the sites of one region rewritten together, or left together, where their style asks for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from mmrewrite.modernize.analysis.mesh_regions import MeshRegions
from mmrewrite.modernize.rewrite import Codemods
from mmrewrite.modernize.site import Context
from mmrewrite.results import Refusal

if TYPE_CHECKING:
    from mmrewrite.modernize.decide import Decision

DRAWN = "left as it is, because what one mesh context reaches is rewritten together"

Judge = Callable[["Decision"], "Decision"]


def is_drawn(decision: Decision) -> bool:
    """Whether a site stays only because others do."""
    return decision.refusal is not None and decision.refusal.reason.startswith(DRAWN)


def decide_together(
    decisions: Sequence[Decision], context: Context, codemods: Codemods, judge: Judge
) -> list[Decision]:
    """The decisions, where no region is rewritten in part in a style that does not allow it.

    A region of which a site stays takes the compat style, in which each stands by itself, and is judged again; where it
    cannot, all of it stays.
    """
    if not any(codemods[decision.codemod].regional for decision in decisions):
        return list(decisions)
    regions = context.analysis(MeshRegions)
    changed = {number for number in _causes(decisions, regions, codemods) if regions.make_compat(number)}
    decisions = [
        judge(decision)
        if codemods[decision.codemod].regional and regions.group(decision.place.node) in changed
        else decision
        for decision in decisions
    ]
    causes = _causes(decisions, regions, codemods)
    return [_drawn(decision, regions, causes, codemods) for decision in decisions]


def _causes(decisions: Sequence[Decision], regions: MeshRegions, codemods: Codemods) -> dict[int, Decision]:
    """The first site of each region that stays for a reason of its own."""
    causes: dict[int, Decision] = {}
    for decision in decisions:
        number = regions.group(decision.place.node)
        if codemods[decision.codemod].regional and number is not None and decision.stays and not is_drawn(decision):
            causes.setdefault(number, decision)
    return causes


def _drawn(decision: Decision, regions: MeshRegions, causes: dict[int, Decision], codemods: Codemods) -> Decision:
    place = decision.place
    number = regions.group(place.node)
    cause = causes.get(number) if number is not None else None
    stays = decision.stays and not is_drawn(decision)
    if cause is None or stays or regions.stands_by_itself(place.node) or not codemods[decision.codemod].regional:
        return decision
    source = place.module.facts.source
    line, column = source.position(
        source.offset(getattr(place.node, "lineno", 1), getattr(place.node, "col_offset", 0))
    )
    reason = f"{DRAWN}: {cause.place.path}:{getattr(cause.place.node, 'lineno', 1)} stays as it is"
    return replace(decision, refusal=Refusal(place.path, line, column, reason, decision.codemod))
