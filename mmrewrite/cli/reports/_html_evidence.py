"""What `verify` has found, in HTML: in a review, and as a page of its own."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape

from mmrewrite.cli.reports._evidence import CheckedRow, ShownEvidence
from mmrewrite.cli.reports._html_page import bullets, code, inline, page, section, table
from mmrewrite.cli.reports._review import NOTHING_TO_VERIFY, UNVERIFIED


def verified(evidence: ShownEvidence | None, *, changed: bool = True) -> Iterator[str]:
    """The evidence, first whether it is about the text that is shown; none is asked for where no file changes."""
    if evidence is None:
        yield f'<p class="box care">{inline(UNVERIFIED)}</p>' if changed else f"<p>{NOTHING_TO_VERIFY}</p>"
        return
    if evidence.mismatch is not None:
        yield f'<p class="box alarm"><strong>{inline(evidence.mismatch)}</strong></p>'
        return
    if evidence.about is not None:
        yield f'<p class="box good">{inline(evidence.about)}</p>'
    if evidence.warnings:
        listed = bullets(map(inline, evidence.warnings))
        yield f'<h3 id="warnings">Warnings of the rewritten program</h3>\n<div class="box care">{listed}</div>'
    cells = [[*map(code, row.cells[:2]), *map(escape, row.cells[2:-1]), _verdict(row)] for row in evidence.rows]
    yield table("What was compared", CheckedRow.HEAD, cells)
    if evidence.problems:
        yield f"<h3>Not equal</h3>\n{bullets(map(inline, evidence.problems))}"
    if evidence.rounding:
        yield f"<h3>Rounding alone</h3>\n{bullets(map(inline, evidence.rounding))}"
    for check in evidence.arrays:
        rows = [[code(row[0]), *map(escape, row[1:])] for row in check.rows]
        listed = table(f"Arrays of {check.name}", check.HEAD, rows)
        yield f"<details><summary>All {len(rows)} arrays of {code(check.name)}</summary>{listed}</details>"
    if evidence.not_covered:
        yield f'<h3 id="not-covered">Not covered</h3>\n{bullets(map(inline, evidence.not_covered))}'


def _verdict(row: CheckedRow) -> str:
    kind = "good" if row.passed else "alarm"
    return f'<strong class="{kind}">{escape(row.cells[-1])}</strong>'


def verify_page(evidence: ShownEvidence, notes: Iterable[str]) -> str:
    """The page of `verify` itself: the verdict first."""
    equal = f"everything that was run is equal{' but for rounding' * bool(evidence.rounding)}"
    kind, verdict = ("good", equal) if evidence.passed else ("alarm", "not everything is proved")
    head = f'<p class="eyebrow">mmrewrite verify</p>\n<h1>Verified: <span class="{kind}">{verdict}</span></h1>'
    if evidence.unreached_text is not None:
        head += f'\n<p><a class="care" href="#not-covered">{evidence.unreached_text}</a></p>'
    if evidence.warnings_text is not None:
        head += f'\n<p><a class="care" href="#warnings">{evidence.warnings_text}</a></p>'
    main = [
        section("What was run", [bullets(map(inline, notes))], "notes"),
        section("Evidence", verified(evidence), "verified"),
    ]
    return page(f"Verified: {verdict}", head, main, "")
