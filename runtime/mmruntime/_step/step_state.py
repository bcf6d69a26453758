"""A step between two passes, with its programs and their layouts as soon as a pass asks for them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from mmruntime._core.multimesh import MultiMesh
from mmruntime._jaxpr.ir import Step
from mmruntime._partition.layouts.input_layouts import InputLayouts
from mmruntime._partition.layouts.propagate import PropagatedLayouts
from mmruntime._partition.layouts.shard import Shardings, propagate_segments
from mmruntime._partition.pipeline.loop_schedule import LoopSchedule
from mmruntime._partition.placement.place import Placement
from mmruntime._partition.programs.segment import Segments, segment
from mmruntime._partition.stacks.cut_stacks import Stacks
from mmruntime._partition.sums.delay_sums import DelayedSums


@dataclass(eq=False, frozen=True)
class StepState:
    """A step between two passes. A pass gives another one, by `changed`.

    Attributes:
        multimesh: The mesh that it is compiled for.
        whole: Whether it becomes one program.
        step: Its equations.
        placement: Where they run.
        inputs: What is known of the layouts of its inputs.
        stacks: How its inputs and results are stacked for the caller.
        delayed: What each loop adds up over devices, by its region.
        programs: Its programs, if they are others than those that its equations make by themselves.
        schedules: The schedule of each loop, by its region.
        propagated: What is known of the layouts of programs, of this state and all others.
    """

    multimesh: MultiMesh
    whole: bool
    step: Step
    placement: Placement
    inputs: InputLayouts
    stacks: Stacks
    delayed: Mapping[int, DelayedSums] = field(default_factory=dict)
    programs: Segments | None = None
    schedules: Mapping[int, LoopSchedule] = field(default_factory=dict)
    propagated: PropagatedLayouts = field(default_factory=PropagatedLayouts)

    @functools.cached_property
    def segments(self) -> Segments:
        """The programs."""
        return self.programs or segment(self.step, self.placement)

    @functools.cached_property
    def shardings(self) -> Shardings:
        """The layouts at the borders of the programs."""
        return propagate_segments(
            self.step, self.placement, self.multimesh, self.inputs, self.segments, self.propagated
        )

    @property
    def has_loops(self) -> bool:
        """Whether anything is done once for each microbatch."""
        return any(region.index_count > 1 for region in self.step.regions)

    @property
    def cuts_values(self) -> bool:
        """Whether a submesh has several devices, so that values on it can be cut."""
        return any(mesh.size > 1 for mesh in self.placement.submeshes.meshes)

    def changed(self, step: Step | None = None, placement: Placement | None = None, **changes: Any) -> StepState:
        """The state with another step, placement or attributes. Programs and layouts stay if they are still its own."""
        step, placement = step or self.step, placement or self.placement
        if step is not self.step or placement is not self.placement:
            return replace(self, **{"programs": None, **changes, "step": step, "placement": placement})
        after, known = replace(self, **changes), vars(self)
        if "segments" in known and after.programs in (None, known["segments"]):
            vars(after)["segments"] = known["segments"]
            if "shardings" in known and after.inputs is self.inputs:
                vars(after)["shardings"] = known["shardings"]
        return after
