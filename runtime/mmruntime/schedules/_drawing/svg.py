"""Timelines of submeshes as SVG: a lane for each, with its actions, transfers and live activations."""

import math
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape

# Okabe and Ito's palette (https://jfly.uni-koeln.de/color/), whose colours stay distinct with the common kinds of
# colour blindness, and a legible text colour on each. The letter in a cell repeats what its colour says.
COLOURS = {
    "F": ("#56b4e9", "#000", "forward"),
    "B": ("#e69f00", "#000", "whole backward"),
    "I": ("#009e73", "#000", "backward, input half"),
    "W": ("#cc79a7", "#000", "backward, weight half"),
    "R": ("#f0e442", "#000", "forward once more"),
    "": ("#7f7f7f", "#fff", "outside of microbatches"),
}
RECEIVED = ("#0072b2", "receiving")
_INK, _QUIET = "#222", "#555"

# The picture as it is read on a dark ground; cells keep their colours, which are told apart on both. A page that holds
# pictures has these rules among its own; a picture of its own has them in itself.
DARK_STYLE = """
@media screen and (prefers-color-scheme: dark) {
  .timeline .paper { fill: #0d1117; } .timeline .ink { fill: #e6edf3; } .timeline .quiet { fill: #b1bac4; }
  .timeline .axis { stroke: #9da7b1; } .timeline .ground { fill: #1c222a; } .timeline .hatch { stroke: #4a535e; }
  .timeline .live { fill: #3d444d; stroke: #9da7b1; } .timeline .edge { stroke: #0d1117; }
}
""".strip()

_LEFT, _RIGHT, _TOP, _ROW, _LIVE, _GAP, _STRIP = 96, 64, 34, 26, 22, 12, 7


@dataclass(frozen=True)
class LaneCell:
    """A program that a submesh ran.

    Attributes:
        start: Its start.
        end: Its end.
        kinds: The kind of action, or several that ran as one program ("FB"); "" for work outside of microbatches.
        text: Text of its tooltip.
        microbatch: Its microbatch, if any.
        odd: Whether it belongs to every other stage of its submesh, which is drawn with a dark foot.
    """

    start: float
    end: float
    kinds: str
    text: str
    microbatch: int | None = None
    odd: bool = False


@dataclass(frozen=True)
class Lane:
    """The timeline of a submesh.

    Attributes:
        name: Label in front of it.
        cells: Its programs, by start.
        live: Number of live activations from each time on, by time.
        peak: Label behind the live activations.
        received: Start, end and tooltip of each transfer to the submesh.
    """

    name: str
    cells: Sequence[LaneCell]
    live: Sequence[tuple[float, float]]
    peak: str
    received: Sequence[tuple[float, float, str]] = field(default=())


def lanes(
    rows: Sequence[Lane],
    span: float,
    *,
    width: int,
    title: str,
    unit: str = "",
    per_unit: float = 1.0,
    style: str = DARK_STYLE,
) -> str:
    """The lanes as an SVG picture.

    Args:
        rows: The lanes.
        span: Length of the time axis, from 0.
        width: Width in pixels. Labels are left out where a cell is too narrow.
        title: Description of the picture for screen readers.
        unit: Unit of the axis.
        per_unit: Factor from the lanes' times to that unit.
        style: Its style sheet; none for a page that has the rules itself.
    """
    scale = (width - _LEFT - _RIGHT) / (span or 1.0)
    strip = _STRIP if any(lane.received for lane in rows) else 0
    pitch = _ROW + strip + _LIVE + _GAP
    bottom = _TOP + pitch * len(rows)
    height = bottom + 24
    cells = [cell for lane in rows for cell in lane.cells]
    # Characters of the longest label: labels are left out for all cells of a width or for none.
    longest = 1 + len(str(max((cell.microbatch for cell in cells if cell.microbatch is not None), default=0)))
    highest = max([1e-9, *(live for lane in rows for _, live in lane.live)])
    # Pictures on one page must not share the name of their pattern: one that is hidden would hide it from the others.
    name = f"idle-{zlib.crc32(repr((title, width, rows)).encode()):08x}"
    idle = f"url(#{name})"
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" class="timeline" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="system-ui, sans-serif" font-size="12" role="img" '
        f'aria-label="{escape(title)}">',
        *([f"<style>{style}</style>"] if style else []),
        f'<defs><pattern id="{name}" width="6" height="6" patternUnits="userSpaceOnUse" '
        'patternTransform="rotate(45)"><rect class="ground" width="6" height="6" fill="#f4f4f4"/><line class="hatch" '
        'x1="0" y1="0" x2="0" y2="6" stroke="#b4b4b4" stroke-width="1.5"/></pattern></defs>',
        f'<rect class="paper" width="{width}" height="{height}" fill="#fff"/>',
        _legend(cells, bool(strip), idle, width),
    ]
    for number, lane in enumerate(rows):
        top = _TOP + pitch * number
        floor = top + _ROW + strip + _LIVE
        parts.append(_text(_LEFT - 8, top + 18, lane.name, anchor="end"))
        parts.append(_text(_LEFT - 8, floor - 4, "live", _QUIET, anchor="end"))
        parts.append(_box(_LEFT, top, span * scale, _ROW, idle))
        parts.extend(_cell(cell, top, scale, longest) for cell in lane.cells)
        for start, end, tip in lane.received:
            box = _box(_LEFT + start * scale, top + _ROW + 1, max(1.0, (end - start) * scale), strip - 2, RECEIVED[0])
            parts.append(f"<g><title>{escape(tip)}</title>{box}</g>")
        line = "".join(
            f"H{_LEFT + at * scale:.2f}V{floor - (_LIVE - 4) * live / highest:.2f}" for at, live in lane.live
        )
        parts.append(
            f'<path class="live" d="M{_LEFT} {floor}{line}H{_LEFT + span * scale:.2f}V{floor}Z" fill="#d9d9d9" '
            f'stroke="{_QUIET}"/>'
        )
        parts.append(_text(_LEFT + span * scale + 6, floor - 4, lane.peak, _QUIET))
    for tick in _ticks(span * per_unit):
        place = _LEFT + tick / per_unit * scale
        parts.append(
            f'<line class="axis" x1="{place:.2f}" y1="{bottom - 6}" x2="{place:.2f}" y2="{bottom}" stroke="{_QUIET}"/>'
        )
        parts.append(_text(place, bottom + 14, f"{tick:g}", _QUIET, anchor="middle"))
    if unit:
        parts.append(_text(width - 4, bottom + 14, unit, _QUIET, anchor="end"))
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


def _legend(cells: Sequence[LaneCell], receives: bool, idle: str, width: float) -> str:
    """The meaning of the colours that occur, above the cells or as far to the left as a narrow picture needs."""
    kinds = {kind for cell in cells for kind in (cell.kinds or ("",))}
    parts = []
    entries = [(kind, fill, ink, words) for kind, (fill, ink, words) in COLOURS.items() if kind in kinds]
    entries += [("", *RECEIVED[:1], "#fff", RECEIVED[1])] if receives else []
    entries.append(("", idle, _INK, "idle"))
    left = max(8, min(_LEFT, width - sum(40 + 7 * len(entry[-1]) for entry in entries)))
    for letter, fill, ink, words in entries:
        parts.append(
            _box(left, 8, 16, 16, fill) + (_text(left + 8, 20, letter, ink, anchor="middle") if letter else "")
        )
        parts.append(_text(left + 22, 20, words))
        left += 40 + 7 * len(words)
    if any(cell.odd for cell in cells):
        parts.append(_box(left, 8, 16, 16, "#b1bac4") + _box(left, 20, 16, 4, "#000", opacity=0.55))
        parts.append(_text(left + 22, 20, "every other stage of a submesh"))
    return "\n".join(parts)


def _cell(cell: LaneCell, top: float, scale: float, longest: int) -> str:
    left, size = _LEFT + cell.start * scale, (cell.end - cell.start) * scale
    kinds: Sequence[str] = cell.kinds or ("",)
    part = size / len(kinds)
    boxes = []
    for number, kind in enumerate(kinds):
        fill, ink, _ = COLOURS[kind]
        boxes.append(_box(left + number * part, top, part, _ROW, fill, stroke="#fff"))
        if cell.microbatch is None:
            continue
        label = f"{kind}{cell.microbatch}" if part >= 7 * longest + 2 else ""
        if not label and part >= 7 * longest - 5:
            label = str(cell.microbatch)
        if label:
            boxes.append(_text(left + (number + 0.5) * part, top + 16, label, ink, anchor="middle", size=11))
    foot = _box(left, top + _ROW - 4, size, 4, "#000", opacity=0.55) if cell.odd else ""
    return f"<g><title>{escape(cell.text)}</title>{''.join(boxes)}{foot}</g>"


def _ticks(span: float) -> list[float]:
    """Round times from 0 to `span`, about ten of them."""
    if not span:
        return [0.0]
    rough = span / 10
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    return [index * step for index in range(math.floor(span / step * (1 + 1e-9)) + 1)]


def _box(
    left: float, top: float, width: float, height: float, fill: str, *, stroke: str = "", opacity: float = 1
) -> str:
    return (
        f'<rect x="{left:.2f}" y="{top}" width="{width:.2f}" height="{height}" fill="{fill}"'
        + (f' class="edge" stroke="{stroke}" stroke-width="0.5"' if stroke else "")
        + (f' fill-opacity="{opacity}"' if opacity < 1 else "")
        + "/>"
    )


def _text(left: float, base: float, words: str, ink: str = _INK, *, anchor: str = "start", size: int = 12) -> str:
    # What stands on the ground of the page follows its colours; what stands on a cell does not.
    kind = {_INK: ' class="ink"', _QUIET: ' class="quiet"'}.get(ink, "")
    return (
        f'<text{kind} x="{left:.2f}" y="{base}" fill="{ink}" text-anchor="{anchor}" font-size="{size}">'
        f"{escape(words)}</text>"
    )
