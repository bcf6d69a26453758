"""`mmrewrite plan` as a value: what runs where, read from the source, and on request traced."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any

from mmrewrite.files.select import RewrittenProgram, select_files
from mmrewrite.files.walk import load_file
from mmrewrite.mirror.limits import USUAL, ProgramLimits
from mmrewrite.plan.fit import Fit, fit
from mmrewrite.plan.read_placement import devices_needed, may_place, read_regions, too_few_devices
from mmrewrite.plan.sections import PlanSection
from mmrewrite.plan.stages import plan_regions
from mmrewrite.plan.step_trace import NotPlanned as NotPlanned
from mmrewrite.plan.step_trace import Tracing, plan_entry, section_of
from mmrewrite.plan.traced_bytes import TracedBytes, traced_bytes
from mmrewrite.results import Rewrite
from mmrewrite.tracking import Tell, untold


@dataclass(frozen=True)
class PlanRequest:
    """What a plan needs besides the source.

    Attributes:
        microbatches: How many microbatches a batch is cut into, for loops whose source does not say.
        entry: The step to trace, as `module:function`; None to read the source only.
        arguments: The function that returns the step's arguments, as `module:function`.
        devices: Number of virtual devices for tracing; None for as many as the meshes need.
        measure: Whether to run the traced step and time its programs.
        limits: Bounds of the time, memory and output of the process that traces.
        memory: Bytes of each device, which the traced step should fit; None for no comparison.
    """

    microbatches: int | None
    entry: str | None
    arguments: str | None
    devices: int | None
    measure: bool
    limits: ProgramLimits = USUAL
    memory: int | None = None


@dataclass(frozen=True)
class Planned:
    """The plan.

    Attributes:
        sections: One for each mesh, and one for the traced step.
        traced: The runtime's document about the traced step; None if none was requested.
        problems: Errors and refusals of the rewrite, which say why something is missing.
        bytes: What the trace says about bytes; None if there is none.
        fit: Whether the traced step fits the memory of its devices; None if that was not asked.
    """

    sections: tuple[PlanSection, ...]
    traced: Mapping[str, Any] | None
    problems: tuple[str, ...]
    bytes: TracedBytes | None = None
    fit: Fit | None = None


def make_plan(
    program: RewrittenProgram,
    codemods: Sequence[str],
    request: PlanRequest,
    about: Set[str] | None = None,
    tell: Tell = untold,
) -> Planned:
    """Plan the rewritten files of a run, and those that call the runtime already.

    With `about`, the paths of some of them, only what these are a part of: of a mesh and its steps in other files too.
    `tell` takes what the process that traces says that it is doing.

    Raises:
        NotPlanned: If a step should be traced and cannot be.
    """
    files = select_files(program.paths, program.rules, may_place).files
    regions = read_regions(files, program.results, load_file, codemods)
    # A traced step has its own timeline, from the real stages.
    sections = plan_regions(regions, request.microbatches, simulate=request.entry is None)
    if about is not None:
        sections = tuple(section for section in sections if not about.isdisjoint(section.files))
    told = [result for result in program.results if about is None or result.path in about]
    problems = tuple(problem for result in told for problem in _problems(result))
    if request.entry is None or request.arguments is None:
        return Planned(sections, None, problems)
    few = too_few_devices(request.devices, regions)
    if few is not None:
        raise NotPlanned(few)
    devices = request.devices or devices_needed(regions)
    tracing = Tracing(request.entry, request.arguments, devices, request.measure, request.limits)
    traced = plan_entry(tracing, program, tell)
    known = traced_bytes(request.entry, request.arguments, traced, traced["sources"], program.results)
    fitting = None if request.memory is None else fit(traced, request.memory)
    section = section_of(tracing, traced, () if fitting is None else fitting.sentences)
    return Planned((*sections, section), traced, problems, known, fitting)


def _problems(result: Rewrite) -> list[str]:
    failure = [] if result.failure is None else [f"{result.path}: {result.failure}"]
    return [*failure, *map(str, result.errors), *map(str, result.refusals)]
