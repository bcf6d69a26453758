"""Rows of actions as aligned text, for printing and for error messages."""

from collections.abc import Collection, Sequence

from mmruntime.schedules._action import Action


def grid(
    rows: Sequence[Sequence[object]],
    fused: Collection[Action] = (),
    *,
    marks: Collection[tuple[int, int]] = (),
    width: int = 24,
) -> str:
    """The rows as aligned text, one line for each submesh.

    Args:
        rows: The cells of each submesh: actions, or other values with a text.
        fused: Actions joined by `+` to the one after them.
        marks: Cells (submesh, position) to put into square brackets. Long rows are cut to the cells around them.
        width: Most cells to show of a row; `...` marks where a row is cut.
    """
    longest = max((len(row) for row in rows), default=0)
    centre = min((position for _, position in marks), default=0)
    first = max(0, min(centre - width // 2, longest - width))
    table = []
    for submesh, row in enumerate(rows):
        cells = [f"submesh {submesh}:"]
        if first:
            cells.append("...")
        for position in range(first, min(first + width, len(row))):
            text = str(row[position])
            if (submesh, position) in marks:
                text = f"[{text}]"
            elif row[position] in fused:
                text += "+"
            cells.append(text)
        if (submesh, len(row)) in marks:
            cells.append("[end]")
        if len(row) > first + width:
            cells.append("...")
        table.append(cells)
    columns = max((len(cells) for cells in table), default=0)
    widths = [max(len(cells[k]) for cells in table if k < len(cells)) for k in range(columns)]
    return "\n".join(" ".join(f"{cell:<{widths[k]}}" for k, cell in enumerate(cells)).rstrip() for cells in table)
