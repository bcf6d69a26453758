"""Write what others say of named schedules from their records: the table in docs/schedules.md, and the names for hints.

python tools/make_schedules.py
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from mmruntime.schedules._catalog import AUTO, NAMED_SCHEDULES
from mmruntime.schedules._named_schedule import NamedSchedule

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "schedules.md"
BEGIN = "<!-- Made by tools/make_schedules.py from the schedules' records; do not edit by hand. -->\n"
END = "<!-- End of what tools/make_schedules.py makes. -->\n"
# The tool runs where the runtime's requirements need not be installed, and must not take the time to import it.
NAMES = ROOT / "mmrewrite" / "directives" / "schedule_names.py"
HEAD = ("name", "order", "idle time", "idle without a barrier", "activations held", "only if", "placement")


def cells(record: NamedSchedule) -> Iterator[str]:
    """The cells of a schedule's line."""
    forms = record.closed_forms
    most = "at most " if forms.are_bounds else ""
    yield f"[`{record.name}`]({record.source})"
    yield record.summary
    yield most + forms.idle
    yield "the same" if forms.idle_without_barrier is None else most + forms.idle_without_barrier
    yield most + forms.live
    yield ", ".join(forms.only_if)
    yield record.placements.description


def joined(names: Sequence[str]) -> str:
    """Names as code, separated by commas and "and"."""
    marked = [f"`{name}`" for name in names]
    return " and ".join([", ".join(marked[:-1]), marked[-1]] if len(marked) > 1 else marked)


def table(records: Iterable[NamedSchedule]) -> str:
    """The table of the schedules, and sentences about their aliases and backward passes."""
    records = list(records)
    rows = [HEAD, ("---",) * len(HEAD), *(tuple(cells(record)) for record in records)]
    lines = [f"| {' | '.join(row)} |".replace("|  |", "| |") for row in rows]
    aliases = "; ".join(f"{joined(record.aliases)} for `{record.name}`" for record in records if record.aliases)
    halves = joined([record.name for record in records if record.splits_backward])
    return "\n".join([*lines, "", f"Aliases: {aliases}.", f"Backward passes run in two halves in {halves}.", ""])


def page(text: str) -> str:
    """The text of the page with the table renewed between its two markers."""
    before, rest = text.split(BEGIN)
    _, after = rest.split(END)
    return f"{before}{BEGIN}\n{table(NAMED_SCHEDULES.values())}\n{END}{after}"


def names() -> str:
    """The module with the names for hints, and which of them need stages of a kind."""

    records = NAMED_SCHEDULES.values()

    def of(hint: str) -> str:
        found = [f'"{name}"' for each in records if each.placements.hint == hint for name in (each.name, *each.aliases)]
        return ", ".join(found) + ("," if len(found) == 1 else "")

    known = [name for each in records for name in (each.name, *each.aliases)]
    turns, v = of("chunks=2"), of('placement="v"')
    return "\n".join(
        [
            '"""Names and aliases of the schedules; made by tools/make_schedules.py, do not edit."""',
            "",
            "SCHEDULES = (",
            *(f'    "{name}",' for name in (*known, AUTO)),
            ")",
            "",
            "# Those that take turns between several stages of a submesh, and those of stages in a V.",
            f"IN_TURNS = frozenset(({turns}))",
            f"OF_THE_V = frozenset(({v}))",
            "",
        ]
    )


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
    NAMES.write_text(names(), encoding="utf-8")
