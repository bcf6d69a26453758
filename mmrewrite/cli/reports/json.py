"""JSON, for other programs: one document on standard output, with the version of its layout."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from mmrewrite.cli.reports._evidence import checked_values
from mmrewrite.cli.reports._messages import Explanation, Initialized, RunLine, RunMessage
from mmrewrite.cli.reports._review import completeness
from mmrewrite.cli.reports._rewrite_report import RewriteReport
from mmrewrite.files.patch import patch_of
from mmrewrite.results import Rewrite
from mmrewrite.source.text import SourceText

if TYPE_CHECKING:
    from mmrewrite.cli.upgrade import Upgrade
    from mmrewrite.plan.plan import Planned
    from mmrewrite.plan.sections import PlanGrid, PlanSection, PlanTimeline
    from mmrewrite.suggest.comparison import Suggested
    from mmrewrite.verify.verify import Verified

_VERSION = 1


def _rewrites(report: RewriteReport) -> str:
    """Every edit, refusal, error and hint left alone, with its position; files without any are left out."""
    found = completeness(report)
    return _document(
        report.command,
        {
            "patch_sha256": hashlib.sha256(patch_of(report.results, report.top)).hexdigest(),
            "summary": {
                "of": found.noun,
                "rewritten": found.rewritten,
                "left": found.left,
                "refused": found.refused,
                "files_with_errors": found.failed_files,
            },
            "files": [
                _file(result)
                for result in report.results
                if result.changed or result.refusals or result.left or result.failed
            ],
            "unreadable": [{"path": path, "reason": reason} for path, reason in report.unreadable],
            "not_written": [{"path": path, "reason": reason} for path, reason in report.unwritten],
            "out_of_date": list(report.problems),
        },
    )


def _plan(planned: Planned) -> str:
    return _document(
        "plan",
        {
            "sections": [_section(section) for section in planned.sections],
            "traced": planned.traced,
            "fit": None if planned.fit is None else dataclasses.asdict(planned.fit),
            "problems": planned.problems,
        },
    )


def _verify(verified: Verified) -> str:
    return _document(
        "verify",
        {
            "passed": not verified.failed and not verified.incomplete,
            "patch_sha256": verified.patch,
            "since": verified.since,
            "files": list(verified.files),
            "checks": [checked_values(check) for check in verified.checks],
            "not_covered": list(verified.not_covered),
            "unreached": list(verified.unreached),
        },
    )


def _codemods(summaries: Mapping[str, Mapping[str, str]]) -> str:
    lists = [
        {"title": title, "codemods": [{"name": name, "summary": text} for name, text in listed.items()]}
        for title, listed in summaries.items()
    ]
    return _document("codemods", {"lists": lists})


def _upgrade(upgrade: Upgrade) -> str:
    parts = {
        "needed": upgrade.needed,
        "warned": upgrade.warned,
        "later": upgrade.later,
        "unknown": upgrade.unknown,
        "newer": upgrade.newer,
        "settled": upgrade.settled,
    }
    return _document(
        "modernize --upgrade-to",
        {
            "target": dict(upgrade.target),
            "summary": upgrade.summary,
            **{name: [dataclasses.asdict(group) for group in groups] for name, groups in parts.items()},
        },
    )


def _explain(explanation: Explanation) -> str:
    if explanation.place is None:
        from mmrewrite.cli.pages import summary_of, to_check

        name = explanation.subject
        about: dict[str, Any] = {"codemod": name, "summary": summary_of(name), "to_check": to_check(name)}
    else:
        about = {"path": explanation.place[0], "line": explanation.place[1]}
    return _document("explain", {**about, "text": list(explanation.lines)})


def _init(initialized: Initialized) -> str:
    content = {"file": initialized.file, "written": initialized.is_written, "content": initialized.content}
    return _document("init", content)


def _run(event: RunLine | RunMessage) -> str:
    """One line for each event, as the run goes on for long."""
    if isinstance(event, RunLine):
        text = event.data.decode(errors="replace")
        stream = "stderr" if event.is_error else "stdout"
        kind = "last_line" if event.is_last else "line"
        content: dict[str, Any] = {"event": kind, "process": event.process, "stream": stream, "text": text}
    elif event.status is None:
        content = {"event": "message", "text": event.text}
    else:
        content = {"event": "end", "status": event.status, "blamed": event.blamed, "text": event.text}
    return json.dumps({"version": _VERSION, "command": "run", **content}) + "\n"


def _suggest(suggested: Suggested) -> str:
    from mmrewrite.suggest.output import values

    return _document("suggest", values(suggested))


RENDERERS = {
    **dict.fromkeys(("diff", "check", "apply", "build", "modernize"), _rewrites),
    "plan": _plan,
    "suggest": _suggest,
    "verify": _verify,
    "modernize --upgrade-to": _upgrade,
    "codemods": _codemods,
    "explain": _explain,
    "init": _init,
    "run": _run,
}


def _document(command: str, content: Mapping[str, Any]) -> str:
    return json.dumps({"version": _VERSION, "command": command, **content}, indent=2) + "\n"


def _file(result: Rewrite) -> dict[str, Any]:
    source = SourceText.decode(result.original) if result.edits else None
    edits = []
    for edit in result.edits:
        assert source is not None
        start, end = source.position(edit.start), source.position(edit.end)
        edits.append(
            {
                "codemods": list(edit.codemods),
                "line": start[0],
                "column": start[1],
                "end_line": end[0],
                "end_column": end[1],
                "old": source.text[edit.start : edit.end],
                "new": edit.text,
                "because": [dataclasses.asdict(hint) for hint in edit.hints],
            }
        )
    return {
        "path": result.path,
        "changed": result.changed,
        "sha256": hashlib.sha256(result.original).hexdigest(),
        "result_sha256": hashlib.sha256(result.result).hexdigest(),
        "failure": result.failure,
        "edits": edits,
        "refusals": [
            {
                "path": refusal.path,
                "line": refusal.line,
                "column": refusal.column,
                "codemod": refusal.codemod,
                "reason": refusal.reason,
                "is_consequence": refusal.is_consequence,
            }
            for refusal in result.refusals
        ],
        "errors": [
            {
                "path": error.path,
                "line": error.line,
                "column": error.column,
                "length": error.length,
                "message": error.message,
            }
            for error in result.errors
        ],
        "compat": [dataclasses.asdict(use) for use in result.compat],
        "left": [
            {"path": left.path, "line": left.line, "column": left.column, "text": left.text, "because": left.reason}
            for left in result.left
        ],
    }


def _section(section: PlanSection) -> dict[str, Any]:
    return {
        "title": section.title,
        "notes": (*section.notes, *section.proofs),
        "mesh": None if section.grid is None else _grid(section.grid),
        "tables": [{"title": table.title, "head": table.head, "rows": table.rows} for table in section.tables],
        "timelines": [_timeline(timeline) for timeline in section.timelines],
    }


def _grid(grid: PlanGrid) -> dict[str, Any]:
    cells = [{"device": device, "submeshes": owners} for device, owners in zip(grid.devices, grid.owners, strict=True)]
    return {"axes": dict(grid.axes), "devices": cells}


def _timeline(timeline: PlanTimeline) -> dict[str, Any]:
    simulation = timeline.simulation
    head: dict[str, Any] = {"title": timeline.title, "costs": timeline.costs, "notes": timeline.notes}
    if simulation is None:
        return head | {"schedule": None}
    schedule = simulation.schedule
    return head | {
        "schedule": schedule.name,
        "stages": schedule.num_stages,
        "submeshes": schedule.num_submeshes,
        "microbatches": schedule.num_microbatches,
        "placement": schedule.placement,
        "makespan": simulation.makespan,
        "steady": simulation.steady,
        "idle": simulation.bubble_fraction,
        "bubbles": simulation.bubbles,
        "busy": simulation.busy,
        "live": simulation.live,
        "order": [[str(action) for action in row] for row in schedule.rows],
    }
