"""All that `mmrewrite plan` shows, made from one run over the sources: as text, JSON, SVG and HTML."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mmrewrite.files.select import Rules, load_file, select_files
from mmrewrite.files.write import write_new
from mmrewrite.plan.html import page, readable_width
from mmrewrite.plan.read_placement import devices_needed, may_place, read_regions
from mmrewrite.plan.sections import Section, document, timelines_of
from mmrewrite.plan.stages import plan_regions
from mmrewrite.plan.traced import NotPlanned as NotPlanned
from mmrewrite.plan.traced import Tracing, plan_entry, section_of
from mmrewrite.results import Rewrite

_FORMAT = 1


@dataclass(frozen=True)
class Wanted:
    """What to plan beyond the source: `microbatches` where it does not tell, and a step to trace, if any."""

    microbatches: int | None
    entry: str | None
    arguments: str | None
    devices: int | None
    measure: bool


@dataclass(frozen=True)
class Planned:
    """The plan. `traced` is what tracing the step found, None where none was asked for."""

    sections: tuple[Section, ...]
    traced: Mapping[str, Any] | None
    problems: tuple[str, ...]

    def text(self) -> str:
        """For a terminal."""
        return "\n\n\n".join(map(str, self.sections))

    def json(self) -> str:
        """For other programs."""
        content = {
            "format": _FORMAT,
            "sections": document(self.sections),
            "traced": self.traced,
            "problems": self.problems,
        }
        return json.dumps(content, indent=2)

    def html(self) -> str:
        """As one page."""
        return page(self.sections, self.problems)

    def svg(self) -> str:
        """The timeline alone.

        Raises:
            NotPlanned: If there is not exactly one.
        """
        from mmruntime import schedules

        found = timelines_of(self.sections)
        if len(found) != 1:
            reasons = [note for section in self.sections for each in section.timelines for note in each.notes]
            why = f": {'; '.join(reasons)}" if reasons and not found else ""
            what = "no timeline to draw" if not found else f"{len(found)} timelines; name the files of one of them"
            raise NotPlanned(f"--svg draws one timeline, and there is {what}{why}")
        simulation = found[0].simulation
        assert simulation is not None
        return schedules.svg(simulation, width=readable_width(simulation))


def make_plan(
    paths: Sequence[str], rules: Rules, results: Sequence[Rewrite], codemods: Sequence[str], wanted: Wanted
) -> Planned:
    """Plan what the run over `paths` rewrote, and what in them calls the runtime already.

    Raises:
        NotPlanned: If a step was to be traced and cannot be.
    """
    files = select_files(paths, rules, may_place).files
    regions = read_regions(files, results, load_file, codemods)
    sections = plan_regions(regions, wanted.microbatches, simulate=wanted.entry is None)
    problems = [problem for result in results for problem in _problems(result)]
    if wanted.entry is None or wanted.arguments is None:
        return Planned(sections, None, tuple(problems))
    devices = wanted.devices or devices_needed(regions)
    tracing = Tracing(wanted.entry, wanted.arguments, devices, wanted.measure)
    traced = plan_entry(tracing, paths, rules, results)
    return Planned((*sections, section_of(tracing, traced)), traced, tuple(problems))


def _problems(result: Rewrite) -> list[str]:
    failure = [] if result.failure is None else [f"{result.path}: {result.failure}"]
    return [*failure, *map(str, result.errors), *map(str, result.refusals)]


def write_picture(path: str, text: str) -> None:
    """Write a whole file, replacing what was there.

    Raises:
        NotPlanned: If it cannot be written.
    """
    folder = os.path.dirname(os.path.abspath(path))
    if not os.path.isdir(folder):
        raise NotPlanned(f"{path}: there is no folder {folder}; make it first")
    if os.path.isdir(path):
        raise NotPlanned(f"{path} is a folder; name a file in it")
    try:
        write_new(os.path.abspath(path), text.encode())
    except OSError as error:
        raise NotPlanned(f"{path}: not written: {error.strerror or error}") from None
