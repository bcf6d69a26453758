"""The review of changes in HTML: the account of all hints, each file side by side, refusals, plan and evidence."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from mmrewrite.cli.reports import RewriteReport
from mmrewrite.cli.reports._evidence import CheckedRow, evidence_of
from mmrewrite.cli.reports._html_plan import inline, section_html
from mmrewrite.cli.reports._review import (
    Finding,
    ReviewedChange,
    changes_in,
    checks,
    completeness,
    counted,
    findings,
    reasons,
    relative,
)

_CONTEXT = 3

STYLE = """
.account { font-size: 1.1rem; font-weight: 600; }
nav ul { columns: 2; padding-left: 1.2rem; }
.change { border: 1px solid var(--line); border-radius: 6px; margin: 0 0 1.2rem; overflow: hidden; }
.change > ul { margin: 0; padding: .5rem .8rem .5rem 1.8rem; background: var(--band); }
.sides { display: grid; grid-template-columns: 1fr 1fr; }
.sides > div { overflow-x: auto; min-width: 0; }
.sides > div + div { border-left: 1px solid var(--line); }
.sides h4 { margin: 0; padding: .2rem .8rem; font-size: .8rem; color: var(--quiet); font-weight: 600; }
.sides pre { margin: 0; padding: .2rem 0 .5rem; white-space: pre; min-width: max-content; }
.sides pre span { display: block; padding: 0 .8rem; }
.sides .removed { background: var(--removed); }
.sides .added { background: var(--added); }
.alarm { color: var(--alarm); }
@media (max-width: 800px) {
  body { padding: 0 .8rem; }
  nav ul { columns: 1; }
  .sides { grid-template-columns: 1fr; }
  .sides > div + div { border-left: 0; border-top: 1px solid var(--line); }
}
@media print { .change { break-inside: avoid; } .sides pre { white-space: pre-wrap; min-width: 0; } }
""".strip()


def body(report: RewriteReport) -> Iterator[str]:
    """The parts of the page below its heading."""
    changed = [(result, relative(result.path, report.top)) for result in report.results if result.changed]
    verb = "would change" if report.shows_patch else "changed"
    yield f'<p class="account">{escape(str(completeness(report)))}.</p>'
    yield f"<p>{counted(len(changed), 'file')} {verb}.</p>"
    if len(changed) > 1:
        links = "".join(
            f'<li><a href="#file-{number}"><code>{escape(path)}</code></a></li>'
            for number, (_, path) in enumerate(changed)
        )
        yield f'<nav aria-label="Files"><ul>{links}</ul></nav>'
    found = findings(report)
    yield from _findings("Errors", [each for each in found if each.kind == "error"])
    yield from _findings("Refused", [each for each in found if each.kind == "refusal" and not each.is_consequence])
    yield from _findings("Left because of that", [each for each in found if each.is_consequence])
    if report.problems:
        yield _list("Out of date", [inline(problem) for problem in report.problems])
    for number, (result, path) in enumerate(changed):
        yield f'<h2 id="file-{number}"><code>{escape(path)}</code></h2>'
        yield from (_change(change) for change in changes_in(result, path))
    left = [
        f"<code>{escape(item.path)}:{item.line}</code>: <code>{escape(item.text)}</code>: {inline(item.reason)}"
        for result in report.results
        for item in result.left
    ]
    if left:
        yield _list("Left on purpose", left)
    planned = report.plan() if report.plan is not None else None
    if planned is not None and planned.sections:
        yield "<h2>What runs where</h2>"
        yield from map(section_html, planned.sections)
    yield from _verified(report)


def _change(change: ReviewedChange) -> str:
    lines = change.source.text.split("\n")
    if lines[-1] == "":
        lines.pop()
    above = lines[max(0, change.start - 1 - _CONTEXT) : change.start - 1]
    below = lines[change.end : change.end + _CONTEXT]
    notes = [f"<li>{inline(sentence)}</li>" for sentence in reasons(change.edits)]
    notes += [f"<li><strong>To check:</strong> {inline(sentence)}</li>" for sentence in checks(change.edits)]
    old = _side("Before", above, change.old, below, "removed")
    new = _side("After", above, change.new, below, "added")
    label = f"{change.path}, line {change.start}"
    return (
        f'<section class="change" aria-label="{escape(label)}"><ul>{"".join(notes)}</ul>\n'
        f'<div class="sides">{old}{new}</div></section>'
    )


def _side(title: str, above: Sequence[str], changed: Sequence[str], below: Sequence[str], mark: str) -> str:
    marked = [f'<span class="{mark}">{escape(line) or " "}</span>' for line in changed]
    plain = [[f"<span>{escape(line) or ' '}</span>" for line in lines] for lines in (above, below)]
    # A region that scrolls has to be reachable by keyboard.
    text = "".join([*plain[0], *marked, *plain[1]])
    return f'<div tabindex="0" role="region" aria-label="{title}"><h4>{title}</h4><pre>{text}</pre></div>'


def _findings(title: str, found: Sequence[Finding]) -> Iterator[str]:
    lines = []
    for each in found:
        codemod = f" [{escape(each.codemod)}]" if each.codemod else ""
        lines.append(f"<code>{escape(each.place)}</code>: {inline(each.message)}{codemod}")
    if lines:
        yield _list(title, lines)


def _verified(report: RewriteReport) -> Iterator[str]:
    evidence = evidence_of(report)
    if evidence is None:
        return
    yield "<h2>Verified</h2>"
    if evidence.mismatch is not None:
        yield f'<p class="alarm">{inline(evidence.mismatch)}</p>'
        return
    head = "".join(f"<th>{escape(name)}</th>" for name in CheckedRow.HEAD)
    rows = "".join(
        "<tr>" + "".join(f"<td>{escape(cell)}</td>" for cell in row.cells) + "</tr>" for row in evidence.rows
    )
    yield f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>'
    yield from (_list("Not equal", [inline(problem) for problem in evidence.problems]) for _ in evidence.problems[:1])
    yield f"<p>This holds for the patch with SHA-256 <code>{evidence.patch}</code>.</p>"
    yield _list("Not covered", [inline(sentence) for sentence in evidence.not_covered])


def _list(title: str, lines: Sequence[str]) -> str:
    return f"<h2>{escape(title)}</h2>\n<ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"
