"""Text, for a terminal and for `git apply`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import click

from mmrewrite.cli.reports import _style as style
from mmrewrite.cli.reports._report import RewriteReport
from mmrewrite.cli.reports._told import Explanation, Initialized, RunLine, RunMessage
from mmrewrite.cli.reports._upgrade import UpgradePart, parts_of, sentence

if TYPE_CHECKING:
    from mmrewrite.modernize.upgrade import Upgrade
    from mmrewrite.plan.plan import Planned
    from mmrewrite.plan.sections import PlanGrid, PlanSection, PlanTable, PlanTimeline
    from mmrewrite.verify.verify import Verified

_TIMELINE_WIDTH = 120
_HEADINGS = ("To check", "Refused")


def _patch(report: RewriteReport) -> str | bytes:
    """A patch that git takes, as bytes: a file may be in any encoding."""
    if not report.shows_patch:
        return b""
    from mmrewrite.files.patch import patch_of

    data = patch_of(report.results, report.top)
    return _colored(data) if report.color else data


def _colored(patch: bytes) -> str:
    colors = {"+": "green", "-": "red", "@": "cyan"}
    heads = ("diff ", "--- ", "+++ ")
    return "".join(
        click.style(line, bold=True) if line.startswith(heads) else click.style(line, fg=colors.get(line[:1]))
        for line in patch.decode(errors="replace").splitlines(keepends=True)
    )


def _plan(planned: Planned) -> str:
    text = "\n\n\n".join(map(_section, planned.sections))
    return f"{text or 'Nothing in these files runs on a mesh.'}\n"


def _verify(verified: Verified) -> str:
    from mmrewrite.cli.reports._verify_text import verify_text

    return verify_text(verified)


def _codemods(summaries: Mapping[str, Mapping[str, str]]) -> str:
    """Codemods with their summaries, under the title of each list."""
    lines = []
    for title, listed in summaries.items():
        width = max(map(len, listed))
        lines += [style.title(title)]
        lines += [f"  {style.name(name)}{'':{width - len(name)}}  {summary}" for name, summary in listed.items()]
    return "\n".join(lines) + "\n"


def _explain(explanation: Explanation) -> str:
    first, *rest = explanation.lines
    return "\n".join([style.title(first), *map(_explained, rest)]) + "\n"


def _explained(line: str) -> str:
    """A line of an explanation, with its first words as a heading where it has one."""
    heading, colon, text = line.partition(":")
    return f"{style.head(heading + colon)}{text}" if colon and heading in _HEADINGS else line


def _init(initialized: Initialized) -> str:
    """The section itself; where it was written, a message says so and nothing is printed."""
    if initialized.is_written:
        return ""
    lines = initialized.content.splitlines(keepends=True)
    return "".join(click.style(line, dim=True) if line.startswith("#") else line for line in lines)


def _run(event: RunLine | RunMessage) -> bytes:
    if isinstance(event, RunLine):
        prefix = f"[{event.process:{event.width}}]"
        return (style.name(prefix) if event.color else prefix).encode() + b" %s\n" % event.data
    speaker = "mmrewrite run:"
    return f"{style.title(speaker) if event.color else speaker} {event.text}\n".encode() if event.text else b""


def _upgrade(upgrade: Upgrade) -> str:
    return "\n\n".join([style.title(upgrade.summary), *map(_upgrade_part, parts_of(upgrade))]) + "\n"


def _upgrade_part(part: UpgradePart) -> str:
    return _lines(
        part.title,
        (f"{style.place(f'{item.path}:{item.line}:{item.column}')}: {sentence(item)}" for item in part.items),
    )


RENDERERS = {
    "diff": _patch,
    "check": _patch,
    "apply": _patch,
    "build": _patch,
    "modernize": _patch,
    "plan": _plan,
    "verify": _verify,
    "modernize --upgrade-to": _upgrade,
    "codemods": _codemods,
    "explain": _explain,
    "init": _init,
    "run": _run,
}


def _section(section: PlanSection) -> str:
    parts = [_lines(section.title, (*section.notes, *section.proofs))]
    parts += [_grid(section.grid)] if section.grid else []
    parts += [_table(table) for table in section.tables]
    parts += [_timeline(timeline) for timeline in section.timelines]
    return "\n\n".join(parts)


def _lines(title: str, notes: Iterable[str]) -> str:
    return "\n".join([style.title(title), *(f"  {note}" for note in notes)])


def _table(table: PlanTable) -> str:
    """Columns as wide as their widest cell, numbers to the right."""
    lines = [table.head, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.head))]
    numeric = table.numeric

    def text(line: Sequence[str]) -> str:
        cells = zip(line, widths, numeric, strict=True)
        return "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells).rstrip()

    first, *rest = map(text, lines)
    return _lines(table.title, (style.head(first), *rest))


def _grid(grid: PlanGrid) -> str:
    from mmrewrite.plan.sections import PlanTable

    rows = []
    for row, name in enumerate(grid.rows):
        cells = [grid.cell(row, column) for column in range(len(grid.columns))]
        rows.append((name, *(f"{device}{_owners(owners)}" for device, owners in cells)))
    return _table(PlanTable(grid.title, ("", *grid.columns), tuple(rows)))


def _owners(owners: Sequence[int]) -> str:
    return f" (submesh {', '.join(map(str, owners))})" if owners else ""


def _timeline(timeline: PlanTimeline) -> str:
    parts = [_lines(timeline.title, timeline.notes)]
    if timeline.simulation is not None:
        parts.append(style.timeline(timeline.as_text(_TIMELINE_WIDTH)))
        parts.append("\n".join(f"  {label}: {text}" for label, text in timeline.figures))
    return "\n\n".join(parts)
