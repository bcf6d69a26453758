"""Markdown: one comment for a pull request, with the changes, their reasons, and what was refused.

It stays below the 65,536 characters that GitHub takes for a comment: diffs that do not fit are named instead.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import TYPE_CHECKING

from mmrewrite.cli.reports._evidence import CheckedRow, ShownEvidence, evidence_of, verified_evidence
from mmrewrite.cli.reports._messages import Explanation
from mmrewrite.cli.reports._review import (
    NOTHING_TO_VERIFY,
    UNTRACED,
    UNVERIFIED,
    Finding,
    Paragraph,
    checks,
    completeness,
    findings,
    hunks,
    paragraphs,
    reasons,
    relative,
)
from mmrewrite.cli.reports._rewrite_report import RewriteReport
from mmrewrite.cli.reports._upgrade import overview, parts_of
from mmrewrite.results import Edit, Rewrite, counted

if TYPE_CHECKING:
    from mmrewrite.cli.upgrade import Upgrade
    from mmrewrite.plan.sections import PlanSection, PlanTable
    from mmrewrite.suggest.comparison import Suggested
    from mmrewrite.verify.verify import Verified

_LIMIT, _MOST = 60_000, 65_000
_MANY = 20
_TIMELINE_WIDTH = 120


def _modernized(report: RewriteReport) -> str:
    """The comment without the names of codemods behind messages, which nobody has written there."""
    return _comment(report, names=False)


def _comment(report: RewriteReport, *, names: bool = True) -> str:
    parts = [f"### mmrewrite: {_text(str(completeness(report)))}"]
    changed = [result for result in report.results if result.changed]
    parts.append(f"{counted(len(changed), 'file')} {report.verb}.")
    parts += [_list("Out of date", map(_text, report.problems))] if report.problems else []
    found = findings(report)
    parts += _findings("Errors", [each for each in found if each.kind == "error"], names=names)
    refused = [each for each in found if each.kind == "refusal"]
    parts += _findings("Refused", [each for each in refused if not each.is_consequence], names=names)
    parts += _consequences([each for each in refused if each.is_consequence])
    tail = [*_planned(report), *_verified(report)]
    left = [
        _paragraph(each)
        for each in paragraphs(
            (0, f"{item.path}:{item.line}", item.text, f": {item.reason}")
            for result in report.results
            for item in result.left
        )
    ]
    tail += [_list("Left on purpose", left)] if left else []
    room = _LIMIT - sum(map(len, (*parts, *tail)))
    too_long = []
    for result in changed:
        path = relative(result.path, report.top)
        section = _file(result, path)
        if len(section) <= room:
            parts.append(section)
            room -= len(section)
        else:
            too_long.append(code(path))
    if too_long:
        files = counted(len(too_long), "file")
        more = " and others" if len(too_long) > _MANY else ""
        parts.append(
            f"Too long for this comment, and not shown, are the diffs of {files}: {', '.join(too_long[:_MANY])}{more}. "
            "`mmrewrite diff` prints them."
        )
    text = "\n\n".join([*parts, *tail]) + "\n"
    if len(text) > _MOST:
        text = (
            text[: text.rindex("\n", 0, _LIMIT)]
            + "\n\n**The rest is too long for a comment.** `mmrewrite diff` prints it.\n"
        )
    return text


def _file(result: Rewrite, path: str) -> str:
    parts = [f"#### {code(path)}"]
    for hunk, text in hunks(result):
        edits: tuple[Edit, ...] = tuple(edit for change in hunk.changes for edit in change.edits)
        lines = [f"- {sentence}" for sentence in reasons(edits)]
        lines += [f"- To check: {_text(sentence)}" for sentence in checks(edits)]
        parts.append("\n".join(lines))
        parts.append(_fenced(text, "diff"))
    return "\n\n".join(parts)


def _findings(title: str, found: Sequence[Finding], *, names: bool) -> list[str]:
    lines = []
    for each in paragraphs((0, finding.place, "", finding.message) for finding in found):
        codemod = next(finding.codemod for finding in found if finding.message == each.reason) if names else None
        lines.append(f"{_paragraph(each)}{f' [{codemod}]' if codemod else ''}")
    return [_list(title, lines)] if lines else []


def _paragraph(paragraph: Paragraph) -> str:
    others = f" ({paragraph.others})" if paragraph.others else ""
    subject = code(paragraph.subject) if paragraph.subject else ""
    return f"{code(paragraph.place)}: {subject}{_text(paragraph.reason)}{_text(others)}"


def _consequences(found: Sequence[Finding]) -> list[str]:
    if not found:
        return []
    places = ", ".join(code(finding.place) for finding in found)
    noun = "site stays" if len(found) == 1 else "sites stay"
    return [f"Because of these refusals, {len(found)} more {noun}: {places}."]


def _planned(report: RewriteReport) -> list[str]:
    planned = report.plan() if report.plan is not None else None
    if planned is None or not planned.sections:
        return []
    untraced = [] if planned.traced is not None else [_text(UNTRACED)]
    return ["#### What runs where", *map(_text, report.suggestions), *untraced, *map(_section, planned.sections)]


def _section(section: PlanSection) -> str:
    from mmrewrite.plan.sections import PlanTable

    parts = [f"**{_text(section.title)}**"]
    notes = (*section.notes, *section.proofs)
    parts += ["\n".join(f"- {_text(note)}" for note in notes)] if notes else []
    if section.grid is not None:
        grid, rows = section.grid, []
        for row, name in enumerate(grid.rows):
            cells = [grid.cell(row, column) for column in range(len(grid.columns))]
            owned = (
                f"{device} (submesh {', '.join(map(str, owners))})" if owners else f"{device} (not used)"
                for device, owners in cells
            )
            rows.append((name, *owned))
        parts.append(_table(PlanTable(grid.title, ("", *grid.columns), tuple(rows))))
    parts += map(_table, section.tables)
    for timeline in section.timelines:
        parts.append("\n".join([f"**{_text(timeline.title)}**", *(f"- {_text(note)}" for note in timeline.notes)]))
        if timeline.simulation is not None:
            figures = "\n".join(f"{label}: {text}" for label, text in timeline.figures)
            parts.append(_fenced(f"{timeline.as_text(_TIMELINE_WIDTH)}\n\n{figures}\n", "text"))
    return "\n\n".join(parts)


def _table(table: PlanTable) -> str:
    marks = ["---:" if right else "---" for right in table.numeric]
    rows = [_row(table.head), _row(marks), *(_row([_text(cell) for cell in row]) for row in table.rows)]
    return "\n".join([f"{_text(table.title)}:", "", *rows])


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '&#124;') for cell in cells)} |"


def _verified(report: RewriteReport) -> list[str]:
    evidence = evidence_of(report)
    if evidence is None:
        changed = any(result.changed for result in report.results)
        return ["#### Verified", _text(UNVERIFIED if changed else NOTHING_TO_VERIFY)]
    if evidence.mismatch is not None:
        return ["#### Verified", f"**{_text(evidence.mismatch)}**"]
    return ["#### Verified", *_shown(evidence)]


def _shown(evidence: ShownEvidence) -> Iterator[str]:
    if evidence.warnings:
        yield _list("Warnings of the rewritten program", map(_text, evidence.warnings))
    rows = [_row(CheckedRow.HEAD), _row(["---"] * len(CheckedRow.HEAD))]
    yield "\n".join([*rows, *(_row([*map(code, row.cells[:2]), *row.cells[2:]]) for row in evidence.rows)])
    if evidence.problems:
        yield _list("Not equal", map(_text, evidence.problems))
    if evidence.rounding:
        yield _list("Rounding alone", map(_text, evidence.rounding))
    if evidence.about is not None:
        yield _text(evidence.about)
    yield _list("Not covered", map(_text, evidence.not_covered))


def _verify(verified: Verified) -> str:
    evidence = verified_evidence(verified)
    equal = "not everything is proved" if verified.failed or verified.incomplete else "equal"
    left = None if verified.failed or verified.incomplete else evidence.unreached_text
    verdict = "; ".join(filter(None, (equal, left, evidence.warnings_text)))
    parts = [f"### mmrewrite verify: {verdict}", *_shown(evidence)]
    return "\n\n".join(parts) + "\n"


def _upgrade(upgrade: Upgrade) -> str:
    parts = [f"### mmrewrite: {_text(upgrade.summary)}"]
    lines = overview(upgrade)
    parts += [_fenced("\n".join(lines), "text")] if lines else []
    for part in parts_of(upgrade):
        lines = [_paragraph(each) for each in part.paragraphs]
        more = [f"and {counted(len(lines) - _MANY, 'other reason')}"] if len(lines) > _MANY else []
        parts.append(_list(part.title, [*lines[:_MANY], *more]))
    return "\n\n".join(parts) + "\n"


def _codemods(summaries: Mapping[str, Mapping[str, str]]) -> str:
    parts = []
    for title, listed in summaries.items():
        rows = [_row(("codemod", "what it does")), _row(("---", "---"))]
        rows += [_row((code(name), _text(summary))) for name, summary in listed.items()]
        parts.append("\n".join([f"#### {_text(title.rstrip(':'))}", "", *rows]))
    return "\n\n".join(parts) + "\n"


def _explain(explanation: Explanation) -> str:
    """A codemod's page is Markdown but for its name; what became of a line is a list."""
    if explanation.place is None:
        return "\n".join([f"### {code(explanation.subject)}", "", *explanation.lines]) + "\n"
    return (
        "\n".join([f"### {code(explanation.subject)}", "", *(f"- {_text(line)}" for line in explanation.lines)]) + "\n"
    )


def _suggest(suggested: Suggested) -> str:
    from mmrewrite.suggest.output import as_markdown

    return as_markdown(suggested)


RENDERERS = {
    **dict.fromkeys(("diff", "check"), _comment),
    "modernize": _modernized,
    "suggest": _suggest,
    "verify": _verify,
    "codemods": _codemods,
    "explain": _explain,
    "modernize --upgrade-to": _upgrade,
}


def _list(title: str, lines: Iterable[str]) -> str:
    return "\n".join([f"#### {title}", "", *(f"- {line}" for line in lines)])


def _fenced(text: str, language: str) -> str:
    longest = max((len(found) for found in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    return f"{fence}{language}\n{text if text.endswith(chr(10)) else text + chr(10)}{fence}"


def code(text: str) -> str:
    """Text as a code span, whatever backquotes it holds."""
    text = " ".join(text.split("\n"))
    longest = max((len(found) for found in re.findall("`+", text)), default=0)
    if not longest:
        return f"`{text}`"
    mark = "`" * (longest + 1)
    return f"{mark} {text} {mark}"


def _text(text: str) -> str:
    """A sentence whose backquoted parts are code; the rest neither is HTML nor calls anybody by `@name`."""
    pieces = " ".join(text.split("\n")).split("`")
    if len(pieces) % 2 == 0:
        return code(text)
    plain = [
        escape(piece, quote=False).replace("@", "&#64;").replace("*", "\\*").replace("_", "\\_") for piece in pieces
    ]
    return "`".join(piece if index % 2 else plain[index] for index, piece in enumerate(pieces))
