"""HTML: a plan, a review of the changes, or what `verify` found, as one page that loads nothing else.

It follows the reader's light or dark setting, fits narrow screens and print, and is in order of headings for screen
readers.
"""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from mmrewrite.cli.reports._html_page import page
from mmrewrite.cli.reports._review import nothing_planned
from mmrewrite.cli.reports._rewrite_report import RewriteReport

if TYPE_CHECKING:
    from mmrewrite.plan.plan import Planned
    from mmrewrite.verify.verify import Verified


def _plan(planned: Planned) -> str:
    """The whole page; it ends with the refusals and errors, which say why something is missing."""
    from mmrewrite.cli.reports import _html_plan as parts

    sections = [parts.section_html(each, number, 2) for number, each in enumerate(planned.sections)]
    body = sections or [f"<p>{nothing_planned(refused=bool(planned.problems))}</p>"]
    if planned.problems:
        problems = "\n".join(map(escape, planned.problems))
        body.append(f"<h2>Left out</h2>\n<pre>{problems}</pre>")
    return page("mmrewrite plan", "<h1>What runs where</h1>", body, parts.style_for(planned.sections))


def _review(report: RewriteReport) -> str:
    from mmrewrite.cli.reports._html_review import review_page

    return review_page(report)


def _verify(verified: Verified) -> str:
    from mmrewrite.cli.reports._evidence import verified_evidence
    from mmrewrite.cli.reports._html_evidence import verify_page

    notes = [
        f"`{check.entry.step}`: {note}" for check in verified.checks for note in (check.where, *check.notes) if note
    ]
    return verify_page(verified_evidence(verified), notes)


RENDERERS = {"plan": _plan, "verify": _verify, **dict.fromkeys(("diff", "check", "modernize"), _review)}
