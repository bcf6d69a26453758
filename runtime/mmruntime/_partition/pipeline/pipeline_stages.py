"""Stages: the pipeline stages that the programs of a microbatch loop make, and which programs wait for which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from mmruntime._compat import Var
from mmruntime._jaxpr.ir import Step
from mmruntime._partition.programs.segment import Segment, Segments


@dataclass(eq=False, slots=True, frozen=True)
class Stage:
    """A pipeline stage.

    Attributes:
        forward: The program of its forward pass, and of its backward pass on the last stage.
        backward: The programs of its backward pass, or of their input halves.
        weights: The weight halves, where the backward pass is split.
    """

    forward: Segment
    backward: tuple[Segment, ...]
    weights: tuple[Segment, ...]


def pipeline_stages(
    segments: Sequence[Segment], waits: Mapping[Segment, tuple[Segment, ...]]
) -> tuple[tuple[Stage, ...], tuple[Segment, ...]]:
    """The stages of one variant of a loop's body, in order, and the programs that belong to none.

    Every forward program of a task is a stage. A backward program belongs to the stage whose residuals it reads. Glue,
    which has no task and reads no residuals, belongs to none, so that no metric counts as a stage of the model.

    Args:
        segments: The programs, ordered by level.
        waits: The programs that each program reads from.
    """
    forwards = [each for each in segments if each.forward and not each.submesh_varies]
    # A loop without tasks is one stage.
    forwards = [each for each in forwards if each.tasks] or forwards
    backwards: dict[Segment, list[Segment]] = defaultdict(list)
    weights: dict[Segment, list[Segment]] = defaultdict(list)
    others = []
    stage_of: dict[Segment, Segment] = {each: each for each in forwards}
    for each in segments:
        if each in stage_of:
            continue
        if each.submesh_varies:
            others.append(each)
            continue
        if each.input_half in stage_of:
            weights[stage_of[each.input_half]].append(each)
            continue
        here = [forward for forward in forwards if forward.submesh == each.submesh]
        with_residuals = [forward for forward in here if forward in waits[each]]
        # A linear stage leaves no residuals. Its backward program has its tasks.
        same = [forward for forward in here if set(forward.tasks) & set(each.tasks)]
        owners = with_residuals or same or (here if each.tasks else [])
        if each.backward and owners:
            stage_of[each] = owners[-1]
            backwards[stage_of[each]].append(each)
        else:
            others.append(each)
    stages = tuple(Stage(each, tuple(backwards[each]), tuple(weights[each])) for each in forwards)
    return stages, tuple(others)


def dependencies(
    segments: Sequence[Segment], made_on: Mapping[Var, tuple[int, ...]]
) -> dict[Segment, tuple[Segment, ...]]:
    """The programs that each program reads from.

    Args:
        segments: The programs.
        made_on: The submeshes that compute each variable; where a program does not find a variable on its own submesh,
            it comes from the first of these.
    """
    writer = {(var, each.submesh): each for each in segments for var in each.writes}
    waits = {}
    for each in segments:
        sources: dict[Segment, None] = {}
        for var in each.reads:
            source = writer.get((var, each.submesh)) or writer.get((var, made_on.get(var, (-1,))[0]))
            if source is not None:
                sources[source] = None
        waits[each] = tuple(sources)
    return waits


def remade(stage: Stage, step: Step, segments: Segments) -> tuple[Var, ...]:
    """What a forward pass that runs again makes: residuals that nothing but the stage's own backward pass reads.

    Nothing where it may not run again: it holds the backward pass too, as on the last stage, or has effects.
    """
    if why_not(stage):
        return ()
    own = {*stage.backward, *stage.weights}
    elsewhere = step.border().union(*(each.reads for each in segments if each not in own))
    return tuple(var for var in stage.forward.writes if var not in elsewhere)


def why_not(stage: Stage) -> str | None:
    """Why the forward pass of a stage may not run twice, None if it may."""
    if stage.forward.backward:
        return "its forward and backward passes are one program"
    if any(op.eqn.effects for op in stage.forward.ops):
        return "its forward pass has effects, such as a callback, which would happen twice"
    return None


def check_runs_again(stages: Iterable[tuple[int, Stage]], step: Step, segments: Segments, name: str) -> None:
    """Check that these stages of a schedule have something to gain from a second forward pass.

    Raises:
        ValueError: If one may not run twice, or makes nothing that its backward pass alone reads.
    """
    for number, stage in stages:
        why = why_not(stage)
        if why is None and not remade(stage, step, segments):
            why = "its backward pass reads nothing that its forward pass makes for it alone"
        if why is not None:
            raise ValueError(
                f"microbatch: the schedule {name!r} runs the forward pass of stage {number} again (R), but {why}. "
                "Leave its R actions out."
            )
