"""What `verify` has found, for reports of changes: shown only where it is about these very bytes."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

from mmrewrite.cli.reports import NotShown
from mmrewrite.cli.reports._rewrite_report import RewriteReport
from mmrewrite.files.patch import patch_of
from mmrewrite.results import counted
from mmrewrite.verify.judge import error_text

if TYPE_CHECKING:
    from mmrewrite.verify.verify import Checked, Status, Verified

VERDICTS: Mapping[Status, str] = {
    "equal": "equal",
    "different": "NOT equal",
    "broken": "the rewritten program FAILS where the original runs",
    "not rewritten": "NOT proved: it reaches no rewritten hint",
    "not run": "NOT run",
}


@dataclass(frozen=True)
class CheckedRow:
    """One function that was run in both programs."""

    HEAD: ClassVar[tuple[str, ...]] = (
        "function",
        "arguments",
        "arrays",
        "largest difference",
        "relative",
        "compared with",
        "verdict",
    )

    cells: tuple[str, ...]
    passed: bool


@dataclass(frozen=True)
class CheckedArrays:
    """The arrays of one function, a row of text for each."""

    HEAD: ClassVar[tuple[str, ...]] = ("array", "shape", "type", "difference", "relative", "where", "verdict")

    name: str
    rows: tuple[tuple[str, ...], ...]


@dataclass(frozen=True)
class ShownEvidence:
    """The evidence as it is shown.

    Attributes:
        rows: A row for each function.
        arrays: The arrays of each function.
        problems: What is not equal, or was not run, a sentence each.
        rounding: What differs by rounding alone, and the float64 run that shows it, a sentence each.
        not_covered: What the evidence leaves open, a sentence each.
        about: Which text the evidence is about; None where nothing is proved.
        mismatch: That it is about another text than the one that is shown; then the rest is empty.
        unreached: How many rewritten hints no function proved equal reaches.
        warnings: What the rewritten program has warned of, a sentence each.
    """

    rows: tuple[CheckedRow, ...] = ()
    arrays: tuple[CheckedArrays, ...] = ()
    problems: tuple[str, ...] = ()
    rounding: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    about: str | None = None
    mismatch: str | None = None
    unreached: int = 0
    warnings: tuple[str, ...] = ()

    @property
    def warnings_text(self) -> str | None:
        """How many warnings the rewritten program has given; None if it gave none."""
        return counted(len(self.warnings), "warning") if self.warnings else None

    @property
    def unreached_text(self) -> str | None:
        """How many rewritten hints were not reached; None if all were."""
        return f"{counted(self.unreached, 'rewritten hint')} not reached" if self.unreached else None

    @property
    def passed(self) -> bool:
        """Whether everything that was compared is equal."""
        return self.mismatch is None and bool(self.rows) and all(row.passed for row in self.rows)


def evidence_of(report: RewriteReport) -> ShownEvidence | None:
    """The evidence that the user gave, None if there is none.

    Raises:
        NotShown: If it has not the form of our own.
    """
    evidence = report.evidence
    if evidence is None:
        return None
    try:
        about = _about(report, evidence)
        if about is None:
            patch = hashlib.sha256(patch_of(report.results, report.top)).hexdigest()
            mismatch = (
                "Nothing is proved about this patch: the evidence given is about the patch with SHA-256 "
                f"`{str(evidence['patch_sha256'])[:12]}`, and this one has `{patch[:12]}`. Run `mmrewrite verify` "
                "again."
            )
            return ShownEvidence(mismatch=mismatch)
        unreached = len(evidence.get("unreached", ()))
        return shown_evidence(evidence["checks"], evidence["not_covered"], about, unreached)
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        raise NotShown("the evidence is not what `mmrewrite verify --format json` of this version prints") from None


def _about(report: RewriteReport, evidence: Mapping[str, Any]) -> str | None:
    """A sentence that the evidence is about these very bytes; None if it is not."""
    patch = hashlib.sha256(patch_of(report.results, report.top)).hexdigest()
    about = str(evidence["patch_sha256"])
    if about == patch:
        return f"The evidence is about this very text: the patch with SHA-256 `{patch}`."
    # A report may leave out files of the patch that was verified, as with `--since`.
    proved = {(os.path.abspath(file["path"]), file["before"], file["after"]) for file in evidence["files"]}
    shown = {
        (os.path.abspath(result.path), *(hashlib.sha256(data).hexdigest() for data in (result.original, result.result)))
        for result in report.results
        if result.changed
    }
    if not shown or not shown <= proved:
        return None
    return (
        f"The evidence is about a larger patch, with SHA-256 `{about}`; it has every file that is shown here, with the "
        "same bytes before and after."
    )


def shown_evidence(
    checks: Sequence[Mapping[str, Any]], not_covered: Sequence[str], about: str | None, unreached: int
) -> ShownEvidence:
    """The evidence from the values of the JSON document."""
    rows = tuple(CheckedRow(tuple(_cells(check)), check["status"] == "equal") for check in checks)
    arrays = tuple(
        CheckedArrays(str(check["entry"]), tuple(map(_array, check["arrays"]))) for check in checks if check["arrays"]
    )
    problems = tuple(problem for check in checks for problem in _problems(check))
    rounding = tuple(sentence for check in checks for sentence in _rounding(check))
    left = tuple(map(str, not_covered))
    warned = tuple(f"`{check['entry']}`: {text}" for check in checks for text in check.get("warnings", ()))
    return ShownEvidence(rows, arrays, problems, rounding, left, about, unreached=unreached, warnings=warned)


def _cells(check: Mapping[str, Any]) -> Iterator[str]:
    yield from (str(check["entry"]), str(check["args"]), str(len(check["arrays"])))
    yield from differences(check["arrays"])
    yield compared_with(check.get("reference"))
    yield check_verdict(check["status"], check["arrays"])


def _array(row: Mapping[str, Any]) -> tuple[str, ...]:
    shape = " x ".join(map(str, row["shape"])) or "scalar"
    differences = (largest([row], key) for key in ("absolute", "relative"))
    where = str(row.get("where") or "nowhere")
    return (str(row["name"]), shape, str(row["type"]), *differences, where, array_verdict(row))


def check_verdict(status: Status, rows: Iterable[Mapping[str, Any]]) -> str:
    """The verdict on one function."""
    rows = list(rows)
    if status == "equal" and any(row.get("tolerated") for row in rows):
        return "equal within tolerance"
    if status == "equal" and any(row.get("rounding") for row in rows):
        return "equal but for rounding"
    return VERDICTS[status]


def array_verdict(row: Mapping[str, Any]) -> str:
    """The verdict on one array."""
    if row["problem"]:
        return "NOT equal"
    return "rounding" if row.get("rounding") else "within tolerance" if row.get("tolerated") else "equal"


def largest(rows: Iterable[Mapping[str, Any]], key: str) -> str:
    """The largest difference of some arrays, as text."""
    worst = max((float(row[key]) for row in rows if row.get(key) is not None), default=None)
    return "-" if worst is None else f"{worst:.2g}"


def compared_with(reference: str | None) -> str:
    """What the results of a function were compared with."""
    return "the same microbatches" if reference == "microbatched" else "the original"


def differences(rows: Iterable[Mapping[str, Any]]) -> tuple[str, str]:
    """The largest differences of a function's arrays, rounding included: the verdict is on all of them."""
    rows = list(rows)
    return largest(rows, "absolute"), largest(rows, "relative")


def checked_values(check: Checked) -> dict[str, Any]:
    """A check as the JSON document has it."""
    return {
        "entry": check.entry.step,
        "args": check.entry.arguments,
        "named_by": check.entry.place,
        "status": check.status,
        "where": check.where,
        "reference": check.reference,
        "arrays": list(check.rows),
        "notes": list(check.notes),
        "warnings": list(check.warnings),
        "problem": check.problem,
        "traceback": check.details or None,
    }


def verified_evidence(verified: Verified) -> ShownEvidence:
    """The evidence of a run of `verify`."""
    about = f"This holds for the patch with SHA-256 `{verified.patch}`." if verified.holds else None
    checks = [checked_values(check) for check in verified.checks]
    return shown_evidence(checks, verified.not_covered, about, len(verified.unreached))


def _rounding(check: Mapping[str, Any]) -> Iterator[str]:
    for row in check["arrays"]:
        if not row.get("rounding"):
            continue
        start = f"`{check['entry']}`: `{row['name']}` differs by {amount(row['absolute'])} in {row['type']}"
        if row.get("spread") is not None:
            end = f", and {moved_alone(row)}: rounding, which the step makes large"
        else:
            other = other_precision(row)
            end = f" and by {other}: rounding, which shrinks with the precision" if other else ": rounding"
        yield f"{start}{end}{errors(row)}"


def errors(row: Mapping[str, Any]) -> str:
    """How far both programs are from float64, as the end of a sentence; empty where that is not known."""
    return f"; {error_text(row)}" if "error_measure" in row else ""


def amount(value: float | None) -> str:
    """A difference as text."""
    return "infinity or NaN" if value is None else f"{float(value):.2g}"


def moved_alone(row: Mapping[str, Any]) -> str:
    """How far an array moves in the original alone, in the runs that showed its difference to be rounding."""
    return f"the original alone by {float(row['spread']):.2g} if its arguments change in their last place"


def other_precision(row: Mapping[str, Any]) -> str:
    """What an array differs by in the run that showed it to be rounding; empty without one."""
    return next((f"{float(row[key]):.2g} in {key}" for key in ("float32", "float64") if row.get(key) is not None), "")


def _problems(check: Mapping[str, Any]) -> Iterator[str]:
    if check["problem"]:
        yield f"`{check['entry']}`: {check['problem']}"
    for row in check["arrays"]:
        if row["problem"]:
            yield f"`{check['entry']}`: `{row['name']}`: {row['problem']}"
