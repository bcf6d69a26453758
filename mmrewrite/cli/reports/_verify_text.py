"""What `verify` has found as text: at most 80 columns, and the verdict last."""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import TYPE_CHECKING, Any

from mmrewrite.cli.reports._evidence import (
    amount,
    array_verdict,
    check_verdict,
    compared_with,
    differences,
    largest,
    moved_alone,
)
from mmrewrite.cli.reports.text import wrapped
from mmrewrite.cli.terminal import style
from mmrewrite.results import counted
from mmrewrite.verify.judge import error_text

if TYPE_CHECKING:
    from mmrewrite.verify.verify import Checked, Verified

_WIDTH, _NAME, _SHORTEST = 80, 43, 16
# With more arrays than this, those that are equal share a line.
_LISTED = 16
# `.params`, `[0]` or `['bias']`: a step of the path to an array.
_PART = re.compile(r"\W?[^.\[]+")
_HEAD = ("array", "differs by", "relative", "verdict")


def verify_text(verified: Verified) -> str:
    """The report: each function, what it is about, what it leaves open, and the verdicts."""
    evidence = [
        "This holds for the patch with SHA-256",
        f"  {verified.patch},",
        "the bytes that `mmrewrite diff` prints for the same paths:"
        if verified.since is None
        else f"from {verified.since} to the rewritten program:",
        *(f"  {file['path']}: {file['before'][:12]} becomes {file['after'][:12]}" for file in verified.files),
    ]
    rest = [style.title("Not covered:"), *(line for text in verified.not_covered for line in _wrapped(text))]
    parts = [*map(_check, verified.checks), "\n".join(rest)]
    parts += ["\n".join(evidence)] if verified.holds else []
    # Next to the verdict: who reads no more than that should see them.
    warned = [line for check in verified.checks for text in check.warnings for line in _wrapped(text)]
    parts += ["\n".join([style.title("Warnings of the rewritten program:"), *warned])] if warned else []
    return "\n\n".join([*parts, _verdicts(verified.checks)]) + "\n"


def _verdicts(checks: Sequence[Checked]) -> str:
    """A line for each function."""
    rows = [
        (
            check.entry.step,
            compared_with(check.reference),
            *differences(check.rows),
            check_verdict(check.status, check.rows),
        )
        for check in checks
    ]
    head = ("function", "compared with", "differs by", "relative", "verdict")
    others = sum(2 + max(len(row[column]) for row in (head, *rows)) for column in range(1, len(head)))
    return _table(head, [(_cut(row[0], max(_WIDTH - others, _SHORTEST)), *row[1:]) for row in rows])


def _check(check: Checked) -> str:
    parts = [style.title(f"{check.entry.step} with {check.entry.arguments} ({check.entry.place})")]
    parts += [line for text in filter(None, (check.where, *check.notes)) for line in _wrapped(text)]
    sections = ["\n".join(parts)]
    if check.rows:
        sections.append("\n".join(f"  {line}" for line in _table(_HEAD, list(_arrays(check.rows))).splitlines()))
        sections.append("\n".join(_places(check.rows)))
    unequal = [f"{row['name']}: {row['problem']}" for row in check.rows if row["problem"]]
    sections += [_listed("Not equal:", unequal)] if unequal else []
    rounding = [line for text in _rounding(check.rows) for line in _wrapped(text)]
    sections += ["\n".join(rounding)] if rounding else []
    sections += ["\n".join(_wrapped(check.problem, ""))] if check.problem else []
    sections += [check.details.rstrip()] if check.details else []
    return "\n\n".join(sections)


def _rounding(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Which arrays differ by rounding, and how that is known, in a sentence or two: other formats have each of them."""
    rounding = [row for row in rows if row.get("rounding")]
    moving = [row for row in rounding if row.get("spread") is not None]
    shrinking = [row for row in rounding if row.get("spread") is None]
    if moving:
        first = max(moving, key=lambda row: float(row["absolute"] or 0.0))
        yield (
            f"Rounding alone, as the original moves as far if disturbed: {counted(len(moving), 'array')}; "
            f"{first['name']} by {amount(first['absolute'])}, {moved_alone(first)}."
        )
    if shrinking:
        wider = ((key, largest(shrinking, key)) for key in ("float64", "float32"))
        there = next((f", in {key} by {most}" for key, most in wider if most != "-"), "")
        yield (
            f"Rounding alone, as it shrinks with the precision: {counted(len(shrinking), 'array')}; at most by "
            f"{largest(shrinking, 'absolute')}{there}."
        )
    known = [row for row in rounding if "error_measure" in row]
    if known:
        worst = max(known, key=_farther)
        yield f"The farthest from float64 beside the original is {worst['name']}: {error_text(worst)}."
    if rounding:
        yield "--format html lists each array."


def _farther(row: Mapping[str, Any]) -> float:
    """How much farther from float64 an array is in the rewritten program."""
    one, other = (math.inf if row[key] is None else float(row[key]) for key in ("original_error", "rewritten_error"))
    return 1.0 if one == other else other / max(one, 1e-300)


def _arrays(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, ...]]:
    """A line for each array, or where there are many, one for all that are equal and one for each that is not.

    Those that are rounding share a line as well: each is listed by itself below.
    """
    rest = list(rows)
    for verdict, role in (
        product(("equal", "rounding", "within tolerance"), ("argument", "result")) if len(rows) > _LISTED else ()
    ):
        alike = [row for row in rest if row["role"] == role and array_verdict(row) == verdict]
        if alike:
            count = f"{len(alike)} {role}{'s' if len(alike) > 1 else ''}"
            yield count, largest(alike, "absolute"), largest(alike, "relative"), verdict
            rest = [row for row in rest if row not in alike]
    for row, name in zip(rest, _told_apart([row["name"] for row in rest]), strict=True):
        yield name, largest([row], "absolute"), largest([row], "relative"), array_verdict(row)


def _told_apart(names: Sequence[str]) -> list[str]:
    """Names of arrays, short enough for the table. Those that would become equal lose what they share instead."""
    alike: dict[str, list[str]] = defaultdict(list)
    for name in names:
        alike[_cut(name, _NAME)].append(name)
    return [_cut(_apart(name, alike[_cut(name, _NAME)]), _NAME) for name in names]


def _apart(name: str, others: Sequence[str]) -> str:
    paths = [_PART.findall(other) for other in others]
    if len(paths) < 2:
        return name
    begin = _in_common(paths)
    end = _in_common([path[: begin - 1 if begin else None : -1] for path in paths])
    parts = _PART.findall(name)
    return f"{'...' * bool(begin)}{''.join(parts[begin : len(parts) - end])}{'...' * bool(end)}"


def _in_common(paths: Sequence[Sequence[str]]) -> int:
    """How many leading parts all paths share; each keeps at least one more."""
    shortest = min(map(len, paths))
    differing = (number for number in range(shortest) if len({path[number] for path in paths}) > 1)
    return min(next(differing, shortest), shortest - 1)


def _places(rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Where arguments live and results end up: how many at each place."""
    places: dict[str, Counter[str]] = defaultdict(Counter)
    for row in rows:
        places[row["where"] or "nowhere"][row["role"]] += 1
    yield "  where they are:"
    for place, counts in places.items():
        numbers = ", ".join(f"{count} {role}{'s' if count > 1 else ''}" for role, count in counts.items())
        yield from _wrapped(f"{place}: {numbers}", "    ")


def _listed(title: str, lines: Iterable[str]) -> str:
    return "\n".join([f"  {title}", *(part for line in lines for part in _wrapped(line, "    "))])


def _wrapped(text: str, indent: str = "  ") -> list[str]:
    return wrapped(text, indent, _WIDTH)


def _cut(text: str, most: int) -> str:
    """A name in at most so many characters, without its middle where it is longer."""
    if len(text) <= most:
        return text
    head = (most - 3) // 3
    return f"{text[:head]}...{text[head + 3 - most :]}"


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns as wide as their widest cell; differences to the right, and a verdict last."""
    lines = [head, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(head))]
    right = [name in ("differs by", "relative") for name in head]

    def padded(line: Sequence[str]) -> str:
        cells = zip(line[:-1], widths, right, strict=False)
        return "  ".join(cell.rjust(width) if to_right else cell.ljust(width) for cell, width, to_right in cells)

    return "\n".join(
        [
            style.head(f"{padded(head)}  {head[-1]}"),
            *(f"{padded(row)}  {style.verdict(row[-1])}" for row in rows),
        ]
    )
