"""SARIF 2.1.0, for code scanning: errors, refusals, and changes with their fixes.

See https://docs.oasis-open.org/sarif/sarif/v2.1.0/sarif-v2.1.0.html.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any
from urllib.parse import quote

from mmrewrite import __version__
from mmrewrite.cli.pages import page_of, summary_of
from mmrewrite.cli.reports._review import Finding, ReviewedChange, changes, findings, reasons
from mmrewrite.cli.reports._rewrite_report import RewriteReport

_SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
_ERROR = "error"
_OWN_RULES = {
    _ERROR: "A hint that cannot be read, or a file that could not be handled. It stays as it is.",
    "stale": "A generated file that is out of date or was edited by hand.",
}


def _log(report: RewriteReport) -> str:
    results = [_finding(each) for each in findings(report)] + [_change(each) for each in changes(report)]
    results += [{"ruleId": "stale", "level": "error", "message": {"text": text}} for text in report.problems]
    names = sorted({result["ruleId"] for result in results})
    for result in results:
        result["ruleIndex"] = names.index(result["ruleId"])
    driver = {
        "name": "mmrewrite",
        "version": __version__,
        "semanticVersion": __version__,
        "rules": [_rule(name) for name in names],
    }
    run = {
        "tool": {"driver": driver},
        "columnKind": "unicodeCodePoints",
        "originalUriBaseIds": {"SRCROOT": {"description": {"text": "The top of the repository."}}},
        "results": results,
    }
    return json.dumps({"$schema": _SCHEMA, "version": "2.1.0", "runs": [run]}, indent=2) + "\n"


def _rule(name: str) -> dict[str, Any]:
    summary = _OWN_RULES.get(name) or summary_of(name)
    rule: dict[str, Any] = {"id": name, "shortDescription": {"text": summary or name}}
    page = None if name in _OWN_RULES else page_of(name)
    return rule | ({"help": {"text": page}} if page else {})


def _finding(finding: Finding) -> dict[str, Any]:
    level = "error" if finding.kind == "error" else "note" if finding.is_consequence else "warning"
    region = None
    if finding.line is not None and finding.column is not None:
        region = {"startLine": finding.line, "startColumn": finding.column}
        if finding.length > 1:
            region["endColumn"] = finding.column + finding.length
    rule = finding.codemod or _ERROR
    return _result(rule, level, finding.message, finding.path, region)


def _change(change: ReviewedChange) -> dict[str, Any]:
    replacements = []
    for edit in change.edits:
        (line, column), (end_line, end_column) = map(change.source.position, (edit.start, edit.end))
        region = {"startLine": line, "startColumn": column, "endLine": end_line, "endColumn": end_column}
        replacement: dict[str, Any] = {"deletedRegion": region}
        if edit.text:
            replacement["insertedContent"] = {"text": edit.text}
        replacements.append(replacement)
    text = f"Changed by {'; '.join(reasons(change.edits))}."
    last = max(change.start, change.end)
    result = _result(change.codemods[0], "note", text, change.path, {"startLine": change.start, "endLine": last})
    artifact = {"artifactLocation": _location(change.path), "replacements": replacements}
    return result | {"fixes": [{"description": {"text": text}, "artifactChanges": [artifact]}]}


def _result(rule: str, level: str, message: str, path: str, region: dict[str, int] | None) -> dict[str, Any]:
    physical: dict[str, Any] = {"artifactLocation": _location(path)}
    if region is not None:
        physical["region"] = region
    # Code scanning tells an old alert from a new one by this, so it has no line in it.
    mark = hashlib.sha256(f"{rule}\0{path}\0{message}".encode(errors="surrogateescape")).hexdigest()
    return {
        "ruleId": rule,
        "level": level,
        "message": {"text": message},
        "locations": [{"physicalLocation": physical}],
        "partialFingerprints": {"mmrewriteMessage/v1": mark},
    }


def _location(path: str) -> dict[str, str]:
    return {"uri": quote(path.encode(errors="surrogateescape")), "uriBaseId": "SRCROOT"}


RENDERERS = {"diff": _log, "check": _log, "modernize": _log}
