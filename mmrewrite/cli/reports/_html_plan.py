"""The parts of a plan in HTML: meshes, timelines and tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from typing import TYPE_CHECKING

from mmrewrite.cli.reports._html_page import bullets, inline, plan_table, region, section, table

if TYPE_CHECKING:
    from mmrewrite.plan.sections import PlanGrid, PlanSection, PlanTimeline

# Viridis (https://bids.github.io/colormap/): its lightness grows all the way, so that neighbouring submeshes differ for
# every kind of colour vision, and in print.
_COLOURS = ((68, 1, 84), (59, 82, 139), (33, 145, 140), (94, 201, 98), (253, 231, 37))
# WCAG's relative luminance: the shares of red, green and blue, and where black and white text have equal contrast,
# (1 + 0.05) / (L + 0.05) = (L + 0.05) / 0.05. https://www.w3.org/TR/WCAG22/#dfn-relative-luminance
_LUMINANCE, _EQUAL_CONTRAST = (0.2126, 0.7152, 0.0722), 0.18

_STYLE = """
.whole > svg { display: block; width: 100%; min-width: 56rem; height: auto; }
.wide > svg { display: block; }
.timeline text { font-variant-numeric: tabular-nums; }
.mesh { border-collapse: separate; border-spacing: 4px; margin: 0 0 .6rem -4px; width: auto; }
.mesh th { border: 0; font-weight: 400; padding: .2rem .6rem .2rem 0; white-space: nowrap; vertical-align: middle; }
.mesh thead th { text-align: center; padding: .2rem; }
.mesh td { border: 0; }
.mesh td:empty { padding: 0; }
.mesh td:not(:empty) { border-radius: 4px; min-width: 5.5rem; padding: .4rem .6rem; text-align: center;
  line-height: 1.25; }
.mesh .unused { background: var(--band); color: var(--quiet); }
.tables { display: flex; flex-wrap: wrap; gap: 0 3.5rem; } .tables > div { min-width: 0; max-width: 100%; }
.mesh b { font-size: 1.05rem; }
.mesh small { display: block; }
dl { display: grid; grid-template-columns: minmax(8rem, max-content) auto; gap: .15rem 1.2rem; margin: .4rem 0 1rem; }
dt { color: var(--quiet); } dd { margin: 0; font-variant-numeric: tabular-nums; font-weight: 600; }
@media (max-width: 700px) { dl { grid-template-columns: 1fr; } dd { margin-bottom: .4rem; } }
@media (max-width: 480px) { .mesh { border-spacing: 2px; margin-left: -2px; }
  .mesh td:not(:empty) { min-width: 0; padding: .3rem .15rem; font-size: .8rem; } }
@media print { .whole > svg { min-width: 0; } .wide > svg { width: 100%; height: auto; } }
""".strip()


def style_for(sections: Sequence[PlanSection]) -> str:
    """The rules for the parts of some sections, with a class for each submesh of a mesh of so many."""
    from mmrewrite.plan.sections import picture_style

    counts = sorted({_count(each.grid) for each in sections if each.grid is not None})
    rules = [
        f".mesh .{_class(index, count)} {{ background: {fill}; color: {ink}; }}"
        for count in counts
        for index in range(count)
        for fill, ink in [_colours(index, count)]
    ]
    return "\n".join([_STYLE, picture_style(), *rules])


def section_html(shown: PlanSection, number: int, level: int) -> str:
    """One mesh, or one traced step.

    Args:
        shown: The section.
        number: Its place among those of the page.
        level: The level of its heading.
    """
    parts = [bullets(map(inline, shown.notes), "notes")]
    parts += [_mesh(shown.grid, level + 1)] if shown.grid else []
    parts += [_proofs(shown.proofs, level + 1)] if shown.proofs else []
    parts += [_timeline(timeline, level + 1) for timeline in shown.timelines]
    tables = "\n".join(f"<div>{plan_table(each, level + 1)}</div>" for each in shown.tables)
    parts += [f'<div class="tables">{tables}</div>'] if tables else []
    return section(inline(shown.title), parts, f"plan-{number}", level)


def _proofs(lines: Sequence[str], level: int) -> str:
    """How the results of microbatches make up those of the whole batch."""
    title = f"<h{level}>Exactness: how microbatches make up the whole batch</h{level}>"
    return f"{title}\n{bullets(map(inline, lines))}"


def _mesh(grid: PlanGrid, level: int) -> str:
    count = _count(grid)
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in grid.columns)
    rows = []
    for row, name in enumerate(grid.rows):
        cells = []
        for column in range(len(grid.columns)):
            device, owners = grid.cell(row, column)
            mark = _class(owners[0], count) if owners else "unused"
            owner = f"submesh {', '.join(map(str, owners))}" if owners else "not used"
            cells.append(f'<td class="{mark}"><b>{device}</b><small>{escape(owner)}</small></td>')
        label = f'<th scope="row">{escape(name)}</th>' if name else "<td></td>"
        rows.append(f"<tr>{label}{''.join(cells)}</tr>")
    text = f'<table class="mesh"><thead><tr><td></td>{head}</tr></thead>\n<tbody>{"".join(rows)}</tbody></table>'
    return f"<h{level}>{escape(grid.title)}</h{level}>\n{region(text, grid.title)}"


def _count(grid: PlanGrid) -> int:
    return 1 + max((owner for owners in grid.owners for owner in owners), default=0)


def _class(index: int, count: int) -> str:
    return f"submesh-{index}-of-{count}"


def _colours(index: int, count: int) -> tuple[str, str]:
    """Background and text color of a submesh."""
    place = index / max(1, count - 1) * (len(_COLOURS) - 1)
    low = min(int(place), len(_COLOURS) - 2)
    share = place - low
    red, green, blue = (round(a + (b - a) * share) for a, b in zip(_COLOURS[low], _COLOURS[low + 1], strict=True))
    light = sum(weight * (part / 255) ** 2.2 for weight, part in zip(_LUMINANCE, (red, green, blue), strict=True))
    return f"#{red:02x}{green:02x}{blue:02x}", "#000" if light > _EQUAL_CONTRAST else "#fff"


def _timeline(timeline: PlanTimeline, level: int) -> str:
    from mmrewrite.plan.sections import PAGE_WIDTH

    parts = [f"<h{level}>{inline(timeline.title)}</h{level}>", bullets(map(inline, timeline.notes), "notes")]
    if timeline.simulation is not None:
        width = timeline.readable_width
        label = f"Timeline of {timeline.title}"
        parts.append(
            region(timeline.as_svg_in_page(PAGE_WIDTH), label).replace('class="wide"', 'class="wide whole"', 1)
        )
        if width > PAGE_WIDTH:
            parts.append(
                "<details><summary>The same, wide enough for the number of each microbatch</summary>"
                f"{region(timeline.as_svg_in_page(width), f'{label}, wide')}</details>"
            )
        items = "".join(f"<dt>{escape(name)}</dt><dd>{escape(text)}</dd>" for name, text in timeline.figures)
        parts.append(f"<dl>{items}</dl>")
        parts.append(_order(timeline, label))
    return "\n".join(parts)


def _order(timeline: PlanTimeline, label: str) -> str:
    """The picture for those who do not see it: what each submesh runs, in order."""
    assert timeline.simulation is not None
    rows: Iterable[tuple[str, str]] = (
        (str(index), escape(" ".join(map(str, actions))))
        for index, actions in enumerate(timeline.simulation.schedule.rows)
    )
    text = table(f"{label}, as text", ("submesh", "stage, action and microbatch, in order"), rows)
    return f"<details><summary>What each submesh runs, in order, as text</summary>{text}</details>"
