"""Text, for a terminal and for `git apply`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import click

from mmrewrite.cli.reports import RewriteReport
from mmrewrite.cli.reports._upgrade import UpgradePart, parts_of, sentence

if TYPE_CHECKING:
    from mmrewrite.modernize.upgrade import Upgrade
    from mmrewrite.plan.plan import Planned
    from mmrewrite.plan.sections import PlanGrid, PlanSection, PlanTable, PlanTimeline
    from mmrewrite.verify import Checked, Status, Verified

_TIMELINE_WIDTH = 120

_VERDICTS: Mapping[Status, str] = {
    "equal": "equal",
    "different": "NOT equal",
    "broken": "the rewritten program FAILS where the original runs",
    "not rewritten": "NOT proved: it reaches no rewritten hint; see the refusals",
    "not run": "NOT run",
}


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
    evidence = [
        f"This holds for the patch with SHA-256 {verified.patch}, the bytes that `mmrewrite diff` prints for the same "
        "paths:",
        *(f"  {file['path']}: {file['before'][:12]} becomes {file['after'][:12]}" for file in verified.files),
    ]
    rest = ["Not covered:", *(f"  {line}" for line in verified.not_covered)]
    return "\n\n".join([*map(_check, verified.checks), "\n".join(evidence), "\n".join(rest)]) + "\n"


def _codemods(summaries: Mapping[str, Mapping[str, str]]) -> str:
    """Codemods with their summaries, under the title of each list."""
    lines = []
    for title, listed in summaries.items():
        width = max(map(len, listed))
        lines += [title, *(f"  {name:<{width}}  {summary}" for name, summary in listed.items())]
    return "\n".join(lines) + "\n"


def _explain(page: str) -> str:
    return f"{page}\n"


def _upgrade(upgrade: Upgrade) -> str:
    return "\n\n".join([upgrade.summary, *map(_upgrade_part, parts_of(upgrade))]) + "\n"


def _upgrade_part(part: UpgradePart) -> str:
    return _lines(part.title, (f"{item.path}:{item.line}:{item.column}: {sentence(item)}" for item in part.items))


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
}


def _section(section: PlanSection) -> str:
    parts = [_lines(section.title, (*section.notes, *section.proofs))]
    parts += [_grid(section.grid)] if section.grid else []
    parts += [_table(table) for table in section.tables]
    parts += [_timeline(timeline) for timeline in section.timelines]
    return "\n\n".join(parts)


def _lines(title: str, notes: Iterable[str]) -> str:
    return "\n".join([title, *(f"  {note}" for note in notes)])


def _table(table: PlanTable) -> str:
    """Columns as wide as their widest cell, numbers to the right."""
    lines = [table.head, *table.rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(table.head))]
    numeric = table.numeric

    def text(line: Sequence[str]) -> str:
        cells = zip(line, widths, numeric, strict=True)
        return "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells).rstrip()

    return _lines(table.title, map(text, lines))


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
        parts.append(timeline.as_text(_TIMELINE_WIDTH))
        parts.append("\n".join(f"  {label}: {text}" for label, text in timeline.figures))
    return "\n\n".join(parts)


def _check(check: Checked) -> str:
    from mmrewrite.plan.sections import PlanTable

    title = f"{check.entry.step} with {check.entry.arguments} ({check.entry.place}): {_VERDICTS[check.status]}"
    parts = [_lines(title, filter(None, (check.where, *check.notes)))]
    for role, last_column in (("argument", "lives on"), ("result", "ends up on")):
        rows = tuple(_cells(row) for row in check.rows if row["role"] == role)
        if rows:
            head = (role, "shape", "type", "largest difference", "relative", last_column)
            parts.append(_table(PlanTable(f"{role.capitalize()}s", head, rows)))
    unequal = [f"{row['name']}: {row['problem']}" for row in check.rows if row["problem"]]
    parts += [_lines("Not equal", unequal)] if unequal else []
    parts += [check.problem] if check.problem else []
    parts += [check.details.rstrip()] if check.details else []
    return "\n\n".join(parts)


def _cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    shape = " x ".join(map(str, row["shape"])) or "scalar"
    differences = (_difference(row[key], row["problem"]) for key in ("absolute", "relative"))
    return (row["name"], shape, row["type"], *differences, row["where"] or "nowhere")


def _difference(value: float | None, problem: str | None) -> str:
    if value is None:
        return "?" if problem else "-"
    return f"{value:.2g}"
