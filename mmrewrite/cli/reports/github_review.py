"""A review for GitHub, as JSON: each change is a comment with a suggestion that a reader can accept with a click.

It is the body of https://docs.github.com/rest/pulls/reviews#create-a-review-for-a-pull-request.
"""

from __future__ import annotations

import json
import re

from mmrewrite.cli.reports._review import ReviewedChange, changes, checks, completeness, reasons
from mmrewrite.cli.reports._rewrite_report import RewriteReport


def _review(report: RewriteReport) -> str:
    comments = [comment for change in changes(report) if (comment := _comment(change)) is not None]
    body = {"event": "COMMENT", "body": f"mmrewrite: {completeness(report)}.", "comments": comments}
    return json.dumps(body, indent=2) + "\n"


def _comment(change: ReviewedChange) -> dict[str, object] | None:
    """A suggestion replaces lines that are there, so one that only adds lines takes a neighbour with it."""
    lines = change.source.text.split("\n")
    if lines[-1] == "":
        lines.pop()
    start, end, new = change.start, change.end, list(change.new)
    if end < start:
        if not lines:
            return None
        if start <= len(lines):
            new, end = [*new, lines[start - 1]], start
        else:
            new, start, end = [lines[-1], *new], len(lines), len(lines)
    text = "\n".join(line.removesuffix("\r") for line in new)
    longest = max((len(found) for found in re.findall(r"`{3,}", text)), default=2)
    fence = "`" * (longest + 1)
    suggestion = f"{fence}suggestion\n{text}\n{fence}" if new else f"{fence}suggestion\n{fence}"
    sentences = [f"{sentence}." for sentence in reasons(change.edits)]
    sentences += [f"To check: {sentence}" for sentence in checks(change.edits)]
    comment: dict[str, object] = {"path": change.path, "side": "RIGHT", "line": end}
    if start < end:
        comment |= {"start_line": start, "start_side": "RIGHT"}
    return comment | {"body": "\n".join([*sentences, "", suggestion])}


RENDERERS = {"diff": _review, "check": _review, "modernize": _review}
