"""The review of changes in HTML: the account of all hints, each file side by side, refusals, plan and evidence."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterator, Sequence
from html import escape
from itertools import zip_longest
from typing import TYPE_CHECKING

from mmrewrite.cli.reports._evidence import evidence_of
from mmrewrite.cli.reports._html_evidence import verified
from mmrewrite.cli.reports._html_page import bullets, code, inline, page, plain, section
from mmrewrite.cli.reports._html_plan import section_html, style_for
from mmrewrite.cli.reports._review import (
    UNTRACED,
    Completeness,
    Finding,
    checks,
    completeness,
    findings,
    nothing_planned,
    reasons,
    relative,
)
from mmrewrite.cli.reports._rewrite_report import RewriteReport
from mmrewrite.files.patch import CONTEXT, Change, PatchHunk, file_hunks, split_lines
from mmrewrite.results import Rewrite, counted
from mmrewrite.source.text import SourceError, SourceText

if TYPE_CHECKING:
    from mmrewrite.plan.plan import Planned

# Old and new lines are paired by likeness up to this many pairs, and one by one beyond it. They are alike if they share
# this many characters, which are this much of the shorter one.
_MOST_PAIRS, _SHARED, _SHARE = 400, 6, 0.7
_WORD = re.compile(r"\w+|\s+|.")

_STYLE = """
.account { margin-bottom: .5rem; }
.bar { display: block; width: 100%; height: 10px; border-radius: 5px; }
.bar .good { fill: var(--bar-good); } .bar .left { fill: var(--bar-left); } .bar .alarm { fill: var(--bar-alarm); }
.facts { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .5rem; margin: .9rem 0; }
.facts li { border: 1px solid var(--line); border-radius: 6px; background: var(--band); padding: .25rem .7rem; }
nav ul { list-style: none; padding: 0; margin: 0; display: flex; flex-wrap: wrap; gap: .2rem 1.2rem; }
.findings { list-style: none; padding: 0; }
.findings > li { border-left: 4px solid var(--bar-alarm); padding: .1rem 0 .1rem .8rem; margin: 0 0 .9rem; }
.findings pre { margin-bottom: 0; }
.because > li { border-left-color: var(--bar-left); }
.hunk { border: 1px solid var(--line); border-radius: 8px; margin: 0 0 1.2rem; overflow: hidden; }
.about { background: var(--band); padding: .6rem .9rem; border-bottom: 1px solid var(--line); }
.about h4 { margin: 0 0 .2rem; } .about ul { margin: 0; }
.about .checks { list-style: none; padding: 0; margin-top: .4rem; }
.checks li { margin: .15rem 0; }
.checks label { display: grid; grid-template-columns: auto 1fr; gap: .5rem; align-items: start; }
.checks input { margin: .28rem 0 0; width: 1rem; height: 1rem; }
.diff { width: 100%; table-layout: fixed; margin: 0; }
.diff th { padding: .15rem .6rem .15rem 3.6rem; font-size: .8rem; border-bottom: 1px solid var(--line); }
.diff td { border: 0; padding: 0 .6rem 0 3.6rem; height: 1.34rem; position: relative; white-space: pre-wrap;
  overflow-wrap: anywhere; tab-size: 4;
  font: .86rem/1.55 ui-monospace, SFMono-Regular, Menlo, Consolas, "Liberation Mono", monospace; }
.diff td + td, .diff th + th { border-left: 1px solid var(--line); }
.diff td[data-line]::before { content: attr(data-line); position: absolute; left: 0; width: 2.4rem; text-align: right;
  color: var(--quiet); }
.diff .old { background: var(--removed); } .diff .new { background: var(--added); }
.diff .none { background: var(--band); }
.diff del, .diff ins { text-decoration: none; }
.diff del::before { content: "\\2212"; } .diff ins::before { content: "+"; }
.diff del::before, .diff ins::before { position: absolute; left: 2.75rem; color: var(--quiet); }
.diff mark { color: inherit; border-radius: 2px; background: var(--removed-part); }
.diff ins mark { background: var(--added-part); }
@media (max-width: 800px) {
  .diff, .diff tbody { display: block; } .diff thead { display: none; } .diff tr { display: contents; }
  .diff tbody.change { display: flex; flex-direction: column; }
  .diff td { display: block; height: auto; min-height: 1.34rem; padding-right: .3rem; }
  .diff td + td { border-left: 0; }
  .diff .same + .same, .diff .none { display: none; } .diff .new { order: 1; }
}
@media print { .hunk { overflow: visible; } .diff tr, .about { break-inside: avoid; } }
""".strip()


def review_page(report: RewriteReport) -> str:
    """The whole page."""
    planned = report.plan() if report.plan is not None else None
    sections = planned.sections if planned is not None else ()
    account = completeness(report)
    main = list(_main(report, planned))
    title = f"Review: {account}"
    return page(title, "\n".join(_head(report, account, planned)), main, f"{style_for(sections)}\n{_STYLE}")


def _head(report: RewriteReport, account: Completeness, planned: Planned | None) -> Iterator[str]:
    changed = sum(result.changed for result in report.results)
    found = findings(report)
    yield f'<p class="eyebrow">mmrewrite {escape(report.command)}: what changes, and why</p>'
    yield f'<h1 class="account">{escape(str(account))}</h1>'
    yield _bar(account)
    yield bullets([f"{counted(changed, 'file')} {report.verb}", *_outcomes(report)], "facts")
    links = [("errors", "Errors", any(each.kind == "error" for each in found))]
    links += [("refused", "Refused", any(each.kind == "refusal" for each in found))]
    links += [("stale", "Out of date", bool(report.problems)), ("changes", "Changes", bool(changed))]
    links += [("left", "Left on purpose", any(result.left for result in report.results))]
    links += [("plan", "What runs where", planned is not None), ("verified", "Evidence", True)]
    items = [f'<a href="#{name}">{title}</a>' for name, title, there in links if there]
    yield f'<nav aria-label="On this page">{bullets(items)}</nav>'


def _bar(account: Completeness) -> str:
    """The account as a picture: shares of what was rewritten, left on purpose, and refused or wrong.

    A file with errors counts as one hint, so that a bar without red says that all went well.
    """
    alarms = account.refused + account.unhinted + account.failed_files
    total = account.rewritten + account.left + alarms
    if not total:
        return ""
    boxes, left = [], 0.0
    for kind, count in (("good", account.rewritten), ("left", account.left), ("alarm", alarms)):
        share = 100 * count / total
        boxes.append(f'<rect class="{kind}" x="{left:.3f}%" width="{share:.3f}%" height="100%"/>' if count else "")
        left += share
    return f'<svg class="bar" aria-hidden="true">{"".join(boxes)}</svg>'


def _outcomes(report: RewriteReport) -> Iterator[str]:
    """What else a reader wants to know at once, as HTML."""
    evidence = evidence_of(report)
    if evidence is None:
        if any(result.changed for result in report.results):
            yield '<span class="care">not verified</span>'
    elif evidence.mismatch is not None:
        yield '<strong class="alarm">the evidence is about another text</strong>'
    elif evidence.passed:
        yield '<span class="good">verified: equal</span>'
        if evidence.unreached_text is not None:
            yield f'<a class="care" href="#not-covered">{evidence.unreached_text}</a>'
    else:
        yield '<strong class="alarm">verified: not everything is equal</strong>'
    if evidence is not None and evidence.warnings_text is not None:
        yield f'<a class="care" href="#warnings">{evidence.warnings_text}</a>'


def _main(report: RewriteReport, planned: Planned | None) -> Iterator[str]:
    found = findings(report)
    lines = _SourceLines(report)
    errors = [each for each in found if each.kind == "error"]
    refused = [each for each in found if each.kind == "refusal" and not each.is_consequence]
    because = [each for each in found if each.is_consequence]
    if errors:
        yield section("Errors", [_findings(errors, lines)], "errors")
    if refused or because:
        parts = [_findings(refused, lines)]
        if because:
            more = f"{counted(len(because), 'more place')} left because of {'that' if refused else 'another file'}"
            listed = _findings(because, lines, "because")
            parts.append(f"<details><summary>{more}</summary>{listed}</details>")
        yield section("Refused", parts, "refused")
    if report.problems:
        yield section("Out of date", [bullets(map(inline, report.problems))], "stale")
    changed = [result for result in report.results if result.changed]
    if changed:
        yield section("Changes", _changes(report, changed), "changes")
    left = [
        f"{code(f'{item.path}:{item.line}')}: {code(item.text)}: {inline(item.reason)}"
        for result in report.results
        for item in result.left
    ]
    if left:
        yield section("Left on purpose", [bullets(left)], "left")
    if planned is not None:
        yield section("What runs where", _plan(report, planned), "plan")
    yield section("Evidence", verified(evidence_of(report), changed=bool(changed)), "verified")


def _plan(report: RewriteReport, planned: Planned) -> Iterator[str]:
    yield from (f'<p class="box care">{inline(sentence)}</p>' for sentence in report.suggestions)
    if not planned.sections:
        yield f"<p>{nothing_planned(refused=any(result.refusals for result in report.results))}</p>"
    elif planned.traced is None:
        yield f'<p class="box care">{inline(UNTRACED)}</p>'
    yield from (section_html(each, number, 3) for number, each in enumerate(planned.sections))


class _SourceLines:
    """The source lines that findings are about."""

    def __init__(self, report: RewriteReport) -> None:
        self._sources = {relative(result.path, report.top): result.original for result in report.results}
        self._read: dict[str, Sequence[str]] = {}

    def of(self, found: Finding) -> str | None:
        """The line of a finding; None where it has none."""
        if found.line is None or found.path not in self._sources:
            return None
        if found.path not in self._read:
            try:
                self._read[found.path] = SourceText.decode(self._sources[found.path]).text.split("\n")
            except SourceError:
                self._read[found.path] = ()
        lines = self._read[found.path]
        return lines[found.line - 1] if found.line <= len(lines) else None


def _findings(found: Sequence[Finding], lines: _SourceLines, kind: str = "") -> str:
    items = []
    for each in found:
        codemod = f" {code(f'[{each.codemod}]')}" if each.codemod else ""
        line = lines.of(each)
        source = f"<pre>{plain(line.strip())}</pre>" if line is not None and line.strip() else ""
        items.append(f"<strong>{code(each.place)}</strong>: {inline(each.message)}{codemod}{source}")
    return bullets(items, f"findings {kind}".strip())


def _changes(report: RewriteReport, changed: Sequence[Rewrite]) -> Iterator[str]:
    names = [relative(result.path, report.top) for result in changed]
    if len(changed) > 1:
        links = [f'<a href="#file-{number}">{code(name)}</a>' for number, name in enumerate(names)]
        yield f'<nav aria-label="Changed files">{bullets(links)}</nav>'
    for number, (result, name) in enumerate(zip(changed, names, strict=True)):
        yield section(code(name), _file(result, number), f"file-{number}", 3)


def _file(result: Rewrite, number: int) -> Iterator[str]:
    lines = [line.removesuffix("\n") for line in split_lines(SourceText.decode(result.original).text)]
    for place, hunk in enumerate(file_hunks(result)):
        yield _hunk(hunk, lines, f"{number}-{place}")


def _hunk(hunk: PatchHunk, lines: Sequence[str], name: str) -> str:
    edits = tuple(edit for change in hunk.changes for edit in change.edits)
    first, last = hunk.changes[0], hunk.changes[-1]
    span = (first.start + 1, max(last.end, first.start + 1))
    where = f"Line {span[0]}" if span[0] == span[1] else f"Lines {span[0]} to {span[1]}"
    boxes = bullets(
        (
            f'<label><input type="checkbox"> <span><strong>To check by hand:</strong> {inline(sentence)}</span></label>'
            for sentence in checks(edits)
        ),
        "checks",
    )
    return (
        f'<article class="hunk" aria-labelledby="hunk-{name}">\n<div class="about"><h4 id="hunk-{name}">{where}</h4>'
        f"{bullets(map(inline, reasons(edits)))}{boxes}</div>\n{_diff(hunk, lines, where)}</article>"
    )


def _diff(hunk: PatchHunk, lines: Sequence[str], where: str) -> str:
    """The hunk as a table: a line before, and the same line after."""
    first, last = hunk.changes[0], hunk.changes[-1]
    begin, end = max(0, first.start - CONTEXT), min(len(lines), last.end + CONTEXT)
    bodies, at, shift = [], begin, hunk.shift
    for change in hunk.changes:
        bodies += [_same(lines, at, change.start, shift), _changed(change, lines, shift)]
        shift += len(change.new) - (change.end - change.start)
        at = change.end
    bodies.append(_same(lines, at, end, shift))
    return (
        f'<table class="diff"><caption class="hidden">{where}, before and after</caption>\n'
        f'<thead><tr><th scope="col">Before</th><th scope="col">After</th></tr></thead>\n{"".join(bodies)}</table>'
    )


def _same(lines: Sequence[str], start: int, end: int, shift: int) -> str:
    rows = "".join(
        f'<tr><td class="same" data-line="{number + 1}">{text}</td>'
        f'<td class="same" data-line="{number + shift + 1}">{text}</td></tr>'
        for number in range(start, end)
        for text in [plain(lines[number])]
    )
    return f"<tbody>{rows}</tbody>\n" if rows else ""


def _changed(change: Change, lines: Sequence[str], shift: int) -> str:
    old = lines[change.start : change.end]
    new = [line.removesuffix("\n") for line in change.new]
    rows = []
    for before, after in _pairs(old, new):
        left = right = '<td class="none"></td>'
        if before is not None and after is not None and _likeness(old[before], new[after]):
            texts = _marked(old[before], new[after])
        else:
            texts = ("" if before is None else plain(old[before]), "" if after is None else plain(new[after]))
        if before is not None:
            left = f'<td class="old" data-line="{change.start + before + 1}"><del>{texts[0]}</del></td>'
        if after is not None:
            right = f'<td class="new" data-line="{change.start + shift + after + 1}"><ins>{texts[1]}</ins></td>'
        rows.append(f"<tr>{left}{right}</tr>")
    return f'<tbody class="change">{"".join(rows)}</tbody>\n'


def _pairs(old: Sequence[str], new: Sequence[str]) -> list[tuple[int | None, int | None]]:
    """Which old line stands beside which new one, in order: those most alike, in all; None stands beside none."""
    if len(old) * len(new) > _MOST_PAIRS:
        return list(zip_longest(range(len(old)), range(len(new))))
    # best[i][j] is the likeness of the best pairing of the lines from `old[i]` and `new[j]` on.
    best = [[0] * (len(new) + 1) for _ in range(len(old) + 1)]
    alike = [[_likeness(before, after) for after in new] for before in old]
    for i in reversed(range(len(old))):
        for j in reversed(range(len(new))):
            best[i][j] = max(best[i + 1][j], best[i][j + 1], alike[i][j] and alike[i][j] + best[i + 1][j + 1])
    found: list[tuple[int | None, int | None]] = []
    i = j = since_old = since_new = 0

    def beside() -> None:
        """Lines between two pairs stand beside each other, one by one."""
        found.extend(zip_longest(range(since_old, i), range(since_new, j)))

    while i < len(old) and j < len(new):
        if alike[i][j] and best[i][j] == alike[i][j] + best[i + 1][j + 1]:
            beside()
            found.append((i, j))
            i, j = i + 1, j + 1
            since_old, since_new = i, j
        elif best[i][j] == best[i + 1][j]:
            i += 1
        else:
            j += 1
    i, j = len(old), len(new)
    beside()
    return found


def _likeness(before: str, after: str) -> int:
    """How many characters of words two lines share, in order; 0 if they are too few for a pair.

    What both begin with counts twice, as that is where readers look. A comment is not like code.
    """
    before, after = before.strip(), after.strip()
    if before.startswith("#") != after.startswith("#"):
        return 0
    blocks = _matcher(before, after).get_matching_blocks()
    words = _WORD.findall(before)
    sizes = [len("".join(words[block.a : block.a + block.size]).strip()) for block in blocks]
    begin = sizes[0] if (blocks[0].a, blocks[0].b) == (0, 0) else 0
    return sum(sizes) + begin if sum(sizes) >= max(_SHARED, _SHARE * min(len(before), len(after))) else 0


def _matcher(before: str, after: str) -> difflib.SequenceMatcher[str]:
    return difflib.SequenceMatcher(None, _WORD.findall(before), _WORD.findall(after), autojunk=False)


def _marked(before: str, after: str) -> tuple[str, str]:
    """Two lines as HTML, with the words marked that they do not share."""
    sides: tuple[list[str], list[str]] = ([], [])
    words = (_WORD.findall(before), _WORD.findall(after))
    for kind, a, b, c, d in _matcher(before, after).get_opcodes():
        for side, piece in zip(sides, ("".join(words[0][a:b]), "".join(words[1][c:d])), strict=True):
            indent = piece[: len(piece) - len(piece.lstrip())]
            changed = "" if kind == "equal" else plain(piece.strip())
            tail = piece[len(piece.rstrip()) :] if changed else ""
            side.append(f"{indent}<mark>{changed}</mark>{tail}" if changed else plain(piece))
    return "".join(sides[0]), "".join(sides[1])
