"""Run again: what the forward pass of a stage makes for its backward pass alone, and may make a second time for it."""

from __future__ import annotations

from collections.abc import Iterable

from mmruntime._compat import Var, is_var
from mmruntime._jaxpr.ir import Step
from mmruntime._partition.pipeline.pipeline_stages import Stage
from mmruntime._partition.programs.segment import Segments


def remade(stage: Stage, step: Step, segments: Segments) -> tuple[Var, ...]:
    """What a forward pass that runs again makes: residuals that nothing but the stage's own backward pass reads.

    Nothing where it may not run again: it holds the backward pass too, as on the last stage, or has effects.
    """
    if why_not(stage):
        return ()
    own = {*stage.backward, *stage.weights}
    elsewhere = {var for each in segments if each not in own for var in each.reads}
    elsewhere.update(atom for atom in step.outvars if is_var(atom))
    for region in step.regions:
        elsewhere.update(result for _, result in region.sums)
        elsewhere.update(region.slices.values())
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
