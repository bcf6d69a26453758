"""Text, for a terminal and for `git apply`."""

from __future__ import annotations

import itertools
import os
import shutil
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from mmrewrite.cli.terminal import style

if TYPE_CHECKING:
    from mmrewrite.cli.reports._messages import Explanation, Initialized, RunLine, RunMessage
    from mmrewrite.cli.reports._rewrite_report import RewriteReport
    from mmrewrite.cli.reports._upgrade import UpgradePart
    from mmrewrite.cli.upgrade import Upgrade
    from mmrewrite.plan.plan import Planned
    from mmrewrite.plan.sections import PlanGrid, PlanSection, PlanTable, PlanTimeline
    from mmrewrite.suggest.comparison import Suggested
    from mmrewrite.verify.verify import Verified

# Characters to a line where no terminal says how many it has.
_TABLE_WIDTH, _TIMELINE_WIDTH = 80, 120
# Columns that may have lines of their own in a table that is too wide.
_WIDE = 30
_HEADINGS = ("To check", "Refused")


def _patch(report: RewriteReport) -> str | bytes:
    """A patch that git takes, as bytes: a file may be in any encoding."""
    if not (report.shows_patch or report.mirror):
        return b""
    from mmrewrite.files.patch import patch_of, replacement_patch

    data = patch_of(report.results, report.top) if report.shows_patch else b""
    for path, old, new in report.mirror:
        data += replacement_patch(old, new, os.path.relpath(path, report.top).replace(os.sep, "/"))
    return _colored(data) if report.color else data


def _colored(patch: bytes) -> str:
    colors = {"+": "green", "-": "red", "@": "cyan"}
    heads = ("diff ", "--- ", "+++ ")
    return "".join(
        style.styled(line, bold=True) if line.startswith(heads) else style.styled(line, fg=colors.get(line[:1]))
        for line in patch.decode(errors="replace").splitlines(keepends=True)
    )


def _plan(planned: Planned) -> str:
    from mmrewrite.cli.reports._review import nothing_planned

    text = "\n\n\n".join(map(_section, planned.sections))
    return f"{text or nothing_planned(refused=bool(planned.problems))}\n"


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
    return "".join(style.styled(line, dim=True) if line.startswith("#") else line for line in lines)


def _run(event: RunLine | RunMessage) -> bytes:
    from mmrewrite.cli.reports._messages import RunLine

    if isinstance(event, RunLine):
        prefix = f"[{event.process:{event.width}}]"
        return (style.visible(style.name(prefix)) if event.color else prefix).encode() + b" %s\n" % event.data
    speaker = "mmrewrite run:"
    return (
        f"{style.visible(style.title(speaker)) if event.color else speaker} {event.text}\n".encode()
        if event.text
        else b""
    )


def _upgrade(upgrade: Upgrade) -> str:
    from mmrewrite.cli.reports._upgrade import overview, parts_of

    head = _lines(upgrade.summary, overview(upgrade))
    return "\n\n".join([head, *map(_upgrade_part, parts_of(upgrade))]) + "\n"


def _upgrade_part(part: UpgradePart) -> str:
    lines = []
    for each in part.paragraphs:
        lines.append(f"{style.place(each.place)}: {each.sentence}")
        lines += [f"  {each.others}"] if each.others else []
    return _lines(part.title, lines)


def _suggest(suggested: Suggested) -> str:
    from mmrewrite.suggest.output import as_text

    return as_text(suggested)


RENDERERS = {
    "diff": _patch,
    "check": _patch,
    "apply": _patch,
    "build": _patch,
    "modernize": _patch,
    "plan": _plan,
    "suggest": _suggest,
    "verify": _verify,
    "modernize --upgrade-to": _upgrade,
    "codemods": _codemods,
    "explain": _explain,
    "init": _init,
    "run": _run,
}


def _section(section: PlanSection) -> str:
    remarks = (line for text in (*section.notes, *section.proofs) for line in wrapped(text, _indent(text)))
    parts = [_lines(section.title, remarks)]
    parts += [_grid(section.grid)] if section.grid else []
    parts += [_table(table) for table in section.tables]
    parts += [_timeline(timeline) for timeline in section.timelines]
    return "\n\n".join(parts)


def _lines(title: str, notes: Iterable[str]) -> str:
    return "\n".join([style.title(title), *(f"  {note}" for note in notes)])


def _table(table: PlanTable) -> str:
    """Columns as wide as their widest cell, numbers to the right. Cells that do not fit get lines of their own.

    Where a table is too wide, heads take several lines, and a column that says the same of every row is said once,
    above. Of what else does not fit, the widest first, rows that agree on it stand together under it, and where few do,
    each has its own below.
    """
    most = _columns(_TABLE_WIDTH) - 2
    numeric = table.numeric
    columns = list(range(len(table.head)))
    widths = [max(len(line[column]) for line in (table.head, *table.rows)) for column in columns]
    heads = [[head] for head in table.head]

    def is_wide(indent: int = 0) -> bool:
        return sum(widths[column] + 2 for column in columns) - 2 > most - indent

    def said(line: Sequence[str], of: Sequence[int]) -> str:
        return "; ".join(f"{table.head[column]}: {line[column]}" for column in of)

    def text(line: Sequence[str]) -> str:
        cells = [(line[column], widths[column], numeric[column]) for column in columns]
        return "  ".join(cell.rjust(width) if right else cell.ljust(width) for cell, width, right in cells).rstrip()

    lines: list[str] = []
    if is_wide():
        for column in columns:
            cells = max((len(row[column]) for row in table.rows), default=0)
            heads[column] = textwrap.wrap(table.head[column], max(cells, 1), break_long_words=False) or [""]
            widths[column] = max(cells, *map(len, heads[column]))
    if is_wide() and len(table.rows) > 1:
        same = [column for column in columns[1:] if len({row[column] for row in table.rows}) == 1]
        columns = [column for column in columns if column not in same]
        lines += wrapped(f"in every row: {said(table.rows[0], same)}", "") if same else []
    aside: list[int] = []
    while is_wide(2) and (wide := [column for column in columns[1:] if widths[column] > _WIDE]):
        aside.append(max(wide, key=lambda column: widths[column]))
        columns.remove(aside[-1])
    # What still does not fit goes with it, and a long first column has lines to itself.
    first_alone = is_wide(2) and widths[0] > _WIDE
    columns = columns[1:] if first_alone else columns
    while is_wide(6) and len(columns) > 1:
        aside.append(columns.pop())
    aside.sort()
    groups = [(key, list(rows)) for key, rows in itertools.groupby(table.rows, lambda row: said(row, aside))]
    stand_together = bool(aside) and len(groups) * 2 <= len(table.rows)
    indent = "  " if stand_together else ""
    lines += [indent + style.head(table.head[0])] if first_alone else []
    height = max(len(heads[column]) for column in columns)
    for number in range(height):
        # Heads end on one line, above the cells.
        above = [head[number - height + len(head)] if number >= height - len(head) else "" for head in heads]
        lines.append(f"{indent}{'  ' if first_alone else ''}{style.head(text(above))}")
    for key, rows in groups:
        lines += wrapped(key, "") if stand_together else []
        for row in rows:
            lines += [indent + row[0], f"{indent}  {text(row)}"] if first_alone else [indent + text(row)]
            lines += wrapped(key, "    ") if aside and not stand_together else []
    return _lines(table.title, lines)


def _indent(text: str) -> str:
    return text[: len(text) - len(text.lstrip())]


def _columns(otherwise: int) -> int:
    """The characters to a line of the terminal, if this is one."""
    return shutil.get_terminal_size((otherwise, 24)).columns


def wrapped(text: str, indent: str, width: int | None = None) -> list[str]:
    """The lines of a text, by default as wide as the terminal; names and paths stay whole, to be searched for."""
    return textwrap.wrap(
        text.lstrip(),
        width or _columns(_TABLE_WIDTH) - 2,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


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
    width = min(_TIMELINE_WIDTH, _columns(_TIMELINE_WIDTH))
    parts = [_lines(timeline.title, [line for note in timeline.notes for line in wrapped(note, "", width - 2)])]
    if timeline.simulation is not None:
        parts.append(style.timeline(timeline.as_text(width)))
        parts.append("\n".join(f"  {label}: {text}" for label, text in timeline.figures))
    return "\n\n".join(parts)
