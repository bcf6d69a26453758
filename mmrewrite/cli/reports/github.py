"""GitHub: annotations at the lines of a pull request, as workflow commands on standard output.

See https://docs.github.com/actions/reference/workflow-commands-for-github-actions. Changes that a reader can accept
with a click are another format, `github-review`.
"""

from __future__ import annotations

from mmrewrite.cli.reports._review import ReviewedChange, changes, completeness, findings, reasons
from mmrewrite.cli.reports._rewrite_report import RewriteReport


def _annotations(report: RewriteReport) -> str:
    lines = []
    for finding in findings(report):
        level = "error" if finding.kind == "error" else "warning"
        if finding.is_consequence:
            level = "notice"
        place = {"file": finding.path}
        if finding.line is not None and finding.column is not None:
            place |= {"line": str(finding.line), "col": str(finding.column)}
        title = f"mmrewrite: {finding.codemod or 'error'}"
        lines.append(_command(level, place | {"title": title}, finding.message))
    lines += [_changed(change) for change in changes(report)]
    lines += [_command("error", {"title": "mmrewrite"}, sentence) for sentence in report.problems]
    lines.append(_command("notice", {"title": "mmrewrite"}, f"{completeness(report)}."))
    return "\n".join(lines) + "\n"


def _changed(change: ReviewedChange) -> str:
    last = max(change.start, change.end)
    place = {"file": change.path, "line": str(change.start), "endLine": str(last)}
    if change.end < change.start:
        head = f"Lines are added above this one by {'; '.join(reasons(change.edits))}:"
    else:
        head = f"Changed by {'; '.join(reasons(change.edits))}{':' if change.new else '; the lines go away.'}"
    title = f"mmrewrite: {', '.join(change.codemods)}"
    return _command("notice", place | {"title": title}, "\n".join([head, *change.new]))


def _command(level: str, properties: dict[str, str], message: str) -> str:
    written = ",".join(f"{name}={_property(value)}" for name, value in properties.items())
    return f"::{level} {written}::{_data(message)}"


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


RENDERERS = {"diff": _annotations, "check": _annotations, "modernize": _annotations}
