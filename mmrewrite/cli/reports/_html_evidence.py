"""What `verify` has found, in HTML: in a review, and as a page of its own."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape

from mmrewrite.cli.reports._evidence import CheckedRow, ShownEvidence
from mmrewrite.cli.reports._html_page import bullets, code, inline, table
from mmrewrite.cli.reports._review import UNVERIFIED


def verified(evidence: ShownEvidence | None) -> Iterator[str]:
    """The evidence, first of all whether it is about the text that is shown."""
    if evidence is None:
        yield f'<p class="box care">{inline(UNVERIFIED)}</p>'
        return
    if evidence.mismatch is not None:
        yield f'<p class="box alarm"><strong>{inline(evidence.mismatch)}</strong></p>'
        return
    if evidence.about is not None:
        yield f'<p class="box good">{inline(evidence.about)}</p>'
    cells = [[*map(code, row.cells[:2]), *map(escape, row.cells[2:-1]), _verdict(row)] for row in evidence.rows]
    yield table("What was compared", CheckedRow.HEAD, cells)
    if evidence.problems:
        yield f"<h3>Not equal</h3>\n{bullets(map(inline, evidence.problems))}"
    for check in evidence.arrays:
        rows = [[code(row[0]), *map(escape, row[1:])] for row in check.rows]
        listed = table(f"Arrays of {check.name}", check.HEAD, rows)
        yield f"<details><summary>All {len(rows)} arrays of {code(check.name)}</summary>{listed}</details>"
    if evidence.not_covered:
        yield f"<h3>Not covered</h3>\n{bullets(map(inline, evidence.not_covered))}"


def _verdict(row: CheckedRow) -> str:
    kind = "good" if row.passed else "alarm"
    return f'<strong class="{kind}">{escape(row.cells[-1])}</strong>'
