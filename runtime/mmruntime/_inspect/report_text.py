"""A report as text: sentences and aligned tables."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import astuple, dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmruntime._inspect.report import LoopSumsRow, Report


@dataclass(frozen=True)
class ReportTable:
    """Rows of text under a head; `str` aligns them."""

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __str__(self) -> str:
        return _aligned(self.title, self.head, self.rows)


def headlines(report: Report) -> tuple[str, ...]:
    """The step, its transfers and its loops, in a sentence each."""
    moved = sum(row.size * row.runs for row in report.transfers)
    lines = [
        *(f"WARNING: {each}" for each in report.pulled),
        f"{report.name}: {len(report.submeshes)} submeshes, {len(report.programs)} programs",
        f"transfers per step: {sum(row.runs for row in report.transfers)}, {_bytes(moved)} in all",
        *_collectives(report),
        *_fullest(report),
        *_processes(report),
        *(
            f"mesh axis {axis}: nothing is cut over it, so its {size} devices compute the same"
            for axis, size in report.idle_axes
        ),
    ]
    for loop in report.loops:
        cut, held = (f", each in {loop.slices} slices", " slices") if loop.slices > 1 else ("", "")
        lines.append(
            f"microbatches: {loop.num_microbatches}{cut}, schedule {loop.schedule}, stages on submeshes "
            f"{', '.join(map(str, loop.stages))}, at most {', '.join(map(str, loop.live))}{held} in flight"
        )
        lines += loop.choice.reasons if loop.choice is not None else ()
    lines += [line for row in report.sums for line in _sums(row)]
    return (*lines, *report.proofs)


def _collectives(report: Report) -> list[str]:
    """How many collectives a step has, if any."""
    count = sum(row.found.count * row.runs for row in report.collectives)
    size = sum(row.found.count * row.runs * row.found.size for row in report.collectives)
    return [f"collectives per step: {count}, {_bytes(size)} on each device in all"] if count else []


def _sums(row: LoopSumsRow) -> list[str]:
    """When a loop adds up over devices."""
    lines = []
    if row.accumulators:
        lines.append(
            f"sums over {', '.join(row.axes)}: {row.accumulators} accumulators, {_bytes(row.device_bytes)} on each "
            f"device, once per step instead of {row.num_microbatches} times"
        )
    if row.kept:
        lines.append(f"sums over devices in each microbatch: {'; '.join(row.kept)}")
    return lines


def _fullest(report: Report) -> list[str]:
    """The submesh whose devices hold most."""
    if not report.memory:
        return []
    row = max(report.memory, key=lambda row: row.held.total)
    return [f"memory per device: at most {_bytes(row.held.total)}, on submesh {_numbers(row.submeshes)}"]


def _numbers(submeshes: Sequence[int]) -> str:
    return ", ".join(map(str, submeshes))


def _processes(report: Report) -> list[str]:
    """Which processes run what, if there are several."""
    if report.transport is None:
        return []
    here = [row.number for row in report.submeshes if report.process in row.processes]
    away = [row for row in report.submeshes if report.process not in row.processes]
    runs = f"runs on submeshes {', '.join(map(str, here))}" if here else "runs none of it"
    lines = [f"processes: this is process {report.process}, which {runs}; arrays go to others by {report.transport}"]
    if away:
        others = ", ".join(f"{row.number} (process {', '.join(map(str, row.processes))})" for row in away)
        lines.append(f"elsewhere: submeshes {others}; their programs are compiled there and not counted here")
    return lines


def tables(report: Report) -> tuple[ReportTable, ...]:
    """The rows of a report, as text in tables."""
    found = [
        _table(
            "Submeshes",
            ("submesh", "axes", "devices", "values per device", "state per device", "peak activations per device"),
            [
                (
                    r.number,
                    r.axes,
                    _ids(r.devices),
                    f"{r.state_elements:,}",
                    _bytes(r.state_bytes),
                    _bytes(r.activation_bytes),
                )
                for r in report.submeshes
            ],
        ),
        _table(
            "Memory per device, when it holds most",
            (
                "submesh",
                "parameters",
                "optimizer state",
                "inputs",
                "gradients",
                "activations",
                "received",
                "results",
                "temporary",
                "in all",
                "while this runs",
            ),
            [
                (
                    _numbers(r.submeshes),
                    *(_bytes(size) for size in astuple(r.held)[:-1]),
                    _bytes(r.held.temporary) if r.counted else "-",
                    _bytes(r.held.total),
                    r.running,
                )
                for r in report.memory
            ],
        ),
        _table(
            "Tasks",
            ("tasks", "submesh", "MFLOP per step"),
            [(", ".join(r.tasks), r.submesh, f"{r.flops / 1e6:.3g}") for r in report.tasks],
        ),
        _table(
            "Programs",
            ("submesh", "tasks", "pass", "equations", "MFLOP per device", "bytes per device", "runs per step"),
            [
                (
                    r.submesh,
                    ", ".join(r.tasks) or "-",
                    r.kind,
                    r.equations,
                    "-" if r.device_flops is None else f"{r.device_flops / 1e6:.3g}",
                    "-" if r.device_bytes is None else _bytes(int(r.device_bytes)),
                    r.runs,
                )
                for r in report.programs
            ],
        ),
        _table(
            "Inputs",
            (
                "input",
                "submesh",
                "type",
                "logical axes",
                "layout",
                "bytes per device",
                "carried",
                "on its submesh because of",
                "laid out because of",
            ),
            [
                (
                    r.name,
                    "-" if r.submesh is None else "all" if r.everywhere else r.submesh,
                    f"{r.dtype}[{','.join(map(str, r.shape))}]",
                    _logical(r.reason.logical),
                    r.spec,
                    _bytes(r.device_bytes),
                    "yes" if r.carried else "",
                    "its size: every device has it" if r.everywhere else r.reason.placed_by,
                    r.reason.laid_out_by,
                )
                for r in report.inputs
            ],
        ),
        _table(
            "Transfers",
            ("from", "to", "arrays", "bytes", "runs per step"),
            [(r.source, r.target, r.arrays, _bytes(r.size), r.runs) for r in report.transfers],
        ),
    ]
    if report.collectives:
        found.append(
            _table(
                "Collectives, between the devices of a submesh",
                ("submesh", "tasks", "collective", "how many", "bytes of each", "runs per step", "line", "why"),
                [
                    (
                        r.submesh,
                        ", ".join(r.tasks) or "-",
                        r.found.kind,
                        r.found.count,
                        _bytes(r.found.size),
                        r.runs,
                        r.found.line or "not known",
                        r.found.why,
                    )
                    for r in report.collectives
                ],
            )
        )
    for loop in report.loops:
        if loop.choice is not None:
            found.append(
                _table(
                    "Named schedules beside the one that was searched for",
                    ("schedule", "time per step", "memory", "fits"),
                    [
                        (other.name, f"{other.time:.6g}", f"{other.memory:g}", "yes" if other.fits else "no")
                        for other in loop.choice.considered
                    ],
                )
            )
    if report.names:
        found.append(
            _table(
                "Logical names without effect",
                ("task", "name", "dimension", "shape", "why"),
                [(r.task, r.name, r.dimension, "x".join(map(str, r.shape)), r.outcome) for r in report.names],
            )
        )
    return tuple(found)


def _table(title: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> ReportTable:
    return ReportTable(title, tuple(head), tuple(tuple(map(str, row)) for row in rows))


def _aligned(title: str, head: Sequence[str], cells: Sequence[Sequence[str]]) -> str:
    if not cells:
        return f"{title}: none"
    widths = [max(len(line[column]) for line in [list(head), *cells]) for column in range(len(head))]
    numeric = [all(_is_number(row[column]) for row in cells) for column in range(len(head))]

    def line(row: Sequence[str]) -> str:
        return "  ".join(
            cell.rjust(width) if right else cell.ljust(width)
            for cell, width, right in zip(row, widths, numeric, strict=True)
        ).rstrip()

    return "\n".join([title, line(head), line(["-" * width for width in widths]), *[line(row) for row in cells]])


def _is_number(text: str) -> bool:
    return re.fullmatch(r"-|[\d,]+(\.\d+)?(e[+-]\d+)?", text) is not None


def _logical(names: Sequence[object] | None) -> str:
    if names is None:
        return "-"
    parts = (entry if isinstance(entry, tuple) else ("-" if entry is None else entry,) for entry in names)
    return ", ".join(" ".join(map(str, part)) for part in parts)


def _ids(ids: Sequence[int]) -> str:
    if len(ids) > 2 and list(ids) == list(range(ids[0], ids[0] + len(ids))):
        return f"{ids[0]}-{ids[-1]}"
    return ",".join(map(str, ids))


def _bytes(count: int) -> str:
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if size < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError
