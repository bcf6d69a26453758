"""What `verify` has found, for reports of changes: shown only where it is about these very bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from mmrewrite.cli.reports import NotShown, RewriteReport
from mmrewrite.files.patch import patch_of

_VERDICTS = {
    "equal": "equal",
    "different": "NOT equal",
    "broken": "the rewritten program FAILS where the original runs",
    "not rewritten": "NOT proved: it reaches no rewritten hint",
    "not run": "NOT run",
}


@dataclass(frozen=True)
class CheckedRow:
    """One function that was run in both programs."""

    HEAD: ClassVar[tuple[str, ...]] = ("function", "arguments", "arrays", "largest difference", "relative", "verdict")

    cells: tuple[str, ...]


@dataclass(frozen=True)
class ShownEvidence:
    """The evidence as it is shown. `mismatch` says that it is about other bytes; then the rest is empty."""

    patch: str
    rows: tuple[CheckedRow, ...] = ()
    problems: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    mismatch: str | None = None


def evidence_of(report: RewriteReport) -> ShownEvidence | None:
    """The evidence that the user gave, None if there is none.

    Raises:
        NotShown: If it has not the form of our own.
    """
    evidence = report.evidence
    if evidence is None:
        return None
    patch = hashlib.sha256(patch_of(report.results, report.top)).hexdigest()
    about = str(evidence.get("patch_sha256"))
    if about != patch:
        mismatch = (
            f"Nothing is proved about this patch: the evidence given is about the patch with SHA-256 `{about[:12]}`, "
            f"and this one has `{patch[:12]}`. Run `mmrewrite verify` again."
        )
        return ShownEvidence(patch, mismatch=mismatch)
    try:
        return shown_evidence(evidence["checks"], patch, evidence["not_covered"])
    except (KeyError, TypeError, ValueError, AttributeError):
        raise NotShown("the evidence is not what `mmrewrite verify --format json` of this version prints") from None


def shown_evidence(checks: Sequence[Mapping[str, Any]], patch: str, not_covered: Sequence[str]) -> ShownEvidence:
    """The evidence from the values of the JSON document."""
    rows = tuple(CheckedRow(tuple(_cells(check))) for check in checks)
    problems = tuple(problem for check in checks for problem in _problems(check))
    return ShownEvidence(patch, rows, problems, tuple(map(str, not_covered)))


def _cells(check: Mapping[str, Any]) -> Iterator[str]:
    yield from (str(check["entry"]), str(check["args"]), str(len(check["arrays"])))
    for key in ("absolute", "relative"):
        worst = max((float(row[key]) for row in check["arrays"] if row[key] is not None), default=None)
        yield "-" if worst is None else f"{worst:.2g}"
    yield _VERDICTS[check["status"]]


def _problems(check: Mapping[str, Any]) -> Iterator[str]:
    if check["problem"]:
        yield f"`{check['entry']}`: {check['problem']}"
    for row in check["arrays"]:
        if row["problem"]:
            yield f"`{check['entry']}`: `{row['name']}`: {row['problem']}"
