"""The parts of a plan in HTML: meshes, timelines and tables."""

from __future__ import annotations

from collections.abc import Iterable
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mmrewrite.plan.sections import PlanGrid, PlanSection, PlanTable, PlanTimeline

# Viridis (https://bids.github.io/colormap/): its lightness grows all the way, so that neighbouring submeshes differ for
# every kind of colour vision, and in print.
_COLOURS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
_UNUSED = "#e8e8e8"
# WCAG's relative luminance: the shares of red, green and blue, and where black and white text have equal contrast,
# (1 + 0.05) / (L + 0.05) = (L + 0.05) / 0.05. https://www.w3.org/TR/WCAG22/#dfn-relative-luminance
_LUMINANCE, _EQUAL_CONTRAST = (0.2126, 0.7152, 0.0722), 0.18

STYLE = """
ul.notes { margin: .2rem 0 .8rem; padding-left: 1.2rem; color: var(--quiet); }
table { border-collapse: collapse; margin: .2rem 0 1rem; }
th, td { padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); text-align: left; vertical-align: top; }
th { font-weight: 600; color: var(--quiet); }
.number { text-align: right; font-variant-numeric: tabular-nums; }
.wide { overflow-x: auto; margin: 0 0 .6rem; }
.wide > svg { display: block; background: #fff; }
.whole > svg { display: block; max-width: 100%; height: auto; margin: 0 0 .6rem; background: #fff; }
.mesh { border-collapse: separate; border-spacing: 4px; margin-left: -4px; }
.mesh th { border: 0; font-weight: 400; padding: .2rem .6rem .2rem 0; white-space: nowrap; }
.mesh thead th { text-align: center; padding: .2rem; }
.mesh td { border: 0; border-radius: 4px; min-width: 5.5rem; padding: .4rem .6rem; text-align: center;
  line-height: 1.25; }
.mesh tbody th { vertical-align: middle; }
.mesh b { font-size: 1.05rem; }
.mesh small { display: block; }
dl { display: grid; grid-template-columns: max-content auto; gap: .1rem 1rem; margin: .2rem 0 1rem; }
dt { color: var(--quiet); } dd { margin: 0; font-variant-numeric: tabular-nums; font-weight: 600; }
""".strip()


def section_html(section: PlanSection) -> str:
    """One mesh, or one traced step, with its heading."""
    parts = [f"<h2>{inline(section.title)}</h2>", notes_html(section.notes)]
    parts += [_mesh(section.grid)] if section.grid else []
    parts += [_timeline(timeline) for timeline in section.timelines]
    parts += [table_html(table) for table in section.tables]
    return "\n".join(parts)


def notes_html(notes: Iterable[str]) -> str:
    """Remarks as a list."""
    items = "".join(f"<li>{inline(note)}</li>" for note in notes)
    return f'<ul class="notes">{items}</ul>' if items else ""


def inline(text: str) -> str:
    """Escaped text, with backquoted parts as code."""
    pieces = escape(text).split("`")
    if len(pieces) % 2 == 0:
        return "`".join(pieces)
    return "".join(f"<code>{piece}</code>" if index % 2 else piece for index, piece in enumerate(pieces))


def _mesh(grid: PlanGrid) -> str:
    count = 1 + max((owner for owners in grid.owners for owner in owners), default=0)
    head = "".join(f"<th>{escape(name)}</th>" for name in grid.columns)
    rows = []
    for row, name in enumerate(grid.rows):
        cells = []
        for column in range(len(grid.columns)):
            device, owners = grid.cell(row, column)
            fill, ink = _colours(owners[0], count) if owners else (_UNUSED, "#222")
            owner = f"submesh {', '.join(map(str, owners))}" if owners else "not used"
            cells.append(
                f'<td style="background:{fill};color:{ink}"><b>{device}</b><small>{escape(owner)}</small></td>'
            )
        rows.append(f"<tr><th>{escape(name)}</th>{''.join(cells)}</tr>")
    return (
        f'<h3>{escape(grid.title)}</h3>\n<div class="wide"><table class="mesh"><thead><tr><th></th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def _colours(index: int, count: int) -> tuple[str, str]:
    """Background and text color of a submesh."""
    place = index / max(1, count - 1) * (len(_COLOURS) - 1)
    low = min(int(place), len(_COLOURS) - 2)
    share = place - low
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(_COLOURS[low], _COLOURS[low + 1], strict=True))
    light = sum(weight * (part / 255) ** 2.2 for weight, part in zip(_LUMINANCE, (red, green, blue), strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}", "#000" if light > _EQUAL_CONTRAST else "#fff"


def _timeline(timeline: PlanTimeline) -> str:
    from mmrewrite.plan.sections import PAGE_WIDTH

    parts = [f"<h3>{inline(timeline.title)}</h3>", notes_html(timeline.notes)]
    if timeline.simulation is not None:
        width = timeline.readable_width
        parts.append(f'<div class="whole">{timeline.as_svg(PAGE_WIDTH)}</div>')
        if width > PAGE_WIDTH:
            large = f'<div class="wide">{timeline.as_svg(width)}</div>'
            parts.append(
                f"<details><summary>The same, wide enough for the number of each microbatch</summary>{large}</details>"
            )
        items = "".join(f"<dt>{escape(label)}</dt><dd>{escape(text)}</dd>" for label, text in timeline.figures)
        parts.append(f"<dl>{items}</dl>")
    return "\n".join(parts)


def table_html(table: PlanTable) -> str:
    """A table with its title, in a box that scrolls."""
    marks = [' class="number"' if number else "" for number in table.numeric]
    head = "".join(f"<th{mark}>{escape(name)}</th>" for name, mark in zip(table.head, marks, strict=True))
    rows = "\n".join(
        "<tr>" + "".join(f"<td{mark}>{inline(cell)}</td>" for cell, mark in zip(row, marks, strict=True)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<h3>{escape(table.title)}</h3>\n<div class="wide"><table><thead><tr>{head}</tr></thead>\n'
        f"<tbody>{rows}</tbody></table></div>"
    )
